"""Step times from the published kernel form, exactly in fractions, and crossings by linear scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction as F
from typing import Any

# Priors that the step model states: share of bandwidth and of peak, per layer and per step.
LINEAR = (F(0.85), F(0.70))
OVERHEAD_S = (F(20e-6), F(200e-6))


def kernel(form: str, c: dict[str, float], n_bytes: F, flops: F, units: F) -> F:
    """t0 + max(bytes / rate, flops / rate) and its variants. [s]"""
    memory, compute = n_bytes / F(c["bytes_per_s"]), flops / F(c["flops_per_s"])
    busy = memory + compute if form.startswith("sum") else max(memory, compute)
    if form == "no_split":
        busy /= min(F(1), max(F(units), F(1)) / F(c["full_work_units"]))
    charged = F(c["work_unit_s"]) * units if form.endswith("per_work_unit") else F(0)
    return F(c["t0_s"]) + busy + charged


def all_reduce(c: dict[str, Any], gpus: int, message: F) -> F:
    """t0 + the shorter of one shot and two shots over the link. [s]"""
    rate, two = F(c["link_bytes_per_s"]), 2 * F(gpus - 1, gpus) * message
    if c["two_shot_s"] is None:
        return F(c["t0_s"]) + two / rate
    return F(c["t0_s"]) + min(message * (gpus - 1) / rate, F(c["two_shot_s"]) + two / rate)


def scan_work(a: dict[str, Any], path: str) -> tuple[int, int, int, int]:
    """(per token, per step, rebuilding per token, scalars rebuilt) of all heads, multiply-adds."""
    h, dv, family = a["n_heads"], a["v_head_dim"], a["family"]
    if family == "mla":
        c, r, n = a["latent_dim"], a["rope_dim"], a["nope_dim"]
        if a.get("cached_form") == "heads":
            return h * (n + r + dv), 0, 0, 0
        if path == "absorbed":
            return h * (2 * c + r), h * c * (n + dv), 0, 0
        return h * (n + r + dv), 0, h * c * (n + dv), h * (n + dv)
    dk = a["head_dim"]
    if family != "lrkv":
        return h * (dk + dv), 0, 0, 0
    rk, rv, r = a["key_rank"], a["value_rank"], a["rope_dim"]
    if path == "factored":
        return h * (dk + rk + r + dv + rv), h * (rk * dk + rv * dv), 0, 0
    if path == "rope_expand":
        return h * (dk + dv + rv), h * rv * dv, h * rk * dk, h * dk
    return h * (dk + r + dv), 0, h * (rk * dk + rv * dv), h * (dk + dv)


def attention(layer: dict[str, Any], context: int, batch: int, query: int) -> F:
    """All layers of one kind: rows read, tokens written, FLOPs scanned. [s]"""
    rows = layer["fixed_rows"]
    if rows is None:
        rows = min(context, layer["window_tokens"] or context)
    n_bytes = batch * (rows * F(layer["row_read_bytes"]) + F(layer["fixed_bytes"])
                       + query * F(layer["token_write_bytes"]))  # fmt: skip
    per_row = query * F(layer["row_flops"]) + F(layer["expand_row_flops"])
    rebuilt = F(layer["rebuilt_row_scalars"])
    units = (
        batch * rows * rebuilt if rebuilt and layer["rebuilding"] else F(batch * layer["n_copies"])
    )
    once = kernel(layer["form"], layer["constants"], n_bytes, batch * rows * per_row, units)
    return layer["layers"] * once


def step(design: dict[str, Any], context: int, batch: int, query: int) -> F:
    """Attention, the weights' pass, all-reduces and overhead, one after the other. [s]"""
    linear, tokens = design["linear"], batch * query
    touched = 1 - (1 - F(linear["expert_share"])) ** tokens
    n_bytes = F(linear["dense_bytes"]) + F(linear["expert_bytes"]) * touched
    n_bytes += tokens * F(linear["embedding_row_bytes"])
    flops = tokens * F(linear["token_flops"])
    weights = max(
        n_bytes / (LINEAR[0] * F(design["bandwidth"])), flops / (LINEAR[1] * F(design["peak"]))
    )
    total = sum((attention(x, context, batch, query) for x in design["layers"]), start=F(0))
    if design["n_all_reduces"]:
        message = tokens * F(design["all_reduce_token_bytes"])
        once = all_reduce(design["all_reduce"], design["gpus"], message)
        total += design["n_all_reduces"] * once
    return total + weights + design["n_layers"] * OVERHEAD_S[0] + OVERHEAD_S[1]


def crossings(
    times: Callable[[int], tuple[F, F]], values: Iterable[int]
) -> tuple[int | None, list[tuple[int, int]], bool]:
    """The first leader, every change of leader, and whether some place is too close to call."""
    leader, first, changes, close = None, None, [], False
    for number, value in enumerate(values):
        one, other = times(value)
        close = close or abs(one - other) < max(one, other) * F(1, 10**12)
        ahead = None if one == other else int(one > other)
        if number == 0:
            first = leader = ahead
        elif ahead is not None and ahead != leader:
            if leader is not None:
                changes.append((value, ahead))
            leader = ahead
    return first, changes, close
