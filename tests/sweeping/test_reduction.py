"""What is kept of many rows, against the definition counted out."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrkv_plan
from lrkv_plan.errors import ArgumentError
from lrkv_plan.sweeping.points import KEYS, NUMBER_KEYS, TEXT_KEYS
from lrkv_plan.sweeping.reduction import Objective, Reduction, frontier, reduction
from lrkv_plan.sweeping.where import condition

GOALS = ("tpot_s", "n_gpus", "users")


def by_definition(goals: np.ndarray) -> list[int]:
    """Rows that no other is as good as in all and better than in one."""
    return [
        i for i, one in enumerate(goals)
        if not any((other <= one).all() and (other < one).any() for other in goals)
    ]  # fmt: skip


rows_of_goals = st.integers(1, 3).flatmap(
    lambda k: st.lists(st.tuples(*[st.integers(0, 4)] * k), min_size=1, max_size=30)
)


@given(rows_of_goals)
def test_a_frontier_is_what_its_definition_says(rows: list[tuple[int, ...]]) -> None:
    goals = np.array(rows, float)
    assert frontier(goals).tolist() == by_definition(goals)


@given(rows_of_goals, st.integers(1, 3), st.randoms(use_true_random=False))
def test_parts_and_then_their_rest_are_the_whole(
    rows: list[tuple[int, ...]], n_groups: int, random: object
) -> None:
    names = GOALS[: len(rows[0])]
    frame = pandas.DataFrame(dict(zip(names, np.array(rows, float).T, strict=True)))
    frame["place"] = range(len(rows))
    frame["gpu"] = pandas.Categorical([str(i % n_groups) for i in range(len(rows))])
    goals = tuple(Objective(key=name, is_up=False) for name in names)
    for kind in ("pareto", "top"):
        thin = Reduction(kind=kind, objectives=goals, by=("gpu",), most=2)
        whole = thin.of_frame(frame)
        cut = len(rows) // 2
        parts = [thin.of_frame(part) for part in (frame[:cut], frame[cut:]) if len(part)]
        again = thin.of_frame(pandas.concat(parts, ignore_index=True))
        assert again.to_numpy().tolist() == whole.to_numpy().tolist()
        if kind == "pareto":
            expected = [
                int(group.index[i])
                for _, group in frame.groupby("gpu", observed=True)
                for i in by_definition(group[list(names)].to_numpy())
            ]
            assert sorted(expected) == whole["place"].tolist()


def test_a_large_plane_is_sampled_first_and_loses_nothing() -> None:
    random = np.random.default_rng(5)
    x, y = random.random((2, 20_000)).round(3)
    thin = Reduction(
        kind="pareto",
        objectives=(Objective(key="x", is_up=False), Objective(key="y", is_up=True)),
    )
    kept = thin.kept({"x": x, "y": y}.__getitem__, len(x))
    assert kept.tolist() == sorted(frontier(np.stack([x, -y], axis=1)).tolist())


def test_rows_without_a_value_are_in_no_order() -> None:
    thin = Reduction(kind="top", objectives=(Objective(key="x", is_up=True),), most=5)
    assert thin.kept({"x": np.array([1.0, np.nan, 3.0])}.__getitem__, 3).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("users >= 2", [1, 2]), ("users > 1 and tpot_ms < 25", [1]), ("not users > 1", [0, 3]),
        ("gpu == 'h200' or users == 3", [0, 1, 2]), ("gpu in ('h100', 'l4')", [2, 3]),
        ("gpu not in ['h200']", [2, 3]), ("1 < users <= 3", [1, 2]),
        ("users * tpot_s >= 0.04", [1, 2]), ("users - 1 > -1 and users / 2 < 1.1", [0, 1]),
    ],
)  # fmt: skip
def test_a_condition_holds_where_it_says(text: str, expected: list[int]) -> None:
    columns = {
        "admitted_sequences": np.array([1.0, 2.0, 3.0, np.nan]),
        "tpot_s": np.array([0.01, 0.02, 0.03, 0.01]),
        "gpu": np.array(["h200", "h200", "h100", "l4"], object),
    }
    read = condition(text, set(KEYS), TEXT_KEYS)
    assert np.flatnonzero(read.holds(columns.__getitem__, 4)).tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("users >=", "is no comparison"), ("users", "compares nothing"), ("1 + 1", "compares nothing"),
        ("userz > 1", "did you mean 'users'"), ("__import__('os').system('x') == 1", "is not read"),
        ("users.real > 1", "is not read"), ("[x for x in (1,)] == 1", "is not read"),
        ("users ** 9999999 > 1", "is not read"), ("gpu in 'h200'", "'in' without a list"),
        ("users == (1, 2)", "a list without 'in'"), ("users is 1", "is not read"),
        ("gpu > 'h100'", "an order of texts"), ("gpu == 3", "a number beside a text"),
        ("users > 'x'", "an order of texts"), ("users in (1, 'x')", "a number beside a text"),
        ("gpu + 1 > 2", "what is no number"), ("users and gpu == 'x'", "compares nothing"),
        ("(users > 1) == (users > 2)", "of comparisons"), ("not users", "compares nothing"),
        ("gpu", "compares nothing"),
        ("users > True", "is not read"), ("-" * 100 + "users > 1", "so deep"),
        ("x" * 3_000, "must be text"), (5, "must be text"),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_one_line(text: object, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        condition(text, set(KEYS), TEXT_KEYS)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"reduce": "best"}, "one of pareto, min, top:20"), ({"reduce": "top:0"}, "one of pareto"),
        ({"by": "gpu"}, "are of reduce"), ({"reduce": "min", "by": "gpuu"}, "did you mean 'gpu'"),
        ({"reduce": "min", "objectives": "users"}, "up or down"),
        ({"reduce": "min", "objectives": "gpu up"}, "up or down"),
        ({"reduce": "pareto", "objectives": "users up, users down"}, "names a key twice"),
        ({"reduce": "pareto", "objectives": ""}, "is empty"),
    ],
)  # fmt: skip
def test_what_is_no_reduction_is_one_line(told: dict[str, str], message: str) -> None:
    asked = {"reduce": None, "objectives": None, "by": None, **told}
    with pytest.raises(ArgumentError) as caught:
        reduction(**asked, keys=set(KEYS), numbers=set(NUMBER_KEYS))
    assert message in str(caught.value)


def test_a_function_may_thin_out() -> None:
    def of_each_gpu(frame: pandas.DataFrame) -> pandas.DataFrame:
        return frame.loc[frame.groupby("gpu", observed=True)["tokens_per_s"].idxmax()]

    told = {"gpus": "h100-sxm,h200", "batch_size": [1, 8, 40]}
    thinned = lrkv_plan.sweep("llama-3.1-8b", reduce=of_each_gpu, **told)
    assert [(row["gpu"], row["batch_size"]) for row in thinned.rows] == [
        ("h100-sxm", 40), ("h200", 40)
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="not a DataFrame"):
        lrkv_plan.sweep("llama-3.1-8b", reduce=lambda frame: None, **told)


def test_the_frontier_of_a_result_is_that_of_the_sweep() -> None:
    told = {"gpus": "h100-sxm,h200", "batch_size": "1..64", "designs": "own;lrkv:16"}
    all_rows = lrkv_plan.sweep("llama-3.1-8b", **told)
    thinned = lrkv_plan.sweep("llama-3.1-8b", reduce="pareto", **told)
    assert all_rows.pareto()["point"].tolist() == thinned.frame["point"].tolist()
    assert "stand on the frontier" in thinned.verdict
    least = lrkv_plan.sweep("llama-3.1-8b", reduce="min", by="gpu", **told)
    assert [row["batch_size"] for row in least.rows] == [1, 1]
