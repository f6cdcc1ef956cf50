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
from lrkv_plan.report.screen import milliseconds, with_band
from tests.conftest import ENDINGS, HOSTILE, written_report

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
        cell.get_attribute("data-key"): (
            cell.find_element("class name", "v").text, cell.get_attribute("data-value")
        )
        for cell in cells
    }  # fmt: skip


def name_of(browser: Any, design: int) -> str:
    return str(browser.find_element("id", f"name-{design}").text)


def text_of(browser: Any, name: str) -> str:
    return str(browser.find_element("id", name).text)


def drawn_values(browser: Any, plot: str) -> dict[str, str]:
    """Design to value of the texts that stand at a picture's rule."""
    texts = browser.find_elements("css selector", f"#{plot} .value")
    pairs = (text.text.rsplit(" ", 1) for text in texts)
    return {name: number for number, name in pairs}


def opened_at(browser: Any, page: Path, fragment: str, size: str = "desktop") -> None:
    opened(browser, page, size)
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}#{fragment}")


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
    before = shown(browser, 4)
    assert moved(browser, "rank", 2) == "48"  # 16, 32, 48
    assert moved(browser, "context_tokens", 1) == "16k tokens"
    assert moved(browser, "batch_size", 3) == "4"  # 27, 16, 8, 4
    names = ("gqa:8", "mha", "mqa", "mla:512+64", "lrkv:48", "lrkv:48,position=rope_expand")
    users = drawn_values(browser, "plot-users")
    steps = drawn_values(browser, "plot-steps")
    for design, name in enumerate(names):
        place = ["--attention", name, "--context-tokens", "16k"]
        (cache,) = answer("cache", "llama-3.1-8b", *place, "--batch-size", "4")
        (capacity,) = answer("capacity", "llama-3.1-8b", "--gpu", "h200", *place)
        (step,) = answer("step-time", "llama-3.1-8b", "--gpu", "h200", *place, "--batch-size", "4")
        found = shown(browser, design)
        assert int(found["cache_bytes_per_gpu"][1]) == cache["cache_bytes_per_gpu"]
        assert found["cache_bytes_per_gpu"][0].endswith("iB")
        assert int(found["max_sequences"][1]) == capacity["max_sequences"]
        assert found["max_sequences"][0] == f"{capacity['max_sequences']:,}"
        assert float(found["step_s"][1]) == step["step_s"]
        assert found["step_s"][0] == milliseconds(step["step_s"])
        assert name_of(browser, design) == name
        if design < 5:  # the last line is under the one before it, and not drawn
            assert users[name] == found["max_sequences"][0]
            assert steps[name] == f"{found['step_s'][0]} ms"
    assert len(users) == len(steps) == 5
    assert shown(browser, 4) != before


def test_the_verdict_and_the_command_follow_the_sliders(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    moved(browser, "rank", 1)
    moved(browser, "context_tokens", 1)
    place = ("--attention", "lrkv:32", "--context-tokens", "16384")
    (other,) = answer("capacity", "llama-3.1-8b", "--gpu", "h200", *place)
    (own,) = answer("capacity", "llama-3.1-8b", "--gpu", "h200", *place[2:])
    assert text_of(browser, "verdict-users") == (
        f"llama-3.1-8b on one H200: {own['total_sequences']} users of 16k tokens fit with gqa:8, "
        f"{other['total_sequences']} with lrkv:32."
    )
    command = text_of(browser, "command").split()
    assert command[0] == "lrkv-plan"
    rows = {row["attention"]: row for row in answer(*command[1:])}
    for design, name in ((0, "gqa:8"), (2, "mqa"), (3, "mla:512+64"), (4, "lrkv:32")):
        found, row = shown(browser, design), rows[name]
        assert (
            int(found["total_sequences" if "total_sequences" in found else "max_sequences"][1])
            == row["total_sequences"]
        )
        assert float(found["step_s"][1]) == row["step_s"]
    step = shown(browser, 4)
    sentence = text_of(browser, "verdict-time")
    assert f"{step['step_s'][0]} ms ({step['step_band'][0]}) ○ with lrkv:32" in sentence


def test_a_batch_that_does_not_fit_has_no_time(browser: Any, whole_report: Path) -> None:
    opened_at(browser, whole_report / "index.html", "rank=16&context=131072&batch=8")
    (own,) = answer("capacity", "llama-3.1-8b", "--gpu", "h200", "--context-tokens", "131072")
    assert own["max_sequences"] < 8
    assert shown(browser, 0)["step_s"] == ("-", "")
    assert shown(browser, 0)["batch_fits"][0] == "does not fit"
    assert "gqa:8 does not hold that batch" in text_of(browser, "verdict-time")
    assert "gqa:8" not in drawn_values(browser, "plot-steps")
    assert "lrkv:16" in drawn_values(browser, "plot-steps")
    hatched = browser.find_elements("css selector", "#plot-steps .s0 .hatched")
    assert len(hatched) == 1
    assert browser.find_elements("css selector", "#plot-steps .s4 .hatched") == []  # mqa holds 8


def test_equal_cache_shows_what_rank_gives(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    browser.find_element("id", "equal").send_keys(" ")
    (row,) = answer("rank", "llama-3.1-8b", "--budget", "100% of own")
    names = [
        element.text
        for element in browser.find_elements("css selector", "[id^=name-]")
        if element.is_displayed()
    ]
    assert names[:5] == ["gqa:8", "mha", "mqa", row["mla_attention"], row["attention"]]
    assert text_of(browser, "verdict-users").endswith(f"with {row['attention']}.")
    at = next(n for n in range(9) if name_of(browser, n) == row["attention"])
    found = shown(browser, at)
    assert found["bytes_per_token_per_gpu"] == ("128 KiB", str(row["bytes_per_token_per_gpu"]))
    assert float(found["kv_params_ratio"][1]) == row["kv_params_ratio"]
    assert float(found["arithmetic_ratio"][1]) == row["arithmetic_ratio"]
    slider = browser.find_element("id", "slider-rank")
    assert not slider.is_enabled()
    assert text_of(browser, "shown-rank") == "set by the cache"
    rows = {one["attention"] for one in answer(*text_of(browser, "command").split()[1:])}
    assert {row["attention"], row["mla_attention"]} <= rows
    padded = "lrkv:28: its rows are stored padded to a multiple of 16"
    assert padded in text_of(browser, "explore")
    browser.find_element("id", "equal").send_keys(" ")
    assert slider.is_enabled()
    assert text_of(browser, "shown-rank") == "16"
    assert padded not in text_of(browser, "explore")


def test_the_cache_format_is_a_slider_too(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    browser.find_element("css selector", "input[name=kv_dtype][value='1']").click()
    place = ("--attention", "lrkv:16", "--context-tokens", "8192", "--kv-dtype", "fp8")
    (capacity,) = answer("capacity", "llama-3.1-8b", "--gpu", "h200", *place)
    assert int(shown(browser, 4)["max_sequences"][1]) == capacity["max_sequences"]
    assert browser.execute_script("return location.hash").endswith("&kv=fp8")
    assert text_of(browser, "own-cache") == "64.0 KiB"  # 2 x 32 layers x 8 heads x 128 x 1 B
    assert text_of(browser, "command").endswith("--kv-dtype fp8")


def test_times_can_be_drawn_against_the_batch(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    browser.find_element("css selector", "input[name=along][value=batch]").click()
    moved(browser, "batch_size", 1)
    place = ("--attention", "mqa", "--context-tokens", "8192", "--batch-size", "16")
    (step,) = answer("step-time", "llama-3.1-8b", "--gpu", "h200", *place)
    assert drawn_values(browser, "plot-steps")["mqa"] == f"{milliseconds(step['step_s'])} ms"
    assert "against the batch, at 8k tokens" in text_of(browser, "steps-along")


def test_lines_can_be_hidden_and_shown(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    box = browser.find_element("css selector", "input[data-line=mha]")
    box.send_keys(" ")
    assert "mha" not in drawn_values(browser, "plot-users")
    box.send_keys(" ")
    assert "mha" in drawn_values(browser, "plot-users")
    browser.find_element("css selector", "input[data-line=lrkv-2]").send_keys(" ")
    assert len(drawn_values(browser, "plot-users")) == 6


def test_the_address_holds_the_point(browser: Any, whole_report: Path) -> None:
    page = whole_report / "index.html"
    opened(browser, page, "desktop")
    moved(browser, "rank", 2)
    browser.find_element("id", "equal").send_keys(" ")
    browser.find_element("css selector", "input[name=along][value=batch]").click()
    browser.find_element("css selector", "input[data-line=mqa]").send_keys(" ")
    fragment = browser.execute_script("return location.hash")
    assert fragment == "#rank=48&context=8192&batch=27&equal=1&along=batch&hide=lrkv-2,mqa"
    told = [text_of(browser, name) for name in ("verdict-users", "verdict-time", "command")]
    values = drawn_values(browser, "plot-steps")
    opened_at(browser, page, fragment[1:])
    assert [text_of(browser, n) for n in ("verdict-users", "verdict-time", "command")] == told
    assert drawn_values(browser, "plot-steps") == values
    assert browser.execute_script("return location.hash") == fragment
    browser.find_element("id", "equal").send_keys(" ")
    assert text_of(browser, "shown-rank") == "48"
    browser.find_element("id", "reset").click()
    assert text_of(browser, "shown-rank") == "16"
    assert browser.execute_script("return location.hash") == "#rank=16&context=8192&batch=27"


def test_an_address_that_is_no_point_of_the_page_is_said(browser: Any, whole_report: Path) -> None:
    opened_at(browser, whole_report / "index.html", "rank=17&context=16384&equal=2&x=%3Cb%3E")
    assert text_of(browser, "told") == "Not a point of this page: rank=17, equal=2, x=<b>."
    assert text_of(browser, "shown-rank") == "16"
    assert text_of(browser, "shown-context_tokens") == "16k tokens"
    opened_at(browser, whole_report / "index.html", "cache")  # a place of the page
    assert text_of(browser, "told") == ""


def test_the_command_and_the_link_are_copied(browser: Any, whole_report: Path) -> None:
    page = whole_report / "index.html"
    opened(browser, page, "desktop")
    moved(browser, "context_tokens", 1)
    kept = "window.kept = []; document.addEventListener('copy', function () { window.kept.push("
    browser.execute_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        + kept + "String(document.activeElement.value)); }, true);"
    )  # fmt: skip
    browser.find_element("id", "copy-command").click()
    assert text_of(browser, "told") == "Command copied."
    browser.find_element("id", "copy-link").click()
    assert text_of(browser, "told") == "Link copied."
    command, link = browser.execute_script("return window.kept")
    assert command == text_of(browser, "command")
    assert link == f"{page.as_uri()}#rank=16&context=16384&batch=27"
    assert browser.execute_script("return document.activeElement.id") == "copy-link"


def test_the_clipboard_of_the_browser_is_used_where_it_has_one(
    browser: Any, whole_report: Path
) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    browser.execute_script(
        "window.kept = []; Object.defineProperty(navigator, 'clipboard', {value: "
        "{writeText: function (t) { window.kept.push(t); return Promise.resolve(); }}});"
    )
    browser.find_element("id", "copy-command").click()
    assert browser.execute_script("return window.kept") == [text_of(browser, "command")]
    assert text_of(browser, "told") == "Command copied."


def test_a_mark_opens_what_its_number_rests_on(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    cell = browser.find_element("css selector", "td[data-design='4'][data-key=step_s]")
    mark = cell.find_element("class name", "mark")
    assert mark.text == "○"
    assert mark.accessible_name == "○ assumed: low rank kernel, bf16"
    mark.send_keys("\ue007")
    chip = browser.switch_to.active_element.find_element("xpath", "..")
    assert chip.get_attribute("open") is not None
    assert "no public measurement of an LRKV kernel" in chip.text
    own = browser.find_element("css selector", "td[data-design='0'][data-key=step_s] .mark")
    assert own.accessible_name == "● measured: grouped kernel, bf16, 2.0 %"
    chips = browser.find_element("class name", "chips")
    assert "measured: grouped kernel, bf16, 2.0 %" in chips.text
    assert "fp8" not in chips.text  # no number on this page rests on it now
    browser.find_element("css selector", "input[name=kv_dtype][value='1']").click()
    assert "measured: grouped kernel, fp8, 2.4 %" in chips.text
    assert "bf16" not in chips.text.partition("memory left")[0]


def test_no_control_is_dead(browser: Any, whole_report: Path) -> None:
    """Each control changes the page, by keyboard."""
    opened(browser, whole_report / "index.html", "desktop")
    browser.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    controls = browser.find_elements("css selector", ".controls input, .actions button")
    assert len(controls) == 3 + 2 + 1 + 2 + 6 + 3
    for control in controls:
        assert control.is_displayed()
        assert control.is_enabled()
        before = browser.find_element("id", "explore").get_attribute("outerHTML")
        radio = control.get_attribute("type") == "radio"
        if radio and control.is_selected():
            continue
        if control.tag_name == "button":
            control.send_keys("\ue007")
        else:
            control.send_keys("\ue014" if control.get_attribute("type") == "range" else " ")
        after = browser.find_element("id", "explore").get_attribute("outerHTML")
        if control.get_attribute("id") == "equal":
            control.send_keys(" ")
        is_changed = after != before  # pytest would print both pages
        assert is_changed, control.get_attribute("outerHTML")


def test_what_cannot_be_computed_has_no_control(browser: Any, tmp_path: Path) -> None:
    folder = written_report(tmp_path / "paper", "lrkv-paper-2.5b", "h200")
    opened(browser, folder / "index.html", "desktop")
    assert text_of(browser, "verdict-time").startswith("No step time: lrkv-paper-2.5b: ")
    controls = browser.find_elements("css selector", ".controls input")
    kinds = [one.get_attribute("id") or one.get_attribute("name") for one in controls]
    assert kinds == [
        "slider-rank", "slider-context_tokens", "slider-batch_size", "kv_dtype", "kv_dtype",
        "equal",
    ]  # fmt: skip
    moved(browser, "context_tokens", 1)
    (cache,) = answer("cache", "lrkv-paper-2.5b", "--context-tokens", "16k", "--batch-size", "1")
    assert int(shown(browser, 0)["cache_bytes_per_gpu"][1]) == cache["cache_bytes_per_gpu"]
    assert browser.get_log("browser") == []


def test_a_click_on_a_curve_moves_its_slider(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    plot = browser.find_element("css selector", "#plot-users svg")
    action = webdriver.ActionChains(browser)
    action.move_to_element_with_offset(plot, plot.size["width"] // 2 - 15, 0).click().perform()
    assert text_of(browser, "shown-context_tokens") == "128k tokens"


def test_a_slider_tells_assistive_technology_its_value(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    slider = browser.find_element("id", "slider-context_tokens")
    assert slider.accessible_name == "Context per user"
    assert slider.get_attribute("aria-valuetext") == "8k tokens"
    moved(browser, "context_tokens", 1)
    assert slider.get_attribute("aria-valuetext") == "16k tokens"
    picture = browser.find_element("css selector", "#plot-users svg")
    assert picture.accessible_name.startswith("Users that fit: ")


def test_the_first_view_is_the_plan(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    batch = browser.find_element("id", "slider-batch_size").get_attribute("aria-valuetext")
    asked = ("plan", "llama-3.1-8b", "--gpu", "h200", "--batch-size", batch)
    plan = {r["attention"]: r for r in answer(*asked)}
    for design, name in ((0, "gqa:8"), (1, "mha"), (2, "mqa"), (3, "mla:512+64"), (4, "lrkv:16")):
        found, row = shown(browser, design), plan[name]
        assert int(found["max_sequences"][1]) == row["max_sequences"]
        assert float(found["step_s"][1]) == row["step_s"]
        printed = with_band(row["tpot_s"], row["tpot_low_s"], row["tpot_high_s"])
        assert f"{found['step_s'][0]} ({found['step_band'][0]})" == printed


def test_a_page_without_script_has_every_table(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "phone")
    told = [text_of(browser, name) for name in ("verdict-users", "verdict-time", "command")]
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, whole_report / "index.html", "phone")
        assert "need JavaScript" in browser.find_element("tag name", "noscript").text
        tables = browser.find_elements("tag name", "table")
        assert len(tables) == 1 + 1 + len(list((whole_report / "tables").glob("*.csv")))
        assert all(table.is_displayed() for table in tables)
        assert shown(browser, 0)["step_s"][0]
        assert [text_of(browser, n) for n in ("verdict-users", "verdict-time", "command")] == told
        for plot in ("plot-users", "plot-steps"):
            curves = browser.find_element("css selector", f"#{plot} svg")
            assert curves.size["height"] > 150
        details = browser.find_elements("tag name", "details")
        assert details
        assert all(one.get_attribute("open") is not None for one in details)
        controls = browser.find_elements("css selector", "input, button")
        assert controls
        assert not any(control.is_displayed() for control in controls)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tables_are_cards_on_a_phone(browser: Any, whole_report: Path, scheme: str) -> None:
    opened(browser, whole_report / "index.html", "phone", scheme)
    for table in browser.find_elements("css selector", "table.stacks"):
        width, room = browser.execute_script(
            "return [arguments[0].scrollWidth, arguments[0].parentElement.clientWidth]", table
        )
        assert width <= room
        cell = table.find_element("css selector", "td")
        label = browser.execute_script(
            "return getComputedStyle(arguments[0], '::before').content", cell
        )
        assert label.strip('"') == cell.get_attribute("data-label")


def test_a_table_that_scrolls_keeps_its_first_column(browser: Any, whole_report: Path) -> None:
    opened(browser, whole_report / "index.html", "desktop")
    scrolling = [
        box
        for box in browser.find_elements("css selector", ".wide")
        if browser.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", box)
    ]
    assert scrolling
    for box in scrolling:
        browser.execute_script("arguments[0].scrollLeft = 60", box)
        first = box.find_element("css selector", "tbody tr :first-child")
        assert abs(first.rect["x"] - box.rect["x"]) < 2


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
