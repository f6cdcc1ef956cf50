"""Samples on disk: what is written is read back, what was cut is dropped, nothing is doubled."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lrkv_plan.calibration.samples import COLUMNS, DecodeSample, SampleFile, by_point, read_samples
from lrkv_plan.errors import CalibrationError

SAMPLE = DecodeSample(
    point="lrkv/factored fp32 lrkv:55 16x128 B1 T64 q1", round=0, role="rank",
    path="lrkv/factored", kernel="low_rank", device="cpu", device_name="Some, CPU", dtype="fp32",
    attention="lrkv:55", n_heads=16, n_copies=16, head_dim=128, rank=55, latent_dim=0,
    batch_size=1, context_tokens=64, query_tokens=1, page_tokens=0, cache_state="cold", threads=1,
    n_bytes=516096.0, flops=2.5e6, work_units=16.0, allocated_bytes=516096,
    predicted_bytes=516096, peak_bytes=0, repeats_s=(1.25e-4, 1.5e-4), controls_s=(0.01, 0.02),
)  # fmt: skip


def written(path: Path, *samples: DecodeSample) -> Path:
    file = SampleFile(path)
    for sample in samples:
        file.append(sample)
    file.close()
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    hot = replace(SAMPLE, round=1, controls_s=())
    path = written(tmp_path / "s.csv", SAMPLE, hot)
    assert read_samples(path) == [SAMPLE, hot]
    assert by_point([SAMPLE, hot]) == {SAMPLE.point: [SAMPLE, hot]}


def test_a_cut_row_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "s.csv", SAMPLE, replace(SAMPLE, round=1))
    whole = path.read_bytes()
    first = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for cut in (first, first + 1, first + 60, len(whole) - 1):  # before, inside, at the last byte
        path.write_bytes(whole[:cut])
        file = SampleFile(path)
        assert file.rows == [SAMPLE]
        file.append(replace(SAMPLE, round=1))
        file.close()
        assert path.read_bytes() == whole


def test_a_file_cut_in_its_header_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(",".join(COLUMNS)[:40])
    assert read_samples(written(path, SAMPLE)) == [SAMPLE]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rank,lrkv/factored", "sideways,lrkv/factored", "role 'sideways'"),
        ("0.000125;0.00015", "0.000125;x", "column repeats_s"),
        ("0.000125;0.00015", "0.000125;-1", "not negative"),
        ("0.000125;0.00015", "0.000125;nan", "finite"),
        ("0.000125;0.00015", "", "above 0"),
        ("0.01;0.02", "0.01", "as many as repeats_s"),
        ("516096.0", "0.0", "above 0"),
        (",16,16,128", ",16,16", "is no value"),
        ("n_heads,", "", "lacks the columns n_heads"),
    ],
)
def test_a_damaged_cell_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = written(tmp_path / "s.csv", SAMPLE)
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new).encode())
    with pytest.raises(CalibrationError, match=words):
        read_samples(path)


def test_a_doubled_round_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "s.csv", SAMPLE)
    row = path.read_bytes().splitlines(keepends=True)[1]
    path.write_bytes(path.read_bytes() + row)
    with pytest.raises(CalibrationError, match="round 0 is there twice"):
        read_samples(path)


def test_what_is_no_table_ends_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    for data in (b"\xff\xfe\x00", b"", b"a,b\n1,2\n", b'"\n' * 5):
        path.write_bytes(data)
        with pytest.raises(CalibrationError):
            read_samples(path)
    with pytest.raises(CalibrationError, match="cannot be read"):
        read_samples(tmp_path / "missing.csv")


class FullDisk:
    """A file that takes ``room`` bytes, and no more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> int:
        written: int = self._file.write(data[: self._room])
        self._room -= written
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_takes_whole_rows_only_and_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    file = SampleFile(path)
    file.append(SAMPLE)
    file._file = FullDisk(file._file, room=50)
    with pytest.raises(CalibrationError, match="No space left on device; the 1 samples in it are"):
        file.append(replace(SAMPLE, round=1))
    assert read_samples(path) == [SAMPLE]
    file._file = FullDisk(file._file._file, room=10_000)
    file.append(replace(SAMPLE, round=1))
    file.close()
    assert read_samples(path) == [SAMPLE, replace(SAMPLE, round=1)]


def test_a_disk_that_is_full_at_the_end_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SampleFile(tmp_path / "s.csv")

    def fsync(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CalibrationError, match="No space left on device"):
        file.close()
    assert file._file.closed


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"repeats_s": (1e-320,), "controls_s": ()}, "every time must be above 0"),
        ({"controls_s": (0.0, 1.0)}, "every time must be above 0"),
        ({"n_bytes": 1e308}, "every number must be finite"),
        ({"n_heads": 0}, "column n_heads: must be at least 1"),
        ({"kernel": "unheard_of"}, "kernel 'unheard_of': one of"),
        ({"device": "tpu"}, "device 'tpu': one of cpu, cuda"),
        ({"dtype": "fp7"}, "dtype 'fp7': one of"),
    ],
)
def test_what_no_measurement_gives_is_named(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    path = written(tmp_path / "s.csv", replace(SAMPLE, **changed))
    with pytest.raises(CalibrationError, match=words):
        read_samples(path)


def test_rows_that_end_in_a_lone_cr_are_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "s.csv", SAMPLE)
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\r"))
    assert read_samples(path) == [SAMPLE]
