"""A sweep's rows on disk: a folder of Parquet files, each there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import __version__
from lrkv_plan.errors import ArgumentError, PlanError
from lrkv_plan.sweeping.evaluation import Counts, Part, Sweep, joined
from lrkv_plan.sweeping.reduction import best_first

if TYPE_CHECKING:
    import pandas

_TOGETHER = 64  # parts that are joined before they are reduced


def digest_of(sweep: Sweep) -> str:
    """What tells one sweep from another: all of the grid, the condition and the reduction."""
    reduction = sweep.reduction
    name = getattr(reduction.function, "__qualname__", None)
    told = (
        __version__, sweep.grid, sweep.where and sweep.where.text, reduction.kind, name,
        reduction.objectives, reduction.by, reduction.most,
    )  # fmt: skip
    return sha256(repr(told).encode()).hexdigest()


class Folder:
    """A folder of Parquet files, one per chunk: ``sweep.json`` says whose.

    Raises
    ------
    ArgumentError
        If the folder holds something else, or another sweep.
    PlanError
        If pyarrow is not installed.
    """

    def __init__(self, path: Path, sweep: Sweep, n_chunks: int) -> None:
        self.path, self.sweep, self.n_chunks = path, sweep, n_chunks
        _parquet()
        self._claim()

    def _claim(self) -> None:
        described = self.path / "sweep.json"
        told = {
            "tool_version": __version__, "digest": digest_of(self.sweep),
            "n_points": self.sweep.grid.n_points, "n_parts": self.n_chunks,
        }  # fmt: skip
        if self.path.exists() and not self.path.is_dir():
            raise ArgumentError("out", f" {self.path}: is no folder")
        if described.exists():
            try:
                found = json.loads(described.read_text(encoding="utf-8"))
                digest = found["digest"]
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise ArgumentError("out", f" {described}: cannot be read: {error}") from None
            if digest != told["digest"]:
                raise ArgumentError(
                    "out", f" {self.path}: holds another sweep; name another folder, or delete it"
                )
            return
        if self.path.is_dir() and any(self.path.iterdir()):
            raise ArgumentError("out", f" {self.path}: is not empty and holds no sweep")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _write_whole(described, json.dumps(told, indent=2).encode() + b"\n")
        except OSError as error:
            raise ArgumentError("out", f" {self.path}: {error.strerror or error}") from None

    def part(self, number: int) -> Path:
        """The file of a chunk."""
        return self.path / f"part-{number:06d}.parquet"

    def done(self) -> dict[int, Counts]:
        """The chunks whose files are there, and what was counted of each."""
        parquet, found = _parquet(), {}
        for number in range(self.n_chunks):
            path = self.part(number)
            if not path.exists():
                continue
            try:
                told = parquet.read_schema(path).metadata[b"counts"]
                found[number] = Counts(**json.loads(told))
            except Exception as error:  # pyarrow's own kinds
                raise ArgumentError(
                    "out", f" {path}: cannot be read; delete it to have it written again"
                ) from error
        return found

    def write(self, part: Part) -> None:
        """Write the file of a chunk, whole or not at all."""
        self._write(self.part(part.number), part.frame, part.counts)

    def _write(self, path: Path, frame: pandas.DataFrame, counts: Counts) -> None:
        import pyarrow

        table = pyarrow.Table.from_pandas(frame, preserve_index=False)
        known = {**(table.schema.metadata or {}), b"counts": json.dumps(asdict(counts)).encode()}
        unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
        try:
            _parquet().write_table(table.replace_schema_metadata(known), unfinished)
            os.replace(unfinished, path)
        except OSError as error:
            raise ArgumentError("out", f" {path}: {error.strerror or error}") from None
        finally:
            unfinished.unlink(missing_ok=True)

    def frames(self) -> Iterator[pandas.DataFrame]:
        """The parts in order."""
        import pandas

        for number in range(self.n_chunks):
            yield pandas.read_parquet(self.part(number))

    def n_rows(self) -> int:
        """Rows of all parts."""
        parquet = _parquet()
        return sum(parquet.read_metadata(self.part(n)).num_rows for n in range(self.n_chunks))

    def reduced(self, counts: Counts) -> pandas.DataFrame | None:
        """What is left of all parts, also written beside them; None where nothing is reduced."""
        reduction = self.sweep.reduction
        if reduction.kind == "all":
            return None
        whole: list[pandas.DataFrame] = []
        for frame in self.frames():
            whole.append(frame)
            if len(whole) > _TOGETHER:
                whole = [reduction.of_frame(joined(whole))]
        frame = best_first(reduction, reduction.of_frame(joined(whole)))
        self._write(self.path / "reduced.parquet", frame, counts)
        return frame


def _write_whole(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def _parquet() -> Any:
    """pyarrow's reader and writer of Parquet files."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise PlanError(
            "Parquet files need pyarrow; install it with: pip install 'lrkv-plan[cluster]'"
        ) from None
    return pyarrow.parquet
