"""Run one step: its command in a process group of its own, with a log and a time limit."""

from __future__ import annotations

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
from gpu.record import Record
from gpu.steps import Step, Steps

ROOT = Path(__file__).resolve().parents[2]
_GRACE_S = 20.0
"""A run that is asked to stop seals its traces and reduces them in this time."""


@dataclass(frozen=True)
class Setting:
    """Where steps are run: the folder of the session, the machine, and the steps' own folder.

    ``lock`` is the descriptor of the session's lock, which steps inherit (`gpu.lock`).
    """

    session: Path
    machine: Machine
    steps: Steps
    lock: int

    def folder(self, step: Step) -> Path:
        """Return the folder of a step."""
        return self.session / "steps" / step.name


def why_not(step: Step, machine: Machine, device: str) -> str:
    """Return what the machine lacks for a step, or nothing."""
    if device == "cpu":
        return ""
    if step.needs_mig and not machine.mig:
        return "no MIG device: MIG is off, and this program leaves it as it is"
    if machine.gpus < step.least_gpus:
        return f"it needs {step.least_gpus} GPUs, this machine has {machine.gpus}"
    return ""


def command_of(step: Step, setting: Setting) -> list[str]:
    """Return the words that run a step. A sweep goes on where an earlier start of it ended."""
    words = _words(setting, step)
    if step.command:
        return [_filled(word, words) for word in step.command]
    hardware = setting.machine.hardware()
    settings = ({"hardware": hardware} if hardware else {}) | dict(step.settings)
    beside = Path(sys.executable).parent / "mpirun"
    return [str(beside) if beside.exists() else "mpirun", "-np", str(_ranks(step, setting)),
            sys.executable, "-m", "hpcbench", "run", str(setting.steps.here / step.sweep),
            "--resume", str(setting.folder(step) / "results"),
            *(word for key, value in settings.items()
              for word in ("--set", f"{key}={json.dumps(value)}"))]


def _ranks(step: Step, setting: Setting) -> int:
    gpus = setting.machine.gpus
    return {"gpus": gpus, "gpus+1": gpus + 1}.get(step.ranks) or int(step.ranks)


def _words(setting: Setting, step: Step) -> dict[str, str]:
    machine = setting.machine
    return {"python": sys.executable, "here": str(setting.steps.here), "root": str(ROOT),
            "folder": str(setting.folder(step)), "session": str(setting.session),
            "gpus": str(machine.gpus), "mig": ",".join(machine.mig),
            "uuids": ",".join(f"GPU-{uuid.removeprefix('GPU-')}"
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
    state = "done" if code in step.accepts else "failed"
    reason = "" if state == "done" else f"exit code {code}: {last_words(folder / 'output.log')}"
    return Record(step.name, state, reason, code, seconds, mark)


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
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it printed nothing")[:300]
