"""Templates: refused until they are filled in, then taken as they are; every example is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan import load_gpu, load_model
from lrkv_plan.cli.app import app
from lrkv_plan.errors import SpecError
from lrkv_plan.loader import HARDWARE_FOLDER, MODEL_FOLDER, load_all_hardware, shipped_files
from lrkv_plan.report.tables import FITTED_KEYS
from lrkv_plan.schema import PLACEHOLDER
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.specs.template import GPU_KEYS, MODEL_KEYS, gpu_template, model_template

GPU_BLANK = (
    "vendor", "generation", "mem_capacity_bytes", "mem_bandwidth_bytes_per_s",
    "peak_flops_per_s.bf16",
)  # fmt: skip
MODEL_BLANK = (
    "model_dim", "layers.0.count",
    *(f"layers.0.attention.{key}" for key in ("family", "n_heads", "n_kv_heads", "head_dim")),
)  # fmt: skip


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(("group", "blank"), [("hardware", GPU_BLANK), ("models", MODEL_BLANK)])
def test_what_is_not_filled_in_is_refused_by_name(
    group: str, blank: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    assert run(group, "new", "own", "-o", str(path)).exit_code == 0
    shown = run(group, "show", str(path))
    assert shown.exit_code == 3
    told = f"{len(blank)} keys are not filled in: {', '.join(blank)}"
    assert shown.stderr == f"error: {path}: {told}\n"
    # One figure after the other: what is left is still named.
    text = path.read_text()
    for index in range(text.count(PLACEHOLDER)):
        path.write_text(text.replace(PLACEHOLDER, "1", index + 1))
        assert run(group, "show", str(path)).exit_code == 3 or PLACEHOLDER not in path.read_text()


def test_a_gpu_with_its_figures_filled_in_is_taken_at_once(tmp_path: Path) -> None:
    text = gpu_template("own")
    for value in ("huawei", "ascend", "64 GiB", "1.6 TB/s", "376 TFLOP/s"):
        text = text.replace(f": {PLACEHOLDER}", f": {value}", 1)
    (tmp_path / "own.yaml").write_text(text)
    gpu = load_gpu(tmp_path / "own.yaml")
    assert (gpu.name, gpu.vendor, gpu.mem_capacity_bytes) == ("own", "huawei", 64 * 2**30)
    assert gpu.peak_flops_per_s == {"bf16": 376e12}
    assert gpu.source == ()
    done = run("capacity", "llama-3.1-8b", "--gpu", str(tmp_path / "own.yaml"))
    assert done.exit_code == 0, done.output


def test_a_model_with_its_figures_filled_in_is_taken_at_once(tmp_path: Path) -> None:
    text = model_template("own")
    for value in ("4096", "32", "gqa", "32", "8", "128"):
        text = text.replace(f": {PLACEHOLDER}", f": {value}", 1)
    (tmp_path / "own.yaml").write_text(text)
    own, shipped = load_model(tmp_path / "own.yaml"), load_model("llama-3.1-8b")
    assert own.n_layers == 32
    assert [g.attention for g in own.layers] == [g.attention for g in shipped.layers]


def every_key(text: str) -> str:
    """A template with all its commented keys as keys."""
    return re.sub(r"^( *)# ([a-z0-9_]+: )", r"\1\2", text, flags=re.MULTILINE)


def test_every_key_of_a_file_stands_in_its_template_with_an_example_that_is_read(
    tmp_path: Path,
) -> None:
    for cls, keys, text in (
        (HardwareProfile, GPU_KEYS, gpu_template("own")),
        (ModelSpec, MODEL_KEYS, model_template("own")),
    ):
        # Tables of fitted constants are written by `calibrate` and scripts.
        assert {key.name for key in keys} == set(cls.model_fields) - set(FITTED_KEYS)
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        assert {key.name for key in keys if key.is_required} == required
        assert not [line for line in text.splitlines() if line.startswith("#   #")]
        whole = every_key(text)
        for key in keys:
            if key.blank is not None:
                whole = whole.replace(
                    f"{key.name}: {every_key(key.blank)}".replace(": \n", ":\n"),
                    f"{key.name}: {key.example}",
                )
        assert PLACEHOLDER not in whole.split("\n\n", 1)[1]
        path = tmp_path / "whole.yaml"
        path.write_text(whole.replace("count: 32", "count: 1"))  # layer_order: [0]
        spec = load_gpu(path) if cls is HardwareProfile else load_model(path)
        assert spec.model_fields_set >= {key.name for key in keys}


@pytest.mark.parametrize("path", shipped_files(HARDWARE_FOLDER), ids=lambda p: p.stem)
def test_like_starts_from_a_gpus_figures_and_leaves_behind_what_is_its_own(
    path: Path, tmp_path: Path
) -> None:
    done = run("hardware", "new", "own", "--like", path.stem, "-o", str(tmp_path / "own.yaml"))
    assert done.exit_code == 0, done.output
    own, like = load_gpu(tmp_path / "own.yaml"), load_gpu(path)
    left = {"name": "own", "title": "own", "aliases": (), "source": (), "hourly_price": None,
            **dict.fromkeys(FITTED_KEYS, ()), "whole_step": None}  # fmt: skip
    assert own == like.model_copy(update=left)


@pytest.mark.parametrize("path", shipped_files(MODEL_FOLDER), ids=lambda p: p.stem)
def test_like_starts_from_a_models_figures(path: Path, tmp_path: Path) -> None:
    done = run("models", "new", "own", "--like", path.stem, "-o", str(tmp_path / "own.yaml"))
    assert done.exit_code == 0, done.output
    own, like = load_model(tmp_path / "own.yaml"), load_model(path)
    assert own == like.model_copy(update={"name": "own", "source": ()})


def test_a_file_is_never_written_over_without_force(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("mine\n")
    refused = run("hardware", "new", "own", "-o", str(path))
    assert (refused.exit_code, path.read_text()) == (2, "mine\n")
    assert "--force overwrites it" in refused.stderr
    assert run("hardware", "new", "own", "-o", str(path), "--force").exit_code == 0
    assert path.read_text() == gpu_template("own")


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["hardware", "new", "H100"], "is the GPU h100-sxm already; choose another", 2),
        (["hardware", "new", "h100-sxm"], "--like h100-sxm", 2),
        (["hardware", "new", "a/b"], "write letters, digits", 2),
        (["models", "new", "a: b"], "write letters, digits", 2),
        (["models", "new", "own", "--like", "llama"], "no shipped model is called 'llama'", 3),
        (["hardware", "new", "own", "--like", "h100-sxn"], "perhaps  h100-sxm", 3),
    ],
)
def test_what_cannot_be_written_is_refused(arguments: list[str], message: str, code: int) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 3  # and at most two lines of advice


def test_a_name_that_yaml_reads_as_something_else_stays_a_name(tmp_path: Path) -> None:
    for name in ("1e3", "007", "null", "yes", "2026-11-30"):
        path = tmp_path / "own.yaml"
        text = gpu_template(name, like={**filled(), "source": [{"citation": "x"}]}, like_name="x")
        path.write_text(text)
        assert load_gpu(path).name == name


def filled() -> dict[str, Any]:
    return {
        "vendor": "amd", "generation": "cdna3", "mem_capacity_bytes": 2**30,
        "mem_bandwidth_bytes_per_s": 1e12, "peak_flops_per_s": {"bf16": "1 PFLOP/s"},
    }  # fmt: skip


def test_missing_keys_of_one_kind_are_counted_as_such() -> None:
    with pytest.raises(SpecError, match=r"^gpu: 2 keys are missing: title, vendor$"):
        load_gpu({"name": "own", **{k: v for k, v in filled().items() if k != "vendor"}})


def test_the_generations_that_lend_constants_are_the_shipped_ones() -> None:
    told = next(key.decides for key in GPU_KEYS if key.name == "generation")
    listed = told.partition("Shipped: ")[2].partition(".")[0].split(", ")
    assert listed == sorted({gpu.generation for gpu in load_all_hardware()})
