"""The command line of the measurement: options as checked values."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from typing_extensions import override

from lrkv_plan.attention.registry import layout_of, parse_attention
from lrkv_plan.attention.spec import AttentionSpec, Backbone
from lrkv_plan.calibration.torch_gate import DEVICES, TORCH_DTYPES
from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.memory.placement import POLICIES
from lrkv_plan.units import parse_bytes, parse_tokens

MAX_WIDTH = 1 << 20
MAX_CONTEXTS = 100
PROGRAM = "torchrun --nproc-per-node P -m lrkv_plan.calibration.tensor_parallel"
DESIGNS = ("mha", "gqa:8", "gqa:2", "mqa", "mla:512+64", "lrkv:54", "lrkv:54,groups=8")
EPILOG = """On GPUs nccl connects one worker per GPU, on CPUs gloo connects processes
of one thread. Written to DIR: tensor-parallel.md and .json (the report), allreduce.csv,
samples.csv (added to; rows for `lrkv-plan calibrate fit`), run.json if there is none, and
NAME.allreduce.yaml: the --gpu profile with what was measured. torchrun reports a failed
worker's exit code: 2 usage, 3 a spec, 4 heads that cannot be dealt out, 5 a measurement that
failed or was refused."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. None, or nothing, means the device's usual value."""

    device: str
    designs: tuple[AttentionSpec, ...]
    policies: tuple[str, ...]
    model_dim: int
    batch_size: int
    context_tokens: tuple[int, ...]
    query_tokens: int
    dtype: str | None
    path: str | None
    n_repeats: int
    largest_bytes: int | None
    gpu: str | None
    output: Path
    force: bool
    quiet: bool
    seed: int
    command: str


class _Parser(argparse.ArgumentParser):
    """Errors are ``UsageError``; under torchrun only worker 0 prints the help."""

    @override
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    @override
    def _print_message(self, message: str, file: Any = None) -> None:
        if os.environ.get("RANK", "0") == "0":
            super()._print_message(message, file)


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM, epilog=EPILOG, allow_abbrev=False,
        description="Measure all-reduces and sharded decode steps among P processes.",
    )  # fmt: skip
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--attention", action="append", metavar="DESIGN", help=f"repeat; {' '.join(DESIGNS)}")
    add("--policy", action="append", metavar="NAME", help=f"repeat; {', '.join(POLICIES)}")
    add("--n-heads", default="32", metavar="H", help="query heads of the layer")
    add("--head-dim", default="128", metavar="D", help="width of a head")
    add("--model-dim", metavar="D", help="width of the layer's output; H times D if not given")
    add("--batch-size", default="1", metavar="B", help="sequences decoded together")
    add("--context-tokens", metavar="T[,T]", help="cached tokens each; 1k on a CPU, 8k on a GPU")
    add("--query-tokens", default="1", metavar="Q", help="tokens decoded per sequence and step")
    add("--dtype", metavar="NAME", help=f"{', '.join(TORCH_DTYPES)}; fp32 on a CPU, bf16 on a GPU")
    add("--path", metavar="NAME", help="decode path, if not the usual one of each design")
    add(
        "--repeats",
        default="20",
        metavar="N",
        help="times that everything is measured, time permitting",
    )
    add("--largest-message", metavar="BYTES", help="8MiB on a CPU, 64MiB on a GPU")
    add(
        "--gpu", metavar="PROFILE", help="profile whose link the fit refers to, and its copy's base"
    )
    add("--seed", default="0", metavar="N", help="of the random rows and weights")
    add("--output", metavar="DIR", type=Path, help="folder for what is measured")
    add("--force", action="store_true", help="overwrite an earlier report in DIR")
    add("--quiet", action="store_true", help="no progress on stderr")
    return parser


def parse(arguments: Sequence[str]) -> Options:
    """The options.

    Raises
    ------
    UsageError, SpecError
        If an option, a number, a design or a policy is not understood.
    """
    parser = _parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = [flag for action in parser._actions for flag in action.option_strings]
        name = unknown[0].split("=")[0]
        raise UsageError(f"{shown(name)} is no option{did_you_mean(name, known)}; see --help")
    if given.output is None:
        raise UsageError("--output DIR is missing: the folder for what is measured; see --help")
    heads, width = (_count(given, name) for name in ("n_heads", "head_dim"))
    backbone = Backbone(n_heads=heads, head_dim=width, v_head_dim=width)
    designs = tuple(parse_attention(text, backbone) for text in given.attention or _fitting(heads))
    model_dim = _count(given, "model_dim", heads * width, most=MAX_WIDTH)
    for spec in designs:
        layout_of(spec, model_dim)
    return Options(
        device=_known("--device", given.device, DEVICES),
        designs=designs,
        policies=tuple(_known("--policy", name, POLICIES) for name in given.policy or ()),
        model_dim=model_dim,
        batch_size=_count(given, "batch_size"),
        context_tokens=tuple(_contexts(given)),
        query_tokens=_count(given, "query_tokens"),
        dtype=_known("--dtype", given.dtype, TORCH_DTYPES) if given.dtype else None,
        path=given.path,
        n_repeats=_count(given, "repeats", least=3, most=10_000),
        largest_bytes=_message(given),
        gpu=given.gpu,
        output=given.output,
        force=given.force,
        quiet=given.quiet,
        seed=_count(given, "seed", least=0),
        command=" ".join([_launch(), *arguments]),
    )


def _fitting(n_heads: int) -> tuple[str, ...]:
    """The usual designs that ``n_heads`` heads can have."""
    groups = {text: int(text.rpartition("=")[2].rpartition(":")[2]) for text in DESIGNS
              if text.startswith("gqa") or "groups" in text}  # fmt: skip
    return tuple(text for text in DESIGNS if n_heads % groups.get(text, 1) == 0)


def _count(
    given: argparse.Namespace, name: str, usual: int = 0, *, least: int = 1, most: int = 10**8
) -> int:
    text = getattr(given, name)
    option = f"--{name.replace('_', '-')}"
    if text is None:
        return usual
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    if not is_number or not least <= int(text) <= most:
        raise UsageError(f"{option} {shown(text)}: must be a whole number from {least} to {most:,}")
    return int(text)


def _known(option: str, name: str, names: Sequence[str] | dict[str, str]) -> str:
    if name not in names:
        raise UsageError(
            f"{option} {shown(name)}{did_you_mean(name, names)}: one of {', '.join(names)}"
        )
    return name


def _sized(given: argparse.Namespace, name: str, read: Callable[[str], int]) -> int | None:
    text = getattr(given, name)
    try:
        return None if text is None else read(text)
    except UsageError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error}") from None


def _contexts(given: argparse.Namespace) -> list[int]:
    parts = [] if given.context_tokens is None else given.context_tokens.split(",")
    if len(parts) > MAX_CONTEXTS:
        raise UsageError(f"--context-tokens: {len(parts)} are too many; at most {MAX_CONTEXTS}")
    each = (_sized(argparse.Namespace(context_tokens=p), "context_tokens", parse_tokens)
            for p in parts)  # fmt: skip
    return list(dict.fromkeys(tokens for tokens in each if tokens is not None))


def _launch() -> str:
    """The command as started, with the number of processes that torchrun tells."""
    return PROGRAM.replace(" P ", f" {os.environ.get('LOCAL_WORLD_SIZE', 'P')} ")


def _message(given: argparse.Namespace) -> int | None:
    """Bytes of the largest message: at least 128 KiB, so that eight sizes can be fitted."""
    size = _sized(given, "largest_message", parse_bytes)
    if size is not None and not 128 << 10 <= size <= 1 << 31:
        raise UsageError(f"--largest-message {given.largest_message}: from 128KiB to 2GiB")
    return size
