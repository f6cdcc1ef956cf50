from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.calibration.decode.cache import (
    Cache,
    ContiguousCache,
    PagedCache,
    build_cache,
)
from lrkv_plan.calibration.decode.exactness import random_case
from lrkv_plan.calibration.decode.step import build_step
from lrkv_plan.errors import CalibrationError
from tests.drawing import drawn

LRKV = LowRankSpec(n_heads=4, head_dim=8, rank=3, rank_alignment=4, n_shared_groups=2)


def cache(*capacities: int, page_tokens: int | None = None, spec: Any = LRKV) -> Cache:
    return build_cache(layout_of(spec, 32), capacity_tokens=capacities, page_tokens=page_tokens)


def numbered(held: Cache, n: int, start: int = 0) -> dict[str, torch.Tensor]:
    """Rows whose scalars say sequence, copy and token: 100 sequence + 10 copy + token."""
    rows = {}
    for name, tensor in held.cached.items():
        sequence = torch.arange(held.batch_size)[:, None, None, None] * 100.0
        copy = torch.arange(held.copies(name))[:, None, None] * 10.0
        token = torch.arange(start, start + n)[:, None].float()
        width = tensor.payload_width or tensor.width
        rows[name] = (sequence + copy + token).expand(-1, -1, -1, width)
    return rows


@settings(max_examples=drawn(100))
@given(
    seed=st.integers(0, 10**6), spare=st.integers(0, 20), dtype=st.sampled_from(("fp32", "bf16"))
)
def test_allocated_bytes_equal_predicted_bytes(seed: int, spare: int, dtype: str) -> None:
    case = random_case(seed)
    step = build_step(
        case.path, case.spec, model_dim=64, batch_size=len(case.contexts),
        context_tokens=case.contexts, query_tokens=case.query_tokens, dtype=dtype,
        page_tokens=case.page_tokens, tp_size=case.tp_size, spare_tokens=spare,
    )  # fmt: skip
    assert step.allocated_bytes == step.predicted_bytes


def test_allocated_bytes_of_the_paper_design() -> None:
    # 2 layers' worth would double it: one layer keeps 2 (128 + 18 * 55) = 2,236 scalars per token;
    # 100 tokens in pages of 16 take 112 rows: 2,236 * 2 B * 112.
    spec = LowRankSpec(n_heads=18, head_dim=128, rank=55)
    step = build_step(
        "lrkv/factored", spec, model_dim=2304, batch_size=1, context_tokens=100, dtype="bf16",
        page_tokens=16,
    )  # fmt: skip
    assert step.allocated_bytes == 2_236 * 2 * 112


def test_contiguous_rows_are_a_view_of_the_allocation() -> None:
    held = cache(10, 10)
    held.append(numbered(held, 4))
    rows = held.rows("shared_key")
    assert rows.shape == (2, 2, 4, 8)
    assert rows.data_ptr() == held.tensors["shared_key"].data_ptr()


@pytest.mark.parametrize("page_tokens", [None, 1, 3, 4, 16])
def test_rows_come_back_in_order_over_page_edges_at_uneven_lengths(page_tokens: int | None) -> None:
    held = cache(9, 12, page_tokens=page_tokens)
    first = numbered(held, 7)
    held.append(first, counts=[3, 7])
    for token in range(3, 8):  # the first sequence grows from 3 to 8, the second from 7 to 12
        new = {
            name: torch.stack(
                [numbered(held, 1, token)[name][0], numbered(held, 1, token + 4)[name][1]]
            )
            for name in held.cached
        }
        held.append(new)
    assert held.lengths == [8, 12]
    for name, rows in numbered(held, 12).items():
        got = held.rows(name)[..., : rows.shape[-1]]
        assert torch.equal(got[0, :, :8], rows[0, :, :8])
        assert torch.equal(got[1], rows[1])


def test_padding_columns_stay_zero() -> None:
    held = cache(5, page_tokens=2)
    held.append(numbered(held, 5, start=1))
    assert held.rows("private_key").shape[-1] == 4
    assert held.rows("private_key")[..., 3].count_nonzero() == 0
    filled = cache(5)
    filled.fill_random([5], seed=0)
    assert filled.rows("private_key")[..., 3].count_nonzero() == 0


def test_pages_are_handed_out_shuffled_and_once() -> None:
    held = cache(64, 64, page_tokens=4)
    assert isinstance(held, PagedCache)
    held.append(numbered(held, 64))
    pages = held.page_table.flatten().tolist()
    assert sorted(pages) == list(range(32))
    assert pages != list(range(32))


@pytest.mark.parametrize("page_tokens", [None, 4])
def test_a_full_cache_refuses_rows_and_keeps_what_it_has(page_tokens: int | None) -> None:
    held = cache(8, 8, page_tokens=page_tokens)
    held.append(numbered(held, 8), counts=[8, 5])
    with pytest.raises(CalibrationError, match=r"capacity of 8|are free"):
        held.append(numbered(held, 1))
    assert held.lengths == [8, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.pop("shared_key"), "caches"),
        (lambda rows: rows.update(shared_key=rows["shared_key"][:, :1]), "expected"),
        (lambda rows: rows.update(shared_key=rows["shared_key"][..., :7]), "expected"),
    ],
)
def test_rows_that_do_not_fit_the_layout_are_refused(change: Any, message: str) -> None:
    held = cache(8)
    rows = numbered(held, 2)
    change(rows)
    with pytest.raises(CalibrationError, match=message):
        held.append(rows)
    assert held.lengths == [0]


def test_each_gpu_keeps_its_share_of_copies() -> None:
    layout = layout_of(GroupedSpec(family="gqa", n_heads=8, n_kv_heads=2, head_dim=4), 32)
    for tp_size, copies in ((1, 2), (2, 1), (4, 1)):  # 2 heads on 4 GPUs: each on two
        held = build_cache(layout, capacity_tokens=[6], tp_size=tp_size)
        assert isinstance(held, ContiguousCache)
        assert held.tensors["key"].shape == (1, copies, 6, 4)
