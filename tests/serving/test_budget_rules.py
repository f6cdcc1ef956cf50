"""Budget rules of each engine: terms by hand, ranges, and printed figures of other versions."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import SpecError, UsageError
from lrkv_plan.memory.weights import weight_bytes_per_gpu
from lrkv_plan.serving.budget_rules import MemoryBudget, budget_for
from lrkv_plan.serving.engine import ENGINES, engine_named
from lrkv_plan.serving.engines.vllm import default_max_sequences
from lrkv_plan.serving.engines.vllm_activation import GIB
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

GOLDEN_MODELS = Path(__file__).parents[1] / "golden" / "models"
H100 = lrkv_plan.load_hardware("h100-sxm")
LLAMA = lrkv_plan.load_model("llama-3.1-8b")


def budget(
    model: ModelSpec = LLAMA,
    engine: str = "vllm@0.19.0",
    hardware: HardwareProfile = H100,
    context: int = 8192,
    **changes: Any,
) -> MemoryBudget:
    sizes = {k: changes.pop(k) for k in list(changes) if k.endswith("_size")}
    settings = EngineSettings(context_tokens=context)
    return budget_for(
        engine_named(engine), model, hardware, Parallelism(**sizes), settings, **changes
    )


def test_vllm_terms_by_hand() -> None:
    got = budget(utilisation=Fraction(95, 100)).deciding
    visible = H100.mem_visible_bytes
    assert visible is not None
    assert got.bytes_of("memory") == visible
    assert got.bytes_of("outside utilisation") == int(visible * Fraction(95, 100)) - visible
    assert got.bytes_of("weights") == -2 * 8_030_261_248
    assert got.bytes_of("CUDA graphs") == 0
    assert got.kv_bytes == sum(term.n_bytes for term in got.terms)
    assert got.kv_bytes / GIB == pytest.approx(58.11, abs=0.1)  # as printed


def test_cuda_graphs_are_inside_from_0_21() -> None:
    half = Fraction(9, 10)
    before, after = budget(utilisation=half), budget(engine="vllm@0.21.0", utilisation=half)
    assert before.kv_bytes_per_gpu - after.kv_bytes_per_gpu == int(0.84 * GIB)
    assert any("outside this budget" in remark for remark in before.remarks)
    # The log of 0.21 says that 0.90 then acts like about 0.886: 0.014 * 79.19 = 1.1 GiB
    assert budget(engine="vllm@0.21.0").utilisation == Fraction(92, 100)
    assert before.utilisation == budget().utilisation == half


@pytest.mark.parametrize(("context", "printed_gib"), [(20_000, 3.81), (29_000, 2.89)])
def test_v0_profiles_one_whole_prompt(context: int, printed_gib: float) -> None:
    # vLLM 0.6.3, Llama-3.1-8B on an RTX 3090 at 0.9, as public logs print it
    got = budget(
        engine="vllm@0.6.3", hardware=lrkv_plan.load_hardware("rtx-3090"), context=context
    ).deciding
    assert got.kv_bytes / GIB == pytest.approx(printed_gib, abs=0.15)
    assert got.kv_low_bytes <= printed_gib * GIB <= got.kv_high_bytes


def test_the_last_stage_decides_where_it_has_the_head() -> None:
    got = budget(pp_size=2, utilisation=Fraction(95, 100))
    first, last = got.stage_kv_bytes_per_gpu
    assert first / GIB == pytest.approx(66.54, abs=0.1)  # as printed by the first stage
    assert last / GIB == pytest.approx(65.63, abs=0.1)  # from the printed tokens
    assert got.kv_bytes_per_gpu == last


def test_each_engine_means_something_else_by_its_fraction() -> None:
    visible, weights = H100.mem_visible_bytes or 0, 10 * GIB
    half = Fraction(1, 2)

    def left(engine: str) -> int:
        return budget(engine=engine, utilisation=half, weight_bytes=weights).kv_bytes_per_gpu

    assert left("ideal") == left("paged") == visible // 2 - weights
    # SGLang: half of what is free before the load, the driver's 0.25 GiB taken off
    assert left("sglang") == pytest.approx((visible - GIB / 4) / 2 - weights, abs=1)
    assert left("vllm@0.19.0") < left("sglang")
    # TensorRT-LLM: half of what is free after load, which is more than half of all less the load
    free = budget(engine="tensorrt_llm", utilisation=Fraction(1), weight_bytes=weights)
    assert left("tensorrt_llm") == pytest.approx(free.kv_bytes_per_gpu / 2, abs=1)
    assert left("llama_cpp") < left("ideal")


def test_a_printed_tensorrt_case() -> None:
    # 17.83 GiB free after load, fraction 0.9: 16.05 GiB of pool
    assert pytest.approx(16.05, abs=0.005) == 17.83 * 0.9
    free = budget(engine="tensorrt_llm", utilisation=Fraction(1)).kv_bytes_per_gpu
    assert budget(engine="tensorrt_llm").kv_bytes_per_gpu == pytest.approx(free * 0.9, abs=1)


def test_memory_that_is_not_known_is_nominal_with_a_remark() -> None:
    unknown = H100.model_copy(update={"mem_visible_bytes": None})
    got = budget(hardware=unknown)
    assert got.deciding.bytes_of("memory") == 80 * GIB
    assert any("nominal memory" in remark for remark in got.remarks)


def test_other_gpus_take_the_constants_with_a_wider_range() -> None:
    def width(name: str) -> int:
        stage = budget(hardware=lrkv_plan.load_hardware(name)).deciding
        return stage.kv_high_bytes - stage.kv_low_bytes

    assert width("h200") > 2 * width("h100-sxm")
    assert default_max_sequences(lrkv_plan.load_hardware("a100-sxm-80gb")) == 256
    assert default_max_sequences(lrkv_plan.load_hardware("h200")) == 1024
    assert default_max_sequences(lrkv_plan.load_hardware("l40s")) == 256


def test_weights_that_do_not_fit_leave_a_negative_budget_and_say_how_short() -> None:
    got = budget(lrkv_plan.load_model("llama-3.1-70b"))
    assert got.kv_bytes_per_gpu < 0
    assert any("GiB short on each GPU" in remark for remark in got.remarks)
    # 141.1 GB of weights on two GPUs of 79.19 GiB: about 65.7 + 2.0 + 2.2 GiB each
    tight = budget(lrkv_plan.load_model("llama-3.1-70b"), tp_size=2, utilisation=Fraction(8, 10))
    (remark,) = [r for r in tight.remarks if "utilisation of at least" in r]
    needed = Fraction(remark.split("at least ")[1])
    again = budget(lrkv_plan.load_model("llama-3.1-70b"), tp_size=2, utilisation=needed)
    assert 0 < again.kv_bytes_per_gpu < 2e-4 * (H100.mem_visible_bytes or 0)


def test_given_weights_replace_the_count_and_say_so(paper: ModelSpec) -> None:
    got = budget(paper, weight_bytes=5 * GIB).deciding
    (weights,) = [term for term in got.terms if term.name == "weights"]
    assert (weights.n_bytes, weights.provenance) == (-5 * GIB, "given")
    with pytest.raises(UsageError, match=r"weight format is not stated.*--weight-dtype"):
        budget(paper)
    with pytest.raises(SpecError, match="not stated, so weights cannot be counted"):
        budget(paper, weight_dtype="bf16")


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_engine_has_a_budget_whose_terms_say_where_they_come_from(engine: str) -> None:
    got = budget(engine=engine, tp_size=2, pp_size=2)
    assert len(got.stages) == 2
    for stage in got.stages:
        assert stage.kv_low_bytes <= stage.kv_bytes <= stage.kv_high_bytes
        assert all(term.provenance for term in stage.terms)
        for term in stage.terms:
            assert term.low_bytes is None or term.low_bytes <= term.n_bytes <= (
                term.high_bytes or 0
            )
    larger = budget(engine=engine, weight_dtype="fp32")
    assert larger.kv_bytes_per_gpu < budget(engine=engine).kv_bytes_per_gpu


@pytest.mark.parametrize("value", [Fraction(0), Fraction(-1), Fraction(101, 100)])
def test_a_utilisation_out_of_range_is_refused(value: Fraction) -> None:
    with pytest.raises(UsageError, match="must be above 0 and at most 1"):
        budget(utilisation=value)


def test_the_weights_term_is_the_calculators() -> None:
    parallel = Parallelism(tp_size=2, pp_size=2)
    counted = weight_bytes_per_gpu(LLAMA, parallel=parallel, weight_dtype="fp8")
    got = budget(weight_dtype="fp8", tp_size=2, pp_size=2)
    assert [s.bytes_of("weights") for s in got.stages] == [-s.total for s in counted.stages]


def test_before_0_17_the_peak_is_assumed_with_a_range() -> None:
    qwen = lrkv_plan.load_model(GOLDEN_MODELS / "qwen3-14b.yaml")
    got = budget(qwen, engine="vllm@0.16.0", utilisation=Fraction(95, 100)).deciding
    assert got.kv_bytes / GIB == pytest.approx(41.94, rel=0.01)  # as 0.15 and 0.16 printed
    (peak,) = [term for term in got.terms if term.name == "activation peak"]
    assert peak.provenance.startswith("assumed, range 2.")
    assert got.kv_low_bytes <= got.kv_bytes < got.kv_high_bytes
