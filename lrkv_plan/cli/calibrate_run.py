"""``lrkv-plan calibrate run``: measure real decode steps on this machine and fit constants."""

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan import units, words
from lrkv_plan.cli.names import designs, one_of
from lrkv_plan.cli.options import writes_table
from lrkv_plan.cli.panels import MEASURING, OUTPUT
from lrkv_plan.cli.progress import progress_line
from lrkv_plan.cli.result_folder import result_folder
from lrkv_plan.errors import ArgumentError, CalibrationError, UsageError, shown

if TYPE_CHECKING:
    from lrkv_plan.calibration.session import RunOptions, RunOutcome
    from lrkv_plan.report.tables import Table

RESERVE, RESERVE_S = 0.15, 12.0  # share of the budget and seconds, for the fit and the report
INTERRUPTED = 130
MAX_SEED = 10**9


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


@writes_table
def run(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=result_folder,
            help="Folder to write. samples.csv, run.json, the calibrated profile and the report.",
        ),
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="auto, cpu, cuda or cuda:1.",
            rich_help_panel=MEASURING,
        ),
    ] = "auto",
    attention: Annotated[
        list[str] | None,
        typer.Option(
            "--attention",
            metavar="DESIGN",
            help="Only this design's paths; repeat for more. The design is among them: mha, gqa:8, "
            "mla:512+64, lrkv:55,position=rope_expand.",
            autocompletion=one_of(designs),
        ),
    ] = None,
    path: Annotated[
        list[str] | None,
        typer.Option("--path", metavar="PATH", help="Decode path, such as lrkv/factored. Repeat."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            metavar="FORMAT",
            help="fp32, bf16 or fp16; fp32 on CPUs, bf16 on GPUs.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="Time for the whole command: 60s, 5min.")
    ] = "60s",
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads",
            metavar="N",
            help="CPU threads; one, if not given, repeats best.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    seed: Annotated[
        str,
        typer.Option(
            "--seed", metavar="N", help="Of order and contents.", rich_help_panel=MEASURING
        ),
    ] = "1",
    hot: Annotated[
        bool,
        typer.Option(
            "--hot", help="Leave caches as the last call left them.", rich_help_panel=MEASURING
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the samples in the folder.", rich_help_panel=MEASURING
        ),
    ] = False,
    max_error: Annotated[
        str,
        typer.Option(
            "--max-error",
            metavar="SHARE",
            help="Held-out median error above which no fit is kept.",
            rich_help_panel=MEASURING,
        ),
    ] = "15%",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Measure anew and, once its results are whole, replace what is in the folder; "
            "keep a noisy or poor fit, labelled.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT),
    ] = False,
) -> "Table":
    """Run real decode steps with torch, fit and judge the model.

    Example: lrkv-plan calibrate run --device cpu --budget 60s --output here
    """
    begun, seconds = time.monotonic(), units.parse_seconds(budget)
    limit = float(words.share("max_error", max_error))
    from lrkv_plan.calibration.fit_run import require_scipy
    from lrkv_plan.calibration.torch_gate import require_torch

    require_torch()
    require_scipy()
    from lrkv_plan.calibration.session import RunOptions

    options = RunOptions(
        device=device, dtypes=tuple(dtype or ()), paths=tuple(path or ()),
        attention=tuple(attention or ()), budget_s=seconds,
        deadline=begun + seconds - min(RESERVE * seconds, RESERVE_S),
        seed=_seed(seed), threads=thread_count(threads), cold=not hot, resume=resume,
        force=force, command=shlex.join(["lrkv-plan", *sys.argv[1:]]),
    )  # fmt: skip
    if not (resume or force):
        _keep_results(output)
    outcome = _measure(options, output, quiet)
    _require_two_rounds(outcome, options)
    return _fitted(outcome, output, limit, force, quiet)


def thread_count(text: str | None) -> int | None:
    """``--threads`` of a command that measures: at most as many as there are cores."""
    if text is None:
        return None
    from lrkv_plan.calibration.machine import n_cores

    try:
        return words.count("threads", text)
    except ArgumentError as error:
        problem = f"{error.problem}; this process may use {n_cores()} cores"
        raise ArgumentError(error.names, problem) from None


def _seed(text: str) -> int:
    """A seed as a run's record can hold it."""
    seed = words.count("seed", text)
    if seed > MAX_SEED:
        raise UsageError(f"--seed {shown(text)}: at most {MAX_SEED:,}")
    return seed


def _keep_results(folder: Path) -> None:
    """Refuse to overwrite results whose samples lie elsewhere."""
    from lrkv_plan.calibration.run_record import SAMPLES_FILE
    from lrkv_plan.report.views.calibration import existing_results

    found = [] if (folder / SAMPLES_FILE).exists() else existing_results(folder)
    if found:
        raise UsageError(
            f"{folder} holds {', '.join(found)}; --force replaces them, or choose another --output"
        )


def _measure(options: "RunOptions", folder: Path, quiet: bool) -> "RunOutcome":
    """The session, with progress; Ctrl-C leaves what was measured and says how to go on."""
    from lrkv_plan.calibration.session import run_session

    try:
        with progress_line(quiet) as show:
            return run_session(
                options, folder,
                lambda number, left, seconds: show(
                    f"round {number + 1}: {left} points to go, {max(0.0, seconds):.0f} s left"
                ),
            )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; every sample is in {folder}: go on with the same command and --resume",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None


def _require_two_rounds(outcome: "RunOutcome", options: "RunOptions") -> None:
    """A run without them was too short, whatever its noise would seem to be; its samples stay."""
    from lrkv_plan.calibration.session import MIN_ROUNDS, too_short

    if outcome.n_rounds >= MIN_ROUNDS:
        return
    needed_s = outcome.needed_s + min(RESERVE_S, RESERVE / (1 - RESERVE) * outcome.needed_s)
    raise CalibrationError(
        f"{too_short(options.budget_s, outcome.n_points, needed_s)}; the {outcome.n_samples} "
        f"samples are kept in {outcome.folder}: go on with the same command and --resume"
    )


def _fitted(outcome: "RunOutcome", folder: Path, limit: float, force: bool, quiet: bool) -> "Table":
    """What the samples say: profile and report beside them, and the table of paths.

    Results of a run that replaces another are written beside its own samples first.
    """
    from lrkv_plan.calibration.fit_run import fit_run
    from lrkv_plan.calibration.session import replace_run
    from lrkv_plan.report.views.calibration import fit_table, write_result

    with progress_line(quiet) as show:
        show("fitting")
        result = replace(fit_run(outcome.folder, max_error=limit), folder=folder)
        try:
            written = write_result(result, outcome.folder, force=force, overwrite=True)
        except UsageError as error:
            raise UsageError(
                f"{error}; the {outcome.n_samples} samples there are kept: go on with the same "
                "command and --resume once there is room"
            ) from None
        if outcome.folder != folder:
            written = replace_run(outcome.folder, folder)
    if not quiet:
        for path in written:
            typer.echo(f"wrote {path}", err=True)
    return fit_table(result, force=force, remarks=_remarks(outcome))


def _remarks(outcome: "RunOutcome") -> list[str]:
    """How far the run came, and what it left out."""
    lines = [
        f"{outcome.n_samples} samples of {outcome.n_points} points; {outcome.n_rounds} whole rounds"
    ]
    if outcome.n_unmeasured:
        lines.append(
            f"{outcome.n_unmeasured} points were not reached: a longer --budget, or --resume"
        )
    return lines + [f"left out: {point}: {reason}" for point, reason in outcome.skipped.items()]
