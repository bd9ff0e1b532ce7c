"""Stored runs of a machine that is measured each night, written without measuring anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from hpcbench.plan.case import Plan
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results import CaseResult, Results, RunInfo, Statistics, Timing
from hpcbench.reduce.results_file import FILE_NAME, new_results
from synthetic import make_case, plan_of

FIRST_NIGHT = datetime(2026, 1, 1, 3, 0, tzinfo=timezone.utc)
_UNKNOWN = ("unflagged_median_s", "first_call_s", "communicator_s", "last_in_s", "local_max_s",
            "imbalance_s", "enqueue_s", "device_s", "clock_bound_s", "quickest_rank",
            "quickest_share")
"""Fields of a timing that these runs lack."""
SIZES, BACKENDS = 20, ("gloo", "mpi", "nccl")


def plan_of_nights(n_cases: int) -> Plan:
    """Return a plan of up to 60 all_reduces."""
    cases = [make_case(at % SIZES, backend=BACKENDS[at // SIZES]) for at in range(n_cases)]
    return plan_of([replace(case, index=at) for at, case in enumerate(cases)], 2)


def statistics_of(median_s: float) -> Statistics:
    return Statistics(n=20, min_s=median_s * 0.98, p5_s=None, p25_s=median_s * 0.99,
                      median_s=median_s, p75_s=median_s * 1.01, p95_s=None, p99_s=None,
                      max_s=median_s * 1.05)


def write_night(
    folder: Path, night: int, medians_s: Sequence[float], plan: Plan | None = None,
    **changes: Any,
) -> Path:
    """Write the run of a night, a case a median; ``changes`` go to its `RunInfo`."""
    plan = plan or plan_of_nights(len(medians_s))
    began = f"{FIRST_NIGHT + timedelta(days=night):%Y-%m-%dT%H:%M:%S%z}"
    items = tuple(CaseResult(
        case, "ok", "", None, "cpu", 0, statistics_of(median_s), {},
        Timing(fold="global", calls=1, n_warmup=0, n_ramp=0, n_late=0, n_outlier=0,
               unflagged_n=20, quality=(), stop_reasons=(), launch_medians_s=(median_s,),
               **dict.fromkeys(_UNKNOWN)))
        for case, median_s in zip(plan.cases, medians_s, strict=True))
    environment: Mapping[str, Any] = {"cpu": {"model": "a CPU"}, "variables": {}}
    run = replace(RunInfo(
        name="nightly", run_id=f"night{night:04}", plan_hash=plan.plan_hash, world_size=2,
        ranks_present=(0, 1), nodes=("n1", "n2"), started_at=began, versions={"torch": "2.9"},
        environment=environment, hpcbench_version="0.1"), **changes)
    path = folder / f"night{night:04}" / FILE_NAME
    path.parent.mkdir(parents=True)
    with new_results(path) as writer:
        writer.finish(with_records(Results(run, plan, items, ())))
    return path
