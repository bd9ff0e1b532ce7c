"""The report: what is on it, what is refused, and that hostile texts stay texts."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import Mock

import jinja2
import pytest

from hpcbench.answers.answer import Run, Topic, TopicOptions, TopicRecord
from hpcbench.answers.topics import topics
from hpcbench.commands.results import report
from hpcbench.errors import FileError, UsageError
from hpcbench.report import page
from hpcbench.report.document import (
    MOST_BYTES,
    Cards,
    ReportDocument,
    ReportSection,
    escaped,
    markdown_text,
)
from hpcbench.report.page import html_text
from hpcbench.report.plots import drawn
from hpcbench.report.report_file import chosen_format, document_of, output_path, runs_below
from hpcbench.views.chart import Axis, ChartPoint, LineChart, Panel
from hpcbench.views.chart import Curve as ChartLine
from hpcbench.views.table import Column, Group, Line, Range, Row, Show, Table
from results_factory import MemorySamples, make_case, make_results, mixed_results, not_ok

HOSTILE = (
    "<script>alert(1)</script>", "</style><img src=x onerror=alert(1)>", "javascript:alert(1)",
    "\"' onmouseover=alert(1) x='", "{{ 7 * 7 }}", "]]>--><svg onload=alert(1)>", "x" * 10_000,
    "$\\nonsense{$")
DRAWN = ("svg", "g", "path", "use", "defs", "clippath", "rect")
"""Elements of figures: their number depends on the text that is drawn."""


class Page(HTMLParser):
    """What a browser would find: tags with attributes, ids, texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.inside:
            self.inside[self._open].append(data)
        else:
            self.texts.append(data)


def shape(page: Page) -> list[tuple[str, set[str]]]:
    return [(tag, set(found)) for tag, found in page.tags if tag not in DRAWN]


def chart(title: str = "times") -> LineChart:
    points = tuple((float(2**at), ChartPoint(at + 1.0, Range(at + 0.5, at + 2.0)))
                   for at in range(5))
    return LineChart(title, title, "times", (title,), (), Axis(title), (
        Panel(Axis(title, Show.US, "us"), (ChartLine(title, points),), title),))


def table(text: str = "value") -> Table:
    return Table(text, (Column("a", text, meaning=text), Column("b", "time", Show.US, "us")), (
        Group(text, (Row((text, 1.5e-6)), Row((None, Range(1e-6, 3e-6)), "failed"))),),
        lead=(Line(text, "quiet"),), notes=(Line(text, "warning"),))


def document(text: str = "value") -> ReportDocument:
    items = (Line(text), table(text), chart(text))
    return ReportDocument(text, text, (ReportSection("one", text, items),), text)


def results_document() -> ReportDocument:
    results = mixed_results()
    return document_of([Run("results/latest", results, MemorySamples(results))])


def test_sections_stand_in_the_order_of_a_persons_questions() -> None:
    keys = [section.key for section in results_document().sections]
    wanted = ["verdict", "best", "findings", "next", "kind-collective", "course", "outcomes",
              "environment", "method"]
    assert [key for key in keys if key in wanted] == wanted


def test_planned_is_the_sum_of_all_outcomes() -> None:
    results = mixed_results()
    (row,) = [item for item in results_document().sections[0].items if isinstance(item, Cards)]
    assert row.cards[0].title == f"of {len(results.cases)} cases measured"
    assert sum(int(card.value) for card in row.cards) == len(results.cases)


def test_a_run_without_an_ok_case_states_it_first() -> None:
    case = make_case()
    results = make_results((not_ok(case, "failed", "it broke"),))
    found = document_of([Run("x", results, MemorySamples(results))])
    first = found.sections[0].items[0]
    assert isinstance(first, Line) and first.tone == "bad"
    assert "it broke" in html_text(found, "1")


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = Page(html_text(results_document(), "1"))
    for tag, found in page.tags:
        assert tag not in ("link", "iframe", "object", "base")
        assert not any(name.startswith("on") or name == "style" for name in found), (tag, found)
        for name in ("src", "href"):
            assert re.match(r"#|data:image/png;base64,", found.get(name) or "#"), (tag, found)


def test_the_policy_allows_the_pages_own_style_and_script_only() -> None:
    page = Page(html_text(results_document(), "1"))
    policy = next(found["content"] or "" for tag, found in page.tags
                  if found.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    style, script = page.inside["style"][0], page.inside["script"][-1]
    for text in (style, script):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_stay_texts(text: str) -> None:
    markup = html_text(document(text), "1")
    plain, page = Page(html_text(document(), "1")), Page(markup)
    assert shape(page) == shape(plain)
    assert text in page.texts
    assert len(markup) < 700_000


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_stay_texts_in_markdown(text: str) -> None:
    found = markdown_text(document(text), ["plots/times.png"])
    assert "<" not in found.replace("&lt;", "")
    assert "](javascript:" not in found


def test_ids_of_figures_differ_and_are_all_used() -> None:
    both = drawn(chart(), 1) + drawn(chart(), 2)
    ids = re.findall(r'\bid="([^"]+)"', both)
    assert ids and len(ids) == len(set(ids))
    links = set(re.findall(r'(?:href="|url\()#([^")]+)', both))
    assert links == set(ids)
    assert "style" not in both


def test_without_a_script_there_is_none() -> None:
    assert "<script" not in html_text(document(), "1", scripted=False)


def test_markdown_is_short_enough_for_a_comment_and_states_what_is_left_out() -> None:
    many = Table("t", (Column("a", "a"),), (Group("", tuple(Row(("x" * 50,)) for _ in range(90))),))
    found = markdown_text(ReportDocument("d", "", (ReportSection("s", "s", (many,) * 40),)))
    assert len(found.encode()) < MOST_BYTES
    assert "did not fit" in found


def test_markdown_marks_mean_nothing() -> None:
    assert escaped("a|b *c* [d](e) <f>\ng") == r"a\|b \*c\* \[d\](e) &lt;f&gt; g"


@pytest.mark.parametrize(("given", "path", "wanted"), [
    ("markdown", None, "md"), ("markdown", "r.md", "md"),
    (None, None, "html"), (None, "r.pdf", "pdf"), ("md", None, "md"), ("md", "r.md", "md"),
    (None, "r", "html")])
def test_formats(given: str | None, path: str | None, wanted: str) -> None:
    assert chosen_format(given, Path(path) if path else None) == wanted


@pytest.mark.parametrize(("given", "path", "message"), [
    ("doc", None, "allowed are html, pdf, md"), ("pdf", "r.html", r"ends in \.pdf"),
    (None, "r.txt", "a report ends in")])
def test_wrong_formats_are_one_line(given: str | None, path: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        chosen_format(given, Path(path) if path else None)


def test_where_a_report_goes(tmp_path: Path) -> None:
    assert output_path([tmp_path], None, "html") == tmp_path / "report.html"
    assert output_path([tmp_path / "results.h5"], None, "md") == tmp_path / "report.md"
    assert output_path([tmp_path, tmp_path], None, "pdf") == Path("report.pdf")


def test_files_and_a_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not both"):
        report([tmp_path], tmp_path)


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("mine")
    with pytest.raises(FileError, match="--force"):
        report([tmp_path])
    assert target.read_text() == "mine"


def test_a_source_without_runs_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no folder in it has a results\.h5"):
        runs_below(tmp_path)
    with pytest.raises(FileError, match="no such folder"):
        runs_below(tmp_path / "missing")


def test_answers_of_one_run_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(topic: Topic) -> Topic:
        def analysis(runs: Sequence[Run], given: TopicOptions) -> TopicRecord:
            asked.append(topic.name)
            return topic.analysis(runs, given)
        return replace(topic, analysis=analysis)

    names = [topic.name for topic in topics()]
    for module in ("hpcbench.answers.topics", "hpcbench.report.report_file"):
        monkeypatch.setattr(f"{module}.topics", lambda **which: list(map(counted, topics(**which))))
    results_document()
    assert sorted(asked) == sorted(names)


def test_the_compiled_template_is_written_as_modules_are_and_read_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "_COMPILED", tmp_path)
    monkeypatch.setattr(page, "_template", page._template.__wrapped__)
    for is_read_only, n_files in ((True, 0), (False, 1)):
        monkeypatch.setattr(sys, "dont_write_bytecode", is_read_only)
        page._template()
        assert len([*tmp_path.iterdir()]) == n_files
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(jinja2.Environment, "compile", Mock(side_effect=AssertionError))
    page._template()
