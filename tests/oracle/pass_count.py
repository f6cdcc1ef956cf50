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


def reads(a: Plain, what: str, rows: int, shares: int) -> str | None:
    """What a matrix multiplies: hidden state, heads, a latent; None head by head."""
    if a["family"] == "mla" and what.endswith("kv") and shares:
        return "latent" if a.get("cached_form") == "heads" else None
    return None if what == "kv" else "hidden"


def attention(a: Plain, d: int, makes_rows: bool, fmt: str, tp: int, count: Any) -> list[Any]:
    """(inputs, outputs, bytes, operand) of each matrix: one per thing that is read."""
    joined: dict[str, list[F]] = {}
    for place, (what, rows, cols, copies, shares) in enumerate(count.matrices(a, d)):
        if cols * copies == 1 or ("made" in what and not makes_rows) or what.endswith("b"):
            continue
        share = F(1, min(shares, tp) if shares else 1)
        name = reads(a, what, rows, shares)
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


def maps(a: Plain, path: str) -> list[tuple[int, int]]:
    """(rows, cols) of each head's maps that a path multiplies once a token."""
    dv = a["v_head_dim"]
    if a.get("cached_form") == "heads":
        return []
    if a["family"] == "mla" and path == "absorbed":
        return [(a["nope_dim"], a["latent_dim"]), (a["latent_dim"], dv)]
    if a["family"] == "lrkv" and path != "materialised":
        keys = [(a["head_dim"], a["key_rank"])] * (path == "factored")
        return [(r, c) for r, c in [(a["value_rank"], dv), *keys] if r * c]
    return []


def inside(a: Plain) -> bool:
    """Whether the attention kernel multiplies with the maps itself."""
    return a.get("expansion") == "kernel"


def mlp(width: int, gated: bool, d: int, fmt: str, tp: int, count: Any) -> list[Any]:
    """Gate and up as one matrix, and down."""
    here, n = width // tp, 1 + gated
    name = operand(fmt, False, count)
    return [
        (F(d), F(n * here), F(n * count.matrix_bits(d, here, fmt, False), 8), name),
        (F(here), F(d), F(count.matrix_bits(here, d, fmt, False), 8), name),
    ]


def expert_layer(f: Plain, d: int, n: int, fmt: str, layout: Plain, count: Any) -> Plain:
    """One layer of experts: whole ones over ``ep`` GPUs, each in slices over the rest."""
    w = f["hidden_dim"] // max(1, layout["tp"] // layout["ep"])
    bits = (1 + f["gated"]) * count.matrix_bits(d, w, fmt, False)
    bits += count.matrix_bits(w, d, fmt, False)
    return {
        "n": f["n_experts"], "k": f["experts_per_token"], "width": w, "bytes": F(bits, 8),
        "layers": n, "dim": d, "ep": layout["ep"], "operand": operand(fmt, False, count),
    }  # fmt: skip


def small_kernels(x: Plain, model: Plain, tp: int) -> Counter[Any]:
    """Norms, rotations, activations of one layer."""
    a, f, norms = x["attention"], x["feed_forward"] or {"kind": "none"}, model["norms"]
    found: Counter[Any] = Counter()
    if a and a["family"] != "mla":
        keys = a["n_shared_groups"] if a["family"] == "lrkv" else a["n_kv_heads"]
        width = F((a["n_heads"] + keys) * a["head_dim"], tp)
        found["rotary", width] += 1
        if a["qk_norm"]:
            found["qk_norm", width] += 1
    calls = norms["per_mixer"] * bool(a or x["state"])
    calls += norms["per_feed_forward"] * (f["kind"] != "none")
    found["norm", F(model["model_dim"])] += calls
    if f["kind"] == "dense":
        found["activation", F(f["hidden_dim"], tp)] += 1
    return found


def operations(model: Plain, fmt: str, layout: Plain, path_of: Any, count: Any) -> Plain:
    """All matrices, products, experts and small kernels of one GPU, with how often each runs.

    ``held`` are the bytes of all of them, with an embedding of its own and the matrices that make
    rows of an encoder, which no step multiplies.
    """
    d, tp = model["model_dim"], layout["tp"]
    bits = 32 if fmt == "fp32" else 16
    plain = "fp32" if fmt == "fp32" else "bf16"
    matrices: Counter[Any] = Counter()
    batched: Counter[Any] = Counter()
    small: Counter[Any] = Counter()
    experts, idle, mapped = [], F(0), 0
    for x in model["layers"]:
        a, f, n = x["attention"], x["feed_forward"] or {"kind": "none"}, x["count"]
        own = not x["reuses_cache"] and x["cached_over"] == "context"
        found = attention(a, d, own, fmt, tp, count) if a else []
        for rows, cols in maps(a, path_of(a)) if a else []:
            mapped += n * (a["n_heads"] // tp) * rows * cols
            if not inside(a):
                batched[a["n_heads"] // tp, rows, cols] += n
        if a and x["cached_over"] == "encoder":
            every = attention(a, d, True, fmt, tp, count)
            idle += n * (sum(m[2] for m in every) - sum(m[2] for m in found))
        for what, calls in small_kernels(x, model, tp).items():
            small[what] += n * calls
        if f["kind"] == "dense":
            found += mlp(f["hidden_dim"], f["gated"], d, fmt, tp, count)
        if f["kind"] == "experts":
            found.append((F(d), F(f["n_experts"]), F(d * f["n_experts"] * bits, 8), plain))
            for width in (f["shared_hidden_dim"], f["dense_hidden_dim"]):
                found += mlp(width, f["gated"], d, fmt, tp, count) if width else []
            experts.append(expert_layer(f, d, n, fmt, layout, count))
        for one in found:
            matrices[one] += n
    vocabulary = F(model["vocab_size"], tp)
    head = vocabulary * d * bits / 8
    matrices[F(d), vocabulary, head, plain] += 1
    held = sum(n * m[2] for m, n in matrices.items()) + F(mapped * bits, 8) + idle
    held += sum(e["layers"] * -(-e["n"] // e["ep"]) * e["bytes"] for e in experts)
    return {
        "matrices": matrices, "products": batched, "experts": experts, "small": +small,
        "held": held + (0 if model["tied_embeddings"] else head),
    }  # fmt: skip


def scaled(found: Plain, factor: F) -> Plain:
    """The same with every stored size times ``factor``."""
    matrices: Counter[Any] = Counter()
    for (k, n, size, name), layers in found["matrices"].items():
        matrices[k, n, size * factor, name] += layers
    experts = [{**e, "bytes": e["bytes"] * factor} for e in found["experts"]]
    return {**found, "matrices": matrices, "experts": experts}
