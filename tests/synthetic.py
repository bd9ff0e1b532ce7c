"""Runs that never ran: plans, records and whole results folders with numbers known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.config.axes import CHECKED
from hpcbench.kinds.collective.plan import Collective
from hpcbench.plan.case import Case, Plan, case_id, plan_to_json
from hpcbench.plan.order import generations, shuffled
from hpcbench.trace.clock import ClockCheck, ClockModel, SyncRecord
from hpcbench.trace.journal import Journal, journal_path
from hpcbench.trace.schema import (
    NO_DEVICE_TIME,
    SAMPLE_COLUMNS,
    Flag,
    Header,
    Record,
    SampleColumns,
    Samples,
    no_samples,
)
from hpcbench.trace.sealed import seal, trace_path

BASE_NS = 1_000_000_000_000
STEP_NS = 1_000_000
CASE_NS = 1_000_000_000
Change = Callable[[int, Record], Iterable[Record]]
Notes = Callable[[int], Iterable[tuple[str, dict[str, Any]]]]


def duration_ns(
    case_index: int, pass_index: int, rank: int, iteration: int, launch: int = 0,
) -> int:
    """How long every synthetic iteration takes; the highest rank is always the slowest.

    Iterations differ without trend: 37 steps about a circle of 50.
    """
    jitter = 37 * iteration % 50
    return 10_000 * (case_index + 1) + 2000 * launch + 1000 * pass_index + 100 * rank + jitter


def make_case(index: int = 0, **changes: Any) -> Case:
    """An all_reduce whose size says its index; ``changes`` go to Case or to its Collective."""
    size_bytes = 8 << index
    work: dict[str, Any] = {
        "collective": "all_reduce", "dtype": "fp32", "op": "sum", "root": None,
        "in_place": False, "requested_bytes": size_bytes, "size_bytes": size_bytes,
        "count": size_bytes // 4}
    work |= {name: changes.pop(name) for name in list(changes) if name in work}
    values: dict[str, Any] = {
        "index": index, "block": "sweep", "kind": "collective", "backend": "gloo", "device": "cpu",
        "world_size": 2, "env": (), "mode": "barrier_start", "warmup": 2, "iterations": 5,
        "check": CHECKED, "timeout_s": 10.0, "wakeup_s": 0.05, "skip": None, "needs": (),
        "estimate_s": 0.1, "memory_bytes": 2 * size_bytes}
    values |= changes
    identity = {"work": work, **{name: values[name] for name in ("backend", "world_size", "index")}}
    return Case(case_id=case_id(identity), workload=Collective(**work), **values)


def make_plan(
    n_cases: int = 3, world_size: int = 2, passes: int = 1, launches: int = 1, **changes: Any,
) -> Plan:
    """A plan of ``n_cases`` all_reduces over all ranks; ``changes`` go to every case."""
    cases = [make_case(index, **{"world_size": world_size, **changes}) for index in range(n_cases)]
    return plan_of(cases, world_size, passes, launches)


def plan_of(
    cases: Iterable[Case], world_size: int, passes: int = 1, launches: int = 1,
) -> Plan:
    """A plan of the given cases, run in the order planned."""
    config = {"name": "synthetic", "measure": {"order": "planned", "seed": 0}, "hardware": {}}
    return Plan(name="synthetic", world_size=world_size, passes=passes, cases=tuple(cases),
                duplicates=0, config=config, plan_hash="0123456789abcdef", launches=launches)


def make_header(plan: Plan, rank: int, **changes: Any) -> Header:
    """A rank on a node of eight."""
    values: dict[str, Any] = {
        "run_id": "run-1", "plan_hash": plan.plan_hash, "rank": rank,
        "world_size": plan.world_size, "local_rank": rank % 8, "hostname": f"host{rank // 8}",
        "node": f"node{rank // 8}", "pid": 1000 + rank,
        "versions": {"hpcbench": "0.1", "torch": "2.0"},
        "environment": {"started_at": "2026-01-02T03:04:05Z", "clock_resolution_ns": 1}}
    return Header(**{**values, **changes})


def make_samples(case: Case, rank: int, pass_index: int = 0, launch: int = 0) -> Samples:
    """Warm-ups, then iterations, one per millisecond, each as long as `duration_ns` says.

    Calls that are checked apart are rows like the others, at both ends.
    """
    apart = [int(Flag.SINGLE)] * int(case.validate and case.batch > 1)
    flags = [*(flag | Flag.WARMUP for flag in apart), *[int(Flag.WARMUP)] * case.warmup,
             *[0] * case.iterations, *apart]
    n = len(flags)
    columns = dict.fromkeys(SAMPLE_COLUMNS, np.full(n, NO_DEVICE_TIME, dtype=np.int64))
    columns["start_ns"] = _begin_ns(case, pass_index, launch) + STEP_NS * (np.arange(n) + 1)
    columns["end_ns"] = columns["start_ns"] + [
        duration_ns(case.index, pass_index, rank, iteration, launch) for iteration in range(n)]
    columns["flags"] = np.array(flags, dtype=np.int64)
    return np.stack([columns[name] for name in SAMPLE_COLUMNS], axis=1)


def _begin_ns(case: Case, pass_index: int, launch: int) -> int:
    return BASE_NS + CASE_NS * (1_000_000 * launch + 1000 * pass_index + case.index)


def make_record(
    case: Case, rank: int, pass_index: int = 0, launch: int = 0, **changes: Any,
) -> Record:
    """A rank's ok record of a case, or its skip if the plan says so."""
    skipped = case.skip is not None
    begin_ns = 0 if skipped else _begin_ns(case, pass_index, launch)
    values: dict[str, Any] = {
        "case_id": case.case_id, "pass_index": pass_index, "launch": launch, "attempt": 0,
        "status": "skipped" if skipped else "ok", "reason": case.skip or "", "blamed_rank": -1,
        "mode": case.mode, "device": "" if skipped else "cpu", "begin_ns": begin_ns,
        "end_ns": 0 if skipped else begin_ns + CASE_NS,
        "n_wrong": 0 if case.validate and not skipped else -1,
        "samples": no_samples() if skipped else SampleColumns.of_rows(
            make_samples(case, rank, pass_index, launch)),
        "stop_reason": "" if skipped else "fixed" if case.is_fixed else "converged"}
    return Record(**{**values, **changes})


def with_rows(record: Record, rows: Samples) -> Record:
    """The record with these samples, (sample, SAMPLE_COLUMNS)."""
    return replace(record, samples=SampleColumns.of_rows(rows))


def sync_note(
    model: ClockModel, identity: str = "host0", n_clocks: int = 2, check: ClockCheck | None = None,
) -> tuple[str, dict[str, Any]]:
    """The note of one synchronisation."""
    return "clock", SyncRecord(identity, n_clocks, model, check, model.t_ref_ns,
                               2 * model.t_ref_ns).to_json()


def seen_by(model: ClockModel, record: Record) -> Record:
    """The record as a rank writes it whose clock is off as the model says."""
    rows = record.samples.rows()
    for row in rows:
        row[:2] = [model.to_local(int(at)) for at in row[:2]]
    return replace(with_rows(record, rows), begin_ns=model.to_local(record.begin_ns),
                   end_ns=model.to_local(record.end_ns))


def write_synthetic_run(
    folder: Path, plan: Plan, *, change: Change | None = None,
    headers: Callable[[Header], Header] | None = None, notes: Notes | None = None,
    sealed: bool = True, end: bool = True,
) -> Path:
    """Write config-less results of a run into ``folder`` and return its traces folder.

    ``change(rank, record)`` yields what is written instead of a record; ``headers`` replaces a
    rank's header; ``notes(rank)`` yields further notes; not ``sealed`` leaves journals, not
    ``end`` leaves out their last note.
    """
    traces = folder / "traces"
    traces.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan_to_json(plan)), encoding="utf-8")
    for rank in range(plan.world_size):
        header = make_header(plan, rank)
        write_synthetic_rank(traces, plan, headers(header) if headers else header, change=change,
                             notes=notes, sealed=sealed, end=end, rank=rank)
    return traces


def write_synthetic_rank(
    traces: Path, plan: Plan, header: Header, *, rank: int, change: Change | None = None,
    notes: Notes | None = None, sealed: bool = True, end: bool = True,
) -> None:
    """Write the trace of one rank under the file name of ``rank``."""
    path = journal_path(traces, rank)
    with Journal.create(path, header, plan if rank == 0 else None) as journal:
        for record in _records(plan, rank):
            for written in change(rank, record) if change else (record,):
                journal.append(written)
        for kind, data in notes(rank) if notes else ():
            journal.note(kind, data)
        if end:
            journal.note("end", {"status": "finished"})
    if sealed:
        seal(path, trace_path(traces, rank))
        path.unlink()


def _records(plan: Plan, rank: int) -> Iterable[Record]:
    for launch in range(plan.launches):
        for pass_index in range(plan.passes):
            yield from _pass_records(plan, rank, pass_index, launch)


def _pass_records(plan: Plan, rank: int, pass_index: int, launch: int) -> Iterable[Record]:
    """The records of one pass, generation by generation, in the order that the plan's seed says."""
    measure = plan.config["measure"]
    for generation in generations(plan.cases):
        if rank < generation.world_size:
            for position, case in enumerate(shuffled(
                    generation.cases, measure["order"], measure["seed"],
                    launch * plan.passes + pass_index)):
                yield make_record(case, rank, pass_index, launch, position=position)


def same_record(left: Record, right: Record) -> bool:
    """Tell whether two records are equal; ``==`` cannot, it meets an array."""
    others = [field.name for field in fields(Record) if field.name not in ("samples", "phases")]
    return np.array_equal(left.samples.rows(), right.samples.rows()) and all(
        getattr(left, name) == getattr(right, name) for name in others) and (
        list(left.phases) == list(right.phases)) and all(
        np.array_equal(left.phases[name], right.phases[name]) for name in left.phases)
