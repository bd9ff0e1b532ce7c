"""Several sweep files as one MPI job: ``mpirun -np 4 python -m hpcbench suite A.json B.yaml``.

Each member is a run of its own, with workers of its own, in a folder below the suite's. Rank 0
plans all members before the first begins, and keeps suite.json, which is true after every step."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcbench import __version__
from hpcbench.config.load import load_config, source_lines
from hpcbench.errors import ExitCode, FileError, UsageError, job_command_line
from hpcbench.launch.communicator import IDLE_PAUSE_S
from hpcbench.launch.launcher import StopRequests
from hpcbench.launch.run_folder import create_suite_folder, sweeps_folder
from hpcbench.launch.session import AgreedError, Session, on_root
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from hpcbench.reduce import suite_file
from hpcbench.resume import LATEST, Overrides, RunRequest, start_limit_s
from hpcbench.run import as_job, run
from hpcbench.texts import Verbosity, masked, path_of, say, say_all
from hpcbench.trace.container import SUITE_FILE, is_suite
from hpcbench.units import plural

LATEST_SUITE = Path("results") / LATEST
"""The folder of ``--resume`` without one."""


@dataclass(frozen=True, slots=True)
class SuiteRequest:
    """The request of the command line: ``files`` to begin with, or ``resume`` to go on there.

    ``output`` is where suite.json is written, too. ``force``: over a file that is there, and with
    ``resume`` in spite of changed software. ``retry``: cases of these statuses are run again."""

    files: tuple[Path, ...]
    overrides: Overrides
    output: Path | None = None
    resume: Path | None = None
    force: bool = False
    retry: tuple[str, ...] = ()
    as_json: bool = False
    verbosity: Verbosity = Verbosity.NORMAL


def suite_command(request: SuiteRequest) -> int:
    with contextlib.redirect_stdout(sys.stderr) if request.as_json else contextlib.nullcontext():
        return as_job(
            lambda session, stop: run_suite(session, request, stop), request.verbosity,
            lambda: start_limit_s(next(iter(request.files), None), request.overrides))


def run_suite(session: Session, request: SuiteRequest, stop: StopRequests) -> ExitCode:
    """Run one member after the other until a request to stop; collective over all ranks."""
    comm = session.comm
    begun = on_root(comm, lambda: begin_suite(request, comm.size))
    call_log, signal = _Ledger(Path(begun["folder"]), request), ""
    for index, sweep in begun["todo"]:
        if signal := next(filter(None, comm.allgather(stop.any)), ""):
            break
        folder = Path(on_root(comm, partial(call_log.begin, index)))
        began_s = time.perf_counter()
        code, error = _run_member(session, RunRequest(
            Path(sweep) if sweep else None, (), folder, request.force, request.retry,
            verbosity=request.verbosity), stop)
        spent_s = time.perf_counter() - began_s
        on_root(comm, partial(call_log.end, index, code, error, spent_s))
    signal = signal or next(filter(None, comm.allgather(stop.any)), "")
    code = on_root(comm, lambda: call_log.close(signal), IDLE_PAUSE_S)
    return ExitCode(code)


def _run_member(session: Session, request: RunRequest, stop: StopRequests) -> tuple[int, str]:
    """Return the exit code of one member, and the message that it ended with instead of results.

    Only an error that all ranks know of leaves them together, so that the next member can begin."""
    try:
        with _own_output(request.verbosity):
            return int(run(session, request, stop)), ""
    except AgreedError as error:
        if session.comm.rank == 0:
            request.verbosity.traceback()
        return int(error.exit_code), masked(str(error), os.environ)


@contextlib.contextmanager
def _own_output(verbosity: Verbosity) -> Iterator[None]:
    """Leave out what a quiet member prints on standard output: its folder is no result of ours."""
    if not verbosity.is_quiet:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def begin_suite(request: SuiteRequest, world_size: int) -> dict[str, Any]:
    """Return the folder, and of each member to run its index and its sweep file (rank 0).

    The sweep file is "" for a member that goes on. Nothing is written before all is checked."""
    before = None if request.resume is None else _begun_before(request, world_size)
    check_output(request.output, force=request.force or _is_summary_of(before, request.output))
    folder = before or _new_suite(request, world_size)
    return {"folder": str(folder), "todo": list(_todo(folder, request.retry))}


def check_output(path: Path | None, *, force: bool) -> None:
    """Raise FileError if the summary of the suite cannot be written there, or may not."""
    if path is None:
        return
    if path.is_dir():
        raise FileError(f"{path}: is a folder; --output names a file")
    if path.exists() and not force:
        raise FileError(f"{path}: is there already; name another file with --output, or give "
                        "--force to write over it")
    if not path.absolute().parent.is_dir():
        raise FileError(f"{path}: its folder does not exist; make it, or name another file with "
                        "--output")
    if not os.access(path.absolute().parent, os.W_OK):
        raise FileError(f"{path}: its folder cannot be written; name another file with --output")


def _is_summary_of(folder: Path | None, output: Path | None) -> bool:
    """Return whether a suite that goes on has itself written the file of --output before."""
    if folder is None or output is None or not output.is_file():
        return False
    try:
        return suite_file.read_suite_file(output).run_id == suite_file.read_suite(folder).run_id
    except FileError:
        return False


def _new_suite(request: SuiteRequest, world_size: int) -> Path:
    """Make the folder of a suite whose members are all in order; return it."""
    with request.verbosity.stage("plan of all members"):
        plans = plan_members(request.files, request.overrides, world_size, request.verbosity)
    names = [f"{number:02}-{plan.name}" for number, plan in enumerate(plans, 1)]
    made = create_suite_folder(_results_folder(request.files, plans), {
        name: plan.config for name, plan in zip(names, plans, strict=True)})
    members = tuple(
        suite_file.Member(str(file), plan.name, name, len(plan.cases),
                          counts=suite_file.not_counted(len(plan.cases)))
        for file, plan, name in zip(request.files, plans, names, strict=True))
    suite_file.write_suite(
        suite_file.Suite(made.run_id, __version__, world_size, _now(), members),
        *filter(None, (made.path / SUITE_FILE, request.output)))
    for note in made.notes:
        request.verbosity.announce(f"note: {note}")
    return made.path


def plan_members(
    files: Sequence[Path], overrides: Overrides, world_size: int,
    verbosity: Verbosity = Verbosity.NORMAL,
) -> list[Plan]:
    """Return the plan of each file. Raises UsageError with every problem of every file."""
    plans: list[Plan] = []
    problems: list[str] = []
    for file in files:
        try:
            verbosity.details(source_lines(file, overrides))
            plans.append(make_plan(load_config(file, overrides), world_size))
        except UsageError as error:
            problems += [line if line.startswith((f"{file}:", f"{file},")) else f"{file}: {line}"
                         for line in error.args]
    if problems:
        raise UsageError(*dict.fromkeys(problems))
    return plans


def _results_folder(files: Sequence[Path], plans: Sequence[Plan]) -> Path:
    """Return the one folder that all members name. Raises UsageError if they name several."""
    named = {str(plan.config["output"]["folder"]): file
             for file, plan in zip(files, plans, strict=True)}
    if len(named) > 1:
        raise UsageError("output.folder: a suite has one folder, but "
                         + ", ".join(f"{file} names {folder}" for folder, file in named.items())
                         + ": give one for all with -o DIR")
    return path_of(next(iter(named))).absolute()


def _begun_before(request: SuiteRequest, world_size: int) -> Path:
    """Return the folder of the suite to go on with. Raises UsageError if this job cannot."""
    wanted = LATEST_SUITE if request.resume == LATEST else request.resume
    folder = (wanted or LATEST_SUITE).resolve()
    if not is_suite(folder):
        raise UsageError(f"{folder}: has no {SUITE_FILE}, so it is no folder of `hpcbench suite`; "
                         f"give one, or for a single run: "
                         f"{job_command_line(world_size, 'run', '--resume', folder)}")
    before = suite_file.read_suite(folder).world_size
    if before != world_size:
        raise UsageError(f"{folder}: the suite there is of {plural(before, 'rank')}, this job has "
                         f"{world_size}: start as many, or begin a new suite")
    return folder


def _todo(folder: Path, retry: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the index of each member to run, and its sweep file; "" if it goes on.

    Those that are done are run again if they have cases of a status in ``retry``."""
    from hpcbench.reduce.history import is_fresh
    for index, member in enumerate(suite_file.read_suite(folder).members):
        if not member.is_done or any((member.counts or {}).get(status) for status in retry):
            sweep = sweeps_folder(folder) / f"{member.folder}.json"
            yield index, str(sweep) if is_fresh(folder / member.folder) else ""


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@dataclass(frozen=True, slots=True)
class _Ledger:
    """Rank 0's records and output on the suite in ``folder``; its methods are for rank 0 alone."""

    folder: Path
    request: SuiteRequest

    def begin(self, index: int) -> str:
        """Record and print that a member begins; return its folder."""
        from hpcbench.report.console import print_member

        members = suite_file.read_suite(self.folder).members
        if not self.request.verbosity.is_quiet:
            print_member(members, index)
        member = members[index]
        self._put(index, replace(
            member, status=suite_file.RUNNING, reasons=(), counts=None, summary=None,
            exit_code=None, started_at=member.started_at or _now()))
        return str(self.folder / member.folder)

    def end(self, index: int, code: int, error: str, spent_s: float) -> None:
        """Record the outcome of a member."""
        from hpcbench.report.console import print_error, print_outcome

        member = suite_file.read_suite(self.folder).members[index]
        if error:
            print_error(error)
        member = suite_file.ended(member, self.folder / member.folder, code, error, spent_s)
        self._put(index, member)
        if self.request.verbosity.is_quiet and code:
            print_outcome(member)

    def close(self, signal: str) -> int:
        """Note how the suite ended, print it, and return its exit code."""
        from hpcbench.report.console import print_suite

        suite = suite_file.read_suite(self.folder)
        is_cut_short = any(not member.is_done for member in suite.members)
        suite = replace(suite, stopped_by=signal if is_cut_short else "",
                        exit_code=suite_file.suite_exit_code(suite.members))
        self._write(suite)
        if self.request.as_json:
            say_all(suite_file.suite_text(suite), sys.__stdout__)
        elif self.request.verbosity.is_quiet:
            say(self.folder)
        else:
            print_suite(suite, self.folder)
        return int(suite.exit_code or 0)

    def _put(self, index: int, member: suite_file.Member) -> None:
        suite = suite_file.read_suite(self.folder)
        members = (*suite.members[:index], member, *suite.members[index + 1:])
        self._write(replace(suite, members=members, stopped_by="", exit_code=None,
                            duration_s=sum(one.duration_s or 0.0 for one in members)))

    def _write(self, suite: suite_file.Suite) -> None:
        paths = filter(None, (self.folder / SUITE_FILE, self.request.output))
        suite_file.write_suite(suite, *paths)
