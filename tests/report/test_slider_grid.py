"""The sliders' grid: every value is its command's, found by strides, refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import lrkv_plan
from lrkv_plan.attention import registry
from lrkv_plan.pages.model_page import explorer_page
from lrkv_plan.report import explorer
from lrkv_plan.report.explorer import GridDesign, Measure, SliderGrid
from lrkv_plan.report.html import start_command
from lrkv_plan.report.screen import with_band
from lrkv_plan.report.verdict import verdict
from tests.plugins import gta

MODEL, GPU = "llama-3.2-1b", "h100-sxm"
At = tuple[int, int, int, int]


def grid_of(model: str, designs: tuple[str, ...] = (), **options: Any) -> SliderGrid:
    grid = explorer_page(model, gpu=GPU, attention=list(designs) or None, **options).grid
    assert grid is not None
    return grid


@pytest.fixture(scope="module")
def grid() -> SliderGrid:
    return grid_of(MODEL)


def value(design: GridDesign, key: str, at: At) -> tuple[Any, str]:
    measure = design.measure(key)
    place = measure.place(at)
    return measure.values[place], measure.texts[place] if measure.texts else ""


def names(grid: SliderGrid, chosen: str) -> list[str]:
    return [value(one, "attention", grid.start)[0] for one in grid.designs if chosen in one.sets]


def test_axes_start_at_the_reports_own_point(grid: SliderGrid) -> None:
    rank, context, batch, kv_dtype = grid.axes
    keys = ["rank", "context_tokens", "batch_size", "kv_dtype"]
    assert [axis.key for axis in grid.axes] == keys
    assert context.texts[context.start] == "8k tokens"
    assert context.ticks[context.start] == "8k"
    assert rank.values[0] == 0
    assert rank.values[-1] == 64  # the head width of this model
    assert batch.values[batch.start] == 32
    assert kv_dtype.values == ("bf16", "fp8")
    for axis in grid.axes:
        assert list(axis.values) == sorted(set(axis.values))
        assert len(axis.texts) == len(axis.values) == len(axis.ticks)


def test_every_column_has_a_value_for_every_place(grid: SliderGrid) -> None:
    sizes = [len(axis.values) for axis in grid.axes]
    for design in grid.designs:
        for measure in (design.name, *design.measures):
            last = sum(s * (n - 1) for s, n in zip(measure.strides, sizes, strict=True))
            assert len(measure.values) == last + 1
            assert len(measure.texts) in (0, last + 1)


@pytest.mark.parametrize("at", [(1, 3, 5, 0), (4, 7, 8, 0), (2, 5, 3, 1)])
def test_values_are_what_the_commands_print(grid: SliderGrid, at: At) -> None:
    _, context, batch, kv_dtype = (axis.values[i] for axis, i in zip(grid.axes, at, strict=True))
    for design in grid.designs:
        name = value(design, "attention", at)[0]
        place = {"attention": name, "context_tokens": context, "kv_dtype": kv_dtype}
        (cache,) = lrkv_plan.cache(MODEL, **place, batch_size=batch).rows
        assert value(design, "cache_bytes_per_gpu", at)[0] == cache["cache_bytes_per_gpu"]
        assert value(design, "bytes_per_token_per_gpu", at)[0] == cache["bytes_per_token_per_gpu"]
        (capacity,) = lrkv_plan.capacity(MODEL, gpu=GPU, **place).rows
        fits = capacity["max_sequences"]
        assert value(design, "max_sequences", at) == (fits, f"{fits:,}")
        assert value(design, "total_sequences", at)[0] == capacity["total_sequences"]
        assert value(design, "batch_fits", at)[0] == (batch <= fits)
        (step,) = lrkv_plan.step_time(MODEL, gpu=GPU, **place, batch_size=batch).rows
        told = [(value(design, key, at)[0], step[key]) for key in ("step_s", "low_s", "high_s")]
        assert all(shown == printed for shown, printed in told), told
        times = (value(design, key, at)[1] for key in ("step_s", "step_band"))
        printed = with_band(step["step_s"], step["low_s"], step["high_s"])
        assert "{} ({})".format(*times) == printed
        (params,) = lrkv_plan.params(MODEL, attention=name).rows
        assert float(value(design, "kv_params_ratio", at)[0]) == params["ratio_to_mha"]


def test_all_five_families_are_there(grid: SliderGrid) -> None:
    # gqa:8 is the model's own, and the GQA of a budget of its own bytes
    assert names(grid, "planned") == [
        "gqa:8", "mha", "mqa", "mla:256+32", "lrkv:16", "lrkv:16,position=rope_expand"
    ]  # fmt: skip
    styles = [one.style for one in grid.designs if "planned" in one.sets]
    assert styles[0] == 0
    assert styles[4] == 1
    assert len(set(styles)) == len(styles)


def test_designs_at_equal_cache_are_what_rank_gives(grid: SliderGrid) -> None:
    (row,) = lrkv_plan.rank(MODEL, budget="100% of own").rows
    shown = names(grid, "equal")
    assert shown[:3] == ["gqa:8", "mha", "mqa"]  # the own one, and those of one size
    assert row["attention"] == "lrkv:14"  # 64 (1/4 - 1/32) = 14
    assert row["gqa_attention"] == "gqa:8"
    assert set(shown[3:]) == {
        row["mla_attention"], "lrkv:14", "lrkv:14,position=rope_expand"
    }  # fmt: skip
    own = value(grid.designs[0], "bytes_per_token_per_gpu", grid.start)[0]
    for design in grid.designs:
        if design.sets == ("equal",):
            assert value(design, "bytes_per_token_per_gpu", grid.start)[0] <= own


def test_a_rank_that_is_stored_wider_is_said(grid: SliderGrid) -> None:
    # rank 14 is stored as 16: 2 x 16 layers x 2 B x (64 + 32 heads x 16) = 36,864 B for 32,768
    told = [remark for one in grid.designs for remark in one.remarks]
    (remark,) = (one for one in told if one.startswith("lrkv:14: "))
    assert "36,864 B a token" in remark
    assert "32,768 B" in remark


def test_one_design_at_two_sizes_is_one_line(grid: SliderGrid) -> None:
    def styles(line: str) -> set[int]:
        return {one.style for one in grid.designs if one.line == line}

    for line in ("own", "mha", "mqa", "mla", "lrkv", "lrkv-2"):
        assert len(styles(line)) == 1, line
    for line in ("mla", "lrkv"):
        found = [one.sets for one in grid.designs if one.line == line]
        assert found == [("planned",), ("equal",)]


def test_a_line_under_another_is_told_from_one_that_is_not(grid: SliderGrid) -> None:
    # Rotated keys need no product for queries: 16 layers of 3 us, 2.4 % of the shortest step.
    for design in grid.designs:
        assert design.is_covered == (design.line == "lrkv-2"), design.line
    twice = grid_of(MODEL, designs=("gqa:32",))  # MHA by another name: 32 heads, 32 cached ones
    named = {value(one, "attention", twice.start)[0] for one in twice.designs if one.is_covered}
    assert {name for name in named if not name.startswith("lrkv")} == {"gqa:32"}


@pytest.mark.parametrize(("factor", "is_covered"), [(1.0, True), (0.98, True), (1.04, False)])
def test_a_line_that_leaves_another_somewhere_is_drawn(
    grid: SliderGrid, factor: float, is_covered: bool
) -> None:
    own = grid.designs[0]
    steps = own.measure("step_s")
    last = (*steps.values[:-1], factor * steps.values[-1])
    moved = tuple(replace(m, values=last) if m.key == "step_s" else m for m in own.measures)
    assert explorer._is_covered(replace(own, measures=moved), [own]) == is_covered
    elsewhere = replace(own, measures=moved, sets=("another",))
    assert not explorer._is_covered(elsewhere, [own])


def test_designs_that_are_asked_for_are_lines_too() -> None:
    grid = grid_of(MODEL, designs=("lrkv:24", "gqa:4"))
    assert {"lrkv:24", "gqa:4"} <= set(names(grid, "planned"))
    assert "gqa:4" not in names(grid, "equal")
    asked = [one for one in grid.designs if one.role == "as asked"]
    at = (4, *grid.start[1:])  # the slider does not move them
    assert [value(one, "attention", at)[0] for one in asked] == ["lrkv:24", "gqa:4"]


@pytest.fixture
def with_gta() -> Iterator[None]:
    registry.register(gta.FAMILIES[0])
    yield
    registry.forget(gta.FAMILIES[0])


def test_a_familys_plug_in_is_a_line_and_has_its_size_at_equal_cache(with_gta: None) -> None:
    grid = grid_of(MODEL)
    gtas = [one for one in grid.designs if one.line == "gta"]
    assert [one.sets for one in gtas] == [("planned",), ("equal",)]
    assert [one.role for one in gtas] == ["GTA in the budget", "in the own cache"]
    own, held = (
        value(one, "bytes_per_token_per_gpu", grid.start)[0] for one in (grid.designs[0], gtas[1])
    )
    assert 0 < held <= own


def test_the_verdict_says_who_holds_more_and_who_is_faster(grid: SliderGrid) -> None:
    users, times = verdict(grid, grid.start, "planned")
    place = {"gpu": GPU, "context_tokens": 8192}
    rows = lrkv_plan.capacity(MODEL, attention=["gqa:8", "lrkv:16"], **place).rows
    own, other = (row["total_sequences"] for row in rows)
    assert users == (
        f"{MODEL} on one H100 SXM: {own:,} users of 8k tokens fit with gqa:8, "
        f"{other:,} with lrkv:16."
    )
    assert times.startswith("At batch 32 a step takes ")
    assert times.endswith(": too close to call.")


def _changed(grid: SliderGrid, n: int, **values: Any) -> SliderGrid:
    """The grid with one value of a design everywhere."""
    design = grid.designs[n]
    measures = tuple(
        replace(m, values=(values[m.key],) * len(m.values),
                texts=(str(values[m.key]),) * len(m.texts)) if m.key in values else m
        for m in design.measures
    )  # fmt: skip
    designs = list(grid.designs)
    designs[n] = replace(design, measures=measures)
    return replace(grid, designs=tuple(designs))


def test_the_verdict_is_never_surer_than_the_bands(grid: SliderGrid) -> None:
    lrkv = grid.compared["planned"]
    assert lrkv is not None
    own = _changed(grid, 0, step_s=2.0, low_s=1.9, high_s=2.2, step_band="own band")

    def times(**other: float) -> str:
        return verdict(_changed(own, lrkv, **other), grid.start, "planned")[1]

    assert times(low_s=1.0, high_s=1.8).endswith(": lrkv:16 is faster.")
    assert times(low_s=2.3, high_s=2.4).endswith(": gqa:8 is faster.")
    assert times(low_s=1.0, high_s=1.95).endswith(": too close to call.")
    assert times(low_s=2.2, high_s=9.0).endswith(": too close to call.")  # they touch
    absent = times(batch_fits=False)
    assert absent.endswith("; lrkv:16 does not hold that batch.")
    assert "with lrkv:16" not in absent
    neither = _changed(_changed(own, lrkv, batch_fits=False), 0, batch_fits=False)
    assert (
        verdict(neither, grid.start, "planned")[1]
        == "Batch 32 fits with neither gqa:8 nor lrkv:16."
    )
    none = verdict(_changed(grid, 0, total_sequences=0), grid.start, "planned")[0]
    assert ": no user of 8k tokens fits with gqa:8, " in none
    one = verdict(_changed(grid, 0, total_sequences=1), grid.start, "planned")[0]
    assert ": one user of 8k tokens fits with gqa:8, " in one


def test_the_command_plans_the_point(grid: SliderGrid) -> None:
    assert start_command(grid) == (
        f"lrkv-plan plan {MODEL} --gpu {GPU} --tp-size 1 --attention lrkv:16 "
        "--context-tokens 8192 --batch-size 32 --kv-dtype bf16"
    )


def test_marks_are_those_of_plan(grid: SliderGrid) -> None:
    for at in (grid.start, (1, 0, 0, 0), (1, 7, 3, 0)):
        _, context, batch, _ = (axis.values[i] for axis, i in zip(grid.axes, at, strict=True))
        rows = lrkv_plan.plan(
            MODEL, gpu=GPU, tp_size=1, context_tokens=context, batch_size=batch, attention="lrkv:16"
        ).rows
        bases = {row["attention"]: row["time_basis"] for row in rows}
        compared = 0
        for design in grid.designs:
            name = value(design, "attention", at)[0]
            if bases.get(name) is not None:
                chip, mark = value(design, "time_basis", at)
                assert grid.chips[chip].word == bases[name], (name, at)
                assert mark == grid.chips[chip].mark
                compared += 1
        assert compared >= 4


def test_chips_say_how_well_each_number_is_known(grid: SliderGrid) -> None:
    words = {(chip.word, chip.label): chip for chip in grid.chips}
    kernel = words["assumed", "low rank kernel, bf16"]
    assert any("no public measurement of an LRKV kernel" in line for line in kernel.lines)
    assert "Bf16: measured, vllm on h100-sxm" in words["measured", "matrices"].lines[0]
    assert "taken for every GPU" in words["borrowed", "small kernels"].lines[0]
    assert ("borrowed", "what vllm adds to a step") in words
    products = [chip.lines for chip in grid.chips if chip.label == "products over heads"]
    assert all(lines[0].startswith("Bf16: ") for lines in products)
    assert any(
        "down-projections of a layer are fused" in line for lines in products for line in lines
    )
    assert [chip.word for chip in grid.chips if "cache_bytes_per_gpu" in chip.columns] == ["exact"]
    (memory,) = (chip for chip in grid.chips if "total_sequences" in chip.columns)
    # 1,235,814,400 parameters of 2 bytes
    assert any(line.startswith("weights: -2.30 GiB") for line in memory.lines)


def test_a_model_without_weights_still_has_its_cache() -> None:
    grid = grid_of("lrkv-paper-2.5b")
    by_key: dict[str, list[Measure]] = {}
    for design in grid.designs:
        for measure in design.measures:
            by_key.setdefault(measure.key, []).append(measure)
    assert all(m.refused is None for m in by_key["cache_bytes_per_gpu"])
    for key in ("max_sequences", "step_s", "step_band", "batch_fits", "time_basis"):
        assert all("weight" in (m.refused or "") for m in by_key[key])
    users, times = verdict(grid, grid.start, "planned")
    assert users.endswith(": how many users fit is not known.")
    assert times.startswith("No step time: ")
    assert "weight" in times


@pytest.mark.parametrize(
    ("model", "roles"),
    [("llama-2-7b", ["own design", "GQA in the budget"]), ("llama-3.1-8b", ["own design", "MHA"])],
)
def test_full_attention_stands_beside_an_own_design_that_is_another(
    model: str, roles: list[str]
) -> None:
    designs = grid_of(model, context_tokens=4096).designs
    assert [one.role for one in designs[:2]] == roles
    assert sum(value(one, "attention", (0, 0, 0, 0))[0] == "mha" for one in designs) == 1


def test_a_bound_is_called_one(tmp_path: Path) -> None:
    olmo = lrkv_plan.load_model("olmo-3.1-32b").model_dump(mode="json", exclude_none=True)
    file = tmp_path / "olmo.yaml"
    file.write_text(yaml.safe_dump({**olmo, "uncounted_parts": ["a vision encoder"]}))
    grid = grid_of(str(file))
    assert verdict(grid, grid.start, "planned")[0].startswith(
        "Upper bound, weights leave out a vision encoder: olmo-3.1-32b on "
    )
