"""How long a product batched over heads takes, such as MLA's two absorptions.

``[heads, m, rows] x [heads, rows, cols]``: query times key expansion, output times value expansion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.latency.operands import operand_format
from lrkv_plan.latency.operation import (
    OperationModel,
    OperationTime,
    banded,
    check_numbers,
    find,
)
from lrkv_plan.specs.hardware import HardwareProfile

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import Number

# The shape that was measured: DeepSeek's 128 x 512 in every head.
MEASURED_WEIGHTS_PER_HEAD = 128 * 512
# Typical constants where no GPU of the kind was measured: H100 and H200 in bf16.
PRIOR_T0_S = 4.3e-6
PRIOR_HEAD_S = 1.1e-8
PRIOR_TOKEN_SCALE = 40.0
PRIOR_BANDWIDTH = 3.35e12  # of the GPU that these were measured on
PRIOR_BAND = (0.6, 1.6)


@dataclass(frozen=True, kw_only=True)
class ProductModel(OperationModel):
    """Constants of one batched product, in base units."""

    t0_s: float
    head_s: float
    token_scale: float


def product_model(
    hardware: HardwareProfile,
    engine: str,
    format_name: str = "bf16",
    relatives: Sequence[HardwareProfile] = (),
) -> ProductModel:
    """The constants to use for batched products of one engine in one format.

    Parameters and errors are those of ``matrix.matrix_model``. A lender's time per head is scaled
    by the ratio of bandwidths.

    Examples
    --------
    >>> from lrkv_plan.loader import load_hardware
    >>> product_model(load_hardware("mi300x"), "vllm").basis
    'datasheet'
    """
    asked = operand_format(format_name)
    bandwidth = hardware.mem_bandwidth_bytes_per_s
    found = find(hardware, "products", engine, asked.name, relatives=relatives)
    if found is None:
        note = (
            f"datasheet: no batched product in {asked.name} was measured on {hardware.generation} "
            f"GPUs; typical t0 {PRIOR_T0_S * 1e6:g} us"
        )
        return ProductModel(
            engine=engine, format=asked.name, basis="datasheet", notes=(note,), band90=PRIOR_BAND,
            t0_s=PRIOR_T0_S, head_s=PRIOR_HEAD_S * PRIOR_BANDWIDTH / bandwidth,
            token_scale=PRIOR_TOKEN_SCALE,
        )  # fmt: skip
    scale = found.owner.mem_bandwidth_bytes_per_s / bandwidth
    return ProductModel(
        **found.shared(engine),
        t0_s=found.t0_s,
        head_s=found.entry.head_s * scale,
        token_scale=found.entry.token_scale,
    )


def product_time(
    model: ProductModel, m: Number, heads: Number, *, rows: int = 128, cols: int = 512
) -> OperationTime:
    """The time of one product of ``m`` tokens with a matrix of rows x cols in every head.

    Parameters
    ----------
    m : tokens of the rank.
    heads : heads on this GPU.
    rows, cols : the matrix of a head; measured at 128 x 512, others by their weights.

    Raises
    ------
    UsageError
        If a value is negative or not a number.

    Notes
    -----
    t = t0 + head_s heads (1 + m / token_scale) rows cols / (128 * 512)

    Examples
    --------
    >>> model = ProductModel(engine="vllm", band90=(0.9, 1.1), basis="measured", t0_s=4e-6,
    ...                      head_s=1e-8, token_scale=40.0)
    >>> f"{product_time(model, 40, 128).time_s * 1e6:.2f} us"     # 4 + 1.28 * (1 + 1)
    '6.56 us'
    """
    check_numbers(m=m, heads=heads, rows=rows, cols=cols)
    share = rows * cols / MEASURED_WEIGHTS_PER_HEAD
    busy_s = model.head_s * heads * (1 + m / model.token_scale) * share
    return banded(model, model.t0_s + busy_s)
