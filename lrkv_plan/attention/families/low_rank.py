"""LRKV: a shared key and value per group of heads, and a rank-r residual per head
(arXiv:2601.11471).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import model_validator
from typing_extensions import Self, override

from lrkv_plan.attention.families.grouped import query_and_output, rotation
from lrkv_plan.attention.family import Family, Kernel, Planned
from lrkv_plan.attention.layout import (
    AttentionLayout,
    CachedTensor,
    DecodeWork,
    HeadProduct,
    Sharding,
    WeightMatrix,
    WeightRole,
)
from lrkv_plan.attention.spec import AttentionSpec, Backbone, divisors_of
from lrkv_plan.errors import SpecError
from lrkv_plan.schema import Flag, HeadCount, Width, WidthOrZero

Position = Literal["none", "rope_expand", "rope_rank", "rope_decoupled"]


KeyNorm = Literal["none", "rms_cached"]
Expansion = Literal["products", "kernel"]


class LowRankSpec(AttentionSpec):
    """LRKV: a shared key and value per group of heads plus a rank-r residual per head.

    ``rank_alignment`` is the multiple to which stored residual widths are padded. ``expansion``
    says what maps queries to rank space and outputs back: two products over heads beside the
    attention kernel, or the kernel itself.
    """

    family: Literal["lrkv"] = "lrkv"
    head_dim: Width
    v_head_dim: Width
    key_rank: WidthOrZero
    value_rank: WidthOrZero
    n_shared_groups: HeadCount = 1
    position: Position = "none"
    rope_dim: WidthOrZero = 0
    basis_spans_rotary_planes: Flag = False
    key_norm: KeyNorm = "none"
    rank_alignment: Width = 1
    expansion: Expansion = "products"
    qk_norm: Flag = False

    text_argument = "rank"
    size_name = "rank"
    size_fields = ("key_rank", "value_rank")
    backbone_fields = frozenset({"n_heads", "head_dim", "v_head_dim", "qk_norm"})
    text_aliases: ClassVar[Mapping[str, str]] = {
        "groups": "n_shared_groups", "align": "rank_alignment", "rope": "rope_dim",
    }  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        filled.setdefault("v_head_dim", filled.get("head_dim"))
        if "rank" in filled:
            rank = filled.pop("rank")
            filled.setdefault("key_rank", rank)
            filled.setdefault("value_rank", rank)
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for rank_name, rank, width_name, width in (
            ("key_rank", self.key_rank, "head_dim", self.head_dim),
            ("value_rank", self.value_rank, "v_head_dim", self.v_head_dim),
        ):
            if rank > width:
                raise ValueError(f"{rank_name} {rank} exceeds {width_name} {width}")
        if self.n_heads % self.n_shared_groups:
            divisors = ", ".join(map(str, divisors_of(self.n_heads)))
            raise ValueError(
                f"n_shared_groups {self.n_shared_groups} does not divide "
                f"{self.n_heads} heads: {divisors}"
            )
        if self.position == "rope_rank":
            if self.key_rank % 2:
                raise ValueError(
                    f"rope_rank rotates pairs of scalars: key_rank {self.key_rank} is odd"
                )
            if not self.basis_spans_rotary_planes:
                raise ValueError(
                    "position rope_rank is exact only if the trained basis spans whole rotary "
                    "planes: state basis_spans_rotary_planes=true, or use rope_expand"
                )
        if (self.position == "rope_decoupled") != (self.rope_dim > 0):
            raise ValueError(
                f"rope_dim {self.rope_dim} with position {self.position}: rope_decoupled needs a "
                "rope_dim above 0, the others take none"
            )
        return self

    @override
    def backbone(self) -> Backbone:
        return Backbone(
            self.n_heads, self.head_dim, self.v_head_dim, self.rope_dim or None,
            False, self.output_bias, self.qk_norm, self.output_gate,
        )  # fmt: skip

    @override
    def aligned(self, alignment: int) -> LowRankSpec:
        stated = self.rank_alignment > 1
        return self if stated else self.model_copy(update={"rank_alignment": alignment})

    @override
    def label(self) -> str:
        same = self.key_rank == self.value_rank
        argument = f":{self.key_rank}" if same else ""
        ranks = "" if same else f":key_rank={self.key_rank},value_rank={self.value_rank}"
        return f"lrkv{argument}{ranks}" + self.stated(
            "n_shared_groups", "position", "rope_dim", "basis_spans_rotary_planes",
            "key_norm", "rank_alignment", "expansion",
        )  # fmt: skip

    @override
    def text(self, size: int | str | None = None) -> str:
        names = {full: short for short, full in self.text_aliases.items() if short != "rope"}
        fields = type(self).model_fields
        stated = [
            f"{names.get(name, name)}={value}"
            for name in (
                "n_shared_groups",
                "position",
                "rope_dim",
                "key_norm",
                "rank_alignment",
                "expansion",
            )
            if (value := getattr(self, name)) != fields[name].default
        ]
        if self.basis_spans_rotary_planes:
            stated.append("basis_spans_rotary_planes=true")
        if size is None and self.key_rank != self.value_rank:
            return self.label()
        return ",".join([f"lrkv:{self.key_rank if size is None else size}", *stated])

    @override
    def sizes(self, model_dim: int) -> Sequence[int]:
        """Ranks up to a head's width; even where pairs are rotated in rank space."""
        step = 2 if self.position == "rope_rank" else 1
        return range(0, min(self.head_dim, self.v_head_dim) + 1, step)

    @classmethod
    @override
    def on_backbone(cls, backbone: Backbone, family: str, fields: Mapping[str, Any]) -> Self:
        ranks = {"rank", "key_rank", "value_rank"} & set(fields)
        if not ranks or (ranks & {"key_rank", "value_rank"} and len(ranks) == 1):
            raise SpecError("lrkv needs its rank: lrkv:55, or lrkv:key_rank=64,value_rank=32")
        kept = backbone._asdict()
        del kept["qkv_bias"], kept["rope_dim"], kept["wide_qk_norm"], kept["key_dim"]
        if fields.get("position") != "rope_decoupled":
            kept["head_dim"] = backbone.whole_key_dim
        elif backbone.rope_dim:
            kept["rope_dim"] = backbone.rope_dim
        return cls(**{**kept, **fields})


def low_rank_layout(spec: LowRankSpec, model_dim: int) -> AttentionLayout:
    """Layout of LRKV: W_h = W_S + U_h B_h^T for keys and for values (paper, eq. 2-5).

    Notes
    -----
    Cache per token and layer, in scalars: g (d_h + d_v) + H (r_K + r_V); at g = 1 and one rank
    2 (d_h + H r) (eq. 9). Residual rows are padded to ``rank_alignment``. ``rope_decoupled`` adds
    one shared rotary key of d_R, ``rms_cached`` one inverse RMS per head: b bytes in plain formats,
    2 in formats that keep scales of their own (``lrkv_plan.formats``).
    Weights of keys and values: g d (d_h + d_v) + H [r_K (d + d_h) + r_V (d + d_v)]; a decoupled
    rotary key adds d d_R, and H d d_R to the query.

    Examples
    --------
    >>> spec = LowRankSpec(n_heads=18, head_dim=128, rank=55)
    >>> low_rank_layout(spec, model_dim=2304).scalars_per_token()
    2236
    """
    return AttentionLayout(
        label=spec.label(),
        n_heads=spec.n_heads,
        cached=_cached(spec),
        weights=_weights(spec, model_dim),
        work=_work(spec),
        in_kernel_option=None if spec.expansion == "kernel" else "expansion=kernel",
        small_kernels=rotation(spec, spec.n_shared_groups * spec.head_dim),
    )


def _cached(spec: LowRankSpec) -> tuple[CachedTensor, ...]:
    groups, heads, align = spec.n_shared_groups, spec.n_heads, spec.rank_alignment
    rows = [
        ("shared_key", spec.head_dim, groups, Sharding.BY_COPY),
        ("shared_value", spec.v_head_dim, groups, Sharding.BY_COPY),
        ("private_key", spec.key_rank, heads, Sharding.BY_COPY),
        ("private_value", spec.value_rank, heads, Sharding.BY_COPY),
        ("rope_key", spec.rope_dim, 1, Sharding.REPLICATED),
        ("key_scale", int(spec.key_norm == "rms_cached"), heads, Sharding.BY_COPY),
    ]
    return tuple(
        CachedTensor(
            name=name,
            width=_padded(width, align) if name.startswith("private") else width,
            payload_width=width,
            copies_per_layer=copies,
            sharding=sharding,
            holds="value" if name.endswith("value") else "key",
        )
        for name, width, copies, sharding in rows
        if width
    )


def _padded(rank: int, alignment: int) -> int:
    return -(-rank // alignment) * alignment


def _weights(spec: LowRankSpec, model_dim: int) -> tuple[WeightMatrix, ...]:
    heads, groups, role = spec.n_heads, spec.n_shared_groups, WeightRole.KEY_VALUE
    weights = [*query_and_output(spec, model_dim, spec.head_dim + spec.rope_dim, spec.v_head_dim)]
    for name, width, rank in (
        ("key", spec.head_dim, spec.key_rank),
        ("value", spec.v_head_dim, spec.value_rank),
    ):
        weights += [
            WeightMatrix(
                name=full, rows=rows, cols=cols, copies=copies, role=role, units=copies,
                makes_rows=makes, reads=reads,
            )
            for full, rows, cols, copies, makes, reads in (
                (f"shared_{name}", model_dim, width, groups, True, "hidden"),
                (f"{name}_down", model_dim, rank, heads, True, "hidden"),
                (f"{name}_basis", width, rank, heads, False, None),
            )
        ]  # fmt: skip
    if spec.rope_dim:
        weights.append(
            WeightMatrix(
                name="rope_key", rows=model_dim, cols=spec.rope_dim, role=role, makes_rows=True
            )
        )
    if spec.qk_norm:
        weights += [
            WeightMatrix(
                name=name, rows=spec.head_dim, cols=1, role=WeightRole.OTHER, makes_rows=makes
            )
            for name, makes in (("query_norm", False), ("key_norm", True))
        ]
    return tuple(weights)


def _work(spec: LowRankSpec) -> tuple[DecodeWork, ...]:
    """Decode paths, multiply-adds per layer (one head's in brackets).

    factored: H [T (d_h + r_K + d_R + d_v + r_V) + r_K d_h + r_V d_v] (eq. 6-7).
    rope_expand: keys are rebuilt and rotated tile by tile, H [T r_K d_h] once for all query tokens,
    then scored at full width: H [T (d_h + d_v + r_V) + r_V d_v]. The rotation itself is not a
    multiply-add and is not counted here.
    materialised: keys and values rebuilt, H [T (r_K d_h + r_V d_v)], then plain attention.
    """
    heads, key_dim, value_dim = spec.n_heads, spec.head_dim, spec.v_head_dim
    key_rank, value_rank, rope = spec.key_rank, spec.value_rank, spec.rope_dim
    value_scan = value_dim + value_rank
    rebuild_keys, value_map = key_rank * key_dim, value_rank * value_dim
    query = HeadProduct(name="query_to_rank", rows=key_dim, cols=key_rank)
    output = HeadProduct(name="rank_to_output", rows=value_rank, cols=value_dim)
    inside = spec.expansion == "kernel"
    expanded = DecodeWork(
        path="rope_expand",
        kernel="low_rank_expand_inside" if inside else "low_rank_expand",
        per_token=heads * (key_dim + value_scan),
        per_step=heads * value_map,
        expand_per_token=heads * rebuild_keys,
        rebuilt_per_token=heads * key_dim,
        **_mapped(inside, (output,), "outputs"),
    )
    factored = DecodeWork(
        path="factored",
        kernel="low_rank_inside" if inside else "low_rank",
        per_token=heads * (key_dim + key_rank + rope + value_scan),
        per_step=heads * (rebuild_keys + value_map),
        **_mapped(inside, (query, output), "queries and outputs"),
    )
    materialised = DecodeWork(
        path="materialised",
        kernel="low_rank_materialised",
        per_token=heads * (key_dim + rope + value_dim),
        per_step=0,
        expand_per_token=heads * (rebuild_keys + value_map),
        rebuilt_per_token=heads * (key_dim + value_dim),
        assumptions=(ONE_MATRIX,),
    )
    first = expanded if spec.position == "rope_expand" else factored
    return (first, materialised)


ONE_MATRIX = (
    "all down-projections of a layer are fused into one matrix with the query and the shared "
    "projections, as engines fuse query, key and value"
)


def _mapped(inside: bool, products: tuple[HeadProduct, ...], what: str) -> dict[str, Any]:
    """Who maps between rank space and heads, and the sentences that say so."""
    if inside:
        told = f"the attention kernel expands {what} itself: no product runs beside it"
        return {"in_kernel": products, "assumptions": (ONE_MATRIX, told)}
    batched = "one batched product" if len(products) == 1 else "two batched products"
    told = (
        f"{what} are expanded in {batched} a layer, beside the attention kernel; "
        "expansion=kernel is the other case"
    )
    return {"products": products, "assumptions": (ONE_MATRIX, told)}


def plain_low_rank(backbone: Backbone) -> LowRankSpec:
    """LRKV of rank 0, whose sizes give the other ranks."""
    return LowRankSpec.on_backbone(backbone, "lrkv", {"rank": 0})


def rotated_low_rank(backbone: Backbone) -> LowRankSpec:
    """The same with keys rotated as they are rebuilt."""
    return LowRankSpec.on_backbone(backbone, "lrkv", {"rank": 0, "position": "rope_expand"})


# How its designs begin on a command line; read there without importing this file.
WRITTEN = ("lrkv:",)

FAMILIES = (
    Family(
        names=("lrkv",),
        spec_class=LowRankSpec,
        build=low_rank_layout,
        kernels=(
            Kernel(
                name="low_rank",
                fallback="grouped",
                assumptions=(
                    "no public measurement of an LRKV kernel; constants are the grouped kernel's",
                    "narrow latent rows reach 75 to 100 % of its bandwidth (prediction at 100 %)",
                    "heads_per_tile heads share one read of the shared rows (counted in the bytes)",
                ),
                # A rank-55 bf16 row is 110 bytes, 3.4 sectors of 32 bytes: 128 / 110 read at
                # worst, and short bursts cost more.
                bandwidth_left=(0.75, 1.0),
                query_heads_per_kv_head=1,  # every head has latents of its own
            ),
            *(
                Kernel(name=name, fallback=fallback, rebuilds=rebuilds, query_heads_per_kv_head=1)
                for name, fallback, rebuilds in (
                    ("low_rank_expand", "low_rank", True),
                    ("low_rank_inside", "low_rank", False),
                    ("low_rank_expand_inside", "low_rank_expand", True),
                    ("low_rank_materialised", "low_rank", True),
                )
            ),
        ),
        planned=(
            Planned(
                role="LRKV, aligned rank in the budget",
                design=plain_low_rank,
                in_budget=True,
                aligned=True,
                role_at_zero="LRKV, no aligned rank in the budget",
            ),
            Planned(
                role="LRKV, keys rotated",
                design=rotated_low_rank,
                in_budget=True,
                aligned=True,
            ),
        ),
    ),
)
