"""The screen of ``shard``: what each placement keeps on a GPU, and what it repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.memory.cache import bytes_per_token, keeps_context_rows
from lrkv_plan.memory.side_by_side import ShardRow
from lrkv_plan.report.equations import cache_equation
from lrkv_plan.report.screen import Row, Screen, ScreenColumn, per_token, short_percent
from lrkv_plan.report.screens.cache import Asked, after_sizes
from lrkv_plan.report.tables import count

if TYPE_CHECKING:
    from lrkv_plan.notes import Note
    from lrkv_plan.specs.design import NamedDesign
    from lrkv_plan.specs.model import ModelSpec

Ask: TypeAlias = Callable[..., Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class ShardAnswer:
    """Placements of one model's designs in one format."""

    model: ModelSpec
    named: Sequence[NamedDesign]
    asked: Sequence[Asked]
    rows: Sequence[ShardRow]
    kv_dtype: str

    @cached_property
    def designs(self) -> Mapping[str, ModelSpec]:
        """The model with each design."""
        return dict(self.named)


def shard_screen(answer: ShardAnswer, notes: Sequence[Note], ask: Ask | None) -> Screen:
    """One row per design, size and placement; a sentence per design says what is repeated."""
    return Screen(
        verdict=tuple(_verdict(answer, label) for label in answer.designs),
        rows=[{"row": row} for row in answer.rows],
        columns=tuple(_columns(answer)),
        foot=(f"{answer.kv_dtype}, bytes per cached token, exact. Why: --explain",),
        following=() if ask is None else (_next(answer, ask),),
        notes=[note for note in notes if note.kind == "refusal"],
    )


def _next(answer: ShardAnswer, ask: Ask) -> Sequence[str]:
    words = after_sizes(answer.model, ask, answer.asked)
    return words if words[1] == "capacity" else ask("cache", *answer.asked, without=("tp_size",))


def _verdict(answer: ShardAnswer, label: str) -> str:
    rows = [row for row in answer.rows if row.attention == label]
    refused = [row.tp_size for row in rows if row.placement is None]
    clean = [row.tp_size for row in rows if row.placement and row.placement.policy == "by_copy"]
    clean = [size for size in clean if size > 1] or clean
    repeated = {
        row.tp_size: row.placement.replicated_share
        for row in rows
        if row.placement and row.placement.policy == "replicated"
    }
    told = [f"repeats nothing at TP {_listed(clean)}"] if clean else []
    if repeated:
        shares = [f"{short_percent(share)} of all GPUs' cache at TP {size}" if index == 0 else
                  f"{short_percent(share)} at TP {size}"
                  for index, (size, share) in enumerate(repeated.items())]  # fmt: skip
        names = _repeated(answer.designs[label], max(repeated))
        told.append(f"repeats {' and '.join(names)}: {', '.join(shares)}")
    if refused:
        told.append(f"cannot run at TP {_listed(refused)}")
    return f"{label} {'; '.join(told)}."


def _listed(sizes: Sequence[int]) -> str:
    *others, last = map(str, dict.fromkeys(sizes))
    return f"{', '.join(others)} and {last}" if others else last


def _repeated(design: ModelSpec, tp_size: int) -> list[str]:
    """Cached tensors that lie on more GPUs than they have copies for."""
    return list(dict.fromkeys(
        tensor.name
        for group in design.layers
        if group.attention is not None and keeps_context_rows(group)
        for tensor in layout_of(group.attention, design.model_dim).cached
        if tensor.width and tensor.copies_per_gpu(tp_size) * tp_size > tensor.copies_per_layer
    ))  # fmt: skip


def _columns(answer: ShardAnswer) -> Iterator[ScreenColumn]:
    def of(key: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            placement = row["row"].placement
            return "-" if placement is None else write(getattr(placement, key))

        return text

    def policy(row: Row) -> str:
        placement = row["row"].placement
        return "refused" if placement is None else str(placement.policy).replace("_", " ")

    placed = [row.placement for row in answer.rows if row.placement is not None]
    unit, write = per_token(one.cache_bytes_per_token_per_gpu for one in placed)
    yield ScreenColumn(title="design", text=lambda row: row["row"].attention, is_number=False)
    yield ScreenColumn(title="TP", text=lambda row: str(row["row"].tp_size))
    yield ScreenColumn(
        title="placement", text=policy, is_number=False,
        tone=lambda row: "bad" if row["row"].placement is None else None,
    )  # fmt: skip
    yield ScreenColumn(title=f"{unit}/GPU", text=of("cache_bytes_per_token_per_gpu", write))
    yield ScreenColumn(title="all GPUs", text=of("aggregate_bytes_per_token", write), drop=1)
    yield ScreenColumn(title="repeated", text=of("replicated_share", short_percent))
    yield ScreenColumn(
        title="over the link", text=of("link_bytes_per_token_per_gpu", write), drop=3
    )
    yield ScreenColumn(title="of MHA", text=of("aggregate_ratio_to_mha", short_percent), drop=2)


def shard_explanation(answer: ShardAnswer) -> Callable[[Row], Sequence[str]]:
    """The sum of one placement, and what of it is repetition."""

    def explain(row: Row) -> list[str]:
        label, tp_size, policy = row["attention"], row["tp_size"], row["policy"]
        if policy == "refused":
            return []
        design = answer.designs[label]
        whole = bytes_per_token(design, kv_dtype=answer.kv_dtype)
        on_gpu, every = row["cache_bytes_per_token_per_gpu"], row["aggregate_bytes_per_token"]
        link = row["link_bytes_per_token_per_gpu"]
        name = f"{label}, TP {tp_size}, {policy.replace('_', ' ')}"
        if policy in ("by_copy", "replicated"):
            share = Fraction(row["replicated_bytes_per_token"]) / every if every else Fraction(0)
            return [
                f"{name}: {cache_equation(design, answer.kv_dtype, tp_size)}",
                f"  {tp_size} x {count(on_gpu)} = {count(every)} B on all GPUs; repeated "
                f"({count(every)} - {count(whole)}) / {count(every)} = {short_percent(share)}",
            ]
        read = f"; {count(link)} B per token and step over the link" if link else ""
        return [f"{name}: {count(whole)} B / {tp_size} = {count(on_gpu)} B/token/GPU{read}"]

    return explain
