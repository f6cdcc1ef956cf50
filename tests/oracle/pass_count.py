"""What one GPU multiplies between its attention kernels, from the shapes of a plain description."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction as F
from typing import Any

Plain = dict[str, Any]
OPERANDS = {"int8": "sq", "int4": "int4_wo", "fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}


def operand(fmt: str, attention: bool, count: Any) -> str:
    """The name of a part's matrices in tables; formats that leave attention alone keep 16 bits."""
    if fmt in count.FORMATS and attention and not count.FORMATS[fmt][4]:
        return "bf16"
    return OPERANDS.get(fmt, fmt)


def reads(a: Plain, what: str, rows: int) -> str | None:
    """What a matrix multiplies: hidden state, heads, a latent; None head by head."""
    if a["family"] == "mla" and what.endswith("kv") and rows == a["latent_dim"]:
        return "latent" if a.get("cached_form") == "heads" else None
    return None if what == "kv" else "hidden"


def attention(a: Plain, d: int, reuses: bool, fmt: str, tp: int, count: Any) -> list[Any]:
    """(inputs, outputs, bytes, operand) of each matrix: one per thing that is read."""
    joined: dict[str, list[F]] = {}
    for place, (what, rows, cols, copies, shares) in enumerate(count.matrices(a, d)):
        if cols * copies == 1 or ("made" in what and reuses) or what.endswith("b"):
            continue
        share = F(1, min(shares, tp) if shares else 1)
        name = reads(a, what, rows)
        if a.get("query_latent_dim") and what == "q" and rows == a["query_latent_dim"]:
            latest = [x for x in count.matrices(a, d) if x[0] == "q"][-1]
            name = "query latent" if (what, rows, cols, copies, shares) == latest else name
        if place == 0:  # the output projection reads this GPU's heads
            joined["heads"] = [
                rows * share,
                F(cols),
                share * count.matrix_bits(rows, cols, fmt, True) / 8,
            ]
            continue
        if name is None:
            continue
        sums = joined.setdefault(name, [F(rows), F(0), F(0)])
        sums[1] += share * cols * copies
        sums[2] += share * copies * count.matrix_bits(rows, cols, fmt, True) / 8
    return [(*sums, operand(fmt, True, count)) for sums in joined.values()]


def products(a: Plain, path: str, tp: int) -> list[tuple[int, int, int]]:
    """(heads here, rows, cols) of each product over heads."""
    h, dv = a["n_heads"] // tp, a["v_head_dim"]
    if a.get("cached_form") == "heads":
        found = []
    elif a["family"] == "mla" and path == "absorbed":
        found = [(a["nope_dim"], a["latent_dim"]), (a["latent_dim"], dv)]
    elif a["family"] == "lrkv" and path != "materialised":
        found = [(a["value_rank"], dv)]
        found += [(a["head_dim"], a["key_rank"])] * (path == "factored")
    else:
        found = []
    return [(h, rows, cols) for rows, cols in found if rows * cols]


def mlp(width: int, gated: bool, d: int, fmt: str, tp: int, count: Any) -> list[Any]:
    """Gate and up as one matrix, and down."""
    here, n = width // tp, 1 + gated
    name = operand(fmt, False, count)
    return [
        (F(d), F(n * here), F(n * count.matrix_bits(d, here, fmt, False), 8), name),
        (F(here), F(d), F(count.matrix_bits(here, d, fmt, False), 8), name),
    ]


def operations(model: Plain, fmt: str, tp: int, path_of: Any, count: Any) -> Plain:
    """All matrices, products, experts and small kernels of one GPU, with how often each runs."""
    d, norms = model["model_dim"], model["norms"]
    bits = 32 if fmt == "fp32" else 16
    plain = "fp32" if fmt == "fp32" else "bf16"
    matrices: Counter[Any] = Counter()
    batched: Counter[Any] = Counter()
    small: Counter[Any] = Counter()
    experts = []
    for x in model["layers"]:
        a, f, n = x["attention"], x["feed_forward"] or {"kind": "none"}, x["count"]
        found = attention(a, d, x["reuses_cache"], fmt, tp, count) if a else []
        for one in products(a, path_of(a), tp) if a else []:
            batched[one] += n
        if a and a["family"] != "mla":
            keys = a["n_shared_groups"] if a["family"] == "lrkv" else a["n_kv_heads"]
            width = F((a["n_heads"] + keys) * a["head_dim"], tp)
            small["rotary", width] += n
            if a["qk_norm"]:
                small["qk_norm", width] += n
        calls = norms["per_mixer"] * bool(a or x["state"])
        calls += norms["per_feed_forward"] * (f["kind"] != "none")
        small["norm", F(d)] += n * calls
        if f["kind"] == "dense":
            found += mlp(f["hidden_dim"], f["gated"], d, fmt, tp, count)
            small["activation", F(f["hidden_dim"], tp)] += n
        if f["kind"] == "experts":
            found.append((F(d), F(f["n_experts"]), F(d * f["n_experts"] * bits, 8), plain))
            for width in (f["shared_hidden_dim"], f["dense_hidden_dim"]):
                found += mlp(width, f["gated"], d, fmt, tp, count) if width else []
            w = f["hidden_dim"] // tp
            held = (1 + f["gated"]) * count.matrix_bits(d, w, fmt, False)
            held += count.matrix_bits(w, d, fmt, False)
            experts.append({"n": f["n_experts"], "k": f["experts_per_token"], "width": w,
                            "bytes": F(held, 8), "layers": n, "dim": d})  # fmt: skip
        for one in found:
            matrices[one] += n
    vocabulary = F(model["vocab_size"], tp)
    matrices[F(d), vocabulary, vocabulary * d * bits / 8, plain] += 1
    return {
        "matrices": matrices, "products": batched, "experts": experts,
        "small": +small,
    }  # fmt: skip
