"""Equations with their numbers put in, as ``--explain`` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.layout import WeightMatrix, WeightRole
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.formats import storage_format
from lrkv_plan.memory.cache import (
    bytes_per_token,
    cache_bytes,
    group_row_bytes,
    index_bytes_per_token,
    keeps_context_rows,
    rows_kept,
    state_bytes_per_sequence,
)
from lrkv_plan.memory.weights import attention_weights, parameter_count
from lrkv_plan.report.screen import short_bytes
from lrkv_plan.report.tables import count
from lrkv_plan.specs.model import (
    DenseFeedForward,
    ExpertFeedForward,
    HeldWeight,
    NoFeedForward,
)

if TYPE_CHECKING:
    from lrkv_plan.attention.layout import CachedTensor
    from lrkv_plan.formats import StorageFormat
    from lrkv_plan.serving.capacity import CapacityRow
    from lrkv_plan.specs.model import FeedForward, LayerGroup, ModelSpec


def cache_equation(model: ModelSpec, kv_dtype: str, tp_size: int = 1) -> str:
    """Bytes per token on one GPU, summed as ``bytes_per_token`` does.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> cache_equation(load_model("llama-3.1-8b"), "bf16")
    '32 layers x (key 8 x 128 x 2 B + value 8 x 128 x 2 B) = 131,072 B/token'
    """
    storage = storage_format(kv_dtype)
    groups = _summed(
        (group.count, _group(model, group, storage, tp_size))
        for group in model.cached_in(storage).layers if keeps_context_rows(group)
    )  # fmt: skip
    total = bytes_per_token(model, kv_dtype=kv_dtype, tp_size=tp_size)
    where = "B/token" if tp_size == 1 else "B/token/GPU"
    return f"{groups} = {count(total)} {where}"


def _summed(layers: Iterable[tuple[int, str]]) -> str:
    """``32 layers x (...) + ...``, alike layers together."""
    alike: dict[str, int] = {}
    for n_layers, term in layers:
        if term:
            alike[term] = alike.get(term, 0) + n_layers
    return " + ".join(f"{count(n)} layers x {term}" for term, n in alike.items()) or "0"


def _group(model: ModelSpec, group: LayerGroup, storage: StorageFormat, tp_size: int) -> str:
    assert group.attention is not None, "the group keeps rows"
    layout = layout_of(group.attention, model.model_dim)
    layout.check_tp_size(tp_size)
    storage = group.keeps_in(storage)
    tensors = [_tensor(one, storage, tp_size) for one in layout.cached if one.width]
    return f"({' + '.join(tensors)})"


def _tensor(tensor: CachedTensor, storage: StorageFormat, tp_size: int) -> str:
    """``key 8 x 128 x 2 B``; a row with scales or blocks as its bytes."""
    copies, own = tensor.copies_per_gpu(tp_size), tensor.format_in(storage)
    each = Fraction(own.bits_per_scalar, 8)
    row = own.row_bytes(tensor.width)
    plain = row == tensor.width * each and each.denominator == 1
    times = "" if copies == 1 else f"{count(copies)} x "
    told = (
        f"{count(tensor.width)} x {each} B"
        if plain
        else f"{count(row)} B ({count(tensor.width)} in {own.name})"
    )
    return f"{tensor.name} {times}{told}"


def sequences_equation(row: CapacityRow) -> str:
    """Whole sequences of one replica from its cache memory, in the blocks that the engine deals."""
    blocks = (
        f"{count(row.kv_budget_bytes_per_gpu)} B of cache memory a GPU = {count(row.n_blocks)} "
        f"blocks of {count(row.block_tokens)} tokens ({count(row.block_bytes)} B)"
    )
    if shared := row.shared_prefix_blocks:
        each = row.blocks_per_sequence
        return (
            f"{blocks}; ({count(row.n_blocks)} - {count(shared)} in common) / ({count(each)} - "
            f"{count(shared)}) = {(row.n_blocks - shared) / (each - shared):,.2f}: "
            f"{count(row.max_sequences)} whole sequences"
        )
    return (
        f"{blocks} = {count(row.kv_tokens)} tokens / {count(row.context_tokens)} = "
        f"{float(row.max_concurrency):,.2f}: {count(row.max_sequences)} whole sequences"
    )


def held_equation(
    model: ModelSpec,
    *,
    context_tokens: int,
    batch_size: int = 1,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    encoder_tokens: int | None = None,
) -> str:
    """What a batch holds on one GPU, summed as ``cache_bytes`` does.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> held_equation(load_model("llama-3.1-8b"), context_tokens=8192)
    '32 layers x 8,192 tokens x 4,096 B = 1,073,741,824 B (1.00 GiB)'
    """
    storage = storage_format(kv_dtype)
    encoder = (model.encoder_tokens or 0) if encoder_tokens is None else encoder_tokens
    layers: dict[tuple[Any, str, Fraction], int] = {}
    for group in model.cached_in(storage).layers:
        rows = rows_kept(group, context_tokens, encoder)
        if rows:
            what = "encoder tokens" if group.cached_over == "encoder" else "tokens"
            kind = (rows, what, group_row_bytes(model, group, storage, tp_size))
            layers[kind] = layers.get(kind, 0) + group.count
    terms = [
        f"{count(n)} layers x {count(rows)} {what} x {count(row)} B"
        for (rows, what, row), n in layers.items()
    ]
    if index := index_bytes_per_token(model, tp_size=tp_size):
        terms.append(f"{count(context_tokens)} tokens x {count(index)} B of index keys")
    if state := state_bytes_per_sequence(model, tp_size=tp_size):
        terms.append(f"{count(state)} B of state")
    total = cache_bytes(
        model, context_tokens=context_tokens, batch_size=batch_size, kv_dtype=kv_dtype,
        tp_size=tp_size, encoder_tokens=encoder_tokens,
    ).total  # fmt: skip
    assert isinstance(total, int | Fraction), "counts are no arrays"
    summed = " + ".join(terms) or "0"
    batch = summed if batch_size == 1 else f"{count(batch_size)} x ({summed})"
    return f"{batch} = {count(total)} B ({short_bytes(total)})"


def tensor_equation(row: Mapping[str, Any]) -> str:
    """The bytes of one cached tensor on one GPU, from its row of ``tensor_rows``."""
    layers, copies, batch = row["layers"], row["copies_per_layer"], row["batch_size"]
    whole = Fraction(row["cache_bytes"])
    if row["kept_per"] == "sequence":
        each, kept = whole / (layers * copies * batch), None
    else:
        each = Fraction(row["bytes_per_token"]) / (layers * copies)
        kept = whole / (layers * copies * batch * each) if whole else Fraction(0)
    factors = [
        f"{count(layers)} layers", f"{count(row['copies_per_gpu'])} x {count(each)} B",
        *([] if kept is None else [f"{count(kept)} {row['kept_per']}s"]),
        *([] if batch == 1 else [f"{count(batch)} sequences"]),
    ]  # fmt: skip
    total = row["cache_bytes_per_gpu"]
    return (
        f"{row['attention']}, {row['tensor']}: {' x '.join(factors)} = {count(total)} B "
        f"({short_bytes(total)})"
    )


def weights_equations(model: ModelSpec) -> list[str]:
    """Parameters by part, summed as ``parameter_count`` does; unstated parts are left out.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> weights_equations(load_model("llama-3.1-8b"))[0]
    'K/V: 32 layers x (key 4,096 x 1,024 + value 4,096 x 1,024) = 268,435,456'
    """
    counted = parameter_count(model)
    parts: list[tuple[str, str, int | None]] = [
        ("K/V", _attention(model, of_kv=True), counted.kv_params),
        ("attention", _attention(model), counted.attention_params),
        ("recurrent", _held(model, ("mixer",)), counted.recurrent_params),
        ("feed-forward", _feed_forward(model), counted.feed_forward_params),
        ("embeddings", _embeddings(model), counted.embedding_params),
        ("norms", _norms(model, counted.norm_params), counted.norm_params),
        ("encoders", _encoders(model), counted.encoder_params),
    ]
    parts = [(name, text, n) for name, text, n in parts if text]
    lines = [f"{name}: {text} = {count(n)}" for name, text, n in parts if n is not None]
    if counted.model_params is not None:
        terms = " + ".join(count(n) for name, _, n in parts if name != "K/V" and n)
        lines.append(f"parameters: {terms} = {count(counted.model_params)}")
    return lines


def _norms(model: ModelSpec, n_params: int | None) -> str:
    others = _held(model, ("norms",))
    held = sum(g.count * one.n_params for g in model.layers for one in g.weights
               if one.part == "norms")  # fmt: skip
    held += sum(one.n_params for one in model.weights if one.part == "norms")
    vectors = ((n_params or 0) - held) // model.model_dim
    return " + ".join(filter(None, (f"{count(vectors)} x {count(model.model_dim)}", others)))


def _held(model: ModelSpec, parts: tuple[str, ...]) -> str:
    """What layers and model hold besides, of those parts; empty where they hold nothing."""

    def term(weights: Iterable[HeldWeight]) -> str:
        told = [_sides(one.name, one.copies, one.rows, one.cols)
                for one in weights if one.part in parts]  # fmt: skip
        return f"({' + '.join(told)})" if told else ""

    layers = _summed((group.count, term(group.weights)) for group in model.layers)
    return " + ".join(filter(None, ("" if layers == "0" else layers, term(model.weights))))


def _encoders(model: ModelSpec) -> str:
    told = [f"{one.name} {count(one.n_params)}" for one in model.encoders]
    if model.extra_params:
        told.append(f"outside the layers {count(model.extra_params)}")
    return " + ".join(told)


def _attention(model: ModelSpec, *, of_kv: bool = False) -> str:
    def term(group: LayerGroup) -> str:
        told = [_matrix(one) for one in attention_weights(group, model.model_dim)
                if not of_kv or one.role is WeightRole.KEY_VALUE]  # fmt: skip
        return f"({' + '.join(told)})" if told else ""

    own = _summed((group.count, term(group)) for group in model.layers)
    return " + ".join(filter(None, (own, "" if of_kv else _held(model, ("attention", "index")))))


def _matrix(weight: WeightMatrix) -> str:
    return _sides(weight.name, weight.copies, weight.rows, weight.cols)


def _sides(name: str, *sides: int) -> str:
    """``query 4,096 x 1,024``: a name and what its parameters are the product of."""
    told = [count(n) for n in sides if n > 1] or ["1"]
    return f"{name} {' x '.join(told)}"


def _feed_forward(model: ModelSpec) -> str:
    own = _summed(
        (group.count, _block(group.feed_forward, model.model_dim))
        for group in model.layers
        if group.feed_forward is not None
    )
    return " + ".join(filter(None, (own, _held(model, ("router",)))))


def _block(block: FeedForward, model_dim: int) -> str:
    """One block: ``3 x d x width``, experts and what stands beside them."""
    if isinstance(block, NoFeedForward):
        return ""
    if isinstance(block, DenseFeedForward):
        return f"({_mlp(block, block.hidden_dim, model_dim)})"
    return f"({' + '.join(_experts(block, model_dim))})"


def _experts(block: ExpertFeedForward, model_dim: int) -> Iterator[str]:
    routed = _mlp(block, block.hidden_dim, block.expert_dim(model_dim))
    yield f"{count(block.n_experts)} experts x ({routed})"
    for name, width in (("shared", block.shared_hidden_dim), ("dense", block.dense_hidden_dim)):
        if width:
            yield f"{name} {_mlp(block, width, model_dim)}"
    router = f"router {count(model_dim)} x {count(block.n_experts)}"
    yield router + (f" + {count(block.n_experts)}" if block.router_bias else "")
    if block.shared_gate:
        yield f"gate {count(model_dim)}"


def _mlp(block: DenseFeedForward | ExpertFeedForward, width: int, model_dim: int) -> str:
    inputs = 2 if block.gated else 1
    matrices = f"{inputs + 1} x {count(model_dim)} x {count(width)}"
    return matrices + (f" + {count(inputs * width + model_dim)} of bias" if block.bias else "")


def _embeddings(model: ModelSpec) -> str:
    if model.vocab_size is None:
        return ""
    table = f"{count(model.vocab_size)} x {count(model.model_dim)}"
    terms = [table if model.tied_embeddings else f"2 x {table}"]
    if model.head_bias:
        terms.append(count(model.vocab_size))
    if model.position_embeddings:
        terms.append(f"{count(model.position_embeddings)} x {count(model.model_dim)}")
    return " + ".join(filter(None, (*terms, _held(model, ("embeddings",)))))
