"""The screen of ``params``: how many parameters each design has, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.memory.side_by_side import ParamsRow
from lrkv_plan.memory.weights import mtp_params, uncounted_weights
from lrkv_plan.report.equations import weights_equations
from lrkv_plan.report.screen import Row, Screen, ScreenColumn, short_count, short_percent
from lrkv_plan.report.screens.cache import Asked
from lrkv_plan.report.tables import count
from lrkv_plan.specs.design import design_label

if TYPE_CHECKING:
    from lrkv_plan.specs.design import NamedDesign
    from lrkv_plan.specs.model import ModelSpec

Ask: TypeAlias = Callable[..., Sequence[str]]
_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class ParamsAnswer:
    """Weights of models and designs; ``matched`` where a feed-forward width was asked for."""

    models: Sequence[ModelSpec]
    named: Sequence[NamedDesign]
    asked: Sequence[Asked]
    rows: Sequence[ParamsRow]
    matched: bool

    @cached_property
    def designs(self) -> Mapping[tuple[str, str], ModelSpec]:
        """The model with its design, by the names of both."""
        return {(design.name, label): design for label, design in self.named}

    def model(self, row: ParamsRow) -> ModelSpec:
        """The model of a row, with its own design."""
        return next(model for model in self.models if model.name == row.model)

    def is_own(self, row: ParamsRow) -> bool:
        """Whether the row's design is the model's own."""
        return row.attention == design_label(self.model(row))

    def name(self, row: ParamsRow) -> str:
        """A row by what tells it from the others."""
        if len(self.models) == 1:
            return row.attention
        return f"{row.model}'s {row.attention}" if self.asked else row.model


def params_screen(answer: ParamsAnswer, ask: Ask | None) -> Screen:
    """One row per design: the model, its K/V weights, and its other parts."""
    return Screen(
        verdict=tuple(_verdict(answer)),
        rows=[{"row": row} for row in answer.rows],
        columns=tuple(_columns(answer)),
        foot=(*_left_out(answer), "Exact counts. Why: --explain"),
        following=() if ask is None else (ask("cache", *answer.asked),),
    )


def _verdict(answer: ParamsAnswer) -> Iterator[str]:
    known = [row for row in answer.rows if row.model_params is not None]
    if not known:
        told = [
            f"{short_count(row.kv_params)} with {answer.name(row)}"
            + ("" if row.ratio_to_mha is None else f", {short_percent(row.ratio_to_mha)} of MHA's")
            for row in answer.rows[:_NAMED]
        ]
        yield f"Keys and values take {'; '.join(told)}."
        missing = dict.fromkeys(part for row in answer.rows for part in row.missing)
        yield f"The whole model is unknown: {', '.join(missing)} not stated in its file."
        return
    if len(known) > _NAMED:
        ordered = sorted(known, key=lambda row: row.model_params or 0)
        least, most = (_total(answer, row) for row in (ordered[0], ordered[-1]))
        yield f"Parameters: from {least} to {most}."
    elif len(answer.models) == 1:
        totals = ", ".join(_total(answer, row) for row in known)
        yield f"{answer.models[0].name} has {totals.replace(' with', ' parameters with', 1)}."
    else:
        yield f"Parameters: {', '.join(_total(answer, row) for row in known)}."
    changed = [row for row in answer.rows if row.matched is not None and row.matched.width_change]
    if changed:
        widths = (
            f"{' or '.join(map(count, row.matched.hidden_dims))} ({row.matched.width_change:+,}) "
            f"with {answer.name(row)}"
            for row in changed if row.matched is not None
        )  # fmt: skip
        yield f"The model's own count needs a feed-forward width of {', '.join(widths)}."


def _total(answer: ParamsAnswer, row: ParamsRow) -> str:
    bound = "at least " if uncounted_weights(answer.model(row)) else ""
    return f"{bound}{short_count(row.model_params or 0)} with {answer.name(row)}"


def _left_out(answer: ParamsAnswer) -> Iterator[str]:
    for model in answer.models:
        about = f"{model.name}: " if len(answer.models) > 1 else ""
        left_out = uncounted_weights(model)
        if left_out:
            yield f"{about}Not counted: {'; '.join(left_out)}."
        if mtp_params(model) is None:
            yield f"{about}The weights of its {model.draft_layers} draft layers are not known."


def _columns(answer: ParamsAnswer) -> Iterator[ScreenColumn]:
    def of(key: str, write: Callable[[Any], str] = short_count) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            value = getattr(row["row"], key)
            return "-" if value is None else write(value)

        return text

    def matched(key: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            found = row["row"].matched
            return "-" if found is None else write(getattr(found, key))

        return text

    def total(row: Row) -> str:
        value = row["row"].model_params
        bound = ">= " if uncounted_weights(answer.model(row["row"])) else ""
        return "-" if value is None else f"{bound}{short_count(value)}"

    if len(answer.models) > 1:
        yield ScreenColumn(title="model", text=of("model", str), is_number=False)
    yield ScreenColumn(title="design", text=of("attention", str), is_number=False)
    if answer.asked and any(map(answer.is_own, answer.rows)):
        yield ScreenColumn(
            title="", text=lambda row: "own" if answer.is_own(row["row"]) else "",
            is_number=False, drop=1,
        )  # fmt: skip
    yield ScreenColumn(title="parameters", text=total)
    rows = answer.rows
    if any(row.idle_params for row in rows):
        yield ScreenColumn(title="active", text=of("active_params"))
    if any(row.mtp_params for row in rows):
        yield ScreenColumn(title="MTP, apart", text=of("mtp_params"))
    if any(row.encoder_params for row in rows):
        yield ScreenColumn(title="encoders", text=of("encoder_params"))
    yield ScreenColumn(title="K/V", text=of("kv_params"))
    yield ScreenColumn(title="of MHA", text=of("ratio_to_mha", short_percent), drop=2)
    yield ScreenColumn(title="attention", text=of("attention_params"))
    if answer.matched:
        yield ScreenColumn(
            title="same count at",
            text=matched("hidden_dims", lambda dims: " or ".join(map(count, dims))),
        )
        yield ScreenColumn(
            title="left over", text=matched("remaining_difference", lambda x: f"{x:+,}"), drop=4
        )
    if any(row.recurrent_params for row in rows):
        yield ScreenColumn(title="recurrent", text=of("recurrent_params"), drop=3)
    yield ScreenColumn(title="feed-forward", text=of("feed_forward_params"), drop=3)
    yield ScreenColumn(title="embeddings", text=of("embedding_params"), drop=5)


def params_explanation(answer: ParamsAnswer) -> Callable[[Row], Sequence[str]]:
    """Equations of one row's parts, and of the width that restores the count."""

    def explain(row: Row) -> list[str]:
        design = answer.designs[row["model"], row["attention"]]
        name = f"{row['model']}, {row['attention']}"
        return [f"{name}:", *(f"  {line}" for line in weights_equations(design)), *_width(row)]

    return explain


def _width(row: Row) -> Iterator[str]:
    """The change of every feed-forward width, from what the swap adds and one unit costs."""
    if row.get("width_change") is None:
        return
    added, left, change = row["attention_change"], row["remaining_difference"], row["width_change"]
    if change:
        each = (left - added) // change
        yield (
            f"  same count: attention {added:+,}; one unit of feed-forward width is {each:,}; "
            f"round({-added:,} / {each:,}) = {change:+,}; left over {left:+,}"
        )
