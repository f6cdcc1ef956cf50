"""What does a sweep show? Its frontier, a map over two of its axes, and what moves its result.

Rows come as a pandas frame or as a list of mappings, such as those of ``Result``; a row without one
of the values (it was refused) is left out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lrkv_plan.errors import UsageError, shown
from lrkv_plan.report.captions import caption
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.report.panels import COLORS

MAX_CLOUD = 3000  # drawn; the rows of a picture are the drawn ones
_OTHERS = "others"
_LOG_FROM = 20.0  # the largest over the smallest from which an axis is logarithmic
# A key's end: the unit drawn, and by what a value in base units is multiplied.
_UNITS = (
    ("_per_s", "/s", 1.0), ("_bytes", "GiB", 2.0**-30), ("_s", "ms", 1e3), ("_share", "%", 100.0),
    ("_tokens", "tokens", 1.0), ("_sequences", "sequences", 1.0),
)  # fmt: skip
_LABELS = {
    "total_sequences": "Users", "admitted_sequences": "Users", "tpot_s": "ms per token",
    "step_s": "Step, ms", "tokens_per_s": "Tokens/s", "tokens_per_s_per_gpu": "Tokens/s per GPU",
    "usd_per_million_tokens": "$ per million tokens",
    "usd_per_hour": "$ per hour", "usd_per_sequence_hour": "$ per user and hour",
    "context_tokens": "Context, tokens", "weight_bytes": "Weights, GiB", "n_gpus": "GPUs",
    "attention": "", "gpu": "", "model": "", "kv_dtype": "Cache format", "tp_size": "TP",
}  # fmt: skip
_BETTER = ("more", "less")


def pareto_places(
    points: Sequence[tuple[float, float]], better: tuple[str, str] = ("less", "less")
) -> list[int]:
    """Places of the points that no other is at least as good as in both and better in one.

    Parameters
    ----------
    points : (x, y) each.
    better : "more" or "less" for x and for y.

    Returns
    -------
    In order of x, best y first; points that are equal in both stand all or none.

    Examples
    --------
    Users up, milliseconds down: (2, 3) is beaten by (2, 2); (1, 1) and (4, 9) stand alone.

    >>> pareto_places([(1, 1), (2, 3), (2, 2), (4, 9), (3, 9)], ("more", "less"))
    [0, 2, 3]
    """
    signs = [1.0 if direction == "less" else -1.0 for direction in better]
    keys = [(signs[0] * x, signs[1] * y) for x, y in points]
    kept: list[int] = []
    best = (math.inf, math.inf)
    for place in sorted(range(len(keys)), key=keys.__getitem__):
        if keys[place] == best or keys[place][1] < best[1]:
            best = keys[place]
            kept.append(place)
    return sorted(kept, key=lambda place: (points[place][0], keys[place][1], place))


def frontier(
    frame: Any,
    x: str,
    y: str,
    hue: str | None = None,
    *,
    better: tuple[str, str],
    title: str = "The frontier of the sweep",
) -> Figure:
    """Rows that no other beats, joined by the steps between them, and a cloud of the rest.

    Parameters
    ----------
    frame : a pandas frame or rows; ``x`` and ``y`` are columns of numbers in base units, ``hue``
        one whose values share a colour and a marker.
    better : "more" or "less" for ``x`` and for ``y``.

    Raises
    ------
    UsageError
        If a column is missing, ``better`` is neither, or no row has both values.

    Notes
    -----
    Between two rows of the frontier there is none: who needs more than the one takes the other,
    which is the step that is drawn. Of the cloud at most ``MAX_CLOUD`` rows are drawn, evenly by
    their place in the frame.
    """
    if len(better) != 2 or any(one not in _BETTER for one in better):
        raise UsageError(f"better {shown(better)}: 'more' or 'less' for x and for y")
    hues = [""] * _n_rows(frame) if hue is None else [str(h) for h in _column(frame, hue)]
    pairs = zip(_column(frame, x), _column(frame, y), hues, strict=True)
    rows = [(px, py, name) for px, py, name in pairs if _is_number(px) and _is_number(py)]
    if not rows:
        raise UsageError(f"frontier of {x} and {y}: no row has both")
    places = pareto_places([(px, py) for px, py, _ in rows], better)
    front = set(places)
    named = _named_hues([rows[place][2] for place in places])
    rest = [row for place, row in enumerate(rows) if place not in front]
    step = max(1, math.ceil(len(rest) / MAX_CLOUD))
    front_role = Role.POINTS if hue is None else Role.KEYED
    joined = Series(
        name="frontier", role=Role.STEPS_AFTER if better[0] == "less" else Role.STEPS_BEFORE,
        x=tuple(rows[place][0] for place in places), y=tuple(rows[place][1] for place in places),
    )  # fmt: skip
    series = [
        *_by_hue(rest[::step], named, Role.CLOUD),
        joined,
        *_by_hue([rows[place] for place in places], named, front_role),
    ]
    axes = [_axis(key, [row[i] for row in rows], better[i]) for i, key in enumerate((x, y))]
    cloud = f"{len(rest):,} others" + (f", one in {step} of them drawn" if step > 1 else "")
    return Figure(
        kind="frontier",
        title=title,
        caption=caption(f"{len(places):,} of {len(rows):,} rows are beaten by none; dots: {cloud}"),
        inputs={"x": x, "y": y, "hue": hue, "better": list(better)},
        panels=(Panel(name="frontier", x=axes[0], y=axes[1], series=tuple(series)),),
        remarks=_left_out(_n_rows(frame) - len(rows), (x, y)),
    )


def _named_hues(names: Sequence[str]) -> list[str]:
    """Hues of the frontier with a colour of their own, the most frequent where there are many."""
    found = list(dict.fromkeys(names))
    if len(found) <= len(COLORS):
        return found
    most = sorted(found, key=lambda name: -names.count(name))[: len(COLORS) - 1]
    return [name for name in found if name in most]


def _by_hue(rows: Sequence[tuple[Any, Any, str]], named: Sequence[str], role: Role) -> list[Series]:
    """A series per hue. Others are one grey cloud, or hollow points."""
    series = []
    for style, name in [*enumerate(named), (None, _OTHERS)]:
        own = [
            row for row in rows if (row[2] == name if style is not None else row[2] not in named)
        ]
        if own:
            series.append(
                Series(
                    name=name or role.value, role=role, x=tuple(row[0] for row in own),
                    y=tuple(row[1] for row in own), style=style or 0,
                    is_open=style is None or (role is Role.CLOUD and not name),
                    facts={"is_on_frontier": role is not Role.CLOUD},
                )
            )  # fmt: skip
    return series


def heat_map(
    frame: Any,
    x: str,
    y: str,
    value: str,
    *,
    better: str | None = None,
    title: str | None = None,
) -> Figure:
    """One value over two axes of a sweep, a cell per pair, hatched where there is none.

    Parameters
    ----------
    frame : a pandas frame or rows; ``value`` is a column of numbers in base units.
    better : "more" or "less": which of several rows of one cell is shown; None refuses several.

    Raises
    ------
    UsageError
        If a column is missing, no row has a value, or a cell has several rows and ``better`` is
        None.
    """
    if better is not None and better not in _BETTER:
        raise UsageError(f"better {shown(better)}: 'more', 'less' or None")
    cells: dict[tuple[Any, Any], Any] = {}
    columns = [_column(frame, key) for key in (x, y, value)]
    for at_x, at_y, found in zip(*columns, strict=True):
        place, number = (at_x, at_y), found if _is_number(found) else None
        before = cells.get(place)
        if before is not None and number is not None:
            if better is None:
                raise UsageError(
                    f"heat map of {value}: several rows with {x} {shown(at_x)} and {y} "
                    f"{shown(at_y)}; choose among them, or say which is better"
                )
            number = max(before, number) if better == "more" else min(before, number)
        cells[place] = before if number is None else number
    known = [number for number in cells.values() if number is not None]
    if not known:
        raise UsageError(f"heat map of {value}: no row has it")
    across = _in_order([place[0] for place in cells])
    up = _in_order([place[1] for place in cells])
    if all(_is_number(one) for one in up):
        up.reverse()  # category axes run downwards, and the most belongs on top
    places = [(at_x, at_y) for at_y in up for at_x in across]
    shade = _axis(value, known)
    series = Series(
        name=value, role=Role.CELLS, x=tuple(_name(x, at) for at, _ in places),
        y=tuple(_name(y, at) for _, at in places), values=tuple(map(cells.get, places)),
    )  # fmt: skip
    chosen = "" if better is None else f"the one with {better} where several rows share a cell"
    empty = "hatched: no answer" if len(known) < len(places) else ""
    return Figure(
        kind="heat-map",
        title=title or f"{shade.label or value} over {_words(x)} and {_words(y)}",
        caption=caption(f"{len(known):,} cells", chosen, empty),
        inputs={"x": x, "y": y, "value": value, "better": better},
        panels=(
            Panel(
                name="cells",
                x=Axis(key=x, label=_label(x)[0], scale="category"),
                y=Axis(key=y, label=_label(y)[0], scale="category"),
                value=shade,
                series=(series,),
            ),
        ),
    )


def tornado(
    rows: Sequence[Mapping[str, Any]],
    *,
    outcome: str,
    base: float,
    title: str | None = None,
) -> Figure:
    """How far each constant moves a result from one end of its band to the other, widest first.

    Parameters
    ----------
    rows : for each constant its ``name``, and the result with it at its ``low`` and its ``high``
        end; ``low_text`` and ``high_text`` say these ends, as "0.8".
    outcome : the key of the result, which says its unit.
    base : the result with nothing moved, in base units.

    Raises
    ------
    UsageError
        If there are no rows, or one lacks a key.
    """
    if not rows:
        raise UsageError("a tornado needs at least one constant that was moved")
    for row in rows:
        missing = [key for key in ("name", "low", "high") if row.get(key) is None]
        if missing:
            raise UsageError(f"tornado row {shown(dict(row))}: lacks {', '.join(missing)}")
    ordered = sorted(rows, key=lambda row: -abs(row["high"] - row["low"]))
    names = tuple(str(row["name"]) for row in ordered)
    ends = [
        Series(
            name=f"{end} end", role=Role.SWING, x=tuple(row[end] for row in ordered), y=names,
            style=style, label=f"at its {end} end", origin=base,
            texts=tuple(str(row.get(f"{end}_text", "")) for row in ordered),
        )
        for style, end in enumerate(("low", "high"))
    ]  # fmt: skip
    found = [base, *(row[end] for row in rows for end in ("low", "high"))]
    axis = _axis(outcome, found)
    widest_text = max(len(text) for series in ends for text in series.texts)
    span = (max(found) - min(found)) or abs(base) or 1.0
    room = span * min(0.4, 0.03 * (1 + widest_text))  # beside the widest bars
    text = f"{base * axis.factor:,.4g}"
    return Figure(
        kind="tornado",
        title=title or f"What moves {_words(outcome)}",
        caption=caption("one constant at a time, over its stated band", f"line: {text} as assumed"),
        inputs={"outcome": outcome, "base": base},
        panels=(
            Panel(
                name="tornado",
                x=Axis(
                    key=axis.key,
                    label=axis.label,
                    factor=axis.factor,
                    low=min(found) - room,
                    high=max(found) + room,
                ),
                y=Axis(key="constant", label="", scale="category"),
                series=tuple(ends),
                guides=(Guide(name="base", axis="x", value=base, label=""),),
            ),
        ),
    )


def _n_rows(frame: Any) -> int:
    return len(frame)


def _column(frame: Any, key: str) -> list[Any]:
    """A column of a frame or of rows, as Python values."""
    if hasattr(frame, "columns"):
        if key in frame.columns:
            values: list[Any] = frame[key].tolist()
            return values
    elif any(key in row for row in frame):
        return [row.get(key) for row in frame]
    raise UsageError(f"{key}: no such column of the sweep")


def _is_number(value: Any) -> bool:
    """Whether it is a finite number; a refused row has None or NaN."""
    try:
        return not isinstance(value, bool | str) and math.isfinite(value)
    except TypeError:
        return False


def _left_out(n_rows: int, keys: Sequence[str]) -> tuple[str, ...]:
    return (f"{n_rows:,} rows without {' or '.join(keys)} are left out",) if n_rows else ()


def _in_order(values: Sequence[Any]) -> list[Any]:
    """Distinct values: numbers ascending, names as they came."""
    found = list(dict.fromkeys(values))
    return sorted(found) if all(_is_number(value) for value in found) else found


def _name(key: str, value: Any) -> str:
    """A value of an axis as its tick: 8k for 8,192 tokens."""
    if not _is_number(value):
        return str(value)
    if key.endswith("_tokens") and value >= 1024 and value % 1024 == 0:
        in_k = int(value) // 1024
        return f"{in_k // 1024}M" if in_k % 1024 == 0 else f"{in_k}k"
    return f"{value:,}" if float(value).is_integer() else f"{value:g}"


def _words(key: str) -> str:
    label = _label(key)[0].partition(",")[0] or key.replace("_", " ")
    return label[0].lower() + label[1:] if label[1:2].islower() else label


def _label(key: str) -> tuple[str, float]:
    """A key's name with the unit that is drawn, and the factor to that unit."""
    ends = () if "_per_" in key.removesuffix("_per_s") else _UNITS  # a rate is drawn as it is
    end, unit, factor = next((one for one in ends if key.endswith(one[0])), ("", "", 1.0))
    if key in _LABELS:
        return _LABELS[key], factor
    words = key.removesuffix(end).replace("_", " ")
    return f"{words[:1].upper()}{words[1:]}" + (f", {unit}" if unit else ""), factor


def _axis(key: str, values: Sequence[Any], better: str | None = None) -> Axis:
    label, factor = _label(key)
    low, high = min(values), max(values)
    scale = "linear"
    if low > 0 and high / low >= _LOG_FROM:
        scale = "log2" if key.endswith("_tokens") and "_per_" not in key else "log10"
    told = f", {better} is better" if better else ""
    return Axis(key=key, label=f"{label}{told}", scale=scale, factor=factor)
