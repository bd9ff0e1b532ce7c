"""torch's CUDA build without a GPU and without a driver: imports, forks, the probe, and a job.

HPCBENCH_TEST_CUDA_PYTHON names the Python that has the build; scripts/cuda_wheel makes one.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from reading import ONCE, read

from launcher import ROOT, MpiLauncher

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
VARIABLE = "HPCBENCH_TEST_CUDA_PYTHON"
TESTS_OF_BUILDS = (
    ("tests/workloads/test_compiled.py", "-k", "async"),  # torch's pass asks the build for NCCL
    ("tests/workloads/test_builds.py::test_every_device_is_opened_with_fp32_in_fp32",
     "tests/workloads/test_error_texts.py"),
)
"""Tests whose answer may be another with this build, and that need no GPU."""


@pytest.fixture
def cuda_python() -> Path:
    """Return the Python that has the CUDA build."""
    if VARIABLE not in os.environ:
        pytest.skip(f"no CUDA build of torch: {VARIABLE} is not set (scripts/cuda_wheel sets it)")
    return Path(os.environ[VARIABLE])


def output_of(python: Path, *words: str) -> str:
    """Run a program of this checkout; return what it prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, *words], cwd=ROOT, env=env, text=True, capture_output=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_facts_are_those_that_are_stored(cuda_python: Path) -> None:
    output_of(cuda_python, "tests/cuda_wheel.py")


def test_a_template_has_one_thread_and_its_forks_can_use_cuda(cuda_python: Path) -> None:
    told = json.loads(output_of(cuda_python, "tests/mpi/on_cuda_wheel.py", "kinds"))
    assert {"collective", "hardware", "memory", "primitive", "training"} <= told.keys()
    assert told == dict.fromkeys(told, [1, False, False])


def test_the_probe_needs_no_driver(cuda_python: Path) -> None:
    told = output_of(cuda_python, "tests/mpi/on_cuda_wheel.py", "probe")
    cuda = json.loads(told.splitlines()[-1])
    assert (cuda["available"], cuda["reason"]) == (False, "no GPU is visible")


@pytest.mark.mpi
def test_a_job_runs_on_gloo_and_skips_what_needs_a_gpu(cuda_python: Path, tmp_path: Path) -> None:
    mpirun = MpiLauncher("mpich", cuda_python.parents[1], tmp_path)
    job = mpirun.run(2, timeout=300, config={
        "measure": {**ONCE, "iterations": 3}, "benchmarks": [
            {"kind": "collective", "collective": "all_reduce", "backend": ["gloo", "nccl"],
             "size": "4KiB"}]}).check()
    told = {item.case.backend: (item.status, item.reason)
            for item in read(job.folder).results.cases}
    assert told["gloo"] == ("ok", "")
    status, reason = told["nccl"]
    assert status == "skipped" and "no GPU is visible" in reason
    mpirun.assert_no_orphans()


@pytest.mark.mpi
def test_a_driver_that_crashes_fails_what_needs_a_gpu(cuda_python: Path, tmp_path: Path) -> None:
    """A stand-in for the driver's library ends the process that asks it for its calls.

    No worker of a case on the CPU does: torch's barrier would ask which devices there are.
    """
    source = tmp_path / "driver.c"
    source.write_text("#include <stdlib.h>\n"
                      "int cuDriverGetVersion(int *version) { *version = 13000; return 0; }\n"
                      "int cuInit(unsigned flags) { abort(); }\n"
                      "int cuGetProcAddress_v2(const char *name) { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o",
                    tmp_path / "libcuda.so.1", source], check=True)
    mpirun = MpiLauncher("mpich", cuda_python.parents[1], tmp_path)
    job = mpirun.run(2, timeout=300, env={"LD_LIBRARY_PATH": str(tmp_path)}, config={
        "measure": {**ONCE, "iterations": 3}, "benchmarks": [
            {"kind": "collective", "collective": ["all_reduce", "all_gather"], "backend": "gloo",
             "size": "4KiB", "device": device} for device in ("cuda", "cpu")]}).check(1)
    found = read(job.folder).results.cases
    assert [case.status for case in found] == ["failed"] * 2 + ["ok"] * 2
    assert all("CUDA probe ended by signal 6 (SIGABRT)" in case.reason for case in found[:2])
    mpirun.assert_no_orphans()


@pytest.mark.parametrize("words", TESTS_OF_BUILDS, ids=" ".join)
def test_what_is_tested_with_the_cpu_build_holds_in_this_one(
    cuda_python: Path, words: tuple[str, ...],
) -> None:
    output_of(cuda_python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
