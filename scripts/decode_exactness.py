"""Largest error of every decode path against float64, as tables (CSV and markdown).

Random designs by path and format, the hard steps one by one, what cancellation costs, and how far a
rotation leaves the span of a generic basis. Usage: decode_exactness.py OUTPUT_DIR [--cases 500]
[--device cpu]
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.calibration.decode.exactness import Case, hard_cases, random_case, relative_error
from lrkv_plan.calibration.decode.rotary import angles, frequencies, rotation_pull_error
from lrkv_plan.calibration.decode.weights import drawing, low_rank_weights
from lrkv_plan.calibration.torch_gate import resolve_device
from lrkv_plan.errors import PlanError

LIMITS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
Row = dict[str, Any]


def by_path(n_cases: int, device: str) -> list[Row]:
    """Per path and format: designs run, median and largest error, bytes that disagree."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    unequal: dict[tuple[str, str], int] = defaultdict(int)
    for seed in range(n_cases):
        case = random_case(seed)
        for dtype in LIMITS:
            step = case.step(dtype, device)
            errors[case.path, dtype].append(relative_error(step))
            unequal[case.path, dtype] += step.allocated_bytes != step.predicted_bytes
    return [
        {
            "path": path, "dtype": dtype, "n_designs": len(found),
            "median_error": statistics.median(found), "max_error": max(found),
            "limit": LIMITS[dtype], "n_bytes_not_as_predicted": unequal[path, dtype],
        }
        for (path, dtype), found in sorted(errors.items())
    ]  # fmt: skip


def by_hard_case(device: str) -> list[Row]:
    """Per hard step its error in each format."""
    return [
        {"case": case.label, "path": case.path, "design": case.spec.label()}
        | {f"error_{dtype}": case.error(dtype, device) for dtype in LIMITS}
        for case in hard_cases()
    ]


def by_cancellation(device: str) -> list[Row]:
    """fp32 error where shared and private key terms are ``ratio`` times their sum."""
    spec = LowRankSpec(n_heads=6, head_dim=16, rank=5, n_shared_groups=6)
    rows = []
    for ratio in (1.0, 10.0, 100.0, 1_000.0, 10_000.0):
        row: Row = {"ratio": ratio}
        for path in ("lrkv/factored", "lrkv/materialised"):
            found = [
                Case(
                    label="", path=path, spec=spec, contexts=(33,), cancelling=ratio, seed=seed
                ).error("fp32", device)
                for seed in range(20)
            ]
            row[f"max_error_{path.partition('/')[2]}"] = max(found)
        rows.append(row)
    return rows


def by_rotation() -> list[Row]:
    """Part of B^T D_j that no rank-space map can give, for d_h 128, by rank and position."""
    rows = []
    for rank in (2, 16, 32, 56, 64, 96, 120, 128):
        spec = LowRankSpec(
            n_heads=1, head_dim=128, rank=rank, position="rope_rank",
            basis_spans_rotary_planes=True,
        )  # fmt: skip
        planes = low_rank_weights(spec, layout_of(spec, 128), 1, drawing(0))["key_basis"][0]
        generic = drawing(0)(128, rank)
        row: Row = {"rank": rank}
        for position in (1, 16, 1024):
            turned = angles(torch.tensor(position), frequencies(128))
            row[f"generic_at_{position}"] = rotation_pull_error(generic, turned)
            row[f"planes_at_{position}"] = rotation_pull_error(planes, turned)
        rows.append(row)
    return rows


def write(folder: Path, name: str, title: str, rows: list[Row]) -> str:
    """One CSV in full precision; returns the same rows as a markdown section."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0])]
    for row in rows:
        cells = (f"{v:.2g}" if isinstance(v, float) else str(v) for v in row.values())
        lines.append(" | ".join(cells))
    return f"## {title}\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n"


def main() -> int:
    """Write the tables; exit 1 if a random design or a hard step is beyond its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    try:
        device = str(resolve_device(given.device))
    except PlanError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    given.output.mkdir(parents=True, exist_ok=True)
    paths, hard = by_path(given.cases, device), by_hard_case(device)
    sections = [
        write(given.output, "paths", f"{given.cases} random designs", paths),
        write(given.output, "hard-steps", "Hard steps", hard),
        write(given.output, "cancellation", "Opposed key terms, fp32", by_cancellation(device)),
        write(given.output, "rotation", "Rotation through a rank-space map", by_rotation()),
    ]
    where = f"{device}, torch {torch.__version__}, {platform.machine()}"
    head = (
        f"# Decode paths against float64\n\nMeasured on {where}. Errors are the largest difference "
        "over the largest output of a step, from the same cached rows and weights.\n"
    )
    (given.output / "exactness.md").write_text("\n".join([head, *sections]))
    beyond = [row for row in paths if not row["max_error"] <= row["limit"]]
    beyond += [row for row in hard if not all(row[f"error_{d}"] <= LIMITS[d] for d in LIMITS)]
    wrong = sum(row["n_bytes_not_as_predicted"] for row in paths)
    print(f"wrote {given.output}: {len(beyond)} beyond their limit, {wrong} with other bytes")
    return int(bool(beyond or wrong))


if __name__ == "__main__":
    sys.exit(main())
