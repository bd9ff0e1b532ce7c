"""What runs without a flag: each kind, backend, fault and launcher once for real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache

import pytest

from hpcbench.config.axes import BACKENDS
from hpcbench.kinds.registry import kinds
from launcher import ROOT
from tiers import FULL, Later, later
from unit.test_faults_doc import made

EVERY = "test_main_job.py::test_every_collective_on_every_dtype_is_right"
REAL = {
    "kind collective": EVERY,
    "kind primitive": "test_primitives.py::test_every_primitive_order_and_option_is_right",
    "kind training": "test_training_phases.py::test_phases_of_real_steps_add_up",
    "kind memory": "test_memory.py::test_what_ranks_hold_is_measured_beside_what_was_predicted",
    "kind hardware": "test_hardware.py::test_every_test_of_the_machine_runs",
    "kind of a plug-in": "test_plugins.py::test_they_are_planned_run_and_validated",
    "backend gloo": EVERY,
    "backend mpi/direct": "test_mpi_results.py::test_every_collective_is_right_without_torch_"
                          "between",
    "backend mpi": "test_protocol.py::test_every_mode_on_both_kinds_of_workers",
    "launcher mpirun of MPICH": f"{EVERY}[mpich]",
    "launcher mpirun of Open MPI": "test_main_job.py::test_a_log_gets_plain_lines[openmpi]",
    "launcher torchrun": "test_torchrun.py::test_ranks_of_torchrun_run_inline_and_are_not_isolated",
    "launcher none": "test_launch.py::test_without_mpirun_there_is_one_rank",
    "launcher with --inline": "test_launch.py::test_inline_variables_are_those_of_the_case_and_an_"
                              "exception_does_not_end_the_job",
    "run --resume": "test_resume.py::test_sigkill_twice_and_again_makes_one_whole_run",
    "suite": "test_suite.py::test_an_interrupt_ends_the_suite",
    "validate": "test_validate.py::test_four_ranks_give_one_verdict",
    "profiling": "test_profiling.py::test_every_case_gets_one_trace_of_all_ranks_and_no_"
                 "sample_more",
}
"""What is tried for real -> where, below tests/mpi."""
NEED_HARDWARE = {name for name in BACKENDS if name.partition("/")[0] in ("nccl", "ucc")}
NEED_PACKAGES = ("mpi/test_slurm.py", "mpi/test_slurm_ends.py", "mpi/test_limited_link.py")
"""Slurm, and iproute2 for networks of virtual hosts."""


@cache
def collected() -> tuple[str, ...]:
    """Return the ids of tests/mpi that run without a flag."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p",
               "no:cacheprovider", "tests/mpi"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=200,
                          env={**os.environ, "PYTEST_ADDOPTS": ""}, check=True)
    return tuple(line for line in done.stdout.splitlines() if "::" in line)


def runs(test: str) -> bool:
    """Tell whether a test below tests/ is among them, with some of its parameters at least."""
    return any(f"{found}[".startswith((f"tests/{test}[", f"tests/{test}")[test.endswith("]")])
               for found in collected())


@pytest.mark.parametrize("what", REAL)
def test_it_is_tried_for_real(what: str) -> None:
    assert runs(f"mpi/{REAL[what]}")


def test_nothing_that_can_be_tried_is_left_out() -> None:
    assert {f"kind {name}" for name in kinds()} <= set(REAL)
    assert {f"backend {name}" for name in BACKENDS if name not in NEED_HARDWARE} <= set(REAL)


@pytest.mark.parametrize("fault", made())
def test_every_fault_is_made(fault: str) -> None:
    """Those of docs/faults.md that need no system package; by a real job, if one shows it."""
    named = [test for test in made()[fault] if test.partition("::")[0] not in NEED_PACKAGES]
    jobs = [test for test in named if test.startswith("mpi/")]
    if jobs:
        assert any(map(runs, jobs)), jobs
    else:
        lines = later(FULL.read_text(encoding="utf-8"))
        assert not named or any(not any(line.holds(f"tests/{test}") for line in lines)
                                for test in named), named


def test_every_line_of_full_holds_tests_that_exist() -> None:
    for line in later(FULL.read_text(encoding="utf-8")):
        path, _, test = line.pattern.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        name = re.match(r"\w*", test)
        assert name and f"def {name[0] or 'test_'}" in text, line.pattern


def test_patterns_take_brackets_literally() -> None:
    line = Later("tests/x.py::test_a[2*", "one")
    assert line.holds("tests/x.py::test_a[2-mpich]") and not line.holds("tests/x.py::test_a2")


def test_every_line_says_what_there_is_instead() -> None:
    with pytest.raises(ValueError):
        later("tests/x.py::test_a")
    with pytest.raises(ValueError):
        later("tests/x.py::test_a | ")
