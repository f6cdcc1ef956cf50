"""How much fits a deployment, and the page for a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, PlanError, SpecError, UsageError
from lrkv_plan.files import as_path
from lrkv_plan.questions.arguments import (
    Designs,
    Gpus,
    Model,
    Models,
    Number,
    Numbers,
    Texts,
    asked_designs,
    budget_text,
    context_of,
    contexts_of,
    deployment_of,
    designs_of,
    latency_target,
    load_model,
    population_of,
    refuse,
    refuse_alignment,
    refuse_beside_pool,
    refuse_unread,
    with_provenance,
)
from lrkv_plan.questions.asking import Asking
from lrkv_plan.questions.result import Result

if TYPE_CHECKING:
    from lrkv_plan.serving.answers import Answer
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.model import ModelSpec
    from lrkv_plan.specs.population import Population
    from lrkv_plan.specs.prefix_trace import PrefixTrace


def plan(
    model: Models,
    *,
    gpu: Gpus,
    attention: Designs | None = None,
    context_tokens: Numbers | None = None,
    n_gpus: Number | None = None,
    tp_size: Numbers | None = None,
    pp_size: Number | None = None,
    dp_size: Number | None = None,
    ep_size: Number | None = None,
    budget: Number | None = None,
    batch_size: Numbers | None = None,
    require_sequences: Number | None = None,
    require_tokens: Number | None = None,
    require_tpot_ms: Number | None = None,
    tpot_ms: Number | None = None,
    speculative_tokens: Number | None = None,
    accepted_tokens: Number | None = None,
    engine: str | None = None,
    kv_dtype: Texts | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    align: Number | None = None,
    gpu_hour_usd: Number | None = None,
    budget_file: str | Path | None = None,
    launch: bool | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Compare MHA, GQA, MQA, MLA and LRKV on one deployment: cache, fit, time, cost, crossover.

    Parameters
    ----------
    model, gpu, context_tokens, tp_size, batch_size, kv_dtype : one, or several to plan each; so
        many of one GPU as "8xh100-sxm".
    attention : more designs to compare, a row each.
    context_tokens : cached tokens per sequence; 8k or the model's maximum.
    tp_size : GPUs that share the model; of ``n_gpus`` the size that serves most, else the smallest
        that fits.
    pp_size, dp_size, ep_size : pipeline, data and expert-parallel GPUs of a replica, 1 each.
    budget : cache budget for LRKV, GQA and MLA; the model's own cache, or half of MHA.
    batch_size : sequences decoded together on each replica; each row's largest when None.
    require_sequences, require_tokens, require_tpot_ms : what the model's own design, or each of
        ``attention``, must hold and the most that its token may take; else ``unmet`` says what
        misses. The load stays as it is.
    tpot_ms : the most that an output token may take: loads are the largest within it. [ms]
    weights, kv_memory : per GPU. [bytes, or text such as "14.99 GiB"]
    budget_file : a budget that ``capacity(from_log=..., write_budget=...)`` measured.
    launch : also the engine's own command line of the model's own design.

    Raises
    ------
    SpecError, UsageError, BudgetError, PlacementError
        If an argument names nothing, cannot be read or honoured, or nothing fits.
    """
    given = dict(locals())
    from lrkv_plan.questions.alternatives import stacked
    from lrkv_plan.questions.launching import launch_words
    from lrkv_plan.questions.required import Required
    from lrkv_plan.report.screens.plan import PlanAnswer, plan_equations, plan_screen, said_beside
    from lrkv_plan.report.views.capacity import bounded
    from lrkv_plan.report.views.time import plan_inputs, plan_table
    from lrkv_plan.serving.plan import make_plan
    from lrkv_plan.specs.design import typed_designs

    several = stacked(plan, given)
    if several is not None:
        return several
    required = Required.of(require_sequences, require_tokens, require_tpot_ms)
    refuse_beside_pool(kv_memory, utilisation=utilisation, budget_file=budget_file)
    spec = load_model(given["model"], spec_dir=spec_dir)  # single values from here on
    deployment = deployment_of(
        given["model"], spec, gpu=given["gpu"], engine=engine,
        context_tokens=context_of(given["context_tokens"], spec), kv_dtype=given["kv_dtype"],
        tp_size=1 if tp_size is None else words.count("tp_size", tp_size), n_gpus=n_gpus,
        weight_dtype=weight_dtype, weights=weights, utilisation=utilisation, kv_memory=kv_memory,
        align=align, gpu_hour_usd=gpu_hour_usd, spec_dir=spec_dir, budget_file=budget_file,
    )  # fmt: skip
    degrees = {"pp_size": pp_size, "dp_size": dp_size, "ep_size": ep_size}
    sizes: dict[str, Any] = {
        n: words.count(n, value) for n, value in degrees.items() if value is not None
    }
    deployment = replace(deployment, parallel=replace(deployment.parallel, **sizes))
    target = latency_target(
        tpot_ms, speculative_tokens, accepted_tokens, spec_dir, [deployment.hardware]
    )
    batch = words.optional(words.count, "batch_size", batch_size)
    made = make_plan(
        spec,
        deployment,
        budget=budget_text(budget),
        batch_size=batch,
        target=target,
        is_layout_stated=tp_size is not None,
        designs=typed_designs(spec, asked_designs(attention)),
    )
    inputs = plan_inputs(spec, deployment, target, made)
    command: tuple[str, ...] = ()
    if launch and made.rows[0].capacity.max_sequences:
        load, parallel = made.rows[0].load, made.parallel
        core = made.rows[0].capacity.max_sequences
        if load is not None:
            core = max(1, load.batch_size // parallel.dp_size)
        command = launch_words(replace(deployment, parallel=parallel), spec, given["model"], core)
    table = plan_table(spec, inputs, made, command)
    assert deployment.hardware is not None, "a plan names its GPU"
    answer = PlanAnswer(
        model=spec, inputs=inputs, plan=made, gpu=deployment.hardware, batch_size=batch,
        bound=bounded(made.rows[0].capacity.weights_left_out), notes=said_beside(table.notes),
        launch=command,
    )  # fmt: skip
    asking = Asking(given["model"], spec, given)
    shown = replace(
        table,
        screen=lambda: plan_screen(answer, asking),
        explain=lambda row: plan_equations(answer, str(row["attention"])),
        unmet=required.unmet_of_plan(made),
    )
    return Result(with_provenance(shown, spec, deployment.hardware))


def capacity(
    model: Models | None = None,
    *,
    gpu: Gpus | None = None,
    attention: Designs | None = None,
    n_gpus: Number | None = None,
    tp_size: Numbers | None = None,
    pp_size: Number | None = None,
    dp_size: Number | None = None,
    ep_size: Number | None = None,
    dcp_size: Number | None = None,
    pp_layers: Numbers | None = None,
    engine: str | None = None,
    context_tokens: Numbers | None = None,
    max_context: bool | None = None,
    page_tokens: Number | None = None,
    max_batched_tokens: Number | None = None,
    kv_dtype: Texts | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    draft_layers: Number | None = None,
    draft_tokens: Number | None = None,
    prefix_cache: bool | None = None,
    drafter: Model | None = None,
    max_num_seqs: Number | None = None,
    mamba_ssm_cache_dtype: str | None = None,
    max_mamba_cache_size: Number | None = None,
    mamba_full_memory_ratio: Number | None = None,
    mamba_scheduler_strategy: str | None = None,
    disable_radix_cache: bool | None = None,
    swa_full_tokens_ratio: Number | None = None,
    no_kv_unified: bool | None = None,
    cross_kv_cache_fraction: Number | None = None,
    limit_mm_per_prompt: str | None = None,
    shared_prefix_tokens: Number | None = None,
    max_loras: Number | None = None,
    max_lora_rank: Number | None = None,
    kv_offload: int | str | None = None,
    n_gpu_layers: Number | None = None,
    cpu_offload_gb: Number | None = None,
    disable_hybrid_kv_cache_manager: bool | None = None,
    disable_hybrid_swa_memory: bool | None = None,
    align: Number | None = None,
    lengths: str | Path | None = None,
    column: str | None = None,
    trace: str | Path | None = None,
    length_percentiles: str | None = None,
    require_sequences: Number | None = None,
    require_tokens: Number | None = None,
    require_tpot_ms: Number | None = None,
    min_gpus: bool | None = None,
    sequences: Number | None = None,
    tpot_ms: Number | None = None,
    speculative_tokens: Number | None = None,
    accepted_tokens: Number | None = None,
    gpu_hour_usd: Number | None = None,
    detail: bool | None = None,
    launch: bool | None = None,
    budget_file: str | Path | None = None,
    from_log: str | Path | None = None,
    write_budget: str | Path | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Count the tokens and sequences that fit, per design, size and context.

    Parameters
    ----------
    model, gpu, kv_dtype : one, or several with a row each; so many of one GPU as "8xh100-sxm",
        stages on several kinds as "1xrtx-5090+1xrtx-4090". A GPU is needed unless ``kv_memory``
        states the pool.
    attention : designs to swap in, one row each; the model's own when None.
    tp_size : tensor-parallel GPUs, one or several with a row each; of ``n_gpus`` the size that
        serves most when None.
    pp_size, dp_size, ep_size, dcp_size : pipeline, data, expert and decode-context parallel GPUs,
        1 each.
    pp_layers : layers of each pipeline stage, the first stage's first; as the engine deals them out
        when None.
    context_tokens : the engine's maximum per sequence; the longest of the given lengths, or 8k, or
        the model's maximum.
    max_context : instead, search the longest context of which ``sequences`` fit, one when None.
    lengths, trace, length_percentiles : one source of uneven lengths; ``column`` of ``lengths``.
    require_sequences, require_tokens, require_tpot_ms : what every row must hold, and the most that
        its token may take at the row's load; else ``unmet`` says what misses.
    min_gpus : search the fewest GPUs that hold ``sequences``.
    tpot_ms : also the load that decodes a token within so many milliseconds. [ms]
    detail : one row per term of the memory budget.
    launch : also the engine's own command line of each row.
    budget_file : a budget that ``write_budget`` wrote, in the place of the engine's rule.
    from_log : instead, read a server's own log and put what is predicted beside what it printed;
        ``model`` may then be left out where the log names a shipped one.
    write_budget : write the budget that the log measured to this new file.
    drafter : a draft model of its own shape. It and those after it are settings that an engine
        calls so; one that its rules do not read is refused.
    shared_prefix_tokens : first tokens that all sequences have in common, held once.
    kv_offload : host memory of one replica for contexts that do not run. [bytes, or text]

    Raises
    ------
    SpecError, UsageError, BudgetError, PlacementError
        If an argument names nothing, cannot be read or honoured, or nothing fits.
    """
    given = dict(locals())
    if from_log is not None:
        from lrkv_plan.questions.logs import log_table

        return Result(log_table(given))
    refuse({"write_budget": write_budget}, "is measured by a log; give --from-log")
    if model is None:
        raise UsageError("MODEL is missing; only a log (--from-log) may name it")
    from lrkv_plan.questions.alternatives import combinations
    from lrkv_plan.questions.launching import launched
    from lrkv_plan.questions.required import Required
    from lrkv_plan.report.screens.capacity import CapacityAsked
    from lrkv_plan.report.views.capacity import budget_table, capacity_table
    from lrkv_plan.serving.answers import (
        by_gpus,
        capacity_answers,
        longest_contexts,
        refuse_all,
        refused_answers,
        smallest_layouts,
    )
    from lrkv_plan.specs.deployment import Parallelism

    timing = {
        "tpot_ms": tpot_ms, "speculative_tokens": speculative_tokens,
        "accepted_tokens": accepted_tokens, "require_tpot_ms": require_tpot_ms,
    }  # fmt: skip
    populations = {"lengths": lengths, "trace": trace, "length_percentiles": length_percentiles}
    is_timed = any(value is not None for value in timing.values())
    _refuse_unused(
        populations, timing if is_timed else {}, n_gpus=n_gpus, min_gpus=min_gpus,
        max_context=max_context, context_tokens=context_tokens, sequences=sequences,
        detail=detail, kv_memory=kv_memory,
    )  # fmt: skip
    if shared_prefix_tokens is not None:
        refuse(populations, "--shared-prefix-tokens is of sequences of full length (a trace's "
               "hash_ids say what they share); leave one of them out")  # fmt: skip
    budget_only: dict[str, Any] = {
        "max_loras": max_loras, "max_lora_rank": max_lora_rank, "cpu_offload_gb": cpu_offload_gb,
    }  # fmt: skip
    if not is_timed:
        budget_only |= {"weights": weights, "weight_dtype": weight_dtype}
    refuse_beside_pool(kv_memory, utilisation=utilisation, budget_file=budget_file, **budget_only)
    required = Required.of(require_sequences, require_tokens, require_tpot_ms)
    population = population_of(lengths, column, trace, length_percentiles)
    population, prefixes = _with_prefixes(population, trace)
    degrees = {"pp_size": pp_size, "dp_size": dp_size, "ep_size": ep_size, "dcp_size": dcp_size}
    sizes = {n: 1 if value is None else words.count(n, value) for n, value in degrees.items()}
    layers = words.optional(words.layer_counts, "pp_layers", pp_layers)
    if pp_size is None and layers is not None:
        sizes["pp_size"] = len(layers)
    tp_sizes = [1] if tp_size is None else words.counts("tp_size", tp_size)
    if min_gpus and len(tp_sizes) > 1:
        raise ArgumentError("tp_size", f" {tp_size}: --min-gpus takes one size, or searches all")
    settings = _settings(page_tokens, max_batched_tokens, draft_layers, draft_tokens, prefix_cache)
    own = {name: given[name] for name in _OWN_SETTINGS}
    settings |= _own_settings(own, spec_dir)
    if max_lora_rank is not None:
        settings.setdefault("max_loras", 1)
    if drafter is not None and settings["draft_layers"]:
        raise ArgumentError(["drafter", "draft_layers"], ": a drafter states its own layers")
    if drafter is not None and draft_tokens is None:
        settings["draft_tokens"] = 1

    def laid_out(
        first: Deployment, size: int, sizes: Mapping[str, int], layers: tuple[int, ...] | None
    ) -> Parallelism:
        """The sizes; GPUs of several kinds are one stage each, or tensor-parallel groups of one."""
        told: dict[str, Any] = dict(sizes)
        if first.joined and pp_size is None and layers is None:
            told["pp_size"] = max(1, (first.n_gpus or 1) // size)
        return Parallelism(tp_size=size, pp_layers=layers, **told)

    def deployments(one: Mapping[str, Any], spec: ModelSpec) -> list[Deployment]:
        """One deployment per size and context of a model on a GPU."""
        contexts = contexts_of(context_tokens, population, spec)
        first = deployment_of(
            one["model"], spec, gpu=one["gpu"], engine=engine, context_tokens=contexts[0],
            kv_dtype=one["kv_dtype"], n_gpus=n_gpus, weight_dtype=weight_dtype, weights=weights,
            utilisation=utilisation, kv_memory=kv_memory, align=align, gpu_hour_usd=gpu_hour_usd,
            spec_dir=spec_dir, settings=settings, budget_file=budget_file, joins=True,
        )  # fmt: skip
        if min_gpus and first.n_gpus is not None:
            raise ArgumentError(
                "gpu", f" {one['gpu']}: --min-gpus searches for their number; leave it out"
            )
        refuse_unread(
            first.engine, page_tokens=page_tokens, max_batched_tokens=max_batched_tokens,
            prefix_cache=prefix_cache, **own,
        )  # fmt: skip
        return [
            replace(
                first,
                parallel=laid_out(first, size, sizes, layers),
                settings=replace(first.settings, context_tokens=context),
            )
            for size in tp_sizes
            for context in contexts
        ]

    wanted = 1 if sequences is None else words.count("sequences", sequences)

    def chooses(asked: list[Deployment]) -> bool:
        return tp_size is None and not any(one.joined for one in asked)

    def answered(chosen: list[tuple[str, ModelSpec]], asked: list[Deployment]) -> list[Answer]:
        if min_gpus:
            stated = {name: sizes[name] for name, value in degrees.items() if value is not None}
            stated |= {} if tp_size is None else {"tp_size": tp_sizes[0]}
            return smallest_layouts(chosen, asked, wanted, stated=stated, target=target)
        if max_context:
            return longest_contexts(chosen, asked, wanted, chooses_layout=chooses(asked))
        return capacity_answers(
            chosen, asked, lengths=None if population is None else population.lengths,
            prefixes=prefixes,
            target=target, chooses_layout=chooses(asked),
        )  # fmt: skip

    combined = combinations(given, ("model", "gpu", "kv_dtype"))
    loaded = [load_model(one["model"], spec_dir=spec_dir) for one in combined]
    chosen = [designs_of(spec, attention) for spec in loaded]
    refuse_alignment([one for several in chosen for one in several], align)
    asked = [deployments(one, spec) for one, spec in zip(combined, loaded, strict=True)]
    target = None
    if is_timed:
        target = latency_target(
            tpot_ms, speculative_tokens, accepted_tokens, spec_dir,
            [one.hardware for several in asked for one in several],
        )  # fmt: skip
    groups = []
    for several, at in zip(chosen, asked, strict=True):
        try:
            groups.append(answered(several, at))
        except ArgumentError:
            raise
        except PlanError as error:
            if len(combined) == 1:
                raise
            groups.append(refused_answers(several, at, str(error)))
    answers = by_gpus(groups)
    refuse_all(answers)
    if launch:
        refuse({"attention": attention}, "engines serve the checkpoint's own design; leave it out, "
               "or --launch")  # fmt: skip
        by_name = {m.name: one["model"] for m, one in zip(loaded, combined, strict=True)}
        answers = [launched(answer, by_name) for answer in answers]
    whole = CapacityAsked(
        models=loaded, population=population, target=target, ask=Asking(model, loaded[0], given),
        n_sequences=wanted, is_longest=bool(max_context),
    )  # fmt: skip
    table = budget_table(answers, whole) if detail else capacity_table(answers, whole)
    gpus = [gpu for at in asked for gpu in (at[0].hardware, *(one for _, one in at[0].joined))]
    specs = {spec.name: spec for spec in (*loaded, *gpus) if spec is not None}
    table = with_provenance(table, *specs.values())
    return Result(replace(table, unmet=required.unmet_of(answers)))


# Settings that engines name so, and how each is read; flags are None or True.
_OWN_SETTINGS: dict[str, Callable[[str, Any], Any]] = {
    "drafter": lambda _, value: value,
    "max_num_seqs": words.count,
    "mamba_ssm_cache_dtype": lambda name, value: words.texts(name, value)[0],
    "max_mamba_cache_size": words.count,
    "mamba_full_memory_ratio": lambda name, value: Fraction(words.number(name, value, most=1e6)),
    "mamba_scheduler_strategy": lambda name, value: words.texts(name, value)[0],
    "disable_radix_cache": lambda _, value: bool(value),
    "swa_full_tokens_ratio": words.share,
    "no_kv_unified": lambda _, value: bool(value),
    "cross_kv_cache_fraction": words.share,
    "limit_mm_per_prompt": lambda name, value: words.texts(name, value)[0],
    "shared_prefix_tokens": words.tokens,
    "max_loras": words.count,
    "max_lora_rank": words.count,
    "kv_offload": words.size,
    "n_gpu_layers": words.count,
    "cpu_offload_gb": lambda name, value: Fraction(words.number(name, value, most=1e6)),
    "disable_hybrid_kv_cache_manager": lambda _, value: bool(value),
    "disable_hybrid_swa_memory": lambda _, value: bool(value),
}


def _own_settings(own: Mapping[str, Any], spec_dir: str | Path | None) -> dict[str, Any]:
    """The settings that were given, by their names; a drafter as a model."""
    found = {n: _OWN_SETTINGS[n](n, value) for n, value in own.items() if value is not None}
    if "drafter" in found:
        found["drafter"] = load_model(found["drafter"], spec_dir=spec_dir)
    return found


def _with_prefixes(
    population: Population | None, trace: str | Path | None
) -> tuple[Population | None, PrefixTrace | None]:
    """The trace's requests that begin alike; where its ids cannot be used a remark says why."""
    from lrkv_plan.specs.prefix_trace import read_prefixes

    if trace is None or population is None:
        return population, None
    try:
        return population, read_prefixes(as_path(trace))
    except SpecError as error:
        told = f"prefixes that requests share are not counted: {error}"
        return replace(population, remarks=(*population.remarks, told)), None


def _settings(
    page_tokens: Number | None,
    max_batched_tokens: Number | None,
    draft_layers: Number | None,
    draft_tokens: Number | None,
    prefix_cache: bool | None,
) -> dict[str, Any]:
    layers = 0 if draft_layers is None else words.whole("draft_layers", draft_layers)
    settings: dict[str, Any] = {
        "page_tokens": words.optional(words.count, "page_tokens", page_tokens),
        "draft_layers": layers,
        "draft_tokens": min(1, layers)
        if draft_tokens is None
        else words.whole("draft_tokens", draft_tokens),
        "prefix_cache": bool(prefix_cache),
    }
    if max_batched_tokens is not None:
        settings["max_batched_tokens"] = words.count("max_batched_tokens", max_batched_tokens)
    return settings


def _refuse_unused(
    populations: dict[str, Any],
    timing: dict[str, Any],
    *,
    n_gpus: Number | None,
    min_gpus: bool | None,
    max_context: bool | None,
    context_tokens: Numbers | None,
    sequences: Number | None,
    detail: bool | None,
    kv_memory: int | str | None,
) -> None:
    """Refuse arguments that this question's answer would not depend on."""
    if min_gpus:
        refuse({"n_gpus": n_gpus}, "--min-gpus searches for their number; leave one of them out")
        refuse(populations, "--min-gpus counts sequences of full length; leave one of them out")
    elif not max_context:
        refuse(
            {"sequences": sequences},
            "is what --min-gpus must hold or --max-context must fit; give one of them, or leave it "
            "out",
        )
    if max_context:
        searched = "--max-context searches for it; leave one of them out"
        refuse({"context_tokens": context_tokens}, searched)
        refuse(
            {"min_gpus": min_gpus or None, **populations, **timing},
            "--max-context asks what fits a given number of GPUs; leave one of them out",
        )
    if timing:
        refuse(
            populations,
            "times are of sequences of equal length; leave them out, or the time target",
        )
    if detail:
        refuse(
            {**populations, **timing},
            "--detail shows the memory budget alone; leave one of them out",
        )
        refuse(
            {"kv_memory": kv_memory},
            "states the pool, so there is no budget to show; leave out --detail",
        )
