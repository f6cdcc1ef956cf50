"""What a report on one model is asked for, and the command lines that its parts stand for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lrkv_plan.engines.latency import LatencyTarget, Speculation

if TYPE_CHECKING:
    from lrkv_plan.engines.deployment import Deployment
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec

# Options as a person gave them, by the command that also knows them.
_PLAN = (
    "--context-tokens", "--n-gpus", "--tp-size", "--budget", "--batch-size", "--tpot-ms",
    "--speculative-tokens", "--accepted-tokens", "--engine", "--kv-dtype", "--weight-dtype",
    "--weights", "--utilisation", "--kv-memory", "--align", "--gpu-hour-usd",
)  # fmt: skip
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "plan": _PLAN,
    "report": _PLAN,
    "cache": ("--kv-dtype",),
    "rank": ("--kv-dtype", "--align"),
    "params": (),
    "shard": ("--kv-dtype",),
    "roofline": ("--kv-dtype",),
    "crossover": ("--kv-dtype", "--weight-dtype", "--weights"),
    "capacity": (
        "--engine", "--kv-dtype", "--weight-dtype", "--weights", "--utilisation", "--kv-memory",
        "--align", "--gpu-hour-usd",
    ),
    "plot capacity-vs-context": (
        "--engine", "--kv-dtype", "--weight-dtype", "--weights", "--utilisation", "--kv-memory",
        "--align",
    ),
    "plot cache-vs-rank": ("--kv-dtype", "--align"),
    "plot roofline": ("--kv-dtype",),
    "plot step-stack": ("--kv-dtype", "--weight-dtype", "--weights"),
    "plot crossover-map": ("--kv-dtype", "--weight-dtype", "--weights"),
}  # fmt: skip
_WITHOUT_GPU = ("cache", "rank", "params", "shard", "plot cache-vs-rank")


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """A model on a GPU, as ``plan`` takes it.

    ``model_text``, ``gpu_text`` and ``options`` are what a person typed, for the command lines;
    ``options`` holds only options that were given, by flag. ``is_layout_stated`` keeps the
    deployment's tensor-parallel size instead of choosing one.
    """

    model: ModelSpec
    deployment: Deployment
    model_text: str
    gpu_text: str
    options: Mapping[str, str] = field(default_factory=dict)
    budget: str | None = None
    batch_size: int | None = None
    target: LatencyTarget = field(default_factory=LatencyTarget)
    is_layout_stated: bool = False

    @property
    def relatives(self) -> Sequence[HardwareProfile]:
        """Profiles that may lend constants."""
        return self.target.relatives

    @property
    def speculation(self) -> Speculation:
        """How tokens are drafted."""
        return self.target.speculation

    def command(self, name: str, *extra: str, texts: Sequence[str | None] = ()) -> str:
        """The command line of ``name`` on this model with ``extra`` options and those designs."""
        given = [part for flag in (*_KNOWN[name], "--spec-dir") if flag in self.options
                 and flag not in extra for part in (flag, self.options[flag])]  # fmt: skip
        gpu = [] if name in _WITHOUT_GPU else ["--gpu", self.gpu_text]
        swaps = [part for text in texts if text is not None for part in ("--attention", text)]
        words = ["lrkv-plan", *name.split(), self.model_text, *gpu, *swaps, *extra, *given]
        return shlex.join(words)
