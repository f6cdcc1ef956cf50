"""What a predicted time rests on: the weakest evidence among the terms that make it up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from lrkv_plan.latency.step import StepModel, StepTime

Basis: TypeAlias = Literal["measured", "borrowed", "datasheet", "assumed"]
STRONGEST_FIRST: tuple[Basis, ...] = ("measured", "borrowed", "datasheet", "assumed")
WEIGHTY_SHARE = 0.1  # terms below a tenth of the time say nothing about it
# The weights' pass is a typical share of the datasheet's bandwidth or peak; what a layer and a step
# take beside it is no more than a belief (``latency.step``).
_LINEAR: Basis = "datasheet"
_OVERHEAD: Basis = "assumed"


def evidence(basis: str) -> Basis:
    """The kind of evidence behind a kernel's or all-reduce's basis.

    Examples
    --------
    >>> [evidence(one) for one in ("measured", "other_shape", "generation", "assumed")]
    ['measured', 'borrowed', 'borrowed', 'assumed']
    """
    for known in STRONGEST_FIRST:
        if basis == known:
            return known
    return "borrowed"


def attention_basis(model: StepModel) -> Basis:
    """The weakest evidence among the attention kernels; measured where nothing attends."""
    found = [evidence(kernel.basis) for kernel in model.kernels]
    return max(found, key=STRONGEST_FIRST.index, default="measured")


def basis_by_term(model: StepModel, step: StepTime) -> Iterator[tuple[str, Basis, Any]]:
    """(term, evidence, seconds) of each term of a step."""
    yield "attention", attention_basis(model), step.attention_s
    yield "weights", _LINEAR, step.linear_s
    if model.all_reduce_basis is not None:
        yield "all-reduce", evidence(model.all_reduce_basis), step.all_reduce_s
    yield "overhead", _OVERHEAD, step.overhead_s


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


def time_basis(model: StepModel, step: StepTime) -> Basis:
    """The weakest evidence among terms over a tenth of one step's time."""
    total = float(step.step_s)
    weighty = [
        basis for _, basis, seconds in basis_by_term(model, step)
        if float(seconds) > WEIGHTY_SHARE * total
    ]  # fmt: skip
    return max(weighty, key=STRONGEST_FIRST.index, default="measured")
