"""MHA, GQA and MQA: key and value heads, each read by an equal group of query heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import model_validator
from typing_extensions import Self, override

from lrkv_plan.attention.family import Calls, Family, Kernel, Planned
from lrkv_plan.attention.layout import (
    AttentionLayout,
    CachedTensor,
    DecodeWork,
    Sharding,
    WeightMatrix,
    WeightRole,
)
from lrkv_plan.attention.spec import AttentionSpec, Backbone, divisors_of
from lrkv_plan.errors import SpecError
from lrkv_plan.schema import Flag, HeadCount, Width


class GroupedSpec(AttentionSpec):
    """MHA, GQA and MQA: ``n_kv_heads`` key and value heads, each read by an equal group.

    ``sinks`` adds one learned logit per query head. ``qk_norm`` has one weight for each scalar of a
    head, ``wide_qk_norm`` one for each scalar of all heads. ``value_from_key`` means that values
    are the keys before their norm and position: both are cached, one projection makes them.
    """

    family: Literal["mha", "gqa", "mqa"]
    n_kv_heads: HeadCount
    head_dim: Width
    v_head_dim: Width
    qkv_bias: Flag = False
    qk_norm: Flag = False
    wide_qk_norm: Flag = False
    sinks: Flag = False
    value_from_key: Flag = False

    text_argument = "n_kv_heads"
    size_name = "n_kv_heads"
    size_fields = ("n_kv_heads",)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        filled.setdefault("v_head_dim", filled.get("head_dim"))
        implied = {"mha": filled.get("n_heads"), "mqa": 1}.get(str(filled.get("family")))
        if implied is not None:
            filled.setdefault("n_kv_heads", implied)
        return filled

    @model_validator(mode="after")
    def _heads_agree(self) -> Self:
        heads, kv_heads = self.n_heads, self.n_kv_heads
        wanted = {"mha": heads, "mqa": 1}.get(self.family, kv_heads)
        if kv_heads != wanted:
            raise ValueError(f"n_kv_heads is {kv_heads}, but {self.family} has {wanted}")
        if heads % kv_heads:
            divisors = ", ".join(map(str, divisors_of(heads)))
            raise ValueError(f"n_kv_heads {kv_heads} does not divide {heads} heads: {divisors}")
        return self

    @override
    def backbone(self) -> Backbone:
        return Backbone(
            self.n_heads, self.head_dim, self.v_head_dim, None,
            self.qkv_bias, self.output_bias, self.qk_norm, self.output_gate, self.wide_qk_norm,
        )  # fmt: skip

    @override
    def label(self) -> str:
        return f"gqa:{self.n_kv_heads}" if self.family == "gqa" else self.family

    @override
    def sizes(self, model_dim: int) -> Sequence[int]:
        return divisors_of(self.n_heads)

    @override
    def text(self, size: int | str | None = None) -> str:
        return self.label() if size is None else f"gqa:{size}"

    @override
    def sized_fields(self, size: int) -> dict[str, Any]:
        return {"family": "gqa", "n_kv_heads": size}

    @override
    def own_fields(self) -> dict[str, Any]:
        implied = () if self.family == "gqa" else ("n_kv_heads",)
        return {n: value for n, value in super().own_fields().items() if n not in implied}

    @classmethod
    @override
    def on_backbone(cls, backbone: Backbone, family: str, fields: Mapping[str, Any]) -> Self:
        if family == "gqa" and "n_kv_heads" not in fields:
            raise SpecError("gqa needs its number of key/value heads: write for example gqa:8")
        kept = backbone._asdict()
        kept["head_dim"] = backbone.whole_key_dim
        del kept["rope_dim"], kept["key_dim"]
        return cls(**{"family": family, **kept, **fields})


def query_and_output(
    spec: AttentionSpec, model_dim: int, query_dim: int, value_dim: int
) -> tuple[WeightMatrix, ...]:
    """Query d x H d_q, and what ``output_weights`` gives."""
    query = WeightMatrix(
        name="query", rows=model_dim, cols=spec.n_heads * query_dim, role=WeightRole.QUERY,
        units=spec.n_heads,
    )  # fmt: skip
    return (query, *output_weights(spec, model_dim, value_dim))


def output_weights(spec: AttentionSpec, model_dim: int, value_dim: int) -> tuple[WeightMatrix, ...]:
    """Output H d_v x d, its bias, and a gate d x H d_v where the spec has one."""
    heads_dim = spec.n_heads * value_dim
    role, units = WeightRole.OUTPUT, spec.n_heads
    output = WeightMatrix(
        name="output", rows=heads_dim, cols=model_dim, role=role, units=units, reads="heads"
    )
    weights = [output]
    if spec.output_bias:
        weights.append(
            WeightMatrix(name="output_bias", rows=model_dim, cols=1, role=WeightRole.OTHER)
        )
    if spec.output_gate:
        weights.append(
            WeightMatrix(name="output_gate", rows=model_dim, cols=heads_dim, role=role, units=units)
        )
    return tuple(weights)


def grouped_layout(spec: GroupedSpec, model_dim: int) -> AttentionLayout:
    """Layout of MHA (G = H), GQA (1 < G < H) and MQA (G = 1).

    Notes
    -----
    Cache per token and layer, in scalars: G d_h + G d_v (Shazeer 2019, arXiv:1911.02150;
    Ainslie et al. 2023, arXiv:2305.13245). Weights of keys and values: d G (d_h + d_v).
    Decode, multiply-adds: T H (d_h + d_v), independent of G.

    Examples
    --------
    >>> spec = GroupedSpec(family="gqa", n_heads=128, n_kv_heads=8, head_dim=128)
    >>> grouped_layout(spec, model_dim=16384).scalars_per_token()
    2048
    """
    heads, kv_heads = spec.n_heads, spec.n_kv_heads
    key_dim, value_dim = spec.head_dim, spec.v_head_dim
    rows: dict[Literal["key", "value"], int] = {"key": key_dim, "value": value_dim}
    weights = (
        *query_and_output(spec, model_dim, key_dim, value_dim),
        *_key_and_value(spec, model_dim),
        *_vectors(spec),
    )
    return AttentionLayout(
        label=spec.label(),
        n_heads=heads,
        cached=tuple(
            CachedTensor(
                name=n, width=w, copies_per_layer=kv_heads, sharding=Sharding.BY_COPY, holds=n
            )
            for n, w in rows.items()
        ),
        weights=weights,
        work=(
            DecodeWork(
                path="grouped",
                kernel="grouped",
                per_token=heads * (key_dim + value_dim),
                per_step=0,
            ),
        ),
        small_kernels=rotation(spec, kv_heads * key_dim),
    )


def rotation(spec: AttentionSpec, key_scalars: int) -> dict[str, int]:
    """Rotation with appending, and norms of queries and keys, over all their scalars."""
    backbone = spec.backbone()
    width = backbone.n_heads * backbone.head_dim + key_scalars
    return {"rotary": width} | (
        {"qk_norm": width} if backbone.qk_norm or backbone.wide_qk_norm else {}
    )


def _key_and_value(spec: GroupedSpec, model_dim: int) -> list[WeightMatrix]:
    """Key d x G d_h and value d x G d_v, dealt out by key/value head."""
    widths = {"key": spec.head_dim} | ({} if spec.value_from_key else {"value": spec.v_head_dim})
    return [
        WeightMatrix(
            name=name, rows=model_dim, cols=spec.n_kv_heads * width, role=WeightRole.KEY_VALUE,
            units=spec.n_kv_heads, makes_rows=True,
        )
        for name, width in widths.items()
    ]  # fmt: skip


def _vectors(spec: GroupedSpec) -> list[WeightMatrix]:
    """Biases and sinks, dealt out by head; query and key norms, whole on every GPU."""
    heads, kv_heads, key_dim = spec.n_heads, spec.n_kv_heads, spec.head_dim
    rows: list[tuple[bool, str, int, int | None, bool]] = [
        (spec.sinks, "sinks", heads, heads, False),
        (spec.qkv_bias, "query_bias", heads * key_dim, heads, False),
        (spec.qkv_bias, "key_value_bias", kv_heads * (key_dim + spec.v_head_dim), kv_heads, True),
        (spec.qk_norm, "query_norm", key_dim, None, False),
        (spec.qk_norm, "key_norm", key_dim, None, True),
        (spec.wide_qk_norm, "query_norm", heads * key_dim, heads, False),
        (spec.wide_qk_norm, "key_norm", kv_heads * key_dim, kv_heads, True),
    ]
    return [
        WeightMatrix(
            name=name, rows=size, cols=1, role=WeightRole.OTHER, units=units, makes_rows=makes
        )
        for present, name, size, units, makes in rows
        if present
    ]


def fewest_kv_heads(backbone: Backbone) -> GroupedSpec:
    """GQA with one KV head, whose sizes give the others."""
    return GroupedSpec.on_backbone(backbone, "gqa", {"n_kv_heads": 1})


def grouped_work(
    batch_size: Any,
    context_tokens: Any,
    *,
    n_heads: Any,
    n_kv_heads: Any,
    head_dim: Any,
    bytes_per_scalar: float,
) -> tuple[Any, Any, Any]:
    """Bytes, FLOPs and work units of one grouped decode call, heads counted per GPU.

    Notes
    -----
    bytes = 2 B T G d_h b (a key and a value row per cached head and token);
    flops = 4 B T H d_h (two products, a multiply-add is 2); units = B G.
    The queries and the output, 2 B H d_h scalars, are left out: T is hundreds and more.

    Examples
    --------
    >>> grouped_work(1, 1000, n_heads=8, n_kv_heads=2, head_dim=128, bytes_per_scalar=2)
    (1024000.0, 4096000.0, 2)
    """
    tokens = 1.0 * batch_size * context_tokens  # floats: int64 arrays would wrap
    n_bytes = 2 * tokens * n_kv_heads * head_dim * bytes_per_scalar
    return n_bytes, 4 * tokens * n_heads * head_dim, batch_size * n_kv_heads


_CALLS = Calls(
    work=grouped_work,
    columns={"n_kv_heads": "n_kv_heads", "head_dim": "head_dim"},
    query_head_ranges=((1, 1), (2, 65_536)),
    by_head_dim=True,
)

# How its designs begin on a command line; read there without importing this file.
WRITTEN = ("mha", "gqa:", "mqa")

FAMILIES = (
    Family(
        names=("mha", "gqa", "mqa"),
        spec_class=GroupedSpec,
        build=grouped_layout,
        kernels=(Kernel(name="grouped", calls=_CALLS),),
        planned=(
            Planned(role="MHA", design=lambda b: GroupedSpec.on_backbone(b, "mha", {})),
            Planned(
                role="GQA in the budget",
                design=fewest_kv_heads,
                in_budget=True,
            ),
            Planned(role="MQA", design=lambda b: GroupedSpec.on_backbone(b, "mqa", {})),
        ),
    ),
)
