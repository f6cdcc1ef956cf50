"""vLLM's budget against what it printed, on rows that the fit saw and rows that it did not."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.serving.activation import FITTED, Step, activation_peak_bytes
from lrkv_plan.serving.budget import NON_TORCH_GIB
from lrkv_plan.serving.engines.vllm import GRAPHS_GIB, rotary_table_bytes
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.units import GIB

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts" / "fit_vllm_budget.py"
LLAMA = lrkv_plan.load_model("llama-3.1-8b")


def _load_script() -> Any:
    spec = importlib.util.spec_from_file_location("fit_vllm_budget", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


fit = _load_script()
ENGINE, CASES = fit.cases()
FITTED_CASES = [c for c in CASES if c.is_fitted]
HELD_OUT = [c for c in CASES if c.is_fitted is False]
TOTALS = [c for c in CASES if c.is_fitted is None]

# Weights that differ from the print by more than 2 %, and why.
WEIGHT_MISSES = {
    ("google/gemma-3-4b-it", 1): 0.060,  # 0.5 GiB more than its tensors; the cause is not known
    ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 4): 0.058,  # its vision tower is not sliced
}


def case_id(case: Any) -> str:
    row = case.row
    return f"{row['hub']}-tp{row['tp']}-pp{row['pp']}-{row['weights']}-{row['max_model_len']}"


def test_the_split_keeps_rows_of_one_configuration_on_one_side() -> None:
    def keys(cases: list[Any]) -> set[Any]:
        return {(c.row["model"], c.row["tp"], c.row["pp"]) for c in cases}

    assert not keys(FITTED_CASES) & keys(HELD_OUT)
    assert (len(keys(FITTED_CASES)), len(keys(HELD_OUT))) == (10, 10)
    assert (len(FITTED_CASES), len(HELD_OUT), len(TOTALS)) == (11, 24, 8)


def test_the_constants_are_what_the_fit_gives() -> None:
    again = fit.fitted_constants(ENGINE, CASES)
    assert astuple(again) == pytest.approx(astuple(FITTED), rel=1e-6)
    non_torch = fit.placed_medians(CASES, "non_torch_gib")
    graphs = fit.placed_medians(CASES, "graphs_gib")
    for kind in ("one", "pipeline", "tensor"):
        assert non_torch[kind][0] == NON_TORCH_GIB[kind][0]
        assert graphs[kind][0] == GRAPHS_GIB[kind][0]


@pytest.mark.parametrize(
    "group", [FITTED_CASES, HELD_OUT, TOTALS], ids=["fitted", "held out", "totals only"]
)
def test_tokens_from_model_gpu_version_and_settings_alone(group: list[Any]) -> None:
    errors = [abs(fit.tokens_error(case, ENGINE)) for case in group]
    assert statistics.median(errors) < 0.03
    assert max(errors) < 0.08


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_weights_are_what_the_engine_printed(case: Any) -> None:
    counted = fit.weights_gib(case, ENGINE)
    allowed = WEIGHT_MISSES.get((case.row["hub"], case.row["tp"]), 0.02)
    assert counted == pytest.approx(float(case.row["weights_gib"]), rel=allowed)


@pytest.mark.parametrize("case", FITTED_CASES + HELD_OUT, ids=case_id)
def test_activation_is_within_the_stated_band(case: Any) -> None:
    assert abs(fit.activation_error_gib(case, ENGINE, FITTED)) <= FITTED.band_bytes / GIB + 0.005


def test_activation_by_hand() -> None:
    # S 1024, V 128256, M 8192, d 4096, w 14336 in 16 bit: h = 8192 * 4096 * 2 = 64 MiB
    step = Step(max_sequences=1024, batched_tokens=8192, scalar_bytes=2)
    hidden = 64 * 2**20
    sampler = 1024 * 128_256 * 14 + hidden + FITTED.base_bytes
    forward = 8192 * 14_336 * 3 * 2 + FITTED.forward_hidden_states * hidden
    one = Parallelism()
    assert activation_peak_bytes(LLAMA, step, one, has_head=True) == int(max(sampler, forward))
    two = Parallelism(pp_size=2)
    assert activation_peak_bytes(LLAMA, step, two, has_head=False) == int(forward + 2 * hidden)


def test_expert_workspaces_by_hand() -> None:
    qwen = lrkv_plan.load_model(fit.GOLDEN / "models" / "qwen1.5-moe-a2.7b.yaml")
    kept = fit.kept_buffers_bytes(
        qwen, Step(max_sequences=1024, batched_tokens=8192, scalar_bytes=2), Parallelism(), FITTED
    )
    # 8192 tokens * 4 experts * (max(1408, 2048) + max(2816, 2048)) * 2 B = 304 MiB
    assert kept == 8192 * 4 * (2048 + 2816) * 2 == 304 * 2**20


def test_rotary_tables_reach_the_longest_context() -> None:
    assert rotary_table_bytes(LLAMA, 2) == 131_072 * 128 * 2
    assert rotary_table_bytes(lrkv_plan.load_model("llama-4-scout"), 2) == 10_485_760 * 128 * 2
    assert rotary_table_bytes(lrkv_plan.load_model("gpt2"), 2) == 0
