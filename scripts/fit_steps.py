"""Fit what only whole steps show: engines' step constants, and GPUs without tables of operations.

``python scripts/fit_steps.py runs.csv [--spec-dir DIR] [--write]`` reads public runs (columns of
``calibrate evaluate-steps``; of a ``quality`` column only A), prints errors as fitted and with
whole groups left out, and writes ``lrkv_plan/latency/engine_steps.yaml`` and ``whole_step:``
blocks.

Every constant is fitted in logarithms around a prior (its starting value), so that few rows move it
little; rows of a group share one vote's worth of weight, sqrt(n). No constant is of one group.
"""

import argparse
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from lrkv_plan.calibration.step_runs import predict, read_runs
from lrkv_plan.latency.engine_step import TABLE as ENGINES
from lrkv_plan.latency.engine_step import engine_step
from lrkv_plan.latency.evidence import weakest
from lrkv_plan.latency.step import launches
from lrkv_plan.loader import HARDWARE_FOLDER as PROFILES
from lrkv_plan.loader import load_all_hardware, load_hardware, load_model
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.layer_constants import WholeStep
from lrkv_plan.specs.model import ModelSpec

FACTORS = (0.6, 1.0, 1.5, 2.0, 2.5, 3.0)  # of the memory time, between which times are interpolated
PARTS = 8
# name: (start, width of the prior in ln)
STARTS = {
    "step vllm": (0.3e-3, 0.8), "step sglang": (0.4e-3, 0.8), "step tensorrt_llm": (0.3e-3, 0.8),
    "step atom": (0.3e-3, 0.8), "step llama_cpp": (2e-3, 0.8), "step other": (0.3e-3, 0.3),
    "older vllm": (12e-6, 0.8), "older sglang": (12e-6, 0.8),
    "overlap": (0.5e-6, 0.8), "index layer": (40e-6, 0.5),
    "sequence vllm": (10e-6, 0.8), "sequence sglang": (20e-6, 0.8),
    "sequence tensorrt_llm": (8e-6, 0.8), "sequence other": (10e-6, 0.8),
    "exchange vllm": (15e-6, 0.8), "exchange sglang": (30e-6, 0.8),
    "exchange tensorrt_llm": (25e-6, 0.8),
    "matrix cdna3": (1.15, 0.5), "expert cdna3": (1.3, 0.5),
    "layer cdna3": (40e-6, 0.8), "expert layer cdna3": (80e-6, 0.8),
    "matrix cdna4": (1.05, 0.5), "expert cdna4": (1.1, 0.5),
    "layer cdna4": (8e-6, 0.8), "expert layer cdna4": (8e-6, 0.8),
    "matrix h20": (2.0, 0.5), "expert h20": (2.0, 0.5),
    "step vllm_ascend": (2e-3, 0.8), "matrix ascend": (1.3, 0.5), "expert ascend": (1.5, 0.5),
    "layer ascend": (200e-6, 0.8), "expert layer ascend": (200e-6, 0.8),
    "matrix volta": (1.2, 0.5), "layer volta": (20e-6, 0.8),
    "matrix gddr": (0.9, 0.2),
}  # fmt: skip
OLDER = {"vllm": "0.9", "sglang": "0.4.4"}
WHOLE = {
    "cdna3": ("mi300x", "mi325x"),
    "cdna4": ("mi355x",),
    "h20": ("h20", "h20-3e"),
    "ascend": ("ascend-910b2", "ascend-910c"),
    "volta": ("v100s-pcie", "v100-sxm"),
    # Constants of the L40S stand for them; their memory is driven closer to its datasheet.
    "gddr": (
        "rtx-4090", "rtx-4090-d", "rtx-6000-ada", "rtx-4000-ada", "rtx-3090", "rtx-a6000", "a40",
    ),
}  # fmt: skip
# H20's processors, not its memory, bound how fast weights stream: the faster memory of the H20-3e
# changes nothing, so that its factor is larger by the ratio of bandwidths.
SCALED = {"h20-3e": 4.8 / 4.0}
SEPARATE = ("atom", "llama_cpp", "vllm_ascend")
SOURCE = "public runs of whole engines, 2024 to 2026 (docs/step-accuracy.md)"


class Runs:
    """Predictions without any fitted constant, as arrays over the rows that can be predicted."""

    def __init__(self, path: Path, spec_dir: Path | None) -> None:
        rows = [row for row in read_runs(path) if row.get("quality", "A") == "A"]
        found = {factor: list(_predicted(rows, spec_dir, factor)) for factor in FACTORS}
        self.refused = [one for one in found[1.0] if one.run is None]
        keep = [i for i, one in enumerate(found[1.0]) if one.run is not None]
        first = [found[1.0][i] for i in keep]
        self.runs = [one.run for one in first]
        self.n_rows = len(first)
        self.groups = np.array([one.group for one in first])
        self.engines = np.array([run.engine.name for run in self.runs])
        self.measured = np.array([run.measured_s for run in self.runs])
        self.matrices, self.experts = (
            np.array([[float(getattr(found[f][i].step, name)) for i in keep] for f in FACTORS])
            for name in ("matrices_s", "experts_s")
        )
        specs = [_model(run.model, spec_dir) for run in self.runs]
        profiles = [load_hardware(run.gpu, spec_dir=spec_dir) for run in self.runs]
        self.kinds = np.array([_kind(profile) for profile in profiles])
        self.scales = np.array([SCALED.get(profile.name, 1.0) for profile in profiles])
        self.launches = np.array([launches(one.model.work) for one in first])
        self.bands = np.array([one.model.engine.band(
            weakest(m.basis for m in (*one.model.matrix_models, *one.model.experts)),
            has_whole_step=_kind(profile) != "",
        ) for one, profile in zip(first, profiles, strict=True)])  # fmt: skip
        self.indexed = np.array([
            sum(work.layers for work in one.model.work.attention if work.index_row_bytes)
            for one in first
        ])  # fmt: skip
        self.layers = np.array([spec.n_layers for spec in specs])
        self.expert_layers = np.array([_expert_layers(spec) for spec in specs])
        many = np.array([run.parallel.dp_size > 1 for run in self.runs])
        self.exchanges = np.where(many, self.expert_layers, 0)
        self.rank = np.array([
            -(-run.batch_size // (run.parallel.pp_size * run.parallel.dp_size)) for run in self.runs
        ])  # fmt: skip
        shipped = [engine_step(run.engine) for run in self.runs]
        own = np.array([one.exchange_s for one in shipped]) * self.exchanges
        self.rest = np.array([
            float(one.step.step_s - one.step.engine_s - one.step.matrices_s - one.step.experts_s)
            for one in first
        ]) - own  # fmt: skip
        self.older = np.array([
            run.engine.name in OLDER and run.engine.version is not None
            and run.engine.version < _version(OLDER[run.engine.name]) for run in self.runs
        ])  # fmt: skip

    def predicted(self, value: dict[str, float]) -> Any:
        """Seconds of every row with those constants."""
        total = self.rest.copy()
        for kind in ("matrix", "expert"):
            times = self.matrices if kind == "matrix" else self.experts
            factor = np.array([value.get(f"{kind} {one}", 1.0) for one in self.kinds])
            total += _between(times, factor * self.scales)
        layer = np.array([value.get(f"layer {one}", 0.0) for one in self.kinds])
        expert = np.array([value.get(f"expert layer {one}", 0.0) for one in self.kinds])
        total += layer * self.layers + expert * self.expert_layers
        total += value["index layer"] * self.indexed - value["overlap"] * self.launches
        for name in set(self.engines):
            at = self.engines == name
            total[at] += value.get(f"step {name}", value["step other"])
            total[at] += self.rank[at] * value.get(f"sequence {name}", value["sequence other"])
            exchange = value.get(f"exchange {name}", value["exchange tensorrt_llm"])
            total[at] += self.exchanges[at] * exchange
            old = at & self.older
            total[old] += value.get(f"older {name}", 0.0) * self.layers[old]
        return np.maximum(total, 1e-6)


@cache
def _model(name: str, spec_dir: Path | None) -> ModelSpec:
    own = None if spec_dir is None else spec_dir / name
    return load_model(str(own) if own is not None and own.exists() else name)


def _kind(profile: HardwareProfile) -> str:
    """The kind of GPU that shares whole-step constants."""
    return next((kind for kind, names in WHOLE.items() if profile.name in names), "")


def _expert_layers(spec: ModelSpec) -> int:
    return sum(g.count for g in spec.layers if g.feed_forward and g.feed_forward.kind == "experts")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _predicted(rows: list[Any], spec_dir: Path | None, factor: float) -> Any:
    """Steps with memory times of weights times ``factor``, and nothing beyond the operations."""
    bare = WholeStep(matrix_bytes=factor, expert_bytes=factor, n_rows=1, source="while fitting")

    @cache
    def gpu_of(name: str) -> HardwareProfile:
        return load_hardware(name, spec_dir=spec_dir).model_copy(update={"whole_step": bare})

    return predict(
        rows, lambda name: _model(name, spec_dir), gpu_of, relatives=load_all_hardware(spec_dir)
    )


def _between(times: Any, factor: Any) -> Any:
    """Times at each row's factor, linear between ``FACTORS``; from 0.5 on extrapolated."""
    low = np.clip(np.searchsorted(FACTORS, factor) - 1, 0, len(FACTORS) - 2)
    rows = np.arange(times.shape[1])
    at = np.array(FACTORS)
    share = (factor - at[low]) / (at[low + 1] - at[low])
    return times[low, rows] * (1 - share) + times[low + 1, rows] * share


def fitted(runs: Runs, take: Any) -> dict[str, float]:
    """Constants from the rows of ``take``."""
    names = list(STARTS)
    start = np.log([STARTS[name][0] for name in names])
    width = np.array([STARTS[name][1] for name in names])
    counts = {group: int((runs.groups[take] == group).sum()) for group in set(runs.groups[take])}
    # Groups count alike: what is predicted next is another group.
    weight = np.array([counts[group] ** -0.5 for group in runs.groups[take]])

    def residuals(x: Any) -> Any:
        value = dict(zip(names, np.exp(x), strict=True))
        off = np.log(runs.predicted(value)[take] / runs.measured[take])
        # Residuals beyond 0.2 count linearly: a run that was measured otherwise moves nothing.
        bounded = np.sign(off) * np.where(
            np.abs(off) < 0.2, np.abs(off), np.sqrt(np.maximum(0.4 * np.abs(off) - 0.04, 0))
        )
        return np.concatenate([weight * bounded / 0.1, (x - start) / width])

    found = least_squares(residuals, start, method="trf")
    return dict(zip(names, map(float, np.exp(found.x)), strict=True))


def left_out(runs: Runs) -> Any:
    """Predictions of every row by constants that its group did not take part in."""
    names = sorted(set(runs.groups))
    total = np.zeros(runs.n_rows)
    for part in range(PARTS):
        out = np.isin(runs.groups, names[part::PARTS])
        total[out] = runs.predicted(fitted(runs, ~out))[out]
    return total


def report(name: str, runs: Runs, predicted: Any) -> dict[str, float]:
    """Median, nine tenths, and the median over groups of the errors, printed and returned."""
    ratio = predicted / runs.measured
    error = np.abs(ratio - 1)
    of_groups = [np.median(error[runs.groups == group]) for group in sorted(set(runs.groups))]
    print(
        f"{name:12} median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%}, "
        f"median over {len(of_groups)} groups {np.median(of_groups):.1%}, "
        f"ratio {np.median(ratio):.3f}"
    )
    return {
        "runs": runs.n_rows, "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)), "groups": float(np.median(of_groups)),
    }  # fmt: skip


def bands(runs: Runs, predicted: Any) -> None:
    """Quantiles of measured over predicted, by kind of evidence."""
    ratio = runs.measured / predicted
    tables = runs.kinds == ""
    parts = {"tables": tables & ~runs.older, "older engines": runs.older}
    parts |= {kind: runs.kinds == kind for kind in WHOLE}
    for name, rows in parts.items():
        if rows.any():
            low, high = np.quantile(ratio[rows], (0.05, 0.95))
            print(f"  {name}: {rows.sum()} rows, 5 to 95 %: {low:.2f} to {high:.2f}")


def main() -> None:
    """Fit, judge, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--spec-dir", type=Path)
    parser.add_argument("--write", action="store_true")
    told = parser.parse_args()
    runs = Runs(told.runs, told.spec_dir)
    print(f"{runs.n_rows} rows, {len(runs.refused)} refused")
    value = fitted(runs, np.ones(runs.n_rows, bool))
    report("as fitted", runs, runs.predicted(value))
    out = left_out(runs)
    judged = report("left out", runs, out)
    bands(runs, out)
    ratio = runs.measured / out
    held = (runs.bands[:, 0] <= ratio) & (ratio <= runs.bands[:, 1])
    wide = np.median(runs.bands[:, 1] / runs.bands[:, 0])
    judged |= {"in_band": float(held.mean()), "band_width": float(wide)}
    print(f"  shipped bands hold {held.mean():.1%} of rows left out, {wide:.2f} wide in the median")
    for name, found in value.items():
        print(f"  {name:24} {found:.3g}")
    if told.write:
        write(runs, value, judged)


def write(runs: Runs, value: dict[str, float], judged: dict[str, float]) -> None:
    """The engines' table and the profiles' blocks."""
    lines = []
    for name in (*OLDER, "tensorrt_llm", *SEPARATE):
        older = (
            f', older: {{before: "{OLDER[name]}", layer_s: {value[f"older {name}"]:.2e}}}'
            if name in OLDER else ""
        )  # fmt: skip
        lines.append(f"  {name}: {{{_engine(name, value)}{older}}}")
    text = ENGINES.read_text(encoding="utf-8")
    head = text[: text.index("\noverlap_s:") + 1]
    head += f"overlap_s: {value['overlap']:.2e}\nindex_layer_s: {value['index layer']:.2e}\n"
    head += f"left_out: {{{', '.join(f'{name}: {each:.4g}' for name, each in judged.items())}}}\n"
    ENGINES.write_text(
        f"{head}engines:\n" + "\n".join(lines) + f"\nothers: {{{_engine('other', value)}}}\n",
        encoding="utf-8",
    )
    for kind, names in WHOLE.items():
        rows = int((runs.kinds == kind).sum())
        for name in names:
            path = Path(PROFILES) / f"{name}.yaml"
            if path.exists() and rows:
                _write_block(path, kind, value, rows, SCALED.get(name, 1.0))


def _engine(name: str, value: dict[str, float]) -> str:
    step = value.get(f"step {name}", value["step other"])
    sequence = value.get(f"sequence {name}", value["sequence other"])
    exchange = value.get(f"exchange {name}", value["exchange tensorrt_llm"])
    return f"step_s: {step:.2e}, sequence_s: {sequence:.2e}, exchange_s: {exchange:.2e}"


def _write_block(path: Path, kind: str, value: dict[str, float], rows: int, scale: float) -> None:
    block = [
        "whole_step:  # written by scripts/fit_steps.py: fitted on whole steps, for want of tables",
        f"  matrix_bytes: {scale * value[f'matrix {kind}']:.2f}",
    ]
    if f"expert {kind}" in value:
        block.append(f"  expert_bytes: {scale * value[f'expert {kind}']:.2f}")
    if f"layer {kind}" in value:
        block.append(f"  layer_s: {value[f'layer {kind}']:.2e}")
    if f"expert layer {kind}" in value:
        block.append(f"  expert_layer_s: {value[f'expert layer {kind}']:.2e}")
    block += [f"  n_rows: {rows}", f"  source: {SOURCE}"]
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^whole_step:.*?(?=^\S|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    path.write_text(text.rstrip("\n") + "\n" + "\n".join(block) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
