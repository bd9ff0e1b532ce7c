"""A laptop reads results: these packages import neither torch nor mpi4py, and --help hardly any."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

from launcher import ROOT

WITHOUT_TORCH_AND_MPI = ("config", "plan", "trace", "reduce", "statistics", "report")
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "mpi4py", "pynvml"}:
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Blocked())
"""


def python(code: str, *arguments: str) -> str:
    """Run code in a fresh interpreter, from the checkout; return its stdout."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, env=env, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules(package: str) -> list[str]:
    folder = import_module(f"hpcbench.{package}")
    found = pkgutil.walk_packages(folder.__path__, f"{folder.__name__}.")
    return [folder.__name__, *(module.name for module in found)]


@pytest.mark.parametrize("package", WITHOUT_TORCH_AND_MPI)
def test_imports_without_torch_and_mpi4py(package: str) -> None:
    names = modules(package)
    code = f"{BLOCK}\nimport importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
    code += "\nassert 'scipy' not in sys.modules"
    python(code, *names)


def test_clock_models_are_read_without_torch_and_mpi4py() -> None:
    python(f"{BLOCK}\nimport hpcbench.trace.clock, hpcbench.launch.clocks")


def test_workers_need_no_hdf5() -> None:
    """It is 11 MB of each, and time before the first case."""
    python("import sys, hpcbench.launch.messages, hpcbench.profiling.profiled_cases\n"
           "assert 'h5py' not in sys.modules")


def test_matplotlib_documents_its_setters_again_once_it_is_imported() -> None:
    python("import hpcbench.report.plots\nfrom matplotlib.artist import Artist\n"
           "class Mine(Artist): pass\nassert 'alpha' in Mine.set.__doc__")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_imports_hardly_anything(arguments: list[str]) -> None:
    """Under 0.3 s needs it; the modules are what a test can hold fast, a time it cannot."""
    code = """
import json, sys
from hpcbench.cli import app
sys.argv[0] = "hpcbench"
try:
    app()
except SystemExit as end:
    assert not end.code
print()
print(json.dumps([name for name in sys.modules if "." not in name]))
"""
    loaded = set(json.loads(python(code, *arguments).splitlines()[-1]))
    heavy = {"torch", "mpi4py", "numpy", "h5py", "matplotlib", "scipy", "psutil", "yaml"}
    heavy |= {"pydantic"} if len(arguments) == 1 else set()  # typer needs it for any command
    assert not loaded & heavy, loaded & heavy
