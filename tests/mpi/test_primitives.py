"""All primitives with the three basic implementations in real jobs, and faults in them."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.kinds.primitive.plan.implementations import PRIMITIVES
from launcher import launcher_for
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi

BASIC: dict[str, Any] = {
    "compute_only": {"size": ["sharded", "unsharded"]}, "comm_only": {}, "torch": {}}
ORDERS = list(dict.fromkeys(order for spec in PRIMITIVES for order in spec.orders))


def _block(**options: Any) -> dict[str, Any]:
    return {"kind": "primitive", "primitive": [spec.name for spec in PRIMITIVES],
            "m": 48, "n": 24, "k": 36, "dtype": "fp32", "order": ORDERS,
            "implementations": BASIC, "backend": "gloo", **options}


SHORT = {"warmup": 1, "iterations": 2}
"""Three calls: the first, the first timed one and the last are checked."""


WORLDS = {2: "bf16", 3: "fp32"}
"""Numbers of ranks, with the type of most of their cases; a long sum is one of bf16 with both."""


FAULTY = ("hit", "astray")
"""Blocks of the cases that something is done to."""


@pytest.fixture(scope="module", ids=str, params=[
    (2,), pytest.param(tuple(WORLDS), marks=pytest.mark.soak)])
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
) -> Outcome:
    """Return what one job found; what goes wrong comes last in it, on two ranks."""
    worlds = {ranks: WORLDS[ranks] for ranks in request.param}
    config = sweep(measure=SHORT, benchmarks=[
        *(_block(name=f"exact{ranks}", world_size=ranks, dtype=dtype, options={
            "weight": ["sharded", "replicated"], "split": ["even", "linear", "one_heavy"],
            "layers": 3}) for ranks, dtype in worlds.items()),
        *(_block(name=f"gelu{ranks}", world_size=ranks, primitive="tp_mlp", dtype=dtype,
                 order=["sequence_parallel", "AR_after"], options={"activation": "gelu"})
          for ranks, dtype in worlds.items()),
        _block(name="long", world_size=list(worlds), m=528, n=12, k=528, dtype="bf16",
               implementations="torch"),
        _block(name="hit", world_size=2, m=72, order=["AG_before", "RS_after"]),
        _block(name="astray", world_size=2, implementations="torch", m=96, timeout_s=4,
               primitive=["tp_rowwise", "dp_allreduce"], order="AR_after"),
    ], fault=[{"case": "* m=72 *", "rank": 1, "kind": "wrong", "iteration": 1},
              {"case": "tp_rowwise * m=96 *", "rank": 1, "kind": "desync", "iteration": 1}])
    mpirun = launcher_for("mpich", tmp_path_factory.mktemp("primitives"))
    job = mpirun.run(max(worlds), config=config, timeout=110).check(1)
    mpirun.assert_no_orphans()
    return read(job.folder)


def test_every_primitive_order_and_option_is_right(outcome: Outcome) -> None:
    cases = [item for item in outcome.results.cases if item.case.block not in FAULTY]
    worlds = range(2, outcome.results.run.world_size + 1)
    for item in cases:
        assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
    ran = {(item.case.world_size, item.case.workload.primitive, item.case.workload.order,
            item.case.workload.implementation) for item in cases}
    assert ran == {(ranks, spec.name, order, name) for ranks in worlds for spec in PRIMITIVES
                   for order in spec.orders for name in BASIC}
    exact = (2 + 1) * 4 + 2 * 4 + 2 * 4 + 4 + 3 * 4
    assert len(cases) == len(worlds) * (exact + 2 * 4 + 8)


def test_who_has_a_wrong_element_or_calls_something_else_is_named(outcome: Outcome) -> None:
    *wrong, rowwise, gradients = (item for item in outcome.results.cases
                                  if item.case.block in FAULTY)
    assert len(wrong) == 5 * 4
    for item in wrong:
        assert (item.status, item.n_wrong, item.blamed_rank) == ("wrong", 1, 1), item.case.label
    assert rowwise.status in ("timeout", "failed"), rowwise.reason
    assert rowwise.blamed_rank == 1
    assert "rank 1 called broadcast in iteration 1" in rowwise.reason
    assert gradients.status == "ok"
