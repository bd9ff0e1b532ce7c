"""hpcbench can be started in any folder, whatever modules and checkouts lie there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import ROOT, MpiLauncher
from mpi.reading import read, sweep

LIBRARIES = ("torch", "numpy", "yaml", "h5py", "typer", "mpi4py", "json", "runpy", "statistics")


@pytest.fixture
def own_modules(tmp_path: Path) -> Path:
    """A folder whose modules are called as libraries are, and end whoever imports them."""
    for name in LIBRARIES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder')\n")
    (tmp_path / "hpcbench_jax").mkdir()
    return tmp_path


def here(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed hpcbench in a folder: without PYTHONPATH, which would name the checkout."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environ, text=True,
                          capture_output=True, timeout=120, check=False)


def test_a_checkout_of_this_name_does_not_hide_the_package(tmp_path: Path) -> None:
    """``git clone URL hpcbench; bash hpcbench/jobs/local.sh`` was an ImportError."""
    (tmp_path / "hpcbench" / "hpcbench").mkdir(parents=True)
    (tmp_path / "hpcbench" / "README.md").touch()
    done = here(tmp_path, "-m", "hpcbench", "plan", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cases"]


@pytest.mark.parametrize("command", ["plan", "list", "schema"])
def test_modules_of_the_current_folder_are_not_imported(own_modules: Path, command: str) -> None:
    done = here(own_modules, "-m", "hpcbench", command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the current folder" not in done.stdout + done.stderr


@pytest.mark.parametrize("folder", ["/", str(Path.home())])
def test_the_root_and_a_home_folder_are_like_any_other(folder: str) -> None:
    done = here(Path(folder), "-m", "hpcbench", "list", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["backends"]["gloo"]["available"]


def test_hpcbench_in_the_current_folder_is_found() -> None:
    done = here(ROOT, "-S", "-c", "import sys; import hpcbench.import_path as own\n"
                "own.leave_out_current_folder(); print(sys.path[-1])")
    assert done.stdout.strip() == str(ROOT)


@pytest.mark.mpi
def test_a_job_beside_modules_of_those_names(own_modules: Path, mpirun: MpiLauncher) -> None:
    """The supervisor's libraries, the worker's torch, and the MPI of backend mpi."""
    done = mpirun.run(1, config=sweep("1KiB", block={"backend": ["gloo", "mpi"]}),
                      before=("env", "-C", str(own_modules))).check()
    assert set(read(done.folder).status().values()) == {"ok"}
