"""What `bash benchmarks/gpu.sh` asks for before it begins: modules, mpirun, the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcbench.measurement.process import KernelFiles
from launcher import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from gpu import machine, needs  # noqa: E402

SCRIPT = ROOT / "benchmarks" / "gpu.sh"
REFUSED = """\
prterun has detected an attempt to run as root.

Running as root is *strongly* discouraged as any mistake (e.g., in
defining TMPDIR) or bug can result in catastrophic damage.

against doing so - please do so at your own risk.
--------------------------------------------------------------------------
"""
NO_SLOTS = """\
--------------------------------------------------------------------------
There are not enough slots available in the system to satisfy the 5
slots that were requested by the application:

  python
--------------------------------------------------------------------------
"""


def script(*words: str, **env: str) -> tuple[int, str]:
    """Run the script; return its exit code and all that it printed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HPCBENCH_")}
    done = subprocess.run(["bash", str(SCRIPT), *words], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=100, check=False, env=kept | env)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def with_our_packages(bare: Path) -> Path:
    """Return a Python that has our packages, but no mpirun and no MPI beside it."""
    folder = next((bare / "lib").glob("python3*")) / "site-packages"
    ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    (folder / "ours.pth").write_text(f"{ours}\n")
    return bare / "bin" / "python"


def test_a_python_without_the_modules_is_one_line_with_their_names(
    bare: Path, tmp_path: Path,
) -> None:
    code, printed = script("--no-setup", "--steps", str(tmp_path / "none.yaml"),
                           HPCBENCH_PYTHON=str(bare / "bin" / "python"))
    assert code == 2 and printed.count("\n") == 1, printed
    assert f"lacks {', '.join(needs.MODULES.values())}: " in printed
    assert "--carry DIR" in printed and "HPCBENCH_PYTHON" in printed


def test_a_module_that_cannot_be_imported_is_named_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert needs.lacking() == ""
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    said = needs.lacking()
    assert "mpi4py.MPI cannot be imported (" in said and "lacks" not in said and "\n" not in said


def test_no_python_no_wheels_and_no_version_are_one_line_each(tmp_path: Path) -> None:
    steps = ("--steps", str(tmp_path / "none.yaml"))
    for words, said in (
        (("--carry", str(tmp_path), *steps), f"there are no wheels in {tmp_path}"),
        (("--carry",), "--carry needs a folder"), (("--fill",), "--fill needs a folder"),
        (("--fill", str(tmp_path / "w"), "2.7"), "PYTHON must be 3.10 or newer"),
    ):
        code, printed = script(*words, HPCBENCH_VENV=str(tmp_path / "venv"))
        assert code == 2 and said in printed and printed.count("\n") == 1, printed
    code, printed = script("--no-setup", *steps, HPCBENCH_PYTHON="/nowhere/python3")
    assert code == 2 and "cannot run /nowhere/python3" in printed and printed.count("\n") == 1
    code, printed = script("--no-setup", "--help")
    assert code == 0 and "--carry DIR" in printed and "set -u" not in printed


def test_mpirun_is_tried_before_anything_is_run(
    bare: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert needs.found_launcher() == needs.Launcher(str(Path(sys.executable).with_name("mpirun")))
    python = with_our_packages(bare)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(bare))
    assert "there is no mpirun" in needs.found_launcher().wrong
    mpirun = python.with_name("mpirun")
    mpirun.write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{REFUSED}E\nexit 1\n")
    mpirun.chmod(0o755)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(python))
    refused = needs.found_launcher()
    assert refused.refuses and refused.wrong.endswith("attempt to run as root.")
    mpirun.write_text("#!/bin/sh\necho of 1 ranks\necho of 1 ranks\n")
    assert "not of the same MPI" in needs.found_launcher().wrong
    mpirun.unlink()


@pytest.mark.parametrize(("text", "words"), [
    (REFUSED, "prterun has detected an attempt to run as root."),
    (NO_SLOTS, "There are not enough slots available in the system to satisfy the 5 slots that "
               "were requested by the application:"),
    ("Traceback:\n  x\nImportError: no libmpi\n\n", "ImportError: no libmpi"),
    ("", "it printed nothing"), ("-" * 40, "it printed nothing")])
def test_what_a_launcher_complains_of(text: str, words: str) -> None:
    assert needs.first_words(text) == words


def test_a_probe_that_crashes_or_hangs_names_what_to_check() -> None:
    dies = "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGSEGV)"
    found = machine.look([sys.executable, "-c", dies])
    assert not found.gpus and "it was ended by SIGSEGV" in found.broken
    fails = machine.look([sys.executable, "-c", "raise RuntimeError('no driver')"])
    assert "exit code 1: RuntimeError: no driver" in fails.broken
    began = time.monotonic()
    hangs = machine.look([sys.executable, "-c", "import time; time.sleep(60)"], patience_s=0.5)
    assert "did not answer within 0.5 s" in hangs.broken and "nvidia-smi" in hangs.broken
    assert time.monotonic() - began < 20


def test_a_cuda_that_crashes_in_the_child_that_asks_it_is_a_broken_machine() -> None:
    """The probe itself goes on, and answers: there is no GPU, as far as it knows."""
    lost = "the CUDA probe ended by signal 11 (SIGSEGV): no case runs on a GPU; see"
    none: dict[str, object] = dict.fromkeys(("names", "uuids", "memory_bytes", "details"), ())
    facts: dict[str, object] = {
        "cuda": {**none, "available": False, "reason": lost.partition(":")[0]},
        "versions": {"torch": "2.13.0", "cuda": "13.0"}, "lost": {"cuda": lost}}
    found = machine.look([sys.executable, "-c", f"print({json.dumps(facts)!r})"])
    assert found.broken == lost and not found.gpus


def test_cores_are_those_that_a_cgroup_grants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(machine, "KernelFiles", lambda: KernelFiles(tmp_path))
    monkeypatch.setattr("hpcbench.measurement.process.own_cores", lambda: [0, 1, 2, 3])
    assert machine.Machine().cores == 1


def test_nothing_of_a_program_that_was_asked_is_left(tmp_path: Path) -> None:
    child = "import subprocess as s; p = s.Popen(['sleep', '60']); print(p.pid, flush=True)"
    answer = needs.ask([sys.executable, "-c", f"{child}; p.wait()"], 3)
    assert answer.code is None
    pid = int(answer.stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("reason", "versions", "words"), [
    (None, {"torch": "2.13.0+cu130", "cuda": "13.0", "nvidia_driver": "580.65"}, ""),
    ("torch 2.13.0+cpu is a CPU build", {"torch": "2.13.0+cpu"}, "is a CPU build"),
    ("torch 2.13.0+cpu is a CPU build", {"torch": "2.13.0+cpu", "nvidia_driver": "580.65"},
     "https://download.pytorch.org/whl/cu126"),
    ("no GPU is visible", {"torch": "2.13.0", "cuda": "13.0", "nvidia_driver": "470.1"},
     "new enough for this torch")])
def test_why_torch_sees_no_gpu_where_there_is_a_driver(
    reason: str | None, versions: dict[str, str], words: str,
) -> None:
    said = machine.without_gpus(reason, versions)
    assert words in said and (words or not said)
    assert ("but there is a driver" in said) == bool(reason and "nvidia_driver" in versions)
