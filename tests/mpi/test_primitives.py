"""All primitives with the three basic implementations in real jobs, and faults in them."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.kinds.primitive.plan import implementations
from hpcbench.kinds.primitive.plan.dispatch import EP_DISPATCH_COMBINE
from launcher import launcher_for
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi

PRIMITIVES = [spec for spec in implementations.PRIMITIVES if spec is not EP_DISPATCH_COMBINE]
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


def _dispatch(**options: Any) -> dict[str, Any]:
    return {"kind": "primitive", "primitive": EP_DISPATCH_COMBINE.name, "m": 48, "n": 24, "k": 32,
            "implementations": ["torch", "hierarchical", "allgather"], **options}


LOADS = ["balanced", "zipf:1.2", "lognormal:1,seed=3", "max_over_mean:1.5"]
TABLE = "0 1280 256 0\n128 0 128 0\n0 0 0 0\n1280 128 0 128\n"
"""Bytes of tokens of 128 B; a rank sends nothing, and one gets little."""


@pytest.fixture(scope="module")
def dispatched(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return what one job of four ranks found, as two nodes of two where `hierarchical` is."""
    folder = tmp_path_factory.mktemp("dispatch")
    (folder / "table.txt").write_text(TABLE)
    common: dict[str, Any] = {"experts": 8, "top_k": 3, "dedup": ["rank", "expert"]}
    nodes = {"torch": {}, "hierarchical": {"node_ranks": 2}, "allgather": {}}
    config = sweep(measure=SHORT, benchmarks=[
        _dispatch(name="loads", dtype="fp32", implementations=nodes,
                  options={**common, "load": LOADS, "product": ["none", "mlp"]}),
        _dispatch(name="types", dtype=["bf16", "fp32"], implementations=nodes, options={
            **common, "load": LOADS[1], "dispatch": ["fp8", "bf16"], "combine": "bf16",
            "product": ["none", "mlp"]}),
        _dispatch(name="table", dtype="fp32", implementations=nodes,
                  matrix=str(folder / "table.txt"), options={**common, "load": "matrix"}),
        _dispatch(name="two", dtype="bf16", world_size=2,
                  options={**common, "load": LOADS[1], "product": "mlp"}),
        _dispatch(name="hit", m=96, dtype="bf16", options={**common, "dispatch": "fp8"})],
        fault=[{"case": "* m=96 *", "rank": 2, "kind": "wrong", "iteration": 1}])
    mpirun = launcher_for("mpich", tmp_path_factory.mktemp("dispatched"))
    job = mpirun.run(4, config=config, timeout=170).check(1)
    mpirun.assert_no_orphans()
    return read(job.folder)


def test_tokens_come_back_from_their_experts_by_every_way_and_load(dispatched: Outcome) -> None:
    cases = [item for item in dispatched.results.cases
             if item.case.block != "hit" and not item.case.skip]
    for item in cases:
        assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
    # all_gather has no copies for each expert
    assert len(cases) == (2 + 2 + 1) * (4 * 2 + 2 * 2 * 2 + 1 + 1)
    assert {phase.name for item in cases for phase in item.timing.steps.phases} == {
        "dispatch", "experts", "combine"}


def test_bytes_of_a_table_are_those_that_are_sent(dispatched: Outcome) -> None:
    works = [item.case.workload for item in dispatched.results.cases
             if item.case.block == "table" and not item.case.skip
             and item.case.workload.implementation != "allgather"]
    # rank 1 gets most: 1280 + 128; each way as many; of it nothing is its own
    assert {(work.size_bytes, work.wire_bytes) for work in works} == {(2 * 1536, 2 * 1536)}
    assert {dict(work.loads)["received_max_over_mean"] for work in works} == {4 * 1408 / 3328}


def test_a_wrong_sum_of_tokens_is_found(dispatched: Outcome) -> None:
    hit = [item for item in dispatched.results.cases
           if item.case.block == "hit" and not item.case.skip]
    assert len(hit) == 5
    for item in hit:
        assert (item.status, item.n_wrong, item.blamed_rank) == ("wrong", 1, 2), item.case.label
