"""What a cache is asked to hold besides its context: batch, format, GPUs, encoder rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sequences resident together, the storage format and the GPUs that share the model.

    ``encoder_tokens`` are the rows of cross-attention layers; None takes the spec's own number.
    """

    batch_size: int = 1
    kv_dtype: str = "bf16"
    tp_size: int = 1
    encoder_tokens: int | None = None
