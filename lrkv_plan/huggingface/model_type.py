"""What a row of the table of model types may say.

A row holds what the published code of a ``model_type`` does where its config.json is silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lrkv_plan.huggingface.fields import Fields
from lrkv_plan.specs.model import Norms

Switch = bool | tuple[str, bool]
"""A fixed answer, or a flag of config.json and its default in the code."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Where a mixture-of-experts type states its widths.

    ``shared`` is the key of the shared block's width, or of the number of shared experts when
    ``shared_is_count``. Without one of ``placed_by`` it is unknown which layers are mixtures.
    """

    width: str = "moe_intermediate_size"
    shared: str | None = None
    shared_is_count: bool = False
    shared_gate: bool = False
    router_bias: Switch = False
    dense_beside: bool = False
    placed_by: tuple[str, ...] = ()
    part: str = ""  # the mapping that holds counts and width, if it is not the file itself
    norms: int = 0  # of a layer with experts beyond those of every layer
    scales: bool = False  # one scalar of each router input and each expert
    uncounted: str = ""  # weights of the mixture that the spec has no place for


@dataclass(frozen=True, kw_only=True)
class ModelType:
    """Defaults of one type; None and the empty string mean "not known here"."""

    head_dim_is_quotient: bool = False
    head_dim_key: str = ""  # where the type has a word of its own
    value_dim_is_quotient: bool = False  # of latent attention
    kv_heads_default_to_heads: bool = False
    multi_query_decides: bool = False
    must_state: tuple[str, ...] = ()
    qkv_bias: Switch = ("attention_bias", False)
    output_bias: Switch = ("attention_bias", False)
    output_gate: Switch = ("attn_output_gate", False)
    qk_norm: Switch = False
    wide_qk_norm: Switch = False  # one weight for each scalar of all heads
    sliding_kv_factor: int = 1  # KV heads of windowed layers over the others', if not stated
    sinks: Switch = False
    sliding_sinks: Switch = False  # of windowed layers alone
    shares_weights: bool = False  # its attention layers multiply the same matrices
    shared_row: bool = False  # one row is key and value of all heads, beside compressed ones
    head_gate: Switch = False  # a projection d x heads gates each head's output
    window: str = ""  # a name in layers.WINDOW_RULES
    pattern: str = ""  # a name in layer_patterns.PATTERNS, or only_mamba
    gated: bool | None = None
    feed_forward_bias: Switch = ("mlp_bias", False)
    dense_width: tuple[str, ...] = ("intermediate_size",)
    dense_width_divisor: int = 1  # the code divides the stated width
    dense_factor: int | None = None  # width / hidden_size when the width is absent
    experts: Experts | None = None
    norms: Norms | None = None
    four_norms_when: Switch = False  # a flag without which the row's second norms fall away
    one_norm_when: str = ""  # a flag that drops the norm before the feed-forward block
    tied: bool | None = None
    head_bias: Switch = False
    extra_positions: int | None = None  # learned positions beyond the maximum length
    default_positions: int | None = None  # the maximum length where the file is silent
    image_rows: int = 0  # of the embedding, beyond those of the head
    mtp_copies: int | None = None  # tables that a draft module stores again; None: not known
    mtp_is_dense: bool = False  # a draft layer's feed-forward, where others are mixtures
    mtp_has_window: bool = False  # a draft layer attends as windowed layers do
    mtp_norms: int = 3  # around what joins a draft layer to the model
    uncounted: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)  # what the code fills in
    published: Mapping[str, bool] = field(default_factory=dict)  # what every checkpoint states
    additions: tuple[str, ...] = ()  # names in additions.py


def switch(fields: Fields, rule: Switch) -> bool:
    """The answer of a rule: fixed, or a flag of the file with the code's default."""
    return rule if isinstance(rule, bool) else fields.flag(*rule)
