"""One file per attention family: its fields, its layout, what it weighs and computes."""
