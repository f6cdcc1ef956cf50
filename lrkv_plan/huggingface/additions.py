"""Which weights does a model type hold that attention, mixers, feed-forwards and norms leave out?

One function per idea, named in a row of the table of types; each reads the keys that size it. All
were read in the modelling code of Hugging Face transformers 5.24, Kimi K3's in SGLang 0.5.23. d is
the model's width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lrkv_plan.huggingface.fields import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Fields,
)
from lrkv_plan.huggingface.model_type import Experts, ModelType

Row = dict[str, Any]
Rows = tuple[Row, ...]


def _vector(name: str, rows: int, part: str = "norms") -> Row:
    return {"name": name, "rows": rows, "part": part}


def _matrix(name: str, rows: int, cols: int, **more: Any) -> Row:
    return {"name": name, "rows": rows, "cols": cols, **more}


def add_to_layers(fields: Fields, known: ModelType, rows: list[Row], hidden: int) -> None:
    """Put what the type adds to a layer into the ``weights`` of every row that has it."""
    makers = [_LAYERS[name] for name in _sized(fields, known) if name in _LAYERS]
    per_layer = [one for make in makers for one in make(fields, hidden)]
    for row in rows:
        added = (*per_layer, *_of_experts(fields, known.experts, row["feed_forward"], hidden))
        if added:
            row["weights"] = (*row.get("weights", ()), *added)


def of_model(fields: Fields, known: ModelType, n_layers: int, hidden: int) -> Rows:
    """What the type adds outside its layers."""
    makers = [_MODELS[name] for name in _sized(fields, known) if name in _MODELS]
    return tuple(one for make in makers for one in make(fields, n_layers, hidden))


def unsized(fields: Fields, known: ModelType) -> tuple[str, ...]:
    """Names of additions whose keys the file leaves out, so that they are not counted."""
    sized = _sized(fields, known)
    return tuple(_NEEDS[name][0] for name in known.additions if name not in sized)


def _sized(fields: Fields, known: ModelType) -> list[str]:
    keys_of = {name: _NEEDS.get(name, ("",))[1:] for name in known.additions}
    return [name for name, keys in keys_of.items() if all(fields.has(key) for key in keys)]


def _of_experts(fields: Fields, rule: Experts | None, block: Row | None, hidden: int) -> Rows:
    """Norms around a mixture, scales of its router and experts; the projections of a latent.

    Experts of a latent l (Nemotron-3-Super, Kimi K3) have d l + l d, and a norm l where it says so.
    Experts that do nothing (LongCat) have a column of the router and its bias, d + 1.
    """
    if rule is None or block is None or block["kind"] != "experts":
        return ()
    rows = []
    if rule.norms:
        rows.append(_vector("expert_norms", rule.norms * hidden))
    if rule.scales:
        rows.append(_vector("router_scales", hidden + block["n_experts"], "router"))
    idle = fields.integer("zero_expert_num", most=MAX_WIDTH, least=0) or 0
    if idle:
        rows.append(_matrix("zero_experts", hidden + 1, idle, part="router", plain=True))
    latent = block.get("routed_dim")
    if latent:
        plain = {"part": "router", "plain": True}
        rows.append(_matrix("latent_down", hidden, latent, reads="hidden", **plain))
        rows.append(_matrix("latent_up", latent, hidden, reads="expert latent", **plain))
        if block.get("bias"):
            rows.append(_vector("latent_biases", latent + hidden, "router"))
        if fields.flag("latent_moe_use_norm"):
            rows.append(_vector("latent_norm", latent))
    return tuple(rows)


def _altup(fields: Fields, hidden: int) -> Rows:
    """Gemma 3n: m copies of the hidden state, predicted and corrected; a low-rank side path.

    AltUp: a router m d with a norm d, m^2 x m and m x m coefficients, a scale d. LAuReL of rank r:
    d r + r d and a norm d.
    """
    copies = fields.needed("altup_num_inputs", most=MAX_HEADS)
    rank = fields.needed("laurel_rank", most=MAX_WIDTH)
    return (
        _matrix("altup_router", hidden, copies, plain=True, part="embeddings", reads="hidden"),
        _matrix("altup_coefficients", copies**2 + copies, copies, plain=True, part="embeddings"),
        _vector("altup_norm_and_scale", 2 * hidden),
        _matrix("laurel_down", hidden, rank, plain=True, part="embeddings", reads="hidden"),
        _matrix("laurel_up", rank, hidden, plain=True, part="embeddings", reads="laurel latent"),
        _vector("laurel_norm", hidden),
    )


def _altup_copies(fields: Fields, n_layers: int, hidden: int) -> Rows:  # noqa: ARG001
    """Gemma 3n: m - 1 matrices make the copies of the embedding, as many join them at the end."""
    others = fields.needed("altup_num_inputs", most=MAX_HEADS) - 1
    if not others:
        return ()
    shape = {"rows": hidden, "cols": hidden, "copies": 2 * others, "part": "embeddings"}
    return ({"name": "altup_projections", **shape},)


def per_layer_table(fields: Fields, rows: list[Row], hidden: int) -> Rows:
    """Gemma 3n and 4: an embedding of p scalars for every layer; returns the model's weights of it.

    The table is V x L p, made from the hidden state too by d x L p with a norm p. A layer gates and
    projects its row, d p + p d, and has one more norm d.
    """
    width = fields.integer("hidden_size_per_layer_input", most=MAX_WIDTH, least=0)
    if not width:
        return ()
    tokens = fields.integer("vocab_size_per_layer_input", most=MAX_VOCABULARY)
    if tokens is None:
        raise fields.missing("vocab_size_per_layer_input")
    plain = {"plain": True, "part": "embeddings"}
    for row in rows:
        row["weights"] = (
            *row.get("weights", ()),
            _matrix("per_layer_gate", hidden, width, reads="hidden", **plain),
            _matrix("per_layer_projection", width, hidden, reads="per-layer input", **plain),
            _vector("per_layer_norm", hidden),
        )
    inputs = len(rows) * width
    return (
        _matrix("per_layer_table", tokens, inputs, part="embeddings"),
        _matrix("per_layer_inputs", hidden, inputs, part="embeddings"),
        _vector("per_layer_inputs_norm", width),
    )


def _sub_norms(fields: Fields, hidden: int) -> Rows:
    """BitNet: norms of the heads' output and of the feed-forward's middle."""
    return (
        _vector("attention_sub_norm", hidden),
        _vector("feed_forward_sub_norm", fields.needed("intermediate_size", most=MAX_WIDTH)),
    )


def _activation_scalars(fields: Fields, hidden: int) -> Rows:  # noqa: ARG001
    """Apertus: two learned scalars of its activation."""
    return (_vector("activation_scalars", 2),)


def _differential(fields: Fields, hidden: int) -> Rows:
    """DiffLlama: two pairs of vectors weigh the second softmax."""
    heads = fields.needed("num_attention_heads", most=MAX_HEADS)
    width = fields.integer("head_dim", most=MAX_WIDTH) or hidden // heads
    return (_vector("lambdas", 4 * width, "attention"),)


def _qk_norm_bias(fields: Fields, hidden: int) -> Rows:
    """Persimmon: the norms of query and key have biases."""
    if not fields.flag("qk_layernorm", default=True):
        return ()
    heads = fields.needed("num_attention_heads", most=MAX_HEADS)
    return (_vector("query_key_norm_bias", 2 * (hidden // heads), "attention"),)


def _hyper_connections(fields: Fields, hidden: int) -> Rows:
    """m streams of hidden states (GLM-5.3, DeepSeek-V4), mixed before attention and feed-forward.

    Each of the two: m (m + 2) x m d, m (m + 2) of bias and 3 scales.
    """
    streams = fields.needed("hc_mult", most=MAX_HEADS)
    mixed = streams * (streams + 2)
    return (
        {
            "name": "stream_mixers", "rows": streams * hidden, "cols": mixed, "copies": 2,
            "plain": True, "part": "embeddings", "reads": "streams",
        },
        _vector("stream_biases", 2 * (mixed + 3)),
    )  # fmt: skip


def _paired_streams(fields: Fields, hidden: int) -> Rows:
    """Hy 4: as above with 2 m x m d, 2 m of bias and 2 scales."""
    streams = fields.needed("hc_mult", most=MAX_HEADS)
    return (
        {
            "name": "stream_mixers", "rows": streams * hidden, "cols": 2 * streams, "copies": 2,
            "plain": True, "part": "embeddings", "reads": "streams",
        },
        _vector("stream_biases", 2 * (2 * streams + 2)),
    )  # fmt: skip


def _sinks(fields: Fields, hidden: int) -> Rows:  # noqa: ARG001
    """Hy 4: a learned logit of each head beside its latent attention."""
    heads = fields.needed("num_attention_heads", most=MAX_HEADS)
    return (_vector("sinks", heads, "attention"),)


def _stream_head(fields: Fields, n_layers: int, hidden: int) -> Rows:  # noqa: ARG001
    """DeepSeek-V4: the streams are joined at the end by m x m d, m of bias and a scale."""
    streams = fields.needed("hc_mult", most=MAX_HEADS)
    return (
        _matrix("stream_head", streams * hidden, streams, part="embeddings"),
        _vector("stream_head_bias", streams + 1),
    )


def _attention_residual(fields: Fields, hidden: int) -> Rows:
    """Kimi K3: a norm and a projection to one scalar choose among earlier blocks, twice a layer."""
    if not fields.integer("attn_res_block_size", most=MAX_LAYERS):
        return ()
    return (_vector("residual_norms_and_projections", 4 * hidden),)


def _residual_head(fields: Fields, n_layers: int, hidden: int) -> Rows:  # noqa: ARG001
    """Kimi K3: the same once more before the head."""
    if not fields.integer("attn_res_block_size", most=MAX_LAYERS):
        return ()
    return (_vector("output_residual_norm_and_projection", 2 * hidden),)


def _shared_block(fields: Fields, n_layers: int, hidden: int) -> Rows:  # noqa: ARG001
    """Zamba2: blocks that the hybrid layers take in turn, each held once.

    Attention reads the hidden state beside the embedding, 2 d: H h + 2 G h from 2 d, H h to d; a
    gated feed-forward i; norms 2 d and d.
    """
    blocks = fields.needed("num_mem_blocks", most=MAX_LAYERS)
    heads = fields.needed("num_attention_heads", most=MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", most=MAX_HEADS) or heads
    width = fields.needed("attention_head_dim", most=MAX_WIDTH)
    inner = fields.needed("intermediate_size", most=MAX_WIDTH)
    shapes = (
        ("shared_query_key_value", 2 * hidden, (heads + 2 * kv_heads) * width, "attention"),
        ("shared_attention_output", heads * width, hidden, "attention"),
        ("shared_gate_up", hidden, 2 * inner, "router"),
        ("shared_down", inner, hidden, "router"),
    )
    return (
        *(_matrix(n, r, c, copies=blocks, part=part) for n, r, c, part in shapes),
        {**_vector("shared_norms", 3 * hidden), "copies": blocks},
    )


_LAYERS: dict[str, Callable[[Fields, int], Rows]] = {
    "altup": _altup, "sub_norms": _sub_norms, "activation_scalars": _activation_scalars,
    "differential": _differential, "qk_norm_bias": _qk_norm_bias,
    "hyper_connections": _hyper_connections, "attention_residual": _attention_residual,
    "paired_streams": _paired_streams, "sinks": _sinks,
}  # fmt: skip
_MODELS: dict[str, Callable[[Fields, int, int], Rows]] = {
    "altup": _altup_copies, "stream_head": _stream_head, "attention_residual": _residual_head,
    "shared_block": _shared_block,
}  # fmt: skip
# What is said of an addition that cannot be sized, and the keys that size it.
_NEEDS: dict[str, tuple[str, ...]] = {
    "altup": ("altup and laurel weights", "altup_num_inputs", "laurel_rank"),
    "sub_norms": ("norms inside attention and feed-forward", "intermediate_size"),
    "hyper_connections": ("weights of the hyper-connections", "hc_mult"),
    "paired_streams": ("weights of the hyper-connections", "hc_mult"),
    "stream_head": ("weights that join the streams", "hc_mult"),
}
