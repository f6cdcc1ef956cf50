"""Which way of serving so many users costs least, over GPUs, layouts, formats and designs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, PlanError, RequirementError, SpecError
from lrkv_plan.progress import tell_progress
from lrkv_plan.questions.arguments import (
    Designs,
    Gpus,
    Model,
    Number,
    Texts,
    asked_designs,
    context_of,
    deployment_of,
    designs_of,
    latency_target,
    load_model,
    weight_formats_of,
    with_provenance,
)
from lrkv_plan.questions.asking import Asking
from lrkv_plan.questions.listed import listed
from lrkv_plan.questions.picture import Picture
from lrkv_plan.questions.result import Result
from lrkv_plan.specs.deployment import SIZES

if TYPE_CHECKING:
    from lrkv_plan.report.screens.best import Answered
    from lrkv_plan.serving.cheapest import RuledOut, Way, Wish
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, repr=False, eq=False)
class Best(Result):
    """The cheapest ways; ``tornado`` draws what each uncertain constant does to the first."""

    def tornado(self) -> Picture:
        """Draw what the cheapest way costs with each uncertain constant at the ends of its band.

        Constants that change nothing are left out.

        Raises
        ------
        UsageError
            If none changes anything.
        """
        from lrkv_plan.report.series.sweeps import tornado

        first = self.rows[0]
        outcome = "n_gpus" if first["usd_per_hour"] is None else "usd_per_hour"
        base = float(first[outcome])
        moved = [
            {
                "name": row["constant"], "low": row["low_cost"], "high": row["high_cost"],
                "low_text": "" if row["low_cost"] == base else f"x {row['low_factor']:.2g}",
                "high_text": "" if row["high_cost"] == base else f"x {row['high_factor']:.2g}",
            }
            for row in self.table.also["sensitivity"]
            if None not in (row["low_cost"], row["high_cost"])
            and (row["low_cost"], row["high_cost"]) != (base, base)
        ]  # fmt: skip
        return Picture(tornado(moved, outcome=outcome, base=base))


def best(
    model: Model,
    *,
    users: Number,
    context_tokens: Number | None = None,
    tpot_ms: Number | None = None,
    gpu: Gpus | None = None,
    budget_usd_hour: Number | None = None,
    max_gpus: Number | None = None,
    attention: Designs | None = None,
    families: bool | None = None,
    kv_dtype: Texts | None = None,
    weight_dtype: Texts | None = None,
    tp_size: Number | None = None,
    pp_size: Number | None = None,
    dp_size: Number | None = None,
    ep_size: Number | None = None,
    dcp_size: Number | None = None,
    engine: str | None = None,
    speculative_tokens: Number | None = None,
    accepted_tokens: Number | None = None,
    utilisation: Number | None = None,
    align: Number | None = None,
    gpu_hour_usd: Number | None = None,
    draws: Number | None = None,
    seed: Number | None = None,
    spec_dir: str | Path | None = None,
) -> Best:
    """Find the cheapest way to serve so many users: GPUs, layout, replicas, formats.

    A row per GPU and design, the cheapest first; those that will not do stand last with the reason.
    Prices are those of an hour; GPUs without one are compared by their number, after all others.

    Parameters
    ----------
    users : sequences of full length that are served together.
    context_tokens : tokens of each; 8k or the model's maximum.
    tpot_ms : the most that an output token may take; times are not asked for when None. [ms]
    gpu : "any" shipped one (when None), one or several.
    budget_usd_hour : the most that all GPUs may cost in an hour. [USD]
    max_gpus : the most GPUs, 64.
    attention : designs to choose from; the model's own when None. ``families`` adds one of every
        family within the own design's cache.
    kv_dtype, weight_dtype : formats to choose from; bf16 and the model's own. What 8 bits would
        save is told beside the answer.
    tp_size, pp_size, dp_size, ep_size, dcp_size : searched where None, as far as the engine runs
        them.
    draws : seeded draws (``seed``) of what is uncertain that tell how firm the winner is, 1,000.

    Raises
    ------
    SpecError, UsageError
        If an argument names nothing, cannot be read or honoured.
    RequirementError
        If no way will do; the message says what rules each GPU out.
    """
    given = dict(locals())
    from lrkv_plan.report.screens.best import BestAnswer
    from lrkv_plan.report.views.best import best_table
    from lrkv_plan.serving.cheapest import Wish

    spec = load_model(model, spec_dir=spec_dir)
    bases = _bases(given, spec)
    budget = words.optional(words.number, "budget_usd_hour", budget_usd_hour)
    target = None
    if tpot_ms is not None:
        target = latency_target(
            tpot_ms, speculative_tokens, accepted_tokens, spec_dir, [one.hardware for one in bases]
        )
    elif speculative_tokens is not None or accepted_tokens is not None:
        raise ArgumentError(
            ["speculative_tokens", "accepted_tokens"], ": are of times; give --tpot-ms"
        )
    wish = Wish(
        n_sequences=words.count("users", users),
        target=target,
        most_usd_per_hour=budget,
        most_gpus=64 if max_gpus is None else words.count("max_gpus", max_gpus),
        stated=tuple(
            (name, words.count(name, given[name])) for name in SIZES if given[name] is not None
        ),
    )
    chosen = _chosen(given, spec, bases)
    kv_dtypes = listed("kv_dtype", words.given(kv_dtype, "bf16"))
    weight_dtypes = list(dict.fromkeys(weight_formats_of(weight_dtype)))
    answers = list(_answers(chosen, bases, wish, kv_dtypes, weight_dtypes))
    answers.sort(key=_order)
    if not any(one.way for one in answers):
        raise RequirementError(_nothing(spec, wish, answers))
    found = [one.way for one in answers if one.way is not None]
    answer = BestAnswer(
        model=spec, wish=wish, answers=answers, context_tokens=_context(given, spec),
        firmness=_firmness(found, wish, draws, seed),
        smaller=None
        if kv_dtype is not None and weight_dtype is not None
        else _in_8_bits(bases, wish, found[0]),
        launch=_launch(found[0], model, given), asking=Asking(model, spec, given),
    )  # fmt: skip
    table = best_table(answer, given)
    gpus = {one.hardware.name: one.hardware for one in answers if one.way is not None}
    return Best(with_provenance(table, spec, *gpus.values()))


def _context(given: Mapping[str, Any], spec: ModelSpec) -> int:
    return context_of(given["context_tokens"], spec)


def _bases(given: Mapping[str, Any], spec: ModelSpec) -> list[Deployment]:
    """One deployment per GPU; its layout, number and formats are searched."""
    from lrkv_plan.loader import load_all_hardware

    gpus: list[Any] = listed("gpu", given["gpu"])
    is_any = gpus in ([None], ["any"])
    if is_any:
        gpus = list(load_all_hardware(given["spec_dir"]))
    bases = []
    for gpu in gpus:
        one = deployment_of(
            given["model"], spec, gpu=gpu, engine=given["engine"],
            context_tokens=_context(given, spec), utilisation=given["utilisation"],
            align=given["align"], gpu_hour_usd=given["gpu_hour_usd"], spec_dir=given["spec_dir"],
        )  # fmt: skip
        if one.n_gpus is not None:
            raise ArgumentError("gpu", f" {gpu}: how many is searched; leave the number out")
        bases.append(one)
    return bases


def _chosen(
    given: Mapping[str, Any], spec: ModelSpec, bases: Sequence[Deployment]
) -> list[tuple[str, ModelSpec]]:
    """The designs to choose from: the model's own first, then those asked for."""
    from lrkv_plan.memory.largest import rank_ceiling
    from lrkv_plan.serving.plan import compared_designs, own_budget

    asked = asked_designs(given["attention"])
    chosen = designs_of(spec, asked) if asked else designs_of(spec, None)
    if given["families"]:
        ceiling = rank_ceiling(spec, budget=own_budget(spec), alignment=bases[0].rank_alignment)
        limit = ceiling.budget_bytes_per_token_per_gpu
        for one in compared_designs(spec, bases[0], limit):
            if one.text is not None and one.refused is None:
                chosen.append((one.text, one.model))
    return list(dict(chosen).items())


def _answers(
    chosen: Sequence[tuple[str, ModelSpec]], bases: Sequence[Deployment], wish: Wish,
    kv_dtypes: Sequence[str], weight_dtypes: Sequence[str | None],
) -> Iterator[Answered]:  # fmt: skip
    from lrkv_plan.report.screens.best import Answered
    from lrkv_plan.serving.cheapest import RuledOut, cheapest_way

    for place, base in enumerate(bases):
        formats = [
            replace(
                base, settings=replace(base.settings, kv_dtype=kv),
                weight_dtype=base.weight_dtype if weight is None else weight,
            )
            for weight in weight_dtypes
            for kv in kv_dtypes
        ]  # fmt: skip
        price = "usd" if base.usd_per_gpu_hour is not None else "gpus"
        for label, design in chosen:
            found: Way | RuledOut
            try:
                found = cheapest_way(design, formats, wish, price=price)  # type: ignore[arg-type]
            except SpecError as error:
                if len(bases) == len(chosen) == 1:
                    raise
                found = RuledOut(reason=str(error))
            is_ruled_out = isinstance(found, RuledOut)
            if wish.most_usd_per_hour is not None and price == "gpus":
                found, is_ruled_out = RuledOut(reason="no hourly price: --gpu-hour-usd"), True
            yield Answered(
                attention=label, hardware=_gpu(base), base=base,
                way=None if is_ruled_out else found,  # type: ignore[arg-type]
                refused=found.reason if isinstance(found, RuledOut) else None,
            )  # fmt: skip
        tell_progress(functools.partial("tried {} of {} GPUs".format, place + 1, len(bases)))


def _gpu(base: Deployment) -> HardwareProfile:
    assert base.hardware is not None, "each deployment names its GPU"
    return base.hardware


def _order(one: Answered) -> tuple[Any, ...]:
    """Cheapest first, priced before unpriced, ruled out last; of equals the fewest GPUs."""
    if one.way is None:
        return (2, 0.0, 0, one.hardware.name)
    usd = one.way.usd_per_hour
    return (usd is None, usd or 0.0, one.way.n_gpus, one.hardware.name)


def _nothing(spec: ModelSpec, wish: Wish, answers: Sequence[Answered]) -> str:
    told = "; ".join(f"{one.hardware.name}: {one.refused}" for one in answers[:4])
    more = f"; and {len(answers) - 4} more" if len(answers) > 4 else ""
    return f"{spec.name}: no way serves {wish.n_sequences:,} users: {told}{more}"


def _firmness(found: Sequence[Way], wish: Wish, draws: Number | None, seed: Number | None) -> Any:
    """How firmly the first of several comparable ways is ahead; None for one alone."""
    from lrkv_plan.latency.sensitivity import DEFAULT_DRAWS
    from lrkv_plan.serving.firmness import firmness

    n_draws = DEFAULT_DRAWS if draws is None else words.count("draws", draws)
    number = 0 if seed is None else words.whole("seed", seed)
    alike = [one for one in found if (one.usd_per_hour is None) == (found[0].usd_per_hour is None)]
    if len(alike) < 2:
        return None
    return firmness(alike, wish, n_draws=n_draws, seed=number)


def _in_8_bits(bases: Sequence[Deployment], wish: Wish, winner: Way) -> Way | None:
    """The cheapest way on the winner's GPU with the engine's small formats, if it costs less."""
    from lrkv_plan.serving.cheapest import RuledOut, cheapest_way
    from lrkv_plan.serving.engine import engine_record

    deployment = winner.deployment
    record = engine_record(deployment.engine.name)
    kv, weight = record.small_kv_dtypes[:1], record.small_weight_dtype
    if not kv or weight is None:
        return None
    base = next(one for one in bases if one.hardware == deployment.hardware)
    small = replace(base, settings=replace(base.settings, kv_dtype=kv[0]))
    options = [small] if base.weight_dtype else [small, replace(small, weight_dtype=weight)]
    try:
        found = cheapest_way(
            winner.model, options, wish, price="gpus" if winner.usd_per_hour is None else "usd"
        )
    except PlanError:
        return None
    return None if isinstance(found, RuledOut) or found.cost >= winner.cost else found


def _launch(winner: Way, model: Model, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The engine's command line of one replica; none for a design of one's own."""
    from lrkv_plan.questions.launching import launch_words

    if given["attention"] is not None or given["families"]:
        return ()
    batch = winner.served if winner.load is None else winner.load.batch_size
    core = max(1, -(-batch // winner.deployment.parallel.dp_size))
    try:
        return launch_words(winner.deployment, winner.model, model, core)
    except PlanError:
        return ()
