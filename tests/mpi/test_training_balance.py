"""Samples divided by speed, data from files, and too little memory, in real jobs."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.gen_data import generate
from hpcbench.reduce.results import CaseResult
from launcher import Finished, launcher_for
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

TINY: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "layers": 2, "hidden": 64, "seq_length": 16,
    "vocab": 96, "batch_size": 8, "backend": "gloo"}
DYNAMIC = {"balance": "dynamic"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run all of it as one job; only those of which a rank is slow are of sgd."""
    home = tmp_path_factory.mktemp("balance")
    generate(home / "corpus.bin", 1000, 96, None, 0, force=False)
    config = sweep(measure={"warmup": 1, "iterations": 4}, benchmarks=[
        {**TINY, "name": "slow", "optimizer": "sgd", "warmup": 5, "strategies": {
            "data": {"balance": ["static", "dynamic"]}}},
        {**TINY, "name": "parts", "accumulation": 2, "dtype": "fp16", "strategies": {
            "zero1": DYNAMIC, "data": {**DYNAMIC, "bucket_view": True}}},
        {**TINY, "name": "hooks", "strategies": {"data": {
            **DYNAMIC, "comm_hook": ["bf16", "powersgd"]}}},
        {**TINY, "name": "file", "data": str(home / "corpus.bin"), "strategies": {
            "zero1": DYNAMIC, "pipeline": {"microbatches": 2}}},
        {**TINY, "name": "missing", "data": "nowhere.bin", "strategies": "data"}],
        fault=[{"case": "* sgd *", "rank": 1, "kind": "slow_samples", "seconds": 0.02}])
    mpirun = launcher_for("mpich", home)
    done = mpirun.run(2, config=config, timeout=100).check(1)
    mpirun.assert_no_orphans()
    return done


def test_a_slow_rank_gets_fewer_samples_and_steps_are_shorter(job: Finished) -> None:
    """A sample takes rank 1 20 ms longer, and without that far less than half of it."""
    static, dynamic = (item for item in read(job.folder).results.cases
                       if item.case.block == "slow")
    assert (static.status, dynamic.status) == ("ok", "ok"), (static.reason, dynamic.reason)
    shares = _shares(dynamic)
    assert sum(shares) == 16
    assert 1 <= shares[1] <= 5
    assert _median_s(dynamic) < 0.75 * _median_s(static)
    assert f"of 16 samples in the end {shares[0]} on rank 0, {shares[1]} on rank 1" in shown(job)


def test_unlike_shares_and_data_from_files_are_right(job: Finished) -> None:
    *right, missing = (item for item in read(job.folder).results.cases
                       if item.case.block != "slow")
    assert missing.status == "failed"
    assert "nowhere.bin: cannot be read: No such file or directory" in missing.reason
    for item in right:
        assert (item.status, item.n_wrong) == ("ok", 0), (item.case.label, item.reason)
        if item.case.workload.name != "pipeline":
            assert sum(_shares(item)) == 16
    assert "corpus.bin was read 1.3 times in a pass" in shown(job)  # 62 samples, 5 x 16 taken


def shown(job: Finished) -> str:
    printed = CliRunner().invoke(app, ["show", str(job.folder), "-v"]).output
    return " ".join(printed.split())


def _shares(item: CaseResult) -> list[int]:
    return [item.detail[str(rank)]["balance"]["samples"] for rank in range(2)]


def _median_s(item: CaseResult) -> float:
    return item.statistics.median_s
