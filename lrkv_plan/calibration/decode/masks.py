"""Which cached rows each query token sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lrkv_plan.errors import UsageError


class ScanMask:
    """Rows hidden from a query: those beyond the sequence's end, and newer query tokens' own.

    The last ``new_tokens`` cached rows of a sequence belong to the query tokens themselves, so that
    query i of q sees ``length - new_tokens + i + 1`` rows. With ``new_tokens`` 0 (a shard of older
    tokens) every query sees all rows. Only the tail that some query cannot see is ever touched.

    Raises
    ------
    UsageError
        If a sequence has fewer rows than new tokens.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        query_tokens: int,
        device: torch.device,
        new_tokens: int | None = None,
    ) -> None:
        new = query_tokens if new_tokens is None else new_tokens
        if min(lengths) < new:
            raise UsageError(
                f"context_tokens {min(lengths)}: the {new} query tokens have rows of their own "
                "in the cache, so it must be at least that many"
            )
        ages = torch.arange(query_tokens) - query_tokens + 1 if new else torch.zeros(query_tokens)
        self.visible = torch.tensor(lengths)[:, None] + ages.long()  # (B, q)
        self.longest = max(lengths)
        self.first_hidden = int(self.visible.min())
        tail = torch.arange(self.first_hidden, self.longest)
        self._hidden = (tail >= self.visible[:, None, :, None]).to(device)

    @property
    def hides_nothing(self) -> bool:
        """Whether every query sees every row."""
        return self.first_hidden >= self.longest

    def apply_(self, scores: torch.Tensor) -> None:
        """Set hidden entries of (B, H, q, T) to minus infinity, in place."""
        if not self.hides_nothing:
            scores[..., self.first_hidden :].masked_fill_(self._hidden, -torch.inf)

    def allowed(self) -> torch.Tensor | None:
        """(B, 1, q, T), true where visible; None where nothing is hidden."""
        if self.hides_nothing:
            return None
        rows = torch.arange(self.longest)
        return (rows < self.visible[:, None, :, None]).to(self._hidden.device)
