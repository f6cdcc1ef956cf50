"""Four real processes over gloo: every placement policy executed, failures that do not hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from lrkv_plan.calibration.samples import read_rows
from tests.calibration.tensor_parallel.starting import run_group

N_WORKERS = 4
WORKER = Path(__file__).with_name("worker.py")
ROWS = 32 * 2  # cached tokens of both sequences
TIMEOUT_S = 300  # a quiet machine needs 15; a hang must end


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("group")
    command = [sys.executable, str(WORKER), str(N_WORKERS), str(folder / "meet")]
    code, text = run_group([*command, str(folder / "found.json")], TIMEOUT_S)
    assert code == 0, text[-3000:]
    result: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return result


def row(found: dict[str, Any], design: str, policy: str) -> dict[str, Any]:
    (one,) = [r for r in found["rows"] if (r["design"], r["policy"]) == (design, policy)]
    result: dict[str, Any] = one
    return result


def test_every_design_ran_under_every_policy_that_the_calculators_name(
    found: dict[str, Any],
) -> None:
    policies: dict[str, list[str]] = {}
    for one in found["rows"]:
        policies.setdefault(one["design"], []).append(one["policy"])
    repeated = ["replicated", "by_token", "gathered"]
    assert policies.pop("gqa:4") == ["by_copy"]  # as many key heads as GPUs
    assert policies.pop("lrkv:5,groups=4,key_norm=rms_cached") == ["by_copy"]
    assert set(map(tuple, policies.values())) == {tuple(repeated)}


def test_outputs_equal_the_single_process_float64_reference(found: dict[str, Any]) -> None:
    for one in found["rows"]:
        assert one["error"] < {"fp32": 1e-5, "bf16": 2e-2}[one["dtype"]], one


def test_every_gpu_holds_and_fetches_exactly_what_is_predicted(found: dict[str, Any]) -> None:
    for one in found["rows"]:
        assert one["allocated"] == [one["predicted"]] * N_WORKERS, one
        assert one["link"] == [one["predicted_link"]] * N_WORKERS, one


@pytest.mark.parametrize(
    ("design", "policy", "scalars", "fetched"),
    [
        # 8 heads of 16, rank 5. Shared key and value whole, private ones of two heads.
        ("lrkv:5", "replicated", 2 * 16 + 2 * 2 * 5, 0),  # 52
        ("lrkv:5", "by_token", (2 * 16 + 8 * 2 * 5) // 4, 0),  # 112 / 4 = 28
        # A quarter of the shared rows and two heads' private ones; three quarters are fetched.
        ("lrkv:5", "gathered", 2 * 16 // 4 + 2 * 2 * 5, 3 * 2 * 16 // 4),  # 28, 24
        # Two key heads for four GPUs: each is on two, which fetch each other's half.
        ("gqa:2,sinks=true", "replicated", 2 * 16, 0),
        ("gqa:2,sinks=true", "gathered", 2 * 16 // 2, 2 * 16 // 2),
        ("mla:24+8", "replicated", 24 + 8, 0),
        ("mla:24+8", "gathered", (24 + 8) // 4, 3 * (24 + 8) // 4),
        # Ranks of 5 are stored 8 wide; each of two groups' rows is on two GPUs.
        ("lrkv:5,groups=2,align=4", "replicated", 2 * 16 + 2 * 2 * 8, 0),
        ("lrkv:5,groups=2,align=4", "gathered", 2 * 16 // 2 + 2 * 2 * 8, 2 * 16 // 2),
    ],
)
def test_bytes_per_gpu_worked_by_hand(
    found: dict[str, Any], design: str, policy: str, scalars: int, fetched: int
) -> None:
    one = row(found, design, policy)
    assert one["allocated"] == [4 * ROWS * scalars] * N_WORKERS
    assert one["link"] == [4 * ROWS * fetched] * N_WORKERS


def test_merging_moves_queries_and_partial_results_of_all_heads(found: dict[str, Any]) -> None:
    # From three others: the queries of 2 heads each, and 8 heads' outputs with their log-sum,
    # for 2 sequences of 2 query tokens, 4 bytes a scalar: 3 * 4 * 4 * (2 * 16 + 8 * 17) = 8,064.
    assert row(found, "lrkv:5", "by_token")["merge"] == 3 * 4 * 4 * (2 * 16 + 8 * 17)
    assert row(found, "lrkv:5", "gathered")["merge"] == 0


def test_the_operating_system_saw_the_fetched_bytes_pass(found: dict[str, Any]) -> None:
    seen = row(found, "mla:24+8", "gathered")
    if seen["loopback"] is None:
        pytest.skip("this system does not count loopback bytes")
    assert seen["loopback"] >= sum(seen["link"])


def test_steps_without_traffic_are_samples_of_the_gpus_own_shape(found: dict[str, Any]) -> None:
    # Two of eight heads on each GPU; one shared row and two private ones per token.
    heads, copies, n_bytes, allocated, predicted = row(found, "lrkv:5", "replicated")["sample"]
    assert (heads, copies) == (2, 2)
    assert n_bytes == allocated == predicted == 4 * ROWS * 52
    for one in found["rows"]:
        assert (one["sample"] is None) == (one["policy"] in ("by_token", "gathered"))


def test_all_workers_raise_the_error_that_one_of_them_had(found: dict[str, Any]) -> None:
    seen = found["errors"]
    assert seen == [seen[0]] * N_WORKERS
    placement, usage, memory = seen[0]
    assert placement == "PlacementError: the last worker cannot"
    assert usage == "UsageError: the first worker cannot"
    assert memory.startswith("CalibrationError: out of memory")


def test_a_dead_worker_ends_the_others_in_one_line(found: dict[str, Any]) -> None:
    assert found["lost"].startswith("CalibrationError: worker 0 of 4 lost another one")
    assert "\n" not in found["lost"]


def test_measured_messages_have_the_columns_that_fits_read(
    found: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "allreduce.csv"
    path.write_text(found["csv"])
    needed = ("gpu", "library_version", "kernel", "n_gpus", "message_bytes", "latency_us")
    rows = read_rows(path, needed)
    assert [int(r["message_bytes"]) for r in rows] == [1024, 2048] * 2
    assert {r["dtype"] for r in rows} == {"float32", "bfloat16"}
    assert all(0 < float(r["latency_min_us"]) <= float(r["latency_median_us"]) for r in rows)
    assert found["link"] > 0
