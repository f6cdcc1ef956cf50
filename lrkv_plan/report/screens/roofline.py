"""The screen of ``roofline``: what bounds each design's attention, memory or arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.errors import PlanError
from lrkv_plan.latency.step import step_model
from lrkv_plan.report.screen import (
    Row,
    Screen,
    ScreenColumn,
    bar,
    milliseconds,
    short,
    short_bytes,
    significant,
)
from lrkv_plan.report.screens.words import WHY, gpu_words, tokens, users
from lrkv_plan.report.tables import count

if TYPE_CHECKING:
    from lrkv_plan.attention.spec import AttentionSpec
    from lrkv_plan.latency.roofline import RooflinePoint
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec

Ask: TypeAlias = Callable[..., Sequence[str]]
_BAR = 16


@dataclass(frozen=True, kw_only=True)
class RooflineAnswer:
    """What was asked of one model on one GPU, and (design, its point) of each path and unit.

    ``asked`` are the designs that were given, none where the model's own was meant.
    """

    model: ModelSpec
    gpu: HardwareProfile
    inputs: Mapping[str, Any]
    points: Sequence[tuple[str, RooflinePoint]]
    asked: Sequence[str | AttentionSpec] = ()

    @property
    def where(self) -> str:
        """The GPUs in words."""
        return gpu_words(self.gpu.name, self.gpu.title, int(self.inputs["tp_size"]))


def roofline_screen(answer: RooflineAnswer, ask: Ask | None) -> Screen:
    """Verdict by design, and one row per design, decode path and kind of unit."""
    return Screen(
        verdict=tuple(_verdict(answer)),
        rows=[{"design": label, "point": point} for label, point in answer.points],
        columns=_columns(),
        foot=(
            f"{answer.model.name}'s attention in one step {_load(answer)}, against the "
            f"datasheet's bandwidth and dense peak: a bound, no prediction. {WHY}",
        ),
        following=() if ask is None else (
            ask("step_time" if _is_timed(answer) else "cache", *answer.asked),
        ),
    )  # fmt: skip


def _is_timed(answer: RooflineAnswer) -> bool:
    """Whether a whole step has a time without stating the weights."""
    told = {key: answer.inputs[key] for key in ("kv_dtype", "tp_size")}
    try:
        step_model(answer.model, answer.gpu, **told)
    except PlanError:
        return False
    return True


def _load(answer: RooflineAnswer) -> str:
    inputs = answer.inputs
    query = int(inputs["query_tokens"])
    return (
        f"for {users(int(inputs['batch_size']))} of {tokens(int(inputs['context_tokens']))}"
        f"{f', {query:,} tokens of each,' if query > 1 else ''} on {answer.where}"
    )


def _verdict(answer: RooflineAnswer) -> Iterator[str]:
    """Each design on its first path and kind of unit; the rest is in the table."""
    first: dict[str, RooflinePoint] = {}
    for label, point in answer.points:
        first.setdefault(label, point)
    for index, (label, point) in enumerate(first.items()):
        side = "below" if point.bound == "memory" else "above"
        yield (
            f"{label} is bound by {point.bound}{'' if index else f' on {answer.where}'}: "
            f"{short(point.intensity_flops_per_byte)} FLOP/B, {side} the "
            f"{short(point.ridge_flops_per_byte)} of {point.units} ({point.path})."
        )


def _columns() -> tuple[ScreenColumn, ...]:
    def of(key: str, write: Callable[[Any], str] = str) -> Callable[[Row], str]:
        return lambda row: write(getattr(row["point"], key))

    return (
        ScreenColumn(title="design", text=lambda row: str(row["design"]), is_number=False),
        ScreenColumn(title="path", text=of("path"), is_number=False),
        ScreenColumn(title="units", text=of("units"), is_number=False),
        ScreenColumn(title="FLOP/B", text=of("intensity_flops_per_byte", significant), drop=1),
        ScreenColumn(title="ridge", text=of("ridge_flops_per_byte", significant), drop=2),
        ScreenColumn(title="bound by", text=of("bound"), is_number=False),
        ScreenColumn(
            title="of peak",
            text=of("limit_share", lambda share: f"{short(100 * share)} %"),
            drop=3,
        ),
        ScreenColumn(
            title="0" + "peak".rjust(_BAR - 1),
            text=of("limit_share", lambda share: bar(share, 1, _BAR)),
            is_number=False,
            drop=7,
        ),
        ScreenColumn(title="memory ms", text=of("memory_s", milliseconds), drop=4),
        ScreenColumn(title="compute ms", text=of("compute_s", milliseconds), drop=5),
        ScreenColumn(title="moved", text=of("n_bytes", short_bytes), drop=6),
    )


def roofline_equation(gpu: HardwareProfile, row: Mapping[str, Any]) -> str:
    """Intensity and ridge with their numbers put in."""
    peak, bandwidth = gpu.peak_flops_per_s[row["units"]], gpu.mem_bandwidth_bytes_per_s
    return (
        f"{row['attention']} {row['path']} {row['units']}: {count(round(row['n_flops']))} FLOP / "
        f"{count(round(row['n_bytes']))} B = {short(row['intensity_flops_per_byte'], 4)} FLOP/B; "
        f"ridge {significant(peak / 1e12, 4)} TFLOP/s / {significant(bandwidth / 1e12, 3)} TB/s = "
        f"{short(row['ridge_flops_per_byte'], 4)} FLOP/B"
    )
