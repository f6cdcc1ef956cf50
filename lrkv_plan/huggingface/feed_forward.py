"""The feed-forward block of each layer: dense or a mixture of experts, or None if not stated.

A width is taken only where the model type's row says which key holds it; otherwise the block stays
None and a remark says why.
"""

from __future__ import annotations

import re
from typing import Any

from lrkv_plan.errors import shown
from lrkv_plan.huggingface.fields import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_WIDTH,
    NOT_LANGUAGE,
    Fields,
    is_whole,
)
from lrkv_plan.huggingface.layers import Layer, without_drafts
from lrkv_plan.huggingface.model_type import Experts, ModelType, switch

EXPERT_COUNT_KEYS = (
    "n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts",
    "moe_num_primary_experts",
)  # fmt: skip
_ACTIVE_KEYS = (
    "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k",
    "experts_per_token", "moe_k", "moe_topk", "moe_num_active_primary_experts",
)  # fmt: skip
# The width of a latent that the routed experts work on (Nemotron-3-Super, Kimi K3).
_LATENT_KEYS = ("moe_latent_size", "latent_moe_size", "routed_expert_hidden_size")
# What speaks of experts under any spelling; these words size nothing on their own.
_EXPERTS = re.compile(r"(?:^|[^a-z])moe(?:[^a-z]|$)|experts?(?:[^a-z]|$)", re.IGNORECASE)
_NO_EXPERTS = re.compile(r"loss|dropout|jitter|dtype|token_id|aux|eps|init", re.IGNORECASE)
_MOST_KEYS = 10_000
_DENSE_FIRST_KEYS = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
# Other keys that place the mixtures; a list with one entry per layer makes them moot.
_PLACING_KEYS = (
    *_DENSE_FIRST_KEYS, "mlp_only_layers", "moe_layers", "moe_layer_freq", "decoder_sparse_step",
    "interleave_moe_layer_step", "moe_layer_interval", "moe_layer_end_index",
    "expert_layer_period", "expert_layer_offset",
)  # fmt: skip
NO_BLOCK = {"kind": "none"}


def feed_forwards_of(
    fields: Fields, known: ModelType, layers: list[Layer], hidden: int
) -> list[dict[str, Any] | None]:
    """One feed-forward per layer as ``LayerGroup.feed_forward`` input."""
    if known.gated is None:
        name = shown(fields.text("model_type"))
        fields.assume(
            f"model_type {name} is not known here: norms, biases and feed-forward are left out"
        )
        return [NO_BLOCK if layer.block == "none" else None for layer in layers]
    unread = _unread_experts(fields, known)
    if unread is not None:
        fields.assume(
            f"feed_forward: left out, {unread} speaks of experts and a {fields.text('model_type')} "
            "is read as dense here"
        )
        return [None] * len(layers)
    uses_experts = _expert_layers(fields, known, len(layers))
    mixture = _mixture(fields, known)
    widths = _dense_widths(fields, known, layers, hidden)
    blocks: list[dict[str, Any] | None] = []
    for i, layer in enumerate(layers):
        if layer.block == "none":
            blocks.append(NO_BLOCK)
        elif layer.block == "experts" or (layer.block == "by_rule" and uses_experts[i]):
            hashed = mixture is not None and i in hash_layers(fields)
            blocks.append({**mixture, "router_bias": False} if mixture and hashed else mixture)
        else:
            blocks.append(_dense(fields, known, widths[i]))
    if None in blocks:
        fields.assume("feed_forward: left out where the file does not state its widths")
    return blocks


def _expert_layers(fields: Fields, known: ModelType, n_layers: int) -> list[bool]:
    """Which layers are mixtures; True everywhere for a mixture type that does not say it."""
    if known.experts is None or not _is_mixture(fields, known.experts):
        return [False] * n_layers
    words = {"dense": "dense", "sparse": "sparse", "moe": "sparse", "hash_moe": "sparse"}
    stated = without_drafts(fields, "mlp_layer_types", n_layers)
    types = stated.choices("mlp_layer_types", words, n_layers)
    if types is not None:
        fields.settle(*_PLACING_KEYS)
        return [kind == "sparse" for kind in types]
    dense_first = fields.integer(*_DENSE_FIRST_KEYS, most=MAX_LAYERS, least=0) or 0
    dense_only = fields.indices("mlp_only_layers", n_layers) or set()
    chosen = _enumerated(fields, n_layers) or fields.indices("moe_layers", n_layers)
    steps = [
        (fields.integer(key, most=MAX_LAYERS) or 1, 1)
        for key in ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    ]
    last = _last_expert_layer(fields, n_layers)
    period = fields.integer("expert_layer_period", most=MAX_LAYERS) or 1
    offset = fields.integer("expert_layer_offset", most=MAX_LAYERS, least=0) or 0
    every = _frequency(fields, n_layers)
    if chosen:
        return [i in chosen for i in range(n_layers)]
    return [
        dense_first <= i <= last
        and i not in dense_only
        and all((i + shift) % step == 0 for step, shift in steps)
        and i % period == offset % period
        and every[i]
        for i in range(n_layers)
    ]


def hash_layers(fields: Fields) -> set[int]:
    """DeepSeek-V4: the first layers, whose experts follow from the token; their routers correct
    nothing.
    """
    words = fields.value("mlp_layer_types")
    if isinstance(words, list):
        return {i for i, word in enumerate(words[:MAX_LAYERS]) if word == "hash_moe"}
    return set(range(fields.integer("num_hash_layers", most=MAX_LAYERS, least=0) or 0))


def _enumerated(fields: Fields, n_layers: int) -> set[int]:
    """Step 3.5: ``moe_layers_enum``, numbers of layers in a list or in text, drafts included."""
    key = "moe_layers_enum"
    value = fields.value(key)
    if isinstance(value, str):
        words = [word.strip() for word in value.split(",")]
        if not all(word.isdecimal() for word in words):
            raise fields.error(key, "must be numbers of layers, such as 3,4,5")
        value = [int(word) for word in words]
    if value is None:
        return set()
    if not isinstance(value, list) or not all(is_whole(one) for one in value):
        raise fields.error(key, "must be numbers of layers, such as 3,4,5")
    return {one for one in value if 0 <= one < n_layers}


def _last_expert_layer(fields: Fields, n_layers: int) -> int:
    """Ernie 4.5: ``moe_layer_end_index``, where -1 means the last layer."""
    key = "moe_layer_end_index"
    if fields.value(key) == -1:
        return n_layers - 1
    last = fields.integer(key, most=MAX_LAYERS, least=0)
    return n_layers - 1 if last is None else last


def _frequency(fields: Fields, n_layers: int) -> list[bool]:
    """``moe_layer_freq``: a number n (every n-th layer from 0) or a list of 0 and 1."""
    if isinstance(fields.value("moe_layer_freq"), list):
        listed = fields.choices("moe_layer_freq", {0: "", 1: "experts"}, n_layers) or []
        return [bool(word) for word in listed]
    n = fields.integer("moe_layer_freq", most=MAX_LAYERS) or 1
    return [i % n == 0 for i in range(n_layers)]


def _unread_experts(fields: Fields, known: ModelType) -> str | None:
    """The key of a dense type's file that speaks of experts, at any depth; None if none does."""
    if known.experts is not None:
        return None
    stack: list[dict[str, Any]] = [fields.data]
    seen = 0
    while stack and seen < _MOST_KEYS:
        for key, value in stack.pop().items():
            seen += 1
            short = str(key)[:80]
            if isinstance(value, dict) and key not in NOT_LANGUAGE:
                stack.append(value)
            states = value not in (None, False, 0, 1, "", [], {}, [0], [1])
            if states and _EXPERTS.search(short) and not _NO_EXPERTS.search(short):
                return shown(key)
    return None


def _is_mixture(fields: Fields, rule: Experts) -> bool:
    """False where the file itself says that there are no experts."""
    if "enable_moe_block" in rule.placed_by and not fields.flag("enable_moe_block"):
        return False
    return not any(fields.value(key) == 0 for key in EXPERT_COUNT_KEYS)


def _mixture(fields: Fields, known: ModelType) -> dict[str, Any] | None:
    rule = known.experts
    if rule is None or not _is_mixture(fields, rule):
        return None
    inner = (fields.part(rule.part) if rule.part else None) or fields
    n_experts = inner.integer(*EXPERT_COUNT_KEYS, most=MAX_EXPERTS, least=0)
    active = inner.integer(*_ACTIVE_KEYS, most=MAX_EXPERTS)
    width = inner.integer(rule.width, most=MAX_WIDTH)
    placed = not rule.placed_by or fields.has(*rule.placed_by, "hybrid_override_pattern")
    shared_stated = rule.shared is None or rule.shared in fields.data
    latent = fields.integer(*_LATENT_KEYS, most=MAX_WIDTH)
    if not (n_experts and active and width and placed and shared_stated):
        return None
    return {
        "kind": "experts", "hidden_dim": width, "n_experts": n_experts,
        "experts_per_token": active, "shared_hidden_dim": _shared_width(fields, rule, width),
        "dense_hidden_dim": _beside(fields, known) if rule.dense_beside else 0,
        "gated": known.gated, "bias": switch(fields, known.feed_forward_bias),
        "router_bias": switch(fields, rule.router_bias), "shared_gate": rule.shared_gate,
        "routed_dim": latent,
    }  # fmt: skip


def _shared_width(fields: Fields, rule: Experts, width: int) -> int:
    """Width of the block that every token takes; several shared experts count as one wide one."""
    if rule.shared is None:
        return 0
    value = fields.integer(rule.shared, most=MAX_WIDTH, least=0) or 0
    return value * width if rule.shared_is_count else value


def _beside(fields: Fields, known: ModelType) -> int:
    return fields.integer(*known.dense_width, most=MAX_WIDTH) or 0


def _dense(fields: Fields, known: ModelType, width: int | None) -> dict[str, Any] | None:
    if width is None:
        return None
    return {
        "kind": "dense", "hidden_dim": width, "gated": known.gated,
        "bias": switch(fields, known.feed_forward_bias),
    }  # fmt: skip


def _dense_widths(
    fields: Fields, known: ModelType, layers: list[Layer], hidden: int
) -> list[int | None]:
    """Widths by layer: stated per layer, stated once, or a factor of hidden_size."""
    key = next((k for k in known.dense_width if fields.has(k)), None)
    if key is not None and isinstance(fields.data[key], list):
        return [_listed_width(fields, key, w) for w in fields.items(key, len(layers)) or []]
    width = _stated_width(fields, known, hidden)
    doubled = fields.flag("use_double_wide_mlp")
    return [
        2 * width if width is not None and doubled and layer.reuses_cache else width
        for layer in layers
    ]


def _listed_width(fields: Fields, key: str, value: Any) -> int:
    entry = Fields({key: value}, fields.path, fields.prefix)
    return entry.needed(key, most=MAX_WIDTH)


def _stated_width(fields: Fields, known: ModelType, hidden: int) -> int | None:
    rule = known.experts
    if rule and rule.shared and not rule.shared_is_count and not _is_mixture(fields, rule):
        # Granite 4 with num_local_experts 0: the shared block is all there is.
        return fields.integer(rule.shared, most=MAX_WIDTH)
    stated = fields.integer(*known.dense_width, most=MAX_WIDTH) if known.dense_width else None
    if stated is not None:
        return _adjusted(fields, stated // known.dense_width_divisor)
    ratio = fields.number("expansion_ratio")
    if ratio is not None:
        return int(ratio * hidden)
    if known.dense_factor is None:
        return None
    width = known.dense_factor * hidden
    fields.assume(
        f"feed-forward width: {known.dense_factor} * hidden_size = {width}, the code's default"
    )
    return width


def _adjusted(fields: Fields, width: int) -> int:
    """LFM2 narrows its stated width: two thirds, times a factor, up to a multiple."""
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    multiple = fields.needed("block_multiple_of", most=MAX_WIDTH)
    factor = fields.number("block_ffn_dim_multiplier")
    narrowed = int((factor or 1) * int(2 * width / 3))
    return -(-narrowed // multiple) * multiple
