"""Crossings of measured times, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lrkv_plan.calibration.fit_run import crossings_of, describe, timed_crossings
from lrkv_plan.calibration.samples import DecodeSample, measured_points
from tests.calibration.made_up_run import planned

CONTEXTS = (100, 1000, 10_000)
BASE = planned(1, held_out=0)[0]


def series(times: tuple[float, ...], jitter: float = 0.0, **changes: object) -> list[DecodeSample]:
    """A point per context, each with five repeats."""
    name = f"{changes.get('path', BASE.path)} {changes['attention']}"
    return [
        replace(
            BASE, point=f"{name} {context}", context_tokens=context,
            repeats_s=tuple(time_s * (1 + jitter * k) for k in range(-2, 3)), **changes,  # type: ignore[arg-type]
        )
        for context, time_s in zip(CONTEXTS, times, strict=True)
    ]  # fmt: skip


def low_rank(times: tuple[float, ...], rank: int, jitter: float = 0.0) -> list[DecodeSample]:
    return series(times, jitter, attention=f"lrkv:{rank}", rank=rank)


def whole_heads(times: tuple[float, ...], **changes: object) -> list[DecodeSample]:
    told = {"path": "grouped/plain", "kernel": "grouped", "attention": "mha", "rank": 0}
    return series(times, **(told | changes))  # type: ignore[arg-type]


def test_the_place_is_linear_between_logarithms() -> None:
    # ln ratios +0.3 at 100 and -0.1 at 1,000: three quarters of a decade, 100 * 10^0.75 = 562.34
    assert crossings_of((100, 1000), (0.3, -0.1)) == pytest.approx((562.341325,))
    assert crossings_of((1, 10, 100), (1.0, -1.0, 1.0)) == pytest.approx((10**0.5, 10**1.5))
    assert crossings_of((1, 10, 100), (1.0, 0.0, -1.0)) == pytest.approx((10.0,))
    assert crossings_of((1, 10), (0.2, 0.1)) == ()


def test_lrkv_meets_mha_where_their_times_are_equal() -> None:
    # Ratios 2, 1, 1/2 on contexts a decade apart: they meet at the middle one.
    samples = [*low_rank((2.0, 4.0, 8.0), 64), *whole_heads((1.0, 4.0, 16.0))]
    (found,) = timed_crossings(measured_points(samples))
    assert (found.first.attention, found.second.attention) == ("lrkv:64", "mha")
    assert found.ratios == pytest.approx((2.0, 1.0, 0.5))
    assert found.measured == pytest.approx((1000.0,))
    assert found.predicted is None
    assert describe(found, found.measured, found.ratios[-1]) == "mha first, lrkv:64 from 1,000"
    assert (found.crossing_share, found.low, found.high) == pytest.approx((1.0, 1000.0, 1000.0))


def test_two_ranks_on_one_path_are_compared_and_none_in_range_says_which_is_faster() -> None:
    samples = [*low_rank((1.0, 2.0, 4.0), 55), *low_rank((1.1, 2.2, 4.4), 64)]
    (found,) = timed_crossings(measured_points(samples))
    assert (found.first.attention, found.second.attention) == ("lrkv:64", "lrkv:55")
    assert found.ratios == pytest.approx((1.1, 1.1, 1.1))
    assert found.measured == ()
    assert describe(found, (), found.ratios[-1]) == "none in range: lrkv:55 is faster"


def test_predicted_times_cross_at_their_own_place() -> None:
    samples = [*low_rank((2.0, 4.0, 8.0), 64), *whole_heads((1.0, 4.0, 16.0))]
    predicted = {s.point: s.repeats_s[2] for s in samples}
    predicted["lrkv/factored lrkv:64 1000"] = 2.0  # ratios 2, 1/2, 1/2: halfway in the first decade
    (found,) = timed_crossings(measured_points(samples), predicted)
    assert found.predicted == pytest.approx((10**2.5,))
    assert found.measured == pytest.approx((1000.0,))


def test_intervals_come_from_the_spread_of_repeats() -> None:
    steady, loose = (
        timed_crossings(
            measured_points(
                [*low_rank((2.0, 4.1, 8.0), 64, jitter), *whole_heads((1.0, 4.0, 16.0))]
            )
        )[0]
        for jitter in (0.0, 0.1)
    )
    assert steady.ratios_low == steady.ratios_high == pytest.approx(steady.ratios)
    for low, ratio, high in zip(loose.ratios_low, loose.ratios, loose.ratios_high, strict=True):
        assert low < ratio < high
    assert loose.low is not None
    assert loose.high is not None
    assert loose.low < loose.measured[0] < loose.high


@pytest.mark.parametrize(
    "changes", [{"n_heads": 8, "n_copies": 8}, {"batch_size": 2}, {"query_tokens": 2},
                {"head_dim": 64}, {"dtype": "bf16"}, {"n_copies": 4, "attention": "gqa:4"},
                {"latent_dim": 512, "attention": "mla:512+64"}]
)  # fmt: skip
def test_only_series_alike_are_compared(changes: dict[str, object]) -> None:
    samples = [*low_rank((2.0, 4.0, 8.0), 64), *whole_heads((1.0, 4.0, 16.0), **changes)]
    assert timed_crossings(measured_points(samples)) == []
