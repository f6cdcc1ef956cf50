"""``lrkv-plan best``: the cheapest way to serve so many users."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan.cli.names import gpus as known_gpus
from lrkv_plan.cli.names import some_of, weight_formats
from lrkv_plan.cli.options import (
    AcceptedOption,
    AlignOption,
    AttentionOption,
    ContextOption,
    EngineOption,
    GpuHourOption,
    KvDtypesOption,
    ModelArgument,
    SpecDirOption,
    SpeculativeOption,
    TpotOption,
    UtilisationOption,
    writes_table,
)
from lrkv_plan.cli.panels import DEPLOYMENT, OUTPUT, PRICE
from lrkv_plan.cli.plotting import answered
from lrkv_plan.errors import UsageError

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("best")(best)


def _asks(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of the public function: options in, its table and its picture written."""

    @functools.wraps(command)
    def answer(**values: Any) -> "Table":
        if not values["users"]:
            raise UsageError("--users is missing: how many are served together, such as 64")
        return answered(
            "best", values["model"], values["plot"], values["context"],
            lambda found: found.tornado(),
        )  # fmt: skip

    return writes_table(answer)


@_asks
def best(
    context: typer.Context,
    model: ModelArgument,
    users: Annotated[
        str,
        typer.Option(
            "--users", metavar="N", help="Sequences of full length that are served together."
        ),
    ] = "",
    context_tokens: ContextOption = None,
    tpot_ms: TpotOption = None,
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu",
            metavar="GPU[,...]",
            help="Names or YAML files to choose from, or any.",
            autocompletion=some_of(known_gpus),
        ),
    ] = "any",
    budget_usd_hour: Annotated[
        str | None,
        typer.Option(
            "--budget-usd-hour", metavar="USD", help="Most that all GPUs may cost in an hour."
        ),
    ] = None,
    attention: AttentionOption = None,
    families: Annotated[
        bool, typer.Option("--families", help="Choose a family too, within the own design's cache.")
    ] = False,
    max_gpus: Annotated[
        str | None,
        typer.Option(
            "--max-gpus", metavar="N", help="Most GPUs. Default: 64.", rich_help_panel=DEPLOYMENT
        ),
    ] = None,
    tp_size: Annotated[
        str | None,
        typer.Option(
            "--tp-size",
            metavar="N",
            help="Tensor-parallel GPUs. Default: searched.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    pp_size: Annotated[
        str | None,
        typer.Option(
            "--pp-size",
            metavar="N",
            help="Pipeline stages. Default: searched.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    dp_size: Annotated[
        str | None,
        typer.Option(
            "--dp-size",
            metavar="N",
            help="Data-parallel attention cores. Default: searched.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    ep_size: Annotated[
        str | None,
        typer.Option(
            "--ep-size",
            metavar="N",
            help="GPUs that experts are dealt over. Default: searched.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    dcp_size: Annotated[
        str | None,
        typer.Option(
            "--dcp-size",
            metavar="N",
            help="Decode-context parallel GPUs. Default: searched.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    engine: EngineOption = "vllm",
    kv_dtype: KvDtypesOption = "bf16",
    weight_dtype: Annotated[
        str | None,
        typer.Option(
            "--weight-dtype",
            metavar="FORMAT[,...]",
            help="Weight formats to choose from; own is the model's.",
            rich_help_panel=DEPLOYMENT,
            autocompletion=some_of(weight_formats),
        ),
    ] = None,
    utilisation: UtilisationOption = None,
    align: AlignOption = "16",
    speculative_tokens: SpeculativeOption = "1",
    accepted_tokens: AcceptedOption = "1",
    gpu_hour_usd: GpuHourOption = None,
    draws: Annotated[
        str | None,
        typer.Option(
            "--draws",
            metavar="N",
            help="Draws of what is uncertain. Default: 1000.",
            rich_help_panel=PRICE,
        ),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(
            "--seed", metavar="N", help="Of the draws. Default: 0.", rich_help_panel=PRICE
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Picture of what moves the cost: png, svg or pdf.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    spec_dir: SpecDirOption = None,
) -> None:
    """The cheapest way to serve so many users: GPUs, layout, replicas, formats.

    Example: lrkv-plan best llama-3.1-70b --users 64 --tpot-ms 30 --gpu h200,b200
    """
