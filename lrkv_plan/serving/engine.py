"""An engine is one record; engines by name, and the pool of a whole model.

A record says by what rule an engine lays out its cache, by what rule it takes memory for it, which
settings and kinds of parallelism it knows, and what it takes where nothing is stated. Records of
this package are the files of ``serving/engines``; those of other packages are named by their entry
points in the group ``lrkv_plan.engines``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lrkv_plan.errors import PlacementError, SpecError, UsageError, did_you_mean, shown
from lrkv_plan.formats import storage_format
from lrkv_plan.memory.exact import smaller
from lrkv_plan.memory.weights import layers_in_order
from lrkv_plan.serving.launch import Launch
from lrkv_plan.serving.log import LogFormat
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import (
    SIZES,
    EngineName,
    EngineSettings,
    Parallelism,
    Version,
    parse_engine,
    pipeline_stages,
    plain_name,
)
from lrkv_plan.specs.model import LayerGroup, ModelSpec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from lrkv_plan.serving.budget import BudgetInputs, MemoryBudget

PoolRule = Callable[..., Pool]
BudgetRule = Callable[["BudgetInputs"], "MemoryBudget"]
SplitRule = Callable[[int, "tuple[int, ...]"], "tuple[int, ...]"]
LaunchRule = Callable[[Launch], "list[str]"]
T = TypeVar("T")

ENTRY_POINT_GROUP = "lrkv_plan.engines"
ALL_SIZES = frozenset(SIZES)
# Settings that only some engines' rules read; all read the others.
SETTINGS = (
    "page_tokens", "max_batched_tokens", "prefix_cache", "drafter", "max_num_seqs",
    "mamba_ssm_cache_dtype", "max_mamba_cache_size", "mamba_full_memory_ratio",
    "mamba_scheduler_strategy", "disable_radix_cache", "swa_full_tokens_ratio", "no_kv_unified",
    "cross_kv_cache_fraction", "limit_mm_per_prompt", "shared_prefix_tokens", "max_loras",
    "max_lora_rank", "kv_offload", "n_gpu_layers", "cpu_offload_gb",
    "disable_hybrid_kv_cache_manager", "disable_hybrid_swa_memory",
)  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class ByVersion(Generic[T]):
    """A value that changed with a version: what it was at first, and from which version on.

    Examples
    --------
    >>> page = ByVersion(64, {(1,): 32})
    >>> page.of(parse_engine("tensorrt_llm@0.20")), page.of(parse_engine("tensorrt_llm"))
    (64, 32)
    """

    first: T
    since: Mapping[Version, T] = field(default_factory=dict)

    def of(self, engine: EngineName) -> T:
        """The value of that version; of the newest where none is stated."""
        reached = [version for version in self.since if engine.at_least(*version)]
        return self.since[max(reached)] if reached else self.first


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What is known of one engine.

    Parameters
    ----------
    name : as ``--engine`` takes it, in lower case with underscores.
    about : one line that tells it from the others.
    pool : (model, budget_bytes, settings, *, engine, tp_size, dcp_size) -> ``Pool``; the layers of
        one pipeline stage on one of its GPUs. ``settings.page_tokens`` is never None where
        ``page_tokens`` is given.
    budget : ``BudgetInputs`` -> ``MemoryBudget``.
    aliases : other names.
    before : (version, name): earlier versions are the engine of that name.
    utilisation : the fraction of memory that it takes where none is stated.
    utilisation_doubt : what is not certain about that fraction.
    page_tokens : tokens of a page where none are stated; None has no pages, or none to state.
    sizes : kinds of parallelism that it runs.
    reads : settings of ``SETTINGS`` that its rules read.
    small_kv_dtypes : its cache formats of about 8 bits. Advice names the first.
    small_weight_dtype : the weight format that advice names; None names none.
    steps_of : the engine whose step times stand for it; None has its own.
    layer_split : what it calls the layers of each pipeline stage; None deals them out evenly only.
    pools_whole : whether its pool rule also takes ``whole``, the model and settings that a pipeline
        stage is a part of.
    joins_vendors : whether one server runs on GPUs of several vendors.
    on_gpus : (model, settings) -> the model with the layers that lie on GPUs; None: all do.
    split_layers : (layers, memory of each stage's GPU) -> layers of each stage where none are
        stated; None is ``pipeline_stages``.
    log : how its log is written; None is not read.
    launch : ``Launch`` -> the words of its own command line; None has none.

    Raises
    ------
    SpecError
        If the name, a size or a setting is none.
    """

    name: str
    about: str
    pool: PoolRule
    budget: BudgetRule
    aliases: tuple[str, ...] = ()
    before: tuple[Version, str] | None = None
    utilisation: ByVersion[Fraction] = field(default_factory=lambda: ByVersion(Fraction(1)))
    utilisation_doubt: str | None = None
    page_tokens: ByVersion[int] | None = None
    sizes: frozenset[str] = ALL_SIZES
    reads: frozenset[str] = frozenset()
    small_kv_dtypes: tuple[str, ...] = ("fp8", "fp8_ds_mla")
    small_weight_dtype: str | None = "fp8"
    steps_of: str | None = None
    layer_split: str | None = None
    split_layers: SplitRule | None = None
    pools_whole: bool = False
    joins_vendors: bool = False
    on_gpus: Callable[[ModelSpec, EngineSettings], ModelSpec] | None = None
    log: LogFormat | None = None
    launch: LaunchRule | None = None

    def __post_init__(self) -> None:
        for name in (self.name, *self.aliases):
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise SpecError(f"engine {shown(name)}: a name has letters, digits and _: 'vllm'")
        for what, given, known in (
            ("sizes", self.sizes, ALL_SIZES), ("reads", self.reads, SETTINGS),
        ):  # fmt: skip
            if unknown := sorted(set(given).difference(known)):
                raise SpecError(
                    f"engine {self.name}: {what}: {', '.join(unknown)} unknown; known: "
                    f"{', '.join(sorted(known))}"
                )

    def told(self, settings: EngineSettings, engine: EngineName) -> EngineSettings:
        """The settings with the engine's own page where none is stated."""
        if self.page_tokens is None or settings.page_tokens is not None:
            return settings
        return replace(settings, page_tokens=self.page_tokens.of(engine))


@functools.cache
def built_in_engines() -> dict[str, Engine]:
    """The records of this package, by name."""
    from lrkv_plan.serving import engines

    files = [f"{engines.__name__}.{found.name}" for found in pkgutil.iter_modules(engines.__path__)]
    records = [importlib.import_module(name).ENGINE for name in files]
    return {record.name: record for record in records}


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    """Engines of installed packages, by name and not yet loaded; looked for once, when asked."""
    from importlib.metadata import entry_points

    points = {plain_name(point.name): point for point in entry_points(group=ENTRY_POINT_GROUP)}
    return {name: point for name, point in points.items() if _built_in(name) is None}


@functools.cache
def _outside(name: str) -> Engine:
    """The record that another package's entry point names.

    Raises
    ------
    SpecError
        If it cannot be loaded, or is no record of that name.
    """
    point = _entry_points()[name]
    package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    where = f"engine {name}{package} ({point.value})"
    try:
        record = point.load()
    except Exception as error:
        raise SpecError(f"{where}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(record, Engine):
        raise SpecError(f"{where}: must be an lrkv_plan.serving.engine.Engine, not {shown(record)}")
    if record.name != name:
        raise SpecError(f"{where}: its record is named {record.name!r}; the names must be the same")
    return record


def log_formats() -> dict[str, LogFormat]:
    """How the logs of all engines are written, by name; a shared format once."""
    records = [*built_in_engines().values(), *_working()]
    found: dict[str, LogFormat] = {}
    for record in records:
        if record.log is not None and record.log not in found.values():
            found[record.name] = record.log
    return found


def timed_as(engine: EngineName) -> EngineName:
    """The engine whose step times stand for this one."""
    stands_in = engine_record(engine.name).steps_of
    return engine if stands_in is None else EngineName(name=stands_in)


def engine_names() -> tuple[str, ...]:
    """Names of all engines, those of other packages last."""
    return (*sorted(built_in_engines()), *sorted(_entry_points()))


def _built_in(name: str) -> Engine | None:
    return _called(name, built_in_engines().values())


def _working() -> Iterator[Engine]:
    """Engines of other packages, without the broken ones: those are told to who asks for them."""
    for name in _entry_points():
        with contextlib.suppress(SpecError):
            yield _outside(name)


def _called(name: str, records: Iterable[Engine]) -> Engine | None:
    return next((one for one in records if name in (one.name, *one.aliases)), None)


def engine_record(name: str) -> Engine:
    """What is known of the engine of that name or alias.

    Other packages are looked into only for names that this one does not have.

    Raises
    ------
    UsageError
        If there is none; the message lists them.
    SpecError
        If it is another package's, and broken.
    """
    if (own := _built_in(name)) is not None:
        return own
    if name in _entry_points():
        return _outside(name)
    if (other := _called(name, _working())) is not None:
        return other
    names = engine_names()
    raise UsageError(
        f"engine {shown(name)} is unknown{did_you_mean(name, names)}; known: {', '.join(names)}"
    )


def engine_named(text: str) -> EngineName:
    """The engine of ``--engine`` text, by its own name; vLLM before 0.8 is its V0 engine.

    Raises
    ------
    UsageError
        If no such engine is known; the message lists them.

    Examples
    --------
    >>> engine_named("vllm@0.6.3").name
    'vllm_v0'
    """
    engine = parse_engine(text)
    record = engine_record(engine.name)
    if record.before is not None and not engine.at_least(*record.before[0]):
        record = engine_record(record.before[1])
    return replace(engine, name=record.name)


def check_layout(model: ModelSpec, engine: EngineName, parallel: Parallelism) -> None:
    """Refuse sizes that the engine does not run, or that nothing in the model is dealt out by.

    Raises
    ------
    PlacementError
        Naming the sizes.
    """
    sizes = engine_record(engine.name).sizes
    used = [name for name in sorted(ALL_SIZES) if getattr(parallel, name) > 1]
    unknown = [name for name in used if name not in sizes]
    if unknown:
        runs = "".join(f"--{name.replace('_', '-')}, " for name in sorted(sizes))
        raise PlacementError(
            f"{engine.name} does not run {', '.join(unknown)} above 1; it runs "
            f"{f'{runs}and ' if runs else ''}replicas (--n-gpus)"
        )
    split = engine_record(engine.name).layer_split
    if parallel.pp_layers is not None and split is None:
        told = ",".join(map(str, parallel.pp_layers))
        raise PlacementError(
            f"pp_layers {told}: {engine.name} deals layers out evenly; leave --pp-layers out"
        )
    is_stated = all(group.feed_forward is not None for group in model.layers)
    if parallel.ep_size > 1 and is_stated and not model.has_experts:
        raise PlacementError(f"ep_size {parallel.ep_size}: {model.name} has no experts to deal out")


def stage_models(model: ModelSpec, parallel: Parallelism) -> tuple[ModelSpec, ...]:
    """The layers of each pipeline stage as a model of their own.

    Raises
    ------
    PlacementError
        If there are fewer layers than stages, or stated layers are not all of them.
    """
    if parallel.pp_size == 1:
        return (model,)
    layers = layers_in_order(model)
    stages = pipeline_stages(len(layers), parallel.pp_size, parallel.pp_layers)
    return tuple(layers_of(model, layers[stage.start : stage.stop]) for stage in stages)


def layers_of(model: ModelSpec, layers: Sequence[Sequence[LayerGroup]]) -> ModelSpec:
    """The model with those layers only, each as its groups."""
    counts = Counter(id(group) for layer in layers for group in layer)
    groups = {id(group): group for layer in layers for group in layer}
    kept = tuple(group.model_copy(update={"count": counts[key]}) for key, group in groups.items())
    return model.model_copy(update={"layers": kept, "layer_order": None})


def pool_of(
    model: ModelSpec,
    stage_budgets_bytes: tuple[int, ...],
    settings: EngineSettings,
    *,
    engine: EngineName,
    parallel: Parallelism,
) -> Pool:
    """The pool of one engine replica: that of the stage with the fewest sequences, then tokens.

    Parameters
    ----------
    stage_budgets_bytes : the cache budget of one GPU of each pipeline stage. [bytes]

    Raises
    ------
    PlacementError
        As ``check_layout`` and the engine's rule.
    SpecError
        If no layer keeps a cache or a state.

    Notes
    -----
    All stages hold the same sequences (vLLM: every worker takes the fewest blocks of any,
    ``get_kv_cache_configs`` in vllm/v1/core/kv_cache_utils.py). Draft layers run on the last stage.
    """
    pools = stage_pools(model, stage_budgets_bytes, settings, engine=engine, parallel=parallel)
    return fewest_of(model, pools, stage_budgets_bytes, settings)


def fewest_of(
    model: ModelSpec,
    pools: Sequence[Pool | None],
    stage_budgets_bytes: Sequence[int],
    settings: EngineSettings,
) -> Pool:
    """The stage's pool that decides for the replica.

    Raises
    ------
    SpecError
        If no layer keeps a cache or a state.
    """
    kept = [pool for pool in pools if pool is not None]
    if not kept:
        raise SpecError(f"{model.name}: no layer keeps a cache or a state, so there is no pool")
    fewest = min(kept, key=_fewest)
    if len(kept) > 1:  # at another context another stage may decide
        fewest = replace(fewest, sequences_at=None)
    fewest = capped(fewest, settings.max_num_seqs, "most sequences allowed")
    if any(
        pool is None and left < 0 for pool, left in zip(pools, stage_budgets_bytes, strict=True)
    ):
        return capped(fewest, 0, "weights and runtime leave no memory")
    return fewest


def stage_pools(
    model: ModelSpec,
    stage_budgets_bytes: tuple[int, ...],
    settings: EngineSettings,
    *,
    engine: EngineName,
    parallel: Parallelism,
) -> tuple[Pool | None, ...]:
    """The pool of one GPU of each pipeline stage; None where no layer keeps a cache or a state.

    Raises
    ------
    PlacementError
        As ``check_layout`` and the engine's rule.
    """
    check_layout(model, engine, parallel)
    record = engine_record(engine.name)
    settings = record.told(settings, engine)
    whole = model.cached_in(storage_format(settings.kv_dtype))
    stages = stage_models(whole, parallel)
    more = {"whole": (whole, settings)} if record.pools_whole and len(stages) > 1 else {}
    pools: list[Pool | None] = []
    for index, (stage, budget) in enumerate(zip(stages, stage_budgets_bytes, strict=True)):
        is_last = index == len(stages) - 1
        told = settings if is_last else replace(settings, draft_layers=0, drafter=None)
        if not _keeps_anything(stage):
            pools.append(None)
            continue
        pool = record.pool(
            stage, max(0, budget), told, engine=engine,
            tp_size=parallel.tp_size, dcp_size=parallel.dcp_size, **more,
        )  # fmt: skip
        pools.append(replace(pool, stage=index))
    return tuple(pools)


def capped(
    pool: Pool,
    n_sequences: int | None,
    binds: str,
    *,
    at: Callable[[Any], Any] | None = None,
) -> Pool:
    """The pool where no more sequences run together; ``binds`` names what limits them then.

    ``at`` is the limit at other contexts, for arrays, where it depends on them.
    """
    if n_sequences is None:
        return pool
    held = pool.sequences_at
    if held is not None:
        pool = replace(
            pool,
            sequences_at=lambda contexts: smaller(
                held(contexts), n_sequences if at is None else at(contexts)
            ),
        )
    if n_sequences >= pool.max_sequences:
        return pool
    return replace(
        pool, max_sequences=n_sequences, binds=binds,
        max_concurrency=min(pool.max_concurrency, Fraction(n_sequences)),
    )  # fmt: skip


def _fewest(pool: Pool) -> Any:
    return (pool.max_concurrency, pool.kv_tokens)


def _keeps_anything(stage: ModelSpec) -> bool:
    return any(g.state or (g.attention is not None and not g.reuses_cache) for g in stage.layers)
