"""Phases of training steps: from the worker's answer to results.h5 without loss."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbench.launch.attempt import CaseRun, case_record
from hpcbench.launch.messages import CaseAnswer
from hpcbench.launch.verdict import Evidence, RankOutcome, Verdict
from hpcbench.launch.worker_group import CaseOutcome, Observation
from hpcbench.plan.case import plan_from_json, plan_to_json
from hpcbench.plan.order import Turn
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.journal import Frame, Journal, Kind, read_journal, scan
from hpcbench.trace.schema import Phases, Record
from hpcbench.trace.sealed import open_trace, seal
from synthetic import (
    make_case,
    make_header,
    make_plan,
    make_record,
    make_samples,
    plan_of,
    same_record,
    with_rows,
    write_synthetic_run,
)
from training_cases import make_training, make_training_case

NAMES = ("data", "forward", "backward", "optimizer")
CASE = make_training_case()
COLLECTIVE = make_case(1)
PLAN = plan_of([CASE, COLLECTIVE], 2, passes=2)
HEADER = make_header(PLAN, 0)
MEMORY = {"parameters": 474_112, "gradients": 474_112, "optimizer_state": 948_224,
          "peak": 9_000_000, "peak_of": "process growth"}
PARITY = {"on": "the model", "share": 0.03}
SAME_FILE = settings(max_examples=40, deadline=None,
                     suppress_health_check=[HealthCheck.function_scoped_fixture])


def phases_of(record: Record, rank: int = 0) -> Phases:
    """A tenth of each step waits for data, the rest of it but 4 ns is in three parts.

    Forward takes longer on rank 1, and backward as much longer on rank 0, which waits for it.
    """
    step = record.samples.end_ns - record.samples.start_ns
    data, slow = step // 10, step // (4 if rank else 2)
    return {"data": data, "forward": step - data - slow - 100, "backward": slow,
            "optimizer": np.full(len(step), 96)}


def with_phases(rank: int, record: Record) -> Iterable[Record]:
    if record.case_id != CASE.case_id:
        return (record,)
    memory = {**MEMORY, "peak": MEMORY["peak"] + 1000 * rank + 10 * record.pass_index}
    return (replace(record, phases=phases_of(record, rank), detail={"memory": memory}),)


def write(path: Path, *records: Record) -> Path:
    path.unlink(missing_ok=True)
    with Journal.create(path, HEADER, PLAN) as journal:
        journal.append(*records)
        journal.note("end", {})
    return path


@st.composite
def phased(draw: st.DrawFn) -> Record:
    """A record with any number of samples, phases of any name, and any int64."""
    rows = draw(st.integers(0, 6))
    values = st.integers(-2**63, 2**63 - 1)
    samples = draw(st.lists(st.tuples(*[values] * 5), min_size=rows, max_size=rows))
    names = draw(st.lists(st.text(), max_size=4, unique=True))
    phases = {name: np.array(draw(st.lists(values, min_size=rows, max_size=rows)), dtype=np.int64)
              for name in names}
    record = make_record(draw(st.sampled_from([CASE, COLLECTIVE])), 0)
    return replace(with_rows(record, np.array(samples, dtype=np.int64).reshape(-1, 5)),
                   phases=phases)


@given(st.lists(phased(), min_size=1, max_size=4))
@SAME_FILE
def test_any_phases_survive_the_journal_and_the_sealed_trace(
    tmp_path: Path, records: list[Record],
) -> None:
    journal = read_journal(write(tmp_path / "any.journal", *records))
    assert journal.damage == ()
    assert all(same_record(*pair) for pair in zip(journal.records(), records, strict=True))
    seal(journal.path, tmp_path / "any.h5")
    trace = open_trace(tmp_path / "any.h5")
    assert all(same_record(*pair) for pair in zip(trace.records(), records, strict=True))
    for case in (CASE, COLLECTIVE):
        mine = [record for record in records if record.case_id == case.case_id]
        assert all(same_record(*pair)
                   for pair in zip(trace.records({case.case_id}), mine, strict=True))
    for source in (journal, trace):
        assert all(not record.phases for record in source.records(samples=False))


def test_a_record_without_phases_is_what_it_was(tmp_path: Path) -> None:
    """So that files of before are read, and files without training by versions of before."""
    path = write(tmp_path / "old.journal", make_record(COLLECTIVE, 0))
    kinds = [frame.kind for frame in scan(path.read_bytes()) if isinstance(frame, Frame)]
    assert Kind.RECORD in kinds and Kind.PHASED not in kinds
    assert b'"phases"' not in path.read_bytes()
    seal(path, tmp_path / "old.h5")
    with h5py.File(tmp_path / "old.h5") as file:
        assert "phases" not in file


def test_phases_that_are_not_of_the_samples_are_refused(tmp_path: Path) -> None:
    record = make_record(CASE, 0)
    with pytest.raises(ValueError, match=r"phase 'data' of .*: int64 \(22,\) expected"):
        write(tmp_path / "a.journal", replace(record, phases={"data": np.zeros(3, np.int64)}))


def test_a_torn_or_changed_frame_with_phases_costs_no_other(tmp_path: Path) -> None:
    records = [*with_phases(0, make_record(CASE, 0)), make_record(COLLECTIVE, 0),
               *with_phases(0, make_record(CASE, 0, 1))]
    data = write(tmp_path / "a.journal", *records).read_bytes()
    frames = [frame for frame in scan(data) if isinstance(frame, Frame)]
    path, generator = tmp_path / "b.journal", random.Random(3)
    for length in generator.sample(range(frames[2].end, len(data)), 100):
        path.write_bytes(data[:length])
        found = [*read_journal(path).records()]
        whole = sum(frame.end <= length and frame.kind in (Kind.RECORD, Kind.PHASED)
                    for frame in frames)
        assert len(found) == whole and all(map(same_record, found, records))
    for _ in range(300):
        changed = bytearray(data)
        changed[generator.randrange(frames[2].end, len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        journal = read_journal(path)
        assert journal.damage and len([*journal.records()]) >= 2


def test_the_worker_s_answer_becomes_the_record() -> None:
    rows = make_samples(CASE, 0)
    told = phases_of(make_record(CASE, 0))
    answer = CaseAnswer(
        0, 1, "cpu", "fixed", phases={name: values.tolist() for name, values in told.items()},
        detail={"memory": MEMORY, "parity": PARITY})

    def record(**changes: Any) -> Record:
        sighting = Observation(Evidence(0, RankOutcome.OK), answer=replace(answer, **changes))
        hearing = CaseOutcome(Verdict("ok", "", -1), sighting, "")
        return case_record(CaseRun(CASE, Turn(0, 0, 0), 0, 0, 1, 2), hearing, rows)

    full = record()
    assert full.detail == {"memory": MEMORY, "parity": PARITY} and list(full.phases) == list(NAMES)
    assert all(np.array_equal(full.phases[name], told[name]) for name in NAMES)
    assert record(phases={}, detail={"memory": None}).phases == record(phases={}).phases == {}
    short = record(phases={"data": [1, 2]})
    assert short.phases == {}
    assert short.detail["phases"] == "up to 2 durations of 22 samples"


def reduced(folder: Path) -> Results:
    write_synthetic_run(folder, PLAN, change=with_phases)
    return reduce_folder(folder)


def test_phases_reach_the_results_file(tmp_path: Path) -> None:
    reduced(tmp_path)
    with open_results(tmp_path / "results.h5") as file:
        samples = file.samples(CASE.case_id)
        other = file.samples(COLLECTIVE.case_id)
        assert samples is not None and other is not None and other.phases == {}
        assert list(samples.phases) == list(NAMES)
        for rank in range(2):
            rows = np.concatenate([phases_of(make_record(CASE, rank, turn), rank)["forward"]
                                   for turn in range(2)])
            assert np.array_equal(samples.phases["forward"][rank], rows)
    with h5py.File(tmp_path / "results.h5") as file:
        assert file["phases/ns"].attrs["units"] == "ns"
        assert file["phases/ns"].shape == (4 * 2 * 2 * 22,)


def test_what_the_reducer_records_of_phases_and_memory_is_read_back(tmp_path: Path) -> None:
    results = reduced(tmp_path)
    with open_results(tmp_path / "results.h5") as file:
        assert file.results == results
    training, collective = results.cases
    assert training.status == "ok", training.reason
    assert training.timing is not None and training.statistics is not None
    assert collective.timing is not None and collective.timing.steps is None
    assert collective.memory is None
    assert training.memory == {
        str(rank): {**MEMORY, "peak": 9_000_010 + 1000 * rank} for rank in range(2)}
    assert training.detail == {}
    steps = training.timing.steps
    assert steps is not None and steps.ranks == (0, 1)
    assert [phase.name for phase in steps.phases] == list(NAMES)
    assert steps.other_s == (4e-9, 4e-9)
    assert steps.phases[3].median_s == (96e-9, 96e-9)
    assert sum(phase.share for phase in steps.phases) + steps.other_share == pytest.approx(1)
    assert steps.phases[0].share == pytest.approx(0.1, rel=1e-3)
    for row in range(2):
        total = sum(phase.median_s[row] for phase in steps.phases) + steps.other_s[row]
        assert total == pytest.approx(steps.step_s[row], rel=1e-3)


def test_the_slow_rank_is_shown_by_forward_and_by_the_shortest_backward(tmp_path: Path) -> None:
    item = reduced(tmp_path).cases[0]
    _, forward, backward, _ = item.timing.steps.phases
    assert (forward.slowest_rank, forward.slowest_share) == (1, 1.0)
    assert (backward.quickest_rank, backward.quickest_share) == (1, 1.0)
    assert forward.median_s[1] > forward.median_s[0]


def test_a_single_rank_is_neither_slow_nor_quick(tmp_path: Path) -> None:
    case = make_training_case(make_training("single", dp=1))
    write_synthetic_run(tmp_path, plan_of([case], 1), change=lambda rank, record: (
        replace(record, phases=phases_of(record)),))
    (item,) = reduce_folder(tmp_path).cases
    assert all(phase.slowest_rank is phase.quickest_rank is None
               for phase in item.timing.steps.phases)


def test_runs_without_training_have_no_phases(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path, make_plan())
    reduce_folder(tmp_path)
    with h5py.File(tmp_path / "results.h5") as file:
        assert "phases" not in file and "phases" not in file["cases"]


def test_a_plan_with_training_is_read_back() -> None:
    assert plan_from_json(plan_to_json(PLAN)) == PLAN
