"""What ``report`` and ``explore`` are asked for, from the options that both take."""

from collections.abc import Mapping
from typing import Any

from lrkv_plan import words
from lrkv_plan.cli.options import load
from lrkv_plan.questions.arguments import (
    asked_designs,
    context_of,
    deployment_of,
    latency_target,
    refuse_beside_pool,
)
from lrkv_plan.questions.gpus import without_count
from lrkv_plan.report.request import ReportRequest
from lrkv_plan.specs.design import typed_designs

# Options that a section's command line repeats only where they differ from these.
_DEFAULTS = {
    "context_tokens": None, "n_gpus": None, "tp_size": None, "budget": None, "batch_size": None,
    "tpot_ms": None, "speculative_tokens": "1", "accepted_tokens": "1", "engine": "vllm",
    "kv_dtype": "bf16", "weight_dtype": None, "weights": None, "utilisation": None,
    "kv_memory": None, "align": "16", "gpu_hour_usd": None, "spec_dir": None,
}  # fmt: skip


def report_request(told: Mapping[str, Any]) -> ReportRequest:
    """The request that a command's parameters, by name, describe.

    Raises
    ------
    SpecError, UsageError
        If one names nothing, cannot be read or cannot be honoured.
    """
    model, gpu, spec_dir, tp_size = (told[n] for n in ("model", "gpu", "spec_dir", "tp_size"))
    refuse_beside_pool(told["kv_memory"], utilisation=told["utilisation"])
    spec = load(model, spec_dir)
    placed = {
        name: told[name]
        for name in (
            "engine", "kv_dtype", "n_gpus", "weight_dtype", "weights", "utilisation", "kv_memory",
            "align", "gpu_hour_usd", "spec_dir",
        )
    }  # fmt: skip
    deployment = deployment_of(
        model, spec, gpu=gpu, context_tokens=context_of(told["context_tokens"], spec),
        tp_size=words.count("tp_size", words.given(tp_size, "1")), **placed,
    )  # fmt: skip
    settled = {**told, "n_gpus": deployment.n_gpus}  # of --gpu 8xh100-sxm too
    return ReportRequest(
        model=spec,
        deployment=deployment,
        model_text=model,
        gpu_text=without_count(gpu, spec_dir=spec_dir),
        options={
            f"--{name.replace('_', '-')}": str(settled[name])
            for name, default in _DEFAULTS.items()
            if settled[name] != default
        },
        budget=told["budget"],
        batch_size=words.optional(words.count, "batch_size", told["batch_size"]),
        designs=typed_designs(spec, asked_designs(told["attention"])),
        target=latency_target(
            told["tpot_ms"],
            told["speculative_tokens"],
            told["accepted_tokens"],
            spec_dir,
            [deployment.hardware],
        ),
        is_layout_stated=tp_size is not None,
    )
