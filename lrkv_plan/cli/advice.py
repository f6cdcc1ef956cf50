"""The command line that was probably meant, to paste: an option renamed, completed, made a list."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from lrkv_plan.cli.panels import example_of

_LONGEST = 200  # of a line that is worth pasting
# Words of other tools, and other words for ours. An option is proposed only where it exists.
_OTHER_WORDS = {
    "--ctx": "--context-tokens", "--context-length": "--context-tokens",
    "--max-model-len": "--context-tokens", "--seq-len": "--context-tokens",
    "--sequence-length": "--context-tokens", "--bs": "--batch-size",
    "--gpus": "--gpu", "--hardware": "--gpu", "--num-gpus": "--n-gpus",
    "--tensor-parallel-size": "--tp-size", "--pipeline-parallel-size": "--pp-size",
    "--data-parallel-size": "--dp-size", "--kv-cache-dtype": "--kv-dtype",
    "--cache-dtype": "--kv-dtype", "--dtype": "--weight-dtype", "--quantization": "--weight-dtype",
    "--gpu-memory-utilization": "--utilisation", "--utilization": "--utilisation",
    "--mem-fraction-static": "--utilisation", "--block-size": "--page-tokens",
    "--max-num-batched-tokens": "--max-batched-tokens", "--price": "--gpu-hour-usd",
    "--design": "--attention", "--latency": "--tpot-ms", "--tpot": "--tpot-ms",
    "--json": "--format json", "--csv": "--format csv", "--markdown": "--format markdown",
    "--out": "--output", "--max-running-requests": "--max-num-seqs",
    "--mamba-ssm-dtype": "--mamba-ssm-cache-dtype", "--max-seqs": "--max-num-seqs",
    "--draft-model": "--drafter", "--speculative-draft-model-path": "--drafter",
}  # fmt: skip
_WITH_A_NUMBER = {"--gpus": "--n-gpus"}


def near_options(
    wanted: str, known: Iterable[str], like: Sequence[str] = (), value: str = ""
) -> list[str]:
    """Options that an unknown one with that value may mean, best first.

    By a word of other tools, as the start of one (``--context``), as in ``like`` (typer's guess).

    Examples
    --------
    >>> known = ["--gpu", "--n-gpus", "--tp-size", "--tpot-ms", "--context-tokens"]
    >>> [near_options(one, known) for one in ("--gpus", "--tp", "--ctx", "--context", "--x")]
    [['--gpu'], ['--tp-size'], ['--context-tokens'], ['--context-tokens'], []]
    >>> near_options("--gpus", known, value="8")
    ['--n-gpus']
    """
    flags = [flag for flag in known if flag.startswith("--")]
    plain = wanted.lower().replace("_", "-")
    other = _OTHER_WORDS.get(plain, "")
    if value.isdecimal():
        other = _WITH_A_NUMBER.get(plain, other)
    if plain in flags or other.split(" ")[0] in flags:
        return [plain if plain in flags else other]
    for begin in (f"{plain}-", plain):
        starting = sorted(flag for flag in flags if flag.startswith(begin))
        if starting and len(plain) > 3:
            return starting[:3]
    return sorted(like)


def value_of(words: Sequence[str], flag: str) -> str:
    """What stands behind a flag, or in ``--flag=value``; empty if nothing does."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else next(iter(words[i + 1 : i + 2]), "")
    return ""


def renamed(words: Sequence[str], wrong: str, right: str) -> list[str]:
    """The words with one option's name replaced, ``--wrong=value`` too."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        found += [*right.split(" "), *([value] if equals else [])] if name == wrong else [word]
    return found


def completed(words: Sequence[str], command: Any, context: Any) -> list[str]:
    """The line of a command with what it requires and the words lack, as in its example."""
    example = shlex.split(example_of(command))
    path = context.command_path.split()[1:]
    start = next((i for i in range(len(example)) if example[i : i + len(path)] == path), None)
    if start is None or list(words[: len(path)]) != path:
        return []
    launcher, example = example[:start], example[start + len(path) :]
    missing = list(words)
    for param in command.params:
        if not param.required:
            continue
        if param.param_type_name == "argument":
            if context.params.get(param.name) is None and example[:1]:
                missing[len(path) : len(path)] = example[:1]
        elif not any(_is_of(word, param.opts) for word in words):
            for i, word in enumerate(example[:-1]):
                missing += [word, example[i + 1]] if word in param.opts else []
    return [*launcher, *missing] if missing != list(words) else []


def as_one_list(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The words with an option's repeated values joined by commas where it stands first."""
    values: list[str] = []
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if not _is_of(word, flags):
            found.append(word)
            continue
        if not values:
            found += [word.partition("=")[0], ""]
            place = len(found) - 1
        values.append(word.partition("=")[2] if "=" in word else next(rest, ""))
    if values:
        found[place] = ",".join(values)
    return found


def _is_of(word: str, flags: Sequence[str]) -> bool:
    return word.partition("=")[0] in flags


def pasted(words: Sequence[str]) -> str:
    """A command line to paste; empty if it is too long to, or holds what no terminal shows."""
    line = shlex.join(words)
    return line if len(line) <= _LONGEST and line.isprintable() else ""
