"""Repeats are all kept, caches are flushed outside the timed part, and CUDA's branch runs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import ClassVar

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan.calibration import machine
from lrkv_plan.calibration import machine as timing
from lrkv_plan.calibration.machine import CpuStopwatch, CudaStopwatch, best_rate

CLOCK = {"now": 0.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A clock that only calls move."""
    CLOCK["now"] = 0.0
    monkeypatch.setattr(timing.time, "perf_counter", lambda: CLOCK["now"])
    return CLOCK


def takes(seconds: float, log: list[str], name: str) -> timing.Call:
    def call() -> torch.Tensor:
        CLOCK["now"] += seconds
        log.append(name)
        return torch.zeros(1)

    return call


def test_only_the_call_is_timed_and_the_flush_beside_it(clock: dict[str, float]) -> None:
    log: list[str] = []
    watch = CpuStopwatch(llc_bytes=4096)
    watch._buffer = SimpleNamespace(sum=takes(0.5, log, "flush"))  # type: ignore[assignment]
    timed = watch.time(takes(0.125, log, "call"), n_repeats=3, small=takes(0.25, log, "small"))
    assert timed.repeats_s == (0.125,) * 3
    assert timed.control_s == (0.5,) * 3
    each = ["flush", "small", "call"]
    assert log == ["call"] * timing.N_WARM_UP + each * 3


def test_a_hot_call_is_not_flushed(clock: dict[str, float]) -> None:
    log: list[str] = []
    timed = CpuStopwatch().time(takes(1.0, log, "call"), n_repeats=2, cold=False)
    assert timed.control_s == ()
    assert set(log) == {"call"}


def test_the_flush_is_larger_than_the_last_level_cache() -> None:
    # 1.5 * 4 MiB = 6,291,456 bytes in 4-byte scalars
    watch = CpuStopwatch(llc_bytes=4 * 2**20)
    assert watch._buffer.numel() * 4 == 6_291_456
    assert "6291456 bytes" in watch.method


def test_garbage_is_collected_again_after_timing_even_if_the_call_fails() -> None:
    def fails() -> torch.Tensor:
        fails.calls += 1  # type: ignore[attr-defined]
        if fails.calls > timing.N_WARM_UP:  # type: ignore[attr-defined]
            assert not gc.isenabled()
            raise MemoryError
        return torch.zeros(1)

    fails.calls = 0  # type: ignore[attr-defined]
    was_on = gc.isenabled()
    gc.enable()
    try:
        with pytest.raises(MemoryError):
            CpuStopwatch(4096).time(fails, n_repeats=1)
        assert gc.isenabled()
    finally:
        gc.enable() if was_on else gc.disable()


def test_a_rate_comes_from_the_shortest_call(clock: dict[str, float]) -> None:
    times = iter([0.2, 0.2] + [0.2, 0.1, 0.4] * 100)

    def call() -> torch.Tensor:
        CLOCK["now"] += next(times)
        return torch.zeros(1)

    # 5 units in 0.1 s at best
    assert best_rate(5.0, call, seconds=1.0, stopwatch=CpuStopwatch(4096)) == pytest.approx(50.0)


class FakeEvent:
    """A mark on the fake clock, in milliseconds as CUDA counts."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = -1.0

    def record(self) -> None:
        self.at = CLOCK["now"]

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 1e3


class FakeGraph:
    """Records the call that is captured; a replay runs it."""

    captured: ClassVar[list[timing.Call]] = []

    def replay(self) -> None:
        self.captured[-1]()


def fake_cuda(monkeypatch: pytest.MonkeyPatch, captures: bool) -> None:
    @contextlib.contextmanager
    def graph(_graph: object) -> Iterator[None]:
        if not captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        yield

    fakes = {
        "Event": FakeEvent, "CUDAGraph": FakeGraph, "graph": graph,
        "synchronize": lambda _device=None: None, "memory_allocated": lambda _device: 100,
        "max_memory_allocated": lambda _device: 164,
        "reset_peak_memory_stats": lambda _device: None,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)


@pytest.mark.parametrize("captures", [True, False])
def test_cuda_events_surround_the_call_alone(
    clock: dict[str, float], monkeypatch: pytest.MonkeyPatch, captures: bool
) -> None:
    fake_cuda(monkeypatch, captures)
    log: list[str] = []
    call = takes(0.002, log, "call")
    FakeGraph.captured.append(call)
    watch = CudaStopwatch(torch.device("cpu"), l2_bytes=1024)
    flush = takes(0.5, log, "flush")
    watch._buffer = SimpleNamespace(zero_=flush)  # type: ignore[assignment]
    timed = watch.time(call, n_repeats=2)
    assert timed.repeats_s == pytest.approx((0.002, 0.002))
    assert timed.control_s == pytest.approx((0.5, 0.5))
    assert timed.peak_bytes == 64  # 164 - 100
    assert log[-4:] == ["flush", "call"] * 2


def test_this_machine_is_described_without_guesses() -> None:
    cpu = torch.device("cpu")
    facts = machine.describe(cpu)
    assert None not in facts.values()
    assert facts["torch"] == torch.__version__
    free = machine.free_bytes(cpu)
    assert free is None or 0 < free <= facts.get("mem_capacity_bytes", free)


def test_a_gpu_is_described_by_torch_and_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="NVIDIA H200", total_memory=150_109_880_320, multi_processor_count=132,
        L2_cache_size=62_914_560, uuid="1-2",
    )  # fmt: skip
    asked = []

    def smi(command: list[str], **_options: object) -> SimpleNamespace:
        asked.append(command)
        answer = "570.86.15\n" if "driver_version" in command[3] else "1980\n"
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(machine.subprocess, "run", smi)
    facts = machine.describe(torch.device("cuda", 0))
    assert facts["device_name"] == "NVIDIA H200"
    assert facts["driver"] == "570.86.15"
    assert facts["clock_hz"] == 1.98e9
    assert (facts["l2_bytes"], facts["n_sm"]) == (62_914_560, 132)
    assert asked[0][:3] == ["nvidia-smi", "-i", "GPU-1-2"]


def test_without_nvidia_smi_driver_and_clock_stay_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="X", total_memory=1, multi_processor_count=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)

    def missing(*_args: object, **_options: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(machine.subprocess, "run", missing)
    assert not {"driver", "clock_hz", "l2_bytes"} & set(machine.describe(torch.device("cuda", 0)))
