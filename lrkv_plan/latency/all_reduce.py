"""How long an all-reduce inside a tensor-parallel group takes, and what the answer rests on.

A group that spans domains of the link reduces inside each, then between them over the network.
Left out: messages larger than the constants were fitted on, and traffic of other groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import PlacementError, SpecError, UsageError
from lrkv_plan.latency.operation import like
from lrkv_plan.latency.stand_ins import ENGINES
from lrkv_plan.memory.exact import is_array, smaller
from lrkv_plan.specs.hardware import AllReduceConstants, HardwareProfile, Network

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import Number

# Typical constants where nothing was measured, and what they do on every set measured
# (``scripts/fit_kernels.py`` prints it; the slow end is PCIe among 4 and 8 GPUs).
DATASHEET_T0_S = 6e-6
DATASHEET_EFFICIENCY = 0.75
DATASHEET_BAND = (0.75, 6.25)
OTHER_COUNT_FACTOR = 1.3
GENERATION_FACTOR = 1.25
# What NCCL itself reckons for a small message over several servers (tuning.cc: baseLat and hwLat of
# the tree, LL protocol, and 1.8 on the link; read 2026-12-01): base, each further GPU of a server,
# each doubling of servers; there and back. Engines' own kernels stay inside a server. [s]
NCCL_BASE_S = 6.8e-6
NCCL_LINK_HOP_S = 1.8 * 0.6e-6
NCCL_NETWORK_HOP_S = 5e-6


@dataclass(frozen=True, kw_only=True)
class AllReduceModel:
    """Constants of one group size in base units, with what they rest on (see ``KernelModel``)."""

    n_gpus: int
    t0_s: float
    link_bytes_per_s: float
    two_shot_s: float | None
    band90: tuple[float, float]
    basis: str
    backend: str = ""
    held_out_median_error: float | None = None
    n_domains: int = 1
    network_bytes_per_s: float = math.inf
    notes: tuple[str, ...] = ()

    @property
    def n_inside(self) -> int:
        """GPUs of the group in one domain of the link."""
        return self.n_gpus // self.n_domains


@dataclass(frozen=True, kw_only=True)
class AllReduceTime:
    """A predicted time with its 90 % band; arrays where the message size was one."""

    time_s: Number
    low_s: Number
    high_s: Number
    model: AllReduceModel | None


def allreduce_time(model: AllReduceModel, message_bytes: Number) -> AllReduceTime:
    """The time to sum one message over all GPUs of a group.

    Parameters
    ----------
    model
        Constants, from ``allreduce_model``.
    message_bytes : size of the summed tensor on each GPU. [bytes]

    Returns
    -------
    AllReduceTime: seconds; 0 for a group of one.

    Raises
    ------
    UsageError
        If the size is negative or not a number.

    Notes
    -----
    t = t0 + min(m (P-1) / (f L), t_two + m 2 (P-1)/P / (f L)), m bytes over P GPUs, L the link per
    direction. Left: every GPU reads what all others hold (one shot); right: reduce-scatter, then
    all-gather (two shots). Without ``two_shot_s`` only the right side, with t_two = 0. Over N
    domains P is the GPUs of one, and (m/P) 2 (N-1)/N bytes over each GPU's network are added.

    Examples
    --------
    >>> model = AllReduceModel(n_gpus=8, t0_s=4e-6, link_bytes_per_s=350e9, two_shot_s=9e-6,
    ...                        band90=(0.9, 1.1), basis="measured")
    >>> f"{allreduce_time(model, 8192 * 2).time_s * 1e6:.2f} us"  # 4 + 7 * 16384 B / 350 GB/s
    '4.33 us'
    """
    is_good = (
        (message_bytes >= 0).all()  # type: ignore[union-attr]
        if is_array(message_bytes)
        else message_bytes >= 0
    )
    if not is_good:
        raise UsageError(f"message_bytes {message_bytes!r}: must be numbers from 0")
    others = model.n_inside - 1
    if model.n_gpus == 1:
        nothing = 0.0 * message_bytes
        return AllReduceTime(time_s=nothing, low_s=nothing, high_s=nothing, model=model)
    seconds_per_byte = 1 / model.link_bytes_per_s
    sent_s: Any = message_bytes * (2 * others / model.n_inside * seconds_per_byte)
    if model.two_shot_s is not None:
        one_shot_s: Any = message_bytes * (others * seconds_per_byte)
        sent_s = smaller(one_shot_s, model.two_shot_s + sent_s)
    time_s = model.t0_s + sent_s + _between_domains(model, message_bytes)
    low, high = model.band90
    return AllReduceTime(time_s=time_s, low_s=time_s * low, high_s=time_s * high, model=model)


def _between_domains(model: AllReduceModel, message_bytes: Number) -> Any:
    """What each GPU's share of the message takes over the network. [s]"""
    n = model.n_domains
    share = 2 * (n - 1) / n / model.n_inside
    return message_bytes * (share / model.network_bytes_per_s)


def nccl_start_s(n_inside: int, n_domains: int) -> float:
    """How NCCL reckons that a small message starts over several servers. [s]

    Examples
    --------
    >>> f"{nccl_start_s(8, 2) * 1e6:.1f} us"  # 6.8 + 2 x (7 x 1.08 + 1 x 5)
    '31.9 us'
    """
    hops = (n_inside - 1) * NCCL_LINK_HOP_S + math.log2(n_domains) * NCCL_NETWORK_HOP_S
    return NCCL_BASE_S + 2 * hops


def domains_of(profile: HardwareProfile, n_gpus: int) -> int:
    """How many domains of its link a group spans; 1 where the profile states none.

    Raises
    ------
    PlacementError
        If the group fills them unevenly.
    """
    inside = profile.link and profile.link.n_gpus
    if not inside or n_gpus <= inside:
        return 1
    n_domains = math.ceil(n_gpus / inside)
    if n_gpus % n_domains:
        raise PlacementError(
            f"{n_gpus} GPUs of {profile.name} span {n_domains} domains of {inside} unevenly; "
            "allowed: a multiple of their number"
        )
    return n_domains


def allreduce_model(
    profile: HardwareProfile,
    n_gpus: int,
    *,
    engine: str | None = None,
    relatives: Sequence[HardwareProfile] = (),
) -> AllReduceModel:
    """The constants to use for a group of ``n_gpus``, of the engine's own kernel where measured.

    Measured for that size on this GPU; measured there for another size; measured on a GPU of the
    same generation, in the order of ``operation.like``; the datasheet's link with a typical
    efficiency.

    Raises
    ------
    UsageError
        If ``n_gpus`` is below 1.
    SpecError
        If nothing was measured and the profile states no link.

    Examples
    --------
    >>> from lrkv_plan.loader import load_hardware
    >>> allreduce_model(load_hardware("h200"), 8).basis
    'measured'
    """
    if n_gpus < 1:
        raise UsageError(f"n_gpus {n_gpus}: must be at least 1")
    if n_gpus == 1:
        return AllReduceModel(
            n_gpus=1, t0_s=0.0, link_bytes_per_s=1.0, two_shot_s=None, band90=(1.0, 1.0),
            basis="exact", notes=("one GPU: nothing to reduce",),
        )  # fmt: skip
    n_domains = domains_of(profile, n_gpus)
    if n_domains > 1 and profile.link is not None and profile.link.beyond is not None:
        inside = allreduce_model(profile, n_gpus // n_domains, engine=engine, relatives=relatives)
        return _over_network(inside, n_gpus, n_domains, profile.link.beyond)
    for owner in (profile, *_same_link(profile, relatives)):
        if owner.allreduce:
            return _from_entries(profile, owner, n_gpus, engine)
    return _datasheet(profile, n_gpus)


def _over_network(
    inside: AllReduceModel, n_gpus: int, n_domains: int, network: Network
) -> AllReduceModel:
    n_inside = n_gpus // n_domains
    start_s = nccl_start_s(n_inside, n_domains)
    note = (
        f"{n_domains} domains of {n_inside} GPUs: NCCL over {network.name} at "
        f"{DATASHEET_EFFICIENCY:.0%} of its rate, from {start_s * 1e6:.0f} us on by NCCL's own "
        "estimate; not measured"
    )
    low, high = inside.band90
    return replace(
        inside, n_gpus=n_gpus, n_domains=n_domains, basis="datasheet", t0_s=start_s,
        two_shot_s=None,
        network_bytes_per_s=DATASHEET_EFFICIENCY * network.bandwidth_bytes_per_s,
        band90=(min(low, DATASHEET_BAND[0]), max(high, DATASHEET_BAND[1])),
        held_out_median_error=None, backend="", notes=(*inside.notes, note),
    )  # fmt: skip


def _same_link(
    profile: HardwareProfile, relatives: Sequence[HardwareProfile]
) -> list[HardwareProfile]:
    """Others of the same generation whose link is of the same kind."""
    if profile.link is None:
        return []
    kind = profile.link.name.split()[0]
    return [
        other for other in like(profile, relatives)
        if other.generation == profile.generation
        and other.link is not None and other.link.name.split()[0] == kind
    ]  # fmt: skip


PREFIX_OF = {"tensorrt_llm": "trtllm"}  # of backends; others are called as their engine


def _from_entries(
    profile: HardwareProfile, owner: HardwareProfile, n_gpus: int, engine: str | None
) -> AllReduceModel:
    asked = _prefix(engine or "")
    own = [e for e in owner.allreduce if _measured_as(e) == asked]
    usual = [e for e in owner.allreduce if _measured_as(e) == _measured_as(owner.allreduce[0])]
    engines = [_prefix(name) for name in ENGINES]
    # Measured by its owner (``calibrate tensor-parallel``): before what engines' tables say.
    mine = [e for e in owner.allreduce if e.n_gpus == n_gpus and _measured_as(e) not in engines]
    entry = min(mine or own or usual, key=lambda e: (abs(e.n_gpus - n_gpus), e.n_gpus))
    found = _as_model(profile, owner, entry)
    if entry.n_gpus != n_gpus:
        note = f"{n_gpus} GPUs were not measured: constants of {entry.n_gpus} GPUs"
        found = _widened(replace(found, n_gpus=n_gpus), OTHER_COUNT_FACTOR, "other_shape", note)
    if owner is not profile:
        note = f"not measured on {profile.name}: constants of {owner.name}, same generation"
        found = replace(
            _widened(found, GENERATION_FACTOR, "generation", note), held_out_median_error=None
        )
    return found


def _prefix(engine: str) -> str:
    return PREFIX_OF.get(engine, engine)


def _measured_as(entry: AllReduceConstants) -> str:
    """Whose kernel was measured: the first word of the backend."""
    return entry.backend.split("/")[0]


def _as_model(
    profile: HardwareProfile, owner: HardwareProfile, entry: AllReduceConstants
) -> AllReduceModel:
    link = profile.link or owner.link
    if link is None:
        raise SpecError(f"{owner.name}: allreduce needs a link")
    held = [n for n in ("t0_s", "link_efficiency", "two_shot_s") if n not in entry.identified]
    if entry.two_shot_s is None:
        held = [n for n in held if n != "two_shot_s"]
    notes = [f"all-reduce: {', '.join(held)} not identified: held at the prior"] if held else []
    notes += [f"all-reduce: {entry.remark}"] if entry.remark else []
    return AllReduceModel(
        n_gpus=entry.n_gpus, t0_s=entry.t0_s,
        link_bytes_per_s=entry.link_efficiency * link.bandwidth_bytes_per_s,
        two_shot_s=entry.two_shot_s, band90=entry.band90, basis="measured",
        backend=entry.backend, held_out_median_error=entry.held_out_median_error,
        notes=tuple(notes),
    )  # fmt: skip


def _widened(found: AllReduceModel, factor: float, basis: str, note: str) -> AllReduceModel:
    low, high = found.band90
    return replace(
        found, band90=(low / factor, high * factor), basis=basis, notes=(*found.notes, note)
    )


def _datasheet(profile: HardwareProfile, n_gpus: int) -> AllReduceModel:
    if profile.link is None:
        raise SpecError(f"{profile.name}: no link is stated, so no all-reduce can be predicted")
    note = (
        f"datasheet: no all-reduce was measured on {profile.generation} GPUs; "
        f"t0 {DATASHEET_T0_S * 1e6:g} us, {DATASHEET_EFFICIENCY:.0%} of {profile.link.name}"
    )
    return AllReduceModel(
        n_gpus=n_gpus, t0_s=DATASHEET_T0_S,
        link_bytes_per_s=DATASHEET_EFFICIENCY * profile.link.bandwidth_bytes_per_s,
        two_shot_s=None, band90=DATASHEET_BAND, basis="datasheet", notes=(note,),
    )  # fmt: skip
