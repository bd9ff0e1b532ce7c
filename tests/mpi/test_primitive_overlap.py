"""The implementations that overlap, or let torch choose, in real jobs: every result is right."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.kinds.primitive.plan.implementations import PRIMITIVES, load_registry
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec
from launcher import MpiLauncher
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi

NAMES = ("functional", "dtensor", "chunked_pipeline", "p2p_ring")
ORDERS = list(dict.fromkeys(order for spec in PRIMITIVES for order in spec.orders))
TWICE = {"warmup": 0, "iterations": 2, "mode": "barrier_start"}
"""Both calls are checked; the second one finds the first one's data wherever it reads too early."""


def _block(chunks: list[int], **options: Any) -> dict[str, Any]:
    return {"kind": "primitive", "primitive": [spec.name for spec in PRIMITIVES],
            "m": 48, "n": 24, "k": 36, "dtype": "fp32", "order": ORDERS,
            "implementations": {**dict.fromkeys(NAMES, {}), "chunked_pipeline": {"chunks": chunks}},
            "backend": "gloo", **options}


def _assert_all_right(outcome: Outcome) -> None:
    """Fail unless every order that an implementation has ran and was right."""
    registry, ran = load_registry(), set()
    for item in outcome.results.cases:
        work = item.case.workload
        if item.status == "skipped":
            assert item.case.skip, item.reason
        else:
            ran.add((work.primitive, work.order, work.implementation))
            assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
    assert ran >= {(spec.name, order, name) for spec in PRIMITIVES for name in NAMES
                   for order in spec.orders
                   if _has(registry.implementation(name, spec.name), spec.name, order)}


def _has(spec: ImplementationSpec | None, primitive: str, order: str) -> bool:
    return spec is not None and (spec.orders is None or (primitive, order) in spec.orders)


MORE = (
    _block([2], name="gelu", primitive="tp_mlp", m=96, n=16, k=256, dtype=["fp32", "bf16"],
           order=["sequence_parallel", "AR_after"], options={"activation": "gelu"}),
    _block([5], name="uneven", primitive="ep_all_to_all", order="dispatch_combine",
           options={"split": ["linear", "one_heavy", "zero"]}),
    _block([4], name="whole_weight", primitive="tp_columnwise", order="AG_before",
           options={"weight": "replicated"}),
)


TWO = (_block([1, 4]), _block([2], name="short", dtype="bf16"),
       _block([4], name="wide", primitive="tp_rowwise", order="RS_after", n=42,
              dtype=["fp32", "bf16"]))
"""The last one's chunks are columns, and not of one size."""
OWN = {"chunked_pipeline": {"chunks": [4]}, "p2p_ring": {}}
"""The two whose steps depend on the number of ranks; torch divides the work of the others."""
FOUR = (_block([2]), _block([4], name="one_rank_less", world_size=3, implementations=OWN))


@pytest.mark.parametrize(("ranks", "blocks"), [
    (2, (_block([2]),)), pytest.param(2, TWO, marks=pytest.mark.soak),
    pytest.param(4, (*TWO, *FOUR, *MORE), marks=pytest.mark.soak)])
def test_every_order_is_right_for_every_number_of_chunks(
    mpirun: MpiLauncher, ranks: int, blocks: tuple[dict[str, Any], ...],
) -> None:
    config = sweep(measure=TWICE, benchmarks=list(blocks))
    outcome = read(mpirun.run(ranks, config=config, timeout=150).check().folder)
    mpirun.assert_no_orphans()
    _assert_all_right(outcome)
