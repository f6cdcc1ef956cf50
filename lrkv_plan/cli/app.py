"""The commands by name, each imported when it is asked for; the error boundary is ``boundary``."""

import gc
import importlib
import os
import re
import signal
from typing import Annotated, Any

import typer
import typer.main

from lrkv_plan import __version__
from lrkv_plan.cli import panels
from lrkv_plan.cli.boundary import INTERRUPTED, PlanGroup
from lrkv_plan.cli.given import StrictTyper
from lrkv_plan.cli.plain_warnings import plain_warnings
from lrkv_plan.errors import UsageError, did_you_mean, shown

# Command -> what the list of commands says about it; its module has the same name.
COMMANDS = {
    "plan": "MHA, GQA, MQA, MLA and LRKV side by side: cache, fit, time, cost.",
    "rank": "Largest LRKV rank within a cache budget, and what else fits it.",
    "cache": "Cache bytes per design and context.",
    "params": "Key/value weights and the whole model's, per design.",
    "shard": "Cache per GPU, in all, and how much of it is repeated.",
    "capacity": "Tokens and sequences that fit, per design, size and context.",
    "best": "The cheapest way to serve so many users: GPUs, layout, formats.",
    "sweep": "A grid of designs, GPUs, layouts and loads, and the best of it.",
    "crossover": "Where one design becomes faster than another, with its band.",
    "step-time": "One decode step per design: time, band, and its parts.",
    "roofline": "Arithmetic intensity, ridge and bound, per decode path.",
    "validate": "Measure a few calls of the model's shapes, and compare.",
    "audit": "Recompute printed claims; exit 4 if one differs unexplained.",
    "inspect": "Spectra of a checkpoint's keys and values, and ranks per layer.",
    "report": "A report to hand over: a page, markdown, CSV tables, pictures.",
    "explore": "Users and step times as curves with sliders, in the browser.",
    "calibrate": "Measure decode calls, fit the kernel model to them, and judge it.",
    "plot": "Draw a picture (-o FILE.png, .svg, .pdf) or give its series.",
    "models": "List the shipped models, show, import or start one of your own.",
    "hardware": "List the shipped GPUs, show one, or start one of your own.",
    "schema": "JSON Schema of what a command writes as JSON.",
}
_SETTINGS: dict[str, Any] = {
    "add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False,
}  # fmt: skip


class CommandGroup(PlanGroup):
    """The commands of ``COMMANDS``; the list of them is written without importing any."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; a bare call is answered with where to start."""
        if not args and not ctx.resilient_parsing:
            from lrkv_plan.cli.start import screen

            typer.echo(screen())
            ctx.exit()
        if args and args[0].endswith("-completion"):
            from lrkv_plan.cli.completion_scripts import with_shell

            args = with_shell(args)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run; a warning is a line on stderr."""
        with plain_warnings():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Names in the order of ``COMMANDS``."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command of that name, imported on first use."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _command(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names; a near miss is proposed."""
        if args and args[0] not in COMMANDS:
            raise _no_such_command(args)
        return super().resolve_command(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        """``--help``, as typer makes it."""
        return panels.settled(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """What ``--help`` writes: every command in a line, without importing one."""
        panels.write_head(self, ctx, formatter, whole=False)
        panels.write_rows("Commands", list(COMMANDS.items()), formatter)
        panels.write_options(self, ctx, formatter)
        formatter.write("\nA command's options: lrkv-plan COMMAND --help\n")


def _no_such_command(args: list[str]) -> UsageError:
    from lrkv_plan.cli.advice import pasted
    from lrkv_plan.cli.names import model_names

    hint = did_you_mean(args[0], COMMANDS)
    near = re.findall("'(.*)'", hint)
    line = pasted(["lrkv-plan", near[0], *args[1:]]) if near else ""
    if args[0] in model_names():
        line = f"lrkv-plan plan {args[0]} --gpu h100-sxm"
    return UsageError(
        f"no such command {shown(args[0])}{hint or '; see lrkv-plan --help'}",
        advice=[line] if line else [],
    )


def _command(name: str) -> Any:
    module = importlib.import_module(f"lrkv_plan.cli.{name.replace('-', '_')}")
    group = getattr(module, "app", None)
    if group is None:
        group = StrictTyper(**_SETTINGS)
        module.register(group)
    command = typer.main.get_command(group)
    command.name = name
    return command


def commands_with_summaries(group: Any) -> list[tuple[str, str]]:
    """Names of a group's commands with a line on each; the program's own without importing one."""
    if isinstance(group, CommandGroup):
        return list(COMMANDS.items())
    found = [group.get_command(None, name) for name in group.list_commands(None)]
    return [(one.name, panels.summary_of(one)) for one in found]


app = StrictTyper(
    name="lrkv-plan",
    cls=CommandGroup,
    help="Which attention should a model cache with, how large may its rank be, what does it cost?",
    context_settings={"help_option_names": ["-h", "--help"]},
    **_SETTINGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lrkv-plan {__version__}")
        raise typer.Exit


def _show_completion(shell: str | None) -> None:
    if shell is not None:
        from lrkv_plan.cli.completion_scripts import script_of

        typer.echo(script_of(shell), nl=False)
        raise typer.Exit


def _install_completion(shell: str | None) -> None:
    if shell is not None:
        from lrkv_plan.cli.completion_scripts import install

        for line in install(shell):
            typer.echo(line, err=True)
        typer.echo("A new shell completes lrkv-plan at a TAB.")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    install_completion: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="[SHELL]",
            callback=_install_completion,
            is_eager=True,
            help="Make TAB complete: bash, zsh, fish.",
        ),
    ] = None,
    show_completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="[SHELL]",
            callback=_show_completion,
            is_eager=True,
            help="Print the script that does.",
        ),
    ] = None,
) -> None:
    """Which attention should a model cache with, how large may its rank be, what does it cost?"""


def main() -> None:
    """Run the command line of this process."""
    # A short process frees nothing that matters: without collections, and with all objects exempt
    # from the one at exit, a command takes about a seventh less time (benchmarks/README.md).
    gc.disable()
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            os._exit(INTERRUPTED)  # threads that still compute are not waited for
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
        gc.freeze()
