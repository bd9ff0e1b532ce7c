"""Phases, memory and parity of training steps, from real ranks to results and reports."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.trace.schema import ARRIVAL
from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

BLOCK: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "layers": 2, "hidden": 32, "seq_length": 16,
    "vocab": 64, "batch_size": 2, "strategies": {"data": {}, "fsdp": {},
                                         "pipeline": {"microbatches": 2}}}


@pytest.mark.parametrize("inline", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_phases_of_real_steps_add_up(mpirun: MpiLauncher, inline: bool) -> None:
    config = sweep(benchmarks=[BLOCK], measure={"warmup": 1, "iterations": 3},
                   output={"plots": not inline, "report": False},
                   launch={"timeout_s": 60, "inline": inline})
    job = mpirun.run(2, config=config, timeout=120).check()
    shown = CliRunner().invoke(app, ["show", str(job.folder), "-v"])
    assert "forward" in shown.output and "tokens/s" in job.stdout
    outcome = read(job.folder)
    for item in outcome.results.cases:
        assert item.status == "ok", item.reason
        samples = outcome.samples[item.case.case_id]
        assert samples is not None and samples.start_ns.shape == (2, 4)
        # fsdp: two blocks, and the rest
        count = {"data": 1, "fsdp": 3, "pipeline": 0}[item.case.workload.name]
        buckets = [f"{ARRIVAL}{number + 1}" for number in range(count)]
        assert list(samples.phases) == [
            "data", "forward", "backward", "exchange", "optimizer", *buckets]
        together = np.sum([values for name, values in samples.phases.items()
                           if name not in buckets], axis=0)
        assert np.all(together <= samples.end_ns - samples.start_ns)
        assert all(np.all(times > 0) for times in samples.phases.values())
        assert item.timing is not None and item.timing.steps is not None
        assert 0.5 < 1 - item.timing.steps.other_share <= 1
        memory = item.memory
        assert memory is not None and set(memory) == {"0", "1"}
        assert memory["0"]["peak_of"] == "process growth"
        adam, weights = memory["0"]["optimizer_state"], memory["0"]["parameters"]
        assert isinstance(adam, int) and isinstance(weights, int) and adam >= 2 * weights > 0
    assert job.folder is not None
    summary = json.loads((job.folder / "summary.json").read_text())["results"]
    assert summary["training"]["data"][0]["samples_per_second"] > 0
    assert len(summary["memory"]) == 3 and summary["not_measured"] == {}
    assert len([*(job.folder / "plots").glob("training*.png")]) == (0 if inline else 1)
