"""How long a decode step takes, where two designs change places, and what bounds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, did_you_mean, shown
from lrkv_plan.loader import load_relatives
from lrkv_plan.questions.arguments import (
    Designs,
    Gpus,
    Models,
    Number,
    Numbers,
    Texts,
    along_rank,
    asked_designs,
    context_of,
    designs_of,
    load_gpu,
    load_model,
    named,
    refuse,
    with_provenance,
)
from lrkv_plan.questions.asking import Asking
from lrkv_plan.questions.result import Result

if TYPE_CHECKING:
    from lrkv_plan.latency.roofline import RooflinePoint
    from lrkv_plan.latency.step import StepModel, StepTime
    from lrkv_plan.specs.model import ModelSpec

OVER = ("context_tokens", "batch_size", "rank", "query_tokens", "tp_size", "dp_size", "ep_size")


@dataclass(frozen=True, repr=False, eq=False)
class StepTimes(Result):
    """The answer of ``step_time`` at one place, with each design's step and what it rests on."""

    model: ModelSpec
    steps: tuple[tuple[str, StepModel, StepTime], ...]

    @property
    def basis(self) -> Result:
        """Constants of every design's attention kernels, with their errors."""
        from lrkv_plan.report.views.time import basis_table

        steps = [(label, step) for label, step, _ in self.steps]
        return Result(basis_table(self.model, self.table.inputs["gpu"], steps))


@dataclass(frozen=True, repr=False, eq=False)
class Rooflines(Result):
    """The answer of ``roofline`` at one place, with each design's points."""

    model: ModelSpec
    points: tuple[tuple[str, RooflinePoint], ...]


def step_time(
    model: Models,
    *,
    gpu: Gpus,
    attention: Designs | None = None,
    context_tokens: Numbers | None = None,
    batch_size: Numbers | None = None,
    query_tokens: Number | None = None,
    tp_size: Numbers | None = None,
    pp_size: Number | None = None,
    dp_size: Number | None = None,
    ep_size: Number | None = None,
    engine: str | None = None,
    kv_dtype: Texts | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Predict one decode step per design, with its parts and band.

    Parameters
    ----------
    model, gpu, context_tokens, batch_size, tp_size, kv_dtype : one, or several with rows for each.
    context_tokens : cached tokens per sequence; 8k or the model's maximum.
    batch_size, query_tokens, tp_size, pp_size, dp_size, ep_size : 1 each; the batch is that of one
        replica, which all these GPUs are together.
    engine : whose kernels and step constants apply; vLLM's newest when None.
    weights : of one GPU. [bytes, or text such as "14.99 GiB"]

    Raises
    ------
    SpecError, UsageError, PlacementError
        If an argument names nothing, cannot be read, or no time can be predicted.
    """
    given = dict(locals())
    from lrkv_plan.latency.step import step_model
    from lrkv_plan.latency.step import step_time as time_of
    from lrkv_plan.questions.alternatives import stacked
    from lrkv_plan.report.screens.step_time import StepsAnswer
    from lrkv_plan.report.views.specs import model_inputs
    from lrkv_plan.report.views.time import steps_table
    from lrkv_plan.serving.engine import engine_named, timed_as
    from lrkv_plan.specs.deployment import Parallelism

    several = stacked(step_time, given)
    if several is not None:
        return several
    spec = load_model(given["model"], spec_dir=spec_dir)  # single values from here on
    hardware = load_gpu(given["gpu"], spec_dir=spec_dir)
    point = _point(
        spec, given["context_tokens"], given["batch_size"], query_tokens, given["tp_size"]
    )
    sizes = _sizes(pp_size, dp_size, ep_size)
    parallel = Parallelism(tp_size=point["tp_size"], **sizes)
    named_engine = engine_named(words.given(engine, "vllm"))
    told: dict[str, Any] = {
        "kv_dtype": words.given(kv_dtype, "bf16"),
        "weight_dtype": weight_dtype,
        "weight_bytes": words.optional(words.size, "weights", weights),
    }
    relatives = load_relatives([hardware], spec_dir)
    steps = []
    asked = asked_designs(attention)
    for label, design in designs_of(spec, asked):
        step = step_model(
            design, hardware, parallel=parallel, engine=timed_as(named_engine),
            relatives=relatives, **told,
        )  # fmt: skip
        at = (point["context_tokens"], point["batch_size"], point["query_tokens"])
        steps.append((label, step, time_of(step, *at)))
    stated = {
        "model": model_inputs(spec),
        "gpu": hardware.name,
        "kv_dtype": told["kv_dtype"],
        "weight_dtype": weight_dtype or spec.weight_dtype,
        "weight_bytes_per_gpu": told["weight_bytes"],
        **point,
        **sizes,
        "engine": str(named_engine),
    }
    answer = StepsAnswer(model=spec, gpu=hardware, inputs=stated, steps=steps, asked=asked)
    table = steps_table(answer, Asking(model, spec, given))
    return StepTimes(with_provenance(table, spec, hardware), model=spec, steps=tuple(steps))


def crossover(
    model: Models,
    *,
    gpu: Gpus,
    attention: Designs,
    over: str | None = None,
    context_tokens: Number | None = None,
    batch_size: Number | None = None,
    query_tokens: Number | None = None,
    at_most: Number | None = None,
    tp_size: Number | None = None,
    pp_size: Number | None = None,
    dp_size: Number | None = None,
    ep_size: Number | None = None,
    engine: str | None = None,
    kv_dtype: Texts | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Find the exact place where one of two designs becomes faster than the other, and its band.

    Parameters
    ----------
    model, gpu, kv_dtype : one, or several with rows for each.
    attention : two designs; along the rank, the LRKV one is "lrkv:RANK" with any options.
    over : what varies: context_tokens (the default), batch_size, rank, query_tokens, tp_size,
        dp_size or ep_size.
    at_most : the largest value of it that is looked at.

    Raises
    ------
    SpecError, UsageError, PlacementError
        If an argument names nothing, cannot be read or honoured, or no time can be predicted.
    """
    given = dict(locals())
    from lrkv_plan.latency.crossover import compare, names_at
    from lrkv_plan.questions.alternatives import PLACES, stacked
    from lrkv_plan.report.screens.crossover import CrossoverAnswer
    from lrkv_plan.report.views.specs import model_inputs
    from lrkv_plan.report.views.time import crossover_table
    from lrkv_plan.serving.engine import engine_named, timed_as
    from lrkv_plan.specs.design import typed_designs

    several = stacked(crossover, given, PLACES)
    if several is not None:
        return several
    asked = asked_designs(attention)
    if len(asked) != 2:
        raise ArgumentError("attention", f": give two designs to compare, not {len(asked)}")
    along = words.given(over, OVER[0])
    if along not in OVER:
        raise ArgumentError(
            "over", f" {shown(along)}: one of {', '.join(OVER)}{did_you_mean(along, OVER)}"
        )
    varied = {
        "context_tokens": context_tokens, "batch_size": batch_size, "query_tokens": query_tokens,
        "tp_size": tp_size, "dp_size": dp_size, "ep_size": ep_size,
    }  # fmt: skip
    if along in varied:
        refuse({along: varied[along]}, f"is what --over {along} varies; --at-most bounds it")
    if along in ("tp_size", "dp_size", "ep_size"):
        refuse({"weights": weights}, f"are of one size, and --over {along} varies it; leave it out")
    if along == "rank":
        asked = along_rank(asked)
    spec = load_model(given["model"], spec_dir=spec_dir)  # single values from here on
    sizes = _sizes(pp_size, dp_size, ep_size)
    point = {**_point(spec, context_tokens, batch_size, query_tokens, tp_size), **sizes}
    named_engine = engine_named(words.given(engine, "vllm"))
    weight_bytes = words.optional(words.size, "weights", weights)
    hardware = load_gpu(given["gpu"], spec_dir=spec_dir)
    pair = typed_designs(spec, asked)
    found = compare(
        pair,
        hardware,
        over=along,
        point=point,
        at_most=words.optional(words.tokens, "at_most", at_most),
        kv_dtype=words.given(given["kv_dtype"], "bf16"),
        weight_dtype=weight_dtype,
        weight_bytes=weight_bytes,
        engine=timed_as(named_engine),
        relatives=load_relatives([hardware], spec_dir),
    )
    stated = {
        "model": model_inputs(spec),
        "gpu": named(given["gpu"], spec_dir),
        "over": along,
        "kv_dtype": words.given(given["kv_dtype"], "bf16"),
        "weight_dtype": weight_dtype or spec.weight_dtype,
        "weight_bytes_per_gpu": weight_bytes,
        **point,
        "engine": str(named_engine),
    }
    labels = names_at(pair, "RANK" if along == "rank" else None)
    answer = CrossoverAnswer(model=spec, gpu=hardware, inputs=stated, labels=labels, found=found)
    table = crossover_table(answer, Asking(model, spec, given))
    return Result(with_provenance(table, spec, hardware))


def roofline(
    model: Models,
    *,
    gpu: Gpus,
    attention: Designs | None = None,
    context_tokens: Number | None = None,
    batch_size: Number | None = None,
    query_tokens: Number | None = None,
    units: Texts | None = None,
    heads_per_tile: Number | None = None,
    kv_dtype: Texts | None = None,
    tp_size: Number | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Compare arithmetic intensity with the ridge, per design, decode path and kind of unit.

    Parameters
    ----------
    model, gpu, kv_dtype : one, or several with rows for each.
    units : peaks to compare with, bf16 (tensor cores) and fp32.
    heads_per_tile : heads served by one read of a shared row; all of them when None.

    Raises
    ------
    SpecError, UsageError
        If an argument names nothing or cannot be read.
    """
    given = dict(locals())
    from lrkv_plan.latency.roofline import roofline_point
    from lrkv_plan.latency.work import paths_of
    from lrkv_plan.questions.alternatives import PLACES, stacked
    from lrkv_plan.report.screens.roofline import RooflineAnswer
    from lrkv_plan.report.views.specs import model_inputs
    from lrkv_plan.report.views.time import roofline_table

    several = stacked(roofline, given, PLACES)
    if several is not None:
        return several
    spec = load_model(given["model"], spec_dir=spec_dir)  # single values from here on
    hardware = load_gpu(given["gpu"], spec_dir=spec_dir)
    told: dict[str, Any] = {
        **_point(spec, context_tokens, batch_size, query_tokens, tp_size),
        "heads_per_tile": words.optional(words.count, "heads_per_tile", heads_per_tile),
    }
    kinds = ",".join(words.texts("units", ["bf16", "fp32"] if units is None else units))
    kv_format = words.given(given["kv_dtype"], "bf16")
    asked = asked_designs(attention)
    points = [
        (label, roofline_point(design, hardware, path=path, units=unit, kv_dtype=kv_format, **told))
        for label, design in designs_of(spec, asked)
        for path in paths_of(design) or (None,)
        for unit in (kind.strip() for kind in kinds.split(","))
    ]
    place = {"gpu": hardware.name, "kv_dtype": kv_format, "units": kinds}
    stated = {"model": model_inputs(spec), **place, **told}
    answer = RooflineAnswer(model=spec, gpu=hardware, inputs=stated, points=points, asked=asked)
    table = roofline_table(answer, Asking(model, spec, given))
    return Rooflines(with_provenance(table, spec, hardware), model=spec, points=tuple(points))


def _sizes(
    pp_size: Number | None, dp_size: Number | None, ep_size: Number | None
) -> dict[str, Any]:
    given = {"pp_size": pp_size, "dp_size": dp_size, "ep_size": ep_size}
    return {n: 1 if value is None else words.count(n, value) for n, value in given.items()}


def _point(
    spec: Any,
    context_tokens: Number | None,
    batch_size: Number | None,
    query_tokens: Number | None,
    tp_size: Number | None,
) -> dict[str, int]:
    counts = {"batch_size": batch_size, "query_tokens": query_tokens, "tp_size": tp_size}
    return {
        "context_tokens": context_of(context_tokens, spec),
        **{
            name: 1 if value is None else words.count(name, value) for name, value in counts.items()
        },
    }
