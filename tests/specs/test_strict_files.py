"""The only readers of YAML and JSON refuse what a spec cannot hold, in one line with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from lrkv_plan.errors import SpecError
from lrkv_plan.specs.strict_files import read_json, read_yaml


def write(tmp_path: Path, text: str | bytes, name: str = "file.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "line 2, column 1: key 'a' appears twice"),
        ("b: {c: 1, c: 2}\n", "key 'c' appears twice"),
        ("1: x\n", "key '1' is not text"),
        ("a: .nan\n", "a: nan is not a finite number"),
        ("a: [{b: .inf}]\n", "a.0.b: inf"),
        ("a: 1e999\nb: -.inf", "b: -inf"),
        (BOMB, "nodes once its aliases are expanded"),
        ("a: &a [*a]\n", "refers to itself"),
        ("a: [1, 2\n", "line 2"),
        ("a: b: c\n", "line 1"),
        ("- 1\n", "holds a list"),
        ("", "holds empty"),
        ("just text", "holds a str"),
        ("[" * 100, "nested deeper than 64"),
        ("[" * 10_000, "nest"),
        ("a: !!python/object/apply:os.system [x]\n", "line 1"),
        (b"\xff\xfe\x00\x01", "not UTF-8"),
        (b"a: \x00\x01\n", "not valid YAML"),
        ("a: " + "9" * 5000, "line 1, column 4: '9+... is not a whole number"),
        ("x: y\n" * 200_000, "twice|nodes"),
    ],
)
def test_bad_yaml_is_one_line_with_its_place(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError, match=message) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "key 'a' appears twice"),
        ('{"a": 1', "line 1, column 8: not valid JSON"),
        ("[1]", "holds a list"),
        ("", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "digits|limit"),
        (b"\x80{}", "not UTF-8"),
    ],
)
def test_bad_json_is_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text, "config.json")
    with pytest.raises(SpecError, match=message) as caught:
        read_json(path)
    assert "\n" not in str(caught.value)


def test_aliases_and_merges_within_bounds_are_fine(tmp_path: Path) -> None:
    path = write(tmp_path, "a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


def test_a_huge_or_missing_file_is_refused(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(SpecError, match="larger than 8 MiB"):
        read_yaml(huge)
    with pytest.raises(SpecError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        read_yaml(tmp_path)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert read_json(write(tmp_path, b"\xef\xbb\xbf{}", "a.json")) == {}
