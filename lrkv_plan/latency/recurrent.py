"""How long one recurrent update takes in decode: the convolution, then the state, read and written.

Left out: the projections around it (plain matrices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.errors import UsageError, did_you_mean, shown
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

KINDS = ("gated_delta", "kimi_delta", "mamba2")
# Kinds that no public table has: their state is moved at the typical rate. ``unnamed`` stands for a
# spec that states no update.
UNMEASURED = ("mamba1", "lightning", "gated_lru", "short_conv", "rwkv", "unnamed")
# Typical constants where no GPU of the kind was measured.
PRIOR_T0_S = 4e-6
PRIOR_BETA = 0.7
PRIOR_CONV_T0_S = 3.5e-6
PRIOR_CONV_BETA = 0.3
PRIOR_BAND = (0.6, 1.8)


@dataclass(frozen=True, kw_only=True)
class RecurrentModel(OperationModel):
    """Constants of one recurrent update, in base units."""

    kind: str
    t0_s: float
    bytes_per_s: float
    conv_t0_s: float
    conv_bytes_per_s: float


def recurrent_model(
    hardware: HardwareProfile,
    engine: str,
    kind: str,
    relatives: Sequence[HardwareProfile] = (),
) -> RecurrentModel:
    """The constants to use for recurrent layers of one kind in one engine.

    Raises
    ------
    UsageError
        If the kind is unknown.

    Examples
    --------
    >>> from lrkv_plan.loader import load_hardware
    >>> recurrent_model(load_hardware("mi300x"), "vllm", "mamba2").basis
    'datasheet'
    """
    known = (*KINDS, *UNMEASURED)
    if kind not in known:
        hint = did_you_mean(kind, known)
        raise UsageError(
            f"kind {shown(kind)} of a recurrent layer is unknown{hint}; known: {', '.join(known)}"
        )
    bandwidth = hardware.mem_bandwidth_bytes_per_s
    found = find(hardware, "recurrent", engine, relatives=relatives, kind=kind)
    if found is None:
        note = (
            f"datasheet: no {kind} update was measured on {hardware.generation} GPUs; typical t0 "
            f"{(PRIOR_T0_S + PRIOR_CONV_T0_S) * 1e6:g} us, beta {PRIOR_BETA:g}"
        )
        return RecurrentModel(
            engine=engine, kind=kind, basis="datasheet", notes=(note,), band90=PRIOR_BAND,
            t0_s=PRIOR_T0_S, bytes_per_s=PRIOR_BETA * bandwidth, conv_t0_s=PRIOR_CONV_T0_S,
            conv_bytes_per_s=PRIOR_CONV_BETA * bandwidth,
        )  # fmt: skip
    entry = found.entry
    return RecurrentModel(
        **found.shared(engine),
        kind=kind,
        t0_s=found.t0_s,
        bytes_per_s=entry.beta * bandwidth,
        conv_t0_s=entry.conv_t0_s,
        conv_bytes_per_s=entry.conv_beta * bandwidth,
    )


def conv_update_bytes(channels: Number, conv_width: Number, sequences: Number) -> Number:
    """Bytes that one convolution update moves: its window read and written, a row in and out.

    Scalars of 16 bit; the window keeps ``conv_width - 1`` rows of every channel.

    Examples
    --------
    >>> conv_update_bytes(1000, 4, 2)      # 1000 channels x 2 B x (2 x 3 + 2) x 2 sequences
    32000
    """
    return channels * sequences * 4 * conv_width


def recurrent_time(model: RecurrentModel, state_bytes: Number, conv_bytes: Number) -> OperationTime:
    """The time of one update of one layer.

    Parameters
    ----------
    state_bytes : recurrent state of all sequences of the GPU, read and written: twice its size.
        [bytes]
    conv_bytes : convolution state of all sequences, read and written, with what goes in and out.
        [bytes]

    Raises
    ------
    UsageError
        If a value is negative or not a number.

    Notes
    -----
    t = t0 + state_bytes / (beta BW) + t_conv + conv_bytes / (beta_conv BW)

    Examples
    --------
    >>> model = RecurrentModel(engine="vllm", band90=(0.9, 1.1), basis="measured", t0_s=4e-6,
    ...     kind="gated_delta", bytes_per_s=1e12, conv_t0_s=3e-6, conv_bytes_per_s=1e12)
    >>> f"{recurrent_time(model, 4e6, 1e6).time_s * 1e6:.1f} us"     # 4 + 4 + 3 + 1
    '12.0 us'
    """
    check_numbers(state_bytes=state_bytes, conv_bytes=conv_bytes)
    state_s = model.t0_s + state_bytes / model.bytes_per_s
    return banded(model, state_s + model.conv_t0_s + conv_bytes / model.conv_bytes_per_s)
