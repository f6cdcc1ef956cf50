"""llama.cpp keeps recurrent state in fp32 whatever format the file states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lrkv_plan.huggingface import import_config
from lrkv_plan.serving.engines.llama_cpp import kept_kinds
from lrkv_plan.specs.deployment import EngineName, EngineSettings

GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 40,
    "num_attention_heads": 12, "num_key_value_heads": 4, "mamba_n_heads": 48, "mamba_d_head": 64,
    "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_n_groups": 1, "vocab_size": 100352,
    "layer_types": (["mamba"] * 9 + ["attention"]) * 4,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "model_type": "mamba", "hidden_size": 2048, "num_hidden_layers": 48, "vocab_size": 50280,
    "intermediate_size": 4096, "state_size": 16, "conv_kernel": 4,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("config", "state_bytes"),
    [
        # 36 layers x (48 heads x 64 x 128 + 3 columns x (48 x 64 + 2 x 128)) x 4 bytes
        (GRANITE, 36 * (48 * 64 * 128 + 3 * (3072 + 256)) * 4),
        # 48 layers x 4,096 channels x (16 + 3) x 4 bytes = 14.25 MiB
        (MAMBA, 48 * 4096 * 19 * 4),
    ],
    ids=["granite-4.0-h-tiny", "mamba-1.4b"],
)
def test_state_takes_four_bytes_a_scalar(
    config: dict[str, Any], state_bytes: int, dtype: str | None
) -> None:
    model = import_config({**config, "torch_dtype": dtype}, Path("m.json"))
    kinds = kept_kinds(model, EngineSettings(context_tokens=4096), EngineName(name="llama_cpp"))
    assert sum(kind.count * kind.fixed_bytes for kind in kinds) == state_bytes
