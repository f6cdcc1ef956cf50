"""Inputs that nobody would type, and what the program makes of them."""
