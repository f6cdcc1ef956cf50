"""What a time rests on: the weakest evidence among terms over a tenth of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lrkv_plan import load_gpu, load_model, swap_attention
from lrkv_plan.latency.basis import attention_basis, basis_by_term, time_basis
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
    # 54 sequences of 8k: attention 18.9 of 25.0 ms (measured), weights 5.3 (datasheet), rest 0.84
    assert time_basis(model, step_time(model, 8192, 54)) == "datasheet"
    # one sequence: 0.84 of 7.0 ms is overhead, which nothing measured
    assert time_basis(model, step_time(model, 8192, 1)) == "assumed"
    # the whole time attention
    step = step_time(model, 8192, 54)
    alone = replace(step, step_s=1e3 * step.attention_s, attention_s=1e3 * step.attention_s)
    assert time_basis(model, alone) == "measured"


def test_an_all_reduce_is_a_term() -> None:
    model = step_model(LLAMA, H100, tp_size=2)
    terms = {term: basis for term, basis, _ in basis_by_term(model, step_time(model, 8192, 1))}
    assert set(terms) == {"attention", "weights", "all-reduce", "overhead"}
    assert terms["all-reduce"] == "measured"


def test_what_other_gpus_and_shapes_lend_is_borrowed() -> None:
    assert [evidence(one) for one in ("generation", "other_shape", "datasheet")] == [
        "borrowed", "borrowed", "datasheet",
    ]  # fmt: skip
