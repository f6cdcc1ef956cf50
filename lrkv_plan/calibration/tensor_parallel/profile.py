"""What was measured between the workers, as the ``allreduce:`` entry of a hardware profile.

``link_efficiency`` is a share of the profile's link. Where the profile states none (CPUs), the link
is the measured rate of one large message from one worker to another, and is written too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from lrkv_plan.calculators.allreduce_time import AllReduceModel
from lrkv_plan.calibration.bands import band
from lrkv_plan.calibration.device_profiles import profile_of_device
from lrkv_plan.calibration.fit_allreduce import AllReduceFit
from lrkv_plan.calibration.tensor_parallel.local_samples import device_name
from lrkv_plan.errors import CalibrationError
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.kernels import AllReduceConstants
from lrkv_plan.specs.loader import find_hardware, load_all_hardware
from lrkv_plan.specs.profile_text import with_block

MAX_MEDIAN_ERROR = 0.25  # of sizes left out; a worse fit is not written into a profile
COMMENT = "measured by lrkv_plan.calibration.tensor_parallel; see specs/kernels.py"


@dataclass(frozen=True, kw_only=True)
class Link:
    """The rate that efficiencies refer to, per direction. [bytes/s]"""

    bytes_per_s: float
    name: str
    is_measured: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Where an entry's figures come from."""

    n_workers: int
    backend: str
    torch_version: str
    device_name: str
    date: str
    n_points: int
    largest_bytes: int
    remark: str | None = None


def errors_of(fit: AllReduceFit) -> tuple[float, float]:
    """Median and 90th percentile of |measured / predicted - 1| on sizes left out."""
    import numpy as np

    shares = np.abs(np.expm1(fit.left_out))
    return float(np.median(shares)), float(np.quantile(shares, 0.9))


def model_of(fit: AllReduceFit, n_workers: int, link: Link) -> AllReduceModel:
    """The fitted constants, ready to predict with."""
    return AllReduceModel(
        n_gpus=n_workers, t0_s=fit.constants["t0_s"],
        link_bytes_per_s=fit.constants["link_efficiency"] * link.bytes_per_s,
        two_shot_s=fit.constants.get("two_shot_s"), band90=band(fit.left_out), basis="measured",
    )  # fmt: skip


def entry_of(fit: AllReduceFit, measured: Measured) -> AllReduceConstants:
    """The profile's entry.

    Raises
    ------
    CalibrationError
        If sizes left out were predicted worse than ``MAX_MEDIAN_ERROR``.
    """
    median, p90 = errors_of(fit)
    if median > MAX_MEDIAN_ERROR:
        raise CalibrationError(
            f"the all-reduce fit is off by {median:.0%} in the median on sizes left out, above "
            f"{MAX_MEDIAN_ERROR:.0%}, so no profile is written; measure on a quiet machine, with "
            "no more workers than free cores"
        )
    low, high = band(fit.left_out)
    return AllReduceConstants(
        n_gpus=measured.n_workers,
        **{k: float(f"{v:.4g}") for k, v in fit.constants.items()},
        backend=f"torch.distributed/{measured.backend}",
        backend_version=measured.torch_version,
        max_message_bytes=measured.largest_bytes,
        identified=fit.identified,
        n_points=measured.n_points,
        held_out_by="rows",
        held_out_median_error=round(median, 4),
        held_out_p90_error=round(p90, 4),
        band90=(round(low, 4), round(high, 4)),
        source=f"measured on {measured.device_name}, {measured.date}",
        licence="own measurement",
        remark=measured.remark,
    )


def base_profile(argument: str | None, device: torch.device) -> tuple[HardwareProfile, Path] | None:
    """The profile that the entry is added to, and its file.

    The given one; on a CPU the shipped one; the shipped one of the GPU by its name; else None.

    Raises
    ------
    SpecError
        If there is no such profile.
    """
    if argument is None and device.type == "cuda":
        own = profile_of_device(device_name(device), load_all_hardware())
        argument = own.name if own else None
    elif argument is None:
        argument = "cpu"
    return None if argument is None else find_hardware(argument)


def calibrated_name(path: Path) -> str:
    """File name of the copy; not that of the kernel fit's own profile, which may lie beside it.

    Examples
    --------
    >>> calibrated_name(Path("run/h200.calibrated.yaml"))
    'h200.allreduce.yaml'
    """
    return f"{path.stem.removesuffix('.calibrated').removesuffix('.allreduce')}.allreduce.yaml"


def calibrated_text(
    profile: HardwareProfile, path: Path, entry: AllReduceConstants, link: Link
) -> str:
    """The profile's text with the entry in place of one for as many GPUs, all else untouched."""
    text = path.read_text(encoding="utf-8")
    if profile.link is None:
        text = text.rstrip("\n") + (
            f"\nlink:  # {COMMENT}\n  name: {link.name}\n"
            f"  bandwidth_bytes_per_s: {link.bytes_per_s:.4e}\n"
        )
    others = [e for e in profile.allreduce if e.n_gpus != entry.n_gpus]
    entries = sorted([*others, entry], key=lambda e: e.n_gpus)
    return with_block(text, "allreduce", entries, COMMENT)
