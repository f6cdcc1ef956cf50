"""A decode step sharded over a group: shares of weights and cache, and what each GPU computes."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from lrkv_plan.attention.layout import AttentionLayout, CachedTensor, Sharding
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.calibration.decode.attend import (
    Attention,
    ScanMask,
    ScoredAttention,
    StepInputs,
    merge_partial,
)
from lrkv_plan.calibration.decode.paths import path_named, paths_for
from lrkv_plan.calibration.decode.step import DecodeStep, build_step
from lrkv_plan.calibration.decode.weights import drawing
from lrkv_plan.calibration.machine import Stopwatch, describe
from lrkv_plan.calibration.samples import DecodeSample, SampleFile
from lrkv_plan.calibration.tensor_parallel.group import (
    Group,
    Repeats,
    loopback_bytes,
    time_together,
)
from lrkv_plan.errors import CalibrationError, UsageError, did_you_mean, shown
from lrkv_plan.memory.placement import Placement, placements
from lrkv_plan.schema import Source
from lrkv_plan.specs.model import LayerGroup, ModelSpec


@dataclass(frozen=True, kw_only=True)
class TensorShare:
    """One GPU's part of one cached tensor, per sequence.

    ``n_sharing`` GPUs, neighbours from ``first_sharing`` on, need the same ``copies``. With
    ``is_spread`` each of them keeps one part in ``n_sharing`` of those rows.
    """

    name: str
    width: int
    copies: range
    tokens: range
    first_sharing: int
    n_sharing: int
    is_spread: bool = False

    @property
    def used_rows(self) -> int:
        """Rows per sequence that the GPU's step reads."""
        return len(self.copies) * len(self.tokens)

    @property
    def kept_rows(self) -> int:
        """Rows per sequence that the GPU keeps."""
        return self.used_rows // self.n_sharing if self.is_spread else self.used_rows


def heads_of(layout: AttentionLayout, index: int, tp_size: int) -> range:
    """Query heads that GPU ``index`` answers for.

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over that many GPUs.
    """
    layout.check_tp_size(tp_size)
    each = layout.n_heads // tp_size
    return range(index * each, (index + 1) * each)


def shares_of(
    layout: AttentionLayout, policy: str, *, index: int, tp_size: int, context_tokens: int
) -> tuple[TensorShare, ...]:
    """What GPU ``index`` of ``tp_size`` keeps of each cached tensor.

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over that many GPUs.
    UsageError
        If a policy that spreads rows meets a context that is no multiple of the GPUs.

    Examples
    --------
    >>> from lrkv_plan.attention.registry import layout_of
    >>> from lrkv_plan.attention.families.grouped import GroupedSpec
    >>> two = layout_of(GroupedSpec(family="gqa", n_heads=8, n_kv_heads=2, head_dim=16), 128)
    >>> key = shares_of(two, "gathered", index=3, tp_size=4, context_tokens=100)[0]
    >>> key.copies, key.first_sharing, key.n_sharing, key.kept_rows
    (range(1, 2), 2, 2, 50)
    """
    layout.check_tp_size(tp_size)
    if policy in ("by_token", "gathered"):
        check_even(context_tokens, policy, tp_size)
    if policy == "by_token":
        each = context_tokens // tp_size
        tokens = range(index * each, (index + 1) * each)
        return tuple(
            TensorShare(
                name=t.name, width=t.width, copies=range(t.copies_per_layer), tokens=tokens,
                first_sharing=index, n_sharing=1,
            )
            for t in layout.cached
        )  # fmt: skip
    spread = policy == "gathered"
    return tuple(_dealt(t, index, tp_size, context_tokens, spread) for t in layout.cached)


def check_even(context_tokens: int, policy: str, tp_size: int) -> None:
    """Raise ``UsageError`` unless every GPU keeps equally many rows.

    The calculators state the mean per GPU. An engine would round the fullest GPU up by one row per
    tensor; this measurement refuses instead, so that bytes can be compared exactly.
    """
    left = context_tokens % tp_size
    if left or context_tokens < tp_size:
        below, above = context_tokens - left, context_tokens - left + tp_size
        choices = f"{below} or {above}" if below else f"{above}"
        raise UsageError(
            f"context_tokens {context_tokens}: {policy} spreads rows evenly over {tp_size} GPUs; "
            f"use {choices}"
        )


def _dealt(
    tensor: CachedTensor, index: int, tp_size: int, context_tokens: int, spread: bool
) -> TensorShare:
    """Copies dealt out in order; fewer copies than GPUs are shared by neighbours."""
    n_copies = tensor.copies_per_gpu(tp_size)
    dealt = tensor.sharding is Sharding.BY_COPY
    n_sharing = tp_size * n_copies // tensor.copies_per_layer
    first_sharing = index // n_sharing * n_sharing
    first_copy = index * tensor.copies_per_layer // tp_size if dealt else 0
    return TensorShare(
        name=tensor.name, width=tensor.width, copies=range(first_copy, first_copy + n_copies),
        tokens=range(context_tokens), first_sharing=first_sharing, n_sharing=n_sharing,
        is_spread=spread and n_sharing > 1,
    )  # fmt: skip


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


def sample_of(
    group: Group, case: Case, local: LocalStep, watch: Stopwatch, n_repeats: int
) -> DecodeSample:
    """The call with cold caches; of each repeat the slowest worker's time, and its flush's."""
    step, spec = local.step, case.spec
    group.barrier()
    timed = watch.time(local.attention.run, n_repeats=n_repeats, cold=True)
    everyone = group.each(timed)
    slowest = [max(times) for times in zip(*(t.repeats_s for t in everyone), strict=True)]
    flushes = [max(times) for times in zip(*(t.control_s for t in everyone), strict=True)]
    backbone, work = spec.backbone(), step.work
    return DecodeSample(
        point=(
            f"{step.path.name} {case.dtype} {spec.label()} {work.n_heads}x{backbone.head_dim} "
            f"B{case.batch_size} T{case.context_tokens} q{case.query_tokens} tp={group.n_workers}"
        ),
        round=0,
        role="fit",
        path=step.path.name,
        kernel=step.path.kernel,
        device=group.device.type,
        device_name=device_name(group.device),
        dtype=case.dtype,
        attention=spec.label(),
        n_heads=work.n_heads,
        n_copies=work.n_copies,
        head_dim=backbone.head_dim,
        rank=getattr(spec, "key_rank", 0),
        latent_dim=getattr(spec, "latent_dim", 0),
        batch_size=case.batch_size,
        context_tokens=case.context_tokens,
        query_tokens=case.query_tokens,
        page_tokens=0,
        cache_state="cold",
        threads=0 if group.on_gpu else 1,
        n_bytes=float(step.read_bytes),
        flops=float(step.flops),
        work_units=float(step.work_units),
        allocated_bytes=step.allocated_bytes,
        predicted_bytes=step.predicted_bytes,
        peak_bytes=max(t.peak_bytes for t in everyone),
        repeats_s=tuple(slowest),
        controls_s=tuple(flushes),
    )


@cache
def device_name(device: torch.device) -> str:
    """The device's name, or its kind where the system does not tell."""
    return str(describe(device).get("device_name", device.type))


def append_samples(path: Path, samples: list[DecodeSample]) -> None:
    """Add rows to a samples file; a point that is there already gets its next round.

    Raises
    ------
    CalibrationError
        If the file holds other columns or cannot be written.
    """
    file = SampleFile(path)
    try:
        for sample in samples:
            rounds = [s.round + 1 for s in file.rows if s.point == sample.point]
            file.append(replace(sample, round=max(rounds, default=0)))
    finally:
        file.close()


class ShardedStep:
    """One worker's step under a policy, to be run again and again; counts what it receives.

    ``link_bytes`` and ``merge_bytes`` are those of the last step.
    """

    def __init__(self, group: Group, case: Case, whole: DecodeStep, policy: str) -> None:
        self.group, self.case, self.policy = group, case, policy
        self.local = local_step(case, whole, policy, index=group.index, tp_size=group.n_workers)
        sizes = {share.n_sharing for share in self.local.fetched}
        self.members = {size: group.subgroups(size) for size in sorted(sizes)}
        heads = self.local.heads
        self.query = whole.inputs.query[:, heads.start : heads.stop].contiguous()
        self.sinks = whole.inputs.weights.get("sinks")
        self.width = whole.work.n_heads * self.local.attention.run().shape[-1]
        each = self.width // group.n_workers
        mine = self.whole_projection()[group.index * each : (group.index + 1) * each]
        self.projection = mine.to(self.query.device)
        self.link_bytes = self.merge_bytes = 0
        self.all_queries: torch.Tensor | None = None

    def whole_projection(self) -> torch.Tensor:
        """The output projection (H v_head_dim, model_dim), the same on all workers; on the CPU."""
        rows = drawing(self.case.seed + 1)(self.width, self.case.model_dim, terms=self.width)
        return rows.to(self.query.dtype)

    @property
    def message_bytes(self) -> int:
        """Bytes that the step's all-reduce sums. [bytes]"""
        rows = self.case.batch_size * self.case.query_tokens
        return rows * self.case.model_dim * self.projection.element_size()

    @property
    def has_the_right_queries(self) -> bool:
        """Whether the queries that the last step gathered are those its attention was built on."""
        if self.all_queries is None:
            return True
        return bool(torch.equal(self.all_queries, self.local.inputs.query))

    def attend(self) -> torch.Tensor:
        """Outputs of this GPU's own heads, (B, H/P, q, v_head_dim)."""
        self.link_bytes = self.merge_bytes = 0
        with torch.inference_mode():
            for share in self.local.fetched:
                buffer = self.local.inputs.cache.tensors[share.name]
                self.link_bytes += self._gather(
                    buffer.view(share.n_sharing, -1),
                    self.local.kept[share.name],
                    self.members[share.n_sharing],
                )
            if self.policy != "by_token":
                return self.local.attention.run()
            self._gather_queries()
            return self._merged(*self.local.attention.partial())

    def run(self) -> torch.Tensor:
        """The layer's output, (B, q, model_dim), summed over all GPUs."""
        with torch.inference_mode():
            return self.project(self.attend())

    def project(self, outputs: torch.Tensor) -> torch.Tensor:
        """This GPU's heads through its rows of the output projection, summed over all GPUs."""
        batch, _, n_query, _ = outputs.shape
        flat = outputs.transpose(1, 2).reshape(batch * n_query, -1)
        summed = flat.to(self.projection.dtype) @ self.projection
        self.group.all_reduce(summed)
        return summed.view(batch, n_query, -1)

    def _gather(self, into: torch.Tensor, mine: torch.Tensor, members: Any = None) -> int:
        """Fill ``into``; the bytes that came from other GPUs."""
        self.group.all_gather(into, mine, members)
        return (len(into) - 1) * mine.numel() * mine.element_size()

    def _from_all(self, mine: torch.Tensor) -> torch.Tensor:
        """Every GPU's ``mine``, stacked."""
        parts = mine.new_empty((self.group.n_workers, *mine.shape))
        self.merge_bytes += self._gather(parts, mine)
        return parts

    def _gather_queries(self) -> None:
        """Every GPU needs the queries of all heads. Its attention holds them, scaled, already."""
        self.all_queries = torch.cat(tuple(self._from_all(self.query)), dim=1)

    def _merged(self, outputs: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
        """This GPU's own heads over all tokens, from every GPU's part of them."""
        packed = torch.cat((outputs, log_sums[..., None]), dim=-1).contiguous()
        own = slice(self.local.heads.start, self.local.heads.stop)
        mine = [part[:, own] for part in self._from_all(packed)]
        sinks = None if self.sinks is None else self.sinks[own]
        return merge_partial([p[..., :-1] for p in mine], [p[..., -1] for p in mine], sinks)


TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}  # of the largest output


@dataclass(frozen=True, kw_only=True)
class PolicyResult:
    """One case under one policy. Bytes are per GPU, one figure each where GPUs may differ.

    A GPU receives ``link_bytes`` of fetched rows and ``merge_bytes`` of queries and partial results
    in each step; its all-reduce sums ``message_bytes``. ``loopback_bytes`` is what the operating
    system saw all workers send for fetching and merging; None where unknown. ``attention`` times
    fetching to merging, ``whole_step`` the output projection and its all-reduce too; caches are not
    flushed between repeats. ``sample`` is a GPU's attention with cold caches, where nothing is
    fetched or merged.
    """

    case: Case
    policy: str
    n_workers: int
    predicted_bytes: int
    allocated_bytes: tuple[int, ...]
    scratch_bytes: int
    predicted_link_bytes: int
    link_bytes: tuple[int, ...]
    merge_bytes: int
    loopback_bytes: int | None
    max_error: float
    message_bytes: int
    attention: Repeats
    whole_step: Repeats
    sample: DecodeSample | None

    @property
    def bytes_agree(self) -> bool:
        """Whether every GPU holds and fetches exactly what the calculators say."""
        return {*self.allocated_bytes} == {self.predicted_bytes} and {*self.link_bytes} == {
            self.predicted_link_bytes
        }

    @property
    def is_exact(self) -> bool:
        """Whether outputs agree with the single-GPU reference within the format's tolerance."""
        return self.max_error <= TOLERANCE[self.case.dtype]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one worker tells the others about its first step."""

    heads: torch.Tensor
    right_queries: bool
    kept_bytes: int
    link_bytes: int
    merge_bytes: int


def policies_of(case: Case, n_workers: int, wanted: tuple[str, ...] = ()) -> tuple[Placement, ...]:
    """The placements of that case by the calculators; the ``wanted`` ones among them, or all.

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over that many GPUs.
    UsageError
        If none of the wanted policies applies to the design.
    """
    model = case.model()
    found = placements(model, tp_size=n_workers, kv_dtype=case.dtype)
    chosen = tuple(p for p in found if not wanted or p.policy in wanted)
    if not chosen:
        names = [p.policy for p in found]
        raise UsageError(
            f"policy {shown(', '.join(wanted))}{did_you_mean(wanted[0], names)}: "
            f"{case.layout.label} on {n_workers} GPUs has {', '.join(names)}"
        )
    return chosen


def run_case(
    group: Group, case: Case, chosen: tuple[Placement, ...], *, n_repeats: int, watch: Stopwatch
) -> list[PolicyResult]:
    """Build, check and time one case under each policy; called by all workers together.

    Raises
    ------
    UsageError
        If a policy cannot spread the rows evenly.
    CalibrationError
        If the sizes do not fit this machine, or a worker is lost.
    """
    whole = group.agree(partial(case.whole, str(group.device)))
    wanted = group.first_does(lambda: whole.reference().cpu())
    return [_run_policy(group, case, whole, wanted, p, n_repeats, watch) for p in chosen]


def _run_policy(
    group: Group,
    case: Case,
    whole: DecodeStep,
    wanted: torch.Tensor | None,
    placement: Placement,
    n_repeats: int,
    watch: Stopwatch,
) -> PolicyResult:
    sharded = group.agree(partial(ShardedStep, group, case, whole, placement.policy))
    local, outputs = sharded.local, sharded.attend()
    summed = sharded.project(outputs)
    each = group.each(
        _Part(
            heads=outputs.double().cpu(), right_queries=sharded.has_the_right_queries,
            kept_bytes=local.kept_bytes, link_bytes=sharded.link_bytes,
            merge_bytes=sharded.merge_bytes,
        )
    )  # fmt: skip
    if not all(part.right_queries for part in each):
        raise CalibrationError("the gathered queries are not those of the single-GPU step")
    rows = case.context_tokens * case.batch_size
    return PolicyResult(
        case=case,
        policy=placement.policy,
        n_workers=group.n_workers,
        predicted_bytes=_whole_bytes(placement.cache_bytes_per_token_per_gpu * rows),
        allocated_bytes=tuple(part.kept_bytes for part in each),
        scratch_bytes=local.scratch_bytes,
        predicted_link_bytes=_whole_bytes(placement.link_bytes_per_token_per_gpu * rows),
        link_bytes=tuple(part.link_bytes for part in each),
        merge_bytes=max(part.merge_bytes for part in each),
        loopback_bytes=_seen_on_loopback(group, sharded),
        max_error=_largest_error(group, sharded, [part.heads for part in each], summed, wanted),
        message_bytes=sharded.message_bytes,
        attention=time_together(group, sharded.attend, n_repeats=n_repeats),
        whole_step=time_together(group, sharded.run, n_repeats=n_repeats),
        sample=None if local.fetched or sharded.merge_bytes else sample_of(
            group, case, local, watch, n_repeats
        ),
    )  # fmt: skip


def _whole_bytes(value: Any) -> int:
    if value != int(value):
        raise CalibrationError(f"{value} bytes per GPU is not whole; no tensors can hold it")
    return int(value)


def _largest_error(
    group: Group,
    sharded: ShardedStep,
    heads: list[torch.Tensor],
    summed: torch.Tensor,
    wanted: torch.Tensor | None,
) -> float:
    """The largest difference from the float64 reference, over the reference's largest value.

    Heads are compared, and the sum after the output projection. Worker 0 has the reference.
    """
    error = 0.0
    if wanted is not None:
        projected = wanted.transpose(1, 2).flatten(2) @ sharded.whole_projection().double()
        error = max(
            _relative(torch.cat(heads, dim=1), wanted),
            _relative(summed.double().cpu(), projected),
        )
    return max(group.each(error))


def _relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    error = float((found - wanted).abs().max() / wanted.abs().max())
    return error if math.isfinite(error) else math.inf


def _seen_on_loopback(group: Group, sharded: ShardedStep, n_steps: int = 3) -> int | None:
    """Bytes that the operating system sent over loopback for one step's fetches and merges.

    The least of some steps: other programs use loopback too, and only add to it.
    """
    if group.on_gpu or loopback_bytes() is None:
        return None
    seen = []
    for _ in range(n_steps):
        group.barrier()
        before = loopback_bytes()
        group.barrier()
        sharded.attend()
        group.barrier()
        seen.append((loopback_bytes() or 0) - (before or 0))
    return min(seen)
