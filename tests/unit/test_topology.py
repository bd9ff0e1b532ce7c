"""Where ranks ran: NVML's matrix, Slurm's switches, and what a header tells, recorded and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.backends.gpus import gpu_topology, opened_nvml
from hpcbench.measurement.environment import scheduler_variables
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.reduce.run_checks import environment_differences
from hpcbench.reduce.topology import (
    RankPlace,
    Topology,
    share_switch,
    slurm_switches,
    topology_of,
)
from hpcbench.report.results_lines import topology_tables
from nvml_standins import Standins
from results_factory import make_results
from synthetic import make_header, make_plan, write_synthetic_run

DGX_1V = """
X   NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X   NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X   NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X   SYS SYS SYS NV1
NV2 SYS SYS SYS X   NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X   NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X   NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""
"""What nvidia-smi topo -m prints on a DGX-1 with V100: six links a GPU, a hybrid cube mesh."""
FOUR_A10 = """
X   PHB SYS SYS
PHB X   SYS SYS
SYS SYS X   PHB
SYS SYS PHB X
"""
PCI = ("0000:1b:00.0", "0000:1c:00.0", "0000:9a:00.0", "0001:9b:00.0")
MATRIX: dict[str, Any] = {
    "uuids": ["GPU-0", "GPU-1", "GPU-2", "GPU-3"], "pci": [*PCI],
    "cpus": ["0-3", None, None, "4-7"], "numa_nodes": [0, None, None, None],
    "links": [["X", "NV2", "SYS", "SYS"], ["NV2", "X", None, "SYS"],
              ["SYS", None, "X", "NV2"], ["SYS", "SYS", "NV2", "X"]],
    "fabrics": [None, None, "01" * 16 + "/7", "01" * 16 + "/7"]}
"""Four GPUs: two by two NVLinks, two at a switch; one pair of which NVML tells nothing."""
POORER: dict[str, Any] = {
    "uuids": ["GPU-0", "GPU-1"], "pci": [*PCI[:2]], "cpus": [None, None],
    "numa_nodes": [None, None], "links": [["X", "NODE"], ["NODE", "X"]], "fabrics": [None, None]}


def reported(standins: Standins, machine: str, root: Path = Path("/nowhere")) -> dict[str, Any]:
    """Return the topology that pynvml tells of a machine."""
    def ask() -> dict[str, Any] | None:
        with opened_nvml() as nvml:
            return gpu_topology(nvml, root)

    found: dict[str, Any] = standins.ask(machine, ask)
    return found


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def kernel_tree(folder: Path) -> Path:
    for address, cpus, node in (("0000:06:00.0", "0-3", "0"), ("0000:8a:00.0", "4-7", "-1")):
        device = folder / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "local_cpulist").write_text(f"{cpus}\n")
        (device / "numa_node").write_text(f"{node}\n")
    return folder


def test_the_matrix_is_that_of_nvidia_smi(tmp_path: Path, standins: Standins) -> None:
    found = reported(standins, "v100", kernel_tree(tmp_path))
    assert found["links"] == rows(DGX_1V)
    assert found["uuids"] == [f"GPU-0000000{gpu}-1111-2222-3333-444444440000" for gpu in range(8)]
    assert (found["pci"][0], found["pci"][7]) == ("0000:06:00.0", "0000:8a:00.0")
    assert found["cpus"] == ["0-3", *[None] * 6, "4-7"]
    assert found["numa_nodes"] == [0, *[None] * 7] and found["fabrics"] == [None] * 8


def test_all_links_at_switches_join_all_gpus(standins: Standins) -> None:
    found = reported(standins, "h100")
    assert found["links"] == [["X" if here == there else "NV18" for there in range(8)]
                              for here in range(8)]
    assert found["fabrics"] == [None] * 8  # complete, but of this node alone: it has no number
    assert reported(standins, "gb200")["fabrics"] == ["ab" * 16 + "/7"] * 8


def test_without_nvlink_there_are_pcie_paths(standins: Standins) -> None:
    assert reported(standins, "a10")["links"] == rows(FOUR_A10)


def test_what_is_not_reported_is_not_guessed(standins: Standins) -> None:
    assert gpu_topology(None) is None and reported(standins, "none") is None
    old = reported(standins, "old")  # its links lead to switches, which that driver does not say
    assert not any(link.startswith("NV") for line in old["links"] for link in line)
    assert old["fabrics"] == [None] * 8
    denied = reported(standins, "denied")
    assert denied["pci"] == denied["cpus"] == [None] * 8 and denied["uuids"] == old["uuids"]
    assert denied["links"] == [["X" if here == there else None for there in range(8)]
                               for here in range(8)]


def test_texts_that_are_not_utf_8_stand_as_they_are(standins: Standins) -> None:
    found = reported(standins, "garbled")
    assert found["uuids"][0] == "GPU-00000000-1111-2222-3333-444444440000\\xff\\xfe"
    assert found["pci"][0] == "0000:1b:00.0\\xff\\xfe" and found["links"][0][1] == "NV18"


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


def headers() -> list[Any]:
    """Six ranks on three nodes; GPUs of the first two nodes, and two leaf switches."""
    other = {**MATRIX, "uuids": [f"{uuid}b" for uuid in MATRIX["uuids"]]}
    plan = make_plan(world_size=6)
    return [make_header(plan, rank, hostname=f"host{rank // 2}", environment=environment(
        rank, (MATRIX, other, None)[rank // 2], (str(rank % 2), f"{rank}b", None)[rank // 2]))
        for rank in range(6)]


def test_each_rank_has_its_place_and_its_gpu() -> None:
    found = topology_of(headers())
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


def test_a_mig_device_is_where_the_gpu_is_that_it_is_a_part_of() -> None:
    plan = make_plan(world_size=1)
    header = make_header(plan, 0, environment={
        "gpu": {"uuid": "a part", "part_of": "GPU-1"}, "gpu_topology": MATRIX})
    (place,) = topology_of([header]).ranks
    assert place.gpu == 1


def test_topics_that_could_not_be_read_leave_places_unknown() -> None:
    plan = make_plan(world_size=1)
    broken = {"process": {"unreadable": "OSError"}, "scheduler": {"unreadable": "OSError"}}
    (place,) = topology_of([make_header(plan, 0, environment=broken)]).ranks
    assert place == RankPlace(0, "host0", None, None, None, None, None, None)


def test_other_gpus_are_no_difference_but_other_links_are() -> None:
    alike = [header for header in headers() if header.rank < 4]
    keys = {one.key for one in environment_differences(alike)}
    assert not {key for key in keys if key.startswith("gpu_topology")}
    changed = replace(alike[3], environment={**alike[3].environment, "gpu_topology": POORER})
    keys = {one.key for one in environment_differences([*alike[:3], changed])}
    assert "gpu_topology.links" in keys


def test_results_keep_the_topology(tmp_path: Path) -> None:
    plan = make_plan(world_size=2, n_cases=1)
    write_synthetic_run(tmp_path, plan)
    written = reduce_folder(tmp_path)
    assert [one.rank for one in written.topology.ranks] == [0, 1]
    with open_results(tmp_path) as file:
        assert file.results.topology == written.topology


def test_places_and_matrices_are_shown() -> None:
    results = replace(make_results(()), topology=topology_of(headers()))
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
