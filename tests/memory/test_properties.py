"""Properties that hold for any design: linearity, order, family edges, placement bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.errors import PlacementError
from lrkv_plan.formats import STORAGE_FORMATS
from lrkv_plan.memory.cache import bytes_per_token, cache_bytes
from lrkv_plan.memory.placement import placements
from lrkv_plan.memory.weights import kv_params
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import make_model
from tests.drawing import drawn

HEADS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 18, 32, 40])
HEAD_DIMS = st.sampled_from([2, 8, 40, 64, 80, 128, 256])
# Formats that leave some layers in 16 bits are not linear in layers: tests/test_dtypes.py has them.
FORMATS = st.sampled_from(sorted(n for n, f in STORAGE_FORMATS.items() if not f.plain_ends))
TP_SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 16])


@st.composite
def backbones(draw: Any) -> ModelSpec:
    attention = {"family": "mha", "n_heads": draw(HEADS), "head_dim": draw(HEAD_DIMS)}
    return make_model(attention, n_layers=draw(st.integers(1, 100)))


@st.composite
def designs(draw: Any) -> ModelSpec:
    model = draw(backbones())
    head = model.layers[0].attention.backbone()
    groups = draw(st.sampled_from([g for g in range(1, head.n_heads + 1) if head.n_heads % g == 0]))
    rank = draw(st.integers(0, head.head_dim))
    text = draw(
        st.sampled_from(
            ["mha", f"gqa:{groups}", "mqa", f"mla:{rank + 1}+{draw(st.integers(0, 64))}",
             f"lrkv:{rank}", f"lrkv:{rank},groups={groups}", f"lrkv:{rank},align=16",
             f"lrkv:{rank},position=rope_decoupled,rope_dim=8", f"lrkv:{rank},key_norm=rms_cached"]
        )
    )  # fmt: skip
    return swap_attention(model, text)


@given(designs(), st.integers(1, 10**6), st.integers(1, 1000), FORMATS)
def test_bytes_are_linear_in_layers_context_and_batch(
    model: ModelSpec, context: int, batch: int, kv_dtype: str
) -> None:
    one = bytes_per_token(model, kv_dtype=kv_dtype)
    held = cache_bytes(model, context_tokens=context, batch_size=batch, kv_dtype=kv_dtype).total
    assert held == one * context * batch
    layer = model.layers[0].model_copy(update={"count": 1})
    single = model.model_copy(update={"layers": (layer,)})
    assert one == model.n_layers * bytes_per_token(single, kv_dtype=kv_dtype)


@given(designs())
def test_plain_formats_scale_with_their_bytes(model: ModelSpec) -> None:
    fp8 = bytes_per_token(model, kv_dtype="fp8")
    assert [bytes_per_token(model, kv_dtype=d) for d in ("bf16", "fp32")] == [2 * fp8, 4 * fp8]


@given(backbones(), FORMATS, st.data())
def test_bytes_grow_with_rank(model: ModelSpec, kv_dtype: str, data: Any) -> None:
    head_dim = model.layers[0].attention.backbone().head_dim  # type: ignore[union-attr]
    rank = data.draw(st.integers(0, head_dim - 1))
    low, high = (
        bytes_per_token(swap_attention(model, f"lrkv:{r}"), kv_dtype=kv_dtype)
        for r in (rank, rank + 1)
    )
    assert low <= high
    if not STORAGE_FORMATS[kv_dtype].whole_groups:
        assert low < high


@given(backbones(), FORMATS, TP_SIZES)
def test_families_meet_at_their_edges(model: ModelSpec, kv_dtype: str, tp_size: int) -> None:
    n_heads = model.layers[0].attention.n_heads  # type: ignore[union-attr]
    if n_heads % tp_size:
        return

    def held(text: str) -> Any:
        return bytes_per_token(swap_attention(model, text), kv_dtype=kv_dtype, tp_size=tp_size)

    assert held("lrkv:0") == held("mqa") == held("gqa:1")
    assert held(f"gqa:{n_heads}") == held("mha") == held(f"lrkv:0,groups={n_heads}")
    assert kv_params(swap_attention(model, "lrkv:0")) == kv_params(swap_attention(model, "mqa"))


@given(designs(), TP_SIZES, FORMATS)
def test_a_group_holds_at_least_one_copy_and_at_most_one_each(
    model: ModelSpec, tp_size: int, kv_dtype: str
) -> None:
    total = bytes_per_token(model, kv_dtype=kv_dtype)
    try:
        found = placements(model, tp_size=tp_size, kv_dtype=kv_dtype)
    except PlacementError:
        return
    held = found[0].aggregate_bytes_per_token
    assert total <= held <= tp_size * total
    assert (held == total) == (found[0].policy == "by_copy")
    assert all(p.aggregate_bytes_per_token == total for p in found[1:])


@settings(max_examples=drawn(50))
@given(designs(), st.lists(st.integers(1, 2**30), min_size=1, max_size=20))
def test_arrays_agree_with_numbers(model: ModelSpec, contexts: list[int]) -> None:
    together = cache_bytes(model, context_tokens=np.array(contexts)).total
    assert together.tolist() == [cache_bytes(model, context_tokens=c).total for c in contexts]
