"""Steps with, without and of nothing but communication in one real job, and who comes late."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcbench.kinds.training.derive.deriver import rank_work
from hpcbench.kinds.training.derive.slow_ranks import exposures
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import CaseResult
from launcher import MpiLauncher
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi

TINY: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "layers": 2, "hidden": 64, "seq_length": 16,
    "vocab": 96, "batch_size": 4, "backend": "gloo"}
ALL = ["on", "off", "only"]
LATE_S = 0.1
SLOW = {"case": "* data * sgd *", "rank": 1, "kind": "slow", "seconds": LATE_S}


def test_what_is_exposed_and_who_is_late(mpirun: MpiLauncher) -> None:
    config = sweep(
        measure={"warmup": 1, "iterations": 2, "passes": 3, "order": "shuffled"},
        benchmarks=[
            {**TINY, "name": "paired", "communication": ALL, "strategies": ["data"]},
            {**TINY, "name": "mixed", "communication": ALL, "dtype": "fp16", "strategies": {
                "pipeline": {"microbatches": 2}}},
            {**TINY, "name": "alone", "world_size": 1, "communication": "off",
             "strategies": ["single"]},
            {**TINY, "name": "late", "optimizer": "sgd", "strategies": ["data"],
             "iterations": 5},
        ], fault=[SLOW])
    job = mpirun.run(2, config=config, timeout=120).check()
    mpirun.assert_no_orphans()
    outcome = read(job.folder)
    by_status = {item.case.block: item.status for item in outcome.results.cases}
    assert by_status == {"paired": "ok", "mixed": "ok", "alone": "skipped", "late": "ok"}
    _every_training_is_paired(outcome)
    assert job.stdout.count("(communication") == 0
    late = next(item for item in outcome.results.cases if item.case.block == "late")
    _is_late(late, outcome, job.stdout)
    assert job.folder is not None
    rows = json.loads((job.folder / "summary.json").read_text())["results"]["training"]
    assert {name: len(found) for name, found in rows.items()} == {"data": 2, "pipeline": 1}


def _every_training_is_paired(outcome: Outcome) -> None:
    found = exposures(outcome.results.cases)
    asked = [item for item in outcome.results.cases if item.case.block in ("paired", "mixed")]
    assert {item.case.case_id for item in asked if training_of(item.case).trains} == set(found)
    for item in asked:
        work = training_of(item.case)
        assert item.status == "ok", item.reason
        if not work.trains:
            assert item.n_wrong == (None if work.communication == "only" else 0)
            assert "parity" not in str(item.detail)
            continue
        told = found[item.case.case_id]
        steps = told["own_steps"]
        assert told["not_paired"] == ()
        assert told["exposed_s_passes"].passes == told["overlap_efficiency_passes"].passes == 3
        assert told["off_s"] and told["only_s"]
        assert len(steps.own_s) == item.case.world_size
        assert len(steps.idle_share) == (item.case.world_size if work.pp > 1 else 0)
        assert (told["bubble_predicted"] is None) == (work.pp == 1)


def _is_late(item: CaseResult, outcome: Outcome, printed: str) -> None:
    """Rank 1 is named where noise allows, and the wait for it is no slow exchange of rank 0."""
    assert item.timing is not None and item.timing.steps is not None
    last = item.timing.steps.arrivals[-1]
    assert last.last_rank == 1 and last.last_share > 0.7  # on a busy machine not in each step
    assert last.behind_s > LATE_S / 2
    start, case_id = item.timing.late_start, item.case.case_id
    assert start is not None and start.rank == 1 and start.apart_s > LATE_S / 2
    values = outcome.results.derived["training"][case_id]
    is_shown = values["late_rank"] is not None and values["stalls"].last is None
    assert ("rank 1 is last at the exchange in " in printed) == is_shown
    assert values["stalls"].stall_share.value > 0.4 * LATE_S / item.timing.steps.step_s[0]
    found = rank_work(item, lambda: outcome.samples[case_id])
    assert found is not None and len(found.times_s[0]) == 3
    assert max(map(min, found.times_s)) < LATE_S / 2
