"""Query, key and value projections of one layer, head by head, from a checkpoint folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lrkv_plan.checkpoint.tensors import Array, Checkpoint, open_checkpoint
from lrkv_plan.checkpoint.weight_names import Order, WeightNames, layer_prefix, weight_names
from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import kind_of
from lrkv_plan.specs.attention import AttentionSpec
from lrkv_plan.specs.loader import load_model
from lrkv_plan.specs.model import LayerGroup, ModelSpec
from lrkv_plan.specs.strict_files import read_json


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
