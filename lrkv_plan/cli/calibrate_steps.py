"""``lrkv-plan calibrate evaluate-steps``: how far are whole steps off, on public runs or yours?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan import words
from lrkv_plan.cli.given import asked
from lrkv_plan.cli.names import engines, gpus, kv_formats, models, one_of, some_of, weight_formats
from lrkv_plan.cli.options import writes_table
from lrkv_plan.cli.panels import DEPLOYMENT, OUTPUT

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate-steps")(evaluate_steps)


@writes_table
def evaluate_steps(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Tables of runs, or JSON of serving benchmarks. A table has id, model, gpu, "
            "engine, batch, context_tokens, decode_ms or tpot_ms [, group, engine_version, tp, pp, "
            "dp_attention, moe_ep, nodes, replicas, draft_tokens, weight_dtype, kv_dtype, "
            "quality]; JSON is what `vllm bench serve --save-result` or SGLang's bench_serving "
            "wrote.",
        ),
    ],
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="KEY",
            help="What runs are grouped by. group, gpu, engine, kind, batch, layout or weights.",
        ),
    ] = "group",
    quality: Annotated[
        str,
        typer.Option(
            "--quality",
            metavar="Q[,...]",
            help="Qualities that are judged. Of a column quality; rows without one always are.",
        ),
    ] = "A",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Of benchmark results: name, YAML, config.json or folder.",
            rich_help_panel=DEPLOYMENT,
            autocompletion=some_of(models),
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="GPU",
            help="Of benchmark results: name or YAML file.",
            rich_help_panel=DEPLOYMENT,
            autocompletion=some_of(gpus),
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAME[@VERSION]",
            help="Of benchmark results. Default: the one whose own client was used.",
            rich_help_panel=DEPLOYMENT,
            autocompletion=one_of(engines),
        ),
    ] = None,
    tp_size: Annotated[
        str | None,
        typer.Option(
            "--tp-size",
            metavar="P",
            help="Of benchmark results: GPUs of one attention group.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    pp_size: Annotated[
        str | None,
        typer.Option(
            "--pp-size",
            metavar="P",
            help="Of benchmark results: pipeline stages. Default: 1.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    dp_size: Annotated[
        str | None,
        typer.Option(
            "--dp-size",
            metavar="P",
            help="Of benchmark results: attention groups of a replica. Default: 1.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    ep_size: Annotated[
        str | None,
        typer.Option(
            "--ep-size",
            metavar="P",
            help="Of benchmark results: GPUs that hold whole experts. Default: 1.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    weight_dtype: Annotated[
        str | None,
        typer.Option(
            "--weight-dtype",
            metavar="FORMAT",
            help="Of benchmark results. Default: the model's own.",
            rich_help_panel=DEPLOYMENT,
            autocompletion=one_of(weight_formats),
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option(
            "--kv-dtype",
            metavar="FORMAT",
            help="Of benchmark results: storage format of cached scalars. Default: bf16.",
            rich_help_panel=DEPLOYMENT,
            autocompletion=some_of(kv_formats),
        ),
    ] = None,
    spec_dir: Annotated[
        Path | None,
        typer.Option(
            "--spec-dir",
            metavar="DIR",
            help="A folder of YAML files, and of folders with a config.json, searched first.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> "Table":
    """Errors of predicted decode steps against engines' runs.

    Example: lrkv-plan calibrate evaluate-steps runs.csv --by gpu
    """
    from lrkv_plan.calibration.evaluate_steps import GROUPED_BY, read_run_files
    from lrkv_plan.calibration.evaluate_steps import evaluate_steps as evaluate_runs
    from lrkv_plan.calibration.serving_results import Served, limits
    from lrkv_plan.errors import ArgumentError, did_you_mean, shown
    from lrkv_plan.report.views.steps import step_evaluation_table

    if by not in GROUPED_BY:
        raise ArgumentError(
            "by", f" {shown(by)}: must be one of {', '.join(GROUPED_BY)}"
            f"{did_you_mean(by, GROUPED_BY)}"
        )  # fmt: skip
    qualities = [one.strip() for one in quality.split(",")]
    sizes = {
        name: words.optional(words.count, name, value)
        for name, value in {
            "tp_size": tp_size, "pp_size": pp_size, "dp_size": dp_size, "ep_size": ep_size,
        }.items()
    }  # fmt: skip
    served = Served(
        model=model, gpu=gpu, engine=engine, weight_dtype=weight_dtype, kv_dtype=kv_dtype, **sizes
    )
    runs, results = read_run_files(files, served)
    rows = evaluate_runs(runs, qualities=qualities, spec_dir=spec_dir)
    again = ["lrkv-plan", "calibrate", "evaluate-steps", *map(str, files)]
    for name, value in asked("by", *_OF_OUTPUT).items():
        again += [f"--{name.replace('_', '-')}", str(value)]
    return step_evaluation_table(
        files, qualities, by, served, rows, limits=list(limits(results)), again=again
    )


_OF_OUTPUT = ("output_format", "output", "force", "no_color", "quiet", "explain", "inputs")
