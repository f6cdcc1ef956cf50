"""The sentences that the roofline must be able to say, and its limits by hand."""

from __future__ import annotations

import pytest

import lrkv_plan
from lrkv_plan import load_hardware, load_model, swap_attention
from lrkv_plan.errors import SpecError, UsageError
from lrkv_plan.latency.roofline import RooflinePoint, roofline_point
from lrkv_plan.latency.work import attention_work, paths_of

H200 = load_hardware("h200")
H100 = load_hardware("h100-sxm")
PAPER = load_model("lrkv-paper-2.5b")


def point(text: str | None, **options: object) -> RooflinePoint:
    model = PAPER if text is None else swap_attention(PAPER, text)
    hardware = options.pop("hardware", H100)
    told = {"context_tokens": 8192, **options}
    return roofline_point(model, hardware, **told)  # type: ignore[arg-type]


def test_absorbed_mla_is_compute_bound_on_one_h200_and_memory_bound_on_eight() -> None:
    deepseek = load_model("deepseek-v3")  # 128 heads
    one = roofline_point(deepseek, H200, context_tokens=8192)
    # 2 * 128 * (2*512 + 64) / (2 * 576) = 241.8 against 989.4e12 / 4.8e12 = 206.1
    assert one.intensity_flops_per_byte == pytest.approx(241.8, rel=1e-3)
    assert one.ridge_flops_per_byte == pytest.approx(206.1, rel=1e-3)
    assert one.bound == "compute"
    eight = roofline_point(deepseek, H200, context_tokens=8192, tp_size=8)
    assert eight.bound == "memory"
    assert eight.intensity_flops_per_byte == pytest.approx(241.8 / 8, rel=1e-3)
    assert roofline_point(deepseek, H100, context_tokens=8192).bound == "memory"  # ridge 295


def test_rope_expand_is_memory_bound_on_tensor_cores_and_compute_bound_on_plain_units() -> None:
    text = "lrkv:55,position=rope_expand"
    tensor, plain = (point(text, units=units) for units in ("bf16", "fp32"))
    assert tensor.intensity_flops_per_byte == pytest.approx(59.2, rel=2e-3)
    assert tensor.bound == "memory"
    # 66.9e12 / 3.35e12 = 20.0 FLOP per byte
    assert plain.ridge_flops_per_byte == pytest.approx(20.0, rel=1e-2)
    assert plain.bound == "compute"


def test_one_head_per_tile_removes_the_advantage_over_mha() -> None:
    mha = point("mha")
    reused = point("lrkv:55")
    afresh = point("lrkv:55", heads_per_tile=1)
    assert reused.memory_s < 0.5 * mha.memory_s
    # The shared block alone is read as often as MHA's keys and values: 1 + r/d_h of its bytes.
    assert afresh.memory_s > mha.memory_s
    assert afresh.n_bytes / mha.n_bytes == pytest.approx(1 + 55 / 128, rel=1e-3)
    six = point("lrkv:55", heads_per_tile=6)  # 18 / 6 = 3 fetches
    assert six.n_bytes / mha.n_bytes == pytest.approx(3 / 18 + 55 / 128, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "intensity"), [("mha", 1.0), ("lrkv:55", 2.946), ("gqa:6", 3.0), ("mqa", 18.0)]
)
def test_intensities_of_decode(text: str, intensity: float) -> None:
    assert point(text, context_tokens=10**6).intensity_flops_per_byte == pytest.approx(
        intensity, rel=1e-3
    )


def test_query_tokens_multiply_scans_but_not_expansion() -> None:
    factored, expanded = (
        attention_work(swap_attention(PAPER, "lrkv:55")),
        attention_work(swap_attention(PAPER, "lrkv:55,position=rope_expand")),
    )
    # Factored: 2 * 18 * 2 (128 + 55) per row and query token. Expanded: 2 * 18 * 55 * 128 once, and
    # 2 * 18 * (2 * 128 + 55) per query token.
    assert factored[0].n_flops(1000, 1, 4) == 4 * 1000 * 2 * 18 * 2 * 183
    assert expanded[0].n_flops(1000, 1, 4) == 1000 * 2 * 18 * (55 * 128 + 4 * 311)


def test_windows_bound_the_rows_scanned() -> None:
    gemma = load_model("gemma-3-12b")
    windowed, full = attention_work(gemma)
    assert (windowed.rows(500), windowed.rows(5000)) == (500, 1024)
    assert full.rows(5000) == 5000


def test_materialised_paths_pay_for_rebuilding() -> None:
    deepseek = load_model("deepseek-v3")
    assert paths_of(deepseek) == ("absorbed", "materialised")
    told = {"context_tokens": 8192}
    absorbed, rebuilt = (
        roofline_point(deepseek, H200, path=p, **told) for p in ("absorbed", "materialised")
    )
    # Per row and head: 2*512 + 64 = 1,088 against 512*256 + 320 = 131,392 multiply-adds.
    assert rebuilt.n_flops / absorbed.n_flops == pytest.approx(131_392 / 1_088)


def test_limits() -> None:
    found = point("mha")
    assert found.limit_share == pytest.approx(
        found.intensity_flops_per_byte / found.ridge_flops_per_byte
    )
    with pytest.raises(SpecError, match="fp4"):
        point("mha", units="fp4")
    with pytest.raises(UsageError, match="did you mean 'factored'"):
        point("lrkv:55", path="factord")
    with pytest.raises(UsageError, match="batch_size 0: must be from 1"):
        point("mha", batch_size=0)


def test_a_model_that_attends_nowhere_has_no_roofline() -> None:
    recurrent = {
        "name": "ssm", "source": {"citation": "made up", "read_on": "2026-11-30"}, "model_dim": 64,
        "layers": [{"count": 2, "state": [{"name": "s", "bytes_per_copy": 1024}]}],
    }  # fmt: skip
    with pytest.raises(UsageError, match="ssm: no layer attends"):
        roofline_point(lrkv_plan.load_model(recurrent), H100, context_tokens=8)
    with pytest.raises(UsageError, match="ssm: no layer attends"):
        lrkv_plan.roofline(recurrent, gpu="h100-sxm")


def test_a_model_of_two_families_is_placed_on_the_first_path_of_each() -> None:
    grouped = {"family": "gqa", "n_heads": 8, "n_kv_heads": 2, "head_dim": 64}
    latent = {
        "family": "mla", "n_heads": 8, "latent_dim": 128, "rope_dim": 16, "nope_dim": 64,
        "v_head_dim": 64,
    }  # fmt: skip
    mixed = {
        "name": "mixed", "source": {"citation": "made up", "read_on": "2026-11-30"},
        "model_dim": 512,
        "layers": [{"count": 1, "attention": grouped}, {"count": 1, "attention": latent}],
    }  # fmt: skip
    (row,) = lrkv_plan.roofline(mixed, gpu="h100-sxm", units="bf16", context_tokens=1000).rows
    assert row["path"] == "grouped + absorbed"
