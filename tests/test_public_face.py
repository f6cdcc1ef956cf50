"""What commands answer, asked from Python: the same rows, and arguments as people write them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.errors import ArgumentError, PlanError, SpecError
from tests.checkpoint.synthetic import llama_folder, planted

LLAMA, H100 = "llama-3.1-8b", "h100-sxm"
TWO = ["gqa:8", "lrkv:24"]
ASKED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "cache": ((LLAMA,), {"attention": TWO, "context_tokens": [2048, "8k"], "batch_size": 4}),
    "rank": ((LLAMA,), {"budget": "50%", "tp_size": 2, "position": "rope_expand"}),
    "params": ((LLAMA,), {"attention": TWO, "match_params": True}),
    "shard": ((LLAMA,), {"attention": TWO, "tp_size": [2, 16]}),
    "capacity": ((LLAMA,), {"gpu": H100, "attention": TWO, "tpot_ms": 20, "prefix_cache": True}),
    "plan": (
        (LLAMA,),
        {"gpu": H100, "context_tokens": "16k", "n_gpus": 2, "tpot_ms": 30.5, "launch": True},
    ),
    "best": (
        (LLAMA,),
        {"users": 40, "gpu": ["h200", "t4"], "context_tokens": "16k", "tpot_ms": 40.5},
    ),
    "sweep": (
        (LLAMA,),
        {
            "gpus": [H100, "h200"],
            "designs": "own;lrkv:16..32:16",
            "batch_size": "1, full",
            "where": "users >= 2",
            "kv_dtype": ["bf16", "fp8"],
        },
    ),
    "step-time": ((LLAMA,), {"gpu": H100, "attention": TWO, "batch_size": 32}),
    "crossover": (
        (LLAMA,),
        {"gpu": "h200", "attention": ["gqa:8", "mla:512+64"], "over": "batch_size"},
    ),
    "roofline": ((LLAMA,), {"gpu": H100, "attention": TWO, "units": "bf16"}),
    "audit": (("mla",), {"verdict": ["match", "explained"]}),
}
RUNNER = CliRunner()


def options(keywords: dict[str, Any]) -> list[str]:
    """Keywords as a person writes them on the command line."""
    words: list[str] = []
    for name, value in keywords.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, list) and name in ("attention", "verdict"):
            words += [word for one in value for word in (flag, one)]
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [flag, text]
    return words


@pytest.mark.parametrize("command", ASKED)
def test_a_commands_rows_are_the_public_calls(command: str) -> None:
    subjects, keywords = ASKED[command]
    answer = getattr(lrkv_plan, command.replace("-", "_"))(*subjects, **keywords)
    told = RUNNER.invoke(
        app, [command, *subjects, *options(keywords), "-f", "json", "--inputs", "full"]
    )
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert document["rows"] == answer.rows
    assert document["inputs"] == answer.inputs
    assert document["remarks"] == [str(note) for note in answer.notes]


LOG = Path(__file__).parent / "golden" / "logs" / "vllm-0.19-h100.log"


def test_a_logs_rows_are_the_public_calls() -> None:
    answer = lrkv_plan.capacity(from_log=LOG, gpu=H100)
    told = RUNNER.invoke(
        app, ["capacity", "--from-log", str(LOG), "--gpu", H100, "-f", "json", "--inputs", "full"]
    )
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert document["rows"] == answer.rows
    assert document["inputs"] == answer.inputs
    assert document["remarks"] == [str(note) for note in answer.notes]


def test_inspect_is_the_public_call(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    query = rng.standard_normal((4, 8, 32))
    layer = query, planted(rng, 2, 8, 32, 2), planted(rng, 2, 8, 32, 2)
    checkpoint_folder = llama_folder(tmp_path / "toy", {0: layer, 1: layer})
    answer = lrkv_plan.inspect(checkpoint_folder, layers=[0, 1], energy="95%", budget=0.5)
    arguments = ["inspect", str(checkpoint_folder), "--layers", "0,1", "--energy", "95%"]
    told = RUNNER.invoke(app, [*arguments, "--budget", "0.5", "-f", "json"])
    assert json.loads(told.stdout)["rows"] == answer.rows
    assert answer.planned_model is not None


def test_models_and_gpus_by_name_file_mapping_and_object(tmp_path: Path) -> None:
    model, gpu = lrkv_plan.load_model(LLAMA), lrkv_plan.load_gpu(H100)
    spelled = model.model_dump(mode="json", exclude_none=True)
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(spelled))
    rows = [
        lrkv_plan.step_time(asked, gpu=on).rows
        for asked, on in ((LLAMA, H100), (file, gpu), (spelled, gpu.model_dump()), (model, gpu))
    ]
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert lrkv_plan.load_hardware is lrkv_plan.load_gpu


def test_a_hugging_face_mapping_is_a_model() -> None:
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip
    assert lrkv_plan.cache(config).rows[0]["bytes_per_token"] == 2 * 32 * 8 * 128 * 2


def test_sizes_are_read_as_people_write_them() -> None:
    as_text = lrkv_plan.capacity(LLAMA, gpu=H100, weights="15 GiB", utilisation="90%")
    as_numbers = lrkv_plan.capacity(LLAMA, gpu=H100, weights=15 * 2**30, utilisation=0.9)
    assert as_text.rows == as_numbers.rows
    half, same = (lrkv_plan.rank(LLAMA, budget=text).rows[0] for text in (0.5, "50%"))
    assert {**half, "budget": "50%", "share_of_own_budget": "50% of own"} == same


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"context_tokens": "8,192"}, "context_tokens '8,192': is it 8192, or 8 and 192?"),
        ({"batch_size": [1, 2]}, "batch_size (1, 2): takes one value, not 2"),
        ({"tp_size": True}, "tp_size True: must be a number"),
        ({"tp_size": 0}, "tp_size: '0' is not a whole number"),
        ({"encoder_tokens": 5}, "encoder_tokens: llama-3.1-8b has no cross-attention"),
        ({"attention": [8]}, "attention 8: must be text"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_errors(
    keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        lrkv_plan.cache(LLAMA, **keywords)
    assert message.replace("(1, 2)", "[1, 2]") in str(caught.value)


@pytest.mark.parametrize(
    ("question", "keywords", "message"),
    [
        ("cache", {"kv_dtype": ""}, "storage format '' is unknown"),
        ("shard", {"kv_dtype": ""}, "storage format '' is unknown"),
        ("rank", {"budget": "50%", "kv_dtype": ""}, "storage format '' is unknown"),
        ("rank", {"budget": "50%", "position": ""}, "position: '': input should be 'none'"),
        ("rank", {"budget": "50%", "key_norm": ""}, "key_norm: '': input should be 'none'"),
        ("capacity", {"gpu": H100, "engine": ""}, "engine '': write a name"),
        ("capacity", {"gpu": H100, "kv_dtype": ""}, "storage format '' is unknown; known: "),
        ("capacity", {"gpu": H100, "weight_dtype": ""}, "weight format '' is unknown; known: "),
        ("plan", {"gpu": H100, "budget": ""}, "budget '' is not a share"),
        ("plan", {"gpu": H100, "budget": 2}, "budget 2: must be above 0 and at most 1"),
        ("step_time", {"gpu": H100, "kv_dtype": ""}, "storage format '' is unknown"),
        ("roofline", {"gpu": H100, "kv_dtype": ""}, "storage format '' is unknown"),
        ("crossover", {"gpu": H100, "attention": ["mha", "mqa"], "over": ""}, "over '': one of"),
        (
            "crossover",
            {"gpu": H100, "attention": ["mha", "mqa"], "kv_dtype": ""},
            "storage format '' is unknown",
        ),
    ],
)
def test_an_empty_argument_was_given(question: str, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        getattr(lrkv_plan, question)(LLAMA, **keywords)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plot", "cache-vs-rank", LLAMA, "--rope-dim", ""], "--rope-dim: '' is not a number"),
        (["plot", "cache-vs-rank", LLAMA, "--heads", ""], "--heads: '' is not a number"),
        (
            ["plot", "capacity-vs-context", LLAMA, "--gpu", H100, "--context-tokens", ""],
            "--context-tokens: '' is not a number of tokens",
        ),
    ],
)
def test_an_empty_option_was_given(arguments: list[str], message: str) -> None:
    told = RUNNER.invoke(app, [*arguments, "--format", "json"])
    assert (told.exit_code, told.stdout) == (2, "")
    assert message in told.stderr


def test_errors_name_keywords_in_python_and_flags_on_the_command_line() -> None:
    with pytest.raises(ArgumentError, match=r"^n_gpus: min_gpus searches for their number"):
        lrkv_plan.capacity(LLAMA, gpu=H100, min_gpus=True, n_gpus=2)
    told = RUNNER.invoke(app, ["capacity", LLAMA, "--gpu", H100, "--min-gpus", "--n-gpus", "2"])
    assert "--n-gpus: --min-gpus searches" in told.stderr


def test_a_result_shows_itself() -> None:
    answer = lrkv_plan.cache(LLAMA, attention=TWO)
    said = "A user with 8k tokens costs 1.00 GiB with gqa:8, 896 MiB with lrkv:24"
    assert repr(answer) == f"<{said}: 2 rows>"
    page = answer._repr_html_()
    assert page.count("<tr>") == 3
    assert "gqa:8" in page
    assert list(answer.frame["bytes_per_token"]) == [131072, 114688]
    assert answer.unmet is None
    with pytest.raises(AttributeError):
        answer.table = None  # type: ignore[misc]


def test_an_unmet_requirement_is_told_and_the_rows_stay() -> None:
    answer = lrkv_plan.capacity(LLAMA, gpu=H100, require_sequences=10_000)
    assert answer.rows
    assert "10,000 are required" in str(answer.unmet)


def test_the_public_names_are_listed() -> None:
    assert {"cache", "plan", "load_gpu", "inspect", "Result"} <= set(dir(lrkv_plan))
    for name in dir(lrkv_plan):
        assert getattr(lrkv_plan, name) is not None


def test_unknown_names_are_errors() -> None:
    with pytest.raises(SpecError, match=r"perhaps llama-3\.1-8b"):
        lrkv_plan.cache("llama-3.1-8")


def test_designs_along_the_rank_are_written_with_any_rank_or_the_word() -> None:
    told = {"gpu": "h200", "over": "rank", "at_most": 64}
    word, number = (
        lrkv_plan.crossover(LLAMA, attention=["gqa:8", text], **told)
        for text in ("lrkv:RANK", "lrkv:48")
    )
    assert word.rows == number.rows
    assert "lrkv:RANK" in word.verdict
    backbone = lrkv_plan.load_model(LLAMA).attention_groups[0].attention.backbone()
    spec = lrkv_plan.parse_attention("lrkv:48", backbone)
    assert lrkv_plan.crossover(LLAMA, attention=["gqa:8", spec], **told).rows == word.rows


def test_designs_are_texts_or_objects() -> None:
    backbone = lrkv_plan.load_model("llama-2-7b").layers[0].attention
    assert backbone is not None
    spec = lrkv_plan.parse_attention("lrkv:24,groups=2", backbone.backbone())
    told = {"gpu": H100, "tpot_ms": 50}
    for attention in (spec, [spec], ["lrkv:24,groups=2"]):
        answer = lrkv_plan.capacity("llama-2-7b", attention=attention, **told)
        assert (
            answer.rows
            == lrkv_plan.capacity("llama-2-7b", attention="lrkv:24,groups=2", **told).rows
        )
