"""The facts of a machine whose drivers and libraries answer, refuse, crash or hang."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcbench.backends import facts as facts_module
from hpcbench.backends.availability import RankFacts, gpu_refusals
from hpcbench.backends.facts import gather_facts
from hpcbench.config.schema import Telemetry
from hpcbench.telemetry.sampler import open_sampler
from nvml_standins import Standins

GPU = "00000000-1111-2222-3333-444444440000"
"""The UUID of the first GPU of each machine (tests/data/nvml_standin.c)."""


def facts(standins: Standins, machine: str, limit_s: float = 30.0) -> dict[str, Any]:
    found: dict[str, Any] = standins.ask(machine, lambda: gather_facts((), limit_s))
    assert found["built"]["gloo"] and found["gloo_without_avg"] is None
    return found


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the child of CUDA answer with the first GPU of the machine."""
    answer = {"available": True, "names": ["A"], "uuids": [GPU], "memory_bytes": [1],
              "no_code": [None]}
    monkeypatch.setattr(facts_module, "_cuda_task", lambda: answer.items)


def test_a_machine_that_answers_reports_all(standins: Standins, one_gpu: None) -> None:
    found = facts(standins, "h100")
    assert found["lost"] == {} and found["versions"]["nvidia_driver"] == "580.65.06"
    assert found["cuda"]["available"] and found["cuda"]["reason"] is None
    assert found["cuda"]["details"][0]["pci"] == "00000000:1B:00.0"
    assert found["cuda"]["refused"] == [{"pcie_received_bytes": "Not Supported"}]
    assert found["gpu_topology"]["links"][0][1] == "NV18"


@pytest.mark.parametrize(("machine", "link", "driver"), [
    ("v100", "NV1", "580.65.06"), ("a10", "PHB", "580.65.06"), ("old", "PHB", "418.226.00"),
    ("denied", None, "580.65.06"), ("garbled", "NV18", "580.65.06\\xff\\xfe"),
])
def test_what_is_refused_costs_itself(
    standins: Standins, one_gpu: None, machine: str, link: str | None, driver: str,
) -> None:
    found = facts(standins, machine)
    assert found["lost"] == {} and found["versions"]["nvidia_driver"] == driver
    assert found["gpu_topology"]["links"][0][1] == link


@pytest.mark.parametrize(("machine", "lost", "details", "topology"), [
    ("crashes", "ended by signal 11 (SIGSEGV) in nvmlDeviceGetGpuFabricInfoV", True, False),
    ("sleeps", "gave no answer in 0.95 s in nvmlDeviceGetGpuFabricInfoV", True, False),
    ("start_crashes", "ended by signal 11 (SIGSEGV) in nvmlInitWithFlags", False, False),
    ("telemetry_crashes", "ended by signal 11 (SIGSEGV) in nvmlDeviceGetTemperature", False, False),
])
def test_what_crashes_or_hangs_costs_what_had_not_been_reported(
    standins: Standins, one_gpu: None, machine: str, lost: str, *, details: bool, topology: bool,
) -> None:
    found = facts(standins, machine)
    assert [*found["lost"]] == ["nvml"] and lost in found["lost"]["nvml"]
    assert (found["cuda"]["details"] != [None]) is details
    assert (found["gpu_topology"] is not None) is topology
    assert found["cuda"]["available"], "the GPU can be used all the same"


def crash() -> Iterator[tuple[str, Any]]:
    yield "names", ["A"]
    ctypes.string_at(0)


def hang() -> Iterator[tuple[str, Any]]:
    time.sleep(1000)
    yield "available", True


@pytest.mark.parametrize(("question", "lost"), [
    (crash, "ended by signal 11 (SIGSEGV) in string_at"),
    (hang, "gave no answer in {} s in hang")])
def test_a_broken_cuda_or_ucc_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, question: Any, lost: str,
) -> None:
    monkeypatch.setattr(facts_module, "_cuda_task", lambda: question)
    monkeypatch.setattr(facts_module, "ucc_task", lambda: question)
    before = dict(os.environ)
    found = gather_facts((), 1.0)
    assert dict(os.environ) == before  # an inline worker goes on in this process
    assert found["cuda"]["reason"] == f"the CUDA probe {lost.format(1)}"
    lost = lost.format(0.3)  # it has no driver to start
    assert not found["cuda"]["available"] and found["cuda"]["names"] == []
    assert found["ucc"]["reason"].endswith(f"the process {lost}")
    assert {*found["lost"]} == {"cuda", "ucc"} and lost in found["lost"]["ucc"]
    assert [found["versions"][name] for name in ("nccl", "ucc")] == ["unknown"] * 2


def test_an_amdsmi_that_crashes_costs_the_telemetry_of_gpus(
    monkeypatch: pytest.MonkeyPatch, one_gpu: None, tmp_path: Path,
) -> None:
    """No supervisor loads it then; there is none here, so that a package of its name crashes."""
    (tmp_path / "amdsmi.py").write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.version, "hip", "7.2.1")
    found = gather_facts()
    assert [*found["lost"]] == ["amdsmi"] and found["cuda"]["available"]
    rank = RankFacts(0, "a", 0, found)
    sampler = open_sampler(Telemetry(without=("process", "cpu")), local_rank=1, gpu_uuid=GPU,
                           rocm=True, tried=gpu_refusals(rank, 0))
    told = sampler.new_report()
    assert "amdsmi" in told.missing["gpu"] and "ended by signal 6 (SIGABRT)" in told.missing["gpu"]


def test_the_driver_is_open_until_nvml_has_answered(
    standins: Standins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    """Where nothing else has it open, it would start all GPUs again."""
    fifo = tmp_path / "nvidia0"
    os.mkfifo(fifo)

    def cuda() -> Iterator[tuple[str, Any]]:
        os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        yield from {"available": True, "names": ["A"], "uuids": [GPU], "memory_bytes": [1],
                    "no_code": [None]}.items()

    def nvml(uuids: Any) -> Iterator[tuple[str, Any]]:
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # refused where no one reads
        yield "versions", {}

    monkeypatch.setattr(facts_module, "_cuda_task", lambda: cuda)
    monkeypatch.setattr(facts_module, "_nvml_answers", nvml)
    assert facts(standins, "h100")["lost"] == {}
    with pytest.raises(OSError, match="No such device"):
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


def test_no_process_that_forks_has_touched_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """After torch.cuda.is_available() a fork cannot use CUDA any more: UCC's child could not."""
    asked: list[int] = []

    def is_available() -> bool:
        asked.append(os.getpid())
        return True

    usable = {"available": True, "names": ["A"], "uuids": [""], "memory_bytes": [1],
              "no_code": [None]}
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(facts_module, "_cuda_task", lambda: usable.items)
    monkeypatch.setattr(facts_module, "ucc_task", lambda: {"reason": None}.items)
    monkeypatch.setattr(facts_module, "cuda_task",
                        lambda: [("without_cuda", f"{asked} of {os.getppid()}")])
    found = gather_facts(())
    assert found["ucc"]["without_cuda"] == f"[] of {os.getpid()}"
    assert asked == []
