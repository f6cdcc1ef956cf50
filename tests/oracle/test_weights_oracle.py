"""Parameters and weights per GPU against matrices listed and summed one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.errors import PlacementError, PlanError
from lrkv_plan.memory.weights import (
    kv_params_ratio_to_mha,
    matched_feed_forward,
    parameter_count,
    weight_bytes_per_gpu,
)
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.design import swap_attention
from tests.oracle import cache_count, stage_weights, weight_count
from tests.oracle.comparing import agree, spec_of
from tests.oracle.draws import GPUS, examples, models
from tests.oracle.test_cache_oracle import as_mha

Plain = dict[str, Any]
FULL_FLAGS = ("output_bias", "output_gate", "qk_norm", "qkv_bias", "sinks", "value_from_key")


def attention_of(plain: Plain, only_kv: bool = False) -> int:
    return sum(
        x["count"] * weight_count.attention(x["attention"], plain["model_dim"], x["reuses_cache"], only_kv)
        for x in plain["layers"] if x["attention"]
    )  # fmt: skip


def feed_forward_of(plain: Plain) -> int:
    return sum(
        x["count"] * int(sum((weight_count.block(x["feed_forward"], plain["model_dim"], None, 1, 1) or {}).values()))
        for x in plain["layers"] if x["cached_over"] == "context"
    )  # fmt: skip


@examples(120)
@given(models())
def test_parameters_agree(plain: Plain) -> None:
    ours, d, norms = parameter_count(spec_of(plain)), plain["model_dim"], plain["norms"]
    agree("attention parameters", ours.attention_params, attention_of(plain), plain)
    agree("K/V parameters", ours.kv_params, attention_of(plain, only_kv=True), plain)
    blocks = feed_forward_of(plain)
    agree("feed-forward parameters", ours.feed_forward_params, blocks, plain)
    v = plain["vocab_size"]
    tables = v * d * (1 if plain["tied_embeddings"] else 2)
    embeddings = tables + v * plain["head_bias"] + plain["position_embeddings"] * d
    agree("embedding parameters", ours.embedding_params, embeddings, plain)
    vectors = norms["final"] + norms["embedding"]
    for x in plain["layers"]:
        block = x["feed_forward"]
        vectors += x["count"] * norms["per_mixer"] * bool(x["attention"] or x["state"])
        vectors += x["count"] * norms["per_feed_forward"] * bool(block and block["kind"] != "none")
    normed = vectors * d * (1 + norms["bias"])
    agree("norm parameters", ours.norm_params, normed, plain)
    language = attention_of(plain) + blocks + embeddings + normed
    agree("language parameters", ours.language_params, language)
    agree("model parameters", ours.model_params, language + plain["extra_params"])
    flags = dict.fromkeys(FULL_FLAGS, False)
    full = {**plain, "layers": as_mha(plain["layers"])}
    for x in full["layers"]:
        x["attention"] = x["attention"] and {**x["attention"], **flags}
    whole = attention_of(full, only_kv=True)
    if whole:
        ratio = kv_params_ratio_to_mha(spec_of(plain))
        agree(
            "K/V parameters ratio",
            ratio and ratio * whole,
            attention_of(plain, only_kv=True),
            plain,
        )


@examples(150)
@given(
    models(), GPUS, st.sampled_from([1, 1, 2, 3, 5]), st.sampled_from([1, 1, 2]),
    st.sampled_from([1, 1, 1, 2, 4, 8]), st.sampled_from(weight_count.NAMES),
)  # fmt: skip
def test_weights_per_gpu_agree(plain: Plain, tp: int, pp: int, dp: int, ep: int, fmt: str) -> None:
    if (tp * dp) % ep or (tp % ep and ep % tp):
        return
    parallel = Parallelism(tp_size=tp, pp_size=pp, dp_size=dp, ep_size=ep)
    expected = stage_weights.stages(plain, fmt, tp, pp, ep, weight_count, cache_count.can_run)
    try:
        ours = weight_bytes_per_gpu(spec_of(plain), parallel=parallel, weight_dtype=fmt).stages
    except PlacementError:
        agree("refused weights", None, expected, plain, parallel)
        return
    assert expected is not None, (plain, parallel)
    for stage, parts in zip(ours, expected, strict=True):
        found = {name: n for name, n in vars(stage).items() if n}
        agree(
            "weights of a stage", found, {k: n for k, n in parts.items() if n}, plain, parallel, fmt
        )
        agree("weights of a stage", stage.total, sum(parts.values()), plain)


@examples(60)
@given(models(plain=True), st.sampled_from(["mqa", "mha", "lrkv:1", "lrkv:2", "mla:12+8"]))
def test_a_matched_width_is_the_nearest(plain: Plain, text: str) -> None:
    model = spec_of(plain)
    try:
        swapped = swap_attention(model, text)
        ours = matched_feed_forward(model, swapped)
    except PlanError:
        return
    change = parameter_count(swapped).attention_params - attention_of(plain)

    def total(by: int) -> int:
        layers = [
            {**x, "feed_forward": {**x["feed_forward"], "hidden_dim": x["feed_forward"]["hidden_dim"] + by}}
            if x["feed_forward"]["kind"] != "none" else x for x in plain["layers"]
        ]  # fmt: skip
        return feed_forward_of({**plain, "layers": layers}) + change - feed_forward_of(plain)

    by = ours.width_change
    agree("matched width", ours.remaining_difference, total(by), plain, text)
    assert abs(total(by)) <= min(abs(total(by - 1)), abs(total(by + 1))), (plain, text)
