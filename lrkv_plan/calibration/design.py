"""Which calls to measure so that the constants are identified and the model can be judged.

Each decode path gets points from far below to far above the last-level cache, over head counts and
over the widths that its cost depends on. Points of one width, one head count and some contexts are
never fitted: they say how well the model predicts what was not measured. LRKV of two ranks and MHA
share a series of contexts, so that their crossing can be measured.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lrkv_plan.attention.registry import is_family, known_families, parse_attention
from lrkv_plan.attention.spec import AttentionSpec, Backbone
from lrkv_plan.calibration.decode.paths import PATHS, Series, known_paths
from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown


@dataclass(frozen=True, kw_only=True)
class PlannedPoint:
    """One call to measure: a decode path of one design, shape and storage format.

    ``role`` is "fit", or what the point is held out by: "random", "rank", "heads", "context".
    """

    path: str
    attention: str
    n_heads: int
    head_dim: int
    batch_size: int
    context_tokens: int
    dtype: str
    role: str
    query_tokens: int = 1
    page_tokens: int = 0

    @property
    def name(self) -> str:
        """Unique within a run; the role is no part of it."""
        pages = f",pages={self.page_tokens}" if self.page_tokens else ""
        return (
            f"{self.path} {self.dtype} {self.attention} {self.n_heads}x{self.head_dim} "
            f"B{self.batch_size} T{self.context_tokens} q{self.query_tokens}{pages}"
        )

    def spec(self) -> AttentionSpec:
        """The attention of the point. Raises ``SpecError`` if the text does not fit the heads."""
        backbone = Backbone(n_heads=self.n_heads, head_dim=self.head_dim, v_head_dim=self.head_dim)
        return parse_attention(self.attention, backbone)


# Ranks: small, aligned, and 55 (the paper's, not a multiple of 8) held out beside 64.
SERIES = {
    "grouped/plain": Series(designs=("mha", "gqa:4", "gqa:2")),
    "grouped/sdpa": Series(designs=("mha", "gqa:4", "gqa:2")),
    "mla/absorbed": Series(
        designs=("mla:512+64", "mla:256+64", "mla:128+64"),
        held_out_designs=("mla:384+64",),
        heads=(16, 24, 32, 64),
        held_out_heads=48,
    ),
    "mla/materialised": Series(
        designs=("mla:512+64", "mla:256+64", "mla:128+64"),
        held_out_designs=("mla:384+64",),
        heads=(4, 8, 16),
        held_out_heads=12,
        room=64,
    ),
    "lrkv/factored": Series(
        designs=("lrkv:16", "lrkv:32", "lrkv:64", "lrkv:96"),
        held_out_designs=("lrkv:55", "lrkv:48"),
    ),
    "lrkv/rope_expand": Series(
        designs=tuple(f"lrkv:{r},position=rope_expand" for r in (16, 32, 64)),
        held_out_designs=("lrkv:55,position=rope_expand",),
        heads=(4, 8, 16),
        held_out_heads=12,
        room=128,
    ),
    "lrkv/materialised": Series(
        designs=("lrkv:16", "lrkv:32", "lrkv:64"),
        held_out_designs=("lrkv:55",),
        heads=(4, 8, 16),
        held_out_heads=12,
        room=128,
    ),
    "lrkv/fused": Series(
        designs=("lrkv:16", "lrkv:32", "lrkv:64", "lrkv:96"),
        held_out_designs=("lrkv:55", "lrkv:48"),
    ),
}


def all_series() -> dict[str, Series]:
    """How each path is sampled, those of other packages' paths included."""
    own = {name: path.series for name, path in known_paths().items() if path.series is not None}
    return {**SERIES, **own}


CROSSING = {
    "grouped/plain": ("mha",),
    "grouped/sdpa": ("mha",),
    "lrkv/factored": ("lrkv:64", "lrkv:55"),
    "lrkv/fused": ("lrkv:64", "lrkv:55"),
}


CROSSING_HEADS = 16
PAGE = 16  # random contexts are whole pages: matrix libraries take longer for odd lengths


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes that suit a device: contexts are ``unit`` times powers of two."""

    unit: int
    batches: tuple[int, ...]
    head_dim: int = 128
    steps: tuple[int, ...] = (1, 4, 16, 64)  # fitted
    held_out_steps: tuple[int, ...] = (2, 8, 32)

    def capped(self, heads: int, batch_size: int, step: int, room: int) -> tuple[int, int]:
        """Batch and step of a call with at most ``room`` heads times sequences times steps."""
        while heads * step > room and step >= 4:
            step //= 4  # the next fitted or held-out step below
        fitting = [b for b in self.batches if b <= min(batch_size, room // heads // step)]
        return max(fitting, default=min(self.batches)), step


# A cache of 16 heads at the longest context: 67 MB in fp32 on a CPU, 537 MB in bf16 on a GPU.
SCALES = {
    "cpu": Scale(unit=64, batches=(1, 2, 4)),
    "cuda": Scale(unit=1024, batches=(1, 4, 16)),
}


def planned_points(
    device: str,
    dtypes: Sequence[str],
    paths: Sequence[str],
    *,
    attention: Sequence[str] = (),
    seed: int = 0,
) -> list[PlannedPoint]:
    """The points of a run, in random order.

    Parameters
    ----------
    device : "cpu" or "cuda": how large the calls are.
    paths : decode paths to measure.
    attention : designs of the user's own; they are measured too, on every path that runs them,
        and fitted.
    seed : of the random points and of the order.

    Raises
    ------
    UsageError
        If a path has no series.
    """
    scale, draw = SCALES[device], random.Random(seed)  # noqa: S311
    points: dict[str, PlannedPoint] = {}
    for dtype, path in itertools.product(dtypes, paths):
        for point in _path_points(path, dtype, scale, attention, draw):
            points.setdefault(point.name, point)
    ordered = list(points.values())
    draw.shuffle(ordered)
    return ordered


def _path_points(
    path: str, dtype: str, scale: Scale, attention: Sequence[str], draw: random.Random
) -> Iterator[PlannedPoint]:
    """Fitted points first: where two coincide, the first role counts."""
    known = all_series()
    if path not in known:
        raise UsageError(
            f"path {path!r} is unknown{did_you_mean(path, known)}; known: {', '.join(known)}"
        )
    series = known[path]
    base = _base(path, series.designs[0], series.heads[0], dtype, scale)
    largest = CROSSING_HEADS * max(scale.steps)
    room, steps = series.room or largest, scale.steps if series.room is None else scale.steps[:-1]
    between = tuple(s for s in scale.held_out_steps if s < max(steps))
    own = [text for text in attention if not why_no_design(path, text)]
    designs = (*series.designs, *(t for t in own if t not in series.held_out_designs))

    def at(
        role: str, text: str, heads: int, steps: Sequence[int], turn: int
    ) -> Iterator[PlannedPoint]:
        if not _fits(replace(base, attention=text, n_heads=heads)):
            return  # one of the user's designs that needs other head counts of the series
        for index, step in enumerate(steps):
            wanted = scale.batches[(index + turn) % len(scale.batches)]
            batch, step = scale.capped(heads, wanted, step, room)
            yield replace(
                base, attention=text, n_heads=heads, batch_size=batch, role=role,
                context_tokens=step * scale.unit,
            )  # fmt: skip

    for turn, (text, heads) in enumerate(itertools.product(designs, series.heads)):
        # Half of the contexts for each pair, alternating: every pair of levels still meets.
        yield from at("fit", text, heads, steps if series.room else steps[turn % 2 :: 2], turn)
    middle = series.heads[1]
    for turn, text in enumerate(series.held_out_designs):
        yield from at("rank", text, middle, steps, turn)
    for turn, text in enumerate(designs[:2]):
        yield from at("heads", text, series.held_out_heads, steps[turn::2], turn)
    last = [h for h in (middle, *series.heads)
            if _fits(replace(base, attention=designs[-1], n_heads=h))]  # fmt: skip
    yield from at("context", designs[-1], last[0], between, 0)
    yield from _crossing(base, scale)
    for _ in range(4):
        heads, step = draw.choice(series.heads), draw.choice(between)
        batch, step = scale.capped(heads, draw.choice(scale.batches), step, room)
        point = replace(
            base, attention=draw.choice(designs), n_heads=heads, batch_size=batch, role="random",
            context_tokens=PAGE * int(scale.unit * step * draw.uniform(0.7, 1.4) / PAGE),
        )  # fmt: skip
        if _fits(point):
            yield point


def why_no_design(path: str, text: str) -> str:
    """Why a path cannot be sampled with that design; nothing where it can.

    Examples
    --------
    >>> why_no_design("grouped/plain", "gqa:8"), why_no_design("mla/absorbed", "gqa:8")
    ('', 'mla/absorbed runs other designs')
    >>> why_no_design("grouped/plain", "gqa:7")
    "attention 'gqa:7': n_kv_heads 7 does not divide 32 heads: 1, 2, 4, 8, 16, 32"
    """
    family = text.replace(",", ":").partition(":")[0].strip().lower()
    if not is_family(family):
        return f"family {shown(family)} is unknown{did_you_mean(family, known_families())}"
    reason = f"{path} runs other designs"
    for heads in all_series()[path].heads:
        try:
            spec = _base(path, text, heads).spec()
        except SpecError as error:
            reason = str(error)
            continue
        return "" if path in PATHS and PATHS[path].applies(spec) else f"{path} runs other designs"
    return reason


def _base(
    path: str, text: str, heads: int, dtype: str = "fp32", scale: Scale | None = None
) -> PlannedPoint:
    """The least point of a path with that design and so many heads."""
    size = scale or SCALES["cpu"]
    return PlannedPoint(
        path=path, attention=text, n_heads=heads, head_dim=size.head_dim, batch_size=1,
        context_tokens=size.unit, dtype=dtype, role="fit",
    )  # fmt: skip


def _fits(point: PlannedPoint) -> bool:
    """Whether the point's heads can have its design."""
    try:
        point.spec()
    except SpecError:
        return False
    return True


def _crossing(base: PlannedPoint, scale: Scale) -> Iterator[PlannedPoint]:
    """One sequence of ``CROSSING_HEADS`` heads at every context, for designs that are compared."""
    held_out = all_series()[base.path].held_out_designs
    for text in CROSSING.get(base.path, ()):
        for step in sorted((*scale.steps, *scale.held_out_steps)):
            role = "context" if step in scale.held_out_steps else "fit"
            yield replace(
                base, attention=text, n_heads=CROSSING_HEADS, context_tokens=step * scale.unit,
                role="rank" if text in held_out else role,
            )  # fmt: skip
