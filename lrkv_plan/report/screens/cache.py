"""The screen of ``cache``: what a user costs with each design, and of which tensors that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.memory.cache import (
    bytes_per_token,
    encoder_bytes_per_token,
    index_bytes_per_token,
    keeps_context_rows,
    ratio_to_mha,
    state_bytes_per_sequence,
)
from lrkv_plan.memory.side_by_side import CacheRow, TensorRow
from lrkv_plan.report.equations import cache_equation, held_equation, tensor_equation
from lrkv_plan.report.screen import (
    Row,
    Screen,
    ScreenColumn,
    bar,
    per_token,
    short_bytes,
    short_percent,
    short_tokens,
)
from lrkv_plan.report.tables import count
from lrkv_plan.specs.design import design_label

if TYPE_CHECKING:
    from lrkv_plan.attention.spec import AttentionSpec
    from lrkv_plan.notes import Note
    from lrkv_plan.specs.deployment import Workload
    from lrkv_plan.specs.design import NamedDesign
    from lrkv_plan.specs.model import ModelSpec

Ask: TypeAlias = Callable[..., Sequence[str]]
Asked: TypeAlias = "str | AttentionSpec"  # a design as it was asked for
Key: TypeAlias = "tuple[str, str, str, int]"
_BAR = 16
_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class CacheAnswer:
    """Rows of models and designs, in formats and on numbers of GPUs, at contexts."""

    models: Sequence[ModelSpec]
    named: Sequence[NamedDesign]
    asked: Sequence[Asked]
    workloads: Sequence[Workload]
    rows: Sequence[CacheRow] | Sequence[TensorRow]

    @cached_property
    def designs(self) -> Mapping[tuple[str, str], ModelSpec]:
        """The model with its design, by the names of both."""
        return {(design.name, label): design for label, design in self.named}

    @cached_property
    def contexts(self) -> Sequence[int]:
        """Contexts in their order."""
        return list(dict.fromkeys(row.context_tokens for row in self.rows))

    @cached_property
    def lines(self) -> Sequence[Line]:
        """One per model, design, format and size; the largest of a model first."""
        held: dict[Key, dict[int, Any]] = {}
        for row in self.rows:
            key = (row.model, row.attention, row.kv_dtype, row.tp_size)
            at = held.setdefault(key, dict.fromkeys(self.contexts, 0))
            at[row.context_tokens] += row.cache_bytes_per_gpu
        order = [model.name for model in self.models]
        lines = [self._line(key, at) for key, at in held.items()]
        return sorted(lines, key=lambda line: (order.index(line.model), -line.longest))

    def _line(self, key: Key, held: Mapping[int, Any]) -> Line:
        name, attention, kv_dtype, tp_size = key
        design = self.designs[name, attention]
        own = next(model for model in self.models if model.name == name)
        each = bytes_per_token(design, kv_dtype=kv_dtype, tp_size=tp_size)
        of_own = None
        if attention != design_label(own):
            whole = bytes_per_token(own, kv_dtype=kv_dtype, tp_size=tp_size)
            of_own = Fraction(each) / whole if whole else None
        return Line(
            model=name, attention=attention, kv_dtype=kv_dtype, tp_size=tp_size, design=design,
            is_own=attention == design_label(own), bytes_per_token=each, held=held,
            of_own=Fraction(1) if each and attention == design_label(own) else of_own,
            of_mha=ratio_to_mha(design, kv_dtype=kv_dtype, tp_size=tp_size),
        )  # fmt: skip

    def several(self, key: str) -> bool:
        """Whether the lines differ in it."""
        return len({getattr(line, key) for line in self.lines}) > 1

    @property
    def workload(self) -> Workload:
        """Batch and encoder rows, which are the same for all."""
        return self.workloads[0]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the screen. Bytes and ratios are of one GPU; ``held`` is by context."""

    model: str
    attention: str
    kv_dtype: str
    tp_size: int
    design: ModelSpec
    is_own: bool
    bytes_per_token: int | Fraction
    held: Mapping[int, Any]
    of_own: Fraction | None
    of_mha: Fraction | None

    @property
    def longest(self) -> int | Fraction:
        """Bytes at the longest context."""
        most: int | Fraction = self.held[max(self.held)]
        return most


def cache_screen(answer: CacheAnswer, notes: Sequence[Note], ask: Ask | None) -> Screen:
    """One row per design, one column per context."""
    return Screen(
        verdict=(verdict(answer),),
        rows=[{"line": line} for line in answer.lines],
        columns=[*_names(answer), *_numbers(answer), *_contexts(answer)],
        foot=(
            *beyond_rows(answer),
            f"{_formats(answer)}, exact. Tensors: --detail. Why: --explain",
        ),
        following=() if ask is None else (_next(answer, ask),),
        notes=[note for note in notes if note.kind == "limit"],
    )  # fmt: skip


def tensors_screen(answer: CacheAnswer, notes: Sequence[Note], ask: Ask | None) -> Screen:
    """One row per cached tensor."""
    return Screen(
        verdict=(verdict(answer),),
        rows=list(_tensors(answer)),
        columns=[*_names(answer), *_tensor_columns(answer)],
        foot=(*beyond_rows(answer), f"{_formats(answer)}, exact. Why: --explain"),
        following=() if ask is None else (_next(answer, ask),),
        notes=[note for note in notes if note.kind == "limit"],
    )


def verdict(answer: CacheAnswer) -> str:
    """What a user with the longest context costs, per design.

    The largest and the smallest where there are many.
    """
    batch, tp_sizes = answer.workload.batch_size, {line.tp_size for line in answer.lines}
    tokens = short_tokens(max(answer.contexts))
    who = f"A user with {tokens} tokens costs" if batch == 1 else (
        f"{batch:,} users with {tokens} tokens each cost"
    )  # fmt: skip
    gpus = next(iter(tp_sizes))
    where = "" if len(tp_sizes) > 1 or gpus == 1 else f" on each of {gpus} GPUs"
    lines = list(answer.lines)
    if len(lines) > _NAMED:
        ranked = sorted(lines, key=lambda line: line.longest)
        ends = [f"{short_bytes(one.longest)} with {_name(answer, one)}"
                for one in (ranked[0], ranked[-1])]  # fmt: skip
        return f"{who}{where} from {ends[0]} to {ends[1]}."
    told, unit = [], ""
    for line in lines:
        number, own_unit = short_bytes(line.longest).split(" ")
        written = number if own_unit == unit else f"{number} {own_unit}"
        told.append(f"{written} with {_name(answer, line)}")
        unit = own_unit
    only = lines[0]
    share = "" if len(lines) > 1 or only.of_mha in (None, 1) else (
        f", {short_percent(only.of_mha or 0)} of MHA's bytes per token"
    )  # fmt: skip
    return f"{who}{where} {', '.join(told)}{share}."


def _name(answer: CacheAnswer, line: Line) -> str:
    """A line by what tells it from the others."""
    design = "no attention" if line.attention == "none" else line.attention
    if answer.several("model"):
        design = f"{line.model}'s {design}" if answer.asked else line.model
    dtype = f" in {line.kv_dtype}" if answer.several("kv_dtype") else ""
    return f"{design}{dtype}" + (f" at TP {line.tp_size}" if answer.several("tp_size") else "")


def _formats(answer: CacheAnswer) -> str:
    return " and ".join(dict.fromkeys(line.kv_dtype for line in answer.lines))


def _of(key: str, write: Callable[[Any], str] = str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = getattr(row["line"], key)
        return "-" if value is None else write(value)

    return text


def _names(answer: CacheAnswer) -> Iterator[ScreenColumn]:
    if answer.several("model"):
        yield ScreenColumn(title="model", text=_of("model"), is_number=False)
    yield ScreenColumn(title="design", text=_of("attention"), is_number=False)
    if answer.asked and any(line.is_own for line in answer.lines):
        yield ScreenColumn(
            title="", text=lambda row: "own" if row["line"].is_own else "", is_number=False, drop=1
        )
    if answer.several("kv_dtype"):
        yield ScreenColumn(title="cache", text=_of("kv_dtype"), is_number=False)
    if answer.several("tp_size"):
        yield ScreenColumn(title="TP", text=_of("tp_size"))


def _numbers(answer: CacheAnswer) -> Iterator[ScreenColumn]:
    unit, write = per_token(line.bytes_per_token for line in answer.lines)
    gpu = "" if all(line.tp_size == 1 for line in answer.lines) else "/GPU"
    yield ScreenColumn(title=f"{unit}/token{gpu}", text=_of("bytes_per_token", write))
    if not all(line.is_own for line in answer.lines):
        yield ScreenColumn(title="of own", text=_of("of_own", short_percent), drop=2)
    yield ScreenColumn(title="of MHA", text=_of("of_mha", short_percent), drop=3)


def _contexts(answer: CacheAnswer) -> Iterator[ScreenColumn]:
    def at(context: int) -> Callable[[Row], str]:
        return lambda row: short_bytes(row["line"].held[context])

    for context in answer.contexts:
        yield ScreenColumn(title=short_tokens(context), text=at(context))
    most = max((line.longest for line in answer.lines), default=0)
    if len(answer.lines) > 1:
        yield ScreenColumn(
            title="", text=lambda row: bar(row["line"].longest, most, _BAR), is_number=False, drop=4
        )


def _tensors(answer: CacheAnswer) -> Iterator[Row]:
    """Rows that differ in their context alone are one."""
    lines = {(o.model, o.attention, o.kv_dtype, o.tp_size): o for o in answer.lines}
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    at: dict[tuple[Any, ...], int] = {}
    for row in answer.rows:
        assert isinstance(row, TensorRow), "the rows are of tensors"
        key = (row.model, row.attention, row.kv_dtype, row.tp_size)
        place = (*key, row.context_tokens)
        at[place] = at.get(place, 0) + 1
        entry = merged.setdefault(
            (*key, at[place]), {"line": lines[key], "tensor": row, "held": {}}
        )
        entry["held"][row.context_tokens] = row.cache_bytes_per_gpu
    order = {id(line): index for index, line in enumerate(answer.lines)}
    yield from sorted(merged.values(), key=lambda row: order[id(row["line"])])


def _tensor_columns(answer: CacheAnswer) -> Iterator[ScreenColumn]:
    def of(key: str, write: Callable[[Any], str] = count) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            value = getattr(row["tensor"], key)
            return "-" if value is None else write(value)

        return text

    def at(context: int) -> Callable[[Row], str]:
        return lambda row: short_bytes(row["held"][context])

    def share(row: Row) -> str:
        whole = row["line"].longest
        return short_percent(Fraction(row["held"][max(row["held"])]) / whole) if whole else "-"

    yield ScreenColumn(title="layers", text=of("layers"))
    yield ScreenColumn(title="tensor", text=of("tensor", str), is_number=False)
    yield ScreenColumn(title="width", text=of("width"), drop=1)
    yield ScreenColumn(title="copies", text=of("copies_per_layer"), drop=2)
    if any(line.tp_size > 1 for line in answer.lines):
        yield ScreenColumn(title="on a GPU", text=of("copies_per_gpu"), drop=4)
        yield ScreenColumn(
            title="sharding", text=of("sharding", lambda text: str(text).replace("_", " ")),
            is_number=False, drop=5,
        )  # fmt: skip
    if any(isinstance(row, TensorRow) and row.window_tokens for row in answer.rows):
        yield ScreenColumn(title="window", text=of("window_tokens"), drop=3)
    for context in answer.contexts:
        yield ScreenColumn(title=short_tokens(context), text=at(context))
    yield ScreenColumn(title="share", text=share, drop=6)


def beyond_rows(answer: CacheAnswer) -> Iterator[str]:
    """What the cache holds beside rows of every token, or does not hold: a sentence each."""
    for model in answer.models:
        about = f"{model.name}: " if answer.several("model") else ""
        own = [line for line in answer.lines if line.model == model.name]
        tp_size = own[0].tp_size
        yield from (f"{about}{text}" for text in _windows(model, max(answer.contexts)))
        state = state_bytes_per_sequence(model, tp_size=tp_size)
        if state:
            yield f"{about}Includes {short_bytes(state)} of state per user at any context."
        indexed = [line for line in own if index_bytes_per_token(line.design)]
        if indexed:
            each = index_bytes_per_token(indexed[0].design, tp_size=tp_size)
            yield (
                f"{about}Includes {count(each)} B per token of sparse-index keys "
                f"({indexed[0].attention}), which the bytes per token leave out."
            )
        told = answer.workload.encoder_tokens or model.encoder_tokens
        if told and encoder_bytes_per_token(model):
            yield f"{about}Includes cross-attention over {told:,} encoder tokens."


def _windows(model: ModelSpec, context: int) -> Iterator[str]:
    windows: dict[tuple[int, int | None], int] = {}
    for group in model.layers:
        if keeps_context_rows(group) and group.window_tokens and group.window_tokens < context:
            kept = (group.window_tokens, group.tokens_per_row)
            windows[kept] = windows.get(kept, 0) + group.count
    for (window, tokens), layers in windows.items():
        each = f", and one row for every {tokens}" if tokens else ""
        yield f"{layers} of {model.n_layers} layers keep at most {window:,} tokens{each}."


def _next(answer: CacheAnswer, ask: Ask) -> Sequence[str]:
    """The users that fit, where the weights are known; else placement, or weights of several."""
    if len(answer.models) > 1:
        return ask("params", *answer.asked)
    return after_sizes(
        answer.models[0], ask, answer.asked, several_formats=answer.several("kv_dtype")
    )


def after_sizes(
    model: ModelSpec, ask: Ask, asked: Sequence[Asked], *, several_formats: bool = False
) -> Sequence[str]:
    """The next question about one model: users on a GPU where all that they take is known."""
    from lrkv_plan.memory.weights import parameter_count

    told = {"kv_dtype": None} if several_formats else {}
    is_plain = not any(group.state for group in model.layers)
    is_counted = model.weight_dtype and parameter_count(model).model_params is not None
    if is_plain and is_counted:
        return ask("capacity", *asked, gpu="h100-sxm", without=("batch_size", "detail"), **told)
    return ask("shard", *asked, without=("tp_size",), **told)


def cache_explanation(answer: CacheAnswer) -> Callable[[Row], Sequence[str]]:
    """Equations of one row: bytes per token, what a context holds, and both ratios."""

    def explain(row: Row) -> list[str]:
        design = answer.designs[row["model"], row["attention"]]
        own = next(model for model in answer.models if model.name == row["model"])
        kv_dtype, tp_size = row["kv_dtype"], row["tp_size"]
        name = ", ".join(
            [row["attention"], *([row["model"]] if len(answer.models) > 1 else ()), kv_dtype,
             *([f"TP {tp_size}"] if tp_size > 1 else ())]
        )  # fmt: skip
        held = held_equation(
            design, context_tokens=row["context_tokens"], batch_size=row["batch_size"],
            kv_dtype=kv_dtype, tp_size=tp_size, encoder_tokens=answer.workload.encoder_tokens,
        )  # fmt: skip
        each = row["bytes_per_token"]
        return [
            f"{name}: {cache_equation(design, kv_dtype, tp_size)}",
            f"  {held}",
            *_ratio("of MHA", each, row["ratio_to_mha"]),
            *_ratio(f"of own, {design_label(own)},", each, row["ratio_to_own"]),
        ]

    return explain


def _ratio(what: str, each: int | Fraction, ratio: Fraction | None) -> Iterator[str]:
    if ratio:
        whole = Fraction(each) / ratio
        yield f"  {what} {count(each)} / {count(whole)} = {ratio} = {short_percent(ratio)}"


def tensor_explanation(row: Row) -> list[str]:
    """The equation of one tensor's bytes."""
    return [tensor_equation(row)]
