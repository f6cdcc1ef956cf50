"""State of recurrent layers: bytes per layer and sequence, by the head they are dealt out by.

A short convolution of kernel k keeps k - 1 columns, 2 bytes a scalar unless the file states a
float32 model; the recurrent state has the format that the file states, or the one that is assumed.
"""

from __future__ import annotations

from typing import Any

from lrkv_plan.errors import shown
from lrkv_plan.specs.huggingface.fields import MAX_HEADS, MAX_WIDTH, Fields
from lrkv_plan.specs.huggingface.model_types import MODEL_TYPES

_RECURRENT = ("linear", "mamba", "parallel", "conv", "lru")
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STATE_DTYPE_KEYS = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def state_of(fields: Fields, mixer: str, hidden: int) -> tuple[dict[str, Any], ...]:
    """``FixedTensor`` fields of one recurrent layer; empty for mixers that keep no state.

    Raises
    ------
    SpecError
        If a head count, width or kernel of the recurrent layer is missing.
    """
    if mixer not in _RECURRENT:
        return ()
    name = (fields.text("model_type") or "").removesuffix("_text")
    if name not in MODEL_TYPES:
        fields.assume(
            f"model_type {shown(name)} is not known here: its {mixer} layers are taken to hold "
            "the state that their keys suggest"
        )
    if mixer == "lru":
        return _gated_lru(fields, hidden)
    if mixer in ("mamba", "parallel"):
        return _mamba(fields, name, hidden)
    if mixer == "conv":
        kernel = fields.needed("conv_L_cache", most=MAX_WIDTH, least=2)
        return _columns(fields, kernel, ("conv", hidden, 1))
    return _linear(fields, name)


def _mamba(fields: Fields, name: str, hidden: int) -> tuple[dict[str, Any], ...]:
    """Mamba 1 or 2, as the type or the keys tell."""
    if name in ("mamba", "falcon_mamba"):
        return _only_mamba1(fields, hidden)
    return _mamba1(fields, hidden) if fields.has("mamba_dt_rank") else _mamba2(fields, hidden)


def _linear(fields: Fields, name: str) -> tuple[dict[str, Any], ...]:
    """Kimi delta attention, lightning attention, else a gated delta net."""
    inner = fields.part("linear_attn_config")
    if inner is not None:
        return _delta_attention(fields, inner, "num_heads", "head_dim", "short_conv_kernel_size")
    if name in ("glm5_next", "kimi_linear"):
        keys = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
        return _delta_attention(fields, fields, *keys)
    if name in ("minimax", "minimax_text_01"):
        return _lightning(fields, _state_bytes(fields))
    if name == "bailing_moe_linear":
        fields.assume("recurrent state: kept in float32, which the file does not state")
        return _lightning(fields, _STATE_BYTES["float32"])
    return _gated_delta_net(fields)


def _tensor(name: str, copies: int, scalars: int, scalar_bytes: int) -> dict[str, Any]:
    """One state tensor of ``copies`` times ``scalars``."""
    return {
        "name": name, "copies": copies, "bytes_per_copy": scalars * scalar_bytes,
        "scalar_bytes": scalar_bytes,
    }  # fmt: skip


def _columns(
    fields: Fields, kernel: int, *rows: tuple[str, int, int]
) -> tuple[dict[str, Any], ...]:
    """Convolution columns: (name, copies, scalars per copy and column); a draft token adds one."""
    size = 4 if fields.text("torch_dtype", "dtype") == "float32" else 2
    return tuple(
        {**_tensor(n, c, (kernel - 1) * width, size), "bytes_per_draft_token": width * size}
        for n, c, width in rows
    )


def _state_bytes(fields: Fields) -> int:
    """Bytes per scalar of the recurrent state."""
    stated = fields.text(*_STATE_DTYPE_KEYS)
    dtype = stated if stated is not None else fields.text("torch_dtype", "dtype")
    if stated is not None and dtype not in _STATE_BYTES:
        key = next(key for key in _STATE_DTYPE_KEYS if fields.has(key))
        raise fields.error(key, f"must be one of {', '.join(_STATE_BYTES)}")
    size = _STATE_BYTES.get(dtype or "", 2)
    if stated is None:
        fields.assume(f"recurrent state: its format is not stated, {size} bytes per scalar assumed")
    return size


def _gated_delta_net(fields: Fields) -> tuple[dict[str, Any], ...]:
    """Qwen3-Next, Qwen3.5: one key x value matrix per value head, and columns of q, k and v."""
    key_heads = fields.needed("linear_num_key_heads", most=MAX_HEADS)
    value_heads = fields.needed("linear_num_value_heads", most=MAX_HEADS)
    key_dim = fields.needed("linear_key_head_dim", most=MAX_WIDTH)
    value_dim = fields.needed("linear_value_head_dim", most=MAX_WIDTH)
    kernel = fields.needed("linear_conv_kernel_dim", most=MAX_WIDTH, least=2)
    return (
        _tensor("recurrent", value_heads, key_dim * value_dim, _state_bytes(fields)),
        *_columns(
            fields,
            kernel,
            ("conv_key_query", key_heads, 2 * key_dim),
            ("conv_value", value_heads, value_dim),
        ),
    )


def _delta_attention(
    fields: Fields, inner: Fields, heads_key: str, dim_key: str, kernel_key: str
) -> tuple[dict[str, Any], ...]:
    """Kimi delta attention: a head_dim x head_dim matrix per head, and columns of q, k and v."""
    heads = inner.needed(heads_key, most=MAX_HEADS)
    head_dim = inner.needed(dim_key, most=MAX_WIDTH)
    kernel = inner.needed(kernel_key, most=MAX_WIDTH, least=2)
    inner.assume("recurrent state: kept in float32, which the file does not state")
    columns = [(f"conv_{part}", heads, head_dim) for part in ("query", "key", "value")]
    return (
        _tensor("recurrent", heads, head_dim * head_dim, _STATE_BYTES["float32"]),
        *_columns(fields, kernel, *columns),
    )


def _lightning(fields: Fields, scalar_bytes: int) -> tuple[dict[str, Any], ...]:
    """MiniMax-Text-01, Ring-linear: a head_dim x head_dim matrix per query head."""
    heads = fields.needed("num_attention_heads", most=MAX_HEADS)
    head_dim = fields.needed("head_dim", most=MAX_WIDTH)
    return (_tensor("recurrent", heads, head_dim * head_dim, scalar_bytes),)


def _mamba2(fields: Fields, hidden: int) -> tuple[dict[str, Any], ...]:
    """Mamba 2: head_dim x d_state per head; columns of x by head and of B and C by group."""
    own = (("num_heads",), ("head_dim",), ("state_size",)) if _is_mamba2(fields) else ((), (), ())
    heads = fields.needed("mamba_num_heads", "mamba_n_heads", *own[0], most=MAX_HEADS)
    head_dim = _mamba_head_dim(fields, hidden, heads, own[1])
    d_state = fields.needed("ssm_state_size", "mamba_d_state", *own[2], most=MAX_WIDTH)
    groups = fields.needed("n_groups", "mamba_n_groups", most=MAX_HEADS)
    kernel = fields.needed("conv_kernel", "mamba_d_conv", most=MAX_WIDTH, least=2)
    by_head = (
        _tensor("ssm", heads, head_dim * d_state, _state_bytes(fields)),
        *_columns(fields, kernel, ("conv_x", heads, head_dim), ("conv_bc", groups, 2 * d_state)),
    )
    if groups == 1:
        by_head[-1]["sharding"] = "replicated"
    return by_head


def _is_mamba2(fields: Fields) -> bool:
    """Whether the whole model is Mamba-2, which spells its keys without a prefix."""
    return fields.text("model_type") == "mamba2"


def _mamba_head_dim(fields: Fields, hidden: int, heads: int, own: tuple[str, ...]) -> int:
    if fields.value("mamba_d_head") != "auto":
        return fields.needed("mamba_head_dim", "mamba_d_head", *own, most=MAX_WIDTH)
    inner = fields.needed("mamba_expand", most=MAX_WIDTH) * hidden
    if inner % heads:
        raise fields.error("mamba_d_head", f"{heads} heads do not divide {inner}")
    return inner // heads


def _mamba1(fields: Fields, hidden: int) -> tuple[dict[str, Any], ...]:
    """Mamba 1 (Jamba): d_state scalars and conv columns for each of expand x hidden channels."""
    channels = fields.needed("mamba_expand", most=MAX_WIDTH) * hidden
    d_state = fields.needed("mamba_d_state", most=MAX_WIDTH)
    kernel = fields.needed("mamba_d_conv", most=MAX_WIDTH, least=2)
    return (
        _tensor("ssm", channels, d_state, _state_bytes(fields)),
        *_columns(fields, kernel, ("conv", channels, 1)),
    )


def _only_mamba1(fields: Fields, hidden: int) -> tuple[dict[str, Any], ...]:
    """Mamba, FalconMamba: a stated intermediate_size counts, else expand x hidden_size.

    State N I and columns (k - 1) I with I channels: 48 layers of Mamba-1.4B in float32 hold
    48 x 4,096 x (16 + 3) x 4 bytes = 14.25 MiB, as llama.cpp prints.
    """
    channels = fields.integer("intermediate_size", most=MAX_WIDTH)
    if channels is None:
        channels = fields.needed("expand", most=MAX_WIDTH) * hidden
    d_state = fields.needed("state_size", most=MAX_WIDTH)
    kernel = fields.needed("conv_kernel", most=MAX_WIDTH, least=2)
    return (
        _tensor("ssm", channels, d_state, _state_bytes(fields)),
        *_columns(fields, kernel, ("conv", channels, 1)),
    )


def _gated_lru(fields: Fields, hidden: int) -> tuple[dict[str, Any], ...]:
    """RecurrentGemma's RG-LRU: one float32 scalar and the conv columns for each of lru_width."""
    width = fields.integer("lru_width", most=MAX_WIDTH) or hidden
    kernel = fields.needed("conv1d_width", most=MAX_WIDTH, least=2)
    return (
        _tensor("recurrent", width, 1, _STATE_BYTES["float32"]),
        *_columns(fields, kernel, ("conv", width, 1)),
    )
