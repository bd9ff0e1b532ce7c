"""What validate says of cores, network, clocks, storage, limits and sweeps; how it is shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench import __version__
from hpcbench.config.load import check_config
from hpcbench.errors import ExitCode
from hpcbench.plan.expand import make_plan
from hpcbench.validation import rank_report as storage_probe
from hpcbench.validation.job import clock_lines, network_lines, storage_lines, sweep_lines
from hpcbench.validation.machine import affinity_lines, limit_lines
from hpcbench.validation.rank_report import (
    CheckLine,
    JobReport,
    RankReport,
    fail,
    ok,
    rendered,
    show,
    warn,
)
from hpcbench.validation.validate import exit_code, judge
from validation_facts import STORAGE, changed, good, job, line, states, sync_record

Judged = Callable[[JobReport], Iterator[CheckLine]]
TWO_NODES = (good(0), good(1, node="b"))


@pytest.mark.parametrize(("lines", "expected"), [
    (affinity_lines, {"cores": "ok", "binding": "ok", "CPU quota": "ok", "load": "n/a"}),
    (network_lines, {"interface": "ok", "link": "n/a", "RDMA": "n/a"}),
    (clock_lines, {"clock source": "ok", "clock offset": "ok"}),
    (storage_lines, {"results folder": "ok", "shared folder": "ok", "file system": "ok",
                     "free space": "ok"}),
    (limit_lines, {"open files": "ok", "locked memory": "n/a", "processes": "ok",
                   "core files": "ok", "shared memory": "ok", "memory limit": "ok"}),
])
def test_a_healthy_job(lines: Judged, expected: dict[str, str]) -> None:
    assert states(lines, job()) == expected


def with_cores(rank: int, *cores: int) -> RankReport:
    one = changed(good(rank), "machine.process.affinity", list(cores))
    return changed(one, "machine.process.affinity_cpus", len(cores))


@pytest.mark.parametrize(("cores", "expected", "told_of"), [
    ([(0, 1), (2,)], ("warn", "ok"), ""),
    ([(0, 1), (0, 1)], ("ok", "warn"), "unbound"),
    ([(0, 1), (1, 2)], ("ok", "warn"), "overlap: 1 core belong"),
    ([(0,), (0,)], ("ok", "warn"), "2 ranks on host-a have 1 core together"),
    ([(0, 1)], ("ok", "n/a"), "one rank per node"),
])
def test_cores(cores: list[tuple[int, ...]], expected: tuple[str, str], told_of: str) -> None:
    of = job(*(with_cores(rank, *own) for rank, own in enumerate(cores)))
    found = states(affinity_lines, of)
    assert (found["cores"], found["binding"]) == expected
    assert told_of in line(affinity_lines, of, "binding")[1]


def test_cores_that_nobody_reports_are_not_judged() -> None:
    of = job(*(changed(with_cores(rank), "machine.process.affinity_cpus", None)
               for rank in range(2)))
    found = states(affinity_lines, of)
    assert (found["cores"], found["binding"]) == ("n/a", "n/a")


@pytest.mark.parametrize(("cpus", "state"), [
    (1.5, "warn"), (8, "ok"), (2, "ok"), ("unlimited", "ok"), (None, "n/a")])
def test_cpu_quota(cpus: object, state: str) -> None:
    of = job(changed(good(), "machine.process.cgroup.cpus", cpus))
    assert line(affinity_lines, of, "CPU quota")[0] == state


@pytest.mark.parametrize(("busy", "state", "share"), [(30, "ok", "5 %"), (88, "warn", "63 %")])
def test_what_other_processes_use_of_the_cores(busy: int, state: str, share: str) -> None:
    ranks = [good(rank, core_use={"own": own, "cores": {
        str(core): [busy, 100] for core in (0, 1)}}) for rank, own in ((0, 20), (1, 30))]
    found = line(affinity_lines, job(*ranks), "load")
    assert found[0] == state and share in found[1]
    assert states(affinity_lines, job())["load"] == "n/a"


def test_loopback_across_nodes_fails_with_what_the_run_would_report() -> None:
    error = "rank 1: 127.0.0.1, the address of rank 0, is loopback on b; set launch.interface"
    of = job(*(replace(one, network_error=error) for one in TWO_NODES))
    assert line(network_lines, of, "interface") == (
        "fail", "rank 1: 127.0.0.1, the address of rank 0, is loopback on b",
        "set launch.interface")
    assert states(network_lines, of)["link"] == "n/a"
    assert states(network_lines, replace(of, lost={1: "b"}))["interface"] == "n/a"


def test_links_that_differ_are_a_warning() -> None:
    assert line(network_lines, job(*TWO_NODES), "link")[:2] == ("ok", "25000 Mbit/s, MTU 9000")
    slow = changed(TWO_NODES[1], "machine.network.interfaces", {"eth0": {"mtu": 1500}})
    state, found, _ = line(network_lines, job(TWO_NODES[0], slow), "link")
    assert state == "warn" and "speed unknown, MTU 1500 on rank 1" in found


@pytest.mark.parametrize(("ports", "state"), [
    (({"mlx5_0/1": {"state": "4: ACTIVE"}},) * 2, "ok"),
    (({"mlx5_0/1": {"state": "1: DOWN"}},) * 2, "warn"),
    (({"mlx5_0/1": {"state": "4: ACTIVE"}}, {}), "warn"),
])
def test_rdma_ports(ports: tuple[dict[str, Any], ...], state: str) -> None:
    of = job(*(changed(one, "machine.network.infiniband", found)
               for one, found in zip(TWO_NODES, ports, strict=True)))
    assert line(network_lines, of, "RDMA")[0] == state


@pytest.mark.parametrize(("sources", "state"), [
    (("tsc", "tsc"), "ok"), (("hpet", "hpet"), "warn"), (("tsc", "kvm-clock"), "warn"),
    ((None, None), "n/a")])
def test_clock_sources(sources: tuple[object, ...], state: str) -> None:
    of = job(*(changed(good(rank), "machine.kernel.clocksource", name)
               for rank, name in enumerate(sources)))
    assert line(clock_lines, of, "clock source")[0] == state


@pytest.mark.parametrize(("record", "offset", "day"), [
    (sync_record(2, 2000.0, 50.0), "ok", "ok"), (sync_record(2, 90_000.0, 50.0), "warn", "ok"),
    (sync_record(2, 2000.0, 9000.0), "fail", "ok"),
    (sync_record(2, 2000.0, realtime_ns=10**18 + 3 * 10**9), "ok", "warn"),
])
def test_clocks_of_two_nodes(record: Any, offset: str, day: str) -> None:
    first, second = TWO_NODES
    of = job(replace(first, clock=sync_record(2).to_json()),
             replace(second, clock=record.to_json()))
    found = states(clock_lines, of)
    assert (found["clock offset"], found["time of day"]) == (offset, day)


def test_clocks_that_could_not_be_compared() -> None:
    of = job(replace(good(), clock=None, clock_error="rank 3 has not answered"))
    assert states(clock_lines, of)["clock offset"] == "fail"
    assert states(clock_lines, replace(of, lost={3: ""}))["clock offset"] == "n/a"
    assert states(clock_lines, job(replace(good(), clock=None)))["clock offset"] == "n/a"


@pytest.mark.parametrize(("key", "value", "subject", "state"), [
    ("error", "Permission denied", "results folder", "fail"),
    ("sync_s", 2.0, "results folder", "warn"),
    ("seen", False, "shared folder", "warn"),
    ("kind", "tmpfs", "file system", "warn"), ("kind", "overlay", "file system", "warn"),
    ("kind", None, "file system", "n/a"),
    ("free_bytes", 10**6, "free space", "fail"), ("free_bytes", 10**8, "free space", "warn"),
    ("free_files", 0, "free space", "fail"), ("free_bytes", None, "free space", "n/a"),
])
def test_storage(key: str, value: object, subject: str, state: str) -> None:
    of = job(*(replace(good(rank), storage={**STORAGE, key: value}) for rank in range(2)))
    assert line(storage_lines, of, subject)[0] == state


@pytest.mark.parametrize("rank", [0, 1])
def test_free_space_is_that_of_the_fullest_disk(rank: int) -> None:
    reports = [replace(good(one), storage={
        **STORAGE, "seen": one == 0, "free_bytes": 10**6 if one == rank else 10**12})
        for one in range(2)]
    state, found, _ = line(storage_lines, job(*reports), "free space")
    assert state == "fail" and f"rank {rank} writes" in found


def limits(name: str, value: object) -> JobReport:
    one = changed(good(), f"machine.process.limits.{name}", value)
    return job(changed(one, "machine.network.infiniband", {"mlx5_0/1": {"state": "4: ACTIVE"}}))


@pytest.mark.parametrize(("of", "subject", "state"), [
    (limits("open_files", 100), "open files", "fail"),
    (limits("open_files", 1000), "open files", "warn"),
    (limits("open_files", "unlimited"), "open files", "ok"),
    (limits("locked_memory_bytes", 2**23), "locked memory", "warn"),
    (limits("locked_memory_bytes", 2**36), "locked memory", "ok"),
    (limits("locked_memory_bytes", "unlimited"), "locked memory", "ok"),
    (limits("processes", 100), "processes", "warn"), (limits("processes", 9999), "processes", "ok"),
    (job(good(core_files="unlimited")), "core files", "warn"),
    (job(good(core_files=2**20)), "core files", "ok"),
    (job(good(shm_bytes=2**20)), "shared memory", "fail"),
    (job(good(shm_bytes=2**25)), "shared memory", "warn"),
    (job(good(shm_bytes=None)), "shared memory", "warn"),
    (job(changed(good(), "machine.process.cgroup.memory_bytes", 2**28)), "memory limit", "fail"),
    (job(changed(good(), "machine.process.cgroup.memory_bytes", 2**29)), "memory limit", "warn"),
    (job(changed(good(), "machine.process.cgroup.memory_bytes", 2**34)), "memory limit", "ok"),
])
def test_limits(of: JobReport, subject: str, state: str) -> None:
    assert line(limit_lines, of, subject)[0] == state


def test_open_files_have_to_suffice_for_the_ranks() -> None:
    few = changed(good(), "machine.process.limits.open_files", 4096)
    assert line(limit_lines, job(few, world_size=512), "open files")[0] == "ok"
    assert line(limit_lines, job(few, world_size=2048), "open files")[0] == "warn"
    assert line(limit_lines, job(few, world_size=8192), "open files")[0] == "fail"


SWEEP = {"benchmarks": [{"kind": "collective", "collective": "all_reduce", "size": 8,
                         "backend": ["gloo", "nccl"]}]}


def test_a_sweep_is_judged_by_what_it_can_run() -> None:
    plan = make_plan(check_config(SWEEP, "test"), 4)
    found = [one.state.value for one in sweep_lines(job(), plan)]
    assert found == ["ok", "warn"]
    required = make_plan(check_config({**SWEEP, "required_backends": ["nccl"]}, "test"), 4)
    assert [one.state.value for one in sweep_lines(job(), required)] == ["ok", "fail"]
    only = {"benchmarks": [{**SWEEP["benchmarks"][0], "backend": "nccl"}]}
    assert [one.state.value for one in sweep_lines(
        job(), make_plan(check_config(only, "test"), 4))] == ["fail", "warn"]
    assert [one.state.value for one in sweep_lines(job(lost={3: ""}), plan)] == ["n/a"]


def test_only_failures_make_the_exit_code() -> None:
    assert exit_code(judge(job(), None)) == ExitCode.OK
    assert exit_code([ok("a", "b"), warn("a", "b", "c")]) == ExitCode.OK
    assert exit_code([ok("a", "b"), fail("a", "b", "c")]) == ExitCode.FINDINGS


def test_lines_are_plain_in_a_log_and_whole_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [ok("torch", "2.9"), fail("ranks", "x" * 300, "mend it")]
    assert rendered(lines, as_json=False).splitlines() == [
        "ok    torch  2.9", f"fail  ranks  {'x' * 300}", "             fix: mend it",
        "1 ok, 1 fail"]
    show(lines, 4, 2, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["schema_version"]) == ("hpcbench.validate", 1)
    assert found["counts"] == {"ok": 1, "warn": 0, "fail": 1, "n/a": 0}
    assert found["lines"][1] == {"subject": "ranks", "state": "fail", "found": "x" * 300,
                                 "fix": "mend it"}
    show(lines, 4, 2, as_json=False)
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"hpcbench {__version__} validate: 4 ranks on 2 nodes"


def test_a_terminal_gets_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    show([fail("ranks", "few", "more")], 1, 1, as_json=False)
    out = capsys.readouterr().out
    assert "┃" in out and "ranks" in out and "more" in out


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "results"
    found = storage_probe.probe(folder, "marker", 0)
    assert (found["error"], found["seen"]) == (None, True)
    assert found["free_bytes"] > 0 and found["kind"] and found["sync_s"] > 0
    other = storage_probe.probe(folder, "marker", 1)
    assert (other["error"], other["seen"], other["made"]) == (None, True, [])
    storage_probe.remove(found)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_does_not_see_the_folder_tries_places_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that a run would use: beside the folder, then TMPDIR; and none is an error."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    beside = storage_probe.probe(tmp_path / "elsewhere", "marker", 2)
    assert (beside["seen"], beside["error"]) == (False, None)
    assert beside["own"] == str(tmp_path / "elsewhere") and beside["sync_s"] > 0
    assert beside["free_bytes"] > 0
    storage_probe.remove_empty(beside["made"])
    (tmp_path / "file").write_text("in the way")
    for_a_while = storage_probe.probe(tmp_path / "file" / "results", "marker", 2)
    assert (for_a_while["own"], for_a_while["error"]) == (str(tmp_path / "tmp"), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "tmp"]
    (tmp_path / "tmp").rmdir()
    (tmp_path / "tmp").write_text("in the way, too")
    nowhere = storage_probe.probe(tmp_path / "file" / "results", "marker", 2)
    assert "has no place of its own" in nowhere["error"] and "hpcbench-RUN" in nowhere["error"]
    blind = replace(good(1), storage={**STORAGE, **nowhere})
    assert line(storage_lines, job(good(), blind), "results folder")[0] == "fail"


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = storage_probe.run_probe(str(tmp_path / "file"), "marker", 0, 30.0, os.environ)
    assert found["error"] == f"{tmp_path}/file: File exists" and not found["seen"]


def test_a_probe_of_a_folder_that_crashes_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import ctypes; ctypes.string_at(0)\n")
    crashing = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = storage_probe.run_probe(str(tmp_path), "marker", 0, 30.0, crashing)
    assert "could not be tried: the probe ended with -11" in found["error"] and not found["seen"]


def test_a_file_system_that_hangs_is_reported(tmp_path: Path) -> None:
    found = storage_probe.run_probe(str(tmp_path), "marker", 0, 0.001, os.environ)
    assert "does not answer within 0.001 s" in found["error"]
