"""YAML that is written reads back to the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lrkv_plan.huggingface import import_config
from lrkv_plan.loader import load_model, shipped_files
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec, model_to_yaml
from tests.huggingface.test_huggingface import CASES, expanded

SHIPPED = shipped_files("model_specs")


def read_back(text: str, folder: Path) -> ModelSpec:
    path = folder / "written.yaml"
    path.write_text(text, encoding="utf-8")
    return load_model(path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["model"])
def test_imported_model_survives_the_round_trip(case: dict[str, Any], tmp_path: Path) -> None:
    model = import_config(expanded(case["config"]), Path(f"{case['model']}.json"))
    assert read_back(model_to_yaml(model), tmp_path) == model


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_model_is_named_like_its_file_and_survives(path: Path, tmp_path: Path) -> None:
    model = load_model(path)
    assert model.name == path.stem
    assert all(source.url for source in model.source)
    assert read_back(model_to_yaml(model), tmp_path) == model


def test_enough_models_are_shipped() -> None:
    assert len(SHIPPED) >= 32


def test_low_rank_design_survives_the_round_trip(tmp_path: Path) -> None:
    model = swap_attention(load_model("llama-3.1-8b"), "lrkv:54,groups=2,position=rope_expand")
    assert read_back(model_to_yaml(model), tmp_path) == model


def test_awkward_text_survives_the_round_trip(tmp_path: Path) -> None:
    odd = ("yes", "1: two # three", "'quoted' \"twice\"", "line\nbreak", "\u20ac", "- [x]", "null")
    model = load_model("gpt2").model_copy(update={"remarks": odd, "name": "1e3"})
    assert read_back(model_to_yaml(model), tmp_path) == model


def test_defaults_are_left_out_and_small_mappings_stand_on_one_line() -> None:
    text = model_to_yaml(load_model("llama-3.1-8b"))
    assert "    attention: {family: gqa, n_heads: 32, n_kv_heads: 8, head_dim: 128}\n" in text
    assert "    feed_forward: {kind: dense, hidden_dim: 14336, gated: true}\n" in text
    for key in ("layer_order", "reuses_cache", "draft_layers", "window_tokens", "head_bias"):
        assert key not in text


def test_layer_order_stands_on_one_line() -> None:
    text = model_to_yaml(load_model("gpt-oss-20b"))
    (line,) = [line for line in text.splitlines() if line.startswith("layer_order: ")]
    assert yaml.safe_load(line)["layer_order"] == [0, 1] * 12
