"""Where chunks are evaluated, one after another or on many processes or machines, and kept.

Whatever order chunks come back in, what is left is the same: parts are joined by their number.
With a folder each part is a Parquet file that is there whole or not at all, so that a sweep that
was stopped goes on with the parts that are missing.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import ArgumentError, PlanError, shown
from lrkv_plan.progress import tell_progress
from lrkv_plan.sweeping.evaluation import Counts, Part, Sweep, evaluate, joined
from lrkv_plan.sweeping.folder import Folder
from lrkv_plan.sweeping.grid import Chunk, chunks
from lrkv_plan.sweeping.reduction import best_first

if TYPE_CHECKING:
    import pandas

Progress = Callable[[int, int], None]
MOST_ROWS = 5_000_000  # that are kept in memory
PROCESSES_FROM = 4_000_000  # points; below, starting processes takes longer than the sweep
_RESTARTS = 5  # of a pool whose processes were killed, without a chunk coming back in between
_AHEAD = 2  # chunks under way for each process: none waits, and memory stays flat


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is left of all chunks; no ``frame`` where all rows lie in the folder alone."""

    frame: pandas.DataFrame | None
    counts: Counts
    n_rows: int


def run(
    sweep: Sweep,
    *,
    executor: Any = None,
    workers: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Evaluate all chunks of a sweep.

    Parameters
    ----------
    executor : None takes processes where the grid is large; or ``serial``, ``processes``, ``dask``
        (on this machine), ``dask:ADDRESS``, or any ``concurrent.futures.Executor``.
    workers : processes; the machine's cores when None.
    folder : where the parts are written, and where those that are there already stay.
    progress : called with the points that are done and all of them.

    Raises
    ------
    ArgumentError
        If the folder holds another sweep, too many rows would be kept in memory, or the executor
        is unknown.
    PlanError
        If pyarrow or Dask is needed and not installed, or processes are killed again and again.
    """
    every = list(chunks(sweep.grid))
    store = None if folder is None else Folder(folder, sweep, len(every))
    done = {} if store is None else store.done()
    todo = [chunk for chunk in every if chunk.number not in done]
    gathered = _Gathered(sweep, store, done)
    seen = sum(chunk.n_points(sweep.grid) for chunk in every) - sum(
        chunk.n_points(sweep.grid) for chunk in todo
    )
    started = time.monotonic()
    for part in _parts(sweep, todo, executor, workers):
        gathered.take(part)
        seen += part.counts.points
        if progress is not None:
            progress(seen, sweep.grid.n_points)
        took = time.monotonic() - started
        tell_progress(functools.partial(_told, seen, sweep.grid.n_points, took))
    return gathered.outcome()


def _told(seen: int, n_points: int, took_s: float) -> str:
    left_s = took_s / max(1, seen) * (n_points - seen)
    return f"{seen:,} of {n_points:,} points, about {left_s:,.0f} s left"


class _Gathered:
    """Parts joined in their order, as far as they have come back without a gap."""

    def __init__(self, sweep: Sweep, store: Folder | None, done: dict[int, Counts]) -> None:
        self.sweep, self.store = sweep, store
        self.counts = sum(done.values(), Counts())
        self.waiting: dict[int, pandas.DataFrame] = {}
        self.ready: list[pandas.DataFrame] = []
        self.next = 0
        self.n_rows = 0

    def take(self, part: Part) -> None:
        """Keep a part: in the folder, or in memory."""
        self.counts += part.counts
        if self.store is not None:
            self.store.write(part)
            return
        self.waiting[part.number] = part.frame
        while self.next in self.waiting:
            self.ready.append(self.waiting.pop(self.next))
            self.next += 1
        self.n_rows += len(part.frame)
        if self.n_rows > MOST_ROWS or len(self.ready) > 64:
            self._merge()
        if self.n_rows > MOST_ROWS:
            raise ArgumentError(
                ["reduce", "out"],
                f": more than {MOST_ROWS:,} rows would be kept in memory; thin them out (where, "
                "reduce), or name a folder for them (out)",
            )

    def _merge(self) -> None:
        whole = self.sweep.reduction.of_frame(joined(self.ready)) if self.ready else None
        self.ready = [] if whole is None else [whole]
        self.n_rows = sum(map(len, (*self.ready, *self.waiting.values())))

    def outcome(self) -> Outcome:
        """All that is left."""
        if self.store is None:
            self._merge()
            frame = best_first(self.sweep.reduction, self.ready[0])
            return Outcome(frame=frame, counts=self.counts, n_rows=self.n_rows)
        frame = self.store.reduced(self.counts)
        n_rows = self.store.n_rows() if frame is None else len(frame)
        return Outcome(frame=frame, counts=self.counts, n_rows=n_rows)


def _parts(
    sweep: Sweep, todo: Sequence[Chunk], executor: Any, workers: int | None
) -> Iterable[Part]:
    n_points = sum(chunk.n_points(sweep.grid) for chunk in todo)
    is_elsewhere = str(executor).startswith("dask:") and executor != "dask:local"
    if workers is not None and (is_elsewhere or (executor == "serial" and workers > 1)):
        raise ArgumentError(
            "workers", f" {workers}: is of this machine's processes; leave it out here"
        )
    if isinstance(executor, Executor):
        return _submitted(executor, sweep, todo, workers or _cores())
    if executor is None:
        is_large = n_points >= PROCESSES_FROM and len(todo) > 1 and (workers or _cores()) > 1
        executor = "processes" if is_large else "serial"
    if executor == "serial":
        return (evaluate(sweep, chunk) for chunk in todo)
    if executor == "processes":
        return _processes(sweep, todo, min(workers or _cores(), max(1, len(todo))))
    name, _, address = str(executor).partition(":")
    if name == "dask":
        return _dask(sweep, todo, address or "local", workers)
    raise ArgumentError(
        "executor", f" {shown(executor)}: one of serial, processes, dask, dask:ADDRESS, or a "
        "concurrent.futures.Executor",
    )  # fmt: skip


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _submitted(pool: Executor, sweep: Sweep, todo: Sequence[Chunk], workers: int) -> Iterator[Part]:
    yield from _windowed(lambda chunk: pool.submit(evaluate, sweep, chunk), todo, _AHEAD * workers)


def _windowed(
    submit: Callable[[Chunk], Future[Part]], todo: Iterable[Chunk], most: int
) -> Iterator[Part]:
    """Parts as they come back, with at most so many under way."""
    under_way: set[Future[Part]] = set()
    left = iter(todo)
    try:
        while True:
            while len(under_way) < most and (chunk := next(left, None)) is not None:
                under_way.add(submit(chunk))
            if not under_way:
                return
            finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for one in finished:
                yield one.result()
    finally:
        for one in under_way:
            one.cancel()


_sweep_here: Sweep  # of a process that evaluates chunks


def _begin(sweep: Sweep) -> None:
    global _sweep_here
    _sweep_here = sweep


def _evaluate_here(chunk: Chunk) -> Part:
    return evaluate(_sweep_here, chunk)


def _processes(sweep: Sweep, todo: Sequence[Chunk], workers: int) -> Iterator[Part]:
    """Chunks on processes of this machine; where one is killed, its chunk is evaluated again.

    Raises
    ------
    PlanError
        If processes are killed again and again.
    """
    left = {chunk.number: chunk for chunk in todo}
    failures = 0
    while left:
        pool = ProcessPoolExecutor(
            workers, mp_context=_context(), initializer=_begin, initargs=(sweep,)
        )
        try:
            for part in _windowed(_sender(pool), list(left.values()), _AHEAD * workers):
                del left[part.number]
                failures = 0
                yield part
        except BrokenProcessPool:
            failures += 1
            if failures > _RESTARTS:
                raise PlanError(
                    f"processes of the sweep were killed {failures} times in a row; is there "
                    "memory for them? try fewer (workers)"
                ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _sender(pool: Executor) -> Callable[[Chunk], Future[Part]]:
    return lambda chunk: pool.submit(_evaluate_here, chunk)


def _context() -> Any:
    """Forked where the system forks: a script needs no guard for that."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


def _dask(sweep: Sweep, todo: Sequence[Chunk], address: str, workers: int | None) -> Iterator[Part]:
    """Chunks on a Dask cluster: one of this machine's processes, or that at an address.

    Dask evaluates a chunk again whose worker was lost.

    Raises
    ------
    PlanError
        If Dask is not installed, the address does not answer, or chunks cannot be evaluated there.
    """
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError:
        raise PlanError(
            "Dask is not installed; install it with: pip install 'lrkv-plan[cluster]'"
        ) from None
    with contextlib.ExitStack() as stack:
        if address == "local":
            n_workers = min(workers or _cores(), max(1, len(todo)))
            cluster: Any = LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=n_workers, threads_per_worker=1, processes=True,
                dashboard_address=None, silence_logs=50,
            )  # fmt: skip
            stack.enter_context(cluster)
            client: Any = Client(cluster)  # type: ignore[no-untyped-call]
        else:
            try:
                client = Client(address, timeout=20)  # type: ignore[no-untyped-call]
            except (OSError, ValueError) as error:
                raise PlanError(f"no Dask scheduler answers at {address}: {error}") from None
        stack.enter_context(client)
        yield from _on_dask(client, sweep, todo, as_completed)


def _on_dask(client: Any, sweep: Sweep, todo: Sequence[Chunk], as_completed: Any) -> Iterator[Part]:
    n_threads = max(1, sum(client.nthreads().values()))
    left = iter(todo)

    def send() -> list[Any]:
        chunk = next(left, None)
        return [] if chunk is None else [client.submit(evaluate, sweep, chunk, pure=False)]

    first = [future for _ in range(_AHEAD * n_threads) for future in send()]
    coming = as_completed(first)
    for future in coming:
        try:
            part = future.result()
        except PlanError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            raise PlanError(f"a chunk could not be evaluated on Dask: {told}") from error
        for following in send():
            coming.add(following)
        future.release()
        yield part
