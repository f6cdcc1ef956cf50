"""Projections come out of every layout as they went in, and damage is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lrkv_plan.checkpoint.projections import attention_layers, layer_prefix
from lrkv_plan.checkpoint.tensors import INDEX_NAME
from lrkv_plan.errors import SpecError
from tests.checkpoint.synthetic import (
    Array,
    llama_config,
    llama_folder,
    llama_tensors,
    write_folder,
)

N_HEADS, N_KV, HEAD_DIM, WIDTH = 6, 2, 4, 24
Stacks = tuple[Array, Array, Array]


def stacks(seed: int = 0, n_kv: int = N_KV) -> Stacks:
    rng = np.random.default_rng(seed)
    return tuple(  # type: ignore[return-value]
        rng.standard_normal((n, HEAD_DIM, WIDTH)).astype(np.float32) for n in (N_HEADS, n_kv, n_kv)
    )


def concatenated(parts: Stacks) -> Array:
    return np.concatenate([part.reshape(-1, WIDTH) for part in parts])


def grouped(parts: Stacks) -> Array:
    """Each key/value head's query heads, its key, its value."""
    query, key, value = parts
    per_key = len(query) // len(key)
    rows = []
    for group in range(len(key)):
        rows += [*query[group * per_key : (group + 1) * per_key], key[group], value[group]]
    return np.concatenate(rows)


def check(folder: Path, parts: Stacks, layer: int = 0) -> None:
    found = attention_layers(folder).read(layer)
    for got, wanted in zip((found.query, found.key, found.value), parts, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_separate_matrices(tmp_path: Path) -> None:
    both = {layer: stacks(layer) for layer in (0, 1)}
    folder = llama_folder(tmp_path / "m", both)
    for layer in both:
        check(folder, both[layer], layer)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_and_single_precision(tmp_path: Path, dtype: Any) -> None:
    rounded: Any = tuple(part.astype(dtype) for part in stacks())
    named = {name: value.astype(dtype) for name, value in llama_tensors({0: rounded}).items()}
    config = llama_config(
        n_layers=1, n_heads=N_HEADS, n_kv_heads=N_KV, head_dim=HEAD_DIM, width=WIDTH
    )
    check(write_folder(tmp_path, config, named), rounded)


def write_raw(path: Path, tensors: dict[str, Array], dtype: str) -> None:
    """A file of 16-bit words under any dtype's name."""
    header, data = {}, b""
    for name, words in tensors.items():
        end = len(data) + words.nbytes
        header[name] = {
            "dtype": dtype, "shape": list(words.shape), "data_offsets": [len(data), end],
        }  # fmt: skip
        data += words.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_bf16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    parts = stacks()
    folder = llama_folder(tmp_path / "m", {0: parts})
    words = {
        name: (value.view(np.uint32) >> 16).astype("<u2")
        for name, value in llama_tensors({0: parts}).items()
    }
    write_raw(folder / "model.safetensors", words, "BF16")
    cut: Any = tuple((p.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for p in parts)
    check(folder, cut)


FUSED: list[tuple[str, str, int, Callable[[Stacks], Array]]] = [
    ("phi3", "model.layers.0.self_attn.qkv_proj.weight", N_KV, concatenated),
    ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value.weight", N_HEADS, grouped),
    ("falcon", "transformer.h.0.self_attention.query_key_value.weight", N_KV, grouped),
    ("falcon", "transformer.h.0.self_attention.query_key_value.weight", 1, concatenated),
    ("bloom", "h.0.self_attention.query_key_value.weight", N_HEADS, grouped),
    ("internlm2", "model.layers.0.attention.wqkv.weight", N_KV, grouped),
    ("gpt2", "h.0.attn.c_attn.weight", N_HEADS, lambda parts: concatenated(parts).T),
    ("gpt_bigcode", "transformer.h.0.attn.c_attn.weight", 1, concatenated),
]


def fused_config(model_type: str, n_kv: int) -> dict[str, Any]:
    config = llama_config(
        n_layers=1, n_heads=N_HEADS, n_kv_heads=n_kv, head_dim=HEAD_DIM, width=WIDTH,
        model_type=model_type, vocab_size=64,
    )  # fmt: skip
    if model_type == "falcon":
        config |= {"new_decoder_architecture": n_kv > 1, "num_kv_heads": n_kv}
        config |= {"multi_query": n_kv == 1}
    if model_type == "gpt_bigcode":
        config |= {"multi_query": True}
    if model_type in ("gpt2", "gpt_bigcode", "bloom"):
        config |= {"n_embd": WIDTH, "n_layer": 1, "n_head": N_HEADS, "n_positions": 64}
    return config


@pytest.mark.parametrize(("model_type", "name", "n_kv", "order"), FUSED)
def test_fused_matrices(
    tmp_path: Path, model_type: str, name: str, n_kv: int, order: Callable[[Stacks], Array]
) -> None:
    parts = stacks(1, n_kv)
    folder = write_folder(tmp_path, fused_config(model_type, n_kv), {name: order(parts)})
    check(folder, parts)


def test_a_fused_matrix_of_unknown_order_is_refused(tmp_path: Path) -> None:
    name = "model.layers.0.attention.query_key_value.weight"
    config = fused_config("llama", N_KV)
    folder = write_folder(tmp_path, config, {name: grouped(stacks())})
    with pytest.raises(SpecError, match="which of its rows are keys is not known"):
        attention_layers(folder).read(0)


def test_mla_maps_from_the_latent(tmp_path: Path) -> None:
    nope, rope, v_dim, latent, n = 4, 2, 3, 10, 5
    rng = np.random.default_rng(0)
    query = rng.standard_normal((n, nope + rope, WIDTH)).astype(np.float32)
    both = rng.standard_normal((n, nope + v_dim, latent)).astype(np.float32)
    config = {
        "model_type": "deepseek_v2", "hidden_size": WIDTH, "num_hidden_layers": 1,
        "num_attention_heads": n, "num_key_value_heads": n, "kv_lora_rank": latent,
        "q_lora_rank": None, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope,
        "v_head_dim": v_dim, "intermediate_size": 48, "vocab_size": 64,
    }  # fmt: skip
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": query.reshape(-1, WIDTH),
        "model.layers.0.self_attn.kv_b_proj.weight": both.reshape(-1, latent),
    }
    found = attention_layers(write_folder(tmp_path, config, tensors)).read(0)
    assert found.from_latent
    np.testing.assert_array_equal(found.query, query[:, :nope])
    np.testing.assert_array_equal(found.key, both[:, :nope])
    np.testing.assert_array_equal(found.value, both[:, nope:])


def test_towers_and_draft_layers_are_not_taken_for_the_model() -> None:
    names = [
        "vision_tower.encoder.layers.0.self_attn.k_proj.weight",
        "language_model.model.layers.0.self_attn.k_proj.weight",
        "language_model.model.layers.1.self_attn.k_proj.weight",
        "mtp.layers.0.self_attn.k_proj.weight",
        "language_model.model.layers.1.mlp.experts.0.up_proj.weight",
    ]
    assert layer_prefix(names, 2) == "language_model.model.layers."


def test_two_stacks_that_could_be_meant_are_refused() -> None:
    names = [f"{side}.layers.0.self_attn.k_proj.weight" for side in ("a", "b")]
    with pytest.raises(SpecError, match=r"several stacks.*a\.layers.*b\.layers"):
        layer_prefix(names, 1)


def damaged(folder: Path, how: str) -> None:
    path = folder / "model.safetensors"
    tensors = llama_tensors({0: stacks()})
    key, value = (f"model.layers.0.self_attn.{p}_proj.weight" for p in "kv")
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "no file":
        path.unlink()
    elif how == "missing shard":
        path.rename(folder / "a.safetensors")
        places = {**dict.fromkeys(tensors, "a.safetensors"), "x": "b.safetensors"}
        (folder / INDEX_NAME).write_text(json.dumps({"weight_map": places}))
    elif how == "index alone":
        path.unlink()
        index = {"metadata": {"total_size": 8}, "weight_map": {"x": "b.safetensors"}}
        (folder / INDEX_NAME).write_text(json.dumps(index))
    elif how == "no config":
        (folder / "config.json").unlink()
    elif how == "fp8":
        words = {name: np.zeros(t.shape, np.uint16) for name, t in tensors.items()}
        write_raw(path, words, "I16")
    else:
        changed = {
            "missing tensor": lambda: tensors.pop(value),
            "wrong shape": lambda: tensors.update({key: tensors[key][:-1]}),
            "a vector": lambda: tensors.update({key: tensors[key][0]}),
            "NaN": lambda: tensors[key].__setitem__((3, 5), np.nan),
            "infinity": lambda: tensors[key].__setitem__((0, 0), np.inf),
            "nothing": tensors.clear,
        }
        changed[how]()
        tensors = tensors or {"other": np.zeros(3, np.float32)}
        save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", "not a complete safetensors file"),
        ("no file", "inspect needs the weights"),
        ("missing shard", r"1 of 2 files are missing.*b\.safetensors.*inspect needs the weights"),
        ("index alone", "none of its files"),
        ("no config", "no config.json"),
        ("fp8", "stored as I16; inspect reads BF16, F16, F32"),
        ("missing tensor", r"tensor 'model\.layers\.0\.self_attn\.v_proj\.weight' is missing"),
        ("wrong shape", r"has shape \(7, 24\), config.json asks for \(8, 24\)"),
        ("a vector", r"has shape \(24,\), config.json asks for \(8, 24\)"),
        ("NaN", r"holds NaN or infinity, first at \[3, 5\]"),
        ("infinity", r"holds NaN or infinity, first at \[0, 0\]"),
        ("nothing", "no tensor is called like a key projection"),
    ],
)
def test_damage_ends_in_one_line(tmp_path: Path, how: str, message: str) -> None:
    folder = llama_folder(tmp_path / "m", {0: stacks()})
    damaged(folder, how)
    with pytest.raises(SpecError, match=message) as caught:
        attention_layers(folder).read(0)
    assert "\n" not in str(caught.value)
    assert "m" in str(caught.value)
