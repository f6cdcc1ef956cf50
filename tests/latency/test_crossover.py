"""Crossovers against a brute-force scan of the step model, and step-time properties."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.errors import UsageError
from lrkv_plan.latency import crossover
from lrkv_plan.latency.crossover import (
    Crossing,
    Crossover,
    compare,
    context_breakpoints,
    context_crossover,
    describe,
    lead_range,
    places_to_show,
    scan,
    scanned_crossover,
    sign_changes,
    surely_faster,
)
from lrkv_plan.latency.experts import ExpertModel
from lrkv_plan.latency.kernel import KernelModel, ShortCalls
from lrkv_plan.latency.step import StepModel, step_model, step_time, touched
from lrkv_plan.latency.weights_pass import ExpertWork
from lrkv_plan.latency.work import AttentionWork
from lrkv_plan.loader import load_hardware, load_model, load_relatives
from lrkv_plan.specs.deployment import EngineName
from lrkv_plan.specs.design import swap_attention, typed_designs
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import SOURCE
from tests.drawing import drawn
from tests.hand_steps import hand_step

N_CASES = 1_000


def layer(**changes: object) -> AttentionWork:
    told = {
        "path": "grouped", "kernel": "grouped", "layers": 10, "n_heads": 8,
        "row_read_bytes": 1000.0, "token_write_bytes": 1000.0, "row_flops": 2000.0, **changes,
    }  # fmt: skip
    return AttentionWork(**told)  # type: ignore[arg-type]


def model(
    *layers: AttentionWork,
    t0_s: float = 5e-6,
    bytes_per_s: float = 3e12,
    flops_per_s: float = 5e14,
    dense_bytes: float = 1e10,
    expert_bytes: float = 0.0,
    short: ShortCalls | None = None,
) -> StepModel:
    kernel = KernelModel(
        t0_s=t0_s, bytes_per_s=bytes_per_s, flops_per_s=flops_per_s, band90=(0.9, 1.2),
        basis="measured", kernel="grouped", kv_dtype="bf16", short=short,
    )  # fmt: skip
    experts = ExpertWork(
        n_experts=10, experts_per_token=1, model_dim=100, width=100,
        bytes_per_expert=expert_bytes / 10, ep_size=1, format_name="bf16", layers=1,
    )  # fmt: skip
    constants = ExpertModel(
        engine="hand", band90=(0.9, 1.1), basis="measured", t0_s=0.0, bytes_per_s=bytes_per_s,
        flops_per_s=flops_per_s, expert_s=0.0, bits_per_weight=16, hot_bytes_per_s=bytes_per_s,
    )  # fmt: skip
    return hand_step(
        layers, (kernel,) * len(layers), weight_bytes=dense_bytes, inputs=100, outputs=100,
        bytes_per_s=bytes_per_s, flops_per_s=flops_per_s,
        experts=[(experts, constants)] if expert_bytes else (),
    )  # fmt: skip


def random_model(chance: random.Random) -> StepModel:
    layers = tuple(
        layer(
            layers=chance.randint(1, 40),
            row_read_bytes=chance.uniform(10, 5000),
            token_write_bytes=chance.choice([0.0, chance.uniform(0, 2e6)]),
            fixed_bytes=chance.choice([0.0, chance.uniform(0, 5e6)]),
            row_flops=chance.uniform(10, 2e6),
            expand_row_flops=chance.choice([0.0, chance.uniform(0, 1e6)]),
            window_tokens=chance.choice([None, None, chance.randint(1, 4000)]),
            index_row_bytes=chance.choice([0.0, chance.uniform(10, 5000)]),
        )
        for _ in range(chance.randint(1, 3))
    )
    t0_s = chance.uniform(0, 3e-5)
    short = ShortCalls(
        t0_s=t0_s * chance.random(), bytes_per_s=3e12 / chance.uniform(1.1, 4),
        work_unit_s=chance.choice([0.0, 1e-9]),
    )  # fmt: skip
    return model(
        *layers, t0_s=t0_s, dense_bytes=chance.uniform(1e9, 1.001e9),
        short=chance.choice([None, short]),
    )  # fmt: skip


def test_crossovers_agree_with_a_scan_of_every_context() -> None:
    chance = random.Random(20_261_130)
    n_with_crossing = 0
    for _ in range(N_CASES):
        pair = random_model(chance), random_model(chance)
        batch, query = chance.choice([1, 8, 200]), chance.choice([1, 4])
        high = chance.randint(100, 6000)

        def times(place, pair=pair, batch=batch, query=query):  # type: ignore[no-untyped-def]
            one, other = (step_time(m, place, batch, query) for m in pair)
            return one.step_s, other.step_s

        found = sign_changes(times, 1, high, context_breakpoints(pair, batch, query))
        assert found == scan(times, np.arange(1, high + 1)), (pair, batch, query, high)
        n_with_crossing += bool(found[1])
    assert n_with_crossing > N_CASES // 10, "the cases must cover crossings"


GPUS = ("h200", "b200", "h100-sxm", "a100-sxm-80gb", "l40s", "mi300x")


@functools.cache
def gpu_and_kin(name: str) -> tuple[HardwareProfile, tuple[HardwareProfile, ...]]:
    gpu = load_hardware(name)
    return gpu, tuple(load_relatives([gpu]))


def small_sparse() -> ModelSpec:
    """Two sparse layers and a full one, so that attention is not lost among weights."""
    latent = {"family": "mla", "n_heads": 16, "latent_dim": 512, "rope_dim": 64, "nope_dim": 128,
              "v_head_dim": 128}  # fmt: skip
    block = {"kind": "dense", "hidden_dim": 512, "gated": True}
    index = [{"name": "index_key", "bytes_per_copy": 132, "sharding": "replicated"}]
    layers = [
        {"count": 2, "attention": latent, "index": index, "feed_forward": block},
        {"count": 1, "attention": latent, "feed_forward": block},
    ]
    told = {"name": "small", "source": SOURCE, "model_dim": 512, "vocab_size": 1024}
    norms = {"per_mixer": 1, "per_feed_forward": 1}
    return ModelSpec.model_validate(
        {**told, "norms": norms, "tied_embeddings": True, "layers": layers}
    )


SPARSE = {"deepseek-v3.2": load_model("deepseek-v3.2"), "glm-5": load_model("glm-5"),
          "small": small_sparse()}  # fmt: skip


def selecting(model: ModelSpec, most: int | None, has_index: bool) -> ModelSpec:
    """The model whose sparse layers select so many rows, by their own index or another's."""
    layers = tuple(
        group.model_copy(
            update={"selected_tokens": most, "index": group.index if has_index else ()}
        )
        if group.index else group
        for group in model.layers
    )  # fmt: skip
    return model.model_copy(update={"layers": layers})


@st.composite
def sparse_steps(draw: st.DrawFn) -> tuple[StepModel, StepModel]:
    """Two designs of one backbone, at least one of them sparse, on one shipped GPU."""
    base = SPARSE[draw(st.sampled_from(sorted(SPARSE)))]
    (gpu, kin), tp_size = gpu_and_kin(draw(st.sampled_from(GPUS))), draw(st.sampled_from([1, 8]))
    kv_dtype = draw(st.sampled_from(["bf16", "fp8", "fp8_ds_mla"]))
    engine = EngineName(name=draw(st.sampled_from(["vllm", "sglang", "tensorrt_llm"])))
    most = st.one_of(st.integers(100, 4096), st.sampled_from([512, 2048]))
    sparse = st.builds(selecting, st.just(base), most, st.booleans())
    texts = ["gqa:8", "mqa", "lrkv:16", "lrkv:8,position=rope_expand", "mla:128+64", "mla:512+64"]
    full = st.sampled_from(texts).map(lambda text: swap_attention(base, text))
    unknown = st.just(selecting(base, None, True))
    one, other = (
        step_model(
            design, gpu, kv_dtype=kv_dtype, weight_dtype="fp8_block", tp_size=tp_size,
            engine=engine, relatives=kin,
        )
        for design in (draw(sparse), draw(st.one_of(sparse, sparse, full, unknown)))
    )  # fmt: skip
    return (other, one) if draw(st.booleans()) else (one, other)


@settings(max_examples=drawn(150))
@given(sparse_steps(), st.sampled_from([1, 4, 32, 200]), st.sampled_from([1, 1, 3]))
def test_crossovers_of_sparse_layers_agree_with_a_scan(
    pair: tuple[StepModel, StepModel], batch: int, query: int
) -> None:
    found = context_crossover(pair, high=20_000, batch_size=batch, query_tokens=query)
    scanned = scanned_crossover(
        lambda at: tuple(step_time(m, at, batch, query) for m in pair),  # type: ignore[arg-type,return-value]
        np.arange(1, 20_001),
    )
    assert found == scanned  # bands and what they decide as well


def test_beyond_its_selection_a_layer_reads_only_index_keys() -> None:
    # 1,000 B a row up to 2,000 rows and 100 B a key, against 600 B a row: equal at 4,000 tokens,
    # where 2,000 x 1,000 + 4,000 x 100 B = 4,000 x 600 B.
    alone = {"layers": 1, "token_write_bytes": 0.0, "row_flops": 0.0}
    sparse = model(layer(**alone, window_tokens=2000, index_row_bytes=100.0), bytes_per_s=1e9)
    full = model(layer(**alone, row_read_bytes=600.0), bytes_per_s=1e9)
    found = context_crossover((sparse, full), high=10**6)
    assert (found.faster_first, [c.at for c in found.crossings]) == (1, [4001])


def test_the_ridge_of_a_full_selection_is_a_bend() -> None:
    # 100 rows of 2e6 FLOPs take 200 us at 1e12 a second, 2 us each below; their bytes and those of
    # T keys take 100 + 0.1 T us at 1e9 B/s, longer from T = 1,000 on. The other takes
    # 155 + 0.05 T us: less than 2 T from 79.5 on, more than 200 from 900 on, and less than
    # 100 + 0.1 T from 1,100 on.
    told = {"layers": 1, "token_write_bytes": 0.0, "window_tokens": 100, "index_row_bytes": 100.0}
    rates = {"bytes_per_s": 1e9, "flops_per_s": 1e12, "dense_bytes": 0.0}
    sparse = model(layer(**told, row_read_bytes=1000.0, row_flops=2e6), t0_s=0.0, **rates)
    alone = layer(layers=1, token_write_bytes=0.0, row_read_bytes=50.0, row_flops=0.0)
    other = model(alone, t0_s=155e-6, **rates)
    found = context_crossover((sparse, other), high=10**6)
    assert [c.at for c in found.crossings] == pytest.approx([80, 901, 1101], abs=1)
    assert [c.faster_after for c in found.crossings] == [1, 0, 1]


def test_a_crossing_by_hand() -> None:
    # First: 10 layers, 1,000 B a row, no fixed cost. Second: 500 B a row and 1 ms more of weights.
    first = model(layer(token_write_bytes=0.0, row_flops=1.0), dense_bytes=0.0)
    second = model(
        layer(row_read_bytes=500.0, token_write_bytes=0.0, row_flops=1.0), dense_bytes=1e-3 * 3e12
    )
    # The second gains 10 * 500 B * T / 3e12 = 1.667e-9 s a token: 1 ms after 600,000. The matrix of
    # both also moves 400 B and multiplies 20,000 FLOPs, 0.17 ns.
    found = context_crossover((first, second), high=10**7)
    assert found.faster_first == 0
    (crossing,) = found.crossings
    assert crossing.at == pytest.approx(600_000, rel=1e-6)
    assert (crossing.faster_before, crossing.faster_after) == (0, 1)
    assert crossing.earliest is not None
    assert crossing.earliest < crossing.at
    assert crossing.latest is None or crossing.latest > crossing.at
    assert "second from" in describe(found, ["first", "second"], "tokens")


def test_never_and_always_are_answers() -> None:
    same = model(layer())
    never = context_crossover((same, same), high=1000)
    assert (never.faster_first, never.crossings) == (None, ())
    assert describe(never, ["a", "b"], "tokens").startswith("never")
    better = model(layer(row_read_bytes=500.0))
    always = context_crossover((same, better), high=1000)
    assert (always.faster_first, always.crossings) == (1, ())
    assert describe(always, ["a", "b"], "tokens") == "always b, from 1 to 1,000 tokens"
    with pytest.raises(UsageError, match="empty"):
        context_crossover((same, better), low=10, high=9)


def test_any_variable_can_be_scanned() -> None:
    # Along the batch: the second has half the rows' bytes but 20 us more per layer.
    first = model(layer(token_write_bytes=0.0))
    second = model(layer(row_read_bytes=500.0, token_write_bytes=0.0), t0_s=25e-6)
    found = scanned_crossover(
        lambda batch: (step_time(first, 8192, batch), step_time(second, 8192, batch)),
        np.arange(1, 513),
    )
    # 500 B * 8,192 B / 3e12 > 20 us from B = 14.65 on
    assert [(c.at, c.faster_after) for c in found.crossings] == [(15, 1)]


@given(
    st.lists(st.sampled_from([-1, 0, 0, 1, 1]), min_size=1, max_size=40), st.integers(1, 9)
)  # fmt: skip
def test_a_scan_in_chunks_is_the_scan_of_all(signs: list[int], chunk: int) -> None:
    first = np.array([10.0 + sign for sign in signs])
    values = np.arange(5, 5 + len(signs))

    def times(at: np.ndarray) -> tuple[np.ndarray, float]:
        return first[at - 5], 10.0

    whole = scan(times, values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossover, "SCAN_CHUNK", chunk)
        assert scan(times, values) == whole
    leaders = [None if s == 0 else int(s > 0) for s in signs]
    expected, current = [], leaders[0]
    for at, leader in zip(range(6, 5 + len(signs)), leaders[1:], strict=True):
        if leader is not None and leader != current:
            expected += [] if current is None else [(at, leader)]
            current = leader
    assert whole == (leaders[0], expected)


def test_a_scan_holds_a_chunk_of_times_and_no_more() -> None:
    asked: list[int] = []

    def times(at: np.ndarray) -> tuple[np.ndarray, float]:
        asked.append(at.size)
        return 1.0 * at, 3e5

    assert scan(times, np.arange(1, 2**20 + 1)) == (0, [(300_001, 1)])
    assert max(asked) == crossover.SCAN_CHUNK
    assert sum(asked) == 2**20


RATES = st.floats(1e11, 1e13)


def with_short(row: float, flops: float, bandwidth: float, peak: float) -> StepModel:
    """One design whose short calls start in a fifth of the time."""
    hot = ShortCalls(t0_s=1e-6, bytes_per_s=bandwidth / 1.25, work_unit_s=1e-9)  # L2 at 4 times
    return model(
        layer(row_read_bytes=row, row_flops=flops), bytes_per_s=bandwidth, flops_per_s=peak,
        expert_bytes=1e9, short=hot,
    )  # fmt: skip


@given(
    st.floats(1, 1e5), st.floats(1, 1e6), st.integers(1, 10**6), st.integers(1, 512), RATES,
    st.floats(1e13, 1e15), st.floats(1.0, 4.0),
)  # fmt: skip
def test_more_bandwidth_fewer_bytes_or_more_compute_never_slow_a_step(
    row: float, flops: float, context: int, batch: int, bandwidth: float, peak: float, factor: float
) -> None:
    base = with_short(row, flops, bandwidth, peak)
    slow = step_time(base, context, batch)
    better = [
        with_short(row, flops, bandwidth * factor, peak),
        with_short(row, flops, bandwidth, peak * factor),
        with_short(row / factor, flops, bandwidth, peak),
        with_short(row, flops / factor, bandwidth, peak),
    ]
    for one in better:
        fast = step_time(one, context, batch)
        assert fast.step_s <= slow.step_s * (1 + 1e-12)
        assert fast.overlap_s <= slow.overlap_s * (1 + 1e-12)
    assert slow.overlap_s <= slow.step_s
    assert slow.low_s <= slow.step_s <= slow.high_s
    resources = (
        slow.attention_memory_s + slow.linear_memory_s,
        slow.attention_compute_s + slow.linear_compute_s,
    )
    parts = slow.step_s - slow.overhead_s - 10 * base.kernels[0].t0_s - slow.all_reduce_s
    assert parts <= sum(resources) * (1 + 1e-9)
    assert parts <= 2 * slow.overlap_s * (1 + 1e-9)


def test_at_the_ridge_both_bounds_agree() -> None:
    # 1,000 B against 3e12 B/s and F FLOPs against 5e14: F = 1,000 * 5e14 / 3e12.
    ridge = model(layer(row_flops=1000 * 5e14 / 3e12, token_write_bytes=0.0))
    step = step_time(ridge, 8192, 4)
    assert step.attention_memory_s == pytest.approx(step.attention_compute_s, rel=1e-12)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(1, 300))
def test_scalars_and_arrays_agree(contexts: list[int], batch: int) -> None:
    hybrid = model(layer(), layer(window_tokens=1024, layers=30), expert_bytes=1e10)
    together = step_time(hybrid, np.array(contexts), batch)
    for index, context in enumerate(contexts):
        alone = step_time(hybrid, context, batch)
        assert together.step_s[index] == pytest.approx(alone.step_s, rel=1e-12)  # type: ignore[index]
        assert together.high_s[index] == pytest.approx(alone.high_s, rel=1e-12)  # type: ignore[index]


def test_a_step_that_no_context_changes_keeps_the_shape_of_an_array() -> None:
    # Cross-attention scans the encoder's rows and a model without attention nothing, whatever T.
    for one in (model(layer(fixed_rows=150)), model()):
        together = step_time(one, np.array([1, 8192]), 2)
        alone = step_time(one, 8192, 2)
        assert together.step_s.tolist() == [alone.step_s, alone.step_s]  # type: ignore[union-attr]
        assert together.attention_s.shape == (2,)  # type: ignore[union-attr]


def test_experts_are_read_as_far_as_they_are_touched() -> None:
    whole = model(layer(), dense_bytes=0.0, expert_bytes=1e10)
    (work,) = whole.work.linear.experts
    assert touched(work, 1) == pytest.approx(1.0)  # one of ten
    assert touched(work, 2) == pytest.approx(10 * (1 - 0.9**2**0.9))  # 2^0.9 evenly routed ones
    assert touched(work, 10_000) == pytest.approx(10.0)
    # 1 GB of one expert; rows of activations move 2 (2 * 100 + 3 * 100) B and 60,000 FLOPs
    step = step_time(whole, 1, 1)
    assert step.experts_s == pytest.approx((1e9 + 1000) / 3e12, rel=1e-9)
    assert step_time(whole, 1, 10_000).experts_s == pytest.approx(1e10 / 3e12, rel=1e-2)


def test_the_fullest_rank_of_experts_decides() -> None:
    # 10 experts on 5 GPUs, 2 each: 10^0.9 tokens touch 5.67, 1.13 a GPU, of the fullest
    # 1.13 + sqrt(2 * 1.13 * (1 - 1.13 / 2) * ln 5) = 2.39, of which it holds 2
    work = replace(model(layer(), expert_bytes=1e10).work.linear.experts[0], ep_size=5)
    assert touched(work, 10) == 2
    # one token touches one, 0.2 a GPU: 0.2 + sqrt(0.4 * 0.9 * ln 5) = 0.961
    assert touched(work, 1) == pytest.approx(0.2 + (0.36 * math.log(5)) ** 0.5)


def test_a_band_contains_its_prediction() -> None:
    step = step_time(replace(model(layer())), 8192, 8)
    assert step.attention_low_s == pytest.approx(0.9 * step.attention_s)  # type: ignore[operator]
    assert step.attention_high_s == pytest.approx(1.2 * step.attention_s)  # type: ignore[operator]


def straight(t0_s: float, row_bytes: float) -> StepModel:
    """One layer: ``t0_s`` and a byte a nanosecond, with a band of a tenth to either side."""
    alone = layer(layers=1, row_read_bytes=row_bytes, token_write_bytes=0.0, row_flops=0.0)
    whole = model(alone, t0_s=t0_s, bytes_per_s=1e9)
    return replace(whole, kernels=(replace(whole.kernels[0], band90=(0.9, 1.1)),))


STEEP, FLAT = straight(0.0, 1000.0), straight(1e-3, 500.0)  # 1 us a token; 1 ms + 0.5 us a token


def test_decided_is_where_no_band_lets_the_other_lead() -> None:
    # equal at 2,000; the flat one at its best from 0.9e-3 / 0.65e-6, at its worst 1.1e-3 / 0.35e-6
    found = context_crossover((STEEP, FLAT), high=10_000)
    (crossing,) = found.crossings
    assert (crossing.at, crossing.earliest, crossing.latest) == (2001, 1385, 3143)
    assert [(one.low, one.high, one.faster) for one in found.decided] == [
        (1, 1384, 0), (3143, 10_000, 1),
    ]  # fmt: skip


def test_nothing_is_decided_where_the_bands_overlap_everywhere() -> None:
    found = context_crossover((straight(0.0, 1000.0), straight(0.0, 900.0)), high=10_000)
    assert (found.faster_first, found.crossings, found.decided) == (1, (), ())


def test_a_design_surely_leads_only_beyond_both_bands() -> None:
    steps = {at: [step_time(one, at, 1) for one in (STEEP, FLAT)] for at in (1000, 2500, 4000)}
    sure = [surely_faster(*pair) for pair in steps.values()]
    assert sure == [0, None, 1]
    # at 4,000: 4.0 against 3.0 ms; 0.9 x 4 - 1.1 x 3 and 1.1 x 4 - 0.9 x 3
    assert lead_range(*steps[4000]) == pytest.approx((0.3e-3, 1.7e-3))


@pytest.mark.parametrize(
    ("over", "most"), [("context_tokens", 40_000), ("batch_size", 300), ("query_tokens", 40)]
)
def test_leads_agree_with_a_scan_of_every_value(over: str, most: int) -> None:
    point = {"context_tokens": 3000, "batch_size": 4, "query_tokens": 1, "tp_size": 1}
    found = compare(
        typed_designs(load_model("gpt-oss-20b"), ("gqa:8", "mla:512+64")), load_hardware("h200"),
        over=over, point=point, at_most=most,
    )  # fmt: skip
    models = found.points[0].models
    values = np.arange(1, most + 1)
    told = {**point, over: values}
    first, second = (
        step_time(one, told["context_tokens"], told["batch_size"], told["query_tokens"]).step_s
        for one in models
    )
    lead = np.broadcast_to(first - second, values.shape)
    assert found.leads
    for one in found.leads:
        span = lead[one.low - 1 : one.high] * (1 if one.faster else -1)
        assert one.least_s == pytest.approx(span.min(), rel=1e-9, abs=1e-15)
        assert one.most_s == pytest.approx(span.max(), rel=1e-9)
    for shown in found.points:
        assert shown.lead_s == pytest.approx(lead[shown.place - 1], rel=1e-9, abs=1e-15)


def at(*places: int, low: int = 1, high: int = 131_072) -> Crossover:
    crossings = tuple(
        Crossing(at=place, faster_before=0, faster_after=1, earliest=None, latest=None)
        for place in places
    )
    return Crossover(low=low, high=high, faster_first=0, crossings=crossings)


@pytest.mark.parametrize(
    ("found", "values", "start", "shown"),
    [
        (at(14_874), None, 1024, [1024, 2048, 4096, 8192, 14_874, 32_768, 65_536, 131_072]),
        (at(300), None, 1024, [1, 4, 32, 300, 2048, 16_384, 131_072]),
        (at(low=0, high=128), range(0, 129, 2), 0, [0, 2, 4, 8, 16, 32, 64, 128]),
        (at(5, high=40), [1, 2, 5, 10, 40], 0, [1, 2, 5, 10, 40]),
        (at(high=100_000), None, 1024, [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 100_000]),
        (at(high=1), None, 1024, [1]),
    ],
)
def test_places_to_show(
    found: Crossover, values: list[int] | None, start: int, shown: list[int]
) -> None:
    every = range(found.low, found.high + 1) if values is None else values
    assert places_to_show(found, every, start) == shown


def test_designs_that_are_equal_at_first_have_a_lead_all_the_same() -> None:
    found = Crossover(low=1, high=9, faster_first=None, crossings=())
    (lead,) = crossover._leads(found, lambda place: max(0, int(place) - 3), [1, 3, 9])
    assert (lead.faster, lead.least_s, lead.most_s) == (1, 0, 6)
