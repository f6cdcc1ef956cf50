"""Claims: what was printed, what its inputs give, and which neighbouring reading prints the same.

Leaves out everything that needs a measurement; a claim is arithmetic on stated numbers.
"""
