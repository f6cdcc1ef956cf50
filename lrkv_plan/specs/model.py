"""A model as a list of layer groups: what each layer caches, holds and computes with."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)
from typing_extensions import Self

from lrkv_plan.attention.layout import check_dealing
from lrkv_plan.attention.registry import AnyAttention
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.errors import SpecError
from lrkv_plan.formats import StorageFormat, WeightFormat, storage_format, weight_format
from lrkv_plan.schema import (
    ByteCount,
    Flag,
    Frozen,
    HeadCount,
    LayerCount,
    Name,
    Remark,
    Source,
    TokenCount,
    Vocabulary,
    Width,
    WidthOrZero,
)


class FixedTensor(Frozen):
    """Bytes whose format does not follow ``--kv-dtype``: recurrent state, sparse-index keys.

    ``copies`` are dealt out over the tensor-parallel GPUs, or whole on each when ``replicated``.
    ``bytes_per_draft_token`` is what one speculative token adds to a copy (convolution columns).
    ``tokens_per_row`` tokens share one index key.
    ``scalar_bytes`` is the size of one scalar, where the source states it: engines that keep every
    state in fp32 scale by it.
    """

    name: Name
    bytes_per_copy: ByteCount
    copies: HeadCount = 1
    sharding: Literal["by_copy", "replicated"] = "by_copy"
    bytes_per_draft_token: Annotated[int, Field(strict=True, ge=0, le=2**40)] = 0
    scalar_bytes: Literal[2, 4] | None = None
    tokens_per_row: TokenCount = 1


def _known_cache_format(name: str) -> str:
    try:
        return storage_format(name).name
    except SpecError as error:
        raise ValueError(str(error)) from None


CacheFormatName = Annotated[str, AfterValidator(_known_cache_format)]


class HeldWeight(Frozen):
    """``copies`` matrices of ``rows`` x ``cols`` that a layer or the model holds; a vector has one
    column.

    For weights that neither an attention design, nor a feed-forward block, nor norms describe: a
    recurrent mixer, a sparse index, per-layer embeddings. ``part`` is what they are counted with.
    ``units`` equal shares are dealt out by tensor parallelism; None is whole on every GPU.
    ``reads`` names what a decode step multiplies a matrix with: those that read the same are one
    product, None is none of its own. ``plain`` ones stay in 16 bit in quantised checkpoints.
    """

    name: Name
    rows: Width
    cols: Width = 1
    copies: HeadCount = 1
    units: Annotated[int, Field(strict=True, ge=1, le=4_194_304)] | None = None
    part: Literal["mixer", "attention", "index", "router", "norms", "embeddings"] = "mixer"
    reads: Name | None = None
    plain: Flag = False

    @property
    def n_params(self) -> int:
        """Parameters in all copies."""
        return self.rows * self.cols * self.copies

    def share_per_gpu(self, tp_size: int) -> Fraction:
        """The part of this weight that one GPU of ``tp_size`` holds.

        Raises
        ------
        PlacementError
            If the units can neither be dealt out nor repeated evenly.
        """
        if self.units is None:
            return Fraction(1)
        check_dealing(self.units, f"shares of weight {self.name}", tp_size)
        return Fraction(1, min(self.units, tp_size))


class DenseFeedForward(Frozen):
    """One block of ``hidden_dim``; gated blocks have three matrices, others two."""

    kind: Literal["dense"] = "dense"
    hidden_dim: Width
    gated: Flag
    bias: Flag = False


class ExpertFeedForward(Frozen):
    """A mixture: ``n_experts`` blocks of ``hidden_dim`` and one shared block for all tokens.

    ``routed_dim`` is the width that the routed experts read and write, where it is not the model's:
    experts of a latent, whose two projections are among the layer's ``weights``.
    """

    kind: Literal["experts"] = "experts"
    hidden_dim: Width
    n_experts: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    experts_per_token: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    shared_hidden_dim: WidthOrZero = 0
    dense_hidden_dim: WidthOrZero = 0  # a dense block beside the mixture
    routed_dim: Width | None = None
    gated: Flag
    bias: Flag = False
    router_bias: Flag = False
    shared_gate: Flag = False

    @model_validator(mode="after")
    def _enough_experts(self) -> Self:
        if self.experts_per_token > self.n_experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} exceeds n_experts {self.n_experts}"
            )
        return self

    def expert_dim(self, model_dim: int) -> int:
        """Width that a routed expert reads and writes. [scalars]"""
        return model_dim if self.routed_dim is None else self.routed_dim


class NoFeedForward(Frozen):
    """The block has no feed-forward part; an absent ``feed_forward`` means "not stated"."""

    kind: Literal["none"] = "none"


FeedForward = Annotated[
    DenseFeedForward | ExpertFeedForward | NoFeedForward, Field(discriminator="kind")
]


class Norms(Frozen):
    """Normalisation weights: vectors of ``model_dim``, twice that with a bias."""

    per_mixer: Annotated[int, Field(strict=True, ge=0, le=16)]
    per_feed_forward: Annotated[int, Field(strict=True, ge=0, le=16)]
    bias: Flag = False
    final: Flag = True
    embedding: Flag = False


Update = Literal[
    "gated_delta", "kimi_delta", "mamba2", "mamba1", "lightning", "gated_lru", "short_conv", "rwkv"
]


class LayerGroup(Frozen):
    """``count`` equal layers.

    ``window_tokens`` bounds how many tokens a layer keeps. With ``tokens_per_row`` it keeps one
    more row for so many tokens of the whole context (DeepSeek-V4). ``reuses_cache`` layers attend
    to the rows of another layer and keep none. ``cached_over`` "encoder" marks cross-attention,
    whose rows are as many as the encoder's: part of another layer, or with a feed-forward a layer
    of its own.
    ``state`` is per sequence, ``index`` per cached token; ``update`` names the kernel that moves a
    recurrent state. ``weights`` are held beside attention, feed-forward and norms. The attention of
    ``shares_weights`` layers multiplies matrices that several layers share, which the model's
    ``weights`` hold once (Zamba2). ``selected_tokens`` is how many rows a layer attends to at most,
    chosen by its own index or that of a layer before it; None: not stated. ``kv_dtype`` is the
    format that these layers' rows keep whatever ``--kv-dtype`` says.
    """

    count: LayerCount
    attention: AnyAttention | None = None
    window_tokens: TokenCount | None = None
    tokens_per_row: TokenCount | None = None
    window_kind: Literal["sliding", "chunked"] | None = None
    reuses_cache: Flag = False
    shares_weights: Flag = False
    cached_over: Literal["context", "encoder"] = "context"
    state: tuple[FixedTensor, ...] = ()
    update: Update | None = None
    weights: tuple[HeldWeight, ...] = ()
    index: tuple[FixedTensor, ...] = ()
    selected_tokens: TokenCount | None = None
    kv_dtype: CacheFormatName | None = None
    feed_forward: FeedForward | None = None

    def keeps_in(self, storage: StorageFormat) -> StorageFormat:
        """The format of these layers' rows where the model's is ``storage``."""
        return storage if self.kv_dtype is None else storage_format(self.kv_dtype)

    @property
    def shares_layer(self) -> bool:
        """Whether it is the cross-attention of layers that another group describes."""
        return self.cached_over == "encoder" and self.feed_forward is None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        needs_attention = {
            "window_tokens": self.window_tokens, "reuses_cache": self.reuses_cache,
            "tokens_per_row": self.tokens_per_row, "shares_weights": self.shares_weights,
            "index": self.index, "selected_tokens": self.selected_tokens,
            "kv_dtype": self.kv_dtype,
        }  # fmt: skip
        for key, value in needs_attention.items():
            if value and self.attention is None:
                raise ValueError(f"{key} is given for layers without attention")
        if (self.window_tokens is None) != (self.window_kind is None):
            raise ValueError("window_tokens and window_kind (sliding or chunked) go together")
        if self.tokens_per_row is not None and self.window_tokens is None:
            raise ValueError("tokens_per_row comes with the window_tokens of rows beside it")
        return self

    @property
    def most_rows(self) -> int | None:
        """Rows of a sequence that one query attends to at most; None: all. [tokens]"""
        return min(filter(None, (self.window_tokens, self.selected_tokens)), default=None)


class Media(Frozen):
    """The largest items that a vision encoder is given, as an engine's start-up profiles them.

    ``video_pair_tokens`` are those of two frames of a video, None where no video is larger than an
    image.
    """

    image_tokens: TokenCount
    patches_per_token: Annotated[int, Field(strict=True, ge=1, le=10_000)]
    video_pair_tokens: TokenCount | None = None
    encoder_dim: Width


class DraftModule(Frozen):
    """A built-in multi-token predictor: its own layers, and what joins it to the model.

    ``layers`` have the model's norms. A checkpoint stores it; engines load it only for speculation.
    """

    layers: Annotated[tuple[LayerGroup, ...], Field(min_length=1, max_length=100)]
    weights: tuple[HeldWeight, ...] = ()


class Encoder(Frozen):
    """A vision or audio encoder with its projector, by its parameters."""

    name: Name
    n_params: Annotated[int, Field(strict=True, ge=1, le=10**14)]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, dict | Source) else value


Sources = Annotated[tuple[Source, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


def _known_format(name: str) -> str:
    try:
        return weight_format(name).name
    except SpecError as error:
        raise ValueError(str(error)) from None


WeightFormatName = Annotated[str, AfterValidator(_known_format)]
LinearPart = Literal["attention", "mixers", "feed_forward", "experts", "shared_experts"]


class ModelSpec(Frozen):
    """One model. What a source does not state stays None, and its users say so.

    ``weights`` are held outside the layers beside embeddings, head and norms; ``encoders`` stand
    beside the language model and ``mtp`` behind it. ``extra_params`` are parameters of other parts
    outside the layers, as published total minus counted. ``quantised_parts`` are, by weight format,
    the parts that the model's published checkpoint in that format stores in it, where not all that
    the format usually does.
    """

    name: Name
    source: Sources = ()  # shipped files name theirs
    model_dim: Width
    vocab_size: Vocabulary | None = None
    tied_embeddings: Flag | None = None
    head_bias: Flag = False
    position_embeddings: Vocabulary | None = None
    max_context_tokens: TokenCount | None = None
    encoder_tokens: TokenCount | None = None
    weight_dtype: WeightFormatName | None = None
    quantised_parts: dict[WeightFormatName, tuple[LinearPart, ...]] = Field(default_factory=dict)
    norms: Norms | None = None
    media: Media | None = None
    draft_layers: Annotated[int, Field(strict=True, ge=0, le=1_000)] = 0
    layers: Annotated[tuple[LayerGroup, ...], Field(min_length=1, max_length=10_000)]
    layer_order: tuple[Annotated[int, Field(strict=True, ge=0)], ...] | None = None
    weights: tuple[HeldWeight, ...] = ()
    encoders: tuple[Encoder, ...] = ()
    mtp: DraftModule | None = None
    extra_params: Annotated[int, Field(strict=True, ge=0, le=10**14)] | None = None
    uncounted_parts: tuple[Remark, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @model_validator(mode="after")
    def _order_matches(self) -> Self:
        if self.layer_order is not None:
            counts = [0] * len(self.layers)
            for index in self.layer_order:
                if index >= len(counts):
                    raise ValueError(f"layer_order names group {index} of {len(counts)}")
                counts[index] += 1
            stated = [group.count for group in self.layers]
            if counts != stated:
                raise ValueError(
                    f"layer_order has {counts} layers per group, layers state {stated}"
                )
        return self

    def weights_in(self, format_name: str) -> WeightFormat:
        """The weight format of that name, with the parts that this model stores in it.

        Raises
        ------
        SpecError
            If the format is unknown.
        """
        found = weight_format(format_name)
        parts = self.quantised_parts.get(found.name)
        return found if parts is None else replace(found, quantised_parts=frozenset(parts))

    def cached_in(self, storage: StorageFormat) -> ModelSpec:
        """The model with the layers that this format leaves in 16 bits as groups of their own."""
        ends = storage.plain_ends
        if not ends or any(g.state or g.attention is None for g in self.layers):
            return self
        order = self.layer_order or tuple(
            index for index, group in enumerate(self.layers) for _ in range(group.count)
        )
        places = range(len(order))
        is_plain = [place < ends or place >= len(order) - ends for place in places]
        keys = sorted({(order[place], is_plain[place]) for place in places})
        numbers = [keys.index((order[place], is_plain[place])) for place in places]
        groups = tuple(
            self.layers[index].model_copy(
                update={"count": numbers.count(number), **({"kv_dtype": "bf16"} if plain else {})}
            )
            for number, (index, plain) in enumerate(keys)
        )
        return self.model_copy(update={"layers": groups, "layer_order": tuple(numbers)})

    @property
    def n_layers(self) -> int:
        """Layers, with or without attention; cross-attention may share its layer. [layers]"""
        return sum(group.count for group in self.layers if not group.shares_layer)

    @property
    def has_experts(self) -> bool:
        """Whether a layer routes tokens to experts."""
        return any(isinstance(group.feed_forward, ExpertFeedForward) for group in self.layers)

    @property
    def attention_groups(self) -> tuple[LayerGroup, ...]:
        """Groups whose layers attend."""
        return tuple(group for group in self.layers if group.attention is not None)

    def with_attention(self, designs: tuple[Any, ...]) -> ModelSpec:
        """The same backbone with one design per attention group, in their order."""
        swapped = iter(designs)
        groups = tuple(
            group
            if group.attention is None
            else group.model_copy(
                update={
                    "attention": next(swapped),
                    "index": (),
                    "selected_tokens": None,
                    "weights": tuple(w for w in group.weights if w.part not in _OF_DESIGN),
                }
            )
            for group in self.layers
        )
        return self.model_copy(update={"layers": groups})


# Weights that leave with the attention design of a layer.
_OF_DESIGN = ("attention", "index")

# Filled in by the attention families from their other fields.
_DERIVED = ("n_kv_heads", "v_head_dim")
_ENDLESS = 10**9  # columns: one-line values are never folded


class _OneLine(dict[str, Any]):
    """A mapping that is written in flow style."""


class _OneLineList(list[int]):
    """A list that is written in flow style."""


class _Dumper(yaml.SafeDumper):
    """Block style outside, flow style for the two classes above, list items indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Indent list items under their key, which PyYAML leaves flush."""
        super().increase_indent(flow, False)


_Dumper.add_representer(
    _OneLine, lambda d, v: d.represent_mapping("tag:yaml.org,2002:map", v, flow_style=True)
)
_Dumper.add_representer(
    _OneLineList, lambda d, v: d.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True)
)


def model_to_yaml(model: ModelSpec) -> str:
    """The text of a model file.

    Examples
    --------
    >>> from lrkv_plan.loader import load_model
    >>> model_to_yaml(load_model("lrkv-paper-2.5b")).splitlines()[-3]
    '    attention: {family: mha, n_heads: 18, head_dim: 128}'
    """
    data = _stated(model)
    if model.source:
        data["source"] = [_stated(source) for source in model.source]
    if model.norms is not None:
        data["norms"] = _one_line(model.norms)
    if model.media is not None:
        data["media"] = _one_line(model.media)
    data["layers"] = [_group(group) for group in model.layers]
    if model.layer_order is not None:
        data["layer_order"] = _OneLineList(model.layer_order)
    for key, parts in (("weights", model.weights), ("encoders", model.encoders)):
        if parts:
            data[key] = [_one_line(part) for part in parts]
    if model.mtp is not None:
        data["mtp"] = {
            "layers": [_group(group) for group in model.mtp.layers],
            "weights": [_one_line(one) for one in model.mtp.weights],
        }
    for key in ("uncounted_parts", "remarks"):
        if key in data:
            data[key] = list(data[key])
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, width=_ENDLESS, allow_unicode=True,
    )  # fmt: skip


def _stated(spec: BaseModel) -> dict[str, Any]:
    """Fields that differ from their default, in the order of the class."""
    dumped = spec.model_dump(exclude_defaults=True)
    return {name: dumped[name] for name in type(spec).model_fields if name in dumped}


def _one_line(spec: BaseModel) -> _OneLine:
    return _OneLine(_stated(spec))


def _group(group: LayerGroup) -> dict[str, Any]:
    data = _stated(group)
    if group.attention is not None:
        data["attention"] = _attention(group.attention)
    listed = (("state", group.state), ("weights", group.weights), ("index", group.index))
    for key, tensors in listed:
        if tensors:
            data[key] = [_one_line(tensor) for tensor in tensors]
    if group.feed_forward is not None:
        kind = group.feed_forward.kind
        data["feed_forward"] = _OneLine({"kind": kind, **_stated(group.feed_forward)})
    return data


def _attention(spec: AttentionSpec) -> _OneLine:
    """The family and what it does not fill in by itself; flags last."""
    data = {"family": spec.family, **_stated(spec)}
    for key in _DERIVED:
        shorter = {name: value for name, value in data.items() if name != key}
        if key in data and _reads_as(spec, shorter):
            data = shorter
    return _OneLine(sorted(data.items(), key=lambda item: isinstance(item[1], bool)))


def _reads_as(spec: AttentionSpec, data: dict[str, Any]) -> bool:
    try:
        return type(spec).model_validate(data) == spec
    except ValidationError:
        return False
