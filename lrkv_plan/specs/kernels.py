"""Constants of the kernel and all-reduce models as a hardware profile states them.

Every entry says on which measurements it rests, which of its constants those identify, and how
far held-out predictions were off. What the constants mean is in ``calculators/kernel_time.py``
and ``calculators/allreduce_time.py``; ``scripts/fit_kernels.py`` writes the entries.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, field_validator, model_validator

from lrkv_plan.specs.base import ByteCount, Flag, Frozen, Name, Remark

KernelName: TypeAlias = Literal[
    "grouped", "mla_absorbed", "mla_materialised", "low_rank", "low_rank_expand",
    "low_rank_materialised",
]  # fmt: skip
KERNELS: tuple[str, ...] = get_args(KernelName)
# Kernels whose work units are the scalars that they rebuild; those of the others are cached heads.
REBUILDING = ("mla_materialised", "low_rank_expand", "low_rank_materialised")
# Whose constants a kernel takes where it was not measured itself.
LENDERS = {
    "mla_materialised": "mla_absorbed",
    "low_rank": "grouped",
    "low_rank_expand": "low_rank",
    "low_rank_materialised": "low_rank",
}
MAX_QUERY_HEADS = 65_536

Seconds = Annotated[float, Field(gt=0, le=10)]
Efficiency = Annotated[float, Field(gt=0, le=50)]  # above 1: a cached set, or fp8 arithmetic
ErrorShare = Annotated[float, Field(ge=0, le=100)]
PointCount = Annotated[int, Field(strict=True, ge=1, le=10**9)]
QueryHeads = Annotated[int, Field(strict=True, ge=1, le=MAX_QUERY_HEADS)]
Factor = Annotated[float, Field(gt=0, le=100)]


class FittedEntry(Frozen):
    """Where fitted constants come from, and how well they predict what they were not fitted on.

    ``held_out_by``: whole head configurations were left out, or (too few of them) single rows;
    ``design``: points, ranks, head counts and contexts set aside before measuring; ``none``: the
    errors are of the fitted points themselves.
    ``band90`` are factors on a predicted time: 90 % of held-out measurements lie between
    ``predicted * low`` and ``predicted * high``.
    """

    identified: tuple[Name, ...]
    n_points: PointCount
    held_out_by: Literal["heads", "rows", "design", "none"]
    held_out_median_error: ErrorShare
    held_out_p90_error: ErrorShare
    band90: tuple[Factor, Factor]
    backend: Name
    backend_version: Name | None = None
    source: Remark
    licence: Name
    remark: Remark | None = None

    @field_validator("band90")
    @classmethod
    def _ordered(cls, band: tuple[float, float]) -> tuple[float, float]:
        if band[0] > band[1]:
            raise ValueError(f"low {band[0]} exceeds high {band[1]}")
        return band


class KernelConstants(FittedEntry):
    """One kernel path on one GPU for one storage format of the cache.

    ``t0_s`` is the fixed time of a call, ``beta`` the reached share of ``mem_bandwidth``, ``phi``
    that of the dense ``peak``. ``query_heads_per_kv_head`` (inclusive) and ``head_dims`` narrow
    an entry to the shapes that its engine serves with one compiled kernel; None means all.
    """

    kernel: KernelName
    kv_dtype: Name
    form: Literal["base", "per_work_unit", "no_split", "sum", "sum_per_work_unit"]
    regime: Literal["cold", "l2_hot"] = "cold"
    preferred: Flag = False
    t0_s: Seconds
    beta: Efficiency
    phi: Efficiency
    peak: Name = "bf16"
    work_unit_s: Annotated[float, Field(gt=0, le=1)] | None = None
    full_work_units: Annotated[float, Field(gt=0, le=1e9)] | None = None
    query_heads_per_kv_head: tuple[QueryHeads, QueryHeads] | None = None
    head_dims: tuple[PointCount, ...] | None = None
    borrowed_from: Name | None = None

    @model_validator(mode="after")
    def _has_the_constants_of_its_form(self) -> KernelConstants:
        needed = {
            "per_work_unit": "work_unit_s", "sum_per_work_unit": "work_unit_s",
            "no_split": "full_work_units",
        }.get(self.form)  # fmt: skip
        for name in ("work_unit_s", "full_work_units"):
            if (getattr(self, name) is not None) != (name == needed):
                verb = "needs" if name == needed else "has no"
                raise ValueError(f"form {self.form!r} {verb} {name}")
        return self

    def covers_query_heads(self, query_heads_per_kv_head: int) -> bool:
        """Whether the entry is meant for that many query heads per cached head."""
        low, high = self.query_heads_per_kv_head or (1, MAX_QUERY_HEADS)
        return low <= query_heads_per_kv_head <= high

    def covers_head_dim(self, head_dim: int) -> bool:
        """Whether the entry is meant for that head width."""
        return self.head_dims is None or head_dim in self.head_dims


class AllReduceConstants(FittedEntry):
    """All-reduce among ``n_gpus`` GPUs of one kind, fitted up to ``max_message_bytes``.

    ``two_shot_s`` is the extra fixed time of the path that sends less (None: one path only).
    """

    n_gpus: Annotated[int, Field(strict=True, ge=2, le=65_536)]
    t0_s: Seconds
    link_efficiency: Efficiency
    two_shot_s: Annotated[float, Field(gt=0, le=1)] | None = None
    max_message_bytes: ByteCount
