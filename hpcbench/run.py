"""The main job: what ``mpirun -np 4 python -m hpcbench run`` does, stage by stage."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbench.backends.child import Child
from hpcbench.config.axes import NCCL_TESTS_SPLIT, SPLIT_HINT
from hpcbench.errors import ExitCode, HpcbenchError, UsageError, command_line
from hpcbench.launch import measuring, run_folder
from hpcbench.launch.address import Network, choose_network
from hpcbench.launch.attempt import HISTORY, PLANNED_RUN, CaseReport, PlannedRun, RunAttempt
from hpcbench.launch.communicator import LAST_PAUSE_S, Communicator
from hpcbench.launch.launcher import StopRequests, announced_rank, by_torchrun, stop_requests
from hpcbench.launch.probe import JobMachine, probe_ranks, resolve, versions
from hpcbench.launch.session import (
    AgreedError,
    RankIdentity,
    Session,
    from_root,
    on_all,
    on_root,
    open_session,
    usual_limit_s,
)
from hpcbench.launch.start import end_at_once
from hpcbench.launch.template_process import AnyTemplate
from hpcbench.launch.worker_pool import WorkerPool
from hpcbench.measurement import process
from hpcbench.resume import RunRequest, earlier_run, plan_run, start_limit_s, with_software
from hpcbench.texts import Verbosity, as_field, masked, print_traceback, say_all
from hpcbench.trace.journal import Journal
from hpcbench.units import plural, rank_list

if TYPE_CHECKING:
    from hpcbench.worker import Worker


def run(
    session: Session, request: RunRequest, stop: StopRequests,
    early: AnyTemplate | None = None,
) -> ExitCode:
    """Plan, probe, measure, seal, reduce and report; collective over all ranks.

    Workers come from the ``early`` template if there is one and it has the right variables."""
    comm, verbosity = session.comm, request.verbosity
    with verbosity.stage("plan"):
        planned = _plan(session, request)
    network = choose_network(comm, session.topology, planned.config.launch, os.environ)
    if comm.rank == 0:
        plan, launches = planned.plan, plural(planned.plan.launches, "launch")
        repeats = f"{launches} x " * (plan.launches > 1) + plural(plan.passes, "pass")
        verbosity.announce(f"{plural(len(plan.cases), 'case')} x {repeats} planned; "
                           "starting workers")
    with measuring.open_pool(planned, session.topology, worker_class, early) as pool:
        on_root(comm, lambda: _import_reports(planned), LAST_PAUSE_S)
        with verbosity.stage("probe, with the start of the worker template"):
            attempt = _probe(session, planned, network, pool, force=request.force)
        verbosity.details(_machine_lines(attempt))
        folders, is_done = run_folder.open_folders(attempt), attempt.is_done()
        said: dict[str, str] = {}
        if not is_done:
            measuring.load_inline(attempt, pool)
            with (verbosity.stage("measurement"),
                  measuring.open_journal(attempt, folders) as journal):
                stolen_share = measuring.note_noise(attempt, journal)
                with (_progress(attempt, folders, verbosity, stolen_share, said) as report,
                      _with_what_is_left(journal, folders.folder.path)):
                    measuring.measure(attempt, journal, report, folders, pool, stop)
    with stop.noticed(), _can_be_repeated(folders, attempt):
        with verbosity.stage("traces sealed and collected"):
            _collect(comm, folders, measured=not is_done)
        code = on_root(
            comm, lambda: _reduce_and_report(attempt, folders.folder, request, said),
            LAST_PAUSE_S)
    comm.barrier()
    return ExitCode(code)


def _collect(comm: Communicator, folders: run_folder.RankFolders, *, measured: bool) -> None:
    """Seal this rank's trace, and send rank 0 the files that it does not see."""
    on_all(comm, "sealing the trace",
           lambda: run_folder.seal_traces(folders.own, comm.rank, measured=measured))
    for problem in measuring.collect_profiles(comm, folders):
        _complain(problem)
    for problem in run_folder.collect_traces(comm, folders):
        _complain(f"{problem}; copy it to {folders.folder.traces} on rank 0's node, then run: "
                  f"{command_line('reduce', folders.folder.path)}")


def _plan(session: Session, request: RunRequest) -> PlannedRun:
    """Have rank 0 plan, once it has the traces that killed ranks of an earlier attempt left."""
    # With torchrun there is no MPI process to protect, and no supervisor beside it.
    request, comm = replace(request, inline=by_torchrun(os.environ)), session.comm
    if request.folder is not None and (
            earlier := on_root(comm, lambda: earlier_run(request))):
        for problem in run_folder.fetch_stranded_traces(session, *earlier):
            _complain(f"{problem}; its cases are run again unless rank 0 has another copy")
    return from_root(comm, PLANNED_RUN, lambda: _watched(plan_run(request, comm.size)))


def _watched(planned: PlannedRun) -> PlannedRun:
    """Return the run. Raises UsageError if its workers were to be watched where none can be.

    Raises ConfigError for limits that no case can have, UsageError for groups that only nccl-tests
    makes: its variables would be taken for what was measured."""
    from hpcbench.answers.check import refuse_limits

    if name := next(filter(NCCL_TESTS_SPLIT.fullmatch, os.environ), None):
        raise UsageError(f"{name} is set, and {SPLIT_HINT}; unset it")
    refuse_limits(planned.plan)
    if not planned.config.launch.inline and (reason := process.unsupervised()):
        raise UsageError(f"{reason}; use --inline (of profile: --set launch.inline=true), which "
                         "isolates nothing")
    return planned


def worker_class() -> type[Worker]:
    """Import torch here, for workers in the MPI process itself; return their class."""
    with process.no_collection_of_modules():
        from hpcbench.worker import Worker

    return Worker


def _probe(
    session: Session, planned: PlannedRun, network: Network, pool: WorkerPool, *, force: bool,
) -> RunAttempt:
    ranks = probe_ranks(session, planned.plan, pool, allow_mixed=planned.config.launch.allow_mixed)
    history = from_root(session.comm, HISTORY, lambda: with_software(
        planned, versions(session.topology, ranks[0].facts), force=force))
    return RunAttempt(planned.plan, history, planned.folder, *session, JobMachine(network, ranks),
                   resolve(planned.plan, ranks))


def _machine_lines(attempt: RunAttempt) -> Iterator[str]:
    """Yield the versions of this rank, and each case that cannot run here, by its label."""
    lines = versions(attempt.topology, attempt.machine.ranks[attempt.comm.rank].facts)
    yield f"versions: {', '.join(f'{name} {version}' for name, version in lines.items())}"
    for case in attempt.plan.cases:
        if reason := attempt.resolution.skips.get(case.case_id):
            yield f"skipped: {case.label}: {reason}"


@contextlib.contextmanager
def _progress(
    attempt: RunAttempt, folders: run_folder.RankFolders, verbosity: Verbosity, stolen_share: float,
    said: dict[str, str],
) -> Iterator[CaseReport]:
    """Give the call after each case; only rank 0 prints.

    ``stolen_share`` is the share of its core that others took before. ``said`` gets the status that
    each case was called in the end, by its id."""
    if attempt.comm.rank != 0 or verbosity.is_quiet:
        yield lambda case, status, reason, seconds, launch, pass_index: None
        return
    from hpcbench.report.terminal import Progress

    todo, plan = attempt.runs_left(), attempt.plan
    with Progress(todo, passes=plan.passes, launches=plan.launches,
                  every_run=verbosity.is_verbose) as progress:
        reason = measuring.slow_reason(attempt.topology, os.cpu_count(), stolen_share)
        progress.slow_reason = reason
        pace = measuring.pace_of(attempt.history, stolen_share, todo, reason)
        progress.pace = pace.factor
        progress.launch_s, progress.launches_left = attempt.launch_s(), attempt.launches_left()
        progress.name_among(attempt.runnable())  # a resumed run names them as before
        for line in measuring.opening_lines(attempt, todo, folders, pace):
            progress.message(line)
        progress.earlier = attempt.history.statuses
        yield progress.case_done
        said |= progress.said


def _reduce_and_report(
    attempt: RunAttempt, folder: run_folder.RunFolder, request: RunRequest, said: Mapping[str, str],
) -> int:
    """Reduce, write results and reports, print them; return the exit code (rank 0).

    A profile is printed as one; its tables are in the results, too. A case that ends otherwise than
    its line ``said`` is named."""
    from hpcbench.answers.check import final_code
    from hpcbench.profiling.record import write_profiles
    from hpcbench.reduce.reduce import reduce_folder
    from hpcbench.report.answer_lines import topic_results_in
    from hpcbench.report.console import (
        print_corrections,
        print_profile,
        print_profiles,
        report_run,
    )
    from hpcbench.report.summary import write_reports

    config, verbosity = attempt.config, request.verbosity
    with verbosity.stage("reduction"):
        results = reduce_folder(folder.path, allow_mixed=config.launch.allow_mixed)
    print_corrections(results, said)
    with verbosity.stage("summaries and plots"):
        advice = topic_results_in(folder.path)
        write_reports(results, folder.path, advice, verbosity,
                      beside=_in_fork if _may_fork(attempt.topology) else None)
    with verbosity.stage("profiled samples"):
        profile_lines = write_profiles(folder.path, results)
    if config.profiling.target and not verbosity.is_quiet:
        print_profile(results, folder.path)
        return int(final_code(results))
    report_run(results, folder.path, advice, verbosity, explain=request.explain)
    if not verbosity.is_quiet:
        print_profiles(profile_lines)
    return int(final_code(results))


def _may_fork(topology: RankIdentity) -> bool:
    """Return whether a fork has a core of its own, and neither threads of torch nor memory that a
    network adapter writes to are in this process."""
    return ("torch" not in sys.modules and len(topology.nodes) == 1
            and process.usable_cores(process.KernelFiles()) > 1)


@contextlib.contextmanager
def _in_fork(work: Callable[[], object]) -> Iterator[Callable[[], str | None]]:
    """Have a fork of this process do work; give the call that waits for it: None, or how it was
    lost."""
    try:
        child = Child(lambda: [("done", work())])
    except OSError as error:
        failed = f"could not be started: {error}"
        yield lambda: failed
        return
    try:
        yield lambda: child.answers(math.inf, _STUCK_S).lost
    finally:
        child.close()


_STUCK_S = 10.0
"""A fork that has used no core for so long is given up: it waits for a disk at most."""


def _import_reports(planned: PlannedRun) -> None:
    """Import what `_reduce_and_report` needs, while the template imports torch."""
    with process.no_collection_of_modules():
        import hpcbench.report.answer_lines
        import hpcbench.report.console  # noqa: F401
        from hpcbench.report.summary import field_names

        field_names(planned.plan.kinds)  # imports the presenters that it asks
        if planned.config.output.plots or planned.config.output.report:
            with contextlib.suppress(Exception):  # whoever draws reports it
                import hpcbench.report.plots  # noqa: F401


@contextlib.contextmanager
def _with_what_is_left(journal: Journal, folder: Path) -> Iterator[None]:
    """Add to an error what is on disk of this rank at that moment."""
    try:
        yield
    except HpcbenchError as error:
        error.to_see = journal.to_see(folder)
        raise


@contextlib.contextmanager
def _can_be_repeated(folders: run_folder.RankFolders, attempt: RunAttempt) -> Iterator[None]:
    """Add to an error after the last case, which rank 0 prints, what is on disk at that moment."""
    try:
        yield
    except AgreedError as error:
        if attempt.comm.rank:
            raise
        raise AgreedError(f"{error}\n  {as_field(what_is_there(folders, attempt))}",
                          error.exit_code) from error


def what_is_there(folders: run_folder.RankFolders, attempt: RunAttempt) -> str:
    """Return in words what can be read back after the last case, and what is left to do."""
    from hpcbench.reduce.history import read_history

    path = folders.folder.path
    see = command_line("reduce", path)
    if lacking := run_folder.lacking_traces(folders, attempt.comm.size):
        return f"{lacking}; of what is there see: {see}"
    if folders.separate:
        return (f"Rank {rank_list(folders.separate)} wrote to a disk of its own, which is not "
                f"looked at. Fix this, then run: {see}")
    try:
        left = replace(attempt, history=read_history(path, attempt.plan)).runs_left()
    except (HpcbenchError, OSError) as error:
        return f"The records cannot be read back: {error}"
    state = f"Without a record: {plural(len(left), 'run')} of cases" if left else (
        "All cases were recorded")
    return f"{state}. Fix this, then run: {see}"


def run_command(request: RunRequest, early: AnyTemplate | None = None) -> int:
    """Run one sweep on this rank and return the exit code that all ranks agreed on."""
    return as_job(lambda session, stop: run(session, request, stop, early), request.verbosity,
                  lambda: start_limit_s(request.config, request.overrides))


def as_job(
    work: Callable[[Session, StopRequests], int], verbosity: Verbosity,
    limit_s: Callable[[], float] = usual_limit_s,
) -> int:
    """Do this rank's part of a job and return the exit code that all ranks agreed on.

    The ranks have to come within ``limit_s``, which only a late start asks."""
    comm: Communicator | None = None
    try:
        with (stop_requests(os.environ, _end_unnoticed) as stop,
              contextlib.ExitStack() as opened):
            with verbosity.stage("start of MPI"):
                session = opened.enter_context(open_session(os.environ, limit_s))
            comm, stop.has_started = session.comm, True
            return int(work(session, stop))
    except AgreedError as error:
        if (announced_rank(os.environ) if comm is None else comm.rank) == 0:
            verbosity.traceback()
            _complain(str(error))
        return int(error.exit_code)
    except HpcbenchError as error:
        verbosity.traceback()
        return _end_alone(comm, str(error), error.exit_code, error.to_see)
    except OSError as error:  # a full disk behind standard output
        verbosity.traceback()
        return _end_alone(comm, str(error), ExitCode.USAGE)
    except Exception:
        print_traceback(os.environ)
        return _end_alone(comm, "internal error, please report the lines above", ExitCode.INTERNAL)


def _end_alone(
    comm: Communicator | None, message: str, code: int,
    to_see: str = "To see what is recorded, run: hpcbench reduce FOLDER",
) -> int:
    """End after an error that the other ranks do not know of: end them too, if there are any."""
    if comm is None:
        if announced_rank(os.environ) == 0:
            _complain(message)
    else:
        _complain(f"rank {comm.rank}: {message}\n  All ranks are ended. {to_see}".rstrip())
        if comm.size > 1:
            comm.abort(int(code))
    return int(code)


def _end_unnoticed(signal: str) -> None:
    """End this rank, whose main thread waits for others in MPI or elsewhere."""
    with contextlib.suppress(Exception):  # it ends, whatever cannot be printed
        if announced_rank(os.environ) == 0:
            _complain(f"ended by {signal} while it waited for other ranks; to see what is "
                      "recorded, run: hpcbench reduce FOLDER")
    end_at_once(ExitCode.INCOMPLETE)


def _complain(message: str) -> None:
    say_all(f"hpcbench: {masked(message, os.environ)}", sys.stderr)
