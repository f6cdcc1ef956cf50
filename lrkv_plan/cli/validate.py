"""``lrkv-plan validate``: does a profile predict this model's attention on this machine?"""

from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan import words
from lrkv_plan.cli.calibrate_run import thread_count
from lrkv_plan.cli.names import designs, one_of
from lrkv_plan.cli.options import (
    ModelArgument,
    RequiredGpu,
    SpecDirOption,
    TpSizeOption,
    load,
    writes_table,
)
from lrkv_plan.cli.panels import MEASURING, OUTPUT
from lrkv_plan.cli.plain_warnings import plain_warnings
from lrkv_plan.cli.progress import progress_line

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate)


@writes_table
def validate(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="DESIGN",
            help="Swap the design, such as lrkv:55.",
            autocompletion=one_of(designs),
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="auto, cpu, cuda or cuda:1.",
            rich_help_panel=MEASURING,
        ),
    ] = "auto",
    context_tokens: Annotated[
        str, typer.Option("--context-tokens", metavar="T[,T]", help="Tokens cached per sequence.")
    ] = "512,2k,8k",
    batch_size: Annotated[
        str, typer.Option("--batch-size", metavar="N[,N]", help="Sequences decoded together.")
    ] = "1,4",
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="FORMAT",
            help="fp32, bf16 or fp16; fp32 on CPUs, bf16 on GPUs.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    tp_size: TpSizeOption = "1",
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads",
            metavar="N",
            help="CPU threads; one if not given.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT),
    ] = False,
    spec_dir: SpecDirOption = None,
) -> "Table":
    """Measure a few fresh calls of the model's own shapes and compare them with the profile.

    Example: lrkv-plan validate llama-3.1-8b --gpu here/cpu.calibrated.yaml --device cpu
    """
    from lrkv_plan.calibration.torch_gate import require_torch

    require_torch()
    from lrkv_plan.calibration.validate import changed_shapes, failure, validate_model
    from lrkv_plan.loader import load_all_hardware, load_hardware
    from lrkv_plan.report.views.calibration import validation_table
    from lrkv_plan.specs.design import swap_attention

    spec, profile = load(model, spec_dir), load_hardware(gpu, spec_dir=spec_dir)
    if attention is not None:
        spec = swap_attention(spec, attention)
    contexts = words.token_counts("context_tokens", context_tokens)
    batches = words.counts("batch_size", batch_size)
    with plain_warnings(), progress_line(quiet) as show:
        points = validate_model(
            spec, profile, device=device, dtype=dtype, contexts=contexts, batches=batches,
            tp_size=words.count("tp_size", tp_size),
            threads=thread_count(threads),
            relatives=load_all_hardware(spec_dir),
            progress=lambda done, of: show(f"{done} of {of} rounds measured"),
        )  # fmt: skip
    reason = failure(points)
    inputs = {
        "model": spec.name, "gpu": profile.name, "device": device, "dtype": points[0].dtype,
        "tp_size": points[0].tp_size,
    }  # fmt: skip
    changed = changed_shapes(spec, contexts, batches, points[0].dtype)
    return validation_table(points, inputs, reason, changed)
