"""Hypothesis strategies: plain descriptions of models, which both sides read."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.drawing import drawn

Plain = dict[str, Any]

HEADS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])
WIDTHS = st.sampled_from([2, 5, 16, 33, 40, 64, 96, 128])
GPUS = st.sampled_from([1, 1, 2, 2, 3, 4, 6, 8])
KV_FORMATS = st.sampled_from(
    ["fp32", "bf16", "fp16", "fp8", "int8", "int4", "fp8_per_token_head", "int8_per_token_head",
     "nvfp4", "mxfp4", "q8_0", "q4_0", "fp8_ds_mla"]
)  # fmt: skip
# HYPOTHESIS_SEARCH=1 draws new cases; its value is how many times as many examples.
SCALE = max(1, int(os.environ.get("HYPOTHESIS_SEARCH") or 1))


def examples(n: int) -> Any:
    """Settings for ``n`` examples, or that many times ``HYPOTHESIS_SEARCH``."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=drawn(n * SCALE), deadline=None, suppress_health_check=slow)


def divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


@st.composite
def attentions(draw: Any, heads: int | None = None) -> Plain:
    n = heads or draw(HEADS)
    flags = {k: draw(st.booleans()) for k in ("output_bias", "output_gate")}
    value = draw(WIDTHS)
    family = draw(st.sampled_from(["mha", "gqa", "mqa", "mla", "mla", "lrkv", "lrkv", "lrkv"]))
    if family == "mla":
        return {
            "family": "mla", "n_heads": n, "v_head_dim": value, "nope_dim": draw(WIDTHS),
            "latent_dim": draw(st.integers(1, 600)), "rope_dim": draw(st.sampled_from([0, 8, 64])),
            "query_latent_dim": draw(st.sampled_from([None, 24])),
            "cached_form": draw(st.sampled_from(["latent", "latent", "heads"])), **flags,
        }  # fmt: skip
    key = draw(WIDTHS)
    flags["qk_norm"] = draw(st.booleans())
    if family == "lrkv":
        return {**draw(low_rank(n, key, value)), **flags}
    kv_heads = {"mha": n, "mqa": 1, "gqa": draw(st.sampled_from(divisors(n)))}[family]
    for name in ("qkv_bias", "sinks", "value_from_key"):
        flags[name] = draw(st.booleans())
    return {
        "family": family, "n_heads": n, "n_kv_heads": kv_heads, "head_dim": key,
        "v_head_dim": value, **flags,
    }  # fmt: skip


@st.composite
def low_rank(draw: Any, n: int, key: int, value: int) -> Plain:
    position = draw(st.sampled_from(["none", "rope_expand", "rope_rank", "rope_decoupled"]))
    key_rank = draw(st.integers(0, key))
    if position == "rope_rank":
        key_rank -= key_rank % 2
    return {
        "family": "lrkv", "n_heads": n, "head_dim": key, "v_head_dim": value,
        "key_rank": key_rank, "value_rank": draw(st.integers(0, value)),
        "n_shared_groups": draw(st.sampled_from(divisors(n))), "position": position,
        "rope_dim": draw(st.sampled_from([8, 64])) if position == "rope_decoupled" else 0,
        "basis_spans_rotary_planes": position == "rope_rank",
        "key_norm": draw(st.sampled_from(["none", "rms_cached"])),
        "expansion": draw(st.sampled_from(["products", "kernel"])),
        "rank_alignment": draw(st.sampled_from([1, 1, 8, 16, 17])),
    }  # fmt: skip


@st.composite
def fixed_tensors(draw: Any, name: str) -> list[Plain]:
    return [
        {
            "name": f"{name}_{i}", "bytes_per_copy": draw(st.integers(1, 5000)),
            "copies": draw(st.sampled_from([1, 2, 4, 6])),
            "sharding": draw(st.sampled_from(["by_copy", "replicated"])),
            "bytes_per_draft_token": draw(st.sampled_from([0, 0, 64])) if name == "state" else 0,
        }
        for i in range(draw(st.sampled_from([1, 1, 2])))
    ]  # fmt: skip


@st.composite
def feed_forwards(draw: Any) -> Plain:
    width = st.sampled_from([24, 48, 96, 100, 7])
    kind = draw(st.sampled_from(["dense", "dense", "experts", "experts", "none"]))
    if kind == "none":
        return {"kind": "none"}
    block = {"hidden_dim": draw(width), "gated": draw(st.booleans()), "bias": draw(st.booleans())}
    if kind == "dense":
        return {"kind": "dense", **block}
    n = draw(st.integers(1, 9))
    return {
        "kind": "experts", "n_experts": n, "experts_per_token": draw(st.integers(1, n)),
        "shared_hidden_dim": draw(st.sampled_from([0, 24])),
        "dense_hidden_dim": draw(st.sampled_from([0, 48])),
        "router_bias": draw(st.booleans()), "shared_gate": draw(st.booleans()), **block,
    }  # fmt: skip


@st.composite
def selections(draw: Any) -> Plain:
    """A sparse layer: an index of its own or another's; how many rows it selects may be unknown."""
    own = draw(st.sampled_from([True, True, False]))
    few, many = st.integers(1, 4096), st.integers(1, 10**6)
    told = draw(st.one_of(few, many) if not own else st.one_of(st.none(), few, many))
    return {
        "index": draw(fixed_tensors("index")) if own else [], "selected_tokens": told,
        "reuses_cache": draw(st.sampled_from([False, False, False, True])),
    }  # fmt: skip


@st.composite
def layer_groups(draw: Any, plain: bool) -> Plain:
    group: Plain = {
        "count": draw(st.integers(1, 6)), "attention": None, "window_tokens": None,
        "reuses_cache": False, "cached_over": "context", "index": [], "state": [],
        "selected_tokens": None, "feed_forward": draw(feed_forwards()),
    }  # fmt: skip
    kind = "full" if plain else draw(
        st.sampled_from(["full", "full", "full", "window", "window", "state", "cross", "reuse",
                         "sparse", "sparse"])
    )  # fmt: skip
    if kind == "state":
        return {**group, "state": draw(fixed_tensors("state"))}
    group["attention"] = draw(attentions())
    if kind == "window":
        group["window_tokens"] = draw(st.integers(1, 3000))
        group["window_kind"] = draw(st.sampled_from(["sliding", "chunked"]))
    elif kind == "cross":
        group |= {"cached_over": "encoder", "feed_forward": None}
    elif kind == "reuse":
        group["reuses_cache"] = True
    elif kind == "sparse":
        group |= draw(selections())
    return group


@st.composite
def layouts(draw: Any) -> Plain:
    """GPUs that slice layers (tp), stages (pp), attention ranks (dp), and that share experts (ep).

    Experts go to a part of one rank's GPUs, or to all GPUs of some ranks.
    """
    tp, dp = draw(GPUS), draw(st.sampled_from([1, 1, 2, 4, 6]))
    over = [n for n in range(1, tp * dp + 1) if tp * dp % n == 0 and (tp % n == 0 or n % tp == 0)]
    ep = draw(st.sampled_from([1, *over]))
    return {"tp": tp, "dp": dp, "ep": ep, "pp": draw(st.sampled_from([1, 1, 2, 3]))}


@st.composite
def models(draw: Any, plain: bool = False) -> Plain:
    """A whole model; ``plain`` ones have only attention over the full context."""
    first = draw(layer_groups(plain=True))
    others = draw(st.lists(layer_groups(plain=plain), max_size=3))
    return {
        "model_dim": draw(st.sampled_from([1, 48, 256, 2304])), "layers": [first, *others],
        "vocab_size": draw(st.integers(1, 2000)), "tied_embeddings": draw(st.booleans()),
        "head_bias": draw(st.booleans()), "position_embeddings": draw(st.sampled_from([1, 512])),
        "extra_params": draw(st.sampled_from([0, 12345])),
        "norms": {
            "per_mixer": draw(st.integers(0, 2)), "per_feed_forward": draw(st.integers(0, 2)),
            "bias": draw(st.booleans()), "final": draw(st.booleans()),
            "embedding": draw(st.booleans()),
        },
    }  # fmt: skip


@st.composite
def hybrids(draw: Any) -> Plain:
    """Layers of one design, or of one and its double, that keep different things: equal pages."""
    plain = draw(models(plain=True))
    n = draw(st.sampled_from([2, 4, 8]))
    flags = dict.fromkeys(("output_bias", "output_gate", "qk_norm", "qkv_bias", "sinks"), False)
    design = {
        "family": "gqa", "n_heads": n, "n_kv_heads": n // 2, "value_from_key": False,
        "head_dim": draw(st.sampled_from([16, 40])), "v_head_dim": 16, **flags,
    }  # fmt: skip
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        kept = draw(
            st.sampled_from(["full", "full", "sliding", "sliding", "chunked", "state", "cross"])
        )
        doubled = draw(st.sampled_from([1, 1, 2]))
        group = {
            **draw(layer_groups(plain=True)), "count": draw(st.sampled_from([1, 2, 3, 4, 5, 8, 10, 11])),
            "attention": {**design, "family": "gqa", "n_kv_heads": doubled * n // 2},
        }  # fmt: skip
        if kept in ("sliding", "chunked"):
            group |= {"window_tokens": draw(st.integers(1, 300)), "window_kind": kept}
        elif kept == "state":
            group |= {"attention": None, "state": draw(fixed_tensors("state"))}
        elif kept == "cross":
            group |= {"cached_over": "encoder", "feed_forward": None}
        layers.append(group)
    rows = {
        **draw(layer_groups(plain=True)),
        "attention": design,
        "count": draw(st.sampled_from([1, 2, 3, 4, 5, 8, 10, 11])),
    }
    return {**plain, "layers": [rows, *layers]}
