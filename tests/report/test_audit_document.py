"""The audit's report: what differs with its reading, counts of the command, printed values."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.auditing.claim import claim_files, read_claims
from lrkv_plan.cli.app import app
from lrkv_plan.pages.audit_page import SCORES, audit_page
from lrkv_plan.report.document import Document, Part
from lrkv_plan.report.figures import Figure, figure_rows
from lrkv_plan.report.markdown import to_markdown
from lrkv_plan.report.series.published import FACTS, loss_by_size
from lrkv_plan.report.tables import Table
from lrkv_plan.report.views.audit import INFERENCE, losses_table, scale_table
from lrkv_plan.specs.published import read_published_loss, read_published_scores

LOSSES, PRINTED = read_published_loss(FACTS), read_published_scores(SCORES)
CLAIMS = {claim.id: claim for claim in read_claims(claim_files("lrkv-review")[0]).claims}


@pytest.fixture(scope="module")
def document() -> Document:
    return audit_page("the command")


@pytest.fixture(scope="module")
def audited() -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["audit", "--format", "json"])
    assert result.exit_code == 0
    rows: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return rows


def part(document: Document, key: str) -> Part:
    (found,) = (one for one in document.parts if one.key == key)
    return found


def table(document: Document, key: str) -> Table:
    found = part(document, key).table
    assert found is not None
    return found


def figure(document: Document, key: str) -> Figure:
    found = part(document, key).figure
    assert found is not None
    return found


def test_every_print_that_differs_is_shown_with_its_reading_and_reason(
    document: Document, audited: list[dict[str, Any]]
) -> None:
    differing = [row for row in audited if row["verdict"] in ("explained", "mismatch")]
    shown = {(r["source"].partition(",")[0], r["claim"]): r
             for r in table(document, "differences").shown_rows or ()}  # fmt: skip
    assert set(shown) == {(row["file"], row["claim"]) for row in differing}
    cells = [column.key for column in table(document, "differences").columns]
    assert {"printed", "computed", "found", "reason"} <= set(cells)
    for row in differing:
        cell = shown[row["file"], row["claim"]]
        assert (cell["printed"], cell["reason"]) == (row["printed"], row["explanation"])
        assert cell["found"]
        for reading in row["readings"][:1]:
            assert reading["inference"]
            assert cell["found"].startswith(f"{reading['reading']} = {reading['computed_text']}")


def test_counts_are_those_of_the_command(document: Document, audited: list[dict[str, Any]]) -> None:
    counted = Counter((row["document"], row["verdict"]) for row in audited)
    rows = {row["document"]: row for row in table(document, "verdicts").rows}
    for title in {row["document"] for row in audited}:
        for verdict in ("match", "explained", "mismatch", "not_computable"):
            assert rows[title][verdict] == counted[title, verdict]
    assert rows["all"]["claims"] == len(audited)
    cards = {one.label: one.value for one in document.highlights}
    assert cards["Differ, explained"] == str(sum(r["verdict"] == "explained" for r in audited))
    assert cards["Claims"] == str(len(audited))


def test_every_claim_is_in_the_table_of_its_document(
    document: Document, audited: list[dict[str, Any]]
) -> None:
    for path in claim_files(None):
        rows = table(document, f"claims-{path.stem}").rows
        assert [row["claim"] for row in rows] == [
            row["claim"] for row in audited if row["file"] == path.stem
        ]


def test_readings_are_called_inference_once_and_sources_are_listed_once(
    document: Document,
) -> None:
    text = to_markdown(document)
    assert text.count("readings are inference") == 1
    assert INFERENCE in document.common_remarks
    for path in claim_files(None):
        assert (read_claims(path).title, read_claims(path).source) in document.sources
        assert f"\n- {path.stem}: " not in text


def test_a_bound_is_not_shown_as_a_value(document: Document) -> None:
    shown = {row["claim"]: row for row in table(document, "claims-lrkv-review").shown_rows or ()}
    assert shown["effective-rank-mha"]["computed"] == "at most 94.444 %"  # 17/18
    assert shown["rank-ceiling-share-18"]["computed"] == "94.4444 %"


def test_the_commands_that_pictures_name_give_the_same_series(document: Document) -> None:
    named = [one for one in document.parts if one.figure is not None and one.commands]
    assert len(named) == 3
    for one in named:
        (command,) = one.commands
        words = command.split()[1:]
        assert words[-2] == "-o"
        result = CliRunner().invoke(app, [*words[:-2], "--format", "json"])
        assert result.exit_code == 0
        assert one.figure is not None
        plotted = [json.loads(json.dumps(row, default=float)) for row in figure_rows(one.figure)]
        got = [{k: v for k, v in row.items() if not k.endswith("_exact")}
               for row in json.loads(result.stdout)["rows"]]  # fmt: skip
        assert got == plotted


def test_loss_by_size_is_the_printed_loss_minus_mha() -> None:
    lines = {series.name: series for series in loss_by_size(LOSSES).panels[0].series}
    # 2.893 - 2.903, 2.509 - 2.530, 2.376 - 2.389, 2.288 - 2.319
    assert lines["LRKV"].y == tuple(Fraction(n, 1000) for n in (-10, -21, -13, -31))
    assert lines["LRKV"].x == (128 * 10**6, 1_200 * 10**6, 2_500 * 10**6, 6_300 * 10**6)
    # 2.929 - 2.903, 2.573 - 2.530, 2.408 - 2.389, 2.304 - 2.319
    assert lines["MQA"].y == tuple(Fraction(n, 1000) for n in (26, 43, 19, -15))
    hollow = [series for series in lines.values() if series.is_open]
    # 2.665 - 2.740 at 8,192 tokens
    assert [(one.x, one.y) for one in hollow] == [((512 * 10**6,), (Fraction(-75, 1000),))]


def test_table_1_has_one_run_per_family_and_extra_runs_are_not_in_it() -> None:
    rows = {row["family"]: row for row in losses_table(LOSSES).rows}
    assert list(rows) == ["MHA", "GQA", "MQA", "MLA", "LRKV"]
    assert rows["MLA"]["128M"] == Fraction(2901, 1000)  # not MLA-384's 2.894
    assert all(rows["MHA"][f"{n}_minus_mha"] == 0 for n in ("128M", "1.2B", "2.5B", "6.3B"))


@pytest.mark.parametrize("size", ["128M", "1.2B", "2.5B", "6.3B"])
def test_losses_are_those_of_the_claims(size: str) -> None:
    (claim,) = (c for key, c in CLAIMS.items() if key == f"lowest-loss-{size.lower()}")
    rows = losses_table(LOSSES).rows
    assert [row[size] for row in rows] == [Fraction(text) for text in claim.inputs["values"]]


def test_the_sweep_has_the_cache_of_its_ranks() -> None:
    (small,) = (scale for scale in LOSSES.scales if scale.name == "128M")
    rows = {row["design"]: row for row in scale_table(small).rows}
    for rank, loss in ((8, 2908), (32, 2896), (64, 2888), (128, 2877)):
        row = rows[f"LRKV r {rank}"]
        assert row["cache_ratio"] == Fraction(1, 6) + Fraction(rank, 128)
        assert row["cross_entropy_nats_per_token"] == Fraction(loss, 1000)
    assert rows["GQA"]["cache_ratio"] is None


def test_the_long_context_row_is_worked_by_hand() -> None:
    (long,) = (scale for scale in LOSSES.scales if scale.name == "512M")
    row = next(row for row in scale_table(long).rows if row["design"] == "LRKV r 51")
    assert row["cache_ratio"] == Fraction(1, 12) + Fraction(51, 128)  # 48.177 %
    assert row["relative_difference"] == Fraction(-75, 2740)


def test_effective_ranks_are_the_printed_ones_under_their_ceiling(document: Document) -> None:
    panel = figure(document, "figure-8-effective-ranks").panels[0]
    (ceiling,) = panel.guides
    assert ceiling.value == Fraction(17, 18)
    centred = {series.y[0]: series.x[0] for series in panel.series if not series.is_open}
    for design, share in centred.items():
        assert share <= ceiling.value
        assert f"{float(100 * share):.1f} %" == CLAIMS[f"effective-rank-{design.lower()}"].printed
    (open_one,) = (series for series in panel.series if series.is_open)
    assert f"{float(100 * open_one.x[0]):.1f} %" == CLAIMS["effective-rank-mqa-uncentred"].printed


def test_task_changes_are_differences_and_what_is_missing_is_said(document: Document) -> None:
    changes = table(document, "task-changes")
    # 53.8 - 47.1, 11.7 - 13.4, 37.9 - 35.3 points
    assert [row["difference"] for row in changes.rows] == [Fraction(n, 1000) for n in (67, -17, 26)]
    assert "3 of 5 tasks" in changes.remarks[0]
    means = [CLAIMS[f"downstream-{name}-2.5b"].printed for name in ("mha", "lrkv")]
    found = (PRINTED.mean_of_tasks.mha, PRINTED.mean_of_tasks.lrkv)
    assert [f"{100 * share:.1f} %" for share in found] == means


def test_the_rotation_shows_true_against_pulled_scores(document: Document) -> None:
    rows = table(document, "rotation").rows
    assert [(r["degrees"], r["true_score"], r["pulled_score"]) for r in rows] == [
        (0, 0, 0), (90, 1, 0), (180, 0, 0), (270, -1, 0),
    ]  # fmt: skip


def test_published_values_have_sources(document: Document) -> None:
    for name, sources in document.sources:
        assert sources, name
    assert Path(SCORES).parent == Path(FACTS).parent
