"""Details of GPUs, from a library that knows some things and refuses or lacks the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hpcbench.backends.availability import RankFacts, gpu_indices, own_gpu
from hpcbench.backends.gpus import gpu_details, opened_nvml


class NotSupported(Exception):
    """What the library raises for what a GPU does not tell."""


class Nvml:
    """Knows one GPU, which has no ECC, no MIG and three links, two of them up."""

    NVMLError = NotSupported
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_NVLINK_MAX_LINKS = 1, 2, 0, 18
    TOLD = {"EnforcedPowerLimit": 700_000, "PersistenceMode": 1, "ComputeMode": 0,
            "MaxPcieLinkGeneration": 5, "MaxPcieLinkWidth": 16, "Temperature": 35,
            "CurrentClocksThrottleReasons": 0x4 | 0x40 | 0x1}

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-known":
            raise NotSupported
        return "gpu"

    def nvmlDeviceGetPciInfo(self, gpu: str) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:1B:00.0")

    def nvmlDeviceGetMaxClockInfo(self, gpu: str, clock: int) -> int:
        return {1: 1980, 2: 2619}[clock]

    def nvmlDeviceGetNvLinkState(self, gpu: str, link: int) -> int:
        if link > 2:
            raise NotSupported
        return int(link < 2)

    def __getattr__(self, name: str) -> Any:
        """Answer what is in the table; refuse some, and lack the rest as older versions do."""
        short = name.removeprefix("nvmlDeviceGet")
        if short in ("EccMode", "ClockInfo"):
            def refuse(*_: object) -> None:
                raise NotSupported
            return refuse
        if short not in self.TOLD:
            raise AttributeError(name)
        return lambda *_: self.TOLD[short]


def test_what_is_told_and_what_is_not() -> None:
    known, unknown, unnamed = gpu_details(Nvml(), ["known", "other", ""])
    assert unknown is None and unnamed is None
    assert known == {
        "pci": "00000000:1B:00.0", "numa_node": None, "power_limit_w": 700.0, "persistence": True,
        "compute_mode": 0, "ecc": None, "mig": None, "max_mhz": {"sm": 1980, "memory": 2619},
        "pcie": {"generation": 5, "width": 16}, "nvlinks": 2,
        "now": {"sm_mhz": None, "memory_mhz": None, "celsius": 35,
                "throttled_by": ["power cap", "hardware thermal"]}}


def test_without_a_driver_there_are_no_details() -> None:
    with opened_nvml() as nvml:
        assert gpu_details(nvml, ["known"]) == [None]
    assert gpu_details(None, []) == []


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
