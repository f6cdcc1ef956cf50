"""Valid files and command lines, and what damage makes of them: input N of a seed.

``SOURCES`` are the kinds of files with the commands that read them; command lines are damaged in
``benchmarks.fuzzing.options``.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.fuzzing.binary import small_gguf, to_gguf, to_parquet
from benchmarks.fuzzing.files import Content, Special, damaged_file
from benchmarks.fuzzing.options import damaged_command, is_contained
from lrkv_plan.loader import HARDWARE_FOLDER, MODEL_FOLDER, shipped_files
from tests.calibration.made_up_run import planned, timed, written
from tests.checkpoint.synthetic import llama_folder, planted
from tests.huggingface.test_huggingface import CASES, expanded
from tests.specs.test_traces import AZURE_2023, AZURE_2024, BURST_2, BURST_8, MOONCAKE

CLAIMS = Path(__file__).resolve().parent.parent.parent / "claims"
LOGS = CLAIMS.parent / "tests" / "golden" / "logs"
KERNEL_SAMPLE = CLAIMS.parent / "tests" / "golden" / "kernel_sample.csv"
LAYER_SAMPLES = KERNEL_SAMPLE.parent / "layers"
Files = dict[str, Content]


@dataclass(frozen=True, kw_only=True)
class Input:
    """One run of the program: files in an empty folder, and the command line in that folder.

    ``stdout`` is the encoding of standard output, or ``full`` (a disk without space) or ``closed``.
    """

    number: int
    kind: str
    files: Files
    arguments: list[str]
    stdout: str = "utf-8"

    @property
    def size(self) -> int:
        """Bytes of files and command line: smaller inputs explain a fault better."""
        texts = sum(len(argument) for argument in self.arguments)
        return texts + sum(len(c) for c in self.files.values() if isinstance(c, bytes))


@dataclass(frozen=True)
class Source:
    """A kind of files: how to draw valid ones, and the command lines that read them."""

    weight: int
    draw: Callable[[random.Random], dict[str, bytes]]
    commands: Sequence[str]


def input_of(seed: int, number: int) -> Input:
    """Input ``number`` of that seed, whatever was drawn before."""
    chance = random.Random(f"{seed} {number}")
    stdout = chance.choice(("latin-1", "ascii", "full", "closed") if chance.random() < 0.03
                           else ("utf-8",))  # fmt: skip
    weights = [source.weight for source in SOURCES.values()]
    (kind,) = chance.choices([*SOURCES, "options"], weights=[*weights, 40])
    if kind == "options":
        files: Files = dict(OPTION_FILES())
        arguments = damaged_command(chance)
    else:
        source = SOURCES[kind]
        files = dict(source.draw(chance))
        arguments = chance.choice(source.commands).split()
        arguments += chance.choice(("", "", "-f json", "-f csv", "-f markdown")).split()
        if chance.random() < 0.1 and "import" not in arguments:
            arguments += ["-o", "out.txt"]
        for name in _chosen(list(files), chance):
            files[name] = damaged_file(name, files[name], chance)
    safe = [argument if is_contained(argument) else "out.json" for argument in arguments]
    return Input(number=number, kind=kind, files=files, arguments=safe, stdout=stdout)


def _chosen(names: list[str], chance: random.Random) -> list[str]:
    """One of the files; of a folder sometimes two."""
    n_chosen = 2 if len(names) > 1 and chance.random() < 0.2 else 1
    return chance.sample(names, n_chosen)


@functools.cache
def _texts(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in shipped_files(folder)]


@functools.cache
def _configs() -> list[bytes]:
    """Configurations of published models; all say how their weights are stored."""
    stored = {"torch_dtype": "bfloat16", "vocab_size": 32_000}
    return [json.dumps(stored | expanded(case["config"])).encode() for case in CASES]


@functools.cache
def _claim_files() -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text()) for path in sorted(CLAIMS.glob("*.yaml"))]


def _claims(chance: random.Random) -> dict[str, bytes]:
    """A shipped claim file with some of its claims."""
    document = chance.choice(_claim_files())
    some = chance.sample(document["claims"], 6)
    return {"c.yaml": yaml.safe_dump({**document, "claims": some}, sort_keys=False).encode()}


def _trace(chance: random.Random) -> dict[str, bytes]:
    text = chance.choice((AZURE_2023, AZURE_2024, BURST_2, BURST_8))
    return {"t.csv": text.encode(), "t.jsonl": MOONCAKE.encode()}


def _traces(chance: random.Random) -> dict[str, bytes]:
    """A trace in columns, one packed, and a folder of both."""
    rows = [json.loads(line) for line in MOONCAKE.splitlines()]
    keys = ("timestamp", "input_length", "output_length")
    columns = to_parquet({key: [row[key] for row in rows] for key in keys})
    text = chance.choice((AZURE_2023, AZURE_2024, BURST_2, BURST_8)).encode()
    packed = gzip.compress(text, mtime=0)
    return {
        "t.parquet": columns,
        "t.csv.gz": packed,
        "days/1.parquet": columns,
        "days/2.csv.gz": packed,
    }


def _lengths(chance: random.Random) -> dict[str, bytes]:
    tokens = [chance.choice((0, 1, 17, 512, 8192, 10**9)) for _ in range(20)]
    rows = "user,tokens\n" + "".join(f"u{i},{n}\n" for i, n in enumerate(tokens))
    return {"l.txt": "\n".join(map(str, [5, *tokens])).encode(), "l.csv": rows.encode()}


@functools.cache
def _measured() -> list[list[str]]:
    with KERNEL_SAMPLE.open(newline="") as file:
        return list(csv.reader(file))


def _samples(chance: random.Random) -> dict[str, bytes]:
    """Thirty measured calls of one GPU, as a table and packed."""
    header, *rows = _measured()
    gpu = chance.choice(rows)[0]
    own = [row for row in rows if row[0] == gpu]
    text = io.StringIO()
    csv.writer(text).writerows([header, *chance.sample(own, min(30, len(own)))])
    table = text.getvalue().encode()
    return {"s.csv": table, "s.csv.gz": gzip.compress(table, mtime=0)}


@functools.cache
def _operations_measured() -> list[list[list[str]]]:
    return [
        list(csv.reader(io.StringIO(p.read_text()))) for p in sorted(LAYER_SAMPLES.glob("*.csv"))
    ]


def _operations(chance: random.Random) -> dict[str, bytes]:
    """Ten measured operations of a layer."""
    header, *rows = chance.choice(_operations_measured())
    text = io.StringIO()
    csv.writer(text).writerows([header, *chance.sample(rows, 10)])
    return {"o.csv": text.getvalue().encode()}


_STEP_RUNS = LAYER_SAMPLES.parent / "steps" / "runs.csv"
_BENCHMARK = {
    "backend": "vllm", "request_rate": "inf", "max_concurrency": 16, "duration": 40.0,
    "completed": 200, "total_input_tokens": 200_000, "total_output_tokens": 80_000,
    "mean_tpot_ms": 8.0, "median_tpot_ms": 7.9, "mean_itl_ms": 8.1, "median_itl_ms": 7.6,
}  # fmt: skip


def _steps(_: random.Random) -> dict[str, bytes]:
    """Runs of whole engines, and what a serving benchmark wrote."""
    return {"r.csv": _STEP_RUNS.read_bytes(), "b.jsonl": json.dumps(_BENCHMARK).encode() + b"\n"}


@functools.cache
def _run_folder() -> dict[str, bytes]:
    """What a run leaves, with the times of a made-up device."""
    with tempfile.TemporaryDirectory() as folder:
        run = written(Path(folder), timed(planned(16, held_out=8)))
        return {f"run/{path.name}": path.read_bytes() for path in sorted(run.iterdir())}


@functools.cache
def _checkpoint() -> dict[str, bytes]:
    """Two small layers of llama, with an index beside them."""
    rng = np.random.default_rng(0)
    layers = {
        number: tuple(planted(rng, n_heads, 8, 16, 2) for n_heads in (4, 2, 2))
        for number in range(2)
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = llama_folder(Path(folder), layers, vocab_size=100)
        files = {f"k/{file.name}": file.read_bytes() for file in sorted(path.iterdir())}
    weights = files["k/model.safetensors"]
    header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    places = {name: "model.safetensors" for name in header if name != "__metadata__"}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    return files | {"k/model.safetensors.index.json": json.dumps(index).encode()}


def _checkpoint_files(chance: random.Random) -> dict[str, bytes]:
    """The checkpoint with or without its index, or the index alone."""
    files = _checkpoint()
    left_out = chance.choice(("", "k/model.safetensors.index.json", "k/model.safetensors"))
    return {name: content for name, content in files.items() if name != left_out}


def _spec(name: str, texts: Callable[[], list[bytes]]) -> Callable[[random.Random], dict[str, Any]]:
    return lambda chance: {name: chance.choice(texts())}


def _for_model(name: str) -> list[str]:
    """Command lines that read a model."""
    return [
        f"cache {name}", f"cache {name} --attention lrkv:16 --context-tokens 4k --detail",
        f"params {name}", f"params {name} --attention lrkv:16 --match-params",
        f"shard {name}", f"rank {name} --budget 50%", f"models show {name}",
        f"capacity {name} --gpu h200", f"capacity {name} --gpu h200 --n-gpus 8 --tp-size 8",
        f"capacity {name} --gpu h200 --engine sglang --detail",
        f"plan {name} --gpu h100-sxm", f"roofline {name} --gpu h200",
        f"crossover {name} --gpu h200 --attention lrkv:16 --attention mqa",
        f"cache {name}", f"cache {name}",
    ]  # fmt: skip


def _log(chance: random.Random) -> dict[str, bytes]:
    """A server's log of some engine, sometimes of two."""
    several = [path.read_bytes() for path in sorted(LOGS.glob("*.log"))]
    return {"v.txt": b"".join(chance.choices(several, k=chance.choice((1, 1, 2))))}


# What vLLM 0.19 printed on one H100.
MEASURED = b"""\
engine: vllm@0.19.0
model: llama-3.1-8b
gpu: h100-sxm
context_tokens: 8192
max_batched_tokens: 8192
utilisation: 0.95
memory_bytes: 79.19 GiB
weights_bytes: 14.99 GiB
cache_bytes: 58.11 GiB
source: {citation: a log, read_on: 2026-11-30}
"""
LLAMA = "llama-3.1-8b"
SOURCES = {
    "config": Source(
        16, _spec("config.json", _configs),
        [*_for_model("config.json"), "models import config.json", "models import config.json"],
    ),
    "model": Source(14, _spec("m.yaml", lambda: _texts(MODEL_FOLDER)), _for_model("m.yaml")),
    "hardware": Source(
        10, _spec("g.yaml", lambda: _texts(HARDWARE_FOLDER)),
        [
            "hardware show g.yaml", "hardware show g.yaml", "calibrate show g.yaml",
            f"plan {LLAMA} --gpu g.yaml", f"capacity {LLAMA} --gpu g.yaml --tpot-ms 30",
            f"roofline {LLAMA} --gpu g.yaml --attention lrkv:16",
            f"crossover {LLAMA} --gpu g.yaml --attention lrkv:16 --attention mqa",
            f"rank {LLAMA} --gpu g.yaml --fit-sequences 8",
        ],
    ),
    "claims": Source(8, _claims, ["audit c.yaml", "audit c.yaml --verdict mismatch"]),
    "trace": Source(
        5, _trace,
        [f"capacity {LLAMA} --gpu h200 --trace {name}" for name in ("t.csv", "t.jsonl")],
    ),
    "traces in columns": Source(
        5, _traces,
        [
            *(f"capacity {LLAMA} --gpu h200 --trace {name}"
              for name in ("t.parquet", "t.csv.gz", "days", "days/*.parquet")),
            f"capacity {LLAMA} --gpu h200 --lengths t.parquet --column input_length",
        ],
    ),
    "gguf": Source(
        6, lambda _: {"m.gguf": to_gguf(small_gguf())},
        [
            "cache m.gguf", "models show m.gguf", "models import m.gguf", "params m.gguf",
            "capacity m.gguf --gpu rtx-3090 --engine llama_cpp", "plan m.gguf --gpu h100-sxm",
        ],
    ),
    "lengths": Source(
        4, _lengths,
        [
            f"capacity {LLAMA} --gpu h200 --lengths l.txt",
            f"capacity {LLAMA} --gpu h200 --lengths l.csv --column tokens",
        ],
    ),
    "samples": Source(
        8, _samples,
        [
            "calibrate evaluate s.csv", "calibrate evaluate s.csv", "calibrate evaluate s.csv.gz",
            "calibrate evaluate s.csv --held-out",
            "calibrate fit s.csv --gpu h200 -o fitted --force",
        ],
    ),
    "operations": Source(3, _operations, ["calibrate evaluate-layers o.csv"]),
    "runs of engines": Source(
        3, _steps,
        [
            "calibrate evaluate-steps r.csv",
            "calibrate evaluate-steps b.jsonl --model llama-3.1-8b --gpu h200 --tp-size 1",
        ],
    ),
    "run folder": Source(
        5, lambda _: dict(_run_folder()),
        [
            "calibrate show run", "calibrate fit run -o fitted", "calibrate fit run",
            "calibrate run -o run --resume --device cpu", "calibrate fit run/samples.csv -o fitted",
        ],
    ),
    "log": Source(
        4, _log,
        [
            f"capacity {LLAMA} --from-log v.txt --gpu h100-sxm",
            "capacity --from-log v.txt --gpu h100-sxm --write-budget new",
            f"capacity {LLAMA} --from-log v.txt",
        ],
    ),
    "measured budget": Source(
        3, lambda _: {"b.yaml": MEASURED},
        [
            f"capacity {LLAMA} --gpu h100-sxm --budget-file b.yaml",
            f"plan {LLAMA} --gpu h100-sxm --budget-file b.yaml --launch",
        ],
    ),
    "checkpoint": Source(
        8, _checkpoint_files,
        [
            "inspect k --fit-ranks none", "inspect k --fit-ranks none --budget 50%",
            "capacity k --gpu h200", "capacity k --gpu h200 --detail", "cache k",
        ],
    ),
}  # fmt: skip


@functools.cache
def OPTION_FILES() -> Files:
    """What command lines may name: a file of each kind, and what is no regular file."""
    chance = random.Random(0)
    drawn = [source.draw(chance) for source in SOURCES.values()]
    special = {"pipe": Special.PIPE, "endless": Special.ENDLESS, "null": Special.NULL,
               "folder": Special.FOLDER, "loop": Special.LOOP}  # fmt: skip
    return {name: content for files in drawn for name, content in files.items()} | special
