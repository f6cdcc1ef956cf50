"""``inspect`` as a person meets it: every format, files beside it, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from lrkv_plan.checkpoint.inspection import inspect_layers
from lrkv_plan.checkpoint.projections import attention_layers
from lrkv_plan.cli.app import app
from lrkv_plan.loader import load_model
from lrkv_plan.report.views.inspect import spectra_figure
from tests.checkpoint.synthetic import (
    llama_config,
    llama_folder,
    llama_tensors,
    planted,
    write_folder,
)
from tests.conftest import one_error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of 4 query heads on 2 keys, planted rank 2; in the second all heads are equal."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((4, 8, 32))
    key, value = planted(rng, 2, 8, 32, 2), planted(rng, 2, 8, 32, 2)
    same = np.repeat(query[:1], 4, axis=0), np.repeat(key[:1], 2, axis=0), value
    made = tmp_path_factory.mktemp("made") / "toy"
    return llama_folder(made, {0: (query, key, value), 1: same})


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_json_rows_per_layer_and_tensor(folder: Path) -> None:
    done = run(folder, "--format", "json", "--energy", "99.9%")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {(row["layer"], row["tensor"]): row for row in document["rows"]}
    assert set(rows) == {(n, t) for n in (0, 1) for t in ("key", "value", "query_key_map")}
    key, maps = rows[0, "key"], rows[0, "query_key_map"]
    assert (key["n_heads"], key["head_dim"], key["input_dim"]) == (2, 8, 32)
    assert len(key["mean_base_relative_errors"]) == len(key["fitted_base_relative_errors"]) == 9
    assert key["fitted_base_rank"] == 2
    assert (maps["effective_rank_ceiling"], maps["centred_effective_rank_ceiling"]) == (4, 3)
    assert np.array(maps["cosine_gram"]).shape == (4, 4)
    equal = rows[1, "query_key_map"]
    assert equal["centred_effective_rank"] is None
    assert "identical maps" in equal["undefined"]
    assert rows[1, "key"]["base_energy_share"] == pytest.approx(1)


def test_notes_say_what_the_numbers_are_not(folder: Path) -> None:
    assert "not language-model loss" in run(folder, "--layers", "0").stdout
    shown = " ".join(run(folder, "--layers", "0", "--explain").output.split())
    assert "Frobenius error is not language-model loss" in shown
    assert "RoPE" in shown
    assert "norms" in shown
    assert "4 query heads share 2 keys" in shown
    assert "undefined" not in shown
    assert "undefined in layer 1" in run(folder).output


@pytest.mark.parametrize("output_format", ["table", "csv", "markdown"])
def test_other_formats(folder: Path, output_format: str) -> None:
    done = run(folder, "--format", output_format, "--fit-ranks", "none")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) > 4


def test_plan_and_picture_are_written(folder: Path, tmp_path: Path) -> None:
    plan, picture = tmp_path / "plan.yaml", tmp_path / "spectra.svg"
    done = run(folder, "--budget", "60%", "--plan-file", plan, "--plot", picture, "-f", "json")
    assert done.exit_code == 0, done.stderr
    assert f"wrote {plan}" in done.stderr
    row = json.loads(done.stdout)["rows"][-1]
    assert row["tensor"] == "rank_plan"
    assert row["planned_bytes_per_token"] <= row["budget_bytes_per_token"]
    assert row["planned_discarded_energy_share"] <= row["uniform_discarded_energy_share"]
    assert load_model(plan).name == "toy-lrkv-plan"
    assert picture.read_text().startswith("<?xml")
    # The plan is a model like any other.
    again = CliRunner().invoke(app, ["cache", str(plan), "--format", "json"])
    assert again.exit_code == 0
    assert run(folder, "--budget", "60%", "--plan-file", plan).exit_code == 2


def test_the_same_numbers_on_every_run(folder: Path) -> None:
    arguments = (folder, "--format", "json", "--fit-ranks", "1,3-5", "--alternations", "4")
    assert run(*arguments).stdout == run(*arguments).stdout


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--layers", "2"], 2, "there is no layer 2; the model has 2, 0 to 1"),
        (["--layers", "1-0"], 2, "'1-0' is not a range"),
        (["--layers", "x"], 2, "write whole numbers"),
        (["--layers", "0-99999"], 2, "is not a range"),
        (["--layers", "-1"], 2, "write whole numbers"),
        (["--energy", "0"], 2, "above 0 and at most 1"),
        (["--energy", "90"], 2, "above 0 and at most 1"),
        (["--energy", "nan"], 2, "not a number"),
        (["--fit-ranks", "some"], 2, "write whole numbers"),
        (["--alternations", "3"], 2, "--alternations needs --fit-ranks"),
        (["--fit-ranks", "all", "--alternations", "0"], 2, "--alternations"),
        (["--budget", "50%", "--layers", "0"], 2, "leaves out 1"),
        (["--budget", "1%"], 4, "no rank fits"),
        (["--budget", "50%", "--position", "rope_rnak"], 2, "did you mean 'rope_rank'"),
        (["--plan-file", "x.yaml"], 2, "needs a --budget"),
        (["--budget", "50%", "--plan-file", "x.txt"], 2, "ends in .yaml"),
        (["--plot", "x.gif"], 2, "a picture ends in one of png"),
        (["--plot", "no/such/folder/x.png"], 2, "is a folder that does not exist"),
        (["--budget", "50%", "--kv-dtype", "fp9"], 3, "fp9"),
        (["--kv-dtype", "fp8"], 2, "is of the plan that --budget asks for"),
        (["--output", "no/such/folder/x.json"], 2, "is a folder that does not exist"),
    ],
)
def test_wrong_options_end_in_one_line(
    folder: Path, options: list[str], code: int, message: str
) -> None:
    done = run(folder, *options)
    assert done.exit_code == code, done.output
    assert message in one_error(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["", "no such folder", "config.json"])
def test_no_folder_ends_in_one_line(name: str, folder: Path) -> None:
    done = run(folder / name if name == "config.json" else name)
    assert done.exit_code == 3, done.output
    assert len(done.stderr.splitlines()) == 1


def test_an_interrupted_download_ends_in_one_line(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:5000])
    done = run(tmp_path)
    assert done.exit_code == 3
    assert done.stderr.count("\n") == 1
    assert "not a complete safetensors file" in done.stderr


def test_zero_weights_are_named_and_not_drawn(tmp_path: Path) -> None:
    zero = np.zeros((2, 4, 16))
    made = llama_folder(tmp_path / "zero", {0: (zero, zero, zero)})
    done = run(made, "--budget", "80%")
    assert done.exit_code == 0, done.stderr
    assert "undefined in layer 0: key spectrum: all weights are zero" in done.output
    assert "no head has a map" in done.output
    drawn = run(made, "--plot", tmp_path / "x.png")
    assert (drawn.exit_code, (tmp_path / "x.png").exists()) == (3, False)
    assert "no spectrum to draw" in drawn.stderr


def test_a_tensor_missing_in_the_last_layer_is_found_before_the_first_is_read(
    tmp_path: Path,
) -> None:
    parts = np.ones((2, 4, 16))
    tensors = llama_tensors(dict.fromkeys((0, 1), (parts, parts, parts)))
    del tensors["model.layers.1.self_attn.v_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.weight"][:] = np.nan
    config = llama_config(n_layers=2, n_heads=2, n_kv_heads=2, head_dim=4, width=16)
    done = run(write_folder(tmp_path, config, tensors))
    assert "layers.1.self_attn.v_proj.weight' is missing" in done.stderr


def test_the_picture_shows_the_median_layer_and_the_spread(folder: Path) -> None:
    layers = inspect_layers(attention_layers(folder), [0, 1], fit=False)
    figure = spectra_figure({"name": "toy", "n_layers": 2}, layers, energy=0.9, remarks=())
    assert [panel.name for panel in figure.panels] == ["key", "value"]
    series = {series.name: series.y for series in figure.panels[0].series}
    both = [layer.key.mean_errors for layer in layers]
    for rank in range(9):
        pair = sorted((both[0][rank], both[1][rank]))
        assert series["mean base, least"][rank] == pair[0]
        assert series["mean base, largest"][rank] == pair[1]
        assert series["mean base, median layer"][rank] == pytest.approx(sum(pair) / 2)
    (guide,) = figure.panels[0].guides
    assert guide.value == pytest.approx(0.1**0.5)
