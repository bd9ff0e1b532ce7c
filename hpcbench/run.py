"""The main job: what ``mpirun -np 4 python -m hpcbench run`` does, stage by stage."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpcbench import __version__
from hpcbench.backends.availability import RankFacts
from hpcbench.backends.tools import wanted_tools
from hpcbench.config.schema import Fault
from hpcbench.errors import ExitCode, HpcbenchError
from hpcbench.launch.clocks.synchronization import Clocks
from hpcbench.launch.folders.rank_folders import Places, find_places, leave, told_apart
from hpcbench.launch.folders.run_folder import RunFolder, create_run_folder, take_up_folder
from hpcbench.launch.folders.stranded_traces import bring_leftovers
from hpcbench.launch.folders.trace_delivery import deliver
from hpcbench.launch.job import Job, Report
from hpcbench.launch.probe import Resolution, resolve
from hpcbench.launch.ranks.address import Network, choose_network
from hpcbench.launch.ranks.agreement import AgreedError, on_all, on_root
from hpcbench.launch.ranks.communicator import IDLE_PAUSE_S, Communicator
from hpcbench.launch.ranks.launcher_variables import announced_rank, by_torchrun
from hpcbench.launch.ranks.session import Topology, open_session
from hpcbench.launch.ranks.stop_requests import StopRequests, stop_requests
from hpcbench.launch.setup import (
    header,
    hosts,
    job_canary,
    job_rendezvous,
    mpi_facts,
    open_pool,
    run_budget_s,
    socket_env,
    version_mix,
    versions,
)
from hpcbench.launch.supervisor import is_done, runs_left, supervise
from hpcbench.launch.workers.worker_pool import WorkerPool
from hpcbench.masking import masked, print_traceback
from hpcbench.measure.noise import NOISE_NOTE, measure_noise
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.history import History
from hpcbench.plan.order import INLINE_BACKENDS
from hpcbench.resume import Asked, Beginning, begin, earlier_run, with_software
from hpcbench.trace.attempts import attempt_folders
from hpcbench.trace.journal import Journal, journal_path
from hpcbench.trace.sealed import seal, trace_path
from hpcbench.trace.source import (
    APART_NOTE,
    END_NOTE,
    RESUMED_NOTE,
    STOPPED_NOTE,
    UnreadableTrace,
)

_STARTED_BY_TORCHRUN = " (torchrun; with mpirun or srun they are isolated)"


def run_command(asked: Asked) -> int:
    """Run the job on this rank and return the exit code that all ranks agreed on."""
    comm: Communicator | None = None
    try:
        with stop_requests() as stop, open_session(os.environ) as (comm, topology):
            return int(run(comm, topology, asked, stop))
    except AgreedError as error:
        if comm is not None and comm.rank == 0:
            _complain(str(error))
        return int(error.exit_code)
    except HpcbenchError as error:
        return _alone(comm, str(error), error.exit_code)
    except OSError as error:  # a full disk behind standard output
        return _alone(comm, str(error), ExitCode.USAGE)
    except Exception:
        print_traceback(os.environ)
        return _alone(comm, "internal error, please report the lines above", ExitCode.INTERNAL)


def _alone(comm: Communicator | None, message: str, code: ExitCode) -> int:
    """End after an error that the other ranks do not know of: end them too, if there are any."""
    if comm is None:
        if announced_rank(os.environ) == 0:
            _complain(message)
    else:
        _complain(f"rank {comm.rank}: {message}\n  every rank is ended; what was acknowledged is "
                  "on disk: hpcbench reduce FOLDER")
        if comm.size > 1:
            comm.abort(int(code))
    return int(code)


def _complain(message: str) -> None:
    print(f"hpcbench: {masked(message, os.environ)}", file=sys.stderr, flush=True)


def run(
    comm: Communicator, topology: Topology, asked: Asked, stop: StopRequests,
) -> ExitCode:
    """Plan, probe, measure, seal, reduce and report; collective over all ranks."""
    # With torchrun there is no MPI process to protect, and no supervisor beside it.
    asked = replace(asked, inline=by_torchrun(os.environ))
    _bring_leftovers(comm, topology, asked)
    job = Beginning.from_json(on_root(comm, lambda: begin(asked, comm.size).to_json()))
    plan = job.plan
    network = choose_network(comm, topology.nodes, plan.config["launch"], os.environ)
    with open_pool(plan, topology) as pool:
        ranks = _probe(comm, topology, plan, pool)
        resolution = resolve(plan, ranks)
        history = History.from_json(on_root(comm, lambda: with_software(
            job, versions(topology, ranks[0].facts), force=asked.force).to_json()))
        nothing_left = is_done(plan, resolution, history)
        folder = RunFolder.from_json(on_root(
            comm, lambda: _folder(job, history, nothing_left).to_json()))
        places = find_places(comm, topology, folder)
        if not nothing_left:
            _measure(comm, topology, network, plan, pool, ranks, resolution, places, history, stop)
    with _can_be_made_good(folder):
        on_all(comm, "sealing the trace",
               lambda: _seal(places.own, comm.rank, measured=not nothing_left))
        _bring_in(comm, places)
        code = on_root(comm, lambda: _report(folder, plan), IDLE_PAUSE_S)
    comm.barrier(IDLE_PAUSE_S)
    return ExitCode(code)


def _bring_leftovers(comm: Communicator, topology: Topology, asked: Asked) -> None:
    """Have rank 0 get what killed ranks of the run that goes on left on disks of their own."""
    if asked.folder is not None and (
            earlier := on_root(comm, lambda: earlier_run(asked, comm.size))):
        for problem in bring_leftovers(comm, topology, Path(earlier[0]), earlier[1]):
            _complain(f"{problem}; what it holds is run again, if rank 0 has it from nowhere else")


@contextlib.contextmanager
def _can_be_made_good(folder: RunFolder) -> Iterator[None]:
    """Add to an error after the last case what is left to do once its cause is mended."""
    try:
        yield
    except AgreedError as error:
        raise AgreedError(f"{error}\n  all cases were recorded; mend this, then: "
                          f"hpcbench reduce {folder.path}", error.exit_code) from error


def _folder(job: Beginning, history: History, nothing_left: bool) -> RunFolder:
    if job.folder is None or not history.attempt:
        return create_run_folder(job.plan, job.folder)
    if nothing_left:
        print(f"{job.folder}: nothing is left to run", flush=True)
        return RunFolder(job.folder, history.run_id, history.attempt - 1)
    return take_up_folder(job.folder, job.plan, history)


def _probe(
    comm: Communicator, topology: Topology, plan: Plan, pool: WorkerPool,
) -> list[RankFacts]:
    """Return what every rank's machine has; refuse ranks whose software differs."""
    facts = on_all(comm, "probing the machine",
                   lambda: {**pool.facts(wanted_tools(plan.cases)), "mpi": mpi_facts()})
    places = comm.allgather([topology.hostname, topology.local_rank, topology.mpi])
    mixed = None if plan.config["launch"]["allow_mixed"] else version_mix(facts, places)
    if mixed:
        raise AgreedError(mixed, ExitCode.USAGE)  # all ranks see the same facts
    return [RankFacts(rank, place[0], place[1], facts[rank]) for rank, place in enumerate(places)]


def _measure(
    comm: Communicator, topology: Topology, network: Network, plan: Plan, pool: WorkerPool,
    ranks: Sequence[RankFacts], resolution: Resolution, places: Places, history: History,
    stop: StopRequests,
) -> None:
    """Supervise the whole sweep; this rank's journal is complete when this returns."""
    opened: list[Journal] = []
    who = header(topology, network, plan, places.own.run_id, ranks)
    on_all(comm, "opening the trace", lambda: opened.append(Journal.create(
        journal_path(places.own.traces, comm.rank), who, plan if comm.rank == 0 else None)))
    left = runs_left(plan, resolution, history)
    with opened[0] as journal, _progress(
            comm, plan, resolution, topology, places, history, left) as report:
        if comm.rank == 0 and places.apart:
            journal.note(APART_NOTE, {str(rank): place for rank, place in places.apart.items()})
        if comm.rank == 0 and history.attempt:
            journal.note(RESUMED_NOTE, {
                "attempt": history.attempt, "left": len(left), "changes": list(history.changes),
                "planned": len(left) + len(history.finished),
                "earlier_plans": list(history.plans)})
        _look_for_noise(comm, plan, journal)
        clocks = Clocks(time.perf_counter_ns, plan.config["measure"]["clock_sync_s"], journal.note)
        clocks.sync(comm)
        reason = supervise(Job(
            comm=comm, plan=plan, resolution=resolution, required=frozenset(plan.config["require"]),
            rendezvous=job_rendezvous(network, topology, plan, ranks),
            socket_env=socket_env(network),
            faults=tuple(Fault(**fault) for fault in plan.config["fault"]),
            inline=plan.config["launch"]["inline"], stop=stop,
            journal=journal, report=report, clocks=clocks,
            budget_s=run_budget_s(plan, len(resolution.devices)),
            canary=job_canary(plan, ranks), history=history, folder=places.folder.path,
            hosts=hosts(ranks)), pool)
        if reason:
            journal.note(STOPPED_NOTE, {"signal": reason})
        journal.note(END_NOTE, {})


def _look_for_noise(comm: Communicator, plan: Plan, journal: Journal) -> None:
    """Note how quiet this rank's core is; all ranks look at the same time, as they measure."""
    seconds = plan.config["measure"]["noise_check_s"]
    if seconds:
        comm.barrier()
        journal.note(NOISE_NOTE, measure_noise(seconds))


@contextlib.contextmanager
def _progress(
    comm: Communicator, plan: Plan, resolution: Resolution, topology: Topology, places: Places,
    history: History, todo: Sequence[Case],
) -> Iterator[Report]:
    """Give what to call after each case; only rank 0 prints."""
    if comm.rank != 0:
        yield lambda case, status, reason, seconds, launch, pass_index: None
        return
    from hpcbench.report.progress import Progress

    with Progress(todo, passes=plan.passes, launches=plan.launches) as progress:
        progress.message(
            f"hpcbench {__version__}: {comm.size} rank(s) on {len(topology.nodes)} node(s), "
            f"{len(todo)} cases to run, {len(resolution.skips)} cannot run here")
        progress.message(f"results in {places.folder.path}")
        for line in told_apart(places):
            progress.message(line)
        if history.attempt:
            progress.message(f"attempt {history.attempt} at this run: {len(history.finished)} runs "
                             "of cases were done before and are not repeated")
        for case in plan.cases:
            if reason := history.quarantine(case):
                progress.message(f"{case.label}: {reason}")
        for note in plan.config["notes"]:
            progress.message(f"note: {note}")
        if plan.config["launch"]["inline"]:
            progress.message(
                "workers run inline, in the ranks' own processes, and are not isolated: a crash "
                "ends the job, a hang is not survived" + _STARTED_BY_TORCHRUN * by_torchrun(
                    os.environ))
        elif inline := sum(case.backend in INLINE_BACKENDS for case in todo):
            progress.message(f"{inline} of them run last and in the MPI processes (backend mpi): a "
                             "crash or a hang there ends the job")
        yield progress.case_done


def _seal(folder: RunFolder, rank: int, *, measured: bool) -> None:
    """Turn this rank's journal into its trace; of earlier attempts, too, that had no time to."""
    for traces in attempt_folders(folder.path / "traces"):
        journal, trace = journal_path(traces, rank), trace_path(traces, rank)
        earlier = contextlib.suppress(UnreadableTrace) if traces != folder.traces else (
            contextlib.nullcontext())  # of others the reducer says what is wrong with them
        with earlier:
            if journal.is_file() or (measured and traces == folder.traces):
                seal(journal, trace)
                journal.unlink()


def _bring_in(comm: Communicator, places: Places) -> None:
    """Have rank 0 get the traces of the ranks that do not see its folder; collective."""
    trace = trace_path(places.own.traces, comm.rank)
    mine = {trace.name: trace} if trace.is_file() else {}
    for problem in deliver(comm, mine, places.apart, places.folder.traces):
        _complain(f"{problem}; copy it to {places.folder.traces} on rank 0's node, then: "
                  f"hpcbench reduce {places.folder.path}")
    if comm.rank in places.apart:
        leave(places.own)


def _report(folder: RunFolder, plan: Plan) -> int:
    """Reduce, write results and reports, print the tables; return the exit code (rank 0)."""
    from hpcbench.reduce.reduce import exit_code, reduce_folder
    from hpcbench.report.console import print_results
    from hpcbench.report.outputs import write_reports

    results = reduce_folder(folder.path, allow_mixed=plan.config["launch"]["allow_mixed"])
    write_reports(results, folder.path, plots=plan.config["output"]["plots"])
    print_results(results, folder.path)
    return int(exit_code(results))
