"""Cache bytes counted from the tables of what each family keeps: scalars, formats, GPUs, windows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

Design = dict[str, Any]
# bits per scalar, bits of a scale, scalars that share it (0: the row), whole groups only
PLAIN = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp8_ds_mla": 8}
SCALED = {
    "int4": (4, 32, 0, False), "fp8_per_token_head": (8, 32, 0, False),
    "int8_per_token_head": (8, 32, 0, False), "nvfp4": (4, 8, 16, False),
    "mxfp4": (4, 8, 32, False), "q8_0": (8, 16, 32, True), "q4_0": (4, 16, 32, True),
}  # fmt: skip


def row_bytes(width: int, fmt: str, tensor: str) -> Fraction:
    """A row: payload and scales; key scales and DeepSeek's mixed entry are kept otherwise."""
    if fmt in SCALED and tensor == "key_scale":
        return Fraction(2)
    if fmt == "fp8_ds_mla" and tensor == "rope_key":
        return Fraction(2 * width)
    if fmt == "fp8_ds_mla" and tensor.startswith("latent"):
        empty = 2 * 64 if tensor == "latent_alone" else 0  # the place of the rotary part stays
        return Fraction(width + 4 * -(-width // 128) + empty)
    if fmt in PLAIN:
        return Fraction(width * PLAIN[fmt], 8)
    bits, scale, group, whole = SCALED[fmt]
    groups = -(-width // group) if group else 1
    stored = groups * group if whole else width
    return Fraction(stored * bits + groups * scale, 8)


def tensors(a: Design, payload: bool = False) -> list[tuple[str, int, int, bool]]:
    """(name, width, copies, dealt out by copy) of what one layer keeps per token."""
    heads = a["n_heads"]
    if a["family"] == "mla":
        if a.get("cached_form") == "heads":
            width = a["nope_dim"] + a["rope_dim"]
            kept = [("key", width, heads, True), ("value", a["v_head_dim"], heads, True)]
        else:
            name = "latent" if a["rope_dim"] else "latent_alone"
            latent = (name, a["latent_dim"], 1, False)
            kept = [latent, ("rope_key", a["rope_dim"], 1, False)]
    elif a["family"] == "lrkv":
        groups, to = a["n_shared_groups"], 1 if payload else a["rank_alignment"]
        ranks = [-(-a[r] // to) * to for r in ("key_rank", "value_rank")]
        kept = [("shared_key", a["head_dim"], groups, True)]
        kept += [("shared_value", a["v_head_dim"], groups, True)]
        kept += [("private_key", ranks[0], heads, True), ("private_value", ranks[1], heads, True)]
        kept += [("rope_key", a["rope_dim"], 1, False)]
        kept += [("key_scale", 1, heads if a["key_norm"] == "rms_cached" else 0, True)]
    else:
        n = a["n_kv_heads"]
        kept = [("key", a["head_dim"], n, True), ("value", a["v_head_dim"], n, True)]
    return [t for t in kept if t[1] and t[2]]


def can_run(a: Design, gpus: int) -> bool:
    """Query heads deal out evenly; cached copies do, or repeat evenly."""
    dealt = [copies for _, _, copies, is_dealt in tensors(a) if is_dealt]
    return a["n_heads"] % gpus == 0 and all(c % gpus == 0 or gpus % c == 0 for c in dealt)


def on_gpu(copies: int, dealt: bool, gpus: int) -> int:
    return copies if not dealt else max(1, copies // gpus)


def layer_row(a: Design, fmt: str, gpus: int, payload: bool = False) -> Fraction:
    """Bytes per token of one layer on one GPU."""
    return sum(
        (on_gpu(c, dealt, gpus) * row_bytes(w, fmt, name)
         for name, w, c, dealt in tensors(a, payload)),
        start=Fraction(0),
    )  # fmt: skip


def fixed_bytes(parts: list[Design], gpus: int) -> int | None:
    """State or index tensors of one layer on one GPU; None where they cannot be dealt out."""
    total = 0
    for part in parts:
        copies, dealt = part["copies"], part["sharding"] == "by_copy"
        if dealt and copies % gpus and gpus % copies:
            return None
        total += on_gpu(copies, dealt, gpus) * part["bytes_per_copy"]
    return total


def keeps_rows(layer: Design) -> bool:
    return bool(layer["attention"]) and not layer["reuses_cache"]


def per_token(layers: list[Design], fmt: str, gpus: int, over: str = "context") -> Fraction:
    """Bytes that a token more adds on one GPU, in the layers that keep rows of their own."""
    total = Fraction(0)
    for layer in layers:
        own = over == "encoder" or keeps_rows(layer)
        if layer["attention"] and layer["cached_over"] == over and own:
            total += layer["count"] * layer_row(layer["attention"], fmt, gpus)
    return total


def held(layers: list[Design], fmt: str, gpus: int, tokens: int, batch: int, encoder: int) -> Any:
    """(rows, index keys, state) of a batch of equal sequences on one GPU. [bytes]"""
    rows, index, state = Fraction(0), 0, 0
    for layer in layers:
        n, a = layer["count"], layer["attention"]
        index += n * batch * tokens * (fixed_bytes(layer["index"], gpus) or 0)
        state += n * batch * (fixed_bytes(layer["state"], gpus) or 0)
        if a and layer["cached_over"] == "encoder":
            rows += n * batch * encoder * layer_row(a, fmt, gpus)
        elif keeps_rows(layer):
            kept = min(tokens, layer["window_tokens"] or tokens)
            rows += n * batch * kept * layer_row(a, fmt, gpus)
    return rows, index, state
