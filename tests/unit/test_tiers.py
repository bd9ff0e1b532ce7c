"""What runs without a flag: each kind, backend and launcher for real; --full has every fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbench.config.axes import BACKENDS
from hpcbench.kinds.registry import kinds
from launcher import ROOT
from tiers import FULL, QUICK, Listed, is_quick, listed, matching
from unit.test_pages import made

NEED_HARDWARE = {name for name in BACKENDS if name.partition("/")[0] in ("nccl", "ucc")}
NEED_MINUTES = {"kind hardware", "kind memory"}
"""With --full only: one measures a machine for a while, the other tries batches until one fails."""
LAUNCHERS = ("mpirun of MPICH", "mpirun of Open MPI", "torchrun", "none")
LISTS = {path: listed(path.read_text(encoding="utf-8")) for path in (FULL, QUICK)}


def test_each_part_runs_for_real() -> None:
    shown = {part for line in LISTS[QUICK] for part in line.reason.split(", ")}
    parts = {*(f"kind {name}" for name in kinds()), *(f"launcher {name}" for name in LAUNCHERS),
             *(f"backend {name}" for name in BACKENDS if name not in NEED_HARDWARE),
             "plug-ins", "--inline", "run --resume", "jobs/local.sh", "every timing mode"}
    assert parts - NEED_MINUTES <= shown


@pytest.mark.parametrize("fault", made())
def test_every_fault_has_a_test_of_full(fault: str) -> None:
    """One that need not wait for --all; faults between virtual hosts take minutes."""
    paths = {test.partition("::")[0] for test in made()[fault]}
    assert not made()[fault] or "mpi/test_limited_link.py" in paths or any(
        not waits_for_all(test) for test in made()[fault])


def waits_for_all(test: str) -> bool:
    path, _, name = test.partition("::")
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    found = re.search(rf"((?:^@.*\n(?:^ .*\n)*)*)^def {name}\(", text, re.MULTILINE)
    return found is None or "@pytest.mark.soak" in found[1] or any(
        line.matches(f"tests/{test}") for line in LISTS[FULL] if line.is_for_all)


@pytest.mark.parametrize("path", [FULL, QUICK], ids=lambda path: path.name)
def test_every_line_names_tests_that_exist(path: Path) -> None:
    for line in LISTS[path]:
        file, _, test = line.pattern.partition("::")
        name = re.match(r"\w*", test)
        assert name and f"def {name[0] or 'test_'}" in (ROOT / file).read_text(), line.pattern


def test_a_job_waits_unless_it_is_listed() -> None:
    one = matching([Listed("tests/mpi/test_x.py::test_a[2*", "backend mpi")])
    none, unit = matching([]), matching([Listed("tests/unit/*", "the same")])
    assert is_quick("tests/mpi/test_x.py::test_a[2-mpich]", one, none)
    assert not is_quick("tests/mpi/test_x.py::test_a2", one, none)
    assert is_quick("tests/unit/test_y.py::test_a", one, none)
    assert not is_quick("tests/unit/test_y.py::test_a", none, unit)


def test_what_waits_for_all_is_no_job_that_must_run_without_a_flag() -> None:
    for one in LISTS[QUICK]:
        assert not any(one.pattern.startswith(line.beginning) and line.matches(one.pattern)
                       for line in LISTS[FULL] if line.is_for_all), one.pattern


@pytest.mark.parametrize("line", ["tests/x.py::test_a", "tests/x.py::test_a | "])
def test_every_line_has_a_reason(line: str) -> None:
    with pytest.raises(ValueError):
        listed(line)
