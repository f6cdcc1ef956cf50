"""What all commands share: options, the output options of each, and text turned into values."""

import enum
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan.cli.given import asked
from lrkv_plan.cli.names import (
    designs,
    engines,
    gpus,
    kv_formats,
    models,
    one_of,
    some_of,
    weight_formats,
)
from lrkv_plan.cli.panels import DEPLOYMENT, ENGINE, OUTPUT, PRICE, REQUIREMENTS
from lrkv_plan.cli.progress import progress_when_long
from lrkv_plan.errors import PlanError, RequirementError, UsageError
from lrkv_plan.report.format import Format

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table
    from lrkv_plan.specs.model import ModelSpec

GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="Name or YAML file. `lrkv-plan hardware` lists the names.",
        autocompletion=some_of(gpus),
    ),
]
GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="GPU[,...]",
        help="Name or YAML file, 8xh100-sxm for eight. A comma lists several; a plus joins stages "
        "of one deployment, 1xrtx-5090+1xrtx-4090.",
        autocompletion=some_of(gpus),
    ),
]
RequiredGpus = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="GPU[,...]",
        help="Name or YAML file, 8xh100-sxm for eight. A comma lists several.",
        autocompletion=some_of(gpus),
    ),
]
NGpusOption = Annotated[
    str | None,
    typer.Option(
        "--n-gpus", metavar="N", help="GPUs in all; replicas fill them.", rich_help_panel=DEPLOYMENT
    ),
]
PpSizeOption = Annotated[
    str,
    typer.Option("--pp-size", metavar="N", help="Pipeline stages.", rich_help_panel=DEPLOYMENT),
]
PpLayersOption = Annotated[
    str | None,
    typer.Option(
        "--pp-layers",
        metavar="L,L[,...]",
        help="Layers of each pipeline stage, 32,16. Default: as the engine deals them out.",
        rich_help_panel=ENGINE,
    ),
]
DpSizeOption = Annotated[
    str,
    typer.Option(
        "--dp-size",
        metavar="N",
        help="Data-parallel attention cores.",
        rich_help_panel=DEPLOYMENT,
    ),
]
EpSizeOption = Annotated[
    str,
    typer.Option(
        "--ep-size",
        metavar="N",
        help="GPUs that experts are dealt over.",
        rich_help_panel=DEPLOYMENT,
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME[@VERSION]",
        help="ideal, paged, vllm, vllm_v0, vllm_ascend, sglang, tensorrt_llm, lmdeploy, "
        "tgi, llama_cpp, ik_llama_cpp, ollama, exllama, mlx or one that a package adds; with a "
        "version vllm@0.11.0.",
        rich_help_panel=DEPLOYMENT,
        autocompletion=one_of(engines),
    ),
]
WeightDtypeOption = Annotated[
    str | None,
    typer.Option(
        "--weight-dtype",
        metavar="FORMAT",
        help="Format of the weights.",
        rich_help_panel=DEPLOYMENT,
        autocompletion=one_of(weight_formats),
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="SIZE",
        help="Weights per GPU as known: '14.99 GiB'.",
        rich_help_panel=DEPLOYMENT,
    ),
]
UtilisationOption = Annotated[
    str | None,
    typer.Option(
        "--utilisation",
        metavar="SHARE",
        help="The engine's memory fraction, by its meaning.",
        rich_help_panel=DEPLOYMENT,
    ),
]
PageTokensOption = Annotated[
    str | None,
    typer.Option("--page-tokens", metavar="N", help="Tokens per page.", rich_help_panel=ENGINE),
]
MaxBatchedOption = Annotated[
    str | None,
    typer.Option(
        "--max-batched-tokens",
        metavar="N",
        help="Tokens scheduled in one step. Default: vLLM's for the GPU, 8192 or 2048.",
        rich_help_panel=ENGINE,
    ),
]
PrefixCacheOption = Annotated[
    bool,
    typer.Option(
        "--prefix-cache",
        help="State layers keep a block for reuse.",
        rich_help_panel=ENGINE,
    ),
]
MaxNumSeqsOption = Annotated[
    str | None,
    typer.Option(
        "--max-num-seqs",
        metavar="N",
        help="Most sequences that run together.",
        rich_help_panel=ENGINE,
    ),
]
KvMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        metavar="SIZE",
        help="Cache memory per GPU; no budget then.",
        rich_help_panel=DEPLOYMENT,
    ),
]
BudgetFileOption = Annotated[
    Path | None,
    typer.Option(
        "--budget-file",
        metavar="FILE",
        help="A budget measured by `capacity --from-log LOG --write-budget FILE`.",
        rich_help_panel=DEPLOYMENT,
    ),
]
LaunchOption = Annotated[
    bool,
    typer.Option(
        "--launch", help="The engine's own command line for the layout.", rich_help_panel=DEPLOYMENT
    ),
]


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Name, YAML, config.json or GGUF. A folder holds one; `lrkv-plan models` lists names.",
        autocompletion=some_of(models),
    ),
]
ModelsArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[,...]",
        help="Name, YAML, config.json or GGUF. A folder holds one; a comma lists several, a row "
        "each.",
        autocompletion=some_of(models),
    ),
]
AttentionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attention",
        metavar="DESIGN",
        help="Swap the design; repeat for one row each. mha, gqa:8, mqa, mla:512+64, lrkv:55, "
        "lrkv:55,groups=2,position=rope_expand,key_norm=rms_cached.",
        autocompletion=one_of(designs),
    ),
]
KvDtypeOption = Annotated[
    str,
    typer.Option(
        "--kv-dtype",
        metavar="FORMAT",
        help="Storage format of cached scalars.",
        rich_help_panel=DEPLOYMENT,
        autocompletion=some_of(kv_formats),
    ),
]
KvDtypesOption = Annotated[
    str,
    typer.Option(
        "--kv-dtype",
        metavar="FORMAT[,...]",
        help="Storage formats of cached scalars.",
        rich_help_panel=DEPLOYMENT,
        autocompletion=some_of(kv_formats),
    ),
]
TpSizesOption = Annotated[
    str,
    typer.Option(
        "--tp-size",
        metavar="P[,...]",
        help="GPUs that share the model.",
        rich_help_panel=DEPLOYMENT,
    ),
]
TpSizeOption = Annotated[
    str,
    typer.Option(
        "--tp-size", metavar="P", help="GPUs that share the model.", rich_help_panel=DEPLOYMENT
    ),
]
AlignOption = Annotated[
    str,
    typer.Option(
        "--align",
        metavar="N",
        help="Multiple that a kernel wants ranks to be.",
        rich_help_panel=DEPLOYMENT,
    ),
]
NewNameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="What answers call it, such as my-gpu.")
]
SpecDirOption = Annotated[
    Path | None,
    typer.Option(
        "--spec-dir",
        metavar="DIR",
        help="A folder of YAML files searched before the shipped ones.",
        rich_help_panel=OUTPUT,
    ),
]


class Inputs(str, enum.Enum):
    """How much of its inputs an answer in JSON repeats."""

    SHORT = "short"
    FULL = "full"


_OUTPUT_PARAMETERS = {
    "output_format": Annotated[
        Format,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="table, json, csv or markdown.",
            rich_help_panel=OUTPUT,
        ),
    ],
    "output": Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Write here; - is stdout.",
            rich_help_panel=OUTPUT,
        ),
    ],
    "force": Annotated[
        bool,
        typer.Option("--force", help="Overwrite an existing output file.", rich_help_panel=OUTPUT),
    ],
    "no_color": Annotated[
        bool, typer.Option("--no-color", help="Plain text without colour.", rich_help_panel=OUTPUT)
    ],
    "quiet": Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT),
    ],
    "explain": Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also the equations with their numbers, and all notes.",
            rich_help_panel=OUTPUT,
        ),
    ],
    "inputs": Annotated[
        Inputs | None,
        typer.Option(
            "--inputs",
            metavar="HOW",
            help="In JSON: short, or full with all constants of the GPU.",
            rich_help_panel=OUTPUT,
        ),
    ],
}
_OUTPUT_DEFAULTS: dict[str, Any] = {
    "output_format": Format.TABLE, "output": "-", "force": False, "no_color": False, "quiet": False,
    "explain": False, "inputs": None,
}  # fmt: skip


def writes_table(command: "Callable[..., Table | None]") -> Callable[..., None]:
    """Give a command that returns a Table the shared output options, and write what it returns.

    Options that the command has itself (``--output`` for a folder) keep its meaning; the table then
    goes to stdout.
    """
    own = set(inspect.signature(command).parameters)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        chosen = _OUTPUT_DEFAULTS | {n: values.pop(n) for n in _OUTPUT_PARAMETERS if n not in own}
        with progress_when_long(chosen["quiet"]):
            table = command(**values)
        if table is not None:
            write_table(table, **chosen)
            if isinstance(table.unmet, PlanError):
                raise table.unmet
            if table.unmet is not None:
                raise RequirementError(table.unmet)

    signature = inspect.signature(command)
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_OUTPUT_DEFAULTS[name], annotation=hint
        )
        for name, hint in _OUTPUT_PARAMETERS.items()
        if name not in own
    ]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added], return_annotation=None
    )
    run.__annotations__ = {**_OUTPUT_PARAMETERS, **command.__annotations__, "return": None}
    del run.__wrapped__
    return run


def asks(question: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a public function: the options on the command line in, its table written.

    The decorated function declares the options; its first parameter is the question's subject.
    """

    def made(command: Callable[..., None]) -> Callable[..., None]:
        subject = next(iter(inspect.signature(command).parameters))

        @functools.wraps(command)
        def answer(**values: Any) -> "Table":
            return ask(question, values[subject])

        return writes_table(answer)

    return made


def ask(question: str, *subjects: Any, apart: Iterable[str] = ()) -> "Table":
    """The answer of a public function to the options on the command line, but those ``apart``."""
    answer: Table = asked_result(question, *subjects, apart=apart).table
    return answer


def asked_result(question: str, *subjects: Any, apart: Iterable[str] = (), **more: Any) -> Any:
    """``ask`` with the whole result; ``more`` are arguments that stand on no command line."""
    import lrkv_plan

    options = {**asked(*_OUTPUT_PARAMETERS, *apart), **more}
    return getattr(lrkv_plan, question)(*subjects, **options)


def write_table(
    table: "Table",
    *,
    output_format: Format,
    output: str,
    force: bool,
    no_color: bool,
    quiet: bool,
    explain: bool = False,
    inputs: Inputs | None = None,
) -> None:
    """Write the table to stdout or, whole or not at all, to a file; notes to stderr.

    A screen says the notes that change what its numbers mean, ``--explain`` all of them. JSON and
    markdown hold them themselves.

    Raises
    ------
    UsageError
        If ``explain`` is asked of a format that holds everything or of a whole document, or
        ``inputs`` of another format than JSON.
    """
    from lrkv_plan.report import tables

    if inputs is not None and output_format is not Format.JSON:
        raise UsageError(f"--inputs {inputs.value} is of --format json; leave it out")
    is_screen = output_format is Format.TABLE and table.text is None
    if explain and not is_screen:
        raise UsageError("--explain writes for people; leave it out, or --format")
    if output == "-":
        color = sys.stdout.isatty() and not no_color and wants_color()
        written = tables.render(
            table, output_format, width=screen_width(), color=color,
            whole_inputs=inputs is Inputs.FULL,
        )  # fmt: skip
    else:
        written = tables.render(table, output_format, whole_inputs=inputs is Inputs.FULL)
    if explain:
        written += "".join(f"{line}\n" for line in explanation_lines(table, screen_width()))
    if output != "-":
        from lrkv_plan.files import write_whole

        write_whole(output, written, force=force)
    else:
        sys.stdout.write(written)
        sys.stdout.flush()
    if quiet:
        return
    for note in [] if explain else _notes_beside(table, output_format):
        typer.echo(f"note: {note}", err=True)
    if output != "-":
        typer.echo(f"wrote {output}", err=True)


def _notes_beside(table: "Table", output_format: Format) -> Iterable[str]:
    from lrkv_plan.report.tables import screen_of

    if table.text is not None or output_format not in (Format.TABLE, Format.CSV):
        return ()
    return table.remarks if output_format is Format.CSV else map(str, screen_of(table).notes)


def explanation_lines(table: "Table", width: int) -> Iterable[str]:
    """An empty line, then equations and notes, wrapped and indented below their first word."""
    from lrkv_plan.report.screen import wrapped
    from lrkv_plan.report.tables import explained

    yield ""
    for paragraph in explained(table):
        lead = len(paragraph) - len(paragraph.lstrip(" "))
        yield from wrapped(paragraph, width, indent=" " * (lead + 2))


def screen_width() -> int:
    """Columns of a screen: COLUMNS, else the terminal's, else 80."""
    import shutil

    from lrkv_plan.report.screen import NARROWEST, WIDTH

    return max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST)


def wants_color() -> bool:
    """NO_COLOR unset or empty, and a terminal that is not dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def load(argument: str, spec_dir: Path | None = None) -> "ModelSpec":
    """The model of a command, all families registered."""
    import lrkv_plan

    model: ModelSpec = lrkv_plan.load_model(argument, spec_dir=spec_dir)
    return model


RequiredGpu = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="Name or YAML file. `lrkv-plan hardware` lists the names.",
        autocompletion=some_of(gpus),
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context-tokens",
        metavar="T",
        help="Tokens cached per sequence. Default: 8k, or the model's maximum.",
    ),
]
ChosenTpOption = Annotated[
    str | None,
    typer.Option(
        "--tp-size",
        metavar="P",
        help="GPUs that share the model. Default: of --n-gpus the size that serves most, else the "
        "smallest that fits.",
        rich_help_panel=DEPLOYMENT,
    ),
]
BatchOption = Annotated[
    str, typer.Option("--batch-size", metavar="N", help="Sequences decoded together.")
]
BatchesOption = Annotated[
    str, typer.Option("--batch-size", metavar="N[,...]", help="Sequences decoded together.")
]
QueryOption = Annotated[
    str,
    typer.Option(
        "--query-tokens", metavar="Q", help="Tokens decoded per sequence.", rich_help_panel=PRICE
    ),
]
TpotOption = Annotated[
    str | None,
    typer.Option("--tpot-ms", metavar="MS", help="Most ms an output token may take."),
]
SpeculativeOption = Annotated[
    str,
    typer.Option(
        "--speculative-tokens", metavar="Q", help="Tokens verified per step.", rich_help_panel=PRICE
    ),
]
AcceptedOption = Annotated[
    str,
    typer.Option(
        "--accepted-tokens",
        metavar="N",
        help="Of those, accepted on average.",
        rich_help_panel=PRICE,
    ),
]
GpuHourOption = Annotated[
    str | None,
    typer.Option(
        "--gpu-hour-usd", metavar="USD", help="Price of one GPU for an hour.", rich_help_panel=PRICE
    ),
]
MoreAttentionOption = Annotated[
    list[str] | None,
    typer.Option("--attention", metavar="DESIGN", help="A further design. Repeat for more."),
]
PlanBudgetOption = Annotated[
    str | None,
    typer.Option("--budget", metavar="BUDGET", help="Cache budget for LRKV, as for plan."),
]
ReportBatchOption = Annotated[
    str | None,
    typer.Option(
        "--batch-size",
        metavar="N",
        help="Sequences decoded together on each replica. Default: each design's largest in "
        "the plan, and what all hold elsewhere.",
    ),
]
ContextsOption = Annotated[
    str | None,
    typer.Option(
        "--context-tokens",
        metavar="T[,...]",
        help="Tokens cached per sequence. Default: 8k, or the model's maximum.",
    ),
]
ChosenTpsOption = Annotated[
    str | None,
    typer.Option(
        "--tp-size",
        metavar="P[,...]",
        help="GPUs that share the model. Default: of --n-gpus the size that serves most, else the "
        "smallest that fits.",
        rich_help_panel=DEPLOYMENT,
    ),
]
RequireSequencesOption = Annotated[
    str | None,
    typer.Option(
        "--require-sequences",
        metavar="N",
        help="Exit 4 where fewer fit.",
        rich_help_panel=REQUIREMENTS,
    ),
]
RequireTokensOption = Annotated[
    str | None,
    typer.Option(
        "--require-tokens",
        metavar="N",
        help="Exit 4 where fewer fit.",
        rich_help_panel=REQUIREMENTS,
    ),
]
RequireTpotOption = Annotated[
    str | None,
    typer.Option(
        "--require-tpot-ms",
        metavar="MS",
        help="Exit 4 where a token takes longer; the load stays, which --tpot-ms would reduce.",
        rich_help_panel=REQUIREMENTS,
    ),
]
