"""``lrkv-plan plan``: one page for a decision."""

from typing import Annotated

import typer

from lrkv_plan.cli.names import designs, one_of
from lrkv_plan.cli.options import (
    AcceptedOption,
    AlignOption,
    BudgetFileOption,
    ChosenTpsOption,
    ContextsOption,
    DpSizeOption,
    EngineOption,
    EpSizeOption,
    GpuHourOption,
    KvDtypesOption,
    KvMemoryOption,
    LaunchOption,
    ModelsArgument,
    NGpusOption,
    PpSizeOption,
    RequiredGpus,
    RequireSequencesOption,
    RequireTokensOption,
    RequireTpotOption,
    SpecDirOption,
    SpeculativeOption,
    TpotOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
    asks,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


@asks("plan")
def plan(
    model: ModelsArgument,
    gpu: RequiredGpus,
    attention: Annotated[
        list[str] | None,
        typer.Option(
            "--attention",
            metavar="DESIGN",
            help="A further design. Repeat for more.",
            autocompletion=one_of(designs),
        ),
    ] = None,
    context_tokens: ContextsOption = None,
    n_gpus: NGpusOption = None,
    tp_size: ChosenTpsOption = None,
    pp_size: PpSizeOption = "1",
    dp_size: DpSizeOption = "1",
    ep_size: EpSizeOption = "1",
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
            metavar="N[,...]",
            help="Sequences decoded together on a replica. In every row. Default: each row's "
            "largest.",
        ),
    ] = None,
    require_sequences: RequireSequencesOption = None,
    require_tokens: RequireTokensOption = None,
    require_tpot_ms: RequireTpotOption = None,
    tpot_ms: TpotOption = None,
    speculative_tokens: SpeculativeOption = "1",
    accepted_tokens: AcceptedOption = "1",
    engine: EngineOption = "vllm",
    kv_dtype: KvDtypesOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    align: AlignOption = "16",
    gpu_hour_usd: GpuHourOption = None,
    budget_file: BudgetFileOption = None,
    launch: LaunchOption = False,
    spec_dir: SpecDirOption = None,
) -> None:
    """MHA, GQA, MQA, MLA and LRKV on one page: cache, fit, time, cost, crossover.

    Example: lrkv-plan plan llama-3.1-8b --gpu h100-sxm --context-tokens 8k
    """
