"""The files of a report's folder: page, markdown, tables as CSV, pictures as SVG and PNG."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lrkv_plan.report.document import Document
from lrkv_plan.report.figures import figure_table
from lrkv_plan.report.html import to_html
from lrkv_plan.report.markdown import to_markdown
from lrkv_plan.report.plots import picture
from lrkv_plan.report.tables import to_csv

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE, TEXT, TABLES, FIGURES = "index.html", "report.md", "tables", "figures"
_REPORT_PATH = re.compile(
    r"index\.html|report\.md|tables/[a-z0-9-]+\.csv|figures/[a-z0-9-]+\.(svg|png|csv)"
)


def is_report_path(path: str) -> bool:
    """Whether a report may hold a file of that relative path; a part's key is a plain word."""
    return _REPORT_PATH.fullmatch(path) is not None


def report_files(
    document: Document, progress: Callable[[str], None] = lambda _: None
) -> dict[str, bytes]:
    """Relative path to content, the same bytes on every run.

    A picture's plotted values are ``figures/<part>.csv``; views of another part's rows have no
    file of their own.
    """
    files = table_files(document)
    drawn: dict[str, bytes] = {}
    for part in document.parts:
        if part.figure is None:
            continue
        progress(part.title)
        drawn[part.key] = picture(part.figure, "svg")
        files[f"{FIGURES}/{part.key}.svg"] = drawn[part.key]
        files[f"{FIGURES}/{part.key}.png"] = picture(part.figure, "png")
    progress("Page")
    files[PAGE] = to_html(document, drawn).encode()
    assert all(map(is_report_path, files)), "keys are plain words"
    return files


def table_files(document: Document) -> dict[str, bytes]:
    """The files without pictures: tables, plotted values and markdown."""
    files = {TEXT: to_markdown(document).encode()}
    for part in document.parts:
        if part.table is not None and not part.is_view:
            files[f"{TABLES}/{part.key}.csv"] = to_csv(part.table).encode()
        if part.figure is not None:
            files[f"{FIGURES}/{part.key}.csv"] = to_csv(figure_table(part.figure)).encode()
    return files
