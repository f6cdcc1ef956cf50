"""Fit the kernel and all-reduce constants and write them into ``hardware_profiles/``.

    python scripts/fit_kernels.py decode.csv.gz --allreduce allreduce.csv.gz [--write]

Reads measured tables (aiconfigurator-core, InferSim), prints held-out errors and how reliable the
bands are, and with ``--write`` replaces the ``kernels:`` and ``allreduce:`` blocks of the profiles.
All errors printed are of rows that neither the choice of form nor the fit has seen.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from kernel_fit_tables import (
    GroupResult,
    print_datasheet,
    print_groups,
    print_links,
    print_summary,
    shares,
)

from lrkv_plan.calibration.fit import band
from lrkv_plan.calibration.samples import (
    GroupKey,
    KernelSamples,
    grouped_rows,
    read_rows,
    samples_of,
)
from lrkv_plan.calibration.selection import (
    MIN_CELL_POINTS,
    at_random,
    best_partition,
    by_context,
    by_head_configuration,
    judged,
)
from lrkv_plan.calibration.table_fit import AllReduceSamples, fit_allreduce, log_errors
from lrkv_plan.latency.all_reduce import DATASHEET_EFFICIENCY, DATASHEET_T0_S
from lrkv_plan.loader import load_hardware
from lrkv_plan.specs.hardware import AllReduceConstants, KernelConstants, with_block

PROFILES = Path(__file__).parent.parent / "hardware_profiles"
PROFILE_OF = {
    "a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200",
    "b300_sxm": "b300", "gb200": "gb200", "gb300": "gb300", "l40s": "l40s", "h20": "h20",
    "h800": "h800", "rtx_pro_6000_server": "rtx-pro-6000", "b60": "b60",
}  # fmt: skip
# The default kernel where several were measured: vLLM's newest, else SGLang's, else TensorRT-LLM's.
# FlashAttention 4 on Hopper does not split sequences; SGLang's fp8 MLA on Hopper is a known slow
# path and flagged, so TensorRT-LLM's stands there.
PREFERENCE = (
    "vllm/vllm_flash_attn_fa3", "vllm/vllm_flashinfer_trtllmdecode", "vllm/vllm_flash_attn",
    "vllm/vllm_flash_attn_fa2", "vllm/vllm_flashinfer_fidecode", "sglang/trtllm_mla",
    "sglang/flash_attention", "sglang/triton", "trtllm/default",
    "flashinfer/BatchDecodeWithPagedKVCache", "flashinfer/BatchMLAPagedAttention",
)  # fmt: skip
MIN_LINK_POINTS = 6
MAX_MESSAGE_BYTES = 16 * 2**20  # a decode step sums batch x width x 2 bytes
SOURCES = {"aiconfigurator-core": "aiconfigurator-core 0.12.0", "InferSim": "InferSim"}
FP8_REMARK = "phi is above 1: the kernel multiplies in fp8, phi refers to the bf16 peak"
CACHED_REMARK = "beta is above 1: the benchmark found part of the cache in L2"
TYPICAL_LINK = {"t0_s": DATASHEET_T0_S, "link_efficiency": DATASHEET_EFFICIENCY}
COMMENT = "written by scripts/fit_kernels.py; see lrkv_plan/latency/kernel.py"


def fit_group(item: tuple[GroupKey, list[dict[str, str]]]) -> GroupResult | None:
    """Fit and judge one group; None where its rows are too few."""
    key, rows = item
    profile = load_hardware(PROFILE_OF[key.gpu])
    samples = samples_of(
        rows, bandwidth=profile.mem_bandwidth_bytes_per_s, peak=profile.peak_flops_per_s["bf16"]
    )
    if len(samples) < MIN_CELL_POINTS:
        return None
    is_cold = key.regime == "cold"
    # An L2-hot call hardly reads memory: splitting its shapes further buys nothing.
    how = {"may_split": is_cold}
    schemes = {
        "heads": by_head_configuration(samples, 5, seed=1),
        "random": at_random(samples, 5, seed=1),
        "context": by_context(samples) if is_cold else [],
    }
    found = {s: judged(key.kernel, samples, folds, **how) for s, folds in schemes.items()}
    return GroupResult(
        key=key, samples=samples, families=np.array([r["family"] for r in rows]),
        cells=best_partition(key.kernel, samples, **how),
        errors={s: f[0] for s, f in found.items()}, inside={s: f[1] for s, f in found.items()},
        source=rows[0].get("source") or "aiconfigurator-core", version=rows[-1]["backend_version"],
    )  # fmt: skip


def entries_of(result: GroupResult, preferred: bool) -> Iterable[KernelConstants]:
    """The group's cells as profile entries; errors are those of the cell's held-out rows."""
    key = result.key
    for cell_fit in result.cells:
        fit, cell = cell_fit.fit, cell_fit.cell
        inside = cell.holds(result.samples)
        # With fewer head configurations than that, leaving one out leaves the cell empty.
        scheme = "heads" if n_configurations(result.samples.where(inside)) >= 4 else "random"
        median, p90 = shares(result.errors[scheme][inside])
        if not np.isfinite(median):  # too few rows to hold any out twice
            scheme = "random"
            median, p90 = shares(cell_fit.left_out)
        rounded = {name: float(f"{value:.4g}") for name, value in fit.constants.items()}
        low, high = cell_fit.band90
        yield KernelConstants(
            kernel=key.kernel, kv_dtype=key.kv_dtype, backend=key.backend,
            backend_version=None if result.version == "unstated" else result.version,
            form=fit.form, regime=key.regime, preferred=preferred, **rounded,
            query_heads_per_kv_head=cell.query_heads, head_dims=cell.head_dims,
            identified=fit.identified, n_points=fit.n_points,
            held_out_by="rows" if scheme == "random" else "heads",
            held_out_median_error=round(median, 4), held_out_p90_error=round(p90, 4),
            band90=(round(low, 4), round(high, 4)), source=SOURCES[result.source],
            licence="Apache-2.0", remark=remark_of(fit.constants),
        )  # fmt: skip


def remark_of(constants: dict[str, float]) -> str | None:
    """What a reader should know about constants above their datasheet figure."""
    remarks = [FP8_REMARK] if constants["phi"] > 1 else []
    if constants["beta"] > 1.02:
        remarks.append(CACHED_REMARK)
    return "; ".join(remarks) or None


def n_configurations(samples: KernelSamples) -> int:
    """Head configurations among the calls."""
    shapes = np.column_stack((samples.n_heads, samples.n_kv_heads, samples.head_dim))
    return len(np.unique(shapes, axis=0))


def preferred_backends(results: list[GroupResult]) -> set[tuple[str, str, str, str]]:
    """The default backend of every (GPU, kernel, storage format) with cold constants."""
    chosen: dict[tuple[str, str, str], str] = {}
    for key in (r.key for r in results if r.key.regime == "cold"):
        place = (key.gpu, key.kernel, key.kv_dtype)
        rank = {name: i for i, name in enumerate(PREFERENCE)}
        best = chosen.get(place)
        if best is None or rank.get(key.backend, 99) < rank.get(best, 99):
            chosen[place] = key.backend
    return {(*place, backend) for place, backend in chosen.items()}


# The kernel that each engine's decode graph holds.
ALLREDUCE_OF = {
    ("vllm", "vLLM_custom_graph"): "vllm/custom_graph",
    ("sglang", "SGLang_CustomAllReduce_graph"): "sglang/custom_graph",
    ("trtllm", "TRTLLM"): "trtllm/custom",
}


def fit_links(rows: list[dict[str, str]]) -> dict[str, list[AllReduceConstants]]:
    """All-reduce entries by GPU: each engine's own kernel, newest version; vLLM's first."""
    groups: dict[tuple[str, str, int], dict[str, list[dict[str, str]]]] = defaultdict(dict)
    order = list(ALLREDUCE_OF.values())
    for row in rows:
        size = float(row["message_bytes"])
        backend = ALLREDUCE_OF.get((row["library"], row["kernel"]))
        if backend is not None and size <= MAX_MESSAGE_BYTES:
            versions = groups[row["gpu"], backend, int(row["n_gpus"])]
            versions.setdefault(row["library_version"], []).append(row)
    entries: dict[str, list[AllReduceConstants]] = defaultdict(list)
    typical: list[np.ndarray] = []
    for (gpu, backend, n_gpus), versions in sorted(
        groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]), item[0][2])
    ):
        link = load_hardware(PROFILE_OF[gpu]).link if gpu in PROFILE_OF else None
        if link is None:
            continue
        version = max(versions, key=lambda v: [int(p) for p in re.findall(r"\d+", v)])
        if len(versions[version]) < MIN_LINK_POINTS:
            continue
        samples = AllReduceSamples(
            message_bytes=np.array([float(r["message_bytes"]) for r in versions[version]]),
            time_s=np.array([float(r["latency_us"]) * 1e-6 for r in versions[version]]),
            n_gpus=n_gpus, link_bytes_per_s=link.bandwidth_bytes_per_s,
        )  # fmt: skip
        fit = fit_allreduce(samples)
        typical.append(log_errors(samples, TYPICAL_LINK))
        median, p90 = shares(fit.left_out)
        low, high = band(fit.left_out)
        entries[gpu].append(
            AllReduceConstants(
                n_gpus=n_gpus,
                **{k: float(f"{v:.4g}") for k, v in fit.constants.items()},
                backend=backend,
                backend_version=version,
                max_message_bytes=MAX_MESSAGE_BYTES,
                identified=fit.identified,
                n_points=len(samples.time_s),
                held_out_median_error=round(median, 4),
                held_out_by="rows",
                held_out_p90_error=round(p90, 4),
                band90=(round(low, 4), round(high, 4)),
                source=SOURCES["aiconfigurator-core"],
                licence="Apache-2.0",
            )
        )
    if typical:
        low, high = band(np.concatenate(typical))
        print(f"\nall-reduce by datasheet with typical constants: 90 % in {low:.2f} to {high:.2f}")
    return entries


def main() -> int:
    """Fit, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "decode", type=Path, nargs="?", help="measured decode calls (.csv or .csv.gz)"
    )
    parser.add_argument("--allreduce", type=Path, help="measured all-reduces")
    parser.add_argument("--write", action="store_true", help="update hardware_profiles/")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.decode is None:
        links = fit_links(read_rows(arguments.allreduce, ("gpu",)))
        print_links(links)
        if arguments.write:
            write([], [], links)
        return 0
    groups = grouped_rows(read_rows(arguments.decode))
    items = [(k, r) for k, r in groups.items() if k.gpu in PROFILE_OF and k.regime != "transition"]
    with Pool(arguments.jobs) as pool:
        results = [r for r in pool.imap(fit_group, items, chunksize=1) if r is not None]
    chosen = preferred_backends(results)
    is_first = [
        (k.gpu, k.kernel, k.kv_dtype, k.backend) in chosen for k in (r.key for r in results)
    ]
    preferred = [r for r, first in zip(results, is_first, strict=True) if first]
    print_groups(results)
    for title, part in (("all backends", results), ("preferred backends", preferred)):
        for regime in ("cold", "l2_hot"):
            print_summary(f"{title}, {regime}", [r for r in part if r.key.regime == regime])
    print_datasheet([r for r in preferred if r.key.regime == "cold"])
    links = fit_links(read_rows(arguments.allreduce, ("gpu",))) if arguments.allreduce else {}
    print_links(links)
    if arguments.write:
        write(results, is_first, links)
    return 0


def write(
    results: list[GroupResult], is_first: list[bool], links: dict[str, list[AllReduceConstants]]
) -> None:
    """Replace the two blocks in every profile that has entries."""
    kernels: dict[str, list[KernelConstants]] = defaultdict(list)
    for result, first in zip(results, is_first, strict=True):
        kernels[result.key.gpu] += entries_of(result, first)
    for gpu, name in PROFILE_OF.items():
        path = PROFILES / f"{name}.yaml"
        text = path.read_text()
        found = sorted(kernels[gpu], key=lambda e: (e.kernel, e.kv_dtype, not e.preferred))
        if found:
            text = with_block(text, "kernels", found, COMMENT)
        if gpu in links:
            text = with_block(text, "allreduce", links[gpu], COMMENT)
        path.write_text(text)
        print(f"wrote {path.name}: {len(found)} kernel entries", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
