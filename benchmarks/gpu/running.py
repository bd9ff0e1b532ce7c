"""Run one step: its command in a process group of its own, with a log and a time limit."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpu.machine import Machine
from gpu.needs import Launcher, first_words, last_line, remedy
from gpu.record import Record
from gpu.steps import Step, Steps
from hpcbench.trace.schema import bare_uuid

ROOT = Path(__file__).resolve().parents[2]
_GRACE_S = 60.0
"""A run that is asked to stop kills its workers, and seals, collects and reduces its traces in this
time."""


@dataclass(frozen=True)
class Setting:
    """Where steps are run: the folder of the session, the machine, and the steps' own folder.

    ``lock`` is the descriptor of the session's lock, which steps inherit (`gpu.lock`).
    """

    session: Path
    machine: Machine
    steps: Steps
    lock: int
    launcher: Launcher = Launcher("mpirun")

    def folder(self, step: Step) -> Path:
        """Return the folder of a step."""
        return self.session / "steps" / step.name


def why_not(step: Step, setting: Setting) -> str:
    """Return what the machine, its Python or its mpirun lacks for a step, or nothing."""
    absent = [name for name in step.modules if importlib.util.find_spec(name) is None]
    if absent:
        return f"it needs the Python modules {', '.join(absent)}: {remedy(absent)}"
    machine, launcher = setting.machine, setting.launcher
    if step.own_mpirun and not Path(sys.executable).with_name("mpirun").exists():
        return ("it needs an mpirun beside this Python, which the set-up and --carry bring: "
                "pip install mpich")
    if setting.steps.device == "cuda":
        if step.needs_mig and not machine.mig:
            return "no MIG device: MIG is off, and this program leaves it as it is"
        if machine.gpus < step.least_gpus:
            return f"it needs {step.least_gpus} GPUs, this machine has {machine.gpus}"
    if step.sweep and launcher.wrong and not launcher.refuses and _ranks(step, setting) > 1:
        return f"it needs mpirun for {_ranks(step, setting)} ranks: {launcher.wrong}"
    return ""


def command_of(step: Step, setting: Setting) -> list[str]:
    """Return the words that run a step. A sweep goes on where an earlier start of it ended."""
    words = _words(setting, step)
    if step.command:
        return [_filled(word, words) for word in step.command]
    hardware = setting.machine.hardware()
    settings = ({"hardware": hardware} if hardware else {}) | dict(step.settings)
    ranks = _ranks(step, setting)
    alone = ranks == 1 and setting.launcher.wrong  # one rank needs no mpirun
    return [*(() if alone else (setting.launcher.program, "-np", str(ranks))),
            sys.executable, "-m", "hpcbench", "run", str(setting.steps.here / step.sweep),
            "--resume", str(setting.folder(step) / "results"),
            *(word for key, value in settings.items()
              for word in ("--set", f"{key}={json.dumps(value)}"))]


def results_of(folder: Path) -> Path:
    """Return where a sweep in a step's folder leaves its results."""
    return folder / "results" / "results.h5"


def _ranks(step: Step, setting: Setting) -> int:
    gpus = setting.machine.gpus
    return {"gpus": gpus, "gpus+1": gpus + 1}.get(step.ranks) or int(step.ranks)


def _words(setting: Setting, step: Step) -> dict[str, str]:
    machine = setting.machine
    return {"python": sys.executable, "here": str(setting.steps.here), "root": str(ROOT),
            "folder": str(setting.folder(step)), "session": str(setting.session),
            "gpus": str(machine.gpus), "mig": ",".join(machine.mig),
            "uuids": ",".join(f"GPU-{bare_uuid(uuid)}"
                              for uuid in reversed(machine.uuids))}


def _filled(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def run_step(step: Step, setting: Setting, left_s: float, mark: str) -> Record:
    """Run a step for at most its limit and ``left_s``; return what it came to."""
    folder, began = setting.folder(step), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    words = _words(setting, step)
    env = {**os.environ, **{key: _filled(value, words) for key, value in step.env.items()}}
    limit_s = min(step.limit_s, left_s)
    with (folder / "output.log").open("ab") as log:
        try:
            code = _run(command_of(step, setting), env, log, limit_s, setting.lock)
        except OSError as error:
            return Record(step.name, "failed", f"it cannot be started: {error}", fingerprint=mark)
    seconds = round(time.monotonic() - began, 1)
    if code is None:
        own = limit_s == step.limit_s
        reason = (f"not done in its {limit_s:g} s" if own else
                  f"the time of the session was over after {limit_s:.0f} s of this step")
        return Record(step.name, "timeout" if own else "cut", reason, None, seconds, mark)
    reason = _failure(step, folder, code)
    return Record(step.name, "failed" if reason else "done", reason, code, seconds, mark)


def _failure(step: Step, folder: Path, code: int) -> str:
    """Return why a step that ended has not done its work, or nothing.

    mpirun ends with 1 when it starts no rank, as a sweep does that found something bad. Only the
    sweep leaves results.
    """
    log = folder / "output.log"
    if code not in step.accepts:
        started = not step.sweep or results_of(folder).exists()
        return f"exit code {code}: {last_words(log) if started else complaint(log)}"
    if step.sweep and not results_of(folder).exists():
        return f"exit code {code}, and there are no results: {complaint(log)}"
    return ""


def _run(
    command: list[str], env: Mapping[str, str], log: IO[bytes], limit_s: float, lock: int,
) -> int | None:
    """Return the exit code, None at the limit; nothing of the process group is left."""
    log.write(f"$ {' '.join(command)}\n".encode())
    log.flush()
    if not shutil.which(command[0]):
        raise FileNotFoundError(f"no program {command[0]}")
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, start_new_session=True,
                               pass_fds=(lock,))
    with process, _ended(process):
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ask it to stop, then kill what is left of its group, also when this program is interrupted.
    """
    try:
        yield
    finally:
        try:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
        finally:  # also when a second interrupt comes meanwhile
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def last_words(log: Path) -> str:
    """Return the last line of a log that says something."""
    return last_line(log.read_text("utf-8", "replace"))


def complaint(log: Path) -> str:
    """Return what the newest command of a log complained of, its launcher first."""
    said = log.read_text("utf-8", "replace")
    return first_words(said[said.rfind("\n$ ") + 1:].partition("\n")[2])
