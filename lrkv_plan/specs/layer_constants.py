"""Fitted constants of the operations of a layer beside attention: what a profile may state.

Each entry is of one engine on one GPU. Their equations are in ``lrkv_plan/latency``: one file per
operation, named as its list here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lrkv_plan.schema import Name
from lrkv_plan.specs.fitted import Efficiency, FittedEntry, Seconds

Engine = Literal["vllm", "sglang", "tensorrt_llm"]
SecondsOrZero = Annotated[float, Field(ge=0, le=1)]
GpuCount = Annotated[int, Field(strict=True, ge=2, le=65_536)]
NodeCount = Annotated[int, Field(strict=True, ge=1, le=8_192)]


class MatrixConstants(FittedEntry):
    """``y[m, n] = x[m, k] W[n, k]`` with weights read from memory (``latency/matrix.py``)."""

    engine: Engine
    format: Name
    t0_s: Seconds
    beta: Efficiency
    phi: Efficiency
    peak: Name
    tau_s_per_element: SecondsOrZero = 0.0


class ExpertConstants(FittedEntry):
    """The routed experts of one layer, router logits to combined output (``latency/experts.py``).

    ``hot_beta`` is the share of the bandwidth reached where the active experts fit in the L2.
    """

    engine: Engine
    format: Name
    t0_s: Seconds
    beta: Efficiency
    phi: Efficiency
    peak: Name
    expert_s: SecondsOrZero = 0.0
    hot_beta: Efficiency | None = None


class ProductConstants(FittedEntry):
    """One of MLA's two absorption products, batched over heads (``latency/products.py``)."""

    engine: Engine
    format: Name
    t0_s: Seconds
    head_s: Seconds
    token_scale: Annotated[float, Field(gt=0, le=1e6)]


class ExchangeConstants(FittedEntry):
    """Dispatch and combine of expert parallelism, of one rank (``latency/exchange.py``).

    ``token_s`` is per token of the rank; ``hidden_size`` is the width it is stated for.
    """

    engine: Engine
    implementation: Name
    ranks: GpuCount
    nodes: NodeCount = 1
    hidden_size: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    t0_s: Seconds
    token_s: SecondsOrZero


class RecurrentConstants(FittedEntry):
    """One recurrent update in decode, its convolution included (``latency/recurrent.py``)."""

    kind: Literal["gated_delta", "kimi_delta", "mamba2"]
    engine: Engine
    t0_s: Seconds
    beta: Efficiency
    conv_t0_s: Seconds
    conv_beta: Efficiency


LAYER_BLOCKS = ("matrices", "experts", "products", "exchanges", "recurrent")
