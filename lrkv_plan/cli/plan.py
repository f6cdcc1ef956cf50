"""``lrkv-plan plan``: one page for a decision."""

from typing import Annotated

import typer

from lrkv_plan.cli import options as inputs
from lrkv_plan.cli.options import (
    AcceptedOption,
    AlignOption,
    ChosenTpOption,
    ContextOption,
    EngineOption,
    GpuHourOption,
    KvDtypeOption,
    KvMemoryOption,
    ModelArgument,
    NGpusOption,
    RequiredGpu,
    SpecDirOption,
    SpeculativeOption,
    TpotOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
    context_of,
    load,
    one_count,
    optional_count,
    writes_table,
)
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


@writes_table
def plan(
    model: ModelArgument,
    gpu: RequiredGpu,
    context_tokens: ContextOption = None,
    n_gpus: NGpusOption = None,
    tp_size: ChosenTpOption = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="Cache budget for LRKV, GQA and MLA. Default: the model's own cache, or half of "
            "MHA where that is its own.",
        ),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            metavar="N",
            help="Sequences decoded together on each replica, in every row. Default: each row's "
            "largest.",
        ),
    ] = None,
    tpot_ms: TpotOption = None,
    speculative_tokens: SpeculativeOption = "1",
    accepted_tokens: AcceptedOption = "1",
    engine: EngineOption = "vllm",
    kv_dtype: KvDtypeOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    align: AlignOption = "16",
    gpu_hour_usd: GpuHourOption = None,
    spec_dir: SpecDirOption = None,
) -> Table:
    """MHA, GQA, MQA, MLA and LRKV on one page: cache, fit, time, cost, crossover.

    Example: lrkv-plan plan llama-3.1-8b --gpu h100-sxm --context-tokens 8k
    """
    from lrkv_plan.report.views.time import plan_inputs, plan_table
    from lrkv_plan.serving.plan import make_plan

    inputs.refuse_beside_pool(kv_memory, is_timed=True)
    spec = load(model, spec_dir)
    deployment = inputs.one_deployment(
        model_text=model, model=spec, gpu=gpu, engine=engine,
        context_tokens=context_of(context_tokens, spec), kv_dtype=kv_dtype,
        tp_size=one_count(tp_size or "1", "--tp-size"), n_gpus=n_gpus, weight_dtype=weight_dtype,
        weights=weights, utilisation=utilisation, kv_memory=kv_memory,
        alignment=one_count(align, "--align"), gpu_hour_usd=gpu_hour_usd, spec_dir=spec_dir,
    )  # fmt: skip
    target = inputs.latency_target(tpot_ms, speculative_tokens, accepted_tokens, spec_dir)
    made = make_plan(
        spec,
        deployment,
        budget=budget,
        batch_size=optional_count(batch_size, "--batch-size"),
        target=target,
        is_layout_stated=tp_size is not None,
    )
    return plan_table(spec, plan_inputs(spec, deployment, target, made), made)
