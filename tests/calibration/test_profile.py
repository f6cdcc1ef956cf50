"""Which shipped profile a device's own name means."""

from __future__ import annotations

import pytest

from lrkv_plan.calibration.profile import profile_of_device
from lrkv_plan.loader import load_all_hardware


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H20", "h20"),
        ("NVIDIA H20-3e", "h20-3e"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d"),
        ("NVIDIA GeForce RTX 4070 Ti", "rtx-4070-ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", None),
        ("NVIDIA GeForce RTX 4080 SUPER", None),
        ("NVIDIA GeForce RTX 3060 Ti", None),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX 4000 SFF Ada Generation", None),
        ("Quadro RTX 6000", None),
        ("Tesla T4", "t4"),
        ("Tesla V100S-PCIE-32GB", "v100s-pcie"),
        ("Tesla M4", None),
        ("Apple M4 Max", "apple-m4-max"),
        ("Apple M4", "apple-m4"),
    ],
)
def test_a_device_is_known_by_its_words_and_another_card_is_not(
    device: str, name: str | None
) -> None:
    found = profile_of_device(device, load_all_hardware())
    assert (found and found.name) == name
