"""What all commands share: output options added to each, and text turned into values."""

import functools
import inspect
import os
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
    """Write the table to stdout or, whole or not at all, to a file."""
    if output != "-":
        from lrkv_plan.whole_files import write_whole

        write_whole(Path(output), render(table, output_format), force=force)
        if not quiet:
            typer.echo(f"wrote {output}", err=True)
        return
    terminal = sys.stdout.isatty()
    width = os.get_terminal_size().columns if terminal else None
    color = terminal and not no_color and wants_color()
    sys.stdout.write(render(table, output_format, width=width, color=color))


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


def count_list(text: str, option: str) -> list[int]:
    """``1,2,4`` as positive integers. Raises ``UsageError`` naming the option."""
    return _each(text, option, _count)


def token_list(text: str, option: str) -> list[int]:
    """``2048,8k`` as tokens. Raises ``UsageError`` naming the option."""
    return _each(text, option, units.parse_tokens)


def one_count(text: str, option: str) -> int:
    """A positive integer. Raises ``UsageError`` naming the option."""
    (value,) = _each(text, option, _count, at_most=1)
    return value


def _count(text: str) -> int:
    value = units.parse_number(text)
    if value.denominator != 1 or not 1 <= value <= units.INT64_MAX:
        raise UsageError(f"{shown(text)} is not a whole number from 1 to 2**63 - 1")
    return int(value)


def _each(text: str, option: str, parse: Callable[[str], int], at_most: int = 1000) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > at_most:
        raise UsageError(f"{option} {shown(text)}: at most {at_most} value(s)")
    try:
        return [parse(part) for part in parts]
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
