"""Files of other programs as they really are: prefixes, cut ends, gzip, other versions, no text."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import foreign_tables as written
from bad_input_process import hpcbench
from hpcbench.errors import FileError, HpcbenchError
from hpcbench.interop.formats.imported import import_files
from hpcbench.interop.formats.imported_rows import UserFacts
from hpcbench.interop.formats.lint import RULES
from hpcbench.interop.formats.lint import lint as lint_table
from hpcbench.interop.formats.reading.detect import tables_of
from hpcbench.interop.formats.reading.source import Unread
from hpcbench.interop.formats.tables import CommTable, MatrixTable, NodeTable, ProductTable
from launcher import ROOT

FOREIGN = ROOT / "tests" / "data" / "foreign"
GIVEN = UserFacts("all_reduce", 4, "nccl", "uint8", "tp_columnwise")
SWEEP = written.Sweep("all_reduce", 4, "float", (256, 512), ((9.5, 9.25), (10.5, 10.25)))


def comm(path: Path) -> list[CommTable]:
    tables = list(tables_of(path))
    assert all(isinstance(one, CommTable) for one in tables)
    return [one for one in tables if isinstance(one, CommTable)]


def test_a_table_with_lines_of_nccl_between() -> None:
    (table,) = comm(FOREIGN / "all_reduce_8.txt")
    assert (table.collective, table.ranks, table.version) == ("all_reduce", 8, "2.19.6")
    assert (table.iterations, table.step_bytes, len(table.devices)) == (20, None, 8)
    assert (table.devices[3].host, table.devices[3].device) == ("node1", "NVIDIA H100 80GB HBM3")
    assert [row.size_bytes for row in table.rows] == [128, 16384, 2097152, 268435456]
    row = table.rows[3]
    assert (row.line, row.count, row.dtype, row.redop, row.root) == (
        22, 67108864, "float", "sum", None)
    outside, inside = row.halves
    assert (outside.in_place, inside.in_place, outside.wrong) == (False, True, 0)
    assert outside.time_us is not None and outside.time_us.value == 1102.4
    assert inside.busbw is not None and inside.busbw.value == 427.06
    assert inside.busbw.half == pytest.approx(0.005, rel=1e-3)
    assert table.average is not None and table.average.value == 121.163


def test_prefixes_and_several_tables() -> None:
    first, second = comm(FOREIGN / "two_tables_prefixed.txt")
    assert (first.collective, first.ranks, len(first.rows)) == ("", 2, 2)
    assert (second.collective, second.ranks, second.step_bytes) == ("send_recv", 2, 1024)
    assert first.rows[0].halves[0].wrong is None and second.rows[0].halves[1].wrong is None
    (named, _) = [one for one in tables_of(FOREIGN / "two_tables_prefixed.txt", "all_gather")
                  if isinstance(one, CommTable)]
    assert named.collective == "all_gather"


@pytest.mark.parametrize("change", [
    lambda text: "".join(f"[1,0]<stdout>:{line}" for line in text.splitlines(True)),
    lambda text: "".join(f"0: {line}" for line in text.splitlines(True)),
    lambda text: text.replace("\n", "\r\n"),
    lambda text: "\n\nmodule load cuda\n" + text + "bye\n",
], ids=["mpirun", "srun", "CRLF", "between other lines"])
def test_the_same_rows_however_it_was_logged(change: Callable[[str], str], tmp_path: Path) -> None:
    text = written.nccl_text(SWEEP)
    plain, packed = tmp_path / "plain", tmp_path / "packed.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(change(text).encode()))
    (first,), (second,) = comm(plain), comm(packed)
    assert [row.halves for row in first.rows] == [row.halves for row in second.rows]
    assert first.ranks == second.ranks == 4


@pytest.mark.parametrize(("fields", "flags"), [
    (9, {"in_place_only": True}), (13, {}), (15, {"stamps": True}), (21, {"each": True})])
def test_rows_with_any_known_number_of_fields(
    fields: int, flags: dict[str, bool], tmp_path: Path,
) -> None:
    sweep = written.Sweep(SWEEP.program, 4, "float", SWEEP.counts, SWEEP.times, **flags)
    text = written.nccl_text(sweep)
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    assert {len(line.split()) for line in rows} == {fields}
    for name, content in (("whole", text), ("rows", "\n".join(rows))):
        path = tmp_path / name
        path.write_text(content)
        (table,) = comm(path)
        assert [row.size_bytes for row in table.rows] == [1024, 2048]
        half = table.rows[0].halves[-1]
        assert half.in_place and half.time_us is not None and half.time_us.value == 9.25
        assert (half.high_us is not None) == (fields == 21)


def test_ranks_that_print_at_once_are_tables_of_their_own(tmp_path: Path) -> None:
    lines = written.nccl_text(SWEEP).splitlines()
    path = tmp_path / "log"
    path.write_text("".join(f"{rank}: {line}\n" for line in lines for rank in (0, 1)))
    assert [len(one.rows) for one in comm(path)] == [2, 2]


def test_ranks_of_runs_that_failed_or_print_at_once_are_not_added(tmp_path: Path) -> None:
    """A run that ends before its rows, and then another; and runs without MPI, all with rank 0."""
    lines = written.nccl_text(SWEEP).splitlines()
    rows = next(at for at, line in enumerate(lines) if not line.startswith("#"))
    path = tmp_path / "log"
    path.write_text("\n".join([*lines[:rows], "a: Test NCCL failure x.cu:1", *lines]))
    left_out = Unread()
    ended, table = tables_of(path, left_out=left_out)
    assert isinstance(table, CommTable) and isinstance(ended, CommTable)
    assert (ended.ranks, ended.rows, ended.is_cut, table.is_cut) == (4, (), True, False)
    assert (table.ranks, len(table.devices), [*left_out.failures()][0][1:]) == (4, 4, (1, rows + 1))
    path.write_text("\n".join([*(line for line in lines[:rows] for _ in range(2)),
                               *lines[rows:]]))
    (table,) = comm(path)
    assert (table.ranks, len(table.rows)) == (None, 2)


def test_a_type_of_param_that_is_not_known_is_no_tag(tmp_path: Path) -> None:
    path, left_out = tmp_path / "param", Unread()
    text = (FOREIGN / "param.txt").read_text()
    path.write_text(text + text.replace("-float32", "-float8_e5m2")
                    + text.replace("-float32", "-float32-night"))
    assert [len(one.rows) for one in tables_of(path, "", left_out)
            if isinstance(one, CommTable)] == [2, 2]
    assert list(left_out.counts().values()) == [2]


def test_json_has_the_same_rows_and_nothing_of_the_environment(tmp_path: Path) -> None:
    """A long line, as of many iterations, was refused."""
    path = tmp_path / "table.json"
    path.write_text(written.nccl_json(SWEEP).replace("hunter2-in-env", "hunter2" * 2**18))
    (table,) = comm(path)
    assert (table.collective, table.ranks, table.iterations) == ("all_reduce", 4, 20)
    assert [row.size_bytes for row in table.rows] == [1024, 2048]
    assert "hunter2" not in repr(table)


def test_json_of_nccl_tests_itself() -> None:
    """A wrong count of 0.000000 refused the file; the empty error was one, the process one rank."""
    (table,) = comm(FOREIGN / "all_reduce_8.json")
    (text,) = comm(FOREIGN / "all_reduce_8.txt")
    assert (table.ranks, len(table.devices), table.failures) == (8, 8, ())
    assert [half.wrong for row in table.rows for half in row.halves] == [0] * 8
    assert [[half.time_us.value for half in row.halves if half.time_us] for row in table.rows] == [
        [half.time_us.value for half in row.halves if half.time_us] for row in text.rows]
    assert lint(str(FOREIGN / "all_reduce_8.json")).returncode == 0


@pytest.mark.parametrize(("change", "rows"), [
    (lambda text: text.replace('"version":3', '"version":1').replace("bandwidth", "bandwidith"), 4),
    (lambda text: text.replace('"version":3', '"version":2'), 4),
    (lambda text: text.replace(',"out_of_bounds"', ']}')[:text.index('"out_of_bounds"') - 2], 4),
    (lambda text: text[:text.rindex('"in_place"')], 3),
    (lambda text: text[:text.rindex('"in_place"') - 1] + '}],"errors":[""],"end_time":"x"}', 4),
], ids=["version 1", "version 2", "without its end", "within a row", "ended within a row"])
def test_json_of_other_versions_and_of_runs_that_ended_early(
    change: Callable[[str], str], rows: int, tmp_path: Path,
) -> None:
    path = tmp_path / "table.json"
    path.write_text(change((FOREIGN / "all_reduce_8.json").read_text()))
    (table,) = comm(path)
    is_whole = '"version":3' not in path.read_text()
    assert (len(table.rows), table.is_cut) == (rows, not is_whole)
    assert [one.rule for one in lint_table(table)] == ([] if is_whole else ["cut"])
    assert import_files([path], tmp_path / "a.h5", GIVEN).code == (0 if is_whole else 3)


@pytest.mark.parametrize(("old", "new"), [
    ('"nwrong":0.000000', '"nwrong":0.5'), ('"size":128', '"size":"big"'),
    ('"alg_bw":0.003629', '"alg_bw":true'), ('"root":"    -1"', '"root":[1]')])
def test_a_value_of_json_that_is_no_number_is_named(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text((FOREIGN / "all_reduce_8.json").read_text().replace(old, new, 1))
    with pytest.raises(FileError) as raised:
        comm(path)
    key, _, value = new.partition(":")
    assert str(raised.value).endswith(f"results[0]: {key[1:-1]} is {value}")


@pytest.mark.parametrize("program", ["all_reduce_perf_mpi", "/opt/bin/all_reduce_perf"])
def test_programs_with_another_name(program: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(written.nccl_text(SWEEP).replace("all_reduce_perf", program))
    assert [one.collective for one in comm(path)] == ["all_reduce"]


def test_osu() -> None:
    (table,) = comm(FOREIGN / "osu_allgather_full.txt")
    assert (table.collective, table.version, table.ranks) == ("all_gather", "7.4", None)
    row = table.rows[2]
    assert (row.size_bytes, row.iterations, row.passed) == (1048576, 100, None)
    half = row.halves[0]
    assert [one.value for one in (half.low_us, half.time_us, half.high_us) if one] == [
        209.8, 211.04, 213.5]
    (rates,) = comm(FOREIGN / "osu_bw_checked.txt")
    assert rates.collective == "send_recv" and rates.rows[1].passed
    assert rates.rows[1].halves[0].algbw.value == pytest.approx(12.20151)


def test_inspector_in_both_forms(tmp_path: Path) -> None:
    found = {one.collective: one for one in comm(FOREIGN / "inspector.jsonl")}
    assert (found["all_reduce"].ranks, found["send_recv"].rows[0].size_bytes) == (8, 1048576)
    for once, version in ((True, "v4.3"), (False, "v4.0")):
        path = tmp_path / f"{once}.jsonl"
        path.write_text(written.inspector_lines(SWEEP, once=once))
        (table,) = comm(path)
        assert (table.ranks, table.version, len(table.rows)) == (4, version, 2)


def test_a_log_of_inspector_that_ends_within_a_line_is_read_and_is_a_finding(
    tmp_path: Path,
) -> None:
    text = written.inspector_lines(SWEEP, once=False)
    path = tmp_path / "cut.log"
    path.write_text(text[:-40])
    (table,) = comm(path)
    assert len(table.rows) == 1 and [one.rule for one in lint_table(table)] == ["cut"]
    path.write_text(text[:-40] + "\n" + text)
    left_out = Unread()
    (table,) = (one for one in tables_of(path, "", left_out) if isinstance(one, CommTable))
    assert len(table.rows) == 3 and not table.is_cut
    assert list(left_out.counts().values()) == [1]
    assert next(left_out.lines("cut.log")).startswith("cut.log:2: ")


def test_the_other_programs() -> None:
    (param,) = comm(FOREIGN / "param.txt")
    assert (param.collective, param.rows[1].count, param.rows[1].dtype) == (
        "all_to_all", 32768, "float32")
    matrix = next(iter(tables_of(FOREIGN / "nvbandwidth.json")))
    assert isinstance(matrix, MatrixTable) and matrix.matrix[0][0] is None
    assert matrix.total is not None and matrix.total.value == 552.43
    (products,) = tables_of(FOREIGN / "ddlb.csv")
    assert isinstance(products, ProductTable)
    row = products.rows[0]
    assert (row.m, row.dtype, row.passed, row.option) == (
        1024, "float16", True, "order=AG_before,backend=nccl")
    nodes = list(tables_of(FOREIGN / "superbench.jsonl"))
    assert [one.node for one in nodes if isinstance(one, NodeTable)] == ["node1", "node2"]


TITLES = {
    "MPI Allreduce Latency": ("all_reduce", "mpi", "cpu", "", False),
    "MPI-CUDA Allgather Latency": ("all_gather", "mpi", "cuda", "", False),
    "MPI-ROCM All-to-All Personalized Exchange Latency": ("all_to_all", "mpi", "cuda", "", False),
    "MPI-OPENACC Broadcast Latency": ("broadcast", "mpi", "cuda", "", False),
    "MPI-CUDA MANAGED Reduce Latency": ("reduce", "mpi", "cuda", "", False),
    "MPI Gatherv Latency": ("gather", "mpi", "cpu", "", True),
    "MPI All-to-Allw Personalized Exchange Latency": ("all_to_all", "mpi", "cpu", "", True),
    "MPI Reduce_scatter_block Latency": ("reduce_scatter", "mpi", "cpu", "block", False),
    "MPI Scatter Persistent Latency": ("scatter", "mpi", "cpu", "persistent", False),
    "XCCL Allreduce Latency": ("all_reduce", "", "", "", False),
    "MPI Latency": ("send_recv", "mpi", "cpu", "", False),
    "MPI Bi-Directional Bandwidth": ("bi-directional", "mpi", "cpu", "", False),
    "MPI Multi Latency": ("multi", "mpi", "cpu", "", False),
    "NCCL-CUDA Allreduce Latency": ("all_reduce", "nccl", "cuda", "", False),
    "RCCL-ROCM Reduce_scatter Latency": ("reduce_scatter", "nccl", "cuda", "", False),
    "XCCL-CUDA Allreduce Latency": ("all_reduce", "", "cuda", "", False),
}
OTHER_TITLES = (
    "MPI Non-blocking Allgather Latency", "MPI-CUDA Non-Blocking Broadcast Latency",
    "MPI Neighborhood Alltoall Latency", "MPI_Put-CUDA Latency", "MPI_Get Bandwidth",
    "MPI_Compare_and_swap latency", "OpenSHMEM Put", "OpenSHMEM Barrier Latency",
    "UPC Broadcast Latency", "UPC++ Reduce Latency", "MPI-SYCL Allreduce Latency")


@pytest.mark.parametrize("title", TITLES)
def test_a_title_of_osu(title: str, tmp_path: Path) -> None:
    path = tmp_path / "osu"
    path.write_text(f"# OSU {title} Test v7.5\n# Size       Avg Latency(us)\n"
                    f"{'8':<10}{'1.50':>18}\n")
    (table,) = comm(path)
    assert TITLES[title] == (table.collective, table.backend, table.device, table.label,
                             table.is_uneven)


@pytest.mark.parametrize("title", OTHER_TITLES)
def test_a_table_of_osu_without_counterpart_costs_itself(title: str, tmp_path: Path) -> None:
    path = tmp_path / "osu"
    other = f"# OSU {title} Test v5.9\n# Size  Overall(us)  Compute(us)\n1  2.00  3.00\n"
    path.write_text(other)
    with pytest.raises(FileError):
        comm(path)
    whole = (FOREIGN / "osu_allgather_full.txt").read_text()
    path.write_text(whole + other + whole)
    left_out = Unread()
    assert [len(one.rows) for one in tables_of(path, "", left_out)
            if isinstance(one, CommTable)] == [3, 3]
    assert list(left_out.counts().values()) == [1]


def test_the_memory_of_osus_messages(tmp_path: Path) -> None:
    title = "# OSU MPI-CUDA Latency Test v7.4\n"
    row = f"# Size          Latency (us)\n{'8':<10}{'1.50':>18}\n"
    path, left_out = tmp_path / "osu", Unread()
    path.write_text("".join(
        f"{title}# Send Buffer on {one} and Receive Buffer on {other}\n{row}" for one, other in (
            ("DEVICE (D)", "DEVICE (D)"), ("HOST (H)", "HOST (H)"), ("HOST (H)", "DEVICE (D)"))))
    assert [one.device for one in tables_of(path, "", left_out) if isinstance(one, CommTable)] == [
        "cuda", "cpu"]
    assert list(left_out.counts().values()) == [1]


def test_a_barrier_of_osu_with_its_extremes(tmp_path: Path) -> None:
    """Its only row begins with blanks, so its width says nothing."""
    path = tmp_path / "osu"
    path.write_text("# OSU MPI Barrier Latency Test v7.2\n# Avg Latency(us)   Min Latency(us)   "
                    f"Max Latency(us)  Iterations\n{'3.14':>17}{'2.80':>18}{'3.96':>18}"
                    f"{'1000':>12}\n")
    (table,) = comm(path)
    assert [(row.size_bytes, row.iterations) for row in table.rows] == [(0, 1000)]
    assert not table.damaged


def test_all_programs_and_versions_of_one_log(tmp_path: Path) -> None:
    """What is not known costs itself, with the line of its first row; IMB's rows are no OSU's."""
    other = written.nccl_text(SWEEP).replace("version 2.19.6", "version 3.0.0")
    columns = written.nccl_text(SWEEP).replace("busbw", "fastbw")
    path, left_out = tmp_path / "log", Unread()
    path.write_text("".join([
        (FOREIGN / "osu_allgather_full.txt").read_text(), "#bytes  t[usec]\n", "16   2.50\n",
        other, written.nccl_text(SWEEP), columns, (FOREIGN / "param.txt").read_text()]))
    found = [(one.program, len(one.rows)) for one in tables_of(path, "", left_out)
             if isinstance(one, CommTable)]
    assert sorted(found) == [("OSU", 3), ("PARAM", 2), ("nccl-tests", 2)]
    assert sorted(left_out.counts().values()) == [2, 2]
    assert all(line for _, _, line in left_out.entries())


def test_records_of_inspector_over_several_lines(tmp_path: Path) -> None:
    """As `jq` or its README show them; a torn one costs itself, "Invalid" has no collective."""
    records = [json.loads(line) for line in written.inspector_lines(
        SWEEP, once=False).splitlines()]
    for name, record in zip(("All2All", "Invalid"), records, strict=True):
        record["coll_perf"]["coll"] = name
    pretty = [json.dumps(record, indent=2) for record in records]
    path, left_out = tmp_path / "records.log", Unread()
    path.write_text("\n".join([pretty[0], pretty[0][:200], *pretty]) + "\n")
    (table,) = (one for one in tables_of(path, "", left_out) if isinstance(one, CommTable))
    assert (table.collective, [row.size_bytes for row in table.rows]) == (
        "all_to_all", [1024, 1024])
    assert sorted(left_out.counts().values()) == [1, 1]


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("trapped",)


def _zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", "x")


def _table(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


NAMES = "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
BAD: dict[str, Callable[[Path], object]] = {
    "empty": _table(""), "blank": _table("\n \n"), "no table": _table("hello\nworld\n"),
    "folder": lambda path: path.mkdir(), "missing": lambda path: None,
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 9),
    "pickle": lambda path: path.write_bytes(pickle.dumps(_Trap())),
    "packed pickle": lambda path: path.write_bytes(gzip.compress(pickle.dumps(_Trap()))),
    "archive": _zipped,
    "own results": lambda path: path.write_bytes(
        (ROOT / "tests/data/results-v1.h5").read_bytes()),
    "cut gzip": lambda path: path.write_bytes(gzip.compress(os.urandom(99) * 99)[:60]),
    "text version": _table("# nccl-tests version 3.0.0 nccl-headers=1 nccl-library=1\n"),
    "columns": _table(NAMES.replace("busbw", "fastbw") + "  8  2  float  sum  -1  1 2 3 0\n"),
    "JSON version": _table(json.dumps({"version": 4, "results": []})),
    "JSON keys": _table(json.dumps({"version": 3, "results": [{"size": 3}]})),
    "header alone": _table((FOREIGN / "all_reduce_8.txt").read_text().partition("    128 ")[0]),
    "JSON of others": _table('{"a": [1, 2]}'), "cut JSON": _table('{"version": 3,\n"results": ['),
    "deep JSON": _table('{"a":' * 9999), "long number": _table('{"node": "a", "b": ' + "9" * 9999),
    "OSU version": _table("# OSU MPI Allreduce Latency Test v8.0\n# Size Avg Latency(us)\n1 2.0\n"),
    "OSU columns": _table("# OSU MPI Iallreduce Latency Test v7.0\n# Size Overall(us)\n1 2.0\n"),
    "Inspector version": _table(
        '{"header": {}, "metadata": {"inspector_output_format_version": "v5.0"}}\n'),
    "PARAM quantized": _table("\tCOMMS-RES-QUANT\t size (B) nElementsPerRank\n"),
    "DDLB without numbers": _table(",".join(
        ("implementation", "mean_time (ms)", "m", "n", "k")) + "\nx,y,1,1,1\n"),
    "DDLB words": _table((FOREIGN / "ddlb.csv").read_text().replace("0.2013", "fast")),
    "DDLB quote": _table((FOREIGN / "ddlb.csv").read_text() + '"' + "x,\n" * 99_999),
    "long line": lambda path: path.write_bytes(b"x" * 2**21),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "given"
    BAD[name](path)
    with pytest.raises(FileError) as raised:
        list(tables_of(path))
    message = str(raised.value)
    assert "\n" not in message and message.startswith(str(path)) and len(message) < 400
    with pytest.raises(FileError) as raised:
        import_files([path], tmp_path / "out.h5", GIVEN)
    assert str(raised.value) == message
    assert not (tmp_path / "trapped").exists() and not (tmp_path / "out.h5").exists()


def test_a_log_is_streamed(tmp_path: Path) -> None:
    """9 MB of other output take no more memory than a hundred lines do."""
    path = tmp_path / "log.gz"
    noise = b"node1:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n" * 2**14
    table = written.nccl_text(SWEEP).encode()
    path.write_bytes(gzip.compress(noise) * 4 + gzip.compress(table) + gzip.compress(noise) * 4)
    tracemalloc.start()
    try:
        (found,) = comm(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.rows) == 2 and peak_bytes < 2 * 2**20


def lint(*words: str) -> subprocess.CompletedProcess[str]:
    return hpcbench("lint", *words)


def test_the_command() -> None:
    clean = lint(str(FOREIGN / "all_reduce_8.txt"), str(FOREIGN / "param.txt"))
    assert (clean.returncode, clean.stderr) == (0, "")
    found = lint(str(FOREIGN / "all_reduce_8.txt"), "--link", "400", "--json")
    document = json.loads(found.stdout)
    assert (found.returncode, document["schema"], document["n_findings"]) == (1, "hpcbench.lint", 2)
    assert [one["rule"] for one in document["findings"]] == ["link"] * 2
    quiet = lint(str(FOREIGN / "all_reduce_8.txt"), "--link", "400", "--quiet")
    assert (quiet.returncode, len(quiet.stdout.splitlines())) == (1, 2)
    for words in (("nowhere.log",), (str(FOREIGN / "param.txt"), "--collective", "all_reduced")):
        bad = lint(*words)
        assert (bad.returncode, bad.stdout, len(bad.stderr.splitlines())) == (2, "", 1)


WORDS = st.sampled_from((
    b"", b"\n", b" ", b"#", b"nan", b"inf", b"-1", b"1e999", b"9" * 400, b"N/A", b"\xff", b"null",
    b"{}", b"[", b'"', b",", b"0", b"1:", b"FAILED", b"Fail"))


@given(st.sampled_from(sorted(path.name for path in FOREIGN.iterdir())),
       st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), WORDS), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_a_finding_or_one_line(
    tmp_path: Path, name: str, edits: list[tuple[float, int, bytes]],
) -> None:
    data = (FOREIGN / name).read_bytes()
    for share, length, word in edits:
        at = int(share * len(data))
        data = data[:at] + word + data[at + length:]
    path = tmp_path / name
    path.write_bytes(data)
    try:
        for table in tables_of(path):
            assert all(one.rule in RULES for one in lint_table(table, 100.0))
    except FileError as error:
        assert "\n" not in str(error)
    output = tmp_path / "out.h5"
    output.unlink(missing_ok=True)
    try:
        import_files([path], output, GIVEN)
    except HpcbenchError as error:
        assert error.exit_code == 2 and "\n" not in str(error) and not output.exists()
