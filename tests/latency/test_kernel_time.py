"""The kernel model at its limits, under change, and where its constants come from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan import load_hardware, load_model, swap_attention
from lrkv_plan.attention.families.grouped import grouped_work
from lrkv_plan.attention.families.latent import mla_absorbed_work
from lrkv_plan.errors import UsageError
from lrkv_plan.latency.kernel import (
    COUNTS_WORK_UNITS,
    DATASHEET_BAND,
    GENERATION_FACTOR,
    OTHER_SHAPE_FACTOR,
    KernelModel,
    kernel_model,
    kernel_time,
)
from lrkv_plan.latency.work import attention_work

# 10 us; 2 TB/s; 500 TFLOP/s: the ridge is 250 FLOP per byte.
MODEL = KernelModel(
    t0_s=10e-6, bytes_per_s=2e12, flops_per_s=500e12, band90=(0.9, 1.2), basis="measured",
    kernel="grouped", kv_dtype="bf16",
)  # fmt: skip
UNIT = replace(MODEL, form="per_work_unit", work_unit_s=1e-7)
NO_SPLIT = replace(MODEL, form="no_split", full_work_units=100.0)
amounts = st.floats(0, 1e15)
SUM = replace(MODEL, form="sum")
SUM_UNIT = replace(UNIT, form="sum_per_work_unit")
models = st.sampled_from([MODEL, UNIT, NO_SPLIT, SUM, SUM_UNIT])


def test_without_work_only_the_fixed_time_is_left() -> None:
    assert kernel_time(MODEL, 0, 0).time_s == 10e-6


def test_at_the_ridge_both_bounds_agree() -> None:
    call = kernel_time(MODEL, 1e9, 1e9 * MODEL.ridge_flops_per_byte)
    assert call.memory_s == call.compute_s == 0.5e-3  # 1 GB / 2 TB/s
    assert call.is_memory_bound


def test_each_form_worked_by_hand() -> None:
    # 4 GB / 2 TB/s = 2 ms; 500 GFLOP / 500 TFLOP/s = 1 ms; the slower counts.
    assert kernel_time(MODEL, 4e9, 500e9).time_s == pytest.approx(2.01e-3, rel=1e-12)
    assert kernel_time(SUM, 4e9, 500e9).time_s == pytest.approx(3.01e-3, rel=1e-12)
    # 20 units of 0.1 us add 2 us.
    assert kernel_time(UNIT, 4e9, 500e9, 20).time_s == pytest.approx(2.012e-3, rel=1e-12)
    assert kernel_time(SUM_UNIT, 4e9, 500e9, 20).time_s == pytest.approx(3.012e-3, rel=1e-12)
    # 25 of the 100 units that fill the GPU: a quarter of the speed.
    assert kernel_time(NO_SPLIT, 4e9, 500e9, 25).time_s == pytest.approx(8.01e-3, rel=1e-12)
    assert kernel_time(NO_SPLIT, 4e9, 500e9, 400).time_s == pytest.approx(2.01e-3, rel=1e-12)


@given(amounts, amounts)
def test_without_overlap_a_call_takes_at_most_twice_as_long(n_bytes: float, flops: float) -> None:
    overlapped = kernel_time(replace(MODEL, t0_s=0.0), n_bytes, flops).time_s
    added = kernel_time(replace(SUM, t0_s=0.0), n_bytes, flops).time_s
    assert overlapped <= added <= 2 * overlapped


def test_the_band_multiplies_the_time() -> None:
    call = kernel_time(MODEL, 4e9, 0)
    assert (call.low_s, call.high_s) == (call.time_s * 0.9, call.time_s * 1.2)


@given(models, amounts, amounts, st.integers(1, 10**6), st.floats(1, 10))
def test_faster_hardware_or_less_work_never_slows(
    model: KernelModel, n_bytes: float, flops: float, units: int, factor: float
) -> None:
    slow = kernel_time(model, n_bytes, flops, units).time_s
    for better in (
        replace(model, bytes_per_s=model.bytes_per_s * factor),
        replace(model, flops_per_s=model.flops_per_s * factor),
    ):
        assert kernel_time(better, n_bytes, flops, units).time_s <= slow
    assert kernel_time(model, n_bytes / factor, flops, units).time_s <= slow
    assert kernel_time(model, n_bytes, flops / factor, units).time_s <= slow


@given(models, st.lists(st.tuples(amounts, amounts, st.integers(1, 10**6)), min_size=1, max_size=9))
def test_an_array_equals_its_scalars(
    model: KernelModel, calls: list[tuple[float, float, int]]
) -> None:
    columns = [np.array(c, dtype=float) for c in zip(*calls, strict=True)]
    many = kernel_time(model, *columns)
    each = [kernel_time(model, *call) for call in calls]
    assert np.array_equal(many.time_s, [c.time_s for c in each])
    assert np.array_equal(many.is_memory_bound, [c.is_memory_bound for c in each])


@pytest.mark.parametrize("bad", [-1.0, float("nan"), np.array([1.0, -1.0])])
def test_what_is_no_amount_is_refused(bad: object) -> None:
    with pytest.raises(UsageError, match="n_bytes"):
        kernel_time(MODEL, bad, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", COUNTS_WORK_UNITS)
def test_a_form_that_needs_work_units_says_so(form: str) -> None:
    with pytest.raises(UsageError, match="work_units"):
        kernel_time(replace(MODEL, form=form), 1, 1)


def test_work_does_not_wrap_for_large_integer_arrays() -> None:
    batch, context = np.array([2**20]), np.array([2**30])
    n_bytes, flops, _ = grouped_work(
        batch, context, n_heads=128, n_kv_heads=128, head_dim=128, bytes_per_scalar=2
    )
    assert n_bytes[0] == 2.0 * 2**50 * 2**14 * 2
    assert flops[0] > 0


def test_mla_at_128_heads_is_near_242_flop_per_byte() -> None:
    # 2 * 128 * (2 * 512 + 64) / ((512 + 64) * 2) = 278,528 / 1,152 = 241.8
    n_bytes, flops, _ = mla_absorbed_work(
        1, 1, n_heads=128, latent_dim=512, rope_dim=64, bytes_per_scalar=2
    )
    assert flops / n_bytes == pytest.approx(241.78, abs=0.01)


@pytest.mark.parametrize(("heads", "is_memory_bound"), [(128, False), (16, True)])
def test_mla_is_compute_bound_on_an_h200_until_its_heads_are_shared_out(
    heads: int, is_memory_bound: bool
) -> None:
    found = kernel_model(
        load_hardware("h200"), "mla_absorbed", "bf16", query_heads_per_kv_head=heads
    )
    work = mla_absorbed_work(
        64, 8192, n_heads=heads, latent_dim=512, rope_dim=64, bytes_per_scalar=2
    )
    assert found.basis == "measured"
    assert kernel_time(found, *work).is_memory_bound is is_memory_bound


def test_what_was_measured_says_so() -> None:
    found = kernel_model(load_hardware("h200"), "grouped", "bf16", query_heads_per_kv_head=8)
    assert found.basis == "measured"
    assert found.backend == "vllm/vllm_flash_attn_fa3"
    assert found.held_out_median_error is not None
    assert any("phi" in note for note in found.notes)  # decode never needs that arithmetic
    assert kernel_model(load_hardware("h200"), "grouped", "fp16") == kernel_model(
        load_hardware("h200"), "grouped", "bf16"
    )


def test_every_step_away_from_a_measurement_widens_the_band_and_says_why() -> None:
    b200, gb200, gb300 = (load_hardware(n) for n in ("b200", "gb200", "gb300"))
    measured = kernel_model(gb200, "grouped", "bf16", head_dim=128)
    borrowed = kernel_model(gb300, "grouped", "bf16", head_dim=128, relatives=[b200, gb200])
    assert (measured.basis, borrowed.basis) == ("measured", "generation")
    assert "constants of gb200" in borrowed.notes[-1]
    assert borrowed.band90[1] == pytest.approx(measured.band90[1] * GENERATION_FACTOR)
    assert borrowed.held_out_median_error is None
    alone = kernel_model(gb300, "grouped", "bf16")
    assert (alone.basis, alone.band90) == ("datasheet", DATASHEET_BAND)
    other = kernel_model(load_hardware("h200"), "grouped", "fp8", head_dim=80)
    near = kernel_model(load_hardware("h200"), "grouped", "fp8", head_dim=64)
    assert other.basis == "other_shape"
    assert other.band90[1] == pytest.approx(near.band90[1] * OTHER_SHAPE_FACTOR)


def test_low_rank_states_its_assumptions() -> None:
    h200 = load_hardware("h200")
    grouped = kernel_model(h200, "grouped", "bf16", head_dim=128)
    found = kernel_model(h200, "low_rank", "bf16", head_dim=128)
    assert (found.basis, found.kernel) == ("assumed", "low_rank")
    assert sum(note.startswith("assumed:") for note in found.notes) == 3
    assert found.bytes_per_s == grouped.bytes_per_s
    assert found.band90[1] == pytest.approx(grouped.band90[1] / 0.75)
    assert found.held_out_median_error is None


@pytest.mark.parametrize(
    ("kernel", "lender"),
    [("low_rank_expand", "low_rank"), ("low_rank_materialised", "low_rank"),
     ("mla_materialised", "mla_absorbed")],
)  # fmt: skip
def test_a_path_not_measured_takes_the_constants_of_its_family(kernel: str, lender: str) -> None:
    h200 = load_hardware("h200")
    of_lender = kernel_model(h200, lender, "bf16", query_heads_per_kv_head=16)
    found = kernel_model(h200, kernel, "bf16", query_heads_per_kv_head=16)
    assert found.basis == "assumed"
    assert found.held_out_median_error is None
    assert (found.t0_s, found.bytes_per_s, found.flops_per_s, found.band90) == (
        of_lender.t0_s, of_lender.bytes_per_s, of_lender.flops_per_s, of_lender.band90
    )  # fmt: skip
    assert any(note.startswith("assumed:") for note in found.notes)


def test_a_measured_path_needs_no_lender_and_lends_to_its_family() -> None:
    h200 = load_hardware("h200")
    entry = next(e for e in h200.kernels if e.kernel == "grouped" and e.preferred)
    measured = entry.model_copy(
        update={"kernel": "low_rank", "t0_s": 3e-5, "query_heads_per_kv_head": None,
                "head_dims": None}
    )  # fmt: skip
    own = h200.model_copy(update={"kernels": (*h200.kernels, measured)})
    assert kernel_model(own, "low_rank", entry.kv_dtype).basis == "measured"
    lent = kernel_model(own, "low_rank_expand", entry.kv_dtype)
    assert (lent.basis, lent.t0_s, lent.kernel) == ("assumed", 3e-5, "low_rank_expand")
    assert lent.constants_of == "low_rank"
    assert lent.notes[-1].endswith("constants are those of low_rank")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "groupd"}, "did you mean 'grouped'"),
        ({"backend": "vllm/other"}, "vllm/vllm_flash_attn_fa3"),
        ({"regime": "hot"}, "cold or l2_hot"),
    ],
)
def test_unknown_names_list_the_known_ones(arguments: dict[str, str], message: str) -> None:
    call = {"kernel": "grouped", "kv_dtype": "bf16", **arguments}
    with pytest.raises(UsageError, match=message):
        kernel_model(load_hardware("h200"), **call)  # type: ignore[arg-type]


def test_work_units_are_counted_as_the_lender_of_the_constants_counts_them() -> None:
    model = swap_attention(load_model("lrkv-paper-2.5b"), "lrkv:16,position=rope_expand")
    (layer, *_) = attention_work(model)
    # 18 heads of width 128 rebuild 2,304 scalars a token; a lender counts 18 heads a sequence.
    assert layer.n_units(1000, 2) == 2 * 1000 * 18 * 128
    assert layer.n_units(1000, 2, "grouped") == layer.n_units(1000, 2, "low_rank") == 2 * 18
    found = kernel_model(load_hardware("h100-sxm"), layer.kernel, "bf16", head_dim=128)
    assert found.constants_of == "grouped"
