"""`hpcbench record`: what a rank writes, and that its program does not notice. torch is a stand-in
of a few lines, so that a process takes no second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcbench.errors import FileError, UsageError
from hpcbench.interop.commands.imports import profiled_steps
from hpcbench.interop.traffic.imported import import_traffic
from hpcbench.interop.traffic.recording import (
    STARTUP,
    Recording,
    recorded_environment,
)

TORCH = {
    "__init__": "__version__ = '2.13.0'",
    "_C/__init__": "",
    "_C/_distributed_c10d": """
import json, os
def _dump_fr_trace_json():
    return json.dumps({"version": "2.10", "entries": [
        {"record_id": number} for number in range(3, 3 + int(os.environ["TORCH_FR_BUFFER_SIZE"]))]})
""",
    "distributed/__init__": "from torch.distributed.distributed_c10d import *",
    "distributed/distributed_c10d": """
import os
import torch
import torch._C._distributed_c10d
class _World:
    pg_group_ranks, pg_names, pg_map = {}, {}, {}
_world = _World()
def init_process_group():
    if "RANK" not in os.environ:
        raise ValueError("RANK expected")
    _world.pg_group_ranks["g"], _world.pg_names["g"] = {0: 0, 1: 1}, "0"
    _world.pg_map["g"] = ("gloo", None)
def destroy_process_group():
    _world.pg_group_ranks.clear()
def get_rank():
    return int(os.environ["RANK"])
def get_world_size():
    return 2
""",
}
JOIN = "import torch.distributed as dist; dist.init_process_group()\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with the stand-in for torch, and a sitecustomize of the user's own."""
    for name, text in TORCH.items():
        path = tmp_path / "lib" / "torch" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "lib" / "sitecustomize.py").write_text("import builtins; builtins.own = 'here'")
    return tmp_path


def run(home: Path, program: str) -> tuple[int, str, str]:
    """Run a program as a rank of a recorded job; return exit code, standard output and error."""
    environ = recorded_environment(variables(home), Recording(home / "rec", calls=4))
    return ended(home, environ, "-c", program)


def run_command(home: Path, program: str, **more: str) -> tuple[int, str, str]:
    """Run it by the command itself, which takes longer."""
    return ended(home, {**variables(home), **more}, "-m", "hpcbench", "record", "-o", "rec",
                 "--calls", "4", "--", sys.executable, "-c", program)


def variables(home: Path) -> dict[str, str]:
    path = os.pathsep.join((str(home / "lib"), *filter(None, sys.path)))
    environ = {name: value for name, value in os.environ.items()
               if not name.startswith(("TORCH", "HPCBENCH"))}
    return {**environ, "PYTHONPATH": path, "RANK": "0"}


def ended(home: Path, environ: dict[str, str], *words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, *words], cwd=home, env=environ, text=True,
                          capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def record_of(home: Path, name: str = "rank00000.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "rec" / name).read_text())
    return found


@pytest.mark.parametrize(("ending", "code"), [
    ("", 0), ("raise ValueError('mine')", 1), ("import sys; sys.exit(7)", 7),
    ("dist.destroy_process_group()", 0), ("import os; os._exit(5)", 5)])
def test_a_rank_writes_however_it_ends(home: Path, ending: str, code: int) -> None:
    found, _, err = run(home, JOIN + ending)
    assert found == code and "4 calls" in err and "3 earlier ones are lost" in err
    record = record_of(home)
    assert record["rank"] == 0 and record["world_size"] == 2 and record["reason"] == "exit"
    assert record["groups"]["0"]["ranks"] == [0, 1] and len(record["dumps"][0]["entries"]) == 4
    assert [path.name for path in (home / "rec").iterdir()] == ["rank00000.json"]


def test_a_rank_that_torch_cannot_number_is_told_what_to_set(home: Path) -> None:
    code, _, err = run(home, f"import os; del os.environ['RANK']\n{JOIN}")
    assert code == 1 and "torchrun" in err and "MASTER_ADDR" in err and "RANK expected" in err


def test_every_signal_ends_a_rank_as_without_record(home: Path) -> None:
    stops = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    numbers = sorted({*range(1, 32)} - stops)
    program = f"""
import os, signal
for number in {numbers}:
    if not (child := os.fork()):
        os.environ["RANK"] = str(number)
        import torch.distributed as dist
        dist.init_process_group()
        before = signal.getsignal(15), signal.getsignal(1)
        assert before == (signal.SIG_DFL, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGKILL)
    print(os.waitpid(child, 0)[1] & 127, flush=True)
"""
    code, without, err = ended(home, {**variables(home), "TORCH_FR_BUFFER_SIZE": "4"},
                               "-c", program)
    assert code == 0, err
    assert run_command(home, program)[:2] == (0, without)
    ends = dict(zip(numbers, map(int, without.split()), strict=True))
    assert ends[15] == 15 and ends[signal.SIGURG] == signal.SIGKILL
    left = {path.name for path in (home / "rec").iterdir()}
    assert {"rank00002.json", "rank00015.started"} < left  # of KeyboardInterrupt, and of SIGTERM
    assert all(f"rank{number:05}.started" in left for number in numbers if number not in (2, 17))


@pytest.mark.parametrize("ending", ["os.execv('/bin/true', ['true'])", "os.abort()"])
def test_a_rank_that_cannot_write_leaves_word(home: Path, ending: str) -> None:
    run(home, JOIN + f"import os; {ending}")
    assert [path.name for path in (home / "rec").iterdir()] == ["rank00000.started"]
    with pytest.raises(FileError, match="rank00000.started: .* lost"):
        import_traffic([home / "rec"], home / "traffic.json")
    assert run(home, JOIN)[0] == 0
    assert [path.name for path in (home / "rec").iterdir()] == ["rank00000.json"]


FULL = """
import builtins, errno, os
opened = builtins.open
class Full:
    def __init__(self, stream): self.stream = stream
    def __enter__(self): return self
    def __exit__(self, *_): self.stream.close()
    def write(self, text):
        self.stream.write(text[:20])
        raise OSError(errno.ENOSPC, "No space left on device", self.stream.name)
builtins.open = lambda path, mode="r", *a, **b: Full(opened(path, mode)) if (
    "w" in mode and "rec" in str(path)) else opened(path, mode, *a, **b)
"""


@pytest.mark.parametrize("before", [FULL, "open('rec', 'w')\n"])
def test_a_disk_that_takes_no_record_costs_one_line(home: Path, before: str) -> None:
    code, _, err = run(home, before + JOIN + "import sys; sys.exit(7)")
    assert code == 7 and err.count("\n") == 1
    assert not (home / "rec").is_dir() or not [*(home / "rec").iterdir()]


def test_sigurg_writes_while_the_program_waits_in_a_library(home: Path) -> None:
    """It is still in its call, with no instruction of Python's between."""
    program = JOIN + """
import ctypes, os, signal, threading
reading, writing = os.pipe()
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGURG)).start()
threading.Timer(1.0, os.write, (writing, b"x")).start()
ended = ctypes.CDLL(None).read(reading, ctypes.create_string_buffer(1), 1)
assert ended == 1, "the signal ended the call"
found = os.path.exists("rec/rank00000.json")
print(found, len(os.listdir("rec")), open("rec/rank00000.json").read().count("SIGURG"))
"""
    code, out, err = run(home, program)
    assert (code, out.split()) == (0, ["True", "1", "1"]), err
    assert record_of(home)["reason"] == "exit"


def test_a_handler_of_the_programs_own_stays(home: Path) -> None:
    program = ("import signal, os, time\nsignal.signal(signal.SIGURG, lambda *_: print('mine'))\n"
               + JOIN + "os.kill(os.getpid(), signal.SIGURG); time.sleep(0.1)")
    code, out, _ = run(home, program)
    assert (code, out.split()) == (0, ["mine"])


def test_a_program_without_torch_gets_a_note_and_nothing_else(home: Path) -> None:
    code, out, err = run_command(home, """
import sys
print(own, 'torch' in sys.modules, any('startup' in one for one in sys.path))
print(sys.modules['sitecustomize'].__file__)
""")
    assert code == 0 and "nothing is recorded" in err
    assert out.split() == ["here", "False", "False", str(home / "lib" / "sitecustomize.py")]
    assert not (home / "rec").exists()


def test_children_that_are_no_ranks_write_nothing(home: Path) -> None:
    program = JOIN + """
import multiprocessing, subprocess, sys
child = multiprocessing.get_context("fork").Process(target=print, args=("forked",))
child.start(); child.join()
subprocess.run([sys.executable, "-c", "import torch.distributed"], check=True)
"""
    code, _, err = run(home, program)
    assert code == 0 and err.count("hpcbench:") == 1
    assert [path.name for path in (home / "rec").iterdir()] == ["rank00000.json"]


def test_ranks_that_the_program_forks_write(home: Path) -> None:
    program = """
import multiprocessing, os
def rank(number):
    os.environ["RANK"] = str(number)
    import torch.distributed as dist
    dist.init_process_group()
context = multiprocessing.get_context("fork")
children = [context.Process(target=rank, args=(number,)) for number in range(2)]
[child.start() for child in children]; [child.join() for child in children]
"""
    code, _, err = run(home, program)
    assert code == 0 and "nothing" not in err
    assert [record_of(home, f"rank0000{rank}.json")["rank"] for rank in (0, 1)] == [0, 1]


def test_records_are_not_written_over(home: Path) -> None:
    assert run(home, JOIN)[0] == 0
    code, _, err = run_command(home, JOIN)
    assert code == 2 and "another folder" in err
    assert run_command(home, JOIN, TORCHELASTIC_RUN_ID="x", TORCHELASTIC_RESTART_COUNT="1",
                       WORLD_SIZE="2")[0] == 0  # as torchrun starts a rank again
    assert {path.name for path in (home / "rec").iterdir()} == {
        "rank00000.json", "rank00000.2.json"}


def test_one_variable_is_enough(home: Path) -> None:
    """For a job that cannot be started by `hpcbench record`."""
    path = os.pathsep.join((str(STARTUP), str(home / "lib")))
    subprocess.run([sys.executable, "-c", JOIN], cwd=home, check=True, capture_output=True,
                   env={**os.environ, "PYTHONPATH": path, "RANK": "1"})
    assert json.loads((home / "record" / "rank00001.json").read_text())["rank"] == 1


def test_wrong_usage_is_one_line(home: Path) -> None:
    """And the folder for jobs that cannot be started so is printed alone."""
    assert ended(home, variables(home), "-m", "hpcbench", "record", "--startup")[1].strip() == str(
        STARTUP)
    done = subprocess.run([sys.executable, "-m", "hpcbench", "record", "-o", "rec"], cwd=home,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--" in done.stderr
    done = subprocess.run([sys.executable, "-m", "hpcbench", "record", "--", "no-such-program"],
                          cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("text", "steps"), [("3", "3-3"), ("3-5", "3-5"), ("1-1", "1-1")])
def test_steps_to_profile(text: str, steps: str) -> None:
    assert profiled_steps(text, durations=False) == steps
    with pytest.raises(UsageError):
        profiled_steps(text, durations=True)


@pytest.mark.parametrize("text", ["", "0", "5-3", "a", "3-", "-3", "1-2-3", "9" * 30])
def test_steps_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        profiled_steps(text, durations=False)
