"""Write tests/golden/default_totals.yaml from an installed Hugging Face transformers.

`pip install transformers` first; models are made on torch's meta device, so nothing is downloaded.
Types whose count differs are told on stderr: rows for the table of types, or for a look at it.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers  # type: ignore[import-not-found]
import yaml
from transformers.models.auto import modeling_auto  # type: ignore[import-not-found]
from transformers.models.auto.configuration_auto import (  # type: ignore[import-not-found]
    CONFIG_MAPPING,
)

from lrkv_plan.errors import PlanError
from lrkv_plan.huggingface import import_config
from lrkv_plan.huggingface.model_types import is_known
from lrkv_plan.huggingface.unread import NEITHER, NEITHER_PATTERNS
from lrkv_plan.memory.weights import parameter_count

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "default_totals.yaml"
HEAD = """\
# Parameters of the default configuration of each model type, counted on the meta device: the sum of
# numel() over the parameters that Hugging Face transformers {version} makes, and over the routers'
# score corrections, which it keeps as buffers. config: what decides the count. {{times: 3, of: x}}
# stands for x three times.
"""
# Of no consequence for cache and weights, whatever the type.
DULL = (
    "id2label", "label2id", "transformers_version", "_name_or_path", "architectures", "dtype",
    "return_dict", "output_attentions", "output_hidden_states", "chunk_size_feed_forward",
    "problem_type", "is_encoder_decoder", "use_cache",
)  # fmt: skip


def counted(name: str) -> tuple[int, dict[str, Any]] | None:
    """Parameters and configuration of a type's default model; None where it makes none."""
    classes = (
        (modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "AutoModelForImageTextToText"),
        (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "AutoModelForCausalLM"),
    )
    made = next((cls for names, cls in classes if name in names), None)
    if made is None:
        return None
    config = CONFIG_MAPPING[name]()
    with torch.device("meta"):
        model = getattr(transformers, made).from_config(config)
    model.tie_weights()
    corrections = (b.numel() for k, b in model.named_buffers() if k.endswith("correction_bias"))
    total = sum(p.numel() for p in model.parameters()) + sum(corrections)
    return total, json.loads(config.to_json_string(use_diff=False))


def trimmed(config: dict[str, Any], total: int, name: str) -> dict[str, Any]:
    """The configuration without keys that change nothing, where its count stays."""
    less = {
        key: trimmed(value, -1, name) if key == "text_config" else value
        for key, value in config.items()
        if key in ("model_type", "dtype", "vision_config", "audio_config")
        or not (key in NEITHER or NEITHER_PATTERNS.fullmatch(key))
    }  # fmt: skip
    if total < 0:
        return less
    ours = parameter_count(import_config(less, Path(f"{name}.json"))).model_params
    return less if ours == total else config


def written(value: Any) -> Any:
    """The same with repeated entries of lists counted, and nothing that is dull or null."""
    if isinstance(value, dict):
        kept = {k: written(v) for k, v in value.items() if k not in DULL}
        return {k: v for k, v in kept.items() if v is not None and v not in ({}, [])}
    if not isinstance(value, list):
        return value
    runs = [(one, len(list(same))) for one, same in itertools.groupby(value)]
    return [one if n == 1 else {"times": n, "of": one} for one, n in runs]


def main() -> None:
    """Count every type that the table knows, and write those that agree."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    lines = [HEAD.format(version=transformers.__version__)]
    for name in sorted(CONFIG_MAPPING):
        try:
            found = counted(name) if is_known(name) else None
            if found is None:
                continue
            total, config = found
            ours = parameter_count(import_config(config, Path(f"{name}.json"))).model_params
        except (PlanError, TypeError, ValueError, AttributeError, ImportError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if ours != total:
            print(f"{name}: {ours} here, {total} there", file=sys.stderr)
            continue
        config = trimmed(config, total, name)
        text = yaml.safe_dump(written(config), default_flow_style=True, width=10**9)
        lines.append(f"- type: {name}\n  params: {total}\n  config: {text.strip()}\n")
    GOLDEN.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
