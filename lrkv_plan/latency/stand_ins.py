"""Whose measurements stand for an operation that was not measured, or measured as nobody runs it.

Records, not rules: an engine whose own table shows a path that it does not run in practice, engines
that share another's kernels, and GPUs without tables with those they resemble. Judged on whole
steps of public runs (1,010 of quality A).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Constants of ``take_engine`` and ``take_format`` in place of an engine's own.

    An empty ``engine`` is any, an empty ``take_engine`` the asking one. ``t0_s`` replaces the start
    where the engine launches less than the lender's benchmark.
    """

    operation: str
    engine: str
    format: str
    generations: tuple[str, ...] = ()
    take_engine: str = ""
    take_format: str | None = None
    t0_s: float | None = None
    reason: str

    def holds(self, operation: str, engine: str, format_name: str, generation: str) -> bool:
        """Whether it applies to that operation."""
        return (
            (operation, format_name) == (self.operation, self.format)
            and self.engine in ("", engine)
            and (not self.generations or generation in self.generations)
        )


_NOT_RUN = "its own table shows a path that the engine does not run on these GPUs"
STAND_INS = (
    StandIn(
        operation="experts", engine="tensorrt_llm", format="nvfp4", generations=("blackwell",),
        take_engine="vllm", reason=_NOT_RUN,
    ),
    StandIn(
        operation="experts", engine="tensorrt_llm", format="fp8_block", generations=("blackwell",),
        take_engine="sglang", reason=_NOT_RUN,
    ),
    StandIn(
        operation="experts", engine="tensorrt_llm", format="mxfp4", generations=("hopper",),
        take_engine="vllm", t0_s=54e-6,
        reason="its own table has too few rows on Hopper; those show a start of 54 us",
    ),
    StandIn(
        operation="experts", engine="", format="mxfp4", generations=("blackwell",),
        take_format="mxfp4_mxfp8",
        reason="engines multiply mxfp4 experts with mxfp8 activations on Blackwell",
    ),
    StandIn(
        operation="matrices", engine="sglang", format="fp8_block", generations=("blackwell",),
        take_engine="tensorrt_llm",
        reason="its own table quantises in a slow path (starts of 14 us) that serving avoids",
    ),
    StandIn(
        operation="matrices", engine="tensorrt_llm", format="nvfp4", take_engine="sglang",
        reason="its own table has hardly a row whose weights are read from memory",
    ),
    StandIn(
        operation="matrices", engine="tensorrt_llm", format="fp8", take_engine="vllm", t0_s=4e-6,
        reason="its own table computes scales at run time; checkpoints with static scales need no "
        "quantiser, so the start is 4 us",
    ),
    *(
        StandIn(
            operation="matrices", engine="", format=name, generations=generations,
            take_format=instead,
            reason="no arithmetic in that format there: weights are dequantised on the way",
        )
        for name, instead, generations in (
            ("fp8", "int8_wo", ("ampere",)),
            ("fp8_block", "int8_wo", ("ampere",)),
            ("nvfp4", "int4_wo", ("ampere", "ada", "hopper")),
            ("mxfp4", "int4_wo", ("ampere", "ada", "hopper")),
        )
    ),
)  # fmt: skip

# Engines that run another's kernels, and the order in which others are asked.
SAME_KERNELS = {"vllm_v0": "vllm", "vllm_ascend": "vllm", "trtllm": "tensorrt_llm"}
ENGINES = ("vllm", "sglang", "tensorrt_llm")


def stand_in(
    operation: str, engine: str, format_name: str, generation: str, records: Sequence[StandIn] = ()
) -> StandIn | None:
    """The record that applies, if any.

    Examples
    --------
    >>> stand_in("experts", "tensorrt_llm", "nvfp4", "blackwell").take_engine
    'vllm'
    >>> stand_in("experts", "tensorrt_llm", "nvfp4", "hopper") is None
    True
    """
    asked = (operation, engine, format_name, generation)
    return next((record for record in records or STAND_INS if record.holds(*asked)), None)
