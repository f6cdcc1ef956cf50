"""Which way of serving so many users costs least: GPUs, layouts, formats, designs.

Each way fills as many replicas as it needs. What it costs is the GPUs' price for an hour, or their
number. Ways are tried from the cheapest replica up; none is tried whose single replica costs more
than the best that was found.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lrkv_plan.errors import PlacementError, SpecError, UsageError
from lrkv_plan.latency.step import StepModel
from lrkv_plan.memory.cache import cache_bytes
from lrkv_plan.memory.weights import weight_bytes_per_gpu
from lrkv_plan.serving.capacity import CapacityRow, capacity_row
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import engine_record
from lrkv_plan.serving.load import Admission, LatencyTarget, admitted_by, timed_step
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.model import ModelSpec

Price = Literal["usd", "gpus"]
PP_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be served: sequences of full length, how fast, for how much, on how many GPUs.

    ``target`` None asks for memory alone. ``stated`` are sizes that every way has, by name.
    """

    n_sequences: int
    target: LatencyTarget | None = None
    most_usd_per_hour: float | None = None
    most_gpus: int = 64
    stated: Sequence[tuple[str, int]] = ()

    def __post_init__(self) -> None:
        if self.n_sequences < 1:
            raise UsageError(f"sequences {self.n_sequences}: must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way: a model with its design on so many replicas of a layout.

    ``served`` are the sequences of one replica, ``load`` the wished ones dealt out evenly over all
    replicas; None where no time was asked for.
    """

    model: ModelSpec
    deployment: Deployment
    row: CapacityRow
    served: int
    cost: float
    load: Admission | None = None
    step: StepModel | None = None

    @property
    def n_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.row.n_gpus

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all GPUs for an hour; None where it is not known. [USD]"""
        each = self.deployment.usd_per_gpu_hour
        return None if each is None else each * self.n_gpus


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """Why a layout, or every layout of a GPU, will not do; of several the nearest says it.

    ``nearness`` orders them: what kind of reason it is, and how near within that kind.
    """

    reason: str
    nearness: tuple[int, float] = (0, 0.0)
    n_gpus: int = 1
    tried: int = 0


def layouts_for(model: ModelSpec, deployment: Deployment, wish: Wish) -> Iterator[Parallelism]:
    """The layouts of one replica that an engine may run, without asking whether they fit.

    Tensor parallelism in powers of two, pipeline stages, context parallelism; of mixtures also
    experts dealt out over all GPUs of a replica, and data-parallel attention that shares them.
    Data-parallel attention of other models is replicas.
    """
    runs = engine_record(deployment.engine.name).sizes
    stated = dict(wish.stated)
    powers = [2**k for k in range(wish.most_gpus.bit_length()) if 2**k <= wish.most_gpus]

    def sizes(name: str, searched: Iterable[int]) -> list[int]:
        if name in stated:
            return [stated[name]]
        return list(searched) if name in runs else [1]

    shares = "ep_size" in runs and model.has_experts
    for tp_size in sizes("tp_size", powers):
        for pp_size in sizes("pp_size", PP_SIZES):
            for dp_size in sizes("dp_size", powers if shares else [1]):
                if tp_size * pp_size * dp_size > wish.most_gpus:
                    continue
                together = tp_size * dp_size
                ep_sizes = [together] if dp_size > 1 else sorted({1, together})
                for ep_size in sizes("ep_size", ep_sizes if shares else [1]):
                    for dcp_size in sizes("dcp_size", [n for n in powers if tp_size % n == 0]):
                        try:
                            yield Parallelism(
                                tp_size=tp_size, pp_size=pp_size, dp_size=dp_size,
                                ep_size=ep_size, dcp_size=dcp_size,
                            )  # fmt: skip
                        except PlacementError:
                            continue


def plainness(parallel: Parallelism) -> tuple[int, ...]:
    """The order of layouts that cost the same: what is easier to run stands first."""
    return (
        parallel.pp_size, parallel.dcp_size, parallel.dp_size, parallel.ep_size, parallel.tp_size,
    )  # fmt: skip


def cheapest_way(
    model: ModelSpec,
    deployments: Sequence[Deployment],
    wish: Wish,
    *,
    price: Price = "usd",
    tried: Callable[[], None] = lambda: None,
) -> Way | RuledOut:
    """The cheapest way over some deployments, each in every layout.

    Of equal cost the fewest GPUs stand first, then the plainest layout, then the deployments'
    order.

    Parameters
    ----------
    deployments : their ``parallel`` and ``n_gpus`` are searched; alike in GPU, not in formats.
    price : what counts. Without a price for an hour ``usd`` rules out.
    tried : called after each layout that was looked at.

    Raises
    ------
    SpecError
        If no time can be predicted for a reason that no layout mends.
    """
    candidates = [
        (_cost(one, parallel.n_gpus, price), parallel.n_gpus, plainness(parallel), place, parallel)
        for place, one in enumerate(deployments)
        for parallel in layouts_for(model, one, wish)
    ]
    best: Way | None = None
    best_key: tuple[float, int, tuple[int, ...], int] | None = None
    reasons: list[RuledOut] = []
    bounds = [_Bound.of(model, one, wish) for one in deployments]
    for cost, n_gpus, plain, place, parallel in sorted(candidates, key=lambda one: one[:4]):
        if best is not None and cost > best.cost:
            break
        refused = bounds[place].ruled_out(n_gpus, cost, math.inf if best is None else best.cost)
        if refused is not None:
            reasons.append(refused)
            tried()
            continue
        one = replace(deployments[place], parallel=parallel, n_gpus=None)
        found = way(model, one, wish, price, most_cost=math.inf if best is None else best.cost)
        tried()
        if isinstance(found, RuledOut):
            reasons.append(replace(found, n_gpus=parallel.n_gpus))
            continue
        key = (found.cost, found.n_gpus, plain, place)
        if best_key is None or key < best_key:
            best, best_key = found, key
    if best is None:
        return _nearest(reasons, len(candidates))
    limit = wish.most_usd_per_hour
    if limit is not None and (best.usd_per_hour or 0) > limit:
        reason = f"costs at least ${best.usd_per_hour:,.2f} an hour"
        return RuledOut(reason=reason, nearness=(5, 0.0), tried=len(candidates))
    return best


@dataclass(frozen=True, kw_only=True)
class _Bound:
    """What no layout of a GPU can do better than: nothing held twice, no runtime. [bytes]

    Bounds that are not known are 0, and infinite memory.
    """

    memory: float  # of a GPU
    weights: int  # of a replica
    per_sequence: float
    wish: Wish

    @classmethod
    def of(cls, model: ModelSpec, deployment: Deployment, wish: Wish) -> _Bound:
        """The bound of a model in a deployment's formats."""
        hardware, settings = deployment.hardware, deployment.settings
        weights, per_sequence = 0, 0.0
        dtype = deployment.weight_dtype or model.weight_dtype
        is_counted = deployment.weight_bytes is None and deployment.checkpoint is None
        with contextlib.suppress(SpecError, PlacementError):
            if is_counted and dtype is not None:
                whole = weight_bytes_per_gpu(model, parallel=Parallelism(), weight_dtype=dtype)
                weights = whole.fullest.total
        with contextlib.suppress(SpecError, PlacementError):
            held = cache_bytes(
                model, context_tokens=settings.context_tokens, kv_dtype=settings.kv_dtype
            )
            per_sequence = float(held.total)
        stated = hardware is None or deployment.kv_memory_bytes is not None
        return cls(
            memory=math.inf if stated or hardware is None else hardware.mem_capacity_bytes,
            weights=weights, per_sequence=per_sequence, wish=wish,
        )  # fmt: skip

    def ruled_out(self, n_gpus: int, cost: float, most_cost: float) -> RuledOut | None:
        """Why replicas of so many GPUs will not do whatever their layout; None where they may."""
        left = self.memory * n_gpus - self.weights
        if left <= 0:
            reason = "weights and runtime leave no memory"
            return RuledOut(reason=reason, nearness=(1, left), n_gpus=n_gpus)
        n_replicas = math.ceil(self.wish.n_sequences * self.per_sequence / left * (1 - 1e-9))
        if n_replicas * n_gpus > self.wish.most_gpus:
            return replace(_too_many(n_replicas * n_gpus, self.wish), n_gpus=n_gpus)
        if n_replicas * cost > most_cost:
            reason = "costs more than another layout"
            return RuledOut(reason=reason, nearness=(-1, 0.0), n_gpus=n_gpus)
        return None


def _cost(deployment: Deployment, n_gpus: int, price: Price) -> float:
    each = 1.0 if price == "gpus" else deployment.usd_per_gpu_hour
    return math.inf if each is None else each * n_gpus


def way(
    model: ModelSpec,
    deployment: Deployment,
    wish: Wish,
    price: Price,
    *,
    most_cost: float = math.inf,
) -> Way | RuledOut:
    """One layout in as many replicas as the wish needs, or why it will not do.

    A time target never lets a replica serve more than it holds: what costs more than ``most_cost``
    or takes too many GPUs by its memory alone is not timed.
    """
    try:
        row = capacity_row(model, deployment)
    except PlacementError as error:
        return RuledOut(reason=f"cannot run: {error}")
    if not row.max_sequences:
        per_gpu = float(row.kv_budget_bytes_per_gpu) * deployment.parallel.n_gpus
        return RuledOut(reason=row.binds, nearness=(1, per_gpu))
    served, step = row.total_sequences, None
    each = deployment.parallel.n_gpus
    at_least = -(-wish.n_sequences // served) * each
    if at_least > wish.most_gpus:
        return _too_many(at_least, wish)
    if _cost(deployment, at_least, price) > most_cost:
        return RuledOut(reason="costs more than another layout", nearness=(-1, 0.0))
    if wish.target is not None:
        try:
            step = timed_step(model, deployment, wish.target)
        except (PlacementError, UsageError) as error:
            return RuledOut(reason=f"cannot run: {error}")
        except SpecError as error:
            if deployment.parallel.n_gpus == 1:
                raise
            return RuledOut(reason=f"no time is known: {error}", nearness=(2, 0.0))
        load = admitted_by(step, row, deployment, wish.target)
        if load is None:
            return _too_slow(step, row, deployment, wish.target)
        served = load.sequences
    n_replicas = -(-wish.n_sequences // served)
    n_gpus = n_replicas * each
    if n_gpus > wish.most_gpus:
        return _too_many(n_gpus, wish)
    whole = replace(deployment, n_gpus=n_gpus)
    row = capacity_row(model, whole)
    found = Way(
        model=model, deployment=whole, row=row, served=served, step=step,
        cost=_cost(deployment, n_gpus, price),
    )  # fmt: skip
    if step is None or wish.target is None:
        return found
    load_each = -(-wish.n_sequences // n_replicas)
    return replace(found, load=admitted_by(step, row, whole, wish.target, load_each))


def _too_many(n_gpus: int, wish: Wish) -> RuledOut:
    reason = f"takes {n_gpus:,} GPUs, more than {wish.most_gpus:,}"
    return RuledOut(reason=reason, nearness=(4, -float(n_gpus)))


def _too_slow(
    step: StepModel, row: CapacityRow, deployment: Deployment, target: LatencyTarget
) -> RuledOut:
    alone = admitted_by(step, row, deployment, replace(target, tpot_s=None), 1)
    if alone is None:
        return RuledOut(reason="no sequence is served", nearness=(1, 0.0))
    milliseconds = alone.tpot_s * 1e3
    told = f"{milliseconds:,.0f}" if milliseconds >= 1_000 else f"{milliseconds:.3g}"
    reason = f"one user takes {told} ms a token, more than asked"
    return RuledOut(reason=reason, nearness=(3, -alone.tpot_s))


def _nearest(reasons: Sequence[RuledOut], n_tried: int) -> RuledOut:
    """The reason of the layout that came nearest, with its GPUs."""
    if not reasons:
        return RuledOut(reason="no layout may be tried")
    nearest = max(reasons, key=lambda one: one.nearness)
    where = "one GPU" if nearest.n_gpus == 1 else f"{nearest.n_gpus} GPUs"
    is_counted = nearest.nearness[0] == 4
    told = nearest.reason if is_counted else f"{nearest.reason} ({where})"
    return replace(nearest, reason=told, tried=n_tried)
