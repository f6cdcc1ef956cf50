"""``capacity`` of a server's own log: what it states, and its figures beside the predicted ones."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, SpecError, UsageError, same_name, shown
from lrkv_plan.files import as_path, write_whole
from lrkv_plan.formats import WEIGHT_FORMATS, storage_format, weight_format
from lrkv_plan.loader import MODEL_FOLDER, load_model, shipped_files
from lrkv_plan.notes import Note, limit
from lrkv_plan.questions.arguments import default_context, deployment_of, refuse, with_provenance
from lrkv_plan.specs.deployment import SIZES

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.log import LogRun
    from lrkv_plan.serving.log_check import LogCheck
    from lrkv_plan.specs.deployment import EngineName
    from lrkv_plan.specs.model import ModelSpec

# Arguments that may be given beside a log: they replace what it states.
_BESIDE = frozenset(
    (*SIZES, "model", "from_log", "write_budget", "gpu", "engine", "context_tokens", "page_tokens",
     "max_batched_tokens", "kv_dtype", "weight_dtype", "weights", "utilisation", "draft_layers",
     "draft_tokens", "prefix_cache", "align", "spec_dir")
)  # fmt: skip
_DRAFTS_THAT_CACHE = ("eagle", "mtp")  # their layers share the pool; n-grams have none


def log_table(given: Mapping[str, Any]) -> Table:
    """The answer to ``capacity(from_log=...)``.

    Parameters
    ----------
    given : the arguments of ``capacity`` by name, None where not given.

    Raises
    ------
    SpecError
        If the log cannot be read or holds no memory lines, or its model is not known.
    ArgumentError
        If an argument does not go with a log.
    UsageError, PlacementError
        If the log's settings cannot be honoured.
    """
    from lrkv_plan.report.screens.log import LogAsked
    from lrkv_plan.report.views.log import log_check_table
    from lrkv_plan.serving.engine import log_formats
    from lrkv_plan.serving.log import read_log
    from lrkv_plan.serving.log_check import check_log

    others = {name: value for name, value in given.items() if name not in _BESIDE}
    refuse(others, "is not asked of a log; leave it out, or --from-log")
    path = as_path(given["from_log"])
    runs = read_log(path, log_formats())
    run = runs[-1]
    model, argument = _model_of(path, run, given)
    told, notes = _told(run, model, given)
    deployment = _deployment(argument, model, told, given)
    n_sequences = int(_number(path, run, "sequences") or 1)
    check = check_log(run, model, deployment, n_sequences)
    notes = [*_other_runs(runs), *notes, *_unread(run, model, check)]
    if given["write_budget"] is not None:
        notes.append(_write(given["write_budget"], path, model, check))
    asked = LogAsked(
        model=model, path=str(path), first_line=run.first_line, n_runs=len(runs), check=check,
        argument=argument, gpu=given["gpu"],
    )  # fmt: skip
    return with_provenance(log_check_table(asked, notes), model, deployment.hardware)


def _model_of(path: Path, run: LogRun, given: Mapping[str, Any]) -> tuple[ModelSpec, Any]:
    """The model that was given, else the shipped one that the log names."""
    spec_dir = given["spec_dir"]
    if given["model"] is not None:
        return load_model(given["model"], spec_dir=spec_dir), given["model"]
    names = [run.settings[key] for key in ("model", "model_title") if key in run.settings]
    known = [file.stem for file in shipped_files(MODEL_FOLDER, spec_dir)]
    for name in names:
        if (same := same_name(name, known)) is not None:
            return load_model(same, spec_dir=spec_dir), same
    why = f"its model {shown(names[0])} is none that ships" if names else "it names no model"
    raise SpecError(
        f"{path}: {why}; name the MODEL",
        advice=(
            f"lrkv-plan capacity MODEL --from-log {path}",
            "MODEL: a name of `lrkv-plan models`, a config.json or a folder that holds one",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What a run was told, in our words."""

    engine: EngineName
    sizes: Mapping[str, int]
    kv_dtype: str
    weight_dtype: str | None
    settings: Mapping[str, Any]
    context_tokens: int
    utilisation: Any


def _told(
    run: LogRun, model: ModelSpec, given: Mapping[str, Any]
) -> tuple[_Told, list[Note]]:  # fmt: skip
    """The run's settings, those given in their place, and what had to be assumed."""
    from lrkv_plan.serving.engine import engine_named

    path = as_path(given["from_log"])
    notes: list[Note] = []
    stated = _engine_text(run)
    engine = engine_named(words.given(given["engine"], stated))
    if engine.version is None:
        notes.append(Note(kind="assumption", text=f"the log states no version of {engine.name}: "
                          "the newest rules; --engine NAME@VERSION states it"))  # fmt: skip
    sizes = _sizes(path, run, model)
    sizes |= {
        name: words.count(name, given[name]) for name in SIZES if given[name] is not None
    }  # fmt: skip
    weight_dtype, unread = _weight_dtype(run, model, given)
    notes += unread
    numbers = {
        name: words.count(name, given[name])
        if given[name] is not None
        else _number(path, run, name)
        for name in ("page_tokens", "max_batched_tokens")
    }
    settings: dict[str, Any] = {name: value for name, value in numbers.items() if value}
    settings |= _drafts(path, run, given)
    prefix = given["prefix_cache"]
    settings["prefix_cache"] = (
        bool(prefix) if prefix is not None else run.settings.get("prefix_cache") == "True"
    )
    settings |= _told_settings(path, run, engine)
    context = _number(path, run, "context_tokens")
    if given["context_tokens"] is not None:
        context = words.tokens("context_tokens", given["context_tokens"])
    if context is None:
        context = default_context(model)
        notes.append(Note(kind="assumption", text=f"the log states no maximum length: {context:,} "
                          "tokens; --context-tokens states it"))  # fmt: skip
    if given["kv_dtype"] is None and "kv_dtype" not in run.settings:
        notes.append(Note(kind="assumption", text="the log states no cache format: the model's own "
                          "16 bits; --kv-dtype states it"))  # fmt: skip
    n_sequences = _number(path, run, "sequences") or 1
    told = _Told(
        engine=engine, sizes=sizes, kv_dtype=_kv_dtype(run, given), weight_dtype=weight_dtype,
        settings=settings, context_tokens=max(1, context // n_sequences),
        utilisation=words.given(given["utilisation"], run.settings.get("utilisation")),
    )  # fmt: skip
    return told, notes


def _engine_text(run: LogRun) -> str:
    """The engine and version that the run names; a development version by its numbers."""
    name = run.engine or run.server
    version = re.match(r"v?(\d{1,4}(?:\.\d{1,4}){1,3})", run.settings.get("version", ""))
    return f"{name}@{version[1]}" if version else name


def _number(path: Path, run: LogRun, name: str) -> int | None:
    """A setting as a whole number from 1 up; None where it is not stated."""
    text = run.settings.get(name, "").replace(",", "")
    if not text or text in ("0", "-1"):
        return None
    if not re.fullmatch(r"\d{1,12}", text):
        raise SpecError(f"{path}: {name} {shown(text)} in the log is no whole number")
    return int(text)


def _sizes(path: Path, run: LogRun, model: ModelSpec) -> dict[str, int]:
    """GPUs along each kind of parallelism; experts are shared where the log says so."""
    sizes = {name: _number(path, run, name) or 1 for name in SIZES}
    if run.settings.get("dp_attention") == "True":
        sizes["tp_size"] = max(1, sizes["tp_size"] // sizes["dp_size"])
    if run.settings.get("expert_parallel") == "True" and model.has_experts:
        sizes["ep_size"] = sizes["tp_size"] * sizes["dp_size"]
    return sizes


def _drafts(path: Path, run: LogRun, given: Mapping[str, Any]) -> dict[str, int]:
    """Draft layers and tokens: as given, else those of a draft that shares the pool."""
    shares = any(word in run.settings.get("draft_method", "") for word in _DRAFTS_THAT_CACHE)
    layers = 1 if shares else 0
    if given["draft_layers"] is not None:
        layers = words.whole("draft_layers", given["draft_layers"])
    tokens = (_number(path, run, "draft_tokens") or 1) if layers else 0
    if given["draft_tokens"] is not None:
        tokens = words.whole("draft_tokens", given["draft_tokens"])
    return {"draft_layers": layers, "draft_tokens": tokens}


def _told_settings(path: Path, run: LogRun, engine: EngineName) -> dict[str, Any]:
    """Adapter slots and flags that the run names, as far as the engine's rules read them."""
    from lrkv_plan.serving.engine import engine_record

    found: dict[str, Any] = {}
    if run.settings.get("enable_lora") == "True":
        found["max_loras"] = _number(path, run, "max_loras") or 1
        found["max_lora_rank"] = _number(path, run, "max_lora_rank")
    if run.settings.get("disable_hybrid_kv_cache_manager") == "True":
        found["disable_hybrid_kv_cache_manager"] = True
    reads = engine_record(engine.name).reads
    return {name: value for name, value in found.items() if name in reads}


def _kv_dtype(run: LogRun, given: Mapping[str, Any]) -> str:
    """The cache's format; auto is the one that the model computes in.

    Raises
    ------
    UsageError
        If keys and values have two formats.
    SpecError
        If it is not known here.
    """
    if given["kv_dtype"] is not None:
        return storage_format(given["kv_dtype"]).name
    stated = run.settings.get("kv_dtype", "auto").removeprefix("torch.")
    values = run.settings.get("value_dtype", stated)
    if values != stated:
        raise UsageError(
            f"keys are cached as {stated} and values as {values}: one format is counted here; "
            "--kv-dtype states it"
        )
    if stated == "auto":
        return "fp32" if _computes_in(run) == "fp32" else "bf16"
    return storage_format(stated).name


def _computes_in(run: LogRun) -> str:
    text = run.settings.get("dtype", "").removeprefix("torch.")
    return "fp32" if text in ("float32", "float") else "bf16"


# What engines and file names call weight formats, and our words for them.
_WEIGHTS_CALLED = (
    (r"w8a8|int8", "int8"), (r"w4a16|awq|gptq|int4", "int4"), (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp4", "mxfp4"), (r"fp8", "fp8"),
)  # fmt: skip


def _weight_dtype(
    run: LogRun, model: ModelSpec, given: Mapping[str, Any]
) -> tuple[str | None, list[Note]]:
    """The weights' format: as given, else as the log calls it; the model's own is None."""
    if given["weight_dtype"] is not None:
        return weight_format(given["weight_dtype"]).name, []
    if model.weight_dtype not in (None, "bf16", "fp16", "fp32"):
        return None, []
    if _computes_in(run) == "fp32":
        return "fp32", []
    quantised = run.settings.get("quantisation")
    if quantised is None:
        return None, []
    text = f"{quantised} {run.settings.get('model', '')}".lower()
    blocks = re.sub(r" - (\w)\w*$", r"_\1", quantised.lower())  # Q4_K - Medium
    if blocks in WEIGHT_FORMATS:
        return blocks, []
    for pattern, name in _WEIGHTS_CALLED:
        if re.search(pattern, text):
            return name, []
    if blocks in ("f16", "bf16", "f32", "all f32"):
        return None, []
    return None, [
        Note(kind="assumption", text=f"the log's weight format {shown(quantised)} is not known: "
             "the model's own; --weight-dtype states it")
    ]  # fmt: skip


def _deployment(
    argument: Any, model: ModelSpec, told: _Told, given: Mapping[str, Any]
) -> Deployment:
    from lrkv_plan.serving.engine import engine_record
    from lrkv_plan.specs.deployment import Parallelism

    sizes: dict[str, Any] = dict(told.sizes)
    parallel = Parallelism(**sizes)
    drops_pages = engine_record(told.engine.name).page_tokens is None
    settings = {k: v for k, v in told.settings.items() if k != "page_tokens" or not drops_pages}
    deployment = deployment_of(
        argument, model, gpu=given["gpu"], engine=str(told.engine),
        context_tokens=told.context_tokens, kv_dtype=told.kv_dtype,
        weight_dtype=told.weight_dtype, weights=given["weights"], utilisation=told.utilisation,
        align=given["align"], spec_dir=given["spec_dir"], settings=settings,
    )  # fmt: skip
    if deployment.n_gpus not in (None, 1, parallel.n_gpus):
        raise ArgumentError(
            "gpu",
            f" {shown(given['gpu'])}: the log's server runs on {parallel.n_gpus} GPUs; leave the "
            "number out",
        )
    return replace(deployment, engine=told.engine, parallel=parallel, n_gpus=None)


def _other_runs(runs: Iterable[LogRun]) -> list[Note]:
    """That the file holds more starts than the one that is compared."""
    *others, last = runs
    if not others:
        return []
    told = f"the last of {len(others) + 1} starts in this file is compared, from line "
    names = sorted({run.engine or run.server for run in others} - {last.engine or last.server})
    also = f"; others are of {', '.join(names)}" if names else ""
    return [limit(f"{told}{last.first_line}{also}")]


def _unread(run: LogRun, model: ModelSpec, check: LogCheck) -> list[Note]:
    """What the comparison leaves out."""
    notes = []
    named = run.settings.get("model")
    if named is not None and same_name(named, [model.name]) is None:
        notes.append(Note(kind="assumption", text=f"the log's model {shown(named)} is taken to be "
                          f"{model.name}"))  # fmt: skip
    if check.budget is not None and check.budget.remarks:
        notes += [Note(kind="assumption", text=remark) for remark in check.budget.remarks]
    return notes


def _write(target: str | Path, log: Path, model: ModelSpec, check: LogCheck) -> Note:
    """Write the measured budget, and say so.

    Raises
    ------
    UsageError
        If the log measures none, or the file exists or cannot be written.
    """
    from lrkv_plan.serving.log_check import measured_runtime
    from lrkv_plan.specs.template import as_yaml

    deployment, parallel = check.deployment, check.deployment.parallel
    measured = measured_runtime(check)
    assert check.budget is not None, "measured_runtime looked"
    assert deployment.hardware is not None, "there is a budget"
    name = as_yaml(f"log of {deployment.engine}, {os.path.basename(log)}"[:200])
    facts: dict[str, Any] = {
        "engine": str(deployment.engine), "model": as_yaml(model.name),
        "gpu": as_yaml(deployment.hardware.name),
        **{size: getattr(parallel, size) for size in SIZES if size != "pp_size"},
        "context_tokens": deployment.settings.context_tokens,
        "max_batched_tokens": deployment.settings.max_batched_tokens,
        "utilisation": float(check.budget.utilisation), **measured,
    }  # fmt: skip
    lines = [f"{key}: {value}" for key, value in facts.items()]
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    lines += ["source:", f"  citation: {name}", f"  read_on: {today}"]
    write_whole(target, "".join(f"{line}\n" for line in lines))
    return Note(kind="hint", text=f"wrote {target}: --budget-file takes it")
