"""``hpcbench validate``: all ranks tell, rank 0 judges and prints, all end with one code."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbench.backends.tools import wanted_tools
from hpcbench.config.load import load_config
from hpcbench.config.schema import Config
from hpcbench.config.stored import stored_config
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
from hpcbench.launch.ranks.session import Topology, open_communicator
from hpcbench.launch.workers.environment import worker_environment
from hpcbench.masking import masked, print_traceback
from hpcbench.measure.environment import node_identity
from hpcbench.plan.case import Plan, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.validation import storage_probe
from hpcbench.validation.gather import ReportRequest, probe_storage_first, report_rank
from hpcbench.validation.guard import guarded
from hpcbench.validation.judge import exit_code, judge
from hpcbench.validation.lines import Line, fail
from hpcbench.validation.printed import rendered, show
from hpcbench.validation.rank_report import RANK_REPORT, JobReport

_ROUNDS = 6
"""Waits that can follow one another, each of up to twice the time-out."""
_MEETING_ROUNDS = 3
"""torch's import, the way to torchrun's store, and the wait for the ranks; the last two name what
is wrong themselves."""


@dataclass(frozen=True, slots=True)
class ValidationRequest:
    """The command line: the sweep is judged only if its file was named."""

    path: Path | None
    overrides: Sequence[tuple[str, object]]
    as_json: bool
    timeout_s: float


def validate_command(request: ValidationRequest) -> int:
    """Validate this rank, and on rank 0 the job; return the exit code that all ranks agreed on."""
    speaks = announced_rank(os.environ) == 0
    env = worker_environment(os.environ, (), {})
    torchrun = by_torchrun(os.environ)
    start_s = _MEETING_ROUNDS * request.timeout_s if torchrun else request.timeout_s
    with guarded(start_s, _no_start(request, start_s, torchrun) if speaks else None, env):
        comm, library, start_error = _opened(request.timeout_s)
    bounded = BoundedCommunicator(comm, request.timeout_s)
    limit_s = 2 * _ROUNDS * request.timeout_s
    with guarded(limit_s, _no_end(request, limit_s) if comm.rank == 0 else None, env):
        try:
            code = _validate(bounded, library, start_error, request, speaks=speaks)
        except AgreedError as error:
            if bounded.rank == 0:
                print(f"hpcbench: {masked(str(error), os.environ)}", file=sys.stderr, flush=True)
            code = int(error.exit_code)
        except Exception as error:
            code = _alone(bounded, error)
    return code


def _alone(comm: Communicator, error: Exception) -> int:
    """End this and all other ranks after an error that the others do not know of."""
    lost = isinstance(error, RankLostError)
    if not lost:
        print_traceback(os.environ)
    message = masked(str(error), os.environ) if lost else (
        "internal error, please report the lines above")
    print(f"hpcbench: rank {comm.rank}: {message}", file=sys.stderr, flush=True)
    code = int(ExitCode.FINDINGS if lost else ExitCode.INTERNAL)
    if comm.size > 1:
        comm.abort(code)
    return code


def _opened(timeout_s: float) -> tuple[Communicator, str, str]:
    """Return communicator and MPI library; if the ranks do not get together one rank, and why."""
    try:
        return (*open_communicator(os.environ, timeout_s), "")
    except LaunchError as error:
        return Communicator(), "none", str(error)


def _no_start(request: ValidationRequest, limit_s: float, torchrun: bool) -> str:
    late = f"did not start within {limit_s:g} s"
    if torchrun:
        line = fail("ranks", f"torchrun's rank 0 {late}: torch is not imported, or its store does "
                    "not answer", "does `python -c 'import torch'` end on that node, and is "
                    "MASTER_ADDR reached from it? --timeout S waits longer")
    else:
        line = fail("ranks", f"MPI {late}: some rank never came, or the nodes do not reach one "
                    "another", "start `hostname` with the same command: does every node answer? Is "
                    "the mpirun of this Python's environment? --timeout S waits longer")
    return rendered([line], as_json=request.as_json)


def _no_end(request: ValidationRequest, limit_s: float) -> str:
    line = fail("ranks", f"the validation did not end within {limit_s:g} s",
                "ranks answer, but not in time: look at the load and the network of the nodes")
    return rendered([line], as_json=request.as_json)


def _validate(
    comm: BoundedCommunicator, library: str, start_error: str, request: ValidationRequest,
    *, speaks: bool,
) -> int:
    """Do it on all ranks that answer. Raises AgreedError for a configuration that cannot be."""
    announced = announced_size(os.environ)
    lonely = announced is not None and announced[0] != comm.size
    topology, hosts, lost = _find_ranks(comm, library)
    config, plan = _job_of(comm, request)
    with _Folder(comm, config, request.timeout_s) as storage:
        report = report_rank(comm, topology, ReportRequest(
            config.launch, *storage, tools=wanted_tools(plan.cases) if plan else (),
            complete=not lost))
        answers = comm.gather(RANK_REPORT.dump_python(report, mode="json"), 2 * request.timeout_s)
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
    lines = judge(job, plan)
    show(_masked(lines), job.world_size, len(job.by_node), as_json=request.as_json)
    return _end(comm, int(exit_code(lines)))


def _masked(lines: Sequence[Line]) -> list[Line]:
    return [Line(line.subject, line.state, masked(line.found, os.environ),
                 masked(line.fix, os.environ)) for line in lines]


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
    node = node_identity()
    same = [rank for rank, (other, _) in places if other == node]
    return Topology(
        rank=comm.rank, world_size=comm.size, local_rank=same.index(comm.rank),
        local_size=len(same), hostname=socket.gethostname(), node=node,
        nodes=tuple(dict.fromkeys(other for _, (other, _) in places)), mpi=library,
    ), {rank: host for rank, (_, host) in places}, lost


def _job_of(comm: BoundedCommunicator, request: ValidationRequest) -> tuple[Config, Plan | None]:
    """Return the configuration, and the plan if its file was named; rank 0 reads it for all."""
    def read() -> list[Any]:
        config = load_config(request.path, request.overrides)
        plan = make_plan(config, comm.size) if request.path else None
        return [config.plain(), plan_to_json(plan) if plan else None]

    config, plan = on_root(comm, read)
    return stored_config(config), plan_from_json(plan) if plan else None


class _Folder:
    """The results folder while it is tried: rank 0 makes it if need be, and takes it away."""

    def __init__(
        self, comm: BoundedCommunicator, config: Config, timeout_s: float,
    ) -> None:
        self._comm = comm
        self._config = config
        self._timeout_s = timeout_s
        self._storage: Mapping[str, Any] = {}
        self._marker = ""

    def __enter__(self) -> tuple[str, str, Mapping[str, Any]]:
        """Return folder, marker and the result of rank 0's probe, on every rank."""
        def first() -> list[Any]:
            folder = Path(self._config.output.folder).absolute()
            marker = f".validate-{secrets.token_hex(6)}"
            return [str(folder), marker, probe_storage_first(
                folder, marker, self._config.launch, self._timeout_s)]

        folder, self._marker, self._storage = on_root(self._comm, first)
        return folder, self._marker, self._storage

    def __exit__(self, *_: object) -> None:
        if self._comm.rank == 0 and self._storage["seen"]:  # else it hangs, or nothing is there
            storage_probe.remove(self._storage["folder"], self._marker, self._storage["made"])
