"""Of so many GPUs ``capacity`` takes the layout that serves most, as ``plan`` does."""

from __future__ import annotations

import pytest

import lrkv_plan
from lrkv_plan import load_hardware, load_model
from lrkv_plan.errors import PlanError
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import engine_named
from lrkv_plan.serving.layouts import layouts_on, ranked_layouts
from lrkv_plan.serving.load import LatencyTarget
from lrkv_plan.specs.deployment import EngineSettings, Parallelism

LLAMA, LARGE = "llama-3.1-8b", "llama-3.1-70b"


def test_eight_gpus_share_a_large_model() -> None:
    (row,) = lrkv_plan.capacity(LARGE, gpu="8xh100-sxm", context_tokens="32k").rows
    assert (row["tp_size"], row["total_sequences"]) == (8, 40)
    assert row["layout"] == "serves most sequences"
    assert row["other_layouts"] == ["TP 4 x 2: 26"]
    planned = lrkv_plan.plan(LARGE, gpu="8xh100-sxm", context_tokens="32k").rows[0]
    assert (planned["tp_size"], planned["total_sequences"]) == (8, 40)
    (both,) = lrkv_plan.capacity(LARGE, gpu="8xh100-sxm", context_tokens="32k", kv_dtype="fp8").rows
    assert both["total_sequences"] == 81


def test_a_stated_size_is_kept() -> None:
    (row,) = lrkv_plan.capacity(LARGE, gpu="8xh100-sxm", tp_size=4, context_tokens="32k").rows
    assert (row["tp_size"], row["n_gpus"], row["total_sequences"]) == (4, 8, 26)
    assert row["layout"] is None
    assert row["other_layouts"] == []


@pytest.mark.parametrize("target", [None, 0.02, 0.012])
def test_none_serves_more_than_the_first(target: float | None) -> None:
    model, gpu = load_model(LLAMA), load_hardware("h100-sxm")
    deployment = Deployment(
        engine=engine_named("vllm"), settings=EngineSettings(context_tokens=8192), hardware=gpu,
    )  # fmt: skip
    asked = {} if target is None else {"tpot_ms": 1e3 * target}
    key = "total_sequences" if target is None else "admitted_sequences"
    served = []
    for layout in ranked_layouts(model, deployment, 6, LatencyTarget(tpot_s=target)):
        used = layout.deployment
        (row,) = lrkv_plan.capacity(
            LLAMA, gpu=f"{used.n_gpus}xh100-sxm", tp_size=used.parallel.tp_size, **asked
        ).rows
        served.append(row[key])
    assert served == sorted(served, reverse=True)
    assert len(served) == 3  # TP 3 and 6 do not divide 32 heads; 1, 2 and 4 do


def test_idle_gpus_are_said() -> None:
    (row,) = lrkv_plan.capacity(LARGE, gpu="6xh100-sxm", context_tokens="32k").rows
    assert row["layout"] == "serves most sequences; 2 of 6 GPUs idle"
    assert row["n_gpus"] == 4


def test_where_nothing_fits_the_widest_that_runs_says_what_would() -> None:
    answer = lrkv_plan.capacity("llama-3.1-405b", gpu="2xh100-sxm")
    (row,) = answer.rows
    assert (row["tp_size"], row["total_sequences"]) == (2, 0)
    assert answer.verdict.startswith("Not one user of 8k tokens fits on 2 x H100 SXM at TP 2")


def test_other_kinds_of_parallelism_are_kept() -> None:
    model = load_model(LARGE)
    deployment = Deployment(
        engine=engine_named("vllm"), settings=EngineSettings(context_tokens=8192),
        hardware=load_hardware("h100-sxm"), parallel=Parallelism(pp_size=2), n_gpus=8,
    )  # fmt: skip
    layouts = layouts_on(deployment, 8)
    assert [one.parallel for one in layouts] == [
        Parallelism(tp_size=size, pp_size=2) for size in (1, 2, 4)
    ]
    (row,) = lrkv_plan.capacity(LARGE, gpu="8xh100-sxm", pp_size=2).rows
    best = ranked_layouts(model, deployment, 8, LatencyTarget())[0]
    assert (row["pp_size"], row["tp_size"]) == (2, best.deployment.parallel.tp_size)


def test_an_engine_without_tensor_parallelism_gets_replicas() -> None:
    (row,) = lrkv_plan.capacity(LLAMA, gpu="2xh100-sxm", engine="llama_cpp").rows
    assert (row["tp_size"], row["n_gpus"]) == (1, 2)


def test_a_gpu_without_a_link_is_not_timed_in_parallel() -> None:
    profile = {k: v for k, v in load_hardware("h100-sxm").model_dump().items()
               if k not in ("link", "allreduce")}  # fmt: skip
    (row,) = lrkv_plan.capacity(LLAMA, gpu=profile, n_gpus=2, tpot_ms=30).rows
    assert row["tp_size"] == 1
    with pytest.raises(PlanError, match="link"):
        lrkv_plan.capacity(LLAMA, gpu=profile, tp_size=2, tpot_ms=30)
