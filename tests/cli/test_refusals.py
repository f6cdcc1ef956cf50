"""A number is read as it is meant or refused, and an option is honoured or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.latency.engine_step import engine_step
from lrkv_plan.latency.matrix import matrix_model
from lrkv_plan.loader import load_all_hardware, load_hardware

PLAN = ["plan", "llama-3.1-8b", "--gpu", "h100-sxm"]
CAPACITY = ["capacity", "llama-3.1-8b", "--gpu", "h100-sxm"]
POOL = ["capacity", "llama-3.1-8b", "--kv-memory", "58 GiB"]
CROSSOVER = [
    "crossover", "llama-3.1-8b", "--gpu", "h200", "--attention", "gqa:8", "--attention", "mla:512+64",
]  # fmt: skip
ROOFLINE = ["roofline", "llama-3.1-8b", "--gpu", "h100-sxm"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return found


def assert_refused(arguments: list[str], message: str, code: int = 2) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) <= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # The tool's own way of printing a number, where one value is meant.
        ([*PLAN, "--context-tokens", "8,192"], "is it 8192, or 8 and 192?"),
        ([*CROSSOVER, "--at-most", "131,072"], "is it 131072, or 131 and 072?"),
        ([*CROSSOVER, "--over", "rank", "--context-tokens", "8,192"], "8192, or 8 and 192?"),
        ([*ROOFLINE, "--context-tokens", "8,192"], "8192, or 8 and 192?"),
        (["report", "llama-3.1-8b", "--gpu", "h200", "-o", "x", "--context-tokens", "8,192"],
         "8192, or 8 and 192?"),
        (["plot", "step-stack", "llama-3.1-8b", "--gpu", "h200", "-f", "csv",
          "--context-tokens", "8,192"], "8192, or 8 and 192?"),
        (["rank", "llama-3.1-8b", "--fit-sequences", "1,000", "--gpu", "h100-sxm"],
         "is it 1000, or 1 and 000?"),
        ([*ROOFLINE, "--context-tokens", "8k,32k"], "takes one value, not 2"),
        # Where a list is allowed, plain lists stay lists and thousands are refused.
        ([*CAPACITY, "--context-tokens", "8,192"], "8192, or '8, 192' with spaces for a list"),
        ([*CAPACITY, "--context-tokens", "8,192,16,384"], "is it 819216384, or 8 and 192 and"),
        (["cache", "llama-3.1-8b", "--context-tokens", "4,096,32k"], "with spaces for a list"),
        (["shard", "llama-3.1-8b", "--tp-size", "1,024"], "1024"),
        # Decimal commas and sizes.
        (["rank", "llama-3.1-8b", "--budget", "33,3%"], "is it 33.3 or 333?"),
        (["rank", "llama-3.1-8b", "--budget", "96,5 KiB/token"], "is it 96.5 or 965?"),
        ([*CAPACITY, "--kv-memory", "66,89 GiB"], "is it 66.89 or 6689?"),
        ([*CAPACITY, "--weights", "14,99 GiB"], "is it 14.99 or 1499?"),
        ([*CAPACITY, "--utilisation", "0,9"], "is it 0.9 or 09?"),
        ([*PLAN, "--tpot-ms", "30,5"], "is it 30.5 or 305?"),
        ([*PLAN, "--gpu-hour-usd", "2,50"], "is it 2.50 or 250?"),
        ([*CAPACITY, "--length-percentiles", "p50=2,048"], "without commas inside numbers"),
        # Numbers without end.
        ([*PLAN, "--gpu-hour-usd", "inf"], "--gpu-hour-usd: 'inf' is not a number"),
        ([*PLAN, "--tpot-ms", "inf"], "'inf' is not a number"),
        ([*PLAN, "--tpot-ms", "nan"], "'nan' is not a number"),
        ([*PLAN, "--tpot-ms", "0"], "must be above 0"),
        ([*CAPACITY, "--kv-memory", "81 GiB"], "h100-sxm has 80.00 GiB in all"),
    ],
)  # fmt: skip
def test_a_number_that_may_mean_two_things_is_refused(arguments: list[str], message: str) -> None:
    assert_refused(arguments, message)


def test_plain_lists_stay_lists() -> None:
    assert [row["context_tokens"] for row in rows(*CAPACITY, "--context-tokens", "8k,32k")] == [
        8192, 32_768,
    ]  # fmt: skip
    shards = rows("shard", "llama-3.1-8b", "--tp-size", "1,2,4")
    assert list(dict.fromkeys(row["tp_size"] for row in shards)) == [1, 2, 4]
    spaced = rows("cache", "llama-3.1-8b", "--context-tokens", "8, 192")
    assert [row["context_tokens"] for row in spaced] == [8, 192]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PLAN, "--gpu", "h200"], "--gpu is given twice: write one list, such as --gpu A,B"),
        ([*ROOFLINE, "--gpu", "h200"], "--gpu is given twice: write one list"),
        ([*ROOFLINE, "--tp-size", "1", "--tp-size", "2"], "--tp-size is given twice: give one value"),
        ([*CAPACITY, "--context-tokens", "8k", "--context-tokens", "32k"],
         "--context-tokens is given twice: write one list"),
        (["cache", "llama-3.1-8b", "-f", "json", "--format", "csv"], "--format is given twice"),
        (["rank", "llama-3.1-8b", "--budget", "50%", "--budget", "gqa:2"], "--budget is given"),
        (["models", "--spec-dir", ".", "--spec-dir", "."], "--spec-dir is given twice"),
    ],
)  # fmt: skip
def test_an_option_is_given_once(arguments: list[str], message: str) -> None:
    assert_refused(arguments, message)


def test_a_repeatable_option_and_a_flag_may_be_repeated() -> None:
    designs = ["--attention", "gqa:8", "--attention", "lrkv:24"]
    assert len(rows("cache", "llama-3.1-8b", *designs)) == 2
    assert run("cache", "llama-3.1-8b", "--detail", "--detail").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*CAPACITY, "--sequences", "5"], "--sequences: is what --min-gpus must hold"),
        ([*CAPACITY, "--min-gpus", "--n-gpus", "8"], "--min-gpus searches for their number"),
        ([*CAPACITY, "--min-gpus", "--length-percentiles", "p50=2k"], "of full length"),
        ([*CAPACITY, "--tpot-ms", "30", "--length-percentiles", "p50=2k"], "equal length"),
        ([*CAPACITY, "--detail", "--tpot-ms", "30"], "--detail shows the memory budget alone"),
        ([*POOL, "--detail"], "there is no budget to show"),
        ([*POOL, "--utilisation", "0.9"], "no budget is computed"),
        ([*POOL, "--weights", "5 GiB"], "no budget is computed"),
        ([*POOL, "--engine", "ideal", "--page-tokens", "64"], "the rules of ideal do not use it"),
        ([*POOL, "--engine", "sglang", "--prefix-cache"], "the rules of sglang do not use it"),
        ([*POOL, "--align", "32"], "no design here stores rows at a multiple"),
        ([*CAPACITY, "--accepted-tokens", "2"], "accepted tokens 2: must be from 1 to the 1"),
        (["rank", "llama-3.1-8b", "--budget", "50%", "--gpu", "h200"], "--gpu: a --budget of bytes"),
        ([*CROSSOVER, "--context-tokens", "8k"], "is what --over context_tokens varies"),
        ([*CROSSOVER, "--over", "tp_size", "--weights", "5 GiB"], "--weights"),
        (["cache", "llama-3.1-8b", "--encoder-tokens", "8"], "has no cross-attention"),
        (["plot", "rank-sweep", "llama-3.1-8b", "-f", "csv", "--weights", "5 GiB"], "with a GPU"),
        (["plot", "cache-vs-rank", "llama-3.1-8b", "-f", "csv", "--width", "double"], "--width"),
        (["hardware", "--spec-dir", ".", "show", "h200"], "--spec-dir: stands before show"),
        (["models", "-f", "json", "show", "llama-3.1-8b"], "--format: stands before show"),
        (["audit", "--schema", "--verdict", "match"], "--schema prints the schema alone"),
        (["audit", "mla", "--schema"], "takes no file"),
        (["report", "--all", "-o", "x", "--tp-size", "1"], "--tp-size"),
    ],
)  # fmt: skip
def test_an_option_that_the_question_does_not_use_is_refused(
    arguments: list[str], message: str
) -> None:
    assert_refused(arguments, message)


def test_a_layout_is_honoured_by_times_or_refused() -> None:
    """Stages are timed, in a band that is 1.5 times as wide to either side."""
    low, high = engine_step().band("measured")
    (one,), (two,) = (rows(*CAPACITY, "--pp-size", n, "--tpot-ms", "30") for n in "12")
    assert two["n_gpus"] == 2
    for row, wider in ((one, 1.0), (two, 1.5)):
        ends = row["tpot_low_s"] / row["tpot_s"], row["tpot_high_s"] / row["tpot_s"]
        assert ends == pytest.approx((low / wider, high * wider), rel=1e-6)
    shared = [*CAPACITY, "--tp-size", "2", "--ep-size", "2", "--tpot-ms", "30"]
    assert_refused(shared, "ep_size 2: llama-3.1-8b has no experts to deal out", code=4)


def test_the_fewest_gpus_keep_the_time_target() -> None:
    """Memory alone needs fewer GPUs than memory and time; each row keeps what it promises."""
    asked = [
        "capacity", "llama-3.1-8b", "--gpu", "a100-sxm-80gb", "--context-tokens", "32k",
        "--min-gpus", "--sequences", "64",
    ]  # fmt: skip
    (held,) = rows(*asked)
    (fast,) = rows(*asked, "--tpot-ms", "20")
    assert fast["n_gpus"] > held["n_gpus"]
    assert fast["admitted_sequences"] >= 64
    assert fast["tpot_s"] <= 20e-3
    again = [*asked[:6], "--n-gpus", str(fast["n_gpus"]), "--tp-size", str(fast["tp_size"])]
    (row,) = rows(*again, "--tpot-ms", "20")
    assert row["admitted_sequences"] == fast["admitted_sequences"]


def test_one_row_has_one_load_and_one_scope() -> None:
    """8 replicas: 8 times the users and tokens of one (8 x 54 and 8 x 2,047), at its cost."""
    told = ["--tpot-ms", "30", "--gpu-hour-usd", "2.5"]
    (one,) = rows(*CAPACITY, *told)
    (eight,) = rows(*CAPACITY, "--n-gpus", "8", "--tp-size", "1", *told)
    assert (one["total_sequences"], eight["total_sequences"]) == (54, 432)
    assert eight["admitted_sequences"] == 432
    assert eight["tokens_per_s"] == pytest.approx(8 * one["tokens_per_s"])
    assert round(eight["tokens_per_s"]) == 16_376  # 8 x 2,047.0
    assert eight["usd_per_million_tokens"] == pytest.approx(one["usd_per_million_tokens"])
    (tight,) = rows(*CAPACITY, "--tpot-ms", "15")
    assert tight["bound_by"] == "time"
    assert tight["admitted_sequences"] < tight["total_sequences"]


def changed_model(folder: Path, name: str, **changes: Any) -> str:
    """A file with a shipped model's figures and some of its own."""
    spec = lrkv_plan.load_model(name).model_dump(mode="json", exclude_none=True)
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({**spec, "name": "own", **changes}))
    return str(path)


def test_what_a_model_file_leaves_out_is_in_every_format(tmp_path: Path) -> None:
    """A vision encoder is a bound, in the first line; recurrent layers have none and are refused."""
    model = changed_model(
        tmp_path, "gemma-4-31b", encoders=[], uncounted_parts=["vision encoder and projector"]
    )
    arguments = ["capacity", model, "--gpu", "h100-sxm", "--context-tokens", "8k"]
    left_out = "vision encoder and projector"
    for output_format in ("table", "markdown"):
        first = run(*arguments, "--format", output_format).stdout.splitlines()[0]
        assert f"Upper bound, weights leave out {left_out}" in first
    (row,) = rows(*arguments)
    assert row["weights_left_out"] == [left_out]
    assert left_out in run(*arguments, "--format", "csv").stdout
    assert rows(*arguments, "--weights", "60 GiB")[0]["weights_left_out"] == []
    planned = run("plan", model, "--gpu", "h200").stdout.splitlines()[0]
    assert planned.startswith("Upper bound, weights leave out")


@pytest.mark.parametrize(
    "command",
    [
        ["capacity", "MODEL", "--gpu", "h100-sxm"],
        ["capacity", "MODEL", "--gpu", "h100-sxm", "--min-gpus"],
        ["plan", "MODEL", "--gpu", "h100-sxm"],
        ["crossover", "MODEL", "--gpu", "h200", "--attention", "gqa:8", "--attention", "mqa"],
        ["plot", "step-stack", "MODEL", "--gpu", "h200", "-f", "csv"],
    ],
)  # fmt: skip
def test_recurrent_weights_have_no_bound(command: list[str], tmp_path: Path) -> None:
    layers = [
        {**group.model_dump(mode="json", exclude_none=True), "weights": []}
        for group in lrkv_plan.load_model("nemotron-h-56b").layers
    ]
    model = changed_model(tmp_path, "nemotron-h-56b", layers=layers)
    asked = [model if word == "MODEL" else word for word in command]
    assert_refused(asked, "the weights of 54 recurrent layers are not counted", code=3)


def test_a_hybrid_counts_its_recurrent_weights() -> None:
    """56,324,350,464 parameters of 2 bytes are 104.9 GiB: none fits on one card, two hold eight."""
    asked = ["capacity", "nemotron-h-56b", "--gpu", "h100-sxm", "--context-tokens", "8k"]
    (alone,) = rows(*asked)
    assert alone["total_sequences"] == 0
    (fewest,) = rows(*asked, "--min-gpus", "--sequences", "8")
    assert fewest["n_gpus"] == 2


def test_known_weights_are_read_by_times() -> None:
    """4.6 GiB are read in 3.18 ms, 14.96 GiB of bf16 in 10.3; 129 matrices start for 0.52 either way.

    The GPU was not measured: its matrices take the share of the bandwidth that an L40S reaches.
    """
    asked = [
        "plan",
        "llama-3.1-8b",
        "--gpu",
        "rtx-5090",
        "--batch-size",
        "1",
        "--context-tokens",
        "2k",
    ]
    whole, given = rows(*asked)[0], rows(*asked, "--weights", "4.6 GiB")[0]
    # 1,050,673,152 B of embeddings are looked up, not read: 128,256 x 4,096 x 2 B of 16.06e9.
    share = 1 - 128_256 * 4096 * 2 / (8_030_261_248 * 2)
    constants = matrix_model(load_hardware("rtx-5090"), "vllm", "bf16", load_all_hardware())
    starts = (4 * 32 + 1) * constants.t0_s
    for row, n_bytes in ((given, 4.6 * 2**30), (whole, 8_030_261_248 * 2)):
        read = n_bytes * share / constants.bytes_per_s
        # activations, arithmetic and the walk along the inputs are under 1 % beside it
        assert row["linear_s"] == pytest.approx(starts + read, rel=0.01)
    hybrid = rows(
        "plan", "nemotron-h-56b", "--gpu", "h200", "--weights", "104 GiB", "--batch-size", "1",
    )[0]  # fmt: skip
    assert hybrid["linear_s"] > 104 * 2**30 * 0.9 / (0.85 * 4.8e12)


def test_a_context_beyond_the_model_is_said_and_never_advised() -> None:
    """llama-3.1-8b states 131,072 tokens."""
    asked = ["capacity", "llama-3.1-8b", "--gpu", "h100-sxm", "--context-tokens"]
    result = run(*asked, "256k")
    assert "262,144 tokens exceed the model's own maximum of 131,072" in result.stderr
    assert rows(*asked, "256k")[0]["beyond_model_maximum"] is True
    assert rows(*asked, "128k")[0]["beyond_model_maximum"] is False
    (none,) = rows(*asked, "4m")
    assert none["try"]
    assert all(int(advice.split()[1]) <= 131_072 for advice in none["try"] if "--context" in advice)
    assert not any("lrkv" in advice for advice in none["try"])
    planned = run("plan", "llama-3.1-8b", "--gpu", "h200", "--context-tokens", "256k")
    assert "exceed the model's own maximum of 131,072" in planned.stderr


def test_a_plan_says_its_layout_first() -> None:
    """TP 8 holds 40 sequences where two replicas of TP 4 hold 26."""
    asked = [
        "plan",
        "llama-3.1-70b",
        "--gpu",
        "h100-sxm",
        "--n-gpus",
        "8",
        "--context-tokens",
        "32k",
    ]
    told = run(*asked).stdout
    assert "on 8 x H100 SXM, TP 8: 40 users of 32k tokens" in told.splitlines()[0]
    assert "TP 8 serves most sequences." in told.splitlines()
    assert rows(*asked)[0]["total_sequences"] == 40
    stated = run(*asked, "--tp-size", "4").stdout.splitlines()[0]
    assert "TP 4 in 2 replicas: " in stated
    assert_refused(
        ["plan", "llama-3.1-405b", "--gpu", "h200", "--tp-size", "1"], "fits at TP 1", code=4
    )


def test_both_readings_of_a_share_are_said() -> None:
    """llama-3.1-8b caches 25 % of MHA: half of MHA is twice that; half of its own is rank 12."""
    result = run("rank", "llama-3.1-8b", "--budget", "50%")
    assert "that is twice what this model caches now (gqa:8)" in result.stdout
    assert "Half of its own cache holds rank 12: --budget '50% of own'" in result.stdout
    (row,) = rows("rank", "llama-3.1-8b", "--budget", "50%")
    assert (row["rank"], row["budget_share_of_own"], row["share_of_own_rank"]) == (60, 2, 12)
    # 65,536 B = 2 x 32 layers x 2 B (128 + 32 r): r = 12
    (own,) = rows("rank", "llama-3.1-8b", "--budget", "50% of own")
    assert (own["rank"], own["budget_bytes_per_token_per_gpu"]) == (12, 65_536)
    (paper,) = rows("rank", "lrkv-paper-2.5b", "--budget", "50%")
    assert paper["budget_share_of_own"] is None


def test_a_label_says_what_its_design_changes() -> None:
    found = rows(
        "cache", "llama-3.1-8b", "--attention", "gqa:8,head_dim=32", "--attention", "gqa:8"
    )
    assert [row["attention"] for row in found] == ["gqa:8,head_dim=32", "gqa:8"]
    # Values stay 128 wide: 2 B x 32 layers x 8 (32 + 128), against 8 (128 + 128).
    assert [row["bytes_per_token"] for row in found] == [81_920, 131_072]
    pools = rows(*POOL, "--attention", "gqa:8,head_dim=32")
    assert pools[0]["attention"] == "gqa:8,head_dim=32"


def test_notes_go_to_stderr_and_quiet_keeps_them_back() -> None:
    beyond = ("cache", "llama-3.1-8b", "--context-tokens", "256k")
    loud, quiet = run(*beyond), run(*beyond, "--quiet")
    assert loud.stdout == quiet.stdout
    assert "note:" not in loud.stdout
    assert loud.stderr == "note: the model's own maximum is 131,072 tokens\n"
    assert quiet.stderr == ""
    assert "note:" not in run("cache", "llama-3.1-8b", "-f", "json").output
