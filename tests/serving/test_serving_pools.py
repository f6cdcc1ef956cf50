"""Every usable pool that a real engine printed, reproduced from the architecture.

Budgets were printed rounded. The printed tokens must be those of some number of blocks, and that
number must be reachable by a budget within half a unit of the printed digit; so must the printed
concurrency, from the same blocks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError
from lrkv_plan.formats import storage_format
from lrkv_plan.loader import load_model
from lrkv_plan.serving.engine import ENGINES, engine_named, pool_of
from lrkv_plan.serving.engines.llama_cpp import cache_bytes_for, cells, kept_kinds
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.model import ModelSpec

GIB, MIB = 2**30, 2**20
GOLDEN = Path(__file__).parent.parent / "golden" / "serving_pools.yaml"
FACTS = yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))
CASES = FACTS["cases"]
POOLS = [case for case in CASES if "tokens" in case["prints"]]
CELLS = [case for case in CASES if "mib" in case["prints"]]
SLOTS = [case for case in CASES if "slots" in case["prints"]]
BUDGET_KEYS = ("available_gib", "available_bytes", "key_and_value_gib", "latent_gib")
# Where a log or report states no maximum length; before vLLM 0.21 tokens do not depend on it.
ANY_CONTEXT = 4096


def by_id(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["id"])


@cache
def model_named(name: str) -> ModelSpec:
    layers = FACTS["architectures"].get(name)
    if layers is None:
        return load_model(name)
    source = {"citation": "tests/golden/serving_pools.yaml", "read_on": "2026-11-30"}
    return ModelSpec.model_validate(
        {"name": name, "source": source, "model_dim": 256, "layers": layers}
    )


def model_of(case: dict[str, Any]) -> ModelSpec:
    return model_named(case["model"])


def settings_of(case: dict[str, Any]) -> EngineSettings:
    own = ("kv_dtype", "max_batched_tokens", "draft_layers", "draft_tokens", "prefix_cache",
           "encoder_tokens")  # fmt: skip
    told = case.get("settings", {})
    return EngineSettings(
        context_tokens=told.get("context", ANY_CONTEXT), page_tokens=told.get("block"),
        **{key: told[key] for key in own if key in told},
    )  # fmt: skip


def pool_at(case: dict[str, Any], budgets: tuple[int, ...]) -> Pool:
    told = case.get("settings", {})
    parallel = Parallelism(
        tp_size=told.get("tp", 1), pp_size=told.get("pp", 1), dcp_size=told.get("dcp", 1)
    )
    if len(budgets) == 1:
        budgets *= parallel.pp_size
    engine = engine_named(case["engine"])
    return pool_of(model_of(case), budgets, settings_of(case), engine=engine, parallel=parallel)


def interval(printed: str, unit: int) -> tuple[Fraction, Fraction]:
    """Values that print as that text, both ends included."""
    decimals = len(printed.partition(".")[2])
    half = Fraction(1, 2 * 10**decimals)
    return (Fraction(printed) - half) * unit, (Fraction(printed) + half) * unit


def budgets_of(case: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Lowest and highest budgets per stage that print as stated; None where none is printed."""
    prints = case["prints"]
    if "available_bytes" in prints:
        return (prints["available_bytes"],), (prints["available_bytes"],)
    key = next((key for key in BUDGET_KEYS if key in prints), None)
    if key is None:
        return None
    texts = prints[key] if isinstance(prints[key], list) else [prints[key]]
    ends = [interval(text, GIB) for text in texts]
    if key == "key_and_value_gib":  # one pool: the sizes add up
        ends = [(sum(low for low, _ in ends), sum(high for _, high in ends))]  # type: ignore[list-item]
    return tuple(int(low) for low, _ in ends), tuple(int(high) for _, high in ends)


def pool_of_blocks(case: dict[str, Any], n_blocks: int) -> Pool:
    block_bytes = Fraction(pool_at(case, (2**40,)).block_bytes)
    return pool_at(case, (-(-n_blocks * block_bytes.numerator // block_bytes.denominator),))


def first_blocks(case: dict[str, Any], tokens: int) -> int:
    """The fewest blocks whose pool prints at least ``tokens``."""
    low, high = 0, 2**30
    while low < high:
        middle = (low + high) // 2
        if pool_of_blocks(case, middle).kv_tokens >= tokens:
            high = middle
        else:
            low = middle + 1
    return low


def blocks_that_print(case: dict[str, Any]) -> range:
    """Numbers of blocks from which the engine prints exactly the stated tokens."""
    tokens = case["prints"]["tokens"]
    return range(first_blocks(case, tokens), first_blocks(case, tokens + 1))


def rounded(value: Fraction, decimals: int) -> str:
    """Half up to that many decimals."""
    scaled = (value * 10**decimals + Fraction(1, 2)) // 1
    return f"{scaled // 10**decimals}.{scaled % 10**decimals:0{decimals}d}"


def within_budget(case: dict[str, Any], blocks: range) -> range:
    """Those of ``blocks`` that a budget printed as stated can give; all where none is printed."""
    ends = budgets_of(case)
    if ends is None:
        return blocks
    low, high = (pool_at(case, end).n_blocks for end in ends)
    return range(max(low, blocks.start), min(high + 1, blocks.stop))


def excepted(case: dict[str, Any], of: str) -> bool:
    return case.get("exception", {}).get("of") in (of, "all")


@by_id(POOLS)
def test_printed_tokens_follow_from_the_printed_budget(case: dict[str, Any]) -> None:
    blocks = blocks_that_print(case)
    reachable = bool(blocks) and bool(within_budget(case, blocks))
    assert reachable != excepted(case, "tokens"), (blocks, budgets_of(case))


@by_id([case for case in POOLS if "concurrency" in case["prints"]])
def test_printed_concurrency_follows_from_the_same_blocks(case: dict[str, Any]) -> None:
    printed = case["prints"]["concurrency"]
    blocks = blocks_that_print(case)
    if not excepted(case, "tokens"):
        blocks = within_budget(case, blocks)
    found = {rounded(pool_of_blocks(case, n).max_concurrency, 2) for n in blocks}
    assert (printed in found) != excepted(case, "concurrency"), found


@by_id([case for case in POOLS if "blocks" in case["prints"]])
def test_printed_blocks_times_block_are_the_printed_tokens(case: dict[str, Any]) -> None:
    pool = pool_of_blocks(case, case["prints"]["blocks"])
    assert pool.n_blocks == case["prints"]["blocks"]
    assert pool.n_blocks * pool.block_tokens == pool.kv_tokens == case["prints"]["tokens"]


@by_id([case for case in POOLS if "block" in case["prints"]])
def test_state_raises_the_block_to_the_printed_one(case: dict[str, Any]) -> None:
    prints, pool = case["prints"], pool_at(case, (GIB,))
    assert pool.block_tokens == prints["block"]
    if "state_page_bytes" in prints:
        expected = (
            f"a state page of {prints['state_page_bytes']:,} B is padded to "
            f"{prints['page_bytes']:,} B ({prints['state_padding_pct']}%)"
        )
        assert any(remark.startswith(expected) for remark in pool.remarks), pool.remarks


@by_id([case for case in POOLS if "layer_padding_pct" in case["prints"]])
def test_padding_layers_are_the_printed_share(case: dict[str, Any]) -> None:
    share = f"({case['prints']['layer_padding_pct']}%)"
    assert any("padding layers" in r and share in r for r in pool_at(case, (GIB,)).remarks)


@by_id(SLOTS)
def test_state_slots_cost_what_sglang_prints(case: dict[str, Any]) -> None:
    # The pool keeps one slot more than it prints, for requests that are padding.
    prints, kept = case["prints"], case["prints"]["slots"] + 1
    sizes = {"conv_gib": 0, "recurrent_gib": 0}
    for group in model_of(case).layers:
        for tensor in group.state:
            part = "conv_gib" if tensor.bytes_per_draft_token else "recurrent_gib"
            sizes[part] += group.count * tensor.copies * tensor.bytes_per_copy
    for part, size in sizes.items():
        if part in prints:
            assert rounded(Fraction(kept * size, GIB), 2) == prints[part]
    per_slot = f"{sum(sizes.values()):,} B per sequence"
    assert any(per_slot in remark for remark in pool_at(case, (GIB,)).remarks)


def rows_of(case: dict[str, Any]) -> dict[str, int]:
    """Cells of one layer of each kind."""
    settings, n_sequences = settings_of(case), case["settings"].get("sequences", 1)
    tokens, short = divmod(settings.context_tokens, n_sequences)
    assert not short
    kinds = kept_kinds(model_of(case), settings, engine_named(case["engine"]))
    return {kind.keeps: cells(kind, n_sequences, tokens, 512) for kind in kinds if kind.row_bytes}


def bytes_by_part(case: dict[str, Any]) -> dict[str, Fraction]:
    """Bytes of each tensor, each kind of layer, each tensor of a kind, and of all together."""
    model, storage = model_of(case), storage_format(case["settings"]["kv_dtype"])
    rows = rows_of(case)
    parts: dict[str, Fraction] = {}
    for group in model.attention_groups:
        kind = group.window_kind or "full"
        if group.reuses_cache or group.attention is None:
            continue
        for tensor in layout_of(group.attention, model.model_dim).cached:
            row = tensor.copies_per_layer * storage.row_bytes(tensor.width)
            size = group.count * rows[kind] * row
            for name in ("all", kind, tensor.name, f"{kind}_{tensor.name}"):
                parts[name] = parts.get(name, Fraction(0)) + size
    return parts


@by_id(CELLS)
def test_llama_cpp_cells_have_the_printed_sizes(case: dict[str, Any]) -> None:
    prints, settings = case["prints"], settings_of(case)
    n_sequences = case["settings"].get("sequences", 1)
    parts = bytes_by_part(case)
    shared = replace(settings, context_tokens=settings.context_tokens // n_sequences)
    kinds = kept_kinds(model_of(case), shared, engine_named(case["engine"]))
    total = cache_bytes_for(kinds, n_sequences, shared.context_tokens, shared)
    parts["state"] = total - parts["all"]
    for unit, texts in ((MIB, prints["mib"]), (GIB, prints.get("gib", {}))):
        for name, text in texts.items():
            low, high = interval(text, unit)
            assert low <= parts[name] <= high, (name, text, float(parts[name] / unit))
    assert prints.get("cells", rows_of(case)) == rows_of(case)
    pool = ENGINES["llama_cpp"](
        model_of(case), math.ceil(total), shared, engine=engine_named(case["engine"])
    )
    assert pool.max_sequences == n_sequences


def test_a_padded_latent_pool_holds_as_much_memory_as_the_unpadded_one() -> None:
    # 4,739 x 64 x 61 x 640 x 2 B and 5,266 x 64 x 61 x 576 x 2 B: the same 22.06 GiB
    padded, plain = (next(c for c in CASES if c["id"] == name) for name in ("K064", "K065"))
    low = pool_of_blocks(plain, 5266)
    budget = int(low.n_blocks * Fraction(low.block_bytes))
    assert pool_at(padded, (budget,)).n_blocks == 4739
    assert pool_at(plain, (budget,)).n_blocks == 5266


def test_mla_before_its_latent_was_kept_is_refused() -> None:
    case = {**next(c for c in CASES if c["id"] == "K064"), "engine": "vllm@0.6.6"}
    with pytest.raises(PlacementError, match="cached_form=heads"):
        pool_at(case, (GIB,))


def test_every_case_and_exception_is_accounted_for() -> None:
    names = [case["id"] for case in CASES] + list(FACTS["unusable"])
    assert len(names) == len(set(names)) == 120
    assert {case["id"] for case in CASES if "exception" in case} == {"K037", "K124", "K132"}
    assert all(case["exception"]["reason"] for case in CASES if "exception" in case)


def test_at_least_95_percent_of_the_printed_budgets_give_their_tokens() -> None:
    budgeted = [case for case in POOLS if any(key in case["prints"] for key in BUDGET_KEYS)]
    matched = [case for case in budgeted if not excepted(case, "tokens")]
    assert len(matched) / len(budgeted) >= 0.95
