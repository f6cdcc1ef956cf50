"""What an engine adds to a step beside its operations, by engine and version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lrkv_plan.documents import read_yaml
from lrkv_plan.latency.stand_ins import SAME_KERNELS
from lrkv_plan.specs.deployment import EngineName

TABLE = Path(__file__).with_name("engine_steps.yaml")


@dataclass(frozen=True, kw_only=True)
class EngineStep:
    """Constants of one engine, fitted on whole steps. [s]

    ``kernels_of`` is the engine whose matrices and experts it runs. ``sequence_s`` is for each
    sequence of an attention rank, ``exchange_s`` and ``index_layer_s`` for each layer that
    exchanges and that has a sparse index, ``layer_s`` what an old version adds to each layer.
    ``overlap_s`` is what each launch takes less than where it was measured alone: kernels of one
    graph start while the last ones end. ``bands`` are factors that hold nine of ten measured steps
    of groups that were left out of the fit, by what a step rests on.
    """

    name: str
    kernels_of: str
    step_s: float
    sequence_s: float
    exchange_s: float
    layer_s: float = 0.0
    overlap_s: float = 0.0
    index_layer_s: float = 0.0
    is_older: bool = False
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False)

    def band(self, evidence: str, *, has_whole_step: bool = False) -> tuple[float, float]:
        """Factors on a step that rests on that evidence; none where no table of bands is."""
        kind = "older" if self.is_older else "whole_step" if has_whole_step else evidence
        return self.bands.get(kind, (1.0, 1.0))


@cache
def _table() -> dict[str, Any]:
    return dict(read_yaml(TABLE))


def engine_step(engine: EngineName | None = None) -> EngineStep:
    """The constants of an engine; vLLM's newest when None, those of others where it is unknown."""
    asked = engine or EngineName(name="vllm")
    runs = SAME_KERNELS.get(asked.name, asked.name)
    table = _table()
    row = table["engines"].get(runs, table["others"])
    older = row.get("older")
    is_older = (
        older is not None
        and asked.version is not None
        and asked.version < tuple(int(part) for part in str(older["before"]).split("."))
    )
    return EngineStep(
        name=asked.name,
        kernels_of=runs,
        step_s=row["step_s"],
        sequence_s=row["sequence_s"],
        exchange_s=row["exchange_s"],
        layer_s=older["layer_s"] if is_older else 0.0,
        overlap_s=table["overlap_s"],
        index_layer_s=table["index_layer_s"],
        is_older=is_older,
        bands={kind: (low, high) for kind, (low, high) in table["bands"].items()},
    )
