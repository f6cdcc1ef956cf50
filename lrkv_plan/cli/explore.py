"""``lrkv-plan explore``: the report's page with its sliders alone, opened in the browser."""

import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from lrkv_plan.cli.given import asked
from lrkv_plan.cli.options import (
    AcceptedOption,
    AlignOption,
    ChosenTpOption,
    ContextOption,
    EngineOption,
    GpuHourOption,
    KvDtypeOption,
    KvMemoryOption,
    ModelArgument,
    MoreAttentionOption,
    NGpusOption,
    PlanBudgetOption,
    ReportBatchOption,
    RequiredGpu,
    SpecDirOption,
    SpeculativeOption,
    TpotOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
)
from lrkv_plan.cli.panels import OUTPUT
from lrkv_plan.cli.progress import progress_line
from lrkv_plan.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explore")(explore)


def explore(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: MoreAttentionOption = None,
    context_tokens: ContextOption = None,
    n_gpus: NGpusOption = None,
    tp_size: ChosenTpOption = None,
    budget: PlanBudgetOption = None,
    batch_size: ReportBatchOption = None,
    tpot_ms: TpotOption = None,
    speculative_tokens: SpeculativeOption = "1",
    accepted_tokens: AcceptedOption = "1",
    engine: EngineOption = "vllm",
    kv_dtype: KvDtypeOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    align: AlignOption = "16",
    gpu_hour_usd: GpuHourOption = None,
    no_browser: Annotated[
        bool,
        typer.Option(
            "--no-browser",
            help="Write the page and print its path, no more.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT),
    ] = False,
    spec_dir: SpecDirOption = None,
) -> None:
    """Users and step times of all families as curves that move with sliders, in the browser.

    Example: lrkv-plan explore llama-3.1-8b --gpu h200 --no-browser
    """
    from lrkv_plan.pages.model_page import explorer_page
    from lrkv_plan.report.folder import page_alone

    options = asked("no_browser", "quiet")
    with progress_line(quiet) as progress:
        document = explorer_page(model, progress=lambda what: progress(f"page: {what}"), **options)
        page = page_alone(document)
    path = _written(page)
    typer.echo(path)
    if no_browser:
        return
    said = _opened(path)
    if not quiet:
        typer.echo(said, err=True)


def _written(page: bytes) -> Path:
    """The page in a file of its own that only its owner reads; it stays there."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="lrkv-plan-", suffix=".html")
        with os.fdopen(descriptor, "wb") as file:
            file.write(page)
    except OSError as error:
        raise UsageError(
            f"{tempfile.gettempdir()}: cannot be written: {error.strerror}; set TMPDIR"
        ) from None
    return Path(name)


def _opened(path: Path) -> str:
    """Open the page in the browser; what to say of it."""
    import webbrowser

    if not _has_display():
        import socket

        place = shlex.quote(f"{socket.gethostname()}:{path}")
        return (
            "no display here, so no browser was opened; copy the page to where one is:\n"
            f"  scp {place} ."
        )
    try:
        is_open = webbrowser.open(path.as_uri())
    except webbrowser.Error:
        is_open = False
    return "opened in the browser" if is_open else "no browser was found; open the file in one"


def _has_display() -> bool:
    """Whether a browser has somewhere to show itself; BROWSER names one that needs no display."""
    shows = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in shows)
