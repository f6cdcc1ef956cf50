"""The longest context that fits: it fits, the next token does not, and nothing longer does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import lrkv_plan
from lrkv_plan import load_hardware, load_model
from lrkv_plan.errors import PlacementError, PlanError
from lrkv_plan.serving.capacity import MOST_CONTEXT_TOKENS, capacity_row, largest_context
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import engine_named
from lrkv_plan.specs.deployment import EngineSettings
from lrkv_plan.specs.model import ModelSpec
from tests.oracle.comparing import spec_of
from tests.oracle.draws import examples, hybrids, models

ENGINES = ("ideal", "paged", "vllm", "vllm_v0@0.6", "sglang", "tensorrt_llm", "llama_cpp",
           "ik_llama_cpp", "vllm_ascend")  # fmt: skip


def at(deployment: Deployment, tokens: int) -> Deployment:
    return replace(deployment, settings=replace(deployment.settings, context_tokens=tokens))


def fits(model: ModelSpec, deployment: Deployment, tokens: int, n: int) -> bool:
    return capacity_row(model, at(deployment, tokens)).total_sequences >= n


def is_the_longest(model: ModelSpec, deployment: Deployment, n: int, steps: list[int]) -> None:
    found = largest_context(model, deployment, n)
    if found is None:
        assert not any(fits(model, deployment, tokens, n) for tokens in (1, 2, *steps))
        return
    assert fits(model, deployment, found, n)
    assert all(fits(model, deployment, max(1, found - step), n) for step in steps)
    if found < MOST_CONTEXT_TOKENS:
        beyond = (found + step for step in (1, *steps))
        assert not any(fits(model, deployment, tokens, n) for tokens in beyond)


@examples(120)
@given(
    st.one_of(models(), hybrids()),
    st.sampled_from(ENGINES),
    st.integers(1, 10**9),
    st.integers(1, 5),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=6),
    st.sampled_from([None, 1, 16, 64]),
    st.booleans(),
)
def test_of_any_model(
    plain: dict[str, Any], engine: str, pool: int, n: int, steps: list[int], page: int | None,
    prefix: bool,
) -> None:  # fmt: skip
    settings = EngineSettings(context_tokens=1, prefix_cache=prefix, encoder_tokens=700,
                              page_tokens=page if engine in ("paged", "vllm") else None)  # fmt: skip
    deployment = Deployment(engine=engine_named(engine), settings=settings, kv_memory_bytes=pool)
    model = spec_of(plain)
    try:
        capacity_row(model, deployment)
    except PlanError:
        assume(False)
    is_the_longest(model, deployment, n, steps)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "llama_cpp"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-12b", "gpt-oss-20b"])
def test_where_the_budget_depends_on_it(engine: str, name: str) -> None:
    """Rotary tables and compute buffers grow with the longest context; windows do not."""
    deployment = Deployment(
        engine=engine_named(engine), settings=EngineSettings(context_tokens=1),
        hardware=load_hardware("h100-sxm"),
    )  # fmt: skip
    for n in (1, 3):
        is_the_longest(load_model(name), deployment, n, [1, 17, 1000, 30_000])


def test_by_hand() -> None:
    # 20 GiB / 128 KiB = 163,840 tokens: one user, beyond the model's 131,072; two of 81,920 each.
    (one,) = lrkv_plan.capacity("llama-3.1-8b", kv_memory="20 GiB", max_context=True).rows
    assert (one["pool_context_tokens"], one["context_tokens"]) == (163_840, 131_072)
    two = lrkv_plan.capacity("llama-3.1-8b", kv_memory="20 GiB", max_context=True, sequences=2)
    assert two.rows[0]["pool_context_tokens"] == two.rows[0]["context_tokens"] == 81_920
    assert two.rows[0]["total_sequences"] == 2
    half = lrkv_plan.capacity(
        "llama-3.1-8b", kv_memory="20 GiB", max_context=True, sequences=2, kv_dtype="bf16,fp8"
    )
    assert [row["pool_context_tokens"] for row in half.rows] == [81_920, 163_840]


def test_of_so_many_gpus_the_layout_is_chosen_and_replicas_share_the_users() -> None:
    (row,) = lrkv_plan.capacity("llama-3.1-70b", gpu="4xh100-sxm", max_context=True).rows
    assert row["tp_size"] == 4
    assert row["layout"] == "holds the longest context"
    stated = lrkv_plan.capacity("llama-3.1-8b", gpu="4xh100-sxm", tp_size=1, max_context=True,
                                sequences=4)  # fmt: skip
    alone = lrkv_plan.capacity("llama-3.1-8b", gpu="h100-sxm", max_context=True)
    assert stated.rows[0]["pool_context_tokens"] == alone.rows[0]["pool_context_tokens"]


def test_nothing_fits_at_all() -> None:
    answer = lrkv_plan.capacity("llama-3.1-70b", gpu="h100-sxm", max_context=True)
    assert answer.rows[0]["pool_context_tokens"] == 0
    assert "Not even one token" in answer.verdict


def test_a_design_that_cannot_run_is_refused() -> None:
    with pytest.raises(PlacementError, match="tp_size 3"):
        lrkv_plan.capacity("llama-3.1-8b", gpu="h100-sxm", tp_size=3, max_context=True)
