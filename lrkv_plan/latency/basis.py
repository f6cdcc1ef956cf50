"""What a predicted time rests on: the weakest evidence among the terms that make it up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lrkv_plan.latency.evidence import STRONGEST_FIRST, Basis, evidence, weakest
from lrkv_plan.latency.step import StepModel, StepTime

WEIGHTY_SHARE = 0.1  # terms below a tenth of the time say nothing about it
# What an engine adds beside its operations is fitted on whole steps of public runs.
_ENGINE: Basis = "borrowed"


def attention_basis(model: StepModel) -> Basis:
    """The weakest evidence among attention kernels and recurrent updates; measured without any."""
    kernels = [one.basis for one in model.kernels]
    return weakest([*kernels, *(one.basis for one in model.updates)])


def basis_by_term(model: StepModel, step: StepTime) -> Iterator[tuple[str, Basis, Any]]:
    """(term, evidence, seconds) of each term of a step."""
    yield "attention", attention_basis(model), step.attention_s
    yield "matrices", weakest(one.basis for one in model.matrix_models), step.matrices_s
    if model.work.linear.products:
        yield "products", evidence(model.product_basis), step.products_s
    if model.experts:
        yield "experts", weakest(one.basis for one in model.experts), step.experts_s
    yield "small kernels", "borrowed", step.small_kernels_s
    if model.all_reduce_basis is not None:
        yield "all-reduce", evidence(model.all_reduce_basis), step.all_reduce_s
    if model.exchange_basis is not None:
        yield "exchange", evidence(model.exchange_basis), step.exchange_s
    yield "engine", _ENGINE, step.engine_s


PARTS_OF_SCREENS = {
    "attention": "attention", "matrices": "weights", "products": "weights", "experts": "weights",
    "all-reduce": "all-reduce", "small kernels": "rest", "exchange": "rest", "engine": "rest",
}  # fmt: skip


def basis_by_part(model: StepModel, step: StepTime) -> dict[str, tuple[Basis, float]]:
    """(evidence, seconds) of attention, weights, all-reduce and the rest of one step.

    The evidence of several terms together is the weakest among those over a tenth of them.
    """
    terms: dict[str, list[tuple[Basis, float]]] = {}
    for term, basis, seconds in basis_by_term(model, step):
        terms.setdefault(PARTS_OF_SCREENS[term], []).append((basis, float(seconds)))
    found: dict[str, tuple[Basis, float]] = {}
    for part, several in terms.items():
        total = sum(seconds for _, seconds in several)
        weighty = [basis for basis, seconds in several if seconds > WEIGHTY_SHARE * total]
        found[part] = weakest(weighty or [basis for basis, _ in several]), total
    return found


def deciding_terms(model: StepModel, step: StepTime) -> Any:
    """For a step over arrays, the term whose evidence ``time_basis`` names, as an array of text.

    The first of equally weak terms; attention where no term is over a tenth.
    """
    import numpy as np

    found = np.full(np.shape(step.step_s), "attention", dtype=object)
    worst = np.zeros(found.shape, dtype=int)
    for term, basis, seconds in basis_by_term(model, step):
        rank = STRONGEST_FIRST.index(basis) + 1
        decides = (seconds > WEIGHTY_SHARE * step.step_s) & (rank > worst)
        found[decides], worst[decides] = term, rank
    return found


def bases_of(model: StepModel, step: StepTime) -> Any:
    """``time_basis`` of a step over arrays, as places in ``STRONGEST_FIRST``."""
    import numpy as np

    worst = np.zeros(np.shape(step.step_s), dtype=np.int8)
    for _, basis, seconds in basis_by_term(model, step):
        rank = STRONGEST_FIRST.index(basis)
        if rank:
            worst[(seconds > WEIGHTY_SHARE * step.step_s) & (rank > worst)] = rank
    return worst


def time_basis(model: StepModel, step: StepTime) -> Basis:
    """The weakest evidence among terms over a tenth of one step's time."""
    total = float(step.step_s)
    weighty = [
        basis for _, basis, seconds in basis_by_term(model, step)
        if float(seconds) > WEIGHTY_SHARE * total
    ]  # fmt: skip
    return max(weighty, key=STRONGEST_FIRST.index, default="measured")
