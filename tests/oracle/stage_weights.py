"""What one GPU of each pipeline stage holds, summed layer by layer from bits of matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any

Model = dict[str, Any]


def layer_parts(
    model: Model, layers: list[Any], fmt: str, tp: int, ep: int, count: Any
) -> Counter[str] | None:
    """Bits of one layer: its own group and the cross-attention that shares it."""
    plain, parts = 32 if fmt == "fp32" else 16, Counter()  # type: ignore[var-annotated]
    norms, d = model["norms"], model["model_dim"]
    vector = d * (2 if norms["bias"] else 1) * plain
    for layer in layers:
        a = layer["attention"]
        for what, rows, cols, copies, shares in count.matrices(a, d) if a else []:
            if "made" in what and layer["reuses_cache"]:
                continue
            if shares and shares % tp and tp % shares:
                return None
            held = copies * count.matrix_bits(rows, cols, fmt, True)
            parts["attention"] += Fraction(held, min(shares, tp) if shares else 1)
        parts["norms"] += norms["per_mixer"] * vector * bool(a or layer["state"])
    own = layers[0]["feed_forward"]
    blocks = count.block(own, d, fmt, tp, ep)
    if blocks is None:
        return None
    parts["norms"] += norms["per_feed_forward"] * vector * (own["kind"] != "none")
    return parts + Counter(blocks)


def stages(
    model: Model, fmt: str, tp: int, pp: int, ep: int, count: Any, can_run: Callable[..., bool]
) -> list[dict[str, int]] | None:
    """Bytes by part of one GPU of each stage; None where something cannot be dealt out."""
    own = [g for g in model["layers"] if g["cached_over"] == "context" for _ in range(g["count"])]
    if pp > len(own) or not all(
        can_run(g["attention"], tp) for g in model["layers"] if g["attention"]
    ):
        return None
    crossing: list[list[Any]] = [[g] for g in own]
    for g in model["layers"]:
        for k in range(g["count"] if g["cached_over"] == "encoder" else 0):
            crossing[min(k * len(own) // g["count"], len(own) - 1)].append(g)
    found, at = [], 0
    for number, size in enumerate(count.stage_sizes(len(own), pp)):
        total: Counter[str] = Counter()
        for layers in crossing[at : at + size]:
            parts = layer_parts(model, layers, fmt, tp, ep, count)
            if parts is None:
                return None
            total += parts
        at += size
        total += ends(model, fmt, tp, number == 0, number == pp - 1)
        found.append({name: ceil(bits / 8) for name, bits in total.items()})
    return found


def ends(model: Model, fmt: str, tp: int, first: bool, last: bool) -> Counter[str]:
    """Embedding, positions and extra parts on the first stage, head and final norm on the last."""
    plain, d, norms = 32 if fmt == "fp32" else 16, model["model_dim"], model["norms"]
    vector = d * (2 if norms["bias"] else 1) * plain
    rows, parts = ceil(model["vocab_size"] / tp), Counter()  # type: ignore[var-annotated]
    if first:
        parts["embeddings"] = (rows + model["position_embeddings"]) * d * plain
        parts["norms"] += vector * norms["embedding"]
        parts["extra"] = Fraction(model["extra_params"] * plain, tp)  # type: ignore[assignment]
    if last:
        untied = not (first and model["tied_embeddings"])
        parts["head"] = rows * plain * (d * untied + model["head_bias"])
        parts["norms"] += vector * norms["final"]
    return parts
