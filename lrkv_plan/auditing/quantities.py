"""Quantities that a claim may print: each a function of inputs with its equation and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, model_validator
from typing_extensions import Self

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.auditing.printed import Kind, read_number
from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.formats import storage_format
from lrkv_plan.loader import load_model
from lrkv_plan.memory import arithmetic as decode_work
from lrkv_plan.memory import cache
from lrkv_plan.memory import largest as ceilings
from lrkv_plan.memory import weights as parameters
from lrkv_plan.schema import (
    Flag,
    Frozen,
    HeadCount,
    LayerCount,
    Name,
    TokenCount,
    Width,
    WidthOrZero,
    explain,
)
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.units import FLOPS_PER_MULTIPLY_ADD

_NUMBER_SCHEMA: dict[str, Any] = {
    "type": ["number", "string"],
    "description": "Unquoted numbers are exact; quoted ones carry their printed precision: "
    "'2.740', '29.7 %', '50B', '1/4'.",
}
NumberInput = Annotated[Any, BeforeValidator(read_number), WithJsonSchema(_NUMBER_SCHEMA)]
Numbers = Annotated[tuple[NumberInput, ...], Field(min_length=1, max_length=1_000)]


def _known_format(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return storage_format(value).name
        except SpecError as error:
            raise ValueError(str(error)) from None
    return value


FormatInput = Annotated[str, BeforeValidator(_known_format)]


class Backbone(Frozen):
    """A backbone: a model by name or file, or its heads. ``model_dim`` defaults to H d_h."""

    model: Name | None = None
    n_heads: HeadCount | None = None
    head_dim: Width | None = None
    model_dim: Width | None = None
    n_layers: LayerCount | None = None

    @model_validator(mode="after")
    def _stated(self) -> Self:
        own = ("n_heads", "head_dim", "model_dim", "n_layers")
        given = [key for key in own if getattr(self, key) is not None]
        if self.model is not None and given:
            raise ValueError(f"model {self.model!r} states its own {', '.join(given)}")
        missing = [key for key in own[:2] if getattr(self, key) is None]
        if self.model is None and missing:
            raise ValueError(f"{' and '.join(missing)} missing (or name a model)")
        return self


class Design(Backbone):
    """One design on a backbone, a named model's own or MHA; ``tp_size`` GPUs share it."""

    attention: Name | None = None
    kv_dtype: FormatInput = "bf16"
    tp_size: HeadCount = 1


class Compared(Design):
    """A design against another on the same backbone and GPUs."""

    reference: Name = "mha"


class Layered(Design):
    """All layers of a model: ``n_layers`` is needed where no model is named."""

    @model_validator(mode="after")
    def _layers_stated(self) -> Self:
        if self.model is None and self.n_layers is None:
            raise ValueError("n_layers missing (or name a model)")
        return self


class Held(Layered):
    """A batch of equal sequences."""

    context_tokens: TokenCount
    batch_size: TokenCount = 1


class Scanned(Layered):
    """One decode step at a context."""

    context_tokens: TokenCount


class Work(Backbone):
    """Decode arithmetic against MHA; the limit of long contexts without ``context_tokens``."""

    attention: Name
    context_tokens: TokenCount | None = None


class Budgeted(Backbone):
    """A cache budget and the multiple that a rank must be."""

    budget: Name
    alignment: Width = 1
    kv_dtype: FormatInput = "bf16"
    tp_size: HeadCount = 1


class Padded(Frozen):
    """A rank and the multiple to which it is stored."""

    rank: WidthOrZero
    alignment: Width


class Heads(Frozen):
    """Head maps whose spectrum is ranked."""

    n_heads: HeadCount
    centred: Flag = True


class Two(Frozen):
    """A value and what it is compared with."""

    value: NumberInput
    reference: NumberInput


class Values(Frozen):
    """Numbers that are reduced to one."""

    values: Numbers


class Pairs(Frozen):
    """Two lists of one length."""

    left: Numbers
    right: Numbers

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len(self.left) != len(self.right):
            raise ValueError(f"left has {len(self.left)} values, right has {len(self.right)}")
        return self


class Entropy(Frozen):
    """Cross-entropy in nats per token and the text's bytes per token."""

    cross_entropy: NumberInput
    bytes_per_token: NumberInput


class EntropyByReference(Frozen):
    """Cross-entropies of two models on one text, and the reference's bits per byte."""

    cross_entropy: NumberInput
    reference_cross_entropy: NumberInput
    reference_bits_per_byte: NumberInput


class Steps(Frozen):
    """A training run: tokens in all, tokens per optimiser step, GPUs that took part."""

    training_tokens: TokenCount
    batch_tokens: TokenCount
    n_gpus: HeadCount = 1


class Training(Frozen):
    """Parameters and tokens of a training run; ``change`` is a design's own cost per token."""

    parameters: NumberInput
    training_tokens: TokenCount
    change: NumberInput = Field(default=0, validate_default=True)


class ComputeSaved(Frozen):
    """Share of steps saved to a target, and each side's change in FLOPs per token."""

    step_saving: NumberInput
    change: NumberInput
    reference_change: NumberInput = Field(default=0, validate_default=True)


Compute = Callable[[Any], int | Fraction]
AnyCompute = TypeVar("AnyCompute", bound=Compute)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One computable quantity. ``monotone`` in every input, so that corners bound its values."""

    name: str
    kind: Kind
    inputs: type[Frozen]
    compute: Compute
    equation: str
    source: str
    monotone: bool = False

    def __call__(self, inputs: Frozen) -> Fraction:
        """The exact value in base units."""
        return Fraction(self.compute(inputs))


QUANTITIES: dict[str, Quantity] = {}


def quantity(
    inputs: type[Frozen], kind: Kind, equation: str, *, source: str = "", monotone: bool = False
) -> Callable[[AnyCompute], AnyCompute]:
    """Register the decorated function under its own name."""

    def register(compute: AnyCompute) -> AnyCompute:
        name = getattr(compute, "__name__", "")
        QUANTITIES[name] = Quantity(
            name=name, kind=kind, inputs=inputs, compute=compute, equation=equation,
            source=source or "arithmetic", monotone=monotone,
        )  # fmt: skip
        return compute

    return register


def quantity_named(name: str) -> Quantity:
    """The quantity of that name. Raises ``SpecError`` with the nearest known name."""
    if name not in QUANTITIES:
        raise SpecError(
            f"computes: quantity {shown(name)} is unknown{did_you_mean(name, QUANTITIES)}; "
            f"known: {', '.join(sorted(QUANTITIES))}"
        )
    return QUANTITIES[name]


_LRKV = "arXiv:2601.11471v3, eq. 9"
_REVIEW = "review of arXiv:2601.11471v3, section 4"
_SOURCE = {"citation": "inputs of a claim", "read_on": "2026-11-30"}


@lru_cache(maxsize=256)
def _backbone(n_heads: int, head_dim: int, model_dim: int | None, n_layers: int) -> ModelSpec:
    """MHA layers with an ungated feed-forward of 4 d, the Transformer's own width."""
    width = model_dim or n_heads * head_dim
    layer = {
        "count": n_layers,
        "attention": {"family": "mha", "n_heads": n_heads, "head_dim": head_dim},
        "feed_forward": {"kind": "dense", "hidden_dim": 4 * width, "gated": False},
    }
    try:
        return ModelSpec.model_validate(
            {"name": "claim", "source": _SOURCE, "model_dim": width, "layers": [layer]}
        )
    except ValidationError as error:
        raise SpecError(explain(error, ModelSpec)) from None


@lru_cache(maxsize=32)
def _named(model: str) -> ModelSpec:
    return load_model(model)


def backbone_of(inputs: Backbone) -> ModelSpec:
    """The backbone that the inputs name or describe, with its own attention."""
    if inputs.model is not None:
        return _named(inputs.model)
    assert inputs.n_heads is not None, "checked by the inputs"
    assert inputs.head_dim is not None, "checked by the inputs"
    return _backbone(inputs.n_heads, inputs.head_dim, inputs.model_dim, inputs.n_layers or 1)


def _swapped(inputs: Any) -> ModelSpec:
    backbone = backbone_of(inputs)
    return swap_attention(backbone, inputs.attention) if inputs.attention else backbone


def _one_layer(inputs: Design) -> ModelSpec:
    """A single layer of the design. Raises ``SpecError`` where a model's layers differ."""
    model = _swapped(inputs)
    groups = {group.attention for group in model.attention_groups}
    if len(groups) != 1:
        raise SpecError(f"{model.name}: its layers differ, so no number holds per layer")
    layer = model.attention_groups[0].model_copy(update={"count": 1})
    return model.model_copy(update={"layers": (layer,), "layer_order": None})


def _bytes(inputs: Compared, attention: str | None) -> Fraction:
    heads = (inputs.model, inputs.n_heads, inputs.head_dim)
    return _bytes_on(heads, attention, inputs.kv_dtype, inputs.tp_size)


@lru_cache(maxsize=8192)
def _bytes_on(
    heads: tuple[str | None, int | None, int | None],
    attention: str | None,
    kv_dtype: str,
    tp_size: int,
) -> Fraction:
    """Bytes per token on a backbone; in a ratio, layers and model width cancel."""
    model, n_heads, head_dim = heads
    backbone = backbone_of(Backbone(model=model, n_heads=n_heads, head_dim=head_dim))
    design = swap_attention(backbone, attention) if attention else backbone
    return Fraction(cache.bytes_per_token(design, kv_dtype=kv_dtype, tp_size=tp_size))


@quantity(Compared, Kind.RATIO, "sum w_i c_i(P) of the design / of the reference", source=_LRKV)
def cache_ratio(inputs: Compared) -> Fraction:
    """Cache over that of the reference design; g/H + r/d_h for LRKV over MHA."""
    reference = _bytes(inputs, inputs.reference)
    if not reference:
        raise SpecError(f"reference {inputs.reference!r} caches nothing here")
    return _bytes(inputs, inputs.attention) / reference


@quantity(Compared, Kind.RATIO, "1 - cache_ratio", source=_LRKV)
def cache_saving(inputs: Compared) -> Fraction:
    """Share of the reference's cache that the design does without."""
    return 1 - cache_ratio(inputs)


@quantity(Compared, Kind.RATIO, "1 / cache_ratio", source=_LRKV)
def cache_factor(inputs: Compared) -> Fraction:
    """How many times smaller than the reference's the cache is."""
    ratio = cache_ratio(inputs)
    if not ratio:
        raise SpecError("the design caches nothing here")
    return 1 / ratio


@quantity(Design, Kind.COUNT, "sum w_i c_i", source="attention layouts")
def scalars_per_token_per_layer(inputs: Design) -> int:
    """Scalars that one layer keeps per token."""
    layer = _one_layer(inputs)
    attention = layer.layers[0].attention
    assert attention is not None, "it is one of the layers that attend"
    return layout_of(attention, layer.model_dim).scalars_per_token()


@quantity(Design, Kind.BYTES, "b sum w_i c_i(P)", source="attention layouts")
def bytes_per_token_per_layer(inputs: Design) -> Fraction:
    """Bytes that one layer keeps per token, on one GPU of ``tp_size``."""
    layer, gpus = _one_layer(inputs), inputs.tp_size
    return Fraction(cache.bytes_per_token(layer, kv_dtype=inputs.kv_dtype, tp_size=gpus))


@quantity(Layered, Kind.BYTES, "b N sum w_i c_i(P)", source=_LRKV)
def bytes_per_token(inputs: Layered) -> Fraction:
    """Bytes that one more token adds over all layers, on one GPU of ``tp_size``."""
    held = cache.bytes_per_token(_swapped(inputs), kv_dtype=inputs.kv_dtype, tp_size=inputs.tp_size)
    return Fraction(held)


@quantity(Held, Kind.BYTES, "b N B T sum w_i c_i(P)", source=_LRKV)
def cache_bytes(inputs: Held) -> Fraction:
    """Bytes of a batch of equal sequences, on one GPU of ``tp_size``."""
    held: Any = cache.cache_bytes(
        _swapped(inputs),
        context_tokens=inputs.context_tokens,
        batch_size=inputs.batch_size,
        kv_dtype=inputs.kv_dtype,
        tp_size=inputs.tp_size,
    ).total
    return Fraction(held)


@quantity(
    Budgeted, Kind.COUNT, "floor(d_h (c - P g'/H)), then down to the alignment", source=_REVIEW
)
def rank_ceiling(inputs: Budgeted) -> int:
    """Largest LRKV rank within a budget, a multiple of ``alignment``."""
    answer = ceilings.rank_ceiling(
        backbone_of(inputs), budget=inputs.budget, alignment=inputs.alignment,
        kv_dtype=inputs.kv_dtype, tp_size=inputs.tp_size,
    )  # fmt: skip
    return answer.aligned.value


@quantity(Padded, Kind.COUNT, "a ceil(r / a)", source=_REVIEW)
def padded_rank(inputs: Padded) -> int:
    """Width at which a kernel with that alignment stores a rank."""
    return -(-inputs.rank // inputs.alignment) * inputs.alignment


@quantity(Layered, Kind.COUNT, "N x (LRKV: 2 g d d_h + 2 H r (d + d_h))", source=_REVIEW)
def kv_parameters(inputs: Layered) -> int:
    """Weights of the key and value projections over all layers."""
    return parameters.kv_params(_swapped(inputs))


@quantity(Compared, Kind.RATIO, "g/H + (r/d_h)(1 + d_h/d) for LRKV over MHA", source=_REVIEW)
def kv_parameter_ratio(inputs: Compared) -> Fraction:
    """Key/value weights over those of the reference design."""
    reference = swap_attention(backbone_of(inputs), inputs.reference)
    return Fraction(parameters.kv_params(_swapped(inputs)), parameters.kv_params(reference))


@quantity(Layered, Kind.COUNT, "N (attention + feed-forward); 12 d^2 N for MHA with 4 d ungated")
def block_parameters(inputs: Layered) -> int:
    """Weights of attention and feed-forward in all layers, without embeddings and norms."""
    counted = parameters.parameter_count(_swapped(inputs))
    if counted.feed_forward_params is None:
        raise SpecError(f"model {inputs.model!r} does not state its feed-forward")
    return counted.attention_params + counted.feed_forward_params


@quantity(Work, Kind.RATIO, "1 + r/d_h + r/T for factored LRKV over MHA", source=_REVIEW)
def arithmetic_ratio(inputs: Work) -> Fraction:
    """Multiply-adds of a decode step's attention over MHA's."""
    model, context = _swapped(inputs), inputs.context_tokens
    ratio = (
        decode_work.arithmetic_ratio_limit(model)
        if context is None
        else decode_work.arithmetic_ratio_to_mha(model, context)
    )
    if ratio is None:
        raise SpecError("no layer scans the context")
    return ratio


@quantity(Scanned, Kind.COUNT, "2 N (T per_token + per_step)", source="attention layouts")
def attention_flops_per_token(inputs: Scanned) -> int:
    """FLOPs of attention in one decode step of one sequence, projections not counted."""
    work = decode_work.attention_multiply_adds(_swapped(inputs), inputs.context_tokens)
    return FLOPS_PER_MULTIPLY_ADD * work


@quantity(Heads, Kind.COUNT, "H - 1 centred, H otherwise", source="review, section 6: J 1 = 0")
def effective_rank_ceiling(inputs: Heads) -> int:
    """Largest effective rank of H head maps; centring removes one direction."""
    return inputs.n_heads - inputs.centred


@quantity(Heads, Kind.RATIO, "(H - 1) / H centred, 1 otherwise", source="review, section 6")
def effective_rank_ceiling_share(inputs: Heads) -> Fraction:
    """The ceiling as a share of H."""
    return Fraction(inputs.n_heads - inputs.centred, inputs.n_heads)


_BPB = "review of arXiv:2601.11471v3, section 5"
# The only irrational input: ln 2 to 50 digits, far beyond any print.
LN_2 = Fraction(Decimal(2).ln(Context(prec=50)))


def _divided(above: Fraction, below: Fraction, what: str) -> Fraction:
    if not below:
        raise SpecError(f"{what} is zero")
    return above / below


def _of(values: Any) -> list[Fraction]:
    return [number.value for number in values]


@quantity(Values, Kind.NUMBER, "sum x_i", monotone=True)
def total(inputs: Values) -> Fraction:
    """Sum of the values."""
    return sum(_of(inputs.values), start=Fraction(0))


@quantity(Values, Kind.NUMBER, "product x_i", monotone=True)
def product(inputs: Values) -> Fraction:
    """Product of the values."""
    result = Fraction(1)
    for value in _of(inputs.values):
        result *= value
    return result


@quantity(Values, Kind.NUMBER, "sum x_i / n", monotone=True)
def mean(inputs: Values) -> Fraction:
    """Arithmetic mean of the values."""
    return total(inputs) / len(inputs.values)


@quantity(Values, Kind.NUMBER, "min x_i", monotone=True)
def smallest(inputs: Values) -> Fraction:
    """The smallest value."""
    return min(_of(inputs.values))


@quantity(Values, Kind.NUMBER, "max x_i", monotone=True)
def largest(inputs: Values) -> Fraction:
    """The largest value."""
    return max(_of(inputs.values))


@quantity(Two, Kind.NUMBER, "x - y", monotone=True)
def difference(inputs: Two) -> Fraction:
    """Value minus reference."""
    return Fraction(inputs.value.value - inputs.reference.value)


@quantity(Two, Kind.RATIO, "(x - y) / y", monotone=True)
def relative_difference(inputs: Two) -> Fraction:
    """Value minus reference, over the reference."""
    return _divided(difference(inputs), inputs.reference.value, "reference")


@quantity(Two, Kind.RATIO, "(y - x) / y", monotone=True)
def relative_decrease(inputs: Two) -> Fraction:
    """How far the value lies below the reference, over the reference."""
    return -relative_difference(inputs)


@quantity(Two, Kind.RATIO, "x / y", monotone=True)
def ratio(inputs: Two) -> Fraction:
    """Value over reference."""
    return _divided(inputs.value.value, inputs.reference.value, "reference")


@quantity(Pairs, Kind.NUMBER, "sum x_i y_i", monotone=True)
def dot_product(inputs: Pairs) -> Fraction:
    """Dot product; also one coordinate of a matrix product, or a weighted sum."""
    pairs = zip(_of(inputs.left), _of(inputs.right), strict=True)
    return sum((x * y for x, y in pairs), start=Fraction(0))


@quantity(Pairs, Kind.RATIO, "cov(x, y)^2 / (var x var y)")
def r_squared(inputs: Pairs) -> Fraction:
    """Share of variance that a straight line explains."""
    left, right = _of(inputs.left), _of(inputs.right)
    x_mean, y_mean = sum(left) / len(left), sum(right) / len(right)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(left, right, strict=True))
    spread = sum((x - x_mean) ** 2 for x in left) * sum((y - y_mean) ** 2 for y in right)
    return _divided(Fraction(covariance) ** 2, Fraction(spread), "the spread of a list")


@quantity(Entropy, Kind.RATIO, "CE / (bytes per token x ln 2)", source=_BPB, monotone=True)
def bits_per_byte(inputs: Entropy) -> Fraction:
    """Bits per byte of a cross-entropy in nats per token."""
    below = inputs.bytes_per_token.value * LN_2
    return _divided(inputs.cross_entropy.value, below, "bytes_per_token")


@quantity(EntropyByReference, Kind.RATIO, "BPB_ref CE / CE_ref", source=_BPB, monotone=True)
def bits_per_byte_by_reference(inputs: EntropyByReference) -> Fraction:
    """Bits per byte on a text whose bytes per token follow from another model's two losses."""
    above = inputs.reference_bits_per_byte.value * inputs.cross_entropy.value
    return _divided(above, inputs.reference_cross_entropy.value, "reference_cross_entropy")


@quantity(Steps, Kind.COUNT, "tokens / tokens per step")
def training_steps(inputs: Steps) -> Fraction:
    """Optimiser steps of a run; ``batch_tokens`` is over all GPUs."""
    return Fraction(inputs.training_tokens, inputs.batch_tokens)


@quantity(
    Training, Kind.COUNT, "6 N D (1 + change)", source="Kaplan et al. 2020, arXiv:2001.08361",
    monotone=True,
)  # fmt: skip
def training_flops(inputs: Training) -> Fraction:
    """FLOPs of a training run, forward and backward."""
    forward_and_backward = 6 * inputs.parameters.value * inputs.training_tokens
    return Fraction(forward_and_backward * (1 + inputs.change.value))


@quantity(
    ComputeSaved, Kind.RATIO, "1 - (1 - s)(1 + own change) / (1 + reference change)", monotone=True
)
def compute_saving(inputs: ComputeSaved) -> Fraction:
    """Share of training FLOPs saved to a target, each side at its own FLOPs per token."""
    own = (1 - inputs.step_saving.value) * (1 + inputs.change.value)
    return 1 - _divided(own, 1 + inputs.reference_change.value, "reference cost per token")


__all__ = ["QUANTITIES", "Quantity", "quantity", "quantity_named"]
