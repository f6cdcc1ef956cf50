"""Groups of measured layer operations that one set of constants describes, as arrays.

What a call moves and computes is counted by ``lrkv_plan.latency``'s own functions; here stand the
shapes that its arguments are, which rows a fit may use, and which shapes are left out together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lrkv_plan.calibration.layer_tables import FORMAT_OF, Measured
from lrkv_plan.errors import SpecError
from lrkv_plan.latency.exchange import ExchangeModel, exchange_model, exchange_time
from lrkv_plan.latency.experts import ExpertModel, active_experts, expert_model, expert_time
from lrkv_plan.latency.matrix import MatrixModel, matrix_model, matrix_time
from lrkv_plan.latency.operands import OPERAND_FORMATS, operand_format
from lrkv_plan.latency.operation import like
from lrkv_plan.latency.products import ProductModel, product_model, product_time
from lrkv_plan.latency.recurrent import (
    RecurrentModel,
    conv_update_bytes,
    recurrent_model,
    recurrent_time,
)
from lrkv_plan.latency.stand_ins import SAME_KERNELS
from lrkv_plan.specs.hardware import HardwareProfile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from lrkv_plan.calibration.layer_fit import LayerFit

    FloatArray = npt.NDArray[np.float64]

MAX_TOKENS = 512
MAX_MATRIX_BYTES = 1.2e9
MIN_ANY_BYTES = 1e6
MIN_COLD_ROWS = 150
BLACKWELL_L2_BYTES = 126 * 2**20
# Bytes of a scalar of the benchmark's state: 4, but in TensorRT-LLM's, which 4 would put above the
# memory's bandwidth.
STATE_BYTES = {"tensorrt_llm": 2}
START_BYTES = 2e6  # a state so small that an update is its start
Constants = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class LayerSamples:
    """Calls of one operation of one engine on one GPU in one format.

    ``model_of`` makes the operation's model of constants as profiles state them, ``shipped`` the
    one of a profile and its relatives; ``predict(model, rows)`` gives seconds of the rows that an
    index array or a mask selects. ``part`` names the regime of each row and ``shape`` is what is
    left out together. ``fitted`` are the parts that constants are fitted to, ``judged`` the part
    that their errors are stated for.
    """

    operation: str
    gpu: str
    engine: str
    format: str
    time_s: FloatArray
    part: npt.NDArray[Any]
    shape: npt.NDArray[Any]
    model_of: Callable[[Constants], Any]
    shipped: Callable[[Sequence[HardwareProfile]], Any]
    predict: Callable[[Any, Any], Any]
    fitted: tuple[str, ...]
    judged: str
    held_out_by: str
    version: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    remark: str | None = None


ProfileOf = Callable[[str], HardwareProfile]


def samples_of_table(
    measured: Measured, profile_of: ProfileOf, relatives: Sequence[HardwareProfile] = ()
) -> Iterator[LayerSamples]:
    """The groups of a table, in the order of its GPU, engine and format."""
    builder = BUILDERS.get(measured.table.operation)
    if builder is not None:
        yield from builder(measured.rows, profile_of, relatives)


def _groups(rows: pd.DataFrame, keys: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    for key, group in rows.groupby(keys, sort=True, dropna=False):
        yield (key if isinstance(key, tuple) else (key,)), group


def _array(group: pd.DataFrame, name: str) -> FloatArray:
    values: FloatArray = group[name].to_numpy(dtype=float)
    return values


def _shape(*columns: FloatArray) -> npt.NDArray[Any]:
    """A number for every distinct combination."""
    import numpy as np

    return np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1].reshape(-1)


def _engine(name: str) -> str:
    return SAME_KERNELS.get(name, name)


def _version(group: pd.DataFrame) -> str:
    return str(group["engine_version"].iloc[-1]) if "engine_version" in group else ""


def matrix_samples(
    rows: pd.DataFrame, profile_of: ProfileOf, relatives: Sequence[HardwareProfile]
) -> Iterator[LayerSamples]:
    """Matrices up to 512 tokens and 1.2 GB; parts: cold, l2, unstated."""
    import numpy as np

    del relatives
    for (dtype, gpu, engine), group in _groups(rows, ["gemm_dtype", "gpu", "engine"]):
        name = FORMAT_OF.get(dtype, dtype)
        bits = operand_format(name).bits_per_weight if name in OPERAND_FORMATS else 16
        stored = _array(group, "n") * _array(group, "k") * bits / 8
        kept = (_array(group, "m") <= MAX_TOKENS) & (stored <= MAX_MATRIX_BYTES)
        group, stored = group[kept], stored[kept]
        if group.empty:
            continue
        m, n, k = (_array(group, column) for column in "mnk")
        state = _array(group, "weights_cold") if "weights_cold" in group else np.full(len(m), 1.0)
        part = np.where(state == 1, "cold", np.where(state == 0, "l2", "unstated"))
        few = int((part == "cold").sum()) < MIN_COLD_ROWS
        if few:  # every state from 1 MB on, or the fit runs off
            part = np.where((part != "cold") & (stored < MIN_ANY_BYTES), "small", part)
        yield LayerSamples(
            operation="matrices", gpu=gpu, engine=_engine(engine), format=name,
            time_s=_array(group, "latency_us") * 1e-6, part=part, shape=_shape(n, k),
            model_of=_matrix_of(profile_of, gpu, name),
            shipped=_shipped(matrix_model, profile_of, gpu, _engine(engine), name, own_table=True),
            predict=_matrix_predictor(m, n, k),
            fitted=("cold", "l2", "unstated") if few else ("cold",), judged="cold",
            held_out_by="shapes", version=_version(group),
            remark="few rows are surely read from memory: fitted to rows of any state from 1 MB"
            if few else None,
        )  # fmt: skip


def _matrix_of(profile_of: ProfileOf, gpu: str, name: str) -> Callable[[Constants], MatrixModel]:
    def model_of(constants: Constants) -> MatrixModel:
        hardware, stored = profile_of(gpu), operand_format(name)
        return MatrixModel(
            engine="", basis="", band90=(1, 1), t0_s=constants["t0_s"],
            bytes_per_s=constants["beta"] * hardware.mem_bandwidth_bytes_per_s,
            flops_per_s=constants["phi"] * hardware.peak_flops_per_s[stored.peak_of(hardware)],
            tau_s_per_element=constants["tau_s_per_element"],
            bits_per_weight=stored.bits_per_weight,
        )  # fmt: skip

    return model_of


def _matrix_predictor(
    m: FloatArray, n: FloatArray, k: FloatArray
) -> Callable[[MatrixModel, Any], Any]:
    def predict(model: MatrixModel, rows: Any) -> Any:
        return matrix_time(model, m[rows], n[rows], k[rows]).time_s

    return predict


def _shipped(
    find_model: Callable[..., Any], profile_of: ProfileOf, gpu: str, *told: str, **more: Any
) -> Callable[[Sequence[HardwareProfile]], Any]:
    """A profile's model of the operation, of the engine's own table where it has one."""

    def shipped(relatives: Sequence[HardwareProfile]) -> Any:
        return find_model(profile_of(gpu), *told, relatives=relatives, **more)

    return shipped


def l2_bytes(hardware: HardwareProfile, relatives: Sequence[HardwareProfile] = ()) -> int:
    """The GPU's L2, else that of the nearest of its generation."""
    known = (g.l2_bytes for g in (hardware, *like(hardware, relatives)) if g.l2_bytes)
    return next(known, BLACKWELL_L2_BYTES)


def _l2_of(profile_of: ProfileOf, gpu: str, relatives: Sequence[HardwareProfile]) -> int:
    """As ``l2_bytes``, also for a GPU without a profile, which is told where it is predicted."""
    try:
        return l2_bytes(profile_of(gpu), relatives)
    except SpecError:
        return BLACKWELL_L2_BYTES


def expert_samples(
    rows: pd.DataFrame, profile_of: ProfileOf, relatives: Sequence[HardwareProfile]
) -> Iterator[LayerSamples]:
    """Experts up to 512 tokens; parts: cold (over twice the L2), l2, between, power_law, ep."""
    import numpy as np

    for (dtype, gpu, engine), whole in _groups(rows, ["moe_dtype", "gpu", "engine"]):
        name = FORMAT_OF.get(dtype, dtype)
        group = whole[_array(whole, "num_tokens") <= MAX_TOKENS]
        if group.empty:
            continue
        call = _expert_call(group)
        even = (group["distribution"] == "balanced").to_numpy()
        stored = call["active"] * 3 * call["hidden_size"] * call["inter_size"]
        bits = operand_format(name).bits_per_weight if name in OPERAND_FORMATS else 16
        stored = stored * bits / 8
        cache = _l2_of(profile_of, gpu, relatives)
        part = np.where(stored > 2 * cache, "cold", np.where(stored < cache, "l2", "between"))
        only_skewed = not even.any()
        part = np.where(even | only_skewed, part, "power_law")
        part = np.where(_array(group, "moe_ep_size") > 1, "ep", part)
        models = _shape(*(_array(group, c) for c in ("hidden_size", "inter_size", "topk",
                                                     "num_experts")))  # fmt: skip
        few = len(np.unique(models)) < 3
        shape = _shape(models.astype(float), _array(group, "moe_tp_size")) if few else models
        yield LayerSamples(
            operation="experts", gpu=gpu, engine=_engine(engine), format=name,
            time_s=_array(group, "latency_us") * 1e-6, part=part, shape=shape,
            model_of=_experts_of(profile_of, gpu, name),
            shipped=_shipped(
                expert_model, profile_of, gpu, _engine(engine), name, own_table=True
            ),
            predict=_expert_predictor(call, part == "l2"),
            fitted=("cold", "l2"), judged="cold", held_out_by="shapes" if few else "models",
            version=_version(group),
            remark="only skewed routing was measured" if only_skewed else None,
        )  # fmt: skip


def _expert_call(group: pd.DataFrame) -> dict[str, FloatArray]:
    """Arguments of ``expert_time`` for one rank of every row."""
    import numpy as np

    ep = _array(group, "moe_ep_size")
    tokens, top_k, experts = (_array(group, c) for c in ("num_tokens", "topk", "num_experts"))
    even = (group["distribution"] == "balanced").to_numpy()
    skewed = np.array(
        [float(active_experts(int(e), int(k), t)) for e, k, t in zip(experts, top_k, tokens,
                                                                     strict=True)]
    )  # fmt: skip
    active = np.where(even, np.minimum(experts, tokens * top_k), skewed)
    return {
        "active": np.maximum(active / ep, 1.0), "rows": tokens * top_k / ep,
        "hidden_size": _array(group, "hidden_size"),
        "inter_size": _array(group, "inter_size") / _array(group, "moe_tp_size"),
    }  # fmt: skip


def _experts_of(profile_of: ProfileOf, gpu: str, name: str) -> Callable[[Constants], ExpertModel]:
    def model_of(constants: Constants) -> ExpertModel:
        hardware, stored = profile_of(gpu), operand_format(name)
        bandwidth = hardware.mem_bandwidth_bytes_per_s
        return ExpertModel(
            engine="", basis="", band90=(1, 1), t0_s=constants["t0_s"],
            bytes_per_s=constants["beta"] * bandwidth,
            flops_per_s=constants["phi"] * hardware.peak_flops_per_s[stored.peak_of(hardware)],
            expert_s=constants["expert_s"], bits_per_weight=stored.bits_per_weight,
            hot_bytes_per_s=constants["hot_beta"] * bandwidth,
        )  # fmt: skip

    return model_of


def _expert_predictor(
    call: dict[str, FloatArray], hot: npt.NDArray[np.bool_]
) -> Callable[[ExpertModel, Any], FloatArray]:
    def predict(model: ExpertModel, rows: Any) -> FloatArray:
        import numpy as np

        told: Any = {key: values[rows] for key, values in call.items()}
        cold_s = expert_time(model, **told).time_s
        hot_s = expert_time(model, **told, l2_hot=True).time_s
        return np.where(hot[rows], hot_s, cold_s)

    return predict


def product_samples(
    rows: pd.DataFrame, profile_of: ProfileOf, relatives: Sequence[HardwareProfile]
) -> Iterator[LayerSamples]:
    """MLA's absorption products up to 512 tokens, both in one group."""
    import numpy as np

    del relatives
    for (dtype, gpu, engine), whole in _groups(rows, ["bmm_dtype", "gpu", "engine"]):
        group = whole[_array(whole, "num_tokens") <= MAX_TOKENS]
        if group.empty:
            continue
        heads, tokens = _array(group, "num_heads"), _array(group, "num_tokens")
        yield LayerSamples(
            operation="products", gpu=gpu, engine=_engine(engine), format=dtype,
            time_s=_array(group, "latency_us") * 1e-6, part=np.full(len(group), "all"),
            shape=_shape(heads),
            model_of=_product_of,
            shipped=_shipped(product_model, profile_of, gpu, _engine(engine), dtype),
            predict=_product_predictor(heads, tokens),
            fitted=("all",), judged="all",
            held_out_by="heads", version=_version(group),
        )  # fmt: skip


def _product_of(constants: Constants) -> ProductModel:
    return ProductModel(
        engine="", basis="", band90=(1, 1), t0_s=constants["t0_s"], head_s=constants["head_s"],
        token_scale=constants["token_scale"],
    )  # fmt: skip


def _product_predictor(heads: FloatArray, tokens: FloatArray) -> Callable[[ProductModel, Any], Any]:
    def predict(model: ProductModel, rows: Any) -> Any:
        return product_time(model, tokens[rows], heads[rows]).time_s

    return predict


def recurrent_samples(
    rows: pd.DataFrame, profile_of: ProfileOf, relatives: Sequence[HardwareProfile]
) -> Iterator[LayerSamples]:
    """Convolution and update of gated-delta and Kimi-delta layers, two rows each.

    Parts: convolution; start (a state under a megabyte), update (over the L2), l2 between them.
    """
    import numpy as np

    names = rows["kernel"]
    is_kda = bool(names.str.contains("kda").any())
    kind = "kimi_delta" if is_kda else "gated_delta"
    is_update = names.str.startswith("fused_recurrent")
    chosen = rows[is_update | (names == "causal_conv1d_update")]
    for (gpu, engine), group in _groups(chosen, ["gpu", "engine"]):
        key_heads, value_heads = _array(group, "num_k_heads"), _array(group, "num_v_heads")
        key_dim, value_dim = _array(group, "head_k_dim"), _array(group, "head_v_dim")
        batch = _array(group, "batch")
        scalar_bytes = STATE_BYTES.get(_engine(engine), 4)
        state = value_heads * key_dim * value_dim * scalar_bytes * 2 * batch
        channels = 2 * key_heads * key_dim + value_heads * value_dim
        conv = conv_update_bytes(channels, _array(group, "d_conv"), batch)
        part = np.where(state / 2 > _l2_of(profile_of, gpu, relatives), "update", "l2")
        part = np.where(state < START_BYTES, "start", part)
        part = np.where(group["kernel"] == "causal_conv1d_update", "convolution", part)
        yield LayerSamples(
            operation="recurrent", gpu=gpu, engine=_engine(engine), format=kind,
            time_s=_array(group, "latency_us") * 1e-6, part=part,
            shape=_shape(key_heads, value_heads),
            model_of=_recurrent_of(profile_of, gpu, kind),
            shipped=_shipped(recurrent_model, profile_of, gpu, _engine(engine), kind),
            predict=_recurrent_predictor(part, state, conv),
            fitted=("convolution", "start", "update"), judged="update", held_out_by="heads",
            version=_version(group),
        )  # fmt: skip


def _recurrent_of(
    profile_of: ProfileOf, gpu: str, kind: str
) -> Callable[[Constants], RecurrentModel]:
    def model_of(constants: Constants) -> RecurrentModel:
        bandwidth = profile_of(gpu).mem_bandwidth_bytes_per_s
        return RecurrentModel(
            engine="", basis="", band90=(1, 1), kind=kind, t0_s=constants["t0_s"],
            bytes_per_s=constants["beta"] * bandwidth, conv_t0_s=constants["conv_t0_s"],
            conv_bytes_per_s=constants["conv_beta"] * bandwidth,
        )  # fmt: skip

    return model_of


def _recurrent_predictor(
    part: npt.NDArray[Any], state: Any, conv: Any
) -> Callable[[RecurrentModel, Any], Any]:
    def predict(model: RecurrentModel, rows: Any) -> Any:
        import numpy as np

        none = 0.0 * state[rows]
        update_s: Any = recurrent_time(model, state[rows], none).time_s
        conv_s: Any = recurrent_time(model, none, conv[rows]).time_s
        is_conv = part[rows] == "convolution"
        return np.where(is_conv, conv_s - model.t0_s, update_s - model.conv_t0_s)

    return predict


def mamba2_samples(
    rows: pd.DataFrame, profile_of: ProfileOf, relatives: Sequence[HardwareProfile]
) -> Iterator[LayerSamples]:
    """Convolutions of Mamba-2 layers; their state update was not measured."""
    import numpy as np

    del relatives
    for (gpu, engine), group in _groups(rows, ["gpu", "engine"]):
        channels = (
            _array(group, "nheads") * _array(group, "head_dim")
            + 2 * _array(group, "n_groups") * _array(group, "d_state")
        )  # fmt: skip
        conv = conv_update_bytes(channels, _array(group, "d_conv"), _array(group, "batch"))
        part = np.full(len(group), "convolution")
        yield LayerSamples(
            operation="recurrent", gpu=gpu, engine=_engine(engine), format="mamba2",
            time_s=_array(group, "latency_us") * 1e-6, part=part, shape=_shape(channels),
            model_of=_recurrent_of(profile_of, gpu, "mamba2"),
            shipped=_shipped(recurrent_model, profile_of, gpu, _engine(engine), "mamba2"),
            predict=_recurrent_predictor(part, 0.0 * conv, conv),
            fitted=("convolution",), judged="convolution", held_out_by="shapes",
            version=_version(group),
        )  # fmt: skip


# Implementations that engines take in decode, the first where several were measured.
DECODE_EXCHANGES = (
    "deepep_low_latency", "trtllm_NVLinkOneSided_nvfp4", "trtllm_NVLinkTwoSided_nvfp4",
)  # fmt: skip
MIN_TOP_K = 6  # fewer experts a token touch fewer ranks


def exchange_samples(
    rows: pd.DataFrame, profile_of: ProfileOf, relatives: Sequence[HardwareProfile]
) -> Iterator[LayerSamples]:
    """Preparation, dispatch and combine of one exchange, added; up to 512 tokens of a rank."""
    del relatives
    wanted = (
        rows["implementation"].isin(DECODE_EXCHANGES)
        & rows["op"].isin(["prepare", "dispatch", "combine"])
        & (rows["topk"] >= MIN_TOP_K) & (rows["num_tokens"] <= MAX_TOKENS) & rows["ranks"].notna()
    )  # fmt: skip
    keys = ["gpu", "engine", "engine_version", "implementation", "node_num", "ranks"]
    call = ["hidden_size", "num_tokens", "topk", "num_experts"]
    chosen = rows[wanted].copy()
    chosen["node_num"] = chosen["node_num"].fillna(1)
    table = chosen.pivot_table(index=keys + call, columns="op", values="latency_us")
    whole = table[table["dispatch"].notna() & table["combine"].notna()].sum(axis=1)
    sums = whole.rename("latency_us").reset_index()
    for key, group in _groups(sums, keys):
        gpu, engine, version, implementation, nodes, ranks = key
        yield _exchange_group(
            group, profile_of, gpu, _engine(engine), implementation, int(ranks), int(nodes), version
        )


def _exchange_group(
    group: pd.DataFrame, profile_of: ProfileOf, gpu: str, engine: str, implementation: str,
    ranks: int, nodes: int, version: str,
) -> LayerSamples:  # fmt: skip
    import numpy as np

    tokens, hidden = _array(group, "num_tokens"), _array(group, "hidden_size")
    width = hidden.max()

    return LayerSamples(
        operation="exchanges", gpu=gpu, engine=engine, format=f"{implementation} {ranks}x{nodes}",
        time_s=_array(group, "latency_us") * 1e-6, part=np.full(len(group), "all"),
        shape=_shape(*(_array(group, c) for c in ("hidden_size", "num_tokens"))),
        model_of=lambda constants: ExchangeModel(
            engine="", basis="", band90=(1, 1), t0_s=constants["t0_s"],
            scalar_s=constants["token_s"] / width,
        ),
        shipped=_shipped(exchange_model, profile_of, gpu, engine, ranks=ranks, nodes=nodes),
        predict=lambda model, rows: exchange_time(model, tokens[rows], hidden[rows]).time_s,
        fitted=("all",), judged="all", held_out_by="rows", version=version,
        fields={"implementation": implementation, "ranks": ranks, "nodes": nodes,
                "hidden_size": int(width)},
    )  # fmt: skip


MAX_MESSAGE_BYTES = 16 * 2**20
HIDDEN_SIZE = 7168


def collective_samples(
    rows: pd.DataFrame, profile_of: ProfileOf, relatives: Sequence[HardwareProfile]
) -> Iterator[LayerSamples]:
    """vLLM's exchange: an all-gather of all ranks' tokens and a reduce-scatter of their outputs.

    A message is the whole tensor of all ranks; tokens are counted at a width of 7168 in 16 bit.
    """
    del relatives
    wanted = (
        (rows["library"] == "nccl") & (rows["dtype"] == "half")
        & rows["op"].isin(["all_gather", "reduce_scatter"])
        & (rows["message_bytes"] <= MAX_MESSAGE_BYTES)
    )  # fmt: skip
    table = rows[wanted].pivot_table(
        index=["gpu", "num_gpus", "library_version", "message_bytes"], columns="op",
        values="latency_us",
    )  # fmt: skip
    sums = table.dropna().sum(axis=1).rename("latency_us").reset_index()
    for (gpu, ranks, version), group in _groups(sums, ["gpu", "num_gpus", "library_version"]):
        tokens = group["message_bytes"] / (2 * HIDDEN_SIZE * ranks)
        call = group.assign(num_tokens=tokens, hidden_size=float(HIDDEN_SIZE))
        yield _exchange_group(
            call,
            profile_of,
            gpu,
            "vllm",
            "all_gather_reduce_scatter",
            int(ranks),
            1,
            f"nccl {version}",
        )


Builder = Callable[["pd.DataFrame", ProfileOf, Sequence[HardwareProfile]], Iterator[LayerSamples]]
BUILDERS: dict[str, Builder] = {
    "matrices": matrix_samples, "experts": expert_samples, "products": product_samples,
    "recurrent": recurrent_samples, "mamba2": mamba2_samples, "exchanges": exchange_samples,
    "collectives": collective_samples,
}  # fmt: skip


# Widths of the models that small kernels were measured in: hidden size, query heads, key heads,
# head dim, width between the matrices, vocabulary.
_MEASURED_MODELS = {
    "Llama-3.1-8B": (4096, 32, 8, 128, 14336, 128256),
    "Qwen3-30B-A3B-Instruct-2507": (2048, 32, 4, 128, 768, 151936),
    "Qwen3-32B": (5120, 64, 8, 128, 25600, 151936),
}
_WIDTH_OF = {
    "norm": "hidden size", "rotary": "query and key scalars of this GPU",
    "activation": "scalars between the matrices on this GPU",
    "qk_norm": "query and key scalars", "embedding": "hidden size", "sampler": "vocabulary",
}  # fmt: skip
_KIND_OF = {"final_norm": "norm"}
MAX_SAMPLED = 128
MAX_SMALL_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class SmallKernelSamples:
    """Calls of one kind of small kernel on every GPU that has it."""

    kind: str
    width_of: str
    tokens: FloatArray
    width: FloatArray
    time_s: FloatArray
    model: npt.NDArray[Any]
    gpu: npt.NDArray[Any]

    def fit(self) -> LayerFit:
        """Constants of all rows, with errors of models left out."""
        from lrkv_plan.calibration.layer_fit import fit_small_kernel

        return fit_small_kernel(self)


def small_kernel_samples(measured: Measured) -> Iterator[SmallKernelSamples]:
    """Fused small kernels of the models whose widths are known, by kind."""
    import numpy as np

    if measured.table.operation != "small_kernels":
        return
    rows = measured.rows
    known = rows["model"].isin(list(_MEASURED_MODELS)) & (rows["mode"] == "fused")
    rows = rows[known].assign(kind=rows["op"].replace(_KIND_OF))
    for kind, told in _WIDTH_OF.items():
        most = MAX_SAMPLED if kind == "sampler" else MAX_SMALL_TOKENS
        group = rows[(rows["kind"] == kind) & (rows["tokens"] <= most)]
        pairs = zip(group["model"], group["tp"], strict=True)
        width = np.array([_small_width(kind, model, int(tp)) for model, tp in pairs], dtype=float)
        group = group.assign(width=width).drop_duplicates(
            ["gpu", "model", "op", "tokens", "width", "latency_us"]
        )
        if group.empty:
            continue
        yield SmallKernelSamples(
            kind=kind, width_of=told, tokens=_array(group, "tokens"),
            width=_array(group, "width"), time_s=_array(group, "latency_us") * 1e-6,
            model=group["model"].to_numpy(), gpu=group["gpu"].to_numpy(),
        )  # fmt: skip


def _small_width(kind: str, model: str, tp: int) -> int:
    hidden, heads, kv_heads, head_dim, inter, vocabulary = _MEASURED_MODELS[model]
    attended = (heads + kv_heads) * head_dim
    return {
        "norm": hidden, "rotary": attended // tp, "activation": inter // tp, "qk_norm": attended,
        "embedding": hidden, "sampler": vocabulary,
    }[kind]  # fmt: skip
