"""Where the ranks ran: their cores, GPUs and switches, and how GPUs are connected, by the headers
of traces; of imported files the hosts. Unknown is None; nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpcbench.records import dataclass
from hpcbench.trace.columns import LINES, Contents, Described
from hpcbench.trace.schema import Header, bare_uuid
from hpcbench.units import rank_list

CONTENTS: Contents = {"topology": Described(
    "one line: ranks, a place for each rank, and gpus, how the GPUs of a node are joined; see "
    "docs/telemetry.md", LINES)}
ONE_BOARD = ("NV", "PSB")
"""Beginnings of links between GPUs that NVLink joins, or that share a board."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank ran. ``cpus`` as ``0-3,8``; ``switches`` of Slurm, top to leaf; ``matrix`` and
    ``gpu`` index `Topology.gpus`; ``fabric`` is the NVLink domain of its GPU."""

    rank: int
    hostname: str
    cpus: str | None = None
    numa_nodes: tuple[int, ...] | None = None
    switches: tuple[str, ...] | None = None
    matrix: int | None = None
    gpu: int | None = None
    fabric: str | None = None


@dataclass(frozen=True, slots=True)
class GpuMatrix:
    """GPUs of a node with their cores, NUMA nodes and links, as in nvidia-smi topo -m."""

    uuids: tuple[str | None, ...]
    cpus: tuple[str | None, ...]
    numa_nodes: tuple[int | None, ...]
    links: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The places of all ranks whose host is known, and the GPUs that they see."""

    ranks: tuple[RankPlace, ...] = ()
    gpus: tuple[GpuMatrix, ...] = ()

    def gpu_link(self, here: RankPlace, there: RankPlace) -> str | None:
        """Return how the GPUs of two ranks are joined, None where NVML did not report it."""
        if here.matrix is None or here.matrix != there.matrix:
            return None
        if here.gpu is None or there.gpu is None:
            return None
        return self.gpus[here.matrix].links[here.gpu][there.gpu]


def share_switch(here: RankPlace, there: RankPlace, *, on_gpus: bool) -> bool:
    """Return whether two nodes are known to be at one leaf switch, or GPUs in one NVLink domain."""
    leaves = [one.switches[-1] if one.switches else None for one in (here, there)]
    domains = [one.fabric if on_gpus else None for one in (here, there)]
    return any(one is not None and one == other for one, other in (leaves, domains))


def topology_of(headers: Iterable[Header]) -> Topology:
    matrices: dict[GpuMatrix, int] = {}
    places = tuple(_place(header, matrices) for header in headers)
    return Topology(places, tuple(matrices))


def slurm_switches(scheduler: Mapping[str, Any], hostname: str) -> tuple[str, ...] | None:
    """Return the switches above a node, top to leaf, None if unknown. SLURM_TOPOLOGY_ADDR is
    ``s0.s4.tux1``, its pattern ``switch.switch.node``; it counts only on the node that it names."""
    kinds = str(scheduler.get("SLURM_TOPOLOGY_ADDR_PATTERN") or "").split(".")
    names = str(scheduler.get("SLURM_TOPOLOGY_ADDR") or "").split(".", len(kinds) - 1)
    if len(names) != len(kinds) or kinds[-1] != "node":
        return None
    if names[-1].partition(".")[0] != hostname.partition(".")[0]:
        return None
    return tuple(name for name, kind in zip(names, kinds, strict=True) if kind == "switch") or None


def _place(header: Header, matrices: dict[GpuMatrix, int]) -> RankPlace:
    environment = header.environment
    gpus = environment.get("gpu_topology")
    matrix = _matrix(gpus)
    number = None if matrix is None else matrices.setdefault(matrix, len(matrices))
    gpu = _own_gpu(matrix, environment.get("gpu"))
    process = environment.get("process") or {}
    numa = process.get("numa_nodes")
    affinity = process.get("affinity")
    return RankPlace(
        header.rank, header.hostname,
        rank_list(affinity).replace(" ", "") if affinity else None,
        None if numa is None else tuple(numa),
        slurm_switches(environment.get("scheduler") or {}, header.hostname), number, gpu,
        gpus["fabrics"][gpu] if gpus and gpu is not None else None)


def _matrix(gpus: Mapping[str, Any] | None) -> GpuMatrix | None:
    if not gpus:
        return None
    return GpuMatrix(tuple(gpus["uuids"]), tuple(gpus["cpus"]), tuple(gpus["numa_nodes"]),
                     tuple(tuple(line) for line in gpus["links"]))


def _own_gpu(matrix: GpuMatrix | None, own: Mapping[str, Any] | None) -> int | None:
    """Return the index of the rank's GPU on its node by UUID; a MIG device counts as its GPU."""
    named = (own or {}).get("part_of") or (own or {}).get("uuid")
    wanted = bare_uuid(str(named or ""))
    uuids = [bare_uuid(uuid or "") for uuid in matrix.uuids] if matrix else []
    return uuids.index(wanted) if wanted and wanted in uuids else None
