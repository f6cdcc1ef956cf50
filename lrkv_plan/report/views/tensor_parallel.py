"""The report of a tensor-parallel run: placement policies, all-reduce sizes, and their fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import CalibrationError
from lrkv_plan.report.screens.calibration import policies_screen
from lrkv_plan.report.tables import SCHEMA_VERSION, Column, Row, Table, count, to_markdown

if TYPE_CHECKING:
    from lrkv_plan.calibration.tensor_parallel.group import Group
    from lrkv_plan.calibration.tensor_parallel.measure import Found, Report
    from lrkv_plan.calibration.tensor_parallel.options import Options


def _us(value: float) -> str:
    return f"{value * 1e6:,.1f}"


def _counts(value: int | Sequence[int]) -> str:
    """A count, or the counts of all GPUs: one if they are equal."""
    if isinstance(value, int):
        return count(value)
    return " to ".join(count(each) for each in dict.fromkeys((min(value), max(value))))


POLICY_COLUMNS = (
    Column(key="attention", title="design", is_number=False),
    Column(key="context_tokens", title="tokens", text=count),
    Column(key="policy", title="policy", is_number=False),
    Column(key="cache_bytes_per_gpu_predicted", title="cache per GPU, predicted [B]", text=count),
    Column(key="cache_bytes_per_gpu_allocated", title="allocated [B]", text=_counts),
    Column(
        key="link_bytes_per_gpu_predicted",
        title="fetched per GPU and step, predicted [B]",
        text=count,
    ),
    Column(key="link_bytes_per_gpu_moved", title="moved [B]", text=_counts),
    Column(key="merge_bytes_per_gpu_moved", title="queries and partial results [B]", text=_counts),
    Column(key="loopback_bytes_of_all", title="seen on loopback, all GPUs [B]", text=count),
    Column(key="max_error", title="largest error", text=lambda error: f"{error:.1e}"),
    Column(key="attention_s", title="attention [us]", text=_us),
    Column(key="whole_step_s", title="with projection and all-reduce [us]", text=_us),
    Column(key="allreduce_predicted_s", title="of which all-reduce by the fit [us]", text=_us),
)
MESSAGE_COLUMNS = (
    Column(key="dtype", title="format", is_number=False),
    Column(key="message_bytes", title="message [B]", text=count),
    Column(key="least_s", title="minimum [us]", text=_us),
    Column(key="median_s", title="median [us]", text=_us),
    Column(key="predicted_s", title="by the fit [us]", text=_us),
    Column(key="error", title="predicted / measured - 1", text=lambda error: f"{error:+.1%}"),
)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A report, and the files that it is in."""

    report: Report
    files: Sequence[Path]


def policy_table(report: Report) -> Table:
    """Each design under each placement: bytes predicted and moved, error, and times."""
    from lrkv_plan.calibration.tensor_parallel.measure import errors_of, policy_row

    rows = [policy_row(result, report.model) for result in report.results]
    n_workers, device = int(report.inputs["n_workers"]), str(report.inputs["device"])
    return Table(
        title=f"Placement policies among {n_workers} workers",
        inputs=report.inputs,
        rows=rows,
        columns=POLICY_COLUMNS,
        notes=(_fit_line(report), *report.remarks),
        screen=lambda: policies_screen(n_workers, errors_of(report.fit), rows, device),
        explain=_policy_words,
    )


def _policy_words(row: Row) -> list[str]:
    """One placement: bytes predicted and moved, and the all-reduce within its step."""
    return [
        f"{row['attention']} {row['policy']}, {count(row['context_tokens'])} tokens: cache "
        f"{count(row['cache_bytes_per_gpu_predicted'])} B a GPU predicted = "
        f"{_counts(row['cache_bytes_per_gpu_allocated'])} allocated; fetched "
        f"{count(row['link_bytes_per_gpu_predicted'])} B predicted = "
        f"{_counts(row['link_bytes_per_gpu_moved'])} moved; all-reduce "
        f"{_us(row['allreduce_predicted_s'])} of {_us(row['whole_step_s'])} us"
    ]


def message_table(report: Report) -> Table:
    """Each size of message: its times, and what the fit predicts."""
    from lrkv_plan.calibration.tensor_parallel.measure import message_row

    return Table(
        title="All-reduce",
        inputs=report.inputs,
        rows=[message_row(point, report.model) for point in report.points],
        columns=MESSAGE_COLUMNS,
    )


def _fit_line(report: Report) -> str:
    from lrkv_plan.calibration.tensor_parallel.measure import errors_of

    median, p90 = errors_of(report.fit)
    known = report.fit.identified
    constants = ", ".join(
        f"{name} {value:.4g}{'' if name in known else ' (not identified: held at the prior)'}"
        for name, value in report.fit.constants.items()
    )
    return (
        f"fit on {report.fit_dtype}: {constants}; link {report.link.bytes_per_s / 1e9:.3f} GB/s "
        f"per direction ({report.link.name}); sizes left out: error {median:.1%} in the median, "
        f"{p90:.1%} at p90"
    )


def report_text(report: Report) -> str:
    """Both tables in markdown, and what to know about them."""
    lines = [
        f"# Tensor parallelism among {report.inputs['n_workers']} workers", "",
        *(f"- {name}: {value}" for name, value in report.inputs.items()), "",
        to_markdown(policy_table(report)),
        *(f"- FAILED: {line}" for line in report.failures),
        to_markdown(message_table(report)),
        *([f"Refused: {report.refused}"] if report.refused else []),
    ]  # fmt: skip
    return "\n".join(lines).rstrip("\n") + "\n"


def report_json(report: Report) -> str:
    """One object: inputs, rows (policies), allreduce (sizes), fit, failures, remarks."""
    from lrkv_plan.calibration.tensor_parallel.measure import errors_of

    median, p90 = errors_of(report.fit)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "inputs": report.inputs,
        "rows": policy_table(report).rows,
        "allreduce": message_table(report).rows,
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


def write_report(group: Group, found: Found, options: Options) -> Written:
    """Fit, then write the report, the messages, the samples and the profile of what fits.

    Raises
    ------
    CalibrationError, UsageError
        If nothing can be fitted, or the folder cannot be written.
    """
    from lrkv_plan.calibration.tensor_parallel.measure import REPORT_FILES, report_of, write

    report = report_of(group, found, options)
    texts = (report_text(report), report_json(report))
    contents = {**dict(zip(REPORT_FILES, texts, strict=True)), **report.profile}
    return Written(report=report, files=write(group, found, options, contents))


def accepted(written: Written | None, folder: Path) -> Table:
    """The table of policies.

    Raises
    ------
    CalibrationError
        If results or bytes are wrong, or the fit was refused; the report says so too.
    """
    assert written is not None
    problems = [*written.report.failures, *filter(None, [written.report.refused])]
    if problems:
        raise CalibrationError(f"{'; '.join(problems)} (see {folder})")
    return policy_table(written.report)
