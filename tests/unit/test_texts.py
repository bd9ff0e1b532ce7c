"""Texts from outside of any bytes: they divide, reorder and lose no output of any command."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.config.load import load_config, parse_assignment
from hpcbench.config.yaml_text import commented_yaml, from_yaml
from hpcbench.errors import ConfigError, shell_line
from hpcbench.interop.formats.export.write import FORMATS
from hpcbench.interop.formats.tables import Printed, printed
from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.launch.template_process import process_state
from hpcbench.launch.worker_process import text_of
from hpcbench.measurement.environment import machine, recorded_variables
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.reduce.suite_file import FINDINGS, Member, Suite
from hpcbench.report.answer_lines import topic_results_of_file
from hpcbench.report.console import print_suite
from hpcbench.report.document import escaped
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.report_file import open_runs, write_report
from hpcbench.report.summary import write_reports
from hpcbench.report.terminal import Progress, print_lines, table_lines
from hpcbench.texts import (
    Verbosity,
    as_field,
    from_json,
    is_valid,
    masked,
    path_of,
    printable,
    say,
    say_all,
    stored_path,
    to_json,
    valid,
)
from hpcbench.trace import columns
from hpcbench.trace import journal as frames
from hpcbench.trace import sealed as tables
from hpcbench.trace.journal import Journal, journal_path, read_journal
from hpcbench.trace.schema import Header, Record
from hpcbench.trace.sealed import open_trace, seal, trace_path
from hpcbench.validation.rank_report import fail, ok, show
from hpcbench.views.table import Column, Group, Line, Row, Table
from package_source import modules
from synthetic import make_case, make_header, make_plan, make_record, plan_of, write_synthetic_run

NAME = "f\udcfcr"
"""What Python makes of the bytes ``f\xfcr``, which are Latin-1."""
ESCAPES = "\x1b[31mred\x07\x9b0m\r"
PLAN = make_plan(n_cases=2, passes=1)
outside = st.binary(max_size=40).map(os.fsdecode) | st.text(
    st.characters(categories=("Cs", "Cc", "Lu", "So")), max_size=20)
any_bytes = st.binary(min_size=1, max_size=40).filter(lambda data: not {0, 47} & set(data))
FOLDER = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture],
                  deadline=None)


@given(any_bytes | st.sampled_from([rb"a\xe9", b"a\xe9", rb"\x5cxe9", rb"\x5c", b"\\\xe9"]))
def test_a_stored_path_is_the_same_path_again(data: bytes) -> None:
    stored = stored_path(os.fsdecode(data))
    assert is_valid(stored) and stored_path(path_of(stored)) == stored
    assert os.fsencode(path_of(stored)) == os.fsencode(Path(os.fsdecode(data)))


def test_a_stored_path_reads_like_the_path() -> None:
    assert stored_path("/data/café") == "/data/café"
    assert stored_path(os.fsdecode(b"/data/caf\xe9")) == r"/data/caf\xe9"
    assert path_of("C:\\x") == Path("C:\\x")


@given(outside)
def test_what_is_stored_is_valid_and_stays_as_it_is(text: str) -> None:
    assert is_valid(valid(text)) and valid(valid(text)) == valid(text)
    assert not is_valid(text) or valid(text) == text
    value = {text: [text, {"x": text}], "n": 1}
    for written in (to_json(value), to_json(value, ensure_ascii=False)):
        written.encode()
        assert from_json(written) == from_json(written.encode()) == json.loads(written)
        assert is_valid(json.dumps(json.loads(written), ensure_ascii=False))


def test_numbers_stay_what_they_are_beside_a_pair_of_halves() -> None:
    """An emoji's escapes look like halves; once all metrics of a node with such a name were lost.
    """
    assert from_json(r'{"node": "\ud83d\ude00", "x": 1.50}', parse_float=printed) == {
        "node": "\U0001f600", "x": printed("1.50")}
    assert isinstance(from_json(r'["\ud83d\ude00", 1.5]', parse_float=printed)[1], Printed)


def header(texts: Mapping[str, str]) -> Header:
    whole = make_header(PLAN, 0)
    return replace(whole, hostname=texts["host"], environment={
        **whole.environment, "variables": {"NCCL_X": texts["value"]}, "scheduler": dict(texts)})


def written(folder: Path, text: str) -> Path:
    """Write the journal of a rank on whose machine every text is this one."""
    traces = folder / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    path = journal_path(traces, 0)
    for old in traces.iterdir():
        old.unlink()
    with Journal.create(path, header({"host": text, "value": text, text: text}), PLAN) as journal:
        for case in PLAN.cases:
            journal.append(replace(make_record(case, 0), status="failed", reason=text,
                                   detail={"stderr": [text], text: text}))
        journal.note("event", {"what": text})
        journal.note("end", {"status": "finished"})
    return path


@given(outside)
@FOLDER
def test_the_reader_takes_what_the_writer_wrote(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    seal(path, trace_path(path.parent, 0))
    for trace in (read_journal(path), open_trace(trace_path(path.parent, 0))):
        assert trace.damage == ()
        assert trace.header.hostname == valid(text)
        assert [note.data for note in trace.notes if note.kind == "event"] == [
            {"what": valid(text)}]
        records = list(trace.records())
        # a column of HDF5 ends where only NULs follow
        assert {record.reason.rstrip("\0") for record in records} == {valid(text).rstrip("\0")}
        assert [record.detail["stderr"] for record in records] == [[valid(text)]] * 2
        assert [len(record.samples) for record in records] == [
            len(make_record(case, 0).samples) for case in PLAN.cases]


@given(outside)
@FOLDER
def test_a_run_on_such_a_machine_is_reduced_and_shown(tmp_path: Path, text: str) -> None:
    written(tmp_path, text)
    results = reduce_folder(tmp_path)
    write_reports(results, tmp_path, ())
    with open_results(tmp_path) as file:
        assert [item.status for item in file.results.cases] == ["failed", "failed"]
    for name in ("summary.json", "summary.csv", "report.html"):
        (tmp_path / name).read_bytes().decode("utf-8")
    assert "\x1b" not in (tmp_path / "report.html").read_text("utf-8")


def test_what_an_earlier_version_wrote_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It wrote each half of a pair as an escape, which its own reader then refused."""
    def earlier(value: Any, **options: Any) -> str:
        return json.dumps(value, **options)

    with monkeypatch.context() as then:
        for module in (frames, columns, tables):
            then.setattr(module, "to_json", earlier, raising=False)
        path = written(tmp_path, NAME)
        assert rb"\udcfc" in path.read_bytes()
        journal = read_journal(path)
        assert journal.header.hostname == r"f\xfcr" and journal.damage == ()
        then.setattr(frames, "from_json", json.loads)  # as it read records, and so sealed them
        seal(path, trace_path(path.parent, 0))
    path.unlink()
    assert [record.detail[r"f\xfcr"] for record in open_trace(
        trace_path(path.parent, 0)).records()] == [r"f\xfcr"] * 2
    results = reduce_folder(tmp_path)
    write_reports(results, tmp_path, ())
    assert [item.status for item in results.cases] == ["failed", "failed"]


@given(any_bytes)
def test_variables_and_logs_of_any_bytes_are_recorded(data: bytes) -> None:
    text = os.fsdecode(data)
    environ = {"NCCL_X": text, "LD_PRELOAD": text, "SLURM_JOB_NAME": text, "APPTAINER_NAME": text}
    assert recorded_variables(environ)["NCCL_X"]
    described = machine(environ)
    json.dumps(described, ensure_ascii=False).encode()
    assert "unreadable" not in {key for topic in described.values() if isinstance(topic, dict)
                                for key in topic}
    assert is_valid(text_of(data))


def test_a_secret_of_any_bytes_is_masked_in_every_form() -> None:
    secret = os.fsdecode(b"s3cr3t-\xfcber-Value")
    environ = {"MY_TOKEN": secret}
    for form in (secret, valid(secret), secret.encode("utf-8", "surrogateescape").decode(
            errors="replace"), repr(secret)[1:-1]):
        assert masked(f"a {form} b", environ) == "a *** b", form


def test_the_process_of_another_user_may_have_a_name_of_any_bytes() -> None:
    code = ("import ctypes, sys; ctypes.CDLL(None).prctl(15, b'n\\xfc)', 0, 0, 0); print(flush=1);"
            "sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert process_state(child.pid) in ("R", "S", "D")
        child.kill()


def test_half_a_character_in_a_sweep_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(r'{"title": "f\udcfcr", '
                    r'"benchmarks": [{"kind": "collective", "name": "\ud83d"}]}')
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "title", "benchmarks[0].name"]
    path.write_text('{"title": "\\ud83d\\ude00", "benchmarks": [{"kind": "collective", '
                    '"collective": "all_reduce"}]}')
    assert load_config(path).title == "\U0001f600"
    assert load_config(path, [parse_assignment(f"title={NAME}")]).title == r"f\xfcr"


CONSOLES: Mapping[str, Mapping[str, str]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "POSIX, strict": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
                      "PYTHONIOENCODING": "ascii:strict"}}


@pytest.mark.parametrize("console", CONSOLES)
def test_any_console_shows_a_plan_and_an_error(tmp_path: Path, console: str) -> None:
    sweep = {"title": f"é µ {ESCAPES}", "notes": [f"→ {ESCAPES}"], "benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "backend": "gloo", "size": "8"}]}
    folder = tmp_path / os.fsdecode(b"caf\xe9\x1b[1m")
    folder.mkdir()
    (folder / "c.json").write_text(json.dumps(sweep))
    for words, code in ((("plan", "c.json"), 0), (("show", str(folder)), 2)):
        done = subprocess.run([sys.executable, "-m", "hpcbench", *words], cwd=folder, timeout=60,
                              env={**os.environ, **CONSOLES[console]}, capture_output=True)
        assert done.returncode == code, done.stderr
        assert b"\x1b" not in done.stdout + done.stderr and b"Traceback" not in done.stderr
        assert (b"caf\\xe9" in done.stderr) == (code == 2)


def test_a_report_of_a_folder_with_any_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9\x1b")
    written(folder, "ok")
    write_reports(reduce_folder(folder), folder, ())
    with open_runs([folder]) as runs:
        text = write_report(runs, "md", folder / "r.md").read_text("utf-8")
    assert text.startswith("# ") and "\x1b" not in text


SPEAKING = {"hpcbench.texts", "hpcbench.backends.facts", "hpcbench.backends.mpi_facts",
            "hpcbench.backends.availability", "hpcbench.validation.rank_report"}
"""`say` itself, and programs of their own: they print JSON in ASCII, or what is in the source."""
REVERSIBLE = {"hpcbench.backends.child", "hpcbench.launch.communicator",
              "hpcbench.launch.store_communicator", "hpcbench.launch.messages",
              "hpcbench.launch.run_folder", "hpcbench.operations.functions",
              "hpcbench.fleet.hunt.rendezvous"}
"""Messages between our processes: Python's JSON keeps every text, paths too, as Python has it."""
NOT_WRITTEN = {"hpcbench.config.axes", "hpcbench.config.schema",
               "hpcbench.config.load", "hpcbench.plan.expand",
               "hpcbench.config.section", "hpcbench.plan.case", "hpcbench.reduce.records",
               "hpcbench.reduce.run_checks",
               "hpcbench.operations.token_file", "hpcbench.gen_data",
               "hpcbench.profiling.flight", "hpcbench.interop.traffic.startup.sitecustomize"}
"""JSON that is hashed, checked, quoted in a message, or of numbers and names of the package; and
ASCII of a program that has the standard library only."""


def calls(of: str) -> Iterator[tuple[str, int]]:
    for name, module in modules().items():
        for node in module.nodes:
            if isinstance(node, ast.Call) and isinstance(
                    node.func, (ast.Name, ast.Attribute)) and ast.unparse(node.func) == of:
                yield name, node.lineno


def test_all_that_is_printed_or_written_goes_one_way() -> None:
    assert {name for name, _ in calls("print")} <= SPEAKING
    assert {name for name, _ in calls("json.dumps")} <= {
        *SPEAKING, *REVERSIBLE, *NOT_WRITTEN}
    assert not {name for name, _ in calls("json.dump")}
    assert {name for name, _ in calls("typer.echo")} <= {"hpcbench.cli"}  # its own version


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
