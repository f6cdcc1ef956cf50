"""What can be varied of a design, and the design at another size or on another backbone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lrkv_plan.attention.registry import all_families, parse_attention
from lrkv_plan.attention.spec import Backbone
from lrkv_plan.errors import SpecError
from lrkv_plan.memory.largest import aligned_size, largest

BACKBONE = Backbone(n_heads=12, head_dim=16, v_head_dim=16)
SIZES: list[tuple[str, Sequence[int]]] = [
    ("mha", [1, 2, 3, 4, 6, 12]),
    ("gqa:4", [1, 2, 3, 4, 6, 12]),
    ("mqa", [1, 2, 3, 4, 6, 12]),
    ("mla:8+4", range(1, 101)),  # the model is 100 wide, the heads' keys and values 384
    ("lrkv:0", range(0, 17)),
    ("lrkv:4,groups=2,position=rope_expand", range(0, 17)),
    ("lrkv:4,position=rope_rank,basis_spans_rotary_planes=true", range(0, 17, 2)),
    ("lrkv:4,position=rope_decoupled,rope_dim=8,key_norm=rms_cached,align=8", range(0, 17)),
]


@pytest.mark.parametrize(("text", "sizes"), SIZES)
def test_every_size_is_the_design_that_its_text_names(text: str, sizes: Sequence[int]) -> None:
    design = parse_attention(text, BACKBONE)
    assert list(design.sizes(100)) == list(sizes)
    for size in sizes:
        sized = design.with_size(size)
        assert parse_attention(sized.text(), BACKBONE) == sized
        assert sized.text() == design.text(size)
        assert sized.backbone() == design.backbone()


@pytest.mark.parametrize(("text", "sizes"), SIZES)
def test_a_design_moves_to_other_heads_as_its_text_does(text: str, sizes: Sequence[int]) -> None:
    wide = Backbone(n_heads=24, head_dim=32, v_head_dim=32, output_bias=True)
    moved = parse_attention(text, BACKBONE).moved_to(wide)
    assert moved == parse_attention(text, wide)


@pytest.mark.parametrize(("text", "size"), [("gqa:4", 5), ("lrkv:0", 17), ("lrkv:0", -1)])
def test_a_size_that_the_heads_do_not_allow_is_refused(text: str, size: int) -> None:
    with pytest.raises(SpecError, match=str(size)):
        parse_attention(text, BACKBONE).with_size(size)


def test_the_largest_size_is_the_last_within_the_limit() -> None:
    assert [largest(range(10), lambda n: 2 * n, limit) for limit in (-1, 0, 9, 99)] == [  # type: ignore[arg-type, return-value]
        None, 0, 4, 9,
    ]  # fmt: skip
    assert aligned_size(range(0, 100), 57, 16) == 48
    assert aligned_size([1, 2, 4], 4, 16) == 4  # no multiple: the largest itself


def test_each_built_in_family_declares_the_kernels_of_its_paths() -> None:
    kernels = [kernel.name for family in all_families() for kernel in family.kernels]
    assert kernels == [
        "grouped", "mla_absorbed", "mla_materialised", "low_rank", "low_rank_expand",
        "low_rank_inside", "low_rank_expand_inside", "low_rank_materialised", "shared_row",
    ]  # fmt: skip
