"""What a number on a page rests on: a mark, a word, and the source and error behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.latency.evidence import STRONGEST_FIRST, evidence, weakest
from lrkv_plan.latency.exchange import ExchangeModel
from lrkv_plan.latency.products import ProductModel
from lrkv_plan.latency.small_kernels import small_kernel_models
from lrkv_plan.report.screen import GLYPHS, short_bytes

if TYPE_CHECKING:
    from lrkv_plan.latency.kernel import KernelModel
    from lrkv_plan.latency.operation import OperationModel
    from lrkv_plan.latency.step import StepModel
    from lrkv_plan.serving.budget import BudgetTerm

# A mark repeats the word, for glances.
MARKS: Mapping[str, str] = {"exact": "■", **GLYPHS}


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One foundation: how well it is known, its name, and sentences with source and error.

    ``columns`` are keys of measures that rest on it alone.
    """

    word: str  # a key of MARKS
    label: str
    lines: tuple[str, ...]
    columns: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """The word as a glyph."""
        return MARKS[self.word]


def kernel_chip(kernel: KernelModel) -> Chip:
    """What the times of an attention kernel rest on."""
    word = evidence(kernel.basis)
    median, p90 = kernel.held_out_median_error, kernel.held_out_p90_error
    errors = [
        f"{what} {100 * error:.1f} %" for what, error in (("median", median), ("p90", p90)) if error
    ]
    low, high = (f"{factor:.3g}" for factor in kernel.band90)
    lines = [
        f"Constants of {kernel.backend}, {kernel.kv_dtype} cache."
        if kernel.backend
        else f"No measured backend, {kernel.kv_dtype} cache.",
        f"Error on measurements held out of the fit: {', '.join(errors)}."
        if errors
        else "Not compared with measurements of this kernel on this GPU.",
        f"Its attention time is taken from {low} to {high} times the prediction.",
        *_sentences(kernel.notes),
    ]
    name = kernel.kernel.replace("_", " ")
    error = f", {100 * median:.1f} %" if median else ""
    return Chip(
        word=word, label=f"{name} kernel, {kernel.kv_dtype}{error}", lines=tuple(lines)
    )  # fmt: skip


def bytes_chip(citations: Iterable[str]) -> Chip:
    """What cache bytes rest on."""
    sources = [f"Model: {one.rstrip('.')}." for one in citations if one]
    return Chip(
        word="exact",
        label="cache bytes",
        lines=("Counted from the model's tensors and the format's bits; no error.", *sources),
        columns=("bytes_per_token_per_gpu", "cache_bytes_per_gpu"),
    )


def users_chip(engine: str, terms: Sequence[BudgetTerm]) -> Chip:
    """What the users that fit rest on: the terms of one GPU's memory."""
    uncertain = any(term.low_bytes != term.high_bytes for term in terms)
    return Chip(
        word="assumed" if uncertain else "exact",
        label=f"memory left by {engine}",
        lines=tuple(_term_line(term) for term in terms),
        columns=("max_sequences", "total_sequences"),
    )


def _term_line(term: BudgetTerm) -> str:
    low, high = term.low_bytes, term.high_bytes
    known = low is None or high is None or low == high
    between = "" if known else f" ({short_bytes(low or 0)} to {short_bytes(high or 0)})"
    return f"{term.name}: {short_bytes(term.n_bytes)}{between}; {term.provenance}."


def step_chips(step: StepModel) -> list[Chip]:
    """All that a step's time rests on."""
    others = [chip for term, chip in chips_by_term(step).items() if term != "attention"]
    return [*dict.fromkeys(map(kernel_chip, step.kernels)), *others]


def chips_by_term(step: StepModel) -> dict[str, Chip]:
    """What each term of a step rests on; of several attention kernels the least known one."""
    found = {
        "matrices": _operations_chip("matrices", step.matrix_models),
        "small kernels": Chip(
            word="borrowed", label="small kernels",
            lines=_sentences(
                dict.fromkeys(n for one in small_kernel_models().values() for n in one.notes)
            ),
        ),
        "engine": Chip(
            word="borrowed", label=f"what {step.engine.name} adds to a step",
            lines=("Fitted on public runs of whole steps.",),
        ),
    }  # fmt: skip
    if step.work.linear.products:
        models = [one for one in step.operations if isinstance(one, ProductModel)]
        found["products"] = _operations_chip(
            "products over heads", models, basis=step.product_basis, more=step.work.assumptions
        )
    if step.experts:
        found["experts"] = _operations_chip("experts", step.experts)
    if step.all_reduce_basis is not None:
        notes = _sentences(note for note in step.remarks if note.startswith("all-reduce"))
        word = evidence(step.all_reduce_basis)
        found["all-reduce"] = Chip(word=word, label="all-reduce", lines=notes)
    if step.exchange_basis is not None:
        exchanges = [one for one in step.operations if isinstance(one, ExchangeModel)]
        found["exchange"] = _operations_chip("exchange of experts' tokens", exchanges)
    kernels = [kernel_chip(kernel) for kernel in step.kernels]
    if kernels:
        found["attention"] = max(kernels, key=lambda chip: STRONGEST_FIRST.index(chip.word))
    return found


def _operations_chip(
    label: str,
    models: Sequence[OperationModel],
    *,
    basis: str | None = None,
    more: Iterable[str] = (),
) -> Chip:
    """What the times of one kind of operation rest on, in each format.

    Parameters
    ----------
    basis : that of all together, where it is not the weakest of the models'.
    more : further sentences.
    """
    word = evidence(basis) if basis else weakest(one.basis for one in models)
    lines = [
        f"{one.format or label}: {one.basis.replace('_', ' ')}"
        + (f", {one.lender} on {one.gpu}" if one.gpu else "")
        + ("" if one.held_out_median_error is None
           else f", error on shapes left out {100 * one.held_out_median_error:.1f} %")
        for one in dict.fromkeys(models)
    ]  # fmt: skip
    return Chip(word=word, label=label, lines=_sentences(dict.fromkeys((*lines, *more))))


def _sentences(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{one[0].upper()}{one[1:].rstrip('.')}." for one in notes if one)
