"""Equations of times: each form of a kernel with its numbers put in, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lrkv_plan.latency.kernel import KernelModel
from lrkv_plan.latency.step import StepModel, step_time
from lrkv_plan.latency.work import AttentionWork, LinearWork, StepWork
from lrkv_plan.report.time_equations import kernel_equation, step_equations

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
    linear = LinearWork(dense_bytes=8.5e9, expert_bytes=0.0, expert_share=0.0, token_flops=1e9,
                        embedding_row_bytes=0.0)  # fmt: skip
    work = StepWork(attention=(replace(LAYER, row_flops=row_flops),), linear=linear,
                    n_all_reduces=0, n_layers=10, all_reduce_token_bytes=0.0, tp_size=1,
                    remarks=())  # fmt: skip
    model = StepModel(work=work, kernels=(replace(KERNEL, **changes),),  # type: ignore[arg-type]
                      mem_bandwidth_bytes_per_s=1e12, peak_flops_per_s=1e14)  # fmt: skip
    lines = step_equations(model, step_time(model, 1000, 1), 1000, 1)
    assert told in lines[1]
    assert "weights: 8,500,000,000 B / (0.85 x 1 TB/s) = 10.0 ms" in lines[2]
