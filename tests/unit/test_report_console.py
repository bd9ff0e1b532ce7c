"""What a person reads: numbers whole, nothing dropped, sums that add up."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.answers.winners import with_fastest
from hpcbench.config.axes import UNCHECKED
from hpcbench.errors import job_command_line
from hpcbench.operations.arrival import ArrivalPattern
from hpcbench.plan.case import STATUSES
from hpcbench.reduce.checks import RESUME
from hpcbench.reduce.results import Finding, Usage
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.results_lines import brief_tables_of
from hpcbench.views.columns import any_profile
from hpcbench.views.metric_tables import any_results
from hpcbench.views.table import RANGE, Column, Group, Range, Row, Show, Table, format_number
from results_factory import (
    all_ok,
    flagged,
    make_case,
    make_plan,
    make_primitive_case,
    make_results,
    make_workload,
    mixed_results,
    not_ok,
    ok,
    print_all,
    rows_with,
    shaped,
    sweep,
)

Capture = pytest.CaptureFixture[str]


def test_header_names_statistic_mode_fold_and_interval(capsys: Capture, tmp_path: Path) -> None:
    print_all(mixed_results(), tmp_path, explain=True)
    head = capsys.readouterr().out.split("block", 1)[0]
    for word in ("median", "mode isolated: ", "fold global: from the first rank's start", "4 ranks",
                 "1 node", "torch 2.13.0", "7f3a2b1c", "5 warm-ups", "95% confidence interval",
                 "order statistics", "of 1 pass,", "GB = 1e9 B"):
        assert word in head
    assert "pipelined" not in head


def test_a_resumed_run_is_not_called_as_short_as_its_last_attempt(
    capsys: Capture, tmp_path: Path,
) -> None:
    results = all_ok((make_case(),))
    (item,) = results.cases
    timed = replace(results, findings=(), cases=(
        replace(item, usage=Usage(1, spans_ns=((0, 3_000_000_000),))),))
    resumed = replace(timed, findings=(Finding("HB150", "note", "attempt 0 was stopped"),))
    for one in (timed, resumed):
        print_results(one, tmp_path)
    first, second = (line for line in capsys.readouterr().out.splitlines() 
                     if line.startswith("1 of 1 case meas"))
    assert " in 3 s" in first and " in 3 s" not in second


@pytest.mark.parametrize("columns", [60, 100])
def test_the_command_of_a_finding_can_be_copied(
    columns: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    folder = tmp_path / "a run"
    found = Finding("HB141", "note", f"pass 3-5 of 6 not run; resume with {RESUME}")
    print_results(make_results((ok(make_case()),), (found,)), folder)
    command = job_command_line(4, "run", "--resume", folder)
    assert any(command in line for line in capsys.readouterr().out.splitlines())


def test_a_run_without_any_trace_is_reported(capsys: Capture, tmp_path: Path) -> None:
    results = all_ok((make_case(),))
    gone = replace(results, run=replace(results.run, run_id="", nodes=(), versions={}))
    print_all(gone, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert "unknown nodes (no rank has a trace)" in lines[0]


def test_blocks_stand_as_in_the_sweep_file_though_a_skip_of_the_last_is_planned_first(
    capsys: Capture, tmp_path: Path,
) -> None:
    large = make_case(block="scaling", world_size=8, skip="more than the job's 4 ranks")
    first, last = make_case(index=1), make_case(index=2, block="scaling")
    print_all(make_results((not_ok(large, "skipped", "too large"), ok(first), ok(last))),
                  tmp_path)
    printed = capsys.readouterr().out
    assert 0 < printed.index("block quick") < printed.index("block scaling")


def test_notes_stand_above_the_tables_and_a_title_if_there_is_one(
    capsys: Capture, tmp_path: Path,
) -> None:
    results = mixed_results()
    print_all(results, tmp_path)
    assert "Benchmark Results" not in capsys.readouterr().out
    config = {**results.plan.config, "notes": ["seq_length is open"], "title": "Benchmark Results"}
    print_all(replace(results, plan=replace(results.plan, config=config)), tmp_path)
    head, tables = capsys.readouterr().out.split("\nBenchmark Results\n")
    assert "note: seq_length is open\n" in head and "block" in tables


def test_every_mode_and_fold_has_its_words_and_its_group(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    cases = [make_case(mode=mode, index=index, batch=20 if mode == "pipelined" else 1)
             for index, mode in enumerate(("isolated", "pipelined", "barrier_start", "isolated"))]
    items = [ok(case) for case in cases]
    items[3] = flagged(items[3], "clock_unreliable", fold="local_max")
    print_all(make_results(tuple(items)), tmp_path, explain=True)
    head, tables = capsys.readouterr().out.split("block", 1)
    for line in ("mode pipelined: ", "(20 calls a sample)", "fold per_call: the longest of",
                 "mode barrier_start: ", "fold local_max: the longest of the ranks' own times"):
        assert line in head
    title = "all_reduce  gloo (cpu)  4 ranks"
    for named in ("isolated, fold global", "pipelined, fold per_call", "isolated, fold local_max",
                  "barrier_start, fold local_max"):
        assert tables.count(f"{title}  {named}\n") == 1


def test_row_has_nccl_tests_columns(capsys: Capture, tmp_path: Path) -> None:
    case = make_case(make_workload("all_reduce", 2**30), world_size=4)
    print_all(make_results((ok(case, 1e-3),)), tmp_path)
    text = capsys.readouterr().out
    assert rows_with(text, "ok") == [
        ["1", "GiB", "268435456", "fp32", "sum", "-", "out", "1.00", "0.990..1.02", "1.20",
         "1074", "1611", "0", "20", "ok"]
    ]
    assert "all_reduce  gloo (cpu)  4 ranks  isolated, fold global\n" in text
    assert "flags" not in text.split("block")[1].splitlines()[1]


def test_what_libraries_logged_is_a_column_only_if_any_did(capsys: Capture, tmp_path: Path) -> None:
    unknown = dict.fromkeys(("algorithm", "protocol", "channels", "transport"), "unknown")
    told = [{"algorithm": "RING", "protocol": "LL", "channels": "8", "transport": "P2P/CUMEM"},
            {**unknown, "channels": "up to 24", "transport": "NET/IB"}, unknown]
    cases = sweep(("all_reduce",), ("nccl",))
    print_all(make_results(tuple(
        ok(case, library=item) for case, item in zip(cases, told, strict=True))), tmp_path)
    table = capsys.readouterr().out.split("\nblock ")[1].splitlines()
    rows = table[next(at for at, line in enumerate(table) if line.startswith("all_reduce")) + 1:]
    assert rows[0].endswith("  RING LL, 8 channels, P2P/CUMEM")
    assert rows[1].endswith("  up to 24 channels, NET/IB") and "channels" not in rows[2]
    print_all(make_results((ok(cases[0], library=unknown),)), tmp_path)
    assert "library" not in capsys.readouterr().out


def test_splits_and_groups_stand_above_their_rows(capsys: Capture, tmp_path: Path) -> None:
    cases = (shaped("even", 1, 0), shaped("linear", 1, 1), shaped("even", 2, 2))
    print_all(make_results(tuple(ok(case) for case in cases)), tmp_path)
    print_plan(make_plan(cases))
    lines = capsys.readouterr().out.splitlines()
    title, timed = "all_to_all  gloo (cpu)  4 ranks", "isolated, fold global"
    assert {f"{title}  {timed}", f"{title}  split linear  {timed}",
            f"{title}  2 groups  {timed}"} <= set(lines)
    assert any(line.split()[1:4] == ["all_to_all", "(split", "linear)"] for line in lines)


def test_a_table_shows_how_mpi_reached_the_gpus(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    case = make_case(make_workload("all_reduce", 8), backend="mpi", device="cuda")
    staged, direct = ({"device_memory": {"how": how, "reason": ""}} for how in ("staged", "direct"))
    for detail, words in (({"0": staged, "1": staged}, "  staged through the host"),
                          ({"0": direct, "1": direct}, "  direct"), ({}, ""),
                          ({"0": direct, "1": staged},
                           "  direct on some ranks, staged through the host on others")):
        print_all(make_results((ok(case, detail=detail),)), tmp_path)
        lines = capsys.readouterr().out.splitlines()
        assert f"all_reduce  mpi (cuda)  4 ranks{words}  isolated, fold global" in lines
    print_all(make_results((ok(replace(case, device="cpu"), detail={"0": direct}),)), tmp_path)
    title = "all_reduce  mpi (cpu)  4 ranks  isolated, fold global"
    assert title in capsys.readouterr().out.splitlines()


def test_unchecked_is_shown_and_a_wrong_case_has_no_time(capsys: Capture, tmp_path: Path) -> None:
    unchecked = ok(make_case(check=UNCHECKED))
    wrong = not_ok(make_case(index=1), "wrong", "3 wrong elements", blamed_rank=2, n_wrong=3)
    print_all(make_results((unchecked, wrong)), tmp_path)
    text = capsys.readouterr().out
    assert "unchecked" in rows_with(text, "ok")[0]
    assert rows_with(text, "wrong")[0][7:14] == ["-", "-", "-", "-", "-", "3", "-"]


def test_everything_not_ok_is_grouped_with_its_reason(capsys: Capture, tmp_path: Path) -> None:
    print_all(mixed_results(), tmp_path)
    text = capsys.readouterr().out
    assert "6 x  nccl needs a CUDA device; none is visible" in text
    assert "1 x  rank 1: worker killed by signal 9 (SIGKILL)" in text
    assert "1 x  rank 3: no progress for 60 s" in text
    assert "error[HB110] (run): rank 3 has no trace" in text
    assert "2 of 12 cases measured, 1 wrong, 1 failed, 1 timeout, 1 not run, 6 skipped" in text


def test_many_failures_with_one_cause_are_counted_not_listed(
    capsys: Capture, tmp_path: Path
) -> None:
    items = tuple(not_ok(make_case(index=index), "failed", "out of memory", blamed_rank=0)
                  for index in range(40))
    print_results(make_results(items), tmp_path)
    text = capsys.readouterr().out
    assert "40 x  rank 0: out of memory" in text
    assert "and 35 more" in text


def test_the_blamed_ranks_last_output_or_another_ranks_stack_is_shown(
    capsys: Capture, tmp_path: Path
) -> None:
    output = "\n".join(["old line", *(f"line {number}" for number in range(5)), "MemoryError"])
    raised = not_ok(make_case(), "failed", "rank 1: MemoryError", blamed_rank=1, detail={
        "0": {"output": "Connection reset by peer"}, "1": {"output": output}})
    silent = not_ok(make_case(index=1), "timeout", "rank 1: process is stopped", blamed_rank=1,
                    detail={"0": {"stacks": "Thread 1\n  in broadcast"}, "1": {"output": ""}})
    print_results(make_results((raised, silent)), tmp_path)
    text = capsys.readouterr().out
    assert "rank 1, its last output:" in text
    assert "MemoryError" in text
    assert "old line" not in text
    assert "Connection reset" not in text
    assert "rank 0, stack:" in text
    assert "in broadcast" in text


def test_of_a_crash_the_thread_that_crashed_is_shown(capsys: Capture, tmp_path: Path) -> None:
    waits = [f'  File "threading.py", line {line} in wait' for line in range(10)]
    output = "\n".join([
        "Fatal Python error: Segmentation fault", "", "Thread 0x1 (most recent call first):",
        *waits, "", "Current thread 0x2 (most recent call first):",
        '  File "ring.py", line 7 in run'])
    crashed = not_ok(make_case(), "failed", "rank 1: worker ended by signal 11 (SIGSEGV)",
                     blamed_rank=1, detail={"1": {"output": output}})
    print_results(make_results((crashed,)), tmp_path)
    text = capsys.readouterr().out
    assert "Fatal Python error: Segmentation fault" in text
    assert 'File "ring.py", line 7 in run' in text
    assert "threading.py" not in text


def test_files_that_exist_are_named(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "results.h5").touch()
    print_all(make_results(()), tmp_path)
    text = capsys.readouterr().out
    assert "report.html" not in text
    (tmp_path / "report.html").touch()
    print_all(make_results(()), tmp_path)
    assert "report.html" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["20", "80"])
def test_a_narrow_terminal_cuts_nothing(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    cases = sweep(sizes=(2**40,), backends=("gloo",))
    print_all(make_results(tuple(ok(case, 123.456789) for case in cases)), tmp_path)
    print_plan(make_plan(cases))
    text = capsys.readouterr().out
    assert "…" not in text
    assert text.count("1024 GiB") >= 4
    assert "123.5" in text


def test_the_range_of_few_launches_stands_in_place_of_an_interval_that_none_has() -> None:
    items = []
    for case in (*sweep(("all_reduce",), ("gloo", "mpi")), make_primitive_case()):
        item = flagged(ok(case, 1e-3), launch_medians_s=(0.9e-3, 1e-3, 1.3e-3))
        assert item.statistics is not None
        items.append(replace(item, statistics=replace(
            item.statistics, ci_low_s=None, ci_high_s=None, ci_reliable=False)))
    *both, primitive = items
    (table,) = [one.without_empty() for one in brief_tables_of(make_results(tuple(both)))]
    titles = [column.title for column in table.columns]
    assert "95 % CI" not in titles and titles.count("launches") == 2
    row = dict(zip(titles, table.texts(table.rows[0]), strict=True))
    assert row["launches"] == "0.90..1.30 ms", row
    for table in (*brief_tables_of(make_results((items[0],))),
                  *any_results("t", both), *any_profile(both),
                  *brief_tables_of(make_results((primitive,)))):
        if isinstance(table, Table):
            titles = [column.title for column in table.brief().without_empty().columns]
            assert titles.count("launches") == 1 and "95 % CI" not in titles


def test_headings_of_a_brief_table_are_those_of_its_cells() -> None:
    cases = tuple(replace(case, mode="isolated") for case in sweep(("all_reduce",), ("gloo",)))
    late = tuple(replace(case, case_id=f"{case.case_id}l", arrival=ArrivalPattern("last", 10**6))
                 for case in cases)
    (table,) = brief_tables_of(make_results(tuple(map(ok, (*cases, *late)))))
    titles = [column.title for column in table.columns]
    assert "arrival" in titles and "mode" not in titles
    (alike,) = brief_tables_of(make_results(tuple(map(ok, late))))
    assert "arrival" not in [column.title for column in alike.columns]
    assert alike.title.count("last rank late by 1ms") == 1
    column = Column("overlap", "overlap", Show.PERCENT, f"%, {RANGE}")
    ranged = Table("", (column,), (Group("", (Row((Range(1.0, 3.0, 2.0),)),)),))
    assert [ranged.brief().columns[0].unit, ranged.brief().rows[0].cells] == ["%", (2.0,)]


def test_cases_that_differ_in_their_checks_or_iterations_alone_have_a_row_each() -> None:
    cases = sweep(("all_reduce",), ("gloo", "mpi"), sizes=(2**20,))
    others = [replace(case, case_id=f"{case.case_id}{name}", **{name: value})
              for case in cases for name, value in (("check", UNCHECKED), ("iterations", 7))]
    items = [ok(case, 1e-3 * (index + 1)) for index, case in enumerate((*cases, *others))]
    (table,) = brief_tables_of(make_results(tuple(items)))
    ways = len({(case.check, case.iterations) for case in (*cases, *others)})
    assert ways > 1 and len({row.cells[:3] for row in table.rows}) == ways == len(table.rows)
    assert sorted(case_id for row in table.rows for _, case_id in row.of_spans) == sorted(
        item.case.case_id for item in items)


def test_a_backend_stands_beside_the_first_one_and_the_clearly_fastest_is_named() -> None:
    cases = sweep(("all_reduce",), sizes=(2**20, 2**21))
    items = tuple(ok(case, 6e-3 if case.backend == "gloo" else 2e-3) for case in cases)
    (table,) = brief_tables_of(make_results(items))
    at = [column.title for column in table.columns].index("x gloo")
    assert [table.texts(row)[at] for row in table.rows] == ["3.00", "3.00"]
    gloo, mpi = (case.case_id for case in cases if case.workload.size_bytes == 2**20)
    marked = with_fastest(table, {mpi: (frozenset({gloo}), frozenset({gloo}))})
    assert [row.cells[-1] for row in marked.rows] == ["mpi fastest", ""]
    assert with_fastest(table, {mpi: (frozenset({"another"}),) * 2}) == table


@given(st.lists(st.sampled_from(STATUSES), max_size=12))
def test_totals_always_add_up(statuses: list[str]) -> None:
    items = tuple(
        ok(make_case(index=index)) if status == "ok"
        else not_ok(make_case(index=index), status, f"reason {index % 3}")
        for index, status in enumerate(statuses)
    )
    text = printed(items)
    line = text.splitlines()[1].split(":")[0]
    measured, total = line.split(" case")[0].split(" of ")
    others = line.partition("measured, ")[2].split(", ")
    assert int(total) == len(items) == int(measured) + sum(
        int(part.split()[0]) for part in others if part)
    assert all(f"reason {index % 3}" in text for index, status in enumerate(statuses)
               if status not in ("ok", "skipped", "not_run"))


def printed(items: tuple[object, ...]) -> str:
    from contextlib import redirect_stdout

    stream = io.StringIO()
    with redirect_stdout(stream):
        print_all(make_results(items), Path("results"))  # type: ignore[arg-type]
    return stream.getvalue()


@given(st.floats(0, 1e15, allow_nan=False, allow_subnormal=False))
def test_numbers_are_plain_decimals_of_three_digits(value: float) -> None:
    text = format_number(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=5.1e-3)


def test_plan_shows_needs_skips_duplicates_and_that_the_estimate_assumes(capsys: Capture) -> None:
    cases = list(sweep(backends=("gloo", "nccl")))
    cases = [replace(case, needs=("nccl",)) if case.backend == "nccl" else case for case in cases]
    cases[0] = replace(cases[0], skip="8 bytes round down to nothing on 4 ranks")
    print_plan(make_plan(tuple(cases), duplicates=2, passes=3))
    text = capsys.readouterr().out
    assert "12 cases x 3 passes for 4 ranks" in text
    assert "11 to run; 6 need nccl" in text
    assert "2 duplicates dropped" in text
    assert "1 x  8 bytes round down to nothing" in text
    assert "estimate 31.5 s (21 s of that only if" in text  # 4 s a pass for workers on GPUs
    assert "assumed" in text


def test_a_long_plan_is_collapsed_and_counts_every_case(capsys: Capture) -> None:
    sizes = tuple(2**power for power in range(3, 28))
    cases = sweep(sizes=sizes, dtypes=("fp32", "bf16"), world_sizes=(2, 4))
    print_plan(make_plan(cases))
    lines = capsys.readouterr().out.split("block", 1)[1].splitlines()
    rows = [line.split() for line in lines if "gloo" in line or " mpi " in line]
    assert sum(int(row[0]) for row in rows) == len(cases)
    assert len(rows) == 8
    assert any("8..128MiB" in line and "fp32,bf16" in line for line in lines), "all share them"


def test_an_empty_plan_is_printed(capsys: Capture) -> None:
    print_plan(make_plan(()))
    assert "0 cases" in capsys.readouterr().out


def test_many_findings_alike_are_shown_by_the_first_ones(
    capsys: Capture, tmp_path: Path,
) -> None:
    many = tuple(Finding("HB126", "case", f"case {number} is wrong") for number in range(9))
    print_results(replace(mixed_results(), findings=many), tmp_path)
    text = capsys.readouterr().out
    assert text.count("error[HB126] (case): case ") == 3
    assert "error[HB126] (case): and 6 more: see summary.json" in text
