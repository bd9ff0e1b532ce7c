"""Implementations that torch generates: torch.compile, and torch's fallbacks of fused operators."""

from __future__ import annotations

from typing import Any

import pytest
from reading import NOT_DRAWN, ONCE, read

from hpcbench.kinds.primitive.plan.workload import primitive_of
from launcher import MpiLauncher

pytestmark = pytest.mark.mpi

ORDERS = {
    "tp_columnwise": ["AG_before", "AG_after"], "tp_rowwise": ["RS_after", "AR_after"],
    "tp_mlp": ["sequence_parallel", "AR_after"], "dp_allreduce": ["AR_after"],
    "ep_all_to_all": ["dispatch_combine"],
}
FUSED = {("tp_columnwise", "AG_before"), ("tp_rowwise", "RS_after"),
         ("tp_mlp", "sequence_parallel")}


def config() -> dict[str, Any]:
    """Return one sweep over all that torch can generate, and over what needs more than there is."""
    every = {"kind": "primitive", "primitive": list(ORDERS), "m": 16, "n": 12, "k": 8,
             "backend": "gloo", "implementations": {
                 "compiled": {}, "symm_mem_fallback": {}, "symm_mem": {},
                 "compiled_async_tp": {}, "triton": {}}}
    return {
        "measure": {**ONCE, "warmup": 1, "iterations": 2}, "output": NOT_DRAWN,
        "launch": {"timeout_s": 100},
        "benchmarks": [every, {**every, "order": ["AG_after", "AR_after"]}]}


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("compiler")
def test_every_primitive_is_right_in_every_order(mpirun: MpiLauncher) -> None:
    job = mpirun.run(2, config=config(), timeout=200)
    mpirun.assert_no_orphans()  # of compilers and their pools, too
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for item in read(job.check().folder).results.cases:
        work = primitive_of(item.case)
        found.setdefault(work.implementation, {})[work.primitive, work.order] = item
    every = {(name, order) for name, orders in ORDERS.items() for order in orders}
    assert {pair for pair, item in found["compiled"].items() if item.status == "ok"} == every
    fallback = found["symm_mem_fallback"]
    assert {pair for pair, item in fallback.items() if item.status == "ok"} == FUSED
    right = [*found["compiled"].values(), *(fallback[pair] for pair in FUSED)]
    assert {item.n_wrong for item in right} == {0}
    for name in ("symm_mem", "compiled_async_tp"):
        reasons = {found[name][pair].reason for pair in FUSED}
        assert reasons == {f"{name} runs on cuda only, not on cpu"}
    assert found["triton"]["tp_columnwise", "AG_before"].reason == (
        "triton runs on cuda only, not on cpu")
    assert {item.status for name in ("symm_mem", "compiled_async_tp", "triton")
            for item in found[name].values()} == {"skipped"}
