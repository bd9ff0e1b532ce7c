"""ResNets in a real job: batch norms of every layout see the images that they see alone."""

from __future__ import annotations

from typing import Any

import pytest

from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

TINY: dict[str, Any] = {
    "kind": "training", "model": "resnet50", "layers": 4, "width": 8, "classes": 10,
    "image_size": 32, "batch_size": 32, "backend": "gloo"}


def test_every_strategy_computes_what_one_process_does(mpirun: MpiLauncher) -> None:
    config = sweep(measure={"warmup": 0, "iterations": 1}, benchmarks=[
        {**TINY, "name": "exact", "world_size": 2, "accumulation": 2,
         "strategies": {"data": {}, "zero1": {}, "fsdp": {}}},
        {**TINY, "name": "mixed", "world_size": 2, "dtype": "bf16", "optimizer": "sgd",
         "strategies": {"data": {}, "fsdp": {}}},
        {**TINY, "name": "stages", "world_size": 2, "batch_size": 64, "strategies": {
            "pipeline": {"schedule": ["1F1B", "ZBVZeroBubble"]}}},
        {**TINY, "name": "several", "batch_size": 64, "optimizer": "sgd", "strategies": {
            "hybrid": {"pp": 2, "data": "fsdp"}}},
        {**TINY, "name": "skipped", "strategies": {"tensor": {}, "data": {}},
         "checkpointing": "full"},
    ])
    outcome = read(mpirun.run(4, config=config, timeout=120).check().folder)
    mpirun.assert_no_orphans()
    for item in outcome.results.cases:
        if item.case.block == "skipped":
            continue
        assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
        found = [told["parity"] for told in item.detail.values()]
        assert {told["on"] for told in found} == {"the model"}
        assert all(0 < told["share"] <= 1 for told in found), found
    reasons = [item.reason for item in outcome.results.cases if item.case.skip]
    assert len(reasons) == 2
    assert "made of convolutions" in reasons[0]
    assert "running statistics" in reasons[1]
