"""Parts of a model's report about bytes: cache, ranks, weights, capacity and placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lrkv_plan.calculators.cache_comparison import cache_rows, tensor_rows
from lrkv_plan.calculators.comparison import params_rows, shard_rows
from lrkv_plan.calculators.rank_ceiling import rank_ceiling
from lrkv_plan.dtypes import storage_format
from lrkv_plan.engines.answers import capacity_answers
from lrkv_plan.errors import RequirementError
from lrkv_plan.report.cache_views import cache_table, tensor_table
from lrkv_plan.report.capacity_views import budget_table, capacity_table
from lrkv_plan.report.document import Part, joined, part_of
from lrkv_plan.report.rank_views import rank_table
from lrkv_plan.report.series.cache_vs_rank import cache_vs_rank
from lrkv_plan.report.series.capacity import capacity_vs_context, default_contexts
from lrkv_plan.report.spec_views import model_inputs
from lrkv_plan.report.weight_views import params_table, shard_table
from lrkv_plan.specs.attention_text import design_label
from lrkv_plan.specs.workload import Workload

if TYPE_CHECKING:
    from lrkv_plan.engines.deployment import Deployment
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.report.settled import Settled
    from lrkv_plan.report.tables import Table
    from lrkv_plan.specs.model import ModelSpec

_SIZES = (1, 2, 4, 8)


def cache_parts(settled: Settled) -> tuple[Part, ...]:
    """Cache per design and context, and per cached tensor."""
    settled = settled.held
    workload = Workload(
        batch_size=settled.batch_size,
        kv_dtype=settled.kv_dtype,
        tp_size=settled.tp_size,
    )
    model, contexts = settled.request.model, settled.contexts
    told = ("--context-tokens", ",".join(map(str, contexts)), *_batch_and_gpus(settled))
    one = ("--context-tokens", str(settled.context_tokens), *_batch_and_gpus(settled))

    def caches(texts: Sequence[str]) -> Table:
        rows = cache_rows(model, texts, contexts=contexts, workload=workload)
        return cache_table(model, rows, workload)

    def tensors(texts: Sequence[str]) -> Table:
        at = [settled.context_tokens]
        rows = tensor_rows(model, texts, contexts=at, workload=workload)
        return tensor_table(model, rows, workload)

    return (
        part_of(
            "cache", "Cache per design and context", lambda: _own_and_others(settled, caches),
            commands=_commands(settled, "cache", *told),
        ),
        part_of(
            "cached-tensors", "What each design keeps", lambda: _own_and_others(settled, tensors),
            lead="One row per cached tensor of one layer group, for one copy of the model.",
            commands=_commands(settled, "cache", "--detail", *one),
        ),
    )  # fmt: skip


def rank_parts(settled: Settled) -> tuple[Part, ...]:
    """The rank ceiling of the budget, the rank's price, and weights per design."""
    settled = settled.held
    request, context = settled.request, settled.context_tokens
    model, deployment = request.model, settled.deployment
    kv_dtype, alignment = deployment.settings.kv_dtype, deployment.rank_alignment
    stated = {
        "model": model_inputs(model), "budget": settled.budget, "align": alignment,
        "tp_size": settled.tp_size, "kv_dtype": storage_format(kv_dtype).name,
        "context_tokens": context, "n_shared_groups": 1, "position": "none", "rope_dim": 0,
        "key_norm": "none", "mla_rope_dim": None,
    }  # fmt: skip

    def ceiling() -> Table:
        answer = rank_ceiling(
            model, budget=settled.budget, alignment=alignment, tp_size=settled.tp_size,
            kv_dtype=kv_dtype, context_tokens=context,
        )  # fmt: skip
        return rank_table(model, stated, answer)

    told = ("--budget", settled.budget, "--tp-size", str(settled.tp_size))

    def weights(texts: Sequence[str]) -> Table:
        return params_table(model, params_rows(model, texts), match_params=False)

    return (
        part_of(
            "rank", f"Largest rank in the budget {settled.budget}", ceiling,
            commands=(request.command("rank", *told, "--context-tokens", str(context)),),
        ),
        part_of(
            "cache-vs-rank", "Cache against rank",
            lambda: cache_vs_rank(
                model, budget=settled.budget, alignment=alignment, kv_dtype=kv_dtype,
                tp_size=settled.tp_size,
            ),
            commands=(request.command("plot cache-vs-rank", *told),),
        ),
        part_of(
            "weights", "Weights per design", lambda: _own_and_others(settled, weights),
            commands=_commands(settled, "params"),
        ),
    )  # fmt: skip


def capacity_parts(settled: Settled) -> tuple[Part, ...]:
    """What fits per design and context, where the memory goes, and a picture."""
    settled = settled.held
    request = settled.request
    deployment = settled.deployment
    models = settled.named_designs
    told = ("--tp-size", str(settled.tp_size), *_all_gpus(deployment))

    def table() -> Table:
        asked = [_at(deployment, context) for context in settled.contexts]
        return capacity_table(request.model, capacity_answers(models, asked), None)

    def terms() -> Table:
        own = (design_label(request.model), request.model)
        answers = capacity_answers([own], [deployment])
        return budget_table(request.model, answers)

    contexts = ",".join(map(str, settled.contexts))
    return (
        part_of(
            "capacity", "Tokens and sequences that fit", table,
            commands=_commands(settled, "capacity", "--context-tokens", contexts, *told),
        ),
        part_of(
            "capacity-vs-context", "Sequences that fit against their length",
            lambda: _held_against_length(settled, models),
            commands=_commands(settled, "plot capacity-vs-context", *told),
        ),
        part_of(
            "memory-budget", "Where one GPU's memory goes", terms,
            lead="The model's own design.",
            commands=(request.command(
                "capacity", "--detail", "--context-tokens", str(settled.context_tokens), *told
            ),),
        ),
    )  # fmt: skip


def placement_parts(settled: Settled) -> tuple[Part, ...]:
    """What tensor parallelism does to the own design, MLA's latent and LRKV."""
    model, kv_dtype = settled.request.model, settled.kv_dtype
    sizes = sorted({*_SIZES, settled.tp_size})
    inputs = {
        "model": model_inputs(model), "tp_size": sizes, "kv_dtype": storage_format(kv_dtype).name,
    }  # fmt: skip
    chosen = _placed_designs(settled)

    def table(texts: Sequence[str]) -> Table:
        rows = shard_rows(model, texts, tp_sizes=sizes, kv_dtype=kv_dtype)
        return shard_table(model, rows, inputs)

    return (
        part_of(
            "placement", "Cache per GPU under tensor parallelism",
            lambda: _own_and_others(replace(settled, texts=chosen), table),
            commands=_commands(
                replace(settled, texts=chosen), "shard", "--tp-size", ",".join(map(str, sizes))
            ),
        ),
    )  # fmt: skip


def _held_against_length(settled: Settled, models: Sequence[tuple[str, ModelSpec]]) -> Figure:
    model = settled.request.model
    asked = [_at(settled.deployment, context) for context in default_contexts(model)]
    answers = capacity_answers(models, asked)
    if not any(answer.row and answer.row.total_sequences for answer in answers):
        raise RequirementError("nothing to draw: no design fits at any length on these GPUs")
    return capacity_vs_context(model, answers)


def _placed_designs(settled: Settled) -> tuple[str | None, ...]:
    """The own design, the one before LRKV (MLA where it fits the budget) and plain LRKV."""
    texts = settled.texts
    plain = settled.plain_low_rank
    if plain not in texts:
        return texts[:3]
    at = texts.index(plain)
    return tuple(dict.fromkeys((texts[0], texts[at - 1], plain)))


def _own_and_others(settled: Settled, table: Callable[[Sequence[str]], Table]) -> Table:
    """One table of all designs, the model's own first where no text names it."""
    named = [text for text in settled.texts if text is not None]
    tables = [table(())] if None in settled.texts else []
    return joined([*tables, *([table(named)] if named else [])])


def _commands(settled: Settled, name: str, *extra: str) -> tuple[str, ...]:
    """The command that prints the designs; two where the own design has no text."""
    named = [text for text in settled.texts if text is not None]
    own = [settled.request.command(name, *extra)] if None in settled.texts else []
    others = [settled.request.command(name, *extra, texts=named)] if named else []
    return (*own, *others)


def _batch_and_gpus(settled: Settled) -> tuple[str, ...]:
    return ("--batch-size", str(settled.batch_size), "--tp-size", str(settled.tp_size))


def _all_gpus(deployment: Deployment) -> tuple[str, ...]:
    return () if deployment.n_gpus is None else ("--n-gpus", str(deployment.n_gpus))


def _at(deployment: Deployment, context: int) -> Deployment:
    return replace(deployment, settings=replace(deployment.settings, context_tokens=context))
