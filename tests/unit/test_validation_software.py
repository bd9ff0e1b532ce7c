"""What validate says of libraries, launch and devices: every judgement from what ranks told."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from hpcbench.launch.store_communicator import REMEDY
from hpcbench.validation.job import launching_lines, report_lines
from hpcbench.validation.machine import device_lines, probe_lines, software_lines
from hpcbench.validation.rank_report import RANK_REPORT, JobReport, RankReport
from validation_facts import changed, good, job, line, states, with_gpus


def test_a_healthy_job_without_gpus() -> None:
    assert states(software_lines, job()) == {
        "Python": "ok", "torch": "ok", "CUDA": "n/a", "driver": "n/a", "NCCL": "n/a",
        "UCC": "n/a", "MPI": "ok", "versions": "ok"}
    assert states(launching_lines, job()) == {"launcher": "ok", "ranks": "ok", "nodes": "ok"}
    assert states(device_lines, job()) == {"GPUs": "n/a"}


def test_what_is_reported_survives_the_way_to_rank_0() -> None:
    plain = RANK_REPORT.write(good(3))
    assert RANK_REPORT.read(json.loads(json.dumps(plain))) == good(3)


def test_a_healthy_job_with_gpus() -> None:
    versions = {"torch": "2.9", "cuda": "12.8", "nvidia_driver": "570", "nccl": "2.27"}
    ranks = [replace(with_gpus(good(rank), "u0", "u1"), versions=versions) for rank in range(2)]
    found = states(software_lines, job(*ranks))
    assert [found[name] for name in ("CUDA", "driver", "NCCL")] == ["ok"] * 3
    assert states(device_lines, job(*ranks)) == {"GPUs": "ok", "GPU code": "ok"}


def test_a_debugger_is_a_warning() -> None:
    state, found, _ = line(software_lines, job(good(), changed(
        good(1), "machine.python.traced", True)), "Python")
    assert state == "warn" and "rank 1" in found


def test_torch_that_is_missing_or_does_not_answer_fails() -> None:
    missing = replace(good(1), facts=None, facts_error="No module named 'torch'")
    state, found, fix = line(software_lines, job(good(), missing), "torch")
    assert (state, "rank 1" in found, "pip install" in fix) == ("fail", True, True)
    late = replace(good(1), facts=None, facts_error="no answer in 48 s (--timeout)")
    assert line(software_lines, job(good(), late), "torch")[2] == (
        "see on that node: python -m hpcbench list")
    nobody = states(software_lines, job(missing))
    assert {nobody[name] for name in ("CUDA", "driver", "NCCL", "UCC")} == {"n/a"}


def test_torch_without_gloo_or_nccl_is_a_warning() -> None:
    without = changed(good(1), "facts.built.gloo", False)
    assert line(software_lines, job(good(), without), "torch")[0] == "warn"
    gpu = changed(with_gpus(good(), "u0"), "facts.built.nccl", False)
    assert line(software_lines, job(gpu), "NCCL")[0] == "warn"


@pytest.mark.parametrize("blind", [
    [replace(good(), versions={"nvidia_driver": "570"})], [good(), with_gpus(good(1), "u0")]],
    ids=["a driver and no CUDA in torch", "GPUs on some ranks only"])
def test_gpus_that_are_not_seen_are_a_warning(blind: list[RankReport]) -> None:
    assert line(software_lines, job(*blind), "CUDA")[0] == "warn"


def test_drivers_that_differ_are_a_warning_and_a_failure_of_versions() -> None:
    ranks = [replace(good(rank), versions={"nvidia_driver": str(570 + rank)}) for rank in (0, 1)]
    found = states(software_lines, job(*ranks))
    assert (found["driver"], found["versions"]) == ("warn", "fail")


def test_what_the_probe_lost_is_a_warning_with_a_remedy_and_no_difference() -> None:
    assert states(probe_lines, job()) == {"probe": "ok"}
    line_of_nvml = "the NVML probe ended by signal 11: no telemetry; see nvidia-smi"
    lost = changed(good(1), "facts.lost", {"nvml": line_of_nvml})
    ranks = [replace(good(0), versions={"nvidia_driver": "570"}),
             replace(lost, versions={"nvidia_driver": "unknown"})]
    assert line(probe_lines, job(*ranks), "probe") == (
        "warn", "rank 1: the NVML probe ended by signal 11: no telemetry",
        "see nvidia-smi")
    found = states(software_lines, job(*ranks))
    assert (found["driver"], found["versions"]) == ("n/a", "ok")
    assert states(probe_lines, job(replace(good(), facts=None))) == {}


def test_ucc() -> None:
    def having(rank: int) -> RankReport:
        one = changed(good(rank), "facts.ucc.reason", None)
        return changed(one, "facts.ucc.layers", ["cuda", "ucp"])

    state, found, _ = line(software_lines, job(having(0), having(1)), "UCC")
    assert state == "ok" and "cuda, ucp" in found
    assert line(software_lines, job(having(0), good(1)), "UCC")[0] == "warn"


@pytest.mark.parametrize(("of", "state"), [
    (job(good(mpi="none"), announced=(1, "torchrun")), "n/a"),
    (job(good(mpi="none"), announced=None), "warn"),
    (job(good(mpi="none"), announced=(4, "srun"), start_error="mpi4py is not installed"), "fail"),
])
def test_no_mpi(of: JobReport, state: str) -> None:
    assert line(software_lines, of, "MPI")[0] == state


def test_versions_that_differ_fail_and_are_named() -> None:
    ranks = [good(0), good(1), replace(good(2), versions={**good().versions, "torch": "2.4"})]
    state, found, _ = line(software_lines, job(*ranks), "versions")
    assert state == "fail" and found == (
        "differ between ranks: torch 2.9 on rank 0-1, 2.4 on rank 2")
    assert line(software_lines, job(good()), "versions")[0] == "n/a"


@pytest.mark.parametrize(("error", "fix"), [
    (f"two processes are rank 1: process 7 on a and process 8 on b; {REMEDY}", REMEDY),
    ("2 of 4 ranks have not come in 60 s: 2, 3", "--timeout S waits longer")])
def test_ranks_of_torchrun_that_do_not_meet_are_reported_in_one_line(error: str, fix: str) -> None:
    of = job(good(mpi="none"), announced=(4, "torchrun"), start_error=error)
    assert line(software_lines, of, "MPI")[0] == "n/a"
    state, found, how = line(launching_lines, of, "ranks")
    assert (state, found) == ("fail", error.removesuffix(f"; {REMEDY}")) and how.endswith(fix)


def test_lonely_ranks_fail_with_the_fix() -> None:
    of = job(good(), announced=(4, "srun"), world_size_fix="use --mpi=pmi2")
    assert line(launching_lines, of, "ranks") == (
        "fail", "srun started 4, but MPI sees 1", "use --mpi=pmi2; see docs/launching.md")


def test_lost_ranks_fail_by_name() -> None:
    of = job(good(), world_size=3, announced=None, lost={1: "", 2: "b"}, timeout_s=60.0)
    state, found, _ = line(launching_lines, of, "ranks")
    assert (state, found) == ("fail", "no answer within 60 s from rank 1, 2 on b")


@pytest.mark.parametrize(("ranks", "state"), [(1, "n/a"), (2, "ok")])
def test_no_launcher(ranks: int, state: str) -> None:
    of = job(*map(good, range(ranks)), announced=None)
    assert line(launching_lines, of, "launcher")[0] == state


def test_uneven_nodes_are_a_warning() -> None:
    two = job(good(0), good(1, node="b"))
    assert line(launching_lines, two, "nodes")[:2] == ("ok", "2, with 1 rank each")
    three = job(good(0), good(1), good(2, node="b"))
    state, found, _ = line(launching_lines, three, "nodes")
    assert state == "warn" and "host-a 2, host-b 1" in found


@pytest.mark.parametrize(("gpus", "state", "told_of"), [
    ([["u0"], ["u0"]], "warn", "none is left for rank 1"),
    ([["u0"], ["u1"]], "ok", "for each rank: H100; ranks of a node see theirs under one number"),
    ([["u0", "u1", "u2"], ["u0", "u1", "u2"]], "ok", "1 more are seen"),
])
def test_gpus_are_one_for_each_rank(gpus: list[list[str]], state: str, told_of: str) -> None:
    ranks = [with_gpus(good(rank), *seen) for rank, seen in enumerate(gpus)]
    found = line(device_lines, job(*ranks), "GPUs")
    assert found[0] == state and told_of in found[1]


def test_gpus_of_two_kinds_are_a_warning() -> None:
    ranks: list[Any] = [with_gpus(good(0), "u0"), changed(
        with_gpus(good(1), "u1"), "facts.cuda.names", ["A10"])]
    assert line(device_lines, job(*ranks), "GPUs")[0] == "warn"


def test_a_gpu_that_torch_has_no_code_for_fails() -> None:
    no_code = "torch 2.11 has no code for sm_70, only for sm_80; the wheels for CUDA 12.6 have"
    of = job(with_gpus(good(), "u0", no_code=no_code))
    assert line(device_lines, of, "GPU code") == (
        "fail", "rank 0: torch 2.11 has no code for sm_70, only for sm_80",
        "the wheels for CUDA 12.6 have")


def test_reports_as_pdf_need_a_library_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcbench.validation.job.metadata.version", lambda name: "70.0")
    monkeypatch.setattr("hpcbench.validation.job.find_library", lambda name: None)
    state, found, fix = line(report_lines, job(), "PDF reports")
    assert state == "warn" and "no Pango" in found and "libpangoft2" in fix
    monkeypatch.setattr("hpcbench.validation.job.find_library", lambda name: "there")
    assert states(report_lines, job()) == {"PDF reports": "ok"}

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)
    monkeypatch.setattr("hpcbench.validation.job.metadata.version", missing)
    assert states(report_lines, job()) == {"PDF reports": "n/a"}
