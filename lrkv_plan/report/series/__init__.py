"""Results of models and calculators as figures: one function per kind of picture."""
