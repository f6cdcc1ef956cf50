"""Tables of calls that no machine measured: each ends in one line, in bounded time and memory."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from lrkv_plan.calibration import samples
from lrkv_plan.calibration.fit_run import holds_decode_samples
from lrkv_plan.calibration.samples import read_rows, samples_of
from lrkv_plan.errors import CalibrationError

HEADER = (
    "gpu,family,backend,kv_dtype,batch,kv_len,n_heads,n_kv_heads,head_dim,d_c,d_rope,latency_us"
)
GROUPED = "h200,gqa,made/up,bf16,1,1024,32,8,128,0,0,30"
LATENT = "h200,mla,made/up,bf16,1,1024,16,1,576,512,64,30"


def table(path: Path, *rows: str, end: str = "\n") -> Path:
    path.write_bytes(end.join([HEADER, *rows, ""]).encode())
    return path


def test_bytes_of_a_call_are_those_of_its_cache(tmp_path: Path) -> None:
    rows = read_rows(table(tmp_path / "t.csv", GROUPED))
    (n_bytes,) = samples_of(rows, bandwidth=1.0, peak=1.0).n_bytes
    assert n_bytes >= 2 * 1024 * 8 * 128 * 2  # keys and values of 8 heads of 128 in bf16


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_in_any_way(tmp_path: Path, end: str) -> None:
    rows = read_rows(table(tmp_path / "t.csv", GROUPED, LATENT, end=end))
    assert [row["family"] for row in rows] == ["gqa", "mla"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_and_a_device_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "f.csv"
    os.mkfifo(pipe)
    for path, what in ((pipe, "a named pipe"), (Path("/dev/zero"), "a device")):
        for read in (read_rows, holds_decode_samples):
            with pytest.raises(CalibrationError, match=f"is {what}; a file is needed"):
                read(path)  # type: ignore[operator]


def test_what_is_too_large_unpacked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MAX_TABLE_BYTES", 2**20)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"1" * (2**20 + 1)))
    assert path.stat().st_size < 2**12
    with pytest.raises(CalibrationError, match=r"larger than 1 MiB, .*\(once unpacked\)"):
        read_rows(path)
    plain = tmp_path / "t.csv"
    plain.write_bytes(b"1" * (2**20 + 1))
    with pytest.raises(CalibrationError, match="larger than 1 MiB"):
        read_rows(plain)


def test_long_lines_cells_and_tables_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path / "t.csv", GROUPED.replace("h200", "x" * 131_073))
    with pytest.raises(CalibrationError, match="line 1: is no CSV table: field larger"):
        read_rows(path)
    path = table(tmp_path / "t.csv", "1," * 2**19 + "1")
    with pytest.raises(CalibrationError, match="line 2: longer than"):
        read_rows(path)
    monkeypatch.setattr(samples, "MAX_ROWS", 2)
    with pytest.raises(CalibrationError, match="more than 2 rows"):
        read_rows(table(tmp_path / "t.csv", GROUPED, GROUPED, GROUPED))


@pytest.mark.parametrize(
    ("row", "words"),
    [("1", "line 2: has fewer cells"), (f"{GROUPED},9", "line 2: has more cells")],
)
def test_a_row_has_as_many_cells_as_the_header(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(CalibrationError, match=words):
        read_rows(table(tmp_path / "t.csv", row))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (GROUPED.replace(",32,8,", ",1e308,8,"), "column n_heads: every cell must be a positive"),
        (GROUPED.replace(",32,8,", ",32,1e308,"), "column n_kv_heads: .* from 1 to 1e\\+09"),
        (GROUPED.replace(",30", ",1e-320"), "column latency_us: .* from 0.001 to 1e\\+12"),
        (GROUPED.replace(",30", ",nan"), "column latency_us"),
        (LATENT.replace(",512,", ",,"), "column d_c: every cell must be a number"),
    ],
)
def test_a_cell_that_no_call_has_is_named(
    tmp_path: Path, row: str, words: str, recwarn: pytest.WarningsRecorder
) -> None:
    rows = read_rows(table(tmp_path / "t.csv", row))
    with pytest.raises(CalibrationError, match=words):
        samples_of(rows, bandwidth=1.0, peak=1.0)
    assert not recwarn.list


def test_a_latent_row_needs_the_latent_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEADER.replace(',d_c,d_rope', '')}\n{LATENT.replace(',512,64', '')}\n")
    with pytest.raises(CalibrationError, match="column d_c is missing; mla rows need it"):
        samples_of(read_rows(path), bandwidth=1.0, peak=1.0)
