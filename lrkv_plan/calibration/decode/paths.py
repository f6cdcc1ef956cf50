"""The decode paths that can be run, by name; a new family adds its own with one call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.layout import AttentionLayout, DecodeWork
from lrkv_plan.attention.registry import each_plugin
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.calibration.decode import reference, weights
from lrkv_plan.calibration.decode.attend import Attention, StepInputs
from lrkv_plan.calibration.decode.expanded import ExpandedLatent, ExpandedLowRank, RotatedLowRank
from lrkv_plan.calibration.decode.fused_low_rank import FusedLowRank, fused_is_available
from lrkv_plan.calibration.decode.grouped import FusedAttention, GroupedAttention
from lrkv_plan.calibration.decode.latent import AbsorbedLatent
from lrkv_plan.calibration.decode.low_rank import FactoredLowRank
from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown

Applies = Callable[[Any], bool]
Build = Callable[[StepInputs], Attention]
DrawWeights = Callable[[Any, AttentionLayout, int, weights.Draw], weights.Weights]


@dataclass(frozen=True, kw_only=True)
class DecodeFamily:
    """What all paths of a family share.

    ``query_width`` is the width of a projected query. ``draw_weights`` of (spec, layout, heads on
    this GPU, source) gives the layer weights that a step uses; ``head_rows`` writes out one head's
    keys and values for the reference.
    """

    query_width: Callable[[Any], int]
    draw_weights: DrawWeights
    head_rows: reference.HeadRows


@dataclass(frozen=True, kw_only=True)
class Series:
    """How one path is sampled: designs and head counts that are fitted, and those held out.

    ``room`` bounds heads times sequences times steps of a call: paths that rebuild keys compute
    much more than they read, and stay as short as the others with less.
    """

    designs: tuple[str, ...]
    held_out_designs: tuple[str, ...] = ()
    heads: tuple[int, ...] = (8, 16, 32)
    held_out_heads: int = 24
    room: int | None = None


@dataclass(frozen=True, kw_only=True)
class DecodePath:
    """One way of running a decode step.

    ``kernel`` and ``work_path`` name the layout's ``DecodeWork``, so that bytes and FLOPs come from
    the calculators. ``series`` says how ``calibrate run`` samples the path, where
    ``calibration.design`` does not.
    """

    name: str
    kernel: str
    work_path: str
    applies: Applies
    family: DecodeFamily
    build: Build
    needs_cuda: bool = False
    series: Series | None = None

    def work(self, layout: AttentionLayout) -> DecodeWork:
        """The layout's entry for this path.

        Raises
        ------
        UsageError
            If the layout has none.
        """
        for work in layout.work:
            if work.path == self.work_path:
                return work
        raise UsageError(f"path {self.name}: {layout.label} states no {self.work_path} work")


ENTRY_POINTS = "lrkv_plan.decode_paths"
PATHS: dict[str, DecodePath] = {}


def register_path(path: DecodePath) -> None:
    """Add a path; ``build_step`` and everything that measures know it from now on.

    Raises
    ------
    SpecError
        If it is no ``DecodePath``.
    """
    if not isinstance(path, DecodePath):
        raise SpecError(f"{shown(path)} is no DecodePath")
    PATHS[path.name] = path


@functools.cache
def load_path_plugins() -> None:
    """Register the paths that installed packages offer under ``lrkv_plan.decode_paths``, once.

    Raises
    ------
    SpecError
        If one cannot be loaded; the message names it.
    """

    def take(point: EntryPoint) -> None:
        offered = point.load()
        for path in (offered,) if isinstance(offered, DecodePath) else tuple(offered):
            register_path(path)

    each_plugin(ENTRY_POINTS, take)


def known_paths() -> dict[str, DecodePath]:
    """All paths by name, those of other packages included."""
    load_path_plugins()
    return PATHS


def paths_for(spec: AttentionSpec) -> tuple[DecodePath, ...]:
    """The paths that can run that design, the one that an engine would take first."""
    return tuple(path for path in known_paths().values() if path.applies(spec))


def path_named(name: str, spec: AttentionSpec) -> DecodePath:
    """The path of that name.

    Raises
    ------
    UsageError
        If there is none, or it cannot run that design.
    """
    known = [path.name for path in paths_for(spec)]
    path = PATHS.get(name)
    if path is None or not path.applies(spec):
        what = "is unknown" if path is None else f"cannot run {spec.label()}"
        raise UsageError(
            f"decode path {shown(name)} {what}{did_you_mean(name, known)}; "
            f"paths for {spec.label()}: {', '.join(known) or 'none'}"
        )
    return path


def _is_low_rank(*positions: str) -> Applies:
    return lambda spec: isinstance(spec, LowRankSpec) and spec.position in positions


def _keeps(form: str) -> Applies:
    return lambda spec: isinstance(spec, LatentSpec) and spec.cached_form == form


_GROUPED = DecodeFamily(
    query_width=lambda spec: spec.head_dim,
    draw_weights=weights.grouped_weights,
    head_rows=reference.grouped_rows,
)
_LATENT = DecodeFamily(
    query_width=lambda spec: spec.nope_dim + spec.rope_dim,
    draw_weights=weights.latent_weights,
    head_rows=reference.latent_rows,
)
_LATENT_HEADS = DecodeFamily(
    query_width=lambda spec: spec.nope_dim + spec.rope_dim,
    draw_weights=lambda _spec, _layout, _heads, _draw: {},
    head_rows=reference.grouped_rows,
)
_LOW_RANK = DecodeFamily(
    query_width=lambda spec: spec.head_dim + spec.rope_dim,
    draw_weights=weights.low_rank_weights,
    head_rows=reference.low_rank_rows,
)
_ALL_POSITIONS = ("none", "rope_expand", "rope_rank", "rope_decoupled")
_Row = tuple[str, str, str, Applies, DecodeFamily, Build]
_ROWS: tuple[_Row, ...] = (
    ("grouped/sdpa", "grouped", "grouped",
     lambda spec: isinstance(spec, GroupedSpec) and not spec.sinks, _GROUPED, FusedAttention),
    ("grouped/plain", "grouped", "grouped",
     lambda spec: isinstance(spec, GroupedSpec), _GROUPED, GroupedAttention),
    ("mla/absorbed", "mla_absorbed", "absorbed", _keeps("latent"), _LATENT, AbsorbedLatent),
    ("mla/materialised", "mla_materialised", "materialised",
     _keeps("latent"), _LATENT, ExpandedLatent),
    ("mla/heads", "grouped", "materialised", _keeps("heads"), _LATENT_HEADS, GroupedAttention),
    ("lrkv/factored", "low_rank", "factored",
     _is_low_rank("none", "rope_rank", "rope_decoupled"), _LOW_RANK, FactoredLowRank),
    ("lrkv/rope_expand", "low_rank_expand", "rope_expand",
     _is_low_rank("rope_expand"), _LOW_RANK, RotatedLowRank),
    ("lrkv/materialised", "low_rank_materialised", "materialised",
     _is_low_rank(*_ALL_POSITIONS), _LOW_RANK, ExpandedLowRank),
)  # fmt: skip
for _name, _kernel, _work, _applies, _family, _build in _ROWS:
    register_path(
        DecodePath(
            name=_name, kernel=_kernel, work_path=_work, applies=_applies, family=_family,
            build=_build,
        )
    )  # fmt: skip
_factors = _is_low_rank("none", "rope_rank", "rope_decoupled")
register_path(
    DecodePath(
        name="lrkv/fused", kernel="low_rank", work_path="factored", family=_LOW_RANK,
        applies=lambda spec: fused_is_available() and _factors(spec), build=FusedLowRank,
        needs_cuda=True,
    )
)  # fmt: skip
