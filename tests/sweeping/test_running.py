"""Wherever chunks are evaluated, and whatever is killed meanwhile, the rows are the same."""

from __future__ import annotations

import concurrent.futures
import os
import signal
from pathlib import Path
from typing import Any

import pandas
import pytest

import lrkv_plan
from lrkv_plan.errors import ArgumentError
from lrkv_plan.sweeping import evaluation, grid, running
from lrkv_plan.sweeping.evaluation import Part, Sweep
from lrkv_plan.sweeping.grid import Chunk

GRID: dict[str, Any] = {
    "gpus": "h100-sxm,h200", "designs": "own;lrkv:16..32:16", "context_tokens": "1k..16k:1k",
    "batch_size": [1, 8, 64, "full"], "tp_size": [1, 2, 3],
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = grid.chunks
    monkeypatch.setattr(running, "chunks", lambda one: whole(one, most_points=50))


def hashed(frame: pandas.DataFrame) -> int:
    return int(pandas.util.hash_pandas_object(frame, index=False).sum())


@pytest.fixture(scope="module")
def serial() -> int:
    return hashed(lrkv_plan.sweep("llama-3.1-8b", **GRID).frame)


def test_chunks_hold_every_point_once() -> None:
    swept = lrkv_plan.sweep("llama-3.1-8b", **GRID)
    assert swept.frame["point"].tolist() == list(range(swept.counts.points))


def test_processes_give_the_same_rows(serial: int) -> None:
    swept = lrkv_plan.sweep("llama-3.1-8b", executor="processes", workers=2, **GRID)
    assert hashed(swept.frame) == serial


def test_any_executor_gives_the_same_rows(serial: int) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        swept = lrkv_plan.sweep("llama-3.1-8b", executor=pool, **GRID)
    assert hashed(swept.frame) == serial


def test_progress_ends_at_all_points() -> None:
    seen: list[tuple[int, int]] = []
    swept = lrkv_plan.sweep(
        "llama-3.1-8b", progress=lambda *one: seen.append(one), reduce="min", **GRID
    )
    assert seen[-1] == (swept.counts.points,) * 2
    assert len(seen) > 5


def killed_once(marker: Path) -> Any:
    """An evaluation that kills its own process the first time."""
    whole = evaluation.evaluate

    def evaluate(sweep: Sweep, chunk: Chunk) -> Part:
        if chunk.number == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(sweep, chunk)

    return evaluate


def test_a_killed_process_loses_nothing(
    serial: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "evaluate", killed_once(tmp_path / "killed"))
    swept = lrkv_plan.sweep("llama-3.1-8b", executor="processes", workers=2, **GRID)
    assert (tmp_path / "killed").exists()
    assert hashed(swept.frame) == serial


def test_a_stopped_sweep_goes_on_in_its_folder(serial: int, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    class Stopped(Exception):
        pass

    def stop(done: int, n_points: int) -> None:
        if done > n_points / 2:
            raise Stopped

    out = tmp_path / "rows"
    with pytest.raises(Stopped):
        lrkv_plan.sweep("llama-3.1-8b", out=out, progress=stop, **GRID)
    before = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert before
    (out / "part-000007.99.unfinished").touch()  # of a process that was killed while it wrote
    swept = lrkv_plan.sweep("llama-3.1-8b", out=out, **GRID)
    after = {path: path.stat().st_mtime_ns for path in out.glob("part-*.parquet")}
    assert len(after) > len(before)
    assert {path: after[path] for path in before} == before
    assert hashed(swept.frame) == serial
    assert swept.counts.points == len(swept.frame)
    again = lrkv_plan.sweep("llama-3.1-8b", out=out, **GRID)
    assert again.counts == swept.counts


def test_a_reduced_sweep_is_written_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    told = {**GRID, "reduce": "pareto", "where": "users >= 8"}
    in_memory = lrkv_plan.sweep("llama-3.1-8b", **told)
    swept = lrkv_plan.sweep("llama-3.1-8b", out=tmp_path / "rows", **told)
    assert hashed(swept.frame) == hashed(in_memory.frame)
    written = pandas.read_parquet(tmp_path / "rows" / "reduced.parquet")
    assert written["point"].tolist() == swept.frame["point"].tolist()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "other.txt").touch()
    with pytest.raises(ArgumentError, match="is not empty and holds no sweep"):
        lrkv_plan.sweep("llama-3.1-8b", gpus="h200", out=tmp_path)
    with pytest.raises(ArgumentError, match="is no folder"):
        lrkv_plan.sweep("llama-3.1-8b", gpus="h200", out=tmp_path / "other.txt")
    assert [one.name for one in tmp_path.iterdir()] == ["other.txt"]
    rows = tmp_path / "rows"
    lrkv_plan.sweep("llama-3.1-8b", gpus="h200", out=rows)
    with pytest.raises(ArgumentError, match="holds another sweep"):
        lrkv_plan.sweep("llama-3.1-8b", gpus="h100-sxm", out=rows)
    (rows / "part-000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArgumentError, match="cannot be read; delete it"):
        lrkv_plan.sweep("llama-3.1-8b", gpus="h200", out=rows)
    (rows / "sweep.json").write_text("{")
    with pytest.raises(ArgumentError, match="cannot be read"):
        lrkv_plan.sweep("llama-3.1-8b", gpus="h200", out=rows)


def test_too_many_rows_for_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_ROWS", 200)
    with pytest.raises(ArgumentError, match="more than 200 rows would be kept"):
        lrkv_plan.sweep("llama-3.1-8b", **GRID)
    assert len(lrkv_plan.sweep("llama-3.1-8b", reduce="min", **GRID).rows) == 1


@pytest.mark.parametrize("executor", ["serial", "dask:tcp://127.0.0.1:1"])
def test_workers_that_would_not_be_there_are_refused(executor: str) -> None:
    with pytest.raises(ArgumentError, match="workers 4: is of this machine's processes"):
        lrkv_plan.sweep("llama-3.1-8b", gpus="h200", executor=executor, workers=4)


def test_an_unknown_executor_is_refused() -> None:
    with pytest.raises(ArgumentError, match="one of serial, processes, dask"):
        lrkv_plan.sweep("llama-3.1-8b", gpus="h200", executor="ray")


@pytest.mark.slow
def test_dask_gives_the_same_rows_and_loses_no_killed_worker(serial: int, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    out = tmp_path / "rows"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        killed = []

        def kill(done: int, n_points: int) -> None:
            if not killed:
                worker = next(iter(cluster.workers.values()))
                os.kill(worker.pid, signal.SIGKILL)
                killed.append(worker.pid)

        address = cluster.scheduler_address
        swept = lrkv_plan.sweep(
            "llama-3.1-8b", executor=f"dask:{address}", out=out, progress=kill, **GRID
        )
    assert killed
    assert hashed(swept.frame) == serial
