"""``hpcbench validate``: all ranks report, rank 0 judges and prints, all end with one code.

A rank is probed by the same code as in a run. No wait is without a limit."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

from hpcbench.backends.availability import wanted_tools
from hpcbench.backends.child import gpus_start_s
from hpcbench.config.load import load_config, source_lines
from hpcbench.config.schema import Config, Launch, stored_config
from hpcbench.errors import ExitCode, HpcbenchError, LaunchError, RankLostError
from hpcbench.launch.address import choose_network
from hpcbench.launch.clocks import synchronise
from hpcbench.launch.communicator import Communicator, Inbox, Pair
from hpcbench.launch.launcher import (
    announced_rank,
    announced_size,
    by_torchrun,
    mixed_mpis,
    world_size_fix,
)
from hpcbench.launch.probe import mpi_facts, torch_facts, versions
from hpcbench.launch.session import (
    FIRST_CALL,
    AgreedError,
    RankIdentity,
    Refusal,
    on_root,
    open_communicator,
    own_command,
    refusals,
    topology_among,
    unlike,
)
from hpcbench.launch.start import LATER_S, LateStart, Watchdog, end_at_once, limited_start
from hpcbench.launch.template_process import worker_environment
from hpcbench.measurement.environment import clock_identity, machine, node_identity
from hpcbench.measurement.process import KernelFiles, soft_limit
from hpcbench.plan.case import Plan, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.texts import Verbosity, masked, path_of, print_traceback, say_all
from hpcbench.units import rank_list
from hpcbench.validation import rank_report as storage_probe
from hpcbench.validation.job import (
    clock_lines,
    launching_lines,
    network_lines,
    report_lines,
    storage_lines,
    sweep_lines,
)
from hpcbench.validation.machine import (
    affinity_lines,
    core_use,
    device_lines,
    limit_lines,
    not_utf8,
    probe_lines,
    software_lines,
    text_lines,
    use_since,
)
from hpcbench.validation.rank_report import (
    RANK_REPORT,
    CheckLine,
    JobReport,
    RankReport,
    State,
    fail,
    rendered,
    show,
    show_problems,
)

Answer = TypeVar("Answer")
_ANSWER_MARGIN_S = 5.0


class BoundedCommunicator(Communicator):
    """The collective operations over another communicator, with the names of missing ranks.

    Values go through rank 0, one message a rank: MPI's collectives could not name a missing rank.
    Ranks without an answer in ``timeout_s`` are in ``lost``, on rank 0, and are not waited for
    again."""

    def __init__(self, comm: Communicator, timeout_s: float) -> None:
        self._comm = comm
        self._calls = itertools.count(FIRST_CALL)
        self._inbox = Inbox(comm.posted)
        self.timeout_s = timeout_s
        self.lost: set[int] = set()
        self.rank = comm.rank
        self.size = comm.size

    def gather(self, value: Any, timeout_s: float | None = None) -> dict[int, Any]:
        """Return on rank 0 the value of each rank that answered; elsewhere nothing, at once."""
        number = next(self._calls)
        if self.rank != 0:
            self._comm.post([number, value], 0)
            return {}
        others = [rank for rank in range(1, self.size) if rank not in self.lost]
        came = self._inbox.collect(number, others, timeout_s or self.timeout_s)
        self.lost.update(rank for rank in others if rank not in came)
        return {0: value, **came}

    def bcast(self, value: Any, pause_s: float = 0.0) -> Any:
        """Return rank 0's value on every rank. Raises RankLostError where it does not come."""
        return self._bcast(value, self.timeout_s)

    def _bcast(self, value: Any, before_s: float) -> Any:
        """``before_s`` is how long rank 0 may wait for a lost rank before it comes here."""
        number = next(self._calls)
        if self.rank == 0:
            for rank in range(1, self.size):
                if rank not in self.lost:
                    self._comm.post([number, value], rank)
            return value
        limit_s = before_s + self.timeout_s  # rank 0 also works for all, before
        came = self._inbox.collect(number, [0], limit_s + _ANSWER_MARGIN_S)
        if 0 not in came:
            raise RankLostError(f"rank 0 has not answered for {limit_s:g} s")
        return came[0]

    def allgather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Return every rank's value, by rank. Raises RankLostError, everywhere, naming the lost."""
        limit_s = timeout_s or self.timeout_s
        values = self.gather(value, limit_s)
        by_rank = [values.get(rank) for rank in range(self.size)]
        lost, everything = self._bcast([sorted(self.lost), by_rank], limit_s)
        if lost:
            raise RankLostError(f"rank {rank_list(lost)} has not answered for {limit_s:g} s")
        return list(everything)

    def pair(self, rank: int, timeout_s: float) -> AbstractContextManager[Pair]:
        return self._comm.pair(rank, timeout_s)

    def abort(self, code: int) -> None:
        self._comm.abort(code)


_SHARE = 0.8
"""Share of the time-out: torch's import and the answer take one each, and rank 0 waits for two."""


def report_rank(
    comm: BoundedCommunicator, topology: RankIdentity, launch: Launch, storage: Mapping[str, Any],
    tools: Sequence[str], *, complete: bool,
) -> RankReport:
    """Return the report of this rank; collective where all ranks have answered (``complete``)."""
    env, began = worker_environment(os.environ, launch.pass_env, {}), core_use()
    missing = (None, "not all ranks answer")
    interface, network_error = _or_why(lambda: choose_network(
        comm, topology, launch, os.environ).interface) if complete else missing
    described = machine(os.environ)
    if topology.rank != 0:
        storage = storage_probe.run_probe(
            storage["folder"], storage["marker"], topology.rank, comm.timeout_s, env)
    shm_bytes, core_files = _shm_bytes(), _core_files()
    # torch is imported in another process, which rank 0 waits for, too
    facts, facts_error = _or_why(
        lambda: {**torch_facts(tools, env, _SHARE * comm.timeout_s), "mpi": mpi_facts()})
    clock, clock_error = _or_why(lambda: _clock(comm)) if complete else missing
    if topology.rank != 0:  # no other rank of this node tries a folder any more
        storage_probe.remove_empty(storage["made"])
    return RankReport(
        topology.rank, topology.local_rank, topology.hostname, topology.node, topology.mpi,
        versions=versions(topology, facts or {"versions": {}}), machine=described, facts=facts,
        # of the two limits on how long torch may take it was this one
        facts_error=facts_error.replace("launch.init_timeout_s", "--timeout"),
        interface=interface, network_error=network_error, clock=clock, clock_error=clock_error,
        storage=storage, shm_bytes=shm_bytes, core_files=core_files,
        not_utf8=not_utf8(os.environ, str(storage["folder"])), core_use=use_since(began))


def _or_why(attempt: Callable[[], Answer]) -> tuple[Answer | None, str]:
    """Return an answer, or None and why there is none."""
    try:
        return attempt(), ""
    except HpcbenchError as error:
        return None, masked(str(error), os.environ)


def _clock(comm: BoundedCommunicator) -> dict[str, Any]:
    """Compare the clocks when no rank is busy any more, so that nothing widens their bounds."""
    comm.barrier(timeout_s=2 * comm.timeout_s)
    return synchronise(comm, perf_counter_ns, clock_identity()).to_json()


def _shm_bytes() -> int | None:
    with contextlib.suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return None


def _core_files() -> int | str:
    """Return the limit of core files; 0 where a program takes them from the kernel (core(5))."""
    pattern = KernelFiles().line("proc/sys/kernel/core_pattern") or ""
    return 0 if pattern.startswith("|") else soft_limit(resource.RLIMIT_CORE)


_ROUNDS = 6
"""Waits that can follow one another, each of up to twice the time-out."""
_MEETING_ROUNDS = 3
"""torch's import, the connection to torchrun's store, and the wait for the ranks."""
_SUBJECTS = (software_lines, launching_lines, probe_lines, device_lines, affinity_lines,
             network_lines, clock_lines, storage_lines, limit_lines, text_lines, report_lines)


@dataclass(frozen=True, slots=True)
class ValidationRequest:
    """The command line: the sweep is judged only if its file was named."""

    path: Path | None
    overrides: Sequence[tuple[str, object]]
    as_json: bool
    timeout_s: float
    verbosity: Verbosity = Verbosity.NORMAL


def validate_command(request: ValidationRequest) -> int:
    """Validate this rank, and on rank 0 the job; return the exit code that all ranks agreed on."""
    speaks, torchrun = announced_rank(os.environ) == 0, by_torchrun(os.environ)
    interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once: MPI_Init may never end
    start_s = _MEETING_ROUNDS * request.timeout_s if torchrun else request.timeout_s

    def tell(late: LateStart) -> ExitCode:
        problem, remedy = late.problem, late.remedy
        if torchrun:
            problem = (f"torchrun's rank 0 did not start within {start_s:g} s: torch is not "
                       "imported, or its store does not answer")
            remedy = ("does `python -c 'import torch'` end on that node, and is MASTER_ADDR "
                      "reached from it?")
        line = fail("ranks", problem, f"{remedy} --timeout S waits longer")
        say_all(rendered([line], as_json=request.as_json))
        return ExitCode.FINDINGS

    with (limited_start(lambda: start_s, os.environ, tell=tell),
          request.verbosity.stage("start of MPI")):
        comm, library, start_error = _opened(request.timeout_s)
    signal.signal(signal.SIGINT, interrupted)
    bounded = BoundedCommunicator(comm, request.timeout_s)
    limit_s = 2 * _ROUNDS * request.timeout_s
    late = fail("ranks", f"the validation did not end within {limit_s:g} s",
                "ranks answer, but not in time: look at the load and the network of the nodes")
    with _limited(limit_s, lambda: late, request, speaks=comm.rank == 0):
        try:
            code = _validate(bounded, library, start_error, request, speaks=speaks)
        except AgreedError as error:
            if bounded.rank == 0:
                request.verbosity.traceback()
                say_all(f"hpcbench: {masked(str(error), os.environ)}", sys.stderr)
            code = int(error.exit_code)
        except Exception as error:
            code = _alone(bounded, error)
    return code


def _limited(
    limit_s: float, late: Callable[[], CheckLine], request: ValidationRequest, *, speaks: bool,
) -> Watchdog:
    """Return a context that ends this process with code 1, and this line, after ``limit_s``."""
    def end(_late_s: float) -> None:
        with contextlib.suppress(Exception):  # this process ends, whatever cannot be printed
            if speaks:
                say_all(rendered([late()], as_json=request.as_json))
        end_at_once(ExitCode.FINDINGS)

    return Watchdog(limit_s + (0.0 if speaks else LATER_S), end)


def _alone(comm: Communicator, error: Exception) -> int:
    """End all ranks after an error that the others do not know of."""
    code, message = ExitCode.FINDINGS, str(error)
    if not isinstance(error, RankLostError):
        code, message = ExitCode.INTERNAL, "internal error, please report the lines above"
        print_traceback(os.environ)
    say_all(f"hpcbench: rank {comm.rank}: {masked(message, os.environ)}", sys.stderr)
    if comm.size > 1:
        comm.abort(int(code))
    return int(code)


def _opened(timeout_s: float) -> tuple[Communicator, str, str]:
    try:
        return (*open_communicator(os.environ, lambda: timeout_s), "")
    except LaunchError as error:
        return Communicator(), "none", str(error)


def _validate(
    comm: BoundedCommunicator, library: str, start_error: str, request: ValidationRequest,
    *, speaks: bool,
) -> int:
    """Validate on all ranks that answer. Raises AgreedError for an invalid configuration."""
    announced = announced_size(os.environ)
    lonely = announced is not None and announced[0] != comm.size
    topology, hosts, lost = _find_ranks(comm, library)
    config, plan = _job_of(comm, request)
    with _tried_folder(comm, config, request.timeout_s) as storage:
        report = report_rank(
            comm, topology, config.launch, storage, wanted_tools(plan.cases) if plan else (),
            complete=not lost)
        with request.verbosity.stage("reports of all ranks"):
            answers = comm.gather(RANK_REPORT.write(report),
                                  2 * request.timeout_s + gpus_start_s())
        if comm.rank != 0:
            return _end(comm, None)
        job = JobReport(
            world_size=comm.size,
            ranks=tuple(RANK_REPORT.read(answers[rank]) for rank in sorted(answers)),
            announced=announced, timeout_s=request.timeout_s, start_error=start_error,
            world_size_fix=world_size_fix(announced[1], library) if announced else "",
            lost={rank: hosts.get(rank, "") for rank in comm.lost},
            mixed=(*mixed_mpis(os.environ, library),))
    if lonely and not speaks:
        return int(ExitCode.OK)  # the first to end with another code would end the one who speaks
    with request.verbosity.stage("checks"):
        lines = judge(job, plan)
    shown = [replace(line, found=masked(line.found, os.environ), fix=masked(line.fix, os.environ))
             for line in lines]
    if request.verbosity.is_quiet and not request.as_json:
        show_problems(shown)
    else:
        show(shown, job.world_size, len(job.by_node), as_json=request.as_json,
             full=request.verbosity.is_verbose)
    return _end(comm, int(exit_code(lines)))


def judge(job: JobReport, plan: Plan | None) -> list[CheckLine]:
    """Return every line about the reports; those of a sweep if there is a ``plan``."""
    lines = [line for subject in _SUBJECTS for line in subject(job)]
    return [*lines, *(sweep_lines(job, plan) if plan else ())]


def exit_code(lines: Sequence[CheckLine]) -> ExitCode:
    """Return FINDINGS if anything fails, else OK: a warning does not stop a run."""
    failed = any(line.state is State.FAIL for line in lines)
    return ExitCode.FINDINGS if failed else ExitCode.OK


def _end(comm: BoundedCommunicator, code: int | None) -> int:
    """Return rank 0's exit code on every rank; lost ranks have to be ended."""
    final, lost = comm.bcast([code, bool(comm.lost)])
    if lost:
        sys.stdout.flush()
        comm.abort(int(final))
    return int(final)


def _find_ranks(
    comm: BoundedCommunicator, library: str,
) -> tuple[RankIdentity, Mapping[int, str], list[int]]:
    """Return this rank's place among those that answer, their hosts, and who does not."""
    answers = comm.gather([node_identity(), socket.gethostname(), own_command()])
    if refused := {rank: Refusal(**answer) for rank, answer in answers.items()
                   if isinstance(answer, dict)}:
        say_all(f"hpcbench: {masked(refusals(refused), os.environ)}", sys.stderr)
        comm.abort(max(refusal.exit_code for refusal in refused.values()))
    if other := unlike("the command", [(rank, *answers[rank][1:]) for rank in sorted(answers)]):
        say_all(f"hpcbench: {masked(other, os.environ)}", sys.stderr)
        comm.abort(int(ExitCode.USAGE))
    places, lost = comm.bcast([sorted(answers.items()), sorted(comm.lost)])
    topology = topology_among(comm, {rank: node for rank, (node, *_) in places}, library)
    return topology, {rank: host for rank, (_, host, _) in places}, lost


def _job_of(comm: BoundedCommunicator, request: ValidationRequest) -> tuple[Config, Plan | None]:
    """Return the configuration, and the plan if its file was named; rank 0 reads it for all."""
    def read() -> list[Any]:
        request.verbosity.details(source_lines(request.path, request.overrides))
        config = load_config(request.path, request.overrides)
        plan = make_plan(config, comm.size) if request.path else None
        return [config.plain(), plan_to_json(plan) if plan else None]

    config, plan = on_root(comm, read)
    return stored_config(config), plan_from_json(plan) if plan else None


@contextlib.contextmanager
def _tried_folder(
    comm: BoundedCommunicator, config: Config, timeout_s: float,
) -> Iterator[Mapping[str, Any]]:
    """Yield rank 0's probe of the results folder, which makes it if need be, on every rank."""
    def first() -> dict[str, Any]:
        env = worker_environment(os.environ, config.launch.pass_env, {})
        return storage_probe.run_probe(str(path_of(config.output.folder).absolute()),
                                       f".validate-{secrets.token_hex(6)}", 0, timeout_s, env)

    storage: Mapping[str, Any] = on_root(comm, first)
    try:
        yield storage
    finally:
        if comm.rank == 0 and storage["seen"]:  # else it hangs, or nothing is there
            storage_probe.remove(storage)
