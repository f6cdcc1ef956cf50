"""What predicted attention times rest on: a row per design and kernel, with held-out errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lrkv_plan.report.calibration_views import share
from lrkv_plan.report.spec_views import DESIGN, model_inputs
from lrkv_plan.report.tables import Column, Table

if TYPE_CHECKING:
    from lrkv_plan.calculators.step_time import StepModel
    from lrkv_plan.specs.model import ModelSpec


def basis_table(model: ModelSpec, gpu: str, steps: Sequence[tuple[str, StepModel]]) -> Table:
    """Kernel, basis, constants' band and errors of each design's attention on one GPU.

    Parameters
    ----------
    steps : (label, design on the GPU).
    """
    rows = []
    for label, step in steps:
        for kernel in dict.fromkeys(step.kernels):
            rows.append(
                {
                    "attention": label,
                    "kernel": kernel.kernel,
                    "kv_dtype": kernel.kv_dtype,
                    "basis": kernel.basis,
                    "backend": kernel.backend or None,
                    "t0_s": kernel.t0_s,
                    "bytes_per_s": kernel.bytes_per_s,
                    "flops_per_s": kernel.flops_per_s,
                    "band90_low": kernel.band90[0],
                    "band90_high": kernel.band90[1],
                    "held_out_median_error": kernel.held_out_median_error,
                    "held_out_p90_error": kernel.held_out_p90_error,
                    "identified": list(kernel.identified),
                }
            )
    notes = dict.fromkeys(note for _, step in steps for note in step.remarks)
    return Table(
        title=f"What attention times of {model.name} on {gpu} rest on",
        inputs={"model": model_inputs(model), "gpu": gpu},
        rows=rows,
        columns=(
            DESIGN,
            Column(key="kernel", title="kernel", is_number=False),
            Column(key="basis", title="basis", is_number=False),
            Column(key="backend", title="constants of", is_number=False),
            Column(key="band90_low", title="90 % band, low", text=_factor),
            Column(key="band90_high", title="high", text=_factor),
            Column(key="held_out_median_error", title="held-out median", text=share),
            Column(key="held_out_p90_error", title="p90", text=share),
            Column(key="identified", title="identified", text=", ".join, is_number=False),
        ),
        remarks=(
            "basis: measured on this GPU; other_shape, measured there for another shape; "
            "generation, lent by a GPU of the same generation; datasheet, typical efficiencies; "
            "assumed, no such kernel was measured anywhere",
            "band: factors on the predicted time that hold 90 % of held-out measurements",
            *(f"rests on: {note}" for note in notes),
        ),
    )


def _factor(value: float) -> str:
    return f"x {value:.3f}"
