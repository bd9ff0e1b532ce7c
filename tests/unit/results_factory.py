"""Results built in memory: what the reports are tested with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcbench.config.axes import CHECKED
from hpcbench.kinds.collective.plan import Collective
from hpcbench.plan.case import Case, Plan, case_id
from hpcbench.plan.points import Option
from hpcbench.plan.workload import Workload
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results import (
    Canary,
    CanaryRun,
    CaseResult,
    CaseSamples,
    Finding,
    Results,
    RunInfo,
    Statistics,
    TimeSeries,
    Timing,
)
from hpcbench.reduce.stack import Use
from hpcbench.reduce.timing import CI_LEVEL, order_statistics, precision_of
from hpcbench.report.console import print_results
from hpcbench.statistics.interval import median_interval
from hpcbench.texts import Verbosity
from hpcbench.trace.schema import NO_DEVICE_TIME, Flag

if TYPE_CHECKING:  # a copy without that kind passes the tests of others
    from hpcbench.kinds.primitive.plan.workload import Primitive

ITEM_BYTES = {"fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2, "int32": 4, "int64": 8, "uint8": 1}
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
PER_RANK = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def make_workload(
    collective: str = "all_reduce", size_bytes: int = 1024, dtype: str = "fp32",
    world_size: int = 4, in_place: bool = False, op: str = "sum", root: int = 0,
) -> Collective:
    parts = world_size if collective in PER_RANK else 1
    size = 0 if collective == "barrier" else size_bytes
    return Collective(
        collective=collective, dtype=dtype, op=op if collective in REDUCING else None,
        root=root if collective in ROOTED else None,
        in_place=None if collective == "barrier" else in_place,
        requested_bytes=size, size_bytes=size, count=size // ITEM_BYTES[dtype] // parts,
    )


def make_primitive(
    implementation: str = "torch", primitive: str = "tp_columnwise", order: str = "",
    mnk: tuple[int, int, int] = (4096, 1024, 512), dtype: str = "fp32", world_size: int = 4,
    shape: str = "", **options: Option,
) -> Primitive:
    """Return the workload that a plan has for this implementation, defaults filled in."""
    from hpcbench.kinds.primitive.plan.implementations import installed
    from hpcbench.kinds.primitive.plan.planner import make_workload as plan_workload
    from hpcbench.kinds.primitive.plan.spec import Problem, options_of

    spec = installed().primitives[primitive]
    found = installed().implementation(implementation, primitive)
    assert found is not None
    defaults = {name: values.default for name, values in options_of(spec, found).items()}
    problem = Problem(*mnk, dtype, world_size, order or spec.orders[0], {**defaults, **options})
    workload, skip = plan_workload(spec, found, problem, shape)
    assert skip is None, skip
    return workload


def make_primitive_case(
    workload: Primitive | None = None, *, index: int = 0, **changes: Any
) -> Case:
    """Return an isolated case of a primitive on 4 ranks with gloo."""
    return make_case(workload or make_primitive(), index=index, kind="primitive",
                     block=changes.pop("block", "primitives"), **changes)


def in_passes(case: Case, *medians_s: float | None, **changes: Any) -> CaseResult:
    """Return an ok result whose passes have these medians."""
    known = sorted(median for median in medians_s if median is not None)
    result = ok(case, known[len(known) // 2])
    assert result.timing is not None
    return replace(result, timing=replace(result.timing, pass_medians_s=medians_s, **changes))


def in_launches(case: Case, *launches_s: Sequence[float]) -> CaseResult:
    """Return an ok result whose launches, of one pass each, have these samples."""
    parts = [np.array(launch_s) for launch_s in launches_s]
    times_s, medians_s = np.concatenate(parts), [float(np.median(part)) for part in parts]
    interval = median_interval(times_s, CI_LEVEL, [part.size for part in parts])
    known = precision_of(parts, interval, medians_s, repeats=False)
    result = in_passes(case, *medians_s, launch_medians_s=tuple(medians_s))
    return replace(result, statistics=replace(
        order_statistics(times_s), ci_low_s=known.low_s, ci_high_s=known.high_s,
        ci_reliable=known.reliable, launch_low_s=known.launch_low_s,
        launch_high_s=known.launch_high_s))


def make_case(
    workload: Workload | None = None, *, index: int = 0, block: str = "quick",
    backend: str = "gloo", device: str = "cpu", world_size: int = 4, **changes: Any,
) -> Case:
    workload = workload or make_workload(world_size=world_size)
    case = Case(
        case_id="", index=index, block=block, kind="collective", backend=backend, device=device,
        world_size=world_size, env=(), mode="isolated", warmup=5, iterations=20,
        check=CHECKED, timeout_s=60.0, wakeup_s=1.0, workload=workload, skip=None, needs=(),
        estimate_s=0.5, memory_bytes=2 * int(getattr(workload, "size_bytes", 0)),
    )
    case = replace(case, **changes)
    identity = f"{index} {case.block} {case.label} {case.workload} {case.iterations}"
    return replace(case, case_id=case_id({"identity": identity}))


def make_statistics(median_s: float, n: int = 20, spread: float = 0.2) -> Statistics:
    return Statistics(
        n=n, min_s=median_s * (1 - spread), p5_s=median_s * (1 - spread / 2) if n >= 20 else None,
        p25_s=median_s * (1 - spread / 4), median_s=median_s, p75_s=median_s * (1 + spread / 2),
        p95_s=median_s * (1 + spread) if n >= 20 else None, p99_s=None,
        max_s=median_s * (1 + 3 * spread),
        ci_low_s=median_s * 0.99 if n >= 6 else None,
        ci_high_s=median_s * 1.02 if n >= 6 else None, ci_reliable=n >= 6,
    )


def make_timing(case: Case, median_s: float, **changes: Any) -> Timing:
    """Return an unsuspicious case's timing, on one clock."""
    fold = {"isolated": "global", "barrier_start": "local_max", "pipelined": "per_call"}[case.mode]
    timing = Timing(
        fold=fold, calls=case.batch, n_warmup=case.warmup, n_ramp=0, n_late=0, n_outlier=1,
        unflagged_n=case.iterations - 1, unflagged_median_s=median_s * 0.999, quality=(),
        stop_reasons=("fixed",) if case.is_fixed else ("converged",), first_call_s=12 * median_s,
        communicator_s=0.0213, last_in_s=median_s * 0.9, local_max_s=median_s * 0.98,
        imbalance_s=median_s * 0.05, enqueue_s=None, device_s=None, clock_bound_s=0.0,
        quickest_rank=2, quickest_share=0.4, launch_medians_s=(median_s,))
    return replace(timing, **changes)


def model_time_s(case: Case) -> float:
    """Return a plausible time: a latency per backend and dtype, then a bandwidth."""
    latency = {"gloo": 120e-6, "mpi": 60e-6, "nccl": 12e-6, "ucc": 90e-6}[case.backend]
    rate = {"gloo": 0.9e9, "mpi": 1.6e9, "nccl": 90e9, "ucc": 1.3e9}[case.backend]
    return latency * case.world_size ** 0.5 + case.workload.size_bytes / rate


def ok(case: Case, median_s: float | None = None, **changes: Any) -> CaseResult:
    median = model_time_s(case) if median_s is None else median_s
    result = CaseResult(
        case=case, status="ok", reason="", blamed_rank=None,
        device=case.device if case.device != "cuda" else "cuda:0",
        n_wrong=0 if case.validate else None,
        statistics=make_statistics(median, case.iterations), detail={},
        timing=make_timing(case, median),
    )
    return replace(result, **changes)


def flagged(result: CaseResult, *quality: str, **changes: Any) -> CaseResult:
    """Return the result with these quality words and other fields of its timing."""
    assert result.timing is not None
    return replace(result, timing=replace(result.timing, quality=quality, **changes))


def as_version_1(result: CaseResult) -> CaseResult:
    """Return what a results file of schema version 1 holds of it: no timing, no interval."""
    stats = result.statistics and replace(
        result.statistics, ci_low_s=None, ci_high_s=None, ci_reliable=False)
    return replace(result, case=replace(result.case, mode="barrier_start"), timing=None,
                   statistics=stats)


def not_ok(
    case: Case, status: str, reason: str, *, blamed_rank: int | None = None,
    n_wrong: int | None = None, detail: Mapping[str, Any] | None = None,
) -> CaseResult:
    return CaseResult(
        case=case, status=status, reason=reason, blamed_rank=blamed_rank, device="",
        n_wrong=n_wrong, statistics=None, detail=detail or {},
    )


def make_plan(cases: tuple[Case, ...], **changes: Any) -> Plan:
    plan = Plan(name="demo", world_size=4, passes=1, cases=cases, duplicates=0, config={},
                plan_hash="0123456789ab")
    return replace(plan, **changes)


def make_results(
    cases: tuple[CaseResult, ...], findings: tuple[Finding, ...] = (), **changes: Any
) -> Results:
    run = RunInfo(
        name="demo", run_id="7f3a2b1c", plan_hash="0123456789ab", world_size=4,
        ranks_present=(0, 1, 2, 3), nodes=("node-a",), started_at="2026-03-01T12:00:00+00:00",
        versions={"hpcbench": "0.1.0", "python": "3.11.9", "torch": "2.13.0+cpu",
                  "mpi": "MPICH 4.3.0"},
        environment={"variables": {"AWS_SECRET_ACCESS_KEY": "must-not-appear"}},
        hpcbench_version="0.1.0",
    )
    return with_records(Results(
        run=replace(run, **changes), plan=make_plan(tuple(c.case for c in cases)),
        cases=cases, findings=findings))


def sweep(
    collectives: tuple[str, ...] = ("all_reduce", "all_gather"),
    backends: tuple[str, ...] = ("gloo", "mpi"), sizes: tuple[int, ...] = (8, 1024, 2**20),
    world_sizes: tuple[int, ...] = (4,), dtypes: tuple[str, ...] = ("fp32",),
    **changes: Any,
) -> tuple[Case, ...]:
    """Return the product of the axes as cases, out of place."""
    points = [(c, b, n, d, s) for c in collectives for b in backends for n in world_sizes
              for d in dtypes for s in (sizes if c != "barrier" else (0,))]
    return tuple(
        make_case(make_workload(c, s, d, n), index=index, backend=b, world_size=n,
                  device="cuda" if b == "nccl" else "cpu", **changes)
        for index, (c, b, n, d, s) in enumerate(points)
    )


def shaped(split: str, groups: int, index: int, size_bytes: int = 1024) -> Case:
    """Return an all_to_all with these parts on so many groups."""
    work = make_workload("all_to_all", size_bytes)
    return make_case(replace(work, split=split, groups=groups), index=index)


def make_canary(*medians_s: float, quality: tuple[str, ...] = ()) -> Canary:
    """Return a canary with a run every 10 s."""
    runs = tuple(CanaryRun(0, at, 10.0 * at, 20, median, median * 0.99, median * 1.01)
                 for at, median in enumerate(medians_s))
    drift = medians_s[-1] / medians_s[0] - 1 if len(medians_s) > 1 else None
    return Canary("all_reduce gloo 65536B", runs, 0, drift, quality,
                  tau=None if drift is None else 0.75)


def all_ok(cases: tuple[Case, ...]) -> Results:
    return make_results(tuple(ok(case) for case in cases))


def rows_with(text: str, status: str) -> list[list[str]]:
    """Return the cells of the printed rows that end with this status."""
    return [line.split() for line in text.splitlines() if line.endswith(f"  {status}")]


def mixed_results() -> Results:
    """Return a run in which every status occurs."""
    cases = sweep(backends=("gloo", "nccl"))
    results = [ok(case) if case.backend == "gloo"
               else not_ok(case, "skipped", "nccl needs a CUDA device; none is visible")
               for case in cases]
    results[1] = not_ok(cases[1], "wrong", "3 wrong elements on rank 2", blamed_rank=2, n_wrong=3,
                        detail={"2": {"first_wrong": {"index": 7, "got": 1.0, "expected": 6.0}}})
    results[2] = not_ok(cases[2], "failed", "worker killed by signal 9 (SIGKILL)", blamed_rank=1,
                        detail={"1": {"stderr": ["Killed"]}})
    results[6] = not_ok(cases[6], "timeout", "no progress for 60 s in phase timed", blamed_rank=3)
    results[7] = not_ok(cases[7], "not_run", "stopped by SIGTERM")
    return make_results(tuple(results), (Finding("HB110", "run", "rank 3 has no trace"),))


class MemorySamples:
    """A `SampleSource` over samples made from each case's median."""

    def __init__(self, results: Results) -> None:
        self._results = {item.case.case_id: item for item in results.cases}

    def time_series(self, table: str, column: str) -> tuple[TimeSeries, ...]:
        return ()

    def samples(self, case_id: str) -> CaseSamples | None:
        item = self._results[case_id]
        if item.statistics is None:
            return None
        return make_samples(item.case, item.statistics.median_s)


def make_samples(case: Case, median_s: float, slow_rank: int = 2) -> CaseSamples:
    """Return stamps with a slow first call, noise, and one rank that arrives late."""
    random = np.random.default_rng(7)
    shape = (case.world_size, case.warmup + case.iterations)
    duration = median_s * 1e9 * random.lognormal(0.0, 0.08, shape)
    duration[:, 0] *= 12
    duration[:, shape[1] // 2] *= 1.8
    duration[slow_rank % case.world_size] *= 0.7
    start = np.arange(shape[1]) * int(median_s * 2e9) + random.integers(0, 9000, shape)
    flags = np.zeros(shape, np.int64)
    flags[:, : case.warmup] = Flag.WARMUP
    return CaseSamples(
        ranks=tuple(range(case.world_size)), launch=np.zeros(shape[1], np.int64),
        pass_index=np.zeros(shape[1], np.int64),
        start_ns=start.astype(np.int64), end_ns=(start + duration).astype(np.int64),
        enqueue_ns=np.full(shape, NO_DEVICE_TIME, np.int64),
        device_ns=np.full(shape, NO_DEVICE_TIME, np.int64), flags=flags,
        use=np.where(flags[0] == 0, Use.COUNTED, Use.WARMUP).astype(np.int64),
    )


def print_all(
    results: Results, folder: Path, verbosity: Verbosity = Verbosity.VERBOSE, *,
    explain: bool = False,
) -> None:
    """Print every column of every table."""
    print_results(results, folder, verbosity, explain=explain)
