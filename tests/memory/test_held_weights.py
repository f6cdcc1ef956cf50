"""Weights beside attention and feed-forward: shares of tensor parallelism, parts, the pass by hand."""

from __future__ import annotations

from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.latency.step import step_model, step_time
from lrkv_plan.latency.weights_pass import weights_pass
from lrkv_plan.latency.work import recurrent_work
from lrkv_plan.memory.weights import parameter_count, weight_bytes_per_gpu
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import make_model

GQA = {"family": "gqa", "n_heads": 8, "n_kv_heads": 2, "head_dim": 16}
NONE = {"kind": "none"}
STATED = {
    "model_dim": 64, "vocab_size": 100, "tied_embeddings": True,
    "norms": {"per_mixer": 1, "per_feed_forward": 0},
}  # fmt: skip
STATE = [
    {"name": "recurrent", "bytes_per_copy": 1024, "copies": 4},
    {"name": "conv", "bytes_per_copy": 96, "copies": 4, "bytes_per_draft_token": 32},
]
MIXER = [
    {"name": "in", "rows": 64, "cols": 256, "units": 4, "reads": "hidden"},
    {"name": "beta", "rows": 64, "cols": 4, "units": 4, "reads": "hidden", "plain": True},
    {"name": "conv", "rows": 128, "cols": 4, "units": 4, "plain": True},
    {"name": "norm", "rows": 32},
    {"name": "output", "rows": 128, "cols": 64, "units": 4, "reads": "heads"},
]


def hybrid(layers: list[dict[str, Any]] | None = None, **changes: Any) -> ModelSpec:
    """Three recurrent layers and one that attends, whose index is whole on every GPU."""
    layers = layers or [
        {
            "count": 3, "state": STATE, "weights": MIXER, "update": "gated_delta",
            "feed_forward": NONE,
        },
        {
            "count": 1, "attention": GQA, "feed_forward": NONE,
            "weights": [{"name": "index", "rows": 64, "cols": 8, "part": "index"}],
        },
    ]  # fmt: skip
    return make_model(GQA, layers=layers, **{**STATED, **changes})


def test_mixers_stay_in_16_bit_where_checkpoints_keep_them() -> None:
    """Three mixers of 16,384 + 8,192 scalars: one byte each in fp8 with a scale an output."""
    one = Parallelism()
    fp8 = weight_bytes_per_gpu(hybrid(), parallel=one, weight_dtype="fp8").fullest.recurrent
    plain = 2 * (64 * 4 + 128 * 4 + 32)
    assert fp8 == 3 * (16_384 + 4 * 256 + 8192 + 4 * 64 + plain)
    nvfp4 = weight_bytes_per_gpu(hybrid(), parallel=one, weight_dtype="nvfp4").fullest.recurrent
    assert nvfp4 == 3 * (2 * (16_384 + 8192) + plain)
    held = hybrid(quantised_parts={"nvfp4": ["mixers"]})
    quantised = weight_bytes_per_gpu(held, parallel=one, weight_dtype="nvfp4").fullest.recurrent
    assert quantised == 3 * ((16_384 + 8192) * 9 // 16 + plain)


def test_parts_by_hand() -> None:
    counted = parameter_count(hybrid())
    # 64 x 256 + 64 x 4 + 128 x 4 + 32 + 128 x 64
    assert counted.recurrent_params == 3 * (16_384 + 256 + 512 + 32 + 8192)
    # query and output 2 x 64 x 128, key and value 2 x 64 x 32, the index 64 x 8
    assert counted.attention_params == 16_384 + 4096 + 512
    assert counted.norm_params == (4 + 1) * 64
    assert counted.model_params == 3 * 25_376 + 20_992 + 6400 + 320


def test_a_swapped_design_takes_the_index_along_and_leaves_the_mixers() -> None:
    counted = parameter_count(swap_attention(hybrid(), "mha"))
    assert counted.recurrent_params == 3 * 25_376
    assert counted.attention_params == 4 * 64 * 128


def test_two_gpus_share_what_has_units() -> None:
    (got,) = weight_bytes_per_gpu(
        hybrid(), parallel=Parallelism(tp_size=2), weight_dtype="bf16"
    ).stages
    assert got.recurrent == 2 * 3 * (32 + (25_376 - 32) // 2)
    assert got.attention == 2 * (512 + 20_480 // 2)
    with pytest.raises(PlacementError):
        weight_bytes_per_gpu(hybrid(), parallel=Parallelism(tp_size=3), weight_dtype="bf16")


def test_plain_matrices_and_vectors_stay_in_16_bit() -> None:
    (got,) = weight_bytes_per_gpu(hybrid(), parallel=Parallelism(), weight_dtype="fp8").stages
    # fp8 has an fp32 scale for each output: 256 of the input matrix and 64 of the output
    quantised = 16_384 + 8192 + 4 * (256 + 64)
    assert got.recurrent == 3 * (quantised + 2 * (256 + 512 + 32))


def test_the_pass_multiplies_each_matrix_that_reads_something() -> None:
    found = weights_pass(hybrid(), weight_dtype="bf16", parallel=Parallelism(tp_size=2))
    matrices = [(m.name, m.inputs, m.outputs, m.n_bytes, m.layers) for m in found.matrices]
    assert matrices[:3] == [
        ("hidden", 64, 128, 64 * 128 * 2, 3), ("hidden", 64, 2, 64 * 2 * 2, 3),
        ("heads", 64, 64, 64 * 64 * 2, 3 + 1),  # the attention's output has the same shape
    ]  # fmt: skip
    # a norm of every layer, and one over what each recurrent layer makes: 128 / 2
    small = {(one.kind, one.width): one.calls for one in found.small}
    assert small["norm", 64] == 4 + 3


def test_a_recurrent_layer_moves_its_state_and_its_columns() -> None:
    (work,) = recurrent_work(hybrid(), tp_size=2)
    assert (work.kind, work.layers) == ("gated_delta", 3)
    assert (work.state_bytes, work.conv_bytes, work.conv_row_bytes) == (
        2 * 2 * 1024, 2 * 2 * 96, 2 * 2 * 32,
    )  # fmt: skip
    assert work.n_bytes(5, 2) == 5 * (4096 + 384 + 2 * 128)


def test_a_recurrent_layer_without_weights_is_refused_by_times() -> None:
    bare = hybrid(layers=[{"count": 2, "state": STATE, "feed_forward": NONE}])
    with pytest.raises(SpecError, match="the weights of 2 recurrent layers are not counted"):
        weights_pass(bare, weight_dtype="bf16")


def test_draft_modules_and_encoders_are_apart() -> None:
    module = {
        "layers": [{"count": 1, "attention": GQA, "feed_forward": NONE}],
        "weights": [{"name": "join", "rows": 128, "cols": 64}],
    }
    spec = hybrid(encoders=[{"name": "vision encoder", "n_params": 1001}], mtp=module)
    counted = parameter_count(spec)
    assert counted.encoder_params == 1001
    assert counted.model_params == (counted.language_params or 0) + 1001
    assert counted.mtp_params == 20_480 + 64 + 128 * 64  # attention, its norm, the join
    (got,) = weight_bytes_per_gpu(spec, parallel=Parallelism(), weight_dtype="bf16").stages
    assert got.total == 2 * (counted.model_params or 0)
    (drafting,) = weight_bytes_per_gpu(
        spec, parallel=Parallelism(), weight_dtype="bf16", with_drafts=True
    ).stages
    assert drafting.total == got.total + 2 * (counted.mtp_params or 0)
    assert parameter_count(hybrid(draft_layers=1)).mtp_params is None


def test_active_parameters_leave_out_idle_experts() -> None:
    # 48 layers of 128 experts of 3 x 2,048 x 768, of which a token takes 8
    counted = parameter_count(lrkv_plan.load_model("qwen3-30b-a3b"))
    assert counted.idle_params == 48 * 120 * 3 * 2048 * 768
    assert counted.active_params == 30_532_122_624 - 27_179_089_920  # "3.3B" on its card


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "nemotron-h-56b", "kimi-linear-48b-a3b"])
def test_a_hybrid_has_a_step_time_over_its_weights(name: str) -> None:
    """No faster than its active weights stream at the datasheet's rate."""
    model, gpu = lrkv_plan.load_model(name), lrkv_plan.load_hardware("h200")
    step = step_time(step_model(model, gpu), context_tokens=1024, batch_size=1)
    active = parameter_count(model).active_params or 0
    table = (model.vocab_size or 0) * model.model_dim
    assert float(step.step_s) > 2 * (active - table) / gpu.mem_bandwidth_bytes_per_s
