"""Factored LRKV in one pass over the cache: the Triton kernels behind the path interface.

Four launches and no synchronisation, so that a CUDA graph can hold them: queries into rank space,
attention over parts of the context, their merge, and the value map with the final sum.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from lrkv_plan.calibration.decode.attend import Attention, StepInputs
from lrkv_plan.calibration.decode.cache import PagedCache
from lrkv_plan.calibration.triton_gate import is_interpreting, triton_is_installed
from lrkv_plan.errors import CalibrationError, UsageError

MAX_QUERY_TOKENS = 32
# Rows of one product: 32 hold 18 heads with one query token and keep four warps within registers.
TILE_ROWS = 32
PROGRAMS_PER_PROCESSOR = 4  # enough reads in flight on each streaming multiprocessor
MIN_PART_TOKENS = 256  # below that, writing and merging a part costs more than it spreads


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a step is cut up.

    ``heads_per_tile`` heads that share a key are served by one read of it; the context of every
    sequence is cut into ``n_parts``. ``rows`` and ``tokens`` are a tile's block sizes, ``stages``
    the tiles of private rows in flight.
    """

    heads_per_tile: int
    n_parts: int
    rows: int
    tokens: int = 64
    stages: int = 3
    warps: int = 4


def tiling(
    *,
    n_heads: int,
    n_groups: int,
    n_query: int,
    batch_size: int,
    longest: int,
    n_processors: int,
    itemsize: int = 2,
    paged: bool = False,
    heads_per_tile: int | None = None,
    n_parts: int | None = None,
) -> Tiling:
    """Blocks for a shape: few tiles per group, and parts enough to fill the processors.

    Raises
    ------
    UsageError
        If there are more query tokens than a tile holds.

    Examples
    --------
    One tile of 18 heads, so shared rows are read once; 132 processors want 528 programs, 8
    sequences give 8, so each context of 32,768 is cut into 66:

    >>> tiling(n_heads=18, n_groups=1, n_query=1, batch_size=8, longest=32768, n_processors=132)
    Tiling(heads_per_tile=18, n_parts=66, rows=32, tokens=64, stages=3, warps=4)
    """
    if n_query > MAX_QUERY_TOKENS:
        raise UsageError(
            f"query_tokens {n_query}: the fused kernel takes at most {MAX_QUERY_TOKENS}; "
            "use lrkv/factored"
        )
    sharing = n_heads // n_groups
    if heads_per_tile is None:
        tiles = -(-sharing // max(1, TILE_ROWS // n_query))
        heads_per_tile = -(-sharing // tiles)
    tiles = -(-sharing // heads_per_tile)
    if n_parts is None:
        wanted = -(-PROGRAMS_PER_PROCESSOR * n_processors // (tiles * n_groups * batch_size))
        n_parts = max(1, min(wanted, longest // MIN_PART_TOKENS))
    return Tiling(
        heads_per_tile=heads_per_tile,
        n_parts=n_parts,
        rows=block_side(heads_per_tile * n_query),
        tokens=64 if itemsize == 2 and not paged else 32,  # more spills, compiled for sm_90
    )


def block_side(width: int) -> int:
    """The power of two, at least 16, that a product's side is padded to in registers."""
    return max(16, 1 << (width - 1).bit_length()) if width else 16


def block_constants(
    widths: Mapping[str, int], cut: Tiling, *, n_query: int, paged: bool, widen: bool = False
) -> dict[str, Any]:
    """What the decode kernel is compiled for: stored row widths and block sizes.

    ``widths`` are those of the cached tensors by name; an absent one is 0. ``widen`` multiplies in
    fp32 for the interpreter, which cannot multiply bf16.
    """
    sides = {
        "KEY_DIM": "shared_key", "VALUE_DIM": "shared_value", "KEY_RANK": "private_key",
        "VALUE_RANK": "private_value", "ROPE_DIM": "rope_key",
    }  # fmt: skip
    constants: dict[str, Any] = {
        "HEADS": cut.heads_per_tile, "QUERIES": n_query, "ROWS": cut.rows,
        "TOKENS": cut.tokens, "SCALED": "key_scale" in widths, "PAGED": paged,
        "WIDEN": widen, "STAGES": cut.stages,
    }  # fmt: skip
    for name, tensor in sides.items():
        width = widths.get(tensor, 0)
        constants[name] = width
        constants[name.removesuffix("_DIM") + "_BLOCK"] = block_side(width)
    return constants


LOG2_E = 1.4426950408889634
INTERPRETED_PROCESSORS = 1


def fused_is_available() -> bool:
    """Whether Triton can run here: installed, with a CUDA device or interpreting on the CPU."""
    return triton_is_installed() and (is_interpreting() or torch.cuda.is_available())


_CACHED = (
    "shared_key", "shared_value", "private_key", "private_value", "rope_key", "key_scale",
)  # fmt: skip


class FusedLowRank(Attention):
    """LRKV, factored, in one fused scan: what an optimised engine would run.

    Only each sequence's own rows are read, not the longest's. Positions and norms as in
    ``FactoredLowRank``; the cache may be contiguous or paged.

    Raises
    ------
    CalibrationError
        If the tensors are on a device that Triton cannot run on here.
    """

    def __init__(
        self,
        inputs: StepInputs,
        *,
        heads_per_tile: int | None = None,
        n_parts: int | None = None,
    ) -> None:
        cache = inputs.cache
        self.inputs, self.tensors = inputs, cache.tensors
        self.device = inputs.query.device
        if self.device.type != "cuda" and not is_interpreting():
            raise CalibrationError(
                f"path lrkv/fused: runs on CUDA devices with triton, not on {self.device.type}; "
                "use lrkv/factored"
            )
        self.dtype = self.tensors["shared_key"].dtype
        self.batch, self.heads, self.n_query, width = inputs.query.shape
        self.groups = cache.copies("shared_key")
        self.widths = {name: t.shape[-1] for name, t in self.tensors.items()}
        self.scale = width**-0.5 * LOG2_E
        self.tiling = tiling(
            n_heads=self.heads, n_groups=self.groups, n_query=self.n_query,
            batch_size=self.batch, longest=inputs.mask.longest,
            n_processors=self._n_processors(), itemsize=self.dtype.itemsize,
            paged=isinstance(cache, PagedCache),
            heads_per_tile=heads_per_tile, n_parts=n_parts,
        )  # fmt: skip
        self._prepare()

    def _n_processors(self) -> int:
        if self.device.type != "cuda":
            return INTERPRETED_PROCESSORS
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    def _prepare(self) -> None:
        inputs, cache = self.inputs, self.inputs.cache
        head_dim = self.widths["shared_key"]
        self.query = inputs.query[..., :head_dim].to(self.dtype).contiguous()
        self.rope_query = inputs.query[..., head_dim:].to(self.dtype).contiguous()
        self.visible = inputs.mask.visible.to(self.device, torch.int32).contiguous()
        self.page_table: torch.Tensor | None = None
        if isinstance(cache, PagedCache):
            self.page_table = cache.page_table.to(self.device, torch.int32)
        rank = self.widths.get("private_value", 0)
        shape = (self.batch, self.heads, self.n_query, self.tiling.n_parts)
        total = self.widths["shared_value"] + rank
        self.part_outputs = torch.empty((*shape, total), dtype=torch.float32, device=self.device)
        self.part_sums = torch.empty(shape, dtype=torch.float32, device=self.device)
        self.log_sums = torch.empty(shape[:3], dtype=torch.float32, device=self.device)
        basis = inputs.weights.get("key_basis")
        self.key_basis = None if basis is None else basis.to(self.dtype)

    def run(self) -> torch.Tensor:
        """See ``Attention.run``; a view with sequences and heads exchanged."""
        with torch.inference_mode():
            return self._outputs(self.inputs.query.dtype).to(self.dtype)

    @override
    def partial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Attention.partial``."""
        with torch.inference_mode():
            return self._outputs(torch.float32), self.log_sums.clone()

    def _outputs(self, dtype: torch.dtype) -> torch.Tensor:
        """(B, H, q, v_head_dim); the value map and the sum of both branches in ``dtype``."""
        self._decode()
        shared, private = self._merge(dtype)
        if private is not None:
            basis = self.inputs.weights["value_basis"].to(dtype)
            shared = torch.baddbmm(shared, private, basis)
        return shared.view(self.heads, self.batch, self.n_query, -1).transpose(0, 1)

    def _private_query(self) -> torch.Tensor | None:
        """q B_K per head, (H, B q, stored rank): one product for the whole batch."""
        if self.key_basis is None:
            return None
        queries = self.query.transpose(0, 1).reshape(self.heads, -1, self.query.shape[-1])
        return torch.bmm(queries, self.key_basis)

    def _decode(self) -> None:
        kernels = importlib.import_module("lrkv_plan.calibration.triton_low_rank")
        cut, rows = self.tiling, self.tensors
        slots = rows["shared_key"].shape[2]
        n_tiles = -(-(self.heads // self.groups) // cut.heads_per_tile)
        private_query = self._private_query()
        absent = self.query  # stands in for tensors that the design lacks; never read
        kernels.decode_parts[(n_tiles * self.groups, cut.n_parts, self.batch)](
            self.query, absent if private_query is None else private_query, self.rope_query,
            *(rows.get(name, absent) for name in _CACHED),
            self.visible, self.visible if self.page_table is None else self.page_table,
            self.part_outputs, self.part_sums, self.scale, slots,
            0 if self.page_table is None else self.page_table.shape[1],
            self.batch, self.heads, self.groups, n_tiles, cut.n_parts,
            **block_constants(
                self.widths, cut, n_query=self.n_query, paged=self.page_table is not None,
                widen=is_interpreting(),
            ),
            num_warps=cut.warps, num_stages=cut.stages,
        )  # fmt: skip

    def _merge(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
        kernels = importlib.import_module("lrkv_plan.calibration.triton_merge")
        width, rank = self.widths["shared_value"], self.widths.get("private_value", 0)
        outputs = torch.empty(
            (self.heads, self.batch * self.n_query, width), dtype=dtype, device=self.device
        )
        private = outputs.new_empty((*outputs.shape[:2], rank)) if rank else None
        kernels.merge_parts[(self.log_sums.numel(),)](
            self.part_outputs, self.part_sums, outputs, outputs if private is None else private,
            self.log_sums, self.batch, self.heads, self.tiling.n_parts, QUERIES=self.n_query,
            PARTS_BLOCK=block_side(self.tiling.n_parts),
            VALUE_DIM=width, VALUE_BLOCK=block_side(width),
            VALUE_RANK=rank, VALUE_RANK_BLOCK=block_side(rank), num_warps=4,
        )  # fmt: skip
        return outputs, private
