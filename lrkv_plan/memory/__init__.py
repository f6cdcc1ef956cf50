"""Arithmetic on layouts: numbers in, frozen results out; no files, no printing."""
