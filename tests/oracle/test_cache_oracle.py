"""Bytes per token, per sequence and per GPU against an independent count."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.errors import PlacementError
from lrkv_plan.memory.cache import (
    bytes_per_token,
    cache_bytes,
    encoder_bytes_per_token,
    index_bytes_per_token,
    ratio_to_mha,
    state_bytes_per_sequence,
)
from lrkv_plan.memory.side_by_side import tensor_rows
from lrkv_plan.specs.deployment import Workload
from lrkv_plan.specs.design import named_designs
from tests.oracle import cache_count as oracle
from tests.oracle.comparing import agree, spec_of
from tests.oracle.draws import GPUS, KV_FORMATS, examples, models

Plain = dict[str, Any]


def refused(layers: list[Plain], gpus: int) -> bool:
    """Whether some layer's heads or fixed tensors cannot be dealt out."""
    return any(
        (x["attention"] and not oracle.can_run(x["attention"], gpus))
        or oracle.fixed_bytes(x["state"], gpus) is None
        or oracle.fixed_bytes(x["index"], gpus) is None
        for x in layers
    )


def as_mha(layers: list[Plain]) -> list[Plain]:
    """The same heads with full attention."""
    swapped = []
    for layer in layers:
        a = layer["attention"]
        if a:
            own = a["nope_dim"] + a["rope_dim"] if a["family"] == "mla" else 0
            key = own or a["head_dim"]
            a = {"family": "mha", "n_heads": a["n_heads"], "n_kv_heads": a["n_heads"],
                 "head_dim": key, "v_head_dim": a["v_head_dim"]}  # fmt: skip
        swapped.append({**layer, "attention": a, "index": [], "selected_tokens": None})
    return swapped


@examples(120)
@given(models(), GPUS, KV_FORMATS, st.integers(1, 10**6), st.integers(1, 500), st.integers(0, 3000))
def test_bytes_agree(
    plain: Plain, gpus: int, fmt: str, tokens: int, batch: int, encoder: int
) -> None:
    model, layers = spec_of(plain), plain["layers"]
    told: dict[str, Any] = {"kv_dtype": fmt, "tp_size": gpus}
    runs = not refused(layers, gpus)
    try:
        held = cache_bytes(
            model, context_tokens=tokens, batch_size=batch, encoder_tokens=encoder, **told
        )
    except PlacementError:
        # A layer that reuses a cache holds nothing: the bytes may refuse less than a run would.
        agree("refusals", False, runs, plain, gpus)
        return
    if not runs:
        return  # only a layer without rows of its own cannot run
    agree("bytes per token", bytes_per_token(model, **told), oracle.per_token(layers, fmt, gpus))
    agree(
        "encoder bytes per token", encoder_bytes_per_token(model, **told),
        oracle.per_token(layers, fmt, gpus, "encoder"),
    )  # fmt: skip
    rows, index, state = oracle.held(layers, fmt, gpus, tokens, batch, encoder)
    agree("bytes of a batch", held.kv_bytes, rows, plain)
    agree("bytes of a batch", held.index_bytes, index, plain)
    agree("bytes of a batch", held.state_bytes, state, plain)
    agree("bytes of a batch", held.total, rows + index + state, plain)
    one = oracle.held(layers, fmt, gpus, 1, 1, 0)
    agree("state per sequence", state_bytes_per_sequence(model, tp_size=gpus), one[2])
    agree("index per token", index_bytes_per_token(model, tp_size=gpus), one[1])


@examples(60)
@given(models(), GPUS, KV_FORMATS)
def test_ratios_to_mha_agree(plain: Plain, gpus: int, fmt: str) -> None:
    layers, mha = plain["layers"], as_mha(plain["layers"])
    if refused(layers, gpus):
        return
    ours = ratio_to_mha(spec_of(plain), kv_dtype=fmt, tp_size=gpus)
    whole = oracle.per_token(mha, fmt, gpus)
    expected = oracle.per_token(layers, fmt, gpus) / whole if whole else None
    agree("ratio to MHA", ours, expected, plain, gpus)


@examples(60)
@given(models(), GPUS, KV_FORMATS, st.integers(1, 10**6), st.integers(1, 50))
def test_tensors_add_up(plain: Plain, gpus: int, fmt: str, tokens: int, batch: int) -> None:
    if refused(plain["layers"], gpus):
        return
    work = Workload(batch_size=batch, kv_dtype=fmt, tp_size=gpus, encoder_tokens=700)
    rows = tensor_rows(named_designs(spec_of(plain)), contexts=[tokens], workload=work)
    for size, name in ((1, "cache_bytes"), (gpus, "cache_bytes_per_gpu")):
        total = sum(getattr(row, name) for row in rows)
        parts = oracle.held(plain["layers"], fmt, size, tokens, batch, 700)
        agree("bytes of tensors", total, sum(parts), plain, gpus)
