"""How long dispatch and combine take where experts are spread over GPUs under attention DP.

One exchange of a layer of experts: each rank sends its tokens to the ranks of their experts and
gets the outputs back. Left out: waiting for the slowest rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lrkv_plan.errors import SpecError, UsageError
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
    from lrkv_plan.specs.layer_constants import ExchangeConstants

OTHER_COUNT_FACTOR = 1.3
# Typical constants of one node: the start of the measured kernels, and a token's rows to and from
# every other rank through the link.
PRIOR_T0_S = 40e-6
PRIOR_LINK_EFFICIENCY = 0.4
PRIOR_BAND = (0.6, 2.5)
BYTES_PER_SCALAR = 2


@dataclass(frozen=True, kw_only=True)
class ExchangeModel(OperationModel):
    """Constants of dispatch and combine together, in base units.

    ``scalar_s`` is the time per token of the rank and scalar of its width.
    """

    implementation: str = ""
    t0_s: float
    scalar_s: float


def exchange_model(
    hardware: HardwareProfile,
    engine: str,
    ranks: int,
    *,
    nodes: int = 1,
    relatives: Sequence[HardwareProfile] = (),
) -> ExchangeModel:
    """The constants to use among ``ranks`` GPUs on ``nodes`` nodes.

    Measured for the nearest number of ranks and nodes, by the order of ``operation.find`` among
    GPUs with the same kind of link; a lender's time per token is scaled by the links' rates.

    Raises
    ------
    UsageError
        If ``ranks`` is below 1 or ``nodes`` above it.
    SpecError
        If nothing was measured and the profile states no link.

    Examples
    --------
    >>> from lrkv_plan.loader import load_hardware
    >>> exchange_model(load_hardware("mi300x"), "vllm", 8).basis
    'datasheet'
    """
    if ranks < 1:
        raise UsageError(f"ranks {ranks}: must be at least 1")
    if not 1 <= nodes <= ranks:
        raise UsageError(f"nodes {nodes}: must lie between 1 and the {ranks} ranks")
    if ranks == 1:
        note = "one rank: nothing to exchange"
        return ExchangeModel(
            engine=engine, basis="measured", band90=(1.0, 1.0), notes=(note,), t0_s=0.0,
            scalar_s=0.0,
        )  # fmt: skip
    found = find(hardware, "exchanges", engine, relatives=_same_link(hardware, relatives))
    if found is None:
        return _datasheet(hardware, engine, ranks)
    lender = found.entry.engine
    entry: ExchangeConstants = min(
        (e for e in found.owner.exchanges if e.engine == lender),
        key=lambda e: (abs(math.log(e.nodes / nodes)), abs(math.log(e.ranks / ranks)), e.ranks),
    )
    found = replace(found, entry=entry)
    model = ExchangeModel(
        **found.shared(engine), implementation=entry.implementation, t0_s=entry.t0_s,
        scalar_s=entry.token_s / entry.hidden_size * _link_ratio(found.owner, hardware),
    )  # fmt: skip
    if (entry.ranks, entry.nodes) == (ranks, nodes):
        return model
    note = (
        f"an exchange of {ranks} ranks on {nodes} nodes was not measured: constants of "
        f"{entry.ranks} on {entry.nodes}"
    )
    low, high = model.band90
    wider = (low / OTHER_COUNT_FACTOR, high * OTHER_COUNT_FACTOR)
    basis = "other_shape" if model.basis == "measured" else model.basis
    return replace(model, band90=wider, basis=basis, notes=(*model.notes, note))


def _same_link(
    hardware: HardwareProfile, relatives: Sequence[HardwareProfile]
) -> list[HardwareProfile]:
    """Others whose link is of the same kind."""
    if hardware.link is None:
        return []
    kind = hardware.link.name.split()[0]
    return [o for o in relatives if o.link is not None and o.link.name.split()[0] == kind]


def _link_ratio(owner: HardwareProfile, hardware: HardwareProfile) -> float:
    if owner is hardware or owner.link is None or hardware.link is None:
        return 1.0
    return owner.link.bandwidth_bytes_per_s / hardware.link.bandwidth_bytes_per_s


def _datasheet(hardware: HardwareProfile, engine: str, ranks: int) -> ExchangeModel:
    link = hardware.link
    if link is None:
        raise SpecError(f"{hardware.name}: no link is stated, so no exchange can be predicted")
    note = (
        f"datasheet: no exchange was measured on {hardware.generation} GPUs; t0 "
        f"{PRIOR_T0_S * 1e6:g} us, {PRIOR_LINK_EFFICIENCY:.0%} of {link.name}"
    )
    rate = PRIOR_LINK_EFFICIENCY * link.bandwidth_bytes_per_s
    return ExchangeModel(
        engine=engine, basis="datasheet", notes=(note,), band90=PRIOR_BAND, t0_s=PRIOR_T0_S,
        scalar_s=2 * BYTES_PER_SCALAR * (ranks - 1) / rate,
    )  # fmt: skip


def exchange_time(model: ExchangeModel, tokens: Number, hidden_size: int) -> OperationTime:
    """The time of dispatch and combine of one layer.

    Parameters
    ----------
    tokens : tokens of one rank.
    hidden_size : width of a token.

    Raises
    ------
    UsageError
        If a value is negative or not a number.

    Notes
    -----
    t = t0 + c tokens hidden

    Examples
    --------
    >>> model = ExchangeModel(engine="sglang", band90=(0.9, 1.1), basis="measured", t0_s=40e-6,
    ...                       scalar_s=0.14e-6 / 7168)
    >>> f"{exchange_time(model, 100, 7168).time_s * 1e6:.1f} us"    # 40 + 0.14 * 100
    '54.0 us'
    """
    check_numbers(tokens=tokens, hidden_size=hidden_size)
    return banded(model, model.t0_s + model.scalar_s * tokens * hidden_size)
