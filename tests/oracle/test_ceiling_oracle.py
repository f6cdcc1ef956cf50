"""Rank, head-count and latent ceilings against a try of every candidate, for every kind of budget."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.errors import PlacementError, RequirementError
from lrkv_plan.memory.largest import RankCeiling, bytes_per_token_at_ranks, rank_ceiling
from lrkv_plan.questions.arguments import low_rank_variant
from tests.oracle import cache_count, ceiling_search, time_count, weight_count
from tests.oracle.comparing import agree, spec_of
from tests.oracle.draws import HEADS, KV_FORMATS, divisors, examples

Plain = dict[str, Any]


@st.composite
def cases(draw: Any) -> Plain:
    """A model of one or two kinds of layer, an LRKV variant, GPUs, a format and a budget."""
    backbones = [
        {"heads": draw(HEADS), "key": (key := draw(st.sampled_from([2, 8, 15, 24, 40]))),
         "value": draw(st.sampled_from([key, key, 16])), "count": draw(st.integers(1, 9))}
        for _ in range(draw(st.sampled_from([1, 1, 2])))
    ]  # fmt: skip
    position = draw(st.sampled_from(["none", "none", "rope_expand", "rope_rank", "rope_decoupled"]))
    common = math.gcd(*(b["heads"] for b in backbones))
    budget = draw(
        st.one_of(
            st.tuples(st.just("share"), st.fractions(Fraction(1, 50), Fraction(3, 2), max_denominator=97)),
            st.tuples(st.sampled_from(["bytes", "per GPU"]), st.integers(1, 60_000)),
            st.tuples(st.just("design"), st.sampled_from(divisors(common))),
        )
    )  # fmt: skip
    return {
        "backbones": backbones, "model_dim": draw(st.sampled_from([4, 48, 256])), "budget": budget,
        "gpus": draw(st.sampled_from([1, 1, *divisors(common)[:3]])), "fmt": draw(KV_FORMATS),
        "alignment": draw(st.sampled_from([1, 3, 8, 16])),
        "context": draw(st.integers(1, 10**6)), "rope": draw(st.sampled_from([0, 4, 64])),
        "options": {
            "n_shared_groups": draw(st.sampled_from(divisors(common))), "position": position,
            "rope_dim": draw(st.sampled_from([2, 64])) if position == "rope_decoupled" else 0,
            "key_norm": draw(st.sampled_from(["none", "rms_cached"])),
        },
    }  # fmt: skip


class Case:
    """The oracle's side of a case."""

    def __init__(self, case: Plain) -> None:
        self.case = case
        self.gpus, self.fmt, self.d = case["gpus"], case["fmt"], case["model_dim"]
        self.mha = self.held("gqa", None)

    def designs(self, family: str, value: int | None) -> list[tuple[int, Plain]]:
        options: Plain = {"rope_dim": self.case["rope"]}
        if family == "lrkv":
            options = {**self.case["options"], "rank_alignment": 1}
        flags = {"qk_norm": False, "output_bias": False, "output_gate": False, "qkv_bias": False}
        flags |= {"sinks": False, "value_from_key": False}
        return [
            (b["count"],
             {**flags, **ceiling_search.design_at(b, family, value or b["heads"], **options)})
            if family != "lrkv"
            else (b["count"], {**flags, **ceiling_search.design_at(b, family, value or 0, **options)})
            for b in self.case["backbones"]
        ]  # fmt: skip

    def held(self, family: str, value: int | None) -> Fraction:
        rows = (
            n * cache_count.layer_row(a, self.fmt, self.gpus)
            for n, a in self.designs(family, value)
        )
        return sum(rows, start=Fraction(0))

    def limit(self) -> Fraction:
        kind, amount = self.case["budget"]
        if kind == "design":
            amount = self.held("gqa", amount)
        return ceiling_search.limit_of((kind, amount), self.mha, self.gpus)

    def text(self) -> str:
        kind, amount = self.case["budget"]
        return {
            "share": f"{100 * amount.numerator}/{amount.denominator}%",
            "bytes": f"{amount} B/token", "per GPU": f"{amount} B/token/gpu", "design": f"gqa:{amount}",
        }[kind]  # fmt: skip

    def kv_params(self, family: str, value: int | None) -> int:
        return sum(
            n * weight_count.attention(a, self.d, False, True)
            for n, a in self.designs(family, value)
        )

    def multiply_adds(self, family: str, value: int | None, path: str) -> int:
        total = 0
        for n, a in self.designs(family, value):
            token, step, rebuild, _ = time_count.scan_work(a, path)
            total += n * (self.case["context"] * (token + rebuild) + step)
        return total

    def model(self) -> Any:
        layers = [
            {"count": b["count"], "attention": {"family": "mha", "n_heads": b["heads"],
             "head_dim": b["key"], "v_head_dim": b["value"]}} for b in self.case["backbones"]
        ]  # fmt: skip
        return spec_of({"model_dim": self.d, "layers": layers})


def asked(case: Case) -> RankCeiling | str:
    told = case.case
    try:
        return rank_ceiling(
            case.model(), budget=case.text(), alignment=told["alignment"], tp_size=case.gpus,
            kv_dtype=case.fmt, context_tokens=told["context"],
            design=low_rank_variant(case.model(), **told["options"]), latent_rope_dim=told["rope"],
        )  # fmt: skip
    except (PlacementError, RequirementError) as error:
        return type(error).__name__


@examples(150)
@given(cases())
def test_ceilings_agree_with_brute_force(told: Plain) -> None:
    case = Case(told)
    runs = cache_count.can_run(case.designs("lrkv", 1)[0][1], case.gpus) and all(
        cache_count.can_run(a, case.gpus) for _, a in case.designs("lrkv", 0)
    )
    if told["budget"][0] == "design":
        budget_runs = (
            cache_count.can_run(a, case.gpus) for _, a in case.designs("gqa", told["budget"][1])
        )
        runs = runs and all(budget_runs)
    ours = asked(case)
    if not runs:
        agree("refused ceilings", ours, "PlacementError", told)
        return
    step = 2 if told["options"]["position"] == "rope_rank" else 1
    widest = min(min(b["key"], b["value"]) for b in told["backbones"])
    ranks, limit = range(0, widest + 1, step), case.limit()

    def low_rank(rank: int) -> Fraction:
        return case.held("lrkv", rank)

    best = ceiling_search.largest(ranks, low_rank, limit)
    if best is None:
        agree("refused ceilings", ours, "RequirementError", told)
        return
    assert isinstance(ours, RankCeiling), (ours, told)
    agree("rank ceiling", ours.largest.value, best, told)
    agree("budget in bytes", ours.budget_bytes_per_token_per_gpu, limit, told)
    multiples = [r for r in ranks if r % told["alignment"] == 0]
    agree(
        "aligned rank", ours.aligned.value, ceiling_search.largest(multiples, low_rank, limit), told
    )
    heads = ceiling_search.head_counts([b["heads"] for b in told["backbones"]], case.gpus)
    groups = ceiling_search.largest(heads, lambda n: case.held("gqa", n), limit)
    agree("KV-head ceiling", ours.grouped and ours.grouped.value, groups, told)
    widths = ceiling_search.latent_widths(told["backbones"], case.d)
    latent = ceiling_search.largest(widths, lambda n: case.held("mla", n), limit)
    agree("latent ceiling", ours.latent and ours.latent.value, latent, told)
    beyond = case.held("mla", widths[-1] + 1) <= limit
    agree("latent bound", len(ours.remarks), int(beyond), told)
    path = "rope_expand" if told["options"]["position"] == "rope_expand" else "factored"
    for fit, family, first in (
        (ours.largest, "lrkv", path), (ours.grouped, "gqa", ""), (ours.latent, "mla", "absorbed"),
    ):  # fmt: skip
        if fit is None:
            continue
        held = case.held(family, fit.value)
        agree("bytes of a fit", fit.bytes_per_token_per_gpu, held, told)
        agree("spare bytes", fit.spare_bytes_per_token_per_gpu, limit - held, told)
        agree("ratio of a fit", fit.ratio_to_mha, held / case.mha, told)
        weights = Fraction(case.kv_params(family, fit.value), case.kv_params("gqa", None))
        agree("K/V weights ratio", fit.kv_params_ratio, weights, told)
        work = case.multiply_adds(family, fit.value, first)
        ratio = Fraction(work, case.multiply_adds("gqa", None, ""))
        agree("arithmetic ratio", fit.arithmetic_ratio, ratio, told)
    if best + step <= widest:
        dearer = low_rank(best + step)
        agree("next rank", ours.next_rank_price_bytes, dearer - low_rank(best), told)
        agree("next rank", ours.next_rank_shortfall_bytes, dearer - limit, told)
        assert dearer > limit


@examples(40)
@given(cases())
def test_bytes_at_ranks_agree(told: Plain) -> None:
    case = Case(told)
    if not all(cache_count.can_run(a, case.gpus) for _, a in case.designs("lrkv", 1)):
        return
    step = 2 if told["options"]["position"] == "rope_rank" else 1
    widest = min(min(b["key"], b["value"]) for b in told["backbones"])
    for rank in range(0, widest + 1, step):
        ours = bytes_per_token_at_ranks(
            case.model(), rank, design=low_rank_variant(case.model(), **told["options"]), kv_dtype=case.fmt,
            tp_size=case.gpus,
        )  # fmt: skip
        agree("bytes at ranks", ours, case.held("lrkv", rank), told, rank)
