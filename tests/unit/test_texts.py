"""Texts from outside of any bytes: what is written can be read, and no terminal obeys them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbench.config.load import load_config, parse_assignment
from hpcbench.errors import ConfigError
from hpcbench.interop.formats.tables import Printed, printed
from hpcbench.launch.template_process import process_state
from hpcbench.launch.worker_process import text_of
from hpcbench.measurement.environment import machine, recorded_variables
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.report.report_file import open_runs, write_report
from hpcbench.report.summary import write_reports
from hpcbench.texts import (
    from_json,
    is_valid,
    masked,
    path_of,
    stored_path,
    to_json,
    valid,
)
from hpcbench.trace import columns
from hpcbench.trace import journal as frames
from hpcbench.trace import sealed as tables
from hpcbench.trace.journal import Journal, journal_path, read_journal
from hpcbench.trace.schema import Header
from hpcbench.trace.sealed import open_trace, seal, trace_path
from package_source import modules
from synthetic import make_header, make_plan, make_record

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
