"""Phrases of verdicts: shipped GPUs get a name that people say, an own one keeps its name."""

from __future__ import annotations

import pytest

from lrkv_plan.loader import load_all_hardware
from lrkv_plan.report.screens.words import gpu_name, gpu_words, legend

SAID = {
    "a10g": "A10G", "a100-sxm-40gb": "A100 SXM 40 GB", "a100-sxm-80gb": "A100 SXM 80 GB",
    "cpu": "CPU", "h100-nvl": "H100 NVL", "h100-pcie": "H100 PCIe", "h100-sxm": "H100 SXM",
    "h200": "H200", "apple-m4-max": "Apple M4 Max", "ascend-910c": "Ascend 910C",
    "rtx-4070-ti": "RTX 4070 Ti", "tpu-v6e": "TPU v6e", "v100-sxm": "V100 SXM", "mi300x": "MI300X", "rtx-4090": "RTX 4090", "rtx-pro-6000": "RTX PRO 6000",
}  # fmt: skip


def test_a_shipped_gpu_is_named_as_people_say_it() -> None:
    profiles = load_all_hardware()
    said = {profile.name: gpu_name(profile.name, profile.title) for profile in profiles}
    assert SAID.items() <= said.items()
    assert all(words != name for name, words in said.items()), "the rule holds for every profile"
    assert len(set(said.values())) == len(said)


@pytest.mark.parametrize(
    ("name", "title"),
    [("h100", "NVIDIA H1000"), ("my-h100", "NVIDIA H100"), ("gpu", None), ("a--b", "A B")],
)
def test_a_name_that_its_title_does_not_hold_stays(name: str, title: str | None) -> None:
    assert gpu_words(name, title, 2) == f"2 x {name}"


def test_a_legend_names_the_glyphs_that_are_used() -> None:
    assert legend(["measured", "measured"]) == "● measured on this GPU"
    assert legend(["datasheet"]) == "◐ typical share of the datasheet"
    assert legend(["datasheet", "assumed", "borrowed"]).startswith(
        "◐ borrowed from another shape, engine or GPU, or of the datasheet,"
    )
