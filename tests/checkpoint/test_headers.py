"""Checkpoint bytes from headers of tiny files: exact, and refused where they do not add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lrkv_plan.checkpoint.headers import INDEX_NAME, checkpoint_weights, header_bytes
from lrkv_plan.errors import SpecError

ONE = {"a.weight": np.zeros((3, 4), np.float16), "a.bias": np.zeros(3, np.float32)}
TWO = {"b.weight": np.zeros((5, 2), np.int8)}
ONE_BYTES = 3 * 4 * 2 + 3 * 4
TWO_BYTES = 5 * 2


def two_shards(folder: Path, total: Any = ONE_BYTES + TWO_BYTES) -> None:
    save_file(ONE, folder / "model-00001-of-00002.safetensors")
    save_file(TWO, folder / "model-00002-of-00002.safetensors")
    places = dict.fromkeys(ONE, "model-00001-of-00002.safetensors")
    places |= dict.fromkeys(TWO, "model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX_NAME).write_text(json.dumps(index))


def raw_file(path: Path, header: dict[str, Any], n_data: int) -> None:
    """A file with any header, true or not."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(n_data))


def test_one_file_by_hand(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "model.safetensors")
    got = checkpoint_weights(tmp_path)
    assert got.tensor_bytes == {"a.weight": 24, "a.bias": 12}
    assert (got.total_bytes, got.n_files, got.remarks) == (36, 1, ())


def test_shards_add_up_to_the_index(tmp_path: Path) -> None:
    two_shards(tmp_path)
    got = checkpoint_weights(tmp_path)
    assert (got.total_bytes, got.n_files, got.remarks) == (46, 2, ())


def test_shards_without_an_index_add_up_as_well(tmp_path: Path) -> None:
    two_shards(tmp_path)
    (tmp_path / INDEX_NAME).unlink()
    assert checkpoint_weights(tmp_path).total_bytes == 46


def test_a_second_copy_beside_the_index_is_not_counted(tmp_path: Path) -> None:
    two_shards(tmp_path)
    save_file({**ONE, **TWO}, tmp_path / "consolidated.safetensors")
    assert checkpoint_weights(tmp_path).total_bytes == 46


def test_the_headers_count_where_the_index_differs(tmp_path: Path) -> None:
    two_shards(tmp_path, total=50)
    got = checkpoint_weights(tmp_path)
    assert got.total_bytes == 46
    assert "total_size 50 differs from the headers' 46" in got.remarks[0]


def test_an_index_alone_gives_its_total(tmp_path: Path) -> None:
    two_shards(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    got = checkpoint_weights(tmp_path)
    assert (got.total_bytes, got.n_files) == (46, 0)
    assert "none of its 2 files is here" in got.remarks[0]


def test_8_and_4_bit_floats_need_no_numpy_dtype(tmp_path: Path) -> None:
    header = {
        "q": {"dtype": "F8_E4M3", "shape": [4, 4], "data_offsets": [0, 16]},
        "s": {"dtype": "BF16", "shape": [2], "data_offsets": [16, 20]},
    }
    raw_file(tmp_path / "model.safetensors", header, 20)
    assert header_bytes(tmp_path / "model.safetensors") == {"q": 16, "s": 4}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    two_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SpecError, match=r"1 of 2 files are missing.*00002-of-00002"):
        checkpoint_weights(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 20, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file(ONE, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SpecError, match=r"model\.safetensors: not a complete safetensors file"):
        checkpoint_weights(tmp_path)


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(ONE, path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(SpecError, match=r"download it again"):
        checkpoint_weights(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F16", "shape": [100], "data_offsets": [0, 20]},  # shape larger than its bytes
        {"dtype": "F16", "shape": [10], "data_offsets": [0, 2000]},  # bytes beyond the file
        {"dtype": "F99", "shape": [10], "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": [2**62, 8], "data_offsets": [0, 20]},
    ],
)
def test_a_header_that_lies_is_refused_in_one_line(tmp_path: Path, entry: dict[str, Any]) -> None:
    raw_file(tmp_path / "model.safetensors", {"x": entry}, 20)
    with pytest.raises(SpecError) as caught:
        checkpoint_weights(tmp_path)
    assert "\n" not in str(caught.value)
    assert "model.safetensors" in str(caught.value)


def test_text_under_the_name_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(SpecError, match="not a complete safetensors file"):
        checkpoint_weights(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_map": {}}, "weight_map is missing"),
        ({"weight_map": {"a": "../else.safetensors"}}, "beside it is needed"),
        ({"weight_map": {"a": 3}}, "beside it is needed"),
        ({"metadata": {"total_size": "big"}}, "total_size 'big'"),
        ({"metadata": {"total_size": -1}}, "total_size -1"),
        ({"weight_map": {"none": "model-00001-of-00002.safetensors"}}, "has no tensor 'none'"),
    ],
)
def test_an_index_that_is_wrong_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    two_shards(tmp_path)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    (tmp_path / INDEX_NAME).write_text(json.dumps({**index, **change}))
    with pytest.raises(SpecError, match=message):
        checkpoint_weights(tmp_path)


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="give --weights"):
        checkpoint_weights(tmp_path)
