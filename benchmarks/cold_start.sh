#!/usr/bin/env bash
# Whole-process time of commands beside a yardstick process that imports the libraries every answer
# needs, taken in turns: minimum, median and the ratio of minima. Run on an idle machine.
set -eu
exec python - "${1:-20}" <<'PYTHON'
import os
import statistics
import subprocess
import sys
import time

YARDSTICK = "import typer, yaml, rich.table, rich.console; from pydantic import BaseModel"
COMMANDS = {
    "yardstick": [sys.executable, "-c", YARDSTICK],
    "--help": ["-m", "lrkv_plan", "--help"],
    "rank": ["-m", "lrkv_plan", "rank", "lrkv-paper-2.5b", "--budget", "50%"],
    "rank, JSON": ["-m", "lrkv_plan", "rank", "lrkv-paper-2.5b", "--budget", "50%", "-f", "json"],
    "cache": ["-m", "lrkv_plan", "cache", "deepseek-v3", "--attention", "mla:512+64"],
    "plan": ["-m", "lrkv_plan", "plan", "llama-3.1-8b", "--gpu", "h100-sxm"],
}
TABS = {"TAB, command": "pl", "TAB, model": "plan llama-3.", "TAB, GPU": "plan x --gpu h"}
COMMANDS |= {name: ["-m", "lrkv_plan", *words.split()] for name, words in TABS.items()}
times = {name: [] for name in COMMANDS}
for _ in range(int(sys.argv[1]) + 1):  # the first turn warms the disk's cache
    for name, command in COMMANDS.items():
        line = command if name == "yardstick" else [sys.executable, *command]
        start = time.perf_counter()
        asked = {**os.environ, "_LRKV_PLAN_COMPLETE": "fish"} if name in TABS else None
        subprocess.run(
            line, env=asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
        )
        times[name].append(time.perf_counter() - start)
base = min(times["yardstick"][1:])
help_least = min(times["--help"][1:])
print(f"load {os.getloadavg()[0]:.1f}; {sys.argv[1]} turns")
for name, found in times.items():
    least, middle = min(found[1:]), statistics.median(found[1:])
    ratio = f"{least / base:.2f} yardsticks"
    if name in TABS:
        ratio += f", {least / help_least:.2f} times --help"
    print(f"{name:12} {least:.3f} s at least, {middle:.3f} s median, {ratio}")
PYTHON
