import pytest

from lrkv_plan import units
from lrkv_plan.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80 GiB", 80 * 2**30),
        ("80GB", 80_000_000_000),
        ("50 MiB", 52_428_800),
        ("1.5 KiB", 1536),
        ("4096 B", 4096),
        ("1_000 kB", 1_000_000),
        ("79.19 GiB", 85_029_615_043),  # 79.19 * 1,073,741,824 = 85,029,615,042.56
    ],
)
def test_bytes_are_read_in_the_unit_written(text: str, expected: int) -> None:
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["80", "GiB", "-1 GiB", "80 Gib/s", "1e99999 GiB", "nan GiB", ""])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a"):
        units.parse_bytes(text)


def test_rates_are_decimal() -> None:
    assert units.parse_bytes_per_s("3.35 TB/s") == 3.35e12
    assert units.parse_flops_per_s("989.4 TFLOP/s") == 989.4e12


def test_a_rate_needs_its_second() -> None:
    with pytest.raises(UsageError, match=r"3\.35 TB/s"):
        units.parse_bytes_per_s("3.35 TB")


@pytest.mark.parametrize(("text", "tokens"), [("8192", 8192), ("8k", 8192), ("1m", 2**20)])
def test_token_prefixes_are_powers_of_two(text: str, tokens: int) -> None:
    assert units.parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["0", "1.5", "-3", "8 KiB", "99999999999999999999"])
def test_impossible_token_counts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_tokens(text)


def test_bytes_for_people_name_their_unit() -> None:
    assert units.format_bytes(339_738_624) == "324.0 MiB"
    assert units.format_bytes(1_358_954_496) == "1.266 GiB"
    assert units.format_bytes(80_496) == "80,496 B"
