"""Key, value and query projections of a checkpoint's layers, whatever their tensors are called."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.checkpoint.tensors import Array, Checkpoint, open_checkpoint
from lrkv_plan.documents import read_json
from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import kind_of
from lrkv_plan.loader import load_model
from lrkv_plan.specs.model import LayerGroup, ModelSpec


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


@dataclass(frozen=True, kw_only=True)
class LayerProjections:
    """Transposed projections: ``key[h]`` is W_h^T, of shape (head width, input width).

    ``query`` has every query head, ``key`` and ``value`` every key/value head. In an MLA layer
    keys and values are read from the latent, and ``query`` is the part without position.
    """

    layer: int
    query: Array
    key: Array
    value: Array
    from_latent: bool


@dataclass(frozen=True, kw_only=True)
class AttentionLayers:
    """A checkpoint's layers with keys and values of their own, ready to be read one by one."""

    checkpoint: Checkpoint
    model: ModelSpec
    model_type: str | None
    prefix: str
    attention: dict[int, AttentionSpec]
    skipped: dict[int, str]  # layer -> why it has no rows here

    def names(self, layer: int) -> WeightNames:
        """The layer's weights. Raises ``SpecError`` naming the folder and what is missing."""
        prefix = f"{self.prefix}{layer}."
        try:
            return weight_names(prefix, self.checkpoint.files, self.model_type)
        except SpecError as error:
            raise SpecError(f"{self.checkpoint.folder}: {error}") from None

    def check(self, layers: Iterable[int]) -> None:
        """Raise ``SpecError`` if a tensor of these layers is missing, before any is read."""
        for layer in layers:
            names = self.names(layer)
            shares = getattr(self.attention[layer], "value_from_key", False)
            for name in (names.query, names.key, *(() if shares else (names.value,))):
                self._shape(name)

    def read(self, layer: int) -> LayerProjections:
        """Projections of one layer.

        Raises
        ------
        SpecError
            If a tensor is missing, has another shape than config.json asks for, is stored in a
            format that is not read, or is not finite.
        """
        names, heads = self.names(layer), _Heads.of(self.attention[layer])
        if names.order is Order.SEPARATE:
            query, key, value = self._separate(names, heads)
        elif names.order is Order.LATENT:
            query, key, value = self._latent(names, heads)
        else:
            query, key, value = self._fused(names, heads)
        return LayerProjections(
            layer=layer, query=query, key=key, value=value,
            from_latent=names.order is Order.LATENT,
        )  # fmt: skip

    def _separate(self, names: WeightNames, heads: _Heads) -> tuple[Array, Array, Array]:
        width = self.model.model_dim
        gates = 2 if heads.output_gate and self._rows(names.query) != heads.n * heads.key else 1
        query = self._matrix(names.query, heads.n * heads.key * gates, width)
        # A gated query stands beside its gate, head by head (qwen3_next).
        query = query.reshape(heads.n, gates * heads.key, width)[:, : heads.key]
        key = self._matrix(names.key, heads.n_kv * heads.key, width)
        shared = heads.value_from_key and names.value not in self.checkpoint.files
        value = key if shared else self._matrix(names.value, heads.n_kv * heads.value, width)
        return query, key.reshape(heads.n_kv, -1, width), value.reshape(heads.n_kv, -1, width)

    def _fused(self, names: WeightNames, heads: _Heads) -> tuple[Array, Array, Array]:
        width = self.model.model_dim
        parts = (heads.n * heads.key, heads.n_kv * heads.key, heads.n_kv * heads.value)
        stored = self._shape(names.key)
        is_conv1d = stored == (width, sum(parts)) and stored[0] != stored[1]
        if is_conv1d:  # gpt2 stores the transpose
            matrix = self._matrix(names.key, width, sum(parts)).T
        else:
            matrix = self._matrix(names.key, sum(parts), width)
        if names.order is Order.CONCATENATED:
            query, key, value = (
                matrix[sum(parts[:i]) : sum(parts[: i + 1])].copy() for i in range(3)
            )
            return (
                query.reshape(heads.n, heads.key, width),
                key.reshape(heads.n_kv, heads.key, width),
                value.reshape(heads.n_kv, heads.value, width),
            )
        if heads.key != heads.value:
            raise SpecError(
                f"{self.checkpoint.folder}: {shown(names.key)}: grouped keys and values of unequal "
                "width are not read"
            )
        rows = matrix.reshape(heads.n_kv, heads.n // heads.n_kv + 2, heads.key, width)
        query = rows[:, :-2].reshape(heads.n, heads.key, width)
        return query, rows[:, -2].copy(), rows[:, -1].copy()

    def _latent(self, names: WeightNames, heads: _Heads) -> tuple[Array, Array, Array]:
        rows = heads.n * (heads.key + heads.value)
        both = self._matrix(names.key, rows, None).reshape(heads.n, heads.key + heads.value, -1)
        query = self._matrix(names.query, heads.n * (heads.key + heads.rope), None)
        query = query.reshape(heads.n, heads.key + heads.rope, -1)[:, : heads.key]
        return query.copy(), both[:, : heads.key].copy(), both[:, heads.key :].copy()

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.checkpoint.files:
            raise SpecError(f"{self.checkpoint.folder}: tensor {shown(name)} is missing")
        return self.checkpoint.shape(name)

    def _rows(self, name: str) -> int:
        return (*self._shape(name), 0)[0]

    def _matrix(self, name: str, rows: int, columns: int | None) -> Array:
        shape = self._shape(name)
        if len(shape) != 2 or shape[0] != rows or columns not in (None, shape[1]) or not shape[1]:
            wanted = f"({rows}, {columns if columns is not None else 'any'})"
            raise SpecError(
                f"{self.checkpoint.files[name]}: {shown(name)} has shape {shape}, config.json asks "
                f"for {wanted}"
            )
        return self.checkpoint.read(name)


@dataclass(frozen=True)
class _Heads:
    """Head counts and widths of one layer. [heads, scalars]"""

    n: int
    n_kv: int
    key: int
    value: int
    rope: int
    output_gate: bool
    value_from_key: bool

    @staticmethod
    def of(attention: AttentionSpec) -> _Heads:
        backbone = attention.backbone()
        return _Heads(
            backbone.n_heads, getattr(attention, "n_kv_heads", backbone.n_heads),
            backbone.head_dim, backbone.v_head_dim, backbone.rope_dim or 0,
            backbone.output_gate, getattr(attention, "value_from_key", False),
        )  # fmt: skip


def attention_layers(folder: Path) -> AttentionLayers:
    """The attention layers of a checkpoint folder with a config.json.

    Raises
    ------
    SpecError
        If config.json or the checkpoint is missing, damaged or of a layout that is not read.
    """
    if not os.path.isdir(folder):
        try:
            what = f"is {kind_of(os.stat(folder).st_mode)}"
        except (OSError, ValueError):
            what = "no such folder"
        raise SpecError(f"{shown(str(folder))}: {what}; inspect reads a checkpoint's folder")
    if not os.path.lexists(folder / "config.json"):
        raise SpecError(f"{folder}: the folder holds no config.json")
    model = load_model(folder / "config.json")
    if any(group.cached_over == "encoder" for group in model.layers):
        raise SpecError(f"{folder}: cross-attention to an encoder is not read by inspect")
    checkpoint = open_checkpoint(folder)
    config = read_json(folder / "config.json")
    try:
        prefix = layer_prefix(checkpoint.files, model.n_layers)
    except SpecError as error:
        raise SpecError(f"{folder}: {error}") from None
    attention, skipped = {}, {}
    for layer, group in enumerate(groups_by_layer(model)):
        if group.attention is None:
            skipped[layer] = "has no attention"
        elif group.reuses_cache:
            skipped[layer] = "reuses another layer's keys and values"
        else:
            attention[layer] = group.attention
    return AttentionLayers(
        checkpoint=checkpoint, model=model, model_type=config.get("model_type"), prefix=prefix,
        attention=attention, skipped=skipped,
    )  # fmt: skip


def groups_by_layer(model: ModelSpec) -> list[LayerGroup]:
    """The group of each layer, first layer first."""
    if model.layer_order is not None:
        return [model.layers[index] for index in model.layer_order]
    return [group for group in model.layers for _ in range(group.count)]
