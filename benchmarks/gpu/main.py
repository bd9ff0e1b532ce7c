"""Run the steps in order of value until the time is over; judge their goals; write the verdicts.

Exit codes: 0 every goal that this machine can show is met; 1 some are missed or failed; 2 bad
usage, a set-up that lacks something, or a folder in use; 3 the time was over before all was run, or
it was interrupted: run it again; 5 no GPU.
"""

from __future__ import annotations

import argparse
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpu.archive import pack
from gpu.judging import judged
from gpu.lock import OccupiedError, only_session
from gpu.machine import Machine, look
from gpu.needs import Launcher, found_launcher
from gpu.record import Record, fingerprint, read_record, write_record
from gpu.report import Verdict, print_table, summary, write_report
from gpu.running import ROOT, Setting, run_step, why_not
from gpu.steps import Step, StepsError, read_steps

INTERRUPTED = 3
NO_GPU = 5
_LEAST_S = 20.0
"""No step is begun with less time left than this."""
_LOCKED_S = 30.0
"""A step that a killed session left may end in this time."""
_CORES_OF_A_RANK = 2


def main(words: Sequence[str]) -> int:
    """Run the session and return the exit code."""
    given = arguments(words)
    try:
        steps = read_steps(given.steps)
    except StepsError as error:
        return _told(f"{error}", 2)
    if unknown := set(given.again) - {step.name for step in steps.steps}:
        return _told(f"--again: there is no step {sorted(unknown)[0]}", 2)
    machine = look()
    if steps.device == "cuda" and machine.broken:
        return _told(machine.broken, 2)
    if steps.device == "cuda" and not machine.gpus:
        return _told(f"no GPU: {machine.why_none or 'torch sees none'}; nothing was run", NO_GPU)
    steps = steps.on(machine.gpus)
    sweeps = any(step.sweep for step in steps.steps)
    launcher = found_launcher() if sweeps else Launcher("mpirun")
    if launcher.wrong and machine.gpus > 1:
        return _told(launcher.wrong, 2)
    folder = (given.output or ROOT / "results" / f"gpu-{platform.node()}").resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _told(f"{folder} cannot be made: {error.strerror}", 2)
    deadline = time.monotonic() + 60 * given.minutes
    try:
        with _ending_by_signals(), only_session(folder, _LOCKED_S) as lock:
            session = Session(Setting(folder, machine, steps, lock, launcher))
            if note := few_cores(machine):
                print(note, flush=True)
            try:
                session.run(deadline, given.again)
            finally:
                _show(session, folder)
    except OccupiedError as error:
        return _told(f"{error}", 2)
    except KeyboardInterrupt:
        return _told("interrupted; run it again to go on", INTERRUPTED)
    return exit_code(session.records, session.verdicts)


def few_cores(machine: Machine) -> str:
    """Return a note where ranks share cores, which makes times longer, or nothing."""
    if machine.cores >= _CORES_OF_A_RANK * machine.gpus:
        return ""
    return (f"note: {machine.cores} cores for {machine.gpus} GPUs: each rank needs "
            f"{_CORES_OF_A_RANK} for its two processes, so times are longer than they need be")


def _show(session: Session, folder: Path) -> None:
    """Print what all goals came to, and put it in one file to send; neither costs a verdict."""
    print_table(session.verdicts)
    print(f"{summary(session.verdicts)} {folder / 'verdicts.md'}")
    path = folder / "to-send.tar.gz"  # the folder's name holds the host's
    try:
        size = pack(folder, path, [step.name for step in session.setting.steps.steps])
    except Exception as error:  # the verdicts are there without it
        print(f"note: {path} cannot be written: {type(error).__name__}: {error}")
        return
    print(f"to send back: {path} ({size / 1000:.0f} kB): verdicts, versions, logs and results; "
          "names of hosts, users and jobs, paths, addresses and secrets are masked in it")


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("benchmarks/gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", nargs="?", type=_minutes, default=60.0,
                        help="for all steps together; default 60")
    parser.add_argument("--steps", type=Path, default=Path(__file__).with_name("steps.yaml"),
                        help="another file of steps")
    parser.add_argument("-o", "--output", type=Path,
                        help="folder of the session; default results/gpu-HOSTNAME")
    parser.add_argument("--again", action="append", default=[], metavar="STEP",
                        help="run a step again that is done, if time is left; repeatable")
    return parser.parse_args(words)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < 100_000:
        raise argparse.ArgumentTypeError("give a number of minutes")
    return minutes


def _told(what: str, code: int) -> int:
    print(f"benchmarks/gpu.sh: {what}", file=sys.stderr)
    return code


class Session:
    """The steps in order; the verdicts are written anew behind each, for whoever ends the session.

    ``records`` are those of all steps, in order, and ``verdicts`` those of all goals.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.records = [Record(step.name, "not run", "its turn had not come")
                        for step in setting.steps.steps]
        self._judged: dict[str, list[Verdict]] = {}

    @property
    def verdicts(self) -> list[Verdict]:
        """Return a verdict for each goal; a judge that fails is a verdict, too."""
        found = []
        for step, record in zip(self.setting.steps.steps, self.records, strict=True):
            if step.name not in self._judged:
                told = [judged(goal, step, self.setting, record) for goal in step.goals]
                if not record.is_final:
                    found += told
                    continue
                self._judged[step.name] = told
            found += self._judged[step.name]
        return found

    def run(self, deadline: float, again: Sequence[str]) -> None:
        """Run what is not done yet; a step that fails is no reason to end."""
        try:
            self._run(deadline, again)
        finally:
            self._report()

    def _run(self, deadline: float, again: Sequence[str]) -> None:
        setting = self.setting
        marks = [fingerprint(step, setting.steps, setting.machine) for step in setting.steps.steps]
        kept = [read_record(setting.folder(step), step.name, mark)
                for step, mark in zip(setting.steps.steps, marks, strict=True)]
        for place, record in enumerate(kept):
            if record.is_final and record.state != "skipped" and record.name not in again:
                self.records[place] = record
        for place, (step, mark) in enumerate(zip(setting.steps.steps, marks, strict=True)):
            if self.records[place].is_final:
                reason = f"earlier; {self.records[place].reason}".rstrip("; ")
                _say(step, replace(self.records[place], reason=reason))
                continue
            self.records[place] = self._one(
                step, place, kept[place], deadline - time.monotonic(), mark)
            if self.records[place].state != "not run":
                write_record(setting.folder(step), self.records[place])
            _say(step, self.records[place])
            self._report()

    def _one(self, step: Step, place: int, kept: Record, left_s: float, mark: str) -> Record:
        """Run one step, or say why not.

        It counts as ``cut`` from its beginning on: after an interrupt, or when this program is
        killed, the next session goes on with it.
        """
        setting = self.setting
        if reason := why_not(step, setting):
            return Record(step.name, "skipped", reason, fingerprint=mark)
        if left_s < min(_LEAST_S, step.limit_s):
            return Record(step.name, "not run", "the time of the session was over")
        _move_aside(setting.folder(step), kept)
        print(f"{step.name} ...", flush=True)
        self.records[place] = Record(
            step.name, "cut", "the session ended while it ran", fingerprint=mark)
        write_record(setting.folder(step), self.records[place])
        return run_step(step, setting, left_s, mark)

    def _report(self) -> None:
        write_report(self.setting.session, self.setting.machine, self.records, self.verdicts)


@contextmanager
def _ending_by_signals() -> Iterator[None]:
    """Have a job's end and a closed terminal end the session as Ctrl-C does: no step is left."""
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt)
              for number in (signal.SIGTERM, signal.SIGHUP)
              if signal.getsignal(number) is signal.SIG_DFL}  # nohup has SIGHUP ignored
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _move_aside(folder: Path, kept: Record) -> None:
    """Keep what a step left that is begun anew; a step that was cut goes on in its folder."""
    if kept.state == "cut" or not folder.exists():
        return
    number = sum(1 for _ in folder.parent.glob(f"{folder.name}.old*"))
    folder.rename(folder.with_name(f"{folder.name}.old{number + 1}"))


def _say(step: Step, record: Record) -> None:
    """Print one line of what a step came to."""
    reason = f": {record.reason}" if record.reason else ""
    print(f"{step.name}: {record.state} ({record.seconds:g} s){reason}", flush=True)


def exit_code(records: Sequence[Record], verdicts: Sequence[Verdict]) -> int:
    """Return 3 if something is left to run, else 1 if a goal is missed or failed, else 0."""
    if any(record.state in ("cut", "not run") for record in records):
        return 3
    return int(any(item.verdict in ("missed", "failed") for item in verdicts))
