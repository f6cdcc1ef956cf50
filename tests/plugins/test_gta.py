"""A family that another package adds: one file, found by its entry point, known to everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.attention import registry
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.cli.app import app
from lrkv_plan.errors import SpecError
from lrkv_plan.latency.kernel import kernel_model
from lrkv_plan.latency.work import attention_work
from lrkv_plan.memory.cache import bytes_per_token
from lrkv_plan.memory.largest import rank_ceiling
from lrkv_plan.memory.weights import kv_params
from lrkv_plan.pages.model_page import model_page
from lrkv_plan.report.markdown import to_markdown
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.plan import AS_ASKED, make_plan
from lrkv_plan.specs.deployment import EngineSettings, parse_engine
from lrkv_plan.specs.design import layers_of, swap_attention, typed_designs

POINT = EntryPoint(name="gta", value="tests.plugins.gta:FAMILIES", group=registry.ENTRY_POINTS)
LLAMA = lrkv_plan.load_model("llama-3.1-8b")
CAVEAT = "no public measurement of a GTA kernel here"


def offer(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Make these the installed entry points."""
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry.load_plugins.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    offer(monkeypatch, POINT)
    yield
    for family in [f for f in registry.all_families() if "gta" in f.names]:
        registry.forget(family)
    registry.load_plugins.cache_clear()


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def tied(text: str = "gta:4") -> AttentionSpec:
    return layers_of(swap_attention(LLAMA, text))[0]


@pytest.mark.usefixtures("installed")
def test_numbers_of_the_paper() -> None:
    # arXiv:2505.21487, table 5, H 16, d_h 128, bf16: 2 (4 * 128 + 64) = 1,152 B per token and
    # layer on one GPU and 2 (2 * 128 + 64) = 640 B on each of two.
    model = lrkv_plan.load_model("lrkv-paper-2.5b")
    attention = {"family": "mha", "n_heads": 16, "head_dim": 128}
    group = model.layers[0].model_copy(update={"count": 1})
    small = type(model).model_validate(
        {**model.model_dump(), "layers": [{**group.model_dump(), "attention": attention}]}
    )
    swapped = swap_attention(small, "gta:4")
    assert [bytes_per_token(swapped, tp_size=p) for p in (1, 2)] == [1152, 640]


@pytest.mark.usefixtures("installed")
def test_cache_weights_shares_and_work_on_llama() -> None:
    swapped = swap_attention(LLAMA, "gta:4")
    scalars = [Fraction(bytes_per_token(swapped, tp_size=p)) / 64 for p in (1, 2, 4)]
    assert scalars == [576, 320, 192]  # 4 * 128 + 64, 2 * 128 + 64, 128 + 64
    assert kv_params(swapped) == 32 * 4096 * 576
    work = attention_work(swapped)[0]
    assert (work.kernel, work.row_flops) == ("gta_tied", 2 * 8192)  # 2 H d_h multiply-adds
    assert work.row_read_bytes == 1152  # each row once, though it is key and value
    assert list(tied().sizes(4096)) == [1, 2, 4, 8, 16, 32]
    assert tied().with_size(8) == tied("gta:8")
    with pytest.raises(SpecError, match="n_kv_heads 3 does not divide 32 heads"):
        tied().with_size(3)


@pytest.mark.usefixtures("installed")
def test_the_ceiling_of_any_family_and_its_cache_as_a_budget() -> None:
    # 40 KiB over 32 layers of 2-byte scalars: 640 scalars, of which 4 * 128 + 64 = 576 fit.
    answer = rank_ceiling(LLAMA, budget="40 KiB/token", design=tied("gta:1"))
    assert (answer.largest.value, answer.largest.text) == (4, "gta:4")
    assert answer.next_rank_price_bytes == 32 * 2 * 4 * 128  # from 4 rows to 8
    # LRKV within gta:4's bytes: 2 (128 + 32 r) <= 576, r = 5.
    found = run("rank", "llama-3.1-8b", "--budget", "gta:4")
    assert found["rows"][0]["rank"] == 5


@pytest.mark.usefixtures("installed")
def test_the_kernel_is_printed_with_its_own_caveats() -> None:
    h200 = lrkv_plan.load_hardware("h200")
    shape = {"query_heads_per_kv_head": 8, "head_dim": 128}
    grouped = kernel_model(h200, "grouped", "bf16", **shape)  # type: ignore[arg-type]
    found = kernel_model(h200, "gta_tied", "bf16", **shape)  # type: ignore[arg-type]
    assert (found.basis, found.kernel, found.constants_of) == ("assumed", "gta_tied", "grouped")
    assert found.band90[1] == pytest.approx(grouped.band90[1] / 0.8)
    assert found.held_out_median_error is None
    assert any(CAVEAT in note for note in found.notes)
    assert not any("LRKV" in note for note in found.notes)


H100 = ("--gpu", "h100-sxm")
COMMANDS = {
    "cache": ("--attention", "gta:4"),
    "params": ("--attention", "gta:4"),
    "shard": ("--attention", "gta:4", "--tp-size", "2"),
    "capacity": ("--attention", "gta:4", *H100, "--context-tokens", "8k"),
    "roofline": ("--attention", "gta:4", *H100),
    "crossover": ("--attention", "gqa:4", "--attention", "gta:4", *H100),
    "plan": H100,
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers(name: str) -> None:
    result = CliRunner().invoke(app, [name, "llama-3.1-8b", *COMMANDS[name], "--format", "json"])
    assert result.exit_code == 0, result.output
    assert "gta:" in result.stdout
    if name in ("crossover", "plan"):
        assert CAVEAT in " ".join(json.loads(result.stdout)["remarks"])
        assert "gta_tied, bf16: measured" not in result.stdout


@pytest.mark.usefixtures("installed")
def test_a_plan_shows_it_by_default_and_on_request() -> None:
    hardware = lrkv_plan.load_hardware("h100-sxm")
    deployment = Deployment(
        hardware=hardware, settings=EngineSettings(context_tokens=8192), engine=parse_engine("vllm")
    )
    plan = make_plan(LLAMA, deployment, designs=typed_designs(LLAMA, ["gta:2", "mha"]))
    roles = {row.attention: row.role for row in plan.rows}
    # gqa:8 keeps 2,048 scalars; gta:8 1,088, gta:16 2,112.
    assert roles["gta:8"] == "GTA in the budget"
    assert roles["gta:2"] == AS_ASKED
    assert roles["mha"] == "MHA"
    gta, gqa = (next(r for r in plan.rows if r.attention == a) for a in ("gta:8", "gqa:8"))
    assert gta.capacity.max_sequences > gqa.capacity.max_sequences


@pytest.mark.usefixtures("installed")
def test_a_report_names_it() -> None:
    text = to_markdown(model_page("llama-3.1-8b", gpu="h100-sxm", context_tokens="8k"))
    assert "| gta:8 | gta_tied | assumed |" in text
    assert CAVEAT in text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("tests.plugins.nowhere:FAMILIES", "ModuleNotFoundError"),
        ("tests.plugins.gta:CAVEATS", "AttributeError"),
        ("lrkv_plan.attention.families.latent:FAMILIES", "family 'mla' is known already"),
        ("lrkv_plan.attention.spec:divisors_of", "TypeError"),
    ],
)
def test_a_broken_plugin_is_one_line(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, EntryPoint(name="gta", value=value, group=registry.ENTRY_POINTS))
    try:
        with pytest.raises(SpecError) as refusal:
            registry.known_families()
        assert "plugin 'gta' (lrkv_plan.families: " in str(refusal.value)
        assert message in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert registry.spec_class("mla").text_argument == "latent_dim"  # unharmed
    finally:
        registry.load_plugins.cache_clear()


def test_a_real_entry_point_of_an_installed_package(tmp_path: Path) -> None:
    package = tmp_path / "site" / "gta_family-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: gta-family\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[lrkv_plan.families]\ngta = gta_family:FAMILIES\n")
    source = Path(__file__).with_name("gta.py").read_text()
    (tmp_path / "site" / "gta_family.py").write_text(source)
    paths = [str(tmp_path / "site"), str(Path(lrkv_plan.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-m", "lrkv_plan", "cache", "llama-3.1-8b", "--attention", "gta:4",
         "--context-tokens", "1", "--format", "json"],
        capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["attention"] == "gta:4"
