"""Writing fitted entries leaves the rest of a profile as it was, and they read back equal."""

from __future__ import annotations

import yaml

from lrkv_plan.specs.hardware import KernelConstants, with_block

ENTRY = KernelConstants(
    kernel="grouped", kv_dtype="bf16", form="no_split", t0_s=1.2e-5, beta=0.9, phi=0.6,
    full_work_units=132.0, identified=("t0_s", "beta"), n_points=40, held_out_by="heads",
    held_out_median_error=0.02, held_out_p90_error=0.0905, band90=(0.9, 1.1),
    backend="vllm/fa3", backend_version="0.24.0", source="a table, 1.0", licence="Apache-2.0",
    head_dims=(64, 128), preferred=True,
)  # fmt: skip
TEXT = "# a comment\nname: toy  # kept\nsource:\n  - {citation: x}\n"


def test_entries_read_back_equal() -> None:
    text = with_block(TEXT, "kernels", [ENTRY, ENTRY], "fitted")
    assert text.startswith(TEXT)
    read = [KernelConstants.model_validate(e) for e in yaml.safe_load(text)["kernels"]]
    assert read == [ENTRY, ENTRY]
    assert max(map(len, text.splitlines())) <= 100


def test_a_block_is_replaced_where_it_stands() -> None:
    once = with_block(TEXT, "kernels", [ENTRY], "fitted")
    twice = with_block(once + "allreduce: []  # other\n", "kernels", [ENTRY], "fitted")
    assert twice == once + "allreduce: []  # other\n"
