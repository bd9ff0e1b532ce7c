"""Details of GPUs, from a library that knows some things and refuses or lacks the others."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts, gpu_indices, gpu_refusals, own_gpu
from hpcbench.backends.gpus import (
    NVML_CALLS,
    XID,
    NvmlRefusals,
    gpu_details,
    load_nvml,
    nvml_refusals,
    opened_nvml,
    visible_uuids,
)
from nvml_standins import Standins

FIRST = "00000000-1111-2222-3333-444444440000"
"""Torch's UUID of the first GPU of each machine: without NVML's prefix."""
PART = "00000000-1111-2222-3333-444444440002"
"""Of the second MIG device of machine ``mig``."""


def details(standins: Standins, machine: str, *uuids: str) -> list[Any]:
    def ask() -> list[Any]:
        with opened_nvml() as nvml:
            return gpu_details(nvml, uuids)

    found: list[Any] = standins.ask(machine, ask)
    return found


def test_what_is_reported_and_what_is_not(standins: Standins) -> None:
    known, prefixed, unknown, unnamed = details(
        standins, "h100", FIRST, f"GPU-{FIRST}", "other", "")
    assert unknown is None and unnamed is None and prefixed == known
    assert known == {
        "pci": "00000000:1B:00.0", "part_of": None, "numa_node": 0, "power_limit_w": 700.0,
        "persistence": True, "compute_mode": 0, "ecc": True, "mig": False,
        "max_mhz": {"sm": 1980, "memory": 2619}, "pcie": {"generation": 5, "width": 16},
        "nvlinks": 18, "now": {"sm_mhz": 1400, "memory_mhz": 2619, "celsius": 35,
                               "throttled_by": ["power cap", "hardware thermal"]}}


def test_an_old_driver_reports_what_it_has(standins: Standins) -> None:
    (old,) = details(standins, "old", FIRST)
    assert (old["numa_node"], old["mig"]) == (None, None)
    assert old["now"]["throttled_by"] == ["power cap", "hardware thermal"]


def test_a_gpu_of_which_all_is_denied_has_no_details(standins: Standins) -> None:
    (denied,) = details(standins, "denied", FIRST)
    empty = {"max_mhz": {"sm": None, "memory": None}, "pcie": {"generation": None, "width": None},
             "now": dict.fromkeys(("sm_mhz", "memory_mhz", "celsius", "throttled_by"))}
    assert denied == {**dict.fromkeys(denied), **empty}


def test_a_mig_device_has_the_details_of_its_gpu(standins: Standins) -> None:
    assert details(standins, "mig", f"MIG-{PART}") == details(standins, "mig", PART)
    (part,) = details(standins, "mig", PART)
    assert part["part_of"] == f"GPU-{FIRST}" and part["mig"] is True
    assert (part["pci"], part["power_limit_w"]) == ("00000000:07:00.0", 700.0)
    assert part["nvlinks"] is None


def test_texts_that_are_not_utf_8_are_no_end(standins: Standins) -> None:
    (known,) = details(standins, "garbled", FIRST)
    assert known["pci"] == "00000000:1B:00.0\\xff\\xfe" and known["mig"] is False


@pytest.mark.parametrize(("told", "visible", "uuids"), [
    (["a", "b"], None, ["a", "b"]), (["a"], "GPU-a", ["a"]), (["a", "b"], "1,0", ["a", "b"]),
    (["gpu"], "MIG-part", ["part"]),  # before CUDA 12
    (["part-of-it"], "MIG-part", ["part-of-it"]),  # a name may be shortened
    (["gpu"], "MIG-GPU-gpu/1/0,MIG-GPU-gpu/2/0", ["GPU-gpu/1/0"]), ([], "MIG-part", []),
])
def test_a_mig_device_is_the_one_that_is_visible(
    told: list[str], visible: str | None, uuids: list[str],
) -> None:
    assert visible_uuids(told, visible) == uuids


def test_without_a_driver_there_are_no_details() -> None:
    with opened_nvml() as nvml:
        assert gpu_details(nvml, ["known"]) == [None]
    assert gpu_details(None, []) == []


def test_what_is_refused_once_is_known_before_it_is_read(standins: Standins) -> None:
    def refused(machine: str, uuid: str = FIRST) -> dict[str, str]:
        found: dict[str, str] = standins.ask(machine, lambda: nvml_refusals(load_nvml(), uuid))
        return found

    assert refused("h100") == {"pcie_received_bytes": "Not Supported"}
    assert {*refused("denied").values()} == {"Insufficient Permissions"}
    assert {*refused("denied")} == {*NVML_CALLS, XID}
    assert refused("old") == {"pcie_received_bytes": "Not Supported", XID: "Function Not Found"}
    assert {*refused("h100", "other")} == {*NVML_CALLS, XID}
    garbled = refused("garbled", "other")
    assert "Not Found" in garbled[XID]


def test_what_crashed_in_the_probe_is_not_asked_by_a_supervisor() -> None:
    cuda = {"refused": [None, {"power_mw": "Not Supported"}]}
    rank = RankFacts(0, "n1", 0, {"cuda": cuda, "versions": {}, "lost": {}})
    assert gpu_refusals(rank, 1) == NvmlRefusals(None, {"power_mw": "Not Supported"})
    assert gpu_refusals(rank, 0) == gpu_refusals(rank, None) == NvmlRefusals()
    lost = {"nvml": "the NVML probe ended: what it costs; a remedy"}
    crashed = RankFacts(0, "n1", 0, {"cuda": cuda, "versions": {}, "lost": lost})
    assert gpu_refusals(crashed, 0).lost == (
        "the NVML probe ended")


def test_the_gpu_of_a_rank() -> None:
    def rank(local_rank: int, n: int, details: list[Any]) -> RankFacts:
        return RankFacts(local_rank, "n1", local_rank, {"cuda": {
            "names": ["A"] * n, "uuids": ["u0", ""][:n], "details": details, "visible": None}})

    def own(*ranks: RankFacts) -> Any:
        return own_gpu(ranks[-1], gpu_indices(ranks)[-1])

    both = [None, None]
    assert own(rank(0, 0, [])) is None
    assert own(rank(0, 2, both), rank(1, 2, both), rank(2, 2, both)) is None
    assert own(rank(0, 2, both), rank(1, 2, both)) == {"index": 1, "uuid": None, "name": "A"}
    assert own(rank(3, 1, [{"pci": "x"}])) == {
        "index": 0, "uuid": "u0", "name": "A", "pci": "x"}
