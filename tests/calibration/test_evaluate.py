"""Errors by group, with shipped constants and by refitting, on made-up calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lrkv_plan import load_hardware
from lrkv_plan.attention.families.grouped import grouped_work
from lrkv_plan.calibration.evaluate import evaluate
from lrkv_plan.cli.app import app
from lrkv_plan.errors import CalibrationError, SpecError
from lrkv_plan.latency.kernel import kernel_model, kernel_time
from lrkv_plan.loader import load_all_hardware
from lrkv_plan.specs.hardware import HardwareProfile

L4 = load_hardware("l4")


def row(
    batch: int, kv_len: int, latency_us: float, heads: int = 32, **changes: str
) -> dict[str, str]:
    told = {
        "gpu": "l4", "family": "gqa", "backend": "made/up", "kv_dtype": "bf16", "batch": str(batch),
        "kv_len": str(kv_len), "n_heads": str(heads), "n_kv_heads": str(heads // 4),
        "head_dim": "128", "d_c": "0", "d_rope": "0", "latency_us": f"{latency_us}",
        "regime": "cold", "flag": "",
    }  # fmt: skip
    return {**told, **changes}


def predicted_us(
    batch: int, kv_len: int, heads: int = 32, relatives: Sequence[HardwareProfile] = ()
) -> float:
    model = kernel_model(
        L4, "grouped", "bf16", query_heads_per_kv_head=4, head_dim=128, relatives=relatives
    )
    work = grouped_work(
        batch, kv_len, n_heads=heads, n_kv_heads=heads // 4, head_dim=128, bytes_per_scalar=2
    )
    return 1e6 * float(kernel_time(model, *work).time_s)


def profile_of(name: str) -> HardwareProfile:
    return load_hardware(name)


def test_errors_are_predicted_over_measured() -> None:
    # Measured exactly as predicted, a tenth more, and half: errors 0, 1/1.1 - 1 and 1.
    factors = {1024: 1.0, 2048: 1.1, 4096: 0.5}
    rows = [row(8, n, factor * predicted_us(8, n)) for n, factor in factors.items()]
    (group,) = evaluate(rows, profile_of)
    assert (group.gpu, group.backend, group.family, group.n) == ("l4", "made/up", "gqa", 3)
    assert group.median_error == pytest.approx(1 - 1 / 1.1)
    assert group.max_error == pytest.approx(1.0)
    assert group.basis == "datasheet"
    assert "no constants of made/up" in group.note


def test_groups_flags_and_what_cannot_be_predicted_stand_apart() -> None:
    rows = [
        row(8, 1024, 100.0),
        row(8, 1024, 100.0, regime="l2_hot"),
        row(8, 1024, 900.0, flag="known_slow"),
        row(8, 1024, 100.0, gpu="nowhere"),
    ]
    groups = evaluate(rows, profile_of)
    assert [g.n for g in groups] == [1, 1, 1, 1]
    assert "flag: known_slow" in groups[2].note
    assert (groups[3].basis, groups[3].median_error) == ("not predicted", None)


def test_held_out_refits_without_the_judged_heads() -> None:
    pytest.importorskip("scipy")
    # A kernel with t0 20 us at 80 % of the bandwidth, over six head configurations.
    rows = []
    for heads in (4, 8, 16, 32, 64, 128):
        for batch in (1, 4, 16, 64):
            for kv_len in (2048, 8192, 16384):
                n_bytes = 2 * batch * kv_len * (heads // 4) * 128 * 2
                rows.append(row(batch, kv_len, 20 + 1e6 * n_bytes / (0.8 * 300e9), heads))
    (group,) = evaluate(rows, profile_of, held_out=True)
    assert group.median_error is not None
    assert group.median_error < 0.01
    assert group.basis == "held-out head configurations"


def test_the_command_and_its_json(tmp_path: Path) -> None:
    lent = load_all_hardware()  # the command lets GPUs of one generation lend constants
    rows = [row(8, n, predicted_us(8, n, relatives=lent)) for n in (1024, 2048)]
    path = tmp_path / "calls.csv"
    lines = [",".join(rows[0]), *(",".join(r.values()) for r in rows)]
    path.write_text("\n".join(lines) + "\n")
    result = CliRunner().invoke(app, ["calibrate", "evaluate", str(path), "--format", "json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["rows"]
    assert found["median_error"] == pytest.approx(0.0, abs=1e-6)
    keys = {"gpu", "backend", "family", "kv_dtype", "regime", "n", "median_error", "p90_error", "max_error", "basis"}  # fmt: skip
    assert keys <= set(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,family\nl4,gqa\n", "lacks the columns"),
        ("", "lacks the columns"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "calls.csv"
    path.write_text(text)
    result = CliRunner().invoke(app, ["calibrate", "evaluate", str(path)])
    assert result.exit_code == 5
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    with pytest.raises(CalibrationError, match="number"):
        evaluate([{**row(8, 1024, 1.0), "batch": "many"}], profile_of)
    with pytest.raises(SpecError):
        profile_of("nowhere")
