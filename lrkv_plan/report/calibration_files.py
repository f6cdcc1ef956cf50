"""What a fit leaves beside its samples: profile, report, errors and picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.calibration.whole_folder import write_together
from lrkv_plan.errors import UsageError
from lrkv_plan.report import calibration_sections as sections
from lrkv_plan.report.calibration_fit_views import fit_table
from lrkv_plan.report.series.calibration import predicted_vs_measured
from lrkv_plan.report.tables import Table, to_csv, to_markdown

if TYPE_CHECKING:
    from lrkv_plan.calibration.fit_run import FitResult

REPORT, ERRORS, PICTURE = "report.md", "errors.csv", "predicted-vs-measured"
SECTIONS: tuple[Callable[[FitResult], Table], ...] = (
    sections.constants_table, sections.role_table, sections.regime_table,
    sections.crossing_table, sections.memory_table, sections.latency_table,
    sections.estimator_table,
)  # fmt: skip


def written_files(result: FitResult, folder: Path) -> list[Path]:
    """Every file that ``write_result`` may write there."""
    from lrkv_plan.calibration.calibrated_profile import profile_name

    names = (REPORT, ERRORS, f"{PICTURE}.png", f"{PICTURE}.svg", profile_name(result))
    return [folder / name for name in names]


def existing_results(folder: Path) -> list[str]:
    """Names of the results of some run or fit that lie there."""
    names = (REPORT, ERRORS, f"{PICTURE}.png", f"{PICTURE}.svg")
    profiles = sorted(path.name for path in folder.glob("*.calibrated.yaml"))
    return [name for name in names if (folder / name).exists()] + profiles


def write_result(
    result: FitResult, folder: Path, *, force: bool = False, overwrite: bool = False
) -> list[Path]:
    """Write the report, and the profile of what was accepted.

    Parameters
    ----------
    folder : usually where the samples are; made if missing.
    force : overwrite what is there, and put refused paths into the profile too, labelled.
    overwrite : overwrite what is there: results of fewer samples of the same run.

    Returns
    -------
    The files written; the profile, last, is missing where no path was accepted.

    Raises
    ------
    UsageError
        If a file exists and ``force`` is not given, or the folder cannot be written.
    """
    from lrkv_plan.calibration.calibrated_profile import profile_text
    from lrkv_plan.report.plots import picture

    *reports, profile = written_files(result, folder)
    existing = [path.name for path in (*reports, profile) if path.exists()]
    if existing and not (force or overwrite):
        raise UsageError(f"{folder}: {', '.join(existing)} exist; --force overwrites them")
    fits = result.fits if force else result.accepted
    figure = predicted_vs_measured(result)
    contents: dict[str, str | bytes] = {
        REPORT: report_text(result),
        ERRORS: to_csv(replace(fit_table(result), rows=sections.error_rows(result.fits))),
        f"{PICTURE}.png": picture(figure, "png", width="double"),
        f"{PICTURE}.svg": picture(figure, "svg", width="double"),
    }
    if fits:
        contents[profile.name] = profile_text(result, fits)
    return write_together(folder, contents, force=force or overwrite)


def report_text(result: FitResult) -> str:
    """The report in markdown."""
    info = result.info
    known = info.model_dump(mode="json", exclude_none=True, exclude={"skipped", "notes"})
    facts = [f"- {name}: {_flat(value)}" for name, value in known.items() if value != {}]
    verdict = result.refusal or "every path is accepted"
    parts = [
        f"# Calibration of {info.device_name or info.device}\n",
        f"{verdict[0].upper()}{verdict[1:]}.\n",
        to_markdown(fit_table(result)),
        f"![predicted against measured]({PICTURE}.png)\n",
        *(to_markdown(section(result)) for section in SECTIONS),
        "**The run**\n",
        "\n".join(facts) + "\n",
    ]
    if info.skipped:
        lines = [f"- {point}: {reason}" for point, reason in info.skipped.items()]
        parts += ["**Points left out**\n", "\n".join(lines) + "\n"]
    return "\n".join(parts)


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(one)}" for name, one in value.items())
    return f"{value:.5g}" if isinstance(value, float) else str(value)
