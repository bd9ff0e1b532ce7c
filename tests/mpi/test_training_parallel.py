"""Strategies in which ranks have parts of a model, in real jobs: right before they are timed."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.plan.training.schedules import SCHEDULE_NAMES
from hpcbench.reduce.results import CaseResult
from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

SMALL: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "layers": 4, "hidden": 64, "seq_length": 16,
    "vocab": 97, "batch_size": 8, "backend": "gloo"}
"""97 words are not divisible among ranks, which is nothing special."""
SWITCHES = {"sequence_parallel": [False, True], "loss_parallel": [False, True]}
TOGETHER = {"sequence_parallel": True, "loss_parallel": True}
ALL = {"schedule": list(SCHEDULE_NAMES)}
ZBV = {"schedule": "ZBVZeroBubble"}
MEASURED = {"warmup": 1, "iterations": 1}


def test_tensors_and_stages_compute_what_one_process_does(mpirun: MpiLauncher) -> None:
    _all_right(mpirun, 2, [
        {**SMALL, "name": "tensor", "strategies": {"tensor": SWITCHES}},
        {**SMALL, "name": "schedules", "accumulation": [1, 2], "strategies": {"pipeline": ALL}},
        {**SMALL, "name": "three_stages", "layers": 6, "strategies": {"pipeline": {
            "schedule": ["Interleaved1F1B", "LoopedBFS"], "stages_per_rank": 3}}},
        {**SMALL, "name": "model", "strategies": ["model"], "optimizer": "sgd"},
        {**SMALL, "name": "families", "model": ["llama3-8b", "bert-large"],
         "strategies": {"tensor": [{}, TOGETHER], "pipeline": ZBV}},
        {**SMALL, "name": "mixed", "dtype": ["bf16", "fp16"], "accumulation": 2,
         "checkpointing": "full", "strategies": {"tensor": TOGETHER, "pipeline": ZBV}},
    ])


def test_several_dimensions_compute_what_one_process_does(mpirun: MpiLauncher) -> None:
    data = {"data": ["replicate", "fsdp"]}
    _all_right(mpirun, 4, [
        {**SMALL, "name": "four_stages", "layers": 8, "strategies": {
            "pipeline": {"microbatches": 8, **ALL}}},
        {**SMALL, "name": "dp_tp", "accumulation": 2, "strategies": {
            "hybrid": [{"tp": 2, **data}, {"tp": 2, **data, **TOGETHER}]}},
        {**SMALL, "name": "dp_pp", "strategies": {"hybrid": {"pp": 2, **data, **ALL}}},
        {**SMALL, "name": "pp_tp", "strategies": {
            "hybrid": {"tp": 2, "pp": 2, "schedule": ["1F1B", "ZBVZeroBubble"], **TOGETHER}}},
        {**SMALL, "name": "mixed", "dtype": "fp16", "accumulation": 2, "strategies": {
            "hybrid": [{"tp": 2, **data}, {"pp": 2, **data}, {"tp": 2, "pp": 2}]}},
    ])


def test_three_dimensions_compute_what_one_process_does(mpirun: MpiLauncher) -> None:
    _all_right(mpirun, 8, [
        {**SMALL, "strategies": {"hybrid": {
            "tp": 2, "pp": 2, "data": ["replicate", "fsdp"], **TOGETHER}}}])


def _all_right(mpirun: MpiLauncher, ranks: int, blocks: list[dict[str, Any]]) -> None:
    config = sweep(measure=MEASURED, benchmarks=blocks)
    outcome = read(mpirun.run(ranks, config=config, timeout=120).check().folder)
    mpirun.assert_no_orphans()
    ran = {item.case.block: 0 for item in outcome.results.cases}
    for item in outcome.results.cases:
        assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
        _was_compared(item)
        ran[item.case.block] += 1
    assert all(ran.values()), ran


def _was_compared(item: CaseResult) -> None:
    """See that every rank compared all of the model, and that nothing is off by nothing."""
    found = [told["parity"] for told in item.detail.values()]
    assert len(found) == item.case.world_size
    assert {told["on"] for told in found} == {"the model"}
    assert all(0 < told["share"] <= 1 for told in found), found
