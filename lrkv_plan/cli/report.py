"""``lrkv-plan report``: one self-contained page, markdown, tables and pictures about a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lrkv_plan.cli.given import all_given, asked
from lrkv_plan.cli.names import models, one_of
from lrkv_plan.cli.options import (
    AcceptedOption,
    AlignOption,
    ChosenTpOption,
    ContextOption,
    EngineOption,
    GpuHourOption,
    GpusOption,
    KvDtypeOption,
    KvMemoryOption,
    MoreAttentionOption,
    NGpusOption,
    PlanBudgetOption,
    ReportBatchOption,
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
            autocompletion=one_of(models),
        ),
    ] = None,
    gpu: GpusOption = None,
    all_reports: Annotated[
        bool,
        typer.Option("--all", help="Make all reference reports again, in DIR. Instead of MODEL."),
    ] = False,
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
    from lrkv_plan.cli.reference_reports import write_all
    from lrkv_plan.pages.model_page import model_page
    from lrkv_plan.pages.several_page import several_page
    from lrkv_plan.questions.listed import listed
    from lrkv_plan.report.folder import check_folder, is_report_path, report_files, write_folder

    if all_reports:
        kept = ("--all", "--output", "--force", "--quiet")
        unused = [flag for flag in all_given() if flag not in kept]
        if model is not None or unused:
            raise UsageError(
                f"--all makes the reference reports and takes no MODEL or option "
                f"({', '.join(unused) or model}); leave it out"
            )
        with progress_line(quiet) as progress:
            write_all(output, force=force, progress=progress)
        _say(f"wrote {output}", quiet)
        return
    if model is None:
        raise UsageError("give a MODEL and --gpu, or --all")
    if gpu is None:
        raise UsageError("a report needs a GPU: --gpu h100-sxm")
    check_folder(output, is_ours=is_report_path, force=force)
    options = asked("output", "force", "quiet", "gpu")
    gpus = listed("gpu", gpu)
    with progress_line(quiet) as progress:
        told: dict[str, Any] = {
            **options,
            "output": output.resolve().name,
            "progress": lambda what: progress(f"report: {what}"),
        }
        if len(gpus) > 1:
            document = several_page(model, gpus, **told)
        else:
            document = model_page(model, gpu=gpus[0], **told)
        files = report_files(document, lambda what: progress(f"report: {what}"))
    write_folder(output, files, is_ours=is_report_path, force=force)
    _say(f"wrote {output}", quiet)


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(text, err=True)
