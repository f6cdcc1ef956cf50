"""Weights from matrix shapes: parameters, storage formats, and what one GPU of a group holds."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

Design = dict[str, Any]
# bits, bits of a scale, inputs and outputs that share it (0: all inputs), attention too
FORMATS = {
    "fp8": (8, 32, 0, 1, True), "fp8_block": (8, 32, 128, 128, True), "int8": (8, 32, 0, 1, True), "int4": (4, 20, 128, 1, True),
    "nvfp4": (4, 8, 16, 1, True), "mxfp4": (4, 8, 32, 1, False),
}  # fmt: skip
NAMES = ("bf16", "fp16", "fp32", *FORMATS)


def matrix_bits(rows: int, cols: int, fmt: str, attention: bool) -> int:
    if fmt not in FORMATS or cols == 1 or (attention and not FORMATS[fmt][4]):
        return rows * cols * (32 if fmt == "fp32" else 16)
    bits, scale, by_rows, by_cols, _ = FORMATS[fmt]
    return rows * cols * bits + -(-rows // (by_rows or rows)) * -(-cols // by_cols) * scale


def matrices(a: Design, d: int) -> list[tuple[str, int, int, int, int]]:
    """(what, inputs, outputs, copies, shares) of one attention layer; 0 shares: whole everywhere.

    ``what`` is kv for key/value weights, "made " in front where they make the cached rows.
    """
    h, dv, family = a["n_heads"], a["v_head_dim"], a["family"]
    out = [("o", h * dv, d, 1, h)]
    out += [("b", d, 1, 1, 0)] * a["output_bias"] + [("o", d, h * dv, 1, h)] * a["output_gate"]
    if family == "mla":
        c, r, q = a["latent_dim"], a["rope_dim"], a.get("query_latent_dim")
        dq = h * (a["nope_dim"] + r)
        up = "made kv" if a.get("cached_form") == "heads" else "kv"
        query = [("q", d, q, 1, 0), ("q", q, 1, 1, 0), ("q", q, dq, 1, h)] if q else []
        out += query or [("q", d, dq, 1, h)]
        out += [("made kv", d, c + r, 1, 0), ("made kv", c, 1, 1, 0)]
        return [*out, (up, c, h * (a["nope_dim"] + dv), 1, h)]
    dk = a["head_dim"]
    norms = [("b", dk, 1, 1, 0), ("made b", dk, 1, 1, 0)] * a["qk_norm"]
    if family == "lrkv":
        r = a["rope_dim"]
        out += [("q", d, h * (dk + r), 1, h), *norms, *[("made kv", d, r, 1, 0)] * bool(r)]
        for width, rank in ((dk, a["key_rank"]), (dv, a["value_rank"])):
            g = a["n_shared_groups"]
            out += [
                ("made kv", d, width, g, g),
                ("made kv", d, rank, h, h),
                ("kv", width, rank, h, h),
            ]
        return out
    n = a["n_kv_heads"]
    out += [("q", d, h * dk, 1, h), ("made kv", d, n * dk, 1, n), *norms]
    out += [] if a["value_from_key"] else [("made kv", d, n * dv, 1, n)]
    out += [("b", h * dk, 1, 1, h), ("made b", n * (dk + dv), 1, 1, n)] * a["qkv_bias"]
    return out + [("b", h, 1, 1, h)] * a["sinks"]


def attention(a: Design, d: int, reuses: bool, only_kv: bool = False) -> int:
    """Parameters of one layer; a layer that reuses a cache has nothing that makes rows."""
    return sum(
        rows * cols * copies for what, rows, cols, copies, _ in matrices(a, d)
        if not (reuses and "made" in what) and (not only_kv or "kv" in what)
    )  # fmt: skip


def block(f: Design, d: int, fmt: str | None, tp: int, ep: int) -> dict[str, Fraction] | None:
    """Bits by part of a feed-forward on one GPU; parameters where there is no format."""
    m = 3 if f.get("gated") else 2

    def mlp(width: int, slices: int) -> Fraction:
        if not fmt:
            return Fraction(m * d * width + f["bias"] * ((m - 1) * width + d))
        bits = (m - 1) * matrix_bits(d, width, fmt, False) + matrix_bits(width, d, fmt, False)
        plain = 32 if fmt == "fp32" else 16
        return Fraction(bits + f["bias"] * (m - 1) * width * plain, slices) + f["bias"] * d * plain

    if f["kind"] == "none":
        return {}
    if f["kind"] == "dense":
        return None if f["hidden_dim"] % tp else {"feed_forward": mlp(f["hidden_dim"], tp)}
    slices, others = max(1, tp // ep), [("shared_experts", f["shared_hidden_dim"])]
    others += [("feed_forward", f["dense_hidden_dim"])]
    if f["hidden_dim"] % slices or any(w % tp for _, w in others):
        return None
    parts = {name: mlp(w, tp) for name, w in others if w}
    router = f["n_experts"] * (d + f["router_bias"]) + d * f["shared_gate"]
    each = 1 if not fmt else 32 if fmt == "fp32" else 16
    experts = ceil(Fraction(f["n_experts"], ep)) * mlp(f["hidden_dim"], slices)
    return {**parts, "experts": experts, "router": Fraction(router * each)}


def stage_sizes(layers: int, pp: int) -> list[int]:
    """L // P each; what is left goes one each to the stages before the last, from the back."""
    sizes = [layers // pp] * pp
    for k in range(layers % pp):
        sizes[-2 - k] += 1
    return sizes
