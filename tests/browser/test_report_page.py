"""The page in a real Chromium: no error, no request, sliders that show the commands' numbers."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from tests.conftest import ENDINGS, HOSTILE

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no Chromium with chromedriver is installed"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
SIZES = {"phone": (390, 844), "small phone": (360, 740), "desktop": (1280, 900)}
KEYS = {"rank": "\ue014", "context_tokens": "\ue014", "batch_size": "\ue012"}  # right, right, left


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    environment = {**os.environ, "SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}
    service = webdriver.ChromeService(executable_path=DRIVER, env=environment)
    started = webdriver.Chrome(options=options, service=service)
    yield started
    started.quit()


def opened(browser: Any, page: Path, size: str, scheme: str = "light") -> None:
    """Show the page at that size; logs of what came before are dropped."""
    width, height = SIZES[size]
    browser.get("about:blank")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": "phone" in size},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())


def requests(browser: Any) -> list[str]:
    """URLs that the browser asked for since the page was opened."""
    found = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
    return found


def moved(browser: Any, key: str, places: int) -> str:
    """Move a slider with the keyboard; the text that the page then shows for it."""
    slider = browser.find_element("id", f"slider-{key}")
    for _ in range(places):
        slider.send_keys(KEYS[key])
    return str(browser.find_element("id", f"shown-{key}").text)


def shown(browser: Any, design: int) -> dict[str, tuple[str, str]]:
    """Key to (text, exact value) of one design's row."""
    cells = browser.find_elements("css selector", f"td[data-design='{design}']")
    return {
        cell.get_attribute("data-key"): (cell.text, cell.get_attribute("data-value"))
        for cell in cells
    }


@functools.cache
def answer(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return rows


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_no_error_no_request_and_no_sideways_scrolling(
    browser: Any, whole_report: Path, size: str, scheme: str
) -> None:
    page = whole_report / "index.html"
    opened(browser, page, size, scheme)
    moved(browser, "rank", 1)
    root = "document.documentElement"
    width, room, window = browser.execute_script(
        f"return [{root}.scrollWidth, {root}.clientWidth, window.innerWidth]"
    )
    assert width == room
    assert window == SIZES[size][0]
    assert browser.get_log("browser") == []
    assert requests(browser) == [page.as_uri()]


@pytest.mark.parametrize("size", SIZES)
def test_the_audit_page_fits_and_needs_nothing(browser: Any, size: str) -> None:
    page = Path(__file__).parent.parent.parent / "reports" / "paper-audit" / "index.html"
    opened(browser, page, size)
    root = "document.documentElement"
    width, room = browser.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
    assert width == room
    assert browser.find_elements("css selector", "input[type=range]") == []
    assert browser.get_log("browser") == []
    assert requests(browser) == [page.as_uri()]


def test_a_page_that_errs_or_loads_something_would_be_noticed(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'><script>undefined_name()</script>")
    opened(browser, page, "phone")
    assert any("undefined_name" in entry["message"] for entry in browser.get_log("browser"))
    assert "http://127.0.0.1:9/x.png" in requests(browser)


@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_sliders_show_what_the_commands_print(browser: Any, whole_report: Path, size: str) -> None:
    opened(browser, whole_report / "index.html", size)
    before = shown(browser, 2)
    assert moved(browser, "rank", 2) == "48"  # 16, 32, 48
    assert moved(browser, "context_tokens", 1) == "16,384 tokens"
    assert moved(browser, "batch_size", 3) == "4"  # 32, 16, 8, 4
    for design, name in ((0, "gqa:8"), (1, "mha"), (2, "lrkv:48"),
                         (3, "lrkv:48,position=rope_expand")):  # fmt: skip
        place = ["--attention", name, "--context-tokens", "16k"]
        (cache,) = answer("cache", "llama-3.1-8b", *place, "--batch-size", "4")
        (capacity,) = answer("capacity", "llama-3.1-8b", "--gpu", "h200", *place)
        steps = answer("plot", "step-stack", "llama-3.1-8b", "--gpu", "h200", *place,
                       "--batch-size", "4")  # fmt: skip
        (step,) = (row for row in steps if row["series"] == "step")
        found = shown(browser, design)
        assert int(found["cache_bytes_per_gpu"][1]) == cache["cache_bytes_per_gpu"]
        assert found["cache_bytes_per_gpu"][0].endswith("iB")
        assert int(found["max_sequences"][1]) == capacity["max_sequences"]
        assert found["max_sequences"][0] == f"{capacity['max_sequences']:,}"
        assert float(found["step_s"][1]) == step["time_s"]
        assert found["step_s"][0] == f"{1e3 * step['time_s']:.4g}"
        label = browser.find_element("css selector", f"[data-name='{design}']").text
        assert label == name
    assert shown(browser, 2) != before


def test_a_slider_tells_assistive_technology_its_value(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    slider = browser.find_element("id", "slider-context_tokens")
    assert slider.accessible_name == "Context per sequence"
    assert slider.get_attribute("aria-valuetext") == "8,192 tokens"
    moved(browser, "context_tokens", 1)
    assert slider.get_attribute("aria-valuetext") == "16,384 tokens"


def test_the_first_view_is_the_plan(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    batch = browser.find_element("id", "slider-batch_size").get_attribute("aria-valuetext")
    asked = ("plan", "llama-3.1-8b", "--gpu", "h200", "--batch-size", batch)
    plan = {r["attention"]: r for r in answer(*asked)}
    for design, name in ((0, "gqa:8"), (1, "mha"), (2, "lrkv:16")):
        found, row = shown(browser, design), plan[name]
        assert int(found["max_sequences"][1]) == row["max_sequences"]
        assert float(found["step_s"][1]) == row["step_s"]
        assert found["step_band"][0] == row["tpot_band"]


def test_a_page_without_script_has_every_table(browser: Any, whole_report: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, whole_report / "index.html", "phone")
        assert "The sliders need JavaScript" in browser.find_element("tag name", "noscript").text
        tables = browser.find_elements("tag name", "table")
        assert len(tables) == 1 + 1 + len(list((whole_report / "tables").glob("*.csv")))
        assert all(table.is_displayed() for table in tables)
        assert shown(browser, 0)["step_s"][0]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_a_hostile_name_is_text(browser: Any, hostile_report: Path, size: str) -> None:
    page = hostile_report / "index.html"
    opened(browser, page, size)
    assert browser.find_element("tag name", "h1").text == f"{HOSTILE} on h100-sxm"
    assert browser.title == f"{HOSTILE} on h100-sxm"
    assert ENDINGS in browser.find_element("id", "notes").text
    assert browser.find_elements("css selector", "main img, main script:not([type])") == []
    assert browser.execute_script("return document.scripts.length") == 2
    moved(browser, "batch_size", 1)
    assert browser.get_log("browser") == []
    assert requests(browser) == [page.as_uri()]
