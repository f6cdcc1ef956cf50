"""Capacity rows, advice, the smallest layout and the rank that fits, on stated pools."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lrkv_plan import load_hardware, load_model, swap_attention
from lrkv_plan.errors import PlacementError, RequirementError, UsageError
from lrkv_plan.serving.answers import capacity_answers, smallest_layouts
from lrkv_plan.serving.capacity import (
    capacity_row,
    rank_for_sequences,
    what_to_try,
)
from lrkv_plan.serving.deployment import Checkpoint, Deployment
from lrkv_plan.serving.engine import engine_named
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.model import DenseFeedForward, LayerGroup, ModelSpec
from tests.conftest import make_model

GIB = 2**30
BASE = make_model({"family": "mha", "n_heads": 32, "head_dim": 128}, n_layers=32, model_dim=4096)


def stated(pool_gib: float, context: int = 8192, **changes: Any) -> Deployment:
    sizes = {k: changes.pop(k) for k in list(changes) if k.endswith("p_size")}
    return Deployment(
        engine=engine_named(changes.pop("engine", "vllm@0.19.0")),
        settings=EngineSettings(context_tokens=context, kv_dtype=changes.pop("kv_dtype", "bf16")),
        parallel=Parallelism(**sizes),
        kv_memory_bytes=int(pool_gib * GIB),
        **changes,
    )


def test_a_row_by_hand() -> None:
    # MHA: 2 * 2 B * 32 * 32 * 128 = 524,288 B/token; 8 GiB = 16,384 tokens = 2 sequences of 8,192.
    row = capacity_row(BASE, stated(8))
    assert row.bytes_per_token_per_gpu == 524_288
    assert (row.kv_tokens, row.max_sequences, row.max_concurrency) == (16_384, 2, 2)
    assert row.binds == "cache memory"
    assert row.kv_budget_low_bytes_per_gpu == row.kv_budget_high_bytes_per_gpu == 8 * GIB


def test_replicas_and_data_parallel_cores_add_up() -> None:
    row = capacity_row(BASE, stated(8, tp_size=2, n_gpus=8, gpu_hour_usd=3.0))
    # On 2 GPUs half the bytes each: 4 sequences a replica, four replicas.
    assert (row.n_gpus, row.max_sequences, row.total_sequences) == (8, 4, 16)
    assert row.usd_per_sequence_hour == pytest.approx(8 * 3.0 / 16)
    cores = capacity_row(BASE, stated(8, tp_size=2, dp_size=4))
    assert (cores.n_gpus, cores.total_sequences, cores.total_tokens) == (8, 16, 4 * 32_768)
    with pytest.raises(PlacementError, match="n_gpus 6: one replica takes 4"):
        capacity_row(BASE, stated(8, tp_size=4, n_gpus=6))


def test_low_rank_rows_are_stored_at_the_kernels_alignment() -> None:
    model = swap_attention(BASE, "lrkv:55")
    row = capacity_row(model, stated(8))
    assert row.attention == "lrkv:55"
    # Stored at 64: 2 * 2 * 32 * (128 + 32 * 64); used 128 + 32 * 55.
    assert row.bytes_per_token_per_gpu == 128 * (128 + 32 * 64)
    assert row.waste_share == 1 - Fraction(128 + 32 * 55, 128 + 32 * 64)
    exact = capacity_row(model, stated(8, rank_alignment=1))
    assert exact.waste_share == 0
    chosen = capacity_row(swap_attention(BASE, "lrkv:55,align=8"), stated(8))
    assert chosen.bytes_per_token_per_gpu == 128 * (128 + 32 * 56)


def test_advice_is_computed() -> None:
    tight = stated(3)
    assert capacity_row(BASE, tight).binds == "one sequence of this length exceeds the pool"
    advice = what_to_try(BASE, tight)
    # 3 GiB holds 6,144 tokens of MHA; on 2 GPUs 12,288; in fp8 12,288. Another design means
    # training, which is no advice.
    assert advice == (
        "--tp-size 2 fits 1", "--kv-dtype fp8 fits 1", "--context-tokens 6144 fits 1",
    )  # fmt: skip
    assert capacity_row(BASE, replace(tight, parallel=Parallelism(tp_size=2))).max_sequences == 1


def test_advice_names_the_formats_that_the_engine_has() -> None:
    # 3 GiB holds 6,144 tokens in 16 bit, 11,565 in q8_0 (34 bytes per 32 scalars)
    advice = what_to_try(BASE, stated(3, engine="llama_cpp"))
    assert advice == (
        "--pp-size 2 fits 1", "--kv-dtype q8_0 fits 1", "--context-tokens 6144 fits 1",
    )  # fmt: skip
    large, gpu = load_model("llama-3.1-70b"), load_hardware("h100-nvl")
    on_one = replace(stated(3), hardware=gpu, kv_memory_bytes=None)
    assert "--weight-dtype fp8 fits 5" in what_to_try(large, on_one)
    (only,) = what_to_try(large, replace(on_one, engine=engine_named("llama_cpp")))
    assert only.startswith("--pp-size 2 fits")


def test_advice_stays_within_the_model_and_the_gpus() -> None:
    short = BASE.model_copy(update={"max_context_tokens": 2000})
    assert capacity_row(short, stated(3)).beyond_model_maximum
    assert not capacity_row(short, stated(3, context=2000)).beyond_model_maximum
    assert "--context-tokens 1792 fits 1" in what_to_try(short, stated(3))  # 7 * 256
    two = what_to_try(BASE, stated(1, n_gpus=2))  # TP 2 holds 4,096 tokens, TP 4 would hold 8,192
    assert not any("--tp-size" in advice for advice in two)


def test_a_pool_larger_than_the_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match=r"h100-sxm has 80\.00 GiB in all"):
        capacity_row(BASE, stated(80.5, hardware=load_hardware("h100-sxm")))


def test_an_engine_runs_the_sizes_that_it_knows() -> None:
    for engine, kind in (("llama_cpp", "tp_size"), ("vllm_v0", "dp_size"), ("sglang", "dcp_size")):
        sizes = {"tp_size": 2, kind: 2} if kind == "dcp_size" else {kind: 2}
        with pytest.raises(PlacementError, match=f"{engine} does not run {kind}"):
            capacity_row(BASE, stated(8, engine=engine, **sizes))
    sliced = stated(8, dp_size=2, ep_size=2)
    with pytest.raises(PlacementError, match="has no experts"):
        capacity_row(BASE.model_copy(update={"layers": _with_dense(BASE)}), sliced)


def _with_dense(model: ModelSpec) -> tuple[LayerGroup, ...]:
    block = DenseFeedForward(hidden_dim=16, gated=True)
    return tuple(group.model_copy(update={"feed_forward": block}) for group in model.layers)


def test_refusals_stand_beside_answers() -> None:
    models = [("mha", BASE), ("gqa:8", swap_attention(BASE, "gqa:8"))]
    answers = capacity_answers(models, [stated(8), stated(8, tp_size=3)])
    assert [a.row is not None for a in answers] == [True, True, False, False]
    assert "32 query heads" in (answers[2].refused or "")
    with pytest.raises(PlacementError, match="32 query heads"):
        capacity_answers(models, [stated(8, tp_size=3)])


def test_the_smallest_layout() -> None:
    def smallest(gib: float, n_sequences: int) -> Any:
        (answer,) = smallest_layouts([("mha", BASE)], [stated(gib)], n_sequences)
        return answer

    # 2 sequences a GPU at TP 1, 4 at TP 2 on two GPUs: 10 need 5 GPUs at TP 1.
    row = smallest(8, 10).row
    assert (row.n_gpus, row.tp_size, row.total_sequences) == (5, 1, 10)
    # 3 GiB hold no sequence alone, one on two GPUs, three on four (6,144 * 4 // 8,192).
    answer = smallest(3, 3)
    assert (answer.row.n_gpus, answer.row.tp_size) == (4, 4)
    assert (answer.deployment.n_gpus, answer.deployment.parallel) == (4, Parallelism(tp_size=4))
    assert "no layout up to 1,024 GPUs holds 1" in smallest(1e-6, 1).refused
    with pytest.raises(UsageError):
        smallest(3, 0)


def test_the_rank_that_fits_is_the_largest() -> None:
    deployment = stated(40, context=32_768)
    answer = rank_for_sequences(BASE, deployment, 10)
    # 10 * 32,768 tokens * 128 (128 + 32 r') <= 40 GiB, r' = r rounded up to 16: r' <= 28 -> 16.
    assert (answer.largest.value, answer.aligned.value) == (16, 16)
    assert answer.largest.row.total_sequences >= 10
    assert answer.following is not None
    assert answer.following.row.total_sequences < 10
    # GQA: 10 * 32,768 * 128 * 128 G <= 40 GiB: G = 8. MLA: 64 B * (c + 64) * 327,680 <= 40 GiB.
    assert answer.grouped is not None
    assert answer.latent is not None
    assert (answer.grouped.value, answer.latent.value) == (8, 40 * GIB // 327_680 // 64 - 64)
    exact = rank_for_sequences(BASE, stated(40, context=32_768, rank_alignment=1), 10)
    assert exact.largest.value == 28
    with pytest.raises(RequirementError, match="at rank 0 80 fit"):
        rank_for_sequences(BASE, deployment, 81)


def test_a_latent_that_fits_is_at_most_as_wide_as_the_model() -> None:
    # 1,000 times the memory: the budget would allow any latent, the hidden state is the bound.
    answer = rank_for_sequences(BASE, stated(40_000, context=32_768), 10)
    assert answer.latent is not None
    assert answer.latent.value == BASE.model_dim
    (remark,) = answer.remarks
    assert f"beyond {BASE.model_dim:,}" in remark
    assert rank_for_sequences(BASE, stated(40, context=32_768), 10).remarks == ()


def test_uneven_lengths_are_admitted_in_order() -> None:
    lengths = np.array([100, 8000, 16, 17, 9000])
    row = capacity_row(BASE, stated(8, context=9000), lengths=lengths)
    account = row.population
    assert account is not None
    # Blocks of 16: 7 + 500 + 1 + 2 = 510 of 1,024; the last takes 563 and does not fit.
    assert account.admitted_sequences == 4
    assert account.allocated_bytes == (7 + 500 + 1 + 2 + 563) * 16 * 524_288
    assert account.payload_bytes == int(lengths.sum()) * 524_288


def test_a_model_larger_than_the_gpu_says_what_to_do() -> None:
    deployment = Deployment(
        engine=engine_named("vllm"),
        settings=EngineSettings(context_tokens=8192),
        hardware=load_hardware("l4"),
    )
    (answer,) = capacity_answers([("gqa:8", load_model("llama-3.1-70b"))], [deployment])
    assert answer.row is not None
    assert answer.row.binds == "weights and runtime leave no memory"
    assert answer.row.kv_tokens == 0
    assert answer.to_try[0].startswith("--tp-size 16 fits")


def test_without_gpu_or_pool_the_memory_is_unknown() -> None:
    bare = replace(stated(1), kv_memory_bytes=None)
    with pytest.raises(UsageError, match="--gpu"):
        capacity_row(BASE, bare)


def test_weights_come_from_the_checkpoints_own_files() -> None:
    model = load_model("qwen3-0.6b")
    hardware = load_hardware("l4")
    plain = Deployment(
        engine=engine_named("ideal"),
        settings=EngineSettings(context_tokens=8192),
        hardware=hardware,
    )
    # bf16 by arithmetic: 2 * 596,049,920 B. The files say 100 MB more, as an untied copy would.
    by_spec = capacity_row(model, plain).kv_budget_bytes_per_gpu
    files = Checkpoint(model=model, total_bytes=2 * 596_049_920 + 10**8)
    exact = replace(plain, checkpoint=files)
    assert by_spec - capacity_row(model, exact).kv_budget_bytes_per_gpu == 10**8
    # A swapped design changes them by its own arithmetic: MHA has 28 * 2 * 1024 * 8 * 128 more K/V.
    swapped = swap_attention(model, "mha")
    change = 2 * 28 * 2 * 1024 * 8 * 128
    budgets = [capacity_row(m, exact).kv_budget_bytes_per_gpu for m in (model, swapped)]
    assert budgets[0] - budgets[1] == change
    # An explicit format overrides the files.
    stated = replace(exact, weight_dtype="bf16")
    assert capacity_row(model, stated).kv_budget_bytes_per_gpu == by_spec
