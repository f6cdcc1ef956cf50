"""A layer's cache as real tensors, allocated from the layout's list of cached tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from typing_extensions import override

from lrkv_plan.attention.layout import AttentionLayout, CachedTensor
from lrkv_plan.calibration.decode.weights import fill_normal
from lrkv_plan.errors import CalibrationError

Rows = Mapping[str, torch.Tensor]


class Cache(ABC):
    """What one GPU of ``tp_size`` keeps of one layer for a batch of sequences.

    ``lengths`` are the tokens cached per sequence. Rows beyond a sequence's length are undefined;
    the padding columns of a row (``payload_width`` to ``width``) are zero.
    """

    tensors: dict[str, torch.Tensor]
    lengths: list[int]

    def __init__(self, layout: AttentionLayout, tp_size: int, batch_size: int) -> None:
        layout.check_tp_size(tp_size)
        self.layout, self.tp_size = layout, tp_size
        self.cached: dict[str, CachedTensor] = {t.name: t for t in layout.cached}
        self.lengths = [0] * batch_size
        self._views: dict[str, torch.Tensor] = {}

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors that hold rows. [bytes]"""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    @property
    def batch_size(self) -> int:
        """Sequences. [sequences]"""
        return len(self.lengths)

    def copies(self, name: str) -> int:
        """Copies of that tensor on this GPU."""
        return self.cached[name].copies_per_gpu(self.tp_size)

    def rows(self, name: str) -> torch.Tensor:
        """(B, copies, max length, width): a view where rows are contiguous, else a gathered copy.

        The copy goes to one buffer per tensor, which the next call overwrites.
        """
        heads = self.flat_rows(name)
        return heads.view(self.batch_size, -1, *heads.shape[1:])

    @abstractmethod
    def flat_rows(self, name: str) -> torch.Tensor:
        """``rows`` as (B copies, max length, width)."""

    def append(self, rows: Rows, counts: Sequence[int] | None = None) -> None:
        """Add rows after each sequence's last token: a prefill, or new tokens of a decode step.

        Parameters
        ----------
        rows : for every cached tensor (B, copies, n, width or payload width).
        counts : rows that each sequence takes of the n; all when None. [tokens]

        Raises
        ------
        CalibrationError
            If names or shapes are not those of the layout, or a sequence would exceed its capacity;
            nothing is written then.
        """
        taken = self._checked(rows, counts)
        self._reserve(taken)
        for name, new in rows.items():
            width = new.shape[-1]
            for sequence, count in enumerate(taken):
                if count:
                    start = self.lengths[sequence]
                    self._write(name, sequence, start, new[sequence, :, :count], width)
        self._grow(taken)

    def _grow(self, taken: Sequence[int]) -> None:
        self.lengths = [have + more for have, more in zip(self.lengths, taken, strict=True)]
        self._views = {}

    def fill_random(self, lengths: Sequence[int], seed: int) -> None:
        """Give an empty cache sequences of these lengths with rows of about N(0, 1).

        Key scales are drawn around 1. See ``noise``.
        """
        self._reserve(lengths)
        for place, (name, tensor) in enumerate(self.tensors.items()):
            generator = torch.Generator().manual_seed(seed * 1009 + place)
            fill(tensor, generator, positive=name == "key_scale")
            payload = self.cached[name].payload_width
            if payload is not None and payload < tensor.shape[-1]:
                tensor[..., payload:].zero_()
        self._grow(lengths)

    def _checked(self, rows: Rows, counts: Sequence[int] | None) -> list[int]:
        if set(rows) != set(self.cached):
            raise CalibrationError(
                f"rows for {sorted(rows)}: {self.layout.label} caches {sorted(self.cached)}"
            )
        n_given = next(iter(rows.values())).shape[2]
        taken = [n_given] * self.batch_size if counts is None else list(counts)
        if len(taken) != self.batch_size or min(taken) < 0:
            raise CalibrationError(
                f"counts of new rows: expected {self.batch_size}, from 0 on, got {taken}"
            )
        for name, new in rows.items():
            tensor = self.cached[name]
            widths = {tensor.width, tensor.payload_width or tensor.width}
            wanted = (self.batch_size, self.copies(name), max(taken), tensor.width)
            fits = (
                new.dim() == 4 and new.shape[:2] == wanted[:2]
                and new.shape[2] >= wanted[2] and new.shape[3] in widths
            )  # fmt: skip
            if not fits:
                raise CalibrationError(f"rows {name}: shape {tuple(new.shape)}, expected {wanted}")
        return taken

    @abstractmethod
    def _reserve(self, counts: Sequence[int]) -> None:
        """Make room for so many more rows per sequence, or raise ``CalibrationError``."""

    @abstractmethod
    def _write(self, name: str, sequence: int, start: int, new: torch.Tensor, width: int) -> None:
        """Put (copies, n, width) at that token of a sequence; room has been made."""


def fill(tensor: torch.Tensor, generator: torch.Generator, *, positive: bool = False) -> None:
    """Fill with random scalars: N(0, 1), or U(0.8, 1.2) when positive."""
    if not positive:
        fill_normal(tensor, generator)
        return
    drawn = 1.0 + 0.2 * (2 * torch.rand(tensor.shape, generator=generator) - 1)
    tensor.copy_(drawn.to(tensor.device, tensor.dtype))


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
