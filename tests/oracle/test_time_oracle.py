"""Step times and crossings against the published form, evaluated exactly and scanned linearly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.latency.crossover import (
    Crossover,
    compare,
    context_crossover,
    scanned_crossover,
)
from lrkv_plan.latency.engine_step import EngineStep, engine_step
from lrkv_plan.latency.experts import ExpertModel
from lrkv_plan.latency.kernel import FORMS, KernelModel, ShortCalls, kernel_time
from lrkv_plan.latency.small_kernels import small_kernel_models
from lrkv_plan.latency.step import StepModel, matrix_term, step_model, step_time
from lrkv_plan.latency.weights_pass import ExpertWork, MatrixWork, WeightsPass, weights_pass
from lrkv_plan.latency.work import (
    AttentionWork,
    StepWork,
    attention_work,
    paths_of,
    recurrent_work,
)
from lrkv_plan.memory.arithmetic import arithmetic_ratio_to_mha, attention_multiply_adds
from lrkv_plan.specs.deployment import EngineName, Parallelism
from lrkv_plan.specs.design import swap_attention, typed_designs
from lrkv_plan.specs.hardware import HardwareProfile
from tests.conftest import SOURCE
from tests.hand_steps import matrix_model
from tests.oracle import cache_count, pass_count, stage_weights, time_count, weight_count
from tests.oracle.comparing import COMPARED, agree, spec_of
from tests.oracle.draws import GPUS, KV_FORMATS, examples, layouts, models
from tests.oracle.test_cache_oracle import as_mha, refused

Plain = dict[str, Any]
REL = 1e-12
BANDWIDTH, PEAK, LINK = 3.0e12, 1.0e15, 4.0e11
# What is stated where nothing was measured: t0, shares of bandwidth and peak; all-reduce's own.
DATASHEET = {"t0_s": 15e-6, "bytes_per_s": 0.85 * BANDWIDTH, "flops_per_s": 0.6 * PEAK,
             "work_unit_s": 0.0}  # fmt: skip
REDUCING = {"t0_s": 6e-6, "link_bytes_per_s": 0.75 * LINK, "two_shot_s": None}
FP8_PEAK = 2 * PEAK
# Typical matrices by operand: t0 [us], shares of bandwidth and peak, peak, walk [ns per input].
_WEIGHT_ONLY = (16, 0.92, 0.75, PEAK, 1.2)
TYPICAL = {
    "bf16": (4, 0.83, 0.83, PEAK, 0.15), "fp32": (4, 0.83, 0.83, PEAK, 0.15),
    "fp8": (6, 0.80, 0.63, FP8_PEAK, 0.75), "sq": (6, 0.80, 0.63, FP8_PEAK, 0.75),
    "fp8_block": (7, 0.87, 0.62, FP8_PEAK, 1.0), "nvfp4": (5, 0.77, 0.45, FP8_PEAK, 0.7),
    "mxfp4": (5, 0.77, 0.45, PEAK, 0.7), "int4_wo": _WEIGHT_ONLY,
}  # fmt: skip
# Typical constants of all operations but attention and messages.
WITHOUT_TABLES: Plain = {
    "of_matrices": {
        name: {"t0_s": t0 * 1e-6, "bytes_per_s": beta * BANDWIDTH, "flops_per_s": phi * peak,
               "tau_s_per_element": walk * 1e-9}
        for name, (t0, beta, phi, peak, walk) in TYPICAL.items()
    },
    "of_products": {"t0_s": 4.3e-6, "head_s": 1.1e-8 * 3.35e12 / BANDWIDTH, "token_scale": 40.0},
    "of_experts": {
        name: {"t0_s": 27e-6, "bytes_per_s": 0.89 * BANDWIDTH, "flops_per_s": 0.18 * peak,
               "expert_s": 0.0}
        for name, (*_, peak, _) in TYPICAL.items()
    },
    "of_small": {name: (kind.t0_s, kind.width_s, kind.scalar_s)
                 for name, kind in small_kernel_models().items()},
}  # fmt: skip


def engine_of(name: str) -> Plain:
    """The fitted constants of an engine, under the oracle's names."""
    told = engine_step(EngineName(name=name))
    return {
        "step": told.step_s, "each": told.sequence_s, "exchange": told.exchange_s,
        "index": told.index_layer_s, "overlap": told.overlap_s,
    }  # fmt: skip


GPU = HardwareProfile.model_validate(
    {
        "name": "drawn", "title": "drawn", "vendor": "generic", "generation": "none",
        "mem_capacity_bytes": 80 * 10**9, "mem_bandwidth_bytes_per_s": BANDWIDTH,
        "peak_flops_per_s": {"bf16": PEAK, "fp8": FP8_PEAK}, "source": SOURCE,
        "link": {"name": "wire", "bandwidth_bytes_per_s": LINK},
    }
)  # fmt: skip


def close(subject: str, ours: Any, oracle: Any, *about: Any) -> None:
    COMPARED[subject] += 1
    assert ours == pytest.approx(float(oracle), rel=REL, abs=0), (
        subject,
        ours,
        float(oracle),
        *about,
    )


CONSTANTS = st.fixed_dictionaries(
    {
        "t0_s": st.floats(0, 1e-4), "bytes_per_s": st.floats(1e11, 1e13),
        "flops_per_s": st.floats(1e13, 1e16), "work_unit_s": st.floats(1e-12, 1e-6),
        "full_work_units": st.floats(1, 500),
    }
)  # fmt: skip


# A start below the cold one, and both traffics one after the other.
SHORT = st.fixed_dictionaries(
    {"t0_s": st.floats(0, 1e-5), "bytes_per_s": st.floats(5e10, 5e12),
     "work_unit_s": st.sampled_from([0.0, 1e-9])}
)  # fmt: skip


def kernel_of(form: str, constants: dict[str, Any], kernel: str = "grouped") -> KernelModel:
    short = constants.get("short")
    told = {**constants, "short": None if short is None else ShortCalls(**short)}
    return KernelModel(
        **told, form=form, band90=(0.9, 1.2), basis="measured", kernel=kernel, kv_dtype="bf16"
    )


@examples(150)
@given(
    st.sampled_from(FORMS), CONSTANTS, st.integers(0, 10**12), st.integers(0, 10**15),
    st.integers(0, 10**6), st.one_of(st.none(), SHORT),
)  # fmt: skip
def test_kernel_forms_agree(
    form: str, constants: dict[str, Any], n_bytes: int, flops: int, units: int, short: Any
) -> None:
    constants = {**constants, "short": short if form in ("base", "per_work_unit") else None}
    exact = time_count.kernel(form, constants, Fraction(n_bytes), Fraction(flops), Fraction(units))
    call = kernel_time(kernel_of(form, constants), float(n_bytes), float(flops), units)
    close("kernel times", call.time_s, exact, form, constants)


def rows_of(a: Plain, layer: Plain, fmt: str, gpus: int, tile: int | None) -> dict[str, Any]:
    """What one layer reads and writes per token on one GPU, tensor by tensor."""
    heads, read, written, copies = a["n_heads"] // gpus, Fraction(0), Fraction(0), 0
    for name, width, n, dealt in cache_count.tensors(a):
        here = cache_count.on_gpu(n, dealt, gpus)
        row = here * cache_count.row_bytes(width, fmt, name)
        sharing = -(-heads // here)
        read += row * (1 if tile is None else -(-sharing // tile))
        written += row
        copies = max(copies, here)
    if a["family"] == "lrkv":
        copies = heads  # dealt out one by one at every rank, 0 included
    index = cache_count.fixed_bytes(layer["index"], gpus) or 0
    own = cache_count.keeps_rows(layer) and layer["cached_over"] == "context"
    return {
        "row_read_bytes": read, "index_row_bytes": index, "n_copies": copies,
        "token_write_bytes": index + (written if own else 0),
        "window_tokens": layer["window_tokens"] or layer["selected_tokens"],
        "fixed_rows": ENCODER if layer["cached_over"] == "encoder" else None,
    }  # fmt: skip


ENCODER = 150  # rows of cross-attention


def kernel_of_layer(a: Plain, path: str, gpus: int, weights: str = "bf16") -> dict[str, Fraction]:
    """What one layer's kernel computes on one GPU, by row and by token, and the maps it reads."""
    token, _, rebuild, rebuilt = time_count.scan_work(a, path)
    sizes = pass_count.maps(a, path) if pass_count.inside(a) else []
    scalars = a["n_heads"] // gpus * sum(rows * cols for rows, cols in sizes)
    return {
        "row_flops": Fraction(2 * token, gpus), "expand_row_flops": Fraction(2 * rebuild, gpus),
        "rebuilt_row_scalars": Fraction(rebuilt, gpus),
        "call_bytes": Fraction(scalars * (4 if weights == "fp32" else 2)), "token_flops": Fraction(2 * scalars),
    }  # fmt: skip


@examples(150)
@given(models(), GPUS, KV_FORMATS, st.sampled_from([None, 1, 2, 5]), st.booleans())
def test_attention_work_agrees(
    plain: Plain, gpus: int, fmt: str, tile: int | None, last: bool
) -> None:
    assume(not refused(plain["layers"], gpus))
    model = spec_of({**plain, "encoder_tokens": ENCODER})
    path = paths_of(model)[-1] if last and paths_of(model) else None
    works = iter(attention_work(model, kv_dtype=fmt, tp_size=gpus, heads_per_tile=tile, path=path))
    updates = iter(recurrent_work(model, tp_size=gpus))
    for layer in plain["layers"]:
        if layer["state"]:
            held = cache_count.fixed_bytes(layer["state"], gpus) or 0
            update = next(updates)
            close("state traffic", update.state_bytes + update.conv_bytes, 2 * held)
        a = layer["attention"]
        if not a:
            continue
        work = next(works)
        for name, expected in rows_of(a, layer, fmt, gpus, tile).items():
            if expected is None:
                agree("attention traffic", getattr(work, name), None, layer)
            else:
                close("attention traffic", getattr(work, name), expected, layer, gpus)
        for name, count in kernel_of_layer(a, work.path, gpus).items():
            close("attention arithmetic", getattr(work, name), count, layer, gpus)
    assert next(works, None) is None


@examples(60)
@given(models(), st.integers(1, 10**6), st.integers(1, 9))
def test_multiply_adds_agree(plain: Plain, context: int, query: int) -> None:
    def count(layers: list[Plain], q: int) -> int:
        total = 0
        for x in layers:
            a = x["attention"]
            if a and x["cached_over"] == "context":
                token, step, rebuild, _ = time_count.scan_work(a, path_of(a))
                rows = min(context, x["window_tokens"] or x["selected_tokens"] or context)
                total += x["count"] * (q * (rows * token + step) + rows * rebuild)
        return total

    model, layers = spec_of(plain), plain["layers"]
    agree(
        "multiply-adds", attention_multiply_adds(model, context, query), count(layers, query), plain
    )
    ratio = Fraction(count(layers, 1), count(as_mha(layers), 1))
    agree("arithmetic ratio", arithmetic_ratio_to_mha(model, context), ratio, plain)


def path_of(a: Plain) -> str:
    if a["family"] == "mla":
        return "absorbed"
    return "rope_expand" if a.get("position") == "rope_expand" else "factored"


def run(pass_: WeightsPass) -> dict[str, list[Any]]:
    """Shapes that one GPU multiplies, with how often, as numbers in order."""
    return {
        "matrices": sorted(
            (m.format_name, m.layers, m.inputs, m.outputs, m.n_bytes) for m in pass_.matrices
        ),
        "products": sorted((p.layers, p.heads, p.rows, p.cols) for p in pass_.products),
        "experts": sorted(
            (
                e.format_name,
                e.layers,
                e.n_experts,
                e.experts_per_token,
                e.width,
                e.bytes_per_expert,
                e.ep_size,
            )
            for e in pass_.experts
        ),
        "small": sorted((k.kind, k.calls, k.width) for k in pass_.small if k.calls),
    }


def parallel_of(layout: Plain) -> Parallelism:
    return Parallelism(**{f"{name}_size": size for name, size in layout.items()})


def stages_of(plain: Plain, fmt: str, layout: Plain) -> list[dict[str, int]] | None:
    """Bytes of each stage; None where heads, widths or layers cannot be dealt out."""
    sizes = layout["tp"], layout["pp"], layout["ep"]
    return stage_weights.stages(plain, fmt, *sizes, weight_count, cache_count.can_run)


@examples(120)
@given(models(), layouts(), st.sampled_from(weight_count.NAMES))
def test_the_weights_pass_agrees(plain: Plain, layout: Plain, fmt: str) -> None:
    layout = {**layout, "pp": 1}  # the pass is that of all stages

    def ours(given_bytes: int | None = None) -> WeightsPass:
        return weights_pass(
            spec_of(plain), weight_dtype=fmt, parallel=parallel_of(layout),
            weight_bytes=given_bytes,
        )  # fmt: skip

    held = stages_of(plain, fmt, layout)
    if held is None:
        with pytest.raises((PlacementError, SpecError)):
            ours()
        return
    exact = pass_count.operations(plain, fmt, layout, path_of, weight_count)
    known = 3 * sum(held[0].values())
    # These recurrent layers state no weights: a pass needs the weights' size.
    if any(layer["state"] for layer in plain["layers"]):
        with pytest.raises(SpecError, match="recurrent layers are not counted"):
            ours()
    else:
        same_operations(ours(), exact, plain)
    # Known weights are spread as the counted ones: all but looked-up tables and idle experts.
    same_operations(ours(known), pass_count.scaled(exact, known / exact["held"]), plain)


def same_operations(found: WeightsPass, exact: Plain, *about: Any) -> None:
    expected = {
        "matrices": sorted((name, n, k, m, size) for (k, m, size, name), n in exact["matrices"].items()),
        "products": sorted((n, *shape) for shape, n in exact["products"].items()),
        "experts": sorted((e["operand"], e["layers"], e["n"], e["k"], e["width"], e["bytes"], e["ep"])
                          for e in exact["experts"]),
        "small": sorted((kind, n, width) for (kind, width), n in exact["small"].items()),
    }  # fmt: skip
    for kind, several in expected.items():
        merged = combined(run(found)[kind])
        agree("number of operations", len(merged), len(combined(several)), kind, *about)
        for one, other in zip(merged, combined(several), strict=True):
            COMPARED["weights' pass"] += 1
            assert one[0] == other[0], (kind, one, other)
            assert [float(x) for x in one[1:]] == pytest.approx(
                [float(x) for x in other[1:]], rel=REL
            ), (kind, about)


def combined(several: list[Any]) -> list[Any]:
    """Equal operations once, their numbers added; each begins with a name or a number of layers."""
    found: dict[Any, Any] = {}
    for one in several:
        name, n = (one[0], one[1]) if isinstance(one[0], str) else ("", one[0])
        shape = one[2:] if name else one[1:]
        key = (name, *(float(f"{float(x):.9e}") for x in shape))
        found[key] = (name, found.get(key, (name, 0))[1] + n, *shape)
    return [found[key] for key in sorted(found)]


LAYERS = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 40), "row_read_bytes": st.floats(10, 50_000),
        "index_row_bytes": st.sampled_from([0.0, 0.0, 132.0, 20_000.0]),
        "call_bytes": st.sampled_from([0.0, 1e6]), "token_flops": st.sampled_from([0.0, 1e6]),
        "token_write_bytes": st.sampled_from([0.0, 700.0, 2e6]), "n_copies": st.integers(1, 8),
        "fixed_bytes": st.sampled_from([0.0, 3e5, 5e6]), "row_flops": st.one_of(st.floats(10, 1e4), st.floats(10, 2e6)),
        "expand_row_flops": st.sampled_from([0.0, 1e3, 1e6]),
        "rebuilt_row_scalars": st.sampled_from([0.0, 0.0, 512.0]),
        "window_tokens": st.one_of(st.none(), st.none(), st.integers(1, 250)),
        "fixed_rows": st.sampled_from([None, None, None, 150]),
    }
)  # fmt: skip


@st.composite
def designs(draw: Any) -> Plain:
    """A step's coefficients; both sides are built from them."""
    layers = []
    for told in draw(st.lists(LAYERS, min_size=1, max_size=2)):
        form = draw(st.sampled_from(FORMS))
        kernel = "low_rank_expand" if told["rebuilt_row_scalars"] else "grouped"
        short = draw(st.one_of(st.none(), SHORT)) if form in ("base", "per_work_unit") else None
        layers.append({**told, "form": form, "rebuilding": kernel != "grouped", "kernel": kernel,
                       "constants": {**draw(CONSTANTS), "short": short}})  # fmt: skip
    gpus, ranks = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 1, 3, 8]))
    ep = draw(st.sampled_from([1, gpus, gpus * ranks]))
    n_experts = draw(st.sampled_from([8, 100]))
    return {
        "layers": layers,
        "layout": {"tp": gpus, "dp": ranks, "ep": ep, "pp": draw(st.sampled_from([1, 1, 2]))},
        "n_all_reduces": 20 if gpus > 1 else 0, "all_reduce_token_bytes": 8192.0,
        "all_reduce": {"t0_s": 4e-6, "link_bytes_per_s": LINK,
                       "two_shot_s": draw(st.sampled_from([None, 9e-6]))},
        "n_exchanges": 5 if ep > gpus else 0, "exchange": (40e-6, 1.5e-7),
        "engine": {**engine_of("vllm"), "index": 0.0, "overlap": 0.0},  # of ``step_model``
        **WITHOUT_TABLES, "products": {}, "small": {},
        "matrices": {(draw(st.integers(1, 9000)), draw(st.integers(1, 9000)), draw(st.floats(1e8, 1.01e8)),
                      "bf16"): draw(st.integers(1, 20))},
        "experts": [{"n": n_experts, "k": draw(st.integers(1, 8)), "width": 500, "dim": 300, "layers": 5,
                     "bytes": draw(st.floats(1e6, 1e7)), "ep": ep, "operand": "fp8"}]
        * draw(st.integers(0, 1)),
    }  # fmt: skip


@st.composite
def rivals(draw: Any) -> tuple[Plain, Plain]:
    """Two designs with equal weights whose layers differ a little, so that they cross."""
    one = draw(designs())
    factor, later = draw(st.floats(0.5, 0.98)), draw(st.sampled_from([0.0, 1e-8, 1e-7, 1e-6]))
    window = draw(st.one_of(st.none(), st.integers(2, 250)))
    layers = [
        {**x, "row_read_bytes": x["row_read_bytes"] * factor, "window_tokens": window, "fixed_rows": None,
         "row_flops": x["row_flops"] * draw(st.sampled_from([1.0, 0.5, 2.0])),
         "constants": {**x["constants"], "t0_s": x["constants"]["t0_s"] + later}}
        for x in one["layers"]
    ]  # fmt: skip
    return one, {**one, "layers": layers}


PAIRS = st.one_of(rivals(), rivals(), rivals(), st.tuples(designs(), designs()))


def product_of(design: Plain) -> StepModel:
    own = ("form", "rebuilding", "constants")
    layers = tuple(
        AttentionWork(path="drawn", n_heads=8, **{k: v for k, v in x.items() if k not in own})
        for x in design["layers"]
    )
    c, gpus = design["all_reduce"], design["layout"]["tp"]

    def reduced(message: Any) -> tuple[Any, Any, Any]:
        from lrkv_plan.latency.all_reduce import AllReduceModel, allreduce_time

        model = AllReduceModel(n_gpus=gpus, **c, band90=(0.5, 2.0), basis="measured")
        call = allreduce_time(model, message)
        return call.time_s, call.low_s, call.high_s

    matrices = tuple(
        MatrixWork(name="drawn", inputs=k, outputs=n, n_bytes=size, format_name=name, layers=times)
        for (k, n, size, name), times in design["matrices"].items()
    )
    experts = tuple(
        ExpertWork(
            n_experts=e["n"], experts_per_token=e["k"], model_dim=e["dim"], width=e["width"],
            bytes_per_expert=e["bytes"], ep_size=e["ep"], format_name="fp8", layers=e["layers"],
        )
        for e in design["experts"]
    )  # fmt: skip
    of_matrix, of_experts = design["of_matrices"]["bf16"], design["of_experts"]["fp8"]
    expert = ExpertModel(
        **of_experts, engine="drawn", band90=(0.9, 1.2), basis="measured", bits_per_weight=16,
        hot_bytes_per_s=of_experts["bytes_per_s"],
    )  # fmt: skip
    engine, (start, token) = design["engine"], design["exchange"]
    work = StepWork(
        attention=layers, n_layers=10, model_dim=300, parallel=parallel_of(design["layout"]),
        n_exchanges=design["n_exchanges"],
        linear=WeightsPass(matrices=matrices, products=(), experts=experts, small=()),
        n_all_reduces=design["n_all_reduces"], remarks=(),
        all_reduce_token_bytes=design["all_reduce_token_bytes"],
    )  # fmt: skip
    return StepModel(
        work=work,
        kernels=tuple(kernel_of(x["form"], x["constants"], x["kernel"]) for x in design["layers"]),
        matrices=tuple(matrix_term(one, matrix_model(**of_matrix)) for one in matrices),
        experts=(expert,) * len(experts),
        engine=EngineStep(
            name="drawn",
            kernels_of="drawn",
            step_s=engine["step"],
            sequence_s=engine["each"],
            exchange_s=engine["exchange"],
        ),
        all_reduce=reduced if gpus > 1 else None,
        exchange=lambda tokens: start + tokens * token,
    )


@examples(120)
@given(designs(), st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 4))
def test_step_times_agree(design: Plain, context: int, batch: int, query: int) -> None:
    exact = time_count.step(design, context, batch, query)
    ours = step_time(product_of(design), context, batch, query)
    close("step times", ours.step_s, exact, design)
    together = step_time(product_of(design), np.array([1, context]), batch, query)
    close("step times of arrays", together.step_s[1], exact, design)  # type: ignore[index]


def same_crossings(ours: Crossover, oracle: Any, *about: Any) -> None:
    first, changes, is_close = oracle
    assume(not is_close)  # two times within 1e-12 of each other: rounding decides
    COMPARED[f"crossover with {len(changes)} crossings"] += 1
    agree("first leader", ours.faster_first, first, *about)
    agree("crossings", [(c.at, c.faster_after) for c in ours.crossings], changes, *about)


@pytest.mark.slow
@examples(30)
@given(PAIRS, st.integers(1, 32), st.integers(1, 3))
def test_context_crossings_agree_with_a_linear_scan(
    pair: tuple[Plain, Plain], batch: int, query: int
) -> None:
    one, other = pair
    ours = context_crossover(
        (product_of(one), product_of(other)), high=300, batch_size=batch, query_tokens=query
    )
    scanned = time_count.crossings(
        lambda t: (time_count.step(one, t, batch, query), time_count.step(other, t, batch, query)),
        range(1, 301),
    )
    same_crossings(ours, scanned, one, other, batch, query)


@examples(15)
@given(PAIRS, st.integers(1, 5000), st.booleans())
def test_scanned_crossings_agree(
    pair: tuple[Plain, Plain], context: int, along_query: bool
) -> None:
    one, other = pair

    def at(value: Any) -> tuple[Any, Any]:
        sizes = (3, value) if along_query else (value, 2)
        return step_time(product_of(one), context, *sizes), step_time(
            product_of(other), context, *sizes
        )

    def exact(value: int) -> tuple[Fraction, Fraction]:
        sizes = (3, value) if along_query else (value, 2)
        return time_count.step(one, context, *sizes), time_count.step(other, context, *sizes)

    ours = scanned_crossover(at, np.arange(1, 101))
    same_crossings(ours, time_count.crossings(exact, range(1, 101)), one, other, context)


def whole_design(
    plain: Plain, kv: str, layout: Plain, *, weights: str = "bf16", engine: str = "vllm",
    weight_bytes: int | None = None,
) -> Plain | None:  # fmt: skip
    """The oracle's coefficients of a whole model on the drawn GPU."""
    tp, ep = layout["tp"], layout["ep"]
    if stages_of(plain, weights, layout) is None:
        return None
    layers, updates, ends, n_experts = [], [], 0, 0
    for x in plain["layers"]:
        a, block, n = x["attention"], x["feed_forward"] or {"kind": "none"}, x["count"]
        told = {"layers": n, "form": "base", "rebuilding": False, "constants": DATASHEET}
        if x["state"]:
            updates.append({"layers": n, **moved_of(x["state"], tp)})
        if a:
            layers.append({**told, "fixed_bytes": 0, **rows_of(a, x, kv, tp, None),
                           **kernel_of_layer(a, path_of(a), tp, weights)})  # fmt: skip
        ends += n * (bool(a or x["state"]) + (block["kind"] != "none"))
        n_experts += n * (block["kind"] == "experts")
    found = pass_count.operations(plain, weights, layout, path_of, weight_count)
    if weight_bytes is not None:
        found = pass_count.scaled(found, weight_bytes * layout["pp"] / found["held"])
    exchanged = n_experts if ep > tp else 0
    # Start, and a token's 16-bit row to and from every other GPU at 40 % of the link.
    token_s = Fraction(2 * 2 * (ep - 1) * plain["model_dim"]) / Fraction(0.4 * LINK)
    return {
        "layers": layers, "updates": updates, "layout": layout, "all_reduce": REDUCING, **WITHOUT_TABLES, **found,
        "n_all_reduces": ends - exchanged if tp > 1 else 0,
        "all_reduce_token_bytes": 2 * plain["model_dim"],
        "n_exchanges": exchanged, "exchange": (40e-6, token_s), "engine": engine_of(engine),
    }  # fmt: skip


def moved_of(state: list[Plain], tp: int) -> Plain:
    """State read and written; a tensor that grows by draft tokens is a convolution's window."""
    windows = [t for t in state if t["bytes_per_draft_token"]]
    others = [t for t in state if not t["bytes_per_draft_token"]]
    grown = [{**t, "bytes_per_copy": t["bytes_per_draft_token"]} for t in windows]
    held = [2 * (cache_count.fixed_bytes(some, tp) or 0) for some in (others, windows, grown)]
    return dict(zip(("state", "window", "column"), held, strict=True))


ONE_GPU = {"tp": 1, "dp": 1, "ep": 1, "pp": 1}


@st.composite
def compared(draw: Any) -> tuple[Plain, str, str]:
    plain = draw(models(plain=True))
    width = draw(st.sampled_from([100, 24]))
    block = {"kind": "dense", "hidden_dim": width, "gated": True, "bias": False}
    heads = draw(st.sampled_from([2, 4, 8]))
    a = {"family": "mha", "n_heads": heads, "n_kv_heads": heads, "head_dim": draw(st.sampled_from([16, 40])),
         "v_head_dim": 16, **dict.fromkeys(("output_bias", "output_gate", "qk_norm"), False),
         **dict.fromkeys(("qkv_bias", "sinks", "value_from_key"), False)}  # fmt: skip
    layers = [{**plain["layers"][0], "attention": a, "feed_forward": block, "count": 3}]
    texts = st.sampled_from(
        ["mha", "mqa", "gqa:2", "mla:40+8", "lrkv:5", "lrkv:3,groups=2", "lrkv:16"]
    )
    return {**plain, "layers": layers}, draw(texts), draw(texts)


def swapped(plain: Plain, text: str) -> Plain:
    """The described design, through the product's text parser: only its fields are taken."""
    (group,) = swap_attention(spec_of(plain), text).layers
    assert group.attention is not None
    a = {**plain["layers"][0]["attention"], **group.attention.model_dump()}
    return {**plain, "layers": [{**plain["layers"][0], "attention": a}]}


@examples(25)
@given(
    compared(),
    KV_FORMATS,
    st.sampled_from(["context_tokens", "batch_size", "query_tokens", "rank", "tp_size"]),
)
def test_comparisons_of_whole_models_agree(
    case: tuple[Plain, str, str], fmt: str, over: str
) -> None:
    plain, *texts = case
    if over == "rank":
        texts = ["lrkv:4", texts[1]]
    point = {"context_tokens": 700, "batch_size": 4, "query_tokens": 2, "tp_size": 1}
    ours = compare(
        typed_designs(spec_of(plain), texts), GPU, over=over, point=point, at_most=40, kv_dtype=fmt,
        weight_dtype="bf16",
    ).crossover  # fmt: skip

    def exact(value: int) -> tuple[Fraction, Fraction] | None:
        told = {**point, over: value}
        named = [f"lrkv:{value}" if over == "rank" and "lrkv" in t else t for t in texts]
        layout = {**ONE_GPU, "tp": told["tp_size"]}
        found = [whole_design(swapped(plain, t), fmt, layout) for t in named]
        if found[0] is None or found[1] is None:
            return None
        sizes = told["context_tokens"], told["batch_size"], told["query_tokens"]
        return time_count.step(found[0], *sizes), time_count.step(found[1], *sizes)

    values = range(0, 17) if over == "rank" else range(1, 41)
    times = {v: t for v in values if (t := exact(v)) is not None}
    agree("compared from", (ours.low, ours.high), (min(times), max(times)), plain, over)
    same_crossings(ours, time_count.crossings(times.__getitem__, times), plain, texts, over, fmt)


@pytest.mark.slow
@examples(250)
@given(
    models(), layouts(), KV_FORMATS, st.sampled_from(weight_count.NAMES),
    st.sampled_from(["vllm", "sglang", "tensorrt_llm", "llama_cpp", "ideal"]),
    st.integers(1, 10**6), st.integers(1, 100), st.sampled_from([1, 1, 4]),
    st.one_of(st.none(), st.integers(10**6, 10**10)),
)  # fmt: skip
def test_steps_of_whole_models_agree(
    plain: Plain, layout: Plain, kv: str, weights: str, engine: str, context: int, batch: int,
    query: int, weight_bytes: int | None,
) -> None:  # fmt: skip
    if any(x["state"] for x in plain["layers"]):
        weight_bytes = weight_bytes or 10**9

    def ours() -> StepModel:
        return step_model(
            spec_of({**plain, "encoder_tokens": ENCODER}), GPU, kv_dtype=kv, weight_dtype=weights,
            parallel=parallel_of(layout), engine=EngineName(name=engine), weight_bytes=weight_bytes,
        )  # fmt: skip

    design = None if refused(plain["layers"], layout["tp"]) else whole_design(
        plain, kv, layout, weights=weights, engine=engine, weight_bytes=weight_bytes
    )  # fmt: skip
    if design is None:
        with pytest.raises((PlacementError, SpecError)):
            ours()
        return
    time_s = step_time(ours(), context, batch, query).step_s
    exact = time_count.step(design, context, batch, query)
    close("steps of whole models", time_s, exact, plain, layout)
    work = ours().work
    agree("all-reduces", work.n_all_reduces, design["n_all_reduces"], plain)
    agree("exchanges", work.n_exchanges, design["n_exchanges"], plain)
