"""``lrkv-plan calibrate tensor-parallel``: all-reduces and sharded steps of several processes.

torchrun starts one process, a worker, per GPU. All of them run this command and end with one exit
code; only worker 0 speaks.
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from lrkv_plan import words
from lrkv_plan.cli.boundary import what_is_told
from lrkv_plan.cli.given import StrictCommand
from lrkv_plan.cli.names import designs, gpus, one_of, some_of
from lrkv_plan.cli.options import writes_table
from lrkv_plan.cli.panels import MEASURING, OUTPUT
from lrkv_plan.cli.progress import progress_line
from lrkv_plan.cli.result_folder import result_folder
from lrkv_plan.errors import UsageError, did_you_mean, shown

if TYPE_CHECKING:
    from lrkv_plan.calibration.tensor_parallel.group import Place
    from lrkv_plan.calibration.tensor_parallel.options import Options
    from lrkv_plan.report.tables import Table

MAX_WIDTH = 1 << 20
MAX_CONTEXTS = 100
MESSAGE_BYTES = (128 << 10, 1 << 31)  # at least eight sizes can be fitted
# torchrun stops all workers once one has failed: the others leave worker 0 time to say why, and
# keep their exit code when torchrun ends them meanwhile.
FIRST_SPEAKS_S = 1.0
Result = TypeVar("Result")


class WorkerCommand(StrictCommand):
    """A command that several workers run: all but worker 0 print nothing."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the command line."""
        return _silent_unless_first(lambda: super(WorkerCommand, self).make_context(
            *arguments, **options
        ))  # fmt: skip

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        return _silent_unless_first(lambda: super(WorkerCommand, self).invoke(ctx))


def _silent_unless_first(work: Callable[[], Result]) -> Result:
    if _is_first():
        return work()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            return work()
        except Exception as error:
            told = what_is_told(error)
            if told is None:
                raise
            let_first_speak(told[1])
            raise typer.Exit(told[1]) from None


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def let_first_speak(exit_code: int) -> None:
    """Wait a moment; end with this exit code if torchrun stops this worker meanwhile."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(exit_code))
    time.sleep(FIRST_SPEAKS_S)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tensor-parallel", cls=WorkerCommand)(tensor_parallel)


@writes_table
def tensor_parallel(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=result_folder,
            help="Folder to write. tensor-parallel.md and .json, allreduce.csv, samples.csv (added "
            "to; rows for `calibrate fit`), run.json if there is none, and NAME.allreduce.yaml: "
            "the --gpu profile with what was measured.",
        ),
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="auto, cpu (gloo) or cuda (nccl).",
            rich_help_panel=MEASURING,
        ),
    ] = "auto",
    attention: Annotated[
        list[str] | None,
        typer.Option(
            "--attention",
            metavar="DESIGN",
            help="A design; repeat for more. mha, gqa:8, mla:512+64, lrkv:54,groups=8; each family "
            "if not given.",
            autocompletion=one_of(designs),
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Placement, as `shard` names it. Repeat for more.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    n_heads: Annotated[
        str, typer.Option("--n-heads", metavar="H", help="Query heads of the layer.")
    ] = "32",
    head_dim: Annotated[
        str, typer.Option("--head-dim", metavar="D", help="Width of a head.")
    ] = "128",
    model_dim: Annotated[
        str | None,
        typer.Option(
            "--model-dim", metavar="D", help="Width of the layer's output; H times D if not given."
        ),
    ] = None,
    batch_size: Annotated[
        str, typer.Option("--batch-size", metavar="B", help="Sequences decoded together.")
    ] = "1",
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens",
            metavar="T[,T]",
            help="Cached tokens each; 1k on a CPU, 8k on a GPU.",
        ),
    ] = None,
    query_tokens: Annotated[
        str,
        typer.Option("--query-tokens", metavar="Q", help="Tokens decoded per sequence and step."),
    ] = "1",
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="FORMAT",
            help="fp32 on a CPU, bf16 on a GPU, or fp16.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(
            "--path",
            metavar="PATH",
            help="Decode path, if not the usual one of each design.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    repeats: Annotated[
        str,
        typer.Option(
            "--repeats",
            metavar="N",
            help="Times that all is measured, time permitting.",
            rich_help_panel=MEASURING,
        ),
    ] = "20",
    largest_message: Annotated[
        str | None,
        typer.Option(
            "--largest-message",
            metavar="SIZE",
            help="8MiB on a CPU, 64MiB on a GPU.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="PROFILE",
            help="Profile whose link the fit refers to, and its copy's base.",
            rich_help_panel=MEASURING,
            autocompletion=some_of(gpus),
        ),
    ] = None,
    seed: Annotated[
        str,
        typer.Option(
            "--seed", metavar="N", help="Of the random rows and weights.", rich_help_panel=MEASURING
        ),
    ] = "0",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Overwrite an earlier report in the folder.", rich_help_panel=OUTPUT
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT),
    ] = False,
) -> "Table | None":
    """Measure all-reduces and sharded steps under torchrun.

    Example: torchrun --nproc-per-node 2 -m lrkv_plan calibrate tensor-parallel --output tp2
    """
    from lrkv_plan.attention.registry import layout_of, parse_attention
    from lrkv_plan.attention.spec import Backbone
    from lrkv_plan.calibration.tensor_parallel.group import place_from
    from lrkv_plan.calibration.tensor_parallel.options import Options, usual_designs
    from lrkv_plan.calibration.torch_gate import DEVICES, TORCH_DTYPES
    from lrkv_plan.memory.placement import POLICIES

    heads, width = _count(n_heads, "--n-heads"), _count(head_dim, "--head-dim")
    backbone = Backbone(n_heads=heads, head_dim=width, v_head_dim=width)
    designs = tuple(parse_attention(text, backbone) for text in attention or usual_designs(heads))
    out = _count(words.given(model_dim, str(heads * width)), "--model-dim", most=MAX_WIDTH)
    for spec in designs:
        layout_of(spec, out)
    options = Options(
        device=_known(device, "--device", DEVICES), designs=designs,
        policies=tuple(_known(name, "--policy", POLICIES) for name in policy or ()),
        model_dim=out, batch_size=_count(batch_size, "--batch-size"),
        context_tokens=_contexts(context_tokens),
        query_tokens=_count(query_tokens, "--query-tokens"),
        dtype=None if dtype is None else _known(dtype, "--dtype", TORCH_DTYPES), path=path,
        n_repeats=_count(repeats, "--repeats", least=3, most=10_000),
        largest_bytes=_message(largest_message), gpu=gpu, output=output, force=force,
        seed=_count(seed, "--seed", least=0), command=_command(),
    )  # fmt: skip
    return _measured(options, place_from(os.environ), quiet)


def _count(text: str, option: str, *, least: int = 1, most: int = 10**8) -> int:
    value = words.whole(option[2:].replace("-", "_"), text)
    if not least <= value <= most:
        raise UsageError(f"{option} {shown(text)}: must be a whole number from {least} to {most:,}")
    return value


def _known(name: str, option: str, names: Sequence[str] | dict[str, str]) -> str:
    if name not in names:
        raise UsageError(
            f"{option} {shown(name)}{did_you_mean(name, names)}: one of {', '.join(names)}"
        )
    return name


def _contexts(text: str | None) -> tuple[int, ...]:
    found = () if text is None else words.token_counts("context_tokens", text)
    contexts = tuple(dict.fromkeys(found))
    if len(contexts) > MAX_CONTEXTS:
        raise UsageError(f"--context-tokens: {len(contexts)} are too many; at most {MAX_CONTEXTS}")
    return contexts


def _message(text: str | None) -> int | None:
    size = words.optional(words.size, "largest_message", text)
    if size is not None and not MESSAGE_BYTES[0] <= size <= MESSAGE_BYTES[1]:
        raise UsageError(f"--largest-message {shown(text)}: from 128KiB to 2GiB")
    return size


def _command() -> str:
    """The command as started, with the number of processes that torchrun tells."""
    launch = f"torchrun --nproc-per-node {os.environ.get('LOCAL_WORLD_SIZE', 'P')} -m lrkv_plan"
    return f"{launch} {shlex.join(sys.argv[1:])}"


def _measured(options: "Options", place: "Place", quiet: bool) -> "Table | None":
    """The policies' table on worker 0, once everything is on disk; all raise the same error."""
    from lrkv_plan.calibration.tensor_parallel.group import joined

    with (
        joined(place, options.device) as group,
        progress_line(quiet or not _is_first()) as show,
    ):
        from lrkv_plan.calibration.tensor_parallel.measure import check_output, measure
        from lrkv_plan.report.views.tensor_parallel import accepted, write_report

        group.first_does(lambda: check_output(options, group.device))
        found = measure(group, options, show)
        written = group.first_does(lambda: write_report(group, found, options))
        table = group.first_does(lambda: accepted(written, options.output))
    if written is not None and not quiet:
        for file in written.files:
            typer.echo(f"wrote {file}", err=True)
    return table
