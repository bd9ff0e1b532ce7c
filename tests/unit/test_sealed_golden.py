"""Files of schema versions, kept for ever: what is read of them must not change (tests/data)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from golden import RESULTS
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import FORMAT, open_results
from hpcbench.trace.clock import ClockCheck
from hpcbench.trace.container import SEAL, new_container
from hpcbench.trace.journal import read_journal
from hpcbench.trace.schema import NO_COMMUNICATOR, Flag
from hpcbench.trace.sealed import open_trace, seal
from hpcbench.trace.source import UnreadableTrace, sync_records
from synthetic import same_record

DATA = Path(__file__).parents[1] / "data"
BASE_NS = 1_000_000_000_000


def results_of(path: Path) -> Results:
    with open_results(path) as file:
        return file.results


@pytest.mark.parametrize(("name", "opened"), [
    ("trace-v1.h5", open_trace), ("journal-v1.journal", read_journal),
    ("results-v1.h5", results_of)])
def test_a_file_of_version_1_is_refused_in_one_line(
    name: str, opened: Callable[[Path], object],
) -> None:
    path = DATA / name
    with pytest.raises(UnreadableTrace) as caught:
        opened(path)
    assert caught.value.code == "HB104"
    assert str(caught.value) == (f"{path}: written as version 1, this hpcbench reads 2: "
                                 "use the hpcbench that wrote it")


def test_an_early_results_file_of_version_2_is_refused_in_one_line(tmp_path: Path) -> None:
    with h5py.File(RESULTS["collective"]) as now, new_container(
            tmp_path / "early.h5", FORMAT, 2) as early:
        for name in set(now) - {"samples", SEAL}:
            now.copy(name, early)
        early.create_group("samples")
    with pytest.raises(UnreadableTrace, match="version 2 without /samples/use: use the") as caught:
        results_of(tmp_path / "early.h5")
    assert caught.value.code == "HB104"


@pytest.mark.parametrize("version", ["2", "2-phases"])
def test_a_journal_holds_what_the_trace_made_of_it_holds(tmp_path: Path, version: str) -> None:
    """Also when today's version seals it."""
    journal = read_journal(DATA / f"journal-v{version}.journal")
    seal(journal.path, tmp_path / "sealed.h5")
    for trace in (open_trace(DATA / f"trace-v{version}.h5"), open_trace(tmp_path / "sealed.h5")):
        assert (journal.header, journal.notes, journal.damage) == (
            trace.header, trace.notes, ())
        pairs = list(zip(journal.records(), trace.records(), strict=True))
        assert pairs and all(same_record(*pair) for pair in pairs)


CASES_2 = ("b86563c94654", "30e1395e3883", "b1dc0c42db3b", "2ef4b3acad99")
OFFSET_NS, SLOPE = 7_000_000, 20e-6


def test_a_trace_of_version_2_is_read() -> None:
    trace = open_trace(DATA / "trace-v2.h5")
    assert (trace.header.schema_version, trace.header.rank, trace.header.node) == (2, 1, "node1")
    assert trace.plan is None and trace.case_ids == frozenset(CASES_2[:3])
    assert [note.kind for note in trace.notes] == ["clock", "clock", "canary", "canary", "end"]
    before, after = sync_records(trace)
    assert (before.identity, before.n_clocks) == ("clock1", 2)
    model = before.model
    assert (model.slope, model.bound_ns, model.slope_bound, model.residual_ns) == (
        SLOPE, 90.0, 1e-7, 12.0)
    assert (model.parent, model.n_used, model.n_rejected) == (0, 50, 49)
    assert model.to_global(model.t_ref_ns) == BASE_NS - 10**9
    assert model.offset_ns == OFFSET_NS + round(SLOPE * model.t_ref_ns)
    assert before.check == ClockCheck(model.t_ref_ns + 1000, 55.0, 80.0)
    assert after.model.t_ref_ns > before.model.t_ref_ns


def test_the_records_of_version_2_are_read() -> None:
    records = {record.key: record for record in open_trace(DATA / "trace-v2.h5").records()}
    assert len(records) == 2 * 2 * 3
    auto = records[CASES_2[0], 1, 1, 0]
    assert (auto.mode, auto.stop_reason, auto.communicator_ns) == (
        "isolated", "converged", NO_COMMUNICATOR)
    assert len(auto.samples) == 8
    assert records[CASES_2[0], 0, 0, 0].communicator_ns == 2_000_001
    assert records[CASES_2[0], 0, 0, 0].samples.flags[5] == Flag.LATE_START
    pipelined = records[CASES_2[1], 1, 0, 0]
    assert pipelined.stop_reason == "fixed"
    ends = Flag.SINGLE | Flag.CHECKED
    assert pipelined.samples.flags.tolist() == [ends | Flag.WARMUP, 1, 1, 0, 0, 0, 0, 0, 0, ends]
    on_gpu = records[CASES_2[2], 0, 0, 0]
    assert on_gpu.device == "cuda:1"
    assert on_gpu.samples.rows()[:, 2:4].tolist() == [[3000, 9000]] * 8
    duration_ns = on_gpu.samples.end_ns[3] - on_gpu.samples.start_ns[3]
    assert abs(duration_ns - (30_000 + 100 + 37 * 3 % 50)) <= 1
    failed = records[CASES_2[2], 0, 1, 0]
    assert (failed.status, failed.blamed_rank, failed.stop_reason) == ("timeout", 1, "")
    assert failed.detail == {"stderr": ["last words é"]}
    first_pass = [records[case_id, 0, 0, 0] for case_id in CASES_2[:3]]
    assert sorted(record.position for record in first_pass) == [0, 1, 2]


def test_the_clock_table_of_version_2_is_there_for_other_tools() -> None:
    with h5py.File(DATA / "trace-v2.h5") as file:
        assert file["clock/rank"][:].tolist() == [1, 1]
        assert file["clock/slope"][-1] == SLOPE and file["clock/slope"].attrs["unit"] == "ns/ns"
        assert file["clock/check_error_ns"][-1] == 55.0


def test_phases_of_version_2_are_read() -> None:
    trace = open_trace(DATA / "trace-v2-phases.h5")
    records = list(trace.records())
    assert [(record.case_id, record.pass_index) for record in records] == [
        ("training", 0), ("collective", 0), ("training", 1), ("collective", 1)]
    for record in records[::2]:
        step_ns = record.samples.end_ns - record.samples.start_ns
        assert step_ns[3] == 10_000 + 1000 * record.pass_index + 100 + 37 * 3 % 50
        assert list(record.phases) == ["data", "forward", "backward", "optimizer"]
        assert record.phases["data"].tolist() == (step_ns // 10).tolist()
        assert record.phases["backward"].tolist() == (step_ns // 4).tolist()
        assert np.all(sum(record.phases.values()) == step_ns - 4)
        assert record.detail["memory"] == {
            "parameters": 474_112, "gradients": 474_112, "optimizer_state": 948_224,
            "peak": 9_001_000 + 10 * record.pass_index, "peak_of": "process growth"}
    assert all(record.phases == {} for record in records[1::2])
