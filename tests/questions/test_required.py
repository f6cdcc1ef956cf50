"""Requirements of scripts: which row misses what, in one line, exit 4; loads stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app

LLAMA, H100 = "llama-3.1-8b", "h100-sxm"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", ["capacity", "plan"])
def test_a_time_that_is_too_long_is_exit_4(command: str) -> None:
    # 54 users of 8k: attention 18.88, matrices 5.67, small kernels 0.38, engine 1.45 ms.
    good = run(command, LLAMA, "--gpu", H100, "--require-tpot-ms", "27")
    bad = run(command, LLAMA, "--gpu", H100, "--require-tpot-ms", "24")
    assert (good.exit_code, bad.exit_code) == (0, 4)
    assert bad.stderr.splitlines()[-1] == (
        "error: gqa:8 at 8,192 tokens on tp_size 1: 26.38 ms a token, 24.0 ms are required"
    )
    assert "gqa:8" in bad.stdout


def test_the_load_stays_which_a_target_reduces() -> None:
    required = lrkv_plan.capacity(LLAMA, gpu=H100, require_tpot_ms=15)
    (row,) = required.rows
    assert row["admitted_sequences"] == row["total_sequences"] == 54
    assert required.unmet is not None
    target = lrkv_plan.capacity(LLAMA, gpu=H100, tpot_ms=15, require_tpot_ms=15)
    assert target.rows[0]["admitted_sequences"] < 54
    assert target.unmet is None
    hopeless = lrkv_plan.capacity(LLAMA, gpu=H100, tpot_ms=5, require_tpot_ms=6)
    assert "no load that a token's time could be of" in str(hopeless.unmet)


def test_a_plan_requires_of_the_own_design_or_of_those_asked_for() -> None:
    # MHA holds 13, the own design 54.
    assert lrkv_plan.plan(LLAMA, gpu=H100, require_sequences=54).unmet is None
    missed = lrkv_plan.plan(LLAMA, gpu=H100, require_sequences=55).unmet
    assert missed == (
        "gqa:8 at 8,192 tokens on tp_size 1: 54 sequences fit, 55 are required"
    )  # fmt: skip
    asked = lrkv_plan.plan(LLAMA, gpu=H100, attention=["gqa:4"], require_sequences=100)
    assert asked.unmet is None
    assert lrkv_plan.plan(LLAMA, gpu=H100, require_tokens=10**9).unmet is not None


def test_the_row_that_misses_is_named() -> None:
    unmet = str(lrkv_plan.capacity(LLAMA, gpu="h200,h100-sxm", require_sequences=60).unmet)
    assert unmet.startswith("gqa:8 at 8,192 tokens on h100-sxm, tp_size 1: 54 sequences fit")
    of = lrkv_plan.capacity([LLAMA, "llama-3.1-70b"], gpu=H100, require_sequences=1)
    assert str(of.unmet).startswith("llama-3.1-70b, gqa:8 at 8,192 tokens")
    stacked = lrkv_plan.plan(LLAMA, gpu="h200,h100-sxm", require_sequences=60)
    assert str(stacked.unmet).startswith("h100-sxm: gqa:8 at")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--max-context", "--context-tokens", "8k"], "--context-tokens: --max-context searches"),
        (["--max-context", "--min-gpus"], "--min-gpus: --max-context asks"),
        (["--max-context", "--tpot-ms", "20"], "--tpot-ms: --max-context asks"),
        (["--max-context", "--length-percentiles", "p50=2k"], "--length-percentiles: "),
        (["--require-tpot-ms", "20", "--length-percentiles", "p50=2k"], "equal length"),
        (["--require-tpot-ms", "20", "--detail"], "--detail shows the memory budget alone"),
        (["--require-tpot-ms", "0"], "--require-tpot-ms '0': must be above 0"),
        (["--sequences", "2"], "--min-gpus must hold or --max-context must fit"),
        (["--min-gpus", "--gpu", "8xh100-sxm"], "--gpu 8xh100-sxm: --min-gpus searches"),
    ],
)
def test_what_cannot_be_honoured_is_an_error(asked: list[str], message: str) -> None:
    gpu = [] if "--gpu" in asked else ["--gpu", H100]
    told = run("capacity", LLAMA, *gpu, *asked)
    assert told.exit_code == 2, told.output
    assert message in told.stderr
