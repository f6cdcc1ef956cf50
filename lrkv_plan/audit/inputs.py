"""What a claim's ``inputs`` may hold: one class per kind of question, all keys known."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from typing_extensions import Self

from lrkv_plan.audit.printed import read_number
from lrkv_plan.dtypes import storage_format
from lrkv_plan.errors import SpecError
from lrkv_plan.specs.base import (
    Flag,
    Frozen,
    HeadCount,
    LayerCount,
    Name,
    TokenCount,
    Width,
    WidthOrZero,
)

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
