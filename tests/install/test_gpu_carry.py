"""`bash benchmarks/gpu.sh --carry DIR`: no network, and a Python that has torch and no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu.sh"
OFFLINE = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_RETRIES": "0"}
OF_TORCH = ("torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "filelock", "fsspec",
            "jinja2", "markupsafe", "typing_extensions", "setuptools")
"""What an image with torch has: torch, and what it depends on but numpy."""
VERSION = "{}.{}".format(*sys.version_info)
NO_NETWORK = ("establish a new connection", "name resolution", "Max retries", "ProxyError",
              "from versions: none")
SWEEP = {"name": "small", "output": {"plots": False},
         "measure": {"passes": 1, "warmup": 1, "iterations": 3, "canary": False,
                     "noise_check_s": 0},
         "benchmarks": [{"kind": "collective", "collective": "all_reduce", "size": 8}]}
STEPS = {"device": "cpu", "steps": [
    {"name": "small", "sweep": "small.json", "ranks": 2,
     "goals": [{"id": "ok", "text": "Two ranks are right.", "judge": "all_ok"}]},
    {"name": "tests", "command": ["{python}", "-m", "pytest", "--version"],
     "modules": ["pytest", "pytest_timeout", "hypothesis"],
     "goals": [{"id": "pytest", "text": "pytest is carried."}]}]}

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]


def bash(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HPCBENCH_")}
    return subprocess.run(["bash", str(SCRIPT), *words], env=kept | env, text=True, timeout=400,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def give_torch(there: Path) -> None:
    """Put torch and what that depends on where another Python finds it."""
    there.mkdir(parents=True, exist_ok=True)
    ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    for path in ours.iterdir():
        name = path.name.partition(".")[0].partition("-")[0].lower()
        if name in OF_TORCH and not (there / path.name).exists():
            (there / path.name).symlink_to(path)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that was filled for this Python."""
    folder = tmp_path_factory.mktemp("wheels")
    filled = bash("--fill", str(folder), VERSION, HPCBENCH_PYTHON=sys.executable)
    if any(text in filled.stdout for text in NO_NETWORK) and not os.environ.get("CI"):
        pytest.skip("pip cannot reach a package index")
    assert filled.returncode == 0, filled.stdout
    assert not [*folder.glob("torch-*")] and not [*folder.glob("nvidia_cu*")]
    return folder


def test_a_python_with_torch_alone_runs_a_session_from_carried_wheels(
    wheels: Path, tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "image"], check=True)
    give_torch(next((tmp_path / "image/lib").glob("python3*")) / "site-packages")
    image = str(tmp_path / "image/bin/python")
    (tmp_path / "small.json").write_text(json.dumps(SWEEP))
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps(STEPS))
    session = tmp_path / "session"
    words = ("5", "--steps", str(steps), "-o", str(session))

    bare = bash(*words, "--no-setup", HPCBENCH_PYTHON=image)
    assert bare.returncode == 2 and "lacks numpy, h5py, " in bare.stdout, bare.stdout
    assert "torch" not in bare.stdout.partition(" lacks ")[2].partition(":")[0]

    here = {**OFFLINE, "HPCBENCH_PYTHON": image, "HPCBENCH_VENV": str(tmp_path / "venv")}
    carried = bash(*words, f"--carry={wheels}", **here)
    assert carried.returncode == 0, carried.stdout
    verdicts = json.loads((session / "verdicts.json").read_text())["verdicts"]
    assert {item["goal"]: item["verdict"] for item in verdicts} == {"ok": "met", "pytest": "met"}
    asked = [str(tmp_path / "venv-carry/bin/python"), "-c",
             "import torch, mpi4py; print(torch.__file__, mpi4py.__file__)"]
    torch, mpi4py = subprocess.run(asked, text=True, capture_output=True,
                                   check=True).stdout.split()
    assert torch.startswith(str(tmp_path / "image")) and "/venv-carry/" in mpi4py
    stamp = tmp_path / "venv-carry/hpcbench-stamp"
    before = stamp.read_text()
    again = bash(*words, f"--carry={wheels}", **here)
    assert stamp.read_text() == before and "installing" not in again.stdout

    shutil.copytree(wheels, tmp_path / "few", ignore=shutil.ignore_patterns("mpi4py-*"))
    few = bash(*words, "--carry", str(tmp_path / "few"), **here)
    assert few.returncode == 2 and "pip cannot install from" in few.stdout
    assert f"--fill DIR {VERSION}" in few.stdout


def test_a_set_up_without_a_network_states_how_wheels_are_carried(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(SWEEP))
    (tmp_path / "steps.json").write_text(json.dumps(STEPS))
    done = bash("--steps", str(tmp_path / "steps.json"), **OFFLINE,
                HPCBENCH_VENV=str(tmp_path / "venv"), HPCBENCH_PYTHON=sys.executable)
    assert done.returncode == 2 and "see --carry and --fill" in done.stdout, done.stdout
