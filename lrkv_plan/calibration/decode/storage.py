"""The two ways of laying rows out: one block per sequence, or pages from a shared pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import override

from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.calibration.decode.cache import Cache
from lrkv_plan.errors import CalibrationError


class ContiguousCache(Cache):
    """Per tensor (B, copies, capacity, width): a head's rows follow each other, as scans want."""

    def __init__(
        self,
        layout: AttentionLayout,
        *,
        batch_size: int,
        capacity_tokens: int,
        tp_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(layout, tp_size, batch_size)
        self.capacity_tokens = capacity_tokens
        self.tensors = {
            name: torch.zeros(
                (batch_size, self.copies(name), capacity_tokens, tensor.width),
                dtype=dtype, device=device,
            )
            for name, tensor in self.cached.items()
        }  # fmt: skip

    @override
    def flat_rows(self, name: str) -> torch.Tensor:
        view = self._views.get(name)
        if view is None:
            view = self.tensors[name].flatten(0, 1)[:, : max(self.lengths)]
            self._views[name] = view
        return view

    @override
    def _reserve(self, counts: Sequence[int]) -> None:
        for sequence, (have, more) in enumerate(zip(self.lengths, counts, strict=True)):
            if have + more > self.capacity_tokens:
                raise CalibrationError(
                    f"sequence {sequence}: {have} cached and {more} new tokens exceed the "
                    f"capacity of {self.capacity_tokens}"
                )

    @override
    def _write(self, name: str, sequence: int, start: int, new: torch.Tensor, width: int) -> None:
        stop = start + new.shape[1]
        self.tensors[name][sequence, :, start:stop, :width] = new


class PagedCache(Cache):
    """Per tensor a pool (pages, copies, page tokens, width), one page table for all tensors.

    Pages are handed out in shuffled order when a sequence first needs them. A scan gathers the
    pages of each head into one buffer per tensor first, since torch has no kernel over page tables:
    it reads and writes every row once more than an engine's paged kernel. The page table and that
    buffer are not counted in ``allocated_bytes``.
    """

    def __init__(
        self,
        layout: AttentionLayout,
        *,
        capacity_tokens: Sequence[int],
        page_tokens: int,
        tp_size: int,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        super().__init__(layout, tp_size, len(capacity_tokens))
        self.page_tokens = page_tokens
        self.n_pages = sum(self._pages(tokens) for tokens in capacity_tokens)
        order = torch.randperm(self.n_pages, generator=torch.Generator().manual_seed(seed))
        self._free: list[int] = order.tolist()
        self._pages_of: list[list[int]] = [[] for _ in capacity_tokens]
        self._buffers: dict[str, torch.Tensor] = {}
        self.tensors = {
            name: torch.zeros(
                (self.n_pages, self.copies(name), page_tokens, tensor.width),
                dtype=dtype, device=device,
            )
            for name, tensor in self.cached.items()
        }  # fmt: skip

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    @property
    def page_table(self) -> torch.Tensor:
        """(B, pages of the longest sequence); unused entries repeat a page that a mask hides."""
        longest = max(len(pages) for pages in self._pages_of)
        return torch.tensor([p + [0] * (longest - len(p)) for p in self._pages_of])

    @override
    def flat_rows(self, name: str) -> torch.Tensor:
        pool = self.tensors[name]
        if name not in self._views:
            self._views[name] = self._places(name)
            n_rows = self._views[name].numel()
            shape = (n_rows, pool.shape[2] * pool.shape[3])
            self._buffers[name] = torch.empty(shape, dtype=pool.dtype, device=pool.device)
        pages = pool.view(-1, pool.shape[2] * pool.shape[3])
        gathered = self._buffers[name]
        torch.index_select(pages, 0, self._views[name], out=gathered)
        heads = gathered.view(self.batch_size * pool.shape[1], -1, pool.shape[3])
        return heads[:, : max(self.lengths)]

    def _places(self, name: str) -> torch.Tensor:
        """For (B, copies, pages): the place of that page of that copy in the flattened pool."""
        copies = torch.arange(self.copies(name))[None, :, None]
        places = self.page_table[:, None, :] * self.copies(name) + copies
        return places.flatten().to(self.tensors[name].device)

    @override
    def _reserve(self, counts: Sequence[int]) -> None:
        wanted = [
            self._pages(have + more) - len(pages)
            for have, more, pages in zip(self.lengths, counts, self._pages_of, strict=True)
        ]
        if sum(wanted) > len(self._free):
            raise CalibrationError(
                f"{sum(counts)} new tokens need {sum(wanted)} more pages of {self.page_tokens}, "
                f"but {len(self._free)} of {self.n_pages} are free"
            )
        for pages, more in zip(self._pages_of, wanted, strict=True):
            pages.extend(self._free.pop() for _ in range(more))

    @override
    def _write(self, name: str, sequence: int, start: int, new: torch.Tensor, width: int) -> None:
        done = 0
        while done < new.shape[1]:
            page, offset = divmod(start + done, self.page_tokens)
            n = min(self.page_tokens - offset, new.shape[1] - done)
            page_rows = self.tensors[name][self._pages_of[sequence][page]]
            page_rows[:, offset : offset + n, :width] = new[:, done : done + n]
            done += n


def build_cache(
    layout: AttentionLayout,
    *,
    capacity_tokens: Sequence[int],
    page_tokens: int | None = None,
    tp_size: int = 1,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    seed: int = 0,
) -> Cache:
    """An empty cache for sequences that may grow to ``capacity_tokens`` each.

    Contiguous without ``page_tokens``: every sequence then has room for the longest. With it, a
    pool of just enough pages.

    Raises
    ------
    PlacementError
        If the heads cannot be dealt out over ``tp_size`` GPUs.
    """
    device = device or torch.device("cpu")
    if page_tokens is None:
        return ContiguousCache(
            layout, batch_size=len(capacity_tokens), capacity_tokens=max(capacity_tokens),
            tp_size=tp_size, dtype=dtype, device=device,
        )  # fmt: skip
    return PagedCache(
        layout, capacity_tokens=capacity_tokens, page_tokens=page_tokens, tp_size=tp_size,
        dtype=dtype, device=device, seed=seed,
    )  # fmt: skip
