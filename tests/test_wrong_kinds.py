"""Public functions given the wrong kind of thing: an answer, or one line that names the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrkv_plan
from lrkv_plan.attention.spec import Backbone
from lrkv_plan.errors import PlanError, UsageError
from lrkv_plan.latency.roofline import roofline_point
from lrkv_plan.latency.step import step_model, step_time
from lrkv_plan.latency.weights_pass import weights_pass
from lrkv_plan.latency.work import attention_work, step_work
from lrkv_plan.memory.arithmetic import arithmetic_ratio_to_mha, attention_multiply_adds
from lrkv_plan.memory.cache import (
    encoder_bytes_per_token,
    index_bytes_per_token,
    state_bytes_per_sequence,
)
from lrkv_plan.memory.weights import weight_bytes_per_gpu
from lrkv_plan.specs.deployment import EngineName, Parallelism
from tests.conftest import make_model

MODEL = make_model(
    {"family": "gqa", "n_heads": 4, "n_kv_heads": 2, "head_dim": 16},
    layers=[{
        "count": 2, "attention": {"family": "gqa", "n_heads": 4, "n_kv_heads": 2, "head_dim": 16},
        "window_tokens": 100, "window_kind": "sliding",
        "feed_forward": {"kind": "dense", "hidden_dim": 96, "gated": True},
    }],
    vocab_size=100, tied_embeddings=True, weight_dtype="bf16",
    norms={"per_mixer": 1, "per_feed_forward": 1},
)  # fmt: skip
GPU = lrkv_plan.load_hardware("h100-sxm")
STEP = step_model(MODEL, GPU)
LOW_RANK = lrkv_plan.parse_attention("lrkv:0", MODEL.attention_groups[0].attention.backbone())
NAMED: dict[str, Any] = {"kv_dtype": "bf16", "tp_size": 1}
CALLS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (lrkv_plan.load_model, {"argument": "llama-3.1-8b"}),
    (lrkv_plan.load_hardware, {"argument": "h100-sxm"}),
    (lrkv_plan.swap_attention, {"model": MODEL, "text": "mqa"}),
    (lrkv_plan.parse_attention, {"text": "mqa", "backbone": Backbone(4, 16, 16)}),
    (lrkv_plan.bytes_per_token, {"model": MODEL, **NAMED}),
    (lrkv_plan.cache_bytes, {"model": MODEL, "context_tokens": 8, "batch_size": 1, **NAMED, "encoder_tokens": 3}),
    (lrkv_plan.ratio_to_mha, {"model": MODEL, **NAMED}),
    (lrkv_plan.rank_ceiling, {
        "model": MODEL, "budget": "50%", "alignment": 4, "context_tokens": 8, **NAMED,
        "design": LOW_RANK, "latent_rope_dim": 4}),
    (lrkv_plan.bytes_per_token_at_ranks, {"model": MODEL, "ranks": 3, "alignment": 4, **NAMED,
                                          "design": LOW_RANK}),
    (lrkv_plan.parameter_count, {"model": MODEL}),
    (lrkv_plan.matched_feed_forward, {"original": MODEL, "swapped": MODEL}),
    (lrkv_plan.placements, {"model": MODEL, **NAMED}),
    (index_bytes_per_token, {"model": MODEL, "tp_size": 1}),
    (state_bytes_per_sequence, {"model": MODEL, "tp_size": 1}),
    (encoder_bytes_per_token, {"model": MODEL, **NAMED}),
    (attention_multiply_adds, {"model": MODEL, "context_tokens": 8, "query_tokens": 1}),
    (arithmetic_ratio_to_mha, {"model": MODEL, "context_tokens": 8}),
    (attention_work, {"model": MODEL, **NAMED, "heads_per_tile": 2, "path": "grouped"}),
    (weights_pass, {"model": MODEL, "weight_dtype": "bf16", "parallel": Parallelism()}),
    (step_work, {"model": MODEL, "weight_dtype": "bf16", **NAMED}),
    (weight_bytes_per_gpu, {"model": MODEL, "parallel": Parallelism(), "weight_dtype": "bf16"}),
    (step_model, {"model": MODEL, "hardware": GPU, "weight_dtype": "bf16", **NAMED}),
    (step_model, {"model": MODEL, "hardware": GPU, "weight_dtype": "bf16", "parallel": Parallelism(),
                  "engine": EngineName(name="sglang")}),
    (step_time, {"model": STEP, "context_tokens": 1000, "batch_size": 1, "query_tokens": 1}),
    (roofline_point, {"model": MODEL, "hardware": GPU, "context_tokens": 8, "batch_size": 1,
                      "query_tokens": 1, "units": "bf16", **NAMED}),
]  # fmt: skip
WRONG: list[Any] = [
    None, True, False, 0, -1, 1.5, 2.0, math.nan, math.inf, -math.inf, 10**30, 1e30, 10**400, "", "1",
    "bf16", b"bf16", [], [1.5], [[1], [1, 2]], {}, (), object(), Fraction(1, 2), 2 + 0j, np.int64(2),
    np.float64(1.5), np.float32(2.0), np.array(2), np.array([1.5]), np.array(["a"]), np.array([]),
    np.array([[1, 2]]), MODEL, GPU, STEP, Parallelism(), LOW_RANK, int,
]  # fmt: skip


def refusal(function: Callable[..., Any], told: dict[str, Any]) -> str | None:
    """The one line of a refusal, or None for an answer; anything else escapes."""
    try:
        function(**told)
    except PlanError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("function", "told"), CALLS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_kind_gets_an_answer_or_one_line(
    function: Callable[..., Any], told: dict[str, Any]
) -> None:
    assert refusal(function, told) is None
    reads_files = "argument" in told  # each unknown name reads every shipped profile
    for name in told:
        for wrong in WRONG[:: 6 if reads_files else 1]:
            said = refusal(function, {**told, name: wrong})
            if said is not None:
                assert said, (function, name, wrong)
                assert len(said.splitlines()) == 1, (function, name, wrong)


@pytest.mark.parametrize(("function", "told"), CALLS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_count_that_is_no_count_is_named(
    function: Callable[..., Any], told: dict[str, Any]
) -> None:
    counts = {name for name, value in told.items() if type(value) is int}
    for name in counts:
        for wrong in (True, 1.5, "1", -1, 10**30, None if name != "latent_rope_dim" else "x"):
            if wrong is None and name in ("encoder_tokens", "heads_per_tile"):
                continue  # optional
            said = refusal(function, {**told, name: wrong})
            assert said is not None, (function, name, wrong)
            assert name.removesuffix("s") in said, (function, name, wrong, said)


@given(st.sampled_from(CALLS), st.data())
def test_whole_numbers_of_any_kind_count_the_same(
    call: tuple[Callable[..., Any], dict[str, Any]], data: Any
) -> None:
    function, told = call
    counts = [name for name, value in told.items() if type(value) is int]
    if not counts or function is step_time:
        return
    name = data.draw(st.sampled_from(counts))
    expected = function(**told)
    for same in (float(told[name]), np.int32(told[name]), np.float64(told[name])):
        assert function(**{**told, name: same}) == expected


def test_a_whole_float_is_a_context_on_a_windowed_model() -> None:
    assert step_time(STEP, 1000.0, 1) == step_time(STEP, 1000, 1)
    together = step_time(STEP, np.array([50.0, 1000.0]), 1).step_s
    assert together.tolist() == [step_time(STEP, t, 1).step_s for t in (50, 1000)]  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=r"context_tokens 1000\.5: must be a whole number"):
        step_time(STEP, 1000.5, 1)
    with pytest.raises(UsageError, match="batch_size: elements must be whole numbers"):
        step_time(STEP, 1000, np.array([1.5]))


def test_products_of_large_arrays_do_not_wrap() -> None:
    huge = np.array([2**40])
    alone = step_time(STEP, 2**40, 2**40).step_s
    assert step_time(STEP, huge, huge).step_s.tolist() == [alone]  # type: ignore[union-attr]
    assert alone > 0


@pytest.mark.parametrize(
    "wrong", [("", object, len), (None, object, len), ("x", object, len), ("x", None, len)]
)
def test_a_family_that_is_none_is_refused(wrong: tuple[Any, Any, Any]) -> None:
    with pytest.raises(PlanError):
        lrkv_plan.register_family(*wrong)


def test_no_encoder_rows_is_none_and_not_the_models_own_number() -> None:
    attention = {"family": "mha", "n_heads": 2, "head_dim": 8}
    layers = [
        {"count": 1, "attention": attention},
        {"count": 1, "attention": attention, "cached_over": "encoder"},
    ]
    model = make_model(attention, layers=layers, encoder_tokens=1500)
    own = lrkv_plan.cache_bytes(model, context_tokens=1).total
    assert own == 1501 * 2 * 2 * 2 * 8
    assert lrkv_plan.cache_bytes(model, context_tokens=1, encoder_tokens=0).total == 2 * 2 * 2 * 8
