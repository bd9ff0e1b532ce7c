"""Rows of programs that print no mean of a collective: operations, products, metrics of nodes."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import foreign_tables as written
from bad_input_process import hpcbench
from hpcbench.answers.compare import INCONCLUSIVE, compare_sides
from hpcbench.errors import FileError, UsageError
from hpcbench.interop.formats import imported as imported_files
from hpcbench.interop.formats import imported_rows
from hpcbench.interop.formats.imported import import_files
from hpcbench.interop.formats.imported_rows import UserFacts
from hpcbench.reduce.results import OPERATION_FOLD, PRINTED_FOLD, CaseResult, Results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.console import print_results
from hpcbench.report.plots import plot_file
from launcher import ROOT

FOREIGN = ROOT / "tests" / "data" / "foreign"
RANKS = 4


def imported(folder: Path, *paths: Path, **given: object) -> tuple[Results, list[str]]:
    output = folder / "imported.h5"
    output.unlink(missing_ok=True)
    lines = import_files(paths, output, UserFacts(**given)).lines  # type: ignore[arg-type]
    with open_results(output) as file:
        return file.results, lines


def records(
    rank: int, times_us: Mapping[int, int], *, coll: str = "AllReduce", size: int = 65536,
    group: str = "DP 0",
) -> Iterator[dict[str, Any]]:
    """Yield what one rank reports of operations: their numbers and times."""
    for number, time_us in times_us.items():
        yield {
            "header": {"id": f"0x{group}", "comm_name": group, "rank": rank, "n_ranks": RANKS,
                       "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0"},
            "coll_perf": {
                "coll": coll, "coll_sn": number, "coll_msg_size_bytes": size,
                "coll_exec_time_us": time_us, "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 0.0, "coll_busbw_gbs": 0.0}}


def log(path: Path, lines: Iterator[dict[str, Any]], *, once: bool = False) -> Path:
    """Write a log in the form of v4.0, or of v4.3, which has header and metadata once."""
    found = list(lines)
    if once:
        head = {name: found[0].pop(name) for name in ("header", "metadata")}
        head["metadata"]["inspector_output_format_version"] = "v4.3"
        found = [{"dump_stats": {**head, "written": len(found)}},
                 *({"coll_perf": one["coll_perf"]} for one in found)]
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    return path


def only(results: Results) -> CaseResult:
    (item,) = results.cases
    return item


@pytest.mark.parametrize("once", [False, True])
def test_an_operation_takes_as_long_as_on_its_slowest_rank(tmp_path: Path, once: bool) -> None:
    first = {number: 100 + number % 7 for number in range(40)}
    second = {number: 99 + number % 11 for number in range(5, 60)}
    paths = [log(tmp_path / f"{rank}.log", records(rank, times), once=once)
             for rank, times in enumerate((first, second))]
    results, lines = imported(tmp_path, *paths, dtype="bf16")
    item = only(results)
    slowest = [max(first.get(one, 0), second.get(one, 0)) for one in range(60)]
    assert item.statistics.median_s == pytest.approx(median(slowest) * 1e-6)
    assert item.statistics.max_s == pytest.approx(max(slowest) * 1e-6)
    assert (item.statistics.n, item.statistics.p95_s is None, item.statistics.p99_s) == (
        60, False, None)
    assert (item.statistics.ci_low_s, item.statistics.ci_reliable) == (None, False)
    assert item.timing.is_imported and item.timing.fold == OPERATION_FOLD
    work = item.case.workload
    assert (item.case.world_size, work.dtype, work.op, work.in_place) == (4, "bf16", None, None)
    assert (item.case.backend, item.n_wrong) == ("nccl", None)
    assert results.run.imported == (f"NCCL Inspector v4.{3 if once else 0}",)
    assert "95 reports" in lines[0] and "2 of 4 ranks" in lines[0]


def test_a_rank_that_reports_twice_counts_once(tmp_path: Path) -> None:
    path = log(tmp_path / "a.log", records(0, {1: 10, 2: 20}))
    results, _ = imported(tmp_path, path, path, dtype="bf16")
    statistics = only(results).statistics
    assert statistics is not None and (statistics.n, statistics.max_s) == (2, 20e-6)


@pytest.mark.parametrize(("coll", "collective", "parts"), [
    ("AllReduce", "all_reduce", 1), ("Broadcast", "broadcast", 1), ("Reduce", "reduce", 1),
    ("AllGather", "all_gather", RANKS), ("ReduceScatter", "reduce_scatter", RANKS)])
def test_sizes_and_rates_are_those_of_inspector(
    tmp_path: Path, coll: str, collective: str, parts: int,
) -> None:
    path = log(tmp_path / "a.log", records(0, {0: 100}, coll=coll))
    results, _ = imported(tmp_path, path, dtype="float")
    item = only(results)
    work = item.case.workload
    assert (work.collective, work.size_bytes, work.count) == (collective, 65536 * parts, 16384)
    rate = results.record_of(item)["busbw_bytes_per_s"]
    factor = written.FACTORS[collective](RANKS)
    assert rate == pytest.approx(65536 * parts / 100e-6 * factor)


def test_communicators_with_names_are_rows_of_their_own(tmp_path: Path) -> None:
    paths = [log(tmp_path / f"{group}.log", records(0, {0: time}, group=group))
             for group, time in (("DP 0", 10), ("TP 3", 30))]
    results, _ = imported(tmp_path, *paths, dtype="uint8")
    assert {item.case.block: item.statistics and item.statistics.median_s
            for item in results.cases} == {
        "NCCL Inspector all_reduce DP 0": 10e-6, "NCCL Inspector all_reduce TP 3": 30e-6}


def test_what_is_between_two_ranks_or_has_no_time_is_left_out(tmp_path: Path) -> None:
    path = log(tmp_path / "a.log", records(0, {0: 100, 1: 0}))
    results, lines = imported(
        tmp_path, path, FOREIGN / "inspector.jsonl", dtype="bf16")
    assert len(results.cases) == 2
    assert [line.split(":")[1] for line in lines[:2]] == [" 1 row", " 1 row"]


def test_more_operations_or_rows_than_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = log(tmp_path / "a.log", records(0, dict.fromkeys(range(9), 10)))
    monkeypatch.setattr(imported_files, "MOST_OPERATIONS", 8)
    with pytest.raises(FileError, match="a.log:9: more than"):
        imported(tmp_path, path, dtype="bf16")
    monkeypatch.setattr(imported_rows, "MOST_CASES", 7)
    with pytest.raises(FileError, match="more than 7 rows"):
        imported(tmp_path, FOREIGN / "all_reduce_8.txt")
    assert not (tmp_path / "imported.h5").exists()


def test_a_long_log_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    noise = b"node1:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n" * 2**12
    table = (FOREIGN / "all_reduce_8.txt").read_bytes()
    peaks = []
    for count in (0, 6):
        path = tmp_path / f"{count}.log.gz"
        path.write_bytes(gzip.compress(noise) * count + gzip.compress(table))
        tracemalloc.start()
        try:
            imported(tmp_path, path)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2**19


HEAD = ("implementation,mean_time (ms),std_time,min_time,max_time,m,n,k,dtype,Throughput (TFLOPS),"
        "world_size,barrier_at_each_iteration,option,valid\n")


def ddlb(path: Path, *rows: tuple[str, float, str, str], ranks: object = 8) -> Path:
    path.write_text(HEAD + "".join(
        f'{name},{time},0.1,{time},{time},1024,512,256,bfloat16,1.0,{ranks},True,"{option}",{valid}'
        "\n" for name, time, option, valid in rows))
    return path


def test_products_of_ddlb_are_cases_of_its_primitive(tmp_path: Path) -> None:
    path = ddlb(tmp_path / "a.csv",
                ("pytorch (backend=nccl)", 0.5, "backend=ucc/tl/nccl, order=AG_after", "True"),
                ("fuser", 0.25, "backend=cuda, order=AG_before, algorithm=p2p_pipeline, s=4", ""),
                ("jax", 2.0, "", "False"))
    results, lines = imported(tmp_path, path, primitive="tp_columnwise")
    torch, fuser, jax = results.cases
    assert (len(lines), results.run.imported) == (2, ("DDLB",))
    for item, (name, backend, order, time_s, n_wrong) in zip((torch, fuser), (
            ("torch", "ucc/tl/nccl", "AG_after", 0.5e-3, 0),
            ("fuser", "nccl", "AG_before", 0.25e-3, None)), strict=True):
        work = item.case.workload
        assert (work.implementation, item.case.backend, work.order) == (name, backend, order)
        assert (work.primitive, work.m, work.n, work.k, work.dtype) == (
            "tp_columnwise", 1024, 512, 256, "bf16")
        assert (item.case.world_size, item.case.device, item.case.mode) == (
            8, "cuda", "barrier_start")
        assert item.statistics.median_s == pytest.approx(time_s)
        assert (item.statistics.n, item.timing.fold, item.n_wrong) == (1, PRINTED_FOLD, n_wrong)
    product = 2 * 1024 * 512 * 256
    assert (torch.case.workload.flops, fuser.case.workload.flops) == (product // 8, product)
    assert dict(fuser.case.workload.options) == {
        "weight": "replicated", "communicator": "cuda", "algorithm": "p2p_pipeline", "s": 4}
    assert (jax.status, jax.n_wrong, jax.statistics) == ("wrong", 1, None)


@pytest.mark.parametrize(("name", "option"), [
    ("compute_only", ""), ("someone's", ""), ("pytorch", "order=sideways"),
    ("pytorch", "backend=smoke"), ("fuser", "s=0"), ("fuser", "speed=11")])
def test_a_product_that_is_no_case_is_left_out(tmp_path: Path, name: str, option: str) -> None:
    path = ddlb(tmp_path / "a.csv", (name, 1.0, option, "True"), ("jax", 1.0, "", "True"))
    results, lines = imported(tmp_path, path, primitive="tp_columnwise")
    assert only(results).case.workload.implementation == "jax"
    assert lines[0].startswith("left out: 1 row: ")


def test_what_ddlb_does_not_state_is_asked_for(tmp_path: Path) -> None:
    path = ddlb(tmp_path / "a.csv", ("pytorch", 1.0, "backend=nccl", "True"), ranks="")
    for given, wanted in (({}, "--primitive"), ({"primitive": "tp_mlp"}, "--primitive tp_mlp"),
                          ({"primitive": "tp_rowwise"}, "--ranks")):
        with pytest.raises(UsageError, match=wanted):
            imported(tmp_path, path, **given)
    results, _ = imported(tmp_path, path, primitive="tp_rowwise", ranks=4)
    work = only(results).case.workload
    assert (only(results).case.world_size, work.order) == (4, "RS_after")


def test_metrics_of_superbench_are_rows_of_their_node(tmp_path: Path) -> None:
    results, lines = imported(tmp_path, FOREIGN / "superbench.jsonl", dtype="float")
    assert [(item.case.block, item.case.world_size, item.case.backend,
             item.statistics and item.statistics.median_s) for item in results.cases] == [
        ("SuperBench all_reduce nccl-bw node1", 8, "nccl", pytest.approx(52.1e-6)),
        ("SuperBench all_reduce nccl-bw node2", 8, "nccl", pytest.approx(53e-6))]
    work = results.cases[0].case.workload
    assert (work.size_bytes, work.dtype, work.op, work.in_place) == (2**20, "fp32", "sum", None)
    assert lines[0].startswith("left out: 4 rows")
    path = tmp_path / "sum.jsonl"
    path.write_text(json.dumps({"node": "a", "nccl-bw/broadcast_64_time:0": 5.0}) + "\n")
    with pytest.raises(UsageError, match="--ranks"):
        imported(tmp_path, path, dtype="float")
    path.write_text(json.dumps({"node": "a", "mine/broadcast_64_time:0": 5.0}) + "\n")
    with pytest.raises(UsageError, match="--backend"):
        imported(tmp_path, path, dtype="float", ranks=2)


def test_they_are_shown_plotted_and_never_significant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    sides = []
    for side, time_us in (("old", 100), ("new", 170)):
        path = log(tmp_path / f"{side}.log", records(
            0, {one: time_us + one % 3 for one in range(200)}))
        results, _ = imported(tmp_path, path, FOREIGN / "ddlb.csv", FOREIGN / "superbench.jsonl",
                              dtype="fp32", primitive="tp_columnwise")
        sides.append(f"{side}={(tmp_path / 'imported.h5').rename(tmp_path / f'{side}.h5')}")
    print_results(results, tmp_path, explain=True)
    out = capsys.readouterr().out
    assert out.startswith("imported") and "DDLB" in out.splitlines()[0]
    assert [*plot_file(tmp_path / "new.h5", tmp_path / "plots", "svg")]
    (found,) = compare_sides(sides, 0.03).comparisons
    assert len(found.cases) == 4 and {one.verdict for one in found.cases} == {INCONCLUSIVE}
    assert {one.low for one in found.cases} == {None}


def test_the_command_asks_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOREIGN)
    output = tmp_path / "a.h5"
    for words, code in ((("inspector.jsonl", "--dtype", "bf17"), 2),
                        (("ddlb.csv", "--primitive", "tp_columnwise"), 0)):
        done = hpcbench("import", *words, "-o", str(output))
        assert (done.returncode, output.exists()) == (code, code == 0)
        assert len((done.stderr if code else done.stdout).splitlines()) == 1
