"""Slow spells of the machine are told from the points' own times and taken out."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np

from lrkv_plan.calibration.samples import log_drift, measured_points, noise
from tests.calibration.test_decode_samples import SAMPLE


def made_up(n_points: int, n_rounds: int, slow: float, held_out: int = 0, seed: int = 0):
    """Points of 1, 2, 3 ... ms, every round in its own order; the middle third is ``slow``."""
    rng = random.Random(seed)
    samples = []
    for number in range(n_rounds):
        for k in rng.sample(range(n_points), n_points):
            third = len(samples) * 3 // (n_points * n_rounds)
            time_s = 1e-3 * (k + 1) * (slow if third == 1 else 1.0)
            role = "random" if k < held_out else "fit"
            samples.append(
                replace(
                    SAMPLE, point=f"p{k}", round=number, role=role, controls_s=(),
                    repeats_s=(time_s * rng.uniform(0.99, 1.01),) * 2,
                )
            )  # fmt: skip
    return samples


def test_a_slow_spell_is_found_and_points_keep_their_usual_times() -> None:
    samples = made_up(n_points=30, n_rounds=6, slow=1.4)
    drift = log_drift(samples)
    assert abs(np.median(drift[70:110]) - math.log(1.4)) < 0.02
    assert abs(np.median(drift[:50])) < 0.02
    for k, point in enumerate(sorted(measured_points(samples), key=lambda p: p.time_s)):
        assert abs(point.time_s / (1e-3 * (k + 1)) - 1) < 0.03


def test_the_spell_would_count_as_noise_if_it_were_left_in() -> None:
    samples = made_up(n_points=30, n_rounds=3, slow=1.4)
    points = measured_points(samples)
    raw = [replace(p, rounds_s=p.raw_rounds_s) for p in points]
    assert noise(raw) > 0.05
    assert noise(points) < 0.02


def test_held_out_points_do_not_move_the_drift() -> None:
    samples = made_up(n_points=30, n_rounds=4, slow=1.3, held_out=10)
    changed = [
        replace(s, repeats_s=tuple(7 * t for t in s.repeats_s)) if s.role != "fit" else s
        for s in samples
    ]
    assert np.array_equal(log_drift(samples), log_drift(changed))


def test_one_round_tells_nothing_about_drift() -> None:
    assert not log_drift(made_up(n_points=20, n_rounds=1, slow=2.0)).any()
    assert len(log_drift([])) == 0
