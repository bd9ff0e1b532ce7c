"""The measurement protocol in real jobs: modes, stopping, order, launches, canaries."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from golden import hpcbench
from hpcbench.plan.order import shuffled
from hpcbench.statistics.stopping import LEAST_PASS_S
from hpcbench.trace.schema import NO_COMMUNICATOR, UNTIMED, Flag, Record
from hpcbench.trace.sealed import open_trace
from hpcbench.trace.source import sync_records
from launcher import EVERY_MPI_IF_ALL, MpiLauncher
from mpi.reading import ONCE, Outcome, read, sweep

pytestmark = pytest.mark.mpi
MODES = ["isolated", "pipelined", "barrier_start"]
ONCE_S = 1.0
"""One late start: longer than what a busy machine makes of any other iteration."""


def records(folder: Path | None, rank: int) -> list[Record]:
    """Return what a rank recorded, in the order it was written."""
    return list(open_trace(folder / "traces" / f"rank{rank:05d}.h5").records())


@EVERY_MPI_IF_ALL
def test_every_mode_on_both_kinds_of_workers(mpirun: MpiLauncher) -> None:
    """gloo in workers, mpi inline: same rows, same reasons, right results."""
    block = {"backend": ["gloo", "mpi"], "mode": MODES}
    config = sweep("64KiB", block=block, measure={
        **ONCE, "iterations": "auto", "min_iterations": 4, "max_iterations": 40, "batch": 6,
        "budget_s": 1.0, "warmup": 2})
    job = mpirun.run(2, config=config, timeout=90).check()
    outcome = read(job.folder)
    assert set(outcome.status().values()) == {"ok"} and len(outcome.status()) == 6
    folds = {item.case.mode: item.timing.fold for item in outcome.results.cases if item.timing}
    assert folds["pipelined"] == "per_call" and folds["barrier_start"] == "local_max"
    both = [{record.case_id: record for record in records(job.folder, rank)} for rank in (0, 1)]
    for item in outcome.results.cases:
        case, ours, theirs = item.case, *(found[item.case.case_id] for found in both)
        assert ours.stop_reason == theirs.stop_reason != ""
        assert len(ours.samples) == len(theirs.samples)
        timed = (ours.samples.flags & UNTIMED) == 0
        assert 4 <= timed.sum() <= 40
        single = (ours.samples.flags & Flag.SINGLE) != 0
        assert single.sum() == (2 if case.mode == "pipelined" else 0)
        assert item.n_wrong == 0 and ours.communicator_ns > 0 or case.index > 0
    mpirun.assert_no_orphans()


def test_passes_are_shuffled_by_the_seed_the_group_is_opened_once_and_clocks_compared(
    mpirun: MpiLauncher,
) -> None:
    measure = {**ONCE, "passes": 4, "order": "shuffled", "seed": 11, "iterations": 2, "warmup": 1}
    job = mpirun.run(2, config=sweep(*map(str, range(8, 72, 8)), measure=measure)).check()
    outcome = read(job.folder)
    plan = outcome.results.plan
    by_pass: dict[int, list[Record]] = defaultdict(list)
    for record in records(job.folder, 1):
        by_pass[record.pass_index].append(record)
    orders = [[record.case_id for record in by_pass[number]] for number in range(4)]
    expected = [[case.case_id for case in shuffled(plan.cases, "shuffled", 11, number)]
                for number in range(4)]
    assert orders == expected
    assert orders[1] == orders[0][::-1] and orders[2] not in orders[:2]
    for found in by_pass.values():
        assert [record.position for record in found] == list(range(8))
        opened = [record.communicator_ns != NO_COMMUNICATOR for record in found]
        assert opened == [True] + [False] * 7
    assert not {"HB133", "HB135"} & outcome.codes()
    _every_rank_compared_its_clock(job.folder, outcome)


def _every_rank_compared_its_clock(folder: Path | None, outcome: Outcome) -> None:
    assert folder is not None
    for rank in range(2):
        trace = open_trace(folder / "traces" / f"rank{rank:05d}.h5")
        syncs = sync_records(trace)
        assert [(sync.n_clocks, sync.model.parent, sync.check) for sync in syncs] == [
            (1, -1, None)] * 2
    for item in outcome.results.cases:
        assert item.timing is not None and item.timing.clock_bound_s == 0


def test_a_generous_budget_is_not_a_time_out(mpirun: MpiLauncher) -> None:
    """A case that never becomes precise ends by its budget before its time limit."""
    measure = {**ONCE, "iterations": "auto", "precision": 1e-9, "budget_s": 600,
               "max_iterations": 1_000_000}
    job = mpirun.run(1, config=sweep("8", measure=measure, launch={"timeout_s": 4})).check()
    (item,) = read(job.folder).results.cases
    assert item.timing is not None and item.timing.stop_reasons == ("budget",)


def test_a_pass_that_agrees_at_once_shows_more_than_a_moment(mpirun: MpiLauncher) -> None:
    """It once ended after 8 ms: its samples agreed with one another, not with the next pass."""
    measure = {**ONCE, "iterations": "auto", "precision": 0.9, "budget_s": 60,
               "max_iterations": 1_000_000}
    job = mpirun.run(1, config=sweep("8", block={"backend": "mpi"}, measure=measure)).check()
    outcome = read(job.folder)
    (item,) = outcome.results.cases
    samples = outcome.samples[item.case.case_id]
    assert item.timing is not None and item.timing.stop_reasons == ("converged",)
    assert samples.end_ns.max() - samples.start_ns.min() >= 0.8e9 * LEAST_PASS_S


def test_launches_have_workers_of_their_own_and_all_count_beside_the_canary(
    mpirun: MpiLauncher,
) -> None:
    measure = {**ONCE, "passes": 2, "iterations": 3, "canary": True}
    job = mpirun.run(1, "--launches", "2", config=sweep("8", measure=measure)).check()
    found = records(job.folder, 0)
    assert [(record.launch, record.pass_index) for record in found] == [
        (launch, number) for launch in range(2) for number in range(2)]
    outcome = read(job.folder)
    assert len(outcome.results.plan.cases) == 1
    (item,) = outcome.results.cases
    assert item.statistics.n == 2 * 2 * 3 and len(item.timing.launch_medians_s) == 2
    assert item.timing.communicator_s is not None
    samples = outcome.samples[item.case.case_id]
    assert samples is not None and set(samples.launch.tolist()) == {0, 1}
    _canaries_ran(job.folder, outcome)


def _canaries_ran(folder: Path | None, outcome: Outcome) -> None:
    assert folder is not None and outcome.results.canary is not None
    trace = open_trace(folder / "traces" / "rank00000.h5")
    canaries = [note.data for note in trace.notes if note.kind == "canary"]
    assert len(canaries) >= 4 and {item["status"] for item in canaries} == {"ok"}
    assert all(len(item["durations_ns"]) == 20 for item in canaries)
    assert [item["at_ns"] for item in canaries] == sorted(item["at_ns"] for item in canaries)


def test_a_slow_rank_is_the_one_the_others_wait_for(mpirun: MpiLauncher) -> None:
    """A rank that starts late has the shortest call: never blame the longest."""
    each = {"case": "* 8B *", "rank": 1, "kind": "slow", "seconds": 0.03}
    once = {"case": "* 16B *", "rank": 1, "kind": "slow", "iteration": 2, "seconds": ONCE_S}
    measure = {**ONCE, "iterations": 8, "warmup": 1, "passes": 3}
    config = sweep("8", "16", measure=measure, fault=[each, once])
    job = mpirun.run(3, config=config).check()
    outcome = read(job.folder)
    _waited_once(outcome)
    item = outcome.of_size(8)
    assert item.timing.quickest_rank == 1 and (item.timing.quickest_share or 0) > 0.8
    assert item.timing.imbalance_s is not None and item.timing.imbalance_s > 0.02
    assert item.timing.last_in_s < (item.timing.local_max_s or 0)
    late = item.timing.late_start
    assert late is not None and late.rank == 1
    told = hpcbench("show", str(job.folder), "-v")
    assert told.count(" is the straggler") == told.count(": rank 1 is the straggler"), told
    if late.is_clear:  # a busy machine may withhold it
        assert late.low_s > 0.01 and "8B n=3: rank 1 is the straggler" in told, told
    marked = "faults were injected: slow by 0.03 s on rank 1 in each timed iteration of * 8B *; "
    assert job.stdout.count(marked) == 2  # at the start and at the end of the report


def _waited_once(outcome: Outcome) -> None:
    """See that the others waited for rank 1 in that iteration and no other, and nothing failed."""
    found = outcome.of_size(16)
    samples = outcome.samples[found.case.case_id]
    assert found.status == "ok" and samples is not None
    for waited_s in np.split((samples.end_ns - samples.start_ns)[0] / 1e9, 3):  # passes
        assert waited_s[2] > 0.8 * ONCE_S
        assert max(*waited_s[:2], *waited_s[3:]) < 0.8 * ONCE_S
