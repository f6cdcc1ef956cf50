"""DeepSeek-V4's attention in a config.json: one shared row, and rows that stand for several tokens.

Every layer keeps its window; two kinds keep compressed rows of the whole context beside it: ``csa``
one for 4 tokens, chosen by an index, and ``hca`` one for 128. Read in transformers 5.24
(modeling_deepseek_v4.py) and vLLM (models/deepseek_v4): h is the row's width, w the index's.
"""

from __future__ import annotations

from typing import Any

from lrkv_plan.huggingface.fields import MAX_HEADS, MAX_TOKENS, MAX_WIDTH, Fields
from lrkv_plan.huggingface.model_type import ModelType, switch

_RATES = {"csa": ("compressed_sparse_attention", 4), "hca": ("heavily_compressed_attention", 128)}
_STATE_BYTES = 4  # of a scalar
_INDEX_SCALE_BYTES = 4


def shared_row(fields: Fields, known: ModelType, kind: str, hidden: int) -> dict[str, Any]:
    """``LayerGroup`` keys of a layer of that kind: attention, compressed rows, states, weights.

    Raises
    ------
    SpecError
        If a width is missing.
    """
    fields.settle("num_key_value_heads", "kv_lora_rank")
    width = fields.needed("head_dim", most=MAX_WIDTH)
    found: dict[str, Any] = {
        "attention": {
            "family": "shared_row",
            "n_heads": fields.needed("num_attention_heads", most=MAX_HEADS),
            "head_dim": width,
            "rope_dim": fields.needed("qk_rope_head_dim", most=MAX_WIDTH, least=0),
            "query_latent_dim": fields.integer("q_lora_rank", most=MAX_WIDTH),
            "output_groups": fields.integer("o_groups", most=MAX_HEADS),
            "output_latent_dim": fields.integer("o_lora_rank", most=MAX_WIDTH),
            "sinks": switch(fields, known.sinks),
        }
    }
    if kind not in _RATES:
        return found
    rate = _rate(fields, kind)
    index = _index(fields, rate, hidden) if kind == "csa" else {}
    weights = _compressor("", width, rate, hidden, overlaps=kind == "csa")
    states = [_state("compressor", width, rate, overlaps=kind == "csa"), *index.pop("state", ())]
    return {
        **found, **index, "tokens_per_row": rate, "state": tuple(states),
        "weights": (*weights, *index.get("weights", ())),
    }  # fmt: skip


def _rate(fields: Fields, kind: str) -> int:
    """Tokens of one row: transformers states them by kind of layer."""
    word, usual = _RATES[kind]
    stated = fields.part("compress_rates")
    return (stated.integer(word, most=MAX_TOKENS) if stated else None) or usual


def _compressor(
    name: str, width: int, rate: int, hidden: int, *, overlaps: bool
) -> tuple[dict[str, Any], ...]:
    """d c + d c of rows and gates, r c of positions and a norm; c = 2 h where blocks overlap."""
    made = width * (1 + overlaps)
    return (
        {
            "name": f"{name}compressor", "rows": hidden, "cols": 2 * made, "part": "index",
            "reads": "hidden",
        },
        {"name": f"{name}positions", "rows": rate, "cols": made, "part": "index", "plain": True},
        {"name": f"{name}compressor_norm", "rows": width, "part": "index"},
    )  # fmt: skip


def _state(name: str, width: int, rate: int, *, overlaps: bool) -> dict[str, Any]:
    """What waits for its row in fp32: rows and gates of r tokens, of the 2 r that overlap twice.

    vLLM: 8 tokens of 2 x 2 x 512 scalars for ``csa``, 128 of 2 x 512 for ``hca``.
    """
    scalars = 2 * width * (1 + overlaps) * rate * (1 + overlaps)
    return {
        "name": name, "bytes_per_copy": scalars * _STATE_BYTES, "sharding": "replicated",
        "scalar_bytes": _STATE_BYTES,
    }  # fmt: skip


def _index(fields: Fields, rate: int, hidden: int) -> dict[str, Any]:
    """Keys of the index, one for as many tokens: w fp8 and a scale. Queries q n w, weights d n."""
    width = fields.needed("index_head_dim", most=MAX_WIDTH)
    heads = fields.needed("index_n_heads", most=MAX_HEADS)
    latent = fields.integer("q_lora_rank", most=MAX_WIDTH) or hidden
    key = {
        "name": "index_key", "bytes_per_copy": width + _INDEX_SCALE_BYTES, "tokens_per_row": rate,
        "sharding": "replicated",
    }  # fmt: skip
    return {
        "index": (key,),
        "state": (_state("index_compressor", width, rate, overlaps=True),),
        "weights": (
            *_compressor("index_", width, rate, hidden, overlaps=True),
            {"name": "index_query", "rows": latent, "cols": heads * width, "part": "index"},
            {
                "name": "index_heads", "rows": hidden, "cols": heads, "part": "index",
                "plain": True,
            },
        ),
    }  # fmt: skip
