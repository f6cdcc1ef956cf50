"""Many points at once: a grid of designs, GPUs, layouts, contexts and batches, thinned out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import units, words
from lrkv_plan.errors import ArgumentError, SpecError, UsageError, shown
from lrkv_plan.files import as_path
from lrkv_plan.questions.arguments import (
    Gpus,
    Models,
    Number,
    Numbers,
    Texts,
    default_context,
    deployment_of,
    latency_target,
    models_of,
    refuse_beside_pool,
    refuse_unread,
    weight_formats_of,
)
from lrkv_plan.questions.listed import listed
from lrkv_plan.questions.picture import Picture
from lrkv_plan.questions.result import Result
from lrkv_plan.specs.deployment import SIZES
from lrkv_plan.specs.design import design_label

if TYPE_CHECKING:
    import pandas

    from lrkv_plan.attention.spec import AttentionSpec
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.model import ModelSpec
    from lrkv_plan.sweeping.evaluation import Counts, Sweep
    from lrkv_plan.sweeping.grid import Design, Grid
    from lrkv_plan.sweeping.running import Outcome

MOST_POINTS = 10**11
_SPAN_OF_SIZES = re.compile(r"(\d+)\.\.(\d+)(?::(\*?\d+))?")


@dataclass(frozen=True, repr=False, eq=False)
class Swept(Result):
    """The rows of a sweep; ``counts`` says what was seen, ``folder`` where rows lie on disk.

    ``frame`` holds texts as categories and numbers as they are, NaN where absent.
    """

    outcome: Outcome = field(kw_only=True)
    folder: Path | None = field(default=None, kw_only=True)

    @property
    def counts(self) -> Counts:
        """Points seen, of refused configurations, whose batch does not fit, and wanted."""
        return self.outcome.counts

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame; those of a folder are read from it.

        Raises
        ------
        ArgumentError
            If the folder holds more than 5,000,000 rows: read its files one by one.
        """
        from lrkv_plan.sweeping.evaluation import joined
        from lrkv_plan.sweeping.running import MOST_ROWS

        if self.outcome.frame is not None:
            return self.outcome.frame
        if self.outcome.n_rows > MOST_ROWS or self.folder is None:
            raise ArgumentError(
                "out", f" {self.folder}: holds {self.outcome.n_rows:,} rows; read its Parquet files"
            )
        import pandas

        return joined(
            [pandas.read_parquet(one) for one in sorted(self.folder.glob("part-*.parquet"))]
        )

    def pareto(self, objectives: Texts | None = None, by: Texts | None = None) -> pandas.DataFrame:
        """The rows that no other row beats: see ``sweep``.

        Parameters
        ----------
        objectives : "users up, tpot_s down, n_gpus down" where None.
        by : keys; a frontier for each combination of their values.
        """
        from lrkv_plan.sweeping.points import KEYS, NUMBER_KEYS
        from lrkv_plan.sweeping.reduction import best_first, reduction

        asked = reduction("pareto", objectives, by, set(KEYS), set(NUMBER_KEYS))
        return best_first(asked, asked.of_frame(self.frame))

    def plot(
        self, x: str, y: str, hue: str | None = None, *, better: Sequence[str] | None = None
    ) -> Picture:
        """Draw the frontier of ``y`` against ``x`` and the other rows, a colour for each ``hue``.

        Parameters
        ----------
        x, y : keys of rows, or short words of them; ``hue`` such as attention or gpu.
        better : "more" or "less" for x and y; what is meant of users, times, rates and prices where
            None.

        Raises
        ------
        UsageError
            If a name is no key, or no row has both.
        """
        from lrkv_plan.report.series.sweeps import frontier

        keys = [_key(one, "x" if one is x else "y") for one in (x, y)]
        told = tuple(map(_better, keys)) if better is None else tuple(better)
        colour = None if hue is None else _key(hue, "hue")
        return Picture(frontier(self.frame, keys[0], keys[1], colour, better=told))  # type: ignore[arg-type]

    def heat_map(self, x: str, y: str, value: str, *, better: str | None = None) -> Picture:
        """Draw one value over two keys of rows; of several rows of a cell the better one.

        Raises
        ------
        UsageError
            If a name is no key, or no row has the value.
        """
        from lrkv_plan.report.series.sweeps import heat_map

        key = _key(value, "value")
        told = _better(key) if better is None else better
        return Picture(heat_map(self.frame, _key(x, "x"), _key(y, "y"), key, better=told))


def _key(name: str, argument: str) -> str:
    from lrkv_plan.sweeping.points import KEYS
    from lrkv_plan.sweeping.where import key_of

    return key_of(name, set(KEYS), argument)[0]


_LESS = ("tpot", "usd", "n_gpus", "bytes", "model_params")


def _better(key: str) -> str:
    """Whether more or less of a key is better: of times, prices, GPUs and bytes less."""
    return "less" if key.startswith(_LESS) or "_bytes_" in key else "more"


def sweep(
    models: Models,
    *,
    gpus: Gpus,
    designs: str | Sequence[str | AttentionSpec] | None = None,
    context_tokens: Numbers | None = None,
    batch_size: Numbers | None = None,
    tp_size: Numbers | None = None,
    pp_size: Numbers | None = None,
    dp_size: Numbers | None = None,
    ep_size: Numbers | None = None,
    dcp_size: Numbers | None = None,
    kv_dtype: Texts | None = None,
    weight_dtype: Texts | None = None,
    engine: str | None = None,
    n_gpus: Number | None = None,
    where: str | None = None,
    reduce: str | Callable[[pandas.DataFrame], pandas.DataFrame] | None = None,
    objectives: Texts | None = None,
    by: Texts | None = None,
    tpot_ms: Number | None = None,
    speculative_tokens: Number | None = None,
    accepted_tokens: Number | None = None,
    page_tokens: Number | None = None,
    max_batched_tokens: Number | None = None,
    prefix_cache: bool | None = None,
    max_num_seqs: Number | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    align: Number | None = None,
    gpu_hour_usd: Number | None = None,
    executor: Any = None,
    workers: Number | None = None,
    out: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    spec_dir: str | Path | None = None,
) -> Swept:
    """Evaluate a whole grid: what fits, how fast, at what cost, at every point.

    Rows have the keys of ``capacity`` and ``plan``; ``point`` numbers them. A point that is refused
    stays a row with its reason, without times.

    Parameters
    ----------
    models, gpus : one or several; so many of one GPU as "8xh100-sxm".
    designs : "own", "mla:512+64", "lrkv:8..64:8" (sizes from 8 to 64 in steps of 8), one or a
        list; in one text with semicolons between. A span without steps takes the sizes that the
        model's heads allow. Its own when None.
    context_tokens, batch_size, tp_size, pp_size, dp_size, ep_size, dcp_size : numbers, lists or
        spans: "1..8", "1k..32k:1k", "1..64:*2". A batch is one replica's; "full" is the largest
        that fits, within ``tpot_ms`` where that is given, and the default.
    kv_dtype, weight_dtype : formats, one or several; "own" are the model's own weights.
    where : keeps points for which it holds: "users >= 64 and tpot_high_s < 0.03".
    reduce : "pareto", "min", "top:20", or a function from frame to frame that may be applied to
        parts and then to what is left of them.
    objectives : what is best: "users up, tpot_s down, n_gpus down" of a frontier where None,
        "tpot_s down" of min and top.
    by : keys; what is left of each combination of their values.
    executor : None (processes where the grid is large), "serial", "processes", "dask",
        "dask:ADDRESS", or any concurrent.futures.Executor; ``workers`` at a time.
    out : a folder for Parquet files, one per chunk; a sweep that was stopped goes on there.
    progress : called with the points that are done and all of them.

    Raises
    ------
    SpecError, UsageError, PlacementError
        If an argument names nothing, cannot be read or honoured.
    PlanError
        If a library is missing, or processes are killed again and again.
    """
    given = dict(locals())
    from lrkv_plan.report.views.sweep import sweep_table
    from lrkv_plan.sweeping.evaluation import Sweep
    from lrkv_plan.sweeping.points import KEYS, NUMBER_KEYS, TEXT_KEYS
    from lrkv_plan.sweeping.reduction import reduction
    from lrkv_plan.sweeping.running import run
    from lrkv_plan.sweeping.where import condition

    keys = set(KEYS)
    thinned = reduction(reduce, objectives, by, keys, set(NUMBER_KEYS))
    kept = None if where is None else condition(where, keys, TEXT_KEYS)
    refuse_beside_pool(kv_memory, utilisation=utilisation)
    named = models_of(models, spec_dir)
    grid = _grid(given, named)
    if grid.n_points > MOST_POINTS:
        raise UsageError(
            f"{grid.n_points:,} points: at most {MOST_POINTS:,}; use shorter axes or wider steps"
        )
    asked = Sweep(grid=grid, where=kept, reduction=thinned)
    folder = None if out is None else as_path(out)
    outcome = run(
        asked, executor=executor, folder=folder, progress=progress,
        workers=words.optional(words.count, "workers", workers),
    )  # fmt: skip
    inputs = _inputs(asked, given, named, folder)
    table = sweep_table(asked, outcome, inputs, [text for text, _ in named])
    explained = replace(table, explain=lambda row: _explained(row, given, named))
    return Swept(explained, outcome=outcome, folder=folder)


def _explained(
    row: Mapping[str, Any], given: Mapping[str, Any], named: Sequence[tuple[str, ModelSpec]]
) -> list[str]:
    """What ``capacity`` and ``step_time`` say of the point."""
    from lrkv_plan.questions.serving import capacity
    from lrkv_plan.questions.times import step_time

    if row["refused"] is not None:
        return [f"point {row['point']}: {row['refused']}"]
    spec = next(spec for _, spec in named if spec.name == row["model"])
    is_own = row["attention"] in ("own", design_label(spec))
    at: dict[str, Any] = {
        "gpu": row["gpu"], "attention": None if is_own else row["attention"],
        "engine": given["engine"], "context_tokens": row["context_tokens"],
        "kv_dtype": row["kv_dtype"], "weight_dtype": row["weight_dtype"],
        "weights": given["weights"], "spec_dir": given["spec_dir"],
        **{name: row[name] for name in SIZES},
    }  # fmt: skip
    if given["weights"] is not None:
        at["weight_dtype"] = None
    held = capacity(spec, **at, **{n: given[n] for n in (
        "utilisation", "kv_memory", "page_tokens", "max_batched_tokens", "max_num_seqs",
        "prefix_cache",
    )})  # fmt: skip
    del at["dcp_size"]
    timed = step_time(
        spec, batch_size=row["batch_size"], query_tokens=given["speculative_tokens"], **at
    )
    lines: list[str] = []
    for answer in (held, timed):
        if answer.table.explain is not None:
            lines += answer.table.explain(answer.table.rows[0])
    return lines


def _grid(given: Mapping[str, Any], named: Sequence[tuple[str, ModelSpec]]) -> Grid:
    from lrkv_plan.sweeping.grid import Grid

    texts, specs = [text for text, _ in named], tuple(spec for _, spec in named)
    kv_dtypes = listed("kv_dtype", words.given(given["kv_dtype"], "bf16"))
    gpus = _listed_gpus(given["gpus"])
    bases = tuple(
        tuple(_base(given, text, spec, gpu) for gpu in gpus)
        for text, spec in zip(texts, specs, strict=True)
    )
    hardware = [one.hardware for one in bases[0]]
    target = latency_target(
        given["tpot_ms"], given["speculative_tokens"], given["accepted_tokens"],
        given["spec_dir"], hardware,
    )  # fmt: skip
    context = given["context_tokens"]
    contexts = (
        [min(map(default_context, specs))]
        if context is None
        else words.spans("context_tokens", context, units.parse_tokens)
    )
    sizes = [_sizes(given, name) for name in SIZES]
    return Grid(
        models=specs,
        designs=tuple(tuple(_designs(spec, given["designs"])) for spec in specs),
        bases=bases,
        layouts=tuple(dict(zip(SIZES, one, strict=True)) for one in itertools.product(*sizes)),
        kv_dtypes=tuple(kv_dtypes),
        weight_dtypes=tuple(_weight_formats(given["weight_dtype"])),
        contexts=tuple(contexts),
        batches=tuple(_batches(given["batch_size"])),
        target=target,
    )


def _listed_gpus(value: Any) -> list[Any]:
    found = listed("gpus", value)
    if found == [None]:
        raise ArgumentError("gpus", ": name one or several, such as 'h100-sxm,h200'")
    return found


def _base(given: Mapping[str, Any], text: str, spec: ModelSpec, gpu: Any) -> Deployment:
    """All of a deployment that the axes leave alone."""
    settings: dict[str, Any] = {
        "page_tokens": words.optional(words.count, "page_tokens", given["page_tokens"]),
        "prefix_cache": bool(given["prefix_cache"]),
        "max_num_seqs": words.optional(words.count, "max_num_seqs", given["max_num_seqs"]),
    }
    if given["max_batched_tokens"] is not None:
        batched = words.count("max_batched_tokens", given["max_batched_tokens"])
        settings["max_batched_tokens"] = batched
    base = deployment_of(
        text, spec, gpu=gpu, context_tokens=1, engine=given["engine"], n_gpus=given["n_gpus"],
        weights=given["weights"], utilisation=given["utilisation"], align=given["align"],
        kv_memory=given["kv_memory"], gpu_hour_usd=given["gpu_hour_usd"],
        spec_dir=given["spec_dir"], settings=settings,
    )  # fmt: skip
    refuse_unread(
        base.engine, page_tokens=given["page_tokens"], max_num_seqs=given["max_num_seqs"],
        max_batched_tokens=given["max_batched_tokens"], prefix_cache=given["prefix_cache"],
    )  # fmt: skip
    return base


def _sizes(given: Mapping[str, Any], name: str) -> list[int]:
    value = given[name]
    return [1] if value is None else words.spans(name, value, _whole)


def _batches(value: Any) -> list[int | None]:
    """Batches; None is the fullest."""
    if value is None:
        return [None]
    several = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, str):
        several = value.split(",")
    numbers = [one for one in several if not (isinstance(one, str) and one.strip() == "full")]
    if len(several) - len(numbers) > 1:
        raise ArgumentError("batch_size", f" {shown(value)}: 'full' stands twice")
    if isinstance(value, str) and len(numbers) == len(several):
        numbers = value  # type: ignore[assignment]  # as written, with what commas may mean
    found: list[int | None] = []
    found += words.spans("batch_size", numbers, _whole) if numbers else []
    return found if len(numbers) == len(several) or numbers is value else [*found, None]


def _whole(text: str) -> int:
    value = units.parse_number(text)
    if value.denominator != 1 or not 1 <= value <= 2**31:
        raise UsageError(f"{shown(text)} is not a whole number from 1 to 2**31")
    return int(value)


def _weight_formats(value: Texts | None) -> list[str | None]:
    found = weight_formats_of(value)
    if len(set(found)) < len(found):
        raise ArgumentError("weight_dtype", f" {shown(value)}: name each format once")
    return found


def _designs(model: ModelSpec, asked: Any) -> list[Design]:
    """The designs of one model, each once; what its heads do not allow stays, with the reason."""
    from lrkv_plan.attention.spec import AttentionSpec
    from lrkv_plan.specs.design import swap_attention
    from lrkv_plan.sweeping.grid import Design

    several = asked if isinstance(asked, list | tuple) else ["own" if asked is None else asked]
    texts = [part for one in several
             for part in (one.split(";") if isinstance(one, str) else [one])]  # fmt: skip
    own = design_label(model)
    found: dict[str, Design] = {}
    for one in texts:
        if not isinstance(one, str | AttentionSpec) or one == "":
            raise ArgumentError("designs", f" {shown(one)}: must be text, such as 'gqa:8'")
        if isinstance(one, str) and one.strip() == "own":
            found.setdefault(own, Design(text=own))
            continue
        for spec in [one] if isinstance(one, AttentionSpec) else _spelled(model, one.strip()):
            text = spec if isinstance(spec, str) else spec.text()
            refused = None
            try:
                is_own = swap_attention(model, spec) == model
            except SpecError as error:
                if len(texts) == 1 and spec == one:
                    raise
                is_own, refused = False, str(error)
            known = found.get(text)
            if known is not None and known.spec is None and not is_own:
                # The label leaves out what tells them apart, such as sinks.
                found = {"own": Design(text="own"), **{k: v for k, v in found.items() if k != own}}
            if text not in found:
                found[text] = Design(text=text, spec=None if is_own else spec, refused=refused)
        if len(found) > words.MOST_IN_A_SPAN:
            raise ArgumentError("designs", f": more than {words.MOST_IN_A_SPAN:,} designs")
    return list(found.values())


def _spelled(model: ModelSpec, text: str) -> list[str]:
    """A design with a span of sizes as one text for each size."""
    from lrkv_plan.specs.design import sizes_of, swap_attention

    match = _SPAN_OF_SIZES.search(text)
    if match is None:
        return [text]
    first, last, step = match.groups()
    if step is None:
        begun = None
        for size in range(int(first), min(int(last), int(first) + 4_096) + 1):
            try:
                begun = swap_attention(model, _with(text, match, size))
            except SpecError:
                continue
            break
        sizes = [] if begun is None else [
            size for size in sizes_of(begun) if int(first) <= size <= int(last)
        ]  # fmt: skip
        if not sizes:
            raise ArgumentError("designs", f" {shown(text)}: {model.name} allows none of the sizes")
    else:
        sizes = words.spans("designs", f"{first}..{last}:{step}", int)
    return [_with(text, match, size) for size in sizes]


def _with(text: str, match: re.Match[str], size: int) -> str:
    return f"{text[: match.start()]}{size}{text[match.end() :]}"


def _inputs(
    asked: Sweep, given: Mapping[str, Any], named: Sequence[tuple[str, ModelSpec]],
    folder: Path | None,
) -> dict[str, Any]:  # fmt: skip
    from lrkv_plan.sweeping.reduction import as_told

    grid, base = asked.grid, asked.grid.bases[0][0]
    tpot = grid.target.tpot_s
    return {
        "models": [model.name for _, model in named],
        "gpus": [one.hardware.name for one in grid.bases[0] if one.hardware is not None],
        "designs": [[one.text for one in designs] for designs in grid.designs],
        "engine": str(base.engine),
        "n_gpus": base.n_gpus,
        **{name: sorted({one[name] for one in grid.layouts}) for name in SIZES},
        "kv_dtypes": list(grid.kv_dtypes),
        "weight_dtypes": [one or "own" for one in grid.weight_dtypes],
        "contexts_tokens": list(grid.contexts),
        "batch_sizes": ["full" if one is None else one for one in grid.batches],
        "tpot_ms": None if tpot is None else tpot * 1e3,
        "speculative_tokens": grid.target.speculation.query_tokens,
        "accepted_tokens": grid.target.speculation.accepted_tokens,
        "where": given["where"],
        **as_told(asked.reduction),
        "out": None if folder is None else str(folder),
        "n_points": grid.n_points,
    }
