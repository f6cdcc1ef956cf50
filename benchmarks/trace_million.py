"""Seconds and peak memory to read and account for a million requests, each file in a fresh process.

Where pandas reads a file, the line-by-line reader reads it too, in turns with it in one process.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

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

    from lrkv_plan.memory.population import account_population
    from lrkv_plan.specs import lengths

    imported = time.perf_counter() - before
    read = lengths.read_lengths if path.suffix == ".txt" else lengths.read_trace
    readers = {"as shipped": lengths.FAST_FROM_BYTES}
    if path.suffix != ".jsonl":
        readers["line by line"] = lengths.MAX_FILE_BYTES + 1
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(N_REPEATS):
        for name, fast_from_bytes in readers.items():
            lengths.FAST_FROM_BYTES = fast_from_bytes
            begun = time.perf_counter()
            population = read(path)
            times[name].append(time.perf_counter() - begun)
    begun = time.perf_counter()
    account_population(
        population.lengths,
        blocks_of=lambda tokens: -(-tokens // BLOCK_TOKENS),
        n_blocks=10**6,
        block_bytes=BLOCK_TOKENS * BYTES_PER_TOKEN,
        payload_bytes_of=lambda tokens: tokens * BYTES_PER_TOKEN,
    )
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


def main() -> None:
    """Write the files, then measure each in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        for path in write_files(Path(folder)):
            subprocess.run([sys.executable, __file__, str(path)], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    else:
        main()
