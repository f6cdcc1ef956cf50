"""What a time rests on: the weakest evidence among terms over a tenth of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lrkv_plan import load_gpu, load_model, swap_attention
from lrkv_plan.latency.basis import attention_basis, basis_by_part, basis_by_term, time_basis
from lrkv_plan.latency.evidence import evidence
from lrkv_plan.latency.step import step_model, step_time

LLAMA, H100 = load_model("llama-3.1-8b"), load_gpu("h100-sxm")


@pytest.mark.parametrize(
    ("design", "gpu", "attention"),
    [("gqa:8", "h100-sxm", "measured"), ("lrkv:16", "h100-sxm", "assumed"),
     ("gqa:8", "mi300x", "datasheet")],
)  # fmt: skip
def test_attention_rests_on_its_weakest_kernel(design: str, gpu: str, attention: str) -> None:
    model = step_model(swap_attention(LLAMA, design), load_gpu(gpu))
    assert attention_basis(model) == attention


def test_only_terms_over_a_tenth_count() -> None:
    model = step_model(LLAMA, H100)
    # one sequence of 32k: attention 1.9 and matrices 5.5 of 8.5 ms are measured; small kernels (0.3)
    # and the engine (0.8), borrowed, are each under a tenth
    step = step_time(model, 32_768, 1)
    assert time_basis(model, step) == "measured"
    # with 1.2 ms the engine's part counts
    slow = replace(step, engine_s=1.2e-3, step_s=step.step_s + 1.2e-3 - step.engine_s)
    assert time_basis(model, slow) == "borrowed"
    # the whole time attention
    alone = replace(step, step_s=1e3 * step.attention_s, attention_s=1e3 * step.attention_s)
    assert time_basis(model, alone) == "measured"


def test_parts_of_a_screen_are_sums_with_their_weightiest_evidence() -> None:
    model = step_model(swap_attention(LLAMA, "mla:512+64"), H100)
    step = step_time(model, 8192, 1)
    parts = basis_by_part(model, step)
    assert set(parts) == {"attention", "weights", "rest"}
    assert sum(seconds for _, seconds in parts.values()) == pytest.approx(step.step_s)
    assert parts["weights"][1] == pytest.approx(step.matrices_s + step.products_s)
    assert parts["rest"] == ("borrowed", pytest.approx(step.small_kernels_s + step.engine_s))
    # matrices measured, products of a shape that was not: under a tenth of both they say nothing
    lent = replace(model, product_basis="other_shape")
    tiny = replace(step, products_s=0.05 * step.matrices_s)
    large = replace(step, products_s=step.matrices_s)
    found = [basis_by_part(lent, one)["weights"][0] for one in (tiny, large)]
    assert found == ["measured", "borrowed"]


def test_an_all_reduce_is_a_term() -> None:
    model = step_model(LLAMA, H100, tp_size=2)
    terms = {term: basis for term, basis, _ in basis_by_term(model, step_time(model, 8192, 1))}
    assert set(terms) == {"attention", "matrices", "all-reduce", "small kernels", "engine"}
    assert terms["all-reduce"] == "measured"


def test_what_other_gpus_and_shapes_lend_is_borrowed() -> None:
    assert [evidence(one) for one in ("generation", "other_shape", "datasheet")] == [
        "borrowed", "borrowed", "datasheet",
    ]  # fmt: skip
