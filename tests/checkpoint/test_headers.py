"""Checkpoint bytes from headers of tiny files: exact, and refused where they do not add up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from lrkv_plan.checkpoint import tensors as headers
from lrkv_plan.checkpoint.tensors import (
    INDEX_NAME,
    checkpoint_weights,
    has_checkpoint,
    header_bytes,
    read_header,
)
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
        {"dtype": "F16", "shape": [10], "data_offsets": [[0], [20]]},
        {"dtype": "F16", "shape": [10], "data_offsets": [0, "20"]},
        {"dtype": "F16", "shape": [10], "data_offsets": [None, {}]},
        {"dtype": "F16", "shape": [10], "data_offsets": [0, 2000]},  # bytes beyond the file
        {"dtype": "F99", "shape": [10], "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": [2**62, 8], "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": [2**62] * 1_000, "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": [-10], "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": [-5, -2], "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": [10.0], "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": [True, 10], "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": 10, "data_offsets": [0, 20]},
        {"dtype": "F16", "shape": [10], "data_offsets": [0, 20, 40]},
        {"dtype": "F16", "shape": [10], "data_offsets": [-20, 0]},
        {"dtype": "F16", "shape": [9], "data_offsets": [2, 20]},  # two bytes of nothing before it
        {"dtype": ["F16"], "shape": [10], "data_offsets": [0, 20]},
        {"shape": [10], "data_offsets": [0, 20]},
        [],
        None,
    ],
)
def test_a_header_that_lies_is_refused_in_one_line(tmp_path: Path, entry: Any) -> None:
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
        ({"weight_map": {"a": ["b"]}}, "beside it is needed"),
        ({"weight_map": {"a": "x" * 388 + ".safetensors"}}, "beside it is needed"),
        ({"weight_map": {"a": "a\0.safetensors"}}, "beside it is needed"),
        ({"weight_map": {"a": "\x1b[31m.safetensors"}}, "beside it is needed"),
        ({"weight_map": {str(n): f"{n}.safetensors" for n in range(10_001)}}, "10,001 files"),
        ({"metadata": {"total_size": 1e308}}, "total_size a whole number of 1,024 bits"),
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


def test_tensors_are_those_that_the_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    many = {f"t{n}": np.zeros((n, 3), np.float32) for n in range(20)}  # one of them empty
    save_file({**ONE, **TWO, **many}, path, metadata={"format": "pt"})
    with safe_open(path, framework="numpy") as file:
        for name, entry in read_header(path).items():
            tensor = file.get_slice(name)
            assert (entry.dtype, list(entry.shape)) == (tensor.get_dtype(), tensor.get_shape())
        assert sorted(read_header(path)) == sorted(file.keys())


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F16", "shape": [5], "data_offsets": [0, 10]}
    raw_file(tmp_path / "model.safetensors", {"x": entry, "y": entry}, 10)
    with pytest.raises(SpecError, match="tensor 'y' starts at byte 0 of the data, where 10 is"):
        checkpoint_weights(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 25, 2**63, 2**64 - 1, 17 * 2**20])
def test_a_header_of_an_absurd_length_is_refused_unread(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(length.to_bytes(8, "little") + b"{}")
        file.truncate(32 if length < 2**20 else 20 * 2**20)
    with pytest.raises(SpecError, match=r"not a complete safetensors file \((a|its) header"):
        checkpoint_weights(tmp_path)


def test_more_tensors_than_any_model_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "MAX_TENSORS", 2)
    two_shards(tmp_path)
    (tmp_path / INDEX_NAME).unlink()
    with pytest.raises(SpecError, match=r"00002.*more than 2 tensors"):
        checkpoint_weights(tmp_path)


def test_an_index_of_a_671b_model_is_read(tmp_path: Path) -> None:
    """92,000 tensors in 163 files, as deepseek-ai/DeepSeek-V3 has: above the bound of specs."""
    places = {
        f"model.layers.{n // 1500}.mlp.experts.{n % 1500}.down_proj.a_long_name.weight_scale_inv":
        f"model-{n * 163 // 92_000 + 1:05d}-of-000163.safetensors"
        for n in range(92_000)
    }  # fmt: skip
    index = {"metadata": {"total_size": 688_586_727_753}, "weight_map": places}
    (tmp_path / INDEX_NAME).write_text(json.dumps(index, indent=2))
    assert (tmp_path / INDEX_NAME).stat().st_size > 8.6e6
    got = checkpoint_weights(tmp_path)
    assert got.total_bytes == 688_586_727_753
    assert "none of its 163 files" in got.remarks[0]


@pytest.mark.parametrize("name", [INDEX_NAME, "model.safetensors", "other.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_what_is_no_file_is_told(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else name)
    assert has_checkpoint(tmp_path)
    with pytest.raises(SpecError, match=f"is a .*{kind}|levels of symbolic links"):
        checkpoint_weights(tmp_path)
