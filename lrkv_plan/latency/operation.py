"""What the times of a layer's operations share: the record of a time, and whose constants apply.

Order of look-up: this GPU and engine; the same engine on another GPU of the generation; another
engine on this GPU; another engine of the generation; else nothing, and the caller takes typical
constants. Each step widens the band and says so in a note. ``stand_ins`` come before all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lrkv_plan.errors import UsageError
from lrkv_plan.latency.stand_ins import ENGINES, SAME_KERNELS, stand_in
from lrkv_plan.memory.exact import is_array
from lrkv_plan.specs.fitted import FittedEntry
from lrkv_plan.specs.hardware import HardwareProfile

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import Number


@dataclass(frozen=True, kw_only=True)
class OperationModel:
    """What every model of an operation states about its constants.

    ``basis`` is measured, generation, other_engine, other_generation or datasheet; ``gpu`` and
    ``lender`` are the GPU and engine that were measured (empty: none). ``band90`` are factors: 90 %
    of held-out measurements lie between ``time * band90[0]`` and ``time * band90[1]``.
    """

    engine: str
    format: str = ""
    gpu: str = ""
    lender: str = ""
    band90: tuple[float, float]
    basis: str
    held_out_median_error: float | None = None
    held_out_p90_error: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OperationTime:
    """A predicted time and its 90 % band; arrays where the inputs were arrays."""

    time_s: Number
    low_s: Number
    high_s: Number
    model: OperationModel


def banded(model: OperationModel, time_s: Number) -> OperationTime:
    """The time with its band."""
    low, high = model.band90
    return OperationTime(time_s=time_s, low_s=time_s * low, high_s=time_s * high, model=model)


def check_numbers(**values: Number) -> None:
    """Refuse what is negative or not a number.

    Raises
    ------
    UsageError
        Naming the argument.
    """
    for name, value in values.items():
        is_good = (value >= 0).all() if is_array(value) else value >= 0  # type: ignore[union-attr]
        if not is_good:
            raise UsageError(f"{name} {value!r}: must be numbers from 0")


# How far constants carry, as factors on both ends of a band: what holds 90 % of the rows of four in
# five other tables (``scripts/fit_layers.py`` prints it).
GENERATION_FACTOR = 1.10
ENGINE_FACTOR = 1.25
OTHER_GENERATION_FACTOR = 1.40
# Expert kernels differ by engine more than by GPU.
ENGINE_FACTORS = {"experts": 1.65}
OTHER_GENERATION_FACTORS = {"experts": 1.75}

Entry = TypeVar("Entry", bound=FittedEntry)


@dataclass(frozen=True, kw_only=True)
class Found(Generic[Entry]):
    """Constants that apply, the GPU that they were measured on, and by how much they widen."""

    operation: str
    entry: Entry
    owner: HardwareProfile
    basis: str
    factor: float
    t0_s: float
    notes: tuple[str, ...]

    def shared(self, engine: str) -> dict[str, Any]:
        """Fields of the ``OperationModel``; errors only where they are of this very table."""
        entry, own = self.entry, self.basis == "measured"
        held = [n for n in ("t0_s", "beta", "phi") if hasattr(entry, n)]
        held = [n for n in held if n not in entry.identified]
        whose = " in ".join(filter(None, (self.operation, getattr(entry, "format", ""))))
        notes = [f"{whose}: {', '.join(held)} not identified: held at the prior"] if held else []
        notes += [f"{whose}: {entry.remark}"] if entry.remark else []
        return {
            "engine": engine, "format": getattr(entry, "format", ""), "gpu": self.owner.name,
            "lender": getattr(entry, "engine", ""),
            "band90": (entry.band90[0] / self.factor, entry.band90[1] * self.factor),
            "basis": self.basis, "notes": (*notes, *self.notes),
            "held_out_median_error": entry.held_out_median_error if own else None,
            "held_out_p90_error": entry.held_out_p90_error if own else None,
        }  # fmt: skip


def find(
    hardware: HardwareProfile,
    operation: str,
    engine: str,
    format_name: str = "",
    *,
    relatives: Sequence[HardwareProfile] = (),
    own_table: bool = False,
    **wanted: Any,
) -> Found[Any] | None:
    """The constants of an operation (a list of the profile) for one engine; None where none are.

    ``own_table`` leaves ``stand_ins`` aside: what the engine's benchmark showed, not what it runs.
    ``wanted`` are further fields that an entry must have, such as ``kind``.
    """
    runs = SAME_KERNELS.get(engine, engine)
    notes: tuple[str, ...] = ()
    factor, basis, t0_s = 1.0, "measured", None
    instead = None
    if not own_table:
        instead = stand_in(operation, runs, format_name, hardware.generation)
    fields = {"format": format_name, **wanted} if format_name else dict(wanted)
    if instead is not None:
        lender, t0_s = instead.take_engine or runs, instead.t0_s
        fields["format"] = instead.take_format or format_name
        factor, basis = GENERATION_FACTOR, "other_engine"
        notes = (f"{operation} of {runs} in {format_name}: constants of {lender} in "
                 f"{fields['format']}; {instead.reason}",)  # fmt: skip
        runs = lender
    for owner, lender in _lenders(hardware, runs, relatives):
        for entry in getattr(owner, operation):
            if entry.engine == lender and all(getattr(entry, k) == v for k, v in fields.items()):
                return _found(
                    hardware, owner, entry, operation, runs, factor=factor, basis=basis,
                    t0_s=t0_s, notes=notes,
                )  # fmt: skip
    return None


def _lenders(
    hardware: HardwareProfile, engine: str, relatives: Sequence[HardwareProfile]
) -> Iterator[tuple[HardwareProfile, str]]:
    """(GPU, engine) in the order in which their constants are taken."""
    others = [name for name in ENGINES if name != engine]
    kin = like(hardware, relatives)
    yield hardware, engine
    yield from ((owner, engine) for owner in kin)
    yield from ((hardware, name) for name in others)
    yield from ((owner, name) for owner in kin for name in others)


def like(hardware: HardwareProfile, relatives: Sequence[HardwareProfile]) -> list[HardwareProfile]:
    """Other GPUs that may lend constants: those of its generation that it takes after, the others
    of the generation by name, and last those of another generation that it takes after.

    The order does not depend on a GPU's rates: a faster one would take others' constants, and could
    come out slower.
    """
    by_name = {other.name: other for other in relatives if other.name != hardware.name}
    after = [by_name[name] for name in hardware.takes_after if name in by_name]
    alike = [by_name[name] for name in sorted(by_name)]
    alike = [other for other in alike if other.generation == hardware.generation]
    first = [other for other in after if other in alike]
    rest = [other for other in alike if other not in first]
    return [*first, *rest, *(other for other in after if other not in first)]


def _found(
    hardware: HardwareProfile,
    owner: HardwareProfile,
    entry: Any,
    operation: str,
    engine: str,
    *,
    factor: float,
    basis: str,
    t0_s: float | None,
    notes: tuple[str, ...],
) -> Found[Any]:
    if entry.engine != engine:
        factor, basis = factor * ENGINE_FACTORS.get(operation, ENGINE_FACTOR), "other_engine"
        notes += (f"{operation} of {engine} were not measured here: constants of {entry.engine}",)
        t0_s = None
    if owner is not hardware:
        same = owner.generation == hardware.generation
        other = OTHER_GENERATION_FACTORS.get(operation, OTHER_GENERATION_FACTOR)
        factor *= GENERATION_FACTOR if same else other
        if basis == "measured" or not same:
            basis = "generation" if same else "other_generation"
        kinship = "same generation" if same else "another generation"
        notes += (f"{operation} were not measured on {hardware.name}: constants of {owner.name}, "
                  f"{kinship}",)  # fmt: skip
    return Found(
        operation=operation, entry=entry, owner=owner, basis=basis, factor=factor,
        t0_s=entry.t0_s if t0_s is None else t0_s, notes=notes,
    )  # fmt: skip
