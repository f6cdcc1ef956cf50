"""Screens of ``models`` and ``hardware``: what ships, in a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lrkv_plan.report.screen import (
    Row,
    Screen,
    ScreenColumn,
    per_token,
    short,
    short_bytes,
    short_count,
    short_tokens,
)
from lrkv_plan.report.tables import count
from lrkv_plan.units import format_rate


def models_screen(rows: Sequence[Row]) -> Screen:
    """Names with a short design, cache per token and parameters."""
    cached = [row for row in rows if row["bytes_per_token"]]
    verdict = f"{len(rows)} models"
    if cached:
        least, most = (
            choose(cached, key=lambda row: row["bytes_per_token"]) for choose in (min, max)
        )
        verdict += (
            f": a token caches from {short_bytes(least['bytes_per_token'])} ({least['model']}) to "
            f"{short_bytes(most['bytes_per_token'])} ({most['model']}) in bf16"
        )
    unit, write = per_token([1024, *(row["bytes_per_token"] for row in cached)])

    def parameters(row: Row) -> str:
        total = row["model_params"]
        bound = ">= " if row["uncounted_parts"] else ""
        return "-" if total is None else f"{bound}{short_count(total)}"

    return Screen(
        verdict=(f"{verdict}.",),
        rows=rows,
        columns=(
            ScreenColumn(title="model", text=lambda row: str(row["model"]), is_number=False),
            ScreenColumn(title="design", text=_short_design, is_number=False),
            ScreenColumn(
                title=f"{unit}/token", text=_of("bytes_per_token", lambda n: write(n) if n else "0")
            ),
            ScreenColumn(title="parameters", text=parameters, drop=1),
            ScreenColumn(title="context", text=_of("max_context_tokens", short_tokens), drop=2),
            ScreenColumn(title="layers", text=_of("n_layers", count), drop=3),
            ScreenColumn(title="width", text=_of("model_dim", count), drop=4),
        ),
        foot=(
            ">= leaves out parts that `lrkv-plan models show NAME` lists. Exact counts. "
            "Why: --explain",
        ),
        following=(("lrkv-plan", "plan", "llama-3.1-8b", "--gpu", "h100-sxm"),),
    )


def _short_design(row: Row) -> str:
    """A design without options and layer counts: ``mla:512+64``, ``gqa:16 + gqa:4``."""
    parts = (part.split(",")[0].split("x ")[-1] for part in str(row["attention"]).split(" + "))
    return " + ".join(dict.fromkeys(parts))


def _of(key: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = row.get(key)
        return "-" if value is None else write(value)

    return text


def hardware_screen(rows: Sequence[Row]) -> Screen:
    """Names with memory, bandwidth and dense peaks; prices where profiles state them."""
    gpus = [row for row in rows if row["generation"] != "cpu"]
    verdict = f"{len(rows)} hardware profiles"
    if gpus:
        least, most = (
            choose(gpus, key=lambda row: row["mem_capacity_bytes"]) for choose in (min, max)
        )
        verdict += "".join(
            f"{lead}{short_bytes(row['mem_capacity_bytes'])} ({row['name']})"
            for lead, row in ((": GPUs from ", least), (" to ", most))
        )
    prices = (
        ScreenColumn(title="$/hour", text=_of("hourly_price_usd", short), drop=1),
    ) if any(row.get("hourly_price_usd") for row in rows) else ()  # fmt: skip
    return Screen(
        verdict=(f"{verdict}.",),
        rows=rows,
        columns=(
            ScreenColumn(title="name", text=lambda row: str(row["name"]), is_number=False),
            ScreenColumn(title="memory", text=_of("mem_capacity_bytes", short_bytes)),
            ScreenColumn(title="bandwidth", text=_of("mem_bandwidth_bytes_per_s", _bytes_rate)),
            ScreenColumn(title="16 bit, dense", text=_16_bit_rate),
            ScreenColumn(title="fp8", text=_of("fp8_flops_per_s", _flops_rate), drop=2),
            *prices,
            ScreenColumn(title="link, one way", text=_of("link_bytes_per_s", _bytes_rate), drop=3),
            ScreenColumn(title="generation", text=_of("generation", str), is_number=False, drop=4),
        ),
        foot=("From datasheets, prices as asked on the day they were read. Why: --explain",)
        if prices
        else ("From datasheets. Why: --explain",),
        following=(("lrkv-plan", "hardware", "show", "h100-sxm"),),
    )


def _bytes_rate(value: float) -> str:
    return format_rate(value, "B")


def _flops_rate(value: float) -> str:
    return format_rate(value, "FLOP")


def _16_bit_rate(row: Row) -> str:
    """The bf16 peak; of a GPU without bf16 arithmetic the fp16 one."""
    rate = row.get("bf16_flops_per_s") or row.get("fp16_flops_per_s")
    return "-" if rate is None else _flops_rate(rate)
