"""Workers that are killed, stopped, crash, run out of memory or compute a wrong result, for real.

Every fault costs its own case only, and the rank it happened on is the one that is blamed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from hpcbench.reduce.results import CaseResult
from hpcbench.trace.sealed import open_trace, trace_path
from launcher import EVERY_MPI_IF_ALL, Finished, MpiLauncher, launcher_for
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

# kind -> (size of the case it is injected into, expected status, words of the reason)
FAULTS = {
    "kill": (1024, "failed", "signal 9 (SIGKILL)"),
    "segv": (2048, "failed", "signal 11 (SIGSEGV)"),
    "abort": (3072, "failed", "signal 6 (SIGABRT)"),
    "raise": (4096, "failed", "injected exception"),
    "oom": (5120, "failed", "out of memory"),
    "exit": (6144, "failed", "exit code 7"),
    "stop": (7168, "timeout", "process is stopped"),
    "wrong": (8192, "wrong", "1 of 2048 elements, first index 2047"),
}
SOUND = [512 + 8 * number for number in range(len(FAULTS) + 1)]
"""A case before each fault, so that none begins with the start of workers, and one after all."""
TIMEOUT_S = 4.0


def _config(rank_of: dict[str, int]) -> dict[str, object]:
    sizes = [SOUND[0]]
    for (size, _, _), sound in zip(FAULTS.values(), SOUND[1:], strict=True):
        sizes += [size, sound]
    faults = [{"case": f"* {FAULTS[kind][0]}B *", "rank": rank, "kind": kind,
               "iteration": 0 if kind == "wrong" else 2} for kind, rank in rank_of.items()]
    return sweep(*map(str, sizes), fault=faults, launch={"timeout_s": TIMEOUT_S})


@EVERY_MPI_IF_ALL
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_each_fault_costs_one_case_and_names_its_rank(mpirun: MpiLauncher, ranks: int) -> None:
    rank_of = {kind: number % ranks for number, kind in enumerate(FAULTS)}
    job = mpirun.run(ranks, config=_config(rank_of), timeout=100).check(1)
    mpirun.assert_no_orphans()
    outcome = read(job.folder)
    for kind, (size, status, words) in FAULTS.items():
        found = outcome.of_size(size)
        assert found.status == status, (kind, found.reason)
        assert found.blamed_rank == rank_of[kind], (kind, found.reason)
        assert words in found.reason, (kind, found.reason)
        assert found.statistics is None
        if kind in ("kill", "stop"):  # a death is declared at once, silence after the time limit
            limit_s = TIMEOUT_S + 2 * (kind == "stop")
            assert _longest_s(mpirun, found) < limit_s, (kind, found.reason)
    assert {outcome.of_size(size).status for size in SOUND} == {"ok"}


INTERVAL_S = 60.0


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """Return what gives the one job of an MPI."""
    return cache(lambda mpi: _struck(launcher_for(mpi, tmp_path_factory.mktemp("struck"))))


def _struck(mpirun: MpiLauncher) -> Finished:
    """Run four ranks in a ring, of which one is stopped, one crashes and one is killed."""
    block = {"kind": "collective", "collective": "all_reduce", "backend": "gloo"}
    config = sweep(benchmarks=[
        {**block, "name": "struck", "size": ["8", "16", "32"], "timeout_s": 4},
        {**block, "name": "asleep", "size": "1024", "timeout_s": 90,
         "poll_interval_s": [INTERVAL_S]}], fault=[
        {"case": "* 8B *", "rank": 1, "kind": "stop"},
        {"case": "* 32B *", "rank": 2, "kind": "segv"},
        {"case": "* 1024B *", "rank": 1, "kind": "kill", "iteration": 2}])
    return mpirun.run(4, config=config, timeout=110).check(1)


@EVERY_MPI_IF_ALL
def test_a_failure_wakes_the_ranks_that_sleep(
    mpirun: MpiLauncher, struck: Callable[[str], Finished],
) -> None:
    """Four ranks in a ring: not every worker sees its peer die, so its supervisor must be told."""
    job = struck(mpirun.mpi)
    asleep = read(job.folder).of_size(1024)
    assert asleep.blamed_rank == 1
    assert job.folder is not None
    for rank in range(4):
        (record,) = (record for record in open_trace(trace_path(
            job.folder / "traces", rank)).records() if record.case_id == asleep.case.case_id)
        # start of the workers included; who is not told sleeps the interval out
        assert record.end_ns - record.begin_ns < INTERVAL_S * 1e9


def test_a_hang_shows_stacks_and_positions_and_a_crash_the_last_lines(
    struck: Callable[[str], Finished],
) -> None:
    """The worker that is stopped is silent; the one that crashes has said why."""
    outcome = read(struck("mpich").folder)
    found = outcome.of_size(8)
    assert (found.status, found.blamed_rank) == ("timeout", 1)
    assert "phase run of iteration 0, case number 1" in found.detail["1"]["position"]
    assert "case number" not in found.reason  # 16777217 in the second pass, and no two alike
    for rank in ("0", "2", "3"):  # first, because reports show the first lines only
        assert "all_reduce" in "".join(found.detail[rank]["stacks"].splitlines()[:4])
    crashed = outcome.of_size(32)
    assert (crashed.status, crashed.blamed_rank) == ("failed", 2)
    assert "Fatal Python error: Segmentation fault" in crashed.detail["2"]["output"]
    assert outcome.of_size(16).status == "ok"


def _longest_s(mpirun: MpiLauncher, item: CaseResult) -> float:
    """Return how long the supervisor that took longest was at a case until it had a verdict."""
    folder = mpirun.jobs[-1].folder
    assert folder is not None
    windows = [record.end_ns - record.begin_ns for rank in range(item.case.world_size)
               for record in open_trace(trace_path(folder / "traces", rank)).records()
               if record.case_id == item.case.case_id]
    assert len(windows) == item.case.world_size
    return max(windows) / 1e9


def test_a_crash_after_the_last_case_costs_nothing(mpirun: MpiLauncher) -> None:
    config = sweep("8", "16", fault=[{"rank": 1, "kind": "teardown", "case": "* 16B *"}])
    outcome = read(mpirun.run(2, config=config).check().folder)
    mpirun.assert_no_orphans()
    assert set(outcome.status().values()) == {"ok"}
    (finding,) = [item for item in outcome.results.findings if item.code == "HB152"]
    assert "rank 1 on" in finding.message and "ended by signal 6 (SIGABRT)" in finding.message


def test_a_memory_limit_ends_one_case_only(mpirun: MpiLauncher) -> None:
    config = sweep("8", "512MiB", "16", launch={"timeout_s": 30, "memory_limit_gb": 1.0},
                   measure={"warmup": 0, "iterations": 1})
    outcome = read(mpirun.run(1, config=config, timeout=100).check(1).folder)
    assert outcome.of_size(2**29).status == "failed"
    assert "out of memory" in outcome.of_size(2**29).reason
    assert outcome.of_size(8).status == outcome.of_size(16).status == "ok"


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """Give a cgroup (v1) that holds its processes to 700 MiB."""
    group = Path("/sys/fs/cgroup/memory") / f"hpcbench-{uuid.uuid4().hex[:8]}"
    if not os.access(group.parent, os.W_OK):
        pytest.skip("no writable memory cgroup")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text("700M")
    yield group
    group.rmdir()


def test_a_worker_that_the_kernel_kills_for_memory_is_reported(
    mpirun: MpiLauncher, memory_cgroup: Path,
) -> None:
    config = sweep("8", "512MiB", "16", measure={"warmup": 0, "iterations": 1})
    enter = ["sh", "-c", f"echo $$ > {memory_cgroup}/cgroup.procs; exec \"$@\"", "sh"]
    outcome = read(mpirun.run(1, config=config, before=enter).check(1).folder)
    mpirun.assert_no_orphans()
    assert "killed by the kernel for memory" in outcome.of_size(2**29).reason
    assert outcome.of_size(8).status == outcome.of_size(16).status == "ok"
