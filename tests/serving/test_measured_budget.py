"""Budgets that a log measured: written, read back, and in the place of the engine's rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import lrkv_plan
from lrkv_plan.errors import PlacementError, PlanError, SpecError
from tests.serving.test_logs import GIB, MEMORY, SGLANG, START, written

LLAMA, H100 = "llama-3.1-8b", "h100-sxm"


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """What vLLM 0.19 printed on one H100: 14.99 GiB of weights, 58.11 of cache, at 0.95."""
    target = tmp_path / "budget.yaml"
    log = written(tmp_path, START + MEMORY)
    lrkv_plan.capacity(from_log=log, gpu=H100, write_budget=target)
    return target


def test_the_measured_cache_comes_back(measured: Path) -> None:
    (row,) = lrkv_plan.capacity(LLAMA, gpu=H100, budget_file=measured).rows
    cache = int(58.11 * GIB)
    assert abs(row["kv_budget_bytes_per_gpu"] - cache) <= 1
    assert row["kv_budget_low_bytes_per_gpu"] == row["kv_budget_high_bytes_per_gpu"]
    assert row["engine"] == "vllm@0.19.0"
    # 58.11 GiB / (16 x 131,072 B) = 29,752.3 blocks of 16 tokens
    assert row["kv_tokens"] == 29_752 * 16


def test_its_terms_are_memory_runtime_and_weights(measured: Path) -> None:
    rows = lrkv_plan.capacity(LLAMA, gpu=H100, budget_file=measured, detail=True).rows
    terms = {row["term"]: row["n_bytes"] for row in rows}
    # 79.19 x 0.95 = 75.23; 75.23 - 14.99 - 58.11 = 2.13 GiB of everything else
    assert terms["runtime"] / GIB == pytest.approx(-2.13, abs=0.01)
    assert terms["weights"] / GIB == pytest.approx(-14.99, abs=1e-6)
    assert terms["cache"] == sum(n for term, n in terms.items() if term != "cache")


def test_another_format_or_design_takes_its_own_weights(measured: Path) -> None:
    own = lrkv_plan.capacity(LLAMA, gpu=H100, budget_file=measured).rows[0]
    fp8 = lrkv_plan.capacity(LLAMA, gpu=H100, budget_file=measured, weight_dtype="fp8").rows[0]
    counted = {
        name: lrkv_plan.capacity(LLAMA, gpu=H100, engine="paged", weight_dtype=name).rows[0]
        for name in ("bf16", "fp8")
    }
    saved = fp8["kv_budget_bytes_per_gpu"] - own["kv_budget_bytes_per_gpu"]
    assert saved == (
        counted["fp8"]["kv_budget_bytes_per_gpu"] - counted["bf16"]["kv_budget_bytes_per_gpu"]
    )
    mqa = lrkv_plan.capacity(LLAMA, gpu=H100, budget_file=measured, attention="mqa").rows[0]
    assert mqa["kv_budget_bytes_per_gpu"] > own["kv_budget_bytes_per_gpu"]


def test_a_plan_takes_it(measured: Path) -> None:
    rows = lrkv_plan.plan(LLAMA, gpu=H100, budget_file=measured).rows
    assert abs(rows[0]["kv_budget_bytes_per_gpu"] - int(58.11 * GIB)) <= 1


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"gpu": "l40s"}, "was measured with gpu h100-sxm, not l40s"),
        ({"engine": "sglang"}, "was measured with engine vllm@0.19.0, not sglang"),
        ({"engine": "vllm@0.11.0"}, "was measured with engine vllm@0.19.0, not vllm@0.11.0"),
        ({"model": "qwen3-8b"}, "was measured with model llama-3.1-8b, not qwen3-8b"),
        (
            {"max_batched_tokens": 4096},
            "max_batched_tokens 4096: the budget file was measured with",
        ),
        ({"tp_size": 2}, "tp_size 2: the budget file was measured with tp_size 1"),
        ({"kv_memory": "9 GiB"}, "budget_file: kv_memory states the pool"),
    ],
)
def test_another_deployment_is_refused(measured: Path, told: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"model": LLAMA, "gpu": H100, **told}
    with pytest.raises(PlanError) as caught:
        lrkv_plan.capacity(asked.pop("model"), budget_file=measured, **asked)
    assert message in str(caught.value)


def test_the_layout_is_chosen_among_those_measured(measured: Path) -> None:
    (row,) = lrkv_plan.capacity(LLAMA, gpu="2xh100-sxm", budget_file=measured).rows
    assert (row["tp_size"], row["n_gpus"]) == (1, 2)
    with pytest.raises(PlacementError):
        lrkv_plan.capacity(LLAMA, gpu="2xh100-sxm", tp_size=2, budget_file=measured)


def test_a_wrong_file_is_named_with_its_key(measured: Path) -> None:
    facts = yaml.safe_load(measured.read_text())
    for change, message in (
        ({"cache_bytes": 2**40}, "weights_bytes and cache_bytes take more"),
        ({"utilisation": 1.5}, "utilisation: 1.5"),
        ({"cash": 1}, "cash: unknown key"),
        ({"memory_bytes": "80 GiB", "cache_bytes": "58 GiB"}, None),
    ):
        measured.write_text(yaml.safe_dump({**facts, **change}))
        if message is None:
            assert lrkv_plan.capacity(LLAMA, gpu=H100, budget_file=measured).rows
            continue
        with pytest.raises(SpecError, match=message):
            lrkv_plan.capacity(LLAMA, gpu=H100, budget_file=measured)


def test_a_file_is_not_overwritten(measured: Path, tmp_path: Path) -> None:
    log = written(tmp_path, START + MEMORY)
    with pytest.raises(PlanError, match="exists"):
        lrkv_plan.capacity(from_log=log, gpu=H100, write_budget=measured)


@pytest.mark.parametrize(
    ("text", "told", "message"),
    [
        (START + MEMORY, {}, "measures no budget without the GPU"),
        (START + MEMORY, {"gpu": "l40s"}, "GiB more than the memory at a utilisation of 0.95"),
        (START + MEMORY.replace("Available", "Some"), {"gpu": H100}, "does not print the cache's"),
    ],
)
def test_what_measures_no_budget_writes_none(
    text: str, told: dict[str, Any], message: str, tmp_path: Path
) -> None:
    target = tmp_path / "budget.yaml"
    with pytest.raises(PlanError, match=message):
        lrkv_plan.capacity(from_log=written(tmp_path, text), write_budget=target, **told)
    assert not target.exists()


def test_sglangs_budget_is_measured_too(tmp_path: Path) -> None:
    target = tmp_path / "budget.yaml"
    log = written(tmp_path, SGLANG)
    lrkv_plan.capacity(from_log=log, gpu=H100, write_budget=target)
    (row,) = lrkv_plan.capacity(LLAMA, gpu=H100, budget_file=target).rows
    assert (row["engine"], row["kv_tokens"]) == ("sglang", 20_480)
