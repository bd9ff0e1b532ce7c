"""What the system limits: files, locked memory, processes, core files, shared memory, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcbench.units import plural, rank_list, round_bytes
from hpcbench.validation.lines import Line, fail, not_applicable, ok, warn
from hpcbench.validation.rank_report import JobReport

_FEW_FILES, _TOO_FEW_FILES = 1024, 128
"""gloo keeps a socket to each other rank, and opens one more for each while they connect."""
_FILES_BESIDE = 256
_FEW_PROCESSES = 512
_SHM_OF_A_RANK = 64 * 2**20
_TOO_LITTLE_SHM = 4 * 2**20
"""An MPI maps 2 to 4 MB in /dev/shm for each rank, NCCL some 10 MB for each GPU."""
_SCARCE_LOCKED = 512 * 2**20
"""What a process may lock is what its registered host memory may be (ib_umem_get of Linux). With
128 MB osu_bibw hung over Open MPI's openib at messages of 4 MiB, with 512 MB it did not (archive of
Open MPI's developers' list, attachment 4364)."""
_MEMORY_OF_A_RANK = 2**30
_TOO_LITTLE_MEMORY = 400 * 2**20
"""Supervisor, template and worker of one rank hold about 0.35 GB with torch imported."""


def limit_lines(job: JobReport) -> Iterator[Line]:
    """Yield a line for each limit."""
    yield _open_files(job)
    yield _locked_memory(job)
    yield _processes(job)
    yield _core_files(job)
    yield _shared_memory(job)
    yield _cgroup_memory(job)


def _lowest(job: JobReport, name: str) -> tuple[int | None, str]:
    """Return the lowest limit of any rank, None if all are unlimited, and who has it."""
    limits = {one.rank: limit for one in job.ranks
              if isinstance(limit := one.of("process", "limits", name), int)}
    low = min(limits.values(), default=None)
    return low, f"on rank {rank_list(rank for rank, limit in limits.items() if limit == low)}"


def _open_files(job: JobReport) -> Line:
    low, who = _lowest(job, "open_files")
    if low is None:
        return ok("open files", "unlimited")
    needed = max(_FEW_FILES, 4 * job.world_size + _FILES_BESIDE)
    fix = f"ulimit -n {needed} before the launcher starts, or LimitNOFILE= of its service"
    if low < _TOO_FEW_FILES + job.world_size:
        return fail("open files", f"{low} {who}: too few for {plural(job.world_size, 'rank')}", fix)
    if low < needed:
        return warn("open files", f"{low} {who}: gloo opens some for each other rank", fix)
    return ok("open files", str(low))


def _locked_memory(job: JobReport) -> Line:
    if not any(report.of("network", "infiniband") for report in job.ranks):
        return not_applicable("locked memory", "only RDMA locks memory, and no port is seen")
    low, who = _lowest(job, "locked_memory_bytes")
    if low is None:
        return ok("locked memory", "unlimited")
    lowest = f"{round_bytes(low)} {who}"
    if low < _SCARCE_LOCKED:
        return warn("locked memory", f"{lowest}: RDMA may fail or hang when it registers buffers",
                    "ulimit -l unlimited; with Slurm LimitMEMLOCK=infinity of slurmd, with Docker "
                    "--ulimit memlock=-1")
    return ok("locked memory", f"{lowest}, and no more of host memory can be registered for RDMA")


def _processes(job: JobReport) -> Line:
    low, who = _lowest(job, "processes")
    if low is not None and low < _FEW_PROCESSES:
        return warn("processes", f"{low} {who}, threads and all other processes of the user "
                    "included", "ulimit -u 4096 or more")
    return ok("processes", "unlimited" if low is None else str(low))


def _core_files(job: JobReport) -> Line:
    sizes = {report.core_files for report in job.ranks}
    if sizes <= {0}:
        return ok("core files", "none are written")
    if "unlimited" in sizes:
        return warn("core files", "unlimited: a worker that crashes writes gigabytes, which looks "
                    "like a hang meanwhile", "ulimit -c 0, unless you are after that crash")
    return ok("core files", f"up to {round_bytes(max(s for s in sizes if isinstance(s, int)))}")


def _shared_memory(job: JobReport) -> Line:
    free_of = {}
    for node, ranks in job.by_node.items():
        free = [rank.shm_bytes for rank in ranks if rank.shm_bytes is not None]
        if not free:
            return warn("shared memory", f"{ranks[0].hostname} has no /dev/shm",
                        "mount it: MPI and NCCL use it between ranks of a node")
        free_of[node] = min(free)
    each, free_bytes, where = _least_share(job, free_of)
    tightest = f"{round_bytes(free_bytes)} free in /dev/shm on {where}"
    fix = ("remove what crashed jobs left in /dev/shm, or enlarge it: docker --shm-size=1g, or in "
           "Kubernetes an emptyDir with medium: Memory")
    if each < _TOO_LITTLE_SHM:
        return fail("shared memory", tightest, fix)
    if each < _SHM_OF_A_RANK:
        return warn("shared memory", tightest, fix)
    return ok("shared memory", tightest)


def _cgroup_memory(job: JobReport) -> Line:
    limits = {node: int(limit) for node, ranks in job.by_node.items() if isinstance(
        limit := ranks[0].of("process", "cgroup", "memory_bytes"), (int, float))}
    if not limits:
        return ok("memory limit", "no cgroup sets one")
    each, limit, where = _least_share(job, limits)
    tightest = f"{round_bytes(limit)} of a cgroup on {where}"
    fix = "ask for more memory (--mem, limits.memory), or start fewer ranks a node"
    if each < _TOO_LITTLE_MEMORY:
        return fail("memory limit", f"{tightest}: torch alone needs more", fix)
    if each < _MEMORY_OF_A_RANK:
        return warn("memory limit", tightest, fix)
    return ok("memory limit", tightest)


def _least_share(job: JobReport, sizes: Mapping[str, int]) -> tuple[int, int, str]:
    """Return the least that each rank of a node has, of how much, and which node that is."""
    shares = []
    for node, size in sizes.items():
        ranks = job.by_node[node]
        whose = f"{ranks[0].hostname} for {plural(len(ranks), 'rank')}"
        shares.append((size // len(ranks), size, whose))
    return min(shares)
