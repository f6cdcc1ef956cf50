"""Files of lengths and stated percentiles: read whole, or refused in one line with its place."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.errors import SpecError, UsageError
from lrkv_plan.specs import text_blocks as line_blocks
from lrkv_plan.specs.lengths import parse_percentiles, read_lengths
from tests.drawing import drawn


def write(tmp_path: Path, data: str | bytes, name: str = "lengths.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize(
    ("text", "column", "lengths"),
    [
        ("5\n7\n", None, [5, 7]),
        ("5\n7", None, [5, 7]),
        ("\ufeff5\r\n\r\n# seven\r\n 7 \r\n", None, [5, 7]),
        ("tokens\n5\n7\n", None, [5, 7]),
        ("tokens\n5\n7\n", "tokens", [5, 7]),
        ("# made by hand\nuser, tokens\na, 5\n\n# more\nb,7\n", "tokens", [5, 7]),
        ('"text","tokens"\n"a, b",5\n"say ""x""",7\n', "tokens", [5, 7]),
        (",tokens\n0,5\n1,7\n", "tokens", [5, 7]),  # an unnamed index column
        ("0005\n1000000000\n", None, [5, 10**9]),
    ],
)
def test_lengths_are_read_in_file_order(
    tmp_path: Path, text: str, column: str | None, lengths: list[int]
) -> None:
    population = read_lengths(write(tmp_path, text), column)
    assert population.lengths.first.tolist() == lengths
    assert population.first_prompt_tokens.tolist() == lengths
    assert population.first_output_tokens.tolist() == [0, 0]
    assert population.lengths.first.dtype == np.int64
    assert (population.name, population.n_sequences, population.remarks) == ("lengths.txt", 2, ())


def test_empty_sequences_are_dropped_and_counted(tmp_path: Path) -> None:
    population = read_lengths(write(tmp_path, "0\n5\n0\n"))
    assert population.lengths.first.tolist() == [5]
    assert population.remarks == ("dropped 2 of 3 rows that hold no token",)


WHOLE = "must be a whole number of tokens"
BAD_FILES: list[tuple[str | bytes, str | None, str]] = [
    ("5\n-7\n", None, "line 2: length '-7': must be a whole number of tokens from 0 to"),
    ("5\n\n# c\n7.5\n", None, f"line 4: length '7.5': {WHOLE}"),
    ("5\n2k\n", None, f"line 2: length '2k': {WHOLE}.*write 2048, not '2k'"),
    ("2k\n5\n", None, f"line 1: length '2k': {WHOLE}"),
    ("5\n2048 tokens\n", None, f"line 2: length '2048 tokens': {WHOLE}"),
    ("5\n1_000\n", None, f"line 2: length '1_000': {WHOLE}"),
    ("5\n1e3\n", None, f"line 2: length '1e3': {WHOLE}"),
    ("5\nNaN\n", None, f"line 2: length 'NaN': {WHOLE}"),
    ("NaN\n5\n", None, f"line 1: length 'NaN': {WHOLE}"),
    ("5\n٣\n", None, f"line 2: length '٣': {WHOLE}"),
    ("5\n7\r8\n", None, "line 2: holds a carriage return"),
    ("a,b\r5,7\r", "a", "line 1: holds a carriage return"),
    ("5\n7\n" + '"' + "8" * 140_000 + '"' + "\n", None, "line 3: .*must be a whole number"),
    ("a,b\n5," + "8" * 140_000 + "\n", "a", "line 2: .*field larger than field limit"),
    ("5\n1000000001\n", None, "line 2: length '1000000001': .* to 1,000,000,000"),
    ("5\n" + "9" * 5000 + "\n", None, f"line 2: length '9{{20}}.*{WHOLE}"),
    ("0\n0\n", None, "all 2 sequences hold 0 tokens"),
    ("", None, "empty: at least one line"),
    ("\n \n# 5\n", None, "empty: at least one line"),
    ("tokens\n", None, "holds only a header"),
    ("5\n7\n", "tokens", "line 1: '5': no header, so no column 'tokens'"),
    ("5,7\n", None, "line 1: '5,7': several values on a line need a header"),
    ("a,b\n1,2\n", None, "line 1: 'a,b': has 2 columns; name the one that holds lengths: a, b"),
    ("user,tokens\na,5\n", "token", "column 'token': no column.*user, tokens; did you mean 'tok"),
    ("t,t\n1,2\n", "t", "line 1: column 't': more than one column"),
    ("user,tokens\na\n", "tokens", "line 2: 'a': has 1 values: the header names 2"),
    ("user,tokens\na,5,6\n", "tokens", "line 2: 'a,5,6': has 3 values"),
    ("user,tokens\na,5\nb,\n", "tokens", f"line 3: tokens '': {WHOLE}"),
    ('user,tokens\n"a\nb",5\n', "tokens", "line 2: '\"a': not one line of CSV"),
    ('user,tokens\na,5\n"b,7\n', "tokens", "line 3: '\"b,7': not one line of CSV"),
    (b"5\n\xff\n", None, "line 2: byte 0xff: must be UTF-8 text"),
    ("5\n7\n".encode("utf-16"), None, "line 1: byte 0x.*must be UTF-8 text"),
    (b"5\n7\x00\n", None, "line 2: byte 0x00: must be UTF-8 text"),
    (b"\x1f\x8b\x08\x00", None, "cannot be unpacked: Compressed file ended"),
    (b"PK\x03\x04\x00", None, "line 1: .*a zip archive"),
    (b"PAR1\x15", None, "Parquet"),
    ("version https://git-lfs.github.com/spec/v1\n", None, "a Git LFS pointer, not the data"),
    ("just prose\nand more\n", None, f"line 2: just prose 'and more': {WHOLE}"),
]


@pytest.mark.parametrize(("data", "column", "message"), BAD_FILES)
def test_a_bad_file_is_one_line_with_its_place(
    tmp_path: Path, data: str | bytes, column: str | None, message: str
) -> None:
    path = write(tmp_path, data)
    with pytest.raises(SpecError, match=message) as caught:
        read_lengths(path, column)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "nul\0byte", tmp_path / "*.csv"):
        with pytest.raises(
            SpecError,
            match=r"cannot be read: |is not a path|a folder without files|no file matches",
        ):
            read_lengths(path)


def test_a_huge_file_or_line_is_refused_without_reading_it(tmp_path: Path) -> None:
    huge = tmp_path / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(line_blocks.MAX_FILE_BYTES + 1)
    with pytest.raises(SpecError, match="larger than 1024 GiB"):
        read_lengths(huge)
    with pytest.raises(SpecError, match="a line has more than 1,048,576 bytes"):
        read_lengths(write(tmp_path, "7" * 2**22))


def test_lines_are_numbered_across_blocks(tmp_path: Path) -> None:
    n_lines = 200_000  # 1.2 MB: several blocks
    good = "12345\n" * n_lines
    assert read_lengths(write(tmp_path, good)).lengths.first.sum() == 12345 * n_lines
    with pytest.raises(SpecError, match=f"line {n_lines + 3}: length 'x'"):
        read_lengths(write(tmp_path, good + "\n#\nx\n"))


@settings(max_examples=drawn(50))
@given(st.lists(st.integers(0, 10**9), min_size=1).filter(any), st.sampled_from(["\n", "\r\n"]))
def test_any_lengths_come_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], line_end: str
) -> None:
    path = write(tmp_path_factory.mktemp("lengths"), line_end.join(map(str, lengths)))
    assert read_lengths(path).lengths.first.tolist() == [length for length in lengths if length]


@settings(max_examples=drawn(200))
@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = write(tmp_path_factory.mktemp("junk"), data)
    try:
        what = f"{read_lengths(path).n_sequences} sequences"
    except SpecError as error:
        what = str(error)
    assert re.fullmatch(r"[1-9]\d* sequences|.*: .*", what)


def test_percentiles_are_interpolated_in_the_logarithm() -> None:
    # Two sequences stand at p25 and p75: 16**0.25 = 2 and 16**0.75 = 8.
    assert sorted(parse_percentiles("p0=1,p100=16", 2).lengths.first.tolist()) == [2, 8]
    # Four stand at p12.5, 37.5, 62.5, 87.5; between p25 = 1k and p75 = 4k the second is a
    # quarter of the way: 1024 * 4**0.25 = 1448.2, the third 1024 * 4**0.75 = 2896.3.
    four = parse_percentiles("p25=1k, p75=4k", 4)
    assert sorted(four.lengths.first.tolist()) == [1024, 1448, 2896, 4096]
    assert four.first_output_tokens.tolist() == [0] * 4
    assert four.name == "p25=1k, p75=4k"


def test_percentiles_say_what_they_leave_open() -> None:
    remarks = " ".join(parse_percentiles("p50=2k,p99.9=32k").remarks)
    assert "above p99.9 every length is taken as 32,768 tokens, which under-states the tail" in (
        remarks
    )
    assert "below p50 every length is taken as 2,048 tokens" in remarks
    whole = " ".join(parse_percentiles("p0=1,p100=8").remarks)
    assert "above" not in whole
    assert "below" not in whole


def test_one_percentile_makes_equal_lengths() -> None:
    assert set(parse_percentiles("P50=777").lengths.first.tolist()) == {777}
    assert parse_percentiles("p50=777").n_sequences == 1000


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=6, unique=True).map(sorted),
    st.lists(st.integers(1, 10**6), min_size=6, max_size=6).map(sorted),
    st.integers(1, 500),
)
def test_made_lengths_stay_within_the_stated_and_keep_their_percentiles(
    percentiles: list[int], tokens: list[int], n_sequences: int
) -> None:
    stated = list(zip(percentiles, tokens[: len(percentiles)], strict=True))
    lengths = parse_percentiles(",".join(f"p{p}={t}" for p, t in stated), n_sequences).lengths.first
    assert lengths.size == n_sequences
    assert stated[0][1] <= lengths.min()
    assert lengths.max() <= stated[-1][1]
    for percentile, length in stated:
        below = int((lengths < length).sum())
        assert below <= np.ceil(percentile * n_sequences / 100)


def test_a_prefix_of_the_made_arrivals_looks_like_the_whole() -> None:
    lengths = parse_percentiles("p0=100,p100=10000", 1000).lengths.first
    tenth, mean = lengths[:100].mean(), lengths.mean()
    assert tenth == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(
    ("text", "n_sequences", "message"),
    [
        ("", 10, "is not a percentile and its length"),
        ("50=2k", 10, "'50=2k' is not a percentile"),
        ("p50", 10, "is not a percentile"),
        ("p50=2,048", 10, "'048' is not a percentile.*without commas inside numbers"),
        ("p50=2k,,p95=4k", 10, "'' is not a percentile"),
        ("p-5=2k", 10, "is not a percentile"),
        ("p101=2k", 10, "percentiles are from 0 to 100"),
        ("p50=2g", 10, "is not a number of tokens"),
        ("p50=0", 10, "must be a whole number from 1"),
        ("p50=1.5", 10, "must be a whole number"),
        ("p50=1000000001", 10, "lengths from 1 to 1,000,000,000"),
        ("p95=4k,p50=2k", 10, "must ascend"),
        ("p50=2k,p50=4k", 10, "must ascend"),
        ("p50=4k,p95=2k", 10, "lengths must not fall"),
        ("p50=2k", 0, "n_sequences 0"),
        ("p50=2k", 10**8, "n_sequences 100000000"),
    ],
)
def test_impossible_percentiles_are_refused(text: str, n_sequences: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_percentiles(text, n_sequences)


@given(st.text(max_size=30))
def test_any_text_is_percentiles_or_refused(text: str) -> None:
    try:
        what = f"{parse_percentiles(text, 3).n_sequences} sequences"
    except UsageError as error:
        what = str(error)
    assert re.fullmatch("3 sequences|.* .*", what)
