"""The axis cuda_graph where there is no GPU: what cannot be captured is a skip, the rest is ok."""

from __future__ import annotations

import pytest

from launcher import MpiLauncher
from mpi.reading import NOT_DRAWN, ONCE, read


@pytest.mark.mpi
def test_what_cannot_be_captured_is_a_skip_with_its_reason(mpirun: MpiLauncher) -> None:
    """Nothing of backend mpi is called: its workers would import torch once more."""
    both = {"cuda_graph": [False, True]}
    collective = {"kind": "collective", "collective": "all_reduce", "size": 64}
    config = {
        "name": "graphs", "measure": {**ONCE, "warmup": 1, "iterations": 3},
        "output": NOT_DRAWN, "launch": {"timeout_s": 30},
        "benchmarks": [
            {**collective, "backend": "gloo", **both},
            {**collective, "backend": "mpi", "cuda_graph": True},
            {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8,
             "implementations": "torch", **both}]}
    outcome = read(mpirun.run(2, config=config).check().folder)
    assert [item.status for item in outcome.results.cases] == [
        "ok", "skipped", "ok", "skipped", "skipped"]
    for item in outcome.results.cases:
        assert item.case.cuda_graph is (item.status == "skipped")
        if item.status == "skipped":
            assert item.reason == "cuda_graph: a CUDA graph holds work of a GPU, not of cpu"
