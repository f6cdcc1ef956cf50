"""Flags of ``capacity`` (and ``rank --fit-sequences``) as values, and its requirements."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import units
from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import (
    default_context,
    one_count,
    one_number,
    optional_count,
    optional_number,
    token_list,
)
from lrkv_plan.errors import UsageError, shown

if TYPE_CHECKING:
    from lrkv_plan.engines.answers import Answer
    from lrkv_plan.engines.deployment import Checkpoint, Deployment
    from lrkv_plan.engines.latency import LatencyTarget
    from lrkv_plan.specs.engine_settings import EngineName
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.lengths import Population
    from lrkv_plan.specs.model import ModelSpec


def share(text: str | None, option: str) -> Fraction | None:
    """A share above 0 and at most 1: ``0.9`` or ``90%``. Raises ``UsageError``."""
    if text is None:
        return None
    number, percent = (text.strip()[:-1], 100) if text.strip().endswith("%") else (text, 1)
    try:
        value = units.parse_number(number) / percent
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    if not 0 < value <= 1:
        raise UsageError(f"{option} {shown(text)}: must be above 0 and at most 1")
    return value


def size(text: str | None, option: str) -> int | None:
    """Bytes such as ``66.89 GiB``. Raises ``UsageError`` naming the option."""
    if text is None:
        return None
    try:
        value = units.parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    if not 1 <= value <= units.INT64_MAX:
        raise UsageError(f"{option} {shown(text)}: must be at least one byte and below 2**63")
    return value


def batched_tokens(text: str | None, hardware: "HardwareProfile | None") -> int:
    """Tokens of one step: as stated, else the engine's default for the GPU."""
    from lrkv_plan.engines.vllm_budget import default_batched_tokens

    if text is not None:
        return one_count(text, "--max-batched-tokens")
    return 8192 if hardware is None else default_batched_tokens(hardware)


def checkpoint_beside(argument: str, model: "ModelSpec") -> "Checkpoint | None":
    """The safetensors files beside the model's config.json, if there are any.

    Raises
    ------
    SpecError
        If they are there and incomplete or corrupt.
    """
    from lrkv_plan.checkpoint.headers import checkpoint_weights, has_checkpoint
    from lrkv_plan.engines.deployment import Checkpoint

    path = Path(argument)
    folder = path if path.is_dir() else path.parent
    if not (path.exists() and has_checkpoint(folder)):
        return None
    weights = checkpoint_weights(folder)
    return Checkpoint(model=model, total_bytes=weights.total_bytes, remarks=weights.remarks)


def population_of(
    lengths: Path | None, column: str | None, trace: Path | None, percentiles: str | None
) -> "Population | None":
    """The population of at most one of the three sources.

    Raises
    ------
    UsageError
        If more than one source is given, or ``column`` without ``lengths``.
    """
    from lrkv_plan.specs.lengths import parse_percentiles, read_lengths
    from lrkv_plan.specs.traces import read_trace

    given = [source for source in (lengths, trace, percentiles) if source is not None]
    if len(given) > 1:
        raise UsageError("give one of --lengths, --trace and --length-percentiles")
    if column is not None and lengths is None:
        raise UsageError("--column names a column of --lengths, which is not given")
    if lengths is not None:
        return read_lengths(lengths, column)
    if trace is not None:
        return read_trace(trace)
    return None if percentiles is None else parse_percentiles(percentiles)


def latency_target(
    tpot_ms: str | None, query_tokens: str, accepted_tokens: str, spec_dir: Path | None
) -> "LatencyTarget":
    """What the served sequences must be fast enough for, and how tokens are drafted.

    Raises
    ------
    UsageError
        If a number cannot be read, or more tokens are accepted than a step verifies.
    """
    from lrkv_plan.engines.latency import LatencyTarget, Speculation
    from lrkv_plan.specs.loader import load_all_hardware

    seconds = optional_number(tpot_ms, "--tpot-ms")
    return LatencyTarget(
        tpot_s=None if seconds is None else seconds / 1e3,
        speculation=Speculation(
            query_tokens=one_count(query_tokens, "--speculative-tokens"),
            accepted_tokens=one_number(accepted_tokens, "--accepted-tokens", least=1.0, most=1e6),
        ),
        relatives=tuple(load_all_hardware(spec_dir)),
    )


def one_deployment(
    *,
    model_text: str,
    model: "ModelSpec",
    gpu: str | None,
    engine: str,
    context_tokens: int,
    kv_dtype: str,
    tp_size: int,
    n_gpus: str | None,
    weight_dtype: str | None,
    weights: str | None,
    utilisation: str | None,
    kv_memory: str | None,
    alignment: int,
    spec_dir: Path | None,
    gpu_hour_usd: str | None = None,
    settings: "Mapping[str, Any] | None" = None,
) -> "Deployment":
    """The deployment that a command's options describe.

    ``settings`` are further ``EngineSettings``; ``model_text`` is the argument as given, beside
    which the weights' files may lie.
    """
    from lrkv_plan.engines.deployment import Deployment
    from lrkv_plan.engines.registry import engine_named
    from lrkv_plan.specs.engine_settings import EngineSettings
    from lrkv_plan.specs.loader import load_hardware
    from lrkv_plan.specs.serving import Parallelism

    hardware = load_hardware(gpu, spec_dir=spec_dir) if gpu else None
    told = {"max_batched_tokens": batched_tokens(None, hardware), **(settings or {})}
    return Deployment(
        engine=engine_named(engine),
        settings=EngineSettings(context_tokens=context_tokens, kv_dtype=kv_dtype, **told),
        hardware=hardware,
        parallel=Parallelism(tp_size=tp_size),
        n_gpus=optional_count(n_gpus, "--n-gpus"),
        utilisation=share(utilisation, "--utilisation"),
        weight_dtype=weight_dtype,
        weight_bytes=size(weights, "--weights"),
        checkpoint=checkpoint_beside(model_text, model) if weights is None else None,
        kv_memory_bytes=size(kv_memory, "--kv-memory"),
        rank_alignment=alignment,
        gpu_hour_usd=optional_number(gpu_hour_usd, "--gpu-hour-usd"),
    )


def refuse_beside_pool(kv_memory: str | None, *, is_timed: bool) -> None:
    """Refuse options of the memory budget where ``--kv-memory`` states the pool.

    Weights still count where times are asked for.
    """
    if kv_memory is None:
        return
    names = ["utilisation"] if is_timed else ["utilisation", "weights", "weight_dtype"]
    refuse(names, "--kv-memory states the pool, so no budget is computed; leave one of them out")


def refuse_unread(engine: "EngineName") -> None:
    """Refuse settings that were given and that the engine's rules do not read."""
    from lrkv_plan.engines.registry import READS

    settings = ("page_tokens", "max_batched_tokens", "prefix_cache")
    unread = [name for name in settings if name not in READS[engine.name]]
    refuse(unread, f"the rules of {engine.name} do not use it; leave it out")


def refuse_alignment(designs: "Iterable[tuple[str, ModelSpec]]", alignment: int) -> None:
    """Refuse ``--align`` where no design stores rows at a multiple."""
    attentions = (
        group.attention
        for _, model in designs
        for group in model.attention_groups
        if group.attention is not None
    )
    if alignment > 1 and all(one.aligned(alignment) == one for one in attentions):
        refuse(["align"], "no design here stores rows at a multiple of it; leave it out")


def unmet_requirement(
    answers: Iterable["Answer"], sequences: str | None, tokens: str | None
) -> str | None:
    """What the first row that holds too little misses, or None."""
    wanted = {
        "sequences": optional_count(sequences, "--require-sequences"),
        "tokens": optional_count(tokens, "--require-tokens"),
    }
    for answer in answers:
        row = answer.row
        held = {
            "sequences": row.total_sequences if row else 0,
            "tokens": row.total_tokens if row else 0,
        }
        for what, least in wanted.items():
            if least is not None and held[what] < least:
                return _missed(answer, what, held[what], least)
    return None


def _missed(answer: "Answer", what: str, held: int, least: int) -> str:
    where = f"{answer.attention} at {answer.deployment.settings.context_tokens:,} tokens"
    hint = f"; try {', '.join(answer.to_try)}" if answer.to_try else ""
    why = f" ({answer.refused})" if answer.refused else ""
    return (
        f"{where} on tp_size {answer.deployment.parallel.tp_size}: {held:,} {what} fit, "
        f"{least:,} are required{why}{hint}"
    )


def contexts_of(text: str | None, population: "Population | None", model: "ModelSpec") -> list[int]:
    """Maximum lengths: as stated, else the population's longest sequence, else the default.

    Raises
    ------
    UsageError
        If the population holds sequences that an engine of that length would refuse.
    """
    longest = None if population is None else int(population.lengths.max())
    if text is None:
        return [longest or default_context(model)]
    contexts = token_list(text, "--context-tokens")
    if population is not None and longest is not None and min(contexts) < longest:
        n_longer = int((population.lengths > min(contexts)).sum())
        raise UsageError(
            f"--context-tokens {min(contexts)}: {n_longer:,} of {population.n_sequences:,} "
            f"sequences are longer, up to {longest:,}; leave it out to take the longest"
        )
    return contexts
