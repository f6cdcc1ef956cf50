"""Compile the fused LRKV kernels for a CUDA GPU without one, and say what they take.

    python scripts/compile_fused_low_rank.py [--rank 55 64] [--heads 18] [--capability 90] ...

Prints JSON: registers, spills, shared memory and instruction counts of both kernels. Needs triton,
which brings ptxas and cuobjdump.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lrkv_plan.calibration import triton_low_rank, triton_merge
from lrkv_plan.calibration.decode.fused_low_rank import Tiling, block_constants, block_side, tiling

POINTERS = {"visible": "*i32", "page_table": "*i32"}
FP32 = {"outputs", "log_sums", "total_out"}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compiled(kernel: Any, constants: dict[str, Any], dtype: str, options: Tiling, sm: int) -> Any:
    """The kernel as its launch would compile it: aligned pointers and slots of 16 tokens."""
    names = kernel.arg_names
    signature: dict[str, str] = {}
    for name in names:
        kind = "i32" if name.startswith(("n_", "slot_", "table_")) else f"*{dtype}"
        kind = "fp32" if name == "score_scale" else "*fp32" if name in FP32 else kind
        signature[name] = "constexpr" if name in constants else POINTERS.get(name, kind)
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if signature[name].startswith("*") or name == "slot_tokens"
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    return triton.compile(
        ASTSource(kernel, signature, values, attributes),
        target=GPUTarget("cuda", sm, 32),
        options={"num_warps": options.warps, "num_stages": options.stages},
    )


def figures(binary: Any) -> dict[str, int]:
    """What cuobjdump reads from the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run(  # noqa: S603 - the tool that came with triton
                [str(TOOLS / "cuobjdump"), option, file.name],
                capture_output=True, text=True, check=True,
            ).stdout
            for option in ("-res-usage", "-sass")
        )  # fmt: skip
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise SystemExit(f"cuobjdump -res-usage printed no registers: {usage[:200]}")
    names = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_]+)", code, re.MULTILINE)
    count = Counter(names)
    return {
        "registers": int(found[1]),
        "spill_bytes": int(found[2]),
        "shared_bytes": binary.metadata.shared,
        "instructions": len(names),
        "tensor_core_instructions": count["HMMA"] + count["HGMMA"],
        "async_copies": count["LDGSTS"],
        "global_loads": count["LDG"],
        "shuffles": count["SHFL"],
        "barriers": count["BAR"],
    }


def main() -> None:
    """Compile both kernels for one shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in (
        ("heads", 18), ("groups", 1), ("head-dim", 128), ("query-tokens", 1),
        ("rope-dim", 0), ("heads-per-tile", 0), ("capability", 90),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rank", type=int, nargs="+", default=[55])
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--paged", action="store_true")
    parser.add_argument("--key-scale", action="store_true")
    asked = parser.parse_args()
    cut = tiling(
        n_heads=asked.heads, n_groups=asked.groups, n_query=asked.query_tokens, batch_size=8,
        longest=32768, n_processors=132, itemsize=4 if asked.dtype == "fp32" else 2,
        paged=asked.paged,
        heads_per_tile=asked.heads_per_tile or None,
    )  # fmt: skip
    rows = []
    for rank in asked.rank:
        widths = {"shared_key": asked.head_dim, "shared_value": asked.head_dim}
        widths |= {"private_key": rank, "private_value": rank, "rope_key": asked.rope_dim}
        widths |= {"key_scale": 1} if asked.key_scale else {}
        decode = block_constants(widths, cut, n_query=asked.query_tokens, paged=asked.paged)
        merge = {n: decode[n] for n in triton_merge.merge_parts.arg_names if n in decode}
        merge["PARTS_BLOCK"] = block_side(cut.n_parts)
        kernels = ((triton_low_rank.decode_parts, decode), (triton_merge.merge_parts, merge))
        for kernel, constants in kernels:
            binary = compiled(kernel, constants, asked.dtype, cut, asked.capability)
            rows.append({"kernel": kernel.__name__, "rank": rank, **figures(binary)})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
