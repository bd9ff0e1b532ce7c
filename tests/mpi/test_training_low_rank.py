"""Adapters in a real job: right on copies and shards before they are timed, and told apart."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import training_of
from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

SMALL: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "layers": 2, "hidden": 64, "seq_length": 16,
    "vocab": 96, "batch_size": 4, "backend": "gloo"}
ALL = {"over": ["data", "fsdp"], "rank": 4}


def test_adapters_of_copies_and_of_shards_are_what_one_process_makes(mpirun: MpiLauncher) -> None:
    config = sweep(measure={"warmup": 1, "iterations": 2}, launch={"timeout_s": 120}, benchmarks=[
        {**SMALL, "name": "exact", "accumulation": 2, "strategies": {"lora": ALL, "qlora": ALL}},
        {**SMALL, "name": "gated", "model": "mistral-7b", "hidden": 128, "dtype": "bf16",
         "checkpointing": "full", "strategies": {"lora": {"over": "fsdp"}, "qlora": [
             {"over": "data", "targets": "attention"}, {"over": "fsdp", "reshard": False}]}},
    ])
    outcome = read(mpirun.run(2, config=config, timeout=240).check().folder)
    mpirun.assert_no_orphans()
    assert len(outcome.results.cases) == 4 + 3
    for item in outcome.results.cases:
        assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
        for told in item.detail.values():
            assert told["parity"]["on"] == "the model"
            assert 0 < told["parity"]["share"] <= 1
        work = training_of(item.case)
        memory, held = moments(work, stages_of(work)[0])[-1], (item.memory or {})["0"]
        assert held["parameters"] == memory.parameters, item.case.label
        assert held["gradients"] == memory.gradients < memory.parameters
        assert held["optimizer_state"] == memory.optimizer
