"""``lrkv-plan rank``: the largest LRKV rank that a cache budget allows."""

from typing import Annotated

import typer

from lrkv_plan.cli.options import (
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
    app.command("rank")(rank)


@writes_table
def rank(
    model: ModelArgument,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="50%, 0.5 or 1/3 of MHA; '96 KiB/token' over the group, '24 KiB/token/gpu' on "
            "each GPU; or a design: gqa:6, mla:512+64.",
        ),
    ],
    align: Annotated[
        str, typer.Option("--align", metavar="N", help="Multiple that a kernel wants ranks to be.")
    ] = "16",
    tp_size: TpSizeOption = "1",
    kv_dtype: KvDtypeOption = "bf16",
    groups: Annotated[
        str, typer.Option("--groups", metavar="G", help="Shared key/value groups per layer.")
    ] = "1",
    position: Annotated[
        str,
        typer.Option(
            "--position",
            metavar="HOW",
            help="none, rope_expand, rope_rank or rope_decoupled.",
        ),
    ] = "none",
    rope_dim: Annotated[
        str | None, typer.Option("--rope-dim", metavar="D", help="Width for rope_decoupled.")
    ] = None,
    key_norm: Annotated[
        str, typer.Option("--key-norm", metavar="HOW", help="none or rms_cached.")
    ] = "none",
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens", metavar="T", help="Cached tokens where arithmetic is compared."
        ),
    ] = None,
    mla_rope_dim: Annotated[
        str | None,
        typer.Option("--mla-rope-dim", metavar="D", help="Rope width of the MLA compared with."),
    ] = None,
    spec_dir: SpecDirOption = None,
) -> Table:
    """Largest LRKV rank within a cache budget, and what else fits it.

    Example: lrkv-plan rank lrkv-paper-2.5b --budget 50%
    """
    from lrkv_plan.calculators.rank_ceiling import rank_ceiling
    from lrkv_plan.dtypes import storage_format
    from lrkv_plan.report.views import model_inputs, rank_table
    from lrkv_plan.specs.low_rank_options import LowRankOptions

    spec = load(model, spec_dir)
    context = (
        token_list(context_tokens, "--context-tokens")[0]
        if context_tokens
        else default_context(spec)
    )
    options = LowRankOptions(
        n_shared_groups=one_count(groups, "--groups"),
        position=position,
        rope_dim=one_count(rope_dim, "--rope-dim") if rope_dim else 0,
        key_norm=key_norm,
    )
    latent_rope = one_count(mla_rope_dim, "--mla-rope-dim") if mla_rope_dim else None
    alignment, gpus = one_count(align, "--align"), one_count(tp_size, "--tp-size")
    answer = rank_ceiling(
        spec,
        budget=budget,
        alignment=alignment,
        tp_size=gpus,
        kv_dtype=kv_dtype,
        context_tokens=context,
        options=options,
        latent_rope_dim=latent_rope,
    )
    inputs = {
        "model": model_inputs(spec),
        "budget": budget,
        "align": alignment,
        "tp_size": gpus,
        "kv_dtype": storage_format(kv_dtype).name,
        "context_tokens": context,
        "n_shared_groups": options.n_shared_groups,
        "position": position,
        "rope_dim": options.rope_dim,
        "key_norm": key_norm,
        "mla_rope_dim": latent_rope,
    }
    return rank_table(spec, inputs, answer)
