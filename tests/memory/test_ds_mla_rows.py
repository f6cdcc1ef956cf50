"""Rows of the fp8_ds_mla cache: 656 bytes, whether the latent has a rotary key beside it or not."""

from __future__ import annotations

import pytest

from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.formats import storage_format
from lrkv_plan.memory.cache import row_bytes_per_layer


@pytest.mark.parametrize("rope_dim", [64, 0])
def test_row_is_656_bytes_whatever_the_rotary_width(rope_dim: int) -> None:
    spec = LatentSpec(
        n_heads=64, latent_dim=512, rope_dim=rope_dim, nope_dim=256 - rope_dim, v_head_dim=256
    )
    layout = layout_of(spec, 4096)
    # 512 fp8 scalars + 4 fp32 scales + the place of 64 bf16 scalars: 512 + 16 + 128
    assert row_bytes_per_layer(layout, storage_format("fp8_ds_mla"), 1) == 656


@pytest.mark.parametrize(("rope_dim", "row_bytes"), [(64, 1152), (0, 1024)])
def test_other_formats_keep_no_empty_place(rope_dim: int, row_bytes: int) -> None:
    spec = LatentSpec(n_heads=64, latent_dim=512, rope_dim=rope_dim, nope_dim=192, v_head_dim=256)
    layout = layout_of(spec, 4096)
    assert row_bytes_per_layer(layout, storage_format("bf16"), 1) == row_bytes
