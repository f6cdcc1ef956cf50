"""A run loses nothing: killed, resumed, out of memory, in a folder that is taken."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan.calibration import run as run_module
from lrkv_plan.calibration import session
from lrkv_plan.calibration.decode_samples import DecodeSample, SampleFile, read_samples
from lrkv_plan.calibration.design import PlannedPoint
from lrkv_plan.calibration.run_info import SAMPLES_FILE, read_run_info
from lrkv_plan.calibration.session import RunOptions, RunOutcome, run_session
from lrkv_plan.errors import CalibrationError, UsageError

SMALL = RunOptions(device="cpu", paths=("lrkv/factored",), budget_s=60.0, seed=1)
ROUNDS = 4
BASE = PlannedPoint(
    path="lrkv/factored", attention="lrkv:5", n_heads=4, head_dim=16, batch_size=1,
    context_tokens=8, dtype="fp32", role="fit",
)  # fmt: skip


def quiet(_round: int, _left: int, _seconds: float) -> None:
    """No progress."""


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tiny points, no probes, and the core left as it was."""
    points = [replace(BASE, context_tokens=8 * k) for k in range(1, 7)]
    monkeypatch.setattr(session, "planned_points", lambda *_args, **_options: points)
    monkeypatch.setattr(session, "_runs_here", lambda _path: True)
    monkeypatch.setattr(session, "prepare_cpu", lambda threads: f"{threads} threads")
    monkeypatch.setattr(
        session,
        "measured_peaks",
        lambda *_args: {"stream_bytes_per_s": 1e10, "peak_flops_per_s": {"fp32": 1e11}},
    )
    monkeypatch.setattr(run_module, "MAX_ROUNDS", ROUNDS)


def ran(options: RunOptions, folder: Path) -> RunOutcome:
    return run_session(options, folder, quiet)


def rounds_of(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((s.point, s.round) for s in read_samples(folder / SAMPLES_FILE))


def test_a_run_measures_every_round_of_every_point_once(tmp_path: Path) -> None:
    outcome = ran(SMALL, tmp_path / "new" / "folder")
    assert (outcome.n_points, outcome.n_rounds, outcome.n_unmeasured) == (6, ROUNDS, 0)
    counted = rounds_of(outcome.folder)
    assert len(counted) == outcome.n_samples == 6 * ROUNDS
    assert set(counted.values()) == {1}


def test_allocated_bytes_are_the_predicted_ones(tmp_path: Path) -> None:
    samples = read_samples(ran(SMALL, tmp_path).folder / SAMPLES_FILE)
    # lrkv:5, 4 heads of 16, fp32: 2 (16 + 4 * 5) 4 = 288 bytes a token
    assert {s.allocated_bytes / s.context_tokens for s in samples} == {288.0}
    assert all(s.allocated_bytes == s.predicted_bytes for s in samples)


def test_measuring_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock is read before and after each point: 0 and 1 s, 2 and 3 s, ... The fifth point
    # begins at 8 s; at 10 s nothing begins.
    ticks = itertools.count()
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    outcome = ran(replace(SMALL, deadline=10.0), tmp_path)
    assert (outcome.n_samples, outcome.n_rounds, outcome.n_unmeasured) == (5, 0, 1)


def acknowledged(folder: Path, link: int, options: RunOptions) -> None:
    """Run, and say each sample over ``link`` as soon as it is on disk."""
    append = SampleFile.append

    def told(self: SampleFile, sample: DecodeSample) -> None:
        append(self, sample)
        os.write(link, f"{sample.point},{sample.round}\n".encode())

    SampleFile.append = told  # type: ignore[method-assign]
    run_session(options, folder, quiet)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ten_kills_lose_and_double_no_sample(tmp_path: Path) -> None:
    rng, seen = random.Random(7), set()
    fork = multiprocessing.get_context("fork")
    torch.set_num_threads(1)
    for kill in range(10):
        reader, writer = os.pipe()
        options = replace(SMALL, resume=kill > 0)
        child = fork.Process(target=acknowledged, args=(tmp_path, writer, options))
        child.start()
        os.close(writer)
        with os.fdopen(reader, "rb") as told:
            for _ in range(rng.randint(1, 2)):  # some samples are on disk, more are under way
                seen.add(told.readline().decode().strip())
            time.sleep(rng.uniform(0, 0.02))
            os.kill(child.pid or 0, signal.SIGKILL)
            seen |= set(told.read().decode().split("\n")[:-1])
        child.join()
        assert child.exitcode in (-signal.SIGKILL, 0)
    seen.discard("")
    outcome = ran(replace(SMALL, resume=True), tmp_path)
    counted = rounds_of(tmp_path)
    assert set(counted.values()) == {1}
    assert {f"{point},{number}" for point, number in counted} >= seen
    assert len(seen) >= 10
    assert outcome.n_rounds == ROUNDS
    assert len(counted) == 6 * ROUNDS


def test_what_memory_cannot_hold_is_left_out_before_it_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 48 tokens need 2 * 48 * 288 + 4 * 48 * 4 * (2 * 16 + 4) = 55,296 bytes; 80 % of 60,000 is less
    monkeypatch.setattr(run_module, "free_bytes", lambda _device: 60_000)
    outcome = ran(SMALL, tmp_path)
    (reason,) = outcome.skipped.values()
    assert "not tried" in reason
    assert read_run_info(tmp_path).skipped == outcome.skipped
    assert max(s.context_tokens for s in read_samples(tmp_path / SAMPLES_FILE)) == 40


def failing(errors: Sequence[BaseException]) -> Callable[..., object]:
    left = list(errors)
    build = run_module.build_step

    def built(*args: object, **options: object) -> object:
        if left:
            raise left.pop()
        return build(*args, **options)  # type: ignore[arg-type]

    return built


def test_an_out_of_memory_point_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
    monkeypatch.setattr(run_module, "build_step", failing([error]))
    outcome = ran(SMALL, tmp_path)
    assert [r for r in outcome.skipped.values() if "out of memory when tried" in r]
    assert outcome.n_samples == 5 * ROUNDS


def test_ctrl_c_keeps_what_was_measured_and_frees_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(SMALL, tmp_path)
    before = rounds_of(tmp_path)
    monkeypatch.setattr(run_module, "build_step", failing([KeyboardInterrupt()]))
    monkeypatch.setattr(run_module, "MAX_ROUNDS", ROUNDS + 1)
    with pytest.raises(KeyboardInterrupt):
        ran(replace(SMALL, resume=True), tmp_path)
    assert rounds_of(tmp_path) >= before
    ran(replace(SMALL, resume=True), tmp_path)
    assert len(rounds_of(tmp_path)) == 6 * (ROUNDS + 1)


def test_a_folder_with_samples_is_not_overwritten(tmp_path: Path) -> None:
    ran(SMALL, tmp_path)
    data = (tmp_path / SAMPLES_FILE).read_bytes()
    with pytest.raises(UsageError, match="--resume goes on"):
        ran(SMALL, tmp_path)
    assert (tmp_path / SAMPLES_FILE).read_bytes() == data
    ran(replace(SMALL, force=True), tmp_path)


def test_another_plan_or_device_is_not_mixed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(SMALL, tmp_path)
    again = replace(SMALL, resume=True)
    monkeypatch.setattr(session, "describe", lambda _device: {"device_name": "Other CPU"})
    with pytest.raises(CalibrationError, match="not on Other CPU"):
        ran(again, tmp_path)
    monkeypatch.undo()
    with pytest.raises(CalibrationError, match="this plan does not"):
        ran(again, tmp_path)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with session._alone(tmp_path), pytest.raises(UsageError, match="another run"):
        ran(SMALL, tmp_path)
    ran(SMALL, tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (replace(SMALL, dtypes=("fp3",)), "fp3"),
        (replace(SMALL, paths=("lrkv/factord",)), "did you mean 'lrkv/factored'"),
        (replace(SMALL, attention=("gpa:8",)), "gpa:8"),
        (replace(SMALL, device="gpu"), "gpu"),
    ],
)
def test_a_wrong_option_ends_in_one_line(
    tmp_path: Path, options: RunOptions, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with pytest.raises((UsageError, CalibrationError), match=words):
        ran(options, tmp_path)
    assert not (tmp_path / SAMPLES_FILE).exists()
