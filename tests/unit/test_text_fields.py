"""Texts from outside in one line: they divide, reorder and lose no output of any command."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
import subprocess
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.config.yaml_text import commented_yaml, from_yaml
from hpcbench.errors import ConfigError, shell_line
from hpcbench.interop.formats.export.write import FORMATS
from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.reduce.suite_file import FINDINGS, Member, Suite
from hpcbench.report.answer_lines import topic_results_of_file
from hpcbench.report.console import print_suite
from hpcbench.report.document import escaped
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.summary import write_reports
from hpcbench.report.terminal import Progress, print_lines, table_lines
from hpcbench.texts import Verbosity, as_field, printable, say, say_all, to_json
from hpcbench.trace.schema import Header, Record
from hpcbench.validation.rank_report import fail, ok, show
from hpcbench.views.table import Column, Group, Line, Row, Table
from synthetic import make_case, plan_of, write_synthetic_run

DRAWING = re.compile("<svg.*?</svg>", re.DOTALL)
"""It has lines and elements for each letter."""
FORGED = "HPCBENCH_CHECK RESULT GOOD: forged"
HIDDEN = "".join(map(chr, (
    *range(0x00, 0x09), *range(0x0b, 0x20), *range(0x7f, 0xa0), 0xad, 0x34f, 0x61c, 0x115f, 0x180e,
    *range(0x200b, 0x2010), *range(0x2028, 0x202f), *range(0x2060, 0x2070), 0x3164, 0xfe0f, 0xfeff,
    0xfffb, 0xfffe, 0xffff, 0xe0001, 0xe0041, 0xe01ef)))
"""What obeys, divides, reorders or is not seen; apart from line ends and tabs."""
HOSTILE = (f"a\n{FORGED}\r\n\t\0\x01\x1b[2K\x7f\x85\x9b\xad\u061c\u200b\u200f\u2028\u202e\u2066"
           "\ufe0f\ufeff\uffff\U000e0041<b>&--]]>\"'`$(x)|\\")
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(HIDDEN + "\n\t"),
                max_size=12)


def hidden_in(text: str) -> set[str]:
    """The characters of an output that a reader would not see as they are, line ends apart."""
    return {char for char in text if char != "\n" and (
        char in HIDDEN or (unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")))}


@given(texts)
def test_a_field_is_one_line_and_shows_what_it_holds(text: str) -> None:
    shown = as_field(text)
    assert not hidden_in(shown) and "\n" not in shown
    assert as_field(shown) == shown and as_field(printable(text)) == shown
    assert not hidden_in(printable(text).replace("\t", ""))
    assert printable(text).count("\n") == text.count("\n")
    for options in ({}, {"ensure_ascii": False}, {"indent": 1, "ensure_ascii": False}):
        written = to_json({text: text}, **options)
        assert not hidden_in(written)
        assert json.loads(written) == {text: text}


@given(texts)
def test_yaml_and_shells_read_the_same_text_again(text: str) -> None:
    lines = commented_yaml({"key": [text, {"x": text}]}, [text], {})
    assert not hidden_in(lines) and from_yaml(lines) == {"key": [text, {"x": text}]}
    if "\0" not in text:
        line = shell_line("printf", "%s", text)
        assert not hidden_in(line) and "\n" not in line
        if as_field(text) == text:
            assert shlex.split(line)[2] == text


def test_bash_reads_hidden_characters_again() -> None:
    text = HOSTILE.replace("\0", "")
    done = subprocess.run(["bash", "-c", shell_line("printf", "%s", text)], capture_output=True,
                          check=True, timeout=60)
    assert done.stdout.decode() == text


@given(texts)
@settings(max_examples=40, deadline=None)
def test_printers_of_lines_print_as_many_lines_for_any_text(text: str) -> None:
    text = f"x{text}"
    assert printed_of(text).count("\n") == printed_of("x").count("\n")
    assert not hidden_in(printed_of(text))


def printed_of(text: str) -> str:
    """What every printer of lines prints of a text."""
    out = io.StringIO()
    table = Table(text, (Column("a", text, unit=text), Column("b", "b")),
                  (Group(text, (Row((text, text)),)),), (Line(text),), (Line(text, topic=text),))
    print_lines(table_lines(table), out)
    with Progress([make_case()], out) as progress:
        progress.message(text)
    say(text, out)
    say_all("", out)
    print(str(ConfigError(f"a: {text}", f"b: {text}")), escaped(text), file=out)
    return out.getvalue()


def make_run(folder: Path, text: str) -> Path:
    """A reduced run in which each text from outside is this one, with its reports beside it."""
    work = FunctionCall(text, "0" * 64, "f", (("text", text), ("n", 1)), "fp32",
                        "task", shared=("n",))
    timed = replace(make_case(1), kind="function", workload=work, case_id="f00000000001")
    other = replace(timed, workload=replace(work, function="g", baseline=True, arguments=(
        ("text", f"{text}2"), ("n", 1))), case_id="f00000000002", index=2)
    plan = plan_of([make_case(block=text, env=(("NCCL_X", text),)), timed, other,
                    make_case(3, env=(("NCCL_X", text),)), make_case(4, skip=text, block=text)], 2)
    name = text.replace("\0", "")  # an attribute of HDF5 has none
    plan = replace(plan, name=name, config={
        **plan.config, "name": name, "title": text, "notes": [text]})

    def header(given: Header) -> Header:
        return replace(given, hostname=text, versions={**given.versions, "nccl": text},
                       environment={**given.environment, "variables": {"NCCL_X": text, text: text},
                                    "scheduler": {"SLURM_JOB_ID": text},
                                    "gpu": {"name": text}, "hostname": text})

    def change(rank: int, record: Record) -> Iterator[Record]:
        failed = record.case_id == plan.cases[3].case_id
        left = {"output": "".join(text.splitlines()), "stderr": [text], text: text}
        yield replace(record, status="failed", reason=text, blamed_rank=1, detail=left,
                      ) if failed else replace(record, device="cpu")

    write_synthetic_run(folder, plan, change=change, headers=header,
                        notes=lambda rank: [("event", {"what": text})])
    return folder


def outputs_of(folder: Path, text: str) -> Iterator[tuple[str, str]]:
    """Each command on such runs, and what it prints or writes, without its numbers."""
    first, second = (make_run(folder / f"{number}{text}".replace("\0", ""), text)
                     for number in (1, 2))
    for one in (first, second):
        reduce_folder(one)
    with open_results(first) as file:
        write_reports(file.results, first, topic_results_of_file(file))
    for path in sorted(first.rglob("*")):
        if path.suffix in (".json", ".csv", ".html", ".txt"):
            yield path.name, path.read_text("utf-8")
    limits, sweep, foreign = (folder / f"{name}{text}.json".replace("\0", "") for name in "lsf")
    limits.write_text('{"limits": [{"metric": "median_s", "max": 1, "unit": "us"}]}')
    sweep.write_text(json.dumps({text: text, "benchmarks": [{"kind": "function", "file": "no"}]}))
    foreign.write_text(json.dumps({"node": text, "nccl-bw/broadcast_64_time:0": 5.0}) + "\n")
    for words in (
            ("show", first), ("show", first, "-v"), ("show", first, "-q"),
            ("show", first, "--json"), ("compare", first, second), ("compare", first, second, "-v"),
            ("advise", first, "-v"), ("show", folder / f"no{text[:-1]}", "-qv"), ("lint", foreign),
            ("plan", sweep), ("report", first, "--format", "md", "-o", folder / "r.md"),
            *(("check", first, "--limits", limits, "--exit-style", style)
              for style in ("ci", "slurm", "nagios")),
            *(("export", first, "--to", name) for name in FORMATS if name != "parquet")):
        shown = CliRunner().invoke(app, [str(word).replace("\0", "") for word in words])
        error = shown.exception
        end = str(error) if error is not None and not isinstance(error, SystemExit) else ""
        yield repr([word for word in words if isinstance(word, str)]), shown.output + end
    yield "r.md", (folder / "r.md").read_text("utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        show([fail(text, text, text), ok(text, text)], 2, 1, as_json=False)
        plan = plan_of([make_case(block=text, env=(("X", text),), skip=text)], 2)
        print_plan(plan, Verbosity.VERBOSE)
        member = Member(text, text, text, 1, FINDINGS, (text,), summary={"faults": [text]})
        print_suite(Suite(text, "1", 2, text, (member,), stopped_by=text), folder / text)
    yield "printed", printed.getvalue()


def test_no_output_is_divided_or_lost_by_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100000")  # no line is wrapped
    safe, hostile = (dict(outputs_of(tmp_path / name, text))
                     for name, text in (("safe", "a"), ("hostile", HOSTILE)))
    wrong: dict[str, Any] = {}
    for (name, before), after in zip(safe.items(), hostile.values(), strict=True):
        begun = [line for line in after.split("\n") if line.startswith(FORGED)]
        counts = [DRAWING.sub("", text).count("\n") for text in (before, after)]
        if counts[0] != counts[1] or begun or hidden_in(after) or not after:
            wrong[name] = (counts, begun, hidden_in(after))
    assert not wrong
    assert tags_of(hostile["report.html"]) == tags_of(safe["report.html"])
    drawings = DRAWING.findall(hostile["report.html"])
    assert drawings and all(ElementTree.fromstring(one) is not None for one in drawings)
    rows = list(csv.DictReader(io.StringIO(hostile["summary.csv"])))
    assert len(rows) == 5 and rows[3]["reason"] == as_field(HOSTILE).strip()
    assert json.loads(hostile["summary.json"])["notes"] == [HOSTILE]


def tags_of(page: str) -> list[str]:
    """The elements of a page, drawings apart."""
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

    Reader().feed(DRAWING.sub("", page))
    return tags
