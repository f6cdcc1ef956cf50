"""What a terminal shows: the answer in a sentence, a small table, what it rests on, what next.

Nothing is ever broken: columns are left out by their ``drop``, and where even those that stay are
too wide each row becomes a card. Numbers on a screen have 2 to 4 significant digits; JSON and CSV
hold them exact.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from lrkv_plan.notes import Note

Row: TypeAlias = Mapping[str, Any]
Basis: TypeAlias = Literal["measured", "borrowed", "datasheet", "assumed"]
Tone: TypeAlias = Literal["good", "bad", "doubtful"]
WIDTH, NARROWEST = 80, 40
GLYPHS: Mapping[str, str] = {"measured": "●", "borrowed": "◐", "datasheet": "◐", "assumed": "○"}
_STYLES = {"bold": "1", "dim": "2", "good": "32", "bad": "31", "doubtful": "33"}
_GAP = "  "


@dataclass(frozen=True, kw_only=True)
class ScreenColumn:
    """One column: its title, how a row is written in it, and when it is left out.

    ``drop``: 0 stays; of the others the highest goes first. ``tone`` colours a cell whose words
    already say the same. A drawing that means nothing outside its column is not ``in_cards``.
    """

    title: str
    text: Callable[[Row], str]
    is_number: bool = True
    drop: int = 0
    tone: Callable[[Row], Tone | None] = lambda _: None
    in_cards: bool = True


@dataclass(frozen=True, kw_only=True)
class Screen:
    """One answer as a terminal shows it.

    ``verdict`` and ``foot`` are paragraphs. ``following`` are the words of commands to ask next.
    ``launch`` are the words of a server's command line, one replica's.
    ``notes`` are said beside the screen, on stderr; all others wait for ``--explain``. Below
    ``cards_below`` columns of width rows become cards. ``picture`` draws lines of at most so many
    columns, between table and foot.
    """

    verdict: Sequence[str]
    columns: Sequence[ScreenColumn] = ()
    rows: Sequence[Row] = ()
    foot: Sequence[str] = ()
    following: Sequence[Sequence[str]] = ()
    launch: Sequence[str] = ()
    notes: Sequence[Note] = ()
    cards_below: int = 0
    picture: Callable[[int], Sequence[str]] | None = None


def printable(text: str) -> str:
    r"""Text on one line without characters that a terminal or a page acts on.

    Line ends and tabs become spaces; escape sequences, other control characters, invisible and
    direction marks and lone surrogates are escaped.

    Examples
    --------
    >>> printable("a\x1b[31mb\u202ec")
    'a\\x1b[31mb\\u202ec'
    """
    if text.isprintable():
        return text
    return "".join(map(_shown_character, text))


def _shown_character(character: str) -> str:
    import unicodedata

    if character in "\n\r\t":
        return " "
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def draw(screen: Screen, *, width: int = WIDTH, color: bool = False) -> str:
    """The screen as text of at most ``width`` columns, with a final newline.

    A single word that is wider (a path, a name) stays whole.
    """
    paint = _painter(color)
    width = max(width, NARROWEST)
    parts = ["\n".join(paint(line, "bold") for line in wrapped(one, width)) for one in
             screen.verdict[:1]]  # fmt: skip
    parts += ["\n".join(wrapped(one, width)) for one in screen.verdict[1:]]
    lines = ["\n".join(parts)]
    if screen.rows and screen.columns:
        drawn = list(_table(screen, width, paint))
        is_ruled = drawn[-1].startswith("─")
        lines += ["", *drawn, *([] if is_ruled or not (screen.foot or screen.following) else [""])]
    if screen.picture is not None:
        lines += [printable(line) for line in screen.picture(width)]
    foot = [line for one in screen.foot for line in wrapped(one, width)]
    lines += [paint(line, "dim") for line in foot]
    if screen.launch:
        lines += command_lines(screen.launch, width, "Launch: ")
    for index, words in enumerate(screen.following):
        lines += command_lines(words, width, "Next: " if index == 0 else "      ")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _painter(color: bool) -> Callable[[str, str], str]:
    if not color:
        return lambda text, _: text
    return lambda text, style: f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text.strip() else text


_UNITS = (
    "B|KiB|MiB|GiB|TiB|KB|MB|GB|TB|ms|s|us|ns|ps|%|x|tok/s|[kMGTP]?FLOP(?:/s|/B)?|[kMGTP]B/s"
    "|tokens?|users?|sequences?|GPUs?|layers?"
)
_GLUED = re.compile(
    rf"(?<=[0-9]) (?=(?:{_UNITS})(?![A-Za-z]))|(?<=\b[Rr]ank) (?=[0-9])|(?<=\bWhy:) (?=--)"
    r"|(?<=\bTerms:) (?=--)|(?<=\b[TPDE]P) (?=[0-9])"
    r"|(?<=[0-9]) (?=x [A-Za-z0-9])|(?<=[0-9] x) (?=[A-Za-z0-9])|(?<=[●◐○]) (?=[a-z])"
)
_RANGES = re.compile(r"\([0-9][0-9.,]* to [0-9][0-9.,]*\)")


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most ``width``; a number keeps its unit, a range and a name stay whole."""
    import textwrap

    kept = _GLUED.sub("\N{NO-BREAK SPACE}", text)
    kept = _RANGES.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), kept)
    lines = textwrap.wrap(
        kept, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [printable(line.replace("\N{NO-BREAK SPACE}", " ")) for line in lines] or [""]


def command_lines(words: Sequence[str], width: int, lead: str = "") -> list[str]:
    """A command to paste: words quoted for a shell, lines continued by a backslash."""
    quoted = [shlex.quote(word) for word in words]
    units = [quoted[0]]  # an option stays with its value
    for word in quoted[1:]:
        if not word.startswith("-") and units[-1].startswith("--") and " " not in units[-1]:
            units[-1] += f" {word}"
        else:
            units.append(word)
    lines = [lead + units[0]]
    for unit in units[1:]:
        if len(lines[-1]) + 1 + len(unit) > width - 2:
            lines[-1] += " \\"
            lines.append(" " * (len(lead) + 2) + unit)
        else:
            lines[-1] += f" {unit}"
    return [printable(line) for line in lines]


def cells(text: str) -> int:
    """Columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def _table(screen: Screen, width: int, paint: Callable[[str, str], str]) -> Iterator[str]:
    shown = [[printable(column.text(row)) for row in screen.rows] for column in screen.columns]
    sizes = [
        max(cells(column.title), *map(cells, texts))
        for column, texts in zip(screen.columns, shown, strict=True)
    ]
    kept = fitting(sizes, [column.drop for column in screen.columns], width)
    if kept is None or width < screen.cards_below:
        yield from _cards(screen, shown, width, paint)
        return
    yield _GAP.join(_padded(screen.columns[i].title, sizes[i], screen.columns[i]) for i in kept)
    rule = "─" * (sum(sizes[i] for i in kept) + len(_GAP) * (len(kept) - 1))
    yield rule
    for number, row in enumerate(screen.rows):
        yield _GAP.join(
            _toned(screen.columns[i], row, _padded(shown[i][number], sizes[i], screen.columns[i]),
                   paint) for i in kept
        )  # fmt: skip
    yield rule


def fitting(sizes: Sequence[int], drops: Sequence[int], width: int) -> list[int] | None:
    """Indices of the columns that fit, or None where even those that must stay do not.

    Examples
    --------
    >>> fitting([10, 8, 8], [0, 2, 1], 20), fitting([10, 8, 8], [0, 0, 0], 20)
    ([0, 2], None)
    """
    kept = list(range(len(sizes)))
    while sum(sizes[i] for i in kept) + len(_GAP) * (len(kept) - 1) > width:
        least = max(kept, key=lambda i: (drops[i], i))
        if drops[least] == 0:
            return None
        kept.remove(least)
    return kept


def _padded(text: str, size: int, column: ScreenColumn) -> str:
    space = " " * (size - cells(text))
    return space + text if column.is_number else text + space


def _toned(column: ScreenColumn, row: Row, text: str, paint: Callable[[str, str], str]) -> str:
    tone = column.tone(row)
    if tone is None:
        return text
    told = text.rstrip()  # spaces at the end of a line are left out, so they stay unpainted
    return paint(told, tone) + text[len(told) :]


def _cards(
    screen: Screen, shown: Sequence[Sequence[str]], width: int, paint: Callable[[str, str], str]
) -> Iterator[str]:
    """Each row as its name and, below, titles with values; a pair is never parted."""
    for number, row in enumerate(screen.rows):
        if number:
            yield ""
        yield shown[0][number]
        line, used = "", 0
        for column, texts in zip(screen.columns[1:], shown[1:], strict=True):
            value = texts[number].strip()
            if not value or value == "-" or not column.in_cards:
                continue
            pair = f"{column.title} {value}".strip()
            if not column.is_number and cells(pair) > width - 2:
                if line:
                    yield f"  {line}"
                yield from (f"  {part}" for part in wrapped(pair, width - 2, indent="  "))
                line, used = "", 0
                continue
            if used and used + len(_GAP) + 1 + cells(pair) > width - 2:
                yield f"  {line}"
                line, used = "", 0
            toned = pair.removesuffix(value) + _toned(column, row, value, paint)
            line += f"{_GAP} {toned}" if used else toned
            used += cells(pair) + (len(_GAP) + 1 if used else 0)
        if line:
            yield f"  {line}"


def significant(value: float | Fraction, digits: int = 3) -> str:
    """A number with so many significant digits; whole digits are never dropped.

    Examples
    --------
    >>> [significant(x) for x in (24.987, 2161.4, 0.3214, 7, 0)]
    ['25.0', '2,161', '0.321', '7.00', '0']
    """
    number = float(value)
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    if places and abs(round(number, places)) >= 10 ** (digits - places):
        places -= 1  # 9.996 is 10.0, not 10.00
    return f"{number:,.{places}f}"


def short(value: float | Fraction, digits: int = 3) -> str:
    """As ``significant``, without zeros at the end.

    Examples
    --------
    >>> [short(x) for x in (128, 36.0, 12.5, 0.5626)]
    ['128', '36', '12.5', '0.563']
    """
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def short_percent(ratio: float | Fraction) -> str:
    """A ratio as a percentage of three digits.

    Examples
    --------
    >>> [short_percent(Fraction(*x)) for x in ((1, 4), (1, 8), (4, 1), (9, 128))]
    ['25 %', '12.5 %', '400 %', '7.03 %']
    """
    return f"{short(100 * ratio)} %"


def short_bytes(value: int | float | Fraction) -> str:
    """Bytes in the largest binary unit that leaves at least one, with three digits.

    Examples
    --------
    >>> [short_bytes(x) for x in (2**30, 939524096, 512, 16 * 2**30)]
    ['1.00 GiB', '896 MiB', '512 B', '16.0 GiB']
    """
    number, unit = float(value), "B"
    for name in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(number) < 1023.5:  # 1,023.9 KiB would be printed as 1,024
            break
        number, unit = number / 1024, name
    return f"{short(number) if unit == 'B' else significant(number)} {unit}"


def short_count(value: int) -> str:
    """Parameters as people say them: 8.03B, 405B, 191M.

    Examples
    --------
    >>> [short_count(x) for x in (8030261248, 191102976, 99960, 12)]
    ['8.03B', '191M', '100k', '12']
    """
    number, unit = float(value), ""
    for name in ("k", "M", "B", "T"):
        if abs(number) < 999.5:
            break
        number, unit = number / 1000, name
    return f"{significant(number)}{unit}" if unit else f"{value:,}"


def per_token(values: Iterable[int | Fraction]) -> tuple[str, Callable[[int | Fraction], str]]:
    """The unit in which all these bytes per token are at least one, and how one is written.

    Examples
    --------
    >>> unit, write = per_token([131072, 36864])
    >>> unit, write(36864), per_token([512, 131072])[0]
    ('KiB', '36', 'B')
    """
    least = min((value for value in values if value), default=0)
    return ("KiB", lambda value: short(value / 1024)) if least >= 1024 else ("B", short)


def short_tokens(tokens: int) -> str:
    """A context as people say it: 8k, 128k, or digits where it is no such multiple.

    Examples
    --------
    >>> [short_tokens(x) for x in (8192, 131072, 10000, 1048576)]
    ['8k', '128k', '10,000', '1M']
    """
    if tokens and tokens % 2**20 == 0:
        return f"{tokens // 2**20}M"
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else f"{tokens:,}"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds of three digits."""
    return significant(1e3 * seconds)


def with_band(middle_s: float, low_s: float, high_s: float) -> str:
    """A time with its band: ``25.0 (23 to 29)``. [ms]

    Ends have two digits, three where two would not tell them from the middle.

    Examples
    --------
    >>> with_band(0.02499, 0.02296, 0.02872), with_band(0.00549, 0.00451, 0.00764)
    ('25.0 (23 to 29)', '5.49 (4.5 to 7.6)')
    """
    digits = 2
    ends = [significant(1e3 * end, digits) for end in (low_s, high_s)]
    if any(1e3 * end > 99 for end in (low_s, high_s)) or ends[0] == ends[1]:
        ends = [milliseconds(end) for end in (low_s, high_s)]
    return f"{milliseconds(middle_s)} ({ends[0]} to {ends[1]})"


def bar(value: float | Fraction, longest: float | Fraction, width: int) -> str:
    """A bar of eighths of a cell; what is not nothing shows at least one eighth.

    Examples
    --------
    >>> bar(1, 2, 4), bar(0, 2, 4)
    ('██', '')
    """
    if longest <= 0 or value <= 0:
        return ""
    eighths = max(1, round(8 * width * float(value) / float(longest)))
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]
