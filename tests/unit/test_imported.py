"""Printed means of other programs as results: the same values, marked; each log is a launch."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

import foreign_tables as written
from bad_input_process import hpcbench
from golden import RESULTS
from hpcbench.answers.baseline import check_baseline
from hpcbench.answers.check import (
    CANNOT_TELL,
    CRASHED,
    GOOD,
    MISSING,
    SLOW,
    WRONG,
    check_file,
)
from hpcbench.answers.compare import INCONCLUSIVE, SLOWER, compare_by, compare_sides
from hpcbench.answers.verdict import RED, verdict_of
from hpcbench.errors import ExitCode, FileError, HpcbenchError, UsageError
from hpcbench.interop.formats.export.cases import ExportRequest
from hpcbench.interop.formats.export.write import export_files
from hpcbench.interop.formats.imported import import_files
from hpcbench.interop.formats.imported_rows import UserFacts
from hpcbench.interop.formats.lint import Linting
from hpcbench.reduce.results import IMPORTED, Results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.console import print_results
from hpcbench.report.plots import plot_file
from hpcbench.report.report_file import open_runs, write_report
from launcher import ROOT

FOREIGN = ROOT / "tests" / "data" / "foreign"
NCCL = FOREIGN / "all_reduce_8.txt"


def imported(folder: Path, *paths: Path, **given: object) -> Results:
    output = folder / "imported.h5"
    output.unlink(missing_ok=True)
    import_files(paths, output, UserFacts(**given))  # type: ignore[arg-type]
    with open_results(output) as file:
        return file.results


def test_rows_have_the_printed_values(tmp_path: Path) -> None:
    results = imported(tmp_path, NCCL)
    assert (results.run.imported, results.run.nodes, results.run.world_size) == (
        ("nccl-tests 2.19.6",), ("node1",), 8)
    assert len(results.cases) == 8
    item = next(one for one in results.cases if one.case.workload.requested_bytes == 268435456
                and one.case.workload.in_place is False)
    assert item.statistics.median_s == pytest.approx(1102.4e-6)
    assert (item.statistics.n, item.statistics.ci_low_s, item.n_wrong) == (1, None, 0)
    assert (item.case.mode, item.case.batch, item.case.backend) == ("pipelined", 20, "nccl")
    assert item.case.warmup == 5
    assert item.timing.is_imported
    record = results.record_of(item)
    assert record["algbw_bytes_per_s"] == pytest.approx(243.50e9, rel=1e-4)
    assert record["busbw_bytes_per_s"] == pytest.approx(426.13e9, rel=1e-4)


@pytest.mark.parametrize("program", sorted(written.FACTORS))
def test_text_and_json_of_each_collective_give_the_same(program: str, tmp_path: Path) -> None:
    sweep = written.Sweep(program, 4, "float", (1024, 2048), ((9.5, 9.25), (10.5, 10.25)))
    found = []
    for name, text in (("a.txt", written.nccl_text(sweep)), ("a.json", written.nccl_json(sweep))):
        (tmp_path / name).write_text(text)
        found.append(imported(tmp_path, tmp_path / name))
    for results in found:
        assert [item.case.workload.size_bytes for item in results.cases[::2]] == [*sweep.sizes]
        assert [item.case.workload.count for item in results.cases[::2]] == [1024, 2048]
        for item, (time_us, size) in zip(results.cases, (
                (time, size) for size, pair in zip(sweep.sizes, sweep.times, strict=True)
                for time in pair), strict=True):
            assert item.statistics.median_s == pytest.approx(time_us * 1e-6)
            rate = results.record_of(item)["busbw_bytes_per_s"]
            assert rate == pytest.approx(sweep.rates(size, time_us)[1] * 1e9)
    assert [one.case.case_id for one in found[0].cases] == [
        one.case.case_id for one in found[1].cases]


def test_what_osu_and_param_do_not_state_is_asked_for(tmp_path: Path) -> None:
    osu, param = FOREIGN / "osu_allgather_full.txt", FOREIGN / "param.txt"
    with pytest.raises(UsageError, match="--ranks"):
        imported(tmp_path, osu)
    results = imported(tmp_path, osu, ranks=4)
    assert [item.case.workload.size_bytes for item in results.cases] == [4, 8, 4 * 1048576]
    assert {item.case.backend for item in results.cases} == {"mpi"}
    with pytest.raises(UsageError, match="--backend"):
        imported(tmp_path, param)
    results = imported(tmp_path, param, backend="nccl")
    assert [item.case.world_size for item in results.cases] == [8, 8]
    with pytest.raises(UsageError, match="--collective"):
        imported(tmp_path, FOREIGN / "two_tables_prefixed.txt")
    assert len(imported(tmp_path, FOREIGN / "two_tables_prefixed.txt",
                        collective="all_gather").cases) == 6


def test_a_wrong_row_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(NCCL.read_text().replace("56.90       0", "56.90      12"))
    results = imported(tmp_path, path)
    (item,) = [one for one in results.cases if one.status == "wrong"]
    assert (item.n_wrong, item.statistics) == (12, None)
    assert sum(one.status == "ok" for one in results.cases) == 7


def test_what_is_cut_off_is_counted_and_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    text = NCCL.read_text()
    path.write_text(text[:text.index("56.90       0") + 5])
    whole = len(imported(tmp_path, NCCL).cases)
    (tmp_path / "imported.h5").unlink()
    lines = import_files([path], tmp_path / "imported.h5", UserFacts()).lines
    with open_results(tmp_path / "imported.h5") as file:
        assert 0 < len(file.results.cases) < whole
    assert lines[0].startswith("left out: 1 row: ") and lines[1].startswith(str(path))


@pytest.mark.parametrize("text", ["inf", "-nan"])
def test_what_c_prints_for_no_number_is_read_in_json_too(tmp_path: Path, text: str) -> None:
    sweep = written.Sweep("all_reduce", 4, "float", (2**20, 2**21), ((900.0, 901.0),) * 2)
    path = tmp_path / "a.json"
    path.write_text(re.sub(r'(?<="alg_bw":)[^,]+', text, written.nccl_json(sweep), count=1))
    lines, code = import_files([path], tmp_path / "a.h5", UserFacts())
    assert code == ExitCode.FINDINGS and " 1 row " in lines[0]
    with open_results(tmp_path / "a.h5") as file:
        assert len(file.results.cases) == 2


def test_the_row_in_which_json_is_cut_is_counted(tmp_path: Path) -> None:
    sweep = written.Sweep("all_reduce", 4, "float", (2**20, 2**21), ((900.0, 901.0),) * 2)
    text, path = written.nccl_json(sweep), tmp_path / "a.json"
    last = text.rindex('{"size":')
    for end, left_out in ((last, 0), (last + 1, 1), (last + 90, 1)):
        path.write_text(text[:end])
        (tmp_path / "imported.h5").unlink(missing_ok=True)
        lines, code = import_files([path], tmp_path / "imported.h5", UserFacts())
        assert [line for line in lines if "left out rows" in line and line.endswith(": 1")][:1] == (
            lines[:1] if left_out else []), lines
        assert code == ExitCode.INCOMPLETE


def test_a_second_row_of_a_case_is_left_out_and_named(tmp_path: Path) -> None:
    lines = import_files([NCCL, NCCL], tmp_path / "a.h5", UserFacts()).lines
    assert lines[0].startswith("left out: 8 rows") and lines[1].startswith("8 rows")


def test_they_are_shown_as_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = imported(tmp_path, NCCL)
    print_results(results, tmp_path, explain=True)
    out = capsys.readouterr().out
    assert out.startswith("imported") and "nccl-tests 2.19.6" in out.splitlines()[0]
    assert " 426 " in out
    path = tmp_path / "imported.h5"
    with open_runs([path]) as runs:
        report = write_report(runs, "md", tmp_path / "report.md")
    text = Path(report).read_text() if isinstance(report, (str, Path)) else (
        tmp_path / "report.md").read_text()
    assert "imported" in text[:600] and "| 426 |" in text
    assert [*plot_file(path, tmp_path / "plots", "svg")]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Six imported launches each: means, means 1.7 times as long, and medians as long as those."""
    own = ("# hpcbench 0.1.0, run x: t; medians; layout of nccl-tests; "
           '{"backend": "nccl", "device": "cuda", "mode": "pipelined", "batch": 20}\n')
    folder, files = tmp_path_factory.mktemp("logs"), {}
    for side, factor, line in (("old", 1.0, ""), ("new", 1.7, ""), ("median", 1.7, own)):
        files[side] = [folder / f"{side}{launch}.h5" for launch in range(6)]
        for launch, output in enumerate(files[side]):
            sweep = written.Sweep("all_reduce", 4, "float", (2**20,),
                                  ((900.0 * factor + launch, 901.0 * factor + launch),))
            path = output.with_suffix(".txt")
            path.write_text(written.nccl_text(sweep).replace(
                "# Using devices", f"{line}# Using devices"))
            import_files([path], output, UserFacts())
    return files


def test_logs_of_a_side_are_launches(logs: dict[str, list[Path]]) -> None:
    old, new = logs["old"], logs["new"]
    (found,) = compare_sides([f"{side}={','.join(map(str, logs[side]))}"
                              for side in ("old", "new")], 0.03).comparisons
    assert {one.verdict for one in found.cases} == {SLOWER}
    assert {(one.launches, one.imported, one.protocol) for one in found.cases} == {
        ((6, 6), (True, True), ())}
    assert all(one.ratio == pytest.approx(1.7, rel=0.01) for one in found.cases)
    assert check_baseline(new, old, 0.03).outcome == SLOW
    assert check_baseline(old, new, 0.03).outcome == GOOD
    single = compare_sides([str(old[0]), str(new[0])], 0.03).comparisons[0]
    assert {(one.verdict, one.low) for one in single.cases} == {(INCONCLUSIVE, None)}


def test_medians_beside_means_never_fail_a_gate(logs: dict[str, list[Path]]) -> None:
    mean, median = logs["old"], logs["median"]
    assert check_baseline(median, mean, 0.03).outcome == CANNOT_TELL
    assert check_baseline(mean, median, 0.03).outcome == GOOD
    (found,) = compare_sides([",".join(map(str, files)) for files in (mean, median)],
                             0.03).comparisons
    assert {case.verdict for case in found.cases} == {SLOWER}
    assert {one.key: one.values for case in found.cases for one in case.protocol} == {
        "time": ("mean of 20 calls", "median")}


def test_programs_that_call_more_or_less_often_are_compared_by_backend(tmp_path: Path) -> None:
    sweep = written.Sweep("all_reduce", 4, "float", (1024, 4096), ((9.5, 9.5), (10.5, 10.5)))
    osu = written.osu_text(sweep, full=True, checked=False).replace("MPI_CHAR", "MPI_FLOAT")
    (tmp_path / "a.txt").write_text(written.nccl_text(sweep))
    (tmp_path / "b.txt").write_text(osu.replace("OSU MPI ", "OSU MPI-CUDA "))
    imported(tmp_path, tmp_path / "a.txt", tmp_path / "b.txt", ranks=4)
    (found,) = compare_by([str(tmp_path / "imported.h5")], "backend", 0.03).comparisons
    assert len(found.cases) == 2
    assert {one.key for case in found.cases for one in case.protocol} == {"time", "check"}


def test_backends_of_a_run_are_compared_beside_a_table_that_has_no_pair(tmp_path: Path) -> None:
    """The command that advise prints of both was refused; a file before has its value first."""
    imported(tmp_path, NCCL)
    both = f"{tmp_path / 'imported.h5'},{RESULTS['collective']}"
    alone = compare_by([str(RESULTS["collective"])], "backend", 0.03)
    beside = compare_by([both], "backend", 0.03)
    assert beside.sides[-1] == "backend=nccl" and not beside.comparisons[-1].cases
    assert sum(len(one.cases) for one in beside.comparisons) == sum(
        len(one.cases) for one in alone.comparisons) > 0
    with pytest.raises(UsageError) as refused:
        compare_by([f"{tmp_path / 'imported.h5'},{RESULTS['training']}"], "backend", 0.03)
    nearest = str(refused.value).rpartition(" differs in ")[2]
    assert "device (cuda, cpu)" in nearest and "mode (pipelined, isolated)" in nearest
    assert not {"backend", "batch", "warmup"} & {*nearest.split()}


def test_limits_hold_of_imported_rows(tmp_path: Path) -> None:
    imported(tmp_path, NCCL)
    for least, code in ((400, 0), (500, 1)):
        limits = tmp_path / "limits.yaml"
        limits.write_text("limits:\n  - {metric: busbw_bytes_per_s, "
                          f"select: {{size_bytes: 268435456}}, min: {least}, unit: GB/s}}\n")
        reasons = check_file([tmp_path / "imported.h5"], limits).reasons
        assert bool(reasons) == bool(code)


@pytest.mark.parametrize(("names", "error"), [
    (["inspector.jsonl"], UsageError), (["nvbandwidth.json"], FileError),
    (["ddlb.csv"], UsageError), (["superbench.jsonl"], UsageError),
    (["osu_bw_checked.txt"], UsageError), (["all_reduce_8.txt", "nowhere.txt"], FileError)])
def test_what_cannot_be_imported_leaves_no_file(
    names: list[str], error: type[HpcbenchError], tmp_path: Path,
) -> None:
    with pytest.raises(error) as raised:
        import_files([FOREIGN / name for name in names], tmp_path / "a.h5", UserFacts())
    assert "\n" not in str(raised.value) and not [*tmp_path.iterdir()]


def test_the_command_writes_over_nothing(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    for code in (0, 2):
        done = hpcbench("import", str(NCCL), "-o", str(output))
        assert done.returncode == code
        assert len((done.stderr if code else done.stdout).splitlines()) == 1
    with pytest.raises(FileError):
        import_files([RESULTS["collective"]] if "collective" in RESULTS else [*RESULTS.values()],
                     tmp_path / "b.h5", UserFacts())


def test_memory_and_library_of_osu_are_cases_of_their_own(tmp_path: Path) -> None:
    """Rows of GPUs were dropped as the same case again; one non-blocking table cost the log."""
    def table(title: str, time: float) -> str:
        return (f"# OSU {title} Latency Test v7.3\n# Size       Avg Latency(us)\n"
                f"{'1024':<10}{time:>18.2f}\n")

    path = tmp_path / "osu.txt"
    path.write_text(table("MPI Reduce", 3) + table("MPI-CUDA Reduce", 50)
                    + table("NCCL-CUDA Reduce", 20) + table("MPI Non-blocking Reduce", 9)
                    + table("MPI Gatherv", 7) + table("MPI Reduce_scatter_block", 8)
                    + table("MPI Reduce_scatter", 6))
    results = imported(tmp_path, path, ranks=8)
    found = [(item.case.workload.collective, item.case.backend, item.case.device,
              round(item.statistics.median_s * 1e6)) for item in results.cases if item.statistics]
    assert found == [("reduce", "mpi", "cpu", 3), ("reduce", "mpi", "cuda", 50),
                     ("reduce", "nccl", "cuda", 20), ("reduce_scatter", "mpi", "cpu", 8),
                     ("reduce_scatter", "mpi", "cpu", 6)]


def test_a_row_that_contradicts_itself_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "torn.txt"
    path.write_text(NCCL.read_text().replace("     2097152", "         152", 1))
    lines, code = import_files([path], tmp_path / "torn.h5", UserFacts())
    with open_results(tmp_path / "torn.h5") as file:
        assert {item.case.workload.size_bytes for item in file.results.cases} == {
            128, 16384, 268435456}
        assert not [item for item in file.results.cases if item.timing.quality != (IMPORTED,)]
    assert lines[0].startswith(f"{path}:21: left out 1 row ") and code == ExitCode.FINDINGS


@pytest.mark.parametrize("name", ["all_reduce_8.txt", "all_reduce_8.json"])
def test_a_second_table_that_contradicts_itself_or_is_cut_is_no_success(
    name: str, tmp_path: Path,
) -> None:
    """Rows that were left out as contradictory ended with 0, as did a header without rows."""
    path, row = tmp_path / "log", "algbw"
    if name.endswith("json"):
        path.write_text((FOREIGN / name).read_text().replace('bus_bw":426', 'bus_bw":326'))
    else:
        row = "# Collective test starting: all_gather_perf"
        second = RIGHT.replace("# Collective test starting: all_reduce_perf", row)
        path.write_text(RIGHT + re.sub(r"426.13|427.06", "3.00", second))
    lines, code = import_files([path], tmp_path / "a.h5", UserFacts())
    assert code == ExitCode.FINDINGS and [one for one in lines if "left out" in one]
    with open_results(tmp_path / "a.h5") as file:
        assert {item.timing.quality for item in file.results.cases} == {(IMPORTED,)}
    path.write_text(RIGHT + RIGHT[:RIGHT.index("         128")])
    assert import_files([path], tmp_path / "b.h5", UserFacts()).code == ExitCode.INCOMPLETE
    assert hpcbench("lint", str(path)).returncode == ExitCode.FINDINGS


def test_an_export_has_the_hosts_that_a_file_states(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(re.sub(r"(Rank  [4-7].* on      )node1", r"\g<1>node2", RIGHT))
    results = imported(tmp_path, path)
    of_json = json.loads(export_files(
        [tmp_path / "imported.h5"], "nccl-tests-json", ExportRequest())[0].content)
    assert [one["hostname"] for one in of_json["config"]["devices"]] == [
        *["node1"] * 4, *["node2"] * 4]
    assert of_json["config"]["per_iter_timing"] == "true" and results.run.nodes == (
        "node1", "node2")
    assert isinstance(of_json["results"][0]["in_place"]["nwrong"], float)


def test_an_average_that_contradicts_its_rows_is_counted_and_named(tmp_path: Path) -> None:
    text = NCCL.read_text()
    for name, there in (("whole.txt", text), ("other.txt", re.sub(
            r"(Avg bus bandwidth\s*: )\S+", r"\g<1>1.5", text))):
        (tmp_path / name).write_text(there)
    lines = import_files([tmp_path / "whole.txt"], tmp_path / "whole.h5", UserFacts()).lines
    assert len(lines) == 1
    (said,) = (line for line in import_files(
        [tmp_path / "other.txt"], tmp_path / "other.h5", UserFacts()).lines if "on average" in line)
    assert said.startswith(f"{tmp_path / 'other.txt'}:24: ") and " 1.5 GB/s" in said


STATED: dict[str, tuple[str, str, str, str, str, int]] = {
    "wrong row": ("56.90       0", "56.90      12", "HB126", "note", WRONG, 21),
    "footer": ("values : 0 OK", "values : 3 FAILED", "HB126", "run", WRONG, 23),
    "wrong row that is cut": ("426.13       0  1100.00  244.03  427.06       0", "426.13       0",
                              "HB160", "note", CANNOT_TELL, 24),
    "failure": ("# Out of", "n: Test NCCL failure x.cu:1 'remote'\n# Out of", "HB160", "run",
                CRASHED, 23),
    "torch": ("# Out of", "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1\n"
              "# Out of", "HB160", "run", CRASHED, 23),
    "own wrong case": ("values : 0 OK", "values : 3 FAILED\n# Test failure: wrong: all_reduce",
                       "HB126", "run", WRONG, 23),
    "least": ("121.163", "121.163 FAILED", "HB160", "note", CANNOT_TELL, 24),
    "warning": ("# Out of", "n:1:2 [0] x.cc:2 NCCL WARN timed out\n# Out of", "HB160", "note",
                CANNOT_TELL, 23),
    "impossible average": ("121.163", "3.5", "HB160", "note", CANNOT_TELL, 24),
}


@pytest.mark.parametrize("name", STATED)
def test_what_a_log_states_against_itself_reaches_the_results_and_check(
    name: str, tmp_path: Path,
) -> None:
    """Only lint said that values were out of bounds, a test had failed or NCCL had warned."""
    old, new, code, scope, outcome, line = STATED[name]
    text, path = NCCL.read_text(), tmp_path / "nccl.log"
    assert old in text
    path.write_text(text.replace(old, new, 1))
    lines, ended = import_files([path], tmp_path / "nccl.h5", UserFacts())
    assert ended == {"warning": ExitCode.OK, "wrong row that is cut": ExitCode.INCOMPLETE}.get(
        name, ExitCode.FINDINGS)
    assert [one for one in lines if one.startswith(f"{path}:{line}: ")]
    with open_results(tmp_path / "nccl.h5") as file:
        findings = file.results.findings
        assert (code, scope) in {(one.code, one.scope) for one in findings}
        assert [one for one in findings if f"nccl.log:{line}" in one.message]
        assert (scope == "run") == (verdict_of(file.results).state == RED and name != "wrong row")
    baseline = tmp_path / "good.h5"
    import_files([NCCL], baseline, UserFacts(started="2026-01-31T03:00"))
    found = check_baseline([tmp_path / "nccl.h5"], [baseline], 0.03)
    assert found.outcome == (MISSING if name == "wrong row that is cut" else outcome)
    doubts = compare_sides([str(baseline), str(tmp_path / "nccl.h5")], 0.03).doubts
    assert len(doubts) == (outcome in (WRONG, CRASHED))


RIGHT = NCCL.read_text()
ENDS: dict[str, tuple[str, ExitCode]] = {
    "whole": (RIGHT, ExitCode.OK),
    "without its end": (RIGHT[:RIGHT.index("# Out of bounds")], ExitCode.INCOMPLETE),
    "within a row": (RIGHT[:RIGHT.index("56.90       0") + 5], ExitCode.INCOMPLETE),
    "a torn row": (RIGHT.replace("56.90       0", "56.90", 1), ExitCode.INCOMPLETE),
    "wrong out of place": (RIGHT.replace("426.13       0", "426.13       7").replace(
        "values : 0 OK", "values : 7 FAILED"), ExitCode.FINDINGS),
    "wrong in place": (RIGHT.replace("427.06       0", "427.06       7").replace(
        "values : 0 OK", "values : 7 FAILED"), ExitCode.FINDINGS),
    "wrong in both": (RIGHT.replace("426.13       0", "426.13       7").replace(
        "427.06       0", "427.06       5").replace("values : 0 OK", "values : 12 FAILED"),
        ExitCode.FINDINGS),
    "wrong in no row": (RIGHT.replace("values : 0 OK", "values : 3 FAILED"), ExitCode.FINDINGS),
    "died": (RIGHT[:RIGHT.index("# Out of bounds")]
             + "n1: Test NCCL failure common.cu:303 'remote process exited'\n", ExitCode.FINDINGS),
}


@pytest.mark.parametrize("to", ["nccl-tests", "nccl-tests-json"])
@pytest.mark.parametrize("name", ENDS)
def test_a_log_that_is_not_whole_or_right_is_not_after_an_export(
    name: str, to: str, tmp_path: Path,
) -> None:
    """An export of a log that was cut ended as one that was not, and a half that was wrong had the
    numbers of the other one."""
    text, code = ENDS[name]
    (tmp_path / "log").write_text(text)
    assert import_files([tmp_path / "log"], tmp_path / "a.h5", UserFacts()).code == code
    exported, lines = export_files([tmp_path / "a.h5"], to, ExportRequest())
    (tmp_path / "again").write_bytes(exported.content)
    linting = Linting("", None, as_json=True)
    linting.read(tmp_path / "again")
    found = import_files([tmp_path / "again"], tmp_path / "b.h5", UserFacts())
    assert (found.code, bool(linting.count)) == (code, code != ExitCode.OK)
    assert any("incomplete" in line for line in lines) == (
        code == ExitCode.INCOMPLETE or name == "died")
    with open_results(tmp_path / "a.h5") as first, open_results(tmp_path / "b.h5") as second:
        of_both = [{item.case.label: (item.status, item.n_wrong, item.timing and (
            item.timing.quality)) for item in file.results.cases} for file in (first, second)]
        assert of_both[0] == of_both[1]
        assert verdict_of(first.results).state == verdict_of(second.results).state


def test_a_half_that_is_wrong_is_no_number_of_the_other_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(ENDS["wrong out of place"][0])
    results = imported(tmp_path, tmp_path / "log")
    rates = [results.record_of(item)["busbw_bytes_per_s"] / 1e9 for item in results.cases
             if item.status == "ok"]
    of_json = json.loads(export_files(
        [tmp_path / "imported.h5"], "nccl-tests-json", ExportRequest())[0].content)
    mean = of_json["average_bus_bandwidth"]["bandwidth"]
    assert (len(rates), mean) == (7, pytest.approx(sum(rates) / 7))
    (row,) = [row for row in of_json["results"] if row["size"] == 268435456]
    assert row["out_of_place"] == {
        "time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": 7}
    assert row["in_place"]["nwrong"] == 0
    text, lines = export_files([tmp_path / "imported.h5"], "nccl-tests", ExportRequest())
    (line,) = [line.split() for line in text.content.decode().splitlines()
               if line.split()[:1] == ["268435456"]]
    assert line[5:] == [*["nan"] * 3, "7", "1100.00", "244.03", "427.06", "0"]
    assert not [line for line in lines if "one place" in line]


@pytest.mark.parametrize("name", ["whole", "without its end", "wrong in no row", "died"])
def test_other_formats_say_that_a_log_is_not_whole(name: str, tmp_path: Path) -> None:
    text, code = ENDS[name]
    (tmp_path / "log").write_text(text)
    imported(tmp_path, tmp_path / "log")

    def of(to: str) -> str:
        return export_files([tmp_path / "imported.h5"], to, ExportRequest())[0].content.decode()

    said = re.findall(r"(?m)^hpcbench_exit_code\{.*\} (\d+)$", of("prometheus"))
    said += re.findall(r"(?m)^hpcbench\.exit_code: (\d+) code$", of("fom"))
    said += [json.loads(of("superbench"))["hpcbench/return_code:0"]]
    said += [row["exit_code"] for row in csv.DictReader(io.StringIO(of("csv")))]
    assert {int(one) for one in said} == {int(code)} and len(said) > 4


def test_a_cut_log_that_holds_its_limits_is_not_good(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("limits:\n  - {metric: busbw, select: {size_bytes: 268435456}, min: 1}\n")
    for name, outcome in (("whole", GOOD), ("without its end", MISSING)):
        (tmp_path / "log").write_text(ENDS[name][0])
        imported(tmp_path, tmp_path / "log")
        assert check_file([tmp_path / "imported.h5"], limits).outcome == outcome


def test_only_the_table_that_is_cut_has_no_end(tmp_path: Path) -> None:
    second = RIGHT.replace("all_reduce", "broadcast")
    text = RIGHT + second[:second.index("# Out of bounds")]
    (tmp_path / "log").write_text(text)
    imported(tmp_path, tmp_path / "log")
    exported, _ = export_files([tmp_path / "imported.h5"], "nccl-tests", ExportRequest())
    tables = re.split("# Collective test starting", exported.content.decode())[1:]
    assert ["Avg bus bandwidth" in table for table in tables] == [True, False]


def test_a_row_of_json_is_named_by_its_place_in_the_list(tmp_path: Path) -> None:
    """As a line of the file, it was another line than that of the row."""
    data = json.loads((FOREIGN / "all_reduce_8.json").read_text())
    data["results"][1]["out_of_place"]["bus_bw"] *= 3
    data["results"][2]["out_of_place"]["nwrong"] = 7
    path = tmp_path / "indented.json"
    path.write_text(json.dumps(data, indent=1))
    linted = hpcbench("lint", str(path)).stdout
    for at, rule in ((1, "factor"), (2, "wrong")):
        assert f"{path}: results[{at}]: {rule}: " in linted
    lines = import_files([path], tmp_path / "indented.h5", UserFacts()).lines
    with open_results(tmp_path / "indented.h5") as file:
        (wrong,) = (item for item in file.results.cases if item.status == "wrong")
        places = [wrong.reason, *(one.message for one in file.results.findings)]
    assert "results[2]" in wrong.reason
    assert not re.search(r"json:\d|line \d", "\n".join((linted, *lines, *places)))
