"""The all-reduce model by hand, at its limits, and where its constants come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan import load_hardware
from lrkv_plan.errors import PlacementError, SpecError, UsageError
from lrkv_plan.latency.all_reduce import (
    DATASHEET_BAND,
    AllReduceModel,
    allreduce_model,
    allreduce_time,
    domains_of,
)

ONE_PATH = AllReduceModel(
    n_gpus=4, t0_s=5e-6, link_bytes_per_s=300e9, two_shot_s=None, band90=(0.9, 1.1),
    basis="measured",
)  # fmt: skip
TWO_PATHS = AllReduceModel(
    n_gpus=8, t0_s=4e-6, link_bytes_per_s=350e9, two_shot_s=9e-6, band90=(0.9, 1.1),
    basis="measured",
)  # fmt: skip


def test_nothing_to_send_takes_the_fixed_time() -> None:
    assert allreduce_time(ONE_PATH, 0).time_s == 5e-6
    assert allreduce_time(TWO_PATHS, 0).time_s == 4e-6


def test_small_and_large_messages_take_the_path_that_is_faster() -> None:
    # 4 GPUs, 2 * 3/4 of 3 MB over 300 GB/s = 15 us
    assert allreduce_time(ONE_PATH, 3e6).time_s == pytest.approx(20e-6, rel=1e-12)
    # one shot: 7 * 50 kB / 350 GB/s = 1 us, against 9 us + 0.25 us
    assert allreduce_time(TWO_PATHS, 50e3).time_s == pytest.approx(5e-6, rel=1e-12)
    # two shots: 2 * 7/8 * 10 MB / 350 GB/s = 50 us, against 200 us
    assert allreduce_time(TWO_PATHS, 10e6).time_s == pytest.approx(63e-6, rel=1e-12)


def test_one_gpu_has_nothing_to_reduce() -> None:
    found = allreduce_model(load_hardware("cpu"), 1)
    assert allreduce_time(found, 1e9).time_s == 0


@given(st.sampled_from([ONE_PATH, TWO_PATHS]), st.lists(st.floats(0, 1e12), min_size=1, max_size=9))
def test_an_array_equals_its_scalars_and_more_bytes_never_take_less(
    model: AllReduceModel, sizes: list[float]
) -> None:
    sizes = sorted(sizes)
    many = np.asarray(allreduce_time(model, np.array(sizes)).time_s)
    assert np.array_equal(many, [allreduce_time(model, s).time_s for s in sizes])
    assert (np.diff(many) >= 0).all()


def test_every_step_away_from_a_measurement_widens_the_band_and_says_why() -> None:
    h200, h20 = load_hardware("h200"), load_hardware("h20")
    measured = allreduce_model(h200, 8)
    assert measured.basis == "measured"
    assert measured.held_out_median_error is not None
    three = allreduce_model(h200, 3)
    assert (three.basis, three.n_gpus) == ("other_shape", 3)
    borrowed = allreduce_model(h20, 8, relatives=[h200])
    assert borrowed.basis == "generation"
    assert borrowed.band90[0] < measured.band90[0]
    assert borrowed.band90[1] > measured.band90[1]
    alone = allreduce_model(h20, 8)
    assert (alone.basis, alone.band90) == ("datasheet", DATASHEET_BAND)


def test_over_two_servers_the_network_is_added_to_the_link() -> None:
    h200 = load_hardware("h200")
    inside, across = allreduce_model(h200, 8), allreduce_model(h200, 16)
    assert (across.n_domains, across.n_inside, across.basis) == (2, 8, "datasheet")
    # 8 MB: two shots inside a server, then 1 MB of each GPU over 75 % of 50 GB/s; 6.8 us, 7 hops
    # of 1.08 us and one of 5 there and back.
    sent = 8e6 * 2 * 7 / 8 / inside.link_bytes_per_s
    expected = 31.92e-6 + sent + 1e6 / 37.5e9
    assert allreduce_time(across, 8e6).time_s == pytest.approx(expected, rel=1e-12)
    # Four servers: two hops of the network each way, 2 x 3/4 of a share.
    expected = 41.92e-6 + sent + 1.5e6 / 37.5e9
    assert allreduce_time(allreduce_model(h200, 32), 8e6).time_s == pytest.approx(expected)
    assert across.band90[1] > inside.band90[1]
    assert "ConnectX-7" in across.notes[-1]


def test_a_group_fills_its_servers_evenly() -> None:
    h200, gb300 = load_hardware("h200"), load_hardware("gb300")
    assert [domains_of(h200, n) for n in (1, 8, 10, 16, 24)] == [1, 1, 2, 2, 3]
    assert (domains_of(gb300, 72), domains_of(load_hardware("mi300x"), 64)) == (1, 1)
    with pytest.raises(PlacementError, match="9 GPUs of h200 span 2 domains of 8 unevenly"):
        allreduce_model(h200, 9)


def test_without_a_link_there_is_no_answer() -> None:
    with pytest.raises(SpecError, match="no link"):
        allreduce_model(load_hardware("cpu"), 2)


def test_sizes_and_counts_are_checked() -> None:
    with pytest.raises(UsageError, match="message_bytes"):
        allreduce_time(ONE_PATH, -1)
    with pytest.raises(UsageError, match="n_gpus"):
        allreduce_model(load_hardware("h200"), 0)
