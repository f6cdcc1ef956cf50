"""Writes ``docs/step-accuracy.md`` from the output of ``lrkv-plan calibrate evaluate-steps``.

Usage: step_accuracy.py STEPS.json > docs/step-accuracy.md, where ``lrkv-plan calibrate
evaluate-steps runs.csv -f json`` wrote STEPS.json.

Why a group is badly predicted stands in ``step_reasons.yaml``; stderr names groups without a reason
and reasons without a group.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from lrkv_plan.calibration.evaluate_steps import (
    StepGroup,
    StepRow,
    reasons,
    step_group,
    step_groups,
)

REASONS = Path(__file__).with_name("step_reasons.yaml")
ENGINES = Path(__file__).parents[1] / "lrkv_plan" / "latency" / "engine_steps.yaml"
# A family of runs that many know, batch by batch: title, model, GPU, engine.
FOCUS = ("DeepSeek-V3 and R1 on H200 with SGLang", "deepseek-v3", "h200", "sglang")
WORST = 0.20
SECTIONS = {
    "gpu": "By GPU", "engine": "By engine", "kind": "By design of the model",
    "batch": "By batch of one replica", "layout": "By layout",
    "weights": "By format of the weights",
}  # fmt: skip
HEAD = ("runs", "predicted", "median", "p90", "predicted over measured", "in the 90 % band")
Reason = dict[str, str]


def rows_of(path: Path) -> list[StepRow]:
    """The judged runs."""
    names = {one.name for one in fields(StepRow)} - {"terms"}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [
        StepRow(**{key: value for key, value in row.items() if key in names})
        for row in rows if row["is_judged"]
    ]  # fmt: skip


def percent(value: float | None) -> str:
    """With one digit, as the tables show it."""
    return "-" if value is None else f"{100 * value:.1f} %"


def table(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in [head, ("---",) * len(head), *lines]
    )


def cells(group: StepGroup) -> tuple[str, ...]:
    """What the tables say of some runs."""
    ratio = "-" if group.median_ratio is None else f"{group.median_ratio:.2f}"
    return (
        f"{group.n:,}", f"{group.expressible:,}", percent(group.median_error),
        percent(group.p90_error), ratio, percent(group.in_band),
    )  # fmt: skip


def by(rows: list[StepRow], key: str) -> str:
    """A table of runs that are alike in one thing."""
    groups = step_groups(rows, key)
    return table((key, *HEAD), [(f"{one.group}", *cells(one)) for one in groups])


def reason(row: StepRow, known: list[Reason]) -> Reason | None:
    """The first reason all of whose keys the group's runs have."""
    said = {"model": row.model, "gpu": row.gpu, "engine": row.engine.partition("@")[0],
            "kind": row.kind or ""}  # fmt: skip
    return next(
        (one for one in known if all(said[key] == one[key] for key in one if key != "why")), None
    )


def worst(rows: list[StepRow], known: list[Reason]) -> str:
    """Every group whose median error is above the bound, with what explains it."""
    first = {row.group: row for row in reversed(rows)}
    lines, used = [], []
    for group in step_groups(rows, "group"):
        if group.median_error is None or group.median_error <= WORST:
            continue
        row = first[group.group]
        found = reason(row, known)
        if found is None:
            sys.stderr.write(f"no reason: {group.group}: {percent(group.median_error)}\n")
        else:
            used.append(found)
        named = (row.model, row.gpu, row.engine.partition("@")[0])
        lines.append((*named, *cells(group), "not known" if found is None else found["why"]))
    for one in known:
        if one not in used:
            sys.stderr.write(f"reason without a group above {100 * WORST:.0f} %: {one}\n")
    return table(("model", "GPU", "engine", *HEAD, "why"), lines) if lines else "None."


def refusals(rows: list[StepRow]) -> str:
    """Why runs are not predicted."""
    lines = [(why.replace("|", "\\|"), f"{n}") for why, n in reasons(rows)]
    return table(("why", "runs"), lines) if lines else "None."


def evidence(rows: list[StepRow]) -> str:
    """Runs by what their time rests on."""
    bases = dict.fromkeys(row.basis for row in rows if row.basis is not None)
    lines = [
        (basis, *cells(step_group("basis", basis, [r for r in rows if r.basis == basis])))
        for basis in bases
    ]
    return table(("rests on", *HEAD), lines)


def left_out() -> str:
    """How well runs are predicted by constants that their group did not take part in."""
    told = yaml.safe_load(ENGINES.read_text(encoding="utf-8"))["left_out"]
    return (
        f"With whole groups left out of every fit ({told['runs']:,} runs): median error "
        f"{percent(told['median'])}, p90\n{percent(told['p90'])}, median over groups "
        f"{percent(told['groups'])}; the shipped bands hold {percent(told['in_band'])} of them and "
        f"are\n{told['band_width']:.2f} wide (upper over lower, median)."
    )


def focus(rows: list[StepRow]) -> str:
    """The runs of one family, measured beside predicted, by layout and batch."""
    _, model, gpu, engine = FOCUS
    found: dict[tuple[str, int], list[StepRow]] = {}
    for row in rows:
        named = (row.model, row.gpu, row.engine.partition("@")[0])
        if named == (model, gpu, engine) and row.predicted_s is not None:
            found.setdefault((f"{row.layout}", row.batch_size or 0), []).append(row)
    lines = []
    for (layout, batch), here in sorted(found.items()):
        contexts = sorted({row.context_tokens or 0 for row in here})
        measured = [1e3 * (row.measured_s or 0) for row in here]
        predicted = [1e3 * (row.predicted_s or 0) for row in here]
        lines.append((
            layout, f"{batch:,}", ", ".join(f"{c:,}" for c in contexts), f"{len(here)}",
            span(measured), span(predicted), f"{median(row.ratio or 0 for row in here):.2f}",
        ))  # fmt: skip
    head = (
        "layout", "batch", "context tokens", "runs", "measured, ms", "predicted, ms",
        "predicted over measured",
    )  # fmt: skip
    return table(head, lines) if lines else "None."


def span(values: list[float]) -> str:
    """The least and the greatest, or the one value."""
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def page(rows: list[StepRow], known: list[Reason]) -> str:
    """The page."""
    groups = [g for g in step_groups(rows, "group") if g.median_error is not None]
    middle = median(g.median_error for g in groups if g.median_error is not None)
    tail = median(g.p90_error for g in groups if g.p90_error is not None)
    bound = f"{100 * WORST:.0f} %"
    whole = step_group("all", "all", rows)
    bad = sum((g.median_error or 0) > WORST for g in groups)
    sections = "\n\n".join(f"## {title}\n\n{by(rows, key)}" for key, title in SECTIONS.items())
    return f"""# How well whole steps are predicted

{whole.n:,} public runs of serving engines in which decode dominates, beside the predicted decode
step. A group is a model, a GPU and an engine. Error is |predicted / measured - 1|. The shipped
constants of engines, and of GPUs without tables of layer operations, were fitted on these runs; all
others rest on measured operations alone. No prediction can be closer than runs of one configuration
are to each other: slowest over fastest is 1.01 in the median and 1.08 at nine tenths for the same
version, 1.05 and 1.46 for others.

The runs are public: dumps of InferenceX, silicon_sample.csv of ai-dynamo/aiconfigurator
(Apache-2.0), FreedomIntelligence/AccelMark (Apache-2.0), dstackai/benchmarks (Apache-2.0), speed
benchmarks of Qwen2.5 and Qwen3, XiongjieDai/GPU-Benchmarks-on-LLM-Inference and pages of single
projects.

Written by `scripts/step_accuracy.py` from `lrkv-plan calibrate evaluate-steps FILE.csv`, which also
reads [your own runs](measuring.md#is-it-right-for-my-engine).

{table(("", *HEAD), [("all runs", *cells(whole))])}

Over the {len(groups)} groups that are predicted: median of their medians {percent(middle)}, of
their p90 {percent(tail)}; {bad} groups are above {bound}.

{left_out()}

## By evidence

The weakest evidence among terms over a tenth of the step's time.

{evidence(rows)}

{sections}

## {FOCUS[0]}

{focus(rows)}

## Groups above {bound}

{worst(rows, known)}

## Not predicted

{refusals(rows)}
"""


def main(path: str) -> str:
    """The page of that file."""
    known: Any = yaml.safe_load(REASONS.read_text(encoding="utf-8"))["reasons"] or []
    return page(rows_of(Path(path)), known)


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1]))
