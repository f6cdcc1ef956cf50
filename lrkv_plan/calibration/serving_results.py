"""What serving benchmarks of vLLM and SGLang write, as rows of a table of runs.

``vllm bench serve --save-result`` writes an object (with ``--append-result`` one a line),
``sglang.bench_serving`` one a line. They hold traffic and times, not what was served: model, GPU,
layout and formats are said beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lrkv_plan.calibration.samples import table_text
from lrkv_plan.documents import json_object
from lrkv_plan.errors import ArgumentError, CalibrationError, PlanError, shown
from lrkv_plan.specs.deployment import parse_engine, plain_name

Value = TypeVar("Value")
# Clients that speak an engine's own protocol; others (openai, openai-chat) may ask any engine.
ENGINE_OF_CLIENT = {
    "vllm": "vllm", "vllm_chat": "vllm", "sglang": "sglang", "sglang_native": "sglang",
    "sglang_oai": "sglang", "sglang_oai_chat": "sglang", "trt": "tensorrt_llm",
    "tensorrt_llm": "tensorrt_llm",
}  # fmt: skip
# Keys that only runs with speculative decoding have a value of.
SPECULATIVE = ("accept_length", "spec_decode_num_drafts", "spec_decode_acceptance_length")
MOST_SEQUENCES = 1e6
ONE_TOKEN_A_CHUNK = 1.1  # the most that a mean ITL may be above a mean TPOT


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a benchmark's result does not say; None where it was not given."""

    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    tp_size: int | None = None
    pp_size: int | None = None
    dp_size: int | None = None
    ep_size: int | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None


def is_result(text: str) -> bool:
    """Whether a file's text is JSON rather than a table."""
    return text.lstrip()[:1] in ("{", "[")


def serving_rows(path: Path, served: Served) -> list[dict[str, str]]:
    """The runs of a benchmark's file, with the columns of a table of runs.

    Raises
    ------
    CalibrationError
        If the file is not such JSON, or a run lacks what a step is compared by.
    ArgumentError
        If something that no result says was not given.
    """
    return [
        _row(f"{path.name}:{number}" if number else path.name, result, path, served)
        for number, result in _results(path, table_text(path))
    ]


def _results(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, or 0 where the file is one object; result)."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
    whole = len(lines) == 1 or not all(_is_one_line(line) for _, line in lines)
    for number, part in [(0, text)] if whole else lines:
        try:
            yield number, json_object(path, part)
        except PlanError as error:
            place = f"{path}: line {number}" if number else str(path)
            told = error.message.removeprefix(f"{path}: ")
            raise CalibrationError(f"{place}: {told}") from None


def _is_one_line(line: str) -> bool:
    return line.startswith("{") and line.rstrip().endswith("}")


def _row(name: str, result: Mapping[str, Any], path: Path, served: Served) -> dict[str, str]:
    where = f"{path}: {name}" if name != path.name else str(path)
    model = _said("model", served.model, where, _told(result, "model_id"))
    gpu = _said("gpu", served.gpu, where)
    told = _told(result, "backend", "endpoint_type")
    engine = parse_engine(_said("engine", served.engine or _engine(result), where, told))
    tp_size = _said("tp_size", served.tp_size, where)
    completed = _number(result, "completed", where)
    prompt_tokens = _number(result, "total_input_tokens", where) / completed
    output_tokens = _number(result, "total_output_tokens", where) / completed
    metric = _metric(result, where)
    batch = _batch(result, where)
    return {
        "id": name, "model": model, "gpu": gpu, "engine": engine.name,
        "engine_version": ".".join(map(str, engine.version or ())),
        "tp": str(tp_size), "pp": str(served.pp_size or 1),
        "dp_attention": str(served.dp_size or 1), "moe_ep": str(served.ep_size or 1),
        "weight_dtype": served.weight_dtype or "", "kv_dtype": served.kv_dtype or "",
        "batch": str(batch), "isl": repr(prompt_tokens), "osl": repr(output_tokens),
        "context_tokens": repr(prompt_tokens + output_tokens / 2),
        "tpot_ms": repr(_number(result, metric, where)), "metric": metric,
        "draft_tokens": "" if any(result.get(key) for key in SPECULATIVE) else "0",
    }  # fmt: skip


def _said(option: str, value: Value | None, where: str, told: str = "") -> Value:
    """What was given.

    Raises
    ------
    ArgumentError
        If it was not, naming the option and what the result says instead.
    """
    if value is None:
        raise ArgumentError(option, f": is needed; {where} does not say it{told}")
    return value


def _told(result: Mapping[str, Any], *keys: str) -> str:
    found = next((key for key in keys if result.get(key)), None)
    return "" if found is None else f" ({found}: {shown(str(result[found]))})"


def _engine(result: Mapping[str, Any]) -> str | None:
    """The engine whose own protocol the client spoke."""
    client = str(result.get("backend") or result.get("endpoint_type") or "")
    return ENGINE_OF_CLIENT.get(plain_name(client))


def _number(result: Mapping[str, Any], key: str, where: str) -> float:
    value = _known(result, key)
    if value is None or value <= 0:
        told = shown(str(result[key])) if key in result else "is missing"
        raise CalibrationError(f"{where}: {key} {told}: must be a number above 0")
    return value


def _known(result: Mapping[str, Any], key: str) -> float | None:
    """A finite number of the result; None where there is none."""
    value = result.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _metric(result: Mapping[str, Any], where: str) -> str:
    """The key of the time that is nearest to a decode step.

    A median gap between tokens is free of most prefill, if each chunk of the stream holds one
    token; a time per token holds the prefill of other requests.
    """
    gap, per_token = _known(result, "mean_itl_ms"), _known(result, "mean_tpot_ms")
    one_a_chunk = gap and per_token and gap <= ONE_TOKEN_A_CHUNK * per_token
    if one_a_chunk and _known(result, "median_itl_ms"):
        return "median_itl_ms"
    for key in ("median_tpot_ms", "mean_tpot_ms"):
        if _known(result, key):
            return key
    raise CalibrationError(f"{where}: holds no median_tpot_ms, mean_tpot_ms or median_itl_ms")


def _batch(result: Mapping[str, Any], where: str) -> int:
    """Sequences that decode together.

    The concurrency that was kept up; where requests came at a rate, or all at once, Little's law:
    tokens per second times seconds per token.
    """
    most = _known(result, "max_concurrency")
    if most and result.get("request_rate") in (None, "inf", math.inf):
        return max(1, round(min(most, _number(result, "completed", where))))
    seconds = _number(result, "duration", where)
    tokens = _number(result, "total_output_tokens", where)
    key = "mean_tpot_ms" if _known(result, "mean_tpot_ms") else "median_tpot_ms"
    batch = tokens / seconds * _number(result, key, where) / 1e3
    if batch > MOST_SEQUENCES:
        raise CalibrationError(
            f"{where}: total_output_tokens, duration and {key} mean {batch:.3g} sequences at once"
        )
    return max(1, round(batch))


def limits(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Where measured times of results hold more than a decode step."""
    per_token = sum(row["metric"] in ("median_tpot_ms", "mean_tpot_ms") for row in rows)
    if per_token:
        yield f"{per_token} measured as time per token, which holds the prefill of other requests"
    often = sum(float(row["batch"]) > float(row["osl"]) / 2 for row in rows)
    if often:
        yield (
            f"{often} with a prompt prefilled in more than every second step: measured times hold "
            "prefill"
        )
