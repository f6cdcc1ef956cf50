"""``report``: files whole or not at all, each number what its command prints, refusals explained."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from lrkv_plan.errors import UsageError
from lrkv_plan.report import folder as report_folder
from lrkv_plan.report.folder import is_report_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["report", *arguments])


def blocks(markdown: str) -> dict[str, list[str]]:
    """Command lines by the heading they stand under."""
    found: dict[str, list[str]] = {}
    heading, inside = "", False
    for line in markdown.splitlines():
        if line.startswith("```"):
            inside = line == "```sh"
        elif inside:
            found.setdefault(heading, []).append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return found


TITLES = {  # file -> heading of the part that it belongs to
    "tables/plan": "The plan", "tables/cache": "Cache per design and context",
    "tables/cached-tensors": "What each design keeps", "tables/rank": "Largest rank in the budget gqa:8",
    "tables/weights": "Weights per design", "tables/capacity": "Tokens and sequences that fit",
    "tables/memory-budget": "Where one GPU's memory goes",
    "tables/roofline": "Intensity, ridge and bound of the attention",
    "tables/crossover-context": "Along the context", "tables/crossover-batch": "Along the batch",
    "tables/crossover-rank": "Along the rank",
    "tables/placement": "Cache per GPU under tensor parallelism",
    "figures/cache-vs-rank": "Cache against rank",
    "figures/capacity-vs-context": "Sequences that fit against their length",
    "figures/step-stack": "Where a step's time goes", "figures/roofline-picture": "The datasheet roofline",
    "figures/crossover-map": "Which decodes faster, over batch and context",
}  # fmt: skip


@pytest.mark.parametrize("name", TITLES)
def test_every_part_is_what_its_command_prints(whole_report: Path, name: str) -> None:
    (command,) = blocks((whole_report / "report.md").read_text())[TITLES[name]]
    program, *arguments = shlex.split(command)
    assert program == "lrkv-plan"
    result = CliRunner().invoke(app, [*arguments, "--format", "csv"])
    assert result.exit_code == 0, result.output
    assert (whole_report / f"{name}.csv").read_text() == result.stdout


def test_every_file_is_checked_or_has_no_command(whole_report: Path) -> None:
    held = {p.relative_to(whole_report).as_posix() for p in whole_report.rglob("*.*")}
    tables = {path.removesuffix(".csv") for path in held if path.endswith(".csv")}
    assert tables == {*TITLES, "tables/basis"}
    pictures = {name for name in TITLES if name.startswith("figures/")}
    assert held == (
        {"index.html", "report.md"}
        | {f"{name}.csv" for name in tables}
        | {f"{name}.{suffix}" for name in pictures for suffix in ("svg", "png")}
    )
    assert all(map(is_report_path, held))


def test_a_picture_is_what_plot_draws(whole_report: Path, tmp_path: Path) -> None:
    (command,) = blocks((whole_report / "report.md").read_text())[TITLES["figures/step-stack"]]
    for suffix in ("svg", "png"):
        path = tmp_path / f"x.{suffix}"
        assert CliRunner().invoke(app, [*shlex.split(command)[1:], "-o", str(path)]).exit_code == 0
        drawn = (whole_report / "figures" / f"step-stack.{suffix}").read_bytes()
        assert path.read_bytes() == drawn


def test_the_held_out_errors_are_the_profiles(whole_report: Path) -> None:
    import lrkv_plan

    with (whole_report / "tables" / "basis.csv").open() as file:
        rows = {row["attention"]: row for row in csv.DictReader(file)}
    entries = [
        entry for entry in lrkv_plan.load_hardware("h200").kernels
        if entry.preferred and (entry.kernel, entry.kv_dtype, entry.regime)
        == ("grouped", "bf16", "cold") and entry.covers_head_dim(128)
    ]  # fmt: skip
    assert float(rows["gqa:8"]["held_out_median_error"]) in [
        entry.held_out_median_error for entry in entries
    ]
    assert rows["lrkv:16"]["held_out_median_error"] == ""
    assert rows["lrkv:16"]["basis"] == "assumed"


def test_what_cannot_be_computed_is_named_beside_what_can(tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    assert run("lrkv-paper-2.5b", "--gpu", "h100-sxm", "-o", str(folder)).exit_code == 0
    held = {p.stem for p in (folder / "tables").iterdir()}
    assert {"cache", "cached-tensors", "rank", "weights", "roofline", "placement"} == held
    markdown = (folder / "report.md").read_text()
    refused = re.findall(r"^Not computed: (.*)$", markdown, re.MULTILINE)
    # plan and its step parts; capacity, its picture and budget; step picture; three crossovers and
    # their map; the basis of times
    assert len(refused) == 2 + 3 + 1 + 4 + 1
    assert all("weight" in reason for reason in refused)
    page = (folder / "index.html").read_text()
    told = re.findall(r'<li class="refused">Not computed: (.*?)</li>', page)
    assert [line.partition(":")[0] for line in told] == [
        "Users that fit, This batch",
        "Step (ms), Band (ms)",
    ]
    assert page.count("Not computed: ") == len(refused) + len(told)
    result = CliRunner().invoke(app, ["rank", "lrkv-paper-2.5b", "--budget", "50%", "-f", "csv"])
    told = next(csv.DictReader(io.StringIO(result.stdout)))
    with (folder / "tables" / "rank.csv").open() as file:
        assert next(csv.DictReader(file))["rank"] == told["rank"] == "56"


def test_a_model_of_mixed_layers_gets_a_command_per_kind() -> None:
    from lrkv_plan.pages.model_page import Place, cache_parts
    from lrkv_plan.report.tables import to_csv

    part = cache_parts(Place.of("gemma-4-31b", gpu="h200"))[0]
    assert len(part.commands) == 2
    rows: list[dict[str, Any]] = []
    for command in part.commands:
        answer = CliRunner().invoke(app, [*shlex.split(command)[1:], "--format", "csv"])
        rows += csv.DictReader(io.StringIO(answer.stdout))
    assert part.table is not None
    assert list(csv.DictReader(io.StringIO(to_csv(part.table)))) == rows


def test_existing_reports_are_kept_unless_forced(hostile_spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "index.html").write_text("mine")
    told = (str(hostile_spec), "--gpu", "h100-sxm", "-o", str(folder))
    refused = run(*told)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert os.listdir(folder) == ["index.html"]
    (folder / "thesis.txt").write_text("years of work")
    foreign = run(*told, "--force")
    assert foreign.exit_code == 2
    assert "thesis.txt" in foreign.stderr
    assert (folder / "index.html").read_text() == "mine"
    (folder / "thesis.txt").unlink()


def test_a_failure_half_way_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "index.html").write_text("old")
    written = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name == "b.csv":
            raise OSError(28, "No space left on device")
        return written(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    files = {"index.html": b"new", "tables/a.csv": b"1", "tables/b.csv": b"2"}
    with pytest.raises(UsageError, match="No space left"):
        report_folder.write_folder(folder, files, is_ours=is_report_path, force=True)
    assert (folder / "index.html").read_text() == "old"
    assert os.listdir(tmp_path) == ["r"]
    monkeypatch.undo()
    report_folder.write_folder(folder, files, is_ours=is_report_path, force=True)
    assert (folder / "tables" / "b.csv").read_bytes() == b"2"
    assert (folder / "index.html").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["r"]


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.csv").write_text("keep")
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "tables").symlink_to(outside, target_is_directory=True)
    with pytest.raises(UsageError, match="tables"):
        report_folder.write_folder(folder, {}, is_ours=is_report_path, force=True)
    assert (outside / "a.csv").read_text() == "keep"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["-o", "r"], 2, "MODEL"),
        (["llama-3.1-8b", "-o", "r"], 2, "--gpu"),
        (["llama-3.1-8b", "--gpu", "h100-sxm"], 2, "--output"),
        (["nothing", "--gpu", "h100-sxm", "-o", "r"], 3, "no shipped model"),
        (["llama-3.1-8b", "--gpu", "h1000", "-o", "r"], 3, "perhaps  h100"),
        (["llama-3.1-8b", "--gpu", "h100-sxm", "-o", "."], 2, "current folder"),
        (["llama-3.1-8b", "--gpu", "h100-sxm", "-o", "no/such/r"], 2, "does not exist"),
        (["llama-3.1-8b", "--gpu", "h100-sxm", "-o", "r", "--align", "0"], 2, "--align"),
        (["llama-3.1-8b", "--gpu", "h100-sxm", "-o", "r", "--accepted-tokens", "3"], 2, "accepted"),
        (["llama-3.1-8b", "--gpu", "h100-sxm", "-o", "r", "--tp-size", "3"], 4, "no design can run"),
        (["--all", "llama-3.1-8b", "-o", "r"], 2, "--all"),
        (["--all", "--budget", "50%", "-o", "r"], 2, "--all"),
        (["--all", "-o", "no/such/r"], 2, "cannot be written"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_write_nothing(
    arguments: list[str], exit_code: int, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert os.listdir(tmp_path) == []


def test_help_has_an_example() -> None:
    text = " ".join(run("--help").stdout.split())
    assert "lrkv-plan report llama-3.1-8b --gpu h100-sxm -o" in text
    assert "--all" in text


def test_the_grid_on_the_page_is_plain_numbers(whole_report: Path) -> None:
    page = (whole_report / "index.html").read_text()
    found = re.search(r'id="grid-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    keys = ["rank", "context_tokens", "batch_size", "kv_dtype"]
    assert [axis["key"] for axis in data["axes"]] == keys
    for column in data["columns"]:
        assert len(column["texts"]) in (0, len(column["values"]))
