"""One decode step of one attention layer, on real tensors, for every family and path.

Importing this package imports torch; without it the import ends in one line (CalibrationError).
Shapes: B sequences, H query heads on this GPU, q query tokens, T cached tokens, w a row's width.
"""

from lrkv_plan.calibration.torch_gate import require_torch

require_torch()
