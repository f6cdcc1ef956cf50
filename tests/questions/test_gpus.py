"""``8xh100-sxm`` is eight of one kind, and a name that begins so is itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.errors import ArgumentError, SpecError
from lrkv_plan.pages.model_page import Place, capacity_parts, page_command, plan_of
from lrkv_plan.questions.asking import Asking
from lrkv_plan.questions.gpus import counted_gpu, one_gpu, without_count

LLAMA, LARGE = "llama-3.1-8b", "llama-3.1-70b"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("text", "n_gpus", "name"),
    [("8xh100-sxm", 8, "h100-sxm"), ("4 x B200", 4, "b200"), ("1Xh200", 1, "h200"),
     ("2×l40s", 2, "l40s"), ("h100-sxm", None, "h100-sxm")],
)  # fmt: skip
def test_a_number_before_the_name_counts(text: str, n_gpus: int | None, name: str) -> None:
    counted, profile = counted_gpu(text)
    assert (counted, profile.name) == (n_gpus, name)


def test_a_name_that_begins_with_digits_and_x_is_itself(tmp_path: Path) -> None:
    spelled = lrkv_plan.load_gpu("h200").model_dump(mode="json", exclude_none=True)
    (tmp_path / "8xh100-sxm.yaml").write_text(yaml.safe_dump({**spelled, "name": "8xh100-sxm"}))
    counted, profile = counted_gpu("8xh100-sxm", spec_dir=tmp_path)
    assert (counted, profile.name) == (None, "8xh100-sxm")
    assert without_count("8xh100-sxm", spec_dir=tmp_path) == "8xh100-sxm"
    assert without_count("8xh100-sxm") == "h100-sxm"
    file = tmp_path / "4xb200.yaml"
    file.write_text("name: [")
    with pytest.raises(SpecError, match=r"4xb200\.yaml"):
        counted_gpu(str(file))


def test_unknown_names_and_none_at_all() -> None:
    with pytest.raises(SpecError, match="perhaps h100-sxm"):
        counted_gpu("8xh100-smx")
    with pytest.raises(ArgumentError, match="write how many, such as 8xh100-sxm"):
        counted_gpu("0xh100-sxm")


def test_a_question_about_one_replica_says_what_to_write() -> None:
    assert one_gpu("1xh200").name == "h200"
    for command in (["step-time", LLAMA], ["roofline", LLAMA],
                    ["crossover", LLAMA, "--attention", "gqa:8", "--attention", "mha"]):  # fmt: skip
        told = run(*command, "--gpu", "8xh200")
        assert told.exit_code == 2
        assert "write --gpu h200 --tp-size 8" in told.stderr
        assert run(*command, "--gpu", "1xh200").exit_code == 0


@pytest.mark.parametrize(
    "command",
    [["plan", LARGE], ["capacity", LARGE, "--tp-size", "8"],
     ["rank", LARGE, "--fit-sequences", "4", "--tp-size", "8"]],
)  # fmt: skip
def test_so_many_of_one_kind_is_the_number_of_gpus(command: list[str]) -> None:
    short, long = (
        json.loads(run(*command, *gpus, "-f", "json").stdout)["rows"]
        for gpus in (["--gpu", "8xh100-sxm"], ["--gpu", "h100-sxm", "--n-gpus", "8"])
    )
    assert short == long
    both = run(*command, "--gpu", "8xh100-sxm", "--n-gpus", "8")
    assert both.exit_code == 2
    assert "--n-gpus 8: --gpu 8xh100-sxm says how many already" in both.stderr


def test_a_next_question_about_one_replica_leaves_the_number_out() -> None:
    ask = Asking(LLAMA, lrkv_plan.load_model(LLAMA), {"gpu": "8xh100-sxm"})
    assert ask("step_time")[2:] == [LLAMA, "--gpu", "h100-sxm"]
    assert ask("plan")[2:] == [LLAMA, "--gpu", "8xh100-sxm"]


def test_a_report_of_eight() -> None:
    place = Place.of(LLAMA, gpu="2xh100-sxm")
    (part,) = [part for part in capacity_parts(place) if part.key == "capacity"]
    for line in (*part.commands, page_command(place, "report"), plan_of(place).line):
        assert "--gpu h100-sxm" in line
        assert "--n-gpus 2" in line
    assert part.table is not None
    assert {row["n_gpus"] for row in part.table.rows} == {2}
