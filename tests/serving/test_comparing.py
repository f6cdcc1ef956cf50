"""Comparisons along one variable: which values are looked at, and limits that are refused."""

from __future__ import annotations

from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import UsageError
from lrkv_plan.latency.crossover import MOST_RANKS, MOST_SCANNED, Crossover, compare, map_columns
from lrkv_plan.specs.design import typed_designs
from tests.conftest import make_model

HEADS = {"family": "mha", "n_heads": 12, "head_dim": 16}
BLOCK = {"kind": "dense", "hidden_dim": 96, "gated": True}
MODEL = make_model(
    HEADS, layers=[{"count": 2, "attention": HEADS, "feed_forward": BLOCK}], vocab_size=960,
    tied_embeddings=True, norms={"per_mixer": 1, "per_feed_forward": 1}, weight_dtype="bf16",
)  # fmt: skip
GPU = lrkv_plan.load_hardware("h100-sxm")
POINT = {"context_tokens": 4096, "batch_size": 1, "query_tokens": 1, "tp_size": 1}


def along(over: str, model: Any = MODEL, **changes: Any) -> Crossover:
    pair = typed_designs(model, ["mha", "lrkv:4"])
    return compare(pair, GPU, over=over, point=POINT, **changes).crossover


@pytest.mark.parametrize("over", ["batch_size", "query_tokens"])
def test_more_sequences_than_any_engine_decodes_are_refused(over: str) -> None:
    with pytest.raises(UsageError, match=f"along {over} at most 1,048,576 are looked at"):
        along(over, at_most=MOST_SCANNED + 1)
    assert along(over, at_most=MOST_SCANNED).high == MOST_SCANNED


def test_sizes_are_the_divisors_of_the_heads_whatever_the_limit() -> None:
    # 12 heads of MHA run on 1, 2, 3, 4, 6 and 12 GPUs; LRKV's one shared group on all of them.
    found = along("tp_size", at_most=10**18)
    assert (found.low, found.high) == (1, 12)
    assert along("tp_size", at_most=5).high == 4


def test_a_context_far_beyond_any_is_answered() -> None:
    assert along("context_tokens", at_most=2**62).high == 2**62


def test_ranks_of_an_absurd_head_are_refused_naming_the_limit() -> None:
    wide = {"family": "mha", "n_heads": 2, "head_dim": 100_000}
    model = make_model(
        wide, layers=[{"count": 1, "attention": wide, "feed_forward": BLOCK}], vocab_size=10,
        tied_embeddings=True, norms={"per_mixer": 1, "per_feed_forward": 1}, weight_dtype="bf16",
    )  # fmt: skip
    with pytest.raises(UsageError, match="100,000 ranks: at most 1,024 are looked at"):
        along("rank", model)
    assert along("rank", model, at_most=3).high == 3
    assert MOST_RANKS == 1024


def test_a_map_refuses_what_a_comparison_refuses() -> None:
    pair = typed_designs(MODEL, ["mha", "lrkv:4"])
    with pytest.raises(UsageError, match="along batch_size at most 1,048,576"):
        map_columns(pair, GPU, over="batch_size", at_most=10**8)
    columns = map_columns(pair, GPU, over="batch_size", at_most=MOST_SCANNED)
    assert [columns[0][0], columns[-1][0]] == [1, MOST_SCANNED]
    assert len(columns) <= 16 * 20 + 1


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "8"])
def test_a_limit_that_is_no_count_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="at_most"):
        along("batch_size", at_most=wrong)
