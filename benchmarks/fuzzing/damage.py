"""Damage to documents, texts and bytes, without knowing what they mean.

A document is what a JSON, YAML or CSV parser returns: mappings, lists and leaves. Every choice is
drawn from the ``random.Random`` that is passed in, so that one seed gives one damage.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 1.5, -0.0, 0.1, 1e-320, 1e-9, 1e16, 1e308, -1e308, 10**18, 10**30, 10**400,
    2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, float("nan"), float("inf"), float("-inf"), True,
    False,
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "1,5", "8,192", "1e400", "1e-400", "nan", "inf", "-inf", "1_000", "0x10",
    "null", "~", "[]", "{}", "true", "many", "80 furlongs", "66,89 GiB", "1/0", "1" * 5000,
    "é", "漢字", "٣", "½", "a\tb", "a\nb", "a\rb", "\0", "\x1b[31mred\x1b[0m", "\x07", "\x85",
    "\x9b31m", "\u202e", "\u2028", "\ufeff", "\ud800", "\udcff", "\U0010ffff", "[red]x[/red]",
    "[/]", "{x}", "%s%n", "=1+1", "@SUM(A1)", "+1+1", "<script>", "$(id)", "`id`", "'", '"', "\\",
    "a" * 300, "a" * 100_000, "e\u0301" * 50, "../x", "~nosuch/x.json", "-", "--", "--help",
)  # fmt: skip
EMPTY: tuple[Any, ...] = (None, [], {}, [[]], {"": ""}, [None], {"x": {"y": []}})
# Written into the text as it is: what a parser may take for something else than text or a number.
RAW = (
    '!!int ""', "!!int x", "!!float x", "!!timestamp x", "!!bool x", "!!binary '='", "!!set {a, b}",
    "!!omap [a: 1]", "!!python/object:os.system x", "!x y", "&a [*a]", "*a", "<<: *a", "? a", "0o9",
    "0b2", "1:30:99", "2001-99-99", "2001-01-01", ".inf", ".nan", "-.inf", "1e999", "NaN",
    "Infinity", "-", "|", ">", "%YAML 9.9", "---", "...", "'", '"', '"\\ud800"', '"\\x"', "[", "]",
    "{", "}", ",", ":", "\\", "\0", "\t", "\r", "#", "//", "/*", "1" * 5000, "9" * 400, "\u2028",
)  # fmt: skip
JUNK = (
    b"\0", b"\r", b"\r\n", b"\n", b"\t", b"\x1b[2J", b"\xff", b"\xfe\xff", b"\xed\xa0\x80",
    b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xc2\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\x1a", b"=",
)  # fmt: skip
_LARGEST_FLOAT = 10**300


def hostile(chance: random.Random) -> Any:
    """A value that few keys allow."""
    return copy.deepcopy(chance.choice(chance.choice((NUMBERS, NUMBERS, TEXTS, EMPTY))))


def damaged_document(document: Any, chance: random.Random) -> Any:
    """A copy with one to three places changed, often so little that it may still be right."""
    changed = copy.deepcopy(document)
    changes = _SMALL_CHANGES if chance.random() < 0.4 else _CHANGES
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if not isinstance(changed, dict | list) or not changed:
            return hostile(chance)
        parent, key = _some_place(changed, chance)
        chance.choice(changes)(parent, key, chance)
    return changed


def _some_place(document: Any, chance: random.Random) -> tuple[Any, Any]:
    """A place, whichever level it is on: the mapping or list, and the key in it."""
    parent = document
    while True:
        key = chance.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        inner = parent[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.1:
            return parent, key
        parent = inner


def _replace(parent: Any, key: Any, chance: random.Random) -> None:
    parent[key] = hostile(chance)


def _delete(parent: Any, key: Any, _: random.Random) -> None:
    del parent[key]


def _repeat(parent: Any, key: Any, chance: random.Random) -> None:
    """The item once more, or many times, in a list; under another key in a mapping."""
    if isinstance(parent, list):
        parent[key:key] = [parent[key]] * chance.choice((1, 1, 3, 1000))
    else:
        parent[f"{key}{chance.choice(('_', 's', ' ', '.', chr(0)))}"] = parent[key]


def _rename(parent: Any, key: Any, chance: random.Random) -> None:
    if isinstance(parent, dict):
        parent[damaged_text(str(key), chance)] = parent.pop(key)
    else:
        parent.append(parent.pop(key))


def _nest(parent: Any, key: Any, chance: random.Random) -> None:
    """Wrapped in lists or mappings, once or deeper than a reader allows."""
    for _ in range(chance.choice((1, 1, 2, 66))):
        parent[key] = [parent[key]] if chance.random() < 0.5 else {"x": parent[key]}


def _other_kind(parent: Any, key: Any, _: random.Random) -> None:
    """Text of a number, a list of a mapping's values, a mapping of a list's items, and so on."""
    value = parent[key]
    if isinstance(value, dict):
        parent[key] = list(value.values())
    elif isinstance(value, list):
        parent[key] = {str(index): item for index, item in enumerate(value)}
    elif isinstance(value, str):
        parent[key] = [value]
    else:
        parent[key] = str(value)


def _near(parent: Any, key: Any, chance: random.Random) -> None:
    """A number moved a little or far; a text damaged."""
    value = parent[key]
    if isinstance(value, str):
        parent[key] = damaged_text(value, chance)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        factor = chance.choice((-1, 0, 0.5, 3, 10, 10**6, 10**15))
        whole = isinstance(value, int) and abs(value) >= _LARGEST_FLOAT
        moved = (value * 3, value) if whole else (value * factor, value + 0.5)
        parent[key] = chance.choice((value + 1, value - 1, *moved))
    else:
        parent[key] = hostile(chance)


def _decorate(parent: Any, key: Any, chance: random.Random) -> None:
    """Hostile text before or after a text, or instead of it."""
    value, text = parent[key], chance.choice(TEXTS)
    if isinstance(value, str):
        parent[key] = chance.choice((text + value, value + text, text))


def _swap(parent: Any, key: Any, chance: random.Random) -> None:
    """Two neighbours change places."""
    other = chance.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[key], parent[other] = parent[other], parent[key]


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _replace, _replace, _replace, _delete, _repeat, _rename, _nest, _other_kind, _near, _near,
    _swap,
)  # fmt: skip
_SMALL_CHANGES = (_near, _swap, _decorate)


def damaged_text(text: str, chance: random.Random) -> str:
    """A text cut, repeated, replaced, or with hostile text put into it."""
    where = chance.randrange(len(text) + 1)
    end = min(len(text), where + chance.choice((1, 1, 2, 5)))
    short = [one for one in TEXTS if len(one) < 500]
    return chance.choice(
        (
            chance.choice(TEXTS),
            text[:where] + chance.choice(short) + text[where:],
            text[:where] + chance.choice(short) + text[end:],
            text[:where] + chance.choice(",.:;=+-%/* \t_0519ekGib") + text[end:],
            text[:where],
            text[:where] + text[end:],
            text + chance.choice((",", ", ", ":", "=", "+", "/")) + text,
            f" {text} ",
            text.upper(),
            text * chance.choice((2, 50)),
        )
    )


def damaged_source(text: str, chance: random.Random) -> str:
    """A file's text with a word of it replaced by what a parser takes for something else."""
    words = [index for index in range(1, len(text)) if text[index - 1] in " [{:,\"'\n"]
    where = chance.choice(words or [0])
    end = where
    while end < len(text) and text[end] not in " \n,:[]{}\"'":
        end += 1
    return text[:where] + chance.choice(RAW) + text[end:]


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes cut, flipped, repeated, in another encoding, or with junk put into them."""
    where = chance.randrange(len(data) + 1)
    end = min(len(data), where + chance.choice((1, 4, 50, 500)))
    flipped = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 20))):
        if flipped:
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: data[:where],
        lambda: data[where:],
        lambda: data[:where] + data[end:],
        lambda: data[:end] + data[where:],
        lambda: bytes(flipped),
        lambda: data[:where] + chance.choice(JUNK) + data[where:],
        lambda: data[:where] + chance.choice(JUNK) * 3000 + data[where:],
        lambda: data.replace(b"\n", chance.choice((b"\r", b"\r\n", b"\n\n", b"\0", b" ", b"\n "))),
        lambda: b"\xef\xbb\xbf" + data,
        lambda: data.decode(errors="replace").encode(chance.choice(("utf-16", "utf-32", "utf-7"))),
        lambda: chance.choice((b"[", b"{", b'{"a":', b"- ", b"(", b'"')) * 3000 + data,
        lambda: data[:where] + chance.randbytes(40) + data[where:],
        lambda: chance.randbytes(chance.randrange(1, 400)),
        lambda: data * chance.choice((2, 5)),
    )
    return chance.choice(kinds)()
