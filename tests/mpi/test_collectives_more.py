"""reduce, gather, scatter, uneven parts and several groups at once, and a rank gone astray."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpcbench.operations.collectives import PART_BYTES
from hpcbench.reduce.results import CaseResult
from launcher import Finished, MpiLauncher, launcher_for
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi

DTYPES = ["fp32", "fp64", "fp16", "bf16", "int32", "int64", "uint8"]
FLOATING = DTYPES[:4]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
               "gather", "scatter", "send_recv", "barrier"]
UNEVEN = ["reduce_scatter", "all_to_all"]


def _block(**options: Any) -> dict[str, Any]:
    return {"kind": "collective", **options}


def _rooted(ranks: int) -> list[dict[str, Any]]:
    """Return every type with the last root, and some of each operation."""
    last, first = ({"root": root, "world_size": ranks} for root in (ranks - 1, 0))
    return [
        _block(name="rooted_types", collective=["gather", "scatter", "reduce"], dtype=DTYPES,
               size="20KB", **last),
        _block(name="rooted_first", collective=["gather", "scatter"], size="20KB", **first),
        _block(name="rooted_ops", collective="reduce", op=["prod", "min", "max"],
               dtype=["fp32", "int64"], size="20KB", **last),
        _block(name="rooted_avg", collective="reduce", op="avg", dtype=FLOATING,
               size=["4", "100000"], **first)]


def _of(outcome: Outcome, *blocks: str) -> list[CaseResult]:
    """Return the results of blocks whose names begin so."""
    return [item for item in outcome.results.cases if item.case.block.startswith(blocks)]


def test_reduce_gather_and_scatter_are_right_from_every_root(outcome: Outcome) -> None:
    cases = _of(outcome, "rooted")
    assert {item.status for item in cases} <= {"ok", "skipped"}
    ran = [item for item in cases if item.status == "ok"]
    assert len(ran) == 21 + 2 + 6 + 7  # 4 bytes of fp64 are rounded to nothing
    assert all(item.n_wrong == 0 for item in ran)


def _uneven(worlds: list[int], **options: Any) -> dict[str, Any]:
    return _block(collective=[*UNEVEN, "all_gather"], world_size=worlds, **options)


def _splits(worlds: list[int]) -> list[dict[str, Any]]:
    """Return each type in one split and each split with one type; the data are those of even parts.
    """
    return [_uneven(worlds[-1:], name="types", uneven="linear", dtype=DTYPES, size="100000"),
            _uneven(worlds, name="splits", uneven=["one_heavy", "empty"],
                    size=["1KiB", "100000"])]


LOADS = {2: ["zipf:1.2", "lognormal:1,seed=2", "max_over_mean:1.5"], 4: ["zipf:2", "matrix"]}


def _loads(table: Path) -> list[dict[str, Any]]:
    """Return loads of experts; of a table, in which a rank sends nothing and one gets nothing."""
    table.write_text("0 8192 16 0\n64 32 4000 0\n0 0 0 0\n8 8 8 0\n")
    return [_block(name=f"loads{ranks}", collective="all_to_all", uneven=uneven, size="40000",
                   dtype=["fp32", "uint8"], world_size=ranks,
                   **({"matrix": str(table)} if "matrix" in uneven else {}))
            for ranks, uneven in LOADS.items()]


def test_loads_of_experts_are_exchanged_to_the_byte(job: Finished, outcome: Outcome) -> None:
    cases = _of(outcome, "loads")
    assert [(item.status, item.n_wrong) for item in cases] == [("ok", 0)] * 10
    tables = [item.case.workload for item in cases if item.case.workload.split == "matrix"]
    assert {(work.size_bytes, work.busiest_wire_bytes, work.received_max_over_mean)
            for work in tables} == {(8232, 8208, 4 * 8232 / 12328)}
    with (job.folder / "summary.csv").open() as file:
        rows = {row["case_id"]: row for row in csv.DictReader(file)}
    for item in cases:
        row = rows[item.case.case_id]
        assert float(row["busiest_rank_gb_per_s"]) > 0
        assert float(row["received_max_over_mean"]) > 1


def test_uneven_parts_are_right_and_what_gloo_lacks_is_a_skip(outcome: Outcome) -> None:
    cases = _of(outcome, "types", "splits")
    for item in cases:
        if item.case.workload.collective == "all_gather":
            assert item.status == "skipped" and "refuses parts of different" in item.reason
        else:
            assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
    ran = [item.case.workload for item in cases if item.status == "ok"]
    assert len(ran) == 2 * (7 + 2 * 2 * 2)
    assert all(work.size_bytes % PART_BYTES == 0 for work in ran)


def _groups(groups_of: dict[int, Any]) -> list[dict[str, Any]]:
    return [block for ranks, groups in groups_of.items() for block in (
        _block(name=f"all{ranks}", collective=COLLECTIVES, groups=groups, size="40000",
               world_size=ranks),
        _block(name=f"uneven{ranks}", collective=UNEVEN, groups=groups, uneven="linear",
               size="40000", world_size=ranks),
        _block(name=f"roots{ranks}", collective=["broadcast", "reduce", "gather", "scatter"],
               groups=groups, root=1, size="40000", world_size=ranks),
    )]


SPOILT = [
    _block(name="spoilt", collective=["reduce", "gather", "scatter"], root=1, size="4KiB",
           world_size=3),
    _block(name="spoilt_group", collective="all_reduce", groups=2, size="8KiB"),
]
# gather and scatter have 4080 bytes: three equal parts
WRONG = [{"case": "* root=1 40??B n=3", "rank": 1, "kind": "wrong", "iteration": 3},
         {"case": "all_reduce * 8192B *", "rank": 3, "kind": "wrong"}]


ASYNCHRONOUS = [
    _block(name="async", collective=COLLECTIVES, size="64KiB", world_size=2,
           **{"async": [False, True]}),
    _block(name="async_uneven", collective=UNEVEN[1], size="64KiB", uneven="linear", world_size=2,
           **{"async": True}),
    _block(name="async_mpi", collective="all_reduce", backend="mpi", world_size=2,
           **{"async": True}),
    _block(name="async_pipelined", collective="all_reduce", mode="pipelined", world_size=2,
           **{"async": True})]


STRIDED = [
    _block(name="strided", collective=COLLECTIVES, groups={"stride": 2}, size="40000"),
    _block(name="strided_mpi", backend=["mpi", "mpi/direct"], groups={"size": 2, "stride": 2},
           collective=["all_reduce", "broadcast", "all_gather"], root=1, size="4KiB")]
BITS = [_block(
    name="bits", collective=["all_reduce", "reduce_scatter", "reduce", "all_to_all", "gather"],
    dtype=["int8", "bool", "complex64"], op=["sum", "avg", "bxor"],
    backend=["gloo", "mpi", "mpi/direct"], size="4KiB", world_size=2)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run what needs no limit of time of its own as one job of four ranks, most on some of them."""
    launcher = launcher_for("mpich", tmp_path_factory.mktemp("groups"))
    config = sweep(benchmarks=[*_groups({4: 2, 3: 3}), *SPOILT, *_rooted(2), *_splits([2, 3]),
                               *_loads(tmp_path_factory.mktemp("tables") / "table.txt"),
                               *ASYNCHRONOUS, *STRIDED, *BITS], fault=WRONG)
    job = launcher.run(4, config=config, timeout=200).check(1)
    launcher.assert_no_orphans()
    return job


@pytest.fixture(scope="module")
def outcome(job: Finished) -> Outcome:
    return read(job.folder)


def test_bits_and_complex_numbers_are_right(outcome: Outcome) -> None:
    """Of 3 reductions int8 and bool have sum and bxor, complex64 sum and, past mpi/direct, avg."""
    cases = _of(outcome, "bits")
    assert {(item.status, item.n_wrong) for item in cases if not item.case.skip} == {("ok", 0)}
    ran = Counter(item.case.backend for item in cases if not item.case.skip)
    assert ran == {"gloo": 3 * (2 * 2 + 2) + 3 + 2, "mpi": 3 * (2 * 2 + 2) + 3 + 3,
                   "mpi/direct": 3 * (2 * 2 + 1) + 3 + 3}


def test_groups_with_a_stride_have_their_own_results(outcome: Outcome) -> None:
    cases = _of(outcome, "strided")
    assert len(cases) == len(COLLECTIVES) + 2 * 3
    for item in cases:
        assert item.case.group_ranks == (range(0, 4, 2), range(1, 5, 2))
        assert item.case.label.split(" n=")[1].startswith("4 groups=2 stride=2")
        assert item.status == "ok" and not item.n_wrong, (item.case.label, item.reason)


@pytest.mark.parametrize("name", ["NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK"])
def test_nccl_tests_variable_is_refused_with_the_key_that_does_it(
    mpirun: MpiLauncher, name: str,
) -> None:
    job = mpirun.run(1, config=sweep("8"), env={name: "MOD 2"}).check(2)
    assert name in job.stderr and '{"stride": 8}' in job.stderr


def test_several_groups_at_once_each_have_their_own_result(outcome: Outcome) -> None:
    cases = _of(outcome, "all", "uneven", "roots")
    assert len(cases) == (9 + 1 + 2 + 4) * 2
    for item in cases:
        alone = item.case.group_size == 1
        needs_two = (item.case.workload.collective == "send_recv" or item.case.workload.root == 1
                     or item.case.workload.split != "even")
        expected = "skipped" if alone and needs_two else "ok"
        assert item.status == expected, (item.case.label, item.reason)
        samples = outcome.samples[item.case.case_id]
        if expected == "ok":  # the statistics are over the ranks of all groups
            assert samples is not None and samples.ranks == tuple(range(item.case.world_size))


def test_a_wrong_element_shows_where_there_is_a_result_and_in_one_of_two_groups(
    outcome: Outcome,
) -> None:
    found = _of(outcome, "spoilt")
    (grouped,) = [item for item in found if item.case.world_size == 4]
    rooted = [item for item in found if item.case.world_size == 3]
    assert [(item.status, item.n_wrong, item.blamed_rank) for item in rooted] == [
        ("wrong", 1, 1)] * 3
    assert (grouped.status, grouped.n_wrong, grouped.blamed_rank) == ("wrong", 1, 3)


def test_a_rank_that_calls_another_collective_is_named_with_what_it_called(
    mpirun: MpiLauncher,
) -> None:
    astray = {"all_reduce": 1024, "broadcast": 2048}
    rank_of = {name: number for number, name in enumerate(astray)}
    blocks = [_block(collective=name, size=size) for name, size in astray.items()]
    blocks.append(_block(collective="all_reduce", size=512))
    faults = [{"case": f"{name} * {size}B *", "rank": rank_of[name], "kind": "desync",
               "iteration": 1} for name, size in astray.items()]
    config = sweep(benchmarks=blocks, fault=faults, launch={"timeout_s": 4})
    job = mpirun.run(2, config=config, timeout=100).check(1)
    mpirun.assert_no_orphans()
    outcome = read(job.folder)
    for name, size in astray.items():
        found = outcome.of_size(size)
        other = "barrier" if name == "broadcast" else "broadcast"
        assert found.status == "timeout", found.reason
        assert found.blamed_rank == rank_of[name], found.reason
        assert f"rank {rank_of[name]} called {other} in iteration 1 while" in found.reason
        assert f"called {name}: no end in 4 s" in found.reason
    assert outcome.of_size(512).status == "ok"


def test_asynchronous_calls_are_right_and_their_issue_is_timed(
    job: Finished, outcome: Outcome,
) -> None:
    folder = job.folder
    cases = _of(outcome, "async")
    assert {item.status for item in cases} == {"ok", "skipped"}
    skips = [item for item in cases if item.status == "skipped"]
    assert len(skips) == 2 and all("async" in item.reason for item in skips)
    apart = [item for item in outcome.results.cases if "async" in item.case.label.split()]
    ran = [item for item in apart if item.status == "ok"]
    assert len(ran) == len(COLLECTIVES) + 1
    for item in outcome.results.cases:
        samples = outcome.samples[item.case.case_id]
        if item not in ran:
            assert samples is None or not samples.phases
            continue
        assert samples is not None and item.statistics is not None
        assert item.n_wrong in (0, None)
        issue_ns = samples.phases["issue"]
        assert issue_ns.shape == samples.end_ns.shape
        assert (issue_ns > 0).all() and (issue_ns <= samples.end_ns - samples.start_ns).all()
    exported = subprocess.run(
        [sys.executable, "-m", "hpcbench", "export", str(folder), "--to", "nccl-tests",
         "--only", "all_reduce gloo * 65536B *"],
        text=True, capture_output=True, check=True, timeout=60)
    titles = [line for line in exported.stdout.splitlines() if "layout of nccl-tests" in line]
    assert ["async" in title for title in titles] == [False, True]
    with (folder / "summary.csv").open() as file:
        for row in csv.DictReader(file):
            is_timed = row["asynchronous"] == "True" and row["status"] == "ok"
            assert bool(row["issue_s"]) == is_timed, row
