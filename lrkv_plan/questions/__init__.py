"""What people ask, as functions: arguments as a person writes them in, one Result out.

Every function takes a model and a GPU by name, file, mapping or object; numbers as numbers or text
("8k", "50%", "66.89 GiB"). None means: not given. What the answer would not depend on is refused.
The commands call these functions with the options that stand on the command line.
"""
