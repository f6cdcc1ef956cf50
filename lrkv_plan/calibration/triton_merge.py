"""Merging of split attention: the second kernel of fused LRKV decode (see triton_low_rank)."""

from __future__ import annotations

from lrkv_plan.calibration.triton_gate import jit, tl

# mypy: disable-error-code="no-untyped-def, untyped-decorator, valid-type, name-defined"


@jit
def merge_parts(
    outputs, log_sums, shared_out, private_out, total_out, n_batch, n_heads, n_parts,
    QUERIES: tl.constexpr, PARTS_BLOCK: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    VALUE_RANK: tl.constexpr, VALUE_RANK_BLOCK: tl.constexpr,
):  # fmt: skip
    """One (sequence, head, query token) over all parts: sum_i exp(lse_i - lse) o_i.

    ``shared_out`` (H, B, q, d_v) and ``private_out`` (H, B, q, stored rank) lie as the batched
    value map wants them; ``total_out`` (B, H, q) is the natural log-sum-exp.
    """
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PARTS_BLOCK)
    each = tl.load(log_sums + row * n_parts + parts, mask=parts < n_parts, other=float("-inf"))
    top = tl.max(each, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(each - base), 0)
    divisor = tl.where(total == 0.0, 1.0, total)
    tl.store(total_out + row, (top + tl.log2(divisor)) * 0.6931471805599453)  # ln 2

    width: tl.constexpr = VALUE_DIM + VALUE_RANK
    columns = tl.arange(0, VALUE_BLOCK)
    mixed = tl.zeros((VALUE_BLOCK,), tl.float32)
    latent_columns = tl.arange(0, VALUE_RANK_BLOCK)
    latent_mixed = tl.zeros((VALUE_RANK_BLOCK,), tl.float32)
    for part in range(0, n_parts):
        weight = tl.exp2(tl.load(log_sums + row * n_parts + part) - base)
        source = outputs + (row * n_parts + part) * width
        mixed += weight * tl.load(source + columns, mask=columns < VALUE_DIM, other=0.0)
        if VALUE_RANK > 0:
            latents = source + VALUE_DIM + latent_columns
            latent_mixed += weight * tl.load(latents, mask=latent_columns < VALUE_RANK, other=0.0)

    token = row % QUERIES
    head = (row // QUERIES) % n_heads
    target = (head * n_batch + row // QUERIES // n_heads) * QUERIES + token
    place = shared_out + target * VALUE_DIM + columns
    shared = (mixed / divisor).to(shared_out.dtype.element_ty)
    tl.store(place, shared, mask=columns < VALUE_DIM)
    if VALUE_RANK > 0:
        place = private_out + target * VALUE_RANK + latent_columns
        private = (latent_mixed / divisor).to(private_out.dtype.element_ty)
        tl.store(place, private, mask=latent_columns < VALUE_RANK)
