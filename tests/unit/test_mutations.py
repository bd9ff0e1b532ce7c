"""The list of scripts/mutate fits the code; with --all each fault is put in, and noticed."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

import pytest

from launcher import ROOT

SCRIPT = ROOT / "scripts/mutate"
FEWEST = 40


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("mutate", str(SCRIPT))
    spec = spec_from_loader("mutate", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["mutate"] = module  # dataclasses look there
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
        del sys.modules["mutate"]
    return module


def test_the_list_fits_the_code(script: ModuleType) -> None:
    listed = script.mutations()
    assert len(listed) >= FEWEST
    assert len({one.name for one in listed}) == len(listed)
    assert not [problem for one in listed if (problem := one.problem())]
    for folder in ("measurement", "reduce", "statistics", "answers"):
        assert any(one.file.startswith(f"hpcbench/{folder}/") for one in listed), folder


def test_a_fault_is_put_in_and_noticed() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "each comparison of a report"],
                          capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 faults, 0 survived" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_fault_is_noticed() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
