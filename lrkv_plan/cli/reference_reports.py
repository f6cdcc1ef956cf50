"""The reference reports: those that a test makes again and compares, and the list of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.errors import UsageError
from lrkv_plan.files import write_whole
from lrkv_plan.pages.audit_page import audit_page
from lrkv_plan.pages.capacity_page import capacity_page
from lrkv_plan.pages.model_page import model_page
from lrkv_plan.report.folder import (
    check_folder,
    is_report_path,
    report_files,
    table_files,
    write_folder,
)

if TYPE_CHECKING:
    from lrkv_plan.report.document import Document

Progress = Callable[[str], None]
COMMAND = "lrkv-plan report --all -o reports --force"
GPUS = ("h100-sxm", "h200", "b200")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One report: a title for the list, and its files by relative path.

    ``files`` is told what it makes through ``progress``; with ``pictures`` False it leaves out
    pictures and the page that holds them, and gives tables, plotted values and markdown.
    """

    title: str
    files: Callable[[Progress, bool], Mapping[str, bytes]]


def _of_document(title: str, make: "Callable[[Progress], Document]") -> Reference:
    def files(progress: Progress, pictures: bool) -> Mapping[str, bytes]:
        document = make(progress)
        return report_files(document, progress) if pictures else table_files(document)

    return Reference(title=title, files=files)


def _capacity(model: str, **keywords: str) -> Reference:
    return _of_document(
        f"Capacity of {model} on {', '.join(GPUS)}",
        lambda progress: capacity_page(model, GPUS, command=COMMAND, progress=progress, **keywords),
    )


def _whole(model: str, gpu: str, folder: str) -> Reference:
    return _of_document(
        f"Whole report on {model} on {gpu}",
        lambda progress: model_page(model, gpu=gpu, output=folder, progress=progress),
    )


REFERENCES: Mapping[str, Reference] = {
    "paper-audit": _of_document(
        "Audit of the LRKV documents, and their figures made again",
        lambda progress: audit_page(COMMAND, progress),
    ),
    "llama-3.1-8b-on-h200": _whole("llama-3.1-8b", "h200", "llama-3.1-8b-on-h200"),
    "capacity-llama-3.1-8b": _capacity("llama-3.1-8b"),
    "capacity-llama-3.1-70b": _capacity("llama-3.1-70b", tp_size="4", n_gpus="4"),
    "capacity-deepseek-v3": _capacity("deepseek-v3", tp_size="16", n_gpus="16"),
    # 2.5 billion parameters of 2 bytes, as the name says: the paper does not state the widths.
    "capacity-lrkv-paper-2.5b": _capacity("lrkv-paper-2.5b", weights="5GB"),
}


def write_all(folder: Path, *, force: bool, progress: Progress) -> None:
    """Every reference report in a folder of its own, and the list of them; others stay.

    Raises
    ------
    UsageError
        If a report is there and ``force`` is not given, or a folder holds something else.
    """
    listing = folder / "README.md"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; the reports need a folder")
    if listing.exists() and not force:
        raise UsageError(f"{listing} exists; --force makes all reference reports again")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    for name in REFERENCES:
        check_folder(folder / name, is_ours=is_report_path, force=force)
    for name, reference in REFERENCES.items():
        progress(reference.title)
        files = reference.files(progress, True)
        write_folder(folder / name, files, is_ours=is_report_path, force=force)
    write_whole(listing, listing_text(), force=force)


def listing_text() -> str:
    """``README.md`` of the reports' folder."""
    lines = [
        "# Reference reports",
        "",
        f"Written by `{COMMAND}`, never by hand; a test makes their tables again and compares",
        "byte for byte. Open `index.html` in a browser, or read `report.md`.",
        "",
        *(f"- [{name}]({name}/report.md): {one.title}" for name, one in REFERENCES.items()),
        "",
        "Folders named `calibration-...` are measurements, written by `lrkv-plan calibrate run`;",
        "`report --all` leaves them as they are.",
    ]
    return "\n".join(lines) + "\n"
