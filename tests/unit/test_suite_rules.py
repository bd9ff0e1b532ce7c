"""The suite's own rules: unlisted skips fail, some tests wait for a flag, and each says why."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import AllowedSkip, allowed_skips
from launcher import ROOT
from scheduling import APART, BESIDE_OTHERS

TESTS = """
import pytest

def test_listed(): pytest.skip("no such thing here: 7")
def test_unlisted(): pytest.skip("did not feel like it")

@pytest.mark.skipif(True, reason="by mark")
def test_by_mark(): pass

@pytest.mark.xfail(reason="known", strict=True)
def test_xfail(): assert False

@pytest.mark.soak
def test_soak(): pass

def test_of_full(): pass

def test_of_all(): pass
"""
MODULE = "import pytest\npytest.skip('whole file', allow_module_level=True)\n"
LISTED = "*::test_listed | no such thing here: * | the machine decides\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name in ("conftest.py", "launcher.py", "nvml_standins.py", "scheduling.py", "tiers.py",
                 "untested.py"):
        shutil.copy2(ROOT / "tests" / name, tmp_path / name)
    (tmp_path / "full.txt").write_text(
        "*::test_of_full | nothing\n*::test_of_all | --all: nothing\n")
    (tmp_path / "quick.txt").write_text("tests/mpi/* | jobs\n")
    (tmp_path / "allowed_skips.txt").write_text(LISTED)
    (tmp_path / "test_skips.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\nmarkers = soak: long\n")
    return tmp_path


def closing_line(suite: Path, *arguments: str) -> str:
    """Return what pytest counted, whatever options the environment has for other runs of it."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
    done = subprocess.run(command, cwd=suite, text=True, capture_output=True, timeout=200,
                          env={**os.environ, "PYTEST_ADDOPTS": ""})
    counted = [line for line in done.stdout.splitlines() if re.search(r" in \d+\.\d+s", line)]
    return counted[-1].partition(" in ")[0].strip("= ")


@pytest.mark.parametrize(("words", "found"), [
    ([], "1 failed, 1 skipped, 3 deselected, 1 xfailed, 1 error"),
    (["--full"], "1 failed, 1 passed, 1 skipped, 2 deselected, 1 xfailed, 1 error"),
    (["--all"], "1 failed, 3 passed, 1 skipped, 1 xfailed, 1 error"),
    ([f"test_skips.py::test_{name}" for name in ("of_full", "of_all", "soak")],
     "2 passed, 1 deselected")], ids=["no flag", "full", "all", "named"])
def test_unlisted_skips_fail_and_flags_add_tests(
    suite: Path, words: list[str], found: str,
) -> None:
    assert closing_line(suite, *words) == found


def test_a_skipped_file_fails(suite: Path) -> None:
    (suite / "test_skips.py").write_text(MODULE)
    assert "1 error" in closing_line(suite)


def test_patterns_take_brackets_literally() -> None:
    skip = AllowedSkip("*::test_a[openmpi*", "no * here")
    assert skip.allows("tests/test_x.py::test_a[openmpi-4]", "no MPI here")
    assert not skip.allows("tests/test_x.py::test_ao", "no MPI here")
    assert not skip.allows("tests/test_x.py::test_a[openmpi-4]", "no MPI")


def test_every_line_states_why() -> None:
    assert allowed_skips((ROOT / "tests" / "allowed_skips.txt").read_text())
    with pytest.raises(ValueError):
        allowed_skips("*::test_a | no MPI")


def test_a_test_that_ends_its_process_fails_alone(suite: Path) -> None:
    (suite / "test_skips.py").write_text(
        "import os, pytest\n\n"
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_of(number): number == 2 and os.abort()\n")
    (suite / "test_more.py").write_text("def test_one(): pass\n\ndef test_another(): pass\n")
    assert closing_line(suite, "-n", "2") == "1 failed, 7 passed"


@pytest.mark.parametrize("place", [*BESIDE_OTHERS, *APART])
def test_what_has_a_place_among_the_jobs_exists(place: str) -> None:
    file, _, name = place.partition("::")
    assert f"def {name or 'test_'}" in (ROOT / file).read_text(encoding="utf-8")
