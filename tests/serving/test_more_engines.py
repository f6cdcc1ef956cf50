"""Engines whose rule is public and of which no printed pool was compared: the rules by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.budget import StageBudget, budget_for
from lrkv_plan.serving.engine import engine_named, pool_of
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.units import GIB
from tests.conftest import make_model

FULL = {"family": "gqa", "n_heads": 4, "n_kv_heads": 2, "head_dim": 64}
ROW = 2 * 2 * 64 * 2  # keys and values of two heads in bf16
LAYERS = make_model(FULL).n_layers
LLAMA = lrkv_plan.load_model("llama-3.1-8b")
STATE = {"count": 1, "state": [{"name": "ssm", "bytes_per_copy": 5_000}]}
HYBRID = make_model(FULL, layers=[{"count": 4, "attention": FULL}, STATE])


def pool(model: ModelSpec, budget: int, engine: str, **told: Any) -> Pool:
    settings = EngineSettings(**{"context_tokens": 1000, **told})
    return pool_of(model, (budget,), settings, engine=engine_named(engine), parallel=Parallelism())


def stage(engine: str, **told: Any) -> StageBudget:
    settings = EngineSettings(context_tokens=8192, max_batched_tokens=8192)
    return budget_for(
        engine_named(engine), LLAMA, lrkv_plan.load_gpu("h100-sxm"), Parallelism(), settings,
        weight_bytes=15 * GIB, **told,
    ).stages[0]  # fmt: skip


@pytest.mark.parametrize(("engine", "page"), [("lmdeploy", 64), ("tgi", 1), ("exllama", 256)])
def test_equal_blocks_of_each_engines_page(engine: str, page: int) -> None:
    got = pool(make_model(FULL), 10**7, engine)
    assert got.block_tokens == page
    assert got.kv_tokens == 10**7 // (page * LAYERS * ROW) * page
    assert got.max_sequences == got.n_blocks // -(-1000 // page)
    with pytest.raises(PlacementError, match="recurrent state"):
        pool(HYBRID, 10**7, engine)


def test_lmdeploy_takes_a_share_of_what_is_free_after_load() -> None:
    # logits of one prefill of 8,192 tokens and of 2 x 256 sequences, 2 B each
    got = stage("lmdeploy")
    logits = (8192 + 512) * 128_256 * 2
    assert got.bytes_of("logits") == -logits
    free = got.bytes_of("memory") - 15 * GIB - logits + got.bytes_of("non-torch")
    assert got.kv_bytes == pytest.approx(free * 0.8, abs=1)


def test_tgi_takes_nine_tenths_of_what_its_warm_up_leaves() -> None:
    got, half = stage("tgi"), stage("tgi", utilisation=Fraction(1, 2))
    taken = 15 * GIB - got.bytes_of("non-torch") - got.bytes_of("activation peak")
    assert got.kv_bytes == pytest.approx((got.bytes_of("memory") - taken) * 0.9, abs=1)
    assert half.kv_bytes == pytest.approx((got.bytes_of("memory") / 2 - taken) * 0.9, abs=2)


def test_mlx_grows_a_cache_for_each_sequence_by_256_tokens() -> None:
    window = {"window_tokens": 512, "window_kind": "sliding"}
    model = make_model(
        FULL,
        layers=[{"count": 2, "attention": FULL}, {"count": 3, "attention": FULL, **window}, STATE],
    )
    got = pool(model, 10**8, "mlx")
    assert got.blocks_of(1000) == (2 * 1024 + 3 * 512) * ROW + 5_000
    assert got.max_sequences == 10**8 // got.blocks_of(1000)
    eight = pool(make_model(FULL), 10**8, "mlx", kv_dtype="int8_group64")
    assert eight.blocks_of(1000) == 1024 * LAYERS * 2 * 2 * (64 + 4)


def test_exllama_keeps_keys_and_values_apart() -> None:
    # 2 heads of 64: 2 blocks of 32 with a 2-byte scale, 8 and 4 bits
    got = pool(make_model(FULL), 10**7, "exllama", kv_dtype="exl3_8/exl3_4")
    assert got.bytes_per_token_per_gpu == LAYERS * 2 * (2 * 34 + 2 * 18)


def test_ollama_is_llama_cpp_with_a_sequence_of_its_own() -> None:
    theirs, base = (pool(make_model(FULL), 10**8, engine) for engine in ("ollama", "llama_cpp"))
    assert "OLLAMA_NUM_PARALLEL" in theirs.remarks[-1]
    assert replace(theirs, remarks=(), engine=base.engine) == replace(base, remarks=())
    assert pool(make_model(FULL), 10**8, "ollama", max_num_seqs=1).max_sequences == 1


@pytest.mark.parametrize("engine", ["lmdeploy", "tgi", "mlx", "exllama", "ollama"])
def test_a_plan_is_timed_by_a_stand_in(engine: str) -> None:
    answer = lrkv_plan.capacity("llama-3.1-8b", gpu="h100-sxm", engine=engine, tpot_ms=100)
    assert answer.rows[0]["admitted_sequences"] > 0
