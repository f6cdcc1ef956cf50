"""Users and times of all designs on a grid of rank, context, batch and cache format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.notes import Note
from lrkv_plan.questions.arguments import Designs, Gpu, Model, Number
from lrkv_plan.questions.comparing import Compared, designs
from lrkv_plan.questions.result import Result
from lrkv_plan.report.tables import Column, Table, count

if TYPE_CHECKING:
    from lrkv_plan.serving.explore import Explored, ExploredGrid, ExploredLine


@dataclass(frozen=True, repr=False, eq=False)
class Exploration(Result):
    """The answer of ``explore``, with its grid and the designs at its point."""

    grid: ExploredGrid
    compared: Compared


def explore(
    model: Model,
    *,
    gpu: Gpu,
    attention: Designs | None = None,
    context_tokens: Number | None = None,
    n_gpus: Number | None = None,
    tp_size: Number | None = None,
    budget: Number | None = None,
    batch_size: Number | None = None,
    tpot_ms: Number | None = None,
    speculative_tokens: Number | None = None,
    accepted_tokens: Number | None = None,
    engine: str | None = None,
    kv_dtype: str | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    align: Number | None = None,
    gpu_hour_usd: Number | None = None,
    spec_dir: str | Path | None = None,
) -> Exploration:
    """Compute cache, users, step times and work of every design around a point.

    One row per design, rank, cache format, context and batch; what cannot be computed is None, and
    a note says why.

    Parameters
    ----------
    context_tokens, batch_size, kv_dtype : the point, which is on the grid.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``designs``, or if the model has no attention layers.
    """
    return explored(designs(**dict(locals())))


def explored(compared: Compared) -> Exploration:
    """The grid around a point. Raises as ``explore``."""
    from lrkv_plan.serving.explore import explored_grid

    ceiling = compared.beside.ceiling
    grid = explored_grid(
        compared.model,
        compared.deployment,
        batch_size=compared.batch_size,
        rank=None if ceiling is None else ceiling.aligned.value,
        limit=None if ceiling is None else ceiling.budget_bytes_per_token_per_gpu,
        designs=compared.extra,
        target=compared.target,
    )
    return Exploration(_table(compared, grid), grid=grid, compared=compared)


def _table(compared: Compared, grid: ExploredGrid) -> Table:
    refused = {
        one.refused
        for line in grid.lines
        for of_format in line.computed
        for one in of_format.values()
        if one.refused is not None
    }
    return Table(
        title=f"{grid.model.name} around {grid.at[1]:,} tokens and batch {grid.at[2]:,}",
        inputs=compared.table.inputs,
        rows=[row for line in grid.lines for row in _rows(grid, line)],
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="kv_dtype", title="cache", is_number=False),
            Column(key="context_tokens", title="context", text=count),
            Column(key="batch_size", title="batch", text=count),
            Column(key="max_sequences", title="fits", text=count),
            Column(key="step_s", title="step ms", text=lambda s: f"{1e3 * s:.4g}"),
        ),
        notes=(
            *(Note(kind="refusal", text=reason) for reason in sorted(refused)),
            *compared.table.notes,
        ),
    )


def _rows(grid: ExploredGrid, line: ExploredLine) -> Iterator[dict[str, Any]]:
    n_contexts, n_batches = len(grid.contexts), len(grid.batches)
    for of_format, kv_dtype in zip(line.computed, grid.formats, strict=True):
        for n, name in enumerate(line.names):
            for (i, context), (j, batch) in product(
                enumerate(grid.contexts), enumerate(grid.batches)
            ):
                at_context = n * n_contexts + i
                at = at_context * n_batches + j
                held, step = _at(of_format["capacity"], at_context), _at(of_format["step"], at)
                yield {
                    "attention": name,
                    "role": line.role,
                    "views": list(line.sets),
                    "kv_dtype": kv_dtype,
                    "context_tokens": context,
                    "batch_size": batch,
                    "bytes_per_token_per_gpu": _at(of_format["token"], n),
                    "cache_bytes_per_gpu": _at(of_format["cache"], at),
                    "max_sequences": held and held.max_sequences,
                    "total_sequences": held and held.total_sequences,
                    "step_s": step and step.step_s,
                    "low_s": step and step.low_s,
                    "high_s": step and step.high_s,
                    "rests_on": step and step.rests_on,
                    "kv_params_ratio": _at(of_format["weights"], n),
                    "arithmetic_ratio": _at(of_format["work"], at_context),
                }


def _at(found: Explored, place: int) -> Any:
    return None if found.refused is not None else found.values[place]
