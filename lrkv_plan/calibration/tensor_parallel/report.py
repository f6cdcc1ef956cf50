"""The measurement as markdown for people and JSON for programs: the same figures."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lrkv_plan.calculators.allreduce_time import AllReduceModel, allreduce_time
from lrkv_plan.calibration.fit_allreduce import AllReduceFit
from lrkv_plan.calibration.tensor_parallel.all_reduce import AllReducePoint
from lrkv_plan.calibration.tensor_parallel.profile import Link, errors_of
from lrkv_plan.calibration.tensor_parallel.sharded_decode import TOLERANCE, PolicyResult

SCHEMA_VERSION = 1
NOISY_SPREAD = 1.0  # in half of the sizes the median was twice the minimum, or more


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that one run found."""

    inputs: dict[str, Any]
    results: Sequence[PolicyResult]
    points: Sequence[AllReducePoint]
    fit: AllReduceFit
    fit_dtype: str
    link: Link
    model: AllReduceModel
    refused: str | None  # why no profile was written
    remarks: Sequence[str]

    @property
    def failures(self) -> list[str]:
        """Policies whose bytes or results are not what they must be."""
        return [
            f"{r.case.spec.label()} {r.policy}: "
            + ("bytes differ from the prediction" if not r.bytes_agree else
               f"outputs are off by {r.max_error:.1e}, more than {TOLERANCE[r.case.dtype]:.0e}")
            for r in self.results
            if not (r.bytes_agree and r.is_exact)
        ]  # fmt: skip


def spread_of(points: Sequence[AllReducePoint]) -> float:
    """Median over sizes of median / minimum - 1: how noisy the machine was."""
    return statistics.median(p.repeats.median_s / p.repeats.least_s - 1 for p in points)


def noise(points: Sequence[AllReducePoint]) -> str:
    """How far medians lie above minima, and whether that makes the machine noisy."""
    spread = spread_of(points)
    verdict = "NOISY: times are upper bounds" if spread >= NOISY_SPREAD else "acceptable"
    return f"repeats: median above minimum by {spread:.0%} in half of the sizes ({verdict})"


def policy_row(result: PolicyResult, model: AllReduceModel) -> dict[str, Any]:
    """One policy in base units."""
    return {
        "attention": result.case.spec.label(),
        "path": result.case.path_name,
        "context_tokens": result.case.context_tokens,
        "policy": result.policy,
        "n_workers": result.n_workers,
        "cache_bytes_per_gpu_predicted": result.predicted_bytes,
        "cache_bytes_per_gpu_allocated": list(result.allocated_bytes),
        "scratch_bytes_per_gpu": result.scratch_bytes,
        "link_bytes_per_gpu_predicted": result.predicted_link_bytes,
        "link_bytes_per_gpu_moved": list(result.link_bytes),
        "merge_bytes_per_gpu_moved": result.merge_bytes,
        "loopback_bytes_of_all": result.loopback_bytes,
        "bytes_agree": result.bytes_agree,
        "max_error": result.max_error if math.isfinite(result.max_error) else None,
        "is_exact": result.is_exact,
        "attention_s": result.attention.estimate_s,
        "attention_median_s": result.attention.median_s,
        "whole_step_s": result.whole_step.estimate_s,
        "whole_step_median_s": result.whole_step.median_s,
        "allreduce_message_bytes": result.message_bytes,
        "allreduce_predicted_s": allreduce_time(model, result.message_bytes).time_s,
    }


def message_row(point: AllReducePoint, model: AllReduceModel) -> dict[str, Any]:
    """One message size in base units."""
    times = point.repeats
    predicted: Any = allreduce_time(model, point.message_bytes).time_s
    return {
        "dtype": point.dtype,
        "message_bytes": point.message_bytes,
        "time_s": times.estimate_s,
        "least_s": times.least_s,
        "median_s": times.median_s,
        "n_repeats": len(times.times_s),
        "predicted_s": predicted,
        "error": predicted / times.estimate_s - 1,
    }


def to_json(report: Report) -> str:
    """One object: inputs, rows (policies), allreduce (sizes), fit, remarks."""
    median, p90 = errors_of(report.fit)
    document = {
        "schema_version": SCHEMA_VERSION,
        "inputs": report.inputs,
        "rows": [policy_row(r, report.model) for r in report.results],
        "allreduce": [message_row(p, report.model) for p in report.points],
        "fit": {
            "dtype": report.fit_dtype,
            **report.fit.constants,
            "identified": list(report.fit.identified),
            "link_bytes_per_s": report.link.bytes_per_s,
            "link": report.link.name,
            "link_is_measured": report.link.is_measured,
            "held_out_median_error": median,
            "held_out_p90_error": p90,
            "refused": report.refused,
        },
        "failures": report.failures,
        "remarks": list(report.remarks),
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_markdown(report: Report) -> str:
    """Policies, all-reduce sizes, the fit, and what to know about them."""
    first = [policy_row(r, report.model) for r in report.results]
    sizes = [message_row(p, report.model) for p in report.points]
    median, p90 = errors_of(report.fit)
    known = report.fit.identified
    constants = ", ".join(
        f"{name} {value:.4g}{'' if name in known else ' (not identified: held at the prior)'}"
        for name, value in report.fit.constants.items()
    )
    lines = [
        f"# Tensor parallelism among {report.inputs['n_workers']} workers", "",
        *(f"- {name}: {value}" for name, value in report.inputs.items()), "",
        "## Placement policies", "",
        *_table(POLICY_COLUMNS, first), "",
        *(f"- FAILED: {line}" for line in report.failures),
        "## All-reduce", "",
        *_table(SIZE_COLUMNS, sizes), "",
        f"Fit on {report.fit_dtype}: {constants}; link {report.link.bytes_per_s / 1e9:.3f} GB/s "
        f"per direction ({report.link.name}). Sizes left out: error {median:.1%} in the median, "
        f"{p90:.1%} at p90.", "",
        *([f"Refused: {report.refused}", ""] if report.refused else []),
        *(f"- {remark}" for remark in report.remarks),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _us(value: float) -> str:
    return f"{value * 1e6:,.1f}"


def _count(value: Any) -> str:
    """A count, or the counts of all GPUs: one if they are equal."""
    if value is None:
        return "-"
    counts = sorted(set(value)) if isinstance(value, list) else [value]
    return " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))


POLICY_COLUMNS = (
    ("attention", "design", str),
    ("context_tokens", "tokens", _count),
    ("policy", "policy", str),
    ("cache_bytes_per_gpu_predicted", "cache per GPU, predicted [B]", _count),
    ("cache_bytes_per_gpu_allocated", "allocated [B]", _count),
    ("link_bytes_per_gpu_predicted", "fetched per GPU and step, predicted [B]", _count),
    ("link_bytes_per_gpu_moved", "moved [B]", _count),
    ("merge_bytes_per_gpu_moved", "queries and partial results [B]", _count),
    ("loopback_bytes_of_all", "seen on loopback, all GPUs [B]", _count),
    ("max_error", "largest error", lambda v: "not finite" if v is None else f"{v:.1e}"),
    ("attention_s", "attention [us]", _us),
    ("whole_step_s", "with projection and all-reduce [us]", _us),
    ("allreduce_predicted_s", "of which all-reduce by the fit [us]", _us),
)
SIZE_COLUMNS = (
    ("dtype", "format", str),
    ("message_bytes", "message [B]", _count),
    ("least_s", "minimum [us]", _us),
    ("median_s", "median [us]", _us),
    ("predicted_s", "by the fit [us]", _us),
    ("error", "predicted / measured - 1", lambda v: f"{v:+.1%}"),
)


def _table(columns: Any, rows: Sequence[dict[str, Any]]) -> list[str]:
    return [
        "| " + " | ".join(title for _, title, _ in columns) + " |",
        "| " + " | ".join("---" if text is str else "---:" for *_, text in columns) + " |",
        *("| " + " | ".join(text(row[key]) for key, _, text in columns) + " |" for row in rows),
    ]
