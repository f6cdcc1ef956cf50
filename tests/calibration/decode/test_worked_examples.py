"""Small numbers that can be checked by hand (review of arXiv:2601.11471v3, sections 2, 3 and 8)."""

from __future__ import annotations

import dataclasses
import math

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.calibration.decode.attend import merge_partial
from lrkv_plan.calibration.decode.rotary import (
    angles,
    frequencies,
    rotate,
    rotation_pull_error,
    unrotate,
)
from lrkv_plan.calibration.decode.step import DecodeStep, build_step
from lrkv_plan.calibration.decode.weights import drawing, low_rank_weights

QUARTER_TURN = torch.tensor([math.pi / 2])


def hand_step(path: str, context_tokens: int) -> DecodeStep:
    """One head of width 2 and rank 1 whose rows a test sets."""
    spec = LowRankSpec(n_heads=1, head_dim=2, rank=1)
    step = build_step(path, spec, model_dim=4, batch_size=1, context_tokens=context_tokens)
    for tensor in step.inputs.cache.tensors.values():
        tensor.zero_()
    step.inputs.weights["key_basis"].copy_(torch.tensor([[[1.0], [-1.0]]]))
    step.inputs.weights["value_basis"].copy_(torch.tensor([[[1.0, -1.0]]]))
    return step


def with_query(step: DecodeStep, *query: float) -> DecodeStep:
    inputs = dataclasses.replace(step.inputs, query=torch.tensor([[[list(query)]]]))
    return dataclasses.replace(step, inputs=inputs, attention=step.path.build(inputs))


@pytest.mark.parametrize("path", ["lrkv/factored", "lrkv/materialised"])
def test_shared_and_private_scores_five_and_four_make_nine(path: str) -> None:
    step = hand_step(path, context_tokens=1)
    rows = step.inputs.cache.tensors
    rows["shared_key"][0, 0, 0] = torch.tensor([1.0, 3.0])
    rows["private_key"][0, 0, 0] = 4.0
    # Key (1,3) + 4 (1,-1) = (5,-1); (2,1).(5,-1) = 9 = (2,1).(1,3) + (2,1).(1,-1) * 4 = 5 + 4.
    # The log-sum-exp of one score is that score, scaled by 1/sqrt(2).
    _, log_sums = with_query(step, 2.0, 1.0).partial()
    assert log_sums.item() == pytest.approx(9 / math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize("path", ["lrkv/factored", "lrkv/materialised"])
def test_private_values_two_and_six_contribute_five_times_the_column(path: str) -> None:
    step = hand_step(path, context_tokens=2)
    rows = step.inputs.cache.tensors
    # Scores 0 and ln 3 give weights 1/4 and 3/4.
    rows["shared_key"][0, 0, 1, 0] = math.log(3) * math.sqrt(2)
    rows["private_value"][0, 0, :, 0] = torch.tensor([2.0, 6.0])
    # 2/4 + 6 * 3/4 = 5, times (1,-1).
    outputs = with_query(step, 1.0, 0.0).run().flatten()
    assert outputs.tolist() == pytest.approx([5.0, -5.0], rel=1e-6)


@pytest.mark.parametrize("path", ["lrkv/factored", "lrkv/materialised"])
def test_opposite_branches_sum_to_uniform_weights(path: str) -> None:
    step = hand_step(path, context_tokens=2)
    rows = step.inputs.cache.tensors
    # With query (1, 0): shared logits (2, 0), private logits (0, 2), times sqrt(2) for the scale.
    rows["shared_key"][0, 0, 0, 0] = 2 * math.sqrt(2)
    rows["private_key"][0, 0, 1, 0] = 2 * math.sqrt(2)
    rows["shared_value"][0, 0] = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    outputs = with_query(step, 1.0, 0.0).run().flatten()
    assert outputs.tolist() == pytest.approx([0.5, 0.5], rel=1e-6)
    # Each branch softmaxed for itself puts e^2 / (e^2 + 1) = 0.88 on one token.
    alone = torch.softmax(torch.tensor([2.0, 0.0]), dim=0)
    assert alone[0].item() == pytest.approx(0.8808, abs=1e-4)


def test_branches_normalised_separately_change_the_direction_of_the_key() -> None:
    shared, private = torch.tensor([3.0, 4.0]), torch.tensor([0.0, -4.0])
    joint = shared + private  # (3, 0): along the first axis
    apart = shared / shared.norm() + private / private.norm()  # (0.6, 0.8 - 1)
    assert (joint / joint.norm()).tolist() == [1.0, 0.0]
    assert apart.tolist() == pytest.approx([0.6, -0.2])


def test_quarter_turn_leaves_the_span_of_a_rank_one_basis() -> None:
    basis, latent = torch.tensor([[1.0], [0.0]]), 1.0
    true_key = rotate(latent * basis.T, QUARTER_TURN)
    assert true_key[0].tolist() == pytest.approx([0.0, 1.0], abs=1e-7)
    # Against a query on the second axis the true score is 1; any scalar on the latent gives 0.
    query = torch.tensor([0.0, 1.0])
    assert (query @ true_key[0]).item() == pytest.approx(1.0)
    for scalar in (-1.0, 0.0, 1.0, 7.0):
        assert (query @ (scalar * latent * basis[:, 0])).item() == 0.0
    assert rotation_pull_error(basis, QUARTER_TURN) == pytest.approx(1.0)


def test_rotation_pulls_through_a_basis_of_whole_planes_only() -> None:
    spec = LowRankSpec(
        n_heads=3, head_dim=16, rank=6, position="rope_rank", basis_spans_rotary_planes=True
    )
    turned = angles(torch.tensor(11), frequencies(16))
    planes = low_rank_weights(spec, layout_of(spec, 32), 3, drawing(0))["key_basis"]
    generic = drawing(0)(3, 16, 6)
    for head in range(3):
        assert rotation_pull_error(planes[head], turned) < 1e-12
        assert rotation_pull_error(generic[head], turned) > 0.1
    # A basis of the full width spans everything.
    assert rotation_pull_error(drawing(0)(16, 16), turned) < 1e-12


def test_rotation_keeps_lengths_and_is_undone_by_its_inverse() -> None:
    rows = drawing(1)(5, 8).double()
    turned = angles(torch.tensor([0, 1, 2, 70_000, 3]), frequencies(8))
    assert torch.allclose(rotate(rows, turned).norm(dim=1), rows.norm(dim=1))
    assert torch.allclose(unrotate(rotate(rows, turned), turned), rows)
    assert torch.equal(rotate(rows, turned)[0], rows[0])  # position 0 turns nothing


def test_scores_depend_on_the_distance_of_positions_only() -> None:
    query, key = drawing(2)(2, 8).double()
    speed = frequencies(8)

    def score(at_query: int, at_key: int) -> float:
        turned = [angles(torch.tensor(p), speed) for p in (at_query, at_key)]
        return float(rotate(query, turned[0]) @ rotate(key, turned[1]))

    assert score(105, 100) == pytest.approx(score(5, 0), rel=1e-9)
    assert score(105, 100) != pytest.approx(score(6, 0), rel=1e-3)


def test_parts_merge_by_their_denominators() -> None:
    # Scores (0), (ln 3): values 4 and 8 get weights 1/4 and 3/4, so 4/4 + 8 * 3/4 = 7.
    outputs = [torch.full((1, 1, 1, 1), 4.0), torch.full((1, 1, 1, 1), 8.0)]
    log_sums = [torch.zeros(1, 1, 1), torch.full((1, 1, 1), math.log(3))]
    assert merge_partial(outputs, log_sums).item() == pytest.approx(7.0)
    # A sink of ln 4 doubles the denominator, 1 + 3 + 4.
    sinks = torch.tensor([math.log(4)])
    assert merge_partial(outputs, log_sums, sinks).item() == pytest.approx(3.5)
