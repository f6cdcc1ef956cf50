from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.calibration.decode import paths
from lrkv_plan.calibration.decode.attend import (
    ScanMask,
    StepInputs,
    merge_partial,
)
from lrkv_plan.calibration.decode.cache import build_cache
from lrkv_plan.calibration.decode.exactness import random_case
from lrkv_plan.calibration.decode.paths import PATHS, paths_for, register_path
from lrkv_plan.calibration.decode.step import DecodeStep, build_step
from lrkv_plan.errors import PlacementError, UsageError

MQA = GroupedSpec(family="mqa", n_heads=6, head_dim=8)
MLA = LatentSpec(n_heads=4, latent_dim=32, rope_dim=4, nope_dim=8, v_head_dim=6)


def step_of(path: str, spec: Any, **given: Any) -> DecodeStep:
    return build_step(
        path, spec, **{"model_dim": 48, "batch_size": 2, "context_tokens": 20, **given}
    )


def test_rank_zero_is_grouped_attention() -> None:
    for groups in (1, 2, 6):
        spec = LowRankSpec(n_heads=6, head_dim=8, rank=0, n_shared_groups=groups)
        gqa = GroupedSpec(family="gqa", n_heads=6, n_kv_heads=groups, head_dim=8)
        low_rank, grouped = step_of("lrkv/factored", spec), step_of("grouped/plain", gqa)
        # The same rows: keys first and values second in both layouts, so the same random draws.
        assert torch.equal(low_rank.run(), grouped.run())
        assert low_rank.allocated_bytes == grouped.allocated_bytes


def test_absorbed_latent_attention_equals_materialised() -> None:
    absorbed, materialised = (
        step_of(path, MLA, context_tokens=[7, 20], query_tokens=2).run()
        for path in ("mla/absorbed", "mla/materialised")
    )
    assert torch.allclose(absorbed, materialised, atol=1e-6)


def test_a_padded_rank_gives_what_the_rank_gives() -> None:
    plain = step_of("lrkv/factored", LowRankSpec(n_heads=4, head_dim=8, rank=5))
    stored = step_of("lrkv/factored", LowRankSpec(n_heads=4, head_dim=8, rank=5, rank_alignment=8))
    for name, rows in plain.inputs.cache.tensors.items():
        stored.inputs.cache.tensors[name][..., : rows.shape[-1]] = rows
    assert torch.allclose(plain.run(), stored.run(), atol=1e-6)
    assert stored.allocated_bytes > plain.allocated_bytes


def test_running_twice_gives_the_same_and_leaves_the_first_result() -> None:
    for path in paths_for(MLA):
        step = step_of(path.name, MLA)
        first = step.run()
        kept = first.clone()
        assert torch.equal(step.run(), kept)
        assert torch.equal(first, kept)


@pytest.mark.parametrize("seed", range(40))
def test_parts_of_the_context_merge_to_the_whole(seed: int) -> None:
    """Shards of tokens, as context parallelism keeps them; the last one holds the new tokens."""
    case = dataclasses.replace(random_case(seed), contexts=(23, 23), page_tokens=None, tp_size=1)
    whole = case.step("fp32")
    first, second = (shard(whole, part) for part in (slice(0, 9), slice(9, 23)))
    parts = [whole.path.build(inputs).partial() for inputs in (first, second)]
    outputs, log_sums = zip(*parts, strict=True)
    merged = merge_partial(outputs, log_sums, whole.inputs.weights.get("sinks"))
    wanted = whole.reference()
    assert float((merged - wanted).abs().max() / wanted.abs().max()) < 1e-5


def shard(step: DecodeStep, tokens: slice) -> StepInputs:
    """The step's inputs with some of its tokens only."""
    inputs = step.inputs
    length, q = tokens.stop - tokens.start, inputs.query.shape[2]
    cache = build_cache(layout_of(inputs.spec, 64), capacity_tokens=[length] * 2)
    cache.append({name: inputs.cache.rows(name)[:, :, tokens] for name in cache.cached})
    is_last = tokens.stop == max(inputs.cache.lengths)
    mask = ScanMask([length] * 2, q, torch.device("cpu"), new_tokens=q if is_last else 0)
    positions = inputs.positions[:, tokens]
    return dataclasses.replace(inputs, cache=cache, mask=mask, positions=positions)


def test_each_query_sees_rows_up_to_its_own() -> None:
    mask = ScanMask([5, 3], 2, torch.device("cpu"))
    assert mask.visible.tolist() == [[4, 5], [2, 3]]
    scores = torch.zeros(2, 1, 2, 5)
    mask.apply_(scores)
    hidden = torch.isinf(scores)[:, 0].int().tolist()
    assert hidden == [
        [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
        [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]],
    ]


def test_gpus_together_give_the_heads_of_one() -> None:
    """Two GPUs with the copies and weights of their heads compute those heads."""
    spec = LowRankSpec(n_heads=4, head_dim=8, rank=3, n_shared_groups=2)
    whole = step_of("lrkv/factored", spec)
    for gpu in (0, 1):
        part = step_of("lrkv/factored", spec, tp_size=2)
        heads = slice(2 * gpu, 2 * gpu + 2)
        for name, tensor in part.inputs.cache.tensors.items():
            n = tensor.shape[1]
            tensor.copy_(whole.inputs.cache.tensors[name][:, n * gpu : n * (gpu + 1)])
        inputs = dataclasses.replace(
            part.inputs,
            query=whole.inputs.query[:, heads],
            weights={name: w[heads] for name, w in whole.inputs.weights.items()},
        )
        outputs = part.path.build(inputs).run()
        assert torch.allclose(outputs, whole.run()[:, heads], atol=1e-6)


def test_predicted_work_of_a_factored_step() -> None:
    spec = LowRankSpec(n_heads=18, head_dim=128, rank=55)
    step = step_of("lrkv/factored", spec, dtype="bf16", model_dim=2304)
    # 40 rows of 2 (128 + 18 * 55) scalars in 2 bytes
    assert step.read_bytes == 40 * 2_236 * 2
    # Per sequence and head 2 * 20 (128 + 55) scanned and 2 * 55 * 128 mapped multiply-adds
    assert step.flops == 2 * 18 * 2 * (2 * 20 * (128 + 55) + 2 * 55 * 128)
    assert step.weight_bytes == 2 * 18 * 55 * 128 * 2
    assert step.work_units == 2 * 18


def test_every_path_names_work_of_its_layout() -> None:
    for seed in range(60):
        spec = random_case(seed).spec
        layout = layout_of(spec, 64)
        for path in paths_for(spec):
            assert path.work(layout).kernel == path.kernel


def test_a_new_family_adds_its_path_with_one_call() -> None:
    class DoubledSpec(GroupedSpec):
        """Attention whose outputs are doubled."""

    class Doubled(paths.GroupedAttention):
        def mix(self, shares: torch.Tensor) -> torch.Tensor:
            return 2 * super().mix(shares)

    grouped = PATHS["grouped/plain"]
    own = dataclasses.replace(
        grouped, name="doubled/plain", applies=lambda s: isinstance(s, DoubledSpec), build=Doubled
    )
    register_path(own)
    try:
        spec = DoubledSpec(family="mqa", n_heads=6, head_dim=8)
        assert "doubled/plain" in {p.name for p in paths_for(spec)}
        assert torch.equal(
            step_of("doubled/plain", spec).run(), 2 * step_of("grouped/plain", MQA).run()
        )
    finally:
        del PATHS["doubled/plain"]


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        ("lrkv/factord", {}, "grouped/plain"),
        ("lrkv/factored", {}, "cannot run mqa"),
        ("grouped/plain", {"context_tokens": 1, "query_tokens": 2}, "at least that many"),
        ("grouped/plain", {"context_tokens": [4, 5, 6]}, "one context per sequence"),
        ("grouped/plain", {"context_tokens": 0}, "from 1 on"),
        ("grouped/plain", {"page_tokens": 0}, "from 1 on"),
        ("grouped/plain", {"batch_size": 0}, "from 1 on"),
        ("grouped/plain", {"dtype": "fp8"}, "fp32, bf16, fp16"),
        ("grouped/plain", {"device": "gpu"}, "auto, cpu, cuda"),
    ],
)
def test_bad_steps_are_refused_in_one_line(path: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        step_of(path, MQA, **given)


def test_heads_that_cannot_be_dealt_out_are_refused() -> None:
    with pytest.raises(PlacementError, match="6 query heads"):
        step_of("grouped/plain", MQA, tp_size=4)


def test_an_odd_head_dim_cannot_be_rotated() -> None:
    spec = LowRankSpec(n_heads=2, head_dim=7, rank=2, position="rope_expand")
    with pytest.raises(UsageError, match="head_dim 7 is odd"):
        step_of("lrkv/rope_expand", spec)
