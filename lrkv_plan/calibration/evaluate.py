"""How far predictions are from a table of measured calls, group by group.

Either with the constants that hardware profiles ship, or refitted with whole head configurations
left out (which needs scipy). Rows that nothing can predict are counted, never dropped silently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.calibration.samples import KernelSamples, group_key, samples_of, table_kernel
from lrkv_plan.errors import CalibrationError, SpecError, UsageError
from lrkv_plan.latency.kernel import KernelModel, kernel_model, kernel_time
from lrkv_plan.specs.hardware import HardwareProfile

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray

Row = dict[str, str]
Profiles = Callable[[str], HardwareProfile]


@dataclass(frozen=True, kw_only=True)
class GroupError:
    """Errors |predicted / measured - 1| of one group; None where nothing could be predicted.

    ``in_band`` is the share of rows inside the 90 % band of their prediction.
    """

    gpu: str
    backend: str
    family: str
    kv_dtype: str
    regime: str
    n: int
    median_error: float | None
    p90_error: float | None
    max_error: float | None
    in_band: float | None
    basis: str
    note: str = ""


def evaluate(
    rows: Sequence[Row],
    profile_of: Profiles,
    *,
    relatives: Sequence[HardwareProfile] = (),
    held_out: bool = False,
) -> list[GroupError]:
    """Errors by GPU, backend, family, storage format and regime.

    Parameters
    ----------
    rows : measured calls, as ``samples.read_rows`` reads them. Flagged rows, known to take another
        path, are groups of their own.
    profile_of : the hardware profile of a GPU name; raises ``SpecError`` for an unknown one.
    held_out : refit with whole head configurations left out and judge those, instead of the
        shipped constants.

    Raises
    ------
    CalibrationError
        If a cell is not a number, or scipy is missing for ``held_out``.
    """
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        key = group_key(row)
        groups[
            key.gpu, key.backend, row["family"], key.kv_dtype, key.regime, row.get("flag") or ""
        ].append(row)
    judge = _refitted if held_out else _shipped
    return [_group(key, members, profile_of, relatives, judge) for key, members in groups.items()]


Judgement = tuple["FloatArray", "FloatArray", str, str]  # ratio, in band, basis, note
Judge = Callable[
    [tuple[str, ...], list[Row], HardwareProfile, Sequence[HardwareProfile]], Judgement
]


def _group(
    key: tuple[str, ...],
    members: list[Row],
    profile_of: Profiles,
    relatives: Sequence[HardwareProfile],
    judge: Judge,
) -> GroupError:
    import numpy as np

    gpu, backend, family, kv_dtype, regime, flag = key
    named = {"gpu": gpu, "backend": backend, "family": family, "kv_dtype": kv_dtype}
    try:
        ratio, inside, basis, note = judge(key, members, profile_of(gpu), relatives)
    except (SpecError, UsageError) as error:
        return GroupError(
            **named, regime=regime, n=len(members), median_error=None, p90_error=None,
            max_error=None, in_band=None, basis="not predicted", note=str(error),
        )  # fmt: skip
    judged = ~np.isnan(ratio)
    if not judged.any():
        return GroupError(
            **named, regime=regime, n=len(members), median_error=None, p90_error=None,
            max_error=None, in_band=None, basis=basis, note=note or "too few rows to judge",
        )  # fmt: skip
    errors = np.abs(ratio[judged] - 1)
    unjudged = int((~judged).sum())
    notes = [note, f"flag: {flag}" if flag else "", f"{unjudged} rows not judged" * bool(unjudged)]
    return GroupError(
        **named,
        regime=regime,
        n=len(members),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        max_error=float(errors.max()),
        in_band=float(inside[judged].mean()),
        basis=basis,
        note="; ".join(filter(None, notes)),
    )


def _shipped(
    key: tuple[str, ...],
    members: list[Row],
    profile: HardwareProfile,
    relatives: Sequence[HardwareProfile],
) -> Judgement:
    """Predicted / measured with the constants that profiles ship."""
    import numpy as np

    ratio, inside = np.full(len(members), np.nan), np.full(len(members), np.nan)
    shapes: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(members):
        shapes[row["n_heads"], row["n_kv_heads"], row["head_dim"]].append(index)
    bases: dict[str, None] = {}
    notes: dict[str, None] = {}
    for indices in shapes.values():
        chosen = [members[i] for i in indices]
        samples = samples_of(chosen, bandwidth=1.0, peak=1.0)
        model, note = _constants(key, samples, profile, relatives)
        call = kernel_time(model, samples.n_bytes, samples.flops, samples.work_units)
        ratio[indices] = call.time_s / samples.time_s
        inside[indices] = (samples.time_s >= call.low_s) & (samples.time_s <= call.high_s)
        bases[model.basis] = None
        notes[note] = None
    return ratio, inside, ", ".join(sorted(bases)), "; ".join(filter(None, notes))


def _constants(
    key: tuple[str, ...],
    samples: KernelSamples,
    profile: HardwareProfile,
    relatives: Sequence[HardwareProfile],
) -> tuple[KernelModel, str]:
    """The backend's own constants, else the preferred ones, with a note that says so."""
    _, backend, family, kv_dtype, regime, _ = key
    kernel = table_kernel(family)
    told = {
        "query_heads_per_kv_head": max(1, round(float(samples.query_heads_per_kv_head[0]))),
        "head_dim": int(samples.head_dim[0]) if kernel.calls and kernel.calls.by_head_dim else None,
        "regime": "l2_hot" if regime == "l2_hot" else "cold",
    }
    try:
        return kernel_model(profile, kernel.name, kv_dtype, backend=backend, **told), ""  # type: ignore[arg-type]
    except UsageError:
        model = kernel_model(profile, kernel.name, kv_dtype, relatives=relatives, **told)  # type: ignore[arg-type]
        return model, f"no constants of {backend}: those of {model.backend or model.basis} are used"


def _refitted(
    key: tuple[str, ...],
    members: list[Row],
    profile: HardwareProfile,
    relatives: Sequence[HardwareProfile],
) -> Judgement:
    """Predicted / measured with constants fitted on the other head configurations."""
    import numpy as np

    del relatives
    try:
        from lrkv_plan.calibration.selection import by_head_configuration, judged
    except ImportError as error:
        raise CalibrationError(
            f"--held-out refits and needs scipy ({error}): pip install 'lrkv-plan[calibrate]'"
        ) from None
    kernel = table_kernel(key[2]).name
    if "bf16" not in profile.peak_flops_per_s:
        raise SpecError(f"{profile.name}: no bf16 peak, which a refit states phi against")
    samples = samples_of(
        members,
        bandwidth=profile.mem_bandwidth_bytes_per_s,
        peak=profile.peak_flops_per_s["bf16"],
    )
    log_errors, inside = judged(kernel, samples, by_head_configuration(samples))
    return np.exp(-log_errors), inside.astype(float), "held-out head configurations", ""
