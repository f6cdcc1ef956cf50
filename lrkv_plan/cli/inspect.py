"""``lrkv-plan inspect``: what a checkpoint's heads share, and how large their residuals are."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan import units
from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import KvDtypeOption, one_count, writes_table
from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.files import check_target, write_whole
from lrkv_plan.report.tables import Table

if TYPE_CHECKING:
    from lrkv_plan.checkpoint.inspection import LayerInspection
    from lrkv_plan.checkpoint.projections import AttentionLayers
    from lrkv_plan.checkpoint.rank_plan import RankPlan
    from lrkv_plan.checkpoint.spectra import FitOptions

_POSITIONS = ("none", "rope_expand", "rope_rank")
_MAX_ITEMS = 10_000


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options as values."""

    energy: float
    fit: bool
    options: "FitOptions | None"
    fit_ranks: str
    budget: str | None
    alignment: int
    position: str
    kv_dtype: str
    force: bool
    quiet: bool


def request(
    context: typer.Context,
    energy: str,
    fit_ranks: str,
    alternations: str | None,
    budget: str | None,
    align: str,
    position: str,
    kv_dtype: str,
    plan_file: Path | None,
    plot: Path | None,
) -> Request:
    """The options as values, and every output checked before hours of work.

    Raises
    ------
    UsageError
        If an option cannot be read, or a file exists and --force is not given.
    """
    from lrkv_plan.formats import storage_format

    force, quiet = bool(context.params.get("force")), bool(context.params.get("quiet"))
    if plan_file is not None and budget is None:
        raise UsageError("--plan-file needs a --budget to plan for")
    if plan_file is not None and plan_file.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--plan-file {plan_file}: a model file ends in .yaml")
    if plot is not None:
        from lrkv_plan.report.plots import check_suffix

        check_suffix(suffix(plot))
    output = context.params.get("output", "-")
    table = None if output == "-" else Path(output)
    for path in filter(None, (plan_file, plot, table)):
        check_target(path, force=force)
    if position not in _POSITIONS:
        raise UsageError(
            f"--position {shown(position)}: one of {', '.join(_POSITIONS)}"
            f"{did_you_mean(position, _POSITIONS)}"
        )
    return Request(
        energy=_share(energy),
        fit=fit_ranks != "none",
        options=_fit_options(fit_ranks, alternations),
        fit_ranks=fit_ranks,
        budget=budget,
        alignment=one_count(align, "--align"),
        position=position,
        kv_dtype=storage_format(kv_dtype).name,
        force=force,
        quiet=quiet,
    )


def _share(text: str) -> float:
    number, percent = (text[:-1], 100) if text.endswith("%") else (text, 1)
    share = units.parse_number(number) / percent
    if not 0 < share <= 1:
        raise UsageError(f"--energy {shown(text)}: a share above 0 and up to 1, such as 0.9 or 90%")
    return float(share)


def _fit_options(text: str, alternations: str | None) -> "FitOptions | None":
    if alternations is not None and text in ("auto", "none"):
        raise UsageError(f"--alternations needs --fit-ranks all or a list of ranks, not {text}")
    if text in ("auto", "none"):
        return None
    from lrkv_plan.checkpoint.spectra import MAX_ALTERNATIONS, FitOptions

    turns = MAX_ALTERNATIONS
    if alternations is not None:
        turns = one_count(alternations, "--alternations")
        if turns > 10 * MAX_ALTERNATIONS:
            raise UsageError(f"--alternations {turns}: at most {10 * MAX_ALTERNATIONS}")
    if text == "all":
        return FitOptions(alternations=turns)
    return FitOptions(ranks=tuple(_whole_numbers(text, "--fit-ranks")), alternations=turns)


def _whole_numbers(text: str, option: str) -> list[int]:
    """``0,5,10-12`` as numbers, ascending and each once."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first]
        if not all(end.isascii() and end.isdecimal() and len(end) < 6 for end in ends):
            raise UsageError(f"{option} {shown(text)}: write whole numbers, for example 0,5,10-12")
        low, high = int(ends[0]), int(ends[-1])
        if low > high or len(found) + high - low > _MAX_ITEMS:
            raise UsageError(f"{option} {shown(text)}: {shown(part)} is not a range")
        found |= set(range(low, high + 1))
    return sorted(found)


def chosen_layers(source: "AttentionLayers", text: str) -> list[int]:
    """The layers that ``--layers`` names. Raises ``UsageError`` for one that cannot be read."""
    if text == "all":
        return sorted(source.attention)
    layers = _whole_numbers(text, "--layers")
    for layer in layers:
        if layer not in source.attention:
            why = source.skipped.get(layer)
            problem = f"layer {layer} {why}" if why else f"there is no layer {layer}"
            raise UsageError(
                f"--layers {shown(text)}: {problem}; the model has {source.model.n_layers}, "
                f"0 to {source.model.n_layers - 1}"
            )
    return layers


def planner(
    source: "AttentionLayers", chosen: Sequence[int], wanted: Request
) -> "Callable[[Sequence[LayerInspection]], RankPlan | None]":
    """What makes the plan once layers are inspected; a hopeless budget is refused beforehand."""
    budget = wanted.budget
    if budget is None:
        return lambda _: None
    from lrkv_plan.checkpoint.rank_plan import plan_frame, rank_plan
    from lrkv_plan.cli.options import low_rank_variant

    frame = plan_frame(
        source,
        chosen,
        budget=budget,
        kv_dtype=wanted.kv_dtype,
        alignment=wanted.alignment,
        design=low_rank_variant(source.model, position=wanted.position),
    )
    return lambda layers: rank_plan(frame, layers)


def stated_inputs(
    source: "AttentionLayers", checkpoint: str, chosen: Sequence[int], wanted: Request
) -> dict[str, Any]:
    """The resolved inputs."""
    return {
        "checkpoint": checkpoint,
        "name": source.model.name,
        "n_layers": source.model.n_layers,
        "layers": list(chosen),
        "energy_share": wanted.energy,
        "fit_ranks": wanted.fit_ranks,
        "budget": wanted.budget,
        "align": wanted.alignment,
        "position": wanted.position,
        "kv_dtype": wanted.kv_dtype,
    }


def one_library_thread() -> None:
    """Give OpenBLAS and MKL one thread each, before numpy is imported.

    Tensors are worked on side by side. Several library threads on matrices of 128 x 128 wait for
    each other: on two busy cores one layer took 20 times as long.
    """
    for library in ("OPENBLAS", "MKL", "BLIS"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def n_threads() -> int:
    """Keys and values side by side where there are cores for both."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(2, cores or 1)


def progress(n_layers: int, *, quiet: bool) -> Callable[[int], None]:
    """A counter on a terminal's stderr, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        return lambda _: None
    start = time.monotonic()

    def done(count: int) -> None:
        left = (time.monotonic() - start) / count * (n_layers - count)
        end = "\n" if count == n_layers else ""
        sys.stderr.write(f"\rlayer {count} of {n_layers}, about {left:,.0f} s left   {end}")
        sys.stderr.flush()

    return done


def write(path: Path, content: str | bytes, wanted: Request) -> None:
    """Write a file beside the table and say so."""
    write_whole(path, content, force=wanted.force)
    if not wanted.quiet:
        typer.echo(f"wrote {path}", err=True)


def suffix(path: Path) -> str:
    """The suffix of a picture, without its dot."""
    return path.suffix.lower().removeprefix(".")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


@writes_table
def inspect(
    context: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT_FOLDER", help="A folder of config.json and *.safetensors."
        ),
    ],
    layers: Annotated[
        str, typer.Option("--layers", metavar="LAYERS", help="all, or for example 0,5,10-12.")
    ] = "all",
    energy: Annotated[
        str,
        typer.Option("--energy", metavar="SHARE", help="Share of energy that ranks must keep."),
    ] = "0.9",
    fit_ranks: Annotated[
        str,
        typer.Option(
            "--fit-ranks",
            metavar="RANKS",
            help="Where the base is fitted: auto (what is quick), all, none, or 16,32,64.",
        ),
    ] = "auto",
    alternations: Annotated[
        str | None,
        typer.Option(
            "--alternations",
            metavar="N",
            help="Most turns of the fit at one rank.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="Plan ranks per layer under it: 50%, 1/3, '96 KiB/token', gqa:6.",
        ),
    ] = None,
    align: Annotated[
        str, typer.Option("--align", metavar="N", help="Multiple that planned ranks must be.")
    ] = "1",
    position: Annotated[
        str,
        typer.Option(
            "--position", metavar="HOW", help="Of the planned model: none, rope_expand, rope_rank."
        ),
    ] = "none",
    kv_dtype: KvDtypeOption = "bf16",
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan-file", metavar="FILE.yaml", help="Write the planned model there."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Picture of the spectra: png, svg or pdf."),
    ] = None,
) -> Table:
    """Residual spectra of keys and values, diversity of head maps, and ranks under a budget.

    Example: lrkv-plan inspect ./my-model --layers 0-3 --energy 0.95
    """
    if budget is None:
        refuse(("align", "position", "kv_dtype"), "is of the plan that --budget asks for")
    wanted = request(
        context, energy, fit_ranks, alternations, budget, align, position, kv_dtype,
        plan_file, plot,
    )  # fmt: skip
    one_library_thread()

    from lrkv_plan.checkpoint.inspection import inspect_layers
    from lrkv_plan.checkpoint.projections import attention_layers
    from lrkv_plan.report.views.inspect import inspect_table

    source = attention_layers(Path(checkpoint))
    chosen = chosen_layers(source, layers)
    source.check(chosen)
    plan_of = planner(source, chosen, wanted)
    found = inspect_layers(
        source,
        chosen,
        fit=wanted.fit,
        options=wanted.options,
        n_threads=n_threads(),
        done=progress(len(chosen), quiet=wanted.quiet),
    )
    stated = stated_inputs(source, checkpoint, chosen, wanted)
    plan = plan_of(found)
    table = inspect_table(stated, found, energy=wanted.energy, skipped=source.skipped, plan=plan)
    if plan is not None and plan_file is not None:
        from lrkv_plan.specs.model import model_to_yaml

        write(plan_file, model_to_yaml(plan.model), wanted)
    if plot is not None:
        from lrkv_plan.report.plots import picture
        from lrkv_plan.report.views.inspect import spectra_figure

        figure = spectra_figure(stated, found, energy=wanted.energy, remarks=table.remarks)
        write(plot, picture(figure, suffix(plot), width="double"), wanted)
    return table
