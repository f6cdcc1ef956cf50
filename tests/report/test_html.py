"""The page: self-contained, complete without its script, and hostile text stays text."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lrkv_plan import load_hardware, load_model
from lrkv_plan.report.html import to_html
from lrkv_plan.report.provenance import Chip
from tests.conftest import ENDINGS, HOSTILE
from tests.report.test_markdown import document


class Page(HTMLParser):
    """Tags with attributes, and the text of each, as a browser would split them."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.comments: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        inside = self.tags[-1][0] if self.tags else ""
        (self.scripts if inside == "script" else self.texts).append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


@pytest.fixture(scope="module")
def page(whole_report: Path) -> Page:
    return Page(whole_report / "index.html")


@pytest.fixture(scope="module")
def hostile(hostile_report: Path) -> Page:
    return Page(hostile_report / "index.html")


def test_nothing_is_loaded_from_anywhere(page: Page, hostile: Page) -> None:
    for one in (page, hostile):
        for tag, attributes in one.tags:
            assert tag not in ("img", "iframe", "object", "embed", "audio", "video", "base", "form")
            for name in ("src", "srcset", "data", "poster", "action", "background"):
                assert name not in attributes, (tag, attributes)
            href = attributes.get("href") or ""
            if tag == "a":
                assert href.startswith(("#", "https://", "http://"))
            elif href:
                assert href == "data:," or href.startswith("#"), (tag, href)
        style = "".join(re.findall(r"<style>(.*?)</style>", one.source, re.DOTALL))
        assert "url(" not in style
        assert "@import" not in style


def test_only_the_pages_own_script_may_run(page: Page, hostile: Page) -> None:
    for one in (page, hostile):
        kinds = [attributes.get("type") for tag, attributes in one.tags if tag == "script"]
        assert kinds == ["application/json", None]
        own = re.findall(r"<script>(.*?)</script>", one.source, re.DOTALL)
        assert len(own) == 1
        digest = base64.b64encode(hashlib.sha256(own[0].encode()).digest()).decode()
        (policy,) = (a["content"] for t, a in one.tags if "http-equiv" in a)
        assert f"script-src 'sha256-{digest}'" in (policy or "")
        assert "default-src 'none'" in (policy or "")
        for tag, attributes in one.tags:
            assert not any(name.startswith("on") for name in attributes), (tag, attributes)


def test_hostile_text_is_shown_as_it_is_written(hostile: Page) -> None:
    shown = "\n".join(hostile.texts)
    assert f"{HOSTILE} on h100-sxm" in shown
    assert ENDINGS in shown
    assert "<script>alert" not in hostile.source
    assert "<img" not in hostile.source
    assert "<b>" not in hostile.source
    assert hostile.comments == []


def test_hostile_text_stays_inside_the_data(hostile: Page) -> None:
    data = json.loads(hostile.scripts[0])
    assert data["designs"]
    assert "<" not in hostile.scripts[0]


def test_a_name_in_the_data_cannot_end_its_block() -> None:
    from lrkv_plan.report.explorer import GridAxis, GridDesign, Measure, SliderGrid

    def measure(key: str) -> Measure:
        return Measure(key=key, title=ENDINGS, strides=(0, 0, 0, 0), values=(1,), texts=(ENDINGS,))

    def axis(key: str) -> GridAxis:
        return GridAxis(
            key=key, label=ENDINGS, fragment=key, values=(1,), texts=(ENDINGS,), ticks=(ENDINGS,),
            start=0,
        )  # fmt: skip

    keys = ("total_sequences", "step_s", "step_band", "low_s", "high_s", "batch_fits")
    chips = Measure(key="time_basis", title="", strides=(0, 0, 0, 0), values=(0,), texts=("●",))
    rest = Measure(key="foundations", title="", strides=(0, 0, 0, 0), values=([0],))
    design = GridDesign(
        role=ENDINGS, line="own", style=0, sets=("planned",), is_covered=False,
        name=measure("attention"), measures=(*map(measure, keys), chips, rest),
    )  # fmt: skip
    told = document("c")
    text = to_html(
        type(told)(
            title=ENDINGS, subtitle=ENDINGS, command=ENDINGS,
            grid=SliderGrid(
                axes=(axis("rank"), axis("context_tokens"), axis("batch_size"), axis("kv_dtype")),
                designs=(design,), compared={"planned": None, "equal": None}, where=ENDINGS,
                own_cache=ENDINGS, command=ENDINGS,
                chips=(Chip(word="exact", label=ENDINGS, lines=(ENDINGS,)),),
            ),
        ),
        {"explore-users": b"<svg></svg>", "explore-steps": b"<svg></svg>"},
    )  # fmt: skip
    assert text.count("</script>") == 2
    assert "<img" not in text
    found = re.search(r'id="grid-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["where"] == ENDINGS
    name = data["columns"][data["designs"][0]["measures"]["attention"]["column"]]
    assert name["texts"] == [ENDINGS]


def test_hostile_text_stays_text_in_pictures_and_markdown(hostile_report: Path) -> None:
    for path in (hostile_report / "figures").glob("*.svg"):
        text = path.read_text()
        assert "<script" not in text
        assert "<img" not in text
    markdown = (hostile_report / "report.md").read_text()
    outside = re.sub(r"(?ms)^(`{3,})sh$.*?^\1$", "", markdown)
    assert "<" not in outside
    assert "](javascript" not in outside.replace("\\]", "")


def test_no_path_is_made_from_a_name(hostile_report: Path) -> None:
    names = sorted(p.relative_to(hostile_report).as_posix() for p in hostile_report.rglob("*.*"))
    assert all(re.fullmatch(r"(tables/|figures/)?[a-z-]+\.(html|md|csv|svg|png)", n) for n in names)


def test_ids_are_unique_and_links_lead_somewhere(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for tag, attributes in page.tags:
        href = attributes.get("href") or ""
        if tag in ("a", "use") and href.startswith("#"):
            assert href[1:] in ids
        for name in ("for", "aria-labelledby"):
            if attributes.get(name):
                assert attributes[name] in ids


def test_every_slider_has_a_label_and_a_text_for_its_value(page: Page) -> None:
    labels = {attributes.get("for") for tag, attributes in page.tags if tag == "label"}
    sliders = [a for tag, a in page.tags if tag == "input" and a.get("type") == "range"]
    assert len(sliders) == 3
    for slider in sliders:
        assert slider["id"] in labels
        assert slider["aria-valuetext"]


def test_all_tables_are_there_without_the_script(page: Page, whole_report: Path) -> None:
    n_rows = sum(tag == "tr" for tag, _ in page.tags)
    shown = "\n".join(page.texts)
    for path in (whole_report / "tables").glob("*.csv"):
        assert f"part-{path.stem}" in page.source
    with (whole_report / "tables" / "plan.csv").open() as file:
        for row in csv.DictReader(file):
            assert row["attention"] in shown.replace(",\n", ",")
            assert f"{1e3 * float(row['step_s']):.4g}" in shown
    assert n_rows > 100


def test_the_page_holds_no_date_of_its_making(page: Page, whole_report: Path) -> None:
    markdown = (whole_report / "report.md").read_text()
    gpu, model = load_hardware("h200"), load_model("llama-3.1-8b")
    assert gpu.hourly_price is not None
    dates = {str(one.read_on) for one in (*gpu.source, *model.source, gpu.hourly_price)}
    for text in (page.source, markdown):
        assert set(re.findall(r"20\d\d-\d\d-\d\d", text)) <= dates
        for date in re.finditer(r"20\d\d-\d\d-\d\d", text):
            assert text[: date.start()].endswith("read on ")


def colours(source: str, dark: bool) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", source, re.DOTALL)
    found = dict(re.findall(r"(--[a-z-]+): (#[0-9a-f]{6})", blocks[int(dark)]))
    assert found
    return found


def contrast(one: str, other: str) -> float:
    """WCAG 2.2 contrast ratio: (L1 + 0.05) / (L2 + 0.05) of relative luminances."""

    def luminance(color: str) -> float:
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_have_the_contrast_that_wcag_asks_for(page: Page, dark: bool) -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    found = colours(page.source, dark)
    for text in ("--ink", "--muted", "--accent"):
        for ground in ("--page", "--surface", "--soft"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    assert contrast(found["--warn"], found["--warn-soft"]) >= 4.5
    assert contrast(found["--fig-ink"], found["--fig-paper"]) >= 4.5
    assert contrast(found["--fig-soft"], found["--fig-paper"]) >= 4.5
    for line in ("black", "blue", "vermillion", "green"):
        assert contrast(found[f"--fig-{line}"], found["--fig-paper"]) >= 3, line
