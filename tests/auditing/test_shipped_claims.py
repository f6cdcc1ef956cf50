"""The shipped documents: how many claims come out how, and that the audit finds them by itself."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from lrkv_plan.auditing.claim import CLAIM_FOLDER, claim_files, claim_schema, read_claims
from lrkv_plan.auditing.evaluate import AuditRow, Verdict, audit_claim, audit_file
from lrkv_plan.auditing.quantities import QUANTITIES
from lrkv_plan.auditing.readings import CUT
from lrkv_plan.loader import shipped_files

FILES = shipped_files(CLAIM_FOLDER)
ROWS = {path.stem: {row.claim: row for row in audit_file(path)} for path in FILES}


def unexplained(file_name: str, claim_id: str) -> AuditRow:
    """The claim audited with its recorded explanation taken away."""
    (path,) = [path for path in FILES if path.stem == file_name]
    file = read_claims(path)
    (claim,) = [claim for claim in file.claims if claim.id == claim_id]
    return audit_claim(claim.model_copy(update={"explanation": None}), file, path.stem)


# file -> (match, explained, mismatch, not computable): 76 + 33 + 14 claims
COUNTS = {
    "lrkv-review": (59, 11, 0, 6),
    "lrkv-summary": (13, 8, 0, 12),
    "mla-article": (11, 3, 0, 0),
}


def test_counts_of_verdicts() -> None:
    counted = {
        name: tuple(Counter(row.verdict for row in rows.values())[verdict] for verdict in Verdict)
        for name, rows in ROWS.items()
    }
    assert counted == COUNTS


# Published claims that do not add up: document, claim, print, exact value in the printed unit,
# and the readings that reproduce the print. Nothing here is told to the audit.
FINDINGS: list[tuple[str, str, str, str, list[str]]] = [
    # 60 * 128,000 * 65,536 B = 503.3165 GB; 60 * 128,000 * 64,000 B = 491.52 GB
    ("mla-article", "mha-gb-128000", "491.5 GB", "503.316 GB", ["KB of 1,024 counted as 1,000"]),
    # 2*2 * 18 * 2048 * 18 * 128 B = 324 MiB
    ("lrkv-review", "table-12-mha", "648.0 MiB", "324 MiB", ["36 layers", "4,096 tokens"]),
    # 2*2 * 36 * 2048 * (128 + 18*64) B = 360 MiB
    (
        "lrkv-review", "table-12-lrkv", "360.0 MiB", "157.219 MiB",
        ["36 layers + rank 64", "4,096 tokens + rank 64"],
    ),
    # 1/6 + 64/128 = 66.667 %, printed beside 52.6 %: 1/6 + 46/128 = 52.604 %
    ("lrkv-review", "table-12-share-128m", "52.6 %", "66.667 %", ["rank 46"]),
    # 1/18 + 55/128 = 48.524 %, called 52.6 % at 2.5B: rank 46 of 128M
    ("lrkv-summary", "summary-share-2.5b", "52.6 %", "48.524 %", ["row 128M + rank 46"]),
    ("lrkv-summary", "figure-2-share-2.5b", "52.6 %", "48.524 %", ["row 128M + rank 46"]),
    ("lrkv-summary", "figure-3-share-2.5b", "52.6 %", "48.524 %", ["row 128M + rank 46"]),
    # 384 / (2 * 768) = 25 %; 384 / 768 = 50 %
    ("lrkv-review", "mla-384-prose", "50 %", "25 %", ["times 2"]),
    # five is the ceiling of six centred maps
    ("lrkv-review", "effective-rank-figure-9", "> 5", "5", ["uncentred"]),
    # 12 * 2304^2 * 18 = 1.1466e9; * 36 = 2.2932e9
    ("lrkv-review", "nominal-size-2.5b", "2.5B", "1.147 B", ["36 layers"]),
]  # fmt: skip


@pytest.mark.parametrize(("document", "claim", "printed", "computed", "wanted"), FINDINGS)
def test_audit_finds_what_does_not_add_up_by_itself(
    document: str, claim: str, printed: str, computed: str, wanted: list[str]
) -> None:
    row = unexplained(document, claim)
    assert (row.printed, row.computed_text) == (printed, computed)
    assert row.verdict is Verdict.MISMATCH
    assert set(wanted) <= {reading.text for reading in row.readings}
    assert ROWS[document][claim].verdict is Verdict.EXPLAINED


@pytest.mark.parametrize(
    ("claim", "at_rank_64", "nearest"),
    [
        # 1/18 + 64/128; 1/18 + 55/128
        ("table-12-share-2.5b", "55.556 %", ("rank 55", "48.524 %")),
        ("appendix-g4-share-2.5b", "55.556 %", ("rank 55", "48.524 %")),
        # 1/32 + 64/128; 1/32 + 54/128
        ("table-12-share-6.3b", "53.125 %", ("rank 54", "45.313 %")),
    ],
)
def test_no_integer_rank_prints_the_percentages_of_table_12(
    claim: str, at_rank_64: str, nearest: tuple[str, str]
) -> None:
    row = unexplained("lrkv-review", claim)
    assert row.verdict is Verdict.MISMATCH
    assert row.computed_text == at_rank_64
    assert not any(len(r.names) == 1 for r in row.readings)
    assert row.nearest is not None
    assert (row.nearest.text, row.nearest_text) == nearest


def test_pair_of_table_12_is_the_ratio_of_rank_64() -> None:
    review = ROWS["lrkv-review"]
    assert review["table-12-ratio"].computed == review["share-rank-64"].computed


def test_effective_ranks_at_2_5b_stand_next_to_their_ceiling() -> None:
    for claim in ("effective-rank-lrkv", "effective-rank-mha", "effective-rank-mqa"):
        row = ROWS["lrkv-review"][claim]
        assert (row.verdict, row.computed_text) == (Verdict.MATCH, "94.444 %")


def test_recorded_but_not_recomputed_is_the_downstream_mean() -> None:
    table = ROWS["lrkv-review"]["downstream-lrkv-6.3b"]
    recomputed = ROWS["lrkv-review"]["downstream-6.3b-recomputed"]
    assert (table.printed, recomputed.printed) == ("40.2 %", "40.36 %")
    assert {table.verdict, recomputed.verdict} == {Verdict.NOT_COMPUTABLE}


def test_steps_are_cut_and_hold_for_one_size_only() -> None:
    # 50e9 / (8 * 32,768) = 190,734.9; 100e9 takes 381,469.7
    assert [r.text for r in unexplained("lrkv-summary", "figure-2-steps-2.5b").readings] == [
        f"batch on each of 8 GPUs + {CUT}"
    ]
    both = {r.text for r in unexplained("lrkv-summary", "figure-2-steps-128m").readings}
    assert f"batch on each of 8 GPUs + half + {CUT}" in both


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_explanation_is_needed_and_every_claim_has_a_place(path: Path) -> None:
    for claim in read_claims(path).claims:
        row = ROWS[path.stem][claim.id]
        assert claim.place
        assert (claim.explanation is not None) == (row.verdict is Verdict.EXPLAINED)
        assert row.search_complete


def test_aliases_name_the_documents() -> None:
    assert [path.stem for path in claim_files("lrkv")] == ["lrkv-review", "lrkv-summary"]
    assert [path.stem for path in claim_files("2601.11471")] == ["lrkv-review", "lrkv-summary"]
    assert [path.stem for path in claim_files("MLA")] == ["mla-article"]
    assert claim_files(None) == FILES


def test_shipped_schema_is_current_and_knows_every_key_that_is_used() -> None:
    schema = claim_schema()
    shipped = json.loads((FILES[0].parent / "claims.schema.json").read_text(encoding="utf-8"))
    major, minor, *_ = map(int, pydantic.VERSION.split("."))
    if (major, minor) >= (2, 11):  # older ones say the same in other words
        assert shipped == schema, "lrkv-plan audit --schema -o claims/claims.schema.json --force"
    by_quantity = {
        rule["if"]["properties"]["computes"]["const"]: rule["then"]["properties"]["inputs"]["$ref"]
        for rule in schema["$defs"]["Claim"]["allOf"]
    }
    for path in FILES:
        document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        for claim in document["claims"]:
            assert set(claim) <= set(schema["$defs"]["Claim"]["properties"])
            inputs = schema["$defs"][by_quantity[claim["computes"]].rsplit("/", 1)[1]]
            assert set(claim.get("inputs", {})) <= set(inputs["properties"])
            assert inputs["additionalProperties"] is False


DOCS = (Path(__file__).parent.parent.parent / "docs" / "claims.md").read_text(encoding="utf-8")


def test_docs_name_every_quantity_and_their_example_is_explained(tmp_path: Path) -> None:
    for name in QUANTITIES:
        assert f"`{name}`" in DOCS
    path = tmp_path / "example.yaml"
    path.write_text(DOCS.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    (row,) = audit_file(path)
    assert row.verdict is Verdict.EXPLAINED
