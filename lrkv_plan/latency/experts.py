"""How long the routed experts of one layer take, and how many of them a step touches.

From router logits to the combined output: permutation, gate, up, activation, down, combination.
Left out: the router's own matrix, shared experts (plain matrices), and exchange between GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.latency.operands import OperandFormat, operand_format
from lrkv_plan.latency.operation import (
    OperationModel,
    OperationTime,
    banded,
    check_numbers,
    find,
)
from lrkv_plan.memory.exact import is_array
from lrkv_plan.specs.hardware import HardwareProfile

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import Number

MATRICES = 3  # gate, up, down
ACTIVATION_BYTES = 2
# Routing is skewed: n tokens touch the experts that n^0.9 evenly routed ones would. From whole
# steps of public runs; with 1 instead the median error of 1,010 rises from 8.3 to 9.9 %.
SKEW_EXPONENT = 0.9


@dataclass(frozen=True, kw_only=True)
class ExpertModel(OperationModel):
    """Constants of the experts of one layer, in base units.

    ``hot_bytes_per_s`` applies where the active experts fit in the L2, as in benchmarks only.
    """

    t0_s: float
    bytes_per_s: float
    flops_per_s: float
    expert_s: float
    bits_per_weight: float
    hot_bytes_per_s: float


# Typical constants where no GPU of the kind was measured, and what they do on those that were.
PRIOR_T0_S = 27e-6
PRIOR_BETA = 0.89
PRIOR_PHI = 0.18
PRIOR_BAND = (0.65, 1.5)
OTHER_VENDOR_FACTOR = 1.3


def expert_model(
    hardware: HardwareProfile,
    engine: str,
    format_name: str,
    relatives: Sequence[HardwareProfile] = (),
    *,
    own_table: bool = False,
) -> ExpertModel:
    """The constants to use for the experts of one engine in one weight format.

    Parameters and errors are those of ``matrix.matrix_model``.

    Examples
    --------
    >>> from lrkv_plan.loader import load_hardware
    >>> found = expert_model(load_hardware("mi300x"), "vllm", "bf16")
    >>> found.basis, found.t0_s
    ('datasheet', 2.7e-05)
    """
    asked = operand_format(format_name)
    found = find(hardware, "experts", engine, asked.name, relatives=relatives, own_table=own_table)
    if found is None:
        return _datasheet(hardware, engine, asked)
    entry, bandwidth = found.entry, hardware.mem_bandwidth_bytes_per_s
    peaks = hardware.peak_flops_per_s
    peak = entry.peak if entry.peak in peaks else asked.peak_of(hardware)
    return ExpertModel(
        **found.shared(engine),
        t0_s=found.t0_s,
        bytes_per_s=entry.beta * bandwidth,
        flops_per_s=entry.phi * peaks[peak],
        expert_s=entry.expert_s,
        bits_per_weight=asked.bits_per_weight,
        hot_bytes_per_s=(entry.hot_beta or entry.beta) * bandwidth,
    )


def _datasheet(hardware: HardwareProfile, engine: str, asked: OperandFormat) -> ExpertModel:
    peak, bandwidth = asked.peak_of(hardware), hardware.mem_bandwidth_bytes_per_s
    factor = 1.0 if hardware.vendor == "nvidia" else OTHER_VENDOR_FACTOR
    note = (
        f"datasheet: no experts in {asked.name} were measured on {hardware.generation} GPUs; "
        f"typical t0 {PRIOR_T0_S * 1e6:g} us, beta {PRIOR_BETA:g}, phi {PRIOR_PHI:g} of {peak}"
    )
    return ExpertModel(
        engine=engine, format=asked.name, basis="datasheet", notes=(note,),
        band90=(PRIOR_BAND[0] / factor, PRIOR_BAND[1] * factor),
        t0_s=PRIOR_T0_S, bytes_per_s=PRIOR_BETA * bandwidth,
        flops_per_s=PRIOR_PHI * hardware.peak_flops_per_s[peak], expert_s=0.0,
        bits_per_weight=asked.bits_per_weight, hot_bytes_per_s=PRIOR_BETA * bandwidth,
    )  # fmt: skip


def expert_time(
    model: ExpertModel,
    *,
    active: Number,
    rows: Number,
    hidden_size: int,
    inter_size: Number,
    weight_bytes_per_expert: Number | None = None,
    l2_hot: bool = False,
) -> OperationTime:
    """The time of one layer's experts on one GPU.

    Parameters
    ----------
    active : experts of this GPU that at least one token is routed to.
    rows : tokens times experts per token that this GPU computes.
    hidden_size : width of the layer.
    inter_size : width between the matrices on this GPU (the model's over the TP size of experts).
    weight_bytes_per_expert : stored size of the three matrices, where it is known better. [bytes]
    l2_hot : the active experts are read from the L2 (benchmarks of small layers).

    Raises
    ------
    UsageError
        If a value is negative or not a number.

    Notes
    -----
    t = t0 + hypot(bytes / (beta BW), flops / (phi peak)) + c active, with
    bytes = active 3 hidden inter b + 2 rows (2 hidden + 3 inter) and
    flops = 2 rows 3 hidden inter.

    Examples
    --------
    >>> model = ExpertModel(engine="vllm", band90=(0.8, 1.2), basis="measured", t0_s=20e-6,
    ...     bytes_per_s=1e12, flops_per_s=1e15, expert_s=1e-7, bits_per_weight=8,
    ...     hot_bytes_per_s=1e12)
    >>> call = expert_time(model, active=8, rows=8, hidden_size=4096, inter_size=1024)
    >>> f"{call.time_s * 1e6:.1f} us"     # 20 + (8 * 12_582_912 + 180_224) B / 1e12 + 0.8
    '121.6 us'
    """
    check_numbers(active=active, rows=rows, hidden_size=hidden_size, inter_size=inter_size)
    if weight_bytes_per_expert is None:
        scalars = MATRICES * hidden_size * inter_size
        weight_bytes_per_expert = scalars * (model.bits_per_weight / 8)
    else:
        check_numbers(weight_bytes_per_expert=weight_bytes_per_expert)
    memory_s, compute_s = expert_resources(
        model, active=active, rows=rows, hidden_size=hidden_size, inter_size=inter_size,
        weight_bytes_per_expert=weight_bytes_per_expert, l2_hot=l2_hot,
    )  # fmt: skip
    busy_s = (memory_s**2 + compute_s**2) ** 0.5
    return banded(model, model.t0_s + busy_s + model.expert_s * active)


def expert_resources(
    model: ExpertModel,
    *,
    active: Number,
    rows: Number,
    hidden_size: int,
    inter_size: Number,
    weight_bytes_per_expert: Number,
    l2_hot: bool = False,
) -> tuple[Number, Number]:
    """Memory and compute time of one layer's experts, each alone; as in ``expert_time``. [s]"""
    moved = ACTIVATION_BYTES * rows * (2 * hidden_size + MATRICES * inter_size)
    rate = model.hot_bytes_per_s if l2_hot else model.bytes_per_s
    flops = 2 * rows * MATRICES * hidden_size * inter_size
    return (active * weight_bytes_per_expert + moved) / rate, flops / model.flops_per_s


def active_experts(
    n_experts: int, top_k: int, tokens: Number, exponent: float = SKEW_EXPONENT
) -> Number:
    """Expected experts that ``tokens`` tokens are routed to.

    Notes
    -----
    active = E (1 - (1 - k / E)^(tokens^exponent)); exponent 1 is even, independent routing.

    Examples
    --------
    >>> active_experts(256, 8, 1)
    8.0
    >>> round(active_experts(256, 8, 32), 1), round(active_experts(256, 8, 32, exponent=1), 1)
    (131.2, 163.3)
    """
    check_numbers(n_experts=n_experts, top_k=top_k, tokens=tokens)
    left: Any = 1 - top_k / n_experts
    touched: Number = n_experts * (1 - left ** (tokens**exponent))
    return touched


def fullest_rank(mean: Number, ep_size: int, most: Number | None = None) -> Number:
    """Expected largest of ``ep_size`` GPUs that hold ``mean`` each on average.

    Parameters
    ----------
    mean : active experts, or rows, of an average GPU.
    ep_size : GPUs that experts are spread over.
    most : what a GPU can hold at most (its experts); None for rows.

    Notes
    -----
    mean + sqrt(2 mean (1 - mean / most) ln ep_size): the largest of that many draws of a count with
    that mean, bounded by ``most``.

    Examples
    --------
    >>> round(fullest_rank(16.0, 8, most=32), 2)     # 16 + sqrt(2 * 16 * 0.5 * ln 8)
    21.77
    >>> fullest_rank(16.0, 1, most=32)
    16.0
    """
    import math

    check_numbers(mean=mean, ep_size=ep_size)
    if ep_size <= 1:
        return mean
    free: Any = 1.0 if most is None else 1 - mean / most
    if is_array(mean) or is_array(most):
        import numpy as np

        largest = mean + np.sqrt(2 * mean * np.maximum(free, 0.0) * math.log(ep_size))
        bounded: Number = largest if most is None else np.minimum(largest, most)
        return bounded
    fullest: Number = mean + math.sqrt(2 * mean * max(free, 0.0) * math.log(ep_size))
    return fullest if most is None else min(fullest, most)
