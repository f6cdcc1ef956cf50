"""What every point of a configuration is: what fits, how fast it is and what it costs, as arrays.

The same rules as ``capacity`` and ``plan``, asked for many contexts and batches together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from lrkv_plan.errors import PlanError, SpecError
from lrkv_plan.latency.basis import bases_of
from lrkv_plan.latency.evidence import STRONGEST_FIRST
from lrkv_plan.latency.step import StepModel, StepTime, step_time
from lrkv_plan.memory.weights import parameter_count, weight_bytes_per_gpu
from lrkv_plan.serving.capacity import held_over
from lrkv_plan.serving.deployment import Deployment, known_weight_bytes
from lrkv_plan.serving.load import LatencyTarget, timed_step
from lrkv_plan.specs.deployment import SIZES
from lrkv_plan.specs.design import as_stored
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.sweeping.grid import Configuration, Grid

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import IntArray

BLOCK_POINTS = 65_536  # arrays of a block stay in a core's cache
TOO_MANY = "the batch does not fit"
NONE_FITS = "no sequence fits"
TOO_SLOW = "no batch meets the time"

# Keys of a row in order; those of capacity and plan mean the same here.
KEYS = (
    "point", "model", "attention", "family", "size", "gpu", "engine", "n_gpus", "tp_size",
    "pp_size", "dp_size", "ep_size", "dcp_size", "n_replicas", "kv_dtype", "weight_dtype",
    "context_tokens", "model_params", "weight_bytes_per_gpu", "bytes_per_token_per_gpu",
    "kv_budget_bytes_per_gpu", "max_sequences", "total_sequences", "batch_size",
    "admitted_sequences", "tpot_s", "tpot_low_s", "tpot_high_s", "time_basis", "tokens_per_s",
    "tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_hour", "usd_per_million_tokens",
    "refused",
)  # fmt: skip
DEALT = ("tp_size", "pp_size", "dp_size")  # their product are a replica's GPUs
REASONS = np.array(["", TOO_MANY, NONE_FITS, TOO_SLOW], object)
BASES = np.array(["", *STRONGEST_FIRST], object)


ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Points of one configuration that lie together, each context with every batch.

    ``same`` holds what is alike in all of them, by key. ``reasons`` are places in ``REASONS``;
    ``model`` and ``step`` are None where the configuration is refused.
    """

    first: int
    same: Mapping[str, Any]
    target: LatencyTarget
    context: Any
    batch: Any
    reasons: Any
    most: Any  # sequences of one replica, by context
    budgets: Any  # by context
    model: StepModel | None = None
    step: StepTime | None = None

    @property
    def n_points(self) -> int:
        """How many they are."""
        return int(self.batch.size)

    def column(self, key: str, rows: Any = ALL) -> Any:
        """A key's value at those rows: one for all of them, or an array. NaN or "" where absent.

        Loads, times and costs are counted as ``admission`` does, and absent where the batch does
        not fit.
        """
        if key == "point":
            return self.first + np.arange(self.n_points)[rows]
        if key == "context_tokens":
            return self.context[rows]
        if key == "batch_size":
            return np.where(self.batch[rows] > 0, self.batch[rows], np.nan)
        if self.model is not None:
            if key == "time_basis":
                return BASES[self.basis_numbers(rows)]
            if key == "refused":
                return REASONS[self.reasons[rows]]
            if key in _BY_CONTEXT:
                return self._by_context(key, rows)
            if key in _TIMED:
                return self._timed(key, rows)
        found = self.same.get(key)
        return ("" if key in TEXT_KEYS else np.nan) if found is None else found

    def basis_numbers(self, rows: Any = ALL) -> Any:
        """Places in ``BASES`` of the evidence of each row's time."""
        if self.model is None or self.step is None:
            return np.zeros(self.n_points, np.int8)[rows]
        taken = {f.name: np.broadcast_to(getattr(self.step, f.name), self.n_points)[rows]
                 for f in fields(StepTime)}  # fmt: skip
        found = bases_of(self.model, StepTime(**taken)) + 1
        found[self.reasons[rows] > 0] = 0
        return found

    def _by_context(self, key: str, rows: Any) -> Any:
        if key == "kv_budget_bytes_per_gpu":
            values = self.budgets
        elif key == "max_sequences":
            values = self.most // self.same["dp_size"]
        else:
            values = self.most * self.same["n_replicas"]
        return np.repeat(values, self.n_points // len(values))[rows]

    def _timed(self, key: str, rows: Any) -> Any:
        if key == "admitted_sequences":
            return self._where_it_fits(self.same["n_replicas"] * self.batch[rows], rows)
        if key in ("tpot_s", "tpot_low_s", "tpot_high_s"):
            seconds = getattr(self.step, {"tpot_s": "step_s"}.get(key, key.removeprefix("tpot_")))
            whole = np.broadcast_to(seconds, self.n_points)[rows]
            return self._where_it_fits(whole, rows) / self.target.speculation.accepted_tokens
        tpot = self._timed("tpot_s", rows)
        if key == "tokens_per_s_per_user":
            return 1 / tpot
        rate = self._timed("admitted_sequences", rows) / tpot
        if key == "tokens_per_s":
            return rate
        if key == "tokens_per_s_per_gpu":
            return rate / self.same["n_gpus"]
        per_hour = self.same["usd_per_hour"]
        return np.full(tpot.shape, np.nan) if per_hour is None else per_hour * 1e6 / 3600 / rate

    def _where_it_fits(self, values: Any, rows: Any) -> Any:
        unfit = self.reasons[rows] > 0
        return np.where(unfit, np.nan, values) if bool(unfit.any()) else values.astype(np.float64)


_BY_CONTEXT = frozenset({"kv_budget_bytes_per_gpu", "max_sequences", "total_sequences"})
_TIMED = frozenset({
    "admitted_sequences", "tpot_s", "tpot_low_s", "tpot_high_s", "tokens_per_s",
    "tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_tokens",
})  # fmt: skip
TEXT_KEYS = frozenset({
    "model", "attention", "family", "gpu", "engine", "kv_dtype", "weight_dtype", "time_basis",
    "refused",
})  # fmt: skip
WHOLE_KEYS = frozenset({
    "point", "n_gpus", "tp_size", "pp_size", "dp_size", "ep_size", "dcp_size", "context_tokens",
})  # fmt: skip
NUMBER_KEYS = frozenset(KEYS) - TEXT_KEYS
COUNT_KEYS = WHOLE_KEYS | {
    "size", "n_replicas", "model_params", "weight_bytes_per_gpu", "kv_budget_bytes_per_gpu",
    "max_sequences", "total_sequences", "batch_size", "admitted_sequences",
}  # fmt: skip


def blocks(grid: Grid, number: int, part: slice) -> Iterator[Block]:
    """The points of one configuration at some of the contexts, a block at a time."""
    contexts = grid.contexts[part]
    first = number * grid.points_each + (part.start or 0) * len(grid.batches)
    configuration = grid.configuration(number)
    try:
        whole = _measured(configuration, grid, np.array(contexts, np.int64))
    except PlanError as error:
        n_batches = len(grid.batches)
        asked = np.array([0 if n is None else n for n in grid.batches], np.int64)
        nothing = np.zeros(len(contexts) * n_batches, np.int8)
        yield Block(
            first=first, same={**_told(configuration), "refused": str(error)}, target=grid.target,
            context=np.repeat(np.array(contexts, np.int64), n_batches), reasons=nothing,
            batch=np.tile(asked, len(contexts)), most=nothing[:0], budgets=nothing[:0],
        )  # fmt: skip
        return
    at_once = max(1, BLOCK_POINTS // len(grid.batches))
    for start in range(0, len(contexts), at_once):
        rows = slice(start, start + at_once)
        yield _block(whole, grid, rows, first + start * len(grid.batches))


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What a configuration holds at its contexts, and how it decodes."""

    same: Mapping[str, Any]
    deployment: Deployment
    contexts: IntArray
    sequences: IntArray  # of one replica
    budgets: IntArray
    step: StepModel


def _measured(configuration: Configuration, grid: Grid, contexts: IntArray) -> _Measured:
    """Raises ``PlanError`` where there is no such deployment, or nothing is known of it."""
    if configuration.refused is not None:
        raise PlanError(configuration.refused)
    deployment, design = configuration.deployment, configuration.variant.model
    held = held_over(design, deployment, contexts)
    step = timed_step(design, deployment, grid.target)
    parallel, gpu_hour = deployment.parallel, deployment.usd_per_gpu_hour
    n_gpus = deployment.n_replicas * parallel.n_gpus
    same = {
        **_told(configuration),
        "n_gpus": n_gpus,
        "n_replicas": deployment.n_replicas,
        "model_params": parameter_count(design).model_params,
        "weight_bytes_per_gpu": _weight_bytes(design, deployment),
        "bytes_per_token_per_gpu": float(held.bytes_per_token_per_gpu),
        "usd_per_hour": None if gpu_hour is None else gpu_hour * n_gpus,
        "refused": None,
    }
    return _Measured(
        same=same, deployment=deployment, contexts=contexts, step=step,
        budgets=held.kv_budget_bytes_per_gpu, sequences=held.max_sequences * parallel.dp_size,
    )  # fmt: skip


def _weight_bytes(design: ModelSpec, deployment: Deployment) -> int | None:
    """Weights of the fullest GPU; None where the model does not state all of them. [bytes]"""
    stored = as_stored(design, deployment.rank_alignment)
    known = known_weight_bytes(stored, deployment)
    dtype = deployment.weight_dtype or stored.weight_dtype
    if known is not None or dtype is None:
        return known
    try:
        weights = weight_bytes_per_gpu(stored, parallel=deployment.parallel, weight_dtype=dtype)
    except SpecError:
        return None
    return weights.fullest.total


def _told(configuration: Configuration) -> dict[str, Any]:
    """What is known of a configuration before anything is computed."""
    variant, deployment = configuration.variant, configuration.deployment
    sizes, hardware = configuration.sizes, deployment.hardware
    return {
        "model": variant.model.name,
        "attention": variant.text,
        "family": variant.family,
        "size": variant.size,
        "gpu": None if hardware is None else hardware.name,
        "engine": str(deployment.engine),
        "n_gpus": deployment.n_gpus or math.prod(sizes[name] for name in DEALT),
        **{name: sizes[name] for name in SIZES},
        "kv_dtype": deployment.settings.kv_dtype,
        "weight_dtype": deployment.weight_dtype or variant.model.weight_dtype,
    }


def _block(whole: _Measured, grid: Grid, rows: slice, first: int) -> Block:
    contexts, most = whole.contexts[rows], whole.sequences[rows]
    shape = (len(contexts), len(grid.batches))
    batches, unfit = np.empty(shape, np.int64), np.zeros(shape, np.int8)
    for column, asked in enumerate(grid.batches):
        if asked is None:
            batches[:, column] = _fullest(whole, grid.target, contexts, most)
            unfit[:, column] = np.where(batches[:, column] > 0, 0, np.where(most > 0, 3, 2))
        else:
            batches[:, column] = asked
            unfit[:, column] = asked > most
    reasons, batch = unfit.ravel(), batches.ravel()
    context = np.repeat(contexts, shape[1])
    query = grid.target.speculation.query_tokens
    step = step_time(
        whole.step, context.astype(np.float64), np.maximum(batch, 1).astype(np.float64), query
    )
    return Block(
        first=first, same=whole.same, target=grid.target, context=context, batch=batch,
        reasons=reasons, most=most, budgets=whole.budgets[rows], model=whole.step, step=step,
    )  # fmt: skip


def _fullest(
    whole: _Measured, target: LatencyTarget, contexts: IntArray, most: IntArray
) -> IntArray:
    """The largest batch that fits and meets the target at each context; 0 where none does.

    A step never gets faster with more sequences: bisection, at all contexts together.
    """
    if target.tpot_s is None:
        return most
    limit, query = target.tpot_s, target.speculation.query_tokens
    low, high = np.zeros_like(most), most.copy()  # low meets it, or is none
    context = contexts.astype(np.float64)
    while bool((low < high).any()):
        middle = (low + high + 1) // 2
        step = step_time(whole.step, context, np.maximum(middle, 1).astype(np.float64), query)
        meets = step.step_s / target.speculation.accepted_tokens <= limit
        low, high = np.where(meets, middle, low), np.where(meets, high, middle - 1)
        low = np.minimum(low, high)
    return low
