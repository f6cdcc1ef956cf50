"""``reports/`` is what ``report --all`` writes: tables byte for byte, pictures by their values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lrkv_plan.cli import reference_reports
from lrkv_plan.cli.reference_reports import REFERENCES, listing_text, write_all
from lrkv_plan.errors import UsageError
from lrkv_plan.report.folder import is_report_path

pytestmark = pytest.mark.slow

REPORTS = Path(__file__).parent.parent.parent / "reports"


def paths(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


# The whole report is made with its pictures for other tests, and compared below.
@pytest.mark.parametrize("name", [name for name in REFERENCES if name != "llama-3.1-8b-on-h200"])
def test_tables_and_plotted_values_are_made_again_byte_for_byte(name: str) -> None:
    made = REFERENCES[name].files(lambda _: None, False)
    kept = REPORTS / name
    assert {path for path in paths(kept) if path.endswith((".csv", ".md"))} == set(made)
    for path, content in made.items():
        assert (kept / path).read_bytes() == content, path


@pytest.mark.parametrize("name", REFERENCES)
def test_each_report_has_its_page_and_pictures(name: str) -> None:
    held = paths(REPORTS / name)
    assert "index.html" in held
    assert all(map(is_report_path, held))
    drawn = {path.removesuffix(".csv") for path in held if path.startswith("figures/")
             and path.endswith(".csv")}  # fmt: skip
    for stem in drawn:
        assert {f"{stem}.svg", f"{stem}.png"} <= held
    page = (REPORTS / name / "index.html").read_text()
    assert page.count('<figure role="img"') == len(drawn)


def test_the_list_names_every_report() -> None:
    assert (REPORTS / "README.md").read_text() == listing_text()
    folders = {p.name for p in REPORTS.iterdir() if p.is_dir()}
    assert {f for f in folders if not f.startswith("calibration-")} == set(REFERENCES)


def test_all_of_them_are_small() -> None:
    made = [REPORTS / name / path for name in REFERENCES for path in paths(REPORTS / name)]
    assert sum(path.stat().st_size for path in made) < 6_000_000


def test_the_whole_report_is_what_its_own_command_writes(whole_report: Path) -> None:
    def text(path: Path) -> str:  # pictures may differ between versions of their library
        return re.sub(r"<svg.*?</svg>", "", path.read_text(), flags=re.DOTALL)

    kept = REPORTS / whole_report.name
    assert paths(kept) == paths(whole_report)
    for path in paths(whole_report):
        if not path.endswith((".svg", ".png")):
            assert text(kept / path) == text(whole_report / path), path


def test_other_folders_stay_and_nothing_is_overwritten_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = reference_reports.Reference(title="One", files=lambda _, __: {"report.md": b"1"})
    monkeypatch.setattr(reference_reports, "REFERENCES", {"one": one})
    (tmp_path / "calibration-x").mkdir()
    (tmp_path / "calibration-x" / "samples.csv").write_text("measured")
    told: list[str] = []
    write_all(tmp_path, force=False, progress=told.append)
    assert told == ["One"]
    assert paths(tmp_path) == {"README.md", "one/report.md", "calibration-x/samples.csv"}
    with pytest.raises(UsageError, match="--force"):
        write_all(tmp_path, force=False, progress=told.append)
    write_all(tmp_path, force=True, progress=told.append)
    (tmp_path / "one" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        write_all(tmp_path, force=True, progress=told.append)
    assert (tmp_path / "one" / "notes.txt").read_text() == "mine"
