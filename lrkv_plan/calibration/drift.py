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

HALF_WINDOW = 4  # fitted samples before and after: together they take about half a second
N_PASSES = 10


def log_drift(samples: Sequence[DecodeSample]) -> FloatArray:
    """ln of how much slower than half of the time the machine was, sample by sample.

    Parameters
    ----------
    samples
        In the order in which they were measured. Held-out ones do not count: they take the drift
        of the fitted ones around them, so that nothing fitted depends on them.

    Returns
    -------
    One value per sample; all 0 where no point was measured twice. [ln]

    Notes
    -----
    Median polish (Tukey, Exploratory Data Analysis, 1977, 10) of ln t = point + drift: the drift is
    a running median of what the points' own medians leave, ``2 HALF_WINDOW + 1`` samples wide.
    """
    import numpy as np

    fitted = [(i, s) for i, s in enumerate(samples) if s.role == "fit"]
    names = {name: k for k, name in enumerate(dict.fromkeys(s.point for _, s in fitted))}
    if len(names) == len(fitted):
        return np.zeros(len(samples))
    logs = np.array([np.log(np.median(s.repeats_s)) for _, s in fitted])
    drift = _polished(logs, np.array([names[s.point] for _, s in fitted]))
    places = np.arange(len(samples), dtype=float)
    everywhere: FloatArray = np.interp(places, [i for i, _ in fitted], drift)
    return everywhere - np.median(drift)


def _polished(logs: FloatArray, which: FloatArray) -> FloatArray:
    """The common part of ``logs`` around each place, point ``which`` taken out."""
    import numpy as np

    members = [np.flatnonzero(which == k) for k in range(int(which.max()) + 1)]
    drift = np.zeros(len(logs))
    for _ in range(N_PASSES):
        own = np.array([np.median((logs - drift)[m]) for m in members])
        left = logs - own[which]
        padded = np.pad(left, HALF_WINDOW, mode="reflect" if len(left) > HALF_WINDOW else "edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * HALF_WINDOW + 1)
        drift = np.median(windows, axis=1)
    return drift
