"""Every collective on a real UCC, where one is installed (docs/primitives.md)."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from hpcbench.operations.collectives import collectives
from launcher import MpiLauncher
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi
EVERY_BUILD_HAS = {"all_reduce", "broadcast", "reduce", "gather", "scatter", "send_recv", "barrier"}


@pytest.fixture(autouse=True)
def _ucc() -> None:
    if importlib.util.find_spec("torch_ucc") is None:
        pytest.skip("torch_ucc is not installed")


def run(mpirun: MpiLauncher, np: int, *blocks: dict[str, Any]) -> Outcome:
    """Run the blocks; every case must be right or a skip that was known before anything started."""
    config = sweep(benchmarks=[{"kind": "collective", **block} for block in blocks])
    telling = {"UCC_COLL_TRACE": "info"}
    outcome = read(mpirun.run(np, config=config, timeout=110, env=telling).check().folder)
    for item in outcome.results.cases:
        assert item.status in ("ok", "skipped"), (item.case.label, item.status, item.reason)
        assert item.status == "ok" or item.reason
        if item.status == "ok" and item.case.workload.collective != "barrier":
            assert item.n_wrong == 0
    mpirun.assert_no_orphans()
    return outcome


def ran(outcome: Outcome) -> set[str]:
    return {item.case.workload.collective for item in outcome.results.cases if item.status == "ok"}


def test_every_collective_on_ucc_is_right_or_a_skip_with_its_reason(mpirun: MpiLauncher) -> None:
    outcome = run(
        mpirun, 2,
        {"name": "every", "collective": list(collectives()), "backend": ["ucc", "ucc/tl/ucp"],
         "root": [0, 1], "in_place": [False, True], "size": ["12KiB", "1MiB"]},
        {"name": "ops", "collective": ["all_reduce", "reduce"], "backend": "ucc/tl/ucp",
         "op": ["sum", "prod", "min", "max", "avg"], "dtype": ["fp32", "bf16", "fp16", "int64"],
         "size": "12KiB"},
        {"name": "layers", "collective": "all_reduce", "backend": ["ucc/tl/cuda", "ucc/tl/nccl"]})
    assert ran(outcome) >= EVERY_BUILD_HAS
    carried = [item.library for item in outcome.results.cases
               if item.status == "ok" and item.case.workload.collective == "all_reduce"]
    assert carried and all(told and "TL_UCP" in told["transport"] for told in carried)


def test_groups_and_parts_of_different_sizes_on_ucc(mpirun: MpiLauncher) -> None:
    outcome = run(
        mpirun, 4,
        {"name": "groups", "collective": list(collectives()), "backend": "ucc/tl/ucp",
         "root": [0, 1], "groups": [1, 2], "dtype": "int32", "size": "12KiB"},
        {"name": "uneven", "collective": ["all_gather", "reduce_scatter", "all_to_all"],
         "backend": "ucc", "uneven": ["linear", "one_heavy", "empty"], "groups": [1, 2],
         "dtype": "bf16", "size": "12KiB"})
    assert ran(outcome) >= EVERY_BUILD_HAS
    roots = {(item.case.workload.collective, item.case.workload.root, item.case.workload.groups)
             for item in outcome.results.cases if item.status == "ok"}
    assert roots >= {(name, root, groups) for name in ("reduce", "gather", "scatter")
                     for root in (0, 1) for groups in (1, 2)}


def test_a_reduction_of_fp16_is_a_skip_only_where_something_is_reduced(mpirun: MpiLauncher) -> None:
    outcome = run(mpirun, 2, {"collective": ["all_reduce", "reduce"], "backend": "ucc",
                              "device": "cpu", "dtype": "fp16", "groups": [1, 2], "size": "12KiB"})
    for item in outcome.results.cases:
        alone = item.case.workload.groups == 2
        assert (item.status == "ok") is alone, (item.case.label, item.reason)
        assert alone or "no reduction of fp16" in str(item.reason)
