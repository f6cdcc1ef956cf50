"""A profile is judged on a model's own shapes, and one of another device is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan import load_model
from lrkv_plan.calibration import validate as module
from lrkv_plan.calibration.validate import (
    ValidatedPoint,
    changed_shapes,
    failure,
    model_shapes,
    outside_allowed,
    validate_model,
)
from lrkv_plan.errors import CalibrationError, PlacementError
from lrkv_plan.loader import load_hardware
from lrkv_plan.specs.design import swap_attention

POINT = ValidatedPoint(
    attention="gqa:8", path="grouped/plain", kernel="grouped", dtype="fp32", batch_size=1,
    context_tokens=64, tp_size=1, n_bytes=1, predicted_s=1.0, low_s=0.9, high_s=1.1,
    measured_s=1.0, error=0.0, in_band=True, basis="measured", backend="torch/grouped/plain",
    held_out_median_error=0.03,
)  # fmt: skip
MISS = replace(POINT, measured_s=2.0, error=-0.5, in_band=False)


def test_as_many_points_as_chance_would_may_miss_a_90_percent_band() -> None:
    # n = 6: P(more than 1 miss) = 1 - 0.9^6 - 6 * 0.1 * 0.9^5 = 11.4 %, more than 2: 1.6 %
    assert outside_allowed(6) == 2
    assert failure([POINT] * 4 + [MISS] * 2) is None
    assert "3 of 6 points lie outside" in (failure([POINT] * 3 + [MISS] * 3) or "")


@pytest.mark.parametrize("n", range(1, 6))
def test_a_profile_that_misses_every_point_always_fails(n: int) -> None:
    assert failure([MISS] * n) is not None


def test_windows_bound_the_contexts_of_their_layers() -> None:
    model = load_model("gemma-3-12b")
    windows = {g.window_tokens for g in model.attention_groups}
    shapes = model_shapes(model, [512, 8192], [1], 1, "fp32")
    assert 1024 in windows
    assert {s.context_tokens for s in shapes} == {512, 1024, 8192}


def test_equal_shapes_are_measured_once() -> None:
    shapes = model_shapes(load_model("llama-3.1-8b"), [512, 512], [1, 4], 1, "fp32")
    assert [(s.batch_size, s.context_tokens) for s in shapes] == [(1, 512), (4, 512)]


def test_a_profile_of_another_device_is_refused() -> None:
    with pytest.raises(CalibrationError, match="does not describe this machine's cpu"):
        validate_model(load_model("llama-3.1-8b"), load_hardware("h200"), device="cpu")


def test_heads_that_cannot_be_dealt_out_are_refused() -> None:
    with pytest.raises(PlacementError, match="tp_size 3"):
        validate_model(load_model("llama-3.1-8b"), load_hardware("cpu"), device="cpu", tp_size=3)


def test_sizes_that_memory_should_not_take_are_named() -> None:
    with pytest.raises(CalibrationError, match="choose other --context-tokens"):
        validate_model(
            load_model("llama-3.1-8b"), load_hardware("cpu"), device="cpu", batches=[10**6]
        )


@pytest.mark.parametrize(
    "design", ["gqa:8", "mla:128+64", "lrkv:20", "lrkv:20,position=rope_expand"]
)
def test_every_family_is_measured_and_predicted(
    design: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "N_ROUNDS", 2)
    monkeypatch.setattr(module, "REPEATS_PER_ROUND", 2)
    monkeypatch.setattr(module, "prepare_cpu", lambda _threads: "")
    threads = torch.get_num_threads()
    model = swap_attention(load_model("llama-3.1-8b"), design)
    points = validate_model(
        model, load_hardware("cpu"), device="cpu", contexts=[32, 64], batches=[1], tp_size=4
    )
    assert torch.get_num_threads() == threads
    assert [p.context_tokens for p in points] == [32, 64]
    for p in points:
        assert p.error == pytest.approx(p.predicted_s / p.measured_s - 1)
        assert p.in_band == (p.low_s <= p.measured_s <= p.high_s)
        assert p.basis in ("datasheet", "assumed")


def test_what_is_measured_otherwise_than_asked_is_said() -> None:
    model = load_model("llama-3.1-8b")  # a maximum of 131,072 tokens
    # 2 * 8 heads * 128 * 4 bytes = 8,192 bytes a token: 262,144 tokens fill 2 GiB.
    assert changed_shapes(model, [512], [1], "fp32") == []
    assert changed_shapes(model, [200_000], [1, 4], "fp32") == [
        "gqa:8: 200,000 tokens are measured as 131,072, the model's maximum",
        "gqa:8: batch 4 at 131,072 tokens is left out: its cache is above 2,147,483,648 bytes",
    ]
