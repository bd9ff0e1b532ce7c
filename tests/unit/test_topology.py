"""Where ranks ran: NVML's matrix, Slurm's switches, and what a header tells, recorded and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbench.backends.gpu_topology import gpu_topology
from hpcbench.measure.environment import scheduler_variables
from hpcbench.reduce.environments import environment_differences
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.reduce.topology import (
    RankPlace,
    Topology,
    share_switch,
    slurm_switches,
    topology_of,
)
from hpcbench.views.topology import topology_tables
from results_factory import make_results
from synthetic import make_header, make_plan, write_synthetic_run


class NotSupported(Exception):
    """What the library raises for what it does not tell."""


class Nvml:
    """Four GPUs: 0 and 1 by two NVLinks, 2 and 3 at a switch with 3 and 2 links that are up."""

    NVMLError = NotSupported
    NVML_NVLINK_MAX_LINKS, NVML_NVLINK_DEVICE_TYPE_SWITCH = 6, 2
    NVML_GPU_FABRIC_STATE_COMPLETED = 3
    NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 10, 40, 50
    PCI = ("00000000:1B:00.0", "00000000:1C:00.0", "00000000:9A:00.0", "00000001:9B:00.0")
    LINKS: tuple[tuple[str | None, ...], ...] = (
        (PCI[1], PCI[1]), (PCI[0], PCI[0]), (None, None, None), (None, None))
    FABRIC_STATE = 3

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUUID(self, gpu: int) -> bytes:
        return f"GPU-{gpu}".encode()

    def nvmlDeviceGetPciInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(busId=self.PCI[gpu].encode())

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        if link > len(self.LINKS[gpu]):
            raise NotSupported
        return int(link < len(self.LINKS[gpu]))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:
        return 0 if self.LINKS[gpu][link] else 2

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=self.LINKS[gpu][link])

    def nvmlDeviceGetTopologyCommonAncestor(self, here: int, there: int) -> int:
        if {here, there} == {1, 2}:
            raise NotSupported
        return 40 if here < 2 and there < 2 else 50

    def c_nvmlGpuFabricInfoV_t(self) -> SimpleNamespace:
        return SimpleNamespace(clusterUuid=[0] * 16, cliqueId=0, state=0)

    def nvmlDeviceGetGpuFabricInfoV(self, gpu: int, told: SimpleNamespace) -> None:
        told.state, told.cliqueId = self.FABRIC_STATE, 7
        told.clusterUuid = [gpu // 2] * 16


class OldNvml(Nvml):
    """A driver and a pynvml that know no switches, no domains, and no GPU beside the first two."""

    LINKS = ((), ())

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def __getattribute__(self, name: str) -> Any:
        if "Fabric" in name or "RemoteDeviceType" in name or "TYPE_SWITCH" in name:
            raise AttributeError(name)
        return super().__getattribute__(name)


def kernel_tree(folder: Path) -> Path:
    for address, cpus, node in (("0000:1b:00.0", "0-3", "0"), ("0001:9b:00.0", "4-7", "-1")):
        device = folder / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "local_cpulist").write_text(f"{cpus}\n")
        (device / "numa_node").write_text(f"{node}\n")
    return folder


def test_the_matrix_is_that_of_nvidia_smi(tmp_path: Path) -> None:
    found = gpu_topology(Nvml(), kernel_tree(tmp_path))
    assert found == {
        "uuids": ["GPU-0", "GPU-1", "GPU-2", "GPU-3"],
        "pci": ["0000:1b:00.0", "0000:1c:00.0", "0000:9a:00.0", "0001:9b:00.0"],
        "cpus": ["0-3", None, None, "4-7"], "numa_nodes": [0, None, None, None],
        "links": [["X", "NV2", "SYS", "SYS"], ["NV2", "X", None, "SYS"],
                  ["SYS", None, "X", "NV2"], ["SYS", "SYS", "NV2", "X"]],
        "fabrics": [None, None, "01" * 16 + "/7", "01" * 16 + "/7"]}


def test_what_is_not_told_is_not_guessed(tmp_path: Path) -> None:
    assert gpu_topology(None) is None
    found = gpu_topology(OldNvml(), tmp_path)
    assert found is not None and found["links"] == [["X", "NODE"], ["NODE", "X"]]
    assert found["fabrics"] == [None, None] and found["cpus"] == [None, None]
    none = OldNvml()
    none.nvmlDeviceGetCount = lambda: 0  # type: ignore[method-assign]
    assert gpu_topology(none) is None


@pytest.mark.parametrize(("address", "pattern", "host", "switches"), [
    ("s0.s4.tux1", "switch.switch.node", "tux1", ("s0", "s4")),
    ("s0.tux1.example.org", "switch.node", "tux1.example.org", ("s0",)),
    ("tux1", "node", "tux1", None),  # topology/default
    ("s0.tux1", "switch.node", "tux2", None),  # mpirun handed on what is of its own node
    ("s0.s4.tux1", "switch.node", "tux1", None),
    ("s0.tux1", None, "tux1", None), (None, "switch.node", "tux1", None), (None, None, "a", None),
])
def test_switches_are_those_that_slurm_names_of_this_node(
    address: str | None, pattern: str | None, host: str, switches: tuple[str, ...] | None,
) -> None:
    given = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    recorded = scheduler_variables({name: text for name, text in given.items() if text})
    assert slurm_switches(recorded, host) == switches


def environment(rank: int, matrix: dict[str, Any] | None, uuid: str | None) -> dict[str, Any]:
    leaf = f"s{rank // 4}"
    return {
        "process": {"affinity": [2 * rank, 2 * rank + 1], "numa_nodes": [rank % 2]},
        "scheduler": {"SLURM_TOPOLOGY_ADDR": f"top.{leaf}.host{rank // 2}",
                      "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"},
        "gpu": uuid and {"uuid": uuid}, "gpu_topology": matrix}


def headers(tmp_path: Path) -> list[Any]:
    """Six ranks on three nodes; GPUs of the first two nodes, and two leaf switches."""
    matrix = gpu_topology(Nvml(), kernel_tree(tmp_path))
    assert matrix is not None
    other = {**matrix, "uuids": [f"{uuid}b" for uuid in matrix["uuids"]]}
    plan = make_plan(world_size=6)
    return [make_header(plan, rank, hostname=f"host{rank // 2}", environment=environment(
        rank, (matrix, other, None)[rank // 2], (str(rank % 2), f"{rank}b", None)[rank // 2]))
        for rank in range(6)]


def test_each_rank_has_its_place_and_its_gpu(tmp_path: Path) -> None:
    found = topology_of(headers(tmp_path))
    assert found.ranks[1] == RankPlace(1, "host0", "2-3", (1,), ("top", "s0"), 0, 1, None)
    assert found.ranks[2] == RankPlace(
        2, "host1", "4-5", (0,), ("top", "s0"), 1, 2, "01" * 16 + "/7")
    assert found.ranks[4] == RankPlace(4, "host2", "8-9", (0,), ("top", "s1"), None, None, None)
    first, second, third, fourth, fifth = found.ranks[:5]
    assert found.gpu_link(first, second) == "NV2" and found.gpu_link(first, third) is None
    assert share_switch(first, third, on_gpus=False) and not share_switch(
        third, fifth, on_gpus=False)
    away = replace(fourth, switches=None)
    assert share_switch(third, away, on_gpus=True) and not share_switch(third, away, on_gpus=False)


def test_a_rank_that_sees_its_own_gpu_only_is_joined_to_nobody() -> None:
    alone = {"cpus": ["0-3"], "numa_nodes": [0], "links": [["X"]], "fabrics": [None]}
    plan = make_plan(world_size=2)
    found = topology_of([make_header(plan, rank, environment={
        "gpu": {"uuid": f"u{rank}"}, "gpu_topology": {"uuids": [f"GPU-u{rank}"], **alone}})
        for rank in range(2)])
    assert [one.gpu for one in found.ranks] == [0, 0]
    assert found.gpu_link(*found.ranks) is None


def test_topics_that_could_not_be_read_leave_places_unknown() -> None:
    plan = make_plan(world_size=1)
    broken = {"process": {"unreadable": "OSError"}, "scheduler": {"unreadable": "OSError"}}
    (place,) = topology_of([make_header(plan, 0, environment=broken)]).ranks
    assert place == RankPlace(0, "host0", None, None, None, None, None, None)


def test_other_gpus_are_no_difference_but_other_links_are(tmp_path: Path) -> None:
    alike = [header for header in headers(tmp_path) if header.rank < 4]
    keys = {one.key for one in environment_differences(alike)}
    assert not {key for key in keys if key.startswith("gpu_topology")}
    broken = gpu_topology(OldNvml(), tmp_path)
    changed = replace(alike[3], environment={**alike[3].environment, "gpu_topology": broken})
    keys = {one.key for one in environment_differences([*alike[:3], changed])}
    assert "gpu_topology.links" in keys


def test_results_keep_the_topology(tmp_path: Path) -> None:
    plan = make_plan(world_size=2, n_cases=1)
    write_synthetic_run(tmp_path, plan)
    written = reduce_folder(tmp_path)
    assert [one.rank for one in written.topology.ranks] == [0, 1]
    with open_results(tmp_path) as file:
        assert file.results.topology == written.topology


def test_places_and_matrices_are_shown(tmp_path: Path) -> None:
    results = replace(make_results(()), topology=topology_of(headers(tmp_path)))
    places, matrix = topology_tables(results)
    assert [row.cells for row in places.rows][0] == (
        "0", "host0", "0-1", "0", "GPU0", None, "top.s0")
    assert matrix.title == "GPUs of host0, host1"  # joined in the same way
    assert matrix.rows[1].cells == ("GPU1", "NV2", "X", "?", "SYS", None, None)
    assert not [*topology_tables(make_results(()))]
    many = Topology(tuple(replace(results.topology.ranks[0], rank=rank, hostname=f"h{rank}")
                          for rank in range(70)), results.topology.gpus)
    (places, _) = topology_tables(replace(results, topology=many))
    assert len(places.rows) == 64 and "6 more" in places.notes[0].text
