"""State of recurrent layers: bytes per layer and sequence, by the head they are dealt out by.

A short convolution of kernel k keeps k - 1 columns. Convolution columns are counted as 2-byte
scalars; the recurrent state has the format that the file states, or the one that is assumed.
"""

from __future__ import annotations

from typing import Any

from lrkv_plan.specs.huggingface.fields import MAX_HEADS, MAX_WIDTH, Fields

_CONV_BYTES = 2
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STATE_DTYPE_KEYS = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def state_of(fields: Fields, mixer: str, hidden: int) -> tuple[dict[str, Any], ...]:
    """``FixedTensor`` fields of one recurrent layer; empty for mixers that keep no state.

    Raises
    ------
    SpecError
        If a head count, width or kernel of the recurrent layer is missing.
    """
    if mixer in ("mamba", "parallel"):
        if fields.has("mamba_dt_rank"):
            return _mamba1(fields, hidden)
        return _mamba2(fields, hidden)
    if mixer == "conv":
        kernel = fields.needed("conv_L_cache", most=MAX_WIDTH, least=2)
        return _columns(kernel, ("conv", hidden, 1))
    if mixer != "linear":
        return ()
    inner = fields.part("linear_attn_config")
    if inner is not None:
        return _delta_attention(inner)
    if fields.text("model_type") in ("minimax", "minimax_text_01"):
        return _lightning(fields)
    return _gated_delta_net(fields)


def _tensors(*rows: tuple[str, int, int]) -> tuple[dict[str, Any], ...]:
    return tuple({"name": n, "copies": c, "bytes_per_copy": b} for n, c, b in rows)


def _columns(kernel: int, *rows: tuple[str, int, int]) -> tuple[dict[str, Any], ...]:
    """Convolution columns: (name, copies, scalars per copy and column); a draft token adds one."""
    tensors = _tensors(*((n, c, (kernel - 1) * width * _CONV_BYTES) for n, c, width in rows))
    for tensor, (_, _, width) in zip(tensors, rows, strict=True):
        tensor["bytes_per_draft_token"] = width * _CONV_BYTES
    return tensors


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
        *_tensors(("recurrent", value_heads, key_dim * value_dim * _state_bytes(fields))),
        *_columns(
            kernel,
            ("conv_key_query", key_heads, 2 * key_dim),
            ("conv_value", value_heads, value_dim),
        ),
    )


def _delta_attention(inner: Fields) -> tuple[dict[str, Any], ...]:
    """Kimi delta attention: a head_dim x head_dim matrix per head, and columns of q, k and v."""
    heads = inner.needed("num_heads", most=MAX_HEADS)
    head_dim = inner.needed("head_dim", most=MAX_WIDTH)
    kernel = inner.needed("short_conv_kernel_size", most=MAX_WIDTH, least=2)
    inner.assume("recurrent state: kept in float32, which the file does not state")
    columns = [(f"conv_{part}", heads, head_dim) for part in ("query", "key", "value")]
    return (
        *_tensors(("recurrent", heads, head_dim * head_dim * _STATE_BYTES["float32"])),
        *_columns(kernel, *columns),
    )


def _lightning(fields: Fields) -> tuple[dict[str, Any], ...]:
    """MiniMax-Text-01: a head_dim x head_dim matrix per head."""
    heads = fields.needed("num_attention_heads", most=MAX_HEADS)
    head_dim = fields.needed("head_dim", most=MAX_WIDTH)
    return _tensors(("recurrent", heads, head_dim * head_dim * _state_bytes(fields)))


def _mamba2(fields: Fields, hidden: int) -> tuple[dict[str, Any], ...]:
    """Mamba 2: head_dim x d_state per head; columns of x by head and of B and C by group."""
    heads = fields.needed("mamba_num_heads", "mamba_n_heads", most=MAX_HEADS)
    head_dim = _mamba_head_dim(fields, hidden, heads)
    d_state = fields.needed("ssm_state_size", "mamba_d_state", most=MAX_WIDTH)
    groups = fields.needed("n_groups", "mamba_n_groups", most=MAX_HEADS)
    kernel = fields.needed("conv_kernel", "mamba_d_conv", most=MAX_WIDTH, least=2)
    by_head = (
        *_tensors(("ssm", heads, head_dim * d_state * _state_bytes(fields))),
        *_columns(kernel, ("conv_x", heads, head_dim), ("conv_bc", groups, 2 * d_state)),
    )
    if groups == 1:
        by_head[-1]["sharding"] = "replicated"
    return by_head


def _mamba_head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if fields.data.get("mamba_d_head") != "auto":
        return fields.needed("mamba_head_dim", "mamba_d_head", most=MAX_WIDTH)
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
        *_tensors(("ssm", channels, d_state * _state_bytes(fields))),
        *_columns(kernel, ("conv", channels, 1)),
    )
