"""Paths that rebuild keys or values from what is cached, tile by tile.

Scores of all tiles go to one fp32 matrix before one softmax. A fused kernel would carry an online
softmax instead, to keep that matrix out of memory; here it is small beside the cache and rescaling
would only add calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from typing_extensions import override

from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.calibration.decode import attend as products
from lrkv_plan.calibration.decode.attend import StepInputs, add_scores
from lrkv_plan.calibration.decode.latent import AbsorbedLatent
from lrkv_plan.calibration.decode.low_rank import FactoredLowRank
from lrkv_plan.calibration.decode.rotary import angles, frequencies
from lrkv_plan.errors import UsageError

# Rebuilt scalars per tile. On a CPU 512 KiB in fp32, where 32 to 64 tokens of 18 heads x 128 were
# fastest on a core with 512 KiB of L2; on CUDA large tiles, so that few kernels are launched.
CPU_TILE_SCALARS = 1 << 17
CUDA_TILE_SCALARS = 1 << 26
ROW_STEP = 16  # rows that matrix libraries take at once


class Tile(NamedTuple):
    """Some tokens of some sequences."""

    sequences: slice
    tokens: slice


def tiles(
    batch_size: int,
    n_tokens: int,
    scalars_per_token: int,
    device: torch.device,
    tile_tokens: int | None = None,
) -> Iterator[Tile]:
    """All (sequence, token) pairs by tiles: one sequence at a time on a CPU, many on CUDA."""
    one_core = products.on_cpu(device)
    budget = CPU_TILE_SCALARS if one_core else CUDA_TILE_SCALARS
    tokens_each = tile_tokens or even_tile(n_tokens, max(ROW_STEP, budget // scalars_per_token))
    fitting = max(1, budget // (tokens_each * scalars_per_token))
    sequences_each = 1 if one_core else min(batch_size, fitting)
    for sequence in range(0, batch_size, sequences_each):
        for token in range(0, n_tokens, tokens_each):
            yield Tile(
                slice(sequence, min(sequence + sequences_each, batch_size)),
                slice(token, min(token + tokens_each, n_tokens)),
            )


def even_tile(n_tokens: int, most: int) -> int:
    """Tokens of a tile where about ``most`` fit: equal tiles of whole ``ROW_STEP``.

    Unequal or odd ones cost matrix products up to a fifth of their speed.

    Examples
    --------
    >>> even_tile(256, most=85), even_tile(40, most=85)  # four of 64 rather than 85, 85, 85, 1
    (64, 40)
    """
    n_tiles = -(-n_tokens // most)
    even = -(-n_tokens // n_tiles)
    return min(n_tokens, -(-even // ROW_STEP) * ROW_STEP)


def heads_flat(tensor: torch.Tensor) -> torch.Tensor:
    """(b, H, x, y) as (b H, x, y); a view wherever strides allow."""
    return tensor.flatten(0, 1)


def add_tile_scores(scores: torch.Tensor, query: torch.Tensor, keys: torch.Tensor) -> None:
    """Add q k^T per head to a part (b, H, q, t) of the scores, which must be a view."""
    out = scores.view(-1, *scores.shape[2:])
    torch.baddbmm(out, heads_flat(query), heads_flat(keys).transpose(1, 2), out=out)


def add_tile_values(outputs: torch.Tensor, shares: torch.Tensor, values: torch.Tensor) -> None:
    """Add shares (b, H, q, t) times values (b, H, t, d_v) to (b, H, q, d_v)."""
    out = outputs.view(-1, *outputs.shape[2:])
    torch.baddbmm(out, heads_flat(shares), heads_flat(values), out=out)


def score_tiles(
    scores: torch.Tensor, query: torch.Tensor, rows: Iterable[tuple[Tile, torch.Tensor]]
) -> None:
    """Fill ``scores`` (B, H, q, T) with q k^T over tiles of every head's full keys."""
    scores.zero_()
    for tile, keys in rows:
        part = scores[tile.sequences, :, :, tile.tokens]
        add_tile_scores(part, query[tile.sequences], keys)


def mix_tiles(
    outputs: torch.Tensor, shares: torch.Tensor, rows: Iterable[tuple[Tile, torch.Tensor]]
) -> None:
    """Fill ``outputs`` (B, H, q, d_v) with shares times values, over tiles of full values."""
    outputs.zero_()
    for tile, values in rows:
        part = shares[tile.sequences, :, :, tile.tokens]
        add_tile_values(outputs[tile.sequences], part, values)


class TileRotation:
    """Rotates tiles of keys (b, H, t, w) by the positions of their tokens, from a table."""

    def __init__(self, positions: torch.Tensor, width: int, device: torch.device) -> None:
        turned = angles(positions, frequencies(width))[:, None]  # (B or 1, 1, T, w/2)
        self._cos = turned.cos().float().to(device)
        self._sin = turned.sin().float().to(device)

    def __call__(self, keys: torch.Tensor, tile: Tile) -> torch.Tensor:
        """The turned keys, in a new tensor."""
        shared = self._cos.shape[0] == 1
        place = (slice(None) if shared else tile.sequences, slice(None), tile.tokens)
        cos, sin = self._cos[place], self._sin[place]
        first, second = keys.chunk(2, dim=-1)
        turned = torch.empty_like(keys)
        left, right = turned.chunk(2, dim=-1)
        torch.mul(first, cos, out=left).addcmul_(second, sin, value=-1)
        torch.mul(first, sin, out=right).addcmul_(second, cos)
        return turned


class RotatedLowRank(FactoredLowRank):
    """LRKV with ``rope_expand``: private keys Z B^T are rebuilt and rotated, the rest is factored.

    Shared keys are cached rotated and scored once for a whole group of heads, like the values.
    """

    def __init__(self, inputs: StepInputs) -> None:
        super().__init__(inputs)
        self.basis = {
            name: inputs.weights[name].transpose(1, 2).contiguous()
            if name == "key_basis"
            else inputs.weights[name]
            for name in ("key_basis", "value_basis")
            if name in inputs.weights
        }
        spec = inputs.spec
        self.rotation: TileRotation | None = None
        if isinstance(spec, LowRankSpec) and spec.position == "rope_expand":
            if spec.head_dim % 2:
                raise UsageError(
                    f"position rope_expand turns pairs of scalars: head_dim {spec.head_dim} is odd"
                )
            self.rotation = TileRotation(inputs.positions, spec.head_dim, self.device)

    def tiles_of(self, width: int) -> list[Tile]:
        """Tiles in which every head's row of that width is rebuilt."""
        return list(
            tiles(
                self.batch, self.scores.shape[3], self.heads * width, self.device,
                self.inputs.tile_tokens,
            )
        )  # fmt: skip

    def rebuilt(self, latents: torch.Tensor, basis: str, tile: Tile) -> torch.Tensor:
        """(b, H, t, full width) in fp32 from latents (B, H, T, rank)."""
        maps = self.basis[basis]
        part = latents[tile.sequences, :, tile.tokens].to(maps.dtype)
        return torch.matmul(part, maps).float()

    @override
    def score(self) -> None:
        shared = self.cache.flat_rows("shared_key")
        add_scores(self.by_copy(self.content_query, self.groups), shared, self.per_group, beta=0)
        if "private_key" in self.cache.cached:
            latents = self.cache.rows("private_key")
            query = self.content_query.float()
            for tile in self.tiles_of(self.head_dim):
                keys = self.rebuilt(latents, "key_basis", tile)
                if self.rotation is not None:
                    keys = self.rotation(keys, tile)
                part = self.scores[tile.sequences, :, :, tile.tokens]
                add_tile_scores(part, query[tile.sequences], keys)
        self.scale_and_add_rope()


class ExpandedLowRank(RotatedLowRank):
    """LRKV materialised: each head's full keys and values, S + Z B^T, are written out by tiles."""

    def full_rows(self, name: str) -> Iterator[tuple[Tile, torch.Tensor]]:
        """Per tile the full rows (b, H, t, width) in fp32 of ``key`` or ``value``."""
        shared = self.cache.rows(f"shared_{name}")
        private = f"private_{name}"
        latents = self.cache.rows(private) if private in self.cache.cached else None
        for tile in self.tiles_of(shared.shape[-1]):
            yield tile, self._full(name, shared, latents, tile)

    def _full(
        self, name: str, shared: torch.Tensor, latents: torch.Tensor | None, tile: Tile
    ) -> torch.Tensor:
        base = shared[tile.sequences, :, tile.tokens].float()
        sharing = self.heads // self.groups
        if latents is None:
            return base.repeat_interleave(sharing, dim=1)
        rows = self.rebuilt(latents, f"{name}_basis", tile)
        if name == "key" and self.rotation is not None:
            rows = self.rotation(rows, tile)
        by_group = rows.view(-1, self.groups, sharing, *rows.shape[2:])
        by_group.add_(base[:, :, None])
        return rows

    @override
    def score(self) -> None:
        score_tiles(self.scores, self.content_query.float(), self.full_rows("key"))
        self.scale_and_add_rope()

    @override
    def mix(self, shares: torch.Tensor) -> torch.Tensor:
        width = self.cache.cached["shared_value"].width
        outputs = self.new_outputs(width)
        mix_tiles(outputs, shares, self.full_rows("value"))
        return outputs


class ExpandedLatent(AbsorbedLatent):
    """MLA materialised: every head's keys c W_uk^T and values c W_uv are written out by tiles.

    The rotary key stays shared and is scored for all heads at once.
    """

    def __init__(self, inputs: StepInputs) -> None:
        super().__init__(inputs)
        latent_dim = inputs.cache.cached["latent"].width
        self.up = {  # (d_c, H width): one product rebuilds the rows of all heads
            "key": inputs.weights["key_up"].permute(2, 0, 1).reshape(latent_dim, -1),
            "value": inputs.weights["value_up"].permute(1, 0, 2).reshape(latent_dim, -1),
        }

    def full_rows(self, name: str) -> Iterator[tuple[Tile, torch.Tensor]]:
        """Per tile the rows (b, H, t, width) of ``key`` (less its rotary part) or ``value``."""
        latents, up = self.cache.rows("latent"), self.up[name]
        n_tokens, tile_tokens = self.scores.shape[3], self.inputs.tile_tokens
        for tile in tiles(self.batch, n_tokens, up.shape[1], self.device, tile_tokens):
            part = latents[tile.sequences, 0, tile.tokens].to(up.dtype)
            rows = torch.matmul(part, up)
            yield tile, rows.view(*rows.shape[:2], self.heads, -1).transpose(1, 2).float()

    @override
    def score(self) -> None:
        score_tiles(self.scores, self.content_query.float(), self.full_rows("key"))
        self.score_rope()

    @override
    def mix(self, shares: torch.Tensor) -> torch.Tensor:
        width = self.weights["value_up"].shape[2]
        outputs = self.new_outputs(width)
        mix_tiles(outputs, shares, self.full_rows("value"))
        return outputs
