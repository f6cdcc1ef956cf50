"""Seconds and peak memory of ``lrkv-plan inspect`` on a 7B-sized layer set of random weights.

32 layers, 32 heads of 128, width 4,096, bf16: 3.2 GB in a temporary folder. Run by hand:
``OMP_NUM_THREADS=2 python benchmarks/inspect_7b.py [layers]``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WIDTH, N_HEADS, HEAD_DIM = 4096, 32, 128


def write_layer(path: Path, layer: int, rng: np.random.Generator) -> list[str]:
    """One shard of bf16 weights, which numpy lacks: the upper halves of float32."""
    names = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"]
    size = 2 * WIDTH * WIDTH
    header = {
        name: {"dtype": "BF16", "shape": [WIDTH, WIDTH], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in names:
            values = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(64)
            file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
    return names


def write_checkpoint(folder: Path, n_layers: int) -> None:
    """config.json, an index, and one shard a layer."""
    rng, places = np.random.default_rng(0), {}
    for layer in range(n_layers):
        shard = f"model-{layer:05d}.safetensors"
        places |= dict.fromkeys(write_layer(folder / shard, layer, rng), shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config = {
        "model_type": "llama", "hidden_size": WIDTH, "num_hidden_layers": n_layers,
        "num_attention_heads": N_HEADS, "intermediate_size": 11008,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def main() -> None:
    """Write, inspect, and say what it took."""
    n_layers = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder, n_layers)
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "lrkv_plan", "inspect", name, "--budget", "50%",
             "--plot", str(folder / "spectra.png")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(done.stdout)
    print(
        f"{n_layers} layers: {seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor "
        f"time, peak {used.ru_maxrss / 1e6:.2f} GB"
    )


if __name__ == "__main__":
    main()
