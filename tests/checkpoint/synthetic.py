"""Small checkpoints with known weights, in the layouts of published models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Array = NDArray[Any]


def llama_config(
    *, n_layers: int, n_heads: int, n_kv_heads: int, head_dim: int, width: int, **changes: Any
) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads, "num_key_value_heads": n_kv_heads, "head_dim": head_dim,
        "intermediate_size": 2 * width, **changes,
    }  # fmt: skip


def planted(rng: np.random.Generator, n_heads: int, head_dim: int, width: int, rank: int) -> Array:
    """Stacks W_h^T of shape (heads, head_dim, width): one base plus a rank-r residual each."""
    base = rng.standard_normal((1, head_dim, width))
    inner = rng.standard_normal((n_heads, head_dim, rank))
    return base + inner @ rng.standard_normal((n_heads, rank, width))


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors"
    )
    return folder


def llama_tensors(layers: Mapping[int, tuple[Array, Array, Array]]) -> dict[str, Array]:
    """Names of llama for stacks (heads, head_dim, width) of queries, keys and values."""
    named = {}
    for layer, stacks in layers.items():
        for name, stack in zip("qkv", stacks, strict=True):
            flat = stack.reshape(-1, stack.shape[2]).astype(np.float32)
            named[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = flat
    return named


def llama_folder(
    folder: Path, layers: Mapping[int, tuple[Array, Array, Array]], **changes: Any
) -> Path:
    query, key, _ = layers[0]
    config = llama_config(
        n_layers=len(layers), n_heads=len(query), n_kv_heads=len(key), head_dim=query.shape[1],
        width=query.shape[2], **changes,
    )  # fmt: skip
    return write_folder(folder, config, llama_tensors(layers))
