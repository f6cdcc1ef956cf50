"""``lrkv-plan plan``: one page for a decision."""

from typing import Annotated

import typer

from lrkv_plan.cli import capacity_inputs as inputs
from lrkv_plan.cli.capacity_options import (
    EngineOption,
    KvMemoryOption,
    NGpusOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
)
from lrkv_plan.cli.options import (
    AlignOption,
    KvDtypeOption,
    ModelArgument,
    SpecDirOption,
    TpSizeOption,
    load,
    one_count,
    token_list,
    writes_table,
)
from lrkv_plan.cli.time_options import (
    AcceptedOption,
    ContextOption,
    GpuHourOption,
    RequiredGpu,
    SpeculativeOption,
    TpotOption,
)
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


@writes_table
def plan(
    model: ModelArgument,
    gpu: RequiredGpu,
    context_tokens: ContextOption = "8k",
    n_gpus: NGpusOption = None,
    tp_size: TpSizeOption = "1",
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
        typer.Option("--batch-size", metavar="N", help="Sequences at which steps are compared."),
    ] = None,
    tpot_ms: TpotOption = None,
    speculative_tokens: SpeculativeOption = "1",
    accepted_tokens: AcceptedOption = 1.0,
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
    from dataclasses import replace

    from lrkv_plan.engines.latency import Speculation
    from lrkv_plan.engines.plan import make_plan
    from lrkv_plan.report.capacity_views import deployment_inputs
    from lrkv_plan.report.spec_views import model_inputs
    from lrkv_plan.report.time_views import plan_table
    from lrkv_plan.specs.loader import load_all_hardware

    spec = load(model, spec_dir)
    deployment = inputs.one_deployment(
        gpu=gpu,
        engine=engine,
        context_tokens=token_list(context_tokens, "--context-tokens")[0],
        kv_dtype=kv_dtype,
        tp_size=one_count(tp_size, "--tp-size"),
        n_gpus=n_gpus,
        weight_dtype=weight_dtype,
        weights=weights,
        utilisation=utilisation,
        kv_memory=kv_memory,
        alignment=one_count(align, "--align"),
        spec_dir=spec_dir,
    )
    deployment = replace(deployment, gpu_hour_usd=gpu_hour_usd)
    speculation = Speculation(
        query_tokens=one_count(speculative_tokens, "--speculative-tokens"),
        accepted_tokens=accepted_tokens,
    )
    made = make_plan(
        spec,
        deployment,
        budget=budget,
        batch_size=inputs.optional_count(batch_size, "--batch-size"),
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        speculation=speculation,
        relatives=load_all_hardware(spec_dir),
    )
    stated = {
        "model": model_inputs(spec),
        **deployment_inputs(replace(deployment, parallel=made.parallel, n_gpus=made.n_gpus)),
        "budget": made.budget,
        "batch_size": made.batch_size,
        "tpot_ms": tpot_ms,
        "speculative_tokens": speculation.query_tokens,
        "accepted_tokens": speculation.accepted_tokens,
    }
    return plan_table(spec, stated, made)
