"""The main job under a real mpirun: every collective, every dtype, every file of the folder."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from hpcbench.trace.schema import Flag
from launcher import EVERY_MPI, EVERY_MPI_IF_ALL, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
               "send_recv", "barrier"]
DTYPES = ["fp32", "fp64", "fp16", "bf16", "int32", "int64", "uint8"]


@EVERY_MPI_IF_ALL
def test_every_collective_on_every_dtype_is_right(mpirun: MpiLauncher) -> None:
    block = {"collective": COLLECTIVES, "dtype": DTYPES}
    job = mpirun.run(4, config=sweep("4KiB", "100000", block=block), timeout=100).check()
    outcome = read(job.folder)
    assert set(outcome.status().values()) == {"ok"}
    checked = [item for item in outcome.results.cases if item.case.workload.collective != "barrier"]
    assert len(checked) == 6 * 7 * 2
    assert all(item.n_wrong == 0 for item in checked)
    # three iterations: too few for p5 and p95; more ranks than free cores start late
    assert outcome.codes() - {"HB125"} == {"HB134"}
    mpirun.assert_no_orphans()


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_ops_roots_and_in_place(mpirun: MpiLauncher, ranks: int) -> None:
    config = sweep(benchmarks=[
        {"kind": "collective", "name": "ops", "collective": ["all_reduce", "reduce_scatter"],
         "op": ["sum", "prod", "min", "max", "avg"], "dtype": DTYPES, "size": "12KiB"},
        {"kind": "collective", "name": "roots", "collective": "broadcast", "root": [0, 1],
         "size": "8KiB"},
        {"kind": "collective", "name": "in_place", "collective": ["all_gather", "reduce_scatter"],
         "in_place": [True, False], "size": "16KiB"},
    ])
    outcome = read(mpirun.run(ranks, config=config, timeout=100).check().folder)
    bad = {label: status for label, status in outcome.status().items()
           if status != "ok" and " avg " not in label}
    assert not bad
    averages = [item for item in outcome.results.cases if item.case.workload.op == "avg"]
    integers = {"int32", "int64", "uint8"}
    for item in averages:
        expected = "skipped" if item.case.workload.dtype in integers else "ok"
        assert item.status == expected, (item.case.label, item.reason)


def test_the_folder_is_complete_and_counts_are_exact(mpirun: MpiLauncher) -> None:
    block = {"backend": ["gloo", "nccl"]}
    config = sweep("8", "64KiB", block=block, measure={"warmup": 3, "iterations": 7, "passes": 2},
                   output={"plots": True})
    job = mpirun.run(4, config=config, timeout=100).check()
    assert job.folder is not None
    outcome = read(job.folder)
    statuses = outcome.status()
    assert sorted(statuses.values()) == ["ok", "ok", "skipped", "skipped"]
    for item in outcome.results.cases:
        if item.status != "ok":
            continue
        samples = outcome.samples[item.case.case_id]
        assert samples is not None
        assert samples.start_ns.shape == (4, 20)
        warm = (samples.flags & Flag.WARMUP) != 0
        assert np.array_equal(warm.sum(axis=1), [6, 6, 6, 6])
        assert item.statistics is not None
        times = (samples.end_ns.max(axis=0) - samples.start_ns.min(axis=0))[~warm[0]]
        assert item.statistics.n == 14
        assert item.statistics.median_s == pytest.approx(np.median(times) * 1e-9)
    for name in ("config.json", "plan.json", "results.h5", "summary.json", "summary.csv",
                 "traces/rank00000.h5", "traces/rank00003.h5"):
        assert (job.folder / name).is_file(), name
    assert list((job.folder / "plots").glob("*.png"))
    assert not list(job.folder.rglob("*.journal"))
    with (job.folder / "summary.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 4
    summary = json.loads((job.folder / "summary.json").read_text())
    assert summary["world_size"] == 4
    assert (job.folder.parent / "latest").resolve() == job.folder


def test_sub_worlds_run_on_the_first_ranks(mpirun: MpiLauncher) -> None:
    config = sweep("8", "1KiB", block={"world_size": [1, 2, 3, 4, 8]})
    outcome = read(mpirun.run(4, config=config, timeout=60).check().folder)
    for item in outcome.results.cases:
        size = item.case.world_size
        assert item.status == ("skipped" if size == 8 else "ok"), item.case.label
        samples = outcome.samples[item.case.case_id]
        if item.status == "ok":
            assert samples is not None
            assert samples.ranks == tuple(range(size))


def test_environment_axis_reaches_the_workers(mpirun: MpiLauncher) -> None:
    config = sweep("8", block={"env": {"GLOO_SOCKET_IFNAME": ["lo", "no_such_interface"]}})
    outcome = read(mpirun.run(2, config=config, timeout=60).check(1).folder)
    by_value = {dict(item.case.env)["GLOO_SOCKET_IFNAME"]: item for item in outcome.results.cases}
    assert by_value["lo"].status == "ok"
    assert by_value["no_such_interface"].status == "failed"
    assert "no_such_interface" in by_value["no_such_interface"].reason


def test_variables_read_when_torch_loads_get_a_template_of_their_own(
    mpirun: MpiLauncher,
) -> None:
    config = sweep("8", block={"env": {"OMP_NUM_THREADS": [1, 2]}})
    outcome = read(mpirun.run(2, config=config, timeout=60).check().folder)
    assert set(outcome.status().values()) == {"ok"}


def test_secrets_reach_no_output_file(mpirun: MpiLauncher) -> None:
    planted = {"AWS_SECRET_ACCESS_KEY": "planted-one", "HF_TOKEN": "planted-two",
               "NCCL_FAKE_TOKEN": "planted-three", "UCX_PASSWORD": "planted-four"}
    config = sweep("8", fault=[{"rank": 0, "kind": "raise"}])
    job = mpirun.run(2, config=config, env=planted).check(1)
    assert job.folder is not None
    written = b"".join(path.read_bytes() for path in job.folder.rglob("*") if path.is_file())
    assert not [value for value in planted.values() if value.encode() in written]
    assert not [value for value in planted.values() if value in job.stdout + job.stderr]


def test_reducing_again_gives_the_same_numbers(mpirun: MpiLauncher) -> None:
    job = mpirun.run(2, config=sweep("8", "1KiB")).check()
    before = read(job.folder)
    again = mpirun.run(1, command=[mpirun.program("hpcbench"), "reduce", str(job.folder)])
    assert again.check().returncode == 0
    assert read(job.folder).results == before.results


def test_unchecked_rows_say_so(mpirun: MpiLauncher) -> None:
    config = sweep("8", measure={"warmup": 0, "iterations": 2, "validate": False})
    job = mpirun.run(2, config=config).check()
    assert read(job.folder).of_size(8).n_wrong is None
    assert "unchecked" in job.stdout


@EVERY_MPI
def test_a_log_gets_plain_lines(mpirun: MpiLauncher) -> None:
    job = mpirun.run(2, config=sweep("8", "16")).check()
    assert "\x1b" not in job.stdout + job.stderr
    assert "[1/2] ok" in job.stdout
    assert "[2/2] ok" in job.stdout
