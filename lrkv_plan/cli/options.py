"""What all commands share: options, the output options of each, and text turned into values."""

import functools
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan import units
from lrkv_plan.cli.given import refuse
from lrkv_plan.errors import PlanError, RequirementError, UsageError, shown
from lrkv_plan.report.tables import Format, Table, render

if TYPE_CHECKING:
    from lrkv_plan.attention.families.low_rank import LowRankSpec
    from lrkv_plan.serving.answers import Answer
    from lrkv_plan.serving.deployment import Checkpoint, Deployment
    from lrkv_plan.serving.load import LatencyTarget
    from lrkv_plan.specs.deployment import EngineName
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.lengths import Population
    from lrkv_plan.specs.model import ModelSpec

GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="A shipped hardware profile or a YAML file."),
]
NGpusOption = Annotated[
    str | None, typer.Option("--n-gpus", metavar="N", help="GPUs in all; replicas fill them.")
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME[@VERSION]",
        help="ideal, paged, vllm, vllm_v0, vllm_ascend, sglang, tensorrt_llm, llama_cpp or "
        "ik_llama_cpp; with a version vllm@0.11.0.",
    ),
]
WeightDtypeOption = Annotated[
    str | None, typer.Option("--weight-dtype", metavar="FORMAT", help="Format of the weights.")
]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", metavar="SIZE", help="Weights per GPU as known: '14.99 GiB'."),
]
UtilisationOption = Annotated[
    str | None,
    typer.Option(
        "--utilisation", metavar="SHARE", help="The engine's memory fraction, by its meaning."
    ),
]
KvMemoryOption = Annotated[
    str | None,
    typer.Option("--kv-memory", metavar="SIZE", help="Cache memory per GPU; no budget then."),
]


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A shipped name, a YAML file, a Hugging Face config.json, or a folder that holds one.",
    ),
]
AttentionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attention",
        metavar="DESIGN",
        help="Swap the design: mha, gqa:8, mqa, mla:512+64, lrkv:55, lrkv:55,groups=2,"
        "position=rope_expand,key_norm=rms_cached. Repeat for one row each.",
    ),
]
KvDtypeOption = Annotated[
    str, typer.Option("--kv-dtype", metavar="FORMAT", help="Storage format of cached scalars.")
]
TpSizeOption = Annotated[
    str, typer.Option("--tp-size", metavar="P", help="GPUs that share the model.")
]
AlignOption = Annotated[
    str, typer.Option("--align", metavar="N", help="Multiple that a kernel wants ranks to be.")
]
SpecDirOption = Annotated[
    Path | None,
    typer.Option("--spec-dir", help="A folder of YAML files searched before the shipped ones."),
]

_OUTPUT_PARAMETERS = {
    "output_format": Annotated[
        Format, typer.Option("--format", "-f", help="table, json, csv or markdown.")
    ],
    "output": Annotated[
        str, typer.Option("--output", "-o", metavar="PATH", help="Write here; - is stdout.")
    ],
    "force": Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")],
    "no_color": Annotated[bool, typer.Option("--no-color", help="Plain text without colour.")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")],
}
_OUTPUT_DEFAULTS: dict[str, Any] = {
    "output_format": Format.TABLE, "output": "-", "force": False, "no_color": False, "quiet": False,
}  # fmt: skip


def writes_table(command: Callable[..., Table | None]) -> Callable[..., None]:
    """Give a command that returns a Table the shared output options, and write what it returns.

    Options that the command has itself (``--output`` for a folder) keep its meaning; the table then
    goes to stdout.
    """
    own = set(inspect.signature(command).parameters)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        chosen = _OUTPUT_DEFAULTS | {n: values.pop(n) for n in _OUTPUT_PARAMETERS if n not in own}
        table = command(**values)
        if table is not None:
            write_table(table, **chosen)
            if isinstance(table.unmet, PlanError):
                raise table.unmet
            if table.unmet is not None:
                raise RequirementError(table.unmet)

    signature = inspect.signature(command)
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_OUTPUT_DEFAULTS[name], annotation=hint
        )
        for name, hint in _OUTPUT_PARAMETERS.items()
        if name not in own
    ]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added], return_annotation=None
    )
    run.__annotations__ = {**_OUTPUT_PARAMETERS, **command.__annotations__, "return": None}
    del run.__wrapped__
    return run


def write_table(
    table: Table, *, output_format: Format, output: str, force: bool, no_color: bool, quiet: bool
) -> None:
    """Write the table to stdout or, whole or not at all, to a file; its notes to stderr.

    JSON and markdown hold the notes themselves.
    """
    if output != "-":
        from lrkv_plan.files import write_whole

        write_whole(output, render(table, output_format), force=force)
    else:
        terminal = sys.stdout.isatty()
        width = os.get_terminal_size().columns if terminal else None
        color = terminal and not no_color and wants_color()
        sys.stdout.write(render(table, output_format, width=width, color=color))
        sys.stdout.flush()
    if quiet:
        return
    if output_format in (Format.TABLE, Format.CSV) and table.text is None:
        for remark in table.remarks:
            typer.echo(f"note: {remark}", err=True)
    if output != "-":
        typer.echo(f"wrote {output}", err=True)


def wants_color() -> bool:
    """NO_COLOR unset or empty, and a terminal that is not dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def load(argument: str, spec_dir: Path | None = None) -> "ModelSpec":
    """The model of a command, all families registered."""
    import lrkv_plan

    model: ModelSpec = lrkv_plan.load_model(argument, spec_dir=spec_dir)
    return model


def default_context(model: "ModelSpec") -> int:
    """8,192 tokens, or the model's maximum where that is smaller."""
    return min(8192, model.max_context_tokens or 8192)


def context_of(text: str | None, model: "ModelSpec") -> int:
    """Tokens of ``--context-tokens``, or ``default_context`` where it is absent."""
    return default_context(model) if text is None else one_tokens(text, "--context-tokens")


def count_list(text: str, option: str) -> list[int]:
    """``1,2,4`` as positive integers. Raises ``UsageError`` naming the option."""
    return _each(text, option, _count)


def token_list(text: str, option: str) -> list[int]:
    """``2048,8k`` as tokens. Raises ``UsageError`` naming the option."""
    return _each(text, option, units.parse_tokens)


def one_count(text: str, option: str) -> int:
    """A positive integer. Raises ``UsageError`` naming the option, also for a list."""
    return _one(text, option, _count)


def optional_count(text: str | None, option: str) -> int | None:
    """A positive integer, or None where the option is absent."""
    return None if text is None else one_count(text, option)


def whole(text: str, option: str) -> int:
    """A whole number from 0 up. Raises ``UsageError`` naming the option."""
    return 0 if text.strip() == "0" else one_count(text, option)


def one_tokens(text: str, option: str) -> int:
    """``8192`` or ``8k`` as tokens. Raises ``UsageError`` naming the option, also for a list."""
    return _one(text, option, units.parse_tokens)


def optional_tokens(text: str | None, option: str) -> int | None:
    """Tokens, or None where the option is absent."""
    return None if text is None else one_tokens(text, option)


def one_number(text: str, option: str, *, least: float = 0.0, most: float = 1e9) -> float:
    """A finite number above ``least`` (from it on where it is not 0) and at most ``most``.

    Raises
    ------
    UsageError
        If it is none; the message names the option and what is allowed.
    """
    try:
        value = float(units.parse_number(text))
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    if not (least < value if least == 0 else least <= value) or value > most:
        bound = "above 0" if least == 0 else f"from {least:g}"
        raise UsageError(f"{option} {shown(text)}: must be {bound} and at most {most:g}")
    return value


def optional_number(
    text: str | None, option: str, *, least: float = 0.0, most: float = 1e9
) -> float | None:
    """As ``one_number``, or None where the option is absent."""
    return None if text is None else one_number(text, option, least=least, most=most)


def _count(text: str) -> int:
    value = units.parse_number(text)
    if value.denominator != 1 or not 1 <= value <= units.INT64_MAX:
        raise UsageError(f"{shown(text)} is not a whole number from 1 to 2**63 - 1")
    return int(value)


def _one(text: str, option: str, parse: Callable[[str], int]) -> int:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1:
        raise UsageError(f"{option} {shown(text)}: takes one value{_readings(parts)}")
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def _readings(parts: list[str]) -> str:
    if not all(part.isdecimal() for part in parts):
        return f", not {len(parts)}"
    return f"; is it {''.join(parts)}, or {' and '.join(parts)}?"


def _each(text: str, option: str, parse: Callable[[str], int], at_most: int = 1000) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > at_most:
        raise UsageError(f"{option} {shown(text)}: at most {at_most} value(s)")
    if _may_be_one_number(text):
        raise UsageError(
            f"{option} {shown(text)}: is it {''.join(parts)}, or {' and '.join(parts)}? write "
            f"{''.join(parts)}, or {', '.join(parts)!r} with spaces for a list"
        )
    try:
        return [parse(part) for part in parts]
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


_GROUPED = re.compile(r"\s*\d{1,3}(?:,\d{3})+\s*", re.ASCII)
_GROUP_INSIDE = re.compile(r"(?:^|,)\d{1,3},\d{3}(?:,|$)", re.ASCII)


def _may_be_one_number(text: str) -> bool:
    """Whether commas may stand between thousands: ``8,192``, ``8,192,16,384``, ``4,096,32k``.

    ``1,2,4,128`` is a list: plain numbers that rise. With spaces after commas every list is one.

    Examples
    --------
    >>> [_may_be_one_number(t) for t in ("8,192", "8, 192", "8k,32k", "1,2,64,128", "8,192,16,384")]
    [True, False, False, False, True]
    """
    if _GROUPED.fullmatch(text):
        return True
    if not _GROUP_INSIDE.search(text):
        return False
    parts = text.split(",")
    if not all(part.isdecimal() and not part.startswith("0") for part in parts):
        return True
    numbers = [int(part) for part in parts]
    return any(later <= earlier for earlier, later in itertools.pairwise(numbers))


def parse_share(text: str | None, option: str) -> Fraction | None:
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


def parse_size(text: str | None, option: str) -> int | None:
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
    from lrkv_plan.serving.engines.vllm import default_batched_tokens

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
    from lrkv_plan.checkpoint.tensors import checkpoint_weights, has_checkpoint
    from lrkv_plan.serving.deployment import Checkpoint

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
    from lrkv_plan.specs.lengths import parse_percentiles, read_lengths, read_trace

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
    from lrkv_plan.loader import load_all_hardware
    from lrkv_plan.serving.load import LatencyTarget, Speculation

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
    from lrkv_plan.loader import load_hardware
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.engine import engine_named
    from lrkv_plan.specs.deployment import EngineSettings, Parallelism

    hardware = load_hardware(gpu, spec_dir=spec_dir) if gpu else None
    told = {"max_batched_tokens": batched_tokens(None, hardware), **(settings or {})}
    return Deployment(
        engine=engine_named(engine),
        settings=EngineSettings(context_tokens=context_tokens, kv_dtype=kv_dtype, **told),
        hardware=hardware,
        parallel=Parallelism(tp_size=tp_size),
        n_gpus=optional_count(n_gpus, "--n-gpus"),
        utilisation=parse_share(utilisation, "--utilisation"),
        weight_dtype=weight_dtype,
        weight_bytes=parse_size(weights, "--weights"),
        checkpoint=checkpoint_beside(model_text, model) if weights is None else None,
        kv_memory_bytes=parse_size(kv_memory, "--kv-memory"),
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
    from lrkv_plan.serving.engine import READS

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


RequiredGpu = Annotated[
    str, typer.Option("--gpu", metavar="GPU", help="A shipped hardware profile or a YAML file.")
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context-tokens",
        metavar="T",
        help="Tokens cached per sequence. Default: 8k, or the model's maximum.",
    ),
]
ChosenTpOption = Annotated[
    str | None,
    typer.Option(
        "--tp-size",
        metavar="P",
        help="GPUs that share the model. Default: of --n-gpus the size that serves most, else the "
        "smallest that fits.",
    ),
]
BatchOption = Annotated[
    str, typer.Option("--batch-size", metavar="N", help="Sequences decoded together.")
]
QueryOption = Annotated[
    str, typer.Option("--query-tokens", metavar="Q", help="Tokens decoded per sequence.")
]
TpotOption = Annotated[
    str | None,
    typer.Option("--tpot-ms", metavar="MS", help="Most ms an output token may take."),
]
SpeculativeOption = Annotated[
    str, typer.Option("--speculative-tokens", metavar="Q", help="Tokens verified per step.")
]
AcceptedOption = Annotated[
    str, typer.Option("--accepted-tokens", metavar="N", help="Of those, accepted on average.")
]
GpuHourOption = Annotated[
    str | None,
    typer.Option("--gpu-hour-usd", metavar="USD", help="Price of one GPU for an hour."),
]


def low_rank_variant(
    model: "ModelSpec",
    *,
    n_shared_groups: int = 1,
    position: str = "none",
    rope_dim: int = 0,
    key_norm: str = "none",
) -> "LowRankSpec":
    """The LRKV variant that the options ask for, at rank 0 on the model's backbone.

    Raises
    ------
    SpecError
        If the model has no attention layers, or an option does not fit its heads.
    """
    from lrkv_plan.attention.families.low_rank import LowRankSpec
    from lrkv_plan.attention.registry import parse_attention
    from lrkv_plan.specs.design import first_backbone

    told = {
        "groups": (n_shared_groups, 1), "position": (position, "none"), "rope_dim": (rope_dim, 0),
        "key_norm": (key_norm, "none"),
    }  # fmt: skip
    stated = [f"{name}={value}" for name, (value, default) in told.items() if value != default]
    if position == "rope_rank":
        stated.append("basis_spans_rotary_planes=true")
    variant = parse_attention(",".join(["lrkv:0", *stated]), first_backbone(model))
    assert isinstance(variant, LowRankSpec), "the text names LRKV"
    return variant
