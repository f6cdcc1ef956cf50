"""Valid command lines of every command, and their damage.

The options are read from the commands themselves, so that a new one is tried without an edit here.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import typer

from benchmarks.fuzzing.damage import TEXTS, damaged_text
from lrkv_plan.cli.app import app

# What each command needs at least; those that take seconds or draw pictures come less often.
BASES = {
    "plan": "llama-3.1-8b --gpu h100-sxm", "rank": "llama-3.1-8b --budget 50%",
    "cache": "llama-3.1-8b", "params": "llama-3.1-8b", "shard": "llama-3.1-8b",
    "capacity": "llama-3.1-8b --gpu h200",
    "best": "llama-3.1-8b --users 8 --gpu h200,t4",
    "sweep": "llama-3.1-8b --gpus h200,t4 --batch-size 1,8,full",
    "crossover": "llama-3.1-8b --gpu h200 --attention lrkv:16 --attention mqa",
    "roofline": "llama-3.1-8b --gpu h200", "step-time": "llama-3.1-8b --gpu h200",
    "validate": "llama-3.1-8b --gpu cpu --device cpu",
    "audit": "mla", "inspect": "k --fit-ranks none",
    "report": "llama-3.1-8b --gpu h200 -o page",
    "explore": "llama-3.1-8b --gpu h200 --no-browser", "calibrate fit": "run -o fitted",
    "calibrate show": "run", "calibrate evaluate": "s.csv",
    "calibrate evaluate-layers": "o.csv", "calibrate evaluate-steps": "r.csv",
    "calibrate run": "-o new --device cpu --budget 15s",
    "calibrate tensor-parallel": "-o new --device cpu", "schema": "calibrate fit",
    "plot cache-vs-rank": "llama-3.1-8b -f json", "plot rank-sweep": "llama-3.1-8b -f json",
    "plot capacity-vs-context": "llama-3.1-8b --gpu h200 -f json",
    "plot payload-vs-loss": "-f json", "plot roofline": "llama-3.1-8b --gpu h200 -f json",
    "plot crossover-map": "llama-3.1-8b --gpu h200 --attention lrkv:16 --attention mqa -f json",
    "plot step-stack": "llama-3.1-8b --gpu h200 -o p.svg", "models show": "llama-3.1-8b",
    "models import": "config.json", "hardware show": "h200",
    "hardware new": "own --like h200", "models new": "own", "models": "", "hardware": "",
}  # fmt: skip
WEIGHTS = {
    "report": 0.1,
    "explore": 0.2,
    "calibrate fit": 0.5,
    "plot step-stack": 0.5,
    "plot rank-sweep": 0.5,
}
# Values that some option takes; which one is left to chance.
VALUES = (
    "1", "2", "8", "16", "64", "1000", "0.5", "50%", "1/3", "33,3%", "8k", "128,8k", "1,2,4",
    "8192", "8,192", "1m", "80 GiB", "66,89 GiB", "40GB", "96 KiB/token", "60s", "gqa:8", "mqa",
    "mla:512+64", "lrkv:55", "lrkv:55,groups=2", "lrkv:16,position=rope_expand", "bf16", "fp8",
    "int4", "q8_0", "h100-sxm", "l4", "cpu", "cuda:1", "auto", "vllm", "sglang", "llama.cpp",
    "tensorrt-llm", "rope_expand", "rms_cached", "none", "all", "p50=1k,p90=8k", "context_tokens",
    "batch_size", "1..8:*2", "own;lrkv:8..24:8", "users >= 2", "pareto", "users up", "json", "csv",
    "markdown", "table", "single", "double", "tokens", "0-1",
    "mismatch", "2.5B", "1xh200+1xl4", "2xh200+2xh100-sxm", "16,16",
)  # fmt: skip
FILES = (
    "m.yaml", "config.json", "g.yaml", "c.yaml", "t.csv", "t.jsonl", "l.txt", "l.csv", "s.csv",
    "o.csv", "r.csv", "b.jsonl", "v.txt", "b.yaml", "s.csv.gz", "run", "k", "pipe", "endless",
    "null", "folder", "loop", "missing.yaml", "", ".", "..", "/proc/none/x", "~nosuch/x.json",
)  # fmt: skip
OUTPUTS = (
    "out.json", "out.csv", "p.svg", "p.png", "p.pdf", "deep/er/out.json", "m.yaml", "folder", "run",
    "pipe", "null", "loop", "", " ", ".", "..", "-", "--", "/proc/none/x", "~nosuch/x", "a\nb",
    "\x1b[31m", "caf\xe9", "\ud800", "no\0ne", "x" * 400, "page", "new",
)  # fmt: skip
_WRITES = ("-o", "--output", "--plan-file", "--plot", "--write-budget", "--out")
_SLOW = ("--all",)  # makes every reference report


def damaged_command(chance: random.Random) -> list[str]:
    """A command line with one to three options or arguments that may not be right."""
    names = list(BASES)
    (name,) = chance.choices(names, weights=[WEIGHTS.get(one, 1) for one in names])
    words = BASES[name].split()
    for _ in range(chance.choice((1, 1, 2, 3))):
        words = _changed(words, name, chance)
    return [*name.split(), *words]


def _changed(words: list[str], name: str, chance: random.Random) -> list[str]:
    """One change: mostly an option more, with any value."""
    kind = chance.random()
    if kind < 0.65:
        return words + _option(name, chance)
    if not words or kind < 0.7:
        return [*words, value_for("", chance)]
    where = chance.randrange(len(words))
    if kind < 0.9:
        before = words[where - 1] if where else ""
        value = value_for(before, chance) if chance.random() < 0.5 else words[where]
        damaged = value if before in _WRITES else damaged_text(value, chance)
        return [*words[:where], damaged, *words[where + 1 :]]
    if kind < 0.95:
        return words[:where] + words[where + 1 :]
    return words + words[where : where + 2]


def _option(name: str, chance: random.Random) -> list[str]:
    """An option of that command: with a value, without, or written together with it."""
    flag, takes_value = chance.choice(_options(name) or [("--quiet", False)])
    if chance.random() < 0.03:
        return [damaged_text(flag, chance)]
    if takes_value != (chance.random() < 0.97):
        return [flag]
    value = value_for(flag, chance)
    return [f"{flag}={value}"] if chance.random() < 0.2 else [flag, value]


def value_for(flag: str, chance: random.Random) -> str:
    """A value for an option: a right one of some option, a file, or hostile text."""
    if flag in _WRITES:
        return chance.choice(OUTPUTS)
    value = chance.choice(chance.choice((VALUES, VALUES, VALUES, FILES, TEXTS)))
    return damaged_text(value, chance) if chance.random() < 0.3 else value


def is_contained(argument: str) -> bool:
    """Whether no part of it names something outside the current folder that could be written."""
    parts = (argument, argument.partition("=")[2], argument[2:])
    for part in parts:
        path = PurePosixPath(part)
        if part.startswith("/proc/none/"):
            continue
        if path.is_absolute() or (".." in path.parts and part != ".."):
            return False
    return argument not in _SLOW and not argument.startswith("~/")


@functools.cache
def _options(name: str) -> list[tuple[str, bool]]:
    """The options of a command, each with whether it takes a value."""
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.get_command(None, word)
    return list(_flags(command))


def _flags(command: Any) -> Iterator[tuple[str, bool]]:
    for parameter in command.params:
        if parameter.param_type_name == "option":
            for flag in parameter.opts:
                yield flag, not parameter.is_flag
