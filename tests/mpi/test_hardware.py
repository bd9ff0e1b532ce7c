"""Tests of the machine in one real job: products, memory and files, one of them broken."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import pytest

from golden import hpcbench
from hpcbench.kinds.hardware.derive import ARRAY, LAST_CACHES, PAGE_CACHE, THREADS
from hpcbench.kinds.hardware.plan.test import work_of
from hpcbench.reduce.results import CaseResult
from launcher import launcher_for
from mpi.reading import NOT_DRAWN, Outcome, read

pytestmark = pytest.mark.mpi

CONFIG: dict[str, Any] = {
    "name": "hardware",
    "measure": {"iterations": 3, "warmup": 1, "passes": 1, "noise_check_s": 0, "canary": False},
    "output": {"folder": "results", **NOT_DRAWN},
    "benchmarks": [
        {"kind": "hardware", "name": "gemm", "test": "gemm", "shape": "64",
         "dtype": ["fp32", "fp64", "bf16", "fp16", "int8", "fp8_e4m3", "tf32"]},
        {"kind": "hardware", "name": "other", "test": "gemm", "shape": "16x48x32"},
        {"kind": "hardware", "name": "alone", "test": "gemm", "shape": "64", "world_size": 1},
        {"kind": "hardware", "name": "stream", "test": "stream", "size": "1MiB",
         "kernel": ["copy", "scale", "add", "triad", "read_modify_write"], "threads": 1},
        {"kind": "hardware", "name": "threads", "test": "stream", "size": "1MiB",
         "kernel": "add", "threads": "all"},
        {"kind": "hardware", "name": "auto", "test": "stream", "kernel": "read_modify_write",
         "iterations": 1, "warmup": 0, "validate": False},  # of hundreds of MiB on some machines
        {"kind": "hardware", "name": "storage", "test": "storage", "size": "1MiB",
         "folder": "files"},
        {"kind": "training", "model": "transformer-tiny", "layers": 1, "hidden": 32, "heads": 2,
         "seq_length": 8, "vocab": 49, "batch_size": 2, "strategies": "data"}],
    "fault": [{"kind": "wrong", "case": "*triad fp32 1MiB threads=1*", "rank": 1},
              {"kind": "kill", "case": "*write_one_file*", "rank": 1}]}


@dataclass(frozen=True)
class Job:
    """The run, the folder that it was started in, and what summary.json says."""

    outcome: Outcome
    home: Path
    summary: dict[str, Any]

    @property
    def cases(self) -> list[CaseResult]:
        return [item for item in self.outcome.results.cases if item.case.kind == "hardware"]

    def of_test(self, test: str) -> list[CaseResult]:
        return [item for item in self.cases if work_of(item.case).test == test]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    home = tmp_path_factory.mktemp("hardware")
    launcher = launcher_for("mpich", tmp_path_factory.mktemp("jobs"))
    (home / "sweep.json").write_text(json.dumps(CONFIG))
    words = [launcher.program("python"), "-m", "hpcbench", "run", str(home / "sweep.json"),
             "--resume", str(home / "job"), "--set", f"benchmarks.6.folder={home / 'files'}"]
    launcher.run(2, command=words, timeout=180).check(1)
    hpcbench("plot", str(home / "job"), "--only", "hardware-*")
    return Job(read(home / "job"), home, json.loads((home / "job" / "summary.json").read_text()))


def test_every_test_of_the_machine_runs(job: Job) -> None:
    statuses = {item.case.label: item.status for item in job.cases}
    broken = {label: status for label, status in statuses.items() if status != "ok"}
    assert sorted(broken.values()) == ["failed", "skipped", "wrong"], broken
    assert {work_of(item.case).test for item in job.cases} == {
        "gemm", "stream", "storage"}
    assert all("tf32" in label for label, status in broken.items() if status == "skipped")


def test_a_wrong_element_and_a_killed_writer_are_reported(job: Job) -> None:
    wrong = next(item for item in job.cases if item.status == "wrong")
    failed = next(item for item in job.cases if item.status == "failed")
    assert wrong.blamed_rank == 1 and "triad" in wrong.case.label
    assert failed.blamed_rank == 1 and "SIGKILL" in failed.reason


def test_rates_are_flops_and_bytes_over_the_time(job: Job) -> None:
    records = job.outcome.results.derived["hardware"]
    for item in job.cases:
        if item.statistics is None:
            continue
        record, test = records[item.case.case_id], work_of(item.case).test
        assert len(record["rank_rates"]) == item.case.world_size
        assert all(rate > 0 for rate in record["rank_rates"])
        if test == "gemm":
            work: Any = item.case.workload
            flops = 2 * work.m * work.n * work.k
            assert record["rank_flops_per_s"] == pytest.approx(flops / item.statistics.median_s)
        else:
            assert record["all_ranks_bytes_per_s"] == pytest.approx(
                record["rank_bytes_per_s"] * item.case.world_size)


def test_one_shape_of_each_type_and_number_of_ranks_is_the_peak(job: Job) -> None:
    records = job.outcome.results.derived["hardware"]
    peaks = [(item.case.workload.dtype, item.case.world_size) for item in job.of_test("gemm")
             if records[item.case.case_id]["is_peak"]]
    assert len(set(peaks)) == len(peaks) == 7


def test_a_training_is_beside_the_best_product_that_was_measured(job: Job) -> None:
    derived, results = job.outcome.results.derived, job.outcome.results
    best = max(derived["hardware"][item.case.case_id]["rank_flops_per_s"]
               for item in job.of_test("gemm") if item.status == "ok"
               and item.case.workload.dtype == "fp32" and item.case.world_size == 2)
    training = next(item for item in results.cases if item.case.kind == "training")
    record, work = derived["training"][training.case.case_id], training.case.workload.to_json()
    flops = dict(map(tuple, work["flops"]))[record["mfu_definition"]]
    assert record["mfu"] is None and record["mfu_of_measured"] == pytest.approx(
        flops / (training.statistics.median_s * 2 * best))


def test_arrays_are_four_times_the_cache_where_no_size_is_given(job: Job) -> None:
    item = next(item for item in job.of_test("stream") if item.case.block == "auto")
    assert THREADS.value(item, None) >= 1
    assert ARRAY.value(item, None) <= 4 * max(LAST_CACHES.value(item, None), 2**25) / 2


def test_nothing_is_left_on_the_disk(job: Job) -> None:
    assert list((job.home / "files").iterdir()) == []


def test_reads_record_whether_they_were_cold(job: Job) -> None:
    told = {item.case.workload.to_json()["access"]: PAGE_CACHE.value(item, None)
            for item in job.of_test("storage") if item.status == "ok"}
    assert told["read_sequential"] in ("cold", "warm", "mixed", "unknown")
    assert told["write_dcp"] is None


def test_the_summaries_and_the_file_have_them(job: Job) -> None:
    hardware = job.summary["results"]["hardware"]
    assert [len(hardware[test]) for test in ("gemm", "stream", "storage")] == [8, 6, 4]
    assert all(row["rank_tflop_per_s"] > 0 for row in hardware["gemm"])
    with h5py.File(job.home / "job" / "results.h5") as file:
        assert file["cases/rank_bytes_per_s"].attrs["units"] == "bytes/s"
        assert "triad" in file["cases/kernel"].asstr()[:]
    assert {path.stem for path in (job.home / "job" / "plots").iterdir()} >= {
        "hardware-gemm", "hardware-stream", "hardware-storage"}
