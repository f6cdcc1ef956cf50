"""What printed claims say when they are recomputed, and what a checkpoint's heads share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, did_you_mean, shown
from lrkv_plan.questions.arguments import Number, Texts, budget_text, low_rank_variant, refuse
from lrkv_plan.questions.result import Result

if TYPE_CHECKING:
    from lrkv_plan.checkpoint.inspection import LayerInspection
    from lrkv_plan.checkpoint.projections import AttentionLayers
    from lrkv_plan.checkpoint.rank_plan import RankPlan
    from lrkv_plan.checkpoint.spectra import FitOptions
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.specs.model import ModelSpec

POSITIONS = ("none", "rope_expand", "rope_rank")
_MAX_ITEMS = 10_000
_INSPECT_DEFAULTS = ("0.9", "auto")


def audit(claims: str | Path | None = None, *, verdict: Texts | None = None) -> Result:
    """Recompute printed claims and find what would print the same; ``unmet`` says what differs.

    Parameters
    ----------
    claims : a claim file, or a shipped document: lrkv, mla; all shipped ones when None.
    verdict : only these rows: match, explained, mismatch, not_computable.

    Raises
    ------
    SpecError, UsageError
        If the file is missing or invalid, or a verdict is unknown.
    """
    from lrkv_plan.auditing.claim import claim_files, read_claims
    from lrkv_plan.auditing.evaluate import Verdict, audit_file
    from lrkv_plan.report.views.audit import audit_table, file_input

    known = [one.value for one in Verdict]
    wanted = words.texts("verdict", words.given(verdict, []))
    for name in wanted:
        if name not in known:
            raise ArgumentError(
                "verdict",
                f" {shown(name)}{did_you_mean(name, known)}; allowed: {', '.join(known)}",
            )
    files = claim_files(None if claims is None else str(claims))
    rows = [row for path in files for row in audit_file(path)]
    inputs = [file_input(path, read_claims(path)) for path in files]

    def ask(verdicts: Sequence[str]) -> list[str]:
        options = [word for name in verdicts for word in ("--verdict", name)]
        return ["lrkv-plan", "audit", *([] if claims is None else [str(claims)]), *options]

    return Result(audit_table(rows, inputs, wanted, ask))


@dataclass(frozen=True, repr=False, eq=False)
class Inspection(Result):
    """The answer of ``inspect``, with the model that was planned and the spectra as a figure."""

    layers: tuple[LayerInspection, ...] = ()
    energy: float = 0.9
    planned_model: ModelSpec | None = None

    def figure(self) -> Figure:
        """The spectra of keys and values, to draw."""
        from lrkv_plan.report.views.inspect import spectra_figure

        return spectra_figure(
            self.table.inputs, self.layers, energy=self.energy, remarks=self.table.remarks
        )


def inspect(
    checkpoint: str | Path,
    *,
    layers: str | Sequence[int] | None = None,
    energy: Number | None = None,
    fit_ranks: str | Sequence[int] | None = None,
    alternations: Number | None = None,
    budget: Number | None = None,
    align: Number | None = None,
    position: str | None = None,
    kv_dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Measure residual spectra of keys and values, and plan ranks under a budget.

    Parameters
    ----------
    checkpoint : a folder of config.json and *.safetensors.
    layers : all of them when None, or "0,5,10-12".
    energy : share of energy that the stated ranks keep, 0.9.
    fit_ranks : where the base is fitted: "auto" (what is quick), "all", "none", or ranks.
    alternations : most turns of the fit at one rank.
    budget : plan ranks per layer under it; ``align``, ``position`` and ``kv_dtype`` are the plan's.
    progress : called after each layer with how many are done and how many there are.

    Raises
    ------
    SpecError, UsageError
        If the checkpoint is incomplete or corrupt, or an argument cannot be read or honoured.
    """
    given = {"energy": energy, "fit_ranks": fit_ranks}
    from lrkv_plan.formats import storage_format

    if budget is None:
        refuse(
            {"align": align, "position": position, "kv_dtype": kv_dtype},
            "is of the plan that --budget asks for",
        )
    if position is not None and position not in POSITIONS:
        raise ArgumentError(
            "position",
            f" {shown(position)}: one of {', '.join(POSITIONS)}{did_you_mean(position, POSITIONS)}",
        )
    share = 0.9 if energy is None else float(words.share("energy", energy))
    fits = _ranges_text(fit_ranks, "auto")
    options = _fit_options(fits, alternations)
    alignment = 1 if align is None else words.count("align", align)
    kv_format = storage_format(words.given(kv_dtype, "bf16")).name
    _one_library_thread()

    from lrkv_plan.checkpoint.inspection import inspect_layers
    from lrkv_plan.checkpoint.projections import attention_layers
    from lrkv_plan.report.views.inspect import inspect_table

    source = attention_layers(Path(checkpoint))
    chosen = _chosen_layers(source, _ranges_text(layers, "all"))
    source.check(chosen)
    limit = budget_text(budget)
    plan_of = _planner(source, chosen, limit, alignment, words.given(position, "none"), kv_format)
    found = inspect_layers(
        source,
        chosen,
        fit=fits != "none",
        options=options,
        n_threads=_n_threads(),
        done=(lambda n: progress(n, len(chosen))) if progress else (lambda _: None),
    )
    inputs = {
        "checkpoint": str(checkpoint),
        "name": source.model.name,
        "n_layers": source.model.n_layers,
        "layers": list(chosen),
        "energy_share": share,
        "fit_ranks": fits,
        "budget": limit,
        "align": alignment,
        "position": words.given(position, "none"),
        "kv_dtype": kv_format,
    }
    plan = plan_of(found)
    table = inspect_table(
        inputs, found, energy=share, skipped=source.skipped, plan=plan,
        following=_after_inspecting(inputs, given, plan),
    )  # fmt: skip
    planned = None if plan is None else plan.model
    return Inspection(table, layers=tuple(found), energy=share, planned_model=planned)


def _after_inspecting(
    inputs: Mapping[str, Any], given: Mapping[str, Any], plan: RankPlan | None
) -> list[str]:
    """The next command: a plan, or what its one rank for all layers caches."""
    folder = inputs["checkpoint"]
    if plan is None:
        options = [
            word
            for name, value in given.items()
            if value is not None and _ranges_text(value, "") not in _INSPECT_DEFAULTS
            for word in (f"--{name.replace('_', '-')}", _ranges_text(value, ""))
        ]
        return ["lrkv-plan", "inspect", folder, *options, "--budget", "50%"]
    variant = {
        "none": "", "rope_expand": ",position=rope_expand",
        "rope_rank": ",position=rope_rank,basis_spans_rotary_planes=true",
    }[inputs["position"]]  # fmt: skip
    design = f"lrkv:{plan.uniform_rank}{variant}"
    return ["lrkv-plan", "cache", folder, "--attention", design, "--kv-dtype", inputs["kv_dtype"]]


def _ranges_text(value: str | float | Sequence[int] | None, default: str) -> str:
    if value is None:
        return default
    if isinstance(value, str | int | float):
        return str(value)
    return ",".join(map(str, value))


def _fit_options(text: str, alternations: Number | None) -> FitOptions | None:
    if text in ("auto", "none"):
        if alternations is not None:
            raise ArgumentError(
                "alternations", f" needs --fit-ranks all or a list of ranks, not {text}"
            )
        return None
    from lrkv_plan.checkpoint.spectra import MAX_ALTERNATIONS, FitOptions

    turns = MAX_ALTERNATIONS
    if alternations is not None:
        turns = words.count("alternations", alternations)
        if turns > 10 * MAX_ALTERNATIONS:
            raise ArgumentError("alternations", f" {turns}: at most {10 * MAX_ALTERNATIONS}")
    if text == "all":
        return FitOptions(alternations=turns)
    return FitOptions(ranks=tuple(_whole_numbers("fit_ranks", text)), alternations=turns)


def _whole_numbers(name: str, text: str) -> list[int]:
    """``0,5,10-12`` as numbers, ascending and each once."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first]
        if not all(end.isascii() and end.isdecimal() and len(end) < 6 for end in ends):
            raise ArgumentError(name, f" {shown(text)}: write whole numbers, for example 0,5,10-12")
        low, high = int(ends[0]), int(ends[-1])
        if low > high or len(found) + high - low > _MAX_ITEMS:
            raise ArgumentError(name, f" {shown(text)}: {shown(part)} is not a range")
        found |= set(range(low, high + 1))
    return sorted(found)


def _chosen_layers(source: AttentionLayers, text: str) -> list[int]:
    if text == "all":
        return sorted(source.attention)
    layers = _whole_numbers("layers", text)
    for layer in layers:
        if layer not in source.attention:
            why = source.skipped.get(layer)
            problem = f"layer {layer} {why}" if why else f"there is no layer {layer}"
            raise ArgumentError(
                "layers",
                f" {shown(text)}: {problem}; the model has {source.model.n_layers}, 0 to "
                f"{source.model.n_layers - 1}",
            )
    return layers


def _planner(
    source: AttentionLayers,
    chosen: Sequence[int],
    budget: str | None,
    alignment: int,
    position: str,
    kv_dtype: str,
) -> Callable[[Sequence[LayerInspection]], RankPlan | None]:
    """What makes the plan once layers are inspected; a hopeless budget is refused beforehand."""
    if budget is None:
        return lambda _: None
    from lrkv_plan.checkpoint.rank_plan import plan_frame, rank_plan

    frame = plan_frame(
        source,
        chosen,
        budget=budget,
        kv_dtype=kv_dtype,
        alignment=alignment,
        design=low_rank_variant(source.model, position=position),
    )
    return lambda layers: rank_plan(frame, layers)


def _one_library_thread() -> None:
    """Give OpenBLAS and MKL one thread each, before numpy is imported.

    Tensors are worked on side by side. Several library threads on matrices of 128 x 128 wait for
    each other: on two busy cores one layer took 20 times as long.
    """
    for library in ("OPENBLAS", "MKL", "BLIS"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def _n_threads() -> int:
    """Keys and values side by side where there are cores for both."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(2, cores or 1)
