"""Pools of every engine, and populations let into them, against the engines' published rules."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.errors import PlacementError
from lrkv_plan.memory.population import account_population
from lrkv_plan.serving.engine import engine_named, pool_of
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from tests.oracle import cache_count, pool_count, population_count
from tests.oracle.comparing import agree, spec_of
from tests.oracle.draws import GPUS, KV_FORMATS, examples, hybrids, models
from tests.oracle.pool_count import Kind
from tests.oracle.test_cache_oracle import refused

Plain = dict[str, Any]
MODELS = st.one_of(models(), hybrids(), hybrids())


@st.composite
def told(draw: Any) -> Plain:
    """Settings; ``page`` None is the engine's own default."""
    return {
        "tokens": draw(st.one_of(st.integers(1, 900), st.integers(1, 20_000))), "budget": draw(st.integers(0, 10**9)),
        "page": draw(st.sampled_from([None, 1, 16, 64])), "encoder": draw(st.sampled_from([None, 700])),
        "batched": draw(st.sampled_from([64, 512, 8192])), "prefix": draw(st.booleans()),
        "draft_tokens": draw(st.sampled_from([0, 0, 2])), "draft_layers": draw(st.sampled_from([0, 0, 1])),
        "gpus": draw(GPUS), "fmt": draw(KV_FORMATS), "dcp": draw(st.sampled_from([1, 1, 2])),
    }  # fmt: skip


def kinds_of(layers: list[Plain], case: Plain, fp32_state: bool = False) -> list[Kind]:
    """Layers alike to an engine, in order of first appearance; drafts join the last full kind."""
    found: list[Kind] = []
    gpus, fmt = case["gpus"], case["fmt"]
    for x in layers:
        a = x["attention"]
        if x["state"]:
            extra = case["draft_tokens"]  # columns of a state, or (llama.cpp) whole states in fp32
            grown = [
                {**s, "bytes_per_copy": s["bytes_per_copy"] * (1 + extra)
                 * (2 if s["bytes_per_draft_token"] else 1) if fp32_state
                 else s["bytes_per_copy"] + extra * s["bytes_per_draft_token"]} for s in x["state"]
            ]  # fmt: skip
            held = cache_count.fixed_bytes(grown, gpus) or 0
            found.append(
                Kind("state", x["count"], Fraction(0), Fraction(0), pool_count.INFINITE, held)
            )
        if a and not x["reuses_cache"]:
            keeps = "cross" if x["cached_over"] == "encoder" else x.get("window_kind") or "full"
            index = cache_count.fixed_bytes(x["index"], gpus) or 0
            rows = [cache_count.layer_row(a, fmt, gpus, p) + index for p in (False, True)]
            window = x["window_tokens"] or pool_count.INFINITE
            found.append(Kind(keeps, x["count"], rows[0], rows[1], window, 0))
    kinds: list[Kind] = []
    for kind in found:  # an engine sees the rows that it stores, not what they carry
        alike = [i for i, k in enumerate(kinds) if k._replace(count=0, payload=Fraction(0))
                 == kind._replace(count=0, payload=Fraction(0))]  # fmt: skip
        if not alike:
            kinds.append(kind)
            continue
        k = kinds[alike[0]]
        n = k.count + kind.count
        carried = (k.count * k.payload + kind.count * kind.payload) / n
        kinds[alike[0]] = k._replace(count=n, payload=carried)
    full = [i for i, kind in enumerate(kinds) if kind.keeps == "full"]
    if full and case["draft_layers"]:
        last = kinds[full[-1]]
        kinds[full[-1]] = last._replace(count=last.count + case["draft_layers"])
    return kinds


def ours(plain: Plain, case: Plain, engine: str, dcp: int = 1) -> Pool | None:
    settings = EngineSettings(
        context_tokens=case["tokens"], kv_dtype=case["fmt"], page_tokens=case["page"],
        max_batched_tokens=case["batched"], draft_layers=case["draft_layers"],
        draft_tokens=case["draft_tokens"], prefix_cache=case["prefix"], encoder_tokens=case["encoder"],
    )  # fmt: skip
    try:
        return pool_of(
            spec_of(plain), (case["budget"],), settings, engine=engine_named(engine),
            parallel=Parallelism(tp_size=case["gpus"], dcp_size=dcp),
        )  # fmt: skip
    except PlacementError:
        return None


def same(engine: str, got: Pool | None, expected: pool_count.Answer | None, *about: Any) -> None:
    agree(f"{engine} refusals", got is None, expected is None, *about)
    if got is None or expected is None:
        return
    shown = (got.n_blocks, got.kv_tokens, got.max_concurrency, got.max_sequences, got.waste_share)
    agree(f"{engine} pool", shown, tuple(expected[:5]), *about)
    lengths = np.array([1, 15, 16, 17, 1000, 20_001])
    blocks = [expected.blocks_of(int(n)) for n in lengths]
    agree(f"{engine} blocks of lengths", got.blocks_of(lengths).tolist(), blocks, *about)


def payload_agrees(got: Pool, kinds: list[Kind], case: Plain, dcp: int = 1) -> None:
    used = [pool_count.used(kinds, n, case["encoder"] or 0) for n in (1, 900, 20_001)]
    rows = got.payload_of(np.array([1, 900, 20_001])).tolist()
    if dcp == 1:
        agree("payload of lengths", rows, [-(-n // 1) for n in used], case)


def shares_tokens(layers: list[Plain], kinds: list[Kind], gpus: int, dcp: int) -> bool:
    """V15: only full layers, on GPUs that would hold the same heads."""
    if any(kind.keeps != "full" for kind in kinds):
        return False
    dealt = (heads_dealt(layer["attention"]) for layer in layers if layer["attention"])
    return all(gpus >= n * dcp and gpus // n % dcp == 0 for n in dealt)


def heads_dealt(attention: Plain) -> int:
    """Rows of a token that are dealt out: key/value heads, every head of LRKV, one of MLA."""
    family = attention["family"]
    if family == "mla":
        return 1
    if family == "lrkv":
        return int(attention["n_heads"])
    return int(attention.get("n_kv_heads", 1 if family == "mqa" else attention["n_heads"]))


VERSIONS = st.sampled_from([(0, 10), (0, 19), (0, 21), (0, 25), (0, 26), (0, 29)])


@examples(150)
@given(MODELS, told(), VERSIONS)
def test_vllm_pools_agree(plain: Plain, case: Plain, version: tuple[int, int]) -> None:
    dcp = case["dcp"] if case["gpus"] % case["dcp"] == 0 else 1
    if refused(plain["layers"], case["gpus"]):
        return
    kinds = kinds_of(plain["layers"], case)
    if not kinds:
        return
    encoder = case["encoder"] or 0
    page = case["page"] or 16
    rule = {**case, "dcp": dcp, "version": version}
    if dcp > 1 and not shares_tokens(plain["layers"], kinds, case["gpus"], dcp):
        assert ours(plain, case, f"vllm@{version[0]}.{version[1]}", dcp) is None
        return
    expected = pool_count.vllm(kinds, case["budget"], page, case["tokens"], encoder, rule)
    got = ours(plain, case, f"vllm@{version[0]}.{version[1]}", dcp)
    same("vllm", got, expected, plain, case, version)
    if got is not None:
        payload_agrees(got, kinds, case, dcp)


@examples(100)
@given(MODELS, told())
def test_paged_pools_agree(plain: Plain, case: Plain) -> None:
    if refused(plain["layers"], case["gpus"]):
        return
    kinds = kinds_of(plain["layers"], case)
    if not sum(kind.row for kind in kinds if kind.keeps != "cross"):
        return
    page, encoder = case["page"] or 16, case["encoder"] or 0
    expected = pool_count.paged(kinds, case["budget"], page, case["tokens"], encoder)
    got = ours(plain, case, "paged")
    same("paged", got, expected, plain, case)
    assert got is not None
    payload_agrees(got, kinds, case)


@examples(100)
@given(
    models(),
    told(),
    st.sampled_from(["tensorrt_llm@0.20", "tensorrt_llm@1.2", "sglang@0.5.9", "vllm@0.6.3"]),
)
def test_pools_of_equal_blocks_agree(plain: Plain, case: Plain, engine: str) -> None:
    if refused(plain["layers"], case["gpus"]):
        return
    kinds = kinds_of(plain["layers"], case)
    context = [kind for kind in kinds if kind.keeps not in ("cross", "state")]
    if not context or any(kind.keeps in ("state", "cross") for kind in kinds):
        return  # refused, or a pool beside this one
    name = engine.split("@")[0]
    latent = any(x["attention"] and x["attention"]["family"] == "mla" for x in plain["layers"])
    if name == "vllm":
        if latent:
            return  # V0 pads and refuses latents by version: tested on its own cases
        kinds = [kind._replace(keeps="full", window=pool_count.INFINITE) for kind in kinds]
    page = case["page"] or {"sglang": 1, "vllm": 16}.get(
        name, 32 if engine.endswith("@1.2") else 64
    )
    per_token = pool_count.rate(kinds)
    if name == "sglang":  # windows have a pool of 0.8 of the tokens
        smaller = [kind for kind in kinds if kind.keeps == "sliding"]
        per_token -= pool_count.rate(smaller) / 5
    last = ceil if name == "tensorrt_llm" else floor
    expected = pool_count.equal(kinds, case["budget"], page, per_token, case["tokens"], last)
    same(name, ours(plain, case, engine), expected, plain, case, engine)


@examples(60)
@given(MODELS, told())
def test_llama_cpp_pools_agree(plain: Plain, case: Plain) -> None:
    case = {**case, "gpus": 1}
    kinds = kinds_of(plain["layers"], case, fp32_state=True)
    if not sum(kind.row for kind in kinds if kind.keeps != "cross"):
        return
    micro = min(case["batched"], 512)
    encoder = case["encoder"] or 0
    n, one = pool_count.llama_cpp(kinds, case["budget"], case["tokens"], encoder, micro)
    got = ours(plain, case, "llama_cpp")
    assert got is not None
    if n < 3000:
        agree(
            "llama_cpp pool",
            (got.max_sequences, got.kv_tokens),
            (n, n * case["tokens"]),
            plain,
            case,
        )
    agree("llama_cpp cells", got.blocks_of(case["tokens"]), one, plain, case)


@examples(150)
@given(
    st.lists(st.integers(1, 10**5), min_size=1, max_size=40), st.integers(0, 30_000),
    st.integers(1, 64), st.integers(1, 9), st.integers(0, 3),
)  # fmt: skip
def test_populations_agree(lengths: list[int], pool: int, page: int, row: int, extra: int) -> None:
    got = account_population(
        np.array(lengths), blocks_of=lambda n: -(-n // page) + extra, n_blocks=pool,
        block_bytes=page * row, payload_bytes_of=lambda n: n * row,
    )  # fmt: skip
    expected = population_count.account(
        lengths, pool, page * row, lambda n: (n + page - 1) // page + extra, lambda n: n * row
    )
    agree("population", vars(got), expected, lengths, pool)
