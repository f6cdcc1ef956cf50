"""What every set of fitted constants states: what it rests on, and how well it predicts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from lrkv_plan.schema import Frozen, Name, Remark

Seconds = Annotated[float, Field(gt=0, le=10)]
Efficiency = Annotated[float, Field(gt=0, le=50)]  # above 1: a cached set, or fp8 arithmetic
ErrorShare = Annotated[float, Field(ge=0, le=100)]
PointCount = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Factor = Annotated[float, Field(gt=0, le=100)]


class FittedEntry(Frozen):
    """Where fitted constants come from, and how well they predict what they were not fitted on.

    ``held_out_by``: whole head configurations (``heads``), weight shapes (``shapes``) or models
    (``models``) were left out, or (too few of them) single rows; ``design``: points, ranks, head
    counts and contexts set aside before measuring; ``none``: the errors are of the fitted points
    themselves.
    ``band90`` are factors on a predicted time: 90 % of held-out measurements lie between
    ``predicted * low`` and ``predicted * high``.
    """

    identified: tuple[Name, ...]
    n_points: PointCount
    held_out_by: Literal["heads", "shapes", "models", "rows", "design", "none"]
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
