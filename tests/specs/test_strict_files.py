"""The only readers of YAML and JSON refuse what a spec cannot hold, in one line with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from lrkv_plan.documents import read_json, read_yaml
from lrkv_plan.errors import SpecError


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
        ('a: 1\nb: !!int ""\n', "line 2, column 4: '' is not a whole number"),
        ("a: !!int x\n", "line 1, column 4: 'x' is not a whole number"),
        ('a: !!float ""\n', "line 1, column 4: '' is not a number"),
        ("a: !!bool x\n", "line 1, column 4: 'x' is not true or false"),
        ("a: !!timestamp x\n", "line 1, column 4: 'x' is not a date"),
        ("a: !!null x\nb: !!int []\n", "line 2, column 4"),
        ("a: !!map x\n", "line 1, column 4"),
        ("a: !!seq {b: 1}\n", "line 1, column 4"),
        ("a: !!binary aGk=\n", "line 1, column 4: tag 'tag:yaml.org,2002:binary'"),
        ("a: !!set {b, c}\n", "line 1, column 4: tag 'tag:yaml.org,2002:set'"),
        ("a: !!omap [b: 1]\n", "line 1, column 4: tag 'tag:yaml.org,2002:omap'"),
        ("a: !!pairs [b: 1]\n", "line 1, column 4: tag 'tag:yaml.org,2002:pairs'"),
        ("a: !mine b\n", "line 1, column 4: tag '!mine'"),
        ("a: ! b\n", "line 1, column 4: tag '!'"),
        ("!!set {b}\n", "line 1, column 1: tag"),
        ("a: 2026-13-45\n", "line 1, column 4: '2026-13-45' is not a date"),
        ("a: 0x_\n", "line 1, column 4: '0x_' is not a whole number"),
        ("? [a, b]\n: 1\n", "key of several values is not text"),
        ("a: <<\n", "line 1"),
        ("<<: x\n", "line 1"),
        ("a: 1.0e+308\n", "line 1, column 4: 1e.308: no figure"),
        ("a: 1.0e-320\n", "line 1, column 4: 1e-320: no figure"),
        ("a: 0x" + "f" * 5000 + "\n", "line 1, column 4: a whole number of 20,000 bits"),
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
        ('{"a": ' + "9" * 5000 + "}", "a whole number of 5,000 digits"),
        ('{"a": -' + "9" * 400 + "}", "a whole number of 401 digits"),
        ('{"a": [' + "1," * 2_000_001 + "1]}", "more than 2,000,000 values"),
        (b"\x80{}", "not UTF-8"),
    ],
)
def test_bad_json_is_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text, "config.json")
    with pytest.raises(SpecError, match=message) as caught:
        read_json(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"), [("!!str 1", "1"), ("!!int 3", 3), ("!!float 2", 2.0), ("!!bool yes", True)]
)
def test_a_plain_tag_that_fits_is_fine(tmp_path: Path, text: str, value: object) -> None:
    assert read_yaml(write(tmp_path, f"a: {text}\n")) == {"a": value}


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
