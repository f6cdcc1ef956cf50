"""Models and hardware profiles as people and JSON see them, and the model in other views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.notes import Note
from lrkv_plan.report.screens.specs import hardware_screen, models_screen
from lrkv_plan.report.tables import Column, Table, count
from lrkv_plan.schema import NO_SOURCE
from lrkv_plan.units import format_bytes, format_rate

if TYPE_CHECKING:
    from lrkv_plan.specs.hardware import HardwareProfile, HourlyPrice
    from lrkv_plan.specs.model import ModelSpec
    from lrkv_plan.specs.template import Key

DESIGN = Column(key="attention", title="design", is_number=False)
MODEL = Column(key="model", title="model", is_number=False)


def one_or_all(values: Sequence[Any]) -> Any:
    """The one value, or the list where there are several."""
    return values[0] if len(values) == 1 else list(values)


def about(
    model: ModelSpec, models: Sequence[ModelSpec], notes: Iterable[str | Note]
) -> Iterator[str | Note]:
    """Notes of one model, with its name where the answer is about several."""
    for note in notes:
        if len(models) == 1:
            yield note
        elif isinstance(note, str):
            yield Note(kind="assumption", subject=model.name, text=note)
        else:
            yield replace(note, subject=note.subject or model.name)


def models_table(models: Sequence[ModelSpec], labels: Sequence[str]) -> Table:
    """The shipped models."""
    from lrkv_plan.memory.cache import bytes_per_token
    from lrkv_plan.memory.weights import parameter_count, uncounted_weights

    rows: list[dict[str, Any]] = [
        {
            "model": model.name,
            "attention": label,
            "n_layers": model.n_layers,
            "model_dim": model.model_dim,
            "bytes_per_token": bytes_per_token(model),
            "model_params": parameter_count(model).model_params,
            "max_context_tokens": model.max_context_tokens,
            "uncounted_parts": list(uncounted_weights(model)),
        }
        for model, label in zip(models, labels, strict=True)
    ]
    by_name = {model.name: model for model in models}
    return Table(
        title="Shipped models (K/V bytes per token in bf16)",
        inputs={},
        rows=rows,
        shown_rows=[
            {**row, "model_params": at_least(row["model_params"], row["uncounted_parts"])}
            for row in rows
        ],
        notes=(">= leaves out parts that `lrkv-plan models show NAME` lists",),
        columns=(
            Column(key="model", title="model", is_number=False),
            DESIGN,
            Column(key="n_layers", title="layers", text=count),
            Column(key="model_dim", title="width", text=count),
            Column(key="bytes_per_token", title="B/token", text=count),
            Column(key="model_params", title="parameters"),
            Column(key="max_context_tokens", title="max context", text=count),
        ),
        screen=lambda: models_screen(rows),
        explain=lambda row: _model_equations(by_name[row["model"]]),
    )


def _model_equations(model: ModelSpec) -> list[str]:
    """Cache per token and parameters with their numbers."""
    from lrkv_plan.report.equations import cache_equation, weights_equations

    sums = (line for line in weights_equations(model) if line.startswith("parameters"))
    return [f"{model.name}: {cache_equation(model, 'bf16')}", *(f"  {line}" for line in sums)]


def hardware_table(profiles: Sequence[HardwareProfile]) -> Table:
    """The shipped hardware profiles."""
    rows: list[dict[str, Any]] = [
        {
            "name": profile.name,
            "title": profile.title,
            "generation": profile.generation,
            "mem_capacity_bytes": profile.mem_capacity_bytes,
            "mem_visible_bytes": profile.mem_visible_bytes,
            "mem_bandwidth_bytes_per_s": profile.mem_bandwidth_bytes_per_s,
            "bf16_flops_per_s": profile.peak_flops_per_s.get("bf16"),
            "fp16_flops_per_s": profile.peak_flops_per_s.get("fp16"),
            "fp8_flops_per_s": profile.peak_flops_per_s.get("fp8"),
            "l2_bytes": profile.l2_bytes,
            "link_bytes_per_s": profile.link and profile.link.bandwidth_bytes_per_s,
            **_price_cells(profile.hourly_price),
        }
        for profile in profiles
    ]
    by_name = {profile.name: profile for profile in profiles}
    return Table(
        title="Shipped hardware (dense peaks)",
        inputs={},
        rows=rows,
        columns=(
            Column(key="name", title="name", is_number=False),
            Column(key="generation", title="generation", is_number=False),
            Column(key="mem_capacity_bytes", title="memory", text=format_bytes),
            Column(key="mem_visible_bytes", title="visible", text=format_bytes),
            Column(key="mem_bandwidth_bytes_per_s", title="bandwidth", text=_bytes_rate),
            Column(key="bf16_flops_per_s", title="bf16", text=_flops_rate),
            Column(key="fp8_flops_per_s", title="fp8", text=_flops_rate),
            Column(key="link_bytes_per_s", title="link, one way", text=_bytes_rate),
            Column(key="hourly_price_usd", title="USD/h", text=lambda x: f"{x:g}"),
            Column(key="hourly_price_provider", title="asked by", is_number=False),
            Column(key="hourly_price_read_on", title="read on", is_number=False),
        ),
        screen=lambda: hardware_screen(rows),
        explain=lambda row: _hardware_sources(by_name[row["name"]]),
    )


def _price_cells(price: HourlyPrice | None) -> dict[str, Any]:
    """A price as flat keys, all None where none is known."""
    keys = ("usd", "provider", "kind", "read_on", "url")
    stated = {} if price is None else price.model_dump(mode="json", include=set(keys))
    return {f"hourly_price_{key}": stated.get(key) for key in keys}


def _said(text: str, spec: ModelSpec | HardwareProfile) -> str:
    """A file's text, and as a comment that it names no source where it names none."""
    return text if spec.source else f"{text.rstrip()}\n# source: {NO_SOURCE}\n"


def _hardware_sources(profile: HardwareProfile) -> list[str]:
    """Where the profile's figures were read."""
    places = (f"{one.citation or one.url} ({one.read_on})" for one in profile.source)
    price = profile.hourly_price
    asked = [] if price is None else [f"  {price.usd:g} USD an hour: {price.provenance}"]
    return [f"{profile.name}: {'; '.join(places) or NO_SOURCE}", *asked]


def model_document(model: ModelSpec) -> Table:
    """One model as YAML."""
    from lrkv_plan.specs.model import model_to_yaml

    return Table(
        title=f"Model {model.name}",
        inputs={},
        rows=[model_inputs(model)],
        columns=(),
        text=_said(model_to_yaml(model), model),
    )


def hardware_document(profile: HardwareProfile, text: str) -> Table:
    """One hardware profile as the YAML of its file."""
    return Table(
        title=f"Hardware {profile.name}",
        inputs={},
        rows=[profile.model_dump(mode="json", exclude_none=True)],
        columns=(),
        text=_said(text, profile),
    )


def template_document(title: str, keys: Sequence[Key], text: str) -> Table:
    """A file to fill in; its keys as rows, for programs."""
    return Table(
        title=title,
        inputs={},
        rows=[
            {
                "key": key.name,
                "unit": key.unit,
                "required": key.is_required,
                "example": key.example.strip(),
                "decides": key.decides,
            }
            for key in keys
        ],
        columns=(),
        text=text,
    )


def model_inputs(model: ModelSpec) -> dict[str, Any]:
    """The resolved model as JSON holds it: every stated field."""
    return model.model_dump(mode="json", exclude_none=True)


def at_least(total: int | None, uncounted: Sequence[str]) -> str:
    """A parameter total; ``>=`` where the spec names parts that are not counted."""
    if total is None:
        return "-"
    return f">= {total:,}" if uncounted else f"{total:,}"


def listed(values: Sequence[int]) -> str:
    """Whole numbers as words join them: 1,024 or 4,096."""
    return " or ".join(f"{value:,}" for value in values)


def _bytes_rate(value: float) -> str:
    return format_rate(value, "B")


def _flops_rate(value: float) -> str:
    return format_rate(value, "FLOP")
