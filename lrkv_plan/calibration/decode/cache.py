"""A layer's cache as real tensors, allocated from the layout's list of cached tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from lrkv_plan.attention.layout import AttentionLayout, CachedTensor
from lrkv_plan.calibration.decode.noise import fill_normal
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
