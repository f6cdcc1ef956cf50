"""Which of two designs decodes faster, everywhere between two contexts?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, UsageError, did_you_mean, shown
from lrkv_plan.loader import load_relatives
from lrkv_plan.questions.arguments import (
    Designs,
    Gpu,
    Model,
    Number,
    Numbers,
    along_rank,
    asked_designs,
    load_gpu,
    load_model,
    refuse,
    with_provenance,
)
from lrkv_plan.questions.result import Result
from lrkv_plan.report.tables import Column, Table, count

if TYPE_CHECKING:
    from lrkv_plan.latency.faster_map import FasterMap
    from lrkv_plan.specs.model import ModelSpec

MAP_OVER = ("rank", "batch_size")


@dataclass(frozen=True, repr=False, eq=False)
class FasterMaps(Result):
    """The answer of ``faster_map``, with the map and the two designs' names on it."""

    model: ModelSpec
    map: FasterMap
    labels: tuple[str, str]


def faster_map(
    model: Model,
    *,
    gpu: Gpu,
    attention: Designs,
    over: str | None = None,
    context_tokens: Numbers | None = None,
    at_most: Number | None = None,
    batch_size: Number | None = None,
    query_tokens: Number | None = None,
    kv_dtype: str | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    tp_size: Number | None = None,
    engine: str | None = None,
    spec_dir: str | Path | None = None,
) -> FasterMaps:
    """Find which of two designs is faster, at every context, for each rank or batch.

    One row per value and per choice of constants: as predicted, and with either design's attention
    at the good end of its 90 % band while the other's is at the bad end.

    Parameters
    ----------
    attention : two designs; along the rank, the LRKV one is "lrkv:RANK" with any options.
    over : "rank" (every one up to a head's width, the default) or "batch_size" (geometric).
    context_tokens : the two ends, "128,128k" when None.
    at_most : the largest rank, or batch: 256.

    Raises
    ------
    SpecError, UsageError, PlacementError
        If an argument names nothing, cannot be read or honoured, or no time can be predicted.
    """
    from lrkv_plan.latency.crossover import column_labels, map_columns
    from lrkv_plan.latency.faster_map import faster_map as solved
    from lrkv_plan.report.views.specs import model_inputs
    from lrkv_plan.serving.engine import engine_named, timed_as
    from lrkv_plan.specs.design import typed_designs

    along = words.given(over, MAP_OVER[0])
    if along not in MAP_OVER:
        raise ArgumentError(
            "over", f" {shown(along)}: one of {', '.join(MAP_OVER)}{did_you_mean(along, MAP_OVER)}"
        )
    if along == "batch_size":
        refuse({"batch_size": batch_size}, "is what --over batch_size varies; --at-most bounds it")
    asked = asked_designs(attention)
    limits = words.token_counts("context_tokens", words.given(context_tokens, "128,128k"))
    if len(asked) != 2 or len(limits) != 2:
        raise UsageError("give two designs (--attention) and LOW,HIGH for --context-tokens")
    spec, hardware = load_model(model, spec_dir=spec_dir), load_gpu(gpu, spec_dir=spec_dir)
    size = 1 if tp_size is None else words.count("tp_size", tp_size)
    named_engine = engine_named(words.given(engine, "vllm"))
    kv_format = words.given(kv_dtype, "bf16")
    pair = typed_designs(spec, along_rank(asked) if along == "rank" else asked)
    columns = map_columns(
        pair,
        hardware,
        over=along,
        at_most=words.optional(words.count, "at_most", at_most),
        kv_dtype=kv_format,
        weight_dtype=weight_dtype,
        weight_bytes=words.optional(words.size, "weights", weights),
        tp_size=size,
        engine=timed_as(named_engine),
        relatives=load_relatives([hardware], spec_dir),
    )
    found = solved(
        columns,
        over=along,
        low=limits[0],
        high=limits[1],
        batch_size=1 if batch_size is None else words.count("batch_size", batch_size),
        query_tokens=1 if query_tokens is None else words.count("query_tokens", query_tokens),
    )
    stated = {
        "model": model_inputs(spec),
        "gpu": hardware.name,
        "attention": [one if isinstance(one, str) else one.text() for one in asked],
        "kv_dtype": kv_format,
        "weight_dtype": weight_dtype or spec.weight_dtype,
        "tp_size": size,
        "engine": str(named_engine),
    }
    labels = column_labels(pair, along)
    table = Table(
        title=f"Which decodes faster on {hardware.name}, {labels[0]} or {labels[1]}",
        inputs=stated,
        rows=list(_rows(found, labels)),
        columns=(
            Column(key=along, title=along, text=count),
            Column(key="constants", title="constants", is_number=False),
            Column(key="faster_first", title=f"faster at {limits[0]:,} tokens", is_number=False),
            Column(
                key="changes",
                title="then",
                text=lambda changes: ", ".join(
                    f"{one['faster']} from {one['context_tokens']:,}" for one in changes
                ),
                is_number=False,
            ),
        ),
    )
    return FasterMaps(with_provenance(table, spec, hardware), model=spec, map=found, labels=labels)


def _rows(found: FasterMap, labels: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Predicted columns, then those with either design at its best."""
    told = (("predicted", found.found), *zip(labels, found.leaning, strict=True))
    for constants, columns in told:
        for at, (first, changes) in columns:
            yield {
                found.over: at,
                "constants": constants if constants == "predicted" else f"{constants} at best",
                "faster_first": None if first is None else labels[first],
                "changes": [
                    {"context_tokens": tokens, "faster": labels[who]} for tokens, who in changes
                ],
            }
