"""How a model is spread over GPUs, and which layers each pipeline stage runs.

Says nothing about memory or time; calculators and engines read it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lrkv_plan.errors import PlacementError

MAX_GPUS_PER_KIND = 65_536


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """GPUs along each kind of parallelism.

    ``tp_size`` GPUs slice every layer, ``pp_size`` stages share the layers, ``dp_size`` copies
    serve different requests. ``ep_size`` GPUs hold whole experts: 1 means that experts are sliced
    over ``tp_size`` like everything else, a divisor of ``tp_size`` that each expert is sliced over
    the rest (SGLang, TensorRT-LLM), a multiple up to ``tp_size * dp_size`` that attention copies
    share one set of experts (vLLM). ``dcp_size`` of the ``tp_size`` GPUs share the tokens of a
    cache that would otherwise be repeated. Expert and context parallelism use GPUs that tensor and
    data parallelism already count.

    Raises
    ------
    PlacementError
        If a size is not a whole number from 1 up, or ``ep_size`` or ``dcp_size`` does not fit.

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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise PlacementError(f"{field.name} {value!r}: must be a whole number")
            if not 1 <= value <= MAX_GPUS_PER_KIND:
                raise PlacementError(f"{field.name} {value}: must be from 1 to {MAX_GPUS_PER_KIND}")
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


def pipeline_stages(n_layers: int, pp_size: int) -> tuple[range, ...]:
    """The layers that each of ``pp_size`` stages runs, in model order.

    Notes
    -----
    L // P layers each. The remainder goes one each to the stages before the last, from the back:
    the last stage also has the head (vLLM, ``get_pp_indices`` in vllm/distributed/utils.py, since
    0.7; VLLM_PP_LAYER_PARTITION is not modelled).

    Raises
    ------
    PlacementError
        If there are fewer layers than stages, or no stage.

    Examples
    --------
    >>> [len(stage) for stage in pipeline_stages(30, 4)]
    [7, 8, 8, 7]
    >>> [len(stage) for stage in pipeline_stages(61, 8)]
    [7, 7, 8, 8, 8, 8, 8, 7]
    """
    if not 1 <= pp_size <= n_layers:
        raise PlacementError(f"pp_size {pp_size}: must be from 1 to the model's {n_layers} layers")
    each, remainder = divmod(n_layers, pp_size)
    counts = [each + (pp_size - 1 - remainder <= stage < pp_size - 1) for stage in range(pp_size)]
    starts = [sum(counts[:stage]) for stage in range(pp_size)]
    return tuple(range(a, a + n) for a, n in zip(starts, counts, strict=True))
