"""How far each decode path is from the float64 reference: random designs and known hard ones."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import torch

from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.spec import AttentionSpec, divisors_of
from lrkv_plan.calibration.decode.paths import paths_for
from lrkv_plan.calibration.decode.step import DecodeStep, build_step


@dataclass(frozen=True, kw_only=True)
class Case:
    """One design and one step of it; ``mixed`` gives every row of every sequence its own position.

    ``cancelling`` makes shared and private key terms nearly opposite (see ``with_opposed_keys``).
    """

    label: str
    path: str
    spec: AttentionSpec
    contexts: tuple[int, ...]
    query_tokens: int = 1
    page_tokens: int | None = None
    tile_tokens: int | None = None
    tp_size: int = 1
    mixed: bool = False
    cancelling: float | None = None
    seed: int = 0

    def step(self, dtype: str, device: str = "cpu") -> DecodeStep:
        """The case in that storage format."""
        shape = (len(self.contexts), max(self.contexts))
        generator = torch.Generator().manual_seed(self.seed)
        positions = torch.randint(0, 100_000, shape, generator=generator) if self.mixed else None
        step = build_step(
            self.path, self.spec, model_dim=64, batch_size=len(self.contexts),
            context_tokens=self.contexts, query_tokens=self.query_tokens, dtype=dtype,
            device=device, page_tokens=self.page_tokens, tp_size=self.tp_size, seed=self.seed,
            positions=positions, tile_tokens=self.tile_tokens,
        )  # fmt: skip
        return step if self.cancelling is None else with_opposed_keys(step, self.cancelling)

    def error(self, dtype: str, device: str = "cpu") -> float:
        """``relative_error`` of the case."""
        return relative_error(self.step(dtype, device))


def relative_error(step: DecodeStep) -> float:
    """Largest difference from the float64 reference over the largest output of the step.

    The reference takes the cached rows, the query and the weights as the step has them, so this is
    the error of computing, not that of storing rows in few bits.
    """
    wanted = step.reference()
    difference = (step.run().double() - wanted).abs().max()
    return float(difference / wanted.abs().max())


def with_opposed_keys(step: DecodeStep, ratio: float) -> DecodeStep:
    """An LRKV step whose shared and private key terms are ``ratio`` times their sum.

    For one shared group per head and no positions: S becomes S / ratio - Z B^T, and the query grows
    by ``ratio``, so that scores stay of order one while their two terms cancel.
    """
    inputs = step.inputs
    shared, latents = inputs.cache.tensors["shared_key"], inputs.cache.tensors["private_key"]
    basis = inputs.weights["key_basis"].float().transpose(1, 2)
    opposed = shared.float() / ratio - latents.float() @ basis
    shared.copy_(opposed)
    changed = dataclasses.replace(inputs, query=inputs.query * ratio)
    return dataclasses.replace(step, inputs=changed, attention=step.path.build(changed))


def random_case(seed: int) -> Case:
    """A small random design, path and step; every option of every family is drawn.

    Values are at least 4 wide: the only output of a step may vanish by chance (values of 0.5 that
    sum to 0.0009 in one of 500 draws), and an error relative to it then says nothing.

    Examples
    --------
    >>> random_case(7) == random_case(7)
    True
    """
    draw = random.Random(seed)  # noqa: S311 (test data)
    spec = _random_spec(draw)
    path = draw.choice([p.name for p in paths_for(spec) if not p.name.endswith("fused")])
    query_tokens = draw.choice((1, 1, 1, 2, 3))
    batch = draw.randint(1, 3)
    longest = draw.choice((query_tokens, 8, 16, 17, 64))
    longest = max(longest, query_tokens)
    uneven = tuple(draw.randint(query_tokens, longest) for _ in range(batch))
    return Case(
        label=f"random {seed}",
        path=path,
        spec=spec,
        contexts=uneven if draw.random() < 0.5 else (longest,) * batch,
        query_tokens=query_tokens,
        page_tokens=draw.choice((None, None, 1, 4, 16)),
        tile_tokens=draw.choice((None, 1, 5, 16)),
        tp_size=draw.choice(_tp_sizes(spec)),
        mixed=draw.random() < 0.5,
        seed=seed,
    )


def _tp_sizes(spec: AttentionSpec) -> list[int]:
    """Sizes that deal out query heads and every cached tensor."""
    copies: Any = getattr(spec, "n_kv_heads", None) or getattr(spec, "n_shared_groups", 1)
    return [p for p in divisors_of(spec.n_heads) if copies % p == 0 or p % copies == 0]


def _random_spec(draw: random.Random) -> AttentionSpec:
    heads = draw.choice((1, 2, 3, 4, 6, 8, 12))
    made = draw.choice((_random_grouped, _random_latent, *[_random_low_rank] * 3))
    return made(draw, heads, draw.randint(1, 24), draw.randint(4, 24))


def _random_grouped(draw: random.Random, heads: int, width: int, value_width: int) -> GroupedSpec:
    return GroupedSpec(
        family="gqa", n_heads=heads, n_kv_heads=draw.choice(divisors_of(heads)),
        head_dim=width, v_head_dim=value_width, sinks=draw.random() < 0.3,
    )  # fmt: skip


def _random_latent(draw: random.Random, heads: int, width: int, value_width: int) -> LatentSpec:
    return LatentSpec(
        n_heads=heads, latent_dim=draw.randint(1, 40), rope_dim=draw.choice((0, 2, 8)),
        nope_dim=width, v_head_dim=value_width,
        cached_form=draw.choice(("latent", "latent", "heads")),
    )  # fmt: skip


def _random_low_rank(draw: random.Random, heads: int, width: int, value_width: int) -> LowRankSpec:
    position = draw.choice(("none", "rope_expand", "rope_rank", "rope_decoupled"))
    rotary = position in ("rope_expand", "rope_rank")
    width = 2 * width if rotary else width
    rank = draw.randint(0, width)
    return LowRankSpec(
        n_heads=heads, head_dim=width, v_head_dim=value_width,
        key_rank=rank - rank % 2 if position == "rope_rank" else rank,
        value_rank=draw.randint(0, value_width),
        n_shared_groups=draw.choice(divisors_of(heads)),
        position=position,
        rope_dim=draw.choice((2, 8)) if position == "rope_decoupled" else 0,
        basis_spans_rotary_planes=position == "rope_rank",
        key_norm=draw.choice(("none", "rms_cached")),
        rank_alignment=draw.choice((1, 1, 8)),
    )  # fmt: skip


def hard_cases() -> tuple[Case, ...]:
    """Steps at the edges: the review's list (section 9) and the ends of every count."""

    def lrkv(**given: Any) -> LowRankSpec:
        return LowRankSpec(**{"n_heads": 6, "head_dim": 16, "rank": 5, **given})

    def case(label: str, path: str, spec: AttentionSpec, *contexts: int, **given: Any) -> Case:
        return Case(label=label, path=path, spec=spec, contexts=contexts, seed=3, **given)

    mqa = GroupedSpec(family="mqa", n_heads=1, n_kv_heads=1, head_dim=8, v_head_dim=8)
    expand = lrkv(position="rope_expand")
    planes = lrkv(rank=6, position="rope_rank", basis_spans_rotary_planes=True)
    both = ("lrkv/factored", "lrkv/materialised")
    own_groups = lrkv(n_shared_groups=6)
    return (
        case("planes that a generic basis leaves", "lrkv/rope_expand", expand, 33),
        case("mixed positions", "lrkv/rope_expand", expand, 33, 20, mixed=True),
        case("mixed positions in rank space", "lrkv/factored", planes, 33, 20, mixed=True),
        *(case("near-cancelling keys", p, own_groups, 33, cancelling=10.0) for p in both),
        case("one token, one head", "grouped/plain", mqa, 1),
        case("one token, one head", "lrkv/factored", lrkv(n_heads=1), 1),
        *(case("odd rank and rank 1", p, lrkv(key_rank=7, value_rank=1), 33) for p in both),
        *(case("rank 0", p, lrkv(rank=0), 33) for p in both),
        case("full rank", "lrkv/factored", lrkv(rank=16), 33),
        case("stored rank 8 of 5", "lrkv/factored", lrkv(rank_alignment=8), 33),
        case("cached norm", "lrkv/factored", lrkv(key_norm="rms_cached"), 33),
        case("last row of a page", "lrkv/factored", lrkv(), 16, 32, page_tokens=16),
        case("first row of a page", "lrkv/factored", lrkv(), 17, 33, page_tokens=16),
        case("as many queries as rows", "lrkv/rope_expand", expand, 3, 3, query_tokens=3),
        case("queries over a page edge", "lrkv/factored", lrkv(), 17, 40, query_tokens=3,
             page_tokens=16),
    )  # fmt: skip
