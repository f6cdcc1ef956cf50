"""Prints: precision from digits, ties, truncation, ranges, relations, units by kind."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.auditing.printed import Agreement, Kind, parse_printed, read_number
from lrkv_plan.errors import SpecError


@pytest.mark.parametrize(
    ("text", "kind", "low", "high", "half_unit"),
    [
        ("48.52 %", Kind.RATIO, Fraction(4852, 10**4), Fraction(4852, 10**4), Fraction(1, 20_000)),
        ("491.5 GB", Kind.BYTES, 491_500_000_000, 491_500_000_000, 50_000_000),
        ("157.21875 MiB", Kind.BYTES, 164_855_808, 164_855_808, Fraction(2**20, 200_000)),
        ("339,738,624 B", Kind.BYTES, 339_738_624, 339_738_624, Fraction(1, 2)),
        ("1.15B", Kind.COUNT, 1_150_000_000, 1_150_000_000, 5_000_000),
        ("190K", Kind.COUNT, 190_000, 190_000, 500),
        ("1/3", Kind.RATIO, Fraction(1, 3), Fraction(1, 3), 0),
        ("\u22121", Kind.COUNT, -1, -1, Fraction(1, 2)),
        ("40\u201350%", Kind.RATIO, Fraction(2, 5), Fraction(1, 2), Fraction(1, 200)),
        ("4x to 8x", Kind.RATIO, 4, 8, Fraction(1, 2)),
    ],
)  # fmt: skip
def test_digits_set_value_unit_and_precision(text, kind, low, high, half_unit) -> None:
    printed = parse_printed(text, kind)
    assert (printed.low, printed.high, printed.half_unit) == (low, high, half_unit)


def test_b_is_bytes_for_a_size_and_a_thousand_million_for_a_count() -> None:
    assert parse_printed("2 B", Kind.BYTES).low == 2
    assert parse_printed("2 B", Kind.COUNT).low == 2 * 10**9


def test_a_tie_may_have_been_rounded_either_way() -> None:
    # 24.5 % of 50 B is 12.25 B: both 12.2 and 12.3 are within half a unit.
    for text in ("12.2B", "12.3B"):
        assert (
            parse_printed(text, Kind.COUNT).agreement(Fraction(12_250_000_000)) is Agreement.ROUNDED
        )


def test_cutting_digits_off_is_marked_and_is_no_match() -> None:
    assert parse_printed("18 %", Kind.RATIO).agreement(Fraction(187, 1000)) is Agreement.TRUNCATED
    assert parse_printed("19 %", Kind.RATIO).agreement(Fraction(187, 1000)) is Agreement.ROUNDED
    assert parse_printed("17 %", Kind.RATIO).agreement(Fraction(187, 1000)) is Agreement.NONE
    # Towards zero: -18.7 is cut to -18, never to +18.
    assert parse_printed("-18", Kind.COUNT).agreement(Fraction(-187, 10)) is Agreement.TRUNCATED
    assert parse_printed("18", Kind.COUNT).agreement(Fraction(-187, 10)) is Agreement.NONE


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**6), st.integers(0, 6))
def test_a_rounded_value_agrees_and_its_neighbours_do_not(
    above: int, below: int, digits: int
) -> None:
    value = Fraction(above, below)
    units = round(value * 10**digits)
    for offset, agrees in ((0, True), (1, False), (-1, False)):
        shown = units + offset
        whole, part = divmod(abs(shown), 10**digits)
        text = f"{'-' if shown < 0 else ''}{whole}" + (f".{part:0{digits}d}" if digits else "")
        rounded = parse_printed(text, Kind.NUMBER).agreement(value) is Agreement.ROUNDED
        is_tie = abs(value * 10**digits - shown) == Fraction(1, 2)
        assert rounded == (agrees or is_tie)


def test_a_bound_admits_prints_up_to_it() -> None:
    ceiling = Fraction(17, 18)  # 94.44 %
    for text, admitted in (("94.0 %", True), ("94.4 %", True), ("94.5 %", False)):
        agreement = parse_printed(text, Kind.RATIO).agreement(ceiling, "at_most")
        assert (agreement is Agreement.ROUNDED) == admitted
    above_five = parse_printed("> 5", Kind.COUNT)
    assert above_five.agreement(Fraction(5), "at_most") is Agreement.NONE
    assert above_five.agreement(Fraction(6), "at_most") is Agreement.ROUNDED


def test_relations_compare_with_the_stated_number() -> None:
    assert parse_printed("< 5", Kind.COUNT).agreement(Fraction(4)) is Agreement.ROUNDED
    assert parse_printed("< 5", Kind.COUNT).agreement(Fraction(5)) is Agreement.NONE
    assert parse_printed(">= 5", Kind.COUNT).agreement(Fraction(5)) is Agreement.ROUNDED


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("many", Kind.COUNT, "not a number"),
        ("48.5 GB", Kind.RATIO, "does not fit a ratio"),
        ("48.5 %", Kind.BYTES, "does not fit a bytes"),
        ("1/0", Kind.RATIO, "divides by zero"),
        ("9" * 100, Kind.COUNT, "longer than"),
        ("1e5", Kind.COUNT, "does not fit"),
    ],
)  # fmt: skip
def test_what_is_no_print_is_refused(text: str, kind: Kind, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_printed(text, kind)


def test_a_unit_stands_where_the_print_has_none_and_may_not_contradict_it() -> None:
    assert parse_printed("648.0", Kind.BYTES, "MiB").low == 648 * 2**20
    with pytest.raises(SpecError, match="but unit says"):
        parse_printed("648.0 MB", Kind.BYTES, "MiB")


def test_quoted_inputs_carry_their_precision_and_plain_numbers_are_exact() -> None:
    assert read_number("2.740") == (Fraction(137, 50), Fraction(1, 2000))
    assert read_number(2.74) == (Fraction(137, 50), 0)
    assert read_number("1/4") == (Fraction(1, 4), 0)
    for wrong in (True, None, "40-50 %", "> 5", 1e31, [1]):
        with pytest.raises(ValueError, match=r"."):
            read_number(wrong)
