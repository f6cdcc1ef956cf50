"""Traces packed, in Parquet and in several files: what the plain file gives, or one line with its place."""

from __future__ import annotations

import gzip
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrkv_plan.errors import SpecError
from lrkv_plan.progress import listening
from lrkv_plan.specs import parquet_columns, request_files, text_blocks
from lrkv_plan.specs.lengths import read_lengths
from lrkv_plan.specs.population import Population
from lrkv_plan.specs.traces import read_trace
from tests.specs.test_traces import AZURE, AZURE_2023, AZURE_2024, BURST, BURST_2, BURST_8, MOONCAKE

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PROMPTS, OUTPUTS = [4808, 0, 110], [10, 8, 27]  # those of the made-up samples


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # the same bytes in every process


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)  # type: ignore[no-any-return]


def is_the_sample(population: Population) -> bool:
    found = population.first_prompt_tokens.tolist(), population.first_output_tokens.tolist()
    return found == (PROMPTS, OUTPUTS) and population.n_sequences == 3


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def azure(path: Path, **changed: Any) -> Path:
    times = np.array(
        ["2024-05-10T00:00:00", "2024-05-10T00:00:00.01", "2024-05-10T00:00:02"], "M8[us]"
    )
    columns = {"TIMESTAMP": times, "ContextTokens": PROMPTS, "GeneratedTokens": OUTPUTS} | changed
    return parquet(path, **{k: v for k, v in columns.items() if v is not None})


@pytest.mark.parametrize("text", [AZURE_2023, AZURE_2024, BURST_2, BURST_8, MOONCAKE])
@pytest.mark.parametrize("pack", [gz, zstd])
def test_a_packed_trace_is_the_plain_one(
    tmp_path: Path, text: str, pack: Callable[[bytes], bytes]
) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_text(text)
    packed.write_bytes(pack(text.encode()))
    assert is_the_sample(read_trace(packed))
    assert read_trace(packed).remarks == read_trace(plain).remarks


def test_members_and_frames_follow_each_other(tmp_path: Path) -> None:
    for name, pack in (("t.gz", gz), ("t.zst", zstd)):
        path = tmp_path / name
        path.write_bytes(pack(b"5\n") + pack(b"7\n"))
        assert read_lengths(path).lengths.first.tolist() == [5, 7]


def test_a_column_of_a_packed_csv_and_of_parquet(tmp_path: Path) -> None:
    (tmp_path / "l.csv.gz").write_bytes(gz(b"user,tokens\na,5\nb,7\n"))
    parquet(tmp_path / "l.parquet", user=["a", "b"], tokens=[5, 7])
    for name in ("l.csv.gz", "l.parquet"):
        assert read_lengths(tmp_path / name, "tokens").lengths.first.tolist() == [5, 7]
        with pytest.raises(SpecError, match=r"has 2 columns; name the one.*user, tokens"):
            read_lengths(tmp_path / name)
        with pytest.raises(SpecError, match=r"column 'token': no column.*did you mean 'tokens'"):
            read_lengths(tmp_path / name, "token")


TIMES = np.array(["2024-05-10T00:00:00", "2024-05-10T00:00:01", "2024-05-10T00:00:02"], "M8[s]")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"ContextTokens": pa.array(PROMPTS, pa.int32()), "GeneratedTokens": pa.array(OUTPUTS, pa.uint64())},
        *({"TIMESTAMP": pa.array(TIMES, pa.timestamp(unit, tz=zone))}
          for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "+05:30")),
        {"TIMESTAMP": ["2023-11-16 18:17:03.9799600", "2023-11-16 18:17:03.98", "2023-11-16 18:17:05"]},
        {"TIMESTAMP": pa.array(["2024-05-10 00:00:00Z", "2024-05-10T00:00:02", "2024-05-10 00:00:02+00:00"],
                               pa.large_string())},
        {"__index_level_0__": [7, 8, 9]},  # what pandas writes of an index
    ],
)  # fmt: skip
def test_azure_columns_of_any_width_are_read(tmp_path: Path, changed: dict[str, Any]) -> None:
    population = read_trace(azure(tmp_path / "t.parquet", **changed))
    assert is_the_sample(population)
    assert population.remarks == ("read as Azure LLM inference",)


def test_other_formats_in_columns(tmp_path: Path) -> None:
    burst = {
        "Timestamp": [5.0, 45.5, 118.0], "Model": ["a", "b", "c"], "Request tokens": PROMPTS,
        "Response tokens": OUTPUTS, "Total tokens": [1, 2, 3], "Log Type": ["x", "y", "z"],
    }  # fmt: skip
    for kind in (burst, burst | {"Timestamp": [5, 45, 118]}):
        assert is_the_sample(read_trace(parquet(tmp_path / "burst", **kind)))
    mooncake = {
        "timestamp": [0, 0, 3000],
        "input_length": PROMPTS,
        "output_length": OUTPUTS,
        "hash_ids": [[1], [], [2]],
    }
    population = read_trace(parquet(tmp_path / "mooncake", **mooncake))
    assert is_the_sample(population)
    assert "hash_ids" in population.remarks[0]
    path = tmp_path / "mooncake.csv"
    path.write_text(
        'timestamp,hash_ids,input_length,output_length\n0,"[1, 2]",4808,10\n0,[],0,8\n7,,110,27\n'
    )
    assert read_trace(path).remarks == population.remarks
    assert is_the_sample(read_trace(path))


TOKENS = "must be a whole number of tokens"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ContextTokens": [5, None, 7]}, f"row 2: ContextTokens null: {TOKENS}"),
        ({"ContextTokens": [5, 6, -7]}, f"row 3: ContextTokens '-7': {TOKENS}"),
        ({"ContextTokens": [5, 10**9 + 1, 7]}, f"row 2: ContextTokens '1000000001': {TOKENS}"),
        ({"ContextTokens": pa.array([5, 2**64 - 1, 7], pa.uint64())}, "row 2: ContextTokens '18446744073709551615'"),
        ({"ContextTokens": [1, 10**9, 1]}, "row 2: 1000000008: prompt and output together"),
        ({"ContextTokens": [1.0, 2.0, float("nan")]}, f"column ContextTokens is double: {TOKENS}.*; cast the column to int64"),
        ({"ContextTokens": ["1", "2", "3"]}, "column ContextTokens is string"),
        ({"ContextTokens": [True, False, True]}, "column ContextTokens is bool"),
        ({"ContextTokens": [[1], [2], [3]]}, "column ContextTokens is list"),
        ({"ContextTokens": pa.nulls(3)}, "column ContextTokens is null"),
        ({"TIMESTAMP": [1, 2, 3]}, "column TIMESTAMP is int64: must be a UTC time.*cast the column to timestamp"),
        ({"TIMESTAMP": [TIMES[0], None, TIMES[1]]}, "row 2: TIMESTAMP null"),
        ({"TIMESTAMP": pa.array([0, 10**15, 1], pa.timestamp("s"))}, r"row 2: TIMESTAMP 10{18} of timestamp\[ms\]: must be a UTC"),
        ({"TIMESTAMP": ["2024-05-10 00:00:00", "now", "2024-05-10 00:00:00"]}, "row 2: TIMESTAMP 'now': must be a UTC"),
        ({"TIMESTAMP": ["2024-05-10 00:00:00", "", "2024-05-10 00:00:00"]}, "row 2: TIMESTAMP ''"),
        ({"TIMESTAMP": ["2024-05-10 00:00:00", "a", "2024-05-10 00:00:00\n2024-05-10 00:00:00"]}, "row 2: TIMESTAMP 'a'"),
        ({"ContextTokens": None}, "not a known trace; nearest is Azure LLM inference, but this lacks ContextTokens"),
        ({"NumImages": [0, 0, 0]}, "but this also has NumImages"),
        ({"ContextTokens": [0, 0, 0], "GeneratedTokens": [0, 0, 0]}, "all 3 sequences hold 0 tokens"),
    ],
)  # fmt: skip
def test_a_wrong_row_or_column_is_named(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = azure(tmp_path / "t.parquet", **changed)
    with pytest.raises(SpecError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_rows_are_numbered_across_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_columns, "BATCH_ROWS", 10)
    prompts = list(range(1, 101))
    assert read_lengths(parquet(tmp_path / "good", n=prompts)).lengths.first.tolist() == prompts
    for wrong in (0, 9, 10, 57, 99):
        path = parquet(tmp_path / "bad", n=[*prompts[:wrong], -1, *prompts[wrong:]])
        with pytest.raises(SpecError, match=f"row {wrong + 1}: n '-1'"):
            read_lengths(path)


def test_a_parquet_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = azure(tmp_path / "t", TIMESTAMP=TIMES[:0], ContextTokens=pa.array([], pa.int64()),
                 GeneratedTokens=pa.array([], pa.int64()))  # fmt: skip
    with pytest.raises(SpecError, match="holds only a header"):
        read_trace(path)


def refusal(path: Path) -> str | None:
    try:
        read_trace(path)
    except SpecError as error:
        return str(error)
    return None


def test_a_damaged_parquet_file_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    whole = azure(tmp_path / "whole").read_bytes()
    dice, n_refused = random.Random(0), 0
    path = tmp_path / "damaged"
    for _ in range(150):
        data = bytearray(
            whole[: dice.choice([len(whole), len(whole), dice.randrange(4, len(whole))])]
        )
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(4, len(data))] = dice.randrange(256)
        path.write_bytes(data)
        refused = refusal(path)
        n_refused += refused is not None
        assert refused is None or re.fullmatch(r".*damaged: .*", refused)
    assert n_refused > 50


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = azure(tmp_path / "t.parquet")
    packed = tmp_path / "t.zst"
    packed.write_bytes(zstd(b"5\n"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SpecError, match="Parquet is read with pyarrow") as caught:
        read_trace(path)
    assert caught.value.advice == ("pip install 'lrkv-plan[trace]'",)
    with pytest.raises(SpecError, match="zstd is read with pyarrow"):
        read_lengths(packed)


LINES = b"".join(b"%d\n" % (i % 977) for i in range(20_000))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gz(LINES)[:-9], "cannot be unpacked: Compressed file ended"),
        (gz(LINES)[:-8] + b"\0" * 8, "cannot be unpacked: CRC check failed"),
        (gz(LINES) + b"more", "cannot be unpacked: Not a gzipped file"),
        (zstd(LINES)[:-9], "cannot be unpacked|cannot be read|Truncated"),
        (zstd(LINES)[:8] + b"\xff" * 20, "cannot be unpacked: "),
        (gz(gz(LINES)), "line 1: .*packed with gzip twice"),
        (gz(b"PAR1" + LINES), "line 1: .*a Parquet file; Parquet packs"),
        (gz(b"\0" * 2**22), "a line has more than 1,048,576 bytes"),
        (gz(b"5\n" + b"\0" * 2**18 + b"\n"), "line 2: byte 0x00: must be UTF-8"),
        (gz(b"5\n7\nx\n"), "line 3: length 'x': must be a whole"),
        (gz(b""), "empty: at least one line"),
        (b"BZh91AY&SY", "line 1: .*compressed with bzip2"),
        (b"\xfd7zXZ\0", "line 1: .*compressed with xz"),
    ],
)  # fmt: skip
def test_a_damaged_or_twice_packed_file_is_one_line(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "lengths"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=message) as caught:
        read_lengths(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pack", [gz, zstd])
def test_a_bomb_is_refused_as_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"1\n" * 2**15))  # 64 KiB of lines in some hundred bytes
    assert read_lengths(path).n_sequences == 2**15
    monkeypatch.setattr(text_blocks, "FREELY_UNPACKED_BYTES", 2**10)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 2**12)
    with pytest.raises(SpecError, match="unpacks to over 200 times its size"):
        read_lengths(path)


def test_a_folder_and_a_pattern_are_one_trace(tmp_path: Path) -> None:
    late, early = "2024-05-10 00:00:09,1,1\n", "2024-05-10 00:00:00,2,2\n2024-05-10 00:00:09,3,3\n"
    folder = tmp_path / "days"
    folder.mkdir()
    (folder / "a.csv").write_text(AZURE + late)
    (folder / "b.csv.gz").write_bytes(gz((AZURE + early).encode()))
    (folder / "README.md").write_text("about")
    (folder / "_SUCCESS.csv").write_text("")
    (folder / ".part.csv").write_text("")
    for path in (folder, folder / "*.csv*", tmp_path / "*" / "[ab].csv*"):
        if path == folder / "*.csv*":
            (folder / "_SUCCESS.csv").unlink()
        population = read_trace(path)
        assert population.first_prompt_tokens.tolist() == [
            2,
            1,
            3,
        ]  # ties in the order of the files
        assert population.name == path.name
        assert population.remarks == (
            "read as Azure LLM inference",
            "2 files, a.csv to b.csv.gz",
            "timestamps were out of order; rows were sorted by arrival",
        )
    parquet(folder / "c.parquet", timestamp=[1], input_length=[1], output_length=[1])
    with pytest.raises(SpecError, match=r"c.parquet: holds Mooncake, but .*a.csv holds Azure"):
        read_trace(folder)


def test_a_file_may_be_named_like_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "l[1].txt"
    path.write_text("5\n")
    assert read_lengths(path).lengths.first.tolist() == [5]


def test_what_names_no_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="a folder without files that end in"):
        read_trace(tmp_path)
    with pytest.raises(SpecError, match="no file matches this pattern"):
        read_trace(tmp_path / "*.csv")
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(BURST)
    with pytest.raises(SpecError, match=r"a.csv: holds only a header"):
        read_trace(tmp_path)
    monkeypatch.setattr(request_files, "MAX_FILES", 1)
    for path in (tmp_path, tmp_path / "*.csv"):
        with pytest.raises(SpecError, match="more than 1 files"):
            read_trace(path)


def test_a_long_reading_says_how_far_it_is(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "l.txt").write_bytes(LINES)
    parquet(tmp_path / "l.parquet", n=[1, 2, 3])
    with listening(told.append, after_s=0, every_s=0):
        read_lengths(tmp_path / "l.txt")
        read_lengths(tmp_path / "l.parquet")
    assert told[0] == "l.txt: 100 %"
    assert told[-1] == "l.parquet: 3 of 3 rows"
    told.clear()
    with listening(told.append, after_s=3600):
        read_lengths(tmp_path / "l.txt")
    assert not told
