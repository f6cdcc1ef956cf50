"""``lrkv-plan plot``: pictures of what the other commands tabulate, and their series."""

import enum
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan.cli.given import StrictTyper, asked, refuse
from lrkv_plan.cli.names import designs, one_of
from lrkv_plan.cli.options import (
    AlignOption,
    AttentionOption,
    BatchOption,
    ContextOption,
    EngineOption,
    GpuOption,
    KvDtypeOption,
    KvMemoryOption,
    ModelArgument,
    NGpusOption,
    QueryOption,
    RequiredGpu,
    SpecDirOption,
    TpSizeOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
    write_table,
)
from lrkv_plan.cli.panels import DEPLOYMENT, LOW_RANK, OUTPUT
from lrkv_plan.errors import UsageError
from lrkv_plan.report.format import Format

if TYPE_CHECKING:
    from lrkv_plan.report.figures import Figure

_PARAMETERS = {
    "output": (None, Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE",
            help="Picture to write: its suffix is png, svg or pdf. With --format, the series "
            "go there instead (- is stdout).",
        ),
    ]),
    "output_format": (None, Annotated[
        Format | None,
        typer.Option(
            "--format", "-f", metavar="FORMAT",
            help="Write the series, not a picture. To stdout or --output.",
        ),
    ]),
    "width": ("single", Annotated[
        str,
        typer.Option(
            "--width", metavar="COLUMN", help="single (3.4 inches) or double (7 inches).",
            rich_help_panel=OUTPUT,
        ),
    ]),
    "force": (False, Annotated[
        bool,
        typer.Option("--force", help="Overwrite an existing output file.", rich_help_panel=OUTPUT),
    ]),
    "no_color": (False, Annotated[
        bool, typer.Option("--no-color", help="Tables without colour.", rich_help_panel=OUTPUT)
    ]),
    "quiet": (False, Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT),
    ]),
}  # fmt: skip


def draws(command: Callable[..., None]) -> Callable[..., None]:
    """Make a kind of plot of the picture of its name: the options given in, what it draws written.

    The decorated function declares the options; the shared output options are added.
    """
    picture = command.__name__

    @functools.wraps(command)
    def run(**values: Any) -> None:
        from lrkv_plan.pages import pictures

        chosen = {name: values.pop(name) for name in _PARAMETERS}
        check_output(chosen["output"], chosen["output_format"])
        if chosen["output_format"] is not None:
            refuse(["width"], "is of a picture, and --format gives its series")
        subject = {"model": values["model"]} if "model" in values else {}
        figure = getattr(pictures, picture)(**subject, **asked(*_PARAMETERS))
        write_figure(figure, **chosen)

    signature = inspect.signature(command)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (default, hint) in _PARAMETERS.items()
    ]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added]
    )
    hints = {name: hint for name, (_, hint) in _PARAMETERS.items()}
    run.__annotations__ = {**command.__annotations__, **hints, "return": None}
    del run.__wrapped__
    return run


def check_output(output: str | None, output_format: Format | None) -> None:
    """Refuse, before anything is computed, what cannot be written.

    Raises
    ------
    UsageError
        If neither a picture nor a format is asked for, both are, or the suffix is unknown.
    """
    from lrkv_plan.report.plots import SUFFIXES, check_suffix

    if output_format is None:
        if output is None or output == "-":
            raise UsageError(
                f"give --output FILE ending in {', '.join(SUFFIXES)}, or --format json or csv for "
                "the plotted series"
            )
        check_suffix(_suffix(output))
    elif output is not None and _suffix(output) in SUFFIXES:
        raise UsageError(
            f"--output {output} is a picture, --format {output_format.value} is the series; give "
            "one of them"
        )


def _suffix(output: str) -> str:
    return Path(output).suffix.lower().removeprefix(".")


def write_figure(
    figure: "Figure",
    *,
    output: str | None,
    output_format: Format | None,
    width: str,
    force: bool,
    no_color: bool,
    quiet: bool,
) -> None:
    """Write the picture, whole or not at all, or the series."""
    if output_format is not None:
        from lrkv_plan.report.figures import figure_table

        write_table(
            figure_table(figure), output_format=output_format, output=output or "-", force=force,
            no_color=no_color, quiet=quiet,
        )  # fmt: skip
        return
    from lrkv_plan.files import write_whole
    from lrkv_plan.report.plots import picture

    assert output is not None, "checked before"
    write_whole(output, picture(figure, _suffix(output), width=width), force=force)
    if not quiet:
        for remark in figure.remarks:
            typer.echo(f"note: {remark}", err=True)
        typer.echo(f"wrote {output}", err=True)


GroupsOption = Annotated[
    str,
    typer.Option(
        "--groups", metavar="G", help="Shared key/value groups per layer.", rich_help_panel=LOW_RANK
    ),
]
PositionOption = Annotated[
    str,
    typer.Option(
        "--position",
        metavar="HOW",
        help="none, rope_expand, rope_rank or rope_decoupled.",
        rich_help_panel=LOW_RANK,
    ),
]
RopeDimOption = Annotated[
    str | None,
    typer.Option(
        "--rope-dim", metavar="D", help="Width for rope_decoupled.", rich_help_panel=LOW_RANK
    ),
]
KeyNormOption = Annotated[
    str,
    typer.Option("--key-norm", metavar="HOW", help="none or rms_cached.", rich_help_panel=LOW_RANK),
]


BesideOwnOption = Annotated[
    bool,
    typer.Option("--beside-own", help="The model's own design too, first."),
]


def register_memory(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("cache-vs-rank")(cache_vs_rank)
    app.command("rank-sweep")(rank_sweep)
    app.command("capacity-vs-context")(capacity_vs_context)
    app.command("payload-vs-loss")(payload_vs_loss)


@draws
def cache_vs_rank(
    model: ModelArgument,
    heads: Annotated[
        str | None,
        typer.Option("--heads", metavar="H[,H...]", help="Head counts. Default: the model's own."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="A line at 50%, 1/3 of MHA. With one head count also '96 KiB/token' or gqa:6.",
        ),
    ] = None,
    align: AlignOption = "16",
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    groups: GroupsOption = "1",
    position: PositionOption = "none",
    rope_dim: RopeDimOption = None,
    key_norm: KeyNormOption = "none",
    spec_dir: SpecDirOption = None,
) -> None:
    """Cache of LRKV against its rank, with budget.

    Example: lrkv-plan plot cache-vs-rank lrkv-paper-2.5b --heads 6,18,32 --budget 50% -o rank.png
    """  # fmt: skip


@draws
def rank_sweep(
    model: ModelArgument,
    align: AlignOption = "16",
    context_tokens: Annotated[
        str | None,
        typer.Option("--context-tokens", metavar="T", help="Where arithmetic is compared."),
    ] = None,
    gpu: GpuOption = None,
    engine: EngineOption = "vllm",
    n_gpus: NGpusOption = None,
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    groups: GroupsOption = "1",
    position: PositionOption = "none",
    rope_dim: RopeDimOption = None,
    key_norm: KeyNormOption = "none",
    spec_dir: SpecDirOption = None,
) -> None:
    """Cache, K/V weights and work against the rank.

    Example: lrkv-plan plot rank-sweep llama-2-7b --gpu h100-sxm --width double -o sweep.png
    """


@draws
def capacity_vs_context(
    model: ModelArgument,
    gpu: GpuOption = None,
    attention: AttentionOption = None,
    beside_own: BesideOwnOption = False,
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens",
            metavar="T,T[,T...]",
            help="Lengths. Default: powers of two from 1k to the model's maximum, or 128k.",
        ),
    ] = None,
    engine: EngineOption = "vllm",
    n_gpus: NGpusOption = None,
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    align: Annotated[
        str,
        typer.Option(
            "--align",
            metavar="N",
            help="Multiple that kernels store low-rank rows at.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "16",
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    spec_dir: SpecDirOption = None,
) -> None:
    """Sequences that fit against their length.

    Example: lrkv-plan plot capacity-vs-context llama-3.1-8b --gpu h100-sxm --attention mha
    --attention gqa:8 --attention lrkv:24 -o capacity.png
    """  # fmt: skip


@draws
def payload_vs_loss(
    scale: Annotated[
        list[str] | None,
        typer.Option(
            "--scale", metavar="NAME", help="2.5B, 128M, 512M or 6.3B; repeat for a panel each."
        ),
    ] = None,
) -> None:
    """Cache against the paper's final cross-entropies.

    Example: lrkv-plan plot payload-vs-loss --width double -o loss.png
    """


class MapOver(str, enum.Enum):
    """The x axis of a crossover map."""

    RANK = "rank"
    BATCH = "batch_size"


def register_time(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("roofline")(roofline)
    app.command("crossover-map")(crossover_map)
    app.command("step-stack")(step_stack)


@draws
def roofline(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: AttentionOption = None,
    beside_own: BesideOwnOption = False,
    every_path: Annotated[
        bool, typer.Option("--every-path", help="Place each decode path of a design.")
    ] = False,
    units: Annotated[
        str,
        typer.Option(
            "--units", metavar="U[,U]", help="Ceilings to draw. bf16 (tensor cores), fp32 ..."
        ),
    ] = "bf16,fp32",
    context_tokens: ContextOption = None,
    query_tokens: QueryOption = "1",
    heads_per_tile: Annotated[
        str | None,
        typer.Option(
            "--heads-per-tile", metavar="N", help="Heads served by one read of a shared row."
        ),
    ] = None,
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    spec_dir: SpecDirOption = None,
) -> None:
    """A GPU's roofline with designs placed on it.

    Example: lrkv-plan plot roofline lrkv-paper-2.5b --gpu h100-sxm --attention mha
    --attention lrkv:55 --attention lrkv:55,position=rope_expand -o roofline.png
    """  # fmt: skip


@draws
def crossover_map(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: Annotated[
        list[str],
        typer.Option(
            "--attention",
            metavar="DESIGN",
            help="Give two. Over the rank, the LRKV one is lrkv:RANK with any options.",
            autocompletion=one_of(designs),
        ),
    ],
    over: Annotated[
        MapOver, typer.Option("--over", metavar="NAME", help="The x axis: rank or batch_size.")
    ] = MapOver.RANK,
    context_tokens: Annotated[
        str, typer.Option("--context-tokens", metavar="LOW,HIGH", help="The y axis.")
    ] = "128,128k",
    at_most: Annotated[
        str | None,
        typer.Option("--at-most", metavar="N", help="Largest rank, or batch (default 256)."),
    ] = None,
    batch_size: BatchOption = "1",
    query_tokens: QueryOption = "1",
    kv_dtype: KvDtypeOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    tp_size: TpSizeOption = "1",
    engine: EngineOption = "vllm",
    spec_dir: SpecDirOption = None,
) -> None:
    """Which of two designs decodes faster, over two axes.

    Example: lrkv-plan plot crossover-map llama-2-7b --gpu h200 --attention mha --attention lrkv:48
    --over batch_size -o map.png
    """  # fmt: skip


@draws
def step_stack(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: AttentionOption = None,
    beside_own: BesideOwnOption = False,
    context_tokens: ContextOption = None,
    batch_size: BatchOption = "1",
    query_tokens: QueryOption = "1",
    kv_dtype: KvDtypeOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    tp_size: TpSizeOption = "1",
    engine: EngineOption = "vllm",
    spec_dir: SpecDirOption = None,
) -> None:
    """Where a decode step's time goes.

    Example: lrkv-plan plot step-stack llama-3.1-8b --gpu h200 --attention mha --attention gqa:8
    --batch-size 32 -o step.png
    """  # fmt: skip


app = StrictTyper(
    help="Draw a picture (-o FILE.png, .svg, .pdf) or give its series.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

register_memory(app)
register_time(app)
