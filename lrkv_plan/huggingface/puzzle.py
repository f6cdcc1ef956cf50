"""Nemotron puzzle models: ``block_configs`` states attention and feed-forward block by block."""

from __future__ import annotations

from typing import Any

from lrkv_plan.huggingface.attention import HEAD_DIM_KEYS, HEAD_KEYS, grouped
from lrkv_plan.huggingface.feed_forward import NO_BLOCK
from lrkv_plan.huggingface.fields import LAYER_KEYS, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Fields
from lrkv_plan.huggingface.model_type import ModelType, switch

_WIDTH_MULTIPLE = 256


def puzzle_layers(fields: Fields, known: ModelType, hidden: int) -> list[dict[str, Any]]:
    """One ``LayerGroup`` input per block.

    Raises
    ------
    SpecError
        If a block is no mapping, its group size does not divide the heads, or its attention is
        replaced by something that is not modelled.
    """
    n_layers = fields.needed(*LAYER_KEYS, most=MAX_LAYERS)
    blocks = fields.items("block_configs", n_layers) or []
    return [
        {"count": 1, **_block(_at(fields, i, block), fields, known, hidden)}
        for i, block in enumerate(blocks)
    ]


def _at(fields: Fields, index: int, block: Any) -> Fields:
    """Block ``index`` as fields; its keys are named block_configs[i].key in errors."""
    holder = Fields({f"block_configs[{index}]": block}, fields.path, fields.prefix, fields.remarks)
    part = holder.part(f"block_configs[{index}]")
    if part is None:
        raise holder.error(f"block_configs[{index}]", "must be a mapping")
    return part


def _block(block: Fields, fields: Fields, known: ModelType, hidden: int) -> dict[str, Any]:
    attention = block.part("attention")
    if attention is None:
        raise block.error("attention", "is missing or null")
    group: dict[str, Any] = {
        "feed_forward": _feed_forward(block.part("ffn"), fields, known, hidden)
    }
    if attention.flag("no_op"):
        return group
    for key in ("replace_with_linear", "sparsify", "num_sink_tokens", "window_length"):
        if attention.value(key) not in (None, False):
            raise attention.error(key, "is not modelled")
    # The name notwithstanding, n_heads_in_group is the number of heads per KV head.
    heads = fields.needed(*HEAD_KEYS, most=MAX_HEADS)
    group_size = attention.needed("n_heads_in_group", most=MAX_HEADS)
    if heads % group_size:
        raise attention.error("n_heads_in_group", f"does not divide {heads} heads")
    head_dim = fields.integer(*HEAD_DIM_KEYS, most=MAX_WIDTH)
    if head_dim is None:
        if hidden % heads:
            raise fields.error("hidden_size", f"{heads} heads do not divide it: add head_dim")
        head_dim = hidden // heads
        fields.assume(f"head_dim: hidden_size / num_attention_heads = {head_dim}")
    group["attention"] = grouped(fields, known, "full", heads, heads // group_size, head_dim)
    return group


def _feed_forward(
    ffn: Fields | None, fields: Fields, known: ModelType, hidden: int
) -> dict[str, Any] | None:
    """``ffn_mult`` m gives the width int(2 m d / 3), up to a multiple of 256."""
    if ffn is None:
        return None
    if ffn.flag("no_op"):
        return NO_BLOCK
    mult = ffn.number("ffn_mult")
    if mult is None or known.gated is None or ffn.flag("replace_with_linear"):
        return None
    width = int(2 * mult * hidden / 3)
    rounded = -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
    return {
        "kind": "dense", "hidden_dim": rounded, "gated": known.gated,
        "bias": switch(fields, known.feed_forward_bias),
    }  # fmt: skip
