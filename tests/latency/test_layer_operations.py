"""Times of a layer's operations by hand, and whose constants apply where a GPU has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lrkv_plan.errors import SpecError, UsageError
from lrkv_plan.latency.exchange import ExchangeModel, exchange_model, exchange_time
from lrkv_plan.latency.experts import (
    ExpertModel,
    active_experts,
    expert_model,
    expert_time,
    fullest_rank,
)
from lrkv_plan.latency.matrix import PRIORS, MatrixModel, matrix_model, matrix_time
from lrkv_plan.latency.operands import OPERAND_FORMATS
from lrkv_plan.latency.products import ProductModel, product_model, product_time
from lrkv_plan.latency.recurrent import RecurrentModel, recurrent_model, recurrent_time
from lrkv_plan.latency.small_kernels import small_kernel_models, small_kernel_time
from lrkv_plan.loader import load_all_hardware, load_hardware
from lrkv_plan.specs.hardware import HardwareProfile, Link, with_block
from lrkv_plan.specs.layer_constants import (
    ExchangeConstants,
    MatrixConstants,
    ProductConstants,
    RecurrentConstants,
)

STATED: dict[str, Any] = {
    "identified": ("t0_s", "beta", "phi"), "n_points": 100, "held_out_by": "shapes",
    "held_out_median_error": 0.05, "held_out_p90_error": 0.15, "band90": (0.8, 1.25),
    "backend": "vllm", "source": "made up", "licence": "none",
}  # fmt: skip
MADE_UP: dict[str, Any] = {"band90": (0.9, 1.1), "basis": "measured", "engine": "vllm"}


def matrices(engine: str, format_name: str = "bf16", t0_s: float = 4e-6) -> MatrixConstants:
    return MatrixConstants(
        **STATED, engine=engine, format=format_name, t0_s=t0_s, beta=0.8, phi=0.5, peak="bf16",
        tau_s_per_element=1e-10,
    )  # fmt: skip


def gpu(name: str, generation: str = "hopper", **blocks: Any) -> HardwareProfile:
    base = load_hardware("h100-sxm")
    empty = {"matrices": (), "experts": (), "products": (), "exchanges": (), "recurrent": ()}
    changes = {"name": name, "generation": generation, **empty, **blocks}
    return base.model_copy(update=changes)


def test_a_matrix_by_hand() -> None:
    # bytes 6000 x 8000 x 2 + 2 x 50 x 14000 = 97.4e6 at 1e12 B/s: 97.4 us; flops 2 x 50 x 48e6 at
    # 1e14: 48 us; 8000 elements at 1 ns: 8 us. 4 + sqrt(97.4^2 + 48^2 + 8^2) = 112.880 us.
    model = MatrixModel(
        **MADE_UP, t0_s=4e-6, bytes_per_s=1e12, flops_per_s=1e14, tau_s_per_element=1e-9,
        bits_per_weight=16,
    )  # fmt: skip
    call = matrix_time(model, 50, 6000, 8000)
    assert call.time_s == pytest.approx(112.8796e-6, rel=1e-6)
    assert call.low_s == pytest.approx(0.9 * call.time_s)
    assert call.high_s == pytest.approx(1.1 * call.time_s)
    # Stored bytes stated: 48e6 + 1.4e6 at 1e12 is 49.4 us; 4 + sqrt(49.4^2 + 48^2 + 8^2).
    stated = matrix_time(model, 50, 6000, 8000, weight_bytes=48_000_000)
    assert stated.time_s == pytest.approx(4e-6 + math.sqrt(49.4**2 + 48**2 + 8**2) * 1e-6)


def test_experts_by_hand() -> None:
    # 16 active x 3 x 2000 x 1000 x 1 B = 96e6, rows 64: 2 x 64 x (4000 + 3000) = 896_000: 96.896 us;
    # flops 2 x 64 x 6e6 = 768e6 at 1e13: 76.8 us; 20 + hypot + 16 x 0.1 = 145.24 us.
    model = ExpertModel(
        **MADE_UP, t0_s=20e-6, bytes_per_s=1e12, flops_per_s=1e13, expert_s=1e-7, bits_per_weight=8,
        hot_bytes_per_s=2e12,
    )  # fmt: skip
    told = {"active": 16, "rows": 64, "hidden_size": 2000, "inter_size": 1000}
    cold = expert_time(model, **told)  # type: ignore[arg-type]
    assert cold.time_s == pytest.approx(20e-6 + math.hypot(96.896e-6, 76.8e-6) + 1.6e-6)
    hot = expert_time(model, **told, l2_hot=True)  # type: ignore[arg-type]
    assert hot.time_s == pytest.approx(20e-6 + math.hypot(48.448e-6, 76.8e-6) + 1.6e-6)


def test_experts_touched_and_the_fullest_rank() -> None:
    assert active_experts(8, 2, 2, exponent=1) == pytest.approx(8 * (1 - 0.75**2))
    assert active_experts(8, 2, 2) == pytest.approx(8 * (1 - 0.75 ** (2**0.9)))
    assert active_experts(8, 8, 1) == 8
    # 4 of 16 on average, 4 ranks: 4 + sqrt(2 x 4 x 0.75 x ln 4) = 6.884; rows have no bound.
    assert fullest_rank(4, 4, most=16) == pytest.approx(4 + math.sqrt(6 * math.log(4)))
    assert fullest_rank(4, 4) == pytest.approx(4 + math.sqrt(8 * math.log(4)))
    assert fullest_rank(15.9, 64, most=16) == 16
    assert fullest_rank(16, 4, most=16) == 16
    both = fullest_rank(np.array([4.0, 15.9]), 4, most=16)
    assert both == pytest.approx([fullest_rank(4, 4, most=16), fullest_rank(15.9, 4, most=16)])


def test_products_exchanges_and_updates_by_hand() -> None:
    product = ProductModel(**MADE_UP, t0_s=4e-6, head_s=1e-8, token_scale=30.0)
    # 4 + 0.01 x 64 x (1 + 2) = 5.92 us; half the width of a head: half of the second term.
    assert product_time(product, 60, 64).time_s == pytest.approx(5.92e-6)
    assert product_time(product, 60, 64, cols=256).time_s == pytest.approx(4.96e-6)
    exchange = ExchangeModel(**MADE_UP, t0_s=40e-6, scalar_s=2e-11)
    # 40 + 2e-5 us x 100 x 4000 = 48 us
    assert exchange_time(exchange, 100, 4000).time_s == pytest.approx(48e-6)
    update = RecurrentModel(
        **MADE_UP, kind="mamba2", t0_s=4e-6, bytes_per_s=2e12, conv_t0_s=3e-6,
        conv_bytes_per_s=1e12,
    )  # fmt: skip
    # 4 + 8e6 / 2e12 + 3 + 2e6 / 1e12 = 13 us
    assert recurrent_time(update, 8e6, 2e6).time_s == pytest.approx(13e-6)


def test_a_small_kernel_is_a_start_and_one_pass() -> None:
    model = small_kernel_models()["norm"]
    expected = model.t0_s + model.width_s * 4096 + model.scalar_s * 4096 * 64
    assert small_kernel_time("norm", 64, 4096).time_s == pytest.approx(expected)
    assert 1.9e-6 < small_kernel_time("norm", 1, 4096).time_s < 2.6e-6  # measured 1.85 to 2.42
    with pytest.raises(UsageError, match=r"small kernel 'nrom' is unknown.*norm"):
        small_kernel_time("nrom", 1, 4096)


def test_constants_are_taken_in_order() -> None:
    own = gpu("own", matrices=(matrices("vllm", t0_s=1e-6), matrices("sglang", t0_s=2e-6)))
    kin = gpu("kin", matrices=(matrices("vllm", t0_s=3e-6), matrices("tensorrt_llm", t0_s=5e-6)))
    far = gpu("far", "ada", matrices=(matrices("vllm", t0_s=7e-6),))
    bare = gpu("bare")
    others = (kin, far)
    measured = matrix_model(own, "sglang", "bf16", others)
    assert (measured.t0_s, measured.basis, measured.band90) == (2e-6, "measured", (0.8, 1.25))
    assert measured.held_out_median_error == 0.05
    # The same engine on another GPU of the generation comes before another engine on this GPU.
    lent = matrix_model(own, "tensorrt_llm", "bf16", others)
    assert (lent.t0_s, lent.basis, lent.gpu) == (5e-6, "generation", "kin")
    assert lent.held_out_median_error is None
    assert lent.band90[0] < 0.8
    assert lent.band90[1] > 1.25
    assert "not measured on own: constants of kin" in lent.notes[-1]
    # Another engine on this GPU comes before another engine elsewhere.
    alone = matrix_model(own, "tensorrt_llm", "bf16", (far,))
    assert (alone.t0_s, alone.basis, alone.lender) == (1e-6, "other_engine", "vllm")
    unlike = matrix_model(gpu("x", matrices=(matrices("sglang"),)), "llama_cpp", "bf16")
    assert (unlike.basis, unlike.lender) == ("other_engine", "sglang")
    # Both at once widen twice, and say both.
    twice = matrix_model(bare, "sglang", "bf16", others)
    assert (twice.t0_s, twice.basis, twice.gpu) == (3e-6, "other_engine", "kin")
    assert len(twice.notes) == 2
    assert twice.band90[1] > alone.band90[1] > lent.band90[1]
    # Another generation lends nothing unless it is named: typical constants.
    typical = matrix_model(bare, "vllm", "bf16", (far,))
    assert (typical.basis, typical.t0_s, typical.gpu) == ("datasheet", 4e-6, "")
    assert "datasheet: no matrix in bf16 was measured on hopper GPUs" in typical.notes[0]


def test_shares_refer_to_the_asking_gpu() -> None:
    kin = gpu("kin", matrices=(matrices("vllm"),))
    slow = gpu("slow").model_copy(update={"mem_bandwidth_bytes_per_s": 1e12})
    assert matrix_model(slow, "vllm", "bf16", (kin,)).bytes_per_s == pytest.approx(0.8e12)


def test_a_gpu_that_takes_after_another_asks_it_first() -> None:
    near = gpu("h200", matrices=(matrices("vllm", t0_s=2e-6),))
    alike = gpu("h800", matrices=(matrices("vllm", t0_s=3e-6),))
    h20 = gpu("h20", takes_after=("h200",))  # same figures as h800 here, yet it takes after h200
    assert matrix_model(h20, "vllm", "bf16", (alike, near)).gpu == "h200"
    card = gpu("rtx-4090", "ada", takes_after=("l40s",))
    lent = matrix_model(
        card, "vllm", "bf16", (gpu("l40s", "ampere", matrices=(matrices("vllm"),)),)
    )
    assert (lent.basis, lent.gpu) == ("other_generation", "l40s")


def test_an_engine_that_does_not_run_its_own_table_takes_anothers() -> None:
    tables = (matrices("tensorrt_llm", "fp8", 9e-6), matrices("vllm", "fp8", 6e-6))
    found = matrix_model(gpu("own", matrices=tables), "tensorrt_llm", "fp8")
    assert (found.lender, found.t0_s, found.basis) == ("vllm", 4e-6, "other_engine")
    assert "static scales need no quantiser" in found.notes[0]
    # On Ampere fp8 weights are dequantised on the way: the weight-only table stands there.
    old = gpu("a", "ampere", matrices=(matrices("vllm", "int8_wo", 16e-6),))
    assert matrix_model(old, "vllm", "fp8").t0_s == 16e-6


@pytest.mark.parametrize("format_name", sorted(OPERAND_FORMATS))
def test_every_format_has_typical_constants(format_name: str) -> None:
    found = matrix_model(gpu("bare"), "vllm", format_name)
    assert found.t0_s == PRIORS[format_name].t0_s
    assert expert_model(gpu("bare"), "vllm", format_name).t0_s == 27e-6
    other = load_hardware("mi300x").model_copy(update={"matrices": ()})
    foreign = matrix_model(other, "vllm", format_name)
    assert foreign.band90[1] > found.band90[1]


def test_the_nearest_number_of_ranks_and_nodes() -> None:
    def entry(ranks: int, nodes: int, t0_s: float) -> ExchangeConstants:
        return ExchangeConstants(
            **STATED, engine="sglang", implementation="x", ranks=ranks, nodes=nodes,
            hidden_size=7168, t0_s=t0_s, token_s=7.168e-7,
        )  # fmt: skip

    own = gpu("own", exchanges=(entry(8, 1, 4e-5), entry(16, 2, 9e-5), entry(2, 1, 2e-5)))
    exact = exchange_model(own, "sglang", 8)
    assert (exact.t0_s, exact.basis, exact.scalar_s) == (4e-5, "measured", pytest.approx(1e-10))
    off = exchange_model(own, "sglang", 3)
    assert (off.t0_s, off.basis) == (2e-5, "other_shape")
    assert off.band90[1] > exact.band90[1]
    assert exchange_model(own, "sglang", 16, nodes=2).t0_s == 9e-5
    assert exchange_time(exchange_model(own, "sglang", 1), 100, 4096).time_s == 0
    with pytest.raises(UsageError, match="nodes 9"):
        exchange_model(own, "sglang", 8, nodes=9)
    with pytest.raises(SpecError, match="no link"):
        exchange_model(gpu("bare", link=None), "sglang", 8)


def test_an_exchange_is_lent_over_the_same_kind_of_link() -> None:
    entry = ExchangeConstants(
        **STATED, engine="vllm", implementation="x", ranks=8, hidden_size=1000, t0_s=4e-5,
        token_s=1e-7,
    )  # fmt: skip
    fast = Link(name="NVLink 4", bandwidth_bytes_per_s=450e9)
    kin = gpu("kin", exchanges=(entry,), link=fast)
    slower = gpu("slower", link=Link(name="NVLink 3", bandwidth_bytes_per_s=300e9))
    found = exchange_model(slower, "vllm", 8, relatives=(kin,))
    assert (found.basis, found.scalar_s) == ("generation", pytest.approx(1.5e-10))
    card = gpu("card", link=Link(name="PCIe 4", bandwidth_bytes_per_s=32e9))
    assert exchange_model(card, "vllm", 8, relatives=(kin,)).basis == "datasheet"


def test_its_own_generation_comes_before_one_that_it_takes_after() -> None:
    old = gpu("l40s", "ada", matrices=(matrices("vllm", t0_s=3e-6),))
    kin = gpu("kin", "blackwell-consumer", matrices=(matrices("vllm", t0_s=2e-6),))
    card = gpu("rtx-5090", "blackwell-consumer", takes_after=("l40s",))
    assert matrix_model(card, "vllm", "bf16", (old, kin)).gpu == "kin"
    assert matrix_model(card, "vllm", "bf16", (old,)).basis == "other_generation"


def test_every_shipped_gpu_has_times() -> None:
    everyone = load_all_hardware()
    for hardware in everyone:
        for format_name in OPERAND_FORMATS:
            for engine in ("vllm", "tensorrt_llm", "llama_cpp"):
                call = matrix_time(
                    matrix_model(hardware, engine, format_name, everyone), 1, 4096, 4096
                )
                assert 0 < call.low_s < call.time_s < call.high_s < 1
            assert expert_model(hardware, "vllm", format_name, everyone).t0_s > 0
        assert product_model(hardware, "vllm", relatives=everyone).head_s > 0


def test_lent_heads_take_longer_on_less_bandwidth() -> None:
    entry = ProductConstants(
        **STATED, engine="vllm", format="bf16", t0_s=4e-6, head_s=1e-8, token_scale=40
    )
    half = gpu("half").model_copy(update={"mem_bandwidth_bytes_per_s": 3.35e12 / 2})
    assert product_model(half, "vllm", relatives=(gpu("kin", products=(entry,)),)).head_s == 2e-8


def test_a_kind_of_update_is_not_another() -> None:
    entry = RecurrentConstants(
        **STATED, kind="gated_delta", engine="vllm", t0_s=4e-6, beta=0.8, conv_t0_s=3e-6,
        conv_beta=0.4,
    )  # fmt: skip
    own = gpu("own", recurrent=(entry,))
    assert recurrent_model(own, "vllm", "gated_delta").basis == "measured"
    assert recurrent_model(own, "vllm", "mamba2").basis == "datasheet"
    with pytest.raises(UsageError, match=r"kind 'mamba' .*mamba2"):
        recurrent_model(own, "vllm", "mamba")


@pytest.mark.parametrize("bad", [-1, float("nan"), np.array([1.0, -1.0])])
def test_what_is_no_number_is_refused(bad: Any) -> None:
    model = matrix_model(gpu("bare"), "vllm", "bf16")
    with pytest.raises(UsageError, match="m "):
        matrix_time(model, bad, 64, 64)
    with pytest.raises(UsageError, match=r"unknown.*nvfp4"):
        matrix_model(gpu("bare"), "vllm", "nvfp5")


def test_arrays_are_scalars_and_more_is_never_faster() -> None:
    bare, wide = gpu("bare"), gpu("wide").model_copy(update={"mem_bandwidth_bytes_per_s": 5e12})
    m, n, k = (
        np.array(v) for v in ([1, 2, 64, 300], [512, 4096, 4096, 9000], [64, 64, 8192, 9000])
    )
    for format_name in OPERAND_FORMATS:
        model = matrix_model(bare, "vllm", format_name)
        times = matrix_time(model, m, n, k).time_s
        each = [matrix_time(model, *map(int, row)).time_s for row in zip(m, n, k, strict=True)]
        assert list(times) == pytest.approx(each)  # type: ignore[arg-type]
        assert (matrix_time(model, m + 1, n, k).time_s >= times).all()  # type: ignore[union-attr]
        assert (matrix_time(model, m, n + 1, k).time_s >= times).all()  # type: ignore[union-attr]
        assert (matrix_time(model, m, n, k + 1).time_s >= times).all()  # type: ignore[union-attr]
        faster = matrix_time(matrix_model(wide, "vllm", format_name), m, n, k).time_s
        assert (faster <= times).all()  # type: ignore[operator]
        experts = expert_model(bare, "vllm", format_name)
        told = {"rows": m, "hidden_size": 4096, "inter_size": 512}
        assert list(expert_time(experts, active=m, **told).time_s) == pytest.approx(  # type: ignore
            [
                expert_time(experts, active=one, **{**told, "rows": one}).time_s  # type: ignore
                for one in map(int, m)
            ]
        )


def test_a_block_reads_back(tmp_path: Any) -> None:
    text = with_block(
        "name: toy\n", "matrices", [matrices("vllm"), matrices("sglang", "fp8")], "written"
    )
    path = tmp_path / "toy.yaml"
    full = load_hardware("l4").model_dump(exclude_defaults=True, mode="json")
    import json

    keep = {k: v for k, v in full.items() if k not in ("name", "matrices", "kernels", "allreduce")}
    path.write_text(text + "\n".join(f"{k}: {json.dumps(v)}" for k, v in keep.items()) + "\n")
    assert load_hardware(path).matrices == (matrices("vllm"), matrices("sglang", "fp8"))
