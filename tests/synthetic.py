"""Runs that never ran: plans, records and whole results folders with numbers known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.plan.case import Case, Collective, Plan, case_id, plan_to_json
from hpcbench.trace.journal import Journal, journal_path
from hpcbench.trace.schema import NO_DEVICE_TIME, Flag, Header, Record, Samples, no_samples
from hpcbench.trace.sealed import seal, trace_path

BASE_NS = 1_000_000_000_000
STEP_NS = 1_000_000
CASE_NS = 1_000_000_000
Change = Callable[[int, Record], Iterable[Record]]


def duration_ns(case_index: int, pass_index: int, rank: int, iteration: int) -> int:
    """How long every synthetic iteration takes; the highest rank is always the slowest."""
    return 10_000 * (case_index + 1) + 1000 * pass_index + 100 * rank + iteration


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
        "validate": True, "timeout_s": 10.0, "wakeup_s": 0.05, "skip": None, "needs": (),
        "estimate_s": 0.1, "memory_bytes": 2 * size_bytes}
    values |= changes
    identity = {"work": work, **{name: values[name] for name in ("backend", "world_size", "index")}}
    return Case(case_id=case_id(identity), workload=Collective(**work), **values)


def make_plan(n_cases: int = 3, world_size: int = 2, passes: int = 1, **changes: Any) -> Plan:
    """A plan of ``n_cases`` all_reduces over all ranks; ``changes`` go to every case."""
    cases = [make_case(index, **{"world_size": world_size, **changes}) for index in range(n_cases)]
    return plan_of(cases, world_size, passes)


def plan_of(cases: Iterable[Case], world_size: int, passes: int = 1) -> Plan:
    """A plan of the given cases."""
    return Plan(name="synthetic", world_size=world_size, passes=passes, cases=tuple(cases),
                duplicates=0, config={"name": "synthetic"}, plan_hash="0123456789abcdef")


def make_header(plan: Plan, rank: int, **changes: Any) -> Header:
    """A rank on a node of eight."""
    values: dict[str, Any] = {
        "run_id": "run-1", "plan_hash": plan.plan_hash, "rank": rank,
        "world_size": plan.world_size, "local_rank": rank % 8, "hostname": f"host{rank // 8}",
        "node": f"node{rank // 8}", "pid": 1000 + rank,
        "versions": {"hpcbench": "0.1", "torch": "2.0"},
        "environment": {"started_at": "2026-01-02T03:04:05Z", "clock_resolution_ns": 1}}
    return Header(**{**values, **changes})


def make_samples(case: Case, rank: int, pass_index: int = 0) -> Samples:
    """Warm-ups, then iterations, one per millisecond, each as long as `duration_ns` says."""
    n = case.warmup + case.iterations
    samples = np.empty((n, 4), dtype=np.int64)
    samples[:, 0] = _begin_ns(case, pass_index) + STEP_NS * (np.arange(n) + 1)
    samples[:, 1] = samples[:, 0] + [
        duration_ns(case.index, pass_index, rank, iteration) for iteration in range(n)]
    samples[:, 2] = NO_DEVICE_TIME
    samples[:, 3] = 0
    samples[: case.warmup, 3] = Flag.WARMUP
    return samples


def _begin_ns(case: Case, pass_index: int) -> int:
    return BASE_NS + CASE_NS * (1000 * pass_index + case.index)


def make_record(case: Case, rank: int, pass_index: int = 0, **changes: Any) -> Record:
    """A rank's ok record of a case, or its skip if the plan says so."""
    skipped = case.skip is not None
    begin_ns = _begin_ns(case, pass_index)
    values: dict[str, Any] = {
        "case_id": case.case_id, "pass_index": pass_index, "launch": 0, "attempt": 0,
        "status": "skipped" if skipped else "ok", "reason": case.skip or "", "blamed_rank": -1,
        "mode": case.mode, "device": "" if skipped else "cpu", "begin_ns": begin_ns,
        "end_ns": begin_ns + CASE_NS, "n_wrong": 0 if case.validate and not skipped else -1,
        "samples": no_samples() if skipped else make_samples(case, rank, pass_index)}
    return Record(**{**values, **changes})


def write_synthetic_run(
    folder: Path, plan: Plan, *, change: Change | None = None,
    headers: Callable[[Header], Header] | None = None, sealed: bool = True, end: bool = True,
) -> Path:
    """Write config-less results of a run into ``folder`` and return its traces folder.

    ``change(rank, record)`` yields what is written instead of a record; ``headers`` replaces a
    rank's header; not ``sealed`` leaves journals, not ``end`` leaves out their last note.
    """
    traces = folder / "traces"
    traces.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan_to_json(plan)), encoding="utf-8")
    for rank in range(plan.world_size):
        header = make_header(plan, rank)
        write_synthetic_rank(traces, plan, headers(header) if headers else header, change=change,
                             sealed=sealed, end=end, rank=rank)
    return traces


def write_synthetic_rank(
    traces: Path, plan: Plan, header: Header, *, rank: int, change: Change | None = None,
    sealed: bool = True, end: bool = True,
) -> None:
    """Write the trace of one rank under the file name of ``rank``."""
    path = journal_path(traces, rank)
    with Journal.create(path, header, plan if rank == 0 else None) as journal:
        for record in _records(plan, rank):
            for written in change(rank, record) if change else (record,):
                journal.append(written)
        if end:
            journal.note("end", {"status": "finished"})
    if sealed:
        seal(path, trace_path(traces, rank))
        path.unlink()


def _records(plan: Plan, rank: int) -> Iterable[Record]:
    for pass_index in range(plan.passes):
        for case in plan.cases:
            if rank < case.world_size and case.skip is None:
                yield make_record(case, rank, pass_index)


def same_record(left: Record, right: Record) -> bool:
    """Tell whether two records are equal; ``==`` cannot, it meets an array."""
    others = [field.name for field in fields(Record) if field.name != "samples"]
    return np.array_equal(left.samples, right.samples) and all(
        getattr(left, name) == getattr(right, name) for name in others)
