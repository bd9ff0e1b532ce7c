"""The report in a real browser: headless Chromium, with a small run and with hostile names."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.answers.answer import Run
from hpcbench.report.page import html_text
from hpcbench.report.report_file import document_of
from unit.results_factory import MemorySamples, all_ok, mixed_results, sweep

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
HOSTILE = "<script>document.title='taken'</script></style><img src=http://127.0.0.1:9/x>"
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose block, host and reasons carry markup."""
    results = mixed_results()
    cases = tuple(replace(item, case=replace(item.case, block=HOSTILE),
                          reason=item.reason and f"{item.reason} {HOSTILE}")
                  for item in results.cases)
    results = replace(results, cases=cases, run=replace(results.run, nodes=(HOSTILE,)),
                      plan=replace(results.plan, cases=tuple(item.case for item in cases)))
    path = tmp_path_factory.mktemp("page") / "report.html"
    run = Run(HOSTILE, results, MemorySamples(results))
    path.write_text(html_text(document_of([run]), "1"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Chromium for all tests; its log of requests and its console are kept."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        assert "CI" not in os.environ
        pytest.skip("no Chromium: chromium or chromium-driver is missing")
    options = selenium.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = selenium.Chrome(options, selenium.ChromeService(driver))
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The page, freshly loaded, with empty logs."""
    browser.set_window_size(1400, 1000)
    for name in ("browser", "performance"):
        browser.get_log(name)
    browser.get(page.as_uri())
    return browser


def texts(browser: Any, column: int, table: int = 0) -> list[str]:
    """Return the cells of a column in the first table that has several rows."""
    return list(browser.execute_script("""
        const table = [...document.querySelectorAll("table")].filter(
            one => one.querySelectorAll("tbody:not(.heading) tr").length > 3)[arguments[1]];
        return [...table.querySelectorAll("tbody:not(.heading) > tr:not([hidden])")].map(
            row => row.cells[arguments[0]].textContent)""", column, table))


def test_no_request_no_error_and_hostile_names_are_texts(opened: Any) -> None:
    assert opened.title.startswith("demo on ") and opened.title.endswith(", 2026-03-01")
    assert HOSTILE in opened.find_element("tag name", "main").text
    assert opened.get_log("browser") == []
    asked = [json.loads(one["message"])["message"] for one in opened.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in asked
            if one["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith(("file:", "data:")) for url in urls)


def test_a_click_and_the_enter_key_sort(opened: Any) -> None:
    head = opened.find_elements("css selector", "figure.table thead th")
    before = texts(opened, 0)
    numbers = next(one for one in head if "number" in one.get_attribute("class"))
    numbers.click()
    opened.implicitly_wait(1)
    assert numbers.get_attribute("aria-sort") == "ascending"
    numbers.send_keys("\n")
    assert numbers.get_attribute("aria-sort") == "descending"
    assert sorted(texts(opened, 0)) == sorted(before)


def test_find_leaves_the_rows_with_the_text(opened: Any) -> None:
    field = opened.find_element("css selector", "#outcomes .find")
    field.send_keys("SIGKILL")
    rows = opened.find_elements("css selector", "#outcomes tbody tr")
    shown = [row.text for row in rows if row.is_displayed()]
    assert len(shown) == 1 and "SIGKILL" in shown[0]


def test_a_narrow_page_shows_what_is_compared_and_charts_of_one_column(opened: Any) -> None:
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False})
    try:
        opened.refresh()
        seen = opened.execute_script("""
            const table = document.querySelector("#kind-collective table");
            const first = table.querySelector("tbody td");
            const edges = [...table.querySelectorAll("thead th:not([hidden])")].filter(
                one => one.textContent.includes("busbw")).map(
                one => one.getBoundingClientRect().right);
            const shown = name => [...document.querySelectorAll(name)].some(
                one => one.offsetParent);
            return [edges, getComputedStyle(first).position, shown(".drawing.broad"),
                    shown(".drawing.narrow"), document.documentElement.scrollWidth]""")
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert seen[0] and max(seen[0]) <= 420 and seen[1:4] == ["sticky", False, True]
    assert seen[4] <= 420


def test_a_column_can_be_hidden_and_rows_copied(opened: Any) -> None:
    figure = opened.find_element("css selector", "#kind-collective figure.table")
    figure.find_element("css selector", ".columns summary").click()
    figure.find_element("css selector", ".columns input").click()
    assert not figure.find_elements("css selector", "thead th")[0].is_displayed()
    figure.find_element("css selector", ".copy").click()
    said = figure.find_element("css selector", ".said")
    until = time.monotonic() + 20
    while not said.text and time.monotonic() < until:  # the browser copies meanwhile
        time.sleep(0.05)
    assert said.text in ("copied", "this browser does not allow it")


def test_a_line_chart_can_be_zoomed_into(opened: Any, tmp_path: Path) -> None:
    results = all_ok(sweep(backends=("gloo", "mpi")))
    path = tmp_path / "report.html"
    path.write_text(html_text(document_of([Run("run", results, MemorySamples(results))]), "1"),
                    encoding="utf-8")
    opened.get(path.as_uri())
    button = opened.find_element("css selector", "button.zoom")
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    assert opened.find_elements("css selector", ".zoomed canvas")
    assert opened.get_log("browser") == []


@pytest.mark.parametrize("width", [1000, 1400, 2560])
def test_the_page_does_not_scroll_sideways(opened: Any, width: int) -> None:
    opened.set_window_size(width, 900)
    assert opened.execute_script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_checker_of_accessibility_finds_nothing_serious(opened: Any, scheme: str) -> None:
    axe = Path(pytest.importorskip("axe_core_python").__file__).parent / "axe.min.js"
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": scheme}]})
    # the page's policy refuses scripts from elsewhere; the driver's are not of the page
    found = opened.execute_async_script(
        f"{axe.read_text(encoding='utf-8')};"
        "const done = arguments[arguments.length - 1]; axe.run().then(done);")
    serious = [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]
               if one["impact"] in SERIOUS]
    assert serious == []


def test_it_prints_on_pages(opened: Any) -> None:
    document = base64.b64decode(opened.print_page())
    assert document.startswith(b"%PDF")
    pypdf = pytest.importorskip("pypdf")
    read = pypdf.PdfReader(io.BytesIO(document))
    assert len(read.pages) > 1
    assert "Verdict" in read.pages[0].extract_text()
