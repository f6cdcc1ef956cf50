"""Equations of times: each form of a kernel with its numbers put in, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lrkv_plan.latency.kernel import KernelModel, ShortCalls
from lrkv_plan.latency.step import step_time
from lrkv_plan.latency.work import AttentionWork
from lrkv_plan.report.time_equations import kernel_equation, step_equations
from tests.hand_steps import hand_step

MOVED, WORKED = "bytes / (0.500 x 2 TB/s)", "FLOP / (0.250 x 100 TFLOP/s)"


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("base", f"max({MOVED}, {WORKED})"),
        ("sum", f"{MOVED} + {WORKED}"),
        ("per_work_unit", f"max({MOVED}, {WORKED}) + units x 12 ns"),
        ("sum_per_work_unit", f"{MOVED} + {WORKED} + units x 12 ns"),
        ("no_split", f"max({MOVED}, {WORKED}) / min(1, units / 64)"),
    ],
)
def test_every_form_of_a_kernel(form: str, told: str) -> None:
    constants = {"form": form, "t0_s": 15e-6, "beta": 0.5, "phi": 0.25, "work_unit_s": 12e-9,
                 "full_work_units": 64}  # fmt: skip
    assert kernel_equation(constants, 2e12, 1e14) == f"t = 15 us + {told}"


KERNEL = KernelModel(t0_s=1e-5, bytes_per_s=1e12, flops_per_s=1e12, band90=(0.9, 1.1),
                     basis="measured", kernel="grouped", kv_dtype="bf16")  # fmt: skip
LAYER = AttentionWork(path="grouped", kernel="grouped", layers=10, n_heads=8, n_copies=4,
                      row_read_bytes=1000.0, row_flops=100.0)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "row_flops", "told"),
    [
        # 1,000 tokens: 1 MB or 0.1 MFLOP a layer, four units
        ({}, 100.0, "10 layers x (10 us + 1,000,000 B / 1 TB/s) = 0.110 ms"),
        ({}, 4000.0, "10 layers x (10 us + 4 MFLOP / 1 TFLOP/s) = 0.140 ms"),
        ({"form": "sum"}, 4000.0,
         "10 layers x (10 us + 1,000,000 B / 1 TB/s + 4 MFLOP / 1 TFLOP/s) = 0.150 ms"),
        ({"form": "per_work_unit", "work_unit_s": 1e-6}, 100.0,
         "10 layers x (10 us + 1,000,000 B / 1 TB/s + 4 x 1 us) = 0.150 ms"),
        ({"form": "no_split", "full_work_units": 16.0}, 100.0,
         "10 layers x (10 us + (1,000,000 B / 1 TB/s) x 16 / 4) = 0.140 ms"),
        ({"form": "no_split", "full_work_units": 4.0}, 100.0,
         "10 layers x (10 us + 1,000,000 B / 1 TB/s) = 0.110 ms"),
    ],
)  # fmt: skip
def test_an_attention_term_has_its_numbers(
    changes: dict[str, object], row_flops: float, told: str
) -> None:
    kernel = replace(KERNEL, **changes)  # type: ignore[arg-type]
    model = hand_step((replace(LAYER, row_flops=row_flops),), (kernel,), weight_bytes=1e10,
                      inputs=4e4, outputs=1.25e5, flops_per_s=1e12)  # fmt: skip
    lines = step_equations(model, step_time(model, 1000, 1), 1000, 1)
    assert told in lines[1]
    # 10 GB and 330 kB of activations at 1 TB/s, 2 * 4e4 * 1.25e5 FLOPs at 1 TFLOP/s: sqrt(2) * 10
    assert lines[2].endswith("each = 14.1 ms  ● measured, bf16 of hand on hand")
    assert "40,000 x 125,000: 1 x (0 s + root of 10 ms, 10 ms, 0 s) = 14.1 ms" in lines[3]


def test_equal_layers_are_one_line() -> None:
    wide = replace(LAYER, row_read_bytes=2000.0)
    model = hand_step((LAYER, wide, replace(LAYER, layers=5)), (KERNEL,) * 3)
    lines = step_equations(model, step_time(model, 1000, 1), 1000, 1)
    found = [line for line in lines if line.startswith("attention: ")]
    assert [line.split(" layers")[0] for line in found] == ["attention: 15", "attention: 10"]
    assert "= 0.165 ms" in found[0]  # 15 x (10 us + 1 us)


def test_a_short_call_is_told_by_its_own_start() -> None:
    # 1,000 tokens: cold 10 us + 1 us; hot 2 us + 1 MB / 0.25 TB/s + 0.1 us + 4 units of 0.1 us
    short = ShortCalls(t0_s=2e-6, bytes_per_s=2.5e11, work_unit_s=1e-7)
    model = hand_step((LAYER,), (replace(KERNEL, short=short),))
    lines = step_equations(model, step_time(model, 1000, 1), 1000, 1)
    assert (
        "10 layers x (2 us + 1,000,000 B / 250 GB/s + 100 kFLOP / 1 TFLOP/s + 4 x 100 ns) = "
        "0.0650 ms"
    ) in lines[1]
