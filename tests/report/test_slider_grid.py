"""The sliders' grid: every value is its calculator's, found by strides, refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.loader import load_all_hardware
from lrkv_plan.questions.arguments import deployment_of
from lrkv_plan.report.explorer import Measure, SliderGrid, slider_grid
from lrkv_plan.report.request import ReportRequest, settle
from lrkv_plan.serving.load import LatencyTarget

MODEL, GPU = "llama-3.2-1b", "h100-sxm"


def grid_of(model: str, **options: Any) -> SliderGrid:
    spec = lrkv_plan.load_model(model)
    deployment = deployment_of(model, spec, gpu=GPU, **{"context_tokens": 8192, **options})
    request = ReportRequest(
        model=spec, deployment=deployment, model_text=model, gpu_text=GPU,
        target=LatencyTarget(relatives=tuple(load_all_hardware())),
    )  # fmt: skip
    return slider_grid(settle(request))


@pytest.fixture(scope="module")
def grid() -> SliderGrid:
    return grid_of(MODEL)


def value(grid: SliderGrid, design: int, key: str, at: tuple[int, int, int]) -> tuple[Any, str]:
    measure = next(m for m in grid.designs[design].measures if m.key == key)
    place = sum(stride * index for stride, index in zip(measure.strides, at, strict=True))
    return measure.values[place], measure.texts[place]


def answer(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_axes_start_at_the_reports_own_point(grid: SliderGrid) -> None:
    rank, context, batch = grid.axes
    assert [axis.key for axis in grid.axes] == ["rank", "context_tokens", "batch_size"]
    assert context.texts[context.start] == "8,192 tokens"
    assert rank.values[0] == 0
    assert rank.values[-1] == 64  # the head width of this model
    assert batch.values[batch.start] == 32
    for axis in grid.axes:
        assert list(axis.values) == sorted(set(axis.values))
        assert len(axis.texts) == len(axis.values)


def test_every_column_has_a_value_for_every_place(grid: SliderGrid) -> None:
    sizes = [len(axis.values) for axis in grid.axes]
    for design in grid.designs:
        for measure in design.measures:
            last = sum(s * (n - 1) for s, n in zip(measure.strides, sizes, strict=True))
            assert len(measure.values) == len(measure.texts) == last + 1


@pytest.mark.parametrize("at", [(1, 3, 5), (4, 7, 8)])
def test_values_are_what_the_commands_print(grid: SliderGrid, at: tuple[int, int, int]) -> None:
    _, context, batch = (axis.values[i] for axis, i in zip(grid.axes, at, strict=True))
    for index, design in enumerate(grid.designs):
        name = design.names[at[0]] if len(design.names) > 1 else design.names[0]
        place = ["--attention", name, "--context-tokens", str(context)]
        cache = answer("cache", MODEL, *place, "--batch-size", str(batch))["rows"][0]
        held, text = value(grid, index, "cache_bytes_per_gpu", at)
        assert held == cache["cache_bytes_per_gpu"]
        assert text.endswith("iB")
        capacity = answer("capacity", MODEL, "--gpu", GPU, *place)["rows"][0]
        fits = capacity["max_sequences"]
        assert value(grid, index, "max_sequences", at) == (fits, f"{fits:,}")
        assert value(grid, index, "batch_fits", at)[0] == (batch <= fits)
        steps = answer("plot", "step-stack", MODEL, "--gpu", GPU, *place, "--batch-size",
                       str(batch))["rows"]  # fmt: skip
        step = next(row for row in steps if row["series"] == "step")
        assert value(grid, index, "step_s", at) == (step["time_s"], f"{1e3 * step['time_s']:.4g}")
        band = f"{1e3 * step['low_time_s']:.4g} to {1e3 * step['high_time_s']:.4g}"
        assert value(grid, index, "step_band", at)[1] == band


def test_a_model_without_weights_still_has_its_cache() -> None:
    grid = grid_of("lrkv-paper-2.5b")
    by_key: dict[str, list[Measure]] = {}
    for design in grid.designs:
        for measure in design.measures:
            by_key.setdefault(measure.key, []).append(measure)
    assert all(m.refused is None for m in by_key["cache_bytes_per_gpu"])
    for key in ("max_sequences", "step_s", "step_band", "batch_fits"):
        assert all("weight" in (m.refused or "") for m in by_key[key])


@pytest.mark.parametrize(
    ("model", "roles"),
    [("llama-2-7b", ["own design"]), ("llama-3.1-8b", ["own design", "full attention"])],
)
def test_full_attention_stands_beside_an_own_design_that_is_another(
    model: str, roles: list[str]
) -> None:
    designs = grid_of(model, context_tokens=4096).designs
    assert [one.role for one in designs[:-2]] == roles
    assert designs[-3].names == ("mha",)
