"""What serving engines make of a memory budget: one allocation rule each."""
