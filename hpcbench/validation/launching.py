"""The launcher, and whether the ranks that it started are one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpcbench.launch.ranks.store_communicator import REMEDY
from hpcbench.units import plural
from hpcbench.validation.lines import Line, fail, not_applicable, ok, warn
from hpcbench.validation.rank_report import JobReport

_MEET = ("does torchrun run on every node, with the same --nnodes and a port that all reach? Is a "
         "process stopped? --timeout S waits longer")


def launching_lines(job: JobReport) -> Iterator[Line]:
    """Yield who started the ranks, whether all are there, and where they are."""
    yield _launcher(job)
    yield _ranks(job)
    yield _places(job)


def _launcher(job: JobReport) -> Line:
    if job.announced is not None:
        return ok("launcher", job.announced[1])
    if job.world_size == 1:
        return not_applicable("launcher", "none: one rank; for more: mpirun -np 4 python -m "
                                          "hpcbench validate")
    return ok("launcher", "one that leaves no variables known here; MPI knows the ranks")


def _ranks(job: JobReport) -> Line:
    if job.by_torchrun and job.start_error:
        reason = " ".join(job.start_error.removesuffix(f"; {REMEDY}").split())
        return fail("ranks", reason, REMEDY if job.start_error.endswith(REMEDY) else _MEET)
    if job.announced is not None and job.announced[0] != job.world_size:
        size, launcher = job.announced
        return fail("ranks", f"{launcher} started {size}, but MPI sees {job.world_size}",
                    f"{job.lonely_fix}; see docs/launching.md")
    if job.lost:
        names = ", ".join(f"{rank} on {host}" if host else str(rank)
                          for rank, host in sorted(job.lost.items()))
        return fail("ranks", f"no answer within {job.timeout_s:g} s from rank {names}",
                    "look at that node: is the process stopped, the node overloaded, or a file "
                    "system or driver hanging? --timeout S waits longer")
    return ok("ranks", f"{job.world_size}, as started" if job.announced else str(job.world_size))


def _places(job: JobReport) -> Line:
    counts = Counter(report.node for report in job.ranks)
    hosts = {report.node: report.hostname for report in job.ranks}
    if len(counts) == 1:
        return ok("nodes", f"1 ({', '.join(hosts.values())})")
    different = set(counts.values())
    if len(different) > 1:
        each = ", ".join(f"{hosts[node]} {count}" for node, count in counts.items())
        return warn("nodes", f"{len(counts)}, with different numbers of ranks: {each}",
                    "start equally many on each node, or read links between nodes with that in "
                    "mind")
    return ok("nodes", f"{len(counts)}, with {plural(different.pop(), 'rank')} each")
