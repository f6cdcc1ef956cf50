"""Time of a whole decode step: the sum of its operations, and what the engine adds to them.

Operations run one after the other, as engines launch them: their sum is the prediction. Leaves out
prefill that is mixed in, and waiting for a slower rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import SpecError
from lrkv_plan.formats import storage_format
from lrkv_plan.latency.all_reduce import allreduce_model, allreduce_time, domains_of
from lrkv_plan.latency.engine_step import EngineStep, engine_step
from lrkv_plan.latency.evidence import weakest
from lrkv_plan.latency.exchange import ExchangeModel, exchange_model, exchange_time
from lrkv_plan.latency.experts import (
    ExpertModel,
    active_experts,
    expert_model,
    expert_resources,
    expert_time,
    fullest_rank,
)
from lrkv_plan.latency.kernel import KernelModel, kernel_model, kernel_time
from lrkv_plan.latency.matrix import ACTIVATION_BYTES, MatrixModel, matrix_model
from lrkv_plan.latency.operation import OperationModel
from lrkv_plan.latency.products import MEASURED_WEIGHTS_PER_HEAD, product_model
from lrkv_plan.latency.recurrent import RecurrentModel, recurrent_model, recurrent_time
from lrkv_plan.latency.small_kernels import small_kernel_models
from lrkv_plan.latency.weights_pass import ExpertWork, MatrixWork, WeightsPass
from lrkv_plan.latency.work import (
    AttentionWork,
    RecurrentWork,
    StepWork,
    checked_layout,
    step_work,
)
from lrkv_plan.memory.exact import (
    as_amounts,
    check_is,
    check_model,
    larger,
    one_count,
    smaller,
)
from lrkv_plan.specs.deployment import EngineName, Parallelism
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import IntArray, Number
    from lrkv_plan.specs.layer_constants import WholeStep


@dataclass(frozen=True, kw_only=True)
class MatrixTerm:
    """``layers`` equal matrices: t0 + sqrt(c0 + m (c1 + m c2)), the form of ``matrix.matrix_time``.

    Coefficients are of the squared time at m tokens of the rank. [s^2]
    """

    layers: int
    t0_s: float
    c0: float
    c1: float
    c2: float
    walk_s: float
    memory_s: float  # weights alone
    memory_token_s: float
    compute_token_s: float


def matrix_term(work: MatrixWork, model: MatrixModel, bytes_factor: float = 1.0) -> MatrixTerm:
    """The coefficients of one matrix; ``bytes_factor`` multiplies its memory time.

    Notes
    -----
    (a + b m)^2 + (c m)^2 + w^2 with a = weights / (beta BW), b = 2 (n + k) / (beta BW),
    c = 2 n k / (phi peak), w = tau k.
    """
    per_byte = bytes_factor / model.bytes_per_s
    a = work.n_bytes * per_byte
    b = ACTIVATION_BYTES * (work.inputs + work.outputs) * per_byte
    c = 2 * work.inputs * work.outputs / model.flops_per_s
    w = model.tau_s_per_element * work.inputs
    return MatrixTerm(
        layers=work.layers, t0_s=model.t0_s, c0=a * a + w * w, c1=2 * a * b, c2=b * b + c * c,
        walk_s=w,
        memory_s=a, memory_token_s=b, compute_token_s=c,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Added:
    """What whole steps show beside the operations' own times: ``n`` times ``each_s``. [s]"""

    n: int
    each_s: float
    what: str  # of which it is, in a sum: "3 x 2 us a layer"


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """One design on one GPU of a replica, ready for arrays of T, B and q.

    ``kernels`` has a model per entry of ``work.attention``, ``updates`` one per entry of
    ``work.recurrent``, ``experts`` one per entry of ``work.linear.experts``. ``fixed_s`` and
    ``token_s`` are products and small kernels together: linear in tokens. ``added`` is what whole
    steps show of layers and launches beside them. ``all_reduce`` gives (time, low, high) of
    one all-reduce of a message, ``exchange`` the time of one exchange for tokens of the rank.
    ``operations`` are the models that the weights' pass rests on. [s]
    """

    work: StepWork
    kernels: tuple[KernelModel, ...]
    matrices: tuple[MatrixTerm, ...]
    experts: tuple[ExpertModel, ...]
    engine: EngineStep
    added: tuple[Added, ...] = ()
    updates: tuple[RecurrentModel, ...] = ()
    product_fixed_s: float = 0.0
    product_token_s: float = 0.0
    small_fixed_s: float = 0.0
    small_token_s: float = 0.0
    all_reduce: Callable[[Any], tuple[Any, Any, Any]] | None = None
    all_reduce_basis: str | None = None
    exchange: Callable[[Any], Any] | None = None
    exchange_basis: str | None = None
    matrix_models: tuple[MatrixModel, ...] = ()
    product_basis: str = "measured"
    operations: tuple[OperationModel, ...] = field(default=(), repr=False)
    band: tuple[float, float] = (1.0, 1.0)
    remarks: tuple[str, ...] = ()

    @property
    def added_s(self) -> float:
        """All that is added, less what is taken off. [s]"""
        return sum(one.n * one.each_s for one in self.added)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A step's parts and bounds; arrays where the inputs were arrays. [s]

    ``step_s`` is the sum of the parts and the prediction. ``attention_s`` are the mixers: attention
    kernels, and the updates of recurrent layers. ``linear_s`` is matrices, products over
    heads and experts together; ``overhead_s`` small kernels and what the engine adds. ``overlap_s``
    is the slowest resource alone. ``low_s`` and ``high_s`` hold about 90 % of measured steps.
    """

    attention_s: Number
    matrices_s: Number
    products_s: Number
    experts_s: Number
    small_kernels_s: Number
    all_reduce_s: Number
    exchange_s: Number
    engine_s: Number
    step_s: Number
    overlap_s: Number
    low_s: Number
    high_s: Number
    attention_low_s: Number
    attention_high_s: Number
    attention_memory_s: Number
    attention_compute_s: Number
    linear_memory_s: Number
    linear_compute_s: Number

    @property
    def linear_s(self) -> Any:
        """The weights' pass: matrices, products over heads, experts. [s]"""
        return self.matrices_s + self.products_s + self.experts_s

    @property
    def overhead_s(self) -> Any:
        """Small kernels, exchange of attention ranks, and what the engine adds. [s]"""
        return self.small_kernels_s + self.exchange_s + self.engine_s

    @property
    def is_attention_memory_bound(self) -> Any:
        """Whether the cache's traffic takes at least as long as its arithmetic."""
        return self.attention_memory_s >= self.attention_compute_s


def step_time(
    model: StepModel, context_tokens: Any, batch_size: Any, query_tokens: Any = 1
) -> StepTime:
    """The time of one decode step of ``batch_size`` sequences.

    Parameters
    ----------
    model : a design on a GPU.
    context_tokens : tokens cached per sequence; a number or an array. [tokens]
    batch_size : sequences decoded together on one replica; a number or an array. [sequences]
    query_tokens : tokens decoded per sequence in one step (speculation); a number or an array.

    Raises
    ------
    UsageError
        If a count is not a whole number from 0 to 2**63 - 1 (whole floats count).

    Notes
    -----
    step = attention + matrices + products + experts + small kernels + all-reduces or exchanges +
    step constant + sequences of the rank x sequence constant. Each operation has the form of its
    own module (``kernel``, ``matrix``, ``products``, ``experts``, ``small_kernels``,
    ``all_reduce``, ``exchange``). The fullest attention rank decodes ceil(B / (dp pp)) sequences;
    experts see the tokens of all ranks that share them; a token passes all pipeline stages one
    after the other.
    """
    work = check_is("model", model, StepModel, "step_model").work
    context_tokens = as_amounts("context_tokens", context_tokens)
    batch_size = as_amounts("batch_size", batch_size)
    query_tokens = as_amounts("query_tokens", query_tokens)
    load = loads(model, batch_size, query_tokens)
    rank_batch, tokens, expert_tokens = load.rank_batch, load.tokens, load.expert_tokens
    nothing = 0.0 * context_tokens * tokens
    attention, low, high, memory, compute = _summed(
        [
            _attention(layer, kernel, context_tokens, rank_batch, query_tokens)
            for layer, kernel in zip(work.attention, model.kernels, strict=True)
        ]
        + [
            _update(layer, update, nothing, rank_batch, query_tokens)
            for layer, update in zip(work.recurrent, model.updates, strict=True)
        ],
        nothing,
    )
    matrices = _matrices(model, tokens)
    products = model.product_fixed_s + tokens * model.product_token_s
    small = model.small_fixed_s + tokens * model.small_token_s
    experts = _experts(model, expert_tokens)
    reduced = _all_reduces(model, tokens)
    exchanged = _exchanges(model, tokens)
    engine = model.engine.step_s + rank_batch * model.engine.sequence_s + model.added_s
    linear_memory, linear_compute = _resources(model, tokens, expert_tokens)
    rest = matrices + products + small + experts + exchanged + engine
    fastest, slowest = model.band
    return StepTime(
        attention_s=attention,
        matrices_s=matrices,
        products_s=products,
        experts_s=experts,
        small_kernels_s=small,
        all_reduce_s=reduced[0],
        exchange_s=exchanged,
        engine_s=engine,
        step_s=attention + rest + reduced[0],
        overlap_s=larger(
            larger(memory + linear_memory, compute + linear_compute), reduced[0] + 0.0 * memory
        ),
        low_s=smaller(fastest * attention, low) + fastest * (rest + reduced[0]),
        high_s=larger(slowest * attention, high) + slowest * (rest + reduced[0]),
        attention_low_s=low,
        attention_high_s=high,
        attention_memory_s=memory,
        attention_compute_s=compute,
        linear_memory_s=linear_memory,
        linear_compute_s=linear_compute,
    )


@dataclass(frozen=True, kw_only=True)
class Loads:
    """What the fullest GPU of a replica works on: sequences of its rank, their tokens, and those of
    all ranks that share its experts.
    """

    rank_batch: Any
    tokens: Any
    expert_tokens: Any


def loads(model: StepModel, batch_size: Any, query_tokens: Any = 1) -> Loads:
    """The load of one GPU where the replica decodes ``batch_size`` sequences.

    Pipeline stages work on as many parts of the batch; attention ranks share a stage's part, as
    evenly as it goes.
    """
    parallel = model.work.parallel
    stage_batch = _ceil_over(batch_size, parallel.pp_size)
    rank_batch = _ceil_over(stage_batch, parallel.dp_size)
    together = stage_batch
    if parallel.dp_size > 1:
        each, sharing = stage_batch // parallel.dp_size, parallel.ranks_per_expert_set
        together = sharing * each + smaller(stage_batch - parallel.dp_size * each, sharing)
    return Loads(
        rank_batch=rank_batch, tokens=rank_batch * query_tokens,
        expert_tokens=together * query_tokens,
    )  # fmt: skip


def _ceil_over(count: Any, over: int) -> Any:
    """ceil(count / over), exact for whole numbers, for floats and arrays too."""
    return count if over == 1 else -(-count // over)


def _attention(
    layer: AttentionWork, kernel: KernelModel, context: Any, batch: Any, query: Any
) -> tuple[Any, Any, Any, Any, Any]:
    call = kernel_time(
        kernel,
        layer.n_bytes(context, batch, query),
        layer.n_flops(context, batch, query),
        layer.n_units(context, batch, kernel.constants_of or kernel.kernel),
    )
    times = (call.time_s, call.low_s, call.high_s, call.memory_s, call.compute_s)
    n = layer.layers
    return (n * times[0], n * times[1], n * times[2], n * times[3], n * times[4])


def _update(
    layer: RecurrentWork, update: RecurrentModel, nothing: Any, batch: Any, query: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Time, band, memory and compute time of all updates of one kind of layer."""
    conv = batch * (layer.conv_bytes + query * layer.conv_row_bytes)
    call = recurrent_time(update, batch * layer.state_bytes, conv)
    moved = batch * layer.state_bytes / update.bytes_per_s + conv / update.conv_bytes_per_s
    n = layer.layers
    return (
        nothing + n * call.time_s, nothing + n * call.low_s, nothing + n * call.high_s,
        nothing + n * moved, nothing,
    )  # fmt: skip


def _summed(
    parts: list[tuple[Any, Any, Any, Any, Any]], nothing: Any
) -> tuple[Any, Any, Any, Any, Any]:
    if not parts:
        return (nothing, nothing, nothing, nothing, nothing)
    total = list(parts[0])
    for part in parts[1:]:
        total = [one + other for one, other in zip(total, part, strict=True)]
    return (total[0], total[1], total[2], total[3], total[4])


def touched(work: ExpertWork, tokens: Any) -> Any:
    """Experts of the fullest GPU that a step of so many tokens touches."""
    active = active_experts(work.n_experts, work.experts_per_token, tokens)
    return fullest_rank(active / work.ep_size, work.ep_size, work.experts_here)


def expert_load(work: ExpertWork, tokens: Any) -> dict[str, Any]:
    """What one GPU's experts of one layer do for tokens of the replica, as ``expert_time`` asks."""
    return {
        "active": touched(work, tokens),
        "rows": tokens * (work.experts_per_token / work.ep_size),
        "hidden_size": work.model_dim,
        "inter_size": work.width,
        "weight_bytes_per_expert": work.bytes_per_expert,
    }


def _matrices(model: StepModel, tokens: Any) -> Any:
    """One after the other, as arrays are: ``sum`` rounds floats otherwise from Python 3.12 on."""
    total: Any = 0.0 * tokens
    for term in model.matrices:
        root = (term.c0 + tokens * (term.c1 + tokens * term.c2)) ** 0.5
        total = total + term.layers * (term.t0_s + root)
    return total


def _experts(model: StepModel, tokens: Any) -> Any:
    total: Any = 0.0 * tokens
    for work, constants in zip(model.work.linear.experts, model.experts, strict=True):
        total = total + work.layers * expert_time(constants, **expert_load(work, tokens)).time_s
    return total


def _resources(model: StepModel, tokens: Any, expert_tokens: Any) -> tuple[Any, Any]:
    """Memory and compute time of the weights' pass, each alone. [s]"""
    memory: Any = 0.0 * tokens
    compute: Any = 0.0 * tokens
    for term in model.matrices:
        memory = memory + term.layers * (term.memory_s + tokens * term.memory_token_s)
        compute = compute + term.layers * (tokens * term.compute_token_s)
    for work, constants in zip(model.work.linear.experts, model.experts, strict=True):
        read_s, computed_s = expert_resources(constants, **expert_load(work, expert_tokens))
        memory = memory + work.layers * read_s
        compute = compute + work.layers * computed_s
    return memory, compute


def _all_reduces(model: StepModel, tokens: Any) -> tuple[Any, Any, Any]:
    n = model.work.n_all_reduces
    if not n or model.all_reduce is None:
        return (0.0, 0.0, 0.0)
    once, low, high = model.all_reduce(tokens * model.work.all_reduce_token_bytes)
    return (n * once, n * low, n * high)


def _exchanges(model: StepModel, tokens: Any) -> Any:
    n = model.work.n_exchanges
    if not n or model.exchange is None:
        return 0.0
    return n * (model.exchange(tokens) + model.engine.exchange_s)


CHUNK_POINTS = 65_536  # a chunk's arrays stay in a core's cache


def step_model(
    model: ModelSpec,
    hardware: HardwareProfile,
    *,
    kv_dtype: str = "bf16",
    weight_dtype: str | None = None,
    tp_size: int = 1,
    parallel: Parallelism | None = None,
    engine: EngineName | None = None,
    heads_per_tile: int | None = None,
    path: str | None = None,
    weight_bytes: int | None = None,
    relatives: Sequence[HardwareProfile] = (),
) -> StepModel:
    """The step of a design on one GPU of a replica.

    Parameters
    ----------
    weight_dtype : weight format; the model's own when None.
    tp_size, parallel : the layout of a replica; ``parallel`` where more than tensor parallelism.
    engine : whose kernels and step constants apply; vLLM's newest when None.
    weight_bytes : weights of one GPU as known, instead of counting them. [bytes]
    relatives : profiles that may lend constants where this GPU was not measured.

    Raises
    ------
    SpecError
        If the weights' format or a part of the weights is not stated, or the profile lacks a peak
        or, for more than one GPU, a link.
    PlacementError
        If heads or weights cannot be dealt out.
    UsageError
        If a layer has no such decode path.

    Examples
    --------
    >>> from lrkv_plan import load_hardware, load_model
    >>> step = step_model(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))
    >>> 5e-3 < step_time(step, context_tokens=8192, batch_size=1).step_s < 10e-3
    True
    """
    check_model("model", model)
    check_is("hardware", hardware, HardwareProfile, "load_hardware")
    if engine is not None:
        check_is("engine", engine, EngineName, "parse_engine")
    layout = checked_layout(parallel, tp_size)
    if weight_bytes is not None:
        weight_bytes = one_count("weight_bytes", weight_bytes)
    dtype = model.weight_dtype if weight_dtype is None else weight_dtype
    if dtype is None and weight_bytes is not None:
        dtype = "bf16"
    if dtype is None:
        raise SpecError(
            f"{model.name}: weight_dtype is not stated; give --weight-dtype, or --weights"
        )
    if weight_bytes is not None:
        weight_bytes *= layout.pp_size  # a token passes the weights of every stage
    work = step_work(
        model, kv_dtype=kv_dtype, weight_dtype=dtype, parallel=layout,
        heads_per_tile=heads_per_tile, path=path, weight_bytes=weight_bytes,
    )  # fmt: skip
    storage = storage_format(kv_dtype).name
    constants = engine_step(engine)
    kernels = tuple(
        _kernel(hardware, layer, storage, constants.kernels_of, relatives)
        for layer in work.attention
    )
    return _assembled(work, kernels, hardware, constants, relatives)


def _assembled(
    work: StepWork,
    kernels: tuple[KernelModel, ...],
    hardware: HardwareProfile,
    engine: EngineStep,
    relatives: Sequence[HardwareProfile],
) -> StepModel:
    """The constants of every operation of a step."""
    runs, layout, linear = engine.kernels_of, work.parallel, work.linear
    formats = dict.fromkeys(one.format_name for one in linear.matrices)
    models = {name: matrix_model(hardware, runs, name, relatives) for name in formats}
    experts = tuple(
        expert_model(hardware, runs, one.format_name, relatives) for one in linear.experts
    )
    updates = tuple(recurrent_model(hardware, runs, one.kind, relatives) for one in work.recurrent)
    products = product_model(hardware, runs, relatives=relatives) if linear.products else None
    reducing = allreduce_model(hardware, layout.tp_size, engine=runs, relatives=relatives)
    exchanging = (
        _exchanging(hardware, runs, layout.ep_size, relatives)
        if work.n_exchanges else None
    )  # fmt: skip

    def all_reduce(message_bytes: Any) -> tuple[Any, Any, Any]:
        call = allreduce_time(reducing, message_bytes)
        return call.time_s, call.low_s, call.high_s

    def exchange(tokens: Any) -> Any:
        assert exchanging is not None, "asked only where ranks exchange"
        return exchange_time(exchanging, tokens, work.model_dim).time_s

    fixed, per_token = _product_line(linear, products)
    small_fixed, small_token = _small_line(linear)
    beyond = hardware.whole_step
    if beyond is not None:
        slower = beyond.expert_bytes
        experts = tuple(replace(one, bytes_per_s=one.bytes_per_s / slower) for one in experts)
    used: list[OperationModel] = [*models.values(), *dict.fromkeys(experts)]
    used += dict.fromkeys(updates)
    used += [one for one in (products, exchanging) if one is not None]
    many = layout.tp_size > 1
    unseen = dict(unseen_layouts(layout, hardware))
    faster, slower_end = UNSEEN_FACTOR ** len(unseen), math.prod(unseen.values())
    rests_on = weakest(one.basis for one in (*models.values(), *experts))
    band = engine.band(rests_on, has_whole_step=beyond is not None)
    remarks = (*_remarks(kernels, used, reducing if many else None, work), *unseen.keys())
    return StepModel(
        work=work,
        kernels=kernels,
        matrices=tuple(
            matrix_term(
                one, models[one.format_name], 1.0 if beyond is None else beyond.matrix_bytes
            )
            for one in linear.matrices
        ),
        experts=experts,
        engine=engine,
        added=tuple(_added(work, beyond, engine)),
        updates=updates,
        product_fixed_s=fixed,
        product_token_s=per_token,
        small_fixed_s=small_fixed,
        small_token_s=small_token,
        all_reduce=all_reduce if many else None,
        all_reduce_basis=reducing.basis if many else None,
        exchange=None if exchanging is None else exchange,
        exchange_basis=None if exchanging is None else exchanging.basis,
        matrix_models=tuple(models.values()),
        product_basis="measured" if products is None else _product_basis(linear, products.basis),
        operations=tuple(used),
        band=(band[0] / faster, band[1] * slower_end),
        remarks=tuple(dict.fromkeys(remarks)),
    )


# Layouts of which public runs show a handful or none: factor on both ends of the band, for each.
UNSEEN_FACTOR = 1.5
# At the slow end over several servers: DeepSeek-V3 at TP 16 on 2 x 8 H100 took 23.2 and 31.2 ms
# (tenstorrent/tt-inference-server#356), 2.0 and 2.7 times what is predicted.
SEVERAL_SERVERS_FACTOR = 2.5
GPUS_OF_A_NODE = 8  # at least; a larger group is one node where its all-reduce was measured


def unseen_layouts(parallel: Parallelism, hardware: HardwareProfile) -> Iterator[tuple[str, float]]:
    """What of a layout no measured step stands for: a sentence, and a factor at the slow end."""
    wider = "no measured step stands for it, so the band is wider"
    if parallel.pp_size > 1:
        told = f"pipeline stages: a token passes all {parallel.pp_size} in turn"
        yield f"{told} and hand-overs take no time; {wider}", UNSEEN_FACTOR
    if parallel.dcp_size > 1:
        told = f"context parallelism: each of {parallel.dcp_size} GPUs reads its share of the rows"
        joined = "one more all-reduce a layer joins their outputs"
        yield f"{told}, and {joined}; {wider}", UNSEEN_FACTOR
    together, link = max(parallel.tp_size, parallel.ep_size), hardware.link
    if link is None or link.n_gpus is None:
        node = max([GPUS_OF_A_NODE, *(entry.n_gpus for entry in hardware.allreduce)])
        if together > node:
            told = f"{together} GPUs exchange in a step as if on one node of {hardware.name}"
            yield f"{told}, at the rate of its link; {wider}", UNSEEN_FACTOR
    elif together > link.n_gpus:
        n_domains = math.ceil(together / link.n_gpus)
        over = "its link, for want of a network" if link.beyond is None else link.beyond.name
        told = f"{together} GPUs are {n_domains} domains of {link.n_gpus} {hardware.name}"
        yield f"{told}, which exchange over {over}; {wider}", SEVERAL_SERVERS_FACTOR


def _exchanging(
    hardware: HardwareProfile, engine: str, ranks: int, relatives: Sequence[HardwareProfile]
) -> ExchangeModel:
    nodes = domains_of(hardware, ranks)
    return exchange_model(hardware, engine, ranks, nodes=nodes, relatives=relatives)


def launches(work: StepWork) -> int:
    """Operations of a step that are launched one by one: mixers, matrices, products, sums.

    A recurrent layer launches two: its convolution and its update.
    """
    linear = work.linear
    updates = sum(2 * one.layers for one in work.recurrent)
    products = sum(one.layers for one in linear.products)
    matrices = sum(one.layers for one in linear.matrices)
    mixers = sum(one.layers for one in work.attention) + updates
    return mixers + matrices + products + work.n_all_reduces


def _added(work: StepWork, beyond: WholeStep | None, engine: EngineStep) -> Iterator[Added]:
    """What whole steps show of layers and launches beside the operations' own times."""
    if engine.layer_s:
        yield Added(n=work.n_layers, each_s=engine.layer_s, what="a layer of this version")
    if indexed := sum(one.layers for one in work.attention if one.index_row_bytes):
        yield Added(n=indexed, each_s=engine.index_layer_s, what="a layer with a sparse index")
    if beyond is not None and beyond.layer_s:
        yield Added(n=work.n_layers, each_s=beyond.layer_s, what="a layer on this GPU")
    n_experts = sum(one.layers for one in work.linear.experts)
    if beyond is not None and beyond.expert_layer_s and n_experts:
        what = "a layer of experts on this GPU"
        yield Added(n=n_experts, each_s=beyond.expert_layer_s, what=what)
    if engine.overlap_s:
        what = "a launch, which starts while the last one ends"
        yield Added(n=launches(work), each_s=-engine.overlap_s, what=what)


def _product_basis(linear: WeightsPass, basis: str) -> str:
    """A time scaled from the one shape that was measured is not measured."""
    scaled = any(one.rows * one.cols != MEASURED_WEIGHTS_PER_HEAD for one in linear.products)
    return "other_shape" if basis == "measured" and scaled else basis


def _product_line(linear: WeightsPass, constants: Any) -> tuple[float, float]:
    """(fixed, per token) of all products over heads: the form of ``products.product_time``."""
    fixed = per_token = 0.0
    for one in linear.products:
        share = one.rows * one.cols / MEASURED_WEIGHTS_PER_HEAD
        busy_s = constants.head_s * one.heads * share
        fixed += one.layers * (constants.t0_s + busy_s)
        per_token += one.layers * busy_s / constants.token_scale
    return fixed, per_token


def _small_line(linear: WeightsPass) -> tuple[float, float]:
    """(fixed, per token) of all small kernels: the form of ``small_kernels.small_kernel_time``."""
    fixed = per_token = 0.0
    for one in linear.small:
        kind = small_kernel_models()[one.kind]
        fixed += one.calls * (kind.t0_s + kind.width_s * one.width)
        per_token += one.calls * kind.scalar_s * one.width
    return fixed, per_token


def _kernel(
    hardware: HardwareProfile,
    layer: AttentionWork,
    kv_dtype: str,
    engine: str,
    relatives: Sequence[HardwareProfile],
) -> KernelModel:
    return kernel_model(
        hardware,
        layer.kernel,
        kv_dtype,
        engine=engine,
        query_heads_per_kv_head=max(1, layer.n_heads // layer.n_copies),
        head_dim=layer.head_dim or None,
        relatives=relatives,
    )


def _remarks(
    kernels: Sequence[KernelModel], operations: Sequence[OperationModel], reducing: Any,
    work: StepWork,
) -> Iterator[str]:  # fmt: skip
    for kernel in kernels:
        yield _rests_on(kernel)
        yield from kernel.notes
    for one in operations:
        yield from one.notes
    if reducing is not None:
        yield f"all-reduce: {reducing.basis} {reducing.backend}".rstrip()
        yield from reducing.notes
    yield from work.remarks


def _rests_on(kernel: KernelModel) -> str:
    error = kernel.held_out_median_error
    measured = "" if error is None else f", held-out median error {error:.1%}"
    backend = f" ({kernel.backend})" if kernel.backend else ""
    return f"attention kernel {kernel.kernel}, {kernel.kv_dtype}: {kernel.basis}{backend}{measured}"


def step_grid(
    model: StepModel, contexts: IntArray, batch_sizes: IntArray, query_tokens: int = 1
) -> Iterator[tuple[slice, StepTime]]:
    """Step times of every (batch, context) pair, chunk by chunk.

    Yields
    ------
    A slice of the flattened grid (batch major) and the ``StepTime`` of its points, so that memory
    stays bounded whatever the grid's size.
    """
    import numpy as np

    n_contexts = contexts.size
    total = n_contexts * batch_sizes.size
    context_values, batch_values = contexts.astype(np.float64), batch_sizes.astype(np.float64)
    for start in range(0, total, CHUNK_POINTS):
        points = np.arange(start, min(start + CHUNK_POINTS, total))
        batch_index, context_index = np.divmod(points, n_contexts)
        yield (
            slice(start, start + points.size),
            step_time(
                model, context_values[context_index], batch_values[batch_index], query_tokens
            ),
        )
