"""Screens: no number, unit or name is broken, columns go by priority, rows become cards."""

from __future__ import annotations

import pytest

from lrkv_plan.report.screen import (
    Row,
    Screen,
    ScreenColumn,
    command_lines,
    draw,
    fitting,
    short_bytes,
    significant,
    with_band,
    wrapped,
)


def column(title: str, drop: int = 0) -> ScreenColumn:
    def text(row: Row) -> str:
        return str(row[title])

    return ScreenColumn(title=title, text=text, is_number=title != "design", drop=drop)


SCREEN = Screen(
    verdict=("rank 56 is the largest in 82,944 B, and 25.0 (23 to 29) ms is its time", "Second."),
    columns=(column("design"), column("users"), column("ms/token", 1), column("tok/s", 2)),
    rows=(
        {"design": "lrkv:16,groups=8", "users": "54", "ms/token": "25.0 (23 to 29)", "tok/s": "9"},
        {"design": "mha", "users": "13", "ms/token": "-", "tok/s": "-"},
    ),
    foot=("bytes exact",),
    following=(["lrkv-plan", "cache", "a model.yaml", "--attention", "lrkv:16"],),
)


def test_all_columns_stand_where_they_fit() -> None:
    lines = draw(SCREEN).splitlines()
    assert lines[0].startswith("rank 56 is the largest")
    assert "design            users         ms/token  tok/s" in lines
    assert "lrkv:16,groups=8     54  25.0 (23 to 29)      9" in lines
    assert lines[-1] == "Next: lrkv-plan cache 'a model.yaml' --attention lrkv:16"


@pytest.mark.parametrize("width", [40, 41, 42, 46])
def test_the_column_of_the_highest_drop_goes_first(width: int) -> None:
    text = draw(SCREEN, width=width)
    assert "tok/s" not in text
    assert all(len(line) <= width for line in text.splitlines())


def test_rows_become_cards_where_the_columns_that_stay_do_not_fit() -> None:
    wide = Screen(verdict=("v",), columns=[column("design"), column("users"), column("ms/token")],
                  rows=[{"design": "lrkv:16," + 30 * "g", "users": "54", "ms/token": "2 (1 to 3)"},
                        {"design": "mha", "users": "13", "ms/token": "-"}])  # fmt: skip
    assert draw(wide, width=40).splitlines() == [
        "v", "", "lrkv:16," + 30 * "g", "  users 54   ms/token 2 (1 to 3)", "", "mha", "  users 13",
    ]  # fmt: skip


def test_a_number_keeps_its_unit_and_a_range_stays_whole() -> None:
    for width in range(14, 70):
        for line in wrapped(SCREEN.verdict[0], width):
            assert not line.endswith(("82,944", "(23", "(23 to", "rank"))
            assert len(line) <= width


def test_a_wrapped_command_can_be_pasted() -> None:
    words = ["lrkv-plan", "plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--budget", "50% of own"]
    lines = command_lines(words, 40, "Next: ")
    assert all(line.endswith(" \\") for line in lines[:-1])
    joined = " ".join(line.removesuffix(" \\").strip() for line in lines)
    assert joined == "Next: lrkv-plan plan llama-3.1-8b --gpu h100-sxm --budget '50% of own'"


def test_colour_changes_no_character() -> None:
    import re

    painted = draw(SCREEN, color=True)
    assert "\x1b[1m" in painted
    assert re.sub(r"\x1b\[\d+m", "", painted) == draw(SCREEN)


def test_numbers_of_two_to_four_digits() -> None:
    assert [significant(x) for x in (9.996, 99.96, 0.09996, 999.6)] == [
        "10.0", "100", "0.100", "1,000",
    ]  # fmt: skip
    assert [short_bytes(x) for x in (1023 * 1024, 1023.9 * 1024, 1)] == [
        "1,023 KiB", "1.00 MiB", "1 B",
    ]  # fmt: skip
    assert with_band(0.1042, 0.0995, 0.1101) == "104 (99.5 to 110)"


def test_nothing_fits_without_what_must_stay() -> None:
    assert fitting([30, 30], [0, 1], 31) == [0]
    assert fitting([30, 30], [0, 0], 31) is None
