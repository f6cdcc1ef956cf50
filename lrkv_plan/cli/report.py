"""``lrkv-plan report``: one self-contained page, markdown, tables and pictures about a model."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import lrkv_plan
from lrkv_plan import words
from lrkv_plan.cli.given import all_given
from lrkv_plan.cli.options import (
    AcceptedOption,
    AlignOption,
    ChosenTpOption,
    ContextOption,
    EngineOption,
    GpuHourOption,
    GpuOption,
    KvDtypeOption,
    KvMemoryOption,
    NGpusOption,
    SpecDirOption,
    SpeculativeOption,
    TpotOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
    load,
)
from lrkv_plan.cli.panels import OUTPUT
from lrkv_plan.errors import UsageError
from lrkv_plan.files import write_whole
from lrkv_plan.loader import load_all_hardware
from lrkv_plan.questions.arguments import (
    context_of,
    deployment_of,
    latency_target,
    refuse_beside_pool,
)
from lrkv_plan.report.audit_report import audit_document
from lrkv_plan.report.capacity_report import capacity_document
from lrkv_plan.report.folder import (
    check_folder,
    is_report_path,
    report_files,
    table_files,
    write_folder,
)
from lrkv_plan.report.model_report import model_document
from lrkv_plan.report.request import ReportRequest
from lrkv_plan.serving.load import LatencyTarget

if TYPE_CHECKING:
    from lrkv_plan.report.document import Document
    from lrkv_plan.specs.hardware import HardwareProfile

Progress = Callable[[str], None]
COMMAND = "lrkv-plan report --all -o reports --force"
GPUS = ("h100-sxm", "h200", "b200")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One report: a title for the list, and its files by relative path.

    ``files`` is told what it makes through ``progress``; with ``pictures`` False it leaves out
    pictures and the page that holds them, and gives tables, plotted values and markdown.
    """

    title: str
    files: Callable[[Progress, bool], Mapping[str, bytes]]


def _of_document(title: str, make: "Callable[[Progress], Document]") -> Reference:
    def files(progress: Progress, pictures: bool) -> Mapping[str, bytes]:
        document = make(progress)
        return report_files(document, progress) if pictures else table_files(document)

    return Reference(title=title, files=files)


def request_of(model: str, gpu: str, **options: str) -> ReportRequest:
    """A shipped model on a shipped GPU; ``options`` are flags with underscores."""
    flags = {f"--{name.replace('_', '-')}": text for name, text in options.items()}
    spec = lrkv_plan.load_model(model)
    deployment = deployment_of(
        model, spec, gpu=gpu, engine="vllm", context_tokens=8192, kv_dtype="bf16",
        tp_size=int(options.get("tp_size", "1")), n_gpus=options.get("n_gpus"),
        weight_dtype=None, weights=options.get("weights"), utilisation=None, kv_memory=None,
        align=16,
    )  # fmt: skip
    return ReportRequest(
        model=spec, deployment=deployment, model_text=model, gpu_text=gpu, options=flags,
        target=LatencyTarget(relatives=tuple(_profiles())), is_layout_stated="tp_size" in options,
    )  # fmt: skip


@cache
def _profiles() -> "list[HardwareProfile]":
    return load_all_hardware()


def _capacity(model: str, **options: str) -> Reference:
    return _of_document(
        f"Capacity of {model} on {', '.join(GPUS)}",
        lambda progress: capacity_document(
            [request_of(model, gpu, **options) for gpu in GPUS], COMMAND, progress
        ),
    )


def _whole(model: str, gpu: str, folder: str) -> Reference:
    def make(progress: Progress) -> "Document":
        request = request_of(model, gpu)
        return model_document(request, request.command("report", "-o", folder), progress)

    return _of_document(f"Whole report on {model} on {gpu}", make)


REFERENCES: Mapping[str, Reference] = {
    "paper-audit": _of_document(
        "Audit of the LRKV documents, and their figures made again",
        lambda progress: audit_document(COMMAND, progress),
    ),
    "llama-3.1-8b-on-h200": _whole("llama-3.1-8b", "h200", "llama-3.1-8b-on-h200"),
    "capacity-llama-3.1-8b": _capacity("llama-3.1-8b"),
    "capacity-llama-3.1-70b": _capacity("llama-3.1-70b", tp_size="4", n_gpus="4"),
    "capacity-deepseek-v3": _capacity("deepseek-v3", tp_size="16", n_gpus="16"),
    # 2.5 billion parameters of 2 bytes, as the name says: the paper does not state the widths.
    "capacity-lrkv-paper-2.5b": _capacity("lrkv-paper-2.5b", weights="5GB"),
}


def write_all(folder: Path, *, force: bool, progress: Progress) -> None:
    """Every reference report in a folder of its own, and the list of them; others stay.

    Raises
    ------
    UsageError
        If a report is there and ``force`` is not given, or a folder holds something else.
    """
    listing = folder / "README.md"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; the reports need a folder")
    if listing.exists() and not force:
        raise UsageError(f"{listing} exists; --force makes all reference reports again")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    for name in REFERENCES:
        check_folder(folder / name, is_ours=is_report_path, force=force)
    for name, reference in REFERENCES.items():
        progress(reference.title)
        files = reference.files(progress, True)
        write_folder(folder / name, files, is_ours=is_report_path, force=force)
    write_whole(listing, listing_text(), force=force)


def listing_text() -> str:
    """``README.md`` of the reports' folder."""
    lines = [
        "# Reference reports",
        "",
        f"Written by `{COMMAND}`, never by hand; a test makes their tables again and compares",
        "byte for byte. Open `index.html` in a browser, or read `report.md`.",
        "",
        *(f"- [{name}]({name}/report.md): {one.title}" for name, one in REFERENCES.items()),
        "",
        "Folders named `calibration-...` are measurements, written by `lrkv-plan calibrate run`;",
        "`report --all` leaves them as they are.",
    ]
    return "\n".join(lines) + "\n"


# Defaults of the options that a section's command line repeats only where they were changed.
_DEFAULTS = {
    "--context-tokens": None, "--n-gpus": None, "--tp-size": None, "--budget": None,
    "--batch-size": None, "--tpot-ms": None, "--speculative-tokens": "1", "--accepted-tokens": "1",
    "--engine": "vllm", "--kv-dtype": "bf16", "--weight-dtype": None, "--weights": None,
    "--utilisation": None, "--kv-memory": None, "--align": "16", "--gpu-hour-usd": None,
    "--spec-dir": None,
}  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Name, YAML, config.json or folder. `lrkv-plan models` lists the names.",
        ),
    ] = None,
    gpu: GpuOption = None,
    all_reports: Annotated[
        bool,
        typer.Option("--all", help="Make all reference reports again, in DIR. Instead of MODEL."),
    ] = False,
    context_tokens: ContextOption = None,
    n_gpus: NGpusOption = None,
    tp_size: ChosenTpOption = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="BUDGET", help="Cache budget for LRKV, as for plan."),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size",
            metavar="N",
            help="Sequences decoded together on each replica. Default: each design's largest in "
            "the plan, and what all hold elsewhere.",
        ),
    ] = None,
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
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace the report that the folder holds.", rich_help_panel=OUTPUT
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT),
    ] = False,
    spec_dir: SpecDirOption = None,
) -> None:
    """A report to hand over: index.html, report.md, CSV tables, pictures.

    Example: lrkv-plan report llama-3.1-8b --gpu h100-sxm -o llama-report
    """
    from lrkv_plan.report.folder import check_folder, is_report_path, report_files, write_folder
    from lrkv_plan.report.model_report import model_document
    from lrkv_plan.report.request import ReportRequest

    stated = {
        "--context-tokens": context_tokens, "--n-gpus": n_gpus, "--tp-size": tp_size,
        "--budget": budget, "--batch-size": batch_size, "--tpot-ms": tpot_ms,
        "--speculative-tokens": speculative_tokens, "--accepted-tokens": accepted_tokens,
        "--engine": engine, "--kv-dtype": kv_dtype, "--weight-dtype": weight_dtype,
        "--weights": weights, "--utilisation": utilisation, "--kv-memory": kv_memory,
        "--align": align, "--gpu-hour-usd": gpu_hour_usd, "--spec-dir": spec_dir,
    }  # fmt: skip
    changed = {flag: str(value) for flag, value in stated.items() if value != _DEFAULTS[flag]}
    progress = _progress(quiet)
    if all_reports:
        kept = ("--all", "--output", "--force", "--quiet")
        unused = [flag for flag in all_given() if flag not in kept]
        if model is not None or unused:
            raise UsageError(
                f"--all makes the reference reports and takes no MODEL or option "
                f"({', '.join(unused) or model}); leave it out"
            )
        write_all(output, force=force, progress=progress)
        _say(f"wrote {output}", quiet)
        return
    if model is None:
        raise UsageError("give a MODEL and --gpu, or --all")
    if gpu is None:
        raise UsageError("a report needs a GPU: --gpu h100-sxm")
    check_folder(output, is_ours=is_report_path, force=force)
    refuse_beside_pool(kv_memory, utilisation=utilisation)
    spec = load(model, spec_dir)
    deployment = deployment_of(
        model, spec, gpu=gpu, engine=engine,
        context_tokens=context_of(context_tokens, spec), kv_dtype=kv_dtype,
        tp_size=words.count("tp_size", words.given(tp_size, "1")), n_gpus=n_gpus,
        weight_dtype=weight_dtype, weights=weights, utilisation=utilisation, kv_memory=kv_memory,
        align=align, gpu_hour_usd=gpu_hour_usd, spec_dir=spec_dir,
    )  # fmt: skip
    request = ReportRequest(
        model=spec,
        deployment=deployment,
        model_text=model,
        gpu_text=gpu,
        options=changed,
        budget=budget,
        batch_size=words.optional(words.count, "batch_size", batch_size),
        target=latency_target(tpot_ms, speculative_tokens, accepted_tokens, spec_dir),
        is_layout_stated=tp_size is not None,
    )
    command = request.command("report", "-o", output.resolve().name)
    document = model_document(request, command, progress)
    write_folder(output, report_files(document, progress), is_ours=is_report_path, force=force)
    _say(f"wrote {output}", quiet)


def _progress(quiet: bool) -> Callable[[str], None]:
    """Tells what is being made, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return lambda _: None
    return lambda what: typer.echo(f"  {what}", err=True)


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(text, err=True)
