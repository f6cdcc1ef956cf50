"""MLA: multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from typing_extensions import Self, override

from lrkv_plan.attention.families.grouped import output_weights
from lrkv_plan.attention.family import Calls, Family, Kernel, Planned
from lrkv_plan.attention.layout import (
    AttentionLayout,
    CachedTensor,
    DecodeWork,
    HeadProduct,
    Sharding,
    WeightMatrix,
    WeightRole,
)
from lrkv_plan.attention.spec import AttentionSpec, Backbone
from lrkv_plan.errors import SpecError
from lrkv_plan.schema import Width, WidthOrZero


class LatentSpec(AttentionSpec):
    """MLA: one latent of ``latent_dim`` read as key and value, one rotary key of ``rope_dim``.

    ``cached_form`` "heads" is what engines without absorption keep: every head's key and value;
    "transposed" is the latent and a second copy of it for the values (ik_llama.cpp's -mla 1 without
    flash attention). ``head_dim`` is a key of the design that it stands in for; None: its own.
    """

    family: Literal["mla"] = "mla"
    latent_dim: Width
    rope_dim: WidthOrZero
    nope_dim: Width
    v_head_dim: Width
    query_latent_dim: Width | None = None
    cached_form: Literal["latent", "heads", "transposed"] = "latent"
    head_dim: Width | None = None

    text_argument = "latent_dim"
    size_name = "latent_dim"
    size_fields = ("latent_dim",)
    backbone_fields = frozenset({"n_heads", "nope_dim", "v_head_dim", "head_dim"})
    text_aliases: ClassVar[Mapping[str, str]] = {
        "rope": "rope_dim",
        "nope": "nope_dim",
        "query_latent": "query_latent_dim",
    }

    @override
    def backbone(self) -> Backbone:
        """Heads whose keys are nope_dim + rope_dim wide, as DeepSeek-V3's own code makes them."""
        return Backbone(
            self.n_heads, self.nope_dim, self.v_head_dim, self.rope_dim,
            False, self.output_bias, False, self.output_gate,
            key_dim=self.head_dim or self.nope_dim + self.rope_dim,
        )  # fmt: skip

    @override
    def label(self) -> str:
        return self.text()

    @override
    def text(self, size: int | str | None = None) -> str:
        latent = self.latent_dim if size is None else size
        return f"mla:{latent}+{self.rope_dim}" + self.stated("query_latent_dim", "cached_form")

    @override
    def sizes(self, model_dim: int) -> Sequence[int]:
        """Latents that compress anything.

        One is made from the ``model_dim`` scalars of a token and makes the keys and values of all
        heads: wider than either, the hidden state or the heads themselves would be the smaller
        cache.
        """
        heads = self.n_heads * (self.nope_dim + self.v_head_dim)
        return range(1, min(model_dim, heads) + 1)

    @classmethod
    @override
    def common_sizes(cls, layers: Sequence[Self], model_dim: int) -> Sequence[int]:
        """Up to the widest that compresses anything in some layer; every layer can take those."""
        return max((layer.sizes(model_dim) for layer in layers), key=len)

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
        replaced = backbone.whole_key_dim
        if replaced != backbone.head_dim + given["rope_dim"]:
            kept["head_dim"] = replaced
        return cls(**{**kept, **given})


def latent_layout(spec: LatentSpec, model_dim: int) -> AttentionLayout:
    """Layout of MLA.

    Notes
    -----
    Cache per token and layer, in scalars: d_c + d_R. The latent is key and value at once and has no
    head to be dealt out by, so every tensor-parallel GPU keeps it whole.
    Weights of keys and values: d (d_c + d_R) + d_c H (d_nope + d_v) + d_c for the latent's norm.
    Decode, multiply-adds per layer with T cached tokens:
    absorbed H [T (2 d_c + d_R) + d_c (d_nope + d_v)];
    materialised H [T d_c (d_nope + d_v) + T (d_nope + d_R + d_v)], whose first term rebuilds keys
    and values once for all query tokens. An engine that keeps heads instead of the latent caches
    H (d_nope + d_R + d_v) scalars and takes the materialised path without its first term; one with
    a transposed copy 2 d_c + d_R.

    Examples
    --------
    >>> spec = LatentSpec(
    ...     n_heads=128, latent_dim=512, rope_dim=64, nope_dim=128, v_head_dim=128)
    >>> latent_layout(spec, model_dim=7168).scalars_per_token()
    576
    """
    heads, latent, rope = spec.n_heads, spec.latent_dim, spec.rope_dim
    nope, value_dim = spec.nope_dim, spec.v_head_dim
    key_value = WeightRole.KEY_VALUE
    weights = (
        *_query_weights(spec, model_dim),
        WeightMatrix(
            name="latent_down", rows=model_dim, cols=latent + rope, role=key_value, makes_rows=True
        ),
        WeightMatrix(name="latent_norm", rows=latent, cols=1, role=key_value, makes_rows=True),
        WeightMatrix(
            name="latent_up", rows=latent, cols=heads * (nope + value_dim), role=key_value,
            units=heads, makes_rows=spec.cached_form == "heads",
            reads="latent" if spec.cached_form == "heads" else None,
        ),
        *output_weights(spec, model_dim, value_dim),
    )  # fmt: skip
    return AttentionLayout(
        label=spec.label(),
        n_heads=heads,
        cached=_cached(spec),
        weights=weights,
        work=_work(spec),
        has_latent_rows=spec.cached_form != "heads",
        per_head_option="cached_form=heads",
    )


def _cached(spec: LatentSpec) -> tuple[CachedTensor, ...]:
    if spec.cached_form == "heads":
        rows = [("key", spec.nope_dim + spec.rope_dim), ("value", spec.v_head_dim)]
        copies, sharding = spec.n_heads, Sharding.BY_COPY
    else:
        rows = [("latent", spec.latent_dim), ("rope_key", spec.rope_dim)]
        rows += [("latent_value", spec.latent_dim)] * (spec.cached_form == "transposed")
        copies, sharding = 1, Sharding.REPLICATED
    alone = {"latent": "latent_alone"} if not spec.rope_dim else {}
    apart: dict[str, Literal["key", "value"]] = {"key": "key", "value": "value"}
    if spec.cached_form == "transposed":
        apart = {"latent": "key", "rope_key": "key", "latent_value": "value"}
    return tuple(
        CachedTensor(
            name=name, width=width, copies_per_layer=copies, sharding=sharding,
            row_of=alone.get(name), holds=apart.get(name, "both"),
        )
        for name, width in rows
        if width
    )  # fmt: skip


_TIMED_AS_ONE = ("attention is timed as if the latent and its transposed copy were read once",)


def _work(spec: LatentSpec) -> tuple[DecodeWork, ...]:
    heads, latent, rope = spec.n_heads, spec.latent_dim, spec.rope_dim
    rebuild = heads * latent * (spec.nope_dim + spec.v_head_dim)
    scan = heads * (spec.nope_dim + rope + spec.v_head_dim)
    if spec.cached_form == "heads":
        return (DecodeWork(path="materialised", kernel="grouped", per_token=scan, per_step=0),)
    return (
        DecodeWork(
            path="absorbed",
            kernel="mla_absorbed",
            per_token=heads * (2 * latent + rope),
            per_step=rebuild,
            products=(
                HeadProduct(name="key_absorption", rows=spec.nope_dim, cols=latent),
                HeadProduct(name="value_absorption", rows=latent, cols=spec.v_head_dim),
            ),
            assumptions=_TIMED_AS_ONE if spec.cached_form == "transposed" else (),
        ),
        DecodeWork(
            path="materialised",
            kernel="mla_materialised",
            per_token=scan,
            per_step=0,
            expand_per_token=rebuild,
            rebuilt_per_token=heads * (spec.nope_dim + spec.v_head_dim),
        ),
    )


def _query_weights(spec: LatentSpec, model_dim: int) -> tuple[WeightMatrix, ...]:
    """Query d x H (d_nope + d_R), or through a normalised latent of ``query_latent_dim``."""
    query_dim = spec.n_heads * (spec.nope_dim + spec.rope_dim)
    role, latent, units = WeightRole.QUERY, spec.query_latent_dim, spec.n_heads
    if latent is None:
        query = WeightMatrix(name="query", rows=model_dim, cols=query_dim, role=role, units=units)
        return (query,)
    return (
        WeightMatrix(name="query_down", rows=model_dim, cols=latent, role=role),
        WeightMatrix(name="query_norm", rows=latent, cols=1, role=role),
        WeightMatrix(
            name="query_up",
            rows=latent,
            cols=query_dim,
            role=role,
            units=units,
            reads="query_latent",
        ),
    )


def usual_rope_dim(backbone: Backbone) -> int:
    """The backbone's own rotary key, or half a head (arXiv:2405.04434, 2.1.4). [scalars]"""
    own = backbone.rope_dim
    return max(2, backbone.head_dim // 2) if own is None else own


def narrowest_latent(backbone: Backbone, rope_dim: int | None = None) -> LatentSpec:
    """MLA with a latent of one scalar, whose sizes give the wider ones."""
    rope = usual_rope_dim(backbone) if rope_dim is None else rope_dim
    return LatentSpec.on_backbone(backbone, "mla", {"latent_dim": 1, "rope_dim": rope})


def mla_absorbed_work(
    batch_size: Any,
    context_tokens: Any,
    *,
    n_heads: Any,
    latent_dim: Any,
    rope_dim: Any,
    bytes_per_scalar: float,
) -> tuple[Any, Any, Any]:
    """Bytes, FLOPs and work units of one absorbed MLA decode call, heads counted per GPU.

    Notes
    -----
    bytes = B T (d_c + d_R) b (the latent is key and value); flops = 2 B T H (2 d_c + d_R);
    units = B.

    Examples
    --------
    >>> mla_absorbed_work(1, 1000, n_heads=128, latent_dim=512, rope_dim=64, bytes_per_scalar=2)
    (1152000.0, 278528000.0, 1)
    """
    tokens = 1.0 * batch_size * context_tokens  # floats: int64 arrays would wrap
    n_bytes = tokens * (latent_dim + rope_dim) * bytes_per_scalar
    return n_bytes, 2 * tokens * n_heads * (2 * latent_dim + rope_dim), batch_size


_CALLS = Calls(
    work=mla_absorbed_work,
    columns={"latent_dim": "d_c", "rope_dim": "d_rope"},
    query_head_ranges=((1, 16), (17, 32), (33, 65_536)),
    by_head_dim=False,
)

# How its designs begin on a command line; read there without importing this file.
WRITTEN = ("mla:",)

FAMILIES = (
    Family(
        names=("mla",),
        spec_class=LatentSpec,
        build=latent_layout,
        kernels=(
            Kernel(name="mla_absorbed", calls=_CALLS),
            Kernel(name="mla_materialised", fallback="mla_absorbed", rebuilds=True),
        ),
        runs_on=("grouped",),  # heads that are cached instead of the latent
        planned=(
            Planned(
                role="MLA in the budget",
                design=narrowest_latent,
                in_budget=True,
                # DeepSeek's proportions, d_c = 4 d_h (arXiv:2405.04434, 3.1.2).
                most=lambda backbone: 4 * backbone.head_dim,
            ),
        ),
    ),
)
