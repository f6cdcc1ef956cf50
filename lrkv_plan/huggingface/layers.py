"""Which mixer each layer has.

A mixer is named by one word: full, sliding, chunked, cross, linear, mamba, conv, lru, parallel
(attention and mamba side by side), csa and hca (windows beside compressed rows) or none. Lists in
the file win over the rule of the model type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lrkv_plan.errors import SpecError
from lrkv_plan.huggingface.fields import (
    LAYER_KEYS,
    MAX_LAYERS,
    MAX_TOKENS,
    Fields,
    is_whole,
)
from lrkv_plan.huggingface.model_type import ModelType


def every_nth_full(n: int, n_layers: int, otherwise: str) -> list[str]:
    """Every n-th layer full, the others ``otherwise``.

    Examples
    --------
    >>> every_nth_full(2, 5, "linear")
    ['linear', 'full', 'linear', 'full', 'linear']
    """
    return [otherwise if (i + 1) % n else "full" for i in range(n_layers)]


def _linear_groups(fields: Fields, n_layers: int) -> list[str]:
    """Ring- and Ling-linear: the last of each group is full, and so is what exceeds the groups."""
    size = fields.needed("layer_group_size", most=MAX_LAYERS)
    whole = n_layers // size * size
    return ["full" if (i + 1) % size == 0 or i >= whole else "linear" for i in range(n_layers)]


def _repeated_blocks(fields: Fields, n_layers: int) -> list[str]:
    """RecurrentGemma: the block types in turn; its attention has a window in every layer."""
    key = "block_types"
    stated = fields.items(key)
    if stated is None:
        raise fields.missing(key)
    if not 1 <= len(stated) <= MAX_LAYERS:
        raise fields.error(key, f"must have 1 to {MAX_LAYERS:,} entries")
    words = fields.choices(key, {"recurrent": "lru", "attention": "sliding"}, len(stated)) or []
    return [words[i % len(words)] for i in range(n_layers)]


def _window_flags(fields: Fields, n_layers: int) -> list[str]:
    """SmallThinker: 1 marks a layer with a window; without the list every layer is full."""
    flags = fields.choices("sliding_window_layout", {0: "full", 1: "sliding"}, n_layers)
    if flags is None:
        fields.assume("sliding_window_layout: absent, so every layer is full, as the code reads it")
        fields.settle("sliding_window_size")
    return flags or ["full"] * n_layers


def _global_between_windows(fields: Fields, n_layers: int) -> list[str]:
    """AFMoE: every n-th layer is global, the others have a window."""
    every = fields.needed("global_attn_every_n_layers", most=MAX_LAYERS)
    return every_nth_full(every, n_layers, "sliding")


def _expanded_types(fields: Fields, n_layers: int) -> list[str]:
    """GPT-Neo: pairs of a list of kinds and how often it is repeated."""
    key = "attention_types"
    fields.settle("attention_layers")
    pairs = fields.items(key)
    if pairs is None:
        raise fields.missing(key)
    words: list[object] = []
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list)):
            raise fields.error(key, "must be pairs of a list of kinds and a number")
        kinds, times = pair
        if not is_whole(times) or not 0 <= times <= n_layers or len(kinds) > n_layers:
            raise fields.error(key, f"must describe {n_layers} layers")
        words += kinds * times
        if len(words) > n_layers:
            raise fields.error(key, f"describes more than {n_layers} layers")
    expanded = Fields({key: words}, fields.path, fields.prefix)
    return expanded.choices(key, {"global": "full", "local": "sliding"}, n_layers) or []


def _full_between_convolutions(fields: Fields, n_layers: int) -> list[str]:
    """LFM2 without layer_types: the listed layers are full; without the list every layer is."""
    chosen = fields.indices("full_attn_idxs", n_layers)
    if chosen is None:
        fields.assume("full_attn_idxs: absent, so every layer is full, as the code reads it")
        return ["full"] * n_layers
    return ["full" if i in chosen else "conv" for i in range(n_layers)]


def _mamba_steps(fields: Fields, n_layers: int) -> list[str]:
    """PLaMo-2: the middle of every ``mamba_step`` layers attends, with a window unless listed."""
    if not fields.flag("mamba_enabled", default=True):
        attending = set(range(n_layers))
    else:
        step = fields.needed("mamba_step", most=MAX_LAYERS)
        attending = {i for i in range(n_layers) if i % step == step // 2}
        if n_layers <= step // 2:
            attending = {n_layers - 1}
    full = fields.indices("full_attention_idx", n_layers) or set()
    if fields.has("attention_window_size"):
        fields.assume("windows: as the model's own code has them; vLLM keeps every row")
    else:
        full = attending
    return [
        "mamba" if i not in attending else "full" if i in full else "sliding"
        for i in range(n_layers)
    ]


def _cross_attention(fields: Fields, n_layers: int) -> list[str]:
    """Mllama: the listed layers attend to the image and to nothing else."""
    key = "cross_attention_layers"
    chosen = fields.indices(key, n_layers)
    if chosen is None:
        raise fields.missing(key)
    return ["cross" if i in chosen else "full" for i in range(n_layers)]


def _compression(fields: Fields, n_layers: int) -> list[str]:
    """DeepSeek-V4: how many tokens a layer's compressed rows stand for; 0 is a window alone.

    Absent, the code has two layers of 128, then 128 and 4 in turn.
    """
    key = "compress_ratios"
    words = {0: "sliding", 4: "csa", 128: "hca"}
    if fields.has(key):
        return without_drafts(fields, key, n_layers).choices(key, words, n_layers) or []
    fields.assume(f"{key}: absent, 128 twice and then 128 and 4 in turn, as the code")
    return ["csa" if i > 2 and i % 2 else "hca" for i in range(n_layers)]


PATTERNS: dict[str, Callable[[Fields, int], list[str]]] = {
    "layer_group_size": _linear_groups,
    "block_types": _repeated_blocks,
    "sliding_window_layout": _window_flags,
    "global_attn_every_n_layers": _global_between_windows,
    "attention_types": _expanded_types,
    "full_attn_idxs": _full_between_convolutions,
    "cross_attention_layers": _cross_attention,
    "mamba_step": _mamba_steps,
    "compress_ratios": _compression,
}
"""By the name that a ``ModelType`` gives its pattern."""


class Layer(NamedTuple):
    """One block: its mixer, and which feed-forward it has ("by_rule", dense, experts, none).

    Without an index of its own a layer takes over another's choice of rows, or does not choose.
    """

    mixer: str
    block: str = "by_rule"
    reuses_cache: bool = False
    has_index: bool = True
    chooses: bool = True


_BLOCK_SPARSE = "minimax_m3_sparse"
_LAYER_TYPES = {
    "full_attention": "full", "attention": "full", "global_attention": "full",
    "sliding_attention": "sliding", "chunked_attention": "chunked",
    "linear_attention": "linear", "mamba": "mamba", "mamba2": "mamba", "conv": "conv",
    "deepseek_sparse_attention": "full", "indexed_attention": "full", _BLOCK_SPARSE: "full",
}  # fmt: skip
# Transformers 5 writes one word for every recurrent layer; its type says what it stands for.
_MAMBA_WORDS = {"linear_attention": "mamba"}
_WORDS_OF_TYPE = {
    "zamba2": {"hybrid": "parallel"},
    "deepseek_v4": {
        "compressed_sparse_attention": "csa", "heavily_compressed_attention": "hca",
    },
    "jamba": _MAMBA_WORDS, "bamba": _MAMBA_WORDS, "granitemoehybrid": _MAMBA_WORDS,
    "falcon_h1": {**_MAMBA_WORDS, "hybrid": "parallel"},
}  # fmt: skip
# Nemotron-H: every letter, or word in later files, is a block of its own.
_PATTERN_LETTERS = {
    "M": Layer("mamba", "none"), "*": Layer("full", "none"),
    "-": Layer("none", "dense"), "E": Layer("none", "experts"),
}  # fmt: skip
_PATTERN_WORDS = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-",
    "moe": "E",
}  # fmt: skip


def layers_of(fields: Fields, known: ModelType) -> list[Layer]:
    """One ``Layer`` per block of the file.

    Raises
    ------
    SpecError
        If a list has the wrong length or an unknown word, or windowed layers are not told apart.
    """
    if fields.text("model_type") == "nemotron_h":
        return _separate_blocks(fields)
    n_layers = fields.needed(*LAYER_KEYS, most=MAX_LAYERS)
    if known.pattern == "only_mamba":
        return _only_mamba(fields, n_layers)
    if known.pattern == "two_blocks":
        fields.assume(f"{2 * n_layers} blocks: each of {n_layers} layers attends twice")
        return [Layer("full", "experts"), Layer("full", "dense")] * n_layers
    if known.pattern == "only_rwkv":
        return [Layer("rwkv", "none")] * n_layers
    block = "none" if known.shares_weights else "by_rule"
    layers = [Layer(mixer, block) for mixer in _mixers(fields, known, n_layers)]
    layers = _with_shared_index(fields, layers)
    if known.gated is not None:
        layers = _with_dense_layers(fields, layers)
    return _with_reused_caches(fields, layers)


def _separate_blocks(fields: Fields) -> list[Layer]:
    """Nemotron-H: a text of letters, or a list of words that may stand for the layer count."""
    key = "hybrid_override_pattern"
    words = fields.items("layers_block_type")
    if words is not None and not fields.has(key):
        n_layers = fields.integer(*LAYER_KEYS, most=MAX_LAYERS) or min(len(words), MAX_LAYERS)
        letters = fields.choices("layers_block_type", _PATTERN_WORDS, n_layers) or []
        return [_PATTERN_LETTERS[letter] for letter in letters]
    pattern = fields.text(key)
    if pattern is None:
        raise SpecError(f"{fields.path}: {fields.prefix}{key} (or layers_block_type): is missing")
    n_layers = fields.needed(*LAYER_KEYS, most=MAX_LAYERS)
    unknown = set(pattern) - set(_PATTERN_LETTERS)
    if unknown:
        raise fields.error(key, f"letters must be among {' '.join(_PATTERN_LETTERS)}")
    if len(pattern) != n_layers:
        raise fields.error(key, f"has {len(pattern)} letters for {n_layers} layers")
    return [_PATTERN_LETTERS[letter] for letter in pattern]


def _only_mamba(fields: Fields, n_layers: int) -> list[Layer]:
    """Mamba, Mamba-2, FalconMamba: every block is a mixer without a feed-forward part."""
    if fields.value("attention_layers_idx"):
        raise fields.error("attention_layers_idx", "attention between Mamba layers is not modelled")
    return [Layer("mamba", "none")] * n_layers


def _with_shared_index(fields: Fields, layers: list[Layer]) -> list[Layer]:
    """GLM-5.2, GLM-5.3: layers that take over the choice of an earlier one keep no index keys."""
    has_index = _index_layers(fields, len(layers))
    if all(has_index):
        return layers
    fields.assume("layers whose index is shared keep no index keys")
    return [x._replace(has_index=own) for x, own in zip(layers, has_index, strict=True)]


def _with_dense_layers(fields: Fields, layers: list[Layer]) -> list[Layer]:
    """MiniMax-M3: some layers attend to everything and have no index."""
    inner = fields.part("sparse_attention_config")
    key = "sparse_attention_freq"
    words = fields.value("layer_types")
    if inner is not None and inner.has(key):
        listed = inner.choices(key, {0: "", 1: "chooses"}, len(layers)) or []
        chooses = [bool(word) for word in listed]
    elif isinstance(words, list) and _BLOCK_SPARSE in words:
        chooses = [word == _BLOCK_SPARSE for word in words]
    elif fields.has("index_block_size"):
        chooses = [False] * len(layers)
    else:
        return layers
    return [
        x._replace(has_index=x.has_index and own, chooses=own)
        for x, own in zip(layers, chooses, strict=True)
    ]


def _index_layers(fields: Fields, n_layers: int) -> list[bool]:
    """Whether each layer has an index of its own: a list, letters, or every n-th from an offset."""
    types = fields.choices("indexer_types", {"full": "full", "shared": "shared"}, n_layers)
    if types is not None:
        fields.settle("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
        return [kind == "full" for kind in types]
    key = "index_topk_pattern"
    if fields.has(key):
        pattern = fields.text(key) or ""
        if len(pattern) != n_layers or set(pattern) - {"F", "S"}:
            raise fields.error(key, f"must be {n_layers} letters F (own index) and S (shared)")
        return [letter == "F" for letter in pattern]
    every = fields.integer("index_topk_freq", most=MAX_LAYERS) or 1
    if every == 1:
        fields.settle("index_skip_topk_offset")
        return [True] * n_layers
    first = fields.needed("index_skip_topk_offset", most=MAX_LAYERS, least=0)
    return [max(i - first + 1, 0) % every == 0 for i in range(n_layers)]


def _with_reused_caches(fields: Fields, layers: list[Layer]) -> list[Layer]:
    shared = fields.integer("num_kv_shared_layers", most=len(layers) - 1, least=0) or 0
    first = len(layers) - shared
    return [x._replace(reuses_cache=i >= first) for i, x in enumerate(layers)]


def _mixers(fields: Fields, known: ModelType, n_layers: int) -> list[str]:
    for reader in _READERS:
        mixers = reader(fields, n_layers)
        if mixers is not None:
            fields.settle(*_SETTLED_BY_LISTS)
            return _without_unused_window(fields, mixers)
    if known.pattern:
        return PATTERNS[known.pattern](fields, n_layers)
    if fields.text("model_type") in ("llama4", "llama4_text"):
        return _chunked_between_global(fields, n_layers)
    return _windows_by_rule(fields, known, n_layers)


def _without_unused_window(fields: Fields, mixers: list[str]) -> list[str]:
    """``use_sliding_window: false`` makes listed sliding layers full ones."""
    if "sliding" not in mixers:
        fields.settle("sliding_window", "use_sliding_window")
    if fields.flag("use_sliding_window", default=True):
        return mixers
    fields.settle("sliding_window")
    return ["full" if mixer == "sliding" else mixer for mixer in mixers]


def _listed(fields: Fields, n_layers: int) -> list[str] | None:
    name = (fields.text("model_type") or "").removesuffix("_text")
    words = {**_LAYER_TYPES, **_WORDS_OF_TYPE.get(name, {})}
    for key in ("layer_types", "layers_block_type"):
        mixers = without_drafts(fields, key, n_layers).choices(key, words, n_layers)
        if mixers is not None:
            return mixers
    flags = fields.choices("hybrid_layer_pattern", {0: "full", 1: "sliding"}, n_layers)
    return flags or fields.choices("attn_type_list", {0: "linear", 1: "full"}, n_layers)


def heads_of_kind(fields: Fields, layers: list[Layer], mixer: str) -> Fields:
    """The fields with the heads of layers of that mixer, where a list states them layer by layer.

    Laguna: ``num_attention_heads_per_layer``; transformers 5: ``per_layer_config``, a mapping from
    layer numbers to keys that differ there.

    Raises
    ------
    SpecError
        If layers of one kind differ.
    """
    places = [i for i, layer in enumerate(layers) if layer.mixer == mixer]
    key = "num_attention_heads_per_layer"
    listed = fields.items(key, len(layers))
    stated = [{} if listed is None else {"num_attention_heads": listed[i]} for i in places]
    own = fields.part("per_layer_config")
    if own is not None and own.data:
        key = "per_layer_config"
        stated = [{**one, **_of_layer(own, i)} for one, i in zip(stated, places, strict=True)]
    if any(one != stated[0] for one in stated):
        raise fields.error(key, f"{mixer} layers differ among themselves, which is not modelled")
    if not stated[0]:
        return fields
    data = {**fields.data, **stated[0]}
    return Fields(data, fields.path, fields.prefix, fields.remarks, fields.read)


def _of_layer(own: Fields, index: int) -> dict[str, object]:
    """What differs in that layer; its number may be padded with zeros."""
    for key in own.data:
        if str(key).isdecimal() and len(str(key)) < 8 and int(key) == index:
            part = own.part(key)
            return {} if part is None else part.data
    return {}


def without_drafts(fields: Fields, key: str, n_layers: int) -> Fields:
    """The fields with a list that also names the draft layers (Step 3.5) cut to the model's own."""
    values = fields.value(key)
    drafts = fields.integer("num_nextn_predict_layers", most=MAX_LAYERS, least=0) or 0
    if not drafts or not isinstance(values, list) or len(values) != n_layers + drafts:
        return fields
    return Fields({**fields.data, key: values[:n_layers]}, fields.path, fields.prefix)


def _linear_lists(fields: Fields, n_layers: int) -> list[str] | None:
    """Kimi-Linear: two lists of layer numbers that start at 1."""
    inner = fields.part("linear_attn_config")
    if inner is None:
        return None
    full = inner.indices("full_attn_layers", n_layers, first=1)
    if full is None:
        raise SpecError(f"{fields.path}: {inner.prefix}full_attn_layers: is missing or null")
    linear = inner.indices("kda_layers", n_layers, first=1)
    if linear is not None and (linear & full or len(linear | full) != n_layers):
        raise inner.error("kda_layers", "with full_attn_layers must name every layer once")
    return ["full" if i in full else "linear" for i in range(n_layers)]


def _attention_numbers(fields: Fields, n_layers: int) -> list[str] | None:
    """Bamba's list, Jamba's period and offset, Falcon-H1's parallel blocks."""
    chosen = fields.indices("attn_layer_indices", n_layers)
    period = fields.integer("attn_layer_period", most=MAX_LAYERS)
    if period is not None:
        offset = fields.needed("attn_layer_offset", most=MAX_LAYERS, least=0)
        chosen = set(range(offset, n_layers, period))
    if chosen is not None:
        return ["full" if i in chosen else "mamba" for i in range(n_layers)]
    return ["parallel"] * n_layers if fields.text("model_type") == "falcon_h1" else None


def _interval(fields: Fields, n_layers: int) -> list[str] | None:
    every = fields.integer("full_attention_interval", most=MAX_LAYERS)
    return None if every is None else every_nth_full(every, n_layers, "linear")


_READERS: tuple[Callable[[Fields, int], list[str] | None], ...] = (
    _listed, _linear_lists, _attention_numbers, _interval,
)  # fmt: skip


def _chunked_between_global(fields: Fields, n_layers: int) -> list[str]:
    """Llama 4: layers without rotary embedding are global, the others see one chunk."""
    if not fields.has("attention_chunk_size"):
        if "attention_chunk_size" in fields.data:
            return ["full"] * n_layers
        raise SpecError(f"{fields.path}: {fields.prefix}attention_chunk_size: is missing")
    if fields.items("no_rope_layers"):
        rotary = fields.choices("no_rope_layers", {0: "full", 1: "chunked"}, n_layers)
        return rotary or []
    every = fields.integer("no_rope_layer_interval", most=MAX_LAYERS)
    if every is None:
        every = 4
        fields.assume(
            "every 4th layer is global: no_rope_layers is absent, 4 is the code's default"
        )
    return every_nth_full(every, n_layers, "chunked")


# Rules that a list with one entry per layer has already spelled out.
_SETTLED_BY_LISTS = (
    "full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern",
    "max_window_layers", "global_attn_every_n_layers", "full_attn_idxs", "layer_group_size",
    "no_rope_layers", "no_rope_layer_interval",
)  # fmt: skip

WINDOW_RULES: dict[str, int] = {
    "odd_full": 2, "every_4th_full": 4, "every_5th_full": 5, "every_6th_full": 6,
}  # fmt: skip


def _windows_by_rule(fields: Fields, known: ModelType, n_layers: int) -> list[str]:
    pattern = _stated_pattern(fields, n_layers)
    if pattern is not None and fields.has("sliding_window"):
        return pattern
    rule = known.window
    if rule == "upper":
        return _upper_layers(fields, n_layers)
    if not fields.has("sliding_window"):
        fields.settle("use_sliding_window", "max_window_layers", "sliding_window_pattern")
        if "sliding_window" not in fields.data and (rule in WINDOW_RULES or pattern):
            raise SpecError(f"{fields.path}: {fields.prefix}sliding_window: is missing")
        if rule == "every" and "sliding_window" not in fields.data:
            fields.assume("sliding_window: absent, so no window is assumed")
        return ["full"] * n_layers
    if not fields.flag("use_sliding_window", default=True):
        fields.settle("sliding_window", "max_window_layers")
        return ["full"] * n_layers
    if rule == "every":
        return ["sliding"] * n_layers
    if rule in WINDOW_RULES:
        every = WINDOW_RULES[rule]
        fields.assume(f"every {every}. layer is full: the rule of the code, not of the file")
        return every_nth_full(every, n_layers, "sliding")
    raise fields.error(
        "sliding_window",
        "which layers use it is not stated: add layer_types, or set sliding_window to null to "
        "count every layer in full",
    )


def _stated_pattern(fields: Fields, n_layers: int) -> list[str] | None:
    """``sliding_window_pattern``: 6 (every 6th layer is full) or text such as LLLG."""
    key = "sliding_window_pattern"
    value = fields.value(key)
    if isinstance(value, str):
        if not value or set(value) - {"L", "G"}:
            raise fields.error(key, "must be a number, or letters L (sliding) and G (full)")
        names = {"L": "sliding", "G": "full"}
        return [names[value[i % len(value)]] for i in range(n_layers)]
    every = fields.integer(key, most=MAX_LAYERS)
    return None if every is None else every_nth_full(every, n_layers, "sliding")


def _upper_layers(fields: Fields, n_layers: int) -> list[str]:
    """Qwen2: with use_sliding_window the first max_window_layers are full, the rest slide."""
    if not fields.flag("use_sliding_window") or not fields.has("sliding_window"):
        fields.settle("sliding_window", "max_window_layers")
        return ["full"] * n_layers
    first = fields.needed("max_window_layers", most=MAX_LAYERS, least=0)
    return ["full" if i < first else "sliding" for i in range(n_layers)]


def _window_keys(fields: Fields) -> tuple[str, ...]:
    """Spellings of the window: RecurrentGemma and GPT-Neo have words of their own."""
    others = ("attention_window_size", "window_size")
    stated = ("sliding_window", "sliding_window_size")
    return stated if fields.has(*stated) else stated + others


def window_of(fields: Fields, mixer: str) -> dict[str, object]:
    """``LayerGroup`` keys of a windowed layer, empty for others."""
    if mixer in ("sliding", "csa", "hca"):
        return {
            "window_tokens": fields.needed(*_window_keys(fields), most=MAX_TOKENS),
            "window_kind": "sliding",
        }
    if mixer == "chunked":
        return {
            "window_tokens": fields.needed("attention_chunk_size", most=MAX_TOKENS),
            "window_kind": "chunked",
        }
    return {}
