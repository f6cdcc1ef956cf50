"""What a report on one model is asked for, settled once for all its parts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lrkv_plan.attention.layout import CachedTensor
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, PlanError, UsageError
from lrkv_plan.memory.largest import RankCeiling, rank_ceiling
from lrkv_plan.memory.placement import try_placements
from lrkv_plan.report.captions import caption, gpus
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.serving.deployment import known_weight_bytes
from lrkv_plan.serving.engine import timed_as
from lrkv_plan.serving.load import LatencyTarget, Speculation
from lrkv_plan.serving.plan import Plan, compared_designs, make_plan, own_budget
from lrkv_plan.specs.design import design_label, layers_of, swap_attention

if TYPE_CHECKING:
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.deployment import EngineName
    from lrkv_plan.specs.design import NamedDesign
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
    "explore": _PLAN,
    "cache": ("--kv-dtype",),
    "rank": ("--kv-dtype", "--align"),
    "params": (),
    "shard": ("--kv-dtype",),
    "roofline": ("--kv-dtype",),
    "crossover": ("--engine", "--kv-dtype", "--weight-dtype", "--weights"),
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
    "plot step-stack": ("--engine", "--kv-dtype", "--weight-dtype", "--weights"),
    "plot crossover-map": ("--engine", "--kv-dtype", "--weight-dtype", "--weights"),
}  # fmt: skip
_COMPARES_ALL = ("plan", "report", "explore")  # they take designs beside those of every family
_WITHOUT_GPU = ("cache", "rank", "params", "shard", "plot cache-vs-rank")


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """A model on a GPU, as ``plan`` takes it.

    ``model_text``, ``gpu_text`` and ``options`` are what a person typed, for the command lines;
    ``options`` holds only options that were given, by flag. ``is_layout_stated`` keeps the
    deployment's tensor-parallel size instead of choosing one. ``designs`` are compared beside those
    of every family.
    """

    model: ModelSpec
    deployment: Deployment
    model_text: str
    gpu_text: str
    options: Mapping[str, str] = field(default_factory=dict)
    budget: str | None = None
    batch_size: int | None = None
    designs: Sequence[NamedDesign] = ()
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

    def command(self, name: str, *extra: str, designs: Sequence[NamedDesign] = ()) -> str:
        """The command line of ``name`` on this model with ``extra`` options and those designs."""
        given = [part for flag in (*_KNOWN[name], "--spec-dir") if flag in self.options
                 and flag not in extra for part in (flag, self.options[flag])]  # fmt: skip
        gpu = [] if name in _WITHOUT_GPU else ["--gpu", self.gpu_text]
        named = self.designs if name in _COMPARES_ALL and not designs else designs
        swaps = [part for text, _ in named for part in ("--attention", text)]
        words = ["lrkv-plan", *name.split(), self.model_text, *gpu, *swaps, *extra, *given]
        return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class ShownDesign:
    """A compared design that can run, and the sequences of it that one replica holds.

    ``text`` is what a command line takes, None where no text gives the model's own; ``room`` is
    None where it is not known.
    """

    model: ModelSpec
    text: str | None
    room: int | None

    @property
    def label(self) -> str:
        """What tables and pictures call it."""
        return design_label(self.model)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What all parts share: the plan or why there is none, GPUs, designs, batch and context.

    ``deployment`` has the tensor-parallel size that the plan chose and whole replicas of it.
    ``designs`` are the compared designs that this size can run, ``refused`` the others with their
    reasons.
    """

    request: ReportRequest
    plan: Plan | None
    plan_refused: str | None
    ceiling: RankCeiling | None
    budget: str
    deployment: Deployment
    batch_size: int
    designs: tuple[ShownDesign, ...]
    refused: tuple[str, ...]

    @property
    def tp_size(self) -> int:
        """GPUs of one replica."""
        return self.deployment.parallel.tp_size

    @property
    def context_tokens(self) -> int:
        """Tokens of a sequence."""
        return self.deployment.settings.context_tokens

    @property
    def kv_dtype(self) -> str:
        """Storage format of the cache."""
        return self.deployment.settings.kv_dtype

    @property
    def gpu(self) -> HardwareProfile:
        """The GPU. Raises ``UsageError`` where none is named."""
        if self.deployment.hardware is None:
            raise UsageError("a report needs a GPU: --gpu h100-sxm")
        return self.deployment.hardware

    @property
    def query_tokens(self) -> int:
        """Tokens decoded per sequence in one step."""
        return self.request.speculation.query_tokens

    @property
    def query_options(self) -> tuple[str, ...]:
        """The option that states them, where there is more than one."""
        return () if self.query_tokens == 1 else ("--query-tokens", str(self.query_tokens))

    @property
    def timed_engine(self) -> EngineName:
        """The engine whose step times are shown."""
        return timed_as(self.deployment.engine)

    @property
    def weight_bytes(self) -> int | None:
        """Weights of one GPU where they are known. [bytes]"""
        return known_weight_bytes(self.request.model, self.deployment)

    @property
    def fitting(self) -> Settled:
        """The same without designs that are known not to hold the batch; they get no time."""
        held = [d for d in self.designs if d.room is None or d.room >= self.batch_size]
        return replace(self, designs=tuple(held))

    @property
    def place_options(self) -> tuple[str, ...]:
        """Options for the context, query tokens and GPUs of a step."""
        context = ("--context-tokens", str(self.context_tokens))
        return (*context, *self.query_options, "--tp-size", str(self.tp_size))

    @property
    def batch_option(self) -> tuple[str, ...]:
        """The option for the batch of a step."""
        return ("--batch-size", str(self.batch_size))

    @property
    def where(self) -> str:
        """Model, GPUs and format, for a caption."""
        return caption(
            self.request.model.name, self.gpu.name, gpus(self.tp_size), f"{self.kv_dtype} cache"
        )

    @property
    def contexts(self) -> list[int]:
        """The context, four times it, and the model's longest; 16 times where that is unstated."""
        most = self.request.model.max_context_tokens or 16 * self.context_tokens
        wanted = {self.context_tokens, min(4 * self.context_tokens, most), most}
        return sorted(c for c in wanted if c >= self.context_tokens)

    @property
    def labelled(self) -> list[NamedDesign]:
        """Label and model of each compared design."""
        return [(design.label, design.model) for design in self.designs]

    @property
    def typed(self) -> list[NamedDesign]:
        """The designs that a text names, with it."""
        return [(one.text, one.model) for one in self.designs if one.text is not None]

    @property
    def low_rank(self) -> ShownDesign | None:
        """The aligned rank in the budget, keys rotated as they are rebuilt where that runs."""
        if self.plain_low_rank is None:
            return None
        rows = _cached_rows(self.plain_low_rank)
        found = [d for d in self.designs if d.text is not None and _cached_rows(d.model) == rows]
        return found[-1] if found else None

    @property
    def held(self) -> Settled:
        """The same for parts about memory: rotating keys as they are rebuilt stores no more."""
        last = self.low_rank
        if last is None or last.model == self.plain_low_rank:
            return self
        return replace(self, designs=tuple(one for one in self.designs if one != last))

    @property
    def plain_low_rank(self) -> ModelSpec | None:
        """The aligned rank in the budget."""
        return None if self.ceiling is None else self.ceiling.aligned.model


def settle(request: ReportRequest) -> Settled:
    """Plan first; what its refusal leaves open takes the values that were given.

    Raises
    ------
    PlacementError
        If no design can run on that tensor-parallel size.
    """
    model, deployment = request.model, request.deployment
    plan, refused = None, None
    try:
        plan = make_plan(
            model, deployment, budget=request.budget, batch_size=request.batch_size,
            target=request.target, is_layout_stated=request.is_layout_stated,
            designs=request.designs,
        )  # fmt: skip
    except PlanError as error:
        refused = str(error)
    if plan is not None:
        n_gpus = None if deployment.n_gpus is None else plan.n_gpus
        deployment = replace(deployment, parallel=plan.parallel, n_gpus=n_gpus)
    budget = own_budget(model) if request.budget is None else request.budget
    ceiling = _ceiling(model, deployment, budget)
    designs, not_run = _designs(model, deployment, ceiling, request.designs)
    if not designs:
        raise PlacementError(f"{model.name}: no design can run: {not_run[0]}")
    return Settled(
        request=request,
        plan=plan,
        plan_refused=refused,
        ceiling=ceiling,
        budget=budget,
        deployment=deployment,
        batch_size=request.batch_size or _common_batch(one.room for one in designs),
        designs=designs,
        refused=not_run,
    )


def _room(design: ModelSpec, deployment: Deployment) -> int | None:
    """Sequences of full length that one replica holds; None where that is not known."""
    try:
        return capacity_row(design, deployment).max_sequences
    except PlanError:
        return None


def _common_batch(rooms: Iterable[int | None]) -> int:
    """What every design holds that holds anything, at most 32; 1 where that is unknown."""
    held = [room for room in rooms if room]
    return min(32, *held) if held else 1


def _ceiling(model: ModelSpec, deployment: Deployment, budget: str) -> RankCeiling | None:
    try:
        return rank_ceiling(
            model, budget=budget, alignment=deployment.rank_alignment,
            tp_size=deployment.parallel.tp_size, kv_dtype=deployment.settings.kv_dtype,
        )  # fmt: skip
    except PlanError:
        return None  # the section about ranks says why


def _designs(
    model: ModelSpec,
    deployment: Deployment,
    ceiling: RankCeiling | None,
    extra: Sequence[NamedDesign],
) -> tuple[tuple[ShownDesign, ...], tuple[str, ...]]:
    """Designs that can run, and the others with their reasons."""
    limit = None if ceiling is None else ceiling.budget_bytes_per_token_per_gpu
    named = compared_designs(model, deployment, limit, extra)
    own = design_label(model)
    tp_size, kv_dtype = deployment.parallel.tp_size, deployment.settings.kv_dtype
    shown, refused = [], []
    for one in named:
        text, reason = one.text, one.refused
        try:
            if reason is None:
                _, reason = try_placements(one.model, tp_size=tp_size, kv_dtype=kv_dtype)
        except PlanError as error:
            reason = str(error)
        if reason is None:
            told = own_as_text(model) if text is None else text
            room = _room(one.model, deployment)
            shown.append(ShownDesign(model=one.model, text=told, room=room))
        else:
            refused.append(f"{text or own}: {reason}")
    return tuple(shown), tuple(refused)


def _cached_rows(model: ModelSpec) -> list[tuple[CachedTensor, ...]]:
    """What each layer caches: designs that differ in how they decode store the same."""
    return [layout_of(layer, model.model_dim).cached for layer in layers_of(model)]


def own_as_text(model: ModelSpec) -> str | None:
    """The model's own design as text; None where no text gives the same model back."""
    label = design_label(model)
    try:
        return label if swap_attention(model, label) == model else None
    except PlanError:
        return None
