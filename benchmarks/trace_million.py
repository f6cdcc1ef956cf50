"""Seconds and peak memory to read and account for requests, each file in a fresh process.

A million of each format by default: where pandas reads a file, the line-by-line reader reads it
too, in turns with it in one process. ``--requests 1e8`` makes Azure-like Parquet and CSV of a
hundredth, a tenth and all of that number: ten times the requests must take ten times the time, and
no more memory. 10^8 requests take 5 GB of disk (``--folder``), and need pyarrow.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

N_REQUESTS = 1_000_000
N_REPEATS = 5
BLOCK_TOKENS, BYTES_PER_TOKEN = 16, 165_888  # the LRKV paper's backbone, MHA in bf16
HASHED_TOKENS = 512  # Mooncake names one hash a block of this many prompt tokens


def write_files(folder: Path) -> list[Path]:
    """A list of lengths, an Azure-like CSV, a BurstGPT-like CSV and a Mooncake-like JSONL."""
    dice = random.Random(1)
    paths = [folder / n for n in ("lengths.txt", "azure.csv", "burstgpt.csv", "mooncake.jsonl")]
    with paths[0].open("w") as plain, paths[1].open("w") as azure, \
            paths[2].open("w") as burst, paths[3].open("w") as mooncake:  # fmt: skip
        azure.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        burst.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
        started = datetime(2024, 5, 10)
        for i in range(N_REQUESTS):
            prompt, output = min(int(dice.lognormvariate(9, 1)), 120_000) + 1, dice.randrange(900)
            plain.write(f"{prompt + output}\n")
            azure.write(f"{started + timedelta(milliseconds=600 * i)}+00:00,{prompt},{output}\n")
            burst.write(f"{5 * i}.0,GPT-4,{prompt},{output},{prompt + output},API log\n")
            hashes = ", ".join(map(str, range(20 * i, 20 * i + -(-prompt // HASHED_TOKENS))))
            mooncake.write(
                f'{{"timestamp": {3 * i}, "input_length": {prompt}, "output_length": {output}, '
                f'"hash_ids": [{hashes}]}}\n'
            )
    return paths


def measure(path: Path) -> None:
    """Read and account for one file; print medians and the process's peak memory."""
    before = time.perf_counter()
    import pandas  # noqa: F401

    from lrkv_plan.specs import columns, text_blocks

    read = reader_of(path)
    imported = time.perf_counter() - before
    readers = {"as shipped": columns.FAST_FROM_BYTES}
    if path.suffix != ".jsonl":
        readers["line by line"] = text_blocks.MAX_FILE_BYTES + 1
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(N_REPEATS):
        for name, fast_from_bytes in readers.items():
            columns.FAST_FROM_BYTES = fast_from_bytes
            begun = time.perf_counter()
            population = read(path)
            times[name].append(time.perf_counter() - begun)
    begun = time.perf_counter()
    account(population)
    accounted = time.perf_counter() - begun
    medians = {name: statistics.median(each) for name, each in times.items()}
    shown = "  ".join(
        f"{name} {each:.2f} s ({N_REQUESTS / each / 1e6:.2f} M rows/s)"
        for name, each in medians.items()
    )
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{path.name:<15} {path.stat().st_size / 1e6:4.0f} MB  import {imported:.2f} s  {shown}  "
        f"account {accounted:.2f} s  peak {peak_kib * 1024 / 1e6:.0f} MB  "
        f"load {os.getloadavg()[0]:.1f}"
    )


def reader_of(path: Path) -> Callable[[Path], Any]:
    """What reads that file."""
    from lrkv_plan.specs.lengths import read_lengths
    from lrkv_plan.specs.traces import read_trace

    return read_lengths if path.suffix == ".txt" else read_trace


def account(population: Any) -> Any:
    """The population against a million blocks."""
    from lrkv_plan.memory.population import account_population

    return account_population(
        population.lengths,
        blocks_of=lambda tokens: -(-tokens // BLOCK_TOKENS),
        n_blocks=10**6,
        block_bytes=BLOCK_TOKENS * BYTES_PER_TOKEN,
        payload_bytes_of=lambda tokens: tokens * BYTES_PER_TOKEN,
    )


def write_at_any_size(folder: Path, n_requests: int) -> list[Path]:
    """Azure-like Parquet and CSV with the same requests, a million at a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    dice = np.random.default_rng(1)
    schema = pa.schema([
        ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
        ("ContextTokens", pa.int64()), ("GeneratedTokens", pa.int64()),
    ])  # fmt: skip
    paths = [folder / "azure.parquet", folder / "azure.csv"]
    plain = pa.csv.WriteOptions(include_header=False)
    with pa.parquet.ParquetWriter(paths[0], schema) as columns, paths[1].open("wb") as lines:
        lines.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for first in range(0, n_requests, N_REQUESTS):
            size = min(N_REQUESTS, n_requests - first)
            prompts = np.minimum(dice.lognormal(9, 1, size), 120_000).astype(np.int64) + 1
            times = np.datetime64("2024-05-10", "us") + 600 * np.arange(first, first + size)
            arrays = zip([times, prompts, dice.integers(0, 900, size)], schema, strict=True)
            table = pa.table([pa.array(each, field.type) for each, field in arrays], schema=schema)
            columns.write_table(table)
            pa.csv.write_csv(table, lines, plain)
    return paths


def measure_once(path: Path) -> None:
    """Read and account for one file once; print seconds, processor seconds, bytes and the load."""
    begun, worked = time.perf_counter(), time.process_time()
    population = reader_of(path)(path)
    found = account(population)
    wall, cpu = time.perf_counter() - begun, time.process_time() - worked
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{population.n_sequences:>11,} {path.suffix[1:]:<8} {path.stat().st_size / 1e6:6.0f} MB  "
        f"{wall:7.2f} s  cpu {cpu:7.2f} s  {population.n_sequences / wall / 1e6:5.2f} M/s  "
        f"peak {peak_kib * 1024 / 1e6:4.0f} MB  load {os.getloadavg()[0]:.1f}  "
        f"admitted {found.admitted_sequences:,}  waste {float(found.waste_share):.6f}",
        flush=True,
    )


def run_on(path: Path, how: str) -> None:
    """Measure a file in a process of its own."""
    subprocess.run([sys.executable, __file__, "--measure", how, str(path)], check=True)


def main() -> None:
    """Write the files, then measure each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=lambda text: int(float(text)), help="up to 1e8 or more")
    parser.add_argument("--folder", help="where to make the files; the system's temporary folder")
    parser.add_argument("--measure", nargs=2, metavar=("HOW", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        how, path = options.measure
        (measure if how == "all" else measure_once)(Path(path))
        return
    sizes = [options.requests // 100, options.requests // 10, options.requests] \
        if options.requests else []  # fmt: skip
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for path in write_at_any_size(Path(folder), size):
                run_on(path, "once")
    if not sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for path in write_files(Path(folder)):
                run_on(path, "all")


if __name__ == "__main__":
    main()
