"""Placements and refusals against copies dealt out one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from lrkv_plan.memory.placement import try_placements
from tests.oracle import cache_count, placement_count
from tests.oracle.comparing import agree, spec_of
from tests.oracle.draws import GPUS, KV_FORMATS, examples, models


@examples(120)
@given(models(plain=True), GPUS, KV_FORMATS)
def test_placements_agree(plain: dict[str, Any], gpus: int, fmt: str) -> None:
    model, layers = spec_of(plain), plain["layers"]
    found, refusal = try_placements(model, tp_size=gpus, kv_dtype=fmt)
    runs = all(cache_count.can_run(x["attention"], gpus) for x in layers)
    agree("refusals", refusal is None, runs, plain, gpus)
    if not runs:
        return
    tensors = [
        (x["count"] * cache_count.row_bytes(width, fmt, name), copies, dealt)
        for x in layers
        for name, width, copies, dealt in cache_count.tensors(x["attention"])
    ]
    expected = placement_count.policies(tensors, gpus)
    agree("policies", [p.policy for p in found], list(expected), plain, gpus)
    for one in found:
        parts = (
            one.cache_bytes_per_token_per_gpu, one.aggregate_bytes_per_token,
            one.replicated_bytes_per_token, one.link_bytes_per_token_per_gpu,
        )  # fmt: skip
        agree("placement", parts, expected[one.policy], plain, gpus)
        _, whole, repeated, _ = expected[one.policy]
        agree("replicated share", one.replicated_share, repeated / whole if whole else 0, plain)
