"""The command under a real torchrun with two workers, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch")

from lrkv_plan.calibration.run_record import read_run_info
from lrkv_plan.calibration.samples import read_samples
from lrkv_plan.calibration.tensor_parallel.group import place_from
from lrkv_plan.calibration.tensor_parallel.options import DESIGNS, Options
from lrkv_plan.calibration.tensor_parallel.sharded import append_samples
from lrkv_plan.cli import calibrate_tensor_parallel as command
from lrkv_plan.cli.app import app
from lrkv_plan.errors import UsageError
from lrkv_plan.latency.all_reduce import allreduce_model
from lrkv_plan.loader import load_hardware
from tests.calibration.tensor_parallel.starting import run_group
from tests.cli.schemas import fault
from tests.conftest import one_error

COMMAND = ["calibrate", "tensor-parallel"]
START = ["-m", "lrkv_plan", *COMMAND]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SMALL = [
    "--device", "cpu", "--n-heads", "4", "--head-dim", "8", "--context-tokens", "16",
    "--repeats", "3", "--largest-message", "128KiB", "--attention", "mha", "--attention", "mqa",
    "--attention", "lrkv:3,position=rope_expand",
]  # fmt: skip
TIMEOUT_S = 300


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*COMMAND, *arguments])


@pytest.fixture
def options_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Options]:
    """What the command would measure, were it started by torchrun."""
    monkeypatch.setattr(
        "lrkv_plan.calibration.tensor_parallel.group.place_from", lambda _environment: None
    )
    seen: list[Options] = []
    monkeypatch.setattr(command, "_measured", lambda options, *_: seen.append(options))

    def options(*arguments: str) -> Options:
        done = called("--output", "x", *arguments)
        assert done.exit_code == 0, done.output
        return seen[-1]

    return options


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path]:
    folder = tmp_path_factory.mktemp("run") / "new"
    code, text = run_group([*LAUNCH, *START, *SMALL, "--output", str(folder)], TIMEOUT_S)
    return code, text, folder


@pytest.fixture(scope="module")
def document(run: tuple[int, str, Path]) -> dict[str, Any]:
    _, text, folder = run
    path = folder / "tensor-parallel.json"
    assert path.exists(), text[-3000:]
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_policy_is_exact_and_holds_what_is_predicted(document: dict[str, Any]) -> None:
    policies = ["replicated", "by_token", "gathered"]
    assert [row["policy"] for row in document["rows"]] == ["by_copy", *policies * 2]
    assert document["failures"] == []
    envelope = {"schema_version": 2, "tool_version": "", "notes": [], "remarks": []}
    written = {**envelope, "inputs": document["inputs"], "rows": document["rows"]}
    assert fault("calibrate tensor-parallel", written) is None
    for row in document["rows"]:
        assert row["cache_bytes_per_gpu_allocated"] == [row["cache_bytes_per_gpu_predicted"]] * 2
        assert row["link_bytes_per_gpu_moved"] == [row["link_bytes_per_gpu_predicted"]] * 2
        assert row["max_error"] < 1e-5
        assert 0 < row["attention_s"] <= row["attention_median_s"]


def test_a_run_fails_exactly_where_its_fit_is_refused(
    run: tuple[int, str, Path], document: dict[str, Any]
) -> None:
    code, text, folder = run
    refused = document["fit"]["refused"]
    profile = folder / "cpu.allreduce.yaml"
    assert (code == 0) == (refused is None) == profile.exists()
    if refused is None:  # a noisy machine may end the other way
        model = allreduce_model(load_hardware(profile), 2)
        assert model.basis == "measured"
        assert model.t0_s == pytest.approx(document["fit"]["t0_s"], rel=1e-3)
    else:
        assert text.count(f"error: {refused}") == 1  # only worker 0 prints


def test_rows_for_the_kernel_fit_are_those_without_traffic(
    run: tuple[int, str, Path], document: dict[str, Any]
) -> None:
    samples = read_samples(run[2] / "samples.csv")
    assert [s.path for s in samples] == [
        row["path"] for row in document["rows"] if row["policy"] in ("by_copy", "replicated")
    ]
    assert {(s.n_heads, s.context_tokens) for s in samples} == {(2, 16)}  # 4 heads on two workers
    assert all(s.allocated_bytes == s.predicted_bytes for s in samples)
    assert read_run_info(run[2]).device == "cpu"


def test_a_second_run_adds_rounds_to_the_same_points(
    run: tuple[int, str, Path], tmp_path: Path
) -> None:
    samples = read_samples(run[2] / "samples.csv")
    for _ in range(2):
        append_samples(tmp_path / "samples.csv", samples)
    again = read_samples(tmp_path / "samples.csv")
    assert [s.round for s in again] == [0] * len(samples) + [1] * len(samples)


def test_the_markdown_report_has_a_line_for_every_policy_and_size(
    run: tuple[int, str, Path], document: dict[str, Any]
) -> None:
    lines = (run[2] / "tensor-parallel.md").read_text().splitlines()
    for row in document["rows"]:
        assert any(
            x.startswith(f"| {row['attention']} | {row['context_tokens']} | {row['policy']} |")
            for x in lines
        )
    for row in document["allreduce"]:
        assert any(x.startswith(f"| {row['dtype']} | {row['message_bytes']:,} |") for x in lines)


def test_an_earlier_report_is_not_overwritten(
    run: tuple[int, str, Path], options_of: Callable[..., Options]
) -> None:
    import torch

    from lrkv_plan.calibration.tensor_parallel.measure import check_output

    options = replace(options_of(*SMALL), output=run[2])
    with pytest.raises(UsageError, match=r"tensor-parallel\.md.*exist; --force"):
        check_output(options, torch.device("cpu"))
    check_output(replace(options, force=True), torch.device("cpu"))


def test_only_worker_0_speaks_and_says_one_line(tmp_path: Path) -> None:
    """A refused device ends two real workers with one line of ours and one exit code."""
    code, text = run_group(
        [*LAUNCH, *START, *SMALL, "--device", "cpu", "--output", str(tmp_path)], TIMEOUT_S
    )
    assert code != 0
    assert text.count("--device is given twice") == 1
    assert text.count("exitcode  : 2") >= 1


def test_without_torchrun_one_line_says_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    done = called("--output", "somewhere")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "torchrun --nproc-per-node 2 -m lrkv_plan calibrate tensor-parallel --output DIR" in (
        done.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--output", "x", "--attention", "lrvk:5"], 3),
        (["--outptu", "x"], 2),
        (["--output", "x", "--n-heads"], 2),
        (["--help"], 0),
    ],
)
def test_other_workers_stay_silent_and_end_with_the_same_code(
    arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(command, "let_first_speak", waited.append)
    assert called(*arguments).output != ""
    monkeypatch.setenv("RANK", "1")
    done = called(*arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", "")
    assert waited == [code] * (code != 0)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "missing option '--output'"),
        (["--outptu", "x"], 2, "or --output?"),
        (["--output", "x", "y"], 2, "unexpected extra argument"),
        (["--output"], 2, "requires an argument"),
        (["--output", "x", "--device", "cud"], 2, "did you mean 'cuda'"),
        (["--output", "x", "--policy", "replicate"], 2, "did you mean 'replicated'"),
        (["--output", "x", "--dtype", "fp23"], 2, "did you mean 'fp32'"),
        (["--output", "x", "--n-heads", "0"], 2, "--n-heads '0': must be a whole number from 1"),
        (["--output", "x", "--repeats", "²"], 2, "--repeats"),
        (["--output", "x", "--context-tokens", "many"], 2, "--context-tokens: 'many'"),
        (["--output", "x", "--largest-message", "1KiB"], 2, "from 128KiB to 2GiB"),
        (["--output", "x", "--attention", "lrkv:200"], 3, "exceeds head_dim 128"),
        (["--output", "x", "--model-dim", "99999999"], 2, "--model-dim"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], code: int, text: str) -> None:
    done = called(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert text in done.stderr
    assert one_error(done.stderr)


def test_contexts_are_a_list_without_repetition(options_of: Callable[..., Options]) -> None:
    assert options_of("--context-tokens", "1k,2k,1024").context_tokens == (1024, 2048)
    assert options_of().context_tokens == ()  # the device's usual one


def test_usual_designs_are_those_that_the_heads_can_have(
    options_of: Callable[..., Options],
) -> None:
    assert len(options_of().designs) == len(DESIGNS)
    labels = [spec.label() for spec in options_of("--n-heads", "6").designs]
    assert labels == ["mha", "gqa:2", "mqa", "mla:512+64", "lrkv:54"]  # 8 does not divide 6


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"WORLD_SIZE": "1"}, "start at least two"),
        ({"RANK": "one"}, "start it with"),
        ({"MASTER_ADDR": ""}, "start it with"),
    ],
)
def test_a_place_needs_torchrun_and_company(changes: dict[str, str], text: str) -> None:
    given = {
        "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1234",
    }  # fmt: skip
    assert place_from(given).n_workers == 4
    with pytest.raises(UsageError, match=text):
        place_from(given | changes)
