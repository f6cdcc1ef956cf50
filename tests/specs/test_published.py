"""Published runs: the file says which one the others are compared with."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from lrkv_plan.errors import SpecError
from lrkv_plan.report.series.published import FACTS, difference, loss_by_size
from lrkv_plan.report.views.audit import losses_table, scale_table
from lrkv_plan.specs.published import PublishedLoss, read_published_loss


def written(tmp_path: Path, runs: str) -> Path:
    path = tmp_path / "losses.yaml"
    path.write_text(
        "source: [{citation: made up, read_on: 2026-11-30}]\n"
        "scales:\n"
        "  - name: 1B\n"
        "    nominal_params: 1_000_000_000\n"
        "    sequence_tokens: 2_048\n"
        f"    runs: [{runs}]\n"
    )
    return path


def run(design: str, loss: float, more: str = "") -> str:
    return f"{{design: {design}, family: {design}, cross_entropy: {loss}, table: T{more}}}"


def read(tmp_path: Path, *runs: str) -> PublishedLoss:
    return read_published_loss(written(tmp_path, ", ".join(runs)))


def test_differences_are_taken_from_the_run_that_the_file_names(tmp_path: Path) -> None:
    facts = read(tmp_path, run("mha", 2.5), run("gqa", 2.75, ", reference: true"))
    scale = facts.scales[0]
    assert scale.reference.design == "gqa"
    assert list(scale.others) == ["mha"]
    assert difference(scale, "mha") == Fraction(-1, 4)
    (line,) = loss_by_size(facts).panels[0].series
    assert (line.name, line.y) == ("MHA", (Fraction(-1, 4),))
    assert [row["1B_minus_mha"] for row in losses_table(facts).rows] == [Fraction(-1, 4), 0]
    relative = {row["design"]: row["relative_difference"] for row in scale_table(scale).rows}
    assert relative == {"mha": Fraction(-1, 11), "gqa": 0}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("", "", "none"),
        (", reference: true", ", reference: true", "mha, gqa"),
        (", reference: true, extra: true", "", "mha"),
        (", reference: true, extra: true", ", reference: true", "mha, gqa"),
    ],
)
def test_exactly_one_compared_run_is_the_reference(
    tmp_path: Path, first: str, second: str, named: str
) -> None:
    with pytest.raises(SpecError, match=f"scale 1B.*must be the reference, not {named}$"):
        read(tmp_path, run("mha", 2.5, first), run("gqa", 2.75, second))


@pytest.mark.parametrize("value", ["1", "'true'", "mha", "null"])
def test_the_reference_mark_is_true_or_false(tmp_path: Path, value: str) -> None:
    with pytest.raises(SpecError, match=r"scales\.0\.runs\.0\.reference: "):
        read(tmp_path, run("mha", 2.5, f", reference: {value}"), run("gqa", 2.75))


def test_shipped_scales_are_compared_with_mha() -> None:
    assert [scale.reference.family for scale in read_published_loss(FACTS).scales] == ["mha"] * 5
