"""Fused factored LRKV decode for CUDA GPUs: a Triton kernel, split over the context.

One program takes one sequence, one tile of heads that share a key, and one part of the context. It
reads a tile of shared rows once for all its heads and each head's own latents once, adds both
scores before the one online softmax (arXiv:2601.11471v3, eq. 6; two softmaxes would be wrong), and
carries two numerators under the same weights: ``v_head_dim`` wide for shared values, rank wide for
private ones. ``triton_merge`` merges the parts by their log-sum-exps.

What multiplies what. Rows of a product are the (head, query token) pairs of a tile, at least 16, so
shared rows meet a whole matrix of queries. Private latents are a batched matrix-vector product,
bound by memory: each head's tile meets the same matrix with all rows but that head's set to zero,
so that sums land in their own row and no diagonal is cut out. One row of 16 or 32 is useful; for 18
heads of rank 64 in 32 rows that is 36 FLOP per byte read, an eighth of an H100's ridge in bf16.
Sums by elements over (head, token, rank) blocks waste nothing, but compiled for sm_90 (9 heads,
rank 64, bf16) they took 1,700 to 3,000 instructions and 150 to 310 shuffles, mostly with spills,
where the products took 1,200, 14 and none. Turned over, for Hopper's warp group instructions, they
took as many registers and more shuffles.

Ranks need no padding in memory. Latents whose bytes per row are no multiple of 4 (an odd rank in 16
bits) are read by 2-byte loads instead of asynchronous copies: what an unaligned rank costs here.

Not here: rotating rebuilt keys (``rope_expand``), tensor memory copies, FP8, views with strides.
"""

from __future__ import annotations

from lrkv_plan.calibration.triton_gate import jit, tl

# mypy: disable-error-code="no-untyped-def, untyped-decorator, valid-type, name-defined"


@jit
def _load_block(rows, used, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """(rows, BLOCK) scalars behind pointers to rows, zero beyond WIDTH and for unused rows."""
    columns = tl.arange(0, BLOCK)
    wanted = used[:, None] & (columns < WIDTH)[None, :]
    return tl.load(rows[:, None] + columns[None, :], mask=wanted, other=0.0)


@jit
def _load_rows(
    base, slots, copy, n_copies, slot_tokens, first, seen,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, PAGED: tl.constexpr,
):  # fmt: skip
    """(TOKENS, BLOCK) of one copy's cached rows; storage is (slots, copies, slot tokens, WIDTH).

    Contiguous rows lie at one address per tile plus offsets that no loop changes: fewer registers.
    """
    columns = tl.arange(0, BLOCK)
    start = base + ((slots * n_copies + copy) * slot_tokens + first) * WIDTH
    if PAGED:
        places = start[:, None] + columns[None, :]
    else:
        places = start + ((tl.arange(0, TOKENS) * WIDTH)[:, None] + columns[None, :])
    return tl.load(places, mask=seen[:, None] & (columns < WIDTH)[None, :], other=0.0)


@jit
def _product(left, right, sums, WIDEN: tl.constexpr):
    """Add left right, in fp32; fp32 factors are not rounded to TF32.

    WIDEN is for the interpreter, whose products take bf16 for integers.
    """
    if WIDEN:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, sums, input_precision="ieee")


@jit
def _merge_tile(top, total, scores):
    """Online softmax: new maximum, new denominator, old numerators' factor, weights."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that sees nothing yet
    factor = tl.exp2(top - base)
    weights = tl.exp2(scores - base[:, None])
    return new_top, total * factor + tl.sum(weights, 1), factor, weights


@jit
def _locate(
    page_table, sequence, tile_start, tokens, seen, slot_tokens, table_width,
    PAGED: tl.constexpr,
):  # fmt: skip
    """Where a tile lies: its sequence and first token, or every token's page and place there."""
    slots, first = sequence, tile_start
    if PAGED:
        pages = page_table + sequence * table_width + tokens // slot_tokens
        slots = tl.load(pages, mask=seen, other=0).to(tl.int64)
        first = tokens % slot_tokens
    return slots, first


@jit
def _add_private_scores(
    scores, queries, private_key, own, first_head, heads_here, n_heads,
    slots, first, slot_tokens, seen,
    RANK: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, PAGED: tl.constexpr,
    WIDEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Scores (rows, tokens) plus each row's product with its own head's latents."""
    for h in tl.range(0, heads_here, num_stages=STAGES):
        head = first_head + h
        latents = _load_rows(
            private_key, slots, head, n_heads, slot_tokens, first, seen,
            RANK, BLOCK, TOKENS, PAGED,
        )  # fmt: skip
        one_head = tl.where((own == h)[:, None], queries, 0.0)
        scores = _product(one_head, tl.trans(latents), scores, WIDEN)
    return scores


@jit
def _add_private_values(
    mixed, shares, private_value, own, first_head, heads_here, n_heads,
    slots, first, slot_tokens, seen,
    RANK: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, PAGED: tl.constexpr,
    WIDEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Numerators (rows, rank) plus each row's mix of its own head's latents."""
    for h in tl.range(0, heads_here, num_stages=STAGES):
        head = first_head + h
        latents = _load_rows(
            private_value, slots, head, n_heads, slot_tokens, first, seen,
            RANK, BLOCK, TOKENS, PAGED,
        )  # fmt: skip
        one_head = tl.where((own == h)[:, None], shares, 0.0)
        mixed = _product(one_head, latents, mixed, WIDEN)
    return mixed


@jit
def _store_rows(base, rows, used, values, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write (rows, BLOCK) to rows of WIDTH scalars."""
    columns = tl.arange(0, BLOCK)
    wanted = used[:, None] & (columns < WIDTH)[None, :]
    tl.store((base + rows)[:, None] + columns[None, :], values, mask=wanted)


@jit
def decode_parts(
    query, private_query, rope_query,
    shared_key, shared_value, private_key, private_value, rope_key, key_scale,
    visible, page_table, outputs, log_sums,
    score_scale, slot_tokens, table_width, n_batch, n_heads, n_groups, n_tiles, n_parts,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_BLOCK: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    KEY_RANK: tl.constexpr, KEY_RANK_BLOCK: tl.constexpr,
    VALUE_RANK: tl.constexpr, VALUE_RANK_BLOCK: tl.constexpr,
    ROPE_DIM: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    SCALED: tl.constexpr, PAGED: tl.constexpr, WIDEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attention of one tile of heads over one part of one sequence's rows.

    Storage is (slots, copies, slot_tokens, width): slots are sequences, or pages found in
    ``page_table`` (B, table_width). ``query`` and ``rope_query`` are (B, H, q, width);
    ``private_query`` (H, B, q, stored rank). ``visible`` (B, q) are rows that a query token sees,
    ascending. ``score_scale`` includes log2(e). ``outputs`` (B, H, q, parts, d_v + stored rank) are
    normalised within the part, ``log_sums`` (B, H, q, parts) to base 2. Grid: tiles of all groups,
    parts, sequences; tiles run fastest, so that tiles of a group meet in the L2 cache.
    """
    group = tl.program_id(0) // n_tiles
    part = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    sharing = n_heads // n_groups
    in_group = (tl.program_id(0) % n_tiles) * HEADS
    heads_here = tl.minimum(HEADS, sharing - in_group)
    first_head = group * sharing + in_group

    row = tl.arange(0, ROWS)
    own = row // QUERIES
    used = own < heads_here
    head = first_head + tl.minimum(own, heads_here - 1)
    token = row % QUERIES
    limit = tl.load(visible + sequence * QUERIES + token)
    by_sequence = (sequence * n_heads + head) * QUERIES + token
    queries = _load_block(query + by_sequence * KEY_DIM, used, KEY_DIM, KEY_BLOCK)
    if KEY_RANK > 0:
        by_head = (head * n_batch + sequence) * QUERIES + token
        rows = private_query + by_head * KEY_RANK
        latent_queries = _load_block(rows, used, KEY_RANK, KEY_RANK_BLOCK)
    if ROPE_DIM > 0:
        rows = rope_query + by_sequence * ROPE_DIM
        rope_queries = _load_block(rows, used, ROPE_DIM, ROPE_BLOCK)

    length = tl.load(visible + sequence * QUERIES + QUERIES - 1)
    part_tokens = tl.cdiv(tl.cdiv(length, TOKENS), n_parts) * TOKENS
    start = part * part_tokens
    end = tl.minimum(start + part_tokens, length)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, VALUE_BLOCK), tl.float32)
    if VALUE_RANK > 0:
        latent_mixed = tl.zeros((ROWS, VALUE_RANK_BLOCK), tl.float32)

    for tile_start in range(start, end, TOKENS):
        tokens = tile_start + tl.arange(0, TOKENS)
        seen = tokens < end
        slots, first = _locate(
            page_table, sequence, tile_start, tokens, seen, slot_tokens, table_width, PAGED
        )
        keys = _load_rows(
            shared_key, slots, group, n_groups, slot_tokens, first, seen,
            KEY_DIM, KEY_BLOCK, TOKENS, PAGED,
        )  # fmt: skip
        scores = _product(queries, tl.trans(keys), tl.zeros((ROWS, TOKENS), tl.float32), WIDEN)
        if KEY_RANK > 0:
            scores = _add_private_scores(
                scores, latent_queries, private_key, own, first_head, heads_here, n_heads,
                slots, first, slot_tokens, seen,
                KEY_RANK, KEY_RANK_BLOCK, TOKENS, PAGED, WIDEN, STAGES,
            )  # fmt: skip
        if SCALED:
            copies = (slots * n_heads)[None, :] if PAGED else slots * n_heads
            scales = ((copies + head[:, None]) * slot_tokens) + (
                first[None, :] if PAGED else tokens[None, :]
            )
            scores *= tl.load(key_scale + scales, mask=seen[None, :], other=0.0).to(tl.float32)
        if ROPE_DIM > 0:
            rope_keys = _load_rows(
                rope_key, slots, 0, 1, slot_tokens, first, seen, ROPE_DIM, ROPE_BLOCK, TOKENS, PAGED
            )
            scores = _product(rope_queries, tl.trans(rope_keys), scores, WIDEN)

        hidden = (tokens[None, :] >= limit[:, None]) | (tokens >= end)[None, :]
        scores = tl.where(hidden, float("-inf"), scores * score_scale)
        top, total, factor, weights = _merge_tile(top, total, scores)

        values = _load_rows(
            shared_value, slots, group, n_groups, slot_tokens, first, seen,
            VALUE_DIM, VALUE_BLOCK, TOKENS, PAGED,
        )  # fmt: skip
        shares = weights.to(values.dtype)
        mixed = _product(shares, values, mixed * factor[:, None], WIDEN)
        if VALUE_RANK > 0:
            latent_mixed = _add_private_values(
                latent_mixed * factor[:, None], shares, private_value, own, first_head,
                heads_here, n_heads, slots, first, slot_tokens, seen,
                VALUE_RANK, VALUE_RANK_BLOCK, TOKENS, PAGED, WIDEN, STAGES,
            )  # fmt: skip

    divisor = tl.where(total == 0.0, 1.0, total)
    place = by_sequence * n_parts + part
    tl.store(log_sums + place, top + tl.log2(divisor), mask=used)
    rows = place * (VALUE_DIM + VALUE_RANK)
    _store_rows(outputs, rows, used, mixed / divisor[:, None], VALUE_DIM, VALUE_BLOCK)
    if VALUE_RANK > 0:
        latent_mixed /= divisor[:, None]
        rows += VALUE_DIM
        _store_rows(outputs, rows, used, latent_mixed, VALUE_RANK, VALUE_RANK_BLOCK)
