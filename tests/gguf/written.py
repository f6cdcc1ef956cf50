"""Writes small GGUF files with a writer of its own: keys, and tensors of zeros."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

F32, F16, Q8_0, Q4_K = (0, 1, 4), (1, 1, 2), (8, 32, 34), (12, 256, 144)  # number, width, bytes
Tensors = Mapping[str, tuple[tuple[int, ...], tuple[int, int, int]]]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def typed(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    kind, words = (8, b"".join(map(text, value))) if isinstance(value[0], str) else (5, b"")
    if kind == 5:
        words = struct.pack(f"<{len(value)}i", *value)
    return struct.pack("<IIQ", 9, kind, len(value)) + words


def header(keys: Mapping[str, Any], tensors: Tensors) -> tuple[bytes, int]:
    """The header, and the bytes of all tensors."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    parts += [text(name) + typed(value) for name, value in keys.items()]
    offset = 0
    for name, (shape, (number, width, n_bytes)) in tensors.items():
        parts.append(
            text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset)
        )
        size = n_bytes
        for n in shape:
            size *= n
        offset += -(-(size // width) // 32) * 32
    return b"".join(parts), offset


def write(path: Path, keys: Mapping[str, Any], tensors: Tensors) -> Path:
    head, n_bytes = header(keys, tensors)
    path.write_bytes(head + bytes(-len(head) % 32))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + n_bytes)  # zeros that take no space
    return path


def llama(n_layers: int = 2, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A small llama: 4 heads of 64, 2 key/value heads, feed-forward 512."""
    keys = {
        "general.architecture": "llama", "llama.block_count": n_layers,
        "llama.embedding_length": 256, "llama.context_length": 4096,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.feed_forward_length": 512, "tokenizer.ggml.tokens": ["a", "b", "<s>"],
    }  # fmt: skip
    tensors = {"token_embd.weight": ((256, 1000), Q4_K), "output_norm.weight": ((256,), F32)}
    for layer in range(n_layers):
        tensors |= {f"blk.{layer}.{name}": one for name, one in attention_block().items()}
    return {**keys, **more}, tensors


def attention_block(kv: int = 128) -> dict[str, Any]:
    return {
        "attn_norm.weight": ((256,), F32), "attn_q.weight": ((256, 256), Q4_K),
        "attn_k.weight": ((256, kv), Q4_K), "attn_v.weight": ((256, kv), Q8_0),
        "attn_output.weight": ((256, 256), Q4_K), "ffn_norm.weight": ((256,), F32),
        "ffn_gate.weight": ((256, 512), Q4_K), "ffn_up.weight": ((256, 512), Q4_K),
        "ffn_down.weight": ((512, 256), Q4_K),
    }  # fmt: skip
