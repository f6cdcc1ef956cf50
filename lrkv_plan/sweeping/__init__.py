"""Grids of designs, GPUs, layouts, contexts and batches: evaluated, filtered and reduced."""
