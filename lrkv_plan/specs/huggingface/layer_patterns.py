"""Layer patterns that a model type states under a key of its own, one mixer word per layer.

Read in the configuration and modelling code of Hugging Face transformers (recurrent_gemma, afmoe,
gpt_neo) and in vLLM's bailing_moe_linear and SmallThinker's own code for vLLM.
"""

from __future__ import annotations

from collections.abc import Callable

from lrkv_plan.specs.huggingface.fields import MAX_LAYERS, Fields, is_whole


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


PATTERNS: dict[str, Callable[[Fields, int], list[str]]] = {
    "layer_group_size": _linear_groups,
    "block_types": _repeated_blocks,
    "sliding_window_layout": _window_flags,
    "global_attn_every_n_layers": _global_between_windows,
    "attention_types": _expanded_types,
    "full_attn_idxs": _full_between_convolutions,
}
"""By the name that a ``ModelType`` gives its pattern."""
