"""What all commands share: output options added to each, and text turned into values."""

import functools
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan import units
from lrkv_plan.errors import PlanError, RequirementError, UsageError, shown
from lrkv_plan.report.tables import Format, Table, render

if TYPE_CHECKING:
    from lrkv_plan.specs.model import ModelSpec

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
        from lrkv_plan.whole_files import write_whole

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
