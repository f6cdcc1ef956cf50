"""The screen of ``audit``: the claims that differ, and how the verdict is worded."""

from __future__ import annotations

from pathlib import Path

import yaml

import lrkv_plan
from lrkv_plan.report.screen import draw
from lrkv_plan.report.tables import screen_of

RIGHT = {
    "id": "right", "says": "share", "place": "page 1", "computes": "cache_ratio",
    "inputs": {"n_heads": 18, "head_dim": 128, "attention": "lrkv:55"}, "printed": "48.5 %",
}  # fmt: skip
WRONG = RIGHT | {"id": "wrong", "printed": "12.3 %"}


def audited(folder: Path, *claims: object) -> lrkv_plan.Result:
    path = folder / "claims.yaml"
    source = {"citation": "made up", "read_on": "2026-11-30"}
    path.write_text(yaml.safe_dump({"title": "t", "source": source, "claims": list(claims)}))
    return lrkv_plan.audit(path)


def test_only_claims_that_differ_are_listed() -> None:
    answer = lrkv_plan.audit("mla")
    screen = screen_of(answer.table)
    assert screen.verdict == (
        "None of 14 claims differs without a reason: 11 match, 3 differ for a recorded reason "
        "that was checked.",
    )
    assert [row["claim"] for row in screen.rows] == ["grouping-factor", "mha-kb", "mha-gb-128000"]
    assert screen.following == (["lrkv-plan", "audit", "mla", "--verdict", "match"],)
    assert len(answer.rows) == 14
    text = draw(screen)
    assert "  reason: 64 KiB per token and layer went on as 64,000 bytes\n" in text


def test_asked_verdicts_are_listed() -> None:
    screen = screen_of(lrkv_plan.audit("mla", verdict="match").table)
    assert len(screen.rows) == 11


def test_a_claim_that_fails_is_named_first(tmp_path: Path) -> None:
    answer = audited(tmp_path, RIGHT, WRONG)
    assert answer.verdict == "1 of 2 claims differ without a reason that holds: wrong; 1 match."
    # 1/18 + 55/128 = 559/1152 = 48.524 %
    assert answer.explain(0).splitlines()[0] == (
        "right: sum w_i c_i(P) of the design / of the reference = 48.524 %; printed 48.5 % "
        "(t, page 1)"
    )


def test_claims_that_all_match_leave_no_table(tmp_path: Path) -> None:
    answer = audited(tmp_path, RIGHT)
    assert answer.verdict == "The claim matches its print."
    assert "─" not in draw(screen_of(answer.table))
