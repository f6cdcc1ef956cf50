"""The decode path of GTA with torch, as the package of ``gta.py`` would add it: one file."""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import override

from lrkv_plan.calibration.decode.attend import ScoredAttention, StepInputs, add_mix, add_scores
from lrkv_plan.calibration.decode.paths import DecodeFamily, DecodePath, Series
from lrkv_plan.calibration.decode.reference import cached_rows


class TiedAttention(ScoredAttention):
    """Scores from a row's first scalars and the rotary key; values are the rows themselves."""

    def __init__(self, inputs: StepInputs) -> None:
        super().__init__(inputs, scale=inputs.query.shape[-1] ** -0.5)
        self.copies = inputs.cache.copies("tied")
        rotary = inputs.cache.flat_rows("rope_key").shape[-1]
        self.plain = inputs.query.shape[-1] - rotary
        self.plain_query = self.by_copy(self.query[..., : self.plain], self.copies)
        self.rope_query = self.by_copy(self.query[..., self.plain :], 1)

    @override
    def score(self) -> None:
        rows = self.cache.flat_rows("tied")[..., : self.plain]
        add_scores(self.plain_query, rows, self.by_copy(self.scores, self.copies), beta=0)
        rope = self.cache.flat_rows("rope_key")
        add_scores(self.rope_query, rope, self.by_copy(self.scores, 1), beta=1)

    @override
    def mix(self, shares: torch.Tensor) -> torch.Tensor:
        rows = self.cache.flat_rows("tied")
        outputs = self.new_outputs(rows.shape[-1])
        shares = self.by_copy(shares, self.copies)
        add_mix(shares, rows, self.by_copy(outputs, self.copies), beta=0)
        return outputs


def tied_rows(inputs: StepInputs, sequence: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [first d_h - d_R scalars, rotary key] and values, the whole row."""
    tied = cached_rows(inputs, "tied", sequence, head)
    rope = cached_rows(inputs, "rope_key", sequence, head)
    return torch.cat((tied[:, : tied.shape[1] - rope.shape[1]], rope), dim=1), tied


def _no_weights(*_: Any) -> dict[str, torch.Tensor]:
    return {}


PATHS = (
    DecodePath(
        name="gta/tied",
        kernel="gta_tied",
        work_path="tied",
        applies=lambda spec: spec.family == "gta",
        family=DecodeFamily(
            query_width=lambda spec: spec.head_dim, draw_weights=_no_weights, head_rows=tied_rows
        ),
        build=TiedAttention,
        series=Series(designs=("gta:4", "gta:2", "gta:1"), held_out_designs=("gta:8",)),
    ),
)
