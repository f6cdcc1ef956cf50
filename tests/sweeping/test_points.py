"""Each point of a sweep is what the single commands say of it."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

import lrkv_plan
from lrkv_plan.errors import PlanError, SpecError
from lrkv_plan.serving.capacity import capacity_row, held_over
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import built_in_engines, engine_named
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.design import design_label
from tests.serving.test_media import QWEN as VISION

SAME = (
    "n_gpus", "tp_size", "pp_size", "dp_size", "ep_size", "context_tokens",
    "bytes_per_token_per_gpu", "kv_budget_bytes_per_gpu", "max_sequences", "total_sequences",
)  # fmt: skip
TIMES = (
    "tpot_s", "tpot_low_s", "tpot_high_s", "tokens_per_s", "tokens_per_s_per_gpu",
    "tokens_per_s_per_user", "usd_per_million_tokens",
)  # fmt: skip


def check(row: dict[str, Any], **told: Any) -> None:
    """Compare a row with ``capacity`` and ``plan`` of its own point."""
    batch, model = row["batch_size"], lrkv_plan.load_model(row["model"])
    design = None if row["attention"] in ("own", design_label(model)) else row["attention"]
    at = {
        "gpu": row["gpu"], "attention": design, "kv_dtype": row["kv_dtype"],
        "context_tokens": row["context_tokens"], "weight_dtype": row["weight_dtype"],
        **{name: row[name] for name in ("tp_size", "pp_size", "dp_size", "ep_size")},
    }  # fmt: skip
    try:
        held = lrkv_plan.capacity(row["model"], dcp_size=row["dcp_size"], **at, **told).rows[0]
    except PlanError:
        assert row["refused"]
        assert row["tpot_s"] is None
        return
    if held["refused"] or (row["refused"] and row["max_sequences"] is None):
        assert row["refused"]
        return
    assert {key: row[key] for key in SAME} == {key: held[key] for key in SAME}
    if row["dcp_size"] > 1:
        return  # plan has no such option
    try:
        planned = lrkv_plan.plan(row["model"], batch_size=batch, **at, **told).rows
    except PlanError:
        return  # the own design does not fit, or no time is known; capacity was compared
    timed = planned[0]  # the own design
    if design is not None:
        named = [one for one in planned[1:] if one["attention"] == design]
        if not named:
            return  # plan takes it for the own design
        timed = named[0]
    if timed["tpot_s"] is None:
        assert row["tpot_s"] is None
        return
    assert row["admitted_sequences"] == timed["admitted_sequences"]
    assert row["time_basis"] == timed["time_basis"]
    for key in TIMES:
        assert (row[key] is None) == (timed[key] is None), key
        if row[key] is not None:
            assert row[key] == pytest.approx(timed[key], rel=1e-12), key


def test_rows_are_what_capacity_and_plan_say() -> None:
    swept = lrkv_plan.sweep(
        ["llama-3.1-8b", "qwen3-next-80b-a3b"], gpus=["h100-sxm", "mi300x"],
        designs=["own", "lrkv:16..48:16", "mla:512+64"], context_tokens="2k..64k:*4",
        batch_size=[1, 40, "full"], tp_size="1..4:*2", kv_dtype=["bf16", "fp8"],
    )  # fmt: skip
    assert len(swept.table.rows) == swept.counts.points == 2 * 2 * 5 * 3 * 3 * 3 * 2
    picked = random.Random(1).sample(range(len(swept.table.rows)), 10)
    for place in picked:
        check(dict(swept.table.rows[place]))


def test_layouts_with_experts_and_stages() -> None:
    swept = lrkv_plan.sweep(
        "deepseek-v3", gpus="h200", context_tokens=8192, batch_size=[64, "full"], tp_size=[1, 8],
        dp_size=[1, 8], ep_size=[1, 8], pp_size=[1, 2], dcp_size=[1, 8],
    )  # fmt: skip
    rows = [dict(row) for row in swept.table.rows]
    assert {bool(row["refused"]) for row in rows} == {True, False}
    kept = [row for row in rows if not row["refused"]]
    for row in random.Random(2).sample(kept, 4) + random.Random(3).sample(rows, 3):
        check(row)


def test_the_fullest_batch_within_a_time() -> None:
    swept = lrkv_plan.sweep(
        "llama-3.1-8b", gpus="h100-sxm", context_tokens="1k,8k,100k", tpot_ms=15,
        designs="own;mqa",
    )  # fmt: skip
    for row in map(dict, swept.table.rows):
        check(row, tpot_ms=15)
        step = lrkv_plan.step_time(
            "llama-3.1-8b", gpu="h100-sxm", attention=row["attention"],
            context_tokens=row["context_tokens"], batch_size=row["batch_size"] + 1,
        ).rows[0]  # fmt: skip
        assert step["step_s"] > 0.015 or row["batch_size"] == row["max_sequences"]
    slow = lrkv_plan.sweep("llama-3.1-8b", gpus="h100-sxm", tpot_ms=2)
    assert dict(slow.table.rows[0])["refused"] == "no batch meets the time"


def test_speculation_counts_accepted_tokens() -> None:
    drafted = lrkv_plan.sweep(
        "llama-3.1-8b", gpus="h200", batch_size=32, speculative_tokens=4, accepted_tokens=2.5
    )
    row = dict(drafted.table.rows[0])
    check(row, speculative_tokens=4, accepted_tokens=2.5)


ENGINES = sorted(built_in_engines())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-12b", "qwen3-next-80b-a3b"])
def test_what_is_held_at_many_contexts_is_what_is_held_at_each(engine: str, model: str) -> None:
    spec = lrkv_plan.load_model(model)
    contexts = np.array([1, 100, 4_096, 5_000, 65_537], np.int64)
    for parallel in (Parallelism(), Parallelism(tp_size=2), Parallelism(pp_size=2)):
        deployment = Deployment(
            engine=engine_named(engine), settings=EngineSettings(context_tokens=1, page_tokens=None),
            hardware=lrkv_plan.load_gpu("b200"), parallel=parallel,
        )  # fmt: skip
        try:
            held = held_over(spec, deployment, contexts)
        except PlanError as error:
            with pytest.raises(type(error)):
                capacity_row(spec, deployment)
            continue
        for place, context in enumerate(map(int, contexts)):
            at = Deployment(
                engine=deployment.engine, settings=EngineSettings(context_tokens=context),
                hardware=deployment.hardware, parallel=parallel,
            )  # fmt: skip
            row = capacity_row(spec, at)
            assert held.max_sequences[place] == row.max_sequences
            assert held.kv_budget_bytes_per_gpu[place] == row.kv_budget_bytes_per_gpu
            assert held.bytes_per_token_per_gpu == row.bytes_per_token_per_gpu


def test_a_stated_pool_by_hand() -> None:
    spec = lrkv_plan.load_model("llama-3.1-8b")
    stated = Deployment(
        engine=engine_named("vllm"), settings=EngineSettings(context_tokens=1),
        kv_memory_bytes=2**30,
    )  # fmt: skip
    held = held_over(spec, stated, np.array([1_000, 8_192]))
    # 2^30 / (131,072 B x 16 tokens) = 512 blocks; 63 and 512 blocks a sequence.
    assert held.max_sequences.tolist() == [8, 1]


def test_designs_are_spelled_out_once_each() -> None:
    swept = lrkv_plan.sweep(
        "llama-3.1-8b", gpus="h200", designs=["own", "gqa:1..32", "lrkv:8..24:8", "lrkv:16"],
        kv_dtype="bf16",
    )  # fmt: skip
    names = [row["attention"] for row in swept.table.rows]
    assert names == [
        "gqa:8", "gqa:1", "gqa:2", "gqa:4", "gqa:16", "gqa:32", "lrkv:8", "lrkv:16", "lrkv:24"
    ]  # fmt: skip
    sizes = [row["size"] for row in swept.table.rows]
    assert sizes == [8, 1, 2, 4, 16, 32, 8, 16, 24]


def test_what_a_backbone_cannot_have_stays_with_its_reason() -> None:
    swept = lrkv_plan.sweep("llama-3.1-8b", gpus="h200", designs=["own", "gqa:5..7:1"])
    rows = [dict(row) for row in swept.table.rows]
    assert [bool(row["refused"]) for row in rows] == [False, True, True, True]
    assert all(row["tpot_s"] is None and row["gpu"] == "h200" for row in rows[1:])
    with pytest.raises(SpecError):
        lrkv_plan.sweep("llama-3.1-8b", gpus="h200", designs="gqa:5")


def test_an_absent_value_is_nan_in_the_frame_and_none_in_rows() -> None:
    swept = lrkv_plan.sweep("llama-3.1-8b", gpus="l4", batch_size=[1, 10_000])
    assert math.isnan(swept.frame["tpot_s"].iloc[1])
    assert swept.rows[1]["tpot_s"] is None
    assert swept.rows[1]["refused"] == "the batch does not fit"
    assert isinstance(swept.rows[0]["max_sequences"], int)


def test_a_design_that_only_reads_like_the_own_one_is_another() -> None:
    # gpt-oss has a learned sink per head, which the short label leaves out.
    swept = lrkv_plan.sweep("gpt-oss-20b", gpus="h200", designs="own;gqa:8")
    assert [row["attention"] for row in swept.rows] == ["own", "gqa:8"]
    assert swept.rows[0]["model_params"] - swept.rows[1]["model_params"] == 24 * 64


def test_a_row_is_explained_by_the_single_questions() -> None:
    swept = lrkv_plan.sweep(
        "llama-3.1-8b", gpus="h200", designs="own;lrkv:16", batch_size=[32, 9_999], tp_size=[1, 2]
    )
    told = swept.explain(0)
    assert "131,072" in told  # bytes a token
    assert "attention" in told
    assert "the batch does not fit" in swept.explain(1)
    assert "lrkv:16" in swept.explain(4)


def test_a_vision_model_s_budget_is_asked_at_every_context() -> None:
    # The encoder is profiled with as many images as the context holds, so the memory differs.
    model = lrkv_plan.load_model(VISION)
    contexts = np.array([2_048, 8_192, 128_000], np.int64)

    def at(context: int) -> Deployment:
        return Deployment(
            engine=engine_named("vllm@0.10.2"), hardware=lrkv_plan.load_gpu("a100-sxm-40gb"),
            settings=EngineSettings(context_tokens=context),
        )  # fmt: skip

    held = held_over(model, at(1), contexts)
    rows = [capacity_row(model, at(context)) for context in map(int, contexts)]
    budgets = [row.kv_budget_bytes_per_gpu for row in rows]
    assert len(set(budgets)) > 1
    assert held.kv_budget_bytes_per_gpu.tolist() == budgets
    assert held.max_sequences.tolist() == [row.max_sequences for row in rows]
