"""Known constants come back from made-up calls; what calls cannot tell is not claimed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")

from lrkv_plan.attention.families.grouped import grouped_work
from lrkv_plan.attention.families.latent import mla_absorbed_work
from lrkv_plan.calibration.fit import PRIORS, fit_kernel, predicted_s
from lrkv_plan.calibration.samples import KernelSamples
from lrkv_plan.calibration.selection import (
    band,
    best_partition,
    by_context,
    by_head_configuration,
    judged,
)
from lrkv_plan.calibration.table_fit import AllReduceSamples, fit_allreduce, log_errors
from lrkv_plan.errors import CalibrationError
from lrkv_plan.latency.kernel import FORMS

pytestmark = pytest.mark.slow

TRUE = {"t0_s": 2e-5, "beta": 0.78, "phi": 0.45, "work_unit_s": 5e-8, "full_work_units": 60.0}


def calls(n: int = 240, *, mla: bool = False, seed: int = 0, **fixed: int) -> KernelSamples:
    """Random decode calls without times."""
    rng = np.random.default_rng(seed)

    def some(name: str, values: list[int]) -> np.ndarray:
        return np.full(n, fixed[name]) if name in fixed else rng.choice(values, n)

    batch, tokens = some("batch", [1, 4, 16, 64, 256]), some("tokens", [512, 2048, 8192, 32768])
    groups, per_group = some("groups", [1, 2, 8]), some("per_group", [1, 4, 8])
    if mla:
        heads, groups = some("heads", [1, 16, 64, 128]), np.ones(n)
        work = mla_absorbed_work(
            batch, tokens, n_heads=heads, latent_dim=512, rope_dim=64, bytes_per_scalar=2
        )
    else:
        heads = groups * per_group
        work = grouped_work(
            batch, tokens, n_heads=heads, n_kv_heads=groups, head_dim=128, bytes_per_scalar=2
        )
    return KernelSamples(
        n_bytes=work[0], flops=work[1], work_units=work[2] * 1.0, time_s=np.ones(n),
        context_tokens=tokens * 1.0, n_heads=heads * 1.0, n_kv_heads=groups * 1.0,
        head_dim=np.full(n, 128.0), bandwidth=4e12, peak=1e15,
    )  # fmt: skip


def timed(samples: KernelSamples, form: str, noise: float = 0.0, seed: int = 1) -> KernelSamples:
    """The calls with the times of ``TRUE``, and log-normal noise."""
    factor = np.exp(noise * np.random.default_rng(seed).standard_normal(len(samples)))
    times = predicted_s(form, TRUE, samples) * factor
    return KernelSamples(**{**vars(samples), "time_s": times})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("noise", "rel"), [(0.0, 0.01), (0.03, 0.06)])
def test_known_constants_come_back(form: str, noise: float, rel: float) -> None:
    fit = fit_kernel(timed(calls(mla=True), form, noise), form)
    assert set(fit.identified) == set(fit.constants)
    for name, value in fit.constants.items():
        assert value == pytest.approx(TRUE[name], rel=rel), name


def test_a_few_odd_calls_do_not_move_the_constants() -> None:
    samples = timed(calls(mla=True), "base", 0.02)
    samples.time_s[::20] *= 5
    fit = fit_kernel(samples)
    assert fit.constants["beta"] == pytest.approx(TRUE["beta"], rel=0.05)


def test_arithmetic_that_never_decides_is_not_identified_and_held_at_the_prior() -> None:
    fit = fit_kernel(timed(calls(), "base", 0.02))  # at most 8 heads share a row: 8 FLOP per byte
    assert fit.identified == ("t0_s", "beta")
    assert fit.constants["phi"] == PRIORS["phi"].value


def test_tiny_calls_identify_the_fixed_time_only() -> None:
    fit = fit_kernel(timed(calls(batch=1, tokens=8, groups=1), "base", 0.02))
    assert fit.identified == ("t0_s",)


def test_large_calls_do_not_identify_the_fixed_time() -> None:
    fit = fit_kernel(timed(calls(batch=1024, tokens=131072, groups=8), "base", 0.02))
    assert fit.identified == ("beta",)
    assert fit.constants["t0_s"] == PRIORS["t0_s"].value


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(CalibrationError, match="7 points are too few"):
        fit_kernel(timed(calls(7), "base"))
    with pytest.raises(CalibrationError, match="form 'other'"):
        fit_kernel(timed(calls(), "base"), "other")
    nothing = calls(7).where(np.zeros(7, dtype=bool))  # what a fold of few shapes leaves to fit
    for kernel in ("grouped", "mla_absorbed"):
        with pytest.raises(CalibrationError, match="0 points are too few"):
            best_partition(kernel, nothing)


@pytest.mark.parametrize("form", ["base", "no_split"])
def test_the_form_that_made_the_times_is_chosen(form: str) -> None:
    chosen = best_partition("grouped", timed(calls(), form, 0.03))
    assert [c.fit.form for c in chosen] == [form]


@pytest.mark.slow
def test_the_stated_band_holds_its_share_of_rows_never_seen() -> None:
    hits = []
    for seed in range(6):
        samples = timed(calls(seed=seed), "base", 0.05, seed=seed + 50)
        hits.append(judged("grouped", samples, by_head_configuration(samples, 5))[1].mean())
    assert np.mean(hits) == pytest.approx(0.90, abs=0.03)


def test_folds_leave_whole_head_configurations_out_and_longer_contexts() -> None:
    samples = calls()
    shape = samples.n_heads * 1000 + samples.n_kv_heads
    for fitted, left_out in by_head_configuration(samples):
        assert not set(shape[fitted]) & set(shape[left_out])
    ((fitted, left_out),) = by_context(samples)
    assert samples.context_tokens[fitted].max() <= 8192 < samples.context_tokens[left_out].min()


def test_a_band_of_few_rows_is_as_wide_as_they_are() -> None:
    assert band(np.log([0.5, 1.0, 2.0])) == pytest.approx((0.5, 2.0))


@pytest.mark.parametrize(("two_shot_s", "noise"), [(None, 0.0), (8e-6, 0.0), (8e-6, 0.02)])
def test_allreduce_constants_come_back(two_shot_s: float | None, noise: float) -> None:
    sizes = 2.0 ** np.arange(8, 25)
    true = {"t0_s": 5e-6, "link_efficiency": 0.7}
    true |= {} if two_shot_s is None else {"two_shot_s": two_shot_s}
    blank = AllReduceSamples(
        message_bytes=sizes, time_s=np.ones(17), n_gpus=8, link_bytes_per_s=450e9
    )
    factor = np.exp(noise * np.random.default_rng(0).standard_normal(17))
    times = np.exp(-log_errors(blank, true)) * factor  # ln(1 / predicted) of the blanks
    fit = fit_allreduce(
        AllReduceSamples(message_bytes=sizes, time_s=times, n_gpus=8, link_bytes_per_s=450e9)
    )
    assert set(fit.constants) == set(true) == set(fit.identified)
    for name, value in true.items():
        assert fit.constants[name] == pytest.approx(value, rel=0.02 + 6 * noise), name
