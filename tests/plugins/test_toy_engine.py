"""An engine of another package is one file and one entry point; every command answers with it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.cli.options import EngineOption
from lrkv_plan.errors import SpecError, UsageError
from lrkv_plan.pages.model_page import model_page
from lrkv_plan.serving import engine as registry
from lrkv_plan.serving.engine import (
    ALL_SIZES,
    ENTRY_POINT_GROUP,
    SETTINGS,
    ByVersion,
    Engine,
    built_in_engines,
    engine_named,
    engine_names,
    engine_record,
)
from lrkv_plan.serving.engines import vllm
from tests.plugins import toy_engine

TOY_FILE = Path(toy_engine.__file__)
LLAMA = "llama-3.1-8b"
ON_H100 = [LLAMA, "--gpu", "h100-sxm", "--engine"]


def forget() -> None:
    registry._entry_points.cache_clear()
    registry._outside.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes the named entry points those of installed packages."""

    real = importlib.metadata.entry_points  # pydantic asks for its own group

    def install(**values: str) -> None:
        points = [EntryPoint(n, value, ENTRY_POINT_GROUP) for n, value in values.items()]

        def asked(*, group: str) -> Any:
            return points if group == ENTRY_POINT_GROUP else real(group=group)

        monkeypatch.setattr(importlib.metadata, "entry_points", asked)
        forget()

    yield install
    forget()


@pytest.fixture
def toy(installed: Callable[..., None]) -> None:
    installed(toy="tests.plugins.toy_engine:ENGINE")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return found


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code in (2, 3, 4), result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.usefixtures("toy")
def test_capacity_takes_its_rules_and_its_defaults() -> None:
    (row,) = rows("capacity", *ON_H100, "toy@1.2", "--context-tokens", "8k")
    assert (row["engine"], row["block_tokens"]) == ("toy@1.2", 8)
    # Half of 79.19 GiB less 16,060,522,496 B of weights, over 131,072 B a token in pages of 8
    budget = int(79.19 * 2**30) // 2 - 2 * 8_030_261_248
    assert row["kv_tokens"] == pytest.approx(budget // (8 * 131_072) * 8, abs=8)
    (earlier,) = rows("capacity", *ON_H100, "toy@1.1", "--context-tokens", "8k")
    assert earlier["block_tokens"] == 16
    (stated,) = rows("capacity", *ON_H100, "Toy-Server", "--page-tokens", "32")
    assert (stated["engine"], stated["block_tokens"]) == ("toy", 32)
    terms = rows("capacity", *ON_H100, "toy", "--detail")
    assert {"memory", "weights"} <= {row["term"] for row in terms}


@pytest.mark.usefixtures("toy")
def test_it_refuses_what_its_record_says() -> None:
    line = refused("capacity", *ON_H100, "toy", "--pp-size", "2")
    assert "toy does not run pp_size above 1; it runs --tp-size, and replicas (--n-gpus)" in line
    line = refused("capacity", *ON_H100, "toy", "--prefix-cache")
    assert "--prefix-cache" in line
    assert "the rules of toy do not use it" in line


@pytest.mark.usefixtures("toy")
def test_advice_names_its_formats() -> None:
    result = run("capacity", *ON_H100, "toy", "--context-tokens", "128k", "--kv-memory", "10 GiB")
    assert "--kv-dtype int8 (fits 1)" in " ".join(result.output.split())
    assert "fp8" not in result.output


@pytest.mark.usefixtures("toy")
def test_plan_rank_plot_and_report_answer_with_it() -> None:
    told = [*ON_H100, "toy@1.2"]
    assert len(rows("plan", *told, "--context-tokens", "8k")) > 3
    fitted = rows("rank", *told, "--fit-sequences", "8", "--context-tokens", "8k")
    assert any("lrkv" in str(row) for row in fitted)
    drawn = rows("plot", "capacity-vs-context", *told, "--attention", "gqa:4")
    assert drawn
    page = model_page("llama-3.1-8b", gpu="h100-sxm", engine="toy@1.2")
    assert "toy@1.2" in page.subtitle
    (capacity,) = (part for part in page.parts if part.key == "capacity")
    assert capacity.refused is None
    assert capacity.commands[0].endswith("--engine toy@1.2 --context-tokens 8192,32768,131072")


@pytest.mark.usefixtures("toy")
def test_a_near_miss_finds_it() -> None:
    assert engine_names()[-1] == "toy"
    with pytest.raises(UsageError, match=r"'toyy' is unknown; did you mean 'toy'\?; known: .*toy"):
        engine_named("toyy@1")


def dist_info(folder: Path, entry: str) -> dict[str, str]:
    """A package beside this one: a file and its metadata, as an installer leaves them."""
    (folder / "toy_engine.py").write_text(TOY_FILE.read_text())
    info = folder / "toy_engine-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\ntoy = {entry}\n")
    paths = [str(folder), str(Path(lrkv_plan.__file__).parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def in_a_process(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lrkv_plan", *arguments],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip


def test_an_installed_package_is_found(tmp_path: Path) -> None:
    environment = dist_info(tmp_path, "toy_engine:ENGINE")
    done = in_a_process(environment, "capacity", *ON_H100, "toy@1.2", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["engine"] == "toy@1.2"


def test_a_broken_package_is_one_line_and_no_hindrance(tmp_path: Path) -> None:
    environment = dist_info(tmp_path, "toy_engine:NOTHING")
    done = in_a_process(environment, "capacity", *ON_H100, "toy")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "engine toy of toy-engine 0.3 (toy_engine:NOTHING): cannot be loaded: " in line
    assert in_a_process(environment, "capacity", *ON_H100, "sglang").returncode == 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_package:ENGINE", "cannot be loaded: ModuleNotFoundError"),
        ("tests.plugins.toy_engine:budget", "must be an lrkv_plan.serving.engine.Engine"),
        ("lrkv_plan.serving.engines.sglang:ENGINE", "its record is named 'sglang'"),
    ],
)
def test_what_is_no_record_is_refused(
    installed: Callable[..., None], value: str, message: str
) -> None:
    installed(toy=value)
    with pytest.raises(SpecError, match=message):
        engine_record("toy")


def test_a_broken_package_hides_no_other(installed: Callable[..., None]) -> None:
    installed(broken="no_such_package:ENGINE", toy="tests.plugins.toy_engine:ENGINE")
    assert engine_named("toy-server@1").name == "toy"
    with pytest.raises(UsageError, match="did you mean 'vllm'"):
        engine_named("vlm")
    with pytest.raises(SpecError, match="engine broken"):
        engine_named("broken")


def test_a_dash_in_a_name_is_an_underscore(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = dataclasses.replace(toy_engine.ENGINE, name="toy_engine")
    monkeypatch.setattr(toy_engine, "ENGINE", renamed)
    installed(**{"toy-engine": "tests.plugins.toy_engine:ENGINE"})
    assert engine_named("toy-engine").name == engine_named("toy_engine").name == "toy_engine"


def test_own_engines_come_first_and_cost_no_look_at_other_packages(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(vllm="tests.plugins.toy_engine:ENGINE")
    assert engine_record("vllm") is vllm.ENGINE
    assert "vllm" not in engine_names()[len(built_in_engines()) :]

    real = importlib.metadata.entry_points

    def asked(*, group: str) -> Any:
        assert group != ENTRY_POINT_GROUP
        return real(group=group)

    monkeypatch.setattr(importlib.metadata, "entry_points", asked)
    forget()
    assert rows("capacity", *ON_H100, "trtllm@0.20")[0]["engine"] == "tensorrt_llm@0.20"


def test_every_file_of_the_package_is_one_engine_of_that_name() -> None:
    files = {path.stem for path in Path(vllm.__file__).parent.glob("[!_]*.py")}
    assert files == set(built_in_engines())
    for record in built_in_engines().values():
        assert record.about
        assert record.sizes <= ALL_SIZES
        assert record.reads <= set(SETTINGS)
        assert ("page_tokens" in record.reads) == (record.page_tokens is not None)


def test_help_names_every_engine() -> None:
    (option,) = EngineOption.__metadata__
    listed = option.help.split(" or one that")[0].replace(",", " ").split()
    assert sorted(listed) == sorted(built_in_engines())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "My Engine"}, "a name has letters"),
        ({"aliases": ("a-b",)}, "a name has letters"),
        ({"sizes": frozenset({"tp"})}, "sizes: tp unknown; known: dcp_size"),
        ({"reads": frozenset({"page"})}, "reads: page unknown; known: cpu_offload"),
    ],
)
def test_a_record_with_a_wrong_word_is_refused(changes: dict[str, Any], message: str) -> None:
    told = {"name": "toy", "about": "a toy", "pool": toy_engine.pool, "budget": toy_engine.budget}
    with pytest.raises(SpecError, match=message):
        Engine(**(told | changes))


def test_by_version_takes_the_newest_that_is_reached() -> None:
    value = ByVersion("old", {(0, 9): "new", (1, 2): "newest"})
    versions = ["x@0.8", "x@0.9.1", "x@1.2.0", "x"]
    got = [value.of(lrkv_plan.specs.deployment.parse_engine(text)) for text in versions]
    assert got == ["old", "new", "newest", "newest"]
