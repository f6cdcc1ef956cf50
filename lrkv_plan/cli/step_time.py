"""``lrkv-plan step-time``: one decode step of each design, in its parts."""

import typer

from lrkv_plan.cli.options import (
    AttentionOption,
    BatchesOption,
    ContextsOption,
    DpSizeOption,
    EngineOption,
    EpSizeOption,
    KvDtypesOption,
    ModelsArgument,
    PpSizeOption,
    QueryOption,
    RequiredGpus,
    SpecDirOption,
    TpSizesOption,
    WeightDtypeOption,
    WeightsOption,
    asks,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("step-time")(step_time)


@asks("step_time")
def step_time(
    model: ModelsArgument,
    gpu: RequiredGpus,
    attention: AttentionOption = None,
    context_tokens: ContextsOption = None,
    batch_size: BatchesOption = "1",
    query_tokens: QueryOption = "1",
    tp_size: TpSizesOption = "1",
    pp_size: PpSizeOption = "1",
    dp_size: DpSizeOption = "1",
    ep_size: EpSizeOption = "1",
    engine: EngineOption = "vllm",
    kv_dtype: KvDtypesOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    spec_dir: SpecDirOption = None,
) -> None:
    """One decode step per design: time, band, and what it is made of.

    Example: lrkv-plan step-time llama-3.1-8b --gpu h100-sxm --batch-size 32
    """
