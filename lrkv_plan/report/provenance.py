"""What a number on a page rests on: a mark, a word, and the source and error behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.latency.basis import STRONGEST_FIRST, evidence
from lrkv_plan.report.screen import GLYPHS, short_bytes

if TYPE_CHECKING:
    from lrkv_plan.latency.kernel import KernelModel
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
    of_kernels = {note for kernel in step.kernels for note in kernel.notes}
    others = [note for note in step.remarks if note not in of_kernels]
    assumed = _sentences(note for note in others if note.startswith("assumed: "))
    found = {
        "weights": Chip(word="datasheet", label="weights' pass", lines=assumed),
        "overhead": Chip(word="assumed", label="fixed time of layers and step", lines=assumed),
    }
    if step.all_reduce_basis is not None:
        notes = _sentences(note for note in others if note.startswith("all-reduce"))
        word = evidence(step.all_reduce_basis)
        found["all-reduce"] = Chip(word=word, label="all-reduce", lines=notes)
    kernels = [kernel_chip(kernel) for kernel in step.kernels]
    if kernels:
        found["attention"] = max(kernels, key=lambda chip: STRONGEST_FIRST.index(chip.word))
    return found


def _sentences(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{one[0].upper()}{one[1:].rstrip('.')}." for one in notes if one)
