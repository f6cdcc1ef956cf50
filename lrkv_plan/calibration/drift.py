"""How the machine's own speed drifted during a run, told by the measured points themselves.

On a shared machine everything slows down and speeds up together for seconds at a time. Since every
round measures all points in an order of its own, a slow spell shows as many unrelated points being
slow in a row: that part is separated from the points' own times and taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lrkv_plan.calibration.decode_samples import DecodeSample

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray

HALF_WINDOW = 8  # samples before and after; a sample takes about 40 ms
N_PASSES = 10
QUIET_SHARE = 0.1  # the drift is counted from the fastest tenth of the run


def log_drift(samples: Sequence[DecodeSample]) -> FloatArray:
    """ln of how much slower than in its quiet spells the machine was, sample by sample.

    Parameters
    ----------
    samples
        In the order in which they were measured.

    Returns
    -------
    One value per sample; all 0 where no point was measured twice. [ln]

    Notes
    -----
    Median polish (Tukey, Exploratory Data Analysis, 1977, 10) of ln t = point + drift: the drift is
    a running median of what the points' own medians leave, ``2 HALF_WINDOW + 1`` samples wide.
    """
    import numpy as np

    names = {name: i for i, name in enumerate(dict.fromkeys(s.point for s in samples))}
    which = np.array([names[s.point] for s in samples])
    logs = np.array([np.log(np.median(s.repeats_s)) for s in samples])
    members = [np.flatnonzero(which == i) for i in range(len(names))]
    drift = np.zeros(len(samples))
    if all(len(m) < 2 for m in members):
        return drift
    for _ in range(N_PASSES):
        own = np.array([np.median((logs - drift)[m]) for m in members])
        left = np.pad(logs - own[which], HALF_WINDOW, mode="reflect" if _is_long(logs) else "edge")
        windows = np.lib.stride_tricks.sliding_window_view(left, 2 * HALF_WINDOW + 1)
        drift = np.median(windows, axis=1)
    relative: FloatArray = drift - np.quantile(drift, QUIET_SHARE)
    return relative


def _is_long(logs: FloatArray) -> bool:
    return len(logs) > HALF_WINDOW
