"""The recurrent part of a layer of a config.json: the state that it keeps, and its weights.

Every kind gives ``LayerGroup`` keys: state, update, weights. A short convolution of kernel k keeps
k - 1 columns. Letters below: d model width, H heads, k kernel, N state width, G groups.
"""

from __future__ import annotations

from typing import Any

from lrkv_plan.errors import shown
from lrkv_plan.huggingface.fields import MAX_HEADS, MAX_WIDTH, Fields
from lrkv_plan.huggingface.model_types import MODEL_TYPES

_RECURRENT = ("linear", "mamba", "parallel", "conv", "lru", "rwkv")
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STATE_DTYPE_KEYS = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
_MAMBA1 = ("mamba", "falcon_mamba")

Row = dict[str, Any]


def recurrent_of(fields: Fields, mixer: str, hidden: int) -> Row:
    """``LayerGroup`` keys of one recurrent layer; empty for mixers that keep no state.

    Raises
    ------
    SpecError
        If a head count, width or kernel of the recurrent layer is missing.
    """
    if mixer not in _RECURRENT:
        return {}
    name = (fields.text("model_type") or "").removesuffix("_text")
    found = _kind(fields, mixer, name, hidden)
    if name in MODEL_TYPES:
        return found
    fields.assume(
        f"model_type {shown(name)} is not known here: its {mixer} layers are taken to hold "
        "the state that their keys suggest"
    )
    return {"state": found["state"]}


def _kind(fields: Fields, mixer: str, name: str, hidden: int) -> Row:
    if mixer == "lru":
        return _gated_lru(fields, hidden)
    if mixer == "rwkv":
        return _rwkv(fields, hidden)
    if name == "zamba2":
        return _zamba2(fields, hidden, is_hybrid=mixer == "parallel")
    if mixer == "conv":
        return _short_convolution(fields, hidden)
    if mixer == "linear":
        return _linear(fields, name, hidden)
    if name in _MAMBA1:
        return _only_mamba1(fields, hidden)
    if name == "plamo2":
        return _plamo2(fields, hidden)
    return _mamba1(fields, hidden) if fields.has("mamba_dt_rank") else _mamba2(fields, name, hidden)


def _linear(fields: Fields, name: str, hidden: int) -> Row:
    """Kimi delta attention, lightning attention, else a gated delta net."""
    inner = fields.part("linear_attn_config")
    if inner is not None:
        keys = ("num_heads", "head_dim", "short_conv_kernel_size")
        return _delta_attention(fields, inner, keys, hidden)
    if name in ("glm5_next", "kimi_linear", "bailing_hybrid"):
        keys = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
        return _delta_attention(fields, fields, keys, hidden)
    if name in ("minimax", "minimax_text_01"):
        return _lightning(fields, _state_bytes(fields), hidden)
    if name == "bailing_moe_linear":
        fields.assume("recurrent state: kept in float32, which the file does not state")
        qk_norm = fields.flag("use_qk_norm", default=True)
        return _lightning(fields, _STATE_BYTES["float32"], hidden, qk_norm=qk_norm)
    return _gated_delta_net(fields, hidden)


def _tensor(name: str, copies: int, scalars: int, scalar_bytes: int) -> Row:
    """One state tensor of ``copies`` times ``scalars``."""
    return {
        "name": name, "copies": copies, "bytes_per_copy": scalars * scalar_bytes,
        "scalar_bytes": scalar_bytes,
    }  # fmt: skip


def _columns(fields: Fields, kernel: int, *rows: tuple[str, int, int]) -> tuple[Row, ...]:
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


def _matrix(name: str, rows: int, cols: int, units: int | None, **more: Any) -> Row:
    """A matrix that reads the hidden state unless ``reads`` says otherwise."""
    return {"name": name, "rows": rows, "cols": cols, "units": units, "reads": "hidden", **more}


def _vector(name: str, rows: int, units: int | None) -> Row:
    return {"name": name, "rows": rows, "units": units}


def _kernel(name: str, channels: int, kernel: int, units: int) -> Row:
    """The weights of a depthwise convolution, which its own kernel reads."""
    return {"name": name, "rows": channels, "cols": kernel, "units": units, "plain": True}


def _output(rows: int, hidden: int, units: int) -> Row:
    return _matrix("output", rows, hidden, units, reads="heads")


def _present(*rows: Row | bool) -> tuple[Row, ...]:
    """The rows that are there: ``condition and row`` leaves one out."""
    return tuple(row for row in rows if isinstance(row, dict))


def _gated_delta_net(fields: Fields, hidden: int) -> Row:
    """Qwen3-Next, Qwen3.5: one key x value matrix per value head, and columns of q, k and v.

    Weights, with K and V the scalars of all key and value heads: d (2 K + 2 V) + 2 d H_v +
    k (2 K + V) + 2 H_v + d_v + V d.
    """
    key_heads = fields.needed("linear_num_key_heads", most=MAX_HEADS)
    value_heads = fields.needed("linear_num_value_heads", most=MAX_HEADS)
    key_dim = fields.needed("linear_key_head_dim", most=MAX_WIDTH)
    value_dim = fields.needed("linear_value_head_dim", most=MAX_WIDTH)
    kernel = fields.needed("linear_conv_kernel_dim", most=MAX_WIDTH, least=2)
    keys, values = key_heads * key_dim, value_heads * value_dim
    return {
        "state": (
            _tensor("recurrent", value_heads, key_dim * value_dim, _state_bytes(fields)),
            *_columns(
                fields,
                kernel,
                ("conv_key_query", key_heads, 2 * key_dim),
                ("conv_value", value_heads, value_dim),
            ),
        ),
        "update": "gated_delta",
        "weights": (
            _matrix("query_key_value_gate", hidden, 2 * keys + 2 * values, key_heads),
            _matrix("beta_decay", hidden, 2 * value_heads, value_heads, plain=True),
            _kernel("conv", 2 * keys + values, kernel, key_heads),
            _vector("decay_bias", 2 * value_heads, value_heads),
            _vector("norm", value_dim, None),
            _output(values, hidden, value_heads),
        ),
    }


def _delta_attention(fields: Fields, inner: Fields, keys: tuple[str, str, str], hidden: int) -> Row:
    """Kimi delta attention: a head_dim x head_dim matrix per head, and columns of q, k and v.

    Weights, with P = H h: 3 d P + 3 P k + H + (d h + h P) + P + d H + (d h + h P) + h + P d; a gate
    of full rank (Kimi K3) has d P instead of the last d h + h P, and Ling 3's decay too.
    """
    heads = inner.needed(keys[0], most=MAX_HEADS)
    head_dim = inner.needed(keys[1], most=MAX_WIDTH)
    kernel = inner.needed(keys[2], most=MAX_WIDTH, least=2)
    inner.assume("recurrent state: kept in float32, which the file does not state")
    columns = [(f"conv_{part}", heads, head_dim) for part in ("query", "key", "value")]
    width = heads * head_dim
    gates: tuple[Row, ...] = (
        _matrix("gate_down", hidden, head_dim, None),
        _matrix("gate_up", head_dim, width, heads, reads="gate latent"),
    )
    decay: tuple[Row, ...] = (
        _matrix("decay_down", hidden, head_dim, None, plain=True),
        _matrix("decay_up", head_dim, width, heads, reads="decay latent", plain=True),
    )
    is_full = fields.text("model_type") == "bailing_hybrid"
    if is_full:
        decay = (_matrix("decay", hidden, width, heads, plain=True),)
    if is_full or inner.flag("use_full_rank_gate"):
        gates = (_matrix("gate", hidden, width, heads),)
    return {
        "state": (
            _tensor("recurrent", heads, head_dim * head_dim, _STATE_BYTES["float32"]),
            *_columns(fields, kernel, *columns),
        ),
        "update": "kimi_delta",
        "weights": (
            _matrix("query_key_value", hidden, 3 * width, heads),
            _kernel("conv", 3 * width, kernel, heads),
            _matrix("beta", hidden, heads, heads, plain=True),
            *decay,
            _vector("decay_bias", heads + width, heads),
            *gates,
            _vector("norm", head_dim, None),
            _output(width, hidden, heads),
        ),
    }


def _lightning(fields: Fields, scalar_bytes: int, hidden: int, *, qk_norm: bool = False) -> Row:
    """MiniMax-Text-01, Ring-linear: a head_dim x head_dim matrix per query head.

    Weights, with P = H h: 3 d P, a gate d P, a norm P, an output P d, and norms of query and key.
    """
    heads = fields.needed("num_attention_heads", most=MAX_HEADS)
    head_dim = fields.needed("head_dim", most=MAX_WIDTH)
    width = heads * head_dim
    return {
        "state": (_tensor("recurrent", heads, head_dim * head_dim, scalar_bytes),),
        "update": "lightning",
        "weights": _present(
            _matrix("query_key_value", hidden, 3 * width, heads),
            _matrix("gate", hidden, width, heads),
            _vector("norm", width, heads),
            qk_norm and _vector("query_key_norm", 2 * head_dim, None),
            _output(width, hidden, heads),
        ),
    }


def _mamba2(fields: Fields, name: str, hidden: int) -> Row:
    """Mamba 2: head_dim x d_state per head; columns of x by head and of B and C by group.

    Weights, with I = H h and c = I + 2 G N: d (I + c + H), convolution c k and its bias c, 3 H, a
    gated norm I (Falcon-H1 has none unless it says so), and the output I d.
    """
    own = (("num_heads",), ("head_dim",), ("state_size",)) if name == "mamba2" else ((), (), ())
    heads = fields.needed(
        "mamba_num_heads", "mamba_n_heads", "n_mamba_heads", *own[0], most=MAX_HEADS
    )
    head_dim = _mamba_head_dim(fields, hidden, heads, own[1])
    d_state = fields.needed("ssm_state_size", "mamba_d_state", *own[2], most=MAX_WIDTH)
    groups = fields.needed("n_groups", "mamba_n_groups", "mamba_ngroups", most=MAX_HEADS)
    kernel = fields.needed("conv_kernel", "mamba_d_conv", most=MAX_WIDTH, least=2)
    state = (
        _tensor("ssm", heads, head_dim * d_state, _state_bytes(fields)),
        *_columns(fields, kernel, ("conv_x", heads, head_dim), ("conv_bc", groups, 2 * d_state)),
    )
    if groups == 1:
        state[-1]["sharding"] = "replicated"
    inner, shared = heads * head_dim, 2 * groups * d_state
    conv_bias, bias = _biases(fields)
    gated_norm = fields.flag("mamba_rms_norm", default=name != "falcon_h1")
    return {
        "state": state,
        "update": "mamba2",
        "weights": _present(
            _matrix("gate_x_step", hidden, 2 * inner + heads, heads),
            _matrix("b_c", hidden, shared, groups),
            bias and _vector("input_bias", 2 * inner + heads + shared, None),
            _kernel("conv_x", inner, kernel, heads),
            _kernel("conv_bc", shared, kernel, groups),
            conv_bias and _vector("conv_x_bias", inner, heads),
            conv_bias and _vector("conv_bc_bias", shared, groups),
            _vector("decay_skip_step", 3 * heads, heads),
            gated_norm and _vector("norm", inner, heads),
            _output(inner, hidden, heads),
            bias and _vector("output_bias", hidden, None),
        ),
    }


def _plamo2(fields: Fields, hidden: int) -> Row:
    """PLaMo-2: head width x d_state per head, and columns of x alone (vLLM, plamo2.py).

    Weights, with I = H h and a time step of R = max(64, d // 16): 2 d I + I k + I (R + 2 N) + R H +
    3 H + R + 2 N + I d.
    """
    heads = fields.needed("mamba_num_heads", most=MAX_HEADS)
    head_dim = fields.needed("hidden_size_per_head", most=MAX_WIDTH)
    d_state = fields.needed("mamba_d_state", most=MAX_WIDTH)
    kernel = fields.needed("mamba_d_conv", most=MAX_WIDTH, least=2)
    inner, step = heads * head_dim, max(64, hidden // 16)
    return {
        "state": (
            _tensor("ssm", heads, head_dim * d_state, _state_bytes(fields)),
            *_columns(fields, kernel, ("conv", heads, head_dim)),
        ),
        "update": "mamba2",
        "weights": (
            _matrix("gate_x", hidden, 2 * inner, heads),
            _kernel("conv", inner, kernel, heads),
            _matrix("b_c_step", inner, step + 2 * d_state, heads, reads="channels"),
            _matrix("step_up", step, heads, heads, reads="time step"),
            _vector("decay_skip_step", 3 * heads, heads),
            _vector("step_b_c_norm", step + 2 * d_state, None),
            _output(inner, hidden, heads),
        ),
    }


def _biases(fields: Fields) -> tuple[bool, bool]:
    """Whether the convolution and the projections have biases, under the types' spellings."""
    conv_key = "mamba_conv_bias" if fields.has("mamba_conv_bias") else "use_conv_bias"
    projected = [fields.flag(key) for key in ("mamba_proj_bias", "use_bias")]
    return fields.flag(conv_key, default=True), any(projected)


def _mamba_head_dim(fields: Fields, hidden: int, heads: int, own: tuple[str, ...]) -> int:
    if fields.value("mamba_d_head") != "auto":
        return fields.needed(
            "mamba_head_dim", "mamba_d_head", "mamba_headdim", *own, most=MAX_WIDTH
        )
    inner = fields.needed("mamba_expand", most=MAX_WIDTH) * hidden
    if inner % heads:
        raise fields.error("mamba_d_head", f"{heads} heads do not divide {inner}")
    return inner // heads


def _mamba1(fields: Fields, hidden: int) -> Row:
    """Mamba 1 (Jamba): d_state scalars and conv columns for each of expand x hidden channels."""
    channels = fields.needed("mamba_expand", most=MAX_WIDTH) * hidden
    d_state = fields.needed("mamba_d_state", most=MAX_WIDTH)
    kernel = fields.needed("mamba_d_conv", most=MAX_WIDTH, least=2)
    rank = _step_rank(fields, "mamba_dt_rank", hidden)
    found = _channels(fields, hidden, channels, d_state, kernel, rank)
    norm = _vector("step_b_c_norm", rank + 2 * d_state, None)
    return {**found, "weights": (*found["weights"], norm)}


def _only_mamba1(fields: Fields, hidden: int) -> Row:
    """Mamba, FalconMamba: a stated intermediate_size counts, else expand x hidden_size.

    State N I and columns (k - 1) I with I channels: 48 layers of Mamba-1.4B in float32 hold
    48 x 4,096 x (16 + 3) x 4 bytes = 14.25 MiB, as llama.cpp prints.
    """
    channels = fields.integer("intermediate_size", most=MAX_WIDTH)
    if channels is None:
        channels = fields.needed("expand", most=MAX_WIDTH) * hidden
    d_state = fields.needed("state_size", most=MAX_WIDTH)
    kernel = fields.needed("conv_kernel", most=MAX_WIDTH, least=2)
    rank = _step_rank(fields, "time_step_rank", hidden)
    return _channels(fields, hidden, channels, d_state, kernel, rank)


def _step_rank(fields: Fields, key: str, hidden: int) -> int:
    """The width of the time step; "auto" and absent are ceil(hidden / 16)."""
    if fields.value(key) in (None, "auto"):
        return -(-hidden // 16)
    return fields.needed(key, most=MAX_WIDTH)


def _channels(
    fields: Fields, hidden: int, channels: int, d_state: int, kernel: int, rank: int
) -> Row:
    """State and weights of Mamba 1 with I channels and a time step of rank R.

    Weights: 2 d I + I k + I + I (R + 2 N) + R I + I + I N + I + I d.
    """
    conv_bias, bias = _biases(fields)
    return {
        "state": (
            _tensor("ssm", channels, d_state, _state_bytes(fields)),
            *_columns(fields, kernel, ("conv", channels, 1)),
        ),
        "update": "mamba1",
        "weights": _present(
            _matrix("x_gate", hidden, 2 * channels, channels),
            bias and _vector("input_bias", 2 * channels, channels),
            _kernel("conv", channels, kernel, channels),
            conv_bias and _vector("conv_bias", channels, channels),
            _matrix("step_b_c", channels, rank + 2 * d_state, channels, reads="channels"),
            _matrix("step_up", rank, channels, channels, reads="time step"),
            _vector("step_bias", channels, channels),
            _kernel("decay", channels, d_state, channels),
            _vector("skip", channels, channels),
            _output(channels, hidden, channels),
            bias and _vector("output_bias", hidden, None),
        ),
    }


def _short_convolution(fields: Fields, hidden: int) -> Row:
    """LFM2: columns of the hidden state. Weights: 3 d d + k d + d d, with a bias of each or none.

    Without a stated kernel the code takes 3.
    """
    kernel = fields.integer("conv_L_cache", most=MAX_WIDTH, least=2)
    if kernel is None:
        kernel = 3
        fields.assume("conv_L_cache: absent, 3 in the code")
    bias = fields.flag("conv_bias")
    return {
        "state": _columns(fields, kernel, ("conv", hidden, 1)),
        "update": "short_conv",
        "weights": _present(
            _matrix("b_c_x", hidden, 3 * hidden, hidden),
            _kernel("conv", hidden, kernel, hidden),
            bias and _vector("biases", 5 * hidden, None),
            _output(hidden, hidden, hidden),
        ),
    }


def _gated_lru(fields: Fields, hidden: int) -> Row:
    """RecurrentGemma's RG-LRU: one float32 scalar and the conv columns for each of lru_width.

    Weights, with W the width: 2 (d W + W) + W k + W + 2 (H (W / H)^2 + W) + W + W d + d.
    """
    width = fields.integer("lru_width", most=MAX_WIDTH) or hidden
    kernel = fields.needed("conv1d_width", most=MAX_WIDTH, least=2)
    heads = fields.needed("num_attention_heads", most=MAX_HEADS)
    if width % heads:
        raise fields.error("lru_width", f"{heads} heads do not divide {width}")
    block = width // heads
    gates = _matrix("gates", block, block, heads, copies=2 * heads, reads="channels of a head")
    return {
        "state": (
            _tensor("recurrent", width, 1, _STATE_BYTES["float32"]),
            *_columns(fields, kernel, ("conv", width, 1)),
        ),
        "update": "gated_lru",
        "weights": (
            _matrix("x_gate", hidden, 2 * width, heads),
            _kernel("conv", width, kernel, heads),
            gates,
            _vector("biases", 6 * width, heads),  # x, gate, conv, two gates; and the decay
            _output(width, hidden, heads),
            _vector("output_bias", hidden, None),
        ),
    }


def _zamba2(fields: Fields, hidden: int, *, is_hybrid: bool) -> Row:
    """Zamba2: Mamba 2 in every layer; those with the shared block map its output, d d.

    They adapt it too: r (d + 2 i) for its feed-forward, and 3 (2 d r + r 2 d) for its queries, keys
    and values where ``use_shared_attention_adapter`` says so.
    """
    found = _mamba2(fields, "zamba2", hidden)
    if not is_hybrid:
        return found
    rank = fields.needed("adapter_rank", most=MAX_WIDTH)
    inner = fields.needed("intermediate_size", most=MAX_WIDTH)
    attends = fields.flag("use_shared_attention_adapter")
    more = _present(
        _matrix("shared_output", hidden, hidden, None),
        _matrix("adapter_down", hidden, rank, None),
        _matrix("adapter_up", rank, 2 * inner, None, reads="adapter"),
        attends and _matrix("attention_adapters", 2 * hidden, 6 * rank, None, reads="two streams"),
    )
    return {**found, "weights": (*found["weights"], *more)}


def _rwkv(fields: Fields, hidden: int) -> Row:
    """RWKV-4: two shifted rows, and numerator, denominator and maximum in float32.

    With a the attention's width and i the feed-forward's: 4 d a + 2 a + 3 d, and 2 d i + d d + 2 d.
    """
    width = fields.integer("attention_hidden_size", most=MAX_WIDTH) or hidden
    inner = fields.integer("intermediate_size", most=MAX_WIDTH) or 4 * hidden
    shifted = 4 if fields.text("torch_dtype", "dtype") == "float32" else 2
    return {
        "state": (
            _tensor("shifted_rows", 2, hidden, shifted),
            _tensor("recurrent", 3, width, _STATE_BYTES["float32"]),
        ),
        "update": "rwkv",
        "weights": (
            _matrix("key_value_receptance", hidden, 3 * width, None),
            _vector("decay_first", 2 * width, None),
            _vector("mixes", 5 * hidden, None),
            _output(width, hidden, 1),
            _matrix("feed_forward_key", hidden, inner, None),
            _matrix("feed_forward_receptance", hidden, hidden, None),
            _matrix("feed_forward_value", inner, hidden, None, reads="channels"),
        ),
    }
