"""What each GPU of a tensor-parallel group keeps, under each placement of repeated tensors.

A tensor with at least as many copies as GPUs is dealt out and repeated nowhere. One with fewer
copies, or none to deal out, would be on several GPUs; the policies differ in what they do then.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError
from lrkv_plan.formats import StorageFormat, storage_format
from lrkv_plan.memory.cache import bytes_per_token, reference_mha
from lrkv_plan.memory.exact import check_model, one_count, simplest
from lrkv_plan.specs.model import LayerGroup, ModelSpec

POLICIES = {
    "by_copy": "every tensor is dealt out by head; nothing is repeated",
    "replicated": "tensors without enough copies are whole on several GPUs",
    "by_token": "context parallel: each GPU keeps T/P rows and partial softmax results are merged",
    "gathered": "one copy in the group, spread evenly; the rest is read over the link each step",
}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One policy at one size. Bytes are per cached token over all layers. [bytes/token]"""

    tp_size: int
    policy: str
    cache_bytes_per_token_per_gpu: int | Fraction
    aggregate_bytes_per_token: int | Fraction
    replicated_bytes_per_token: int | Fraction  # part of the aggregate beyond one copy
    link_bytes_per_token_per_gpu: int | Fraction  # read from other GPUs in every decode step
    aggregate_ratio_to_mha: Fraction

    @property
    def replicated_share(self) -> Fraction:
        """Part of the aggregate that is repetition, 0 to 1."""
        total = Fraction(self.aggregate_bytes_per_token)
        return self.replicated_bytes_per_token / total if total else Fraction(0)


def placements(model: ModelSpec, *, tp_size: int, kv_dtype: str = "bf16") -> tuple[Placement, ...]:
    """The placements of a model's cache on ``tp_size`` GPUs.

    One ``by_copy`` entry where nothing is repeated; else ``replicated``, ``by_token`` and
    ``gathered``.

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over that many GPUs.

    Notes
    -----
    With w_i scalars in c_i copies on c_i(P) per GPU, replicated keeps P sum w_i c_i(P) in all:
    for LRKV over MHA the aggregate ratio P g'/H + r/d_h, g' = max(1, g/P) (arXiv:2601.11471v3
    review, section 4). by_token and gathered keep sum w_i c_i in all. gathered reads the rows that
    a GPU uses but does not hold: (1 - 1/R) of each tensor that R GPUs share.

    Examples
    --------
    >>> from lrkv_plan import load_model, swap_attention
    >>> llama = load_model("llama-2-7b")  # 32 heads of 128
    >>> best = placements(swap_attention(llama, "lrkv:54"), tp_size=4)[0]
    >>> best.policy, float(best.aggregate_ratio_to_mha)  # 4/32 + 54/128
    ('replicated', 0.546875)
    """
    check_model("model", model)
    storage, tp_size = storage_format(kv_dtype), one_count("tp_size", tp_size)
    model = model.cached_in(storage)
    held = Fraction(bytes_per_token(model, kv_dtype=kv_dtype, tp_size=tp_size))
    whole = Fraction(bytes_per_token(model, kv_dtype=kv_dtype))
    reference = bytes_per_token(reference_mha(model), kv_dtype=kv_dtype)
    link = sum(
        (_shared_away(model, group, storage, tp_size) for group in model.layers), start=Fraction(0)
    )

    def placement(policy: str, per_gpu: Fraction, link_bytes: Fraction) -> Placement:
        return Placement(
            tp_size=tp_size,
            policy=policy,
            cache_bytes_per_token_per_gpu=simplest(per_gpu),
            aggregate_bytes_per_token=simplest(per_gpu * tp_size),
            replicated_bytes_per_token=simplest(per_gpu * tp_size - whole),
            link_bytes_per_token_per_gpu=simplest(link_bytes),
            aggregate_ratio_to_mha=per_gpu * tp_size / reference if reference else Fraction(0),
        )

    if held * tp_size == whole:
        return (placement("by_copy", held, Fraction(0)),)
    return (
        placement("replicated", held, Fraction(0)),
        placement("by_token", whole / tp_size, Fraction(0)),
        placement("gathered", whole / tp_size, link),
    )


def _shared_away(
    model: ModelSpec, group: LayerGroup, storage: StorageFormat, tp_size: int
) -> Fraction:
    """Bytes per token that one GPU reads but does not hold when shared tensors have one copy."""
    if group.attention is None or group.reuses_cache or group.cached_over != "context":
        return Fraction(0)
    away = Fraction(0)
    for tensor in layout_of(group.attention, model.model_dim).cached:
        row_bytes = tensor.format_in(group.keeps_in(storage)).row_bytes(tensor.width)
        used = tensor.copies_per_gpu(tp_size) * row_bytes
        held = Fraction(tensor.copies_per_layer, tp_size) * row_bytes
        away += used - held
    return group.count * away


def try_placements(
    model: ModelSpec, *, tp_size: int, kv_dtype: str = "bf16"
) -> tuple[tuple[Placement, ...], str | None]:
    """``placements``, or none and the reason why no engine can run that size."""
    try:
        return placements(model, tp_size=tp_size, kv_dtype=kv_dtype), None
    except PlacementError as error:
        return (), str(error)
