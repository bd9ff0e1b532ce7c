"""The job of a soak: a run of the sweep for each cycle, folded into the record, its traces deleted.

Rank 0 keeps the record; the others only take part in the runs. A cycle has workers of its own, so a
crash or a hang costs one case of one cycle. The folders of the first cycles with something wrong
are kept, and what a killed job left of a cycle is folded when the soak goes on."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hpcbench.config.axes import SLOWING
from hpcbench.config.load import load_config, source_lines
from hpcbench.config.schema import stored_config
from hpcbench.config.section import fault_texts
from hpcbench.errors import (
    ExitCode,
    FileError,
    HpcbenchError,
    TraceError,
    UsageError,
    job_command_line,
)
from hpcbench.fleet.soak.cycle import facts_of
from hpcbench.fleet.soak.judge import exit_code, judged
from hpcbench.fleet.soak.lines import closing_lines, minute_line, status_of
from hpcbench.fleet.soak.record import (
    RECORD_FILE,
    CycleFacts,
    Soak,
    folded,
    read_soak,
    write_json,
    write_soak,
)
from hpcbench.launch.communicator import IDLE_PAUSE_S
from hpcbench.launch.launcher import StopRequests, by_torchrun
from hpcbench.launch.session import AgreedError, RankIdentity, Session, from_root, on_root
from hpcbench.launch.template_process import (
    JoinedTemplate,
    TemplateProcess,
    thread_variables,
    worker_environment,
)
from hpcbench.launch.worker_process import Template, TemplateSpec
from hpcbench.measurement.process import unsupervised
from hpcbench.plain import Plain
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.resume import Overrides, RunRequest, start_limit_s
from hpcbench.run import as_job, run
from hpcbench.texts import Verbosity, from_json, path_of, say, say_all
from hpcbench.units import plural

STATUS_FILE = "status.json"
SWEEP_FILE = "sweep.json"
A_LINE_S = 60.0
MOST_FOLDERS = 3
"""Runs of cycles with something wrong that are kept whole."""
_EACH_CYCLE: Overrides = (("output.plots", False), ("output.report", False))
_USUAL: Overrides = (("measure.validate", "every"),)


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """What the command line wants: ``planned_s`` and ``planned_cycles`` are limits, None of the
    first where a soak goes on as it was planned. ``resume`` is a folder to go on in, or to begin in
    where there is none yet. ``fails_fast``: the first wrong result or failure ends the soak."""

    config: Path | None
    overrides: Overrides
    planned_s: float | None
    planned_cycles: int | None
    resume: Path | None = None
    fails_fast: bool = False
    verbosity: Verbosity = Verbosity.NORMAL


def soak_command(request: SoakRequest) -> int:
    return as_job(lambda session, stop: soak(session, request, stop), request.verbosity,
                  lambda: start_limit_s(request.config, request.overrides))


def soak(session: Session, request: SoakRequest, stop: StopRequests) -> ExitCode:
    """Run cycles until a limit, a request to stop, or an error; collective over all ranks."""
    comm = session.comm
    workers = from_root(comm, _WORKERS, lambda: workers_of(begin(request, comm.size)))
    ledger, asked = Ledger(Path(workers.folder), request), ""
    try:
        with _lasting_template(workers, session.topology) as env:
            while not (asked := next(filter(None, comm.allgather(stop.any)), "")):
                cycle = on_root(comm, ledger.next_cycle)
                if cycle is None:
                    break
                began_s = time.monotonic()
                folder = Path(cycle["folder"])
                early = None if env is None else JoinedTemplate(env, os.getpid())
                with _silent():
                    run(session, RunRequest(
                        ledger.folder / SWEEP_FILE, (*_EACH_CYCLE, ("fault", cycle["faults"])),
                        folder, verbosity=Verbosity.QUIET), stop, early)
                on_root(comm, partial(ledger.fold, folder, began_s), IDLE_PAUSE_S)
    except HpcbenchError as error:
        if comm.rank == 0:
            ledger.note_error(str(error))
        again = job_command_line(comm.size, "soak", "--resume", ledger.folder)
        error.to_see = f"Fix this, then go on: {again}"
        if not isinstance(error, AgreedError):
            raise
        raise AgreedError(f"{str(error).splitlines()[0]}\n  {error.to_see}",
                          error.exit_code) from error
    return ExitCode(on_root(comm, lambda: ledger.close(asked), IDLE_PAUSE_S))


class Workers(NamedTuple):
    """What all ranks need to know of a soak: its folder, the variables that workers get beside the
    usual ones, the kinds of its cases, and whether there are no workers but the ranks."""

    folder: str
    pass_env: tuple[str, ...]
    kinds: tuple[str, ...]
    inline: bool


_WORKERS: Plain[Workers] = Plain(Workers)


def workers_of(folder: Path) -> Workers:
    plan = make_plan(load_config(folder / SWEEP_FILE), read_soak(folder).world_size)
    launch = stored_config(plan.config).launch
    return Workers(str(folder), tuple(launch.pass_env), tuple(plan.kinds), launch.inline)


@contextlib.contextmanager
def _lasting_template(
    workers: Workers, topology: RankIdentity,
) -> Iterator[dict[str, str] | None]:
    """Have torch imported once: give the variables of a template that those of all cycles are forks
    of (`JoinedTemplate`), None where there are no workers."""
    if workers.inline or unsupervised() or by_torchrun(os.environ):
        yield None
        return
    env = worker_environment(
        os.environ, workers.pass_env, thread_variables(topology.threads))
    process = TemplateProcess(env, is_shared=True)
    template = Template(TemplateSpec(env, 0.0, workers.kinds), early=process)
    try:
        yield env
    finally:
        template.close()
        process.end()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Leave out what the run of a cycle prints: its folder and its findings are in the record."""
    with (Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere),
          contextlib.redirect_stderr(nowhere)):
        yield


def begin(request: SoakRequest, world_size: int) -> Path:
    """Return the folder of the soak, made or taken up (rank 0). Raises UsageError, FileError."""
    folder = request.resume and request.resume.resolve()
    if folder is not None and (folder / RECORD_FILE).exists():
        _go_on(folder, request, world_size)
        return folder
    if folder is not None and folder.is_dir() and any(
            path.name != SWEEP_FILE for path in folder.iterdir()):
        raise UsageError(f"{folder}: has no {RECORD_FILE}, so it is no folder of `hpcbench soak`; "
                         "give one, or a new folder")
    if request.planned_s is None:
        raise UsageError("--for: say how long to soak, as --for 24h")
    overrides = (*_USUAL, *request.overrides)
    request.verbosity.details(source_lines(request.config, overrides))
    plan = make_plan(load_config(request.config, overrides), world_size)
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    folder = folder or path_of(str(plan.config["output"]["folder"])).absolute() / (
        f"soak-{plan.name}-{run_id}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made: {error.strerror}; choose another folder with "
                        "-o DIR (output.folder)") from error
    write_json(folder / SWEEP_FILE, plan.config, indent=1)
    faults = fault_texts(plan.config.get("fault", ()))
    write_soak(folder, Soak(plan.name, run_id, world_size, time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                            request.planned_s, request.planned_cycles, faults=faults))
    request.verbosity.announce(f"{plural(len(plan.cases), 'case')} x "
                               f"{plural(plan.launches * plan.passes, 'pass')} a cycle; soak in "
                               f"{folder}")
    for fault in faults:
        request.verbosity.announce(f"fault injection, times are not valid: {fault}")
    return folder


def _go_on(folder: Path, request: SoakRequest, world_size: int) -> None:
    before = read_soak(folder)
    if before.world_size != world_size:
        raise UsageError(f"{folder}: the soak there is of {plural(before.world_size, 'rank')}, "
                         f"this job has {world_size}: start as many, or begin a new soak")
    after = replace(before, planned_s=request.planned_s or before.planned_s,
                    planned_cycles=request.planned_cycles or before.planned_cycles)
    for left in _left_behind(folder, before.cycles):
        with contextlib.suppress(TraceError):  # killed before anything was recorded
            reduce_folder(left, allow_mixed=True)
            after = folded(after, replace(
                facts_of(left, after.cycles + 1), whole=False), 0.0)
    write_soak(folder, after)
    shutil.rmtree(folder / "cycle", ignore_errors=True)
    request.verbosity.announce(f"goes on after cycle {after.cycles} in {folder}")


def _left_behind(folder: Path, folded_cycles: int) -> list[Path]:
    """Return the folders of cycles that a killed job did not fold."""
    return sorted(path for path in (folder / "cycle").glob("[0-9]*")
                  if int(path.name) > folded_cycles and (path / "plan.json").is_file())


class Ledger:
    """Rank 0's record of the soak in ``folder``; its methods are for rank 0 alone."""

    def __init__(self, folder: Path, request: SoakRequest) -> None:
        self.folder = folder
        self._request = request
        self._said_s = -A_LINE_S
        self._ends = False

    def next_cycle(self) -> dict[str, Any] | None:
        """Return folder and faults of the next cycle; None where the soak has come to its end."""
        soak = read_soak(self.folder)
        if self._ends or soak.has_reached_its_end:
            return None
        number = soak.cycles + 1
        faults = from_json((self.folder / SWEEP_FILE).read_bytes()).get("fault", ())
        return {"folder": str(self.folder / "cycle" / f"{number:06}"),
                "faults": [fault for fault in faults if is_due(fault, number)]}

    def fold(self, run_folder: Path, began_s: float) -> None:
        """Fold a cycle into the record, and delete its run, or keep it if something was wrong."""
        spent_s = time.monotonic() - began_s
        before = read_soak(self.folder)
        facts = facts_of(run_folder, before.cycles + 1)
        soak = folded(before, facts, spent_s)
        write_soak(self.folder, soak)
        self._keep(run_folder, facts)
        shutil.rmtree(self.folder / "cycle", ignore_errors=True)
        is_bad = bool(facts.wrong or facts.problems)
        self._ends = is_bad and self._request.fails_fast or (
            facts.whole and not is_bad and not any(one.pass_s for one in facts.cases))
        if is_bad or time.monotonic() - self._said_s >= A_LINE_S:
            self._said_s = time.monotonic()
            self._request.verbosity.announce(minute_line(soak, facts, judged(soak)))
            self._write_status(soak, "running")

    def _keep(self, run_folder: Path, facts: CycleFacts) -> None:
        kept = self.folder / "kept"
        if (facts.wrong or facts.problems) and len([*kept.glob("cycle-*")]) < MOST_FOLDERS:
            with contextlib.suppress(OSError):  # evidence beside the record, which has it in words
                kept.mkdir(exist_ok=True)
                run_folder.rename(kept / f"cycle-{run_folder.name}")

    def note_error(self, error: str) -> None:
        with contextlib.suppress(HpcbenchError):
            self._write_status(read_soak(self.folder), "error", error=error)

    def close(self, asked: str) -> int:
        """Write the last status, print what was found, and return the exit code."""
        soak = read_soak(self.folder)
        judgement = judged(soak)
        code = exit_code(soak, judgement)
        self._write_status(soak, "done" if soak.has_reached_its_end or self._ends else "stopped",
                           stopped_by=asked, exit_code=int(code))
        if self._request.verbosity.is_quiet:
            say(self.folder)
            return int(code)
        say_all("\n".join(closing_lines(soak, judgement)))
        if not soak.has_reached_its_end and not self._ends:
            say(f"stopped{f' by {asked}' if asked else ''}; to go on: "
                + job_command_line(soak.world_size, "soak", "--resume", self.folder))
        say(f"{self.folder / RECORD_FILE}")
        return int(code)

    def _write_status(self, soak: Soak, state: str, **more: Any) -> None:
        write_json(self.folder / STATUS_FILE, {**status_of(soak, judged(soak), state), **more},
                   indent=1)


def is_due(fault: Mapping[str, Any], number: int) -> bool:
    """Return whether a fault of the sweep happens in this cycle: a slow rank stays slow."""
    first = fault.get("cycle")
    return first is None or first == number or (fault["kind"] in SLOWING and number > first)
