"""Damaged files and command lines, run in this process; faults are counted by kind.

``python benchmarks/fuzz.py --seed 1 --inputs 20000`` runs them; ``--only N`` runs one of them again
and shows it whole, and with ``--keep FOLDER`` leaves its files there.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fuzzing.files import write_files
from benchmarks.fuzzing.inputs import Input, input_of
from benchmarks.fuzzing.judging import Fault, faults
from benchmarks.fuzzing.running import Outcome, prepared, run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@dataclass
class Findings:
    """Faults so far: how often each came, and the smallest input of each."""

    n_inputs: int = 0
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    exit_codes: collections.Counter[int] = field(default_factory=collections.Counter)
    n_of: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    smallest: dict[tuple[str, str], tuple[Input, Fault]] = field(default_factory=dict)

    def add(self, one: Input, outcome: Outcome) -> list[Fault]:
        """Judge one run and remember what is wrong with it."""
        found = list(faults(one, outcome))
        self.n_inputs += 1
        self.exit_codes[outcome.exit_code] += 1
        for fault in found:
            key = (fault.kind, fault.key)
            self.counts[fault.kind] += 1
            self.n_of[key] += 1
            if key not in self.smallest or one.size < self.smallest[key][0].size:
                self.smallest[key] = (one, fault)
        return found

    def lines(self) -> list[str]:
        """A line on every fault, the most frequent first."""
        shown = []
        for (kind, key), count in self.n_of.most_common():
            one, fault = self.smallest[kind, key]
            words = " ".join(ascii(a)[1:-1][:60] for a in one.arguments)
            shown.append(
                f"{count:6} {kind}: {fault.detail}\n         #{one.number} ({one.kind}) {words}"
            )
        return shown


def search(
    seed: int, numbers: range, folder: Path, *, processor_s: float | None = None
) -> Findings:
    """Run the inputs of those numbers and collect what is wrong.

    Parameters
    ----------
    folder : an existing, empty folder; every input has its own inside, removed after it.
    processor_s : processor time that counts as a hang; None for the limits by command. [s]
    """
    findings = Findings()
    with prepared():
        for number in numbers:
            one = input_of(seed, number)
            findings.add(one, run(one, folder / str(number), processor_s=processor_s))
    return findings


def show(seed: int, number: int, folder: Path, keep: Path | None) -> None:
    """Run one input and print it with its outcome."""
    one = input_of(seed, number)
    if keep is not None:
        keep.mkdir(parents=True)
        write_files(keep, one.files)
    with prepared():
        outcome = run(one, folder / str(number))
    print("arguments:", ascii(one.arguments))
    for name, content in one.files.items():
        print(f"{name}:", ascii(content)[:3000])
    print("stdout to:", one.stdout, "| exit code:", outcome.exit_code)
    print("stdout:", ascii(outcome.stdout)[:2000])
    print("stderr:", ascii(outcome.stderr)[:2000])
    for fault in faults(one, outcome):
        print(f"{fault.kind}: {fault.detail}")


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--only", type=int, help="run this input alone and show it")
    parser.add_argument("--keep", type=Path, help="with --only: a folder for its files")
    options = parser.parse_args()
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        if options.only is not None:
            show(options.seed, options.only, Path(folder), options.keep)
            return
        begun = time.perf_counter()
        findings = search(options.seed, range(options.inputs), Path(folder))
        seconds = time.perf_counter() - begun
    print("\n".join(findings.lines()))
    print(
        f"{findings.n_inputs:,} inputs, {findings.n_inputs / seconds:.0f} a second; "
        f"load {os.getloadavg()[0]:.2f}; exit codes {dict(sorted(findings.exit_codes.items()))}"
    )
    print("faults:", dict(findings.counts.most_common()) or "none")


if __name__ == "__main__":
    main()
