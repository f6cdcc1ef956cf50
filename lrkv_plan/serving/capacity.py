"""How many tokens and sequences fit: designs times deployments, a row each or why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.families.grouped import fewest_kv_heads
from lrkv_plan.attention.families.latent import narrowest_latent
from lrkv_plan.attention.families.low_rank import plain_low_rank
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.errors import PlacementError, PlanError, RequirementError, UsageError
from lrkv_plan.memory.cache import ratio_to_mha
from lrkv_plan.memory.largest import aligned_size, largest, latent_bound_remark
from lrkv_plan.memory.population import PopulationAccount, account_population
from lrkv_plan.memory.prefixes import PrefixAccount, account_prefixes
from lrkv_plan.memory.weights import refuse_unbounded_weights, uncounted_weights
from lrkv_plan.serving.budget import MemoryBudget, budget_for, measured_budget
from lrkv_plan.serving.deployment import (
    Deployment,
    check_pool,
    checkpoint_remarks,
    known_weight_bytes,
    stage_weight_bytes,
)
from lrkv_plan.serving.engine import engine_record, fewest_of, pool_of, stage_pools
from lrkv_plan.serving.host_tier import host_tier
from lrkv_plan.serving.pool import Pool
from lrkv_plan.serving.stages import (
    StageRow,
    check_kinds,
    host_part,
    on_gpus,
    stage_rows,
    with_split,
)
from lrkv_plan.specs.deployment import EngineSettings
from lrkv_plan.specs.design import (
    as_stored,
    design_label,
    design_text,
    first_backbone,
    layers_of,
    sizes_of,
    swap_attention,
    with_size,
)
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import IntArray
    from lrkv_plan.specs.population import LengthCounts
    from lrkv_plan.specs.prefix_trace import PrefixTrace


@dataclass(frozen=True, kw_only=True)
class CapacityRow:
    """One design in one deployment. Bytes are per GPU on the one that decides.

    ``kv_tokens`` and ``max_concurrency`` are one engine core's, as it prints them;
    ``max_sequences`` counts full-length sequences of one core, which take ``blocks_per_sequence``
    each but for ``shared_prefix_blocks``, held once, ``total_sequences`` those of all
    GPUs. ``weights_left_out`` names parts that the budget does not count: what fits is then an
    upper bound. ``beyond_model_maximum`` marks a context that the model itself does not reach.
    ``stages`` are those of a pipeline, ``binding_stage`` (from 0) the one whose pool is the
    smallest, ``pp_layers`` the layers of each where they are not dealt out evenly. ``host_*`` is
    what layers take that the engine leaves to the host, ``offload_*`` a tier of its memory.
    """

    model: str
    attention: str
    gpu: str | None
    engine: str
    n_gpus: int
    tp_size: int
    pp_size: int
    dp_size: int
    ep_size: int
    dcp_size: int
    context_tokens: int
    kv_dtype: str
    kv_budget_bytes_per_gpu: int
    kv_budget_low_bytes_per_gpu: int
    kv_budget_high_bytes_per_gpu: int
    bytes_per_token_per_gpu: int | Fraction
    block_tokens: int
    block_bytes: int | Fraction
    n_blocks: int
    kv_tokens: int
    max_concurrency: Fraction
    blocks_per_sequence: int
    shared_prefix_blocks: int
    max_sequences: int
    total_tokens: int
    total_sequences: int
    waste_share: Fraction
    ratio_to_mha: Fraction | None
    binds: str
    usd_per_sequence_hour: float | None
    budget: MemoryBudget | None
    population: PopulationAccount | None
    prefixes: PrefixAccount | None
    weights_left_out: tuple[str, ...]
    beyond_model_maximum: bool
    host_weight_bytes: int | None
    host_bytes_per_sequence: int | None
    pp_layers: tuple[int, ...] | None
    binding_stage: int | None
    stages: tuple[StageRow, ...]
    offload_sequences: int | None
    offload_tokens: int | None
    offload_bytes_per_sequence: int | None
    offload_restore_s: float | None
    remarks: tuple[str, ...]


def capacity_row(
    model: ModelSpec,
    deployment: Deployment,
    *,
    lengths: IntArray | LengthCounts | None = None,
    prefixes: PrefixTrace | None = None,
) -> CapacityRow:
    """What fits of one design.

    Parameters
    ----------
    model : the design is the model's own.
    lengths : a population of uneven lengths in arrival order or as counted, accounted beside equal
        ones. [tokens]
    prefixes : requests that begin alike, accounted where the engine shares prefixes.

    Raises
    ------
    PlacementError
        If no engine can run the design on these GPUs.
    SpecError
        If the weights' size is not known from the spec and not given.
    UsageError
        If a stated pool exceeds the GPU's memory, or neither pool nor GPU is named.

    Notes
    -----
    All replicas and data-parallel cores are alike: total_sequences = replicas x dp_size x
    max_sequences.
    """
    hosted = host_part(as_stored(model, deployment.rank_alignment), deployment)
    known = _budgeted(model, deployment)
    pools, pool = _pooled(known, known.deployment.settings.context_tokens)
    stored, placed, deployment = known.stored, known.placed, known.deployment
    label, budget, stage_bytes = design_label(model), known.budget, known.stage_bytes
    parallel, settings = deployment.parallel, deployment.settings
    n_replicas = deployment.n_replicas
    if budget is not None:
        budget = replace(budget, decides=pool.stage)
    left = stage_bytes[pool.stage]
    cores = n_replicas * parallel.dp_size
    total = cores * pool.max_sequences
    n_gpus = n_replicas * parallel.n_gpus
    price = deployment.usd_per_gpu_hour
    tier = host_tier(pools, deployment)
    return CapacityRow(
        model=model.name,
        attention=label,
        gpu=deployment.gpu_name,
        engine=str(deployment.engine),
        n_gpus=n_gpus,
        tp_size=parallel.tp_size,
        pp_size=parallel.pp_size,
        dp_size=parallel.dp_size,
        ep_size=parallel.ep_size,
        dcp_size=parallel.dcp_size,
        context_tokens=settings.context_tokens,
        kv_dtype=settings.kv_dtype,
        kv_budget_bytes_per_gpu=left,
        kv_budget_low_bytes_per_gpu=left if budget is None else budget.deciding.kv_low_bytes,
        kv_budget_high_bytes_per_gpu=left if budget is None else budget.deciding.kv_high_bytes,
        bytes_per_token_per_gpu=pool.bytes_per_token_per_gpu,
        block_tokens=pool.block_tokens,
        block_bytes=pool.block_bytes,
        n_blocks=pool.n_blocks,
        kv_tokens=pool.kv_tokens,
        max_concurrency=pool.max_concurrency,
        blocks_per_sequence=int(pool.blocks_of(settings.context_tokens)),
        shared_prefix_blocks=pool.shared_blocks,
        max_sequences=pool.max_sequences,
        total_tokens=cores * pool.kv_tokens,
        total_sequences=total,
        waste_share=pool.waste_share,
        ratio_to_mha=ratio_to_mha(stored, kv_dtype=settings.kv_dtype),
        binds=_binds(min(stage_bytes), pool),
        usd_per_sequence_hour=price * n_gpus / total if price and total else None,
        budget=budget,
        population=None if lengths is None else _account(pool, lengths),
        prefixes=None if prefixes is None else _account_prefixes(pool, prefixes),
        weights_left_out=_left_out(model, deployment),
        beyond_model_maximum=settings.context_tokens > (model.max_context_tokens or 2**63),
        host_weight_bytes=None if hosted is None else hosted.weight_bytes,
        host_bytes_per_sequence=None if hosted is None else hosted.bytes_per_sequence,
        pp_layers=parallel.pp_layers,
        binding_stage=pool.stage if parallel.pp_size > 1 else None,
        stages=stage_rows(placed, deployment, stage_bytes, pools),
        offload_sequences=None if tier is None else tier.sequences,
        offload_tokens=None if tier is None else tier.tokens,
        offload_bytes_per_sequence=None if tier is None else tier.bytes_per_sequence,
        offload_restore_s=None if tier is None else tier.restore_s,
        remarks=(*pool.remarks, *checkpoint_remarks(deployment)),
    )


@dataclass(frozen=True, kw_only=True)
class _Budgeted:
    """A design as it is stored and as its GPUs hold it, and the memory that each stage leaves."""

    stored: ModelSpec
    placed: ModelSpec
    deployment: Deployment
    budget: MemoryBudget | None
    stage_bytes: tuple[int, ...]


def _budgeted(model: ModelSpec, deployment: Deployment) -> _Budgeted:
    check_pool(deployment)
    check_kinds(deployment)
    stored = as_stored(model, deployment.rank_alignment)
    placed = on_gpus(stored, deployment)
    deployment = with_split(placed, deployment)
    stated = deployment.kv_memory_bytes
    budget = None if stated is not None else _budget(stored, deployment)
    left = (stated or 0,) * deployment.parallel.pp_size
    return _Budgeted(
        stored=stored, placed=placed, deployment=deployment, budget=budget,
        stage_bytes=left if budget is None else budget.stage_kv_bytes_per_gpu,
    )  # fmt: skip


def _pooled(known: _Budgeted, context_tokens: int) -> tuple[tuple[Pool | None, ...], Pool]:
    """The pool of each stage, and the one that decides."""
    deployment = known.deployment
    settings = replace(deployment.settings, context_tokens=context_tokens)
    told = _told(known.stored, replace(deployment, settings=settings), known.budget)
    pools = stage_pools(
        known.placed, known.stage_bytes, told, engine=deployment.engine,
        parallel=deployment.parallel,
    )  # fmt: skip
    return pools, fewest_of(known.placed, pools, known.stage_bytes, told)


def _told(stored: ModelSpec, deployment: Deployment, budget: MemoryBudget | None) -> EngineSettings:
    """The settings with the state slots of the budget and the model's own encoder rows."""
    settings = deployment.settings
    if budget is not None and budget.state_slots is not None:
        settings = replace(settings, max_mamba_cache_size=budget.state_slots)
    if settings.encoder_tokens is None:
        settings = replace(settings, encoder_tokens=stored.encoder_tokens)
    return settings


def sequences_between(
    model: ModelSpec, deployment: Deployment, row: CapacityRow
) -> tuple[int, int]:
    """``total_sequences`` with every uncertain term of the budget at its worst and at its best."""
    if row.budget is None:
        return row.total_sequences, row.total_sequences
    stored = as_stored(model, deployment.rank_alignment)
    placed = on_gpus(stored, deployment)
    deployment = with_split(placed, deployment)
    settings, stages = _told(stored, deployment, row.budget), row.budget.stages
    pools = (
        pool_of(placed, tuple(of), settings, engine=deployment.engine, parallel=deployment.parallel)
        for of in ([s.kv_low_bytes for s in stages], [s.kv_high_bytes for s in stages])
    )
    cores = deployment.n_replicas * deployment.parallel.dp_size
    low, high = (cores * pool.max_sequences for pool in pools)
    return low, high


@dataclass(frozen=True, kw_only=True)
class HeldOver:
    """What ``capacity_row`` says at many contexts: two arrays, and what is alike at all of them."""

    max_sequences: IntArray
    kv_budget_bytes_per_gpu: IntArray
    bytes_per_token_per_gpu: int | Fraction


def held_over(model: ModelSpec, deployment: Deployment, contexts: IntArray) -> HeldOver:
    """What fits of one design at many contexts.

    Parameters
    ----------
    contexts : int64 array; it takes the place of the deployment's own. [tokens]

    Raises
    ------
    PlacementError, SpecError, UsageError
        As ``capacity_row``.

    Notes
    -----
    A budget rule that never reads the context gives the same budget at each: it is handed one that
    it cannot count with, and asked again at every context only where it tries.
    """
    import numpy as np

    def at(context: Any) -> _Budgeted:
        settings = replace(deployment.settings, context_tokens=context)
        return _budgeted(model, replace(deployment, settings=settings))

    try:
        each = [at(_UNREAD)] * len(contexts)
    except TypeError:
        each = [at(int(context)) for context in contexts]
    else:
        _, first = _pooled(each[0], int(contexts[0]))
        if first.sequences_at is not None:
            of_stage = each[0].stage_bytes[first.stage]
            return HeldOver(
                max_sequences=np.asarray(first.sequences_at(contexts), np.int64),
                kv_budget_bytes_per_gpu=np.full(contexts.shape, of_stage, np.int64),
                bytes_per_token_per_gpu=first.bytes_per_token_per_gpu,
            )
    pools = [_pooled(known, int(context))[1] for known, context in zip(each, contexts, strict=True)]
    left = [known.stage_bytes[pool.stage] for known, pool in zip(each, pools, strict=True)]
    return HeldOver(
        max_sequences=np.array([pool.max_sequences for pool in pools], np.int64),
        kv_budget_bytes_per_gpu=np.array(left, np.int64),
        bytes_per_token_per_gpu=pools[0].bytes_per_token_per_gpu,
    )


_UNREAD: Any = object()  # no number: a rule that counts with it raises TypeError


def largest_context(
    model: ModelSpec, deployment: Deployment, n_sequences: int = 1, *, end: int | None = None
) -> int | None:
    """The most tokens a sequence of which ``n_sequences`` fit on all GPUs; None where none fits.

    Searched up to ``MOST_CONTEXT_TOKENS``, which is the answer where a cache does not grow.

    Parameters
    ----------
    end : 0 with the budget at its worst, 1 at its best; as it is predicted when None.

    Raises
    ------
    PlacementError, SpecError, UsageError
        As ``capacity_row``.

    Notes
    -----
    A longer sequence never takes fewer pages and never leaves more memory, so what fits does not
    grow with the context, and bisection on ``capacity_row`` itself finds the last that does.
    """

    def unfit(tokens: int) -> Fraction:
        longer = replace(deployment, settings=replace(deployment.settings, context_tokens=tokens))
        row = capacity_row(model, longer)
        held = row.total_sequences if end is None else sequences_between(model, longer, row)[end]
        return Fraction(held < n_sequences)

    return largest(range(1, MOST_CONTEXT_TOKENS + 1), unfit, Fraction(0))


def _left_out(model: ModelSpec, deployment: Deployment) -> tuple[str, ...]:
    """Parts whose weights the budget leaves out; none where pool or weights are known."""
    if deployment.kv_memory_bytes is not None:
        return ()
    return () if known_weight_bytes(model, deployment) is not None else uncounted_weights(model)


def _budget(model: ModelSpec, deployment: Deployment) -> MemoryBudget:
    if deployment.hardware is None:
        raise UsageError("the memory is unknown: name the GPU (--gpu) or the pool (--kv-memory)")
    placed, own = on_gpus(model, deployment), None
    if deployment.checkpoint is not None:
        own = on_gpus(deployment.checkpoint.model, deployment)
    known = known_weight_bytes(placed, deployment, own=own)
    _refuse_one_for_all(deployment)
    if known is not None and deployment.measured is not None:
        return measured_budget(
            deployment.measured.budget, deployment.engine, deployment.parallel,
            utilisation=deployment.utilisation, weight_bytes=known,
        )  # fmt: skip
    if known is None:
        refuse_unbounded_weights(model)
    return budget_for(
        deployment.engine,
        placed,
        deployment.hardware,
        deployment.parallel,
        deployment.settings,
        utilisation=deployment.utilisation,
        weight_dtype=deployment.weight_dtype,
        weight_bytes=known,
        stage_weight_bytes=stage_weight_bytes(placed, deployment, own=own),
        max_sequences=deployment.settings.max_num_seqs,
        stage_hardware=deployment.stage_hardware,
    )


def _refuse_one_for_all(deployment: Deployment) -> None:
    """Refuse one figure for every stage where stages differ."""
    layers = deployment.parallel.pp_layers
    if not deployment.joined and (layers is None or len(set(layers)) == 1):
        return
    given = {"--weights": deployment.weight_bytes, "--budget-file": deployment.measured}
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"{option}: states one figure for every GPU, but the stages differ in layers or "
                "GPU; leave it out to have each stage counted"
            )


def _binds(budget_bytes: int, pool: Pool) -> str:
    if budget_bytes <= 0:
        return "weights and runtime leave no memory"
    if pool.max_sequences == 0:
        return "one sequence of this length exceeds the pool"
    return pool.binds


def _account(pool: Pool, lengths: IntArray | LengthCounts) -> PopulationAccount:
    def payload_of(tokens: IntArray) -> IntArray:
        # A pool shared by windows and full layers may allot a short sequence less than it uses.
        used: IntArray = pool.payload_of(tokens)
        return used.clip(max=pool.blocks_of(tokens) * int(pool.block_bytes))

    return account_population(
        lengths,
        blocks_of=pool.blocks_of,
        n_blocks=pool.n_blocks,
        block_bytes=int(pool.block_bytes),
        payload_bytes_of=payload_of,
    )


def _account_prefixes(pool: Pool, prefixes: PrefixTrace) -> PrefixAccount | None:
    if pool.prefix_blocks_of is None:
        return None
    return account_prefixes(
        prefixes, n_blocks=pool.n_blocks, block_bytes=int(pool.block_bytes),
        blocks_of=pool.blocks_of,
        prefix_blocks_of=pool.prefix_blocks_of, page_tokens=pool.prefix_tokens,
    )  # fmt: skip


MOST_CONTEXT_TOKENS = 2**30  # no model or trace comes near
MOST_TP_SIZE = 64  # the most GPUs of a kind that are advised or tried


def what_to_try(model: ModelSpec, deployment: Deployment) -> tuple[str, ...]:
    """Changes of one setting with which at least one sequence fits, each with what it gives.

    More GPUs a replica, as tensor parallelism or (of engines without it) pipeline stages, on those
    that there are; a cache and weights in the 8-bit formats that the engine has; and the longest
    context within the model's own maximum. Another design is no advice: it means training.
    """
    return tuple(_suggestions(model, deployment))


def _suggestions(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    settings, engine = deployment.settings, engine_record(deployment.engine.name)
    yield from _more_gpus(model, deployment, "tp_size" if "tp_size" in engine.sizes else "pp_size")
    if engine.small_kv_dtypes and settings.kv_dtype not in engine.small_kv_dtypes:
        kv_dtype = engine.small_kv_dtypes[0]
        row = _fits(model, replace(deployment, settings=replace(settings, kv_dtype=kv_dtype)))
        if row is not None:
            yield f"--kv-dtype {kv_dtype} fits {row.max_sequences:,}"
    weight_dtype = engine.small_weight_dtype
    if weight_dtype and deployment.kv_memory_bytes is None and deployment.weight_bytes is None:
        row = _fits(model, replace(deployment, weight_dtype=weight_dtype))
        if row is not None:
            yield f"--weight-dtype {weight_dtype} fits {row.max_sequences:,}"
    context = _longest_context(model, deployment)
    if context:
        yield f"--context-tokens {context} fits 1"


def _more_gpus(model: ModelSpec, deployment: Deployment, kind: str) -> Iterator[str]:
    """The smallest doubling of that size which fits, on the GPUs that there are."""
    if deployment.joined or deployment.parallel.pp_layers is not None:
        return
    size = getattr(deployment.parallel, kind) * 2
    while size <= min(MOST_TP_SIZE, deployment.n_gpus or MOST_TP_SIZE):
        wider = replace(deployment, parallel=replace(deployment.parallel, **{kind: size}))
        row = _fits(model, wider)
        if row is not None:
            yield f"--{kind.replace('_', '-')} {size} fits {row.max_sequences:,}"
            return
        size *= 2


def _longest_context(model: ModelSpec, deployment: Deployment) -> int | None:
    """The longest context, in steps of 256 tokens, of which one sequence fits."""
    settings = deployment.settings
    most = settings.context_tokens - 1
    if model.max_context_tokens is not None:
        most = min(most, model.max_context_tokens)
    lengths = range(256, most + 1, 256)

    def unfit(tokens: int) -> Fraction:
        shorter = replace(deployment, settings=replace(settings, context_tokens=tokens))
        return Fraction(_fits(model, shorter) is None)

    return largest(lengths, unfit, Fraction(0))


def largest_holding(
    design: ModelSpec, deployment: Deployment, sizes: Sequence[int], n_sequences: int
) -> int | None:
    """The largest of ascending sizes of a design with which ``n_sequences`` still fit, or None.

    A larger size has more weights and more cache, so what fits never grows with it.
    """

    def unfit(size: int) -> Fraction:
        row = _fits(with_size(design, size), deployment)
        return Fraction(row is None or row.total_sequences < n_sequences)

    return largest(sizes, unfit, Fraction(0))


def fitting_row(
    model: ModelSpec, deployment: Deployment, *, excused: type[PlanError] = PlacementError
) -> tuple[CapacityRow | None, str]:
    """The row if at least one sequence fits; else none, and what prevents it.

    ``excused`` are the errors that are such a reason; others are raised.
    """
    try:
        row = capacity_row(model, deployment)
    except excused as error:
        return None, str(error)
    return (row if row.max_sequences else None), row.binds


def _fits(model: ModelSpec, deployment: Deployment) -> CapacityRow | None:
    """The row if at least one sequence fits, else None, whatever the reason."""
    return fitting_row(model, deployment, excused=PlanError)[0]


@dataclass(frozen=True, kw_only=True)
class SequenceFit:
    """A design with which the sequences fit, and its capacity."""

    value: int
    text: str
    row: CapacityRow


@dataclass(frozen=True, kw_only=True)
class RankFit:
    """The largest rank, its largest aligned neighbour below, the next one, GQA and MLA.

    The latent is at most as wide as the model; a remark says where that bound decides.
    ``value_range`` is the largest rank at both ends of the budget's range, None for one where none
    fits; None where the budget has no range.
    """

    n_sequences: int
    alignment: int
    largest: SequenceFit
    aligned: SequenceFit
    following: SequenceFit | None
    grouped: SequenceFit | None
    latent: SequenceFit | None
    value_range: tuple[int | None, int] | None = None
    remarks: tuple[str, ...] = ()


def rank_for_sequences(
    model: ModelSpec,
    deployment: Deployment,
    n_sequences: int,
    *,
    design: AttentionSpec | None = None,
    latent_rope_dim: int | None = None,
) -> RankFit:
    """The largest rank, or other size of ``design``, with which ``n_sequences`` fit.

    Sequences have their full length; plain LRKV is sized when ``design`` is None. The alignment is
    the deployment's: ranks in between are stored as the next multiple.

    Raises
    ------
    RequirementError
        If they do not even fit at rank 0; the message says how many do.
    PlacementError, SpecError, UsageError
        As ``capacity_row``.
    """
    alignment, backbone = deployment.rank_alignment, first_backbone(model)
    varied = swap_attention(model, plain_low_rank(backbone) if design is None else design)

    def fit(one: ModelSpec, size: int | None) -> SequenceFit | None:
        if size is None:
            return None
        sized = with_size(one, size)
        row = capacity_row(sized, deployment)
        return SequenceFit(value=size, text=design_text(sized), row=row)

    def widest(one: ModelSpec, sizes: Sequence[int]) -> SequenceFit | None:
        return fit(one, largest_holding(one, deployment, sizes, n_sequences))

    sizes = sizes_of(varied)
    if not sizes:
        raise UsageError(f"design {design_text(varied)}: has no size that could be varied")
    best = widest(varied, sizes)
    if best is None:
        least = capacity_row(with_size(varied, sizes[0]), deployment)
        name = layers_of(varied)[0].size_name
        raise RequirementError(
            f"no {name} fits {n_sequences:,} sequences of {deployment.settings.context_tokens:,} "
            f"tokens: at {name} {sizes[0]} {least.total_sequences:,} fit ({least.binds}); use more "
            "GPUs, a smaller cache format or a shorter context"
        )
    mla = swap_attention(model, narrowest_latent(backbone, latent_rope_dim))
    latents = sizes_of(mla)
    latent = widest(mla, latents)
    beyond = [latents[-1] + 1]
    is_bounded = latent is not None and latent.value == latents[-1]
    is_bounded = is_bounded and bool(largest_holding(mla, deployment, beyond, n_sequences))
    fewest = swap_attention(model, fewest_kv_heads(backbone))
    return RankFit(
        n_sequences=n_sequences,
        alignment=alignment,
        largest=best,
        aligned=fit(varied, aligned_size(sizes, best.value, alignment)) or best,
        following=fit(varied, next((n for n in sizes if n > best.value), None)),
        grouped=widest(fewest, sizes_of(fewest)),
        latent=latent,
        value_range=_value_range(varied, deployment, best, n_sequences),
        remarks=(latent_bound_remark(model, latents[-1]),) if is_bounded else (),
    )


def _value_range(
    design: ModelSpec, deployment: Deployment, best: SequenceFit, n_sequences: int
) -> tuple[int | None, int] | None:
    """The largest size at both ends of the range of the budget beside ``best``."""
    row, sizes = best.row, sizes_of(design)
    ends = (row.kv_budget_low_bytes_per_gpu, row.kv_budget_high_bytes_per_gpu)
    if deployment.kv_memory_bytes is not None or ends[0] == ends[1]:
        return None
    low, high = (
        largest_holding(design, replace(deployment, kv_memory_bytes=end), sizes, n_sequences)
        if end > 0 else None
        for end in ends
    )  # fmt: skip
    return low, best.value if high is None else high
