"""Step times as sums of operations in their stated forms, and crossings by linear scan.

In fractions, but for square roots (40 digits) and the experts that a step touches (a float).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Context, Decimal
from fractions import Fraction as F
from functools import cache
from math import log
from typing import Any


@cache
def root(square: F) -> F:
    """The square root to 40 digits."""
    digits = Context(prec=40)
    whole = digits.divide(Decimal(square.numerator), Decimal(square.denominator))
    return F(digits.sqrt(whole))


def kernel(form: str, c: dict[str, Any], n_bytes: F, flops: F, units: F) -> F:
    """t0 + max(bytes / rate, flops / rate) and its variants, at most a short call. [s]"""
    cold, short = cold_kernel(form, c, n_bytes, flops, units), c.get("short")
    if short is None:
        return cold
    few = F(short["t0_s"]) + n_bytes / F(short["bytes_per_s"]) + flops / F(c["flops_per_s"])
    return min(cold, few + F(short["work_unit_s"]) * units)


def cold_kernel(form: str, c: dict[str, Any], n_bytes: F, flops: F, units: F) -> F:
    """The same of a call of any length. [s]"""
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
    """All layers of one kind: rows and index keys read, tokens written, FLOPs scanned. [s]"""
    rows = layer["fixed_rows"]
    if rows is None:
        rows = min(context, layer["window_tokens"] or context)
    n_bytes = batch * (rows * F(layer["row_read_bytes"]) + context * F(layer["index_row_bytes"])
                       + F(layer["fixed_bytes"]) + query * F(layer["token_write_bytes"]))  # fmt: skip
    per_row = query * F(layer["row_flops"]) + F(layer["expand_row_flops"])
    flops = batch * (rows * per_row + query * F(layer["token_flops"]))
    rebuilt = F(layer["rebuilt_row_scalars"])
    units = (
        batch * rows * rebuilt if rebuilt and layer["rebuilding"] else F(batch * layer["n_copies"])
    )
    read = n_bytes + F(layer["call_bytes"])
    return layer["layers"] * kernel(layer["form"], layer["constants"], read, flops, units)


def matrix(c: dict[str, float], k: F, n: F, n_bytes: F, tokens: int) -> F:
    """t0 + the root of memory, arithmetic and the walk along the inputs, squared each. [s]"""
    memory = (n_bytes + 2 * tokens * (k + n)) / F(c["bytes_per_s"])
    compute, walk = 2 * tokens * k * n / F(c["flops_per_s"]), F(c["tau_s_per_element"]) * k
    return F(c["t0_s"]) + root(memory**2 + compute**2 + walk**2)


def product(c: dict[str, float], heads: int, rows: int, cols: int, tokens: int) -> F:
    """t0 + a time per head in proportion to its weights, longer with tokens. [s]"""
    share = F(rows * cols, 128 * 512)
    return F(c["t0_s"]) + F(c["head_s"]) * heads * share * (1 + tokens / F(c["token_scale"]))


def touched(e: dict[str, Any], tokens: int) -> F:
    """Experts that tokens^0.9 touch on the fullest of the GPUs that share them."""
    n, ep = e["n"], e["ep"]
    mean = n * (1 - (1 - e["k"] / n) ** (tokens**0.9)) / ep
    held = -(-n // ep)
    if ep == 1:
        return F(mean)
    return F(min(mean + (2 * mean * max(0.0, 1 - mean / held) * log(ep)) ** 0.5, held))


def experts(c: dict[str, float], e: dict[str, Any], tokens: int) -> F:
    """Start, weights of the experts touched, arithmetic, a time per expert. [s]"""
    active = touched(e, tokens)
    rows, d, w = F(tokens * e["k"], e["ep"]), e["dim"], e["width"]
    memory = (active * F(e["bytes"]) + 2 * rows * (2 * d + 3 * w)) / F(c["bytes_per_s"])
    compute = F(6 * rows * d * w) / F(c["flops_per_s"])
    return F(c["t0_s"]) + root(memory**2 + compute**2) + F(c["expert_s"]) * active


def shares(layout: dict[str, int], batch: int) -> tuple[int, int]:
    """Sequences of the fullest attention rank, and of the ranks that share its experts.

    Dealt out one by one: to the stages in turn, then to the ranks of the fullest stage.
    """
    stage = sum(1 for k in range(batch) if k % layout["pp"] == 0)
    ranks = [0] * layout["dp"]
    for k in range(stage):
        ranks[k % len(ranks)] += 1
    return ranks[0], sum(ranks[: max(1, layout["ep"] // layout["tp"])])


def step(design: dict[str, Any], context: int, batch: int, query: int) -> F:
    """Attention, every other operation, messages and the engine, one after the other. [s]"""
    here, together = shares(design["layout"], batch)
    tokens = here * query
    total = sum((attention(x, context, here, query) for x in design["layers"]), start=F(0))
    for x in design.get("updates", ()):
        # Typical constants: 4 us and 70 % of 3 TB/s for states, 3.5 us and 30 % for convolutions.
        state = F("4e-6") + here * F(x["state"]) / F("2.1e12")
        window = F("3.5e-6") + here * F(x["window"] + query * x["column"]) / F("0.9e12")
        total += x["layers"] * (state + window)
    for (k, n, n_bytes, operand), layers in design["matrices"].items():
        total += layers * matrix(design["of_matrices"][operand], k, n, F(n_bytes), tokens)
    for shape, layers in design["products"].items():
        total += layers * product(design["of_products"], *shape, tokens)
    for e in design["experts"]:
        of = design["of_experts"][e["operand"]]
        total += e["layers"] * experts(of, e, together * query)
    for (kind, width), calls in design["small"].items():
        start, a, b = (F(x) for x in design["of_small"][kind])
        total += calls * (start + (a + b * tokens) * width)
    if design["n_all_reduces"]:
        message = tokens * F(design["all_reduce_token_bytes"])
        once = all_reduce(design["all_reduce"], design["layout"]["tp"], message)
        total += design["n_all_reduces"] * once
    if design["n_exchanges"]:
        start, token = design["exchange"]
        total += design["n_exchanges"] * (F(start) + tokens * F(token))
    return total + added(design) + F(design["engine"]["step"]) + here * F(design["engine"]["each"])


def added(design: dict[str, Any]) -> F:
    """What the engine adds to layers, less what launches of one graph overlap. [s]"""
    engine = design["engine"]
    launched = sum(x["layers"] for x in design["layers"]) + design["n_all_reduces"]
    launched += sum(design["matrices"].values()) + sum(design["products"].values())
    launched += sum(2 * x["layers"] for x in design.get("updates", ()))  # convolution, update
    sparse = sum(x["layers"] for x in design["layers"] if x["index_row_bytes"])
    total = sparse * F(engine["index"]) - launched * F(engine["overlap"])
    return total + design["n_exchanges"] * F(engine["exchange"])


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
