"""Where the ranks ran, and how the GPUs of a node are joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcbench.reduce.results import Results
from hpcbench.reduce.topology import GpuMatrix, RankPlace, Topology
from hpcbench.units import grouped, rank_list
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

MOST_PLACES = 64
"""Rows that are shown; results.h5 has all."""
_PLACES = (
    Column("ranks", "ranks"), Column("host", "host"), Column("cpus", "cores", optional=True),
    Column("numa", "NUMA nodes", optional=True), Column("gpu", "GPU", optional=True),
    Column("fabric", "NVLink domain", optional=True),
    Column("switches", "switches", meaning="Slurm's, from the top to the leaf", optional=True))
_LEGEND = (
    "X itself; NV# that many NVLinks; PSB one PCIe switch on their board; PIX one PCIe bridge; "
    "PXB several;",
    "PHB a host bridge; NODE the interconnect within a NUMA node; SYS that between NUMA nodes")


def topology_tables(results: Results) -> Iterator[Table]:
    """Yield where ranks ran, and a matrix for each way in which GPUs of a node are joined."""
    topology = results.topology
    if topology.ranks:
        yield _places_table(topology)
    for matrix, hosts in _hosts(topology).items():
        yield _matrix_table(matrix, hosts)


def _places_table(topology: Topology) -> Table:
    """Return a row for each place; ranks that share one stand together."""
    alike = grouped((_place_cells(one), one.rank) for one in topology.ranks)
    rows = [Row((rank_list(ranks), *cells)) for cells, ranks in alike.items()]
    left = len(rows) - MOST_PLACES
    notes = (Line(f"and {left} more places, in results.h5 (/topology)", "quiet"),)
    return Table("where ranks ran", _PLACES, (Group("", tuple(rows[:MOST_PLACES])),),
                 notes=notes if left > 0 else ())


def _place_cells(one: RankPlace) -> tuple[str | None, ...]:
    numa = None if one.numa_nodes is None else rank_list(one.numa_nodes)
    gpu = None if one.gpu is None else f"GPU{one.gpu}"
    return one.hostname, one.cpus, numa, gpu, one.fabric, ".".join(one.switches or ()) or None


def _hosts(topology: Topology) -> Mapping[GpuMatrix, list[str]]:
    """Return the matrices that differ in more than names, with the hosts that have them."""
    found = grouped(
        (GpuMatrix((), matrix.cpus, matrix.numa_nodes, matrix.links), one.hostname)
        for one in topology.ranks if one.matrix is not None
        for matrix in (topology.gpus[one.matrix],))
    return {matrix: [*dict.fromkeys(hosts)] for matrix, hosts in found.items()}


def _matrix_table(matrix: GpuMatrix, hosts: list[str]) -> Table:
    """Return what nvidia-smi topo -m shows of the GPUs."""
    names = [f"GPU{number}" for number in range(len(matrix.links))]
    columns = (Column("gpu", ""), *(Column(name.lower(), name) for name in names),
               Column("cpus", "CPU affinity", optional=True),
               Column("numa", "NUMA affinity", Show.COUNT, optional=True))
    rows = tuple(
        Row((name, *(link or "?" for link in links), cpus, numa))
        for name, links, cpus, numa in zip(
            names, matrix.links, matrix.cpus, matrix.numa_nodes, strict=True))
    where = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
    return Table(f"GPUs of {where}", columns, (Group("", rows),),
                 notes=tuple(Line(text, "quiet") for text in _LEGEND))
