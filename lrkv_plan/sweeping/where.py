"""Which points are kept: a comparison in words, ``users >= 64 and tpot_high_s < 0.03``.

Names are keys of rows; numbers, texts and lists of them are compared with < <= == != >= > and in,
joined with and, or, not, and counted with + - * /. Nothing else is read, and nothing is executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

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
_DEEPEST = 50
Kind: TypeAlias = Literal["number", "text", "truth"]
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


def condition(
    text: Any, keys: frozenset[str] | set[str], texts: frozenset[str] | set[str] = frozenset()
) -> Condition:
    """Read a comparison over the keys of rows and their short words.

    Parameters
    ----------
    texts : the keys whose values are texts; those of all others are numbers.

    Raises
    ------
    ArgumentError
        If it is no such comparison; the message says where it stops being one.

    Examples
    --------
    >>> keys, texts = {"admitted_sequences", "gpu"}, {"gpu"}
    >>> sorted(condition("users >= 64 and gpu != 'h200'", keys, texts).names)
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
    reader = _Reader(text, keys, texts)
    if reader.kind(body, 0) != "truth":
        raise ArgumentError("where", f" {shown(text)}: compares nothing; write 'users >= 64'")
    return Condition(text=text.strip(), names=frozenset(reader.names))


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


class _Reader:
    """Reads the nodes of a comparison and says of what kind each is: number, text or truth."""

    def __init__(
        self, text: str, keys: frozenset[str] | set[str], texts: frozenset[str] | set[str]
    ) -> None:
        self.text, self.keys, self.texts = text, keys, texts
        self.names: set[str] = set()

    def refusal(self, what: str) -> ArgumentError:
        """The error that says what is not read."""
        told = "is not read here; compare keys with numbers or texts"
        return ArgumentError("where", f" {shown(self.text)}: {what} {told}")

    def kind(self, node: ast.AST, depth: int) -> Kind:
        """The kind of a node, all of whose parts are read."""
        if depth > _DEEPEST:
            raise self.refusal("so deep a comparison")
        if isinstance(node, ast.Name):
            key = key_of(node.id, self.keys, "where")[0]
            self.names.add(key)
            return "text" if key in self.texts else "number"
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return "text"
            if isinstance(node.value, int | float) and not isinstance(node.value, bool):
                return "number"
            raise self.refusal(shown(node.value))
        if isinstance(node, ast.BoolOp):
            return self._all(node.values, "truth", depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._all([node.operand], "truth", depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._all([node.operand], "number", depth)
        if isinstance(node, ast.BinOp) and type(node.op) in _COUNTED:
            return self._all([node.left, node.right], "number", depth)
        if isinstance(node, ast.Compare):
            return self._compared(node, depth)
        raise self.refusal(shown(ast.unparse(node)))

    def _all(self, nodes: Sequence[ast.AST], kind: Kind, depth: int) -> Kind:
        for node in nodes:
            if self.kind(node, depth + 1) != kind:
                what = {
                    "truth": "what compares nothing",
                    "number": "counting with what is no number",
                }
                raise self.refusal(what[kind])
        return kind

    def _compared(self, node: ast.Compare, depth: int) -> Kind:
        left = self.kind(node.left, depth + 1)
        for op, beside in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                if not isinstance(beside, ast.Tuple | ast.List):
                    raise self.refusal("'in' without a list")
                kinds = {self.kind(one, depth + 1) for one in beside.elts}
            elif type(op) not in _COMPARED or isinstance(beside, ast.Tuple | ast.List):
                is_list = isinstance(beside, ast.Tuple | ast.List)
                raise self.refusal("a list without 'in'" if is_list else type(op).__name__.lower())
            else:
                kinds = {self.kind(beside, depth + 1)}
                if "text" in kinds and not isinstance(op, ast.Eq | ast.NotEq):
                    raise self.refusal("an order of texts")
            if kinds - {left} or left == "truth":
                raise self.refusal("a number beside a text" if left != "truth" else "a comparison "
                                   "of comparisons")  # fmt: skip
        return "truth"


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
