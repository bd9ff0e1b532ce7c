"""Runs a job's command so that each of its ranks writes its flight record."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hpcbench.errors import FileError, UsageError
from hpcbench.launch.launcher import by_torchrun

STARTUP = Path(__file__).parent / "startup"
"""Has to be first on PYTHONPATH: the one variable for jobs that cannot be wrapped."""
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and which a program started by it would ignore, too."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Where ranks write, how many calls torch keeps, and the work of its profiler.

    ``durations``: it notes those of gloo's calls. ``profile``: first and last step, ``3-5``.
    """

    folder: Path
    calls: int | None = None
    durations: bool = False
    quiet: bool = False
    profile: str | None = None


def run_recorded(command: Sequence[str], recording: Recording) -> NoReturn:
    """Become the command: its process, streams, exit code and signals are those of this one.

    Raises FileError for a folder with records, UsageError for a command that cannot be started.
    """
    environ = recorded_environment(os.environ, recording)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0) > 0
    if by_torchrun(os.environ) and restarted:
        pass  # records of ranks from before they failed stay beside
    elif any(recording.folder.glob("rank*.json")):
        raise FileError(f"{recording.folder} has records of another job: give another folder with "
                        "-o, or remove them")
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started: {error.strerror}") from error


def recorded_environment(environ: Mapping[str, str], recording: Recording) -> dict[str, str]:
    """Return the variables of a command whose ranks are to write their records."""
    others = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep)
              if part and Path(part) != STARTUP]
    found = {**environ, "PYTHONPATH": os.pathsep.join((str(STARTUP), *others)),
             "HPCBENCH_RECORD": str(recording.folder.absolute()),
             "HPCBENCH_RECORD_PID": str(os.getpid())}
    if recording.calls is not None:
        found["HPCBENCH_RECORD_CALLS"] = str(recording.calls)
    if recording.profile is not None:
        found["HPCBENCH_RECORD_PROFILE"] = recording.profile
    for name, is_on in (("DURATIONS", recording.durations), ("QUIET", recording.quiet)):
        if is_on:
            found[f"HPCBENCH_RECORD_{name}"] = "1"
    return found
