"""Screens of ``rank --fit-sequences``, ``models`` and ``hardware``."""

from __future__ import annotations

import re

import pytest

import lrkv_plan
from lrkv_plan.report.screens.specs import hardware_screen, models_screen
from lrkv_plan.report.tables import screen_of
from tests.report.sums import evaluated

LLAMA = "llama-2-7b"


def test_the_rank_has_the_range_of_its_budget() -> None:
    told = {"gpu": "h100-sxm", "tp_size": 8, "context_tokens": "8k", "fit_sequences": 40}
    answer = lrkv_plan.rank("llama-3.1-70b", **told)  # type: ignore[arg-type]
    (row,) = answer.rows
    assert (row["rank_low"], row["rank"], row["rank_high"]) == (32, 48, 48)
    assert screen_of(answer.table).verdict == (
        "Rank 48 (32 to 48) is the largest with which 40 users of 8k tokens fit on 8 x H100 SXM.",
        "It holds 40; rank 49 holds 32.",
    )
    low = lrkv_plan.capacity(
        "llama-3.1-70b", attention=["lrkv:32", "lrkv:48"], gpu="h100-sxm", tp_size=8,
    ).rows  # fmt: skip
    ends = [
        [row[f"kv_budget_{end}bytes_per_gpu"] // (row["block_bytes"]) * row["block_tokens"] // 8192
         for row in low] for end in ("low_", "high_")
    ]  # fmt: skip
    assert ends[0][0] >= 40 > ends[0][1]
    assert ends[1][1] >= 40


def test_a_stated_pool_has_no_range_and_no_gpu() -> None:
    answer = lrkv_plan.rank(
        LLAMA, fit_sequences=4, kv_memory="12 GiB", align=1, context_tokens=8192
    )
    (row,) = answer.rows
    # 12 GiB / 4 / 8,192 = 393,216 B a token; 32 layers x 2 x 2 B x (128 + 32 r) <= 393,216: r <= 92
    assert row["rank"] == 92
    assert (row["rank_low"], row["rank_high"], row["gpu"]) == (None, None, None)
    assert screen_of(answer.table).verdict[0] == (
        "Rank 92 is the largest with which 4 users of 8k tokens fit in the stated cache memory."
    )


def test_explained_bytes_are_those_that_are_stored() -> None:
    answer = lrkv_plan.rank(LLAMA, fit_sequences=20, gpu="h100-sxm")
    (row,) = answer.rows
    told = answer.explain(0).splitlines()
    for name in ("", "next_", "gqa_", "mla_"):
        line = next(one for one in told if one.startswith(f"{row[f'{name}attention']}: "))
        sum_ = line.split(": ", 1)[1].split(" = ")[0]
        assert evaluated(sum_) == row[f"{name}bytes_per_token_per_gpu"]


def test_models_are_named_with_a_short_design() -> None:
    rows = [
        {"model": name, "attention": design, "bytes_per_token": each, "model_params": n,
         "uncounted_parts": left_out, "max_context_tokens": 8192, "n_layers": 2, "model_dim": 64}
        for name, design, each, n, left_out in (
            ("a", "mla:512+64,query_latent_dim=1536", 2048, 8_030_000_000, []),
            ("b", "5x gqa:8,head_dim=64 + 1x gqa:2", 4096, 10**9, ["vision"]),
            ("c", "none", 0, None, []),
        )
    ]  # fmt: skip
    screen = models_screen(rows)
    assert screen.verdict[0] == (
        "3 models: a token caches from 2.00 KiB (a) to 4.00 KiB (b) in bf16."
    )
    cells = [[column.text(row) for column in screen.columns[:4]] for row in screen.rows]
    assert cells == [
        ["a", "mla:512+64", "2", "8.03B"],
        ["b", "gqa:8 + gqa:2", "4", ">= 1.00B"],
        ["c", "none", "0", "-"],
    ]


@pytest.mark.parametrize("price", [None, 2.5])
def test_prices_are_a_column_where_profiles_state_them(price: float | None) -> None:
    row = {
        "name": "x", "generation": "hopper", "mem_capacity_bytes": 80 * 2**30,
        "mem_bandwidth_bytes_per_s": 3.35e12, "hourly_price_usd": price,
    }  # fmt: skip
    screen = hardware_screen([row])
    assert screen.verdict[0].startswith("1 hardware profiles: GPUs from 80.0 GiB (x)")
    titles = [column.title for column in screen.columns]
    assert ("$/hour" in titles) == (price is not None)


def test_a_profile_names_its_sources() -> None:
    from lrkv_plan.loader import load_gpu
    from lrkv_plan.report.views.specs import hardware_table

    table = hardware_table([load_gpu("h100-sxm")])
    assert table.explain is not None
    sources, price = table.explain(table.rows[0])
    assert re.match(r"h100-sxm: .+ \(20\d\d-\d\d-\d\d\)", sources)
    assert re.match(r"  [0-9.]+ USD an hour: .+ read on 20\d\d", price)


def test_a_gpu_without_bf16_shows_its_fp16_peak() -> None:
    from lrkv_plan.loader import load_gpu
    from lrkv_plan.report.views.specs import hardware_table

    rows = hardware_table([load_gpu("t4"), load_gpu("ascend-910b2")]).rows
    assert [row["bf16_flops_per_s"] for row in rows] == [None, 353.9e12]
    column = next(c for c in hardware_screen(rows).columns if c.title == "16 bit, dense")
    assert [column.text(row) for row in rows] == ["65 TFLOP/s", "353.9 TFLOP/s"]
