"""How a model is served: GPUs along each kind of parallelism, engine, settings, workload."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from fractions import Fraction

from lrkv_plan.errors import PlacementError, UsageError, shown
from lrkv_plan.specs.model import ModelSpec

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings by the engines' own meaning.

    ``context_tokens`` is the engine's maximum length per sequence. ``page_tokens`` None takes the
    engine's default. ``draft_layers`` are attention layers of a speculative draft that share the
    pool, ``draft_tokens`` the tokens it proposes; ``drafter`` is a draft model of its own shape.
    Those below ``encoder_tokens`` are named as the engines name them; None takes their default.
    ``shared_prefix_tokens`` are first tokens that all sequences have in common, ``kv_offload`` the
    host memory of one replica for caches that do not run. [bytes]
    """

    context_tokens: int
    kv_dtype: str = "bf16"
    page_tokens: int | None = None
    max_batched_tokens: int = 8192
    draft_layers: int = 0
    draft_tokens: int = 0
    prefix_cache: bool = False
    encoder_tokens: int | None = None
    drafter: ModelSpec | None = None
    max_num_seqs: int | None = None
    mamba_ssm_cache_dtype: str | None = None
    max_mamba_cache_size: int | None = None
    mamba_full_memory_ratio: Fraction | None = None
    mamba_scheduler_strategy: str | None = None
    disable_radix_cache: bool = False
    swa_full_tokens_ratio: Fraction | None = None
    no_kv_unified: bool = False
    cross_kv_cache_fraction: Fraction | None = None
    limit_mm_per_prompt: str | None = None
    shared_prefix_tokens: int = 0
    max_loras: int = 0
    max_lora_rank: int | None = None
    kv_offload: int | None = None
    n_gpu_layers: int | None = None
    cpu_offload_gb: Fraction | None = None
    disable_hybrid_kv_cache_manager: bool = False
    disable_hybrid_swa_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineName:
    """An engine and its version; no version means the newest rules that are known."""

    name: str
    version: Version | None = None

    def __str__(self) -> str:
        version = ".".join(map(str, self.version)) if self.version else ""
        return f"{self.name}@{version}" if version else self.name

    def at_least(self, *version: int) -> bool:
        """Whether the engine is at least that version; an unstated version is the newest."""
        return self.version is None or self.version >= version


_TEXT = re.compile(r"([A-Za-z_.0-9-]+?)(?:@v?(\d{1,4}(?:\.\d{1,4}){0,3})(?:[.a-z+-].*)?)?")


def parse_engine(text: str) -> EngineName:
    """``vllm`` or ``vllm@0.11.0`` as written; suffixes such as rc1 are dropped.

    Whether there is such an engine is for ``serving.engine.engine_named`` to say.

    Raises
    ------
    UsageError
        If the text is not a name with an optional version.

    Examples
    --------
    >>> parse_engine("vllm@0.11.0")
    EngineName(name='vllm', version=(0, 11, 0))
    """
    match = _TEXT.fullmatch(text.strip()) if len(text) < 60 else None
    if match is None:
        raise UsageError(f"engine {shown(text)}: write a name and perhaps a version, vllm@0.11.0")
    name = plain_name(match[1])
    version = tuple(int(part) for part in match[2].split(".")) if match[2] else None
    return EngineName(name=name, version=version)


def plain_name(text: str) -> str:
    """An engine's name in lower case with underscores: ``llama.cpp`` is ``llama_cpp``."""
    return text.lower().replace("-", "_").replace(".", "_")


MAX_GPUS_PER_KIND = 65_536
SIZES = ("tp_size", "pp_size", "dp_size", "ep_size", "dcp_size")  # GPUs of each kind of parallelism


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """GPUs along each kind of parallelism.

    ``tp_size`` GPUs slice every layer, ``pp_size`` stages share the layers, ``dp_size`` copies
    serve different requests. ``ep_size`` GPUs hold whole experts: 1 means that experts are sliced
    over ``tp_size`` like everything else, a divisor of ``tp_size`` that each expert is sliced over
    the rest (SGLang, TensorRT-LLM), a multiple up to ``tp_size * dp_size`` that attention copies
    share one set of experts (vLLM). ``dcp_size`` of the ``tp_size`` GPUs share the tokens of a
    cache that would otherwise be repeated. Expert and context parallelism use GPUs that tensor and
    data parallelism already count. ``pp_layers`` are the layers of each stage; None deals them out
    as evenly as ``pipeline_stages`` says.

    Raises
    ------
    PlacementError
        If a size is not a whole number from 1 up, or ``ep_size``, ``dcp_size`` or ``pp_layers``
        does not fit.

    Examples
    --------
    >>> Parallelism(tp_size=4, pp_size=2).n_gpus
    8
    """

    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    dcp_size: int = 1
    pp_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "pp_layers":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise PlacementError(f"{field.name} {value!r}: must be a whole number")
            if not 1 <= value <= MAX_GPUS_PER_KIND:
                raise PlacementError(f"{field.name} {value}: must be from 1 to {MAX_GPUS_PER_KIND}")
        if self.pp_layers is not None and len(self.pp_layers) != self.pp_size:
            raise PlacementError(
                f"pp_layers {_listed(self.pp_layers)}: {len(self.pp_layers)} stages, but pp_size "
                f"is {self.pp_size}; name the layers of each stage"
            )
        tp_size, ep_size = self.tp_size, self.ep_size
        if (tp_size * self.dp_size) % ep_size or (tp_size % ep_size and ep_size % tp_size):
            raise PlacementError(
                f"ep_size {ep_size}: must divide tp_size * dp_size = {tp_size * self.dp_size}, and "
                f"divide tp_size {tp_size} or be a multiple of it"
            )
        if tp_size % self.dcp_size:
            raise PlacementError(f"dcp_size {self.dcp_size}: must divide tp_size {tp_size}")

    @property
    def n_gpus(self) -> int:
        """All GPUs: tp_size * pp_size * dp_size. [GPUs]"""
        return self.tp_size * self.pp_size * self.dp_size

    @property
    def expert_slices(self) -> int:
        """GPUs that one expert's matrices are sliced over. [GPUs]"""
        return max(1, self.tp_size // self.ep_size)

    @property
    def ranks_per_expert_set(self) -> int:
        """Data-parallel copies that share one set of experts, and exchange tokens for it."""
        return max(1, self.ep_size // self.tp_size)


def _listed(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts))


def pipeline_stages(
    n_layers: int, pp_size: int, pp_layers: tuple[int, ...] | None = None
) -> tuple[range, ...]:
    """The layers that each of ``pp_size`` stages runs, in model order.

    Notes
    -----
    ``pp_layers`` where they are stated, the first stage's first: vLLM's VLLM_PP_LAYER_PARTITION
    (``get_pp_indices`` in vllm/distributed/utils.py), which must name every stage and every layer.
    Else L // P layers each, and the remainder one each to the stages before the last, from the
    back: the last stage also has the head (the same function, since 0.7).

    Raises
    ------
    PlacementError
        If there are fewer layers than stages, no stage, or stated layers are not all of them.

    Examples
    --------
    >>> [len(stage) for stage in pipeline_stages(30, 4)]
    [7, 8, 8, 7]
    >>> [len(stage) for stage in pipeline_stages(61, 8)]
    [7, 7, 8, 8, 8, 8, 8, 7]
    >>> pipeline_stages(48, 2, (32, 16))
    (range(0, 32), range(32, 48))
    """
    if not 1 <= pp_size <= n_layers:
        raise PlacementError(f"pp_size {pp_size}: must be from 1 to the model's {n_layers} layers")
    if pp_layers is not None:
        counts = list(pp_layers)
        if sum(counts) != n_layers or min(counts) < 1:
            raise PlacementError(
                f"pp_layers {_listed(pp_layers)}: add up to {sum(counts)}, but the model has "
                f"{n_layers} layers; every stage needs at least one"
            )
    else:
        each, remainder = divmod(n_layers, pp_size)
        counts = [each + (pp_size - 1 - remainder <= i < pp_size - 1) for i in range(pp_size)]
    starts = [sum(counts[:stage]) for stage in range(pp_size)]
    return tuple(range(a, a + n) for a, n in zip(starts, counts, strict=True))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sequences resident together, the storage format and the GPUs that share the model.

    ``encoder_tokens`` are the rows of cross-attention layers; None takes the spec's own number.
    """

    batch_size: int = 1
    kv_dtype: str = "bf16"
    tp_size: int = 1
    encoder_tokens: int | None = None
