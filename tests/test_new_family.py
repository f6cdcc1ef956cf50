"""A new family costs a spec class with its builder, one registration and a YAML: no calculator.

Grouped latent attention: ``n_latents`` latents, each read as key and value by an equal share of
the heads and dealt out by copy, with one shared rotary key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import pytest

import lrkv_plan
from lrkv_plan.attention import registry
from lrkv_plan.attention.family import Family
from lrkv_plan.attention.layout import (
    AttentionLayout,
    CachedTensor,
    DecodeWork,
    Sharding,
    WeightMatrix,
    WeightRole,
)
from lrkv_plan.attention.spec import AttentionSpec, Backbone
from lrkv_plan.memory.cache import bytes_per_token, cache_bytes
from lrkv_plan.memory.placement import placements
from lrkv_plan.memory.weights import kv_params
from lrkv_plan.specs.design import design_label, swap_attention


class GroupedLatentSpec(AttentionSpec):
    family: Literal["gla"] = "gla"
    n_latents: int
    latent_dim: int
    rope_dim: int
    head_dim: int

    text_argument = "latent_dim"

    def backbone(self) -> Backbone:
        return Backbone(self.n_heads, self.head_dim, self.head_dim, self.rope_dim)

    def label(self) -> str:
        return f"gla:{self.latent_dim}" + self.stated("n_latents", "rope_dim")

    @classmethod
    def on_backbone(
        cls, backbone: Backbone, family: str, fields: Mapping[str, Any]
    ) -> GroupedLatentSpec:
        return cls(n_heads=backbone.n_heads, head_dim=backbone.head_dim, **fields)


def grouped_latent_layout(spec: GroupedLatentSpec, model_dim: int) -> AttentionLayout:
    latents, width, heads = spec.n_latents, spec.latent_dim, spec.n_heads
    key_value = WeightRole.KEY_VALUE
    return AttentionLayout(
        label=spec.label(),
        n_heads=heads,
        cached=(
            CachedTensor(
                name="latent", width=width, copies_per_layer=latents, sharding=Sharding.BY_COPY
            ),
            CachedTensor(
                name="rope_key",
                width=spec.rope_dim,
                copies_per_layer=1,
                sharding=Sharding.REPLICATED,
            ),
        ),
        weights=(
            WeightMatrix(
                name="down", rows=model_dim, cols=latents * width + spec.rope_dim, role=key_value
            ),
            WeightMatrix(name="up", rows=width, cols=heads * 2 * spec.head_dim, role=key_value),
        ),
        work=(
            DecodeWork(
                path="absorbed",
                kernel="mla_absorbed",
                per_token=heads * (2 * width + spec.rope_dim),
                per_step=0,
            ),
        ),
    )


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    family = Family(
        names=("gla",), spec_class=GroupedLatentSpec, build=grouped_latent_layout,
        runs_on=("mla_absorbed",),
    )  # fmt: skip
    registry.register(family)
    yield
    registry.forget(family)


YAML = """
name: grouped-latent-toy
source: {citation: made up for a test, read_on: 2026-11-30}
model_dim: 1024
layers:
  - count: 10
    attention: {family: gla, n_heads: 16, head_dim: 64, n_latents: 2, latent_dim: 128, rope_dim: 32}
"""


def test_every_calculator_knows_the_new_family(tmp_path: Path) -> None:
    path = tmp_path / "gla.yaml"
    path.write_text(YAML)
    model = lrkv_plan.load_model(path)
    # 10 layers * 2 B * (2 * 128 + 32)
    assert bytes_per_token(model) == 10 * 2 * 288
    # On 2 GPUs one latent each and the whole rotary key; on 4 each latent is on two.
    assert bytes_per_token(model, tp_size=2) == 10 * 2 * (128 + 32)
    assert bytes_per_token(model, tp_size=4) == 10 * 2 * (128 + 32)
    assert cache_bytes(model, context_tokens=1000).total == 1000 * 10 * 2 * 288
    assert placements(model, tp_size=2)[0].aggregate_ratio_to_mha == Fraction(2 * 160, 2 * 16 * 64)
    assert kv_params(model) == 10 * (1024 * 288 + 128 * 16 * 128)


def test_the_attention_argument_knows_it_too() -> None:
    paper = lrkv_plan.load_model("lrkv-paper-2.5b")
    swapped = swap_attention(paper, "gla:256,n_latents=2,rope_dim=64")
    assert design_label(swapped) == "gla:256,n_latents=2,rope_dim=64"
    assert bytes_per_token(swapped) == 18 * 2 * (2 * 256 + 64)
