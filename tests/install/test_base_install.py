"""The base install, as on a laptop: from a copy of the sources, without torch and mpi4py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbench import __version__
from hpcbench.config.presets import HARDWARE
from launcher import ROOT

SAMPLE = ROOT / "tests" / "data" / "golden" / "runs" / "collective" / "results.h5"

pytestmark = pytest.mark.timeout(600)


def copy_sources(folder: Path) -> Path:
    """Copy what a package is built from: building in the checkout would leave build/ there."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "hpcbench", folder / "hpcbench", ignore=ignore)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, folder / path.name)
    return folder


def pip_install(venv: Path, *words: str, sources: Path | None = None) -> None:
    """Install into an environment, of the versions that the sources name if there are any.

    Our own pip does it, and compiles nothing: each takes as long as the rest.
    """
    pinned = ["-c", sources / "constraints.txt"] if sources else []
    command = [sys.executable, "-m", "pip", "--python", venv, "install", "--quiet", "--no-input",
               "--no-compile", "--disable-pip-version-check", *pinned, *words]
    done = subprocess.run(command, text=True, capture_output=True, timeout=500)
    offline = ("establish a new connection", "name resolution", "Max retries", "ProxyError")
    if any(text in done.stderr for text in offline) and not os.environ.get("CI"):
        pytest.skip("pip cannot reach a package index")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with hpcbench and no extras."""
    folder = tmp_path_factory.mktemp("base")
    sources = copy_sources(folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True,
                   timeout=120)
    pip_install(folder / "venv", "setuptools", sources=sources)
    pip_install(folder / "venv", "--no-build-isolation", str(sources), sources=sources)
    shutil.rmtree(sources / "hpcbench")
    # else the first plot may say on stderr that this takes a moment
    subprocess.run([folder / "venv" / "bin" / "python", "-c", "import matplotlib.font_manager"],
                   check=True, timeout=120)
    return folder / "venv"


def hpcbench(venv: Path, cwd: Path, *arguments: str) -> str:
    """Run the entry point away from the checkout; return its stdout."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([venv / "bin" / "hpcbench", *arguments], cwd=cwd, env=env, text=True,
                          capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", ["torch", "mpi4py", "pynvml", "pytest"])
def test_no_extras(venv: Path, name: str) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{name}') is not None)"
    subprocess.run([venv / "bin" / "python", "-c", code], check=True)


def test_help_and_version(venv: Path, tmp_path: Path) -> None:
    assert "mpirun -np 4 python -m hpcbench run" in hpcbench(venv, tmp_path, "--help")
    assert hpcbench(venv, tmp_path, "--version") == f"hpcbench {__version__}\n"


@pytest.mark.parametrize(("words", "text"), [
    (("schema",), '"type": "object"'), (("plan",), "all_reduce"), (("list",), "all_reduce"),
    (("show", str(SAMPLE)), "all_reduce"),
    *((("gen-config", "--hardware", name), f"name: {name}")
      for name in (min(HARDWARE), max(HARDWARE)))])
def test_commands_without_a_job(
    venv: Path, tmp_path: Path, words: tuple[str, ...], text: str,
) -> None:
    assert text in hpcbench(venv, tmp_path, *words)


def test_plot(venv: Path, tmp_path: Path) -> None:
    printed = hpcbench(
        venv, tmp_path, "plot", str(SAMPLE), "-o", "plots", "--only", "all_gather*").split()
    figures = sorted(path.name for path in (tmp_path / "plots").glob("*.png"))
    assert figures and sorted(Path(line).name for line in printed) == figures


def test_run_states_what_to_install(venv: Path, tmp_path: Path) -> None:
    done = subprocess.run([venv / "bin" / "hpcbench", "run"], cwd=tmp_path, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 2, done
    assert "pip install '.[run]' in a checkout" in done.stderr and "Traceback" not in done.stderr
