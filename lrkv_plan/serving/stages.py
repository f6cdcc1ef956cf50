"""Pipeline stages apart: which layers lie on which GPU, what each holds, what crosses a domain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lrkv_plan.errors import PlacementError
from lrkv_plan.memory.weights import layers_in_order, parameter_count, weight_bytes_per_gpu
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import engine_record, layers_of, stage_pools
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import Parallelism, pipeline_stages
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """One pipeline stage, from 0: its GPU, its layers, one GPU's budget, sequences in its pool.

    ``max_sequences`` is None where its layers keep nothing.
    """

    stage: int
    gpu: str | None
    n_layers: int
    kv_budget_bytes_per_gpu: int
    max_sequences: int | None


def on_gpus(model: ModelSpec, deployment: Deployment) -> ModelSpec:
    """The model with the layers that the engine puts on GPUs."""
    rule = engine_record(deployment.engine.name).on_gpus
    return model if rule is None else rule(model, deployment.settings)


@dataclass(frozen=True, kw_only=True)
class HostPart:
    """What lies in the host's memory where not all layers are on GPUs. [bytes]"""

    n_layers: int
    weight_bytes: int | None
    bytes_per_sequence: int


def host_part(model: ModelSpec, deployment: Deployment) -> HostPart | None:
    """The layers that the engine leaves to the host, the first ones; None where there are none.

    ``weight_bytes`` is None where the weights or their format are not known.
    """
    order = layers_in_order(model)
    held = len(order) - len(layers_in_order(on_gpus(model, deployment)))
    if not held:
        return None
    hosted = layers_of(model, order[:held])
    dtype = deployment.weight_dtype or model.weight_dtype
    (pool,) = stage_pools(
        hosted, (0,), replace(deployment.settings, draft_layers=0, drafter=None),
        engine=deployment.engine, parallel=Parallelism(),
    )  # fmt: skip
    weights = None
    if dtype is not None and not parameter_count(model).missing:
        whole, kept = (
            weight_bytes_per_gpu(of, parallel=Parallelism(), weight_dtype=dtype).fullest.total
            for of in (model, on_gpus(model, deployment))
        )
        weights = whole - kept
    context = deployment.settings.context_tokens
    return HostPart(
        n_layers=held,
        weight_bytes=weights,
        bytes_per_sequence=0 if pool is None else int(pool.payload_of(context)),
    )


def check_kinds(deployment: Deployment) -> None:
    """Refuse GPUs of several vendors where a server runs on one vendor's.

    Raises
    ------
    PlacementError
        Naming them.
    """
    vendors = dict.fromkeys(gpu.vendor for _, gpu in deployment.joined)
    if len(vendors) > 1 and not engine_record(deployment.engine.name).joins_vendors:
        raise PlacementError(
            f"--gpu {deployment.gpu_name}: {deployment.engine.name} runs on GPUs of one vendor, "
            f"not on {' and '.join(vendors)} together; llama_cpp does"
        )


def with_split(model: ModelSpec, deployment: Deployment) -> Deployment:
    """The deployment with the engine's own split of layers, where it has one and none is stated."""
    parallel = deployment.parallel
    rule = engine_record(deployment.engine.name).split_layers
    if rule is None or parallel.pp_size == 1 or parallel.pp_layers is not None:
        return deployment
    hardware = deployment.stage_hardware or (deployment.hardware,) * parallel.pp_size
    memory = tuple(1 if gpu is None else memory_bytes(gpu) for gpu in hardware)
    layers = rule(len(layers_in_order(model)), memory)
    return replace(deployment, parallel=replace(parallel, pp_layers=layers))


def memory_bytes(hardware: HardwareProfile) -> int:
    """Memory that a driver shows, else the nominal size. [bytes]"""
    return hardware.mem_visible_bytes or hardware.mem_capacity_bytes


def stage_rows(
    model: ModelSpec,
    deployment: Deployment,
    stage_bytes: Sequence[int],
    pools: Sequence[Pool | None],
) -> tuple[StageRow, ...]:
    """A row per stage; none without stages."""
    parallel = deployment.parallel
    if parallel.pp_size == 1:
        return ()
    n_layers = len(layers_in_order(model))
    layers = pipeline_stages(n_layers, parallel.pp_size, parallel.pp_layers)
    hardware = deployment.stage_hardware or (deployment.hardware,) * parallel.pp_size
    return tuple(
        StageRow(
            stage=index,
            gpu=None if gpu is None else gpu.name,
            n_layers=len(held),
            kv_budget_bytes_per_gpu=n_bytes,
            max_sequences=None if pool is None else pool.max_sequences,
        )
        for index, (gpu, held, n_bytes, pool) in enumerate(
            zip(hardware, layers, stage_bytes, pools, strict=True)
        )
    )


def beyond_domain(deployment: Deployment) -> Iterator[str]:
    """What of one replica's GPUs lies in several domains of the fast link, where that is known."""
    parallel, hardware = deployment.parallel, deployment.hardware
    link = None if hardware is None else hardware.link
    if hardware is None or link is None or link.n_gpus is None or deployment.joined:
        return
    over = "a network that the profile does not name" if link.beyond is None else link.beyond.name
    sharing = max(parallel.tp_size, parallel.ep_size)
    kind = "--tp-size" if sharing == parallel.tp_size else "--ep-size"
    if sharing > link.n_gpus:
        n_domains = math.ceil(sharing / link.n_gpus)
        yield (
            f"{kind} {sharing} takes {n_domains} domains of {link.n_gpus} {hardware.name} "
            f"({link.name}): every layer exchanges over {over}"
        )
    elif parallel.n_gpus > link.n_gpus:
        n_domains = math.ceil(parallel.n_gpus / link.n_gpus)
        what = "stages hand over" if parallel.pp_size > 1 else "copies share only requests"
        yield (
            f"a replica of {parallel.n_gpus} GPUs takes {n_domains} domains of {link.n_gpus} "
            f"{hardware.name} ({link.name}): its {what} over {over}"
        )
