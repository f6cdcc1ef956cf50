"""``lrkv-plan sweep``: a whole grid, and what is left of it."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan.cli.names import designs as known_designs
from lrkv_plan.cli.names import gpus as known_gpus
from lrkv_plan.cli.names import one_of, some_of, weight_formats
from lrkv_plan.cli.options import (
    AcceptedOption,
    AlignOption,
    EngineOption,
    GpuHourOption,
    KvDtypesOption,
    KvMemoryOption,
    MaxBatchedOption,
    MaxNumSeqsOption,
    ModelsArgument,
    NGpusOption,
    PageTokensOption,
    PrefixCacheOption,
    SpecDirOption,
    SpeculativeOption,
    TpotOption,
    UtilisationOption,
    WeightsOption,
    writes_table,
)
from lrkv_plan.cli.panels import DEPLOYMENT, OUTPUT, REQUIREMENTS
from lrkv_plan.cli.plotting import answered
from lrkv_plan.errors import UsageError, shown

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep")(sweep)


def _asks(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of the public function: options in, its table and its picture written."""

    @functools.wraps(command)
    def answer(**values: Any) -> "Table":
        if not values["gpus"]:
            raise UsageError("--gpus is missing: name one or several, such as h100-sxm,h200")
        dask, plot = values["dask"], values["plot"]
        told = {} if dask is None else {"executor": f"dask:{dask}"}
        axes = _axes(values)
        return answered(
            "sweep", values["models"], plot, values["context"],
            lambda found: found.plot(*axes), apart=("dask", "axes"), **told,
        )  # fmt: skip

    return writes_table(answer)


def _axes(values: Mapping[str, Any]) -> list[str]:
    """The keys that a picture is drawn over.

    Raises
    ------
    UsageError
        If they are not two or three, or there is no picture.
    """
    if values["axes"] is None:
        return ["users", "tpot_ms", "attention"]
    if values["plot"] is None:
        raise UsageError("--axes: are of the picture that --plot names")
    axes = [part.strip() for part in values["axes"].split(",")]
    if len(axes) not in (2, 3) or "" in axes:
        raise UsageError(f"--axes {shown(values['axes'])}: write X,Y or X,Y,HUE")
    return axes


@_asks
def sweep(
    context: typer.Context,
    models: ModelsArgument,
    gpus: Annotated[
        str,
        typer.Option(
            "--gpus",
            "--gpu",
            metavar="GPU[,...]",
            help="Names or YAML files, 8xh100-sxm for eight.",
            autocompletion=some_of(known_gpus),
        ),
    ] = "",
    designs: Annotated[
        list[str] | None,
        typer.Option(
            "--designs",
            metavar="DESIGN",
            help="own, mla:512+64, lrkv:8..64:8. More with ; between, or repeat.",
            autocompletion=one_of(known_designs),
        ),
    ] = None,
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens",
            metavar="T[,...]",
            help="8k,32k, 1k..32k:1k in steps, 1k..128k:*2 doubling.",
        ),
    ] = None,
    batch_size: Annotated[
        str,
        typer.Option(
            "--batch-size",
            metavar="N[,...]",
            help="Of a replica; full is the most that fit.",
        ),
    ] = "full",
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Keep those where: 'users >= 64 and tpot_ms < 30'.",
        ),
    ] = None,
    reduce: Annotated[
        str | None,
        typer.Option("--reduce", metavar="HOW", help="pareto, min, top:20. Default: all rows."),
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            "--objectives",
            metavar="GOAL[,...]",
            help="What is best. 'users up, tpot_s down, n_gpus down' of a frontier, 'tpot_s down' "
            "of min and top.",
            rich_help_panel=REQUIREMENTS,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="KEY[,...]",
            help="What is left of each: gpu, attention, context_tokens.",
            rich_help_panel=REQUIREMENTS,
        ),
    ] = None,
    tpot_ms: TpotOption = None,
    n_gpus: NGpusOption = None,
    tp_size: Annotated[
        str,
        typer.Option(
            "--tp-size", metavar="N[,...]", help="Tensor-parallel GPUs.", rich_help_panel=DEPLOYMENT
        ),
    ] = "1",
    pp_size: Annotated[
        str,
        typer.Option(
            "--pp-size", metavar="N[,...]", help="Pipeline stages.", rich_help_panel=DEPLOYMENT
        ),
    ] = "1",
    dp_size: Annotated[
        str,
        typer.Option(
            "--dp-size",
            metavar="N[,...]",
            help="Data-parallel attention cores.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "1",
    ep_size: Annotated[
        str,
        typer.Option(
            "--ep-size",
            metavar="N[,...]",
            help="GPUs that experts are dealt over.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "1",
    dcp_size: Annotated[
        str,
        typer.Option(
            "--dcp-size",
            metavar="N[,...]",
            help="Decode-context parallel GPUs.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "1",
    engine: EngineOption = "vllm",
    kv_dtype: KvDtypesOption = "bf16",
    weight_dtype: Annotated[
        str | None,
        typer.Option(
            "--weight-dtype",
            metavar="FORMAT[,...]",
            help="Weight formats; own is the model's.",
            rich_help_panel=DEPLOYMENT,
            autocompletion=some_of(weight_formats),
        ),
    ] = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    align: AlignOption = "16",
    page_tokens: PageTokensOption = None,
    max_batched_tokens: MaxBatchedOption = None,
    max_num_seqs: MaxNumSeqsOption = None,
    prefix_cache: PrefixCacheOption = False,
    speculative_tokens: SpeculativeOption = "1",
    accepted_tokens: AcceptedOption = "1",
    gpu_hour_usd: GpuHourOption = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask",
            metavar="ADDRESS|local",
            help="A Dask scheduler's address, or local.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="Processes at a time. Default: the machine's cores.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Rows as Parquet files there; a stopped sweep goes on.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Picture of the frontier: png, svg or pdf.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(
            "--axes",
            metavar="X,Y[,HUE]",
            help="Keys that it is drawn over. Default: users,tpot_ms,attention.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    spec_dir: SpecDirOption = None,
) -> None:
    """A grid of designs, GPUs, layouts and loads, and the best of it.

    Example: lrkv-plan sweep llama-3.1-8b --gpus h200,b200 --reduce pareto
    """
