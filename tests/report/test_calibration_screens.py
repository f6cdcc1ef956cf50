"""Screens of calibrations: what was accepted and how far off, in the first sentence."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lrkv_plan.report.screen import Screen, draw
from lrkv_plan.report.screens.calibration import policies_screen
from lrkv_plan.report.tables import Format, Table, explained, render, screen_of
from tests.report.test_time_screens import UNITS, WIDTHS, table_of

ROOT = Path(__file__).parents[2]
SHOWN = (
    "calibrate show h200",
    "calibrate show b60",
    f"calibrate show {ROOT}/reports/calibration-cpu/cpu.calibrated.yaml",
    f"calibrate evaluate {ROOT}/tests/golden/kernel_sample.csv",
    f"calibrate evaluate-steps {ROOT}/tests/golden/steps/runs.csv --quality A,C",
)


@pytest.fixture(scope="module", params=SHOWN)
def table(request: pytest.FixtureRequest) -> Table:
    pytest.importorskip("torch")
    return table_of(shlex.split(request.param))


def is_whole(screen: Screen, width: int) -> bool:
    text = draw(screen, width=width)
    lines = all(len(line) <= width for line in text.splitlines())
    cells = (one.text(row).strip() for row in screen.rows for one in screen.columns if not one.drop)
    return (
        lines and all(cell in text for cell in cells)
        and not re.search(rf"[0-9]\n *(?:{UNITS})(?![A-Za-z])", text)
    )  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_broken(table: Table, width: int) -> None:
    assert is_whole(screen_of(table), width)


def test_every_row_is_explained(table: Table) -> None:
    assert table.explain is not None
    assert len(explained(table)) >= len(table.rows)
    assert all(table.explain(row) for row in table.rows)


def test_a_profile_says_how_far_its_constants_are_off() -> None:
    pytest.importorskip("torch")
    shown = table_of(shlex.split(SHOWN[2]))
    assert screen_of(shown).verdict == (
        "7 kernels measured on AMD EPYC: median error on held-out calls 2.2 to 7.9 %, 3.3 to 7.9 % "
        "of the 6 that are used.",
    )
    assert explained(shown)[2].startswith(
        "torch/lrkv/factored low_rank fp32: t = 188 us + max(bytes / (0.365 x 14.5 GB/s), FLOP / "
        "(0.197 x 57.1 GFLOP/s)), band 0.75 to 1.43"
    )


def test_a_profile_without_constants_says_so() -> None:
    pytest.importorskip("torch")
    assert (
        "no measured kernel constants"
        in screen_of(table_of(["calibrate", "show", "l4"])).verdict[0]
    )


def test_a_run_says_how_many_paths_are_accepted() -> None:
    pytest.importorskip("torch")
    shown = table_of(["calibrate", "show", f"{ROOT}/reports/calibration-cpu"])
    screen = screen_of(shown)
    errors = [100 * row["heldout_median_error"] for row in shown.rows]
    assert screen.verdict == (
        f"7 of 7 decode paths on AMD EPYC accepted: median error on held-out points "
        f"{min(errors):.1f} to {max(errors):.1f} %.",
    )
    assert explained(shown)[0].startswith("grouped/plain fp32: t = ")
    assert all(is_whole(screen, width) for width in WIDTHS)


def test_an_evaluation_says_its_medians() -> None:
    shown = table_of(shlex.split(SHOWN[3]))
    (verdict,) = screen_of(shown).verdict
    found = re.fullmatch(
        r"Cold calls are predicted to ([0-9.]+ %) in the median, ([0-9.]+ %) at p90, over "
        r"([0-9]+) groups; ([0-9.]+ %) lie inside the 90 % band\.", verdict,
    )  # fmt: skip
    assert found is not None
    median, tail, groups, inside = found.groups()
    assert shown.remarks[0] == (
        f"cold: {groups} groups; median of medians {median}, of p90 {tail}; on average {inside} of "
        "a group inside its band"
    )


def validated(is_inside: bool) -> Table:
    pytest.importorskip("torch")
    from lrkv_plan.calibration.validate import ValidatedPoint
    from lrkv_plan.report.views.calibration import validation_table

    measured = 100e-6 if is_inside else 200e-6
    told: dict[str, Any] = {
        "attention": "gqa:8", "path": "grouped", "kernel": "grouped", "dtype": "fp32",
        "batch_size": 1, "context_tokens": 2048, "tp_size": 1, "n_bytes": 4096,
        "predicted_s": 110e-6, "low_s": 90e-6, "high_s": 130e-6, "measured_s": measured,
        "error": 110e-6 / measured - 1, "in_band": is_inside,
        "basis": "measured", "backend": "torch/grouped/sdpa", "held_out_median_error": 0.05,
    }  # fmt: skip
    point = ValidatedPoint(**told)
    inputs = {"model": "llama-3.1-8b", "gpu": "here", "device": "cpu", "dtype": "fp32",
              "tp_size": 1}  # fmt: skip
    return validation_table([point], inputs, None if is_inside else "outside")


@pytest.mark.parametrize(("is_inside", "words"), [(True, "here holds"), (False, "does not hold")])
def test_a_validation_says_whether_the_profile_holds(is_inside: bool, words: str) -> None:
    shown = validated(is_inside)
    verdict = screen_of(shown).verdict[0]
    assert words in verdict
    assert f"{int(is_inside)} of 1 shapes inside" in verdict
    # 110 / 100 - 1, and 110 / 200 - 1
    assert verdict.endswith(f"median error {'10.0' if is_inside else '45.0'} %.")
    assert "110.0 us predicted (90.0 to 130.0, measured)" in explained(shown)[0]
    assert all(is_whole(screen_of(shown), width) for width in WIDTHS)
    assert render(shown, Format.TABLE).startswith(verdict[:40])


def test_placements_say_whether_their_bytes_agree() -> None:
    row = {
        "attention": "lrkv:16", "context_tokens": 2048, "policy": "split_tokens",
        "cache_bytes_per_gpu_predicted": 4096, "link_bytes_per_gpu_predicted": 512,
        "max_error": None, "attention_s": 1e-4, "whole_step_s": 2e-4, "bytes_agree": True,
    }  # fmt: skip
    screen = policies_screen(2, (0.041, 0.09), [row, row | {"bytes_agree": False}], "cpu")
    assert screen.verdict == (
        "1 of 2 placements among 2 workers moved exactly the predicted bytes.",
        "All-reduces are predicted to 4.1 % in the median, 9.0 % at p90.",
    )
    assert all(is_whole(screen, width) for width in WIDTHS)
