"""What healthy ranks tell, for tests that make one thing of it unhealthy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hpcbench.trace.clock import ClockCheck, ClockModel, SyncRecord
from hpcbench.validation.rank_report import CheckLine, JobReport, RankReport

FACTS: Mapping[str, Any] = {
    "built": {"gloo": True, "nccl": True, "mpi": False, "ucc": False},
    "gloo_without_avg": None, "gloo_without_reduce_scatter": None,
    "ucc": {"reason": "torch_ucc is not installed", "source": "torch_ucc", "layers": None,
            "lacks": {}, "without_cuda": None},
    "cuda": {"available": False, "reason": "torch is a CPU build", "names": [], "uuids": [],
             "memory_bytes": [], "details": [], "refused": [], "no_code": [],
             "visible": None},
    "mps": {"reason": "built without it", "name": None, "memory_bytes": 0,
            "without_bf16": "built without it"},
    "host_memory_bytes": 2**36, "tools": {}, "lost": {}, "versions": {"torch": "2.9"},
    "mpi": {"reason": None, "lacks": {}, "cuda": {"aware": None, "reason": "nobody says"}},
}
MACHINE: Mapping[str, Any] = {
    "python": {"traced": False, "dev_mode": False},
    "process": {"affinity": [0, 1], "affinity_cpus": 2,
                "cgroup": {"cpus": "unlimited", "memory_bytes": "unlimited"},
                "limits": {"open_files": 65536, "locked_memory_bytes": "unlimited",
                           "processes": "unlimited"}},
    "network": {"interfaces": {"eth0": {"speed_mbit": 25000, "mtu": 9000}}, "infiniband": {}},
    "kernel": {"clocksource": "tsc"},
}
STORAGE: Mapping[str, Any] = {
    "folder": "/scratch/results", "error": None, "seen": True, "kind": "lustre",
    "free_bytes": 10**12, "free_files": None, "sync_s": 0.003, "made": []}
VERSIONS: Mapping[str, str] = {
    "hpcbench": "1", "python": "3.11.7", "mpi": "MPICH 5", "torch": "2.9"}


def good(rank: int = 0, *, node: str = "a", **changed: Any) -> RankReport:
    """Return a healthy rank of a node; ``changed`` replaces whole fields."""
    machine = copy.deepcopy(dict(MACHINE))
    machine["process"].update(affinity=[2 * rank, 2 * rank + 1])
    values: dict[str, Any] = {
        "versions": dict(VERSIONS), "machine": machine, "facts": copy.deepcopy(dict(FACTS)),
        "interface": "eth0", "clock": sync_record().to_json(), "storage": dict(STORAGE),
        "shm_bytes": 2**34, **changed}
    return RankReport(rank, rank, f"host-{node}", node, values.pop("mpi", "MPICH 5"), **values)


def job(*ranks: RankReport, **changed: Any) -> JobReport:
    """Return the job of these ranks, by default 4 healthy ones on one node."""
    ranks = ranks or tuple(good(rank) for rank in range(4))
    values: dict[str, Any] = {"world_size": len(ranks), "ranks": ranks,
                              "announced": (len(ranks), "MPICH's mpirun"), **changed}
    return JobReport(**values)


def changed(rank: RankReport, path: str, value: Any) -> RankReport:
    """Return the rank with one key replaced, such as ``facts.cuda.names``."""
    field, *keys, last = path.split(".")
    values = copy.deepcopy(dict(getattr(rank, field)))
    inner = values
    for key in keys:
        inner = inner[key]
    inner[last] = value
    return replace(rank, **{field: values})


def with_gpus(rank: RankReport, *uuids: str, no_code: str | None = None) -> RankReport:
    """Return the rank with these GPUs in sight."""
    count = len(uuids)
    return changed(rank, "facts.cuda", {
        "available": True, "reason": None, "names": ["H100"] * count, "uuids": list(uuids),
        "memory_bytes": [2**36] * count, "details": [None] * count,
        "refused": [None] * count,
        "no_code": [no_code] * count, "visible": None})


def sync_record(
    n_clocks: int = 1, bound_ns: float = 0.0, error_ns: float | None = None,
    realtime_ns: int = 10**18,
) -> SyncRecord:
    """Return a comparison of clocks; ``error_ns`` is what its check found."""
    model = ClockModel(0, 1e-6, 500, bound_ns, 0.0, 0.0, parent=0, n_used=20, n_rejected=0)
    check = None if error_ns is None else ClockCheck(0, error_ns, 100.0)
    return SyncRecord("boot", n_clocks, model, check, 0, realtime_ns)


def states(lines: Callable[[JobReport], Iterator[CheckLine]], of: JobReport) -> dict[str, str]:
    """Return the state of each subject; every warning and failure has to say what to do."""
    found = list(lines(of))
    assert all(line.found for line in found)
    assert all(line.fix for line in found if line.state.value in ("warn", "fail")), found
    assert len({line.subject for line in found}) == len(found)
    return {line.subject: line.state.value for line in found}


def line(
    lines: Callable[[JobReport], Iterator[CheckLine]], of: JobReport, subject: str,
) -> tuple[str, str, str]:
    """Return (state, found, fix) of one subject."""
    one, = (line for line in lines(of) if line.subject == subject)
    assert one.fix or one.state.value not in ("warn", "fail"), one
    return one.state.value, one.found, one.fix
