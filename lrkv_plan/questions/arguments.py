"""Arguments of many questions, as values: models, GPUs, deployments, populations, targets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, UsageError, shown
from lrkv_plan.files import as_path
from lrkv_plan.loader import load_model
from lrkv_plan.notes import Note
from lrkv_plan.questions.gpus import Gpu, gpus_in_all, joined_gpus, without_count
from lrkv_plan.questions.gpus import one_gpu as load_gpu
from lrkv_plan.questions.listed import listed
from lrkv_plan.schema import NO_SOURCE
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.attention.families.low_rank import LowRankSpec
    from lrkv_plan.attention.spec import AttentionSpec
    from lrkv_plan.report.screen import Screen
    from lrkv_plan.report.tables import Table
    from lrkv_plan.serving.deployment import Checkpoint, Deployment, Measured
    from lrkv_plan.serving.load import LatencyTarget
    from lrkv_plan.specs.deployment import EngineName
    from lrkv_plan.specs.design import NamedDesign
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.population import Population

Model: TypeAlias = "str | Path | Mapping[str, Any] | ModelSpec"
Models: TypeAlias = "Model | Sequence[Model]"
Gpus: TypeAlias = "Gpu | Sequence[Gpu]"
Number: TypeAlias = "int | float | str"
Numbers: TypeAlias = "int | str | Sequence[int | str]"
Texts: TypeAlias = "str | Sequence[str]"
Designs: TypeAlias = "str | AttentionSpec | Sequence[str | AttentionSpec]"


def models_of(argument: Models, spec_dir: str | Path | None = None) -> list[tuple[str, ModelSpec]]:
    """The models of one argument, each with the text that names it: ``"llama-3.1-8b,qwen3-8b"``.

    Raises
    ------
    UsageError
        As ``listed``, or if two of them have one name, by which their rows could not be told apart.
    SpecError
        As ``load_model``.
    """
    found = []
    for one in listed("model", argument):
        model = load_model(one, spec_dir=spec_dir)
        found.append((str(one) if isinstance(one, str | Path) else model.name, model))
    names = [model.name for _, model in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"model {shown(name)} stands twice; name each model once")
    return found


def weight_formats_of(value: Texts | None) -> list[str | None]:
    """Formats of weights, one or several; None is the model's own, ``own`` or not given.

    Raises
    ------
    UsageError
        If one is unknown.
    """
    from lrkv_plan.formats import weight_format

    if value is None:
        return [None]
    texts = [part.strip() for one in words.texts("weight_dtype", value) for part in one.split(",")]
    return [None if one == "own" else weight_format(one).name for one in texts]


def refuse(given: Mapping[str, Any], why: str) -> None:
    """Refuse arguments that the question does not use.

    Raises
    ------
    ArgumentError
        If one of them was given, that is, is not None.
    """
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ArgumentError(names, f": {why}")


def named(gpu: Gpu, spec_dir: str | Path | None = None) -> str:
    """A GPU as the inputs record it: the text that was given, else the profile's name."""
    if isinstance(gpu, str):
        return without_count(gpu, spec_dir=spec_dir)
    return load_gpu(gpu).name


def default_context(model: ModelSpec) -> int:
    """8,192 tokens, or the model's maximum where that is smaller."""
    return min(8192, model.max_context_tokens or 8192)


def context_of(value: Number | None, model: ModelSpec) -> int:
    """Tokens of ``context_tokens``, or ``default_context`` where it was not given."""
    return default_context(model) if value is None else words.tokens("context_tokens", value)


def checkpoint_beside(argument: Model, model: ModelSpec) -> Checkpoint | None:
    """The GGUF files that the model is, or the safetensors beside its config.json, if any.

    Raises
    ------
    SpecError
        If they are there and incomplete or corrupt.
    """
    if not isinstance(argument, str | Path):
        return None
    path = Path(argument)
    if not path.exists():  # a shipped name; numpy takes longer to import than all else
        return None
    from lrkv_plan.checkpoint.tensors import checkpoint_weights, has_checkpoint
    from lrkv_plan.gguf.files import gguf_bytes, is_gguf
    from lrkv_plan.serving.deployment import Checkpoint

    if is_gguf(path):
        return Checkpoint(model=model, total_bytes=gguf_bytes(path))
    folder = path if path.is_dir() else path.parent
    if not has_checkpoint(folder):
        return None
    weights = checkpoint_weights(folder)
    return Checkpoint(model=model, total_bytes=weights.total_bytes, remarks=weights.remarks)


def population_of(
    lengths: str | Path | None,
    column: str | None,
    trace: str | Path | None,
    length_percentiles: str | None,
) -> Population | None:
    """The population of at most one of the three sources.

    Raises
    ------
    ArgumentError
        If more than one source is given, or ``column`` without ``lengths``.
    """
    from lrkv_plan.specs.lengths import parse_percentiles, read_lengths
    from lrkv_plan.specs.traces import read_trace

    sources = {"lengths": lengths, "trace": trace, "length_percentiles": length_percentiles}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError(given, ": give one of them")
    if column is not None and lengths is None:
        raise ArgumentError("column", ": names a column of --lengths, which is not given")
    if lengths is not None:
        return read_lengths(Path(lengths), column)
    if trace is not None:
        return read_trace(Path(trace))
    return None if length_percentiles is None else parse_percentiles(length_percentiles)


def latency_target(
    tpot_ms: Number | None,
    speculative_tokens: Number | None,
    accepted_tokens: Number | None,
    spec_dir: str | Path | None,
    gpus: Iterable[HardwareProfile | None],
) -> LatencyTarget:
    """What the served sequences must be fast enough for, how tokens are drafted, who may lend
    constants to ``gpus``.

    Raises
    ------
    UsageError
        If a number cannot be read, or more tokens are accepted than a step verifies.
    """
    from lrkv_plan.loader import load_relatives
    from lrkv_plan.serving.load import LatencyTarget, Speculation

    seconds = words.optional(words.number, "tpot_ms", tpot_ms)
    return LatencyTarget(
        tpot_s=None if seconds is None else seconds / 1e3,
        speculation=Speculation(
            query_tokens=words.count("speculative_tokens", words.given(speculative_tokens, 1)),
            accepted_tokens=words.number(
                "accepted_tokens", words.given(accepted_tokens, 1), least=1.0, most=1e6
            ),
        ),
        relatives=tuple(load_relatives([one for one in gpus if one is not None], spec_dir)),
    )


def deployment_of(
    model: Model,
    spec: ModelSpec,
    *,
    context_tokens: int,
    gpu: Gpu | None,
    tp_size: int = 1,
    kv_dtype: str | None = None,
    engine: str | None = None,
    n_gpus: Number | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    align: Number | None = None,
    gpu_hour_usd: Number | None = None,
    spec_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    budget_file: str | Path | None = None,
    joins: bool = False,
) -> Deployment:
    """The deployment that arguments describe; ``settings`` are further ``EngineSettings``.

    ``model`` is the argument as given, beside which the weights' files may lie. ``budget_file``
    holds what a log measured; it must be of this engine, model and GPU. ``joins`` is whether a plus
    may join GPUs of several kinds.
    """
    from lrkv_plan.formats import weight_format
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.engine import engine_named
    from lrkv_plan.serving.engines.vllm import default_batched_tokens
    from lrkv_plan.specs.deployment import EngineSettings, Parallelism

    if weight_dtype is not None:
        weight_format(weight_dtype)  # refused even where the pool does not depend on it
    joined = joined_gpus(gpu, spec_dir=spec_dir) if joins and gpu is not None else ()
    in_all, hardware = gpus_in_all(gpu, n_gpus, spec_dir=spec_dir, joined=joined)
    batched = 8192 if hardware is None else default_batched_tokens(hardware)
    told = {"max_batched_tokens": batched, **(settings or {})}
    named = engine_named(words.given(engine, "vllm"))
    measured = None
    if budget_file is not None:
        measured = measured_of(budget_file, None if engine is None else named, spec, hardware)
        named = engine_named(measured.budget.engine)
        told["max_batched_tokens"] = measured.budget.max_batched_tokens
        asked = (settings or {}).get("max_batched_tokens", told["max_batched_tokens"])
        if asked != told["max_batched_tokens"]:
            raise ArgumentError(
                "max_batched_tokens",
                f" {asked}: the budget file was measured with {told['max_batched_tokens']}; leave "
                "one of them out",
            )
    return Deployment(
        joined=joined,
        engine=named,
        measured=measured,
        settings=EngineSettings(
            context_tokens=context_tokens, kv_dtype=words.given(kv_dtype, "bf16"), **told
        ),
        hardware=hardware,
        parallel=Parallelism(tp_size=tp_size),
        n_gpus=in_all,
        utilisation=words.optional(words.share, "utilisation", utilisation),
        weight_dtype=weight_dtype,
        weight_bytes=words.optional(words.size, "weights", weights),
        checkpoint=checkpoint_beside(model, spec) if weights is None else None,
        kv_memory_bytes=words.optional(words.size, "kv_memory", kv_memory),
        rank_alignment=words.count("align", words.given(align, 16)),
        gpu_hour_usd=words.optional(words.number, "gpu_hour_usd", gpu_hour_usd),
    )


def measured_of(
    budget_file: str | Path, engine: EngineName | None, model: ModelSpec,
    hardware: HardwareProfile | None,
) -> Measured:  # fmt: skip
    """The budget of a file, if it was measured with this engine, model and GPU.

    Raises
    ------
    SpecError
        If the file is missing or invalid.
    ArgumentError
        If it was measured with another engine, model or GPU.
    """
    from lrkv_plan.documents import read_yaml
    from lrkv_plan.schema import validate
    from lrkv_plan.serving.deployment import Measured
    from lrkv_plan.serving.engine import engine_named
    from lrkv_plan.specs.measured import MeasuredBudget

    path = as_path(budget_file)
    budget = validate(MeasuredBudget, read_yaml(path), path)
    of_file = engine_named(budget.engine)
    if engine is not None and engine.version is None:
        engine = replace(engine, version=of_file.version)
    told = {
        "engine": (of_file if engine is None else engine, of_file),
        "model": (model.name, budget.model),
        "gpu": (None if hardware is None else hardware.name, budget.gpu),
    }
    for name, (asked, had) in told.items():
        if asked != had:
            raise ArgumentError(
                "budget_file", f" {path}: was measured with {name} {had}, not {asked}"
            )
    return Measured(budget=budget, model=model)


def with_provenance(table: Table, *specs: ModelSpec | HardwareProfile | None) -> Table:
    """The table, and its screen, with a note for each model or GPU whose file names no source."""
    notes = [
        Note(kind="provenance", subject=spec.name, text=f"source: {NO_SOURCE}")
        for spec in specs
        if spec is not None and not spec.source
    ]
    draw = table.screen
    if draw is None or not notes:
        return replace(table, notes=(*table.notes, *notes))

    def screen() -> Screen:
        shown = draw()
        return replace(shown, notes=(*shown.notes, *notes))

    return replace(table, notes=(*table.notes, *notes), screen=screen)


def low_rank_variant(
    model: ModelSpec,
    *,
    n_shared_groups: int = 1,
    position: str = "none",
    rope_dim: int | None = None,
    key_norm: str = "none",
) -> LowRankSpec:
    """The LRKV variant that arguments ask for, at rank 0 on the model's backbone.

    Without ``rope_dim`` a decoupled rotary key is as wide as the model's own, if it has one.

    Raises
    ------
    SpecError
        If the model has no attention layers, or an argument does not fit its heads.
    """
    from lrkv_plan.attention.families.low_rank import plain_low_rank
    from lrkv_plan.specs.design import first_backbone

    backbone = first_backbone(model)
    if rope_dim is None:
        rope_dim = (backbone.rope_dim or 0) if position == "rope_decoupled" else 0
    plain = plain_low_rank(backbone)
    told: dict[str, Any] = {
        "n_shared_groups": n_shared_groups, "position": position, "rope_dim": rope_dim,
        "basis_spans_rotary_planes": position == "rope_rank", "key_norm": key_norm,
    }  # fmt: skip
    return plain.changed(told, text=plain.model_copy(update=told).text())


def budget_text(value: Number | None) -> str | None:
    """A cache budget as text; a number is a share, 0.5 is half.

    Raises
    ------
    ArgumentError
        If a number is no share.
    """
    return value if value is None or isinstance(value, str) else str(words.share("budget", value))


def asked_designs(attention: Designs | None) -> list[str | AttentionSpec]:
    """The designs that were given, one or several; none where none was.

    Raises
    ------
    ArgumentError
        If one is neither text nor a spec.
    """
    from lrkv_plan.attention.spec import AttentionSpec

    if attention is None:
        return []
    several: list[Any] = list(attention) if isinstance(attention, list | tuple) else [attention]
    words.texts("attention", [one for one in several if not isinstance(one, AttentionSpec)])
    return several


def designs_of(model: ModelSpec, attention: Designs | None) -> list[NamedDesign]:
    """The model with each given design, or with its own where none was given, named.

    Raises
    ------
    ArgumentError, SpecError
        If one is neither text nor a spec, or does not fit the model's heads.
    """
    from lrkv_plan.specs.design import named_designs

    return named_designs(model, asked_designs(attention))


def along_rank(asked: Sequence[str | AttentionSpec]) -> list[str | AttentionSpec]:
    """Designs of which ranks are tried, ``lrkv:RANK``, as designs at rank 0."""
    return [re.sub(r"\bRANK\b", "0", one) if isinstance(one, str) else one for one in asked]


def refuse_beside_pool(kv_memory: Any, **budget: Any) -> None:
    """Refuse arguments of the memory budget where ``kv_memory`` states the pool."""
    if kv_memory is not None:
        refuse(
            budget, "--kv-memory states the pool, so no budget is computed; leave one of them out"
        )


def refuse_unread(engine: EngineName, **settings: Any) -> None:
    """Refuse settings that were given and that the engine's rules do not read."""
    from lrkv_plan.serving.engine import engine_record

    reads = engine_record(engine.name).reads
    unread = {name: value for name, value in settings.items() if name not in reads}
    refuse(unread, f"the rules of {engine.name} do not use it; leave it out")


def refuse_alignment(designs: Iterable[tuple[str, ModelSpec]], align: Number | None) -> None:
    """Refuse ``align`` where no design stores rows at a multiple."""
    if align is None or (alignment := words.count("align", align)) == 1:
        return
    attentions = (
        group.attention
        for _, model in designs
        for group in model.attention_groups
        if group.attention is not None
    )
    if all(one.aligned(alignment) == one for one in attentions):
        raise ArgumentError(
            "align", ": no design here stores rows at a multiple of it; leave it out"
        )


def contexts_of(
    value: Numbers | None, population: Population | None, model: ModelSpec
) -> list[int]:
    """Maximum lengths: as stated, else the population's longest sequence, else the default.

    Raises
    ------
    ArgumentError
        If the population holds sequences that an engine of that length would refuse.
    """
    longest = None if population is None else population.lengths.max_tokens
    if value is None:
        return [longest or default_context(model)]
    contexts = words.token_counts("context_tokens", value)
    if population is not None and longest is not None and min(contexts) < longest:
        n_longer = population.lengths.n_longer_than(min(contexts))
        raise ArgumentError(
            "context_tokens",
            f" {min(contexts)}: {n_longer:,} of {population.n_sequences:,} sequences are longer, "
            f"up to {longest:,}; leave it out to take the longest",
        )
    return contexts


__all__ = [
    "Designs",
    "Gpu",
    "Gpus",
    "Model",
    "Models",
    "Number",
    "Numbers",
    "Texts",
    "load_gpu",
    "load_model",
]
