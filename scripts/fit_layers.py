"""Fit the constants of layer operations and write them into ``hardware_profiles/``.

    python scripts/fit_layers.py FOLDER [--write]

Reads the tables of measured layer operations in a folder (their columns say what they hold), prints
held-out errors, and with ``--write`` replaces the ``matrices:``, ``experts:``, ``products:``,
``exchanges:`` and ``recurrent:`` blocks of the profiles, and ``latency/small_kernels.yaml``. All
errors printed are of shapes (models of experts) that the fit has not seen. About 2 minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fit_kernels import PROFILE_OF

from lrkv_plan.calibration.layer_fit import LayerFit, fit_layer
from lrkv_plan.calibration.layer_samples import (
    DECODE_EXCHANGES,
    LayerSamples,
    SmallKernelSamples,
    samples_of_table,
    small_kernel_samples,
)
from lrkv_plan.calibration.layer_tables import Measured, read_layer_table, table_files
from lrkv_plan.latency.operands import operand_format
from lrkv_plan.latency.small_kernels import TABLE as SMALL_KERNELS
from lrkv_plan.latency.stand_ins import ENGINES
from lrkv_plan.loader import load_all_hardware, load_hardware
from lrkv_plan.specs.hardware import HardwareProfile, with_block
from lrkv_plan.specs.layer_constants import (
    LAYER_BLOCKS,
    ExchangeConstants,
    ExpertConstants,
    MatrixConstants,
    ProductConstants,
    RecurrentConstants,
)

PROFILES = Path(__file__).parent.parent / "hardware_profiles"
# Rows of several nodes are printed alike for both.
SEVERAL = {"hopper_unspecified": ("h100_sxm", "h200_sxm")}
SOURCE = "ai-dynamo/aiconfigurator 095f58a51c4c (2026-08-21)"
LICENCE = "Apache-2.0"
COMMENT = "written by scripts/fit_layers.py; see lrkv_plan/latency"
CLASSES: dict[str, Any] = {
    "matrices": MatrixConstants, "experts": ExpertConstants, "products": ProductConstants,
    "exchanges": ExchangeConstants, "recurrent": RecurrentConstants,
}  # fmt: skip
MIN_BAND = (0.95, 1.05)  # repeats of one benchmark differ by 1 to 3 %
Fitted = tuple[LayerSamples, LayerFit]


@cache
def profile_of(gpu: str) -> HardwareProfile:
    """The profile of a table's GPU."""
    return load_hardware(PROFILE_OF.get(gpu, gpu.replace("_", "-")))


def fitted_groups(tables: list[Measured]) -> Iterator[Fitted]:
    """Every group of every table with its fit."""
    relatives = load_all_hardware()
    for table in tables:
        for samples in samples_of_table(table, profile_of, relatives):
            if samples.gpu in PROFILE_OF or samples.gpu in SEVERAL:
                fit = fit_layer(samples)
                if fit is not None:
                    yield samples, fit


def entry_of(samples: LayerSamples, fit: LayerFit) -> Any:
    """A fit as an entry of a profile."""
    rounded = {name: float(f"{value:.4g}") for name, value in fit.constants.items()}
    low, high = min(fit.band90[0], MIN_BAND[0]), max(fit.band90[1], MIN_BAND[1])
    more: dict[str, Any] = dict(samples.fields)
    if samples.operation in ("matrices", "experts"):
        more |= {"format": samples.format}
        profile = profile_of(samples.gpu)
        more["peak"] = operand_format(samples.format).peak_of(profile)
    if samples.operation == "products":
        more |= {"format": samples.format}
    if samples.operation == "recurrent":
        more |= {"kind": samples.format}
    return CLASSES[samples.operation](
        **rounded, **more, engine=samples.engine, backend=samples.engine,
        backend_version=samples.version or None, identified=fit.identified, n_points=fit.n_points,
        held_out_by=samples.held_out_by, held_out_median_error=round(fit.median_error, 4),
        held_out_p90_error=round(fit.p90_error, 4), band90=(round(low, 4), round(high, 4)),
        source=SOURCE, licence=LICENCE, remark=samples.remark,
    )  # fmt: skip


def with_updates(groups: list[Fitted]) -> list[Fitted]:
    """Mamba-2's state update, which no table has, takes the gated-delta one of its engine."""
    donors = {
        (s.gpu, s.engine): f for s, f in groups
        if (s.operation, s.format) == ("recurrent", "gated_delta")
    }  # fmt: skip
    found = []
    for samples, fit in groups:
        donor = donors.get((samples.gpu, samples.engine))
        if samples.format == "mamba2" and donor is not None:
            lent = {name: donor.constants[name] for name in ("t0_s", "beta")}
            fit = replace(fit, constants={**fit.constants, **lent})
            samples = replace(
                samples, remark="only the convolution was measured: the state update is that of "
                "gated-delta layers"
            )  # fmt: skip
        found.append((samples, fit))
    return found


def order(samples: LayerSamples) -> tuple[Any, ...]:
    """Entries of one list by engine, format, and the implementation that engines prefer."""
    implementation = samples.fields.get("implementation", "")
    rank = {name: index for index, name in enumerate(DECODE_EXCHANGES)}
    return (
        ENGINES.index(samples.engine), rank.get(implementation, 0), samples.fields.get("nodes", 0),
        samples.fields.get("ranks", 0), samples.format,
    )  # fmt: skip


def print_groups(groups: list[Fitted]) -> None:
    """One line a group, and the pooled errors of each operation and format."""
    pooled: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    for samples, fit in groups:
        shown = " ".join(f"{k}={v:.3g}" for k, v in fit.constants.items())
        print(
            f"{samples.operation} {samples.gpu} {samples.engine} {samples.format}: {shown}; "
            f"{fit.n_points} rows, held out by {samples.held_out_by} median {fit.median_error:.1%} "
            f"p90 {fit.p90_error:.1%}"
        )
        judged = (samples.part == samples.judged) & np.isfinite(fit.left_out)
        pooled[samples.operation, samples.format].append(np.abs(np.expm1(-fit.left_out[judged])))
    print("\npooled over GPUs and engines")
    for (operation, name), errors in sorted(pooled.items()):
        every = np.concatenate(errors)
        if len(every):
            print(
                f"{operation} {name}: {len(every)} rows, median {np.median(every):.1%}, p90 "
                f"{np.quantile(every, 0.9):.1%}"
            )


def print_carrying(groups: list[Fitted]) -> None:
    """By what factor bands must widen where constants are taken from elsewhere.

    The factor with which the lender's band holds 90 % of the judged rows of another table; the
    quantiles are over pairs of tables of one format.
    """
    needed: dict[tuple[str, str], list[float]] = defaultdict(list)
    for samples, _ in groups:
        for lender, lent in groups:
            kind = _kinship(samples, lender)
            rows = samples.part == samples.judged
            if kind is None or rows.sum() < 30:
                continue
            predicted = samples.predict(samples.model_of(lent.constants), rows)
            ratio = np.quantile(samples.time_s[rows] / predicted, (0.05, 0.95))
            factor = max(lent.band90[0] / ratio[0], ratio[1] / lent.band90[1], 1.0)
            needed[samples.operation, kind].append(factor)
    print("\nfactor by which a lender's band must widen: median and 80 % over pairs of tables")
    for (operation, kind), factors in sorted(needed.items()):
        low, high = np.quantile(factors, (0.5, 0.8))
        print(f"{operation}, {kind}: {len(factors)} pairs, {low:.2f}, {high:.2f}")


def _kinship(one: LayerSamples, other: LayerSamples) -> str | None:
    """How two groups of one operation and format are related."""
    if one is other or one.operation not in ("matrices", "experts", "products"):
        return None
    if (one.operation, one.format) != (other.operation, other.format):
        return None
    if SEVERAL.keys() & {one.gpu, other.gpu}:
        return None
    same_gpu, same_engine = one.gpu == other.gpu, one.engine == other.engine
    same_generation = profile_of(one.gpu).generation == profile_of(other.gpu).generation
    if same_gpu:
        return "another engine"
    if same_engine:
        return "generation" if same_generation else "another generation"
    return None


def small_kernel_text(samples: list[SmallKernelSamples]) -> str:
    """The shared table of small kernels."""
    lines = [
        "# vLLM's fused kernels under a profiler: t = t0 + a width + b tokens width, to 256 tokens",
        "# (sampler 128). Errors are of models left out. Written by scripts/fit_layers.py.",
        "measured_on: RTX 4090 and RTX PRO 6000",
        'source: "casys-kaist/LLMServingSim 5daddb21a545 (2026-08-21)"',
        "licence: MIT",
        "kinds:",
    ]
    for kind in samples:
        fit = kind.fit()
        low, high = min(fit.band90[0], MIN_BAND[0]), max(fit.band90[1], MIN_BAND[1])
        lines += [
            f"  {kind.kind}:",
            f'    width: "{kind.width_of}"',
            *(f"    {name}: {value:.3e}" for name, value in fit.constants.items()),
            f"    median_error: {fit.median_error:.4f}",
            f"    p90_error: {fit.p90_error:.4f}",
            f"    band90: [{low:.4f}, {high:.4f}]",
        ]
    return "\n".join(lines) + "\n"


def write(groups: list[Fitted]) -> None:
    """Replace the blocks in every profile that has entries."""
    entries: dict[tuple[str, str], list[Fitted]] = defaultdict(list)
    for samples, fit in groups:
        for gpu in SEVERAL.get(samples.gpu, (samples.gpu,)):
            entries[gpu, samples.operation].append((samples, fit))
    for gpu, name in PROFILE_OF.items():
        path = PROFILES / f"{name}.yaml"
        text = before = path.read_text()
        for block in LAYER_BLOCKS:
            found = sorted(entries.get((gpu, block), []), key=lambda item: order(item[0]))
            if found:
                text = with_block(text, block, [entry_of(s, f) for s, f in found], COMMENT)
        if text != before:
            path.write_text(text)
            print(f"wrote {path.name}", file=sys.stderr)


def main() -> int:
    """Fit, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="tables of measured layer operations")
    parser.add_argument("--write", action="store_true", help="update the shipped constants")
    arguments = parser.parse_args()
    read = [read_layer_table(path) for path in table_files(arguments.folder)]
    tables = [table for table in read if table is not None]
    groups = with_updates(list(fitted_groups(tables)))
    print_groups(groups)
    print_carrying(groups)
    small = [s for table in tables for s in small_kernel_samples(table)]
    if arguments.write:
        write(groups)
        if small:
            SMALL_KERNELS.write_text(small_kernel_text(small))
    return 0


if __name__ == "__main__":
    sys.exit(main())
