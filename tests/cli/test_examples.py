"""Every command shows an example, and each example that needs no measuring runs."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from scripts.site_pages import NOT_RUN, Command, command_page, commands, fetched_elsewhere
from tests.checkpoint.synthetic import llama_config, write_folder

ROOT = Path(__file__).parent.parent.parent
COMMANDS = list(commands())
# They answer by themselves or hold other commands.
GROUPS = {"calibrate", "plot", "models", "hardware"}
MEASURES = {"calibrate run", "calibrate tensor-parallel", "validate"}


def materials(command: Command, folder: Path) -> None:
    """Put into the folder what the command's example reads."""
    if command.name in ("calibrate fit", "calibrate show"):
        measured = ROOT / "reports" / "calibration-cpu"
        if command.name == "calibrate show":
            shutil.copytree(measured, folder / "here")
            return
        (folder / "here").mkdir()
        for name in ("samples.csv", "run.json"):
            shutil.copy(measured / name, folder / "here")
    elif command.name == "calibrate evaluate":
        calls = (ROOT / "tests" / "golden" / "kernel_sample.csv").read_bytes()
        (folder / "decode.csv.gz").write_bytes(gzip.compress(calls))
    elif command.name == "calibrate evaluate-layers":
        shutil.copy(ROOT / "tests" / "golden" / "layers" / "matrices.csv", folder)
    elif command.name == "calibrate evaluate-steps":
        shutil.copy(ROOT / "tests" / "golden" / "steps" / "runs.csv", folder)
    elif command.name in ("inspect", "models import"):
        config = llama_config(n_layers=4, n_heads=4, n_kv_heads=2, head_dim=8, width=32)
        rng = np.random.default_rng(0)
        tensors = {
            f"model.layers.{layer}.self_attn.{part}_proj.weight": rng.standard_normal(
                (rows, 32), dtype=np.float32
            )
            for layer in range(4)
            for part, rows in (("q", 32), ("k", 16), ("v", 16))
        }
        name = "my-model" if command.name == "inspect" else "Qwen3-32B"
        write_folder(folder / name, config, tensors)


def test_every_command_has_an_example() -> None:
    assert {c.name for c in COMMANDS if not c.example} == GROUPS
    assert set(NOT_RUN) <= {c.name for c in COMMANDS}
    for command in COMMANDS:
        shown = " ".join(command.example)
        assert not command.example or shown.startswith(f"{command.name} "), command.name


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if c.example and c.name not in MEASURES],
    ids=lambda c: c.name,
)
def test_the_example_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    materials(command, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = CliRunner().invoke(app, list(command.example))
    assert result.exit_code == 0, result.output
    if "-o" in command.example:
        assert (tmp_path / command.example[command.example.index("-o") + 1]).exists()


def test_a_page_shows_help_and_what_the_example_prints() -> None:
    rank = next(c for c in COMMANDS if c.name == "rank")
    text, pictures = command_page(rank)
    assert text.startswith("# rank\n\nLargest LRKV rank")
    assert "lrkv:56" in text
    assert "--budget" in text.partition("## Help")[2]
    assert not pictures


def test_what_a_page_would_fetch_from_elsewhere_is_found(tmp_path: Path) -> None:
    link = '<a href="https://example.org/x">only followed</a>'
    (tmp_path / "a.html").write_text(f'{link}<script src="local.js"></script>')
    assert not fetched_elsewhere(tmp_path)
    (tmp_path / "b.html").write_text("<script async src='https://example.org/x.js'></script>")
    (tmp_path / "c.css").write_text("@import url(//example.org/font.css)")
    assert set(fetched_elsewhere(tmp_path)) == {"b.html", "c.css"}
