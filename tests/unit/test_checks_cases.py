"""Every check of single cases, provoked (docs/checks.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hpcbench.errors import ExitCode
from hpcbench.plan.case import Plan
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.reduce.results import CaseResult, Finding, Results
from hpcbench.reduce.run_checks import check_totals
from hpcbench.trace.schema import SAMPLE_COLUMNS, Flag, Record, Samples, no_samples
from synthetic import Change, make_case, make_plan, plan_of, with_rows, write_synthetic_run

PLAN = make_plan(n_cases=2, world_size=3, iterations=20)
FLAGS = SAMPLE_COLUMNS.index("flags")
BAD = PLAN.cases[1].case_id


def reduced(
    folder: Path, edit: Callable[[int, Record], Iterable[Record]], plan: Plan = PLAN,
    *, sealed: bool = False,
) -> Results:
    """Reduce the journals of a run in which ``edit`` replaces the records of the second case.

    To seal them takes as long as all else, and what is read of both is the same.
    """
    def change(rank: int, record: Record) -> Iterable[Record]:
        return edit(rank, record) if record.case_id == BAD else (record,)

    write_synthetic_run(folder / "run", plan, change=change, sealed=sealed)
    return reduce_folder(folder / "run")


def on_rank(rank: int, **changes: object) -> Change:
    def edit(at: int, record: Record) -> Iterable[Record]:
        yield replace(record, **changes) if at == rank else record  # type: ignore[arg-type]
    return edit


def stamped(edit: Callable[[Samples], Samples | None], rank: int = 1) -> Change:
    """Change one rank's samples; ``edit`` works in place or returns new ones."""
    def change(at: int, record: Record) -> Iterable[Record]:
        if at != rank:
            return (record,)
        samples = record.samples.rows()
        changed = edit(samples)
        return (with_rows(record, samples if changed is None else changed),)
    return change


def only(results: Results, code: str) -> list[Finding]:
    return [item for item in results.findings if item.code == code]


def assert_rejected(results: Results, code: str, *parts: str) -> CaseResult:
    """The first case is untouched, the second failed with this code and has no numbers."""
    found = only(results, code)
    assert found and found[0].scope == "case"
    assert BAD in found[0].message
    assert all(part in found[0].message for part in parts), found[0].message
    good, bad = results.cases
    assert good.status == "ok" and good.statistics is not None
    assert (bad.status, bad.statistics) == ("failed", None)
    assert bad.reason.startswith(code)
    assert exit_code(results) is ExitCode.FINDINGS
    return bad


def cell(row: int, column: int, value: int) -> Change:
    return stamped(lambda samples: samples.__setitem__((row, column), value))


def beside(row: int, column: int, other: int, other_column: int, by_ns: int) -> Change:
    """A stamp so long after another one of the rank."""
    return stamped(lambda samples: samples.__setitem__(
        (row, column), samples[other, other_column] + by_ns))


def window(rank: int, record: Record, **edges: int) -> Iterable[Record]:
    """Rank 1 says that it began after its first stamp, or ended before its last one."""
    stamps = {"begin_ns": record.samples.start_ns[0] + 9, "end_ns": record.samples.end_ns[-1] - 9}
    yield replace(record, **{name: int(stamps[name]) for name in edges} if rank == 1 else {})


def one_more(samples: Samples) -> Samples:
    return np.concatenate([samples, samples[-1:] + np.array([10**6, 10**6, 0, 0, 0])])


@pytest.mark.parametrize(("code", "edit", "place"), [
    ("HB112", lambda rank, record: () if rank == 1 else (record,), "on rank 1"),
    ("HB113", lambda rank, record: (record,) * (1 + (rank == 2)),
     "two records of pass 1, launch 1, attempt 1"),
    ("HB114", on_rank(1, status="skipped", reason="no device", n_wrong=-1, samples=no_samples()),
     "ok on rank 0, 2, skipped on rank 1"),
    ("HB115", on_rank(1, mode="pipelined"), "pipelined on rank 1, expected barrier_start"),
    ("HB115", on_rank(1, device="cuda:0"), "cuda on rank 1, expected cpu"),
    ("HB116", stamped(lambda samples: samples[:-1]), "22 on rank 0, 2, 21 on rank 1, planned 22"),
    ("HB116", lambda rank, record: [with_rows(record, one_more(record.samples.rows()))],
     "2 warm-ups and 21 timed iterations of 23"),
    ("HB116", cell(5, FLAGS, Flag.WARMUP), "rank 1: 3 warm-ups and 19 timed"),
    ("HB116", lambda rank, record: [replace(record, samples=no_samples())], "planned 20"),
    ("HB116", lambda rank, record: [with_rows(record, record.samples.rows()[:2])], "planned 20"),
    ("HB116", lambda rank, record: (record, replace(record, pass_index=4)), "launch 1, pass 5"),
    ("HB117", beside(7, 1, 7, 0, -18), "rank 1 iteration 7: ends 18 ns before"),
    ("HB117", beside(7, 1, 8, 0, 5), "rank 1 iteration 7: ends 5 ns after"),
    ("HB118", partial(window, begin_ns=9), "rank 1 iteration 0: 9 ns outside"),
    ("HB118", partial(window, end_ns=-9), "rank 1 iteration 21: 9 ns outside"),
    *(("HB120", cell(6, column, value), f"rank 1 iteration 6: {name} is {value}")
      for column, name, value in ((0, "start", 0), (1, "end", 0), (0, "start", -5), (
          1, "end", 2**63 - 1), (2, "enqueue time", -7), (3, "device time", -7))),
    # -9 has the warm-up bit, as row 1 has, and not SINGLE
    ("HB120", cell(1, FLAGS, -9), "rank 1 iteration 1: flags is -9"),
    ("HB126", on_rank(1, n_wrong=-1), "rank 1"),
])
def test_a_record_that_cannot_be_rejects_its_case(
    tmp_path: Path, code: str, edit: Change, place: str,
) -> None:
    assert_rejected(reduced(tmp_path, edit), code, place, *["1 of 66"] * (code == "HB120"))


def test_a_pass_with_a_problem_rejects_the_case_and_is_named(tmp_path: Path) -> None:
    results = reduced(
        tmp_path, lambda rank, record: () if (rank, record.pass_index) == (1, 2) else (record,),
        replace(PLAN, passes=3))
    assert_rejected(results, "HB112", "pass 3: no record of it on rank 1")


def test_hb112_record_of_a_rank_that_is_no_member(tmp_path: Path) -> None:
    case = make_case(1, world_size=2)
    plan = plan_of([make_case(0, world_size=3), replace(case, case_id=BAD)], 3)

    def change(rank: int, record: Record) -> Iterable[Record]:
        yield record
        if rank == 2:
            yield replace(record, case_id=BAD)

    write_synthetic_run(tmp_path / "run", plan, change=change)
    assert_rejected(reduce_folder(tmp_path / "run"), "HB112", "rank 2 took part", "ranks 0 to 1")


def test_hb114_failed_on_one_rank_is_failed(tmp_path: Path) -> None:
    results = reduced(tmp_path, on_rank(1, status="timeout", reason="silent", blamed_rank=1,
                                        n_wrong=-1, samples=no_samples()))
    (finding,) = only(results, "HB114")
    assert "ok on rank 0, 2, timeout on rank 1" in finding.message
    case = results.cases[1]
    assert (case.status, case.reason, case.blamed_rank, case.statistics) == (
        "timeout", "silent", 1, None)


def test_hb114_ranks_blame_different_ranks(tmp_path: Path) -> None:
    def edit(rank: int, record: Record) -> Iterable[Record]:
        yield replace(record, status="failed", reason=f"says {rank}", samples=no_samples(),
                      blamed_rank=2 if rank == 0 else 1)

    results = reduced(tmp_path, edit)
    (finding,) = only(results, "HB114")
    assert "blame different ranks: 1-2" in finding.message and finding.scope == "note"
    case = results.cases[1]
    assert (case.status, case.blamed_rank, case.reason) == ("failed", 2, "says 0")


def test_device_numbers_may_differ(tmp_path: Path) -> None:
    results = reduced(tmp_path, lambda rank, record: [replace(record, device=f"cuda:{rank}")])
    assert (results.cases[1].status, results.cases[1].device) == ("ok", "cuda")


def test_hb119_shorter_than_the_clock_can_resolve(tmp_path: Path) -> None:
    coarse = {"clock_resolution_ns": 50_000}
    write_synthetic_run(tmp_path / "run", PLAN, headers=lambda header: replace(
        header, environment=coarse) if header.rank == 2 else header)
    results = reduce_folder(tmp_path / "run")
    assert [item.scope for item in only(results, "HB119")] == ["note", "note"]
    assert "below twice the clock's resolution of 50000 ns" in results.findings[0].message
    assert [item.status for item in results.cases] == ["ok", "ok"]


def test_hb126_wrong_result_reported_as_ok(tmp_path: Path) -> None:
    results = reduced(tmp_path, on_rank(1, n_wrong=3))
    (finding,) = only(results, "HB126")
    assert "3 wrong elements on rank 1: the time" in finding.message
    case = results.cases[1]
    assert (case.status, case.n_wrong, case.statistics) == ("wrong", 3, None)
    assert exit_code(results) is ExitCode.FINDINGS
    results = reduced(tmp_path / "two", on_rank(1, n_wrong=3), replace(PLAN, passes=2))
    (finding,) = only(results, "HB126")
    assert "each of pass 1-2: 3 wrong elements on rank 1:" in finding.message
    assert results.cases[1].n_wrong == 6


@pytest.mark.parametrize(("sums", "ranks"), [
    ((7, 7, 7), ""), ((7, 7, 9), "rank 2: "), ((7, 8, 9), "rank 0-2: ")])
def test_hb127_replicas_that_are_not_alike(
    tmp_path: Path, sums: tuple[int, ...], ranks: str,
) -> None:
    def edit(rank: int, record: Record) -> Iterable[Record]:
        of = {"of": "weights after the last step", "checksum": sums[rank]}
        yield replace(record, detail={**record.detail, "replicated": of})

    results = reduced(tmp_path, edit)
    found = only(results, "HB127")
    assert [(ranks in item.message, item.scope) for item in found] == [(True, "note")] * bool(ranks)
    assert [item.status for item in results.cases] == ["ok", "ok"]


def test_a_barrier_has_no_result_to_check(tmp_path: Path) -> None:
    barrier = make_case(0, collective="barrier", dtype="uint8", op=None, size_bytes=0)
    write_synthetic_run(tmp_path / "run", plan_of([barrier], 2),
                        change=lambda rank, record: [replace(record, n_wrong=-1)])
    results = reduce_folder(tmp_path / "run")
    assert (results.cases[0].status, results.cases[0].n_wrong) == ("ok", None)


def test_hb134_fewer_iterations_than_planned(tmp_path: Path) -> None:
    results = reduced(
        tmp_path, lambda rank, record: [with_rows(record, record.samples.rows()[:-5])])
    case, few = only(results, "HB134")
    assert "15 of 20" in case.message and case.scope == "note"
    assert "fewer than 20" in few.message
    found = results.cases[1]
    assert found.status == "ok" and found.statistics is not None
    assert (found.statistics.n, found.statistics.p95_s) == (15, None)


def test_hb139_newest_attempt_is_used(tmp_path: Path) -> None:
    def edit(rank: int, record: Record) -> Iterable[Record]:
        yield replace(record, status="failed", reason="first try", samples=no_samples())
        yield replace(record, attempt=1)

    results = reduced(tmp_path, edit, sealed=True)  # journals alone are no whole run
    (finding,) = only(results, "HB139")
    assert "pass 1: 2 attempts, the newest (2) is used" in finding.message
    assert results.cases[1].status == "ok" and exit_code(results) is ExitCode.OK


def test_hb140_a_case_planned_twice(tmp_path: Path) -> None:
    plan = plan_of([PLAN.cases[0], PLAN.cases[0]], 3)
    write_synthetic_run(tmp_path / "run", plan_of([PLAN.cases[0]], 3))
    write_synthetic_run(tmp_path / "twice", plan, change=lambda rank, record: ())
    for name in (f"rank0000{rank}.h5" for rank in range(3)):
        (tmp_path / "run" / "traces" / name).replace(tmp_path / "twice" / "traces" / name)
    results = reduce_folder(tmp_path / "twice")
    (finding,) = only(results, "HB140")
    assert finding.scope == "run" and PLAN.cases[0].case_id in finding.message
    assert exit_code(results) is ExitCode.FINDINGS


def test_hb140_a_lost_case(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", PLAN)
    cases = reduce_folder(tmp_path / "run").cases
    assert list(check_totals(PLAN, cases)) == []
    (finding,) = check_totals(PLAN, cases[:1])
    assert "2 cases planned, 1 accounted for" in finding.message and BAD in finding.message


def test_hb141_pass_that_was_not_run(tmp_path: Path) -> None:
    plan = replace(PLAN, passes=2)
    results = reduced(tmp_path, lambda rank, record: [] if record.pass_index else [record], plan)
    (finding,) = only(results, "HB141")
    assert "pass 2 of 2" in finding.message
    assert [item.status for item in results.cases] == ["ok", "ok"]
    assert [item.statistics.n for item in results.cases if item.statistics] == [40, 20]
    known = [[median is not None for median in item.timing.pass_medians_s]
             for item in results.cases if item.timing]
    assert known == [[True, True], [True, False]]
    assert exit_code(results) is ExitCode.INCOMPLETE
