"""``lrkv-plan report``: one self-contained page, markdown, tables and pictures about a model."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lrkv_plan import words
from lrkv_plan.cli.given import all_given
from lrkv_plan.cli.names import models, one_of
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
            autocompletion=one_of(models),
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
    from lrkv_plan.cli.reference_reports import write_all
    from lrkv_plan.questions.arguments import (
        context_of,
        deployment_of,
        latency_target,
        refuse_beside_pool,
    )
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
