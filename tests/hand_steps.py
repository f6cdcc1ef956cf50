"""Steps put together by hand, so that a test can work its times out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lrkv_plan.latency.engine_step import EngineStep
from lrkv_plan.latency.experts import ExpertModel
from lrkv_plan.latency.kernel import KernelModel
from lrkv_plan.latency.matrix import MatrixModel
from lrkv_plan.latency.step import StepModel, matrix_term
from lrkv_plan.latency.weights_pass import ExpertWork, MatrixWork, WeightsPass
from lrkv_plan.latency.work import AttentionWork, StepWork
from lrkv_plan.specs.deployment import Parallelism


def matrix_model(bytes_per_s: float, flops_per_s: float, **changes: Any) -> MatrixModel:
    """Constants of a bf16 matrix; no start and no walk along its inputs unless stated."""
    told: dict[str, Any] = {"t0_s": 0.0, "tau_s_per_element": 0.0, **changes}
    return MatrixModel(
        engine="hand", format="bf16", gpu="hand", lender="hand", band90=(0.9, 1.1),
        basis="measured", bytes_per_s=bytes_per_s, flops_per_s=flops_per_s, bits_per_weight=16,
        **told,
    )  # fmt: skip


def hand_step(
    layers: Sequence[AttentionWork],
    kernels: Sequence[KernelModel],
    *,
    weight_bytes: float = 0.0,
    inputs: float = 0.0,
    outputs: float = 0.0,
    bytes_per_s: float = 1e12,
    flops_per_s: float = 1e15,
    experts: Sequence[tuple[ExpertWork, ExpertModel]] = (),
    engine: EngineStep | None = None,
    **changes: Any,
) -> StepModel:
    """Attention, one matrix that takes ``weight_bytes``, and experts; an engine that adds nothing.

    ``changes`` are further fields of the ``StepModel``.
    """
    matrix = MatrixWork(
        name="hidden", inputs=inputs, outputs=outputs, n_bytes=weight_bytes, format_name="bf16",
        layers=1,
    )  # fmt: skip
    work = StepWork(
        attention=tuple(layers),
        linear=WeightsPass(
            matrices=(matrix,), products=(), experts=tuple(one for one, _ in experts), small=()
        ),
        n_all_reduces=0, all_reduce_token_bytes=0.0, n_exchanges=0, n_layers=10, model_dim=100,
        parallel=Parallelism(), remarks=(),
    )  # fmt: skip
    constants = matrix_model(bytes_per_s, flops_per_s)
    adds_nothing = EngineStep(
        name="hand", kernels_of="hand", step_s=0.0, sequence_s=0.0, exchange_s=0.0
    )
    told: dict[str, Any] = {
        "work": work, "kernels": tuple(kernels), "matrices": (matrix_term(matrix, constants),),
        "experts": tuple(model for _, model in experts), "engine": engine or adds_nothing,
        "matrix_models": (constants,), **changes,
    }  # fmt: skip
    return StepModel(**told)
