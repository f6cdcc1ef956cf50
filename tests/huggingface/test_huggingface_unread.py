"""Keys that nothing reads: noted for a known type, refused for an unknown one, never silent."""

from __future__ import annotations

import json
import random
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from lrkv_plan.errors import SpecError
from lrkv_plan.huggingface import import_config
from lrkv_plan.huggingface.unread import (
    DECIDING_KEYS,
    NEITHER,
    NEITHER_PATTERNS,
    WEIGHTS_ONLY,
    WEIGHTS_ONLY_PATTERNS,
)
from lrkv_plan.specs.model import ModelSpec

GOLDEN = Path(__file__).parent.parent / "golden" / "huggingface_configs.yaml"
PLAIN: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
# What files of plain transformers also hold.
HARMLESS: dict[str, Any] = {
    "architectures": ["X"], "auto_map": {"AutoConfig": "x.X"}, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": [2, 3], "hidden_act": "silu", "initializer_range": 0.02,
    "rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": {"factor": 8.0, "type": "yarn"},
    "torch_dtype": "bfloat16", "transformers_version": "5.0", "use_cache": True,
    "router_aux_loss_coef": 0.001, "output_router_logits": False, "pretraining_tp": 1,
    "resid_pdrop": 0.1, "final_logit_softcapping": 30.0, "tokenizer_class": "T",
    "num_experts": None, "layer_types": None, "sliding_window": None, "use_sliding_window": False,
    "max_window_layers": 28, "id2label": {"0": "A"}, "_name_or_path": "a/plain",
}  # fmt: skip
# Each decides in some public model which layers cache, or how much.
HYBRID_KEYS: dict[str, Any] = {
    "layer_group_size": 5, "block_types": ["recurrent", "attention"], "mamba_step": 2,
    "attention_window_size": 2048, "sliding_window_layout": [0, 1] * 16, "mamba_enabled": True,
    "mixer_types": ["minicpm4", "lightning-attn"] * 16, "attention_types": [[["global"], 32]],
    "global_attn_every_n_layers": 4, "hybrid_layer_ids": [6, 12], "global_attn_idx": [0, 15, 31],
    "kv_reuse_every_i_layer": 2, "cla_share_factor": 2, "full_attention_idx": [3],
    "num_kv_reuse_layers": 8, "dense_attention_every_n_layers": 2, "state_size": 16,
    "conv_kernel": 4, "lru_width": 4096, "sparse_config": {"topk": 64}, "loop_num": 2,
    "num_attention_heads_per_layer": [32] * 32, "hidden_size_per_head": 64, "d_state": 128,
    "mamba_d_state": 64, "linear_num_value_heads": 32, "index_kpool": 4, "compress_ratio": 4,
    "num_meta_tokens": 128, "attention_chunk_size": 8192, "index_block_size": 128,
    "sparse_attention_config": {"sparse_block_size": 128, "sparse_index_dim": 64},
    "per_layer_config": {"3": {"num_key_value_heads": 2}}, "num_sliding_attention_heads": 16,
    "compress_rates": {"a": 4},
}  # fmt: skip


def imported(**changes: Any) -> ModelSpec:
    return import_config({**PLAIN, **changes}, Path("m.json"))


def outcome(config: dict[str, Any]) -> ModelSpec | str:
    """The model, or the reason why there is none."""
    try:
        return import_config(config, Path("m.json"))
    except SpecError as error:
        return str(error)


@pytest.mark.parametrize("key", HYBRID_KEYS)
def test_unknown_type_is_refused_where_a_key_could_decide_the_cache(key: str) -> None:
    with pytest.raises(SpecError) as caught:
        imported(model_type="brand_new", **{key: HYBRID_KEYS[key]})
    message = str(caught.value)
    assert message.startswith("m.json: model_type: 'brand_new': is not known here")
    assert key in message
    assert "could change what its layers cache" in message
    assert "models show" in message
    assert "\n" not in message


@pytest.mark.parametrize("key", ["some_new_attention", "layers", "kv_groups_of_layers"])
def test_a_key_on_no_list_counts_as_one_that_could_decide(key: str) -> None:
    with pytest.raises(SpecError, match=key):
        imported(model_type="brand_new", **{key: 3})


def test_file_without_a_type_is_an_unknown_type() -> None:
    config = {key: value for key, value in PLAIN.items() if key != "model_type"}
    assert import_config(config, Path("m.json")).layers[0].attention is not None
    with pytest.raises(SpecError, match=r"model_type: is missing, and layer_group_size is a key"):
        import_config({**config, "layer_group_size": 5}, Path("m.json"))


def test_refusal_names_the_nearest_known_type() -> None:
    with pytest.raises(SpecError, match="did you mean 'bailing_moe_linear'"):
        imported(model_type="bailing_moe_linear_v2", layer_group_size=5)


def test_plain_unknown_type_passes_with_its_usual_keys() -> None:
    model = imported(model_type="brand_new", **HARMLESS)
    assert model.layers[0].count == 32
    assert not any("nothing here reads" in remark for remark in model.remarks)


def test_known_type_with_usual_keys_has_no_note() -> None:
    assert imported(**HARMLESS).remarks == ()


def test_known_type_notes_names_and_no_values() -> None:
    (remark,) = imported(layer_group_size=5, qkv_clamp="secret").remarks
    assert remark == "keys of the file that nothing here reads: layer_group_size, qkv_clamp"


def test_note_is_bounded() -> None:
    many = {f"unheard_{'x' * 300}_{i}": i for i in range(1000)}
    (remark,) = imported(**many).remarks
    assert len(remark) < 600
    assert remark.endswith("and 992 more")


def test_part_that_was_read_is_searched_too() -> None:
    config = {
        **PLAIN, "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32,
        "attn_config": {"attn_type": "multihead_attention", "sliding_window_size": 512},
    }  # fmt: skip
    remarks = import_config(config, Path("m.json")).remarks
    assert any("attn_config.sliding_window_size" in remark for remark in remarks)


def test_nested_model_is_judged_by_its_own_part() -> None:
    text = {**PLAIN, "model_type": "brand_new"}
    outer = {"model_type": "new_vl", "spatial_merge": 2, "vision_config": {"depth": 2}}
    assert import_config({**outer, "text_config": text}, Path("m.json")).layers
    with pytest.raises(SpecError, match=r"text_config\.mamba_step"):
        import_config({**outer, "text_config": {**text, "mamba_step": 2}}, Path("m.json"))
    with pytest.raises(SpecError, match="layer_group_size is a key"):
        import_config({**outer, "layer_group_size": 5, "text_config": text}, Path("m.json"))


def test_unknown_type_without_attention_is_told_by_its_state() -> None:
    config = {"model_type": "new_ssm", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16}
    with pytest.raises(SpecError, match="'new_ssm': is not known here, and state_size"):
        import_config(config, Path("m.json"))


@pytest.mark.parametrize("key", ["mamba_step", "hidden_size_per_head", "mixer_types"])
def test_its_own_keys_are_named_before_a_missing_head_width(key: str) -> None:
    config = {k: v for k, v in PLAIN.items() if k != "head_dim"}
    with pytest.raises(SpecError, match=rf"'brand_new': is not known here, and {key}"):
        import_config({**config, "model_type": "brand_new", key: HYBRID_KEYS[key]}, Path("m.json"))
    listed = ["full_attention", "sliding_attention"] * 16
    read = {"v_head_dim": 64, "sliding_window": 512, "layer_types": listed}
    with pytest.raises(SpecError, match="head_dim: is missing"):
        import_config({**config, "model_type": "brand_new", **read}, Path("m.json"))


def test_list_of_layers_makes_the_rule_behind_it_moot() -> None:
    listed = ["linear_attention", "full_attention"] * 16
    gated = {f"linear_{part}": 4 for part in ("num_key_heads", "num_value_heads")}
    gated |= {f"linear_{part}": 128 for part in ("key_head_dim", "value_head_dim")}
    model = imported(
        model_type="brand_new", layer_types=listed, full_attention_interval=2,
        linear_conv_kernel_dim=4, **gated,
    )  # fmt: skip
    assert any("linear layers are taken to hold the state" in r for r in model.remarks)


def test_keys_that_decide_the_cache_are_on_no_list_of_harmless_ones() -> None:
    for key in {*DECIDING_KEYS, *HYBRID_KEYS}:
        assert key not in NEITHER | WEIGHTS_ONLY, key
        assert not NEITHER_PATTERNS.fullmatch(key), key
        assert not WEIGHTS_ONLY_PATTERNS.fullmatch(key), key


def expanded(value: Any) -> Any:
    """Write out the {times, of} notation of the golden file."""
    if isinstance(value, dict):
        return {key: expanded(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items: list[Any] = []
    for item in value:
        part = expanded(item["of"]) if isinstance(item, dict) and "times" in item else [item]
        items += (part if isinstance(part, list) else [part]) * (
            item["times"] if isinstance(item, dict) and "times" in item else 1
        )
    return items


@pytest.mark.parametrize(
    "case", yaml.safe_load(GOLDEN.read_text(encoding="utf-8")), ids=lambda case: case["model"]
)
def test_real_config_under_a_made_up_type_has_its_layers_or_a_reason(case: dict[str, Any]) -> None:
    config = expanded(case["config"])
    real = import_config(json.loads(json.dumps(config)), Path("m.json"))
    for part in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(part, dict):
            part["model_type"] = "brand_new"
    model = outcome(config)
    if isinstance(model, str):
        assert model.startswith("m.json: ")
        return
    told = [(g.count, g.attention is None, g.window_tokens, bool(g.state)) for g in model.layers]
    assert told == [
        (g.count, g.attention is None, g.window_tokens, bool(g.state)) for g in real.layers
    ]
    if any(group.state for group in model.layers):
        assert any("is not known here: its" in remark for remark in model.remarks)


DEEP: dict[str, Any] = {}
for _ in range(60):
    DEEP = {"a": DEEP, "text_config": DEEP}


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention"] * 10**6},
        {"unheard": list(range(10**6))},
        {"num_hidden_layers": 10**400},
        {"layer_group_size": 10**400, "model_type": "bailing_moe_linear"},
        {"block_types": ["attention"] * 10**6, "model_type": "recurrent_gemma"},
        {"block_types": [["attention"]], "model_type": "recurrent_gemma"},
        {"attention_types": [[["global"], 10**400]], "model_type": "gpt_neo"},
        {"attention_types": [[["global"] * 10**6, 32]], "model_type": "gpt_neo"},
        {"attention_types": [[[None], 32]], "model_type": "gpt_neo"},
        {"sliding_window_layout": [True] * 32, "model_type": "smallthinker"},
        {"index_topk_pattern": "F" * 10**6, "kv_lora_rank": 4},
        {"attn_config": [], "model_type": "dbrx"},
        {"moe_layer_end_index": -2, "model_type": "ernie4_5_moe", "moe_num_experts": 2},
        {"model_type": "x" * 10**6, "mamba_step": 2},
        {"model_type": "\x1b[31m", "mamba_step\x1b": 2},
        {"model_type": ["mamba"]},
        {"model_type": "brand_new", **{f"key_{i}": i for i in range(200_000)}},
        dict.fromkeys(PLAIN, None),
        {"model_type": "brand_new", "deep": DEEP},
    ],
)
def test_hostile_file_is_one_short_line_and_quick(changes: dict[str, Any]) -> None:
    start = time.process_time()
    told = outcome({**PLAIN, **changes})
    assert time.process_time() - start < 2
    lines = [told] if isinstance(told, str) else told.remarks
    for line in lines:
        assert len(line) <= 600
        assert line.isprintable()


def _unknown_configs(n: int) -> list[dict[str, Any]]:
    """Types that nobody has published, of plain shapes, every third with a key that decides."""
    draw = random.Random(14)
    configs = []
    for i in range(n):
        name = "".join(draw.choice("bcdfgklmnprstvwz") + draw.choice("aeiou") for _ in range(4))
        heads = draw.choice([8, 16, 32, 64])
        config = {
            "model_type": f"{name}{draw.choice(['', '_moe', '2', '_text', '_linear'])}",
            "hidden_size": heads * 128, "num_hidden_layers": draw.randint(4, 90),
            "num_attention_heads": heads, "head_dim": draw.choice([64, 128, 256]),
            "num_key_value_heads": draw.choice([1, 2, 4, 8]), "vocab_size": draw.choice([32000, 151936]),
            "intermediate_size": 4 * heads * 128,
            **draw.choice([{}, HARMLESS, {"rope_theta": 1e6}, {"num_experts": 64}]),
        }  # fmt: skip
        if i % 3 == 0:
            key = draw.choice(sorted(HYBRID_KEYS))
            config[key] = HYBRID_KEYS[key]
        configs.append(config)
    return configs


@pytest.mark.parametrize("config", _unknown_configs(60), ids=lambda c: str(c["model_type"]))
def test_an_unknown_type_never_gives_a_silent_full_attention_answer(config: dict[str, Any]) -> None:
    deciding = set(config) & set(HYBRID_KEYS)
    if deciding:
        with pytest.raises(SpecError, match=r"is not known here|layers|attention"):
            import_config(config, Path("m.json"))
        return
    with pytest.warns(UserWarning, match="is not known: a layer without a stated window or state"):
        model = import_config(config, Path("m.json"))
    assert any("is not known: a layer" in remark for remark in model.remarks)
    assert all(group.feed_forward is None for group in model.layers)  # no weights are guessed


def test_an_unknown_type_is_said_beside_every_answer(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({**PLAIN, "model_type": "zorblax"}))
    for command in (["cache", str(path)], ["cache", str(path), "-f", "json"], ["shard", str(path)]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0
        assert "model_type 'zorblax' is not known: a layer" in done.stderr


def test_a_known_type_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imported()
