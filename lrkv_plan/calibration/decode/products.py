"""The two matrix products of attention over cached rows, in fp32 whatever the rows are stored in.

On a CPU rows in bf16 or fp16 are converted by chunks that stay in the cache nearest to the core:
torch's own half-precision products are 2 to 15 times slower where the CPU has no matrix
instructions for them (measured on an AVX2 core with torch 2.13), and they round scores to 8 bits.
On CUDA the products take half-precision inputs and keep their fp32 sums (torch >= 2.8).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

# fp32 scalars of a converted chunk: 1 MiB. Smaller ones pay for their calls, larger ones leave L2.
CHUNK_SCALARS = 1 << 18


def on_cpu(device: torch.device) -> bool:
    """Whether half-precision rows are converted by chunks; elsewhere products take them as are."""
    return device.type == "cpu"


def compute_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of queries and layer weights: fp32 on a CPU, the rows' own on CUDA."""
    return torch.float32 if on_cpu(device) else dtype


def add_scores(query: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, *, beta: int) -> None:
    """``out = beta out + query rows^T`` for query (N, M, w), rows (N, T, w), out fp32 (N, M, T)."""
    if rows.dtype == torch.float32:
        torch.baddbmm(out, query, rows.transpose(1, 2), beta=beta, out=out)
    elif on_cpu(rows.device):
        for heads, tokens, chunk in _chunks(rows):
            part = out[heads, :, tokens]
            torch.baddbmm(part, query[heads], chunk.transpose(1, 2), beta=beta, out=part)
    else:
        _add_wide(query, rows.transpose(1, 2), out, beta)


def add_mix(weights: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, *, beta: int) -> None:
    """``out = beta out + weights rows``: weights fp32 (N, M, T), rows (N, T, w), out (N, M, w)."""
    if rows.dtype == torch.float32:
        torch.baddbmm(out, weights, rows, beta=beta, out=out)
    elif on_cpu(rows.device):
        for heads, tokens, chunk in _chunks(rows):
            part = out[heads]
            kept = beta if tokens.start == 0 else 1
            torch.baddbmm(part, weights[heads, :, tokens], chunk, beta=kept, out=part)
    else:
        _add_wide(weights.to(rows.dtype), rows, out, beta)


def per_head(tensor: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """(B, H, q, a) times one (a, c) map per head, (H, a, c), read once for the whole batch."""
    batch, heads, n_query, _ = tensor.shape
    stacked = tensor.to(maps.dtype).transpose(0, 1).reshape(heads, batch * n_query, -1)
    mapped = torch.bmm(stacked, maps).view(heads, batch, n_query, -1)
    return mapped.transpose(0, 1).contiguous()


def _add_wide(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, beta: int) -> None:
    """Half-precision product with an fp32 result, which torch offers on CUDA."""
    product = torch.bmm(left, right, out_dtype=torch.float32)
    out.copy_(product) if beta == 0 else out.add_(product)


def _chunks(rows: torch.Tensor) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Rows (N, T, w) by parts in fp32, in one buffer: whole heads while several fit."""
    n_heads, n_tokens, width = rows.shape
    heads_each = max(1, min(n_heads, CHUNK_SCALARS // max(1, n_tokens * width)))
    tokens_each = min(n_tokens, max(16, CHUNK_SCALARS // width))
    buffer = torch.empty(heads_each * tokens_each * width, dtype=torch.float32)
    for head in range(0, n_heads, heads_each):
        n = min(heads_each, n_heads - head)
        for token in range(0, n_tokens, tokens_each):
            t = min(tokens_each, n_tokens - token)
            heads, tokens = slice(head, head + n), slice(token, token + t)
            chunk = buffer[: n * t * width].view(n, t, width)
            yield heads, tokens, chunk.copy_(rows[heads, tokens])
