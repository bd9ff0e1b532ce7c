"""The main job under a real mpirun: every collective, every dtype, every file of the folder."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from golden import hpcbench
from hpcbench.trace.schema import Flag
from hpcbench.units import grouped
from launcher import EVERY_MPI_IF_ALL, Finished, MpiLauncher, launcher_for
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
               "send_recv", "barrier"]
DTYPES = ["fp32", "fp64", "fp16", "bf16", "int32", "int64", "uint8"]
OPS = ["sum", "prod", "min", "max", "avg"]


ALL_REDUCE = {"kind": "collective", "backend": "gloo", "collective": "all_reduce"}
EVERY = {**ALL_REDUCE, "name": "every", "collective": COLLECTIVES, "dtype": DTYPES,
         "size": "100000"}
OPTIONS = [
    {**ALL_REDUCE, "name": "ops", "op": OPS, "dtype": DTYPES, "size": "12KiB"},
    {**ALL_REDUCE, "name": "scattered", "collective": "reduce_scatter", "op": OPS,
     "dtype": ["fp32", "int64"], "size": "12KiB"},
    {**ALL_REDUCE, "name": "roots", "collective": "broadcast", "root": [0, 1], "size": "8KiB"},
    {**ALL_REDUCE, "name": "in_place", "collective": ["all_gather", "reduce_scatter"],
     "in_place": [True, False], "size": "16KiB"},
    {**ALL_REDUCE, "name": "unchecked", "size": "16", "validate": False}]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """Return what gives the one job of an MPI."""
    return cache(lambda mpi: _swept(launcher_for(mpi, tmp_path_factory.mktemp("swept"))))


def _swept(mpirun: MpiLauncher) -> Finished:
    job = mpirun.run(2, config=sweep(benchmarks=[EVERY, *OPTIONS]), timeout=150).check()
    mpirun.assert_no_orphans()
    return job


@EVERY_MPI_IF_ALL
def test_every_collective_on_every_dtype_is_right(
    mpirun: MpiLauncher, swept: Callable[[str], Finished],
) -> None:
    job = swept(mpirun.mpi)
    outcome = read(job.folder)
    cases = [item for item in outcome.results.cases if item.case.block == "every"]
    assert {item.status for item in cases} == {"ok"}
    checked = [item for item in cases if item.case.workload.collective != "barrier"]
    assert len(checked) == 6 * 7
    assert all(item.n_wrong == 0 for item in checked)
    _assert_plain_lines(job)
    # three iterations: too few for p5 and p95; more ranks than free cores start late
    assert outcome.codes() - {"HB125"} == {"HB134"}


def test_ops_roots_and_in_place_and_the_same_when_reduced_again(
    swept: Callable[[str], Finished],
) -> None:
    job = swept("mpich")
    outcome = read(job.folder)
    bad = {label: status for label, status in outcome.status().items()
           if status != "ok" and " avg " not in label}
    assert not bad
    averages = [item for item in outcome.results.cases if item.case.workload.op == "avg"]
    integers = {"int32", "int64", "uint8"}
    for item in averages:
        expected = "skipped" if item.case.workload.dtype in integers else "ok"
        assert item.status == expected, (item.case.label, item.reason)
    checked = [item for item in outcome.results.cases
               if item.status == "ok" and item.case.block not in ("every", "unchecked")]
    assert {item.n_wrong for item in checked} == {0}
    assert outcome.of_size(16).n_wrong is None
    told = hpcbench("show", str(job.folder), "-v")
    assert re.search(r"^ *16 .*unchecked", told, re.MULTILINE), told
    assert "exit code" not in hpcbench("reduce", str(job.folder))
    assert read(job.folder).results == outcome.results


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run each kind that needs no minutes once, with all that a run writes.

    Functions are in test_functions.py.
    """
    all_reduce = {"kind": "collective", "collective": "all_reduce"}
    config = sweep(measure={"warmup": 3, "iterations": 7, "passes": 2}, output={"plots": True},
                   benchmarks=[
        {**all_reduce, "name": "whole", "backend": ["gloo", "nccl"], "size": ["8", "64KiB"]},
        {**all_reduce, "name": "parts", "backend": "gloo", "size": ["8", "1KiB"],
         "world_size": [1, 8]},
        {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8,
         "implementations": ["torch", "chunked_pipeline"]},
        {"kind": "training", "model": "transformer-tiny", "layers": 1, "hidden": 32, "heads": 2,
         "seq_length": 8, "vocab": 49, "batch_size": 2, "strategies": ["data"]}])
    return launcher_for("mpich", tmp_path_factory.mktemp("whole")).run(2, config=config).check()


def test_the_folder_is_complete_and_counts_are_exact(whole: Finished) -> None:
    """Some of its cases run on the first rank only."""
    outcome = read(whole.folder)
    cases = [item for item in outcome.results.cases if item.case.kind == "collective"]
    assert sorted((item.case.block, item.case.backend, item.case.world_size, item.status)
                  for item in cases) == sorted(2 * [
        ("whole", "gloo", 2, "ok"), ("whole", "nccl", 2, "skipped"), ("parts", "gloo", 1, "ok"),
        ("parts", "gloo", 8, "skipped")])
    for item in cases:
        if item.status != "ok":
            continue
        samples, ranks = outcome.samples[item.case.case_id], item.case.world_size
        assert samples.ranks == tuple(range(ranks))
        assert samples.start_ns.shape == (ranks, 20)
        warm = (samples.flags & Flag.WARMUP) != 0
        assert np.array_equal(warm.sum(axis=1), [6] * ranks)
        times = (samples.end_ns.max(axis=0) - samples.start_ns.min(axis=0))[~warm[0]]
        assert item.statistics.n == 14
        assert item.statistics.median_s == pytest.approx(np.median(times) * 1e-9)
    for name in ("config.json", "plan.json", "results.h5", "summary.json", "summary.csv",
                 "traces/rank00000.h5", "traces/rank00001.h5"):
        assert (whole.folder / name).is_file(), name
    assert list((whole.folder / "plots").glob("*.png"))
    assert not list(whole.folder.rglob("*.journal"))
    with (whole.folder / "summary.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(outcome.results.cases) == 11
    summary = json.loads((whole.folder / "summary.json").read_text())
    assert summary["world_size"] == 2
    assert (whole.folder.parent / "latest").resolve() == whole.folder


def test_a_primitive_and_a_training_are_right(whole: Finished) -> None:
    by_kind = grouped((item.case.kind, item) for item in read(whole.folder).results.cases)
    assert [(item.status, item.n_wrong) for item in by_kind["primitive"]] == [("ok", 0)] * 2
    (training,) = by_kind["training"]
    assert training.status == "ok" and len(training.detail) == 2
    for left in training.detail.values():  # the error is a share of what is allowed
        assert left["parity"]["error"] <= 1


def test_the_environment_axis_reaches_workers_and_a_template_of_its_own(
    mpirun: MpiLauncher,
) -> None:
    """What torch reads as it loads, such as OMP_NUM_THREADS, needs another template."""
    block = {"kind": "collective", "collective": "all_reduce", "backend": "gloo"}
    config = sweep(benchmarks=[
        {**block, "name": "workers", "size": "8",
         "env": {"GLOO_SOCKET_IFNAME": ["lo", "no_such_interface"]}},
        {**block, "name": "template", "size": "16", "env": {"OMP_NUM_THREADS": [1, 2]}}])
    outcome = read(mpirun.run(1, config=config, timeout=60).check(1).folder)
    by_value = {value: item for item in outcome.results.cases
                for _, value in item.case.env}
    assert by_value["lo"].status == "ok"
    assert by_value["no_such_interface"].status == "failed"
    assert "no_such_interface" in by_value["no_such_interface"].reason
    assert by_value["1"].status == by_value["2"].status == "ok"


@pytest.mark.parametrize("mpirun", ["openmpi"], indirect=True)
def test_a_log_gets_plain_lines(mpirun: MpiLauncher) -> None:
    """With MPICH, the first test looks."""
    _assert_plain_lines(mpirun.run(2, config=sweep("8", "16")).check())


def _assert_plain_lines(job: Finished) -> None:
    """See that what went to a file has no colour, and a line for each case."""
    assert "\x1b" not in job.stdout + job.stderr
    numbers = re.findall(r"^\[ *(\d+)/\d+\] ok", job.stdout, re.MULTILINE)
    (planned,) = set(re.findall(r"^\[ *\d+/(\d+)\] ok", job.stdout, re.MULTILINE))
    assert list(map(int, numbers)) == list(range(1, int(planned) + 1))
