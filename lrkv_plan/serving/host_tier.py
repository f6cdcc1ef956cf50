"""How many contexts a tier of host memory keeps beside the pool, and how soon one is back.

What is kept there does not run: it is copied to the GPUs again when its user returns. One rule for
vLLM's offloading connector, SGLang's hierarchical cache, TensorRT-LLM's host cache and LMCache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.pool import Pool


@dataclass(frozen=True, kw_only=True)
class HostTier:
    """What ``--kv-offload`` keeps.

    ``sequences`` are full-length contexts of all replicas, ``bytes_per_sequence`` those that one
    takes over all GPUs of a replica. ``tokens`` are those kept of any contexts, None where bytes do
    not grow with them evenly (windows, states). ``restore_s`` is the least time to copy a context
    back, None where a profile states no link to the host. [s]
    """

    sequences: int
    bytes_per_sequence: int
    tokens: int | None
    restore_s: float | None


def host_tier(pools: Sequence[Pool | None], deployment: Deployment) -> HostTier | None:
    """The tier of a deployment; None where none is asked for.

    Parameters
    ----------
    pools : those of one GPU of each pipeline stage; None where nothing is kept.

    Notes
    -----
    Bytes of a context = sum over stages of tp_size x payload of its length on one of their GPUs:
    each GPU keeps what it holds, copies that several hold included (vLLM's
    ``--kv-offloading-size`` and SGLang's ``--hicache-size`` are dealt out over ranks so).
    GPUs copy at once, each over its own link: time = max over stages of payload / link rate.
    """
    n_bytes = deployment.settings.kv_offload
    if n_bytes is None:
        return None
    context, tp_size = deployment.settings.context_tokens, deployment.parallel.tp_size
    each = [0 if pool is None else int(pool.payload_of(context)) for pool in pools]
    per_sequence = tp_size * sum(each)
    twice = [0 if pool is None else int(pool.payload_of(2 * context)) for pool in pools]
    is_even = bool(per_sequence) and twice == [2 * held for held in each]
    hardware = deployment.stage_hardware or (deployment.hardware,) * len(pools)
    links = [None if gpu is None else gpu.host_link for gpu in hardware]
    rates = [link.bandwidth_bytes_per_s for link in links if link is not None]
    is_known = len(rates) == len(links)
    return HostTier(
        sequences=deployment.n_replicas * (n_bytes // per_sequence) if per_sequence else 0,
        bytes_per_sequence=per_sequence,
        tokens=n_bytes * context // per_sequence * deployment.n_replicas if is_even else None,
        restore_s=(
            max(held / rate for held, rate in zip(each, rates, strict=True)) if is_known else None
        ),
    )
