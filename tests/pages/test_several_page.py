"""A report on several GPUs: one table of plans, and each part once for every GPU that changes it."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from lrkv_plan.pages.model_page import SECTIONS
from lrkv_plan.pages.several_page import several_page
from lrkv_plan.report.folder import is_report_path
from lrkv_plan.report.tables import to_csv

MODEL = "llama-3.2-1b"


def test_plans_stand_side_by_side_and_parts_are_of_each() -> None:
    document = several_page(MODEL, ["h200", "2xb200"], batch_size=8, output="two")
    assert document.command == f"lrkv-plan report {MODEL} --gpu h200,2xb200 --batch-size 8 -o two"
    keys = [part.key for part in document.parts]
    assert len(set(keys)) == len(keys)
    assert all(is_report_path(f"tables/{key}.csv") for key in keys)
    first = next(document.parts)
    (command,) = first.commands
    told = CliRunner().invoke(app, [*shlex.split(command)[1:], "-f", "csv"])
    assert first.table is not None
    assert to_csv(first.table) == told.stdout
    assert {row["gpu"] for row in first.table.rows} == {"h200", "b200"}
    assert [one.label.split(":")[0] for one in document.highlights] == [
        "NVIDIA H200 SXM 141 GB", "NVIDIA H200 SXM 141 GB",
        "NVIDIA B200 SXM 180 GB", "NVIDIA B200 SXM 180 GB",
    ]  # fmt: skip
    # One GPU holds the model on both, so what a GPU caches is shown once.
    assert {"cache", "rank", "weights", "placement"} <= set(keys)
    assert {"capacity-h200", "capacity-b200", "crossover-map-h200", "basis-b200"} <= set(keys)
    assert first.lead.endswith(f": lrkv-plan explore {MODEL} --gpu h200")
    assert document.grid is None


def test_what_a_layout_changes_is_shown_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_alone = [one for one in SECTIONS if one[0] == "cache"]
    monkeypatch.setattr("lrkv_plan.pages.several_page.SECTIONS", bytes_alone)
    # The plan lets two B200 share this model: half of the eight heads on each.
    document = several_page("llama-3.1-8b", ["h200", "2xb200"])
    tables = {part.key: part.table for part in document.parts}
    assert set(tables) == {
        "plan", "cache-h200", "cached-tensors-h200", "cache-b200", "cached-tensors-b200"
    }  # fmt: skip
    own = [table.rows[0] for key in ("cache-h200", "cache-b200") if (table := tables[key])]
    assert [row["bytes_per_token_per_gpu"] for row in own] == [131_072, 65_536]
