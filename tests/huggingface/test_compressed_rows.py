"""DeepSeek-V4: a shared row, compressed rows beside a window, by hand and as vLLM prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import lrkv_plan
from lrkv_plan.errors import SpecError
from lrkv_plan.huggingface import import_config
from lrkv_plan.memory.cache import (
    bytes_per_token,
    cache_bytes,
    index_bytes_per_token,
    state_bytes_per_sequence,
)
from lrkv_plan.specs.model import ModelSpec, model_to_yaml

FLASH: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "head_dim": 512,
    "num_attention_heads": 64, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8,
    "o_lora_rank": 1024, "sliding_window": 128, "index_head_dim": 128, "index_n_heads": 64,
    "index_topk": 512, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "torch_dtype": "bfloat16",
    "num_nextn_predict_layers": 1, "hc_mult": 4, "vocab_size": 129280,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "num_hash_layers": 3,
}  # fmt: skip


def flash(**changes: Any) -> ModelSpec:
    return import_config({**FLASH, **changes}, Path("m.json"))


def test_rows_by_hand() -> None:
    """21 layers keep a row for 4 tokens, 20 one for 128, and all the last 128."""
    model = flash()
    tokens = 1_000_000
    rows = 43 * 128 + 21 * (tokens // 4) + 20 * (tokens // 128)
    held = cache_bytes(model, context_tokens=tokens)
    assert held.kv_bytes == rows * 512 * 2
    assert held.index_bytes == 21 * (tokens // 4) * 132
    assert cache_bytes(model, context_tokens=tokens, kv_dtype="fp8_ds_mla").kv_bytes == rows * 584
    assert bytes_per_token(model) == 512 * 2 * (43 + 21 / 4 + 20 / 128)
    assert index_bytes_per_token(model) == 21 * 33
    few = cache_bytes(model, context_tokens=3)
    assert (few.kv_bytes, few.index_bytes) == (43 * 3 * 1024, 0)


def test_states_by_hand() -> None:
    """vLLM's pages: 4 x 2 x 2 x 512 x 4 B for 4 tokens of 8, 8 x 2 x 512 x 4 B for 8 of 128."""
    each = 2 * 4 * 2 * 2 * 512 * 4 + 2 * 4 * 2 * 2 * 128 * 4
    assert state_bytes_per_sequence(flash()) == 21 * each + 20 * 16 * (8 * 2 * 512 * 4)


def test_kinds_are_read_in_either_spelling() -> None:
    words = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    listed = [words.get(r, "heavily_compressed_attention") for r in FLASH["compress_ratios"][:43]]
    named = flash(compress_ratios=None, layer_types=listed)
    assert named.layers == flash().layers
    rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}
    other = flash(compress_ratios=None, layer_types=listed, compress_rates=rates)
    assert {g.tokens_per_row for g in other.layers} == {None, 8, 64}
    silent = flash(compress_ratios=None)
    kinds = [silent.layers[i].tokens_per_row for i in silent.layer_order or ()]
    assert kinds == [128, 128, *[128, 4] * 20, 128]
    assert any("compress_ratios: absent" in remark for remark in silent.remarks)
    with pytest.raises(SpecError, match=r"compress_ratios\[0\]: 16: must be one of 0, 4, 128"):
        flash(compress_ratios=[16] * 43)


def test_a_model_file_keeps_its_compressed_rows() -> None:
    model = flash()
    again = ModelSpec.model_validate(yaml.safe_load(model_to_yaml(model)))
    assert again.layers == model.layers
    assert cache_bytes(again, context_tokens=5000) == cache_bytes(model, context_tokens=5000)


def test_what_no_engine_rule_covers_is_refused() -> None:
    model = flash()
    for answer in (
        lambda: lrkv_plan.capacity(model, gpu="h200", weight_dtype="fp8"),
        lambda: lrkv_plan.step_time(model, gpu="h200", weight_dtype="fp8"),
    ):
        with pytest.raises(SpecError, match="stands for 4 tokens; `lrkv-plan cache` counts them"):
            answer()


def test_pooled_index_keys_whose_bytes_no_token_has() -> None:
    """132 bytes for 16 tokens: 8.25 a token, and none before the first 16."""
    model = import_config(
        {
            "model_type": "glm5_next", "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 0,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "index_head_dim": 128, "index_n_heads": 2,
            "index_kpool": 16, "layer_types": ["indexed_attention"], "q_lora_rank": 16,
        },
        Path("m.json"),
    )  # fmt: skip
    assert index_bytes_per_token(model) == 132 / 16
    assert [cache_bytes(model, context_tokens=n).index_bytes for n in (15, 16, 40)] == [0, 132, 264]
