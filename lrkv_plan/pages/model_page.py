"""The page on one model and GPU: its sections, and the public calls that each part shows."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import PlanError
from lrkv_plan.pages.asked import Asked, keywords_of, part_of, subject_name
from lrkv_plan.questions.asking import command_words
from lrkv_plan.questions.comparing import Compared, designs
from lrkv_plan.questions.exploring import explored
from lrkv_plan.questions.gpus import without_count
from lrkv_plan.report.document import Document, Highlight, Part, Section, joined
from lrkv_plan.report.explorer import OWN_ROLE, SliderGrid, slider_grid
from lrkv_plan.report.screen import short_percent
from lrkv_plan.report.tables import count, percent
from lrkv_plan.report.views.time import milliseconds, step_parts_table

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table
    from lrkv_plan.schema import Source
    from lrkv_plan.serving.compared import ShownDesign
    from lrkv_plan.specs.hardware import HardwareProfile

Progress = Callable[[str], None]
_MAP_CONTEXTS = (128, 131_072)
_SIZES = (1, 2, 4, 8)
# Keywords of the deployment, which every call about it repeats where it knows them.
_OF_DEPLOYMENT = (
    "engine", "kv_dtype", "weight_dtype", "weights", "utilisation", "kv_memory", "align",
    "gpu_hour_usd", "spec_dir",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """What all parts share: the question as it was given, and the point where designs stand.

    ``given`` holds only what was given; ``designs`` are those that this part shows.
    """

    subject: Any
    given: Mapping[str, Any]
    point: Compared
    designs: tuple[ShownDesign, ...]

    @classmethod
    def of(cls, model: Any, **keywords: Any) -> Place:
        """Settle the point. Raises as ``designs``."""
        point = designs(model, **keywords)
        given = {name: value for name, value in keywords.items() if value is not None}
        if isinstance(given["gpu"], str):
            given["gpu"] = without_count(given["gpu"], spec_dir=given.get("spec_dir"))
        if point.deployment.n_gpus is not None:
            given.setdefault("n_gpus", point.deployment.n_gpus)  # of --gpu 8xh100-sxm
        return cls(subject=model, given=given, point=point, designs=point.beside.designs)

    @property
    def name(self) -> str:
        """The model as a command line writes it."""
        return subject_name(self.subject, self.point.model.name)

    @property
    def tp_size(self) -> int:
        """GPUs of one replica."""
        return self.point.deployment.parallel.tp_size

    @property
    def context_tokens(self) -> int:
        """Tokens of a sequence."""
        return self.point.deployment.settings.context_tokens

    @property
    def kv_dtype(self) -> str:
        """Storage format of the cache."""
        return self.point.deployment.settings.kv_dtype

    @property
    def gpu(self) -> HardwareProfile:
        """The GPU."""
        hardware = self.point.deployment.hardware
        assert hardware is not None, "a point names its GPU"
        return hardware

    @property
    def all_gpus(self) -> dict[str, Any]:
        """The number of all GPUs, where it was given."""
        n_gpus = self.point.deployment.n_gpus
        return {} if n_gpus is None else {"n_gpus": n_gpus}

    @property
    def several_tokens(self) -> dict[str, Any]:
        """The tokens decoded per sequence in one step, where there is more than one."""
        n_query = self.point.target.speculation.query_tokens
        return {} if n_query == 1 else {"query_tokens": n_query}

    @property
    def step(self) -> dict[str, Any]:
        """Context, query tokens and GPUs of a step."""
        place = {"context_tokens": self.context_tokens, **self.several_tokens}
        return {**place, "tp_size": self.tp_size}

    @property
    def contexts(self) -> list[int]:
        """The context, four times it, and the model's longest; 16 times where that is unstated."""
        most = self.point.model.max_context_tokens or 16 * self.context_tokens
        wanted = {self.context_tokens, min(4 * self.context_tokens, most), most}
        return sorted(c for c in wanted if c >= self.context_tokens)

    @property
    def fitting(self) -> Place:
        """The same without designs that are known not to hold the batch; they get no time."""
        held = [d for d in self.designs if d.room is None or d.room >= self.point.batch_size]
        return replace(self, designs=tuple(held))

    @property
    def held(self) -> Place:
        """The same for parts about memory: rotating keys as they are rebuilt stores no more."""
        plain, rotated = self.point.beside.low_rank, self.point.beside.rotated
        if rotated is None or rotated == plain:
            return self
        return replace(self, designs=tuple(one for one in self.designs if one != rotated))

    @property
    def texts(self) -> list[str]:
        """The designs that a text names."""
        return [one.text for one in self.designs if one.text is not None]

    @property
    def is_mixed(self) -> bool:
        """Whether the model's own design has no text to stand beside the others."""
        return len(self.texts) < len(self.designs)

    def asked(self, command: str, *, without: Sequence[str] = (), **keywords: Any) -> Asked:
        """One call about this deployment.

        Parameters
        ----------
        without : given keywords that the answer would not depend on.
        keywords : of the call, in place of given ones.
        """
        known = keywords_of(command)
        kept = {name: self.given[name] for name in (*_OF_DEPLOYMENT, "gpu") if name in self.given}
        told = {n: value for n, value in kept.items() if n not in without} | keywords
        return Asked(
            command=command, subject=self.subject, name=self.name,
            keywords={n: told[n] for n in known if n in told and told[n] is not None},
        )  # fmt: skip

    def each(self, command: str, **keywords: Any) -> list[Asked]:
        """The call for the designs; first one for the own design, where no text names it."""
        own = [self.asked(command, **keywords)] if self.is_mixed else []
        others = [self.asked(command, attention=self.texts, **keywords)] if self.texts else []
        return [*own, *others]

    def drawn(self, command: str, **keywords: Any) -> list[Asked]:
        """The picture of the designs, with the own one where no text names it."""
        beside: dict[str, Any] = {"beside_own": True} if self.is_mixed and self.texts else {}
        return [self.asked(command, attention=self.texts or None, **beside, **keywords)]


def plan_of(place: Place) -> Asked:
    """The plan with all that was given. Its refusal is that of the point."""
    known = keywords_of("plan")
    told = {name: place.given[name] for name in known if name in place.given}
    return Asked(command="plan", subject=place.subject, name=place.name, keywords=told)


def plan_part(place: Place) -> Part:
    """Every family on the backbone, held, timed and priced."""
    return _of_plan(place, "plan", "The plan")


def _of_plan(
    place: Place, key: str, title: str, view: Callable[[Table], Table] | None = None, **shown: Any
) -> Part:
    """The plan that settled the point, which is not made again."""
    blank = Part(key=key, title=title, commands=(plan_of(place).line,), **shown)
    made = place.point.plan
    if made is None:
        return replace(blank, refused=place.point.plan_refused)
    return replace(blank, table=made.table if view is None else view(made.table))


def cache_parts(place: Place) -> tuple[Part, ...]:
    """Cache per design and context, and per cached tensor."""
    place = place.held
    told: dict[str, Any] = {"batch_size": place.point.batch_size, "tp_size": place.tp_size}
    return (
        part_of(
            "cache", "Cache per design and context",
            place.each("cache", context_tokens=place.contexts, **told),
        ),
        part_of(
            "cached-tensors", "What each design keeps",
            place.each("cache", detail=True, context_tokens=place.context_tokens, **told),
            lead="One row per cached tensor of one layer group, for one copy of the model.",
        ),
    )  # fmt: skip


def rank_parts(place: Place) -> tuple[Part, ...]:
    """The rank ceiling of the budget, the rank's price, and weights per design."""
    place = place.held
    budget = place.point.beside.budget
    told: dict[str, Any] = {"budget": budget, "tp_size": place.tp_size}
    of_pool = ("gpu", "engine", "weight_dtype", "weights", "utilisation", "kv_memory")
    return (
        part_of(
            "rank", f"Largest rank in the budget {budget}",
            [place.asked("rank", without=of_pool, context_tokens=place.context_tokens, **told)],
        ),
        part_of(
            "cache-vs-rank", "Cache against rank", [place.asked("plot cache-vs-rank", **told)]
        ),
        part_of("weights", "Weights per design", place.each("params")),
    )  # fmt: skip


def capacity_parts(place: Place) -> tuple[Part, ...]:
    """What fits per design and context, where the memory goes, and a picture."""
    place = place.held
    told: dict[str, Any] = {"tp_size": place.tp_size, **place.all_gpus}
    without = _beside_pool(place)
    return (
        part_of(
            "capacity", "Tokens and sequences that fit",
            _capacities(place, "capacity", context_tokens=place.contexts, **told),
        ),
        part_of(
            "capacity-vs-context", "Sequences that fit against their length",
            place.drawn("plot capacity-vs-context", without=without, **told),
        ),
        part_of(
            "memory-budget", "Where one GPU's memory goes",
            [place.asked(
                "capacity", without=(*without, "align"), detail=True,
                context_tokens=place.context_tokens, **told,
            )],
            lead="The model's own design.",
        ),
    )  # fmt: skip


def _capacities(place: Place, command: str, **keywords: Any) -> list[Asked]:
    """The call for the designs; the own one alone stores no rows at a multiple."""
    without = _beside_pool(place)
    own = [place.asked(command, without=(*without, "align"), **keywords)] if place.is_mixed else []
    if not place.texts:
        return own
    return [*own, place.asked(command, without=without, attention=place.texts, **keywords)]


def _beside_pool(place: Place) -> tuple[str, ...]:
    """Keywords of a budget that is not computed where the pool was stated."""
    return ("weights", "weight_dtype") if "kv_memory" in place.given else ()


def time_parts(place: Place) -> tuple[Part, ...]:
    """Where a step's time goes, and what bounds its attention."""
    place = place.fitting
    batch = {"batch_size": place.point.batch_size}
    return (
        _of_plan(place, "step-parts", "Parts of a decode step", step_parts_table, is_view=True),
        part_of(
            "roofline", "Intensity, ridge and bound of the attention",
            place.each("roofline", **place.step, **batch),
        ),
        part_of(
            "step-stack", "Where a step's time goes",
            place.drawn("plot step-stack", **place.step, **batch),
        ),
        part_of(
            "roofline-picture", "The datasheet roofline",
            place.drawn("plot roofline", **place.step),
        ),
    )  # fmt: skip


def crossover_parts(place: Place) -> tuple[Part, ...]:
    """Where LRKV becomes faster or slower than the model's own design, along three variables."""
    pair = _pair(place)
    variables = (
        ("context_tokens", "crossover-context", "Along the context"),
        ("batch_size", "crossover-batch", "Along the batch"),
        ("rank", "crossover-rank", "Along the rank"),
    )
    drawn = ("crossover-map", "Which decodes faster, over batch and context")
    if pair is None:
        why = "no LRKV design other than the model's own is in the budget"
        return (
            *(Part(key=key, title=title, refused=why, is_narrow=True)
              for _, key, title in variables),
            Part(key=drawn[0], title=drawn[1], refused=why),
        )  # fmt: skip
    at = {**place.step, "batch_size": place.point.batch_size}
    tables = [
        part_of(
            key, title,
            [place.asked(
                "crossover", attention=pair, over=over,
                **{name: value for name, value in at.items() if name != over},
            )],
            is_narrow=True,
        )
        for over, key, title in variables
    ]  # fmt: skip
    picture = place.asked(
        "plot crossover-map", attention=pair, over="batch_size", **place.several_tokens,
        context_tokens=list(_MAP_CONTEXTS), tp_size=place.tp_size,
    )  # fmt: skip
    return (*map(_with_firmness, tables), part_of(*drawn, [picture]))


def _with_firmness(part: Part) -> Part:
    """The part with how firmly the faster design is ahead at its end, where that is known."""
    rows = () if part.table is None else part.table.also.get("sensitivity", ())
    if not rows:
        return part
    last = rows[-1]
    told = (
        f"At the end {last['faster']} stays ahead in {short_percent(last['ahead_share'])} of "
        f"{last['n_draws']:,} draws of the kernels' bands."
    )
    return replace(part, lead=" ".join(filter(None, (part.lead, told))))


def _pair(place: Place) -> list[str] | None:
    """The own design, or MHA where that has no text, against LRKV."""
    first, last = place.designs[0], place.point.beside.rotated
    if last is None or last.text is None or last == first:
        return None
    return ["mha" if first.text is None else first.text, last.text]


def placement_parts(place: Place) -> tuple[Part, ...]:
    """What tensor parallelism does to the own design, MLA's latent and LRKV."""
    chosen = replace(place, designs=_placed_designs(place))
    sizes = sorted({*_SIZES, place.tp_size})
    return (
        part_of(
            "placement", "Cache per GPU under tensor parallelism",
            chosen.each("shard", tp_size=sizes),
        ),
    )  # fmt: skip


def _placed_designs(place: Place) -> tuple[ShownDesign, ...]:
    """The own design, the one before LRKV (MLA where it fits the budget) and plain LRKV."""
    found, plain = place.designs, place.point.beside.low_rank
    if plain is None or plain not in found:
        return found[:3]
    at = found.index(plain)
    return tuple(found[i] for i in dict.fromkeys((0, (at - 1) % len(found), at)))


def basis_part(place: Place) -> Part:
    """Constants of every design's attention kernels, with their errors."""
    blank = Part(key="basis", title="What each design's attention time rests on")
    try:
        found = [one.answer.basis.table for one in place.each("step-time", **place.step)]
    except PlanError as error:
        return replace(blank, refused=str(error))
    return replace(blank, table=joined(found) if len(found) > 1 else found[0])


SECTIONS: tuple[tuple[str, str, str, Callable[[Place], tuple[Part, ...]]], ...] = (
    (
        "plan", "Plan", "Every attention family on the model's backbone: what it caches, how many "
        "full-length sequences fit, how long a step takes and where the ranking changes.",
        lambda place: (plan_part(place),),
    ),
    ("cache", "Cache", "Exact bytes, by design and by cached tensor. LRKV keeps the same "
        "cache whether keys are rotated as they are rebuilt or not.", cache_parts),
    (
        "rank", "Rank ceilings", "The largest LRKV rank whose cache stays within the budget, and "
        "the GQA and MLA designs that fit the same budget.", rank_parts,
    ),
    (
        "capacity", "Capacity", "What the engine's own allocation rules leave for the cache.",
        capacity_parts,
    ),
    (
        "time", "Time", "Predicted decode steps, and the bounds that the datasheet sets.",
        time_parts,
    ),
    (
        "crossovers", "Crossovers", "Where LRKV becomes faster or slower than the model's own "
        "design; exact changes of the step model, with the band that its constants leave.",
        crossover_parts,
    ),
    (
        "placement", "Placement", "What a tensor-parallel group holds, repeats, and moves over its "
        "links.", placement_parts,
    ),
    (
        "basis", "What it rests on", "Bytes are exact. Times come from constants fitted on "
        "measurements; each says which, and how far predictions were off where they were tested.",
        lambda place: (basis_part(place),),
    ),
)  # fmt: skip


def model_page(
    model: Any, *, output: str | None = None, progress: Progress = lambda _: None, **keywords: Any
) -> Document:
    """The whole report on one model and GPU.

    Parameters
    ----------
    output : the folder's name, for the command line that makes it again.
    progress : told the title of each section before it is computed.
    keywords : of ``designs``, and so of ``plan``.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``designs``.
    """
    progress("Plan")
    place = Place.of(model, **keywords)
    grid: SliderGrid | None = None
    grid_refused = None
    progress("Sliders")
    try:
        grid = _sliders(place)
    except PlanError as error:
        grid_refused = str(error)
    sections = []
    for key, title, lead, parts in SECTIONS:
        progress(title)
        sections.append(Section(key=key, title=title, lead=lead, parts=parts(place)))
    return Document(
        title=f"{place.point.model.name} on {place.gpu.name}",
        subtitle=subtitle(place),
        command=page_command(place, "report", output),
        highlights=tuple(highlights(place)),
        grid=grid,
        grid_refused=grid_refused,
        sections=tuple(sections),
        sources=sources(place),
        common_remarks=common_remarks(place),
    )


def explorer_page(model: Any, *, progress: Progress = lambda _: None, **keywords: Any) -> Document:
    """The page with its sliders alone.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``explore``.
    """
    progress("plan")
    place = Place.of(model, **keywords)
    progress("sliders")
    return Document(
        title=f"{place.point.model.name} on {place.gpu.name}",
        subtitle=subtitle(place),
        command=page_command(place, "explore"),
        grid=_sliders(place),
        sources=sources(place),
        common_remarks=common_remarks(place),
    )


def _sliders(place: Place) -> SliderGrid:
    """The grid, and the plan of its points but for what the sliders state."""
    of_point = ("context_tokens", "batch_size", "kv_dtype")
    given = {name: value for name, value in place.given.items() if name not in of_point}
    planned = plan_of(replace(place, given={**given, "tp_size": place.tp_size, **place.all_gpus}))
    return slider_grid(explored(place.point).grid, planned.line)


def page_command(place: Place, command: str, output: str | None = None) -> str:
    """The command line that makes the page again."""
    where = [] if output is None else ["-o", output]
    return shlex.join([*command_words(command, place.name, place.given), *where])


def sources(place: Place) -> tuple[tuple[str, tuple[Source, ...]], ...]:
    """Where the model and the GPU were read."""
    model, gpu = place.point.model, place.gpu
    return (
        (f"Model {model.name}", tuple(model.source)),
        (f"Hardware {gpu.name}", tuple(gpu.source)),
    )


def common_remarks(place: Place) -> tuple[str, ...]:
    """What all parts assume, and designs that were left out."""
    refused = (f"left out: {reason}" for reason in place.point.beside.refused)
    return (*place.point.model.remarks, *refused)


def subtitle(place: Place) -> str:
    """GPUs, engine, format, and the point where designs stand."""
    deployment = place.point.deployment
    n_gpus = deployment.n_gpus or deployment.parallel.n_gpus
    shared = "" if place.tp_size == 1 else f", {place.tp_size} GPUs share the model"
    return (
        f"{n_gpus} x {place.gpu.title}{shared}; {deployment.engine}; {place.kv_dtype} cache; "
        f"{place.context_tokens:,} tokens a sequence; steps at batch {place.point.batch_size:,}"
    )


def highlights(place: Place) -> Iterator[Highlight]:
    """The largest rank, and what fits how fast with the own design and LRKV."""
    beside, made = place.point.beside, place.point.plan
    if beside.ceiling is not None:
        yield Highlight(
            label=f"Largest LRKV rank in {beside.budget}",
            value=count(beside.ceiling.largest.value),
            detail=f"largest multiple of {beside.ceiling.alignment:,}: "
            f"{beside.ceiling.aligned.value:,}",
        )
    if made is None:
        return
    own, *rest = made.table.rows
    chosen = beside.rotated and beside.rotated.text
    for row in (own, *(row for row in rest if row["attention"] == chosen)):
        yield from _of_design(row)


def _of_design(row: Mapping[str, Any]) -> Iterator[Highlight]:
    what = "own design" if row["role"] == OWN_ROLE else "LRKV in the budget"
    share = row["ratio_to_mha"]
    ratio = "" if share is None else f"; cache {percent(share)} of MHA"
    yield Highlight(
        label=f"Sequences that fit, {what}",
        value=count(row["total_sequences"]),
        detail=f"{row['attention']}{ratio}",
    )
    if row["step_s"] is None:
        return
    low, high = milliseconds(row["low_s"]), milliseconds(row["high_s"])
    yield Highlight(
        label=f"Decode step, {what}",
        value=f"{milliseconds(row['step_s'])} ms",
        detail=f"{low} to {high} ms at batch {row['batch_size']:,}",
    )
