"""Compiled trainings in a real job, on the code that torch makes for the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = [pytest.mark.mpi, pytest.mark.soak, pytest.mark.timeout(1200)]

SMALL: dict[str, Any] = {
    "kind": "training", "hidden": 64, "seq_length": 16, "vocab": 96, "batch_size": 4,
    "compile": True}


@pytest.mark.usefixtures("compiler")
def test_compiled_blocks_compute_what_one_process_does(mpirun: MpiLauncher) -> None:
    config = sweep(launch={"timeout_s": 400}, measure={"warmup": 1, "iterations": 2}, benchmarks=[
        {**SMALL, "model": "transformer-tiny", "layers": 4, "strategies": {
            "single": {}, "data": {}, "zero1": {}, "fsdp": {}, "model": {},
            "tensor": {"sequence_parallel": [False, True]},
            "pipeline": {"schedule": ["1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS"]}}},
        {**SMALL, "model": "mistral-7b", "layers": 2, "dtype": "bf16",
         "checkpointing": "operators",
         "strategies": {"fsdp": {}, "tensor": {"sequence_parallel": [False, True]}}},
        {**SMALL, "model": "mistral-7b", "layers": 2, "dtype": "bf16", "library": "transformers",
         "strategies": {"data": {}, "zero1": {}, "fsdp": {}, "hsdp": {}}},
        {**SMALL, "model": "transformer-tiny", "layers": 2, "strategies": {
            "lora": {"over": ["data", "fsdp"]}, "qlora": {"over": "data"}}},
        {**SMALL, "model": "transformer-tiny", "layers": 2, "communication": ["off", "only"],
         "strategies": {"data": {}}},
    ])
    results = read(mpirun.run(2, config=config, timeout=1100).check(0).folder).results
    mpirun.assert_no_orphans()
    assert len(results.cases) == 11 + 3 + 4 + 3 + 2
    assert {item.status for item in results.cases} == {"ok"}, [
        (item.case.label, item.reason) for item in results.cases if item.status != "ok"]
