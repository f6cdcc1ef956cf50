"""All quantities, registered by importing the files that define them."""

from lrkv_plan.audit import design_quantities, number_quantities  # noqa: F401  (registers)
from lrkv_plan.audit.registry import QUANTITIES, Quantity, quantity, quantity_named

__all__ = ["QUANTITIES", "Quantity", "quantity", "quantity_named"]
