"""Profiled samples: clocks, merged traces, the rule of the trigger, and the last collectives."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.config.schema import Profiling
from hpcbench.errors import TraceError, UsageError
from hpcbench.launch.measuring import opening_line
from hpcbench.launch.verdict import Evidence, RankOutcome, judge
from hpcbench.profiling.flight import FLIGHT, current_collective, in_flight, joined
from hpcbench.profiling.profiled_cases import (
    CLOCK_MARK,
    SAMPLE_MARK,
    STALL_SHARE,
    WHOLE,
    RankProfile,
    medians_ns,
    nsys_command,
    nsys_missing,
    read_rank_file,
    require_nsys,
    stall,
    write_rank_file,
)
from hpcbench.profiling.record import (
    MOST_LINES,
    RankTrace,
    fit_anchor,
    merge,
    summary_lines,
    write_profiles,
)
from hpcbench.reduce.results import Results
from hpcbench.report.console import print_profile
from hpcbench.trace.schema import NO_DEVICE_TIME, Flag
from results_factory import mixed_results

DAY_NS = 86_400_000_000_000


@given(offset_ns=st.integers(-10**18, 10**18), began_ns=st.integers(0, DAY_NS),
       drift=st.floats(-150e-6, 150e-6), span_ns=st.integers(10**6, 60 * 10**9),
       waits_ns=st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 50_000)),
                         min_size=8, max_size=8))
def test_an_anchor_is_right_within_its_bound(
    offset_ns: int, began_ns: int, drift: float, span_ns: int, waits_ns: list[tuple[int, int]],
) -> None:
    def profiler(local_ns: int) -> int:
        return local_ns + offset_ns + round(drift * (local_ns - began_ns))

    stamps, marks_ns, at_ns = [], [], began_ns
    for number, (before_ns, after_ns) in enumerate(waits_ns):
        at_ns = at_ns + before_ns + after_ns + 1 if number != 4 else began_ns + span_ns
        stamps.append((at_ns - before_ns, at_ns + after_ns))
        marks_ns.append(profiler(at_ns))
    anchor = fit_anchor(stamps, marks_ns)
    for local_ns in (began_ns, began_ns + span_ns // 2, began_ns + span_ns):
        found_ns = int(anchor.to_local(np.array([profiler(local_ns)]))[0])
        slack_ns = 3 + 2 * 800_000 * abs(drift)  # the clocks drift while the markers are set, too
        assert abs(found_ns - local_ns) <= 3 * anchor.bound_ns + slack_ns


def test_an_anchor_needs_all_its_markers() -> None:
    with pytest.raises(TraceError, match="1 of 2 clock markers"):
        fit_anchor([(0, 1), (2, 3)], [5])


def _events(began_us: float, thread: int = 7) -> list[dict[str, Any]]:
    """Return the events of a rank: two samples with a call each, a flow, and what is left out."""
    said = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "P"}
    main = {"pid": 4711, "tid": 4711}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "ts": 0, "args": {"name": "python"}, **main},
        {**said, "ts": began_us, "dur": 9.0},
        {"ph": "X", "cat": "user_annotation", "name": CLOCK_MARK, "ts": began_us, "dur": 1, **main}]
    for number in range(2):
        at_us = began_us + 100 * number
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4711, "tid": thread,
             "ts": at_us + 2, "dur": 5.5, "args": {"External id": number, "correlation": 3}},
            {"ph": "s", "name": "ac2g", "id": number, "ts": at_us + 2, "pid": 4711, "tid": thread},
            {"ph": "X", "cat": "user_annotation", "name": f"{SAMPLE_MARK} {number}",
             "ts": at_us, "dur": 50.0, **main}]
    return events


def _trace(rank: int, began_us: float, late_ns: int = 0) -> RankTrace:
    return RankTrace(rank, f"node{rank}", _events(began_us), 10**18, lambda at: at + late_ns)


def test_a_merged_trace_has_a_process_for_each_rank_and_its_ids_are_unique() -> None:
    merged = merge([_trace(0, 1000.0), _trace(1, 1000.5)])
    timed = [event for event in merged.events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert timed[0]["ts"] == 0
    assert {event["pid"] for event in timed} == {1, 2}
    assert not {CLOCK_MARK, "PyTorch Profiler (0)"} & {event["name"] for event in timed}
    flows = [event["id"] for event in timed if event["ph"] == "s"]
    assert len(flows) == len(set(flows)) == 4
    calls = {(event["pid"], event["args"]["correlation"]) for event in timed if "args" in event}
    assert len({correlation for _, correlation in calls}) == 2
    named = {event["pid"]: event["args"]["name"] for event in merged.events
             if event["name"] == "process_name"}
    assert named == {1: "rank 0 (node0)", 2: "rank 1 (node1)"}
    threads = {event["tid"]: event["pid"] for event in timed}
    assert len(threads) == 4  # two of each rank, and no number twice
    json.dumps(merged.events)


def test_ranks_on_other_clocks_are_put_on_the_global_one() -> None:
    late_ns = 5 * 10**14  # clocks of two machines
    merged = merge([_trace(0, 1000.0), _trace(1, 1000.5 + late_ns / 1000, late_ns=-late_ns)])
    assert merged.spread_ns == 500
    assert merged.marks_ns[1][1] - merged.marks_ns[1][0] == 100_000


def test_a_merged_trace_is_bounded_and_keeps_samples_and_long_events() -> None:
    merged = merge([_trace(0, 0.0), _trace(1, 0.0)], most_events=6)
    timed = [event for event in merged.events if event["ph"] != "M"]
    assert (len(timed), merged.n_dropped) == (6, 6)
    assert sum(event["name"].startswith(SAMPLE_MARK) for event in timed) == 4
    assert sum(event["name"] == "aten::mm" for event in timed) == 2


def test_a_file_of_a_rank_comes_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    about = RankProfile("abc", 0, 3, "cpu", [[1, 2, -1, -1, 0]], [[5, 6]])
    path = tmp_path / "profile" / "abc.rank00003.json.gz"
    write_rank_file(path, {"traceEvents": []}, about)
    assert read_rank_file(path) == (about, {"traceEvents": []})
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(TraceError, match="no profile of a rank"):
        read_rank_file(path)
    with gzip.open(path, "wt") as stream:
        stream.write("{}")
    with pytest.raises(TraceError, match="no profile of a rank"):
        read_rank_file(path)


def _rows(*durations_ns: int) -> Any:
    return np.array([[0, duration, NO_DEVICE_TIME, NO_DEVICE_TIME, flag] for duration, flag in zip(
        durations_ns, [Flag.WARMUP, *[0] * len(durations_ns)], strict=False)], dtype=np.int64)


def test_medians_leave_warm_ups_and_arrivals_out() -> None:
    phases = {"forward": np.array([9, 1, 2, 3]), "arrival 1": np.array([1, 1, 1, 1])}
    assert medians_ns(_rows(900, 10, 20, 30), phases) == {WHOLE: 20.0, "forward": 2.0}
    assert medians_ns(_rows(900), {}) == {}


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=8), st.floats(0.001, 1000))
def test_the_rule_of_the_trigger_is_a_share(medians: list[float], scale: float) -> None:
    share, name = stall([{WHOLE: median} for median in medians])
    assert name == WHOLE
    assert 0 <= share < 1
    again, _ = stall([{WHOLE: median * scale} for median in medians])
    assert again == pytest.approx(share)


def test_ranks_that_wait_in_a_phase_trigger_though_their_samples_are_alike() -> None:
    share, name = stall([{WHOLE: 100.0, "backward": 40.0}, {WHOLE: 100.0, "backward": 70.0}])
    assert (share, name) == (pytest.approx(0.3), "backward")
    assert share > STALL_SHARE
    assert stall([{WHOLE: 1.0}, {}]) == (0.0, "")


def _entry(number: int, *, retired: bool, group: str = "1") -> dict[str, Any]:
    return {"collective_seq_id": number, "profiling_name": "gloo:all_reduce", "is_p2p": False,
            "input_sizes": [[1024]], "input_dtypes": ["Float"], "retired": retired,
            "process_group": [group, "undefined"]}


def test_a_rank_stands_in_the_first_collective_that_is_not_over() -> None:
    record = {"entries": [_entry(7, retired=True), _entry(8, retired=False)]}
    assert current_collective(record) == "in all_reduce #8 (4 KiB) of group 1"
    record = {"entries": [_entry(7, retired=True)]}
    assert current_collective(record) == "past all_reduce #7 (4 KiB) of group 1"
    assert current_collective({"unavailable": "none"}) == ""


def test_an_unknown_dtype_has_no_size_and_the_control_group_a_name() -> None:
    entry = {**_entry(1, retired=False), "input_dtypes": ["Float8_e4m3fn"],
             "process_group": ["0", "default_pg"]}
    assert current_collective({"entries": [entry]}) == "in all_reduce #1 of the control group"


def _torchs(number: int, name: str, group: list[str], at_ns: int, **others: Any) -> dict[str, Any]:
    """Return an entry as torch 2.13 writes it: dump_json of FlightRecorderDetail.hpp.

    Gloo's recorder and NCCL's have the same fields; ``state`` is scheduled, started or completed,
    by events, which gloo has not. ``pg_id`` counts the groups of one backend (``local_id_``).
    """
    return {
        "collective_seq_id": number, "input_dtypes": ["Float"], "input_sizes": [[1024]],
        "is_p2p": False, "op_id": number, "output_dtypes": ["Float"], "output_sizes": [[1024]],
        "p2p_seq_id": 0, "pg_id": 0, "process_group": group, "profiling_name": name,
        "record_id": number, "retired": True, "state": "scheduled", "thread_id": "1",
        "thread_name": "python", "time_created_ns": at_ns, "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0, "timeout_ms": 600000, **others}


def _dumped(entries: list[dict[str, Any]], enqueued: str) -> dict[str, Any]:
    status = {"last_completed_collective": "1", "last_enqueued_collective": enqueued,
              "last_started_collective": "1"}
    return {"comm_lib_version": "", "entries": entries, "nccl_comm_state": {}, "pg_config": {},
            "pg_status": {"0": status}, "version": "2.10"}


CONTROL, TESTED = ["0", "default_pg"], ["1", "undefined"]


def test_a_rank_that_hangs_in_nccl_stands_there_and_not_in_its_control_group() -> None:
    gloo = _dumped([_torchs(1, "gloo:barrier", CONTROL, 10), _torchs(2, "gloo:barrier", CONTROL, 30)
                    ], "2")
    over = _torchs(1, "nccl:all_reduce", TESTED, 20, retired=False, state="completed")
    hangs = _torchs(2, "nccl:all_reduce", TESTED, 40, retired=False, state="started")
    record = joined([gloo, _dumped([over, hangs], "3")])
    assert [entry["time_created_ns"] for entry in record["entries"]] == [10, 20, 30, 40]
    assert {name: status["last_enqueued_collective"]
            for name, status in record["groups"].items()} == {"0": "2", "1": "3"}
    assert current_collective(record) == "in all_reduce #2 (4 KiB) of group 1"
    assert current_collective(joined([gloo, _dumped([over], "1")])) == (
        "past barrier #2 (4 KiB) of the control group")


def test_what_both_recorders_have_is_there_once() -> None:
    whole = _dumped([_torchs(1, "gloo:barrier", CONTROL, 10),
                     _torchs(1, "nccl:all_reduce", TESTED, 20)], "1")
    assert joined([whole, whole])["entries"] == whole["entries"]
    assert joined([]) == {"version": "", "groups": {}, "entries": []}


def test_ranks_that_stand_alike_are_named_together_in_the_verdict() -> None:
    assert in_flight({0: "in a #2", 1: "past a #1", 2: "in a #2", 3: ""}) == (
        "rank 0, 2 in a #2; rank 1 past a #1")
    seen = [Evidence(rank, RankOutcome.STUCK, "silent", iteration, 5, expired=True,
                     current_collective=place)
            for rank, (iteration, place) in enumerate([(4, "in a #2"), (3, "past a #1")])]
    assert judge(seen, 2.0).reason.endswith("; rank 0 in a #2; rank 1 past a #1")


def _profiled(label: str, ratio: float = 1.5, **more: Any) -> dict[str, Any]:
    overhead = {"ratio": ratio, "n_profiled": 3, "n_measured": 200, "measured_s": ratio}
    return {"label": label, "file": f"profile/{label}.json.gz", "overhead": overhead,
            "rank_files": (), "n_dropped": 0, "problem": "", "profiled": True,
            "why": "trigger always", **more}


def test_lines_state_what_it_cost_and_what_is_missing() -> None:
    entries = {"a": _profiled("one", 1.25), "b": _profiled("two", 3.0, n_dropped=12)}
    entries |= {f"f{number}": _profiled(f"bad{number}", file="", problem="it broke")
                for number in range(20)}
    lines = summary_lines(entries, 2, "out/profile", enabled=True)
    text = "\n".join(lines)
    assert "2 cases" in lines[0] and "flight-*.json" in lines[0]
    assert "1.25x to 3.00x" in text
    assert " two: out/profile/two.json.gz" in lines[1]  # the slowest
    assert " one: out/profile/one.json.gz" in summary_lines(
        {"a": entries["a"]}, 0, "out/profile", enabled=True)[0]
    assert "no profile of bad0: it broke" in text
    assert "nor of 16 more" in text
    assert len(lines) <= MOST_LINES
    assert summary_lines({}, 0, "out/profile", enabled=False) == []
    assert "no case is profiled" in summary_lines({}, 0, "out/profile", enabled=True)[0]


def test_an_overhead_below_one_is_not_taken_for_a_cost() -> None:
    for ratios in ([0.74], [0.74, 1.2]):
        entries = {str(ratio): _profiled(str(ratio), ratio) for ratio in ratios}
        (_, line) = summary_lines(entries, 0, "out/profile", enabled=True)
        assert line.endswith("its cost is not known")


def test_what_no_case_has_for_one_reason_is_one_line() -> None:
    left_out = {"file": "", "overhead": None, "profiled": False}
    entries = {name: _profiled(name, why="profiling.tool is none", **left_out)
               for name in ("one", "two")}
    assert summary_lines(entries, 0, "out/profile", enabled=True) == [
        "2 cases are not profiled: profiling.tool is none"]
    assert opening_line(Profiling(enabled=True, tool="none")).startswith("no case will be profiled")


def test_nsys_that_is_not_there_is_reported_with_what_to_take_instead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"not on the PATH; .*--set profiling.tool=torch"):
        require_nsys()
    assert nsys_missing([0, 1, 3]).startswith("nsys is not on the PATH of rank 0-1, 3")
    (tmp_path / "nsys").write_text("#!/bin/sh\n")
    (tmp_path / "nsys").chmod(0o755)
    require_nsys()
    words = nsys_command(tmp_path, 2, cuda=True)
    assert "--capture-range=cudaProfilerApi" in words
    assert f"--output={tmp_path}/profile/ranks/nsys-rank00002-%p" in words


@pytest.mark.parametrize(("status", "entry", "n_files"), [
    ("timeout", {}, 1), ("timeout", {"retired": True}, 1), ("failed", {}, 1),
    ("failed", {"retired": True}, 0), ("not_run", {}, 0)])
def test_a_case_that_a_user_stops_or_whose_collectives_all_ended_has_not_hung(
    tmp_path: Path, status: str, entry: dict[str, Any], n_files: int,
) -> None:
    results = mixed_results()
    item = replace(results.cases[0], status=status, detail={"0": {FLIGHT: {"entries": [entry]}}})
    (tmp_path / "traces").mkdir()
    lines = write_profiles(tmp_path, replace(results, cases=(item,)))
    assert len(lines) == len([*tmp_path.glob("profile/flight-*-rank00000.json")]) == n_files


def test_an_interrupted_run_says_after_which_pass_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    results = stored_with_passes(2)
    (line,) = write_profiles(tmp_path, results)
    assert line.startswith("1 case is not profiled") and "2 of 5 passes" in line
    print_profile(results, tmp_path)
    assert "incomplete: 2 of 5 passes\n" in capsys.readouterr().out
    (line,) = write_profiles(tmp_path, stored_with_passes(5))  # while it profiled
    assert "ended before" in line and "of 5" not in line


def stored_with_passes(n_run: int) -> Results:
    """Return a run with profiling of one case, ok in so many of 5 passes."""
    results = mixed_results()
    item = next(one for one in results.cases if one.status == "ok" and one.timing)
    assert item.timing is not None
    medians = tuple(1e-3 if number < n_run else None for number in range(5))
    config = {**results.plan.config, "profiling": {"enabled": True}}
    return replace(results, plan=replace(results.plan, passes=5, launches=1, config=config),
                   cases=(replace(item, timing=replace(item.timing, pass_medians_s=medians)),))
