"""Thousands of files, whole and damaged: pandas and the line-by-line reader give one answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lrkv_plan.errors import SpecError
from lrkv_plan.specs import columns, text_blocks
from lrkv_plan.specs.lengths import read_lengths
from lrkv_plan.specs.population import Population
from lrkv_plan.specs.traces import read_trace

N_FILES = 1000  # of each kind, about half of them damaged
ODD = (
    "", " ", "\t", "-1", "+5", "1_000", "1,000", "5.0", "5.", ".5", "1e3", "0x10", "nan", "NaN", "NA",
    "inf", "None", "True", "٣", "1000000000", "1000000001", "9999999999", "99999999999", "0" * 10, "0" * 11,
    '"5"', '"5', "'5'", " 5 ", "5\t", "5\r", "5\r\n", "\n", "\n\n", "# c", "\n# c\n", "#", "\x00", "\ufeff",
    "\u00e9", "\x0b", "\x1c", "\u2028", "a,b", '"a,b"', '"a\nb"', '"a""b"', '"a"b', "a" * 1001, ";", "\\",
    "2024-02-30 00:00:00", "2024-05-10", "2024-05-10 24:00:00", "2024-05-10 23:59:60", "2024-05-10 00:00:00+05:30",
    "2024-05-10 00:00:00 +00:00", "2024-05-10T00:00:00Z", "2024-05-10 00:00:00+0000", "1969-12-31 00:00:00",
    "2199-12-31 23:59:59.999999999", "2200-01-01 00:00:00", "2024-05-10 00:00:00.1234567891", "2024-05-10 00:00",
)  # fmt: skip


def azure(dice: random.Random) -> list[list[str]]:
    zone = dice.choice(["", "", "+00:00", "Z"])
    digits = dice.choice([0, 1, 3, 6, 7, 9])

    def row() -> list[str]:
        fraction = (
            f".{dice.randrange(10**digits):0{digits}d}" if digits and dice.random() < 0.8 else ""
        )
        time = f"{dice.randint(1970, 2199)}-{dice.randint(1, 12):02d}-{dice.randint(1, 28):02d}"
        time += f"{dice.choice(' T')}{dice.randrange(24):02d}:{dice.randrange(60):02d}:07{fraction}"
        return [
            time + zone,
            str(dice.randrange(10 ** dice.randint(1, 8))),
            str(dice.randrange(900)),
        ]

    head = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
    return [head, *(row() for _ in range(dice.randint(1, 6)))]


def burst(dice: random.Random) -> list[list[str]]:
    def row() -> list[str]:
        time = str(dice.randrange(10 ** dice.randint(1, 15)))
        time += dice.choice(["", f".{dice.randrange(10**9):09d}", ".5"])
        model = dice.choice(["GPT-4", '"GPT-4"', '"a, b"', "", "Llama 2"])
        return [time, model, str(dice.randrange(10**5)), str(dice.randrange(900)), "7", "API log"]

    head = ["Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"]
    return [head, *(row() for _ in range(dice.randint(1, 6)))]


def plain(dice: random.Random) -> list[list[str]]:
    rows = [[str(dice.randrange(10 ** dice.randint(1, 9)))] for _ in range(dice.randint(1, 8))]
    return [["tokens"], *rows] if dice.random() < 0.5 else rows


def column(dice: random.Random) -> list[list[str]]:
    rows = [[dice.choice("abc"), str(dice.randrange(10**6)), ""] for _ in range(dice.randint(1, 6))]
    return [["user", "tokens", "note"], *rows]


def text_of(dice: random.Random, rows: list[list[str]]) -> str:
    """The file, with none to three things in it that may be wrong."""
    for _ in range(dice.choice([0, 0, 1, 1, 2, 3])):
        row = dice.choice(rows)
        place, odd = dice.randrange(len(row) + 1), dice.choice(ODD)
        what = dice.randrange(4)
        if what == 0:
            row.insert(place, odd)
        elif place < len(row):
            row[place] = (odd, odd + row[place], row[place] + odd)[what - 1]
        elif len(row) > 1:
            del row[dice.randrange(len(row))]
    end = dice.choice(["\n", "\n", "\r\n"])
    return end.join(",".join(row) for row in rows) + dice.choice([end, end, ""])


def outcome(read: Callable[[], Population]) -> object:
    try:
        found = read()
    except SpecError as error:
        return str(error)
    return found.first_prompt_tokens.tolist(), found.first_output_tokens.tolist(), found.remarks


@pytest.mark.parametrize("make", [azure, burst, plain, column])
def test_both_readers_agree_on_every_file(
    make: Callable[[random.Random], list[list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dice = random.Random(make.__name__)
    path = tmp_path / "file.csv"
    n_read = n_refused = n_fast = 0
    at_once = columns.Columns.at_once

    def counted(self: columns.Columns, block: text_blocks.Block) -> list[object] | None:
        nonlocal n_fast
        found = at_once(self, block)
        n_fast += found is not None
        return found

    monkeypatch.setattr(columns.Columns, "at_once", counted)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 100)  # many blocks
    for _ in range(N_FILES):
        text = text_of(dice, make(dice))
        path.write_bytes(text.encode())

        def read() -> Population:
            if make in (azure, burst):
                return read_trace(path)
            return read_lengths(path, "tokens" if make is column else None)

        monkeypatch.setattr(columns, "FAST_FROM_BYTES", 2**60)
        exact = outcome(read)
        monkeypatch.setattr(columns, "FAST_FROM_BYTES", 0)
        assert outcome(read) == exact, text
        n_read += not isinstance(exact, str)
        n_refused += isinstance(exact, str)
    assert min(n_read, n_refused, n_fast) > N_FILES / 5
