"""Neighbouring readings are found where they were planted, and explanations are checked."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.auditing.evaluate import AuditRow, Verdict
from lrkv_plan.auditing.readings import CUT, UNROUNDED
from lrkv_plan.errors import SpecError
from tests.auditing.conftest import Audited, audited_claim
from tests.drawing import drawn

SIX = {"n_heads": 6, "head_dim": 128}
EIGHTEEN = {"n_heads": 18, "head_dim": 128}
V3 = {"n_heads": 128, "head_dim": 128}


def readings(row: AuditRow) -> list[str]:
    return [reading.text for reading in row.readings]


PLANTED: list[tuple[str, str, dict[str, Any], str]] = [
    # 2 * 2 * 128 * 128 = 65,536 bytes = 64 KiB
    ("bytes_per_token_per_layer", "64 KB", V3, "KiB printed as KB"),
    # 60 layers of 65,536 bytes at 128,000 tokens = 503.32 GB = 468.75 GiB
    ("cache_bytes", "468.75 GB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "GiB printed as GB"),
    ("cache_bytes", "503.3 GiB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "GB printed as GiB"),
    ("cache_bytes", "491.5 GB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "KB of 1,024 counted as 1,000"),
    ("cache_bytes", "1,006.6 GB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "times 2"),
    ("cache_bytes", "251.7 GB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "30 layers"),
    ("cache_bytes", "251.7 GB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "64,000 tokens"),
    ("cache_bytes", "251.7 GB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "fp8 scalars"),
    # 65,536 B * 61 layers * 128,000 tokens = 511.705 GB; * 60 * 131,072 = 515.396 GB
    ("cache_bytes", "511.7 GB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "61 layers"),
    ("cache_bytes", "515.4 GB", {**V3, "n_layers": 60, "context_tokens": 128_000}, "131,072 tokens"),
    # 2 (512 + 64 + 512) and 2 * 128 (128 + 64 + 128)
    ("bytes_per_token_per_layer", "2,176 B", {**V3, "attention": "mla:512+64"}, "cached_form=transposed"),
    ("bytes_per_token_per_layer", "81,920 B", {**V3, "attention": "mla:512+64"}, "cached_form=heads"),
    # 8 groups of 128 heads: 8/128; groups of 8 heads: 16/128
    ("cache_ratio", "12.5 %", {**V3, "attention": "gqa:8"}, "8 as group size"),
    ("cache_ratio", "55.56 %", {**EIGHTEEN, "attention": "lrkv:55"}, "rank 64"),
    ("cache_ratio", "49.3 %", {**EIGHTEEN, "attention": "lrkv:55"}, "rank 56"),  # 1/18 + 56/128
    # rank 50 rounded up to 56: found as stored width before it is found as a rank
    ("cache_ratio", "49.3 %", {**EIGHTEEN, "attention": "lrkv:50"}, "rank 50 stored at 56"),
    ("cache_ratio", "51.5 %", {**EIGHTEEN, "attention": "lrkv:55"}, "one minus the share"),
    # 32 heads, 4 GPUs: 54.7 % over all, 45.3 % of one copy
    ("cache_ratio", "45.3 %", {"n_heads": 32, "head_dim": 128, "attention": "lrkv:54", "tp_size": 4}, "not sharded"),
    # 2 * 2 * 32 * 8 * 128 = 131,072 bytes on all, a quarter on each
    ("bytes_per_token", "131,072 B", {"model": "llama-3.1-8b", "tp_size": 4}, "over all 4 GPUs"),
    ("rank_ceiling", "48", {**EIGHTEEN, "budget": "1/2"}, "alignment 16"),
    ("effective_rank_ceiling", "6", {"n_heads": 6}, "uncentred"),
    ("relative_decrease", "25 %", {"value": 8, "reference": 10}, "over the other value"),
    ("training_steps", "250", {"training_tokens": 200_000, "batch_tokens": 100, "n_gpus": 8}, "batch on each of 8 GPUs"),
    # 0.02 +- 0.01 over 2.39: 0.42 to 1.25 %
    ("relative_decrease", "0.80 %", {"value": "2.37", "reference": "2.39"}, UNROUNDED),
    ("smallest", "18 %", {"values": ["18.7 %", "29.7 %"]}, CUT),
]  # fmt: skip


@pytest.mark.parametrize(("computes", "printed", "inputs", "reading"), PLANTED)
def test_planted_reading_is_found(
    audited: Audited, computes: str, printed: str, inputs: dict[str, Any], reading: str
) -> None:
    row = audited(computes, printed, inputs)
    assert row.verdict is Verdict.MISMATCH
    assert reading in readings(row)


def test_two_changes_together_are_found_and_pairs_of_a_sufficient_change_are_not(
    audited: Audited,
) -> None:
    # 2 * 2 * 36 layers * 2048 * (128 + 18 * 64) = 377,487,360 bytes = 360 MiB
    inputs = {**EIGHTEEN, "n_layers": 18, "context_tokens": 2048, "attention": "lrkv:55"}
    found = readings(audited("cache_bytes", "360.0 MiB", inputs))
    assert "36 layers + rank 64" in found
    assert "4,096 tokens + rank 64" in found
    alone = readings(audited("cache_bytes", "180.0 MiB", inputs))
    assert alone == ["rank 64"]


def test_another_row_of_the_table_is_a_reading_also_at_any_rank(audited: Audited) -> None:
    row = {"row": {"table": "sizes", "name": "large"}, "tables": {"sizes": {"small": SIX, "large": EIGHTEEN}}}  # fmt: skip
    # 1/6 + 55/128 = 59.635 %; 1/6 + 46/128 = 52.604 %
    assert "row small" in readings(
        audited("cache_ratio", "59.64 %", {"attention": "lrkv:55"}, **row)
    )
    swept = audited("cache_ratio", "52.6 %", {"attention": "lrkv:55"}, **row)
    assert readings(swept) == ["row small + rank 46"]
    # 127 ranks (0 to 128 without 55 and 64) from 1/6 to 1/6 + 1, a window of 0.1 %
    assert swept.chance_hits == pytest.approx(127 * 0.001, rel=1e-12)


def test_row_is_not_combined_with_a_change_worked_out_from_its_own_cells(audited: Audited) -> None:
    sizes = {"small": {**SIX, "n_layers": 12}, "large": {**EIGHTEEN, "n_layers": 18}}
    found = audited(
        "cache_bytes", "1 GiB", {"context_tokens": 100}, row={"table": "sizes", "name": "large"},
        tables={"sizes": sizes},
    )  # fmt: skip
    assert not any("row" in text and "layers" in text for text in readings(found))


def test_nearest_rank_is_named_where_none_prints(audited: Audited) -> None:
    # 1/18 + 54/128 = 47.743 %, 1/18 + 55/128 = 48.524 %
    row = audited("cache_ratio", "48.4 %", {**EIGHTEEN, "attention": "lrkv:64"})
    assert readings(row) == []
    assert row.nearest is not None
    assert (row.nearest.text, row.nearest_text) == ("rank 55", "48.524 %")


@given(st.integers(1, 64), st.integers(1, 40), st.integers(1, 100_000), st.sampled_from([1, 2, 4]))
@settings(max_examples=drawn(60))
def test_doubled_layers_are_found_for_any_shape(
    heads: int, layers: int, tokens: int, gpus: int
) -> None:
    inputs = {"n_heads": heads * gpus, "head_dim": 64, "n_layers": layers, "context_tokens": tokens}
    doubled = 2 * 2 * heads * gpus * 64 * 2 * layers * tokens
    row = audited_claim("cache_bytes", f"{doubled} B", inputs)
    assert row.verdict is Verdict.MISMATCH
    assert f"{2 * layers:,} layers" in readings(row)
    assert all(Fraction(r.value) == doubled for r in row.readings)


@given(st.integers(1, 32), st.integers(0, 64), st.integers(0, 64))
@settings(max_examples=drawn(60))
def test_every_integer_rank_is_tried(heads: int, stated: int, planted: int) -> None:
    inputs = {"n_heads": heads, "head_dim": 64, "attention": f"lrkv:{stated}"}
    ratio = Fraction(1, heads) + Fraction(planted, 64)
    row = audited_claim("cache_ratio", f"{ratio.numerator}/{ratio.denominator}", inputs)
    if stated == planted:
        assert row.verdict is Verdict.MATCH
    else:
        assert any(f"rank {planted}" in t or f"stored at {planted}" in t for t in readings(row))


def test_explanation_that_reproduces_the_print_makes_it_explained(audited: Audited) -> None:
    why = {"reading": ["rank 64"], "reason": "the other rank"}
    row = audited("cache_ratio", "55.56 %", {**EIGHTEEN, "attention": "lrkv:55"}, explanation=why)
    assert row.verdict is Verdict.EXPLAINED
    assert row.readings[0].text == "rank 64"


@pytest.mark.parametrize(
    "why",
    [
        {"reading": ["rank 63"], "reason": "wrong"},
        {"reading": ["rank 64", CUT], "reason": "it is rounded, nothing is cut"},
        {"none_of": "rank", "reason": "rank 64 does print it"},
    ],
)
def test_explanation_that_does_not_hold_leaves_a_mismatch(audited: Audited, why: Any) -> None:
    row = audited("cache_ratio", "55.56 %", {**EIGHTEEN, "attention": "lrkv:55"}, explanation=why)
    assert row.verdict is Verdict.MISMATCH
    assert str(row.explanation).startswith("does not hold")


def test_none_of_rank_needs_a_rank_to_sweep(audited: Audited) -> None:
    why = {"none_of": "rank", "reason": "no rank"}
    row = audited("cache_ratio", "48.4 %", {**EIGHTEEN, "attention": "lrkv:64"}, explanation=why)
    assert row.verdict is Verdict.EXPLAINED
    for inputs in ({**EIGHTEEN, "attention": "gqa:6"}, {"n_heads": 2, "head_dim": 2048, "attention": "lrkv:5"}):  # fmt: skip
        assert audited("cache_ratio", "48.4 %", inputs, explanation=why).verdict is Verdict.MISMATCH


def test_unneeded_explanation_is_said(audited: Audited) -> None:
    why = {"reading": ["rank 64"], "reason": "not needed"}
    row = audited("cache_ratio", "48.5 %", {**EIGHTEEN, "attention": "lrkv:55"}, explanation=why)
    assert row.verdict is Verdict.MATCH
    assert "not needed" in str(row.note)


def test_unknown_reading_is_an_error_with_the_nearest_name(audited: Audited) -> None:
    with pytest.raises(SpecError, match="did you mean 'times 2'"):
        audited("ratio", "3", {"value": 1, "reference": 1}, explanation={"reading": ["times 3"], "reason": "x"})  # fmt: skip


def test_search_is_bounded_and_says_so(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrkv_plan.auditing.readings.MAX_TRIED", 300)
    sizes = {"r1": {"n_heads": 1, "head_dim": 256}, "r2": {"n_heads": 2, "head_dim": 256}}
    row = audited(
        "cache_ratio", "0.00012 %", {"attention": "lrkv:55"}, tables={"sizes": sizes},
        row={"table": "sizes", "name": "r1"},
    )  # fmt: skip
    assert row.tried == 300
    assert not row.search_complete


def test_missing_cells_are_not_computed(audited: Audited) -> None:
    row = audited("mean", "40.2 %", missing="the five cells")
    assert (row.verdict, row.computed, row.missing) == (
        Verdict.NOT_COMPUTABLE,
        None,
        "the five cells",
    )


def test_stated_tolerance_replaces_the_precision_of_digits(audited: Audited) -> None:
    for within, verdict in (("0.2B", Verdict.MATCH), ("4 %", Verdict.MISMATCH), ("8 %", Verdict.MATCH)):  # fmt: skip
        tolerance = {"within": within, "reason": "a nominal size"}
        # 2.3 against 2.5: 0.2 away, 8 % of 2.5
        row = audited("total", "2.5B", {"values": [2_300_000_000]}, tolerance=tolerance)
        assert row.verdict is verdict
