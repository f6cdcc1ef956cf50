"""A person's own GPU or model: where its figures and prices are from, in every answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app

GPU = """
name: own
title: own
vendor: nvidia
generation: hopper
mem_capacity_bytes: 80 GiB
mem_bandwidth_bytes_per_s: 3.35 TB/s
peak_flops_per_s: {bf16: 989 TFLOP/s, fp32: 66.9 TFLOP/s}
"""
MODEL = """
name: mine
model_dim: 4096
vocab_size: 128256
tied_embeddings: false
weight_dtype: bf16
norms: {per_mixer: 1, per_feed_forward: 1}
layers:
  - count: 32
    attention: {family: gqa, n_heads: 32, n_kv_heads: 8, head_dim: 128}
    feed_forward: {kind: dense, hidden_dim: 14336, gated: true}
"""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "gpu.yaml").write_text(GPU)
    (tmp_path / "model.yaml").write_text(MODEL)
    return str(tmp_path / "gpu.yaml"), str(tmp_path / "model.yaml")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["plan", "MODEL", "--gpu", "GPU"], {"own", "mine"}),
        (["capacity", "MODEL", "--gpu", "GPU"], {"own", "mine"}),
        (["step-time", "MODEL", "--gpu", "GPU"], {"own", "mine"}),
        (["roofline", "MODEL", "--gpu", "GPU"], {"own", "mine"}),
        (["crossover", "MODEL", "--gpu", "GPU", "--attention", "gqa:8", "--attention", "mqa"],
         {"own", "mine"}),
        (["rank", "MODEL", "--gpu", "GPU", "--fit-sequences", "10"], {"own", "mine"}),
        (["rank", "MODEL", "--budget", "50%"], {"mine"}),
        (["cache", "MODEL"], {"mine"}),
        (["cache", "MODEL", "--detail"], {"mine"}),
        (["params", "MODEL"], {"mine"}),
        (["shard", "MODEL"], {"mine"}),
        (["plan", "llama-3.1-8b", "--gpu", "h100-sxm"], set()),
    ],
)  # fmt: skip
def test_an_answer_says_whose_figures_name_no_source(
    own: tuple[str, str], command: list[str], names: set[str]
) -> None:
    places = {"GPU": own[0], "MODEL": own[1]}
    notes = document(*(places.get(word, word) for word in command))["notes"]
    told = [n for n in notes if n["text"] == "source: none given"]
    assert {n["subject"] for n in told} == names
    assert all(n["kind"] == "provenance" for n in told)


def test_show_says_so_too_and_stays_a_file_that_is_read(
    own: tuple[str, str], tmp_path: Path
) -> None:
    for command, path in (("hardware", own[0]), ("models", own[1])):
        shown = run(command, "show", path).stdout
        assert shown.endswith("\n# source: none given\n")
        (tmp_path / "again.yaml").write_text(shown)
        again = run(command, "show", str(tmp_path / "again.yaml"))
        assert again.exit_code == 0
    assert "none given" not in run("hardware", "show", "h100-sxm").stdout


def test_a_shipped_price_is_the_default_and_says_its_source() -> None:
    # $3.99 an hour; 54 sequences: 3.99 / 54 an hour each.
    found = document("capacity", "llama-3.1-8b", "--gpu", "h100-sxm")
    assert found["inputs"]["gpu_hour_usd"] == 3.99
    source = found["inputs"]["gpu_hour_usd_source"]
    assert source == (
        "RunPod Secure Cloud, on-demand, read on 2026-11-09, https://www.runpod.io/pricing"
    )
    row = found["rows"][0]
    assert row["usd_per_sequence_hour"] == pytest.approx(3.99 / row["total_sequences"])
    told = [n for n in found["notes"] if source in n["text"]]
    assert [(n["kind"], n["subject"]) for n in told] == [("provenance", "h100-sxm")]

    plan = document("plan", "llama-3.1-8b", "--gpu", "h100-sxm")
    assert any(source in note["text"] for note in plan["notes"])
    first = plan["rows"][0]
    # USD an hour over tokens an hour.
    assert first["usd_per_million_tokens"] == pytest.approx(
        3.99 / (3600 * first["tokens_per_s"]) * 1e6
    )


def test_the_screen_says_whose_price_it_is() -> None:
    shown = run("plan", "llama-3.1-8b", "--gpu", "h100-sxm").stdout
    assert "Price: $3.99 an hour, RunPod Secure Cloud, on-demand, read on 2026-11-09.\n" in shown
    given = run("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpu-hour-usd", "2.5").stdout
    assert "Price:" not in given


def test_the_screen_says_beside_it_whose_figures_name_no_source(own: tuple[str, str]) -> None:
    for command in (
        ["plan", own[1], "--gpu", own[0]],
        ["rank", own[1], "--budget", "50%"],
        ["cache", own[1]],
    ):
        assert "mine: source: none given" in run(*command).stderr


def test_a_given_price_takes_its_place() -> None:
    found = document("capacity", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpu-hour-usd", "2.5")
    assert found["inputs"]["gpu_hour_usd"] == 2.5
    assert found["inputs"]["gpu_hour_usd_source"] == "given"
    assert not any("USD an hour" in note["text"] for note in found["notes"])


def test_a_gpu_without_a_price_has_no_cost_and_a_private_price_needs_no_source(
    own: tuple[str, str], tmp_path: Path
) -> None:
    found = document("capacity", "llama-3.1-8b", "--gpu", own[0])
    assert found["inputs"]["gpu_hour_usd"] is None
    assert found["inputs"]["gpu_hour_usd_source"] is None
    assert found["rows"][0]["usd_per_sequence_hour"] is None
    (tmp_path / "priced.yaml").write_text(GPU + "hourly_price: {usd: 1.5, kind: own}\n")
    priced = document("capacity", "llama-3.1-8b", "--gpu", str(tmp_path / "priced.yaml"))
    assert priced["inputs"]["gpu_hour_usd"] == 1.5
    assert priced["inputs"]["gpu_hour_usd_source"] == "own"


def test_the_list_of_gpus_shows_price_provider_and_date() -> None:
    rows = {row["name"]: row for row in document("hardware")["rows"]}
    assert rows["h100-sxm"]["hourly_price_usd"] == 3.99
    assert rows["h100-sxm"]["hourly_price_read_on"] == "2026-11-09"
    assert rows["cpu"]["hourly_price_usd"] is None
    shown = run("hardware", "--explain").stdout
    assert "RunPod Secure Cloud" in shown
    assert "2026-11-09" in shown
