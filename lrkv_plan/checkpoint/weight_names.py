"""What attention weights are called in published checkpoints, and how fused ones are ordered.

Each order was read from the modelling code of its model type (Hugging Face transformers, or the
checkpoint's own file): it decides which rows of a fused matrix are queries, keys and values.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lrkv_plan.errors import SpecError, shown


class Order(enum.Enum):
    """How the rows of one matrix, or of three, stand for heads."""

    SEPARATE = "separate"  # a matrix each
    CONCATENATED = "concatenated"  # all query heads, then all keys, then all values
    GROUPED = "grouped"  # per key/value head: its query heads, its key, its value
    LATENT = "latent"  # per head: key part, value part, both read from the latent (MLA)


@dataclass(frozen=True)
class WeightNames:
    """Full names of one layer's attention weights; a fused matrix is named three times."""

    order: Order
    query: str
    key: str
    value: str


_SEPARATE = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    ("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    ("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    ("attention.wq", "attention.wk", "attention.wv"),
)
_LATENT_KEYS = "self_attn.kv_b_proj"
_LATENT_QUERIES = ("self_attn.q_b_proj", "self_attn.q_proj")
# The same name stands for different orders, so the model type decides where it is listed.
_FUSED: dict[str, dict[str | None, Order]] = {
    "self_attn.qkv_proj": {None: Order.CONCATENATED},  # phi3
    "self_attn.W_pack": {None: Order.CONCATENATED},  # baichuan
    "attn.Wqkv": {None: Order.CONCATENATED},  # mpt
    "norm_attn_norm.attn.Wqkv": {None: Order.CONCATENATED},  # dbrx
    "attn.c_attn": {None: Order.CONCATENATED, "gpt_bigcode": Order.GROUPED},  # gpt2, qwen
    "attention.wqkv": {"internlm2": Order.GROUPED},
    "attention.query_key_value": {"gpt_neox": Order.GROUPED},
    "self_attention.query_key_value": {
        "falcon": Order.GROUPED, "RefinedWeb": Order.GROUPED, "RefinedWebModel": Order.GROUPED,
        "bloom": Order.GROUPED, "chatglm": Order.CONCATENATED,
    },
    "self_attn.query_key_value": {"persimmon": Order.GROUPED},
}  # fmt: skip
_KEY_PARTS = {*_FUSED, _LATENT_KEYS, *(key for _, key, _ in _SEPARATE)}
_PLACE = re.compile(r"((?:.*?\.)?)(\d{1,5})\.(.+)\.weight")
# Towers beside the language model, and layers that only draft tokens.
_OTHER_PARTS = re.compile(r"vision|visual|audio|image|speech|talker|code2wav|mtp|draft|eagle")


def layer_prefix(names: Iterable[str], n_layers: int) -> str:
    """The text before the layer number, such as ``model.layers.``.

    Raises
    ------
    SpecError
        If no attention weight has a known name, or several stacks could be meant.
    """
    stacks: dict[str, set[int]] = {}
    for name in names:
        place = _PLACE.fullmatch(name)
        if place and place[3] in _KEY_PARTS and not _OTHER_PARTS.search(place[1].lower()):
            stacks.setdefault(place[1], set()).add(int(place[2]))
    if not stacks:
        raise SpecError(
            "no tensor is called like a key projection of a known layout; known: "
            + ", ".join(sorted(_KEY_PARTS))
        )
    whole = [prefix for prefix, layers in stacks.items() if max(layers) + 1 >= n_layers]
    chosen = whole or list(stacks)
    if len(chosen) > 1:
        raise SpecError(f"several stacks of layers could be meant: {', '.join(sorted(chosen))}")
    return chosen[0]


def weight_names(prefix: str, names: Mapping[str, object], model_type: str | None) -> WeightNames:
    """The attention weights of the layer that ``prefix`` (with its number) begins.

    Raises
    ------
    SpecError
        If they are not there, or a fused matrix has an order that is not known.
    """

    def full(part: str) -> str:
        return f"{prefix}{part}.weight"

    if full(_LATENT_KEYS) in names:
        query = next((q for q in map(full, _LATENT_QUERIES) if q in names), None)
        if query is None:
            raise SpecError(f"tensor {shown(full(_LATENT_QUERIES[-1]))} is missing")
        return WeightNames(Order.LATENT, query, full(_LATENT_KEYS), full(_LATENT_KEYS))
    for part, orders in _FUSED.items():
        if full(part) in names:
            order = orders.get(model_type, orders.get(None))
            if order is None:
                known = ", ".join(str(name) for name in orders)
                raise SpecError(
                    f"{shown(full(part))}: which of its rows are keys is not known for model_type "
                    f"{shown(model_type)}; known: {known}"
                )
            return WeightNames(order, *[full(part)] * 3)
    for parts in _SEPARATE:
        found = [full(part) for part in parts]
        if found[0] in names or found[1] in names:
            return WeightNames(Order.SEPARATE, *found)
    raise SpecError(f"layer {shown(prefix)} has no attention weights of a known name")
