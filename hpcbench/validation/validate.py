"""``hpcbench validate``: all ranks tell, rank 0 judges and prints, all end with one code."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcbench.backends.tools import wanted_tools
from hpcbench.config.load import load_config
from hpcbench.config.schema import Config, stored_config
from hpcbench.config.sources import source_lines
from hpcbench.errors import ExitCode, LaunchError, RankLostError
from hpcbench.launch.ranks.agreement import AgreedError, on_root
from hpcbench.launch.ranks.bounded_communicator import BoundedCommunicator
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.ranks.launcher_variables import (
    announced_rank,
    announced_size,
    by_torchrun,
    lonely_fix,
)
from hpcbench.launch.ranks.session import Topology, open_communicator, topology_among
from hpcbench.launch.workers.environment import worker_environment
from hpcbench.launch.workers.worker_pool import gpus_start_s
from hpcbench.masking import masked, print_traceback
from hpcbench.measure.environment import node_identity
from hpcbench.plan.case import Plan, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.texts import path_of, say
from hpcbench.validation import storage_probe
from hpcbench.validation.cores_and_gpus import affinity_lines, device_lines, probe_lines
from hpcbench.validation.gather import report_rank
from hpcbench.validation.launching import launching_lines
from hpcbench.validation.limits import limit_lines
from hpcbench.validation.lines import Line, State, fail, rendered, show, show_problems
from hpcbench.validation.network import network_lines
from hpcbench.validation.outside_texts import text_lines
from hpcbench.validation.rank_report import RANK_REPORT, JobReport
from hpcbench.validation.reports import report_lines
from hpcbench.validation.software import software_lines
from hpcbench.validation.storage import storage_lines
from hpcbench.validation.sweep import sweep_lines
from hpcbench.validation.timing import clock_lines
from hpcbench.verbosity import Verbosity

_ROUNDS = 6
"""Waits that can follow one another, each of up to twice the time-out."""
_MEETING_ROUNDS = 3
"""torch's import, the way to torchrun's store, and the wait for the ranks; the last two name what
is wrong themselves."""
_MARGIN_S = 1.0
_SPEAKER = ("import select, sys\n"
            "select.select([0], [], [], float(sys.argv[1]))[0] or print(sys.argv[2], flush=True)")
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
    speaks = announced_rank(os.environ) == 0
    env = worker_environment(os.environ, (), {})
    torchrun = by_torchrun(os.environ)
    start_s = _MEETING_ROUNDS * request.timeout_s if torchrun else request.timeout_s
    late = rendered([_no_start(start_s, torchrun)], as_json=request.as_json)
    with _guarded(start_s, late if speaks else None, env), request.verbosity.stage("start of MPI"):
        comm, library, start_error = _opened(request.timeout_s)
    bounded = BoundedCommunicator(comm, request.timeout_s)
    limit_s = 2 * _ROUNDS * request.timeout_s
    late = rendered([fail(
        "ranks", f"the validation did not end within {limit_s:g} s",
        "ranks answer, but not in time: look at the load and the network of the nodes",
    )], as_json=request.as_json)
    with _guarded(limit_s, late if comm.rank == 0 else None, env):
        try:
            code = _validate(bounded, library, start_error, request, speaks=speaks)
        except AgreedError as error:
            if bounded.rank == 0:
                request.verbosity.traceback()
                say(f"hpcbench: {masked(str(error), os.environ)}", sys.stderr)
            code = int(error.exit_code)
        except Exception as error:
            code = _alone(bounded, error)
    return code


@contextlib.contextmanager
def _guarded(limit_s: float, message: str | None, env: Mapping[str, str]) -> Iterator[None]:
    """End this process with code 1 if the block takes longer than ``limit_s``; MPI_Init may hang.

    mpi4py holds the interpreter's lock while it starts MPI, so neither a thread nor a signal
    handler of ours would run. A child, whose variables are ``env``, prints ``message`` unless it is
    None. Then faulthandler's thread, which needs no lock, ends this process.
    """
    with contextlib.ExitStack() as stack:
        nowhere = stack.enter_context(Path(os.devnull).open("w"))
        if message is not None:
            speaker = stack.enter_context(subprocess.Popen(
                [sys.executable, "-S", "-c", _SPEAKER, str(limit_s), message], env=dict(env),
                stdin=subprocess.PIPE))
            stack.callback(speaker.communicate)
        faulthandler.dump_traceback_later(limit_s + _MARGIN_S, exit=True, file=nowhere)
        stack.callback(faulthandler.cancel_dump_traceback_later)
        yield


def _alone(comm: Communicator, error: Exception) -> int:
    """End this and all other ranks after an error that the others do not know of."""
    code, message = _judged(error)
    if code is ExitCode.INTERNAL:
        print_traceback(os.environ)
    say(f"hpcbench: rank {comm.rank}: {masked(message, os.environ)}", sys.stderr)
    if comm.size > 1:
        comm.abort(int(code))
    return int(code)


def _judged(error: Exception) -> tuple[ExitCode, str]:
    """Return the exit code and the message for an error that one rank alone has."""
    if isinstance(error, RankLostError):
        return ExitCode.FINDINGS, str(error)
    return ExitCode.INTERNAL, "internal error, please report the lines above"


def _opened(timeout_s: float) -> tuple[Communicator, str, str]:
    """Return communicator and MPI library; if the ranks do not get together one rank, and why."""
    try:
        return (*open_communicator(os.environ, timeout_s), "")
    except LaunchError as error:
        return Communicator(), "none", str(error)


def _no_start(limit_s: float, torchrun: bool) -> Line:
    late = f"did not start within {limit_s:g} s"
    if torchrun:
        return fail("ranks", f"torchrun's rank 0 {late}: torch is not imported, or its store does "
                    "not answer", "does `python -c 'import torch'` end on that node, and is "
                    "MASTER_ADDR reached from it? --timeout S waits longer")
    return fail("ranks", f"MPI {late}: some rank never came, or the nodes do not reach one "
                "another", "start `hostname` with the same command: does every node answer? Is "
                "the mpirun of this Python's environment? --timeout S waits longer")


def _validate(
    comm: BoundedCommunicator, library: str, start_error: str, request: ValidationRequest,
    *, speaks: bool,
) -> int:
    """Do it on all ranks that answer. Raises AgreedError for a configuration that cannot be."""
    announced = announced_size(os.environ)
    lonely = announced is not None and announced[0] != comm.size
    topology, hosts, lost = _find_ranks(comm, library)
    config, plan = _job_of(comm, request)
    with _tried_folder(comm, config, request.timeout_s) as storage:
        report = report_rank(
            comm, topology, config.launch, storage, wanted_tools(plan.cases) if plan else (),
            complete=not lost)
        with request.verbosity.stage("reports of all ranks"):
            answers = comm.gather(RANK_REPORT.dump_python(report, mode="json"),
                                  2 * request.timeout_s + gpus_start_s())
        if comm.rank != 0:
            return _end(comm, None)
        job = JobReport(
            world_size=comm.size,
            ranks=tuple(RANK_REPORT.validate_python(answers[rank]) for rank in sorted(answers)),
            announced=announced, timeout_s=request.timeout_s, start_error=start_error,
            lonely_fix=lonely_fix(announced[1], library) if announced else "",
            lost={rank: hosts.get(rank, "") for rank in comm.lost})
    if lonely and not speaks:
        return int(ExitCode.OK)  # the first to end with another code would end the one who speaks
    with request.verbosity.stage("checks"):
        lines = judge(job, plan)
    shown = [replace(line, found=masked(line.found, os.environ), fix=masked(line.fix, os.environ))
             for line in lines]
    if request.verbosity.is_quiet and not request.as_json:
        show_problems(shown)
    else:
        show(shown, job.world_size, len(job.by_node), as_json=request.as_json)
    return _end(comm, int(exit_code(lines)))


def judge(job: JobReport, plan: Plan | None) -> list[Line]:
    """Return every line about the reports; those of a sweep if there is a ``plan``."""
    lines = [line for subject in _SUBJECTS for line in subject(job)]
    return [*lines, *(sweep_lines(job, plan) if plan else ())]


def exit_code(lines: Sequence[Line]) -> ExitCode:
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
) -> tuple[Topology, Mapping[int, str], list[int]]:
    """Return this rank's place among those that answer, their hosts, and who does not."""
    answers = comm.gather([node_identity(), socket.gethostname()])
    places, lost = comm.bcast([sorted(answers.items()), sorted(comm.lost)])
    topology = topology_among(comm, {rank: node for rank, (node, _) in places}, library)
    return topology, {rank: host for rank, (_, host) in places}, lost


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
        return storage_probe.ask(str(path_of(config.output.folder).absolute()),
                                 f".validate-{secrets.token_hex(6)}", 0, timeout_s, env)

    storage: Mapping[str, Any] = on_root(comm, first)
    try:
        yield storage
    finally:
        if comm.rank == 0 and storage["seen"]:  # else it hangs, or nothing is there
            storage_probe.remove(storage)
