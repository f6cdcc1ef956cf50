"""``lrkv-plan rank``: the largest LRKV rank that a cache budget allows."""

from typing import Annotated, Any

import typer

from lrkv_plan.cli import options as inputs
from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import (
    AlignOption,
    EngineOption,
    GpuOption,
    KvDtypeOption,
    KvMemoryOption,
    ModelArgument,
    NGpusOption,
    SpecDirOption,
    TpSizeOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
    context_of,
    load,
    low_rank_variant,
    one_count,
    optional_count,
    writes_table,
)
from lrkv_plan.errors import UsageError
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rank")(rank)


@writes_table
def rank(
    model: ModelArgument,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="50%, 0.5 or 1/3 of MHA; '50% of own' of the model's own cache; '96 KiB/token' "
            "over the group, '24 KiB/token/gpu' on each GPU; or a design: gqa:6, mla:512+64.",
        ),
    ] = None,
    fit_sequences: Annotated[
        str | None,
        typer.Option(
            "--fit-sequences",
            metavar="N",
            help="Instead of --budget: sequences of --context-tokens that must fit on --gpu.",
        ),
    ] = None,
    gpu: GpuOption = None,
    n_gpus: NGpusOption = None,
    engine: EngineOption = "vllm",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    align: AlignOption = "16",
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
    from lrkv_plan.formats import storage_format
    from lrkv_plan.report.views.specs import model_inputs

    if (budget is None) == (fit_sequences is None):
        raise UsageError("give a --budget, or --fit-sequences with --gpu; one of the two")
    if budget is not None:
        refuse(
            ("gpu", "n_gpus", "engine", "weight_dtype", "weights", "utilisation", "kv_memory"),
            "a --budget of bytes does not depend on it; leave it out, or ask with --fit-sequences",
        )
    inputs.refuse_beside_pool(kv_memory, is_timed=False)
    spec = load(model, spec_dir)
    context = context_of(context_tokens, spec)
    variant: dict[str, Any] = {
        "n_shared_groups": one_count(groups, "--groups"),
        "position": position,
        "rope_dim": one_count(rope_dim, "--rope-dim") if rope_dim else 0,
        "key_norm": key_norm,
    }
    design = low_rank_variant(spec, **variant)
    latent_rope = optional_count(mla_rope_dim, "--mla-rope-dim")
    alignment, gpus = one_count(align, "--align"), one_count(tp_size, "--tp-size")
    stated = {
        "model": model_inputs(spec),
        "budget": budget,
        "align": alignment,
        "tp_size": gpus,
        "kv_dtype": storage_format(kv_dtype).name,
        "context_tokens": context,
        **variant,
        "mla_rope_dim": latent_rope,
    }
    if budget is not None:
        from lrkv_plan.memory.largest import own_reading, rank_ceiling
        from lrkv_plan.report.views.cache import rank_table

        told: dict[str, Any] = {
            "alignment": alignment, "tp_size": gpus, "kv_dtype": kv_dtype,
            "context_tokens": context, "design": design, "latent_rope_dim": latent_rope,
        }  # fmt: skip
        answer = rank_ceiling(spec, budget=budget, **told)
        return rank_table(spec, stated, answer, own_reading(spec, budget, **told))

    from lrkv_plan.report.views.cache import rank_fit_table
    from lrkv_plan.serving.capacity import rank_for_sequences

    deployment = inputs.one_deployment(
        model_text=model,
        model=spec,
        gpu=gpu,
        engine=engine,
        context_tokens=context,
        kv_dtype=kv_dtype,
        tp_size=gpus,
        n_gpus=n_gpus,
        weight_dtype=weight_dtype,
        weights=weights,
        utilisation=utilisation,
        kv_memory=kv_memory,
        alignment=alignment,
        spec_dir=spec_dir,
    )
    wanted = one_count(fit_sequences or "", "--fit-sequences")
    fitted = rank_for_sequences(
        spec, deployment, wanted, design=design, latent_rope_dim=latent_rope
    )
    return rank_fit_table(
        spec, {**stated, "fit_sequences": wanted, "gpu": gpu, "engine": engine}, fitted
    )
