"""The fields of MHA, GQA, MQA, MLA and LRKV, and how ``--attention`` text fills them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator
from typing_extensions import Self, override

from lrkv_plan.errors import SpecError
from lrkv_plan.specs.attention import AttentionSpec, Backbone, register_spec_class
from lrkv_plan.specs.base import Flag, HeadCount, Width, WidthOrZero


class GroupedSpec(AttentionSpec):
    """MHA, GQA and MQA: ``n_kv_heads`` key and value heads, each read by an equal group.

    ``sinks`` adds one learned logit per query head. ``value_from_key`` means that values are the
    keys before their norm and position: both are cached, one projection makes them.
    """

    family: Literal["mha", "gqa", "mqa"]
    n_kv_heads: HeadCount
    head_dim: Width
    v_head_dim: Width
    qkv_bias: Flag = False
    qk_norm: Flag = False
    sinks: Flag = False
    value_from_key: Flag = False

    text_argument = "n_kv_heads"

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
            self.qkv_bias, self.output_bias, self.qk_norm, self.output_gate,
        )  # fmt: skip

    @override
    def label(self) -> str:
        return f"gqa:{self.n_kv_heads}" if self.family == "gqa" else self.family

    @classmethod
    @override
    def on_backbone(cls, backbone: Backbone, family: str, fields: Mapping[str, Any]) -> Self:
        if family == "gqa" and "n_kv_heads" not in fields:
            raise SpecError("gqa needs its number of key/value heads: write for example gqa:8")
        kept = backbone._asdict()
        kept.pop("rope_dim")
        return cls(**{"family": family, **kept, **fields})


class LatentSpec(AttentionSpec):
    """MLA: one latent of ``latent_dim`` read as key and value, one rotary key of ``rope_dim``.

    ``cached_form`` "heads" is what engines without absorption keep: every head's key and value.
    """

    family: Literal["mla"] = "mla"
    latent_dim: Width
    rope_dim: WidthOrZero
    nope_dim: Width
    v_head_dim: Width
    query_latent_dim: Width | None = None
    cached_form: Literal["latent", "heads"] = "latent"

    text_argument = "latent_dim"
    text_aliases: ClassVar[Mapping[str, str]] = {
        "rope": "rope_dim",
        "nope": "nope_dim",
        "query_latent": "query_latent_dim",
    }

    @override
    def backbone(self) -> Backbone:
        return Backbone(
            self.n_heads, self.nope_dim, self.v_head_dim, self.rope_dim,
            False, self.output_bias, False, self.output_gate,
        )  # fmt: skip

    @override
    def label(self) -> str:
        return f"mla:{self.latent_dim}+{self.rope_dim}" + self.stated(
            "query_latent_dim", "cached_form"
        )

    @classmethod
    @override
    def on_backbone(cls, backbone: Backbone, family: str, fields: Mapping[str, Any]) -> Self:
        given = dict(fields)
        if isinstance(given.get("latent_dim"), str):
            latent, plus, rope = given["latent_dim"].partition("+")
            if not (plus and latent.isdecimal() and rope.isdecimal()):
                raise SpecError(
                    f"mla:{latent}{plus}{rope}: write both widths, for example mla:512+64"
                )
            given |= {"latent_dim": int(latent), "rope_dim": int(rope)}
        given.setdefault("rope_dim", backbone.rope_dim)
        if "latent_dim" not in given or given["rope_dim"] is None:
            raise SpecError("mla needs its latent and rope widths: write for example mla:512+64")
        kept = {
            "n_heads": backbone.n_heads, "nope_dim": backbone.head_dim,
            "v_head_dim": backbone.v_head_dim, "output_bias": backbone.output_bias,
            "output_gate": backbone.output_gate,
        }  # fmt: skip
        return cls(**{**kept, **given})


Position = Literal["none", "rope_expand", "rope_rank", "rope_decoupled"]
KeyNorm = Literal["none", "rms_cached"]


class LowRankSpec(AttentionSpec):
    """LRKV: a shared key and value per group of heads plus a rank-r residual per head.

    ``rank_alignment`` is the multiple to which stored residual widths are padded.
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
    qk_norm: Flag = False

    text_argument = "rank"
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
            "key_norm", "rank_alignment",
        )  # fmt: skip

    @classmethod
    @override
    def on_backbone(cls, backbone: Backbone, family: str, fields: Mapping[str, Any]) -> Self:
        ranks = {"rank", "key_rank", "value_rank"} & set(fields)
        if not ranks or (ranks & {"key_rank", "value_rank"} and len(ranks) == 1):
            raise SpecError("lrkv needs its rank: lrkv:55, or lrkv:key_rank=64,value_rank=32")
        kept = backbone._asdict()
        del kept["qkv_bias"], kept["rope_dim"]
        if fields.get("position") == "rope_decoupled" and backbone.rope_dim:
            kept["rope_dim"] = backbone.rope_dim
        return cls(**{**kept, **fields})


def divisors_of(n: int) -> list[int]:
    """Divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


for _name in ("mha", "gqa", "mqa"):
    register_spec_class(_name, GroupedSpec)
register_spec_class("mla", LatentSpec)
register_spec_class("lrkv", LowRankSpec)
