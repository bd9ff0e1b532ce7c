from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.config.axes import UNCHECKED
from hpcbench.errors import ExitCode, FileError, TraceError
from hpcbench.plan.case import Case, plan_to_json
from hpcbench.reduce.history import Attempts, Intake
from hpcbench.reduce.outcome import Outcome, OutcomeContext, judge
from hpcbench.reduce.reduce import exit_code, read_cases, reduce_folder
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.schema import LIBRARY, SAMPLE_COLUMNS, LibraryChoices, Record, no_samples
from hpcbench.trace.sealed import open_trace
from synthetic import (
    Change,
    duration_ns,
    make_case,
    make_plan,
    make_samples,
    plan_of,
    with_rows,
    write_synthetic_run,
)


class NotedTrace:
    """A sealed trace that notes of how many cases it was asked at a time."""

    def __init__(self, path: Path, asked: list[int]) -> None:
        self._trace, self._asked = open_trace(path), asked
        self.header, self.sample_counts = self._trace.header, self._trace.sample_counts

    def records(self, case_ids: Collection[str]) -> Iterator[Record]:
        self._asked.append(len(case_ids))
        return self._trace.records(case_ids)


def drop(rank: int, case_id: str, pass_index: int = 0) -> Change:
    """Leave out one record."""
    def change(at: int, record: Record) -> Iterable[Record]:
        gone = (at, record.case_id, record.pass_index) == (rank, case_id, pass_index)
        return () if gone else (record,)
    return change


def codes(results: Results) -> set[str]:
    return {item.code for item in results.findings if item.code != "HB134"}


def statuses(results: Results) -> list[str]:
    return [item.status for item in results.cases]


def test_a_sound_run_has_every_case_and_no_finding(tmp_path: Path) -> None:
    plan = make_plan(n_cases=3, world_size=3, passes=2, iterations=30)
    write_synthetic_run(tmp_path / "run", plan)
    results = reduce_folder(tmp_path / "run")
    assert (results.plan, results.findings) == (plan, ())
    assert statuses(results) == ["ok"] * 3
    assert exit_code(results) is ExitCode.OK
    run = results.run
    assert (run.run_id, run.world_size, run.ranks_present) == ("run-1", 3, (0, 1, 2))
    assert (run.nodes, run.started_at) == (("host0",), "2026-01-02T03:04:05Z")
    assert (run.versions["torch"], run.plan_hash) == ("2.0", plan.plan_hash)


def test_statistics_are_of_the_slowest_rank_over_all_passes_without_warm_ups(
    tmp_path: Path
) -> None:
    plan = make_plan(n_cases=2, world_size=3, passes=2, warmup=2, iterations=50)
    write_synthetic_run(tmp_path / "run", plan)
    for index, result in enumerate(reduce_folder(tmp_path / "run").cases):
        times_s = np.array([duration_ns(index, pass_index, 2, iteration)
                            for pass_index in range(2) for iteration in range(2, 52)]) / 1e9
        found = result.statistics
        assert found is not None and found.n == 100
        assert (found.min_s, found.max_s) == (times_s.min(), times_s.max())
        expected = np.percentile(times_s, [5, 25, 50, 75, 95, 99])
        assert [found.p5_s, found.p25_s, found.median_s, found.p75_s, found.p95_s,
                found.p99_s] == pytest.approx(expected)
        assert (result.n_wrong, result.device, result.blamed_rank) == (0, "cpu", None)


def test_samples_are_stacked_by_rank_and_keep_warm_ups_and_passes(tmp_path: Path) -> None:
    plan = make_plan(n_cases=2, world_size=3, passes=2)
    write_synthetic_run(tmp_path / "run", plan)
    reduce_folder(tmp_path / "run")
    with open_results(tmp_path / "run") as file:
        for case in plan.cases:
            samples = file.samples(case.case_id)
            assert samples is not None and samples.ranks == (0, 1, 2)
            assert samples.pass_index.tolist() == [0] * 7 + [1] * 7
            for rank in range(3):
                rows = np.concatenate([make_samples(case, rank, 0), make_samples(case, rank, 1)])
                assert np.array_equal(samples.start_ns[rank], rows[:, 0])
                assert np.array_equal(samples.end_ns[rank], rows[:, 1])
                assert np.array_equal(samples.enqueue_ns[rank], rows[:, 2])
                assert np.array_equal(samples.device_ns[rank], rows[:, 3])
                assert np.array_equal(samples.flags[rank], rows[:, 4])
        assert file.samples("unknown") is None


def test_the_file_holds_the_results_and_reducing_again_changes_nothing(tmp_path: Path) -> None:
    plan = make_plan(n_cases=3, world_size=2)
    write_synthetic_run(tmp_path / "run", plan, change=drop(1, plan.cases[1].case_id))
    first = reduce_folder(tmp_path / "run")
    with open_results(tmp_path / "run" / "results.h5") as file:
        assert file.results == first
    content = (tmp_path / "run" / "results.h5").read_bytes()
    assert reduce_folder(tmp_path / "run") == first
    assert (tmp_path / "run" / "results.h5").read_bytes() == content


def test_journals_give_the_same_numbers_as_sealed_traces(tmp_path: Path) -> None:
    plan = make_plan(n_cases=3, world_size=2, passes=2)
    write_synthetic_run(tmp_path / "sealed", plan)
    write_synthetic_run(tmp_path / "live", plan, sealed=False)
    sealed, live = reduce_folder(tmp_path / "sealed"), reduce_folder(tmp_path / "live")
    assert live.cases == sealed.cases
    assert codes(live) == {"HB110"}
    assert (exit_code(sealed), exit_code(live)) == (ExitCode.OK, ExitCode.INCOMPLETE)


def test_a_killed_run_keeps_every_case_that_all_ranks_recorded(tmp_path: Path) -> None:
    """Rank 1 was killed while it wrote: its journal ends inside the last record."""
    plan = make_plan(n_cases=4, world_size=2)
    traces = write_synthetic_run(tmp_path / "run", plan, sealed=False, end=False)
    journal = traces / "rank00001.journal"
    journal.write_bytes(journal.read_bytes()[:-10])
    results = reduce_folder(tmp_path / "run")
    assert statuses(results) == ["ok", "ok", "ok", "not_run"]
    assert "ended before rank 1" in results.cases[3].reason
    assert results.cases[3].statistics is None
    assert "HB110" in codes(results) and exit_code(results) is ExitCode.INCOMPLETE


def test_the_plan_comes_from_rank_0_if_the_file_is_gone(tmp_path: Path) -> None:
    plan = make_plan()
    write_synthetic_run(tmp_path / "run", plan)
    with_file = reduce_folder(tmp_path / "run")
    (tmp_path / "run" / "plan.json").unlink()
    assert reduce_folder(tmp_path / "run") == with_file
    (tmp_path / "run" / "traces" / "rank00000.h5").unlink()
    with pytest.raises(TraceError, match="neither plan.json nor a trace of rank 0"):
        reduce_folder(tmp_path / "run")


@pytest.mark.parametrize("text", [
    "", "{}", "[1]", '{"cases": [{}]}', '{"cases": 3}', "null",
    json.dumps({**plan_to_json(make_plan()), "passes": 0}),
    json.dumps({**plan_to_json(make_plan()), "world_size": "2"})])
def test_an_unreadable_plan_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match="plan.json: the plan in it cannot be read"):
        reduce_folder(tmp_path)


def test_a_missing_folder_or_results_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such folder"):
        reduce_folder(tmp_path / "none")
    (tmp_path / "run" / "traces").mkdir(parents=True)
    for path, told in ((tmp_path, "no such file; give the folder of a run"),
                       (tmp_path / "none", "no such file or folder; give results.h5 of a run"),
                       (tmp_path / "run", f"hpcbench reduce {tmp_path / 'run'} makes it"),
                       (tmp_path / "run/results.h5",
                        f"hpcbench reduce {tmp_path / 'run'} makes it")):
        with pytest.raises(FileError, match=told), open_results(path):
            pass


def test_nothing_measured_is_incomplete_not_a_success(tmp_path: Path) -> None:
    plan = make_plan(world_size=2)
    shutil.rmtree(write_synthetic_run(tmp_path / "run", plan))
    results = reduce_folder(tmp_path / "run")
    assert statuses(results) == ["not_run"] * 3
    assert codes(results) == {"HB101"} and exit_code(results) is ExitCode.INCOMPLETE


@pytest.mark.parametrize("passes", [1, 3])
def test_skips_need_no_samples_whoever_decides(tmp_path: Path, passes: int) -> None:
    cases = [make_case(0), make_case(1, skip="gloo has no avg"), make_case(2, needs=("nccl",))]

    def change(rank: int, record: Record) -> Iterable[Record]:
        if record.case_id != cases[2].case_id:
            return (record,)
        skipped = replace(record, status="skipped", reason="no NVIDIA device", n_wrong=-1,
                          samples=no_samples())
        return (skipped,) if record.pass_index == 0 else ()  # what cannot run is recorded once

    write_synthetic_run(tmp_path / "run", plan_of(cases, 2, passes), change=change)
    results = reduce_folder(tmp_path / "run")
    assert statuses(results) == ["ok", "skipped", "skipped"]
    assert [item.reason for item in results.cases] == ["", "gloo has no avg", "no NVIDIA device"]
    assert codes(results) == set() and exit_code(results) is ExitCode.OK
    assert exit_code(replace(results, cases=results.cases[1:])) is ExitCode.FINDINGS  # none is ok
    with open_results(tmp_path / "run") as file:
        assert file.samples(cases[2].case_id) is None


def test_a_case_whose_only_rank_is_lost_names_it(tmp_path: Path) -> None:
    cases = [make_case(0, world_size=1), make_case(1, world_size=2, skip="no")]
    traces = write_synthetic_run(tmp_path / "run", plan_of(cases, 2))
    (traces / "rank00000.h5").unlink()
    case = reduce_folder(tmp_path / "run").cases[0]
    assert (case.status, case.reason) == ("not_run", "no record of it: the trace of rank 0 is lost")


def test_words_of_a_worker_do_not_make_its_failure_a_missing_trace(tmp_path: Path) -> None:
    plan = make_plan(world_size=2)

    def change(rank: int, record: Record) -> Iterable[Record]:
        yield replace(record, status="failed", reason="HB112: no trace of rank 1") if (
            record.case_id == plan.cases[1].case_id) else record

    write_synthetic_run(tmp_path / "run", plan, change=change)
    assert exit_code(reduce_folder(tmp_path / "run")) is ExitCode.FINDINGS
    with open_results(tmp_path / "run") as file:
        assert exit_code(file.results) is ExitCode.FINDINGS


def test_a_case_on_fewer_ranks_needs_only_those(tmp_path: Path) -> None:
    cases = [make_case(0, world_size=1), make_case(1, world_size=2), make_case(2, world_size=4)]
    write_synthetic_run(tmp_path / "run", plan_of(cases, 4))
    results = reduce_folder(tmp_path / "run")
    assert statuses(results) == ["ok"] * 3 and codes(results) == set()
    with open_results(tmp_path / "run") as file:
        shapes = [file.samples(case.case_id).start_ns.shape for case in cases]  # type: ignore[union-attr]
    assert shapes == [(1, 7), (2, 7), (4, 7)]


@pytest.mark.parametrize(("status", "code"), [
    ("failed", ExitCode.FINDINGS), ("timeout", ExitCode.FINDINGS), ("wrong", ExitCode.FINDINGS),
    ("not_run", ExitCode.INCOMPLETE), ("skipped", ExitCode.OK)])
def test_a_recorded_status_stands_with_reason_blame_and_detail(
    tmp_path: Path, status: str, code: ExitCode
) -> None:
    plan = make_plan(world_size=2)

    def change(rank: int, record: Record) -> Iterable[Record]:
        if record.case_id == plan.cases[1].case_id:
            record = replace(record, status=status, reason="signal 9", blamed_rank=1,
                             n_wrong=-1, samples=no_samples(), detail={"stderr": [f"of {rank}"]})
        return (record,)

    write_synthetic_run(tmp_path / "run", plan, change=change)
    results = reduce_folder(tmp_path / "run")
    assert statuses(results) == ["ok", status, "ok"]
    failed = results.cases[1]
    assert (failed.reason, failed.blamed_rank, failed.statistics) == ("signal 9", 1, None)
    assert failed.detail == {"0": {"stderr": ["of 0"]}, "1": {"stderr": ["of 1"]}}
    assert exit_code(results) is code


def test_what_libraries_logged_on_any_rank_in_any_pass_is_recorded_once(tmp_path: Path) -> None:
    plan = make_plan(n_cases=2, world_size=3, passes=2, backend="ucc/tl/cuda")

    def change(rank: int, record: Record) -> Iterable[Record]:
        told = LibraryChoices(("RING",) if rank == 0 else (), (), ("8",) if rank == 0 else (),
                              ("CL_BASIC/TL_UCP", "self") if record.pass_index else ())
        detail = {"kept": rank, LIBRARY: told.to_json()}
        first = record.case_id == plan.cases[0].case_id
        yield replace(record, detail=detail) if first else record

    write_synthetic_run(tmp_path / "run", plan, change=change)
    results = reduce_folder(tmp_path / "run")
    told, silent = results.cases
    assert told.library == {"algorithm": "RING", "protocol": "unknown", "channels": "8",
                            "transport": "CL_BASIC/TL_UCP + self"}
    assert silent.library == dict.fromkeys(told.library, "unknown")
    assert told.detail == {str(rank): {"kept": rank} for rank in range(3)} and not silent.detail
    (finding,) = [item for item in results.findings if item.code == "HB131"]
    assert "ucc/tl/cuda was requested, UCC used CL_BASIC/TL_UCP (1 case" in finding.message
    with open_results(tmp_path / "run") as file:
        assert file.results == results


def test_what_did_not_run_was_carried_by_nothing(tmp_path: Path) -> None:
    plan = plan_of([make_case(), make_case(1, skip="no GPU")], world_size=2)
    write_synthetic_run(tmp_path / "run", plan)
    assert [item.library is None for item in reduce_folder(tmp_path / "run").cases] == [False, True]


def test_the_environment_has_a_hash(tmp_path: Path) -> None:
    def reduced(name: str, kernel: str, uptime_s: float) -> str | None:
        write_synthetic_run(tmp_path / name, make_plan(), headers=lambda header: replace(
            header, environment={"kernel": {"release": kernel}, "host": {"uptime_s": uptime_s}}))
        results = reduce_folder(tmp_path / name)
        with open_results(tmp_path / name) as file:
            assert file.results.run.environment_hash == results.run.environment_hash
        return results.run.environment_hash

    first = reduced("first", "6.1", 5.0)
    assert first is not None and len(first) == 16
    assert reduced("again", "6.1", 9.0) == first != reduced("other", "6.2", 5.0)


def test_one_failed_pass_fails_the_case(tmp_path: Path) -> None:
    plan = make_plan(passes=3)

    def change(rank: int, record: Record) -> Iterable[Record]:
        is_it = record.case_id == plan.cases[0].case_id and record.pass_index == 1
        yield replace(record, status="failed", reason="killed", blamed_rank=0,
                      samples=no_samples()) if is_it else record

    write_synthetic_run(tmp_path / "run", plan, change=change)
    result = reduce_folder(tmp_path / "run").cases[0]
    assert (result.status, result.reason, result.statistics) == ("failed", "killed", None)


def test_samples_of_a_wrong_case_are_kept_and_its_time_is_not_used(tmp_path: Path) -> None:
    plan = make_plan(n_cases=1)

    def change(rank: int, record: Record) -> Iterable[Record]:
        yield replace(record, status="wrong", n_wrong=3 * rank)

    write_synthetic_run(tmp_path / "run", plan, change=change)
    result = reduce_folder(tmp_path / "run").cases[0]
    assert (result.status, result.n_wrong, result.statistics) == ("wrong", 3, None)
    with open_results(tmp_path / "run") as file:
        assert file.samples(plan.cases[0].case_id) is not None


def test_unchecked_is_none_not_zero(tmp_path: Path) -> None:
    plan = make_plan(n_cases=1, check=UNCHECKED)
    write_synthetic_run(tmp_path / "run", plan)
    result = reduce_folder(tmp_path / "run").cases[0]
    assert (result.status, result.n_wrong) == ("ok", None)


def test_cases_are_read_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(n_cases=50, world_size=2, warmup=0, iterations=20)
    traces = write_synthetic_run(tmp_path, plan)
    asked: list[int] = []
    attempts = Attempts((Intake({rank: NotedTrace(path, asked) for rank, path in enumerate(
        sorted(traces.glob("*.h5")))}, ()),), ())
    for limit, sizes in ((1, [1] * 50), (6 * (20 * 40 + 1024), [3] * 16 + [2]), (10**6, [50])):
        monkeypatch.setattr("hpcbench.reduce.reduce.READ_BYTES", limit)
        asked.clear()
        assert [case for case, _ in read_cases(plan, attempts)] == list(plan.cases)
        assert asked[::2] == asked[1::2] == sizes


@pytest.mark.parametrize("read_bytes", [0, 3000, 1 << 20])
def test_samples_are_those_of_the_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    cases = [make_case(index, iterations=40, skip="no" if index % 4 == 2 else None)
             for index in range(12)]
    uneven = cases[3].case_id

    def change(rank: int, record: Record) -> Iterable[Record]:
        n = 30 if (rank, record.case_id) == (1, uneven) else len(record.samples)
        yield with_rows(record, record.samples.rows()[:n])

    write_synthetic_run(tmp_path / "run", plan_of(cases, 2, passes=2), change=change)
    monkeypatch.setattr("hpcbench.reduce.reduce.READ_BYTES", read_bytes)
    results = reduce_folder(tmp_path / "run")
    assert [item.case for item in results.cases] == cases
    with open_results(tmp_path / "run") as file:
        for case in cases:
            samples = file.samples(case.case_id)
            if case.skip or case.case_id == uneven:
                assert samples is None
                continue
            expected = np.stack([np.concatenate([make_samples(case, rank, index)
                                                 for index in range(2)]) for rank in range(2)])
            assert samples is not None
            for at, name in enumerate(SAMPLE_COLUMNS):
                assert np.array_equal(getattr(samples, name), expected[:, :, at])


def test_a_missing_trace_is_known_from_the_file_too(tmp_path: Path) -> None:
    traces = write_synthetic_run(tmp_path / "run", make_plan(world_size=2))
    (traces / "rank00001.h5").unlink()
    results = reduce_folder(tmp_path / "run")
    assert all(item.trace_missing for item in results.cases)
    with open_results(tmp_path / "run") as file:
        assert file.results.cases == results.cases
        assert exit_code(file.results) is exit_code(results) is ExitCode.INCOMPLETE


def test_a_trace_that_vanishes_while_it_is_read_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(n_cases=5)
    traces = write_synthetic_run(tmp_path / "run", plan)

    def judged(case: Case, records: Any, context: OutcomeContext) -> Outcome:
        if case == plan.cases[3]:
            (traces / "rank00001.h5").unlink()
        return judge(case, records, context)

    monkeypatch.setattr("hpcbench.reduce.reduce.READ_BYTES", 1)
    monkeypatch.setattr("hpcbench.reduce.reduce.judge", judged)
    with pytest.raises(TraceError, match="rank00001.h5"):
        reduce_folder(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["plan.json", "traces"]
