"""Runs a job's command so that each of its ranks writes its flight record; and what that costs a
call: a loop of gloo's all_reduce of one rank, with and without recording."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from hpcbench.errors import FileError, UsageError
from hpcbench.launch.launcher import by_torchrun
from hpcbench.units import plural

STARTUP = Path(__file__).parent / "startup"
"""Has to be first on PYTHONPATH: the one variable for jobs that cannot be wrapped."""
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and which a program started by it would ignore, too."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Where ranks write, how many calls torch keeps, and the work of its profiler.

    ``durations``: it notes those of gloo's calls. ``profile``: first and last step, ``3-5``."""

    folder: Path
    calls: int | None = None
    durations: bool = False
    quiet: bool = False
    profile: str | None = None


def run_recorded(command: Sequence[str], recording: Recording) -> NoReturn:
    """Become the command: its process, streams, exit code and signals are those of this one.

    Raises FileError for a folder with records, UsageError for a command that cannot be started."""
    environ = recorded_environment(os.environ, recording)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0) > 0
    if by_torchrun(os.environ) and restarted:
        pass  # records of ranks from before they failed stay beside
    elif any(recording.folder.glob("rank*.json")):
        raise FileError(f"{recording.folder} has records of another job: give another folder with "
                        "-o, or remove them")
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _RESET}
    try:
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started: {error.strerror}") from error
    finally:  # a process that goes on as it is would end at a pipe that nobody reads
        for number, handler in before.items():
            signal.signal(number, handler)


def recorded_environment(environ: Mapping[str, str], recording: Recording) -> dict[str, str]:
    """Return the variables of a command whose ranks are to write their records."""
    others = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep)
              if part and Path(part) != STARTUP]
    environment = {**environ, "PYTHONPATH": os.pathsep.join((str(STARTUP), *others)),
                   "HPCBENCH_RECORD": str(recording.folder.absolute()),
                   "HPCBENCH_RECORD_PID": str(os.getpid())}
    if recording.calls is not None:
        environment["HPCBENCH_RECORD_CALLS"] = str(recording.calls)
    if recording.profile is not None:
        environment["HPCBENCH_RECORD_PROFILE"] = recording.profile
    for name, is_on in (("DURATIONS", recording.durations), ("QUIET", recording.quiet)):
        if is_on:
            environment[f"HPCBENCH_RECORD_{name}"] = "1"
    return environment


PAIRS = 5
SETTINGS: Mapping[str, bool] = {"recording": False, "with --durations": True}
_LOOP = """
import os, time
if hasattr(os, "sched_setaffinity"):  # on several cores, who wakes whom changes the time more
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ones, means = torch.ones(16), []
for number in range(101):
    began = time.process_time()
    for _ in range(100):
        dist.all_reduce(ones)
    means.append((time.process_time() - began) / 100)
dist.destroy_process_group()
print(min(means))
"""


def cost_lines(pairs: int = PAIRS) -> Iterator[str]:
    """Yield the CPU time that recording adds to a call, for each of SETTINGS.

    Each number is the median of so many differences of two processes, one after the other, with
    their range; the time of a process is the least of 101 means, on one core. Raises UsageError
    where the loop does not run."""
    with TemporaryDirectory(prefix="hpcbench-record-") as folder:
        rounds = [_round(Path(folder) / str(number)) for number in range(pairs)]
    for at, name in enumerate(SETTINGS, 1):
        added = [(one[at] - one[0]) * 1e6 for one in rounds]
        yield (f"{name}: {statistics.median(added):.1f} us of CPU a gloo call "
               f"({min(added):.1f} to {max(added):.1f} in {plural(pairs, 'pair')})")


def _round(folder: Path) -> Sequence[float]:
    """Return the seconds of a call without recording, and with each setting."""
    return [_seconds(dict(os.environ)), *(_seconds(recorded_environment(
        os.environ, Recording(folder / str(durations), durations=durations, quiet=True)))
        for durations in SETTINGS.values())]


def _seconds(environ: Mapping[str, str]) -> float:
    done = subprocess.run([sys.executable, "-c", _LOOP], env={**environ, "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(f"--cost needs torch with gloo: {last}")
    return float(done.stdout)
