"""One GPU's decode step, cut out of the step that a single GPU would run.

Every worker draws the same whole step from one seed, keeps its share of rows, queries and weights,
and lets the rest go. Bytes are counted on what it keeps.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

import torch

from lrkv_plan.attention.families import layout_of
from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.calibration.decode.attend import Attention, ScoredAttention, StepInputs
from lrkv_plan.calibration.decode.masks import ScanMask
from lrkv_plan.calibration.decode.paths import path_named, paths_for
from lrkv_plan.calibration.decode.step import DecodeStep, build_step
from lrkv_plan.calibration.tensor_parallel.shares import TensorShare, heads_of, shares_of
from lrkv_plan.specs.attention import AttentionSpec
from lrkv_plan.specs.base import Source
from lrkv_plan.specs.model import LayerGroup, ModelSpec


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer and one batch, as all workers together hold it.

    ``context_tokens`` are cached rows per sequence, those of the query tokens included.
    """

    spec: AttentionSpec
    model_dim: int
    batch_size: int
    context_tokens: int
    query_tokens: int = 1
    dtype: str = "fp32"
    path: str | None = None
    seed: int = 0

    @property
    def layout(self) -> AttentionLayout:
        """The layer's cached tensors and work."""
        return layout_of(self.spec, self.model_dim)

    @property
    def path_name(self) -> str:
        """The path to run: the given one, else the first whose partial results cost nothing extra.

        torch's fused attention keeps its log-sum-exp to itself; policies are compared on one path.

        Raises
        ------
        UsageError
            If the path does not run the design.
        """
        if self.path is not None:
            return path_named(self.path, self.spec).name
        choices = paths_for(self.spec)
        scored = [
            path.name
            for path in choices
            if isinstance(path.build, type) and issubclass(path.build, ScoredAttention)
        ]
        return (scored or [path.name for path in choices])[0]

    def model(self) -> ModelSpec:
        """A model of this one layer, for the calculators."""
        source = Source(citation="one layer, measured here", read_on=dt.date.today())
        layers = (LayerGroup(count=1, attention=self.spec),)
        return ModelSpec(
            name="one layer", source=(source,), model_dim=self.model_dim, layers=layers
        )

    def whole(self, device: str) -> DecodeStep:
        """The step that one GPU would run alone."""
        return self.step(device, tp_size=1, context_tokens=self.context_tokens)

    def step(self, device: str, *, tp_size: int, context_tokens: int) -> DecodeStep:
        """A step of that share of the heads, over so many rows, with random contents."""
        return build_step(
            self.path_name, self.spec, model_dim=self.model_dim, batch_size=self.batch_size,
            context_tokens=context_tokens, query_tokens=self.query_tokens, dtype=self.dtype,
            device=device, tp_size=tp_size, seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LocalStep:
    """What one GPU runs and keeps.

    ``kept`` are the cached tensors that stay on the GPU between steps. ``fetched`` names those that
    a step fetches into the scratch tensors of ``inputs.cache`` first.
    """

    step: DecodeStep
    attention: Attention
    inputs: StepInputs
    heads: range
    shares: tuple[TensorShare, ...]
    kept: dict[str, torch.Tensor]

    @property
    def fetched(self) -> tuple[TensorShare, ...]:
        """Shares whose rows are spread over the GPUs that need them."""
        return tuple(share for share in self.shares if share.is_spread)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the cache on this GPU between steps. [bytes]"""
        return sum(t.numel() * t.element_size() for t in self.kept.values())

    @property
    def scratch_bytes(self) -> int:
        """Bytes of fetched rows, which one layer after the other can use. [bytes]"""
        buffers = (self.inputs.cache.tensors[share.name] for share in self.fetched)
        return sum(t.numel() * t.element_size() for t in buffers)


def local_step(
    case: Case, whole: DecodeStep, policy: str, *, index: int, tp_size: int
) -> LocalStep:
    """GPU ``index``'s part of ``whole`` under a policy.

    Raises
    ------
    PlacementError
        If the heads cannot be dealt out over ``tp_size`` GPUs.
    UsageError
        If rows cannot be spread evenly.
    """
    layout, device = case.layout, whole.inputs.query.device
    shares = shares_of(
        layout, policy, index=index, tp_size=tp_size, context_tokens=case.context_tokens
    )
    by_token = policy == "by_token"
    tokens = shares[0].tokens
    step = case.step(str(device), tp_size=1 if by_token else tp_size, context_tokens=len(tokens))
    own = heads_of(layout, index, tp_size)
    heads = range(layout.n_heads) if by_token else own
    kept = _fill(step, whole, shares, place=index)
    is_last = tokens.stop == case.context_tokens
    inputs = replace(
        step.inputs,
        query=whole.inputs.query[:, heads.start : heads.stop].contiguous(),
        weights={n: w[heads.start : heads.stop] for n, w in whole.inputs.weights.items()},
        mask=ScanMask(
            [len(tokens)] * case.batch_size, case.query_tokens, device,
            new_tokens=case.query_tokens if is_last else 0,
        ),
        positions=whole.inputs.positions[:, tokens.start : tokens.stop],
    )  # fmt: skip
    return LocalStep(
        step=step, attention=step.path.build(inputs), inputs=inputs, heads=own, shares=shares,
        kept=kept,
    )  # fmt: skip


def _fill(
    step: DecodeStep, whole: DecodeStep, shares: tuple[TensorShare, ...], *, place: int
) -> dict[str, torch.Tensor]:
    """Put the GPU's rows into its cache; a spread tensor's part beside it, its buffer emptied."""
    kept = {}
    for share in shares:
        buffer = step.inputs.cache.tensors[share.name]
        copies = slice(share.copies.start, share.copies.stop)
        tokens = slice(share.tokens.start, share.tokens.stop)
        buffer.copy_(whole.inputs.cache.rows(share.name)[:, copies, tokens])
        kept[share.name] = buffer
        if share.is_spread:
            parts = buffer.view(share.n_sharing, -1)
            kept[share.name] = parts[place - share.first_sharing].clone()
            buffer.zero_()
    return kept
