"""Which points are kept: a comparison in words, ``users >= 64 and tpot_high_s < 0.03``.

Names are keys of rows; numbers, texts and lists of them are compared with < <= == != >= > and in,
joined with and, or, not, and counted with + - * /. Nothing else is read, and nothing is executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lrkv_plan.errors import ArgumentError, did_you_mean, shown

# Short words for keys: what they stand for, and what a value is divided by.
ALIASES: Mapping[str, tuple[str, float]] = {
    "users": ("admitted_sequences", 1.0),
    "context": ("context_tokens", 1.0),
    "batch": ("batch_size", 1.0),
    "rank": ("size", 1.0),
    "tpot_ms": ("tpot_s", 1e-3),
    "tpot_low_ms": ("tpot_low_s", 1e-3),
    "tpot_high_ms": ("tpot_high_s", 1e-3),
    "usd": ("usd_per_million_tokens", 1.0),
}
_MOST_CHARACTERS = 2_000
_COUNTED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A comparison that was read; ``names`` are the keys of rows that it asks for."""

    text: str
    names: frozenset[str]

    def holds(self, value_of: Callable[[str], Any], n_points: int) -> Any:
        """Where it holds, an array of booleans; an absent number is in no relation to any other.

        Parameters
        ----------
        value_of : a key's value, one for all points or an array.
        """
        import numpy as np

        found = _evaluated(ast.parse(self.text, mode="eval").body, value_of)
        return np.broadcast_to(np.asarray(found, bool), n_points)


def condition(text: Any, keys: frozenset[str] | set[str]) -> Condition:
    """Read a comparison over the keys of rows and their short words.

    Raises
    ------
    ArgumentError
        If it is no such comparison; the message says where it stops being one.

    Examples
    --------
    >>> sorted(condition("users >= 64 and gpu != 'h200'", {"admitted_sequences", "gpu"}).names)
    ['admitted_sequences', 'gpu']
    """
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        raise ArgumentError("where", f" {shown(text)}: must be text, such as 'users >= 64'")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArgumentError(
            "where", f" {shown(text)}: is no comparison, such as 'users >= 64 and tpot_ms < 30'"
        ) from None
    names: set[str] = set()
    _check(body, text, keys, names, 0)
    if not isinstance(body, ast.Compare | ast.BoolOp | ast.UnaryOp):
        raise ArgumentError("where", f" {shown(text)}: compares nothing; write 'users >= 64'")
    return Condition(text=text.strip(), names=frozenset(names))


def key_of(name: str, keys: frozenset[str] | set[str], argument: str) -> tuple[str, float]:
    """The key that a name or short word stands for, and the unit of its values.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    if name in keys:
        return name, 1.0
    if name in ALIASES:
        return ALIASES[name]
    known = sorted({*keys, *ALIASES})
    raise ArgumentError(
        argument, f" {shown(name)}: is no key of a row{did_you_mean(name, known)}; keys: "
        f"{', '.join(known)}",
    )  # fmt: skip


def _check(
    node: ast.AST, text: str, keys: frozenset[str] | set[str], names: set[str], depth: int
) -> None:
    def refuse(what: str) -> ArgumentError:
        return ArgumentError(
            "where", f" {shown(text)}: {what} is not read here; compare keys with numbers or texts"
        )

    if depth > 50:
        raise refuse("so deep a comparison")
    parts: list[ast.AST] = []
    if isinstance(node, ast.Name):
        names.add(key_of(node.id, keys, "where")[0])
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool | bytes | complex) or node.value is ...:
            raise refuse(shown(node.value))
    elif isinstance(node, ast.BoolOp):
        parts = list(node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        parts = [node.operand]
    elif isinstance(node, ast.BinOp) and type(node.op) in _COUNTED:
        parts = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
        for op, beside in zip(node.ops, node.comparators, strict=True):
            listed = isinstance(beside, ast.Tuple | ast.List)
            if isinstance(op, ast.In | ast.NotIn) != listed:
                raise refuse("'in' without a list" if not listed else "a list without 'in'")
            if not isinstance(op, ast.In | ast.NotIn) and type(op) not in _COMPARED:
                raise refuse(type(op).__name__.lower())
    elif isinstance(node, ast.Tuple | ast.List):
        parts = list(node.elts)
    else:
        raise refuse(shown(ast.unparse(node)))
    for part in parts:
        _check(part, text, keys, names, depth + 1)


def _evaluated(node: ast.AST, value_of: Callable[[str], Any]) -> Any:
    """The value of a checked node: a scalar or an array."""
    import numpy as np

    if isinstance(node, ast.Name):
        key, unit = ALIASES.get(node.id, (node.id, 1.0))
        value = value_of(key)
        if value is None:
            return float("nan")
        return value if unit == 1.0 else value / unit
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        inner = _evaluated(node.operand, value_of)
        return np.logical_not(inner) if isinstance(node.op, ast.Not) else -inner
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left, value_of), _evaluated(node.right, value_of)
        with np.errstate(divide="ignore", invalid="ignore"):
            return _COUNTED[type(node.op)](np.asarray(left), right)
    if isinstance(node, ast.BoolOp):
        several = [_evaluated(part, value_of) for part in node.values]
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        found = several[0]
        for one in several[1:]:
            found = join(found, one)
        return found
    assert isinstance(node, ast.Compare), "a checked comparison has no other nodes"
    found, left = True, _evaluated(node.left, value_of)
    for op, beside in zip(node.ops, node.comparators, strict=True):
        if isinstance(beside, ast.Tuple | ast.List):
            several = [np.equal(left, _evaluated(one, value_of)) for one in beside.elts]
            among = np.logical_or.reduce(several) if several else np.zeros(np.shape(left), bool)
            holds = np.logical_not(among) if isinstance(op, ast.NotIn) else among
        else:
            right = _evaluated(beside, value_of)
            holds = _COMPARED[type(op)](left, right)
            left = right
        found = np.logical_and(found, holds)
    return found
