"""The keys of every command's JSON: types and meanings, stated once.

A shape is a dict of key to type, as annotations write types; a Fraction is any number, a tuple of
types one of them, a dict an object of its own. Rows that are dataclasses are read from those. Where
keys depend on what was asked there are several shapes, each complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Literal, TypeAlias, get_type_hints

from lrkv_plan.latency.crossover import Crossing
from lrkv_plan.latency.roofline import RooflinePoint
from lrkv_plan.memory.largest import Fit
from lrkv_plan.memory.placement import POLICIES, Placement
from lrkv_plan.memory.population import PopulationAccount
from lrkv_plan.memory.prefixes import HitRate, PrefixAccount
from lrkv_plan.memory.side_by_side import CacheRow, ParamsRow, TensorRow
from lrkv_plan.memory.weights import MatchedWidth
from lrkv_plan.report.tables import FITTED_KEYS
from lrkv_plan.schema import Source
from lrkv_plan.serving.capacity import CapacityRow
from lrkv_plan.serving.load import Admission
from lrkv_plan.serving.log_check import UNITS
from lrkv_plan.serving.stages import StageRow
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.hardware import HardwareProfile, KernelConstants
from lrkv_plan.specs.measured import MeasuredBudget
from lrkv_plan.specs.model import ModelSpec

Shape: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, kw_only=True)
class Dumped:
    """A spec as JSON holds it: without the keys that are None, or with them as null.

    ``plus`` are keys that a view adds, ``may_lack`` those that stand there only where asked for.
    """

    spec: type
    keeps_none: bool = False
    plus: Mapping[str, Any] = field(default_factory=dict)
    may_lack: tuple[str, ...] = ()


@dataclass(frozen=True)
class Many:
    """A list of a shape or a dumped spec."""

    one: Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command writes: the alternatives of its inputs and of each row.

    ``also`` are the rows of further lists by their key. ``says`` are meanings of keys that differ
    from ``MEANINGS``.
    """

    inputs: tuple[Any, ...] = ({},)
    rows: tuple[Any, ...]
    also: Mapping[str, Shape | tuple[Shape, ...]] = field(default_factory=dict)
    says: Mapping[str, str] = field(default_factory=dict)


Bytes: TypeAlias = int | Fraction

MODEL = Dumped(spec=ModelSpec)
MEASURED = Dumped(spec=MeasuredBudget)
GPU = Dumped(spec=HardwareProfile, may_lack=FITTED_KEYS)
FOR_MODEL: Shape = {"model": MODEL}
FOR_MODELS: Shape = {"model": (MODEL, Many(MODEL))}
POINT: Shape = dict.fromkeys(("context_tokens", "batch_size", "query_tokens", "tp_size"), int)
WEIGHTS: Shape = {"weight_dtype": str | None, "weight_bytes_per_gpu": int | None}
DEPLOYMENT: Shape = {
    "gpu": (GPU, None),
    "joined_gpus": list[str],
    "engine": str,
    "settings": {**get_type_hints(EngineSettings), "drafter": str | None},
    "parallelism": Parallelism,
    "n_gpus": int | None,
    "utilisation": Fraction | None,
    **WEIGHTS,
    "kv_memory_bytes_per_gpu": int | None,
    "rank_alignment": int,
    "budget_file": (MEASURED, None),
    "gpu_hour_usd": float | None,
    "gpu_hour_usd_source": str | None,
}
STEP_PARTS: Shape = dict.fromkeys(
    ("step_s", "overlap_s", "low_s", "high_s", "attention_s", "linear_s", "all_reduce_s",
     "overhead_s", "matrices_s", "products_s", "experts_s", "small_kernels_s", "exchange_s",
     "engine_s"), float,
)  # fmt: skip
Basis: TypeAlias = Literal["measured", "borrowed", "datasheet", "assumed"]
BASIS_BY_TERM: Shape = {
    "basis_by_term": dict.fromkeys(
        ("attention", "matrices", "products", "experts", "small_kernels", "all_reduce",
         "exchange", "engine"), Basis | None,
    ),
}  # fmt: skip
VARIANT: Shape = {"n_shared_groups": int, "position": str, "rope_dim": int, "key_norm": str}


def _fields(cls: type, *without: str) -> Shape:
    """Key to annotation of a dataclass."""
    hints = get_type_hints(cls)
    names = (spec.name for spec in dataclasses.fields(cls))
    return {name: hints[name] for name in names if name not in without}


def _prefixed(prefix: str, shape: Shape) -> Shape:
    return {f"{prefix}{key}": kind for key, kind in shape.items()}


def _or_null(shape: Shape) -> Shape:
    return {key: kind | None for key, kind in shape.items()}


def _null(shape: Shape) -> Shape:
    return dict.fromkeys(shape, None)


LOAD = {
    key: kind
    for key, kind in _fields(Admission).items()
    if key not in ("n_replicas", "sequences", "binds", "step")
}
_ROW_OF_PLAN: Shape = {
    "model": str, "gpu": str, "kv_dtype": str,
    "attention": str, "role": str, "n_gpus": int, "tp_size": int, "pp_size": int, "dp_size": int,
    "ep_size": int, "n_replicas": int, "context_tokens": int, "ratio_to_mha": Fraction | None,
    "kv_params_ratio": Fraction | None,
    "model_params": int | None, "weights_left_out": list[str], "bytes_per_token_per_gpu": Bytes,
    "kv_budget_bytes_per_gpu": int, "kv_tokens": int, "max_sequences": int, "total_sequences": int,
    "admitted_sequences": int, "binds": str, "against_own_design": str | None,
    "first_crossing_tokens": int | None, "first_crossing_low_tokens": int | None,
    "first_crossing_high_tokens": int | None, "crossings": list[Crossing], "launch": str | None,
}  # fmt: skip


_TOLD: Shape = {
    "model": str, "gpu": str, "kv_dtype": str, "tp_size": int | None, "context_tokens": int,
    "batch_size": int | None,
}  # fmt: skip


_PLACE: Shape = {key: _TOLD[key] for key in ("model", "gpu", "kv_dtype")}


def _stacked(answer: Answer, told: Shape = _TOLD) -> Answer:
    """The answer, and what it is where arguments list several values; ``told`` is then in rows."""
    refused: Shape = {**told, "refused": str}
    (inputs,) = answer.inputs
    return dataclasses.replace(
        answer,
        inputs=(inputs, {"alternatives": Many(inputs)}),
        rows=(*answer.rows, *({**told, **row} for row in answer.rows), refused),
        also={
            key: (row, {**told, **row})
            for key, row in answer.also.items()
            if not isinstance(row, tuple)
        },
    )


def _plan() -> Answer:
    timed = {**LOAD, **STEP_PARTS, **BASIS_BY_TERM, "tokens_per_s_per_user": float}
    inputs = {
        **FOR_MODEL, **DEPLOYMENT, "n_gpus": int, "budget": str, "batch_size": int | None,
        "tpot_ms": float | None, "speculative_tokens": int, "accepted_tokens": float,
    }  # fmt: skip
    return Answer(
        inputs=(inputs,),
        rows=({**_ROW_OF_PLAN, **timed}, {**_ROW_OF_PLAN, **_null(timed)}),
        says={
            "batch_size": "sequences of one replica decoded together; null without a load",
            "binds": "what sets the row's load: memory, time, stated; 'misses the target' follows",
            "role": "why the design stands on the page",
        },
    )


_RANK_INPUTS: Shape = {
    **FOR_MODEL, "budget": str, "align": int, "tp_size": int, "kv_dtype": str,
    "context_tokens": int, **VARIANT, "mla_rope_dim": int | None,
}  # fmt: skip


def _rank() -> Answer:
    fit = _fields(Fit, "value", "text", "model", "ratio_to_mha")
    named: Shape = {"attention": str, "ratio": Fraction, **fit}
    row: Shape = {
        "model": str, "budget": str, "budget_bytes_per_token_per_gpu": Bytes,
        "budget_share_of_own": Fraction | None, "share_of_own_budget": str | None,
        "share_of_own_rank": int | None, "align": int, "tp_size": int, "kv_dtype": str,
        "context_tokens": int,
        "next_rank_price_bytes_per_token_per_gpu": Bytes | None,
        "next_rank_shortfall_bytes_per_token_per_gpu": Bytes | None,
        "rank": int, **named,
        "aligned_rank": int, **_prefixed("aligned_", named),
        "padded_rank": int, **_prefixed("padded_", named),
        "gqa_kv_heads": int | None, **_prefixed("gqa_", _or_null(named)),
        "mla_latent_dim": int | None, **_prefixed("mla_", _or_null(named)),
    }  # fmt: skip
    placed = {"budget": None, "fit_sequences": int, "gpu": str | None, "engine": str}
    return Answer(inputs=(_RANK_INPUTS, {**_RANK_INPUTS, **placed}), rows=(row, _rank_that_fits()))


def _rank_that_fits() -> Shape:
    facts: Shape = {
        "attention": str, "total_sequences": int, "kv_budget_bytes_per_gpu": int,
        "bytes_per_token_per_gpu": Bytes, "ratio": Fraction | None, "waste_share": Fraction,
    }  # fmt: skip
    return {
        "model": str, "fit_sequences": int, "gpu": str | None, "n_gpus": int, "tp_size": int,
        "context_tokens": int, "kv_dtype": str, "align": int, "rank_low": int | None,
        "rank_high": int | None, "rank": int, **facts,
        "aligned_rank": int, **_prefixed("aligned_", facts),
        "next_rank": int | None, **_prefixed("next_", _or_null(facts)),
        "gqa_kv_heads": int | None, **_prefixed("gqa_", _or_null(facts)),
        "mla_latent_dim": int | None, **_prefixed("mla_", _or_null(facts)),
    }  # fmt: skip


def _cache() -> Answer:
    inputs = {
        **FOR_MODELS, "context_tokens": list[int], "batch_size": int,
        "kv_dtype": str | list[str], "tp_size": int | list[int], "encoder_tokens": int | None,
    }  # fmt: skip
    return Answer(
        inputs=(inputs,),
        rows=(_fields(CacheRow), _fields(TensorRow)),
        says={"bytes_per_token": "one copy of the whole model. [bytes/token]"},
    )


def _params() -> Answer:
    plain = _fields(ParamsRow, "matched")
    return Answer(
        inputs=({**FOR_MODELS, "match_params": bool},),
        rows=({**plain, "matched": None}, {**plain, **_fields(MatchedWidth)}),
        says={"ratio_to_mha": "K/V weights over those of MHA on the same backbone"},
    )


def _shard() -> Answer:
    place: Shape = {"model": str, "attention": str, "tp_size": int, "kv_dtype": str}
    refused: Shape = {**place, "policy": Literal["refused"], "refused": str}
    placed: Shape = {
        **place, **_fields(Placement), "policy": Literal[tuple(POLICIES)],
        "replicated_share": Fraction, "refused": None,
    }  # fmt: skip
    inputs = {**FOR_MODEL, "tp_size": list[int], "kv_dtype": str}
    return Answer(inputs=(inputs,), rows=(placed, refused))


_ADMITTED = {
    key: kind for key, kind in LOAD.items() if key != "meets_target"
} | {
    "admitted_sequences": int, "admitted_sequences_low": int, "admitted_sequences_high": int,
    "admitted_binds": str,
}  # fmt: skip


def _capacity() -> Answer:
    row: Shape = {
        **_fields(
            CapacityRow, "budget", "population", "prefixes", "remarks", "weights_left_out", "stages"
        ),
        "stages": Many(_fields(StageRow)), "pp_layers": list[int] | None,
        "weights_left_out": list[str], "bound_by": str, "try": list[str], "refused": None,
        "total_sequences_low": int, "total_sequences_high": int,
        "layout": str | None, "other_layouts": list[str], "launch": str | None,
    }  # fmt: skip
    place: Shape = {
        "model": str, "attention": str, "gpu": str | None, "tp_size": int, "context_tokens": int,
        "kv_dtype": str,
    }  # fmt: skip
    refused: Shape = {
        **place, "binds": Literal["refused"], "bound_by": Literal["refused"], "refused": str,
    }  # fmt: skip
    nothing: Shape = {
        **_null(_ADMITTED), "admitted_sequences": Literal[0], "admitted_sequences_low": int,
        "admitted_sequences_high": int, "admitted_binds": Literal["time", "memory"],
    }  # fmt: skip
    longest: Shape = {
        "pool_context_tokens": int, "pool_context_tokens_low": int, "pool_context_tokens_high": int,
    }  # fmt: skip
    term: Shape = {
        **place, "stage": int, "term": str,
        "n_bytes": int, "low_bytes": int | None, "high_bytes": int | None, "provenance": str,
    }  # fmt: skip
    uneven = _prefixed("population_", _fields(PopulationAccount))
    shared = _prefixed("prefix_", {
        **_fields(PrefixAccount, "hit_rates"), "hit_rates": Many(_fields(HitRate)),
    })  # fmt: skip
    printed: Shape = {
        "model": str, "gpu": str | None, "engine": str, "term": str, "unit": Literal[UNITS],
        **dict.fromkeys(
            ("printed", "printed_low", "printed_high", "predicted", "predicted_low",
             "predicted_high", "difference"), Fraction,
        ),
        "inside": bool, "line": int, "provenance": str,
    }  # fmt: skip
    rows = (
        row,
        row | uneven,
        row | uneven | shared,
        row | _ADMITTED,
        row | nothing,
        row | longest,
        refused,
        term,
        printed,
    )
    names = {"model": list[str], "gpu": list[str], "kv_dtype": list[str]}
    one = _capacity_inputs()
    log: Shape = {**FOR_MODEL, **DEPLOYMENT, "log": str, "first_line": int, "n_runs": int}
    return Answer(
        inputs=(one, {**one, "alternatives": names}, log),
        rows=rows,
        says={"term": "name of the budget's term; 'cache' is their sum; of a log what it prints"},
    )


def _capacity_inputs() -> Shape:
    return {**FOR_MODEL, **DEPLOYMENT, "population": str | None}


_STEP_INPUTS: Shape = {**FOR_MODEL, "gpu": str, "kv_dtype": str, **WEIGHTS, **POINT}
_LAYOUT: Shape = {**dict.fromkeys(("pp_size", "dp_size", "ep_size"), int), "engine": str}


# With model and gpu, what tells the rows of several answers apart.
_KEYS: Shape = {"model": str, "gpu": str, **POINT, "kv_dtype": str}
_BASES: Shape = {"time_basis": Basis, "attention_basis": Basis}


def _step_time() -> Answer:
    row = {
        "attention": str, **STEP_PARTS, "tokens_per_s": float, "weights_left_out": list[str],
        **_KEYS, **_LAYOUT, **_BASES, **BASIS_BY_TERM,
    }  # fmt: skip
    return Answer(inputs=({**_STEP_INPUTS, **_LAYOUT},), rows=(row,))


def _crossover() -> Answer:
    keys: Shape = {
        **_KEYS, **dict.fromkeys(POINT, int | None), **_LAYOUT,
        **dict.fromkeys(("dp_size", "ep_size"), int | None), "variable": str, "first": str,
        "second": str,
        "too_close": bool, "lead_at_end_s": float, **_BASES,
    }  # fmt: skip
    change: Shape = {
        "at": int, "faster_before": str, "faster_after": str, "earliest": int | None,
        "latest": int | None, "low": int, "high": int, **keys,
    }  # fmt: skip
    none: Shape = {"answer": str, "at": None, **keys}
    return Answer(
        inputs=({**_STEP_INPUTS, **_LAYOUT, "over": str},),
        rows=(change, none),
        also={
            "sensitivity": {
                "value": int,
                "faster": str,
                "ahead_share": float,
                "n_draws": int,
                "seed": int,
            }
        },
        says={
            "at": "the value of the variable from which the other design is faster; null: none",
            "low": "least value looked at",
            "high": "largest value looked at",
            "faster_before": "the design that is faster up to there",
            "faster_after": "the design that is faster from there on",
            "ahead_share": "share of draws within the attention kernels' bands that it wins",
            "faster": "the design that is faster there",
            "first": "the first design compared",
            "sensitivity": "how firmly the faster design is ahead, value by value",
            "value": "of the variable",
            "second": "the second design compared",
            "too_close": "whether the bands allow either design to lead all along",
            "lead_at_end_s": "difference of both step times at the largest value looked at. [s]",
            "context_tokens": "tokens cached per sequence; of a row, null: it is what varies",
            "batch_size": "sequences decoded together; of a row, null: it is what varies",
            "query_tokens": "tokens decoded per sequence; of a row, null: it is what varies",
            "tp_size": "GPUs that share the model; of a row, null: it is what varies",
        },
    )


def _roofline() -> Answer:
    inputs = {
        **FOR_MODEL, "gpu": str, "kv_dtype": str, "units": str, **POINT,
        "heads_per_tile": int | None,
    }  # fmt: skip
    row = {"attention": str, **_fields(RooflinePoint), "bound": str, **_KEYS}
    return Answer(inputs=(inputs,), rows=(row,))


def _validate() -> Answer:
    inputs: Shape = {
        "model": str, "gpu": str, "device": str, "dtype": str, "tp_size": int, "holds": bool,
        "outside": int, "refused": str | None,
    }  # fmt: skip
    # By hand: the module of the dataclass imports torch.
    row: Shape = {
        "attention": str, "path": str, "kernel": str, "dtype": str, "batch_size": int,
        "context_tokens": int, "tp_size": int, "n_bytes": int, "predicted_s": float,
        "low_s": float, "high_s": float, "measured_s": float, "error": float, "in_band": bool,
        "basis": str, "backend": str, "held_out_median_error": float | None,
        "verdict": Literal["inside the band", "outside the band"],
    }  # fmt: skip
    return Answer(
        inputs=(inputs,),
        rows=(row,),
        says={
            "low_s": "low end of the 90 % band of the prediction. [s]",
            "high_s": "high end of the 90 % band of the prediction. [s]",
            "error": "predicted / measured - 1",
            "outside": "shapes outside their band",
        },
    )


def _audit() -> Answer:
    reading: Shape = {
        "reading": str, "computed": Fraction, "computed_text": str | None,
        "inference": Literal[True],
    }  # fmt: skip
    row: Shape = {
        "claim": str, "says": str, "source": str, "file": str, "document": str, "place": str,
        "quantity": str, "equation": str, "printed": str,
        "comparison": Literal["equal", "at_most"], "computed": Fraction | None,
        "computed_exact": str | None, "computed_text": str | None,
        "verdict": Literal["match", "explained", "mismatch", "not_computable"],
        "readings": Many(reading), "nearest": (reading, None),
        "readings_tried": int, "search_complete": bool, "chance_hits": float | None,
        "explanation": str | None, "missing": str | None, "tolerance": str | None,
        "note": str | None,
    }  # fmt: skip
    source = Dumped(spec=Source, keeps_none=True)
    file: Shape = {"name": str, "title": str, "source": Many(source)}
    inputs: Shape = {"files": Many(file), "verdicts": list[str]}
    return Answer(inputs=(inputs,), rows=(row,))


def _inspect() -> Answer:
    inputs: Shape = {
        "checkpoint": str, "name": str, "n_layers": int, "layers": list[int],
        "energy_share": float, "fit_ranks": str, "budget": str | None, "align": int,
        "position": str, "kv_dtype": str,
    }  # fmt: skip
    spectrum: Shape = {
        "model": str, "layer": int, "tensor": Literal["key", "value"],
        "n_heads": int, "head_dim": int,
        "input_dim": int, "base_energy_share": float | None, "kept_energy_share": float,
        "mean_base_rank": int | None, "fitted_base_rank": int | None, "exact_from_rank": int,
        "mean_base_relative_errors": list[float],
        "fitted_base_relative_errors": list[float] | None, "fit_ranks": list[int],
        "fit_alternations": int, "fit_last_decrease": float | None, "undefined": str | None,
    }  # fmt: skip
    maps: Shape = {
        "model": str, "layer": int, "tensor": Literal["query_key_map"],
        "n_heads": int, "n_maps": int,
        "effective_rank": float | None, "effective_rank_ceiling": int,
        "centred_effective_rank": float | None, "centred_effective_rank_ceiling": int,
        "mean_cosine": float | None, "max_cosine": float | None,
        "closest_heads": list[int] | None, "cosine_gram": list[list[float]],
        "undefined": str | None,
    }  # fmt: skip
    plan: Shape = {
        "model": str, "layer": None, "tensor": Literal["rank_plan"],
        "budget_bytes_per_token": Fraction,
        "planned_bytes_per_token": Bytes, "planned_ratio_to_mha": Fraction,
        "planned_discarded_energy_share": float, "uniform_rank": int,
        "uniform_bytes_per_token": Bytes, "uniform_discarded_energy_share": float,
    }  # fmt: skip
    planned = spectrum | {"planned_rank": int, "uniform_rank": int}
    return Answer(
        inputs=(inputs,),
        rows=(spectrum, planned, maps, plan),
        says={"layers": "numbers of the inspected layers"},
    )


def _models() -> Answer:
    row: Shape = {
        "model": str, "attention": str, "n_layers": int, "model_dim": int,
        "bytes_per_token": Bytes, "model_params": int | None, "max_context_tokens": int | None,
        "uncounted_parts": list[str],
    }  # fmt: skip
    return Answer(rows=(row,), says={"bytes_per_token": "cached in bf16. [bytes/token]"})


def _keys() -> Answer:
    """What a template's keys are, for `new`."""
    row: Shape = {"key": str, "unit": str, "required": bool, "example": str, "decides": str}
    says = {
        "key": "key of the file",
        "required": "whether the file is refused without it",
        "example": "a value, as YAML",
        "decides": "what answers depend on it",
        "unit": "unit of its value",
    }
    return Answer(rows=(row,), says=says)


def _hardware() -> Answer:
    row: Shape = {
        "name": str, "title": str, "generation": str, "mem_capacity_bytes": int,
        "mem_visible_bytes": int | None, "mem_bandwidth_bytes_per_s": float,
        "bf16_flops_per_s": float | None, "fp16_flops_per_s": float | None,
        "fp8_flops_per_s": float | None,
        "l2_bytes": int | None, "link_bytes_per_s": float | None,
        "hourly_price_usd": float | None, "hourly_price_provider": str | None,
        "hourly_price_kind": str | None, "hourly_price_read_on": str | None,
        "hourly_price_url": str | None,
    }  # fmt: skip
    return Answer(rows=(row,))


CONSTANTS = ("t0_s", "beta", "phi", "work_unit_s", "full_work_units")
HELD_OUT_ROLES = ("random", "rank", "heads", "context")


_SIZES: Shape = dict.fromkeys(("tp_size", "pp_size", "dp_size", "ep_size", "dcp_size"), int)
_WAY_TIMES: Shape = {
    "tpot_s": float | None, "tpot_low_s": float | None, "tpot_high_s": float | None,
    "time_basis": str | None, "tokens_per_s": float | None,
}  # fmt: skip


def _sweep() -> Answer:
    inputs: Shape = {
        "models": list[str], "gpus": list[str], "designs": list[list[str]], "engine": str,
        "n_gpus": int | None, **dict.fromkeys(_SIZES, list[int]), "kv_dtypes": list[str],
        "weight_dtypes": list[str], "contexts_tokens": list[int], "batch_sizes": list[int | str],
        "tpot_ms": float | None, "speculative_tokens": int, "accepted_tokens": float,
        "where": str | None, "reduce": str | None, "objectives": list[str], "by": list[str],
        "out": str | None, "n_points": int,
    }  # fmt: skip
    row: Shape = {
        "point": int, "model": str, "attention": str, "family": str, "size": int | None, "gpu": str,
        "engine": str, "n_gpus": int, **_SIZES, "n_replicas": int | None, "kv_dtype": str,
        "weight_dtype": str | None, "context_tokens": int, "model_params": int | None,
        "weight_bytes_per_gpu": int | None, "bytes_per_token_per_gpu": float | None,
        "kv_budget_bytes_per_gpu": int | None, "max_sequences": int | None,
        "total_sequences": int | None, "batch_size": int | None, "admitted_sequences": int | None,
        **_WAY_TIMES, "tokens_per_s_per_gpu": float | None, "tokens_per_s_per_user": float | None,
        "usd_per_hour": float | None, "usd_per_million_tokens": float | None, "refused": str | None,
    }  # fmt: skip
    says = {
        "batch_size": "sequences of one replica decoded together",
        "batch_sizes": "batches asked for; full is the largest that fits and meets the time",
        "by": "keys; each combination of their values was reduced for itself",
        "contexts_tokens": "contexts asked for",
        "designs": "designs of each model",
        "objectives": "what was best, the first deciding where rows are put in order",
        "out": "folder of the Parquet files",
        "reduce": "how rows were thinned out; null: all are kept",
        "refused": "why the point has no time",
        "where": "condition that kept points fulfil",
    }
    return Answer(inputs=(inputs,), rows=(row,), says=says)


def _best() -> Answer:
    inputs: Shape = {
        "model": str, "users": int, "context_tokens": int, "tpot_ms": float | None,
        "gpus": list[str], "designs": list[str], "engine": str, "budget_usd_hour": float | None,
        "max_gpus": int, **dict.fromkeys(_SIZES, int | None), "n_draws": int, "seed": int,
        "families": bool,
    }  # fmt: skip
    row: Shape = {
        "model": str, "attention": str, "gpu": str, "kv_dtype": str | None,
        "weight_dtype": str | None, "n_gpus": int | None, "n_replicas": int | None,
        **dict.fromkeys(_SIZES, int | None), "context_tokens": int,
        "bytes_per_token_per_gpu": Fraction | None, "max_sequences": int | None,
        "total_sequences": int | None, "served_per_replica": int | None, "batch_size": int | None,
        **_WAY_TIMES, "usd_per_hour": float | None, "usd_per_million_tokens": float | None,
        "ahead_share": float | None, "launch": str | None, "refused": str | None,
    }  # fmt: skip
    changed: Shape = {
        "constant": str, "low_factor": float, "high_factor": float, "low_cost": float | None,
        "high_cost": float | None, "low_winner": str, "high_winner": str,
    }  # fmt: skip
    says = {
        "batch_size": "sequences of one replica decoded together: the users dealt out evenly",
        "families": "whether a design of every family was compared",
        "gpus": "GPUs that were compared",
        "model": "model",
        "refused": "what rules the GPU out",
        "seed": "of the draws",
        "sensitivity": "each uncertain constant at the ends of its band, all others as predicted",
        "users": "sequences that are served together",
    }
    return Answer(inputs=(inputs,), rows=(row,), also={"sensitivity": changed}, says=says)


def _evaluate() -> Answer:
    from lrkv_plan.calibration.evaluate import GroupError

    inputs: Shape = {"file": str, "held_out": bool}
    return Answer(inputs=(inputs,), rows=(_fields(GroupError),))


def _evaluate_layers() -> Answer:
    from lrkv_plan.calibration.evaluate_layers import LayerError

    inputs: Shape = {"file": str, "held_out": bool, "unknown_files": list[str]}
    says = {
        "engine": "engine whose benchmark was measured",
        "unknown_files": "files of the folder whose columns are of no known operation",
    }
    return Answer(inputs=(inputs,), rows=(_fields(LayerError),), says=says)


def _evaluate_steps() -> Answer:
    from lrkv_plan.calibration.evaluate_steps import StepGroup, StepRow
    from lrkv_plan.calibration.serving_results import Served

    inputs: Shape = {"files": list[str], "quality": list[str], "by": str} | _fields(Served)
    says = {
        "batch_band": "band of batch sizes",
        "batch_size": "sequences decoding on one replica",
        "basis": "weakest evidence among terms over a tenth of the time",
        "by": "what groups are of: group, gpu, engine, kind, batch, layout or weights",
        "dp_size": "attention groups of one replica",
        "engine": "engine, with its version where the run states a number",
        "expressible": "runs of the group that are predicted",
        "files": "tables and benchmark results that were read",
        "group": "the run's group; of a group, what its runs share",
        "gpu": "GPU profile",
        "groups": "the runs that are judged, group by group",
        "in_band": "measured time inside the 90 % band; of a group, the share of its runs",
        "is_judged": "whether the run's quality is one that was asked for; groups count only those",
        "kind": "designs of the model's layers, and whether tokens go to experts",
        "layout": "how one replica lies on its GPUs",
        "measured_s": "measured decode step. [s]",
        "median_ratio": "median of predicted over measured",
        "n": "runs that were judged",
        "predicted_s": "predicted decode step. [s]",
        "quality": "the table's own judgement of a run; of the inputs, those that are judged",
        "ratio": "predicted over measured",
        "term": "part of the step",
        "terms": "parts of the predicted step, each with what it rests on",
        "time_s": "time of the term. [s]",
        "weight_dtype": "format of the weights",
    }
    return Answer(
        inputs=(inputs,), rows=(_fields(StepRow),), also={"groups": _fields(StepGroup)}, says=says
    )


def _fit_inputs() -> Shape:
    """Inputs of a run's fit."""
    from lrkv_plan.calibration.run_record import RunInfo

    return {
        "folder": str, "device": str, "device_name": str | None, "estimator": str,
        "noise": float | None, "noise_limit": float, "control_spread": float | None,
        "max_error": float, "refused": str | None, "run": Dumped(spec=RunInfo),
    }  # fmt: skip


def _fit_rows() -> tuple[Shape, ...]:
    """A fitted path, and one beside it that could not be fitted."""
    known: Shape = {
        "path": str, "device": str, "dtype": str, "kernel": str, "n_fit": int, "n_heldout": int,
        "identified": list[str], "verdict": str,
    }  # fmt: skip
    fitted: Shape = {
        "form": str, "heldout_median_error": float | None, "heldout_p90_error": float | None,
        "peak": str, "bandwidth_bytes_per_s": float, "peak_flops_per_s": float,
        "band90_low": float, "band90_high": float, "noise": float | None,
    }  # fmt: skip
    for role in HELD_OUT_ROLES:
        errors = {"n": int, "median_error": float | None, "p90_error": float | None}
        fitted |= _prefixed(f"{role}_", errors)
    for name in CONSTANTS:
        always = name in ("t0_s", "beta", "phi")
        ends = {f"{name}_low": float | None, f"{name}_high": float | None}
        fitted |= {name: float if always else float | None, **ends}
    return known | fitted, known | _null(fitted)


_OF_FITS = {"max_error": "held-out median error above which a fit is refused, a share"}


def _fit() -> Answer:
    table: Shape = {"file": str, "profile": str, "max_error": float, "refused": str | None}
    verdict = {"verdict": Literal["accepted", "impossible", "poor"]}
    entry = Dumped(spec=KernelConstants, keeps_none=True, plus=verdict)
    return Answer(inputs=(_fit_inputs(), table), rows=(*_fit_rows(), entry), says=_OF_FITS)


def _calibrate_run() -> Answer:
    return Answer(inputs=(_fit_inputs(),), rows=_fit_rows(), says=_OF_FITS)


def _calibrate_show() -> Answer:
    profile: Shape = {"profile": str, "title": str}
    entry = Dumped(spec=KernelConstants, keeps_none=True)
    return Answer(inputs=(_fit_inputs(), profile), rows=(*_fit_rows(), entry), says=_OF_FITS)


def _tensor_parallel() -> Answer:
    inputs: Shape = {
        "n_workers": int, "backend": str, "device": str, "torch": str, "dtype": str,
        "model_dim": int, "batch_size": int, "query_tokens": int, "n_repeats": int,
        "estimator": Literal["median", "minimum"], "load_average": float | None,
        "load_average_end": float | None, "date": str, "command": str,
    }  # fmt: skip
    # By hand: the module of the dataclass imports torch.
    row: Shape = {
        "attention": str, "path": str, "context_tokens": int, "policy": Literal[tuple(POLICIES)],
        "n_workers": int, "cache_bytes_per_gpu_predicted": int,
        "cache_bytes_per_gpu_allocated": list[int], "scratch_bytes_per_gpu": int,
        "link_bytes_per_gpu_predicted": int, "link_bytes_per_gpu_moved": list[int],
        "merge_bytes_per_gpu_moved": int, "loopback_bytes_of_all": int | None,
        "bytes_agree": bool, "max_error": float | None, "is_exact": bool, "attention_s": float,
        "attention_median_s": float, "whole_step_s": float, "whole_step_median_s": float,
        "allreduce_message_bytes": int, "allreduce_predicted_s": float,
    }  # fmt: skip
    return Answer(
        inputs=(inputs,),
        rows=(row,),
        says={
            "backend": "library of the all-reduce",
            "max_error": "largest error against one GPU; null: not finite",
            "attention_s": "from fetching to merging. [s]",
            "whole_step_s": "with output projection and all-reduce. [s]",
            "loopback_bytes_of_all": "bytes that all workers sent; null: not known",
        },
    )


_RANK_PICTURE: Shape = {**FOR_MODEL, "align": int, "kv_dtype": str, "tp_size": int, **VARIANT}


def _cache_vs_rank() -> Answer:
    inputs = {**_RANK_PICTURE, "n_heads": list[int], "budget": str | None}
    return Answer(
        inputs=(inputs,),
        rows=(
            {"series": str, "n_heads": int, "rank": int, "cache_ratio": Fraction},
            {"series": Literal["budget"], "rank": None, "cache_ratio": Fraction},
        ),
        says={"n_heads": "query heads"},
    )


def _rank_sweep() -> Answer:
    panels: dict[str, Shape] = {
        "cache": {"cache_ratio": Fraction},
        "kv_params": {"kv_params_ratio": Fraction},
        "arithmetic": {"arithmetic_ratio": Fraction},
        "capacity": {"total_sequences": int},
    }
    inputs = {**_RANK_PICTURE, "context_tokens": int, "deployment": str | None}
    rows = tuple(
        {"panel": Literal[name], "series": str, "rank": int | None, **value}
        for name, value in panels.items()
    )
    return Answer(inputs=(inputs,), rows=rows)


def _capacity_vs_context() -> Answer:
    row: Shape = {"series": str, "context_tokens": int, "total_sequences": int}
    return Answer(inputs=(_capacity_inputs(),), rows=(row,))


def _payload_vs_loss() -> Answer:
    source = Dumped(spec=Source)
    inputs: Shape = {"scales": list[str], "source": Many(source)}
    line: Shape = {
        "series": str, "cache_ratio": Fraction, "cross_entropy_nats_per_token": float,
    }  # fmt: skip
    point = line | {"ratio_is": Literal["computed", "printed"], "table": str, "scale": str}
    guide = line | {"cache_ratio": None}
    alone = (line, point, guide)
    return Answer(inputs=(inputs,), rows=(*alone, *({"panel": str, **one} for one in alone)))


def _roofline_picture() -> Answer:
    inputs = {
        **FOR_MODEL, "gpu": str, "units": list[str], "context_tokens": int, "kv_dtype": str,
        "tp_size": int, "query_tokens": int, "heads_per_tile": int | None,
    }  # fmt: skip
    axes: Shape = {"intensity_flops_per_byte": float, "attainable_flops_per_s": float}
    ceiling = {"series": str, "units": str, **axes}
    guide = {"series": str, **axes, "attainable_flops_per_s": None}
    return Answer(inputs=(inputs,), rows=(ceiling, ceiling | {"path": str, "bound": str}, guide))


def _crossover_map() -> Answer:
    inputs = {
        **FOR_MODEL, "gpu": str, "attention": list[str], "kv_dtype": str,
        "weight_dtype": str | None, "tp_size": int, "engine": str,
        "over": Literal["rank", "batch_size"],
        "context_tokens": list[int], "batch_size": int | None, "query_tokens": int,
    }  # fmt: skip
    rows = []
    for over in ("rank", "batch_size"):
        boundary = {"series": str, over: float, "context_tokens": int}
        ends = {"low_context_tokens": int, "high_context_tokens": int}
        rows += [boundary, {**boundary, "context_tokens": None, **ends}]
    return Answer(
        inputs=(inputs,),
        rows=tuple(rows),
        says={"context_tokens": "where the faster design changes; of inputs, the y axis. [tokens]"},
    )


def _step_stack() -> Answer:
    inputs = {**_STEP_INPUTS, "weight_bytes": int | None, "engine": str}
    del inputs["weight_bytes_per_gpu"]
    part: Shape = {"series": str, "time_s": float, "attention": str}
    band = part | {"low_time_s": float, "high_time_s": float}
    return Answer(inputs=(inputs,), rows=(part, band))


ANSWERS: dict[str, Callable[[], Answer]] = {
    "plan": lambda: _stacked(_plan()),
    "best": _best,
    "sweep": _sweep,
    "rank": _rank,
    "cache": _cache,
    "params": _params,
    "shard": _shard,
    "capacity": _capacity,
    "crossover": lambda: _stacked(_crossover(), _PLACE),
    "step-time": lambda: _stacked(_step_time()),
    "roofline": lambda: _stacked(_roofline(), _PLACE),
    "validate": _validate,
    "audit": _audit,
    "inspect": _inspect,
    "calibrate run": _calibrate_run,
    "calibrate fit": _fit,
    "calibrate show": _calibrate_show,
    "calibrate evaluate": _evaluate,
    "calibrate evaluate-layers": _evaluate_layers,
    "calibrate evaluate-steps": _evaluate_steps,
    "calibrate tensor-parallel": _tensor_parallel,
    "plot cache-vs-rank": _cache_vs_rank,
    "plot rank-sweep": _rank_sweep,
    "plot capacity-vs-context": _capacity_vs_context,
    "plot payload-vs-loss": _payload_vs_loss,
    "plot roofline": _roofline_picture,
    "plot crossover-map": _crossover_map,
    "plot step-stack": _step_stack,
    "models": _models,
    "models show": partial(Answer, rows=(MODEL,)),
    "models import": partial(Answer, rows=(MODEL,)),
    "models new": _keys,
    "hardware": _hardware,
    "hardware show": partial(Answer, rows=(GPU,)),
    "hardware new": _keys,
}
