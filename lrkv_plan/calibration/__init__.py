"""Measured samples to constants: reading them, fitting them, and judging the fit on other rows."""
