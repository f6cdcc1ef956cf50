"""Parts of a model's report about crossovers: LRKV against the model's own design."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lrkv_plan.engines.comparing import at_rank, compare
from lrkv_plan.engines.crossover_grid import column_labels, map_columns
from lrkv_plan.errors import UsageError
from lrkv_plan.report.document import Part, part_of
from lrkv_plan.report.series.crossovers import crossover_map
from lrkv_plan.report.spec_views import model_inputs
from lrkv_plan.report.time_views import crossover_table

if TYPE_CHECKING:
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.report.settled import Settled
    from lrkv_plan.report.tables import Table

_MAP_CONTEXTS = (128, 131_072)


def crossover_parts(settled: Settled) -> tuple[Part, ...]:
    """Where LRKV becomes faster or slower than the model's own design, along three variables."""
    pair = _pair(settled)
    told = {
        "context_tokens": ("--context-tokens", str(settled.context_tokens)),
        "batch_size": settled.batch_option,
    }
    fixed = (*settled.query_options, "--tp-size", str(settled.tp_size))
    variables = (
        ("context_tokens", "crossover-context", "Along the context"),
        ("batch_size", "crossover-batch", "Along the batch"),
        ("rank", "crossover-rank", "Along the rank"),
    )
    tables = [
        part_of(
            key, title, partial(_crossover, settled, over),
            commands=_pair_command(
                settled, "crossover", "--over", over,
                *(word for name, words in told.items() if name != over for word in words), *fixed,
            ),
            is_narrow=True,
        )
        for over, key, title in variables
    ]  # fmt: skip
    limits = ",".join(map(str, _MAP_CONTEXTS))
    picture = part_of(
        "crossover-map", "Which decodes faster, over batch and context", lambda: _map(settled),
        commands=() if pair is None else _pair_command(
            settled, "plot crossover-map", "--over", "batch_size", "--context-tokens", limits,
            "--tp-size", str(settled.tp_size), *settled.query_options,
        ),
    )  # fmt: skip
    return (*tables, picture)


def _crossover(settled: Settled, over: str) -> Table:
    request, pair = settled.request, _needed_pair(settled)
    weight_dtype, weight_bytes = settled.deployment.weight_dtype, settled.weight_bytes
    point = {
        "context_tokens": settled.context_tokens, "batch_size": settled.batch_size,
        "query_tokens": settled.query_tokens, "tp_size": settled.tp_size,
    }  # fmt: skip
    answer = compare(
        request.model, pair, settled.gpu, over=over, point=point, kv_dtype=settled.kv_dtype,
        weight_dtype=weight_dtype, weight_bytes=weight_bytes, relatives=request.relatives,
    )  # fmt: skip
    stated = {
        "model": model_inputs(request.model), "gpu": request.gpu_text, "over": over,
        "kv_dtype": settled.kv_dtype, "weight_dtype": weight_dtype or request.model.weight_dtype,
        "weight_bytes_per_gpu": weight_bytes, **point,
    }  # fmt: skip
    labels = [at_rank(text, "RANK") if over == "rank" else text for text in pair]
    return crossover_table(
        request.model, stated, labels, answer.crossover, answer.sides, answer.rests_on
    )


def _map(settled: Settled) -> Figure:
    request, pair = settled.request, _needed_pair(settled)
    told: dict[str, Any] = {
        "kv_dtype": settled.kv_dtype, "weight_dtype": settled.deployment.weight_dtype,
        "tp_size": settled.tp_size, "weight_bytes": settled.weight_bytes,
    }  # fmt: skip
    columns = map_columns(
        request.model, pair, settled.gpu, over="batch_size", relatives=request.relatives, **told
    )
    return crossover_map(
        columns,
        column_labels(pair, "batch_size"),
        over="batch_size",
        low=_MAP_CONTEXTS[0],
        high=_MAP_CONTEXTS[1],
        query_tokens=settled.query_tokens,
        where=settled.where,
        inputs={"model": model_inputs(request.model), "gpu": settled.gpu.name, **told},
    )


def _pair(settled: Settled) -> tuple[str, str] | None:
    """The own design, or MHA where that has no text, against LRKV."""
    own = settled.texts[0] if settled.texts else None
    if settled.low_rank is None or settled.low_rank == own:
        return None
    return own or "mha", settled.low_rank


def _needed_pair(settled: Settled) -> tuple[str, str]:
    pair = _pair(settled)
    if pair is None:
        raise UsageError("no LRKV design other than the model's own is in the budget")
    return pair


def _pair_command(settled: Settled, name: str, *extra: str) -> tuple[str, ...]:
    pair = _pair(settled)
    return () if pair is None else (settled.request.command(name, *extra, texts=pair),)
