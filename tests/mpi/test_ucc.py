"""Every collective on a real UCC, where one is installed (docs/config.md, "UCC")."""

from __future__ import annotations

import importlib.util

import pytest

from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
               "send_recv", "barrier"]


def test_every_collective_on_ucc_is_right_or_a_skip_with_its_reason(mpirun: MpiLauncher) -> None:
    if importlib.util.find_spec("torch_ucc") is None:
        pytest.skip("torch_ucc is not installed")
    config = sweep(benchmarks=[
        {"kind": "collective", "name": "every", "collective": COLLECTIVES,
         "backend": ["ucc", "ucc/tl/ucp"], "size": ["12KiB", "1MiB"]},
        {"kind": "collective", "name": "ops", "collective": "all_reduce", "backend": "ucc/tl/ucp",
         "op": ["sum", "prod", "min", "max", "avg"], "dtype": ["fp32", "bf16", "fp16", "int64"],
         "size": "12KiB"},
        {"kind": "collective", "name": "layers", "collective": "all_reduce",
         "backend": ["ucc/tl/cuda", "ucc/tl/nccl"]},
    ])
    asked = {"UCC_COLL_TRACE": "info"}
    outcome = read(mpirun.run(2, config=config, env=asked, timeout=150).check().folder)
    statuses = outcome.status()
    assert set(statuses.values()) <= {"ok", "skipped"}
    ran = {item.case.workload.collective for item in outcome.results.cases if item.status == "ok"}
    assert {"all_reduce", "broadcast", "send_recv", "barrier"} <= ran
    for item in outcome.results.cases:
        assert item.status == "ok" or item.reason
        if item.status == "ok" and item.case.workload.collective != "barrier":
            assert item.n_wrong == 0
            assert item.library and "TL_UCP" in item.library["transport"]
    mpirun.assert_no_orphans()
