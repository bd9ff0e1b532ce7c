"""What a session needs of Python and of mpirun, asked before anything is imported or run.

Only the standard library is imported here: on an image with nothing but torch this must still say
what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MODULES = {
    "numpy": "numpy", "h5py": "h5py", "yaml": "pyyaml", "pydantic": "pydantic", "typer": "typer",
    "rich": "rich", "psutil": "psutil", "jinja2": "jinja2", "matplotlib": "matplotlib",
    "mpi4py.MPI": "mpi4py", "torch": "torch"}
"""Module that every session imports -> what to install for it."""
_IMPORTS = """
import importlib, importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    print(name, file=sys.stderr, flush=True)
    try:
        if name == "torch":  # its import takes seconds, and the probe of the machine makes it
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name, name=name)
            continue
        if name == "mpi4py.MPI":
            import mpi4py
            mpi4py.rc(initialize=False, finalize=False)
        importlib.import_module(name)
    except BaseException as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent == name.split(".")[0]:
            found[name] = ""
        elif absent not in sys.argv:  # else it is listed by itself
            found[name] = " ".join(f"{type(error).__name__}: {error}".split())
print(json.dumps(found))
"""
_TRIAL = "from mpi4py import MPI; print(f'of {MPI.COMM_WORLD.Get_size()} ranks', flush=True)"
_PATIENCE_S = 120.0
_GOODBYE_S = 5.0
_LONGEST = 300
_LEAST_PYTHON = (3, 10)


@dataclass(frozen=True)
class Answer:
    """What a program said: its exit code, None if it did not end in time, and what it printed."""

    code: int | None
    stdout: str
    stderr: str

    @property
    def ending(self) -> str:
        """Return how it ended, as a person says it."""
        if self.code is None:
            return "it did not answer in time"
        if self.code < 0:
            return f"it was ended by {signal.Signals(-self.code).name}"
        return f"it ended with exit code {self.code}"


def ask(words: Sequence[str], patience_s: float) -> Answer:
    """Run a program for at most ``patience_s``. Raises OSError if it cannot be started.

    A process that a driver holds cannot even be killed: it is left behind, never waited for. What
    it printed goes to files, so that no child of it can keep a pipe open.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   start_new_session=True)
        code: int | None = None
        try:
            code = process.wait(patience_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GOODBYE_S)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Answer(code, *texts)


def lacking() -> str:
    """Return what this Python lacks for any session, in one line with the remedy, or nothing."""
    if sys.version_info < _LEAST_PYTHON:
        return (f"{sys.executable} is Python {'.'.join(map(str, sys.version_info[:2]))}, and "
                "hpcbench needs 3.10 or newer: set HPCBENCH_PYTHON=/path/to/python3")
    answer = ask([sys.executable, "-c", _IMPORTS, *MODULES], _PATIENCE_S)
    if answer.code != 0:
        return (f"{sys.executable} cannot import {last_line(answer.stderr)}: {answer.ending}; "
                "reinstall it, or set HPCBENCH_PYTHON to another Python")
    found: Mapping[str, str] = json.loads(answer.stdout.splitlines()[-1])
    absent = [MODULES[name] for name, reason in found.items() if not reason]
    broken = [f"{name} cannot be imported ({reason[:_LONGEST]})" for name, reason in found.items()
              if reason]
    said = [f"{sys.executable} lacks {', '.join(absent)}"] if absent else []
    return f"{'; '.join([*said, *broken])}: {remedy(absent)}" if said or broken else ""


def remedy(packages: Sequence[str]) -> str:
    """Return how packages get here, with a network and without one."""
    version = ".".join(map(str, sys.version_info[:2]))
    return ("with a network, leave --no-setup out; without one, run bash benchmarks/gpu.sh --fill "
            f"DIR {version} where there is one, and give --carry DIR here"
            + ("; torch is not carried: name a Python that has it by HPCBENCH_PYTHON"
               if "torch" in packages else ""))


@dataclass(frozen=True)
class Launcher:
    """The mpirun that starts ranks, and what is wrong with it, or nothing.

    ``refuses``: it is there, and says itself why it starts none.
    """

    program: str
    wrong: str = ""
    refuses: bool = False


def found_launcher() -> Launcher:
    """Return the mpirun beside this Python, else that on PATH, after it has started two ranks."""
    beside = Path(sys.executable).with_name("mpirun")
    program = str(beside) if beside.exists() else shutil.which("mpirun") or ""
    if not program:
        return Launcher("mpirun", "there is no mpirun beside this Python or on PATH: install MPICH "
                                  "or Open MPI, or the wheel mpich")
    try:
        answer = ask([program, "-np", "2", sys.executable, "-c", _TRIAL], _PATIENCE_S)
    except OSError as error:
        return Launcher(program, f"{program} cannot be started: {error.strerror}")
    if answer.code != 0:
        return Launcher(program, f"{program} starts no ranks, {answer.ending}: "
                                 f"{first_words(answer.stderr or answer.stdout)}", refuses=True)
    if answer.stdout.count("of 2 ranks") != 2:
        return Launcher(program, f"{program} and mpi4py are not of the same MPI: of 2 ranks each "
                                 "is alone; put the mpirun of mpi4py's MPI first on PATH, or set "
                                 "MPI4PY_LIBMPI to the library of this mpirun")
    return Launcher(program)


def first_words(text: str) -> str:
    """Return what a launcher complains of: the first paragraph of its box, else the last line."""
    before, rule, behind = _rule(text)
    for part in (behind, before) if rule else ():
        paragraph: list[str] = []
        for line in [*part, ""]:
            if line.strip("-="):
                paragraph.append(line)
            elif paragraph:
                return " ".join(paragraph)[:_LONGEST]
    return last_line(text)


def _rule(text: str) -> tuple[list[str], bool, list[str]]:
    """Return the lines before the first ruled line, whether there is one, and those behind it."""
    lines = [line.strip() for line in text.splitlines()]
    for place, line in enumerate(lines):
        if len(line) > 20 and not line.strip("-="):
            return lines[:place], True, lines[place + 1:]
    return lines, False, []


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if any(map(str.isalnum, line))),
                "it printed nothing")[:_LONGEST]
