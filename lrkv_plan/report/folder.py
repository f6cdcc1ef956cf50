"""The files of a report, and a folder of files written whole or not at all."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lrkv_plan.errors import UsageError, shown
from lrkv_plan.files import keep_owner_and_mode, kind_of
from lrkv_plan.report.document import Document
from lrkv_plan.report.figures import figure_table
from lrkv_plan.report.html import to_html
from lrkv_plan.report.markdown import to_markdown
from lrkv_plan.report.plots import picture
from lrkv_plan.report.series.explore import steps_figure, users_figure
from lrkv_plan.report.tables import to_csv

_MAX_PATHS = 10_000  # a report has some hundred; a whole disk is not walked to say no


def write_folder(
    folder: Path, files: Mapping[str, bytes], *, is_ours: Callable[[str], bool], force: bool
) -> None:
    """Write to a temporary folder beside ``folder``, then rename it.

    Parameters
    ----------
    files : relative path to content.
    is_ours : whether an existing file, by relative path, may be replaced with the folder.

    Raises
    ------
    UsageError
        As ``check_folder``, or if the folder cannot be written.
    """
    check_folder(folder, is_ours=is_ours, force=force)
    place = folder.resolve()  # of a link: its target is replaced, and the link stays
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".lrkv-plan-", dir=place.parent))
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        fresh = temporary / "new"
        for name, content in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        _keep_modes(fresh, place)
        _exchange(fresh, place, temporary / "old")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _keep_modes(fresh: Path, place: Path) -> None:
    """Modes and owners of the folder that is replaced and of the files that are there again."""
    for path in (fresh, *fresh.rglob("*")):
        try:
            old = os.stat(place / path.relative_to(fresh))
        except OSError:  # new
            continue
        if stat.S_IFMT(old.st_mode) == stat.S_IFMT(os.stat(path).st_mode):
            keep_owner_and_mode(path, old)


def _exchange(fresh: Path, place: Path, old: Path) -> None:
    """Put the new folder in the place of the old one; whatever stops it, one of them is there."""
    try:
        if place.exists():
            place.rename(old)
        fresh.rename(place)
    except BaseException:
        if old.exists() and not place.exists():
            old.rename(place)
        raise


def check_folder(folder: Path, *, is_ours: Callable[[str], bool], force: bool) -> None:
    """Refuse, before anything is computed, what cannot be written.

    Raises
    ------
    UsageError
        If the folder is a file, is the current one, its parent does not exist, or it holds files
        and ``force`` is not given; with ``force``, if it holds anything that is not a report's.
    """
    try:
        place = folder.resolve()
        if place.is_symlink():  # Python 3.13 leaves a loop as it is, older ones raise
            raise RuntimeError
        exists, is_folder = place.exists(), place.is_dir()
        what = "" if is_folder or not exists else kind_of(os.stat(place).st_mode)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from None
    except RuntimeError:
        raise UsageError(f"{folder}: is a link that leads to itself") from None
    except ValueError:
        raise UsageError(f"{shown(str(folder))} is not a path") from None
    if what:
        raise UsageError(f"{folder}: is {what}; a report needs a folder")
    if place == Path.cwd() or place in Path.cwd().parents:
        hint = " (or its name is empty)" if str(folder) == "." else ""
        raise UsageError(
            f"{folder}: holds the current folder{hint}; name a folder for the report alone"
        )
    if not place.parent.is_dir():
        raise UsageError(f"{folder}: the folder {place.parent} does not exist")
    if not exists:
        return
    held = sorted(itertools.islice(_paths(place), _MAX_PATHS + 1))
    if held and not force:
        raise UsageError(f"{folder} exists; --force replaces the report in it")
    if len(held) > _MAX_PATHS:
        raise UsageError(f"{folder}: holds more files than any report; name another folder")
    foreign = next((path for path in held if not is_ours(path)), None)
    if foreign is not None:
        raise UsageError(
            f"{folder}: holds {shown(foreign)}, which no report writes; name another folder"
        )


def _paths(folder: Path) -> Iterator[str]:
    """Relative paths of everything in a folder that is not a plain folder."""
    for here, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(here) / name).is_symlink()]
        for name in (*names, *links):
            yield (Path(here) / name).relative_to(folder).as_posix()


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
    drawn |= explorer_pictures(document)
    files[PAGE] = to_html(document, drawn).encode()
    assert all(map(is_report_path, files)), "keys are plain words"
    return files


def page_alone(document: Document) -> bytes:
    """The page of a document without parts: its sliders."""
    return to_html(document, explorer_pictures(document)).encode()


def explorer_pictures(document: Document) -> dict[str, bytes]:
    """The curves at the sliders' first position, for a page without its script."""
    if document.grid is None:
        return {}
    figures = {
        "explore-users": users_figure(document.grid),
        "explore-steps": steps_figure(document.grid),
    }
    return {key: picture(figure, "svg") for key, figure in figures.items()}


def table_files(document: Document) -> dict[str, bytes]:
    """The files without pictures: tables, plotted values and markdown."""
    files = {TEXT: to_markdown(document).encode()}
    for part in document.parts:
        if part.table is not None and not part.is_view:
            files[f"{TABLES}/{part.key}.csv"] = to_csv(part.table).encode()
        if part.figure is not None:
            files[f"{FIGURES}/{part.key}.csv"] = to_csv(figure_table(part.figure)).encode()
    return files
