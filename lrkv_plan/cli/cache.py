"""``lrkv-plan cache``: what each design keeps per token, sequence and GPU."""

from typing import Annotated

import typer

from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import (
    AttentionOption,
    KvDtypeOption,
    ModelArgument,
    SpecDirOption,
    TpSizeOption,
    default_context,
    load,
    one_count,
    token_list,
    writes_table,
)
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cache")(cache)


@writes_table
def cache(
    model: ModelArgument,
    attention: AttentionOption = None,
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens",
            metavar="T[,T...]",
            help="Tokens cached per sequence; 8k is 8,192. Default: 8k, or the model's maximum.",
        ),
    ] = None,
    batch_size: Annotated[
        str, typer.Option("--batch-size", metavar="N", help="Sequences resident together.")
    ] = "1",
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    encoder_tokens: Annotated[
        str | None,
        typer.Option("--encoder-tokens", metavar="T", help="Encoder rows of cross-attention."),
    ] = None,
    detail: Annotated[bool, typer.Option("--detail", help="One row per cached tensor.")] = False,
    spec_dir: SpecDirOption = None,
) -> Table:
    """Cache bytes per design and context.

    Example: lrkv-plan cache llama-3.1-8b --attention gqa:8 --attention lrkv:24 --context-tokens 8k
    """
    from lrkv_plan.memory.side_by_side import cache_rows, tensor_rows
    from lrkv_plan.report.views.cache import cache_table, tensor_table
    from lrkv_plan.specs.deployment import Workload

    spec = load(model, spec_dir)
    workload = Workload(
        batch_size=one_count(batch_size, "--batch-size"),
        kv_dtype=kv_dtype,
        tp_size=one_count(tp_size, "--tp-size"),
        encoder_tokens=one_count(encoder_tokens, "--encoder-tokens") if encoder_tokens else None,
    )
    contexts = (
        token_list(context_tokens, "--context-tokens")
        if context_tokens
        else [default_context(spec)]
    )
    if all(group.cached_over != "encoder" for group in spec.layers):
        refuse(["encoder_tokens"], f"{spec.name} has no cross-attention; leave it out")
    texts = attention or ()
    if detail:
        tensors = tensor_rows(spec, texts, contexts=contexts, workload=workload)
        return tensor_table(spec, tensors, workload)
    rows = cache_rows(spec, texts, contexts=contexts, workload=workload)
    return cache_table(spec, rows, workload)
