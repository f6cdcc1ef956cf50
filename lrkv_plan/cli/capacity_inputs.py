"""Flags of ``capacity`` (and ``rank --fit-sequences``) as values, and its requirements."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import units
from lrkv_plan.cli.options import one_count, token_list
from lrkv_plan.errors import UsageError, shown

if TYPE_CHECKING:
    from lrkv_plan.engines.answers import Answer
    from lrkv_plan.engines.deployment import Checkpoint, Deployment
    from lrkv_plan.engines.latency import LatencyTarget
    from lrkv_plan.specs.engine_settings import EngineSettings
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.lengths import Population
    from lrkv_plan.specs.model import ModelSpec
    from lrkv_plan.specs.serving import Parallelism


def optional_count(text: str | None, option: str) -> int | None:
    """A positive integer, or None where the option is absent."""
    return None if text is None else one_count(text, option)


def whole(text: str, option: str) -> int:
    """A whole number from 0 up. Raises ``UsageError`` naming the option."""
    return 0 if text.strip() == "0" else one_count(text, option)


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


def deployments(
    common: dict[str, Any],
    settings: "EngineSettings",
    contexts: Iterable[int],
    parallels: Iterable["Parallelism"],
) -> list["Deployment"]:
    """One deployment per tensor-parallel size and context."""
    from dataclasses import replace

    from lrkv_plan.engines.deployment import Deployment

    lengths = list(contexts)
    return [
        Deployment(settings=replace(settings, context_tokens=context), parallel=parallel, **common)
        for parallel in parallels
        for context in lengths
    ]


def latency_target(
    tpot_ms: float | None, query_tokens: str, accepted_tokens: float, spec_dir: Path | None
) -> "LatencyTarget | None":
    """What capacity must be fast enough for; None where nothing about time was asked."""
    from lrkv_plan.engines.latency import LatencyTarget, Speculation
    from lrkv_plan.specs.loader import load_all_hardware

    n_query = one_count(query_tokens, "--speculative-tokens")
    if tpot_ms is None and n_query == 1:
        return None
    return LatencyTarget(
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        speculation=Speculation(query_tokens=n_query, accepted_tokens=accepted_tokens),
        relatives=tuple(load_all_hardware(spec_dir)),
    )


def one_deployment(
    *,
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
) -> "Deployment":
    """The deployment of ``rank --fit-sequences``."""
    from lrkv_plan.engines.deployment import Deployment
    from lrkv_plan.engines.registry import engine_named
    from lrkv_plan.specs.engine_settings import EngineSettings
    from lrkv_plan.specs.loader import load_hardware
    from lrkv_plan.specs.serving import Parallelism

    hardware = load_hardware(gpu, spec_dir=spec_dir) if gpu else None
    settings = EngineSettings(
        context_tokens=context_tokens,
        kv_dtype=kv_dtype,
        max_batched_tokens=batched_tokens(None, hardware),
    )
    return Deployment(
        engine=engine_named(engine),
        settings=settings,
        hardware=hardware,
        parallel=Parallelism(tp_size=tp_size),
        n_gpus=optional_count(n_gpus, "--n-gpus"),
        utilisation=share(utilisation, "--utilisation"),
        weight_dtype=weight_dtype,
        weight_bytes=size(weights, "--weights"),
        kv_memory_bytes=size(kv_memory, "--kv-memory"),
        rank_alignment=alignment,
    )


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


def contexts_of(text: str | None, population: "Population | None") -> list[int]:
    """Maximum lengths: as stated, else the population's longest sequence, else 8,192.

    Raises
    ------
    UsageError
        If the population holds sequences that an engine of that length would refuse.
    """
    longest = None if population is None else int(population.lengths.max())
    if text is None:
        return [longest or 8192]
    contexts = token_list(text, "--context-tokens")
    if population is not None and longest is not None and min(contexts) < longest:
        n_longer = int((population.lengths > min(contexts)).sum())
        raise UsageError(
            f"--context-tokens {min(contexts)}: {n_longer:,} of {population.n_sequences:,} "
            f"sequences are longer, up to {longest:,}; leave it out to take the longest"
        )
    return contexts
