"""GPUs of AMD, of which none was at hand: what can be shown without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcbench.backends.availability import (
    RankFacts,
    gpu_indices,
    known_uuid,
    visible_devices,
    visible_gpus,
)
from hpcbench.backends.gpus import AMD_CALLS, amd_serial_of
from hpcbench.config.load import check_config
from hpcbench.config.schema import Telemetry
from hpcbench.launch.probe import resolve
from hpcbench.plan.expand import make_plan
from hpcbench.telemetry.sampler import TelemetryAccess, open_sampler
from hpcbench.trace.columns import TABLES
from test_launch_parts import CPU_FACTS

ROCM_FACTS: Mapping[str, Any] = {
    **CPU_FACTS, "built": {**CPU_FACTS["built"], "nccl": True}, "host_memory_bytes": 2**40,
    "versions": {"torch": "2.13.0+rocm7.2", "hip": "7.2.1", "nccl": "2.27.3"},
    "cuda": {"available": True, "reason": None, "visible": None,
             "names": ["AMD Instinct MI300X"] * 8, "uuids": [f"u{number}" for number in range(8)],
             "memory_bytes": [206_000_000_000] * 8, "details": [None] * 8, "no_code": [None] * 8},
    "tools": {"triton": None, "compiler": {"cpu": None, "cuda": None, "mps": None}}}
BLOCKS = {
    "collective": {"kind": "collective", "collective": "all_reduce"},
    "primitive": {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
                  "implementations": ["torch", "chunked_pipeline", "compiled"]},
    "training": {"kind": "training", "model": "gpt2", "strategies": ["data", "fsdp", "zero1"]},
}
FOR_NVIDIA = {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
              "implementations": ["symm_mem", "compiled_async_tp", "triton"]}


def skips(block: Mapping[str, Any]) -> list[str]:
    plan = make_plan(check_config({"benchmarks": [{**block, "backend": "nccl"}]}, "test"), 8)
    found = resolve(plan, [RankFacts(rank, "a", rank, ROCM_FACTS) for rank in range(8)])
    assert len(found.devices) + len(found.skips) == len(plan.cases)
    assert {*found.devices.values()} <= {"cuda"}
    return [*found.skips.values()]


@pytest.mark.parametrize("kind", BLOCKS)
def test_its_cases_are_run(kind: str) -> None:
    assert skips(BLOCKS[kind]) == []


def test_what_is_written_for_nvidia_is_a_skip() -> None:
    found = skips(FOR_NVIDIA)
    assert len(found) == 3
    assert all(reason.endswith("written for NVIDIA GPUs, and torch 2.13.0+rocm7.2 is a build for "
                               "ROCm") for reason in found)


@pytest.mark.parametrize(("environ", "rocm", "left"), [
    ({}, True, None), ({"HIP_VISIBLE_DEVICES": "2,3"}, True, "2,3"),
    ({"CUDA_VISIBLE_DEVICES": "1"}, True, "1"), ({"GPU_DEVICE_ORDINAL": "5"}, True, "5"),
    ({"ROCR_VISIBLE_DEVICES": "4,5"}, True, "4,5"),
    ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, True, "5"),
    ({"ROCR_VISIBLE_DEVICES": "GPU-ab,GPU-cd", "CUDA_VISIBLE_DEVICES": "1,0"}, True,
     "GPU-cd,GPU-ab"),
    ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "3"}, True, "0"),
    ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "3"}, False, "3"),
    ({"ROCR_VISIBLE_DEVICES": "1"}, False, None)])
def test_which_gpus_the_variables_leave(
    environ: Mapping[str, str], rocm: bool, left: str | None,
) -> None:
    assert visible_devices(environ, rocm=rocm) == left


def test_gpus_without_a_uuid_of_their_own_are_distinguished_by_number() -> None:
    zeros = "00000000-0000-0000-0000-000000000000"
    assert [known_uuid(uuid) for uuid in (zeros, "", "a0")] == ["", "", "a0"]
    assert visible_gpus(["u0", "u0"], "6,7") == ("GPU 6", "GPU 7")  # parts of one GPU
    parts = {**ROCM_FACTS, "cuda": {**ROCM_FACTS["cuda"], "uuids": ["u0"] * 8}}
    ranks = [RankFacts(rank, "a", rank, parts) for rank in range(8)]
    assert gpu_indices(ranks) == [*range(8)]


def test_telemetry_states_why_there_is_none(tmp_path: Path) -> None:
    def missing(uuid: str | None) -> str:
        sampler = open_sampler(Telemetry(without=("process", "cpu")), local_rank=1, gpu_uuid=uuid,
                               rocm=True, access=TelemetryAccess(tmp_path))
        told = sampler.new_report()
        return told.missing["gpu"]

    assert "amdsmi" in missing("u0")
    assert "no UUID" in missing(None)


def test_the_serial_number_in_a_uuid() -> None:
    """Bytes of HIP's UUID are characters, which torch writes as hexadecimal digits."""
    digits = "00a1b2c3d4e5f607".encode("ascii").hex()
    assert amd_serial_of(f"{digits[:8]}-{digits[8:12]}-{digits[12:]}") == "a1b2c3d4e5f607"
    assert amd_serial_of("ffc79498-8ff3-c2dc-3b0d-fafd804516ae") is None  # one of NVIDIA's
    assert amd_serial_of("") is None


def test_its_columns_are_those_of_the_table() -> None:
    assert {*AMD_CALLS} <= {*TABLES["gpu"].names}
