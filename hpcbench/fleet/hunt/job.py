"""A hunt from its first rank to its exit code: ranks meet, one of them is the host, rounds go on
until the plan has no further one, and what is known is on disk after each."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path

from hpcbench.config.section import Fault
from hpcbench.errors import (
    ExitCode,
    FileError,
    HpcbenchError,
    LaunchError,
    RankLostError,
    UsageError,
)
from hpcbench.fleet.hunt.agent import SAMPLES, Agent
from hpcbench.fleet.hunt.allocation import nodes_of, step_nodes
from hpcbench.fleet.hunt.crew import Crew
from hpcbench.fleet.hunt.execution import Execution, Settings
from hpcbench.fleet.hunt.facts import Job, names_text
from hpcbench.fleet.hunt.plan import Hunt
from hpcbench.fleet.hunt.rendezvous import (
    CutOffError,
    MeetingHost,
    OwnPlace,
    meet,
    meeting_file,
    outlived,
    own_place,
)
from hpcbench.fleet.hunt.trials import kinds_of_tests
from hpcbench.launch.launcher import StopRequests, stop_requests
from hpcbench.launch.template_process import early_template, worker_environment
from hpcbench.launch.worker_pool import WorkerPool
from hpcbench.launch.worker_process import TemplateSpec
from hpcbench.measurement.control import SharedProgress
from hpcbench.records import dataclass
from hpcbench.texts import masked, say

_READY_S = 120.0
_LEAST_SHARE = 0.5
"""A host to whom fewer of the ranks come is itself what is cut off."""


@dataclass(frozen=True, slots=True)
class HuntRequest:
    """What the command line asks for; times in seconds.

    ``limit_s``: after which a call hangs. ``sign_in_s``: after which a rank is missing. ``only``
    and ``partners``: as in `facts.Job`."""

    folder: Path
    stage_s: float
    limit_s: float
    sign_in_s: float
    only: str = ""
    partners: tuple[str, ...] = ()
    in_turn: bool = False
    faults: tuple[Fault, ...] = ()


class HuntState(Enum):
    """Whether there are rounds to come, and whether they come."""

    GOES_ON = "goes on"
    STOPPED = "stopped"
    COMPLETE = "complete"


Keep = Callable[[Hunt, HuntState], ExitCode]
"""Writes down what is known, after each round and at the end; returns what it comes to."""


class _Stopped(HpcbenchError):
    """The hunt was asked to stop; what it knows is on disk."""

    exit_code = ExitCode.INCOMPLETE


def hunt_job(request: HuntRequest, keep: Keep, environ: Mapping[str, str]) -> int:
    """Take part in a hunt, as its host or as one of the others; return the exit code.

    ``keep`` is called on the host. A rank that is cut off prints why; where others have a host its
    exit code is 0, so that theirs counts, which names it."""
    place = own_place(environ)
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{request.folder}: cannot be made: {error.strerror}; choose a folder that "
                        "all nodes see with -o DIR") from error
    file = meeting_file(request.folder, place)
    with stop_requests(environ, _end) as stop, _pool(environ) as pool:
        try:
            met = meet(file, place, request.sign_in_s)
            if isinstance(met, MeetingHost):
                return _lead(met, request, pool, stop, keep)
            stop.has_started = True
            with contextlib.closing(met):
                return Agent(met, place, pool, stop).serve()
        except (CutOffError, RankLostError) as error:
            say(f"hpcbench: {masked(str(error), environ)}", sys.__stderr__)
            return int(ExitCode.OK if outlived(file, place) else ExitCode.INCOMPLETE)


def _end(signal: str) -> None:
    say(f"hpcbench: stopped by {signal}", sys.__stderr__)
    os._exit(int(ExitCode.INCOMPLETE))


@contextlib.contextmanager
def _pool(environ: Mapping[str, str]) -> Iterator[WorkerPool]:
    """Give the pool of this rank's workers. Their template imports torch from now on, once for all
    ranks of a node that are alike."""
    with early_template(environ) as early:
        env = early.env if early else worker_environment(environ, (), {})
        spec = TemplateSpec(env, _READY_S, kinds_of_tests())
        with WorkerPool(spec, SharedProgress.create(SAMPLES), early=early) as pool:
            yield pool


def _lead(
    host: MeetingHost, request: HuntRequest, pool: WorkerPool, stop: StopRequests, keep: Keep,
) -> int:
    """Be the host, and one of the ranks beside: its agent is a thread that connects as others do.
    """
    stop.has_started = True
    sys.stderr = sys.__stderr__  # whatever its rank is, it reports for all
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each rank

    def check() -> None:
        if stop.now:
            raise _Stopped(f"stopped by {stop.now}; the next hunt begins anew")

    place = host.place
    agent = threading.Thread(
        target=_serve_beside, args=(request, place, pool, stop), name="agent", daemon=True)
    code = int(ExitCode.INCOMPLETE)
    with host.beating(), Crew(place.size, check) as crew:
        agent.start()
        try:
            crew.sign_in(host, request.sign_in_s)
            code = int(_hunt(crew, place, request, keep))
        except _Stopped as stopped:
            say(f"hpcbench: {stopped}", sys.stderr)
        except HpcbenchError as error:
            code = error.exit_code
            raise
        finally:
            crew.leave(code)
            agent.join(_READY_S)
    return code


def _serve_beside(
    request: HuntRequest, place: OwnPlace, pool: WorkerPool, stop: StopRequests,
) -> None:
    with contextlib.suppress(RankLostError, CutOffError):
        met = meet(meeting_file(request.folder, place), place, request.sign_in_s)
        if not isinstance(met, MeetingHost):
            with contextlib.closing(met):
                Agent(met, place, pool, stop).serve()


def _hunt(crew: Crew, place: OwnPlace, request: HuntRequest, keep: Keep) -> ExitCode:
    """Carry out the rounds of the plan. Raises LaunchError if too few ranks have come."""
    came = len(crew.members)
    if came < _LEAST_SHARE * place.size:
        raise LaunchError(f"{came} of {place.size} ranks have come in {request.sign_in_s:g} s to "
                          f"{request.folder.absolute()}; choose a folder that all nodes see with "
                          "-o DIR, or wait longer with --sign-in SECONDS")
    signed_in = {rank: (one.node, one.switch) for rank, one in crew.members.items()}
    nodes = nodes_of(place.size, signed_in, step_nodes(os.environ, place.size))
    job = _with_partners(Job(nodes, request.stage_s, request.only, request.partners))
    execution = Execution(
        crew, {node.name: node for node in nodes},
        Settings(str(request.folder.absolute()), request.limit_s, request.in_turn, request.faults),
        {rank: crew.refused.get(rank, "it has not signed in") for rank in range(place.size)
         if rank not in signed_in})
    hunt = Hunt(job, execution.execute)
    keep(hunt, HuntState.GOES_ON)
    try:
        for _ in hunt.run():
            keep(hunt, HuntState.GOES_ON)
    except _Stopped:
        keep(hunt, HuntState.STOPPED)
        raise
    return keep(hunt, HuntState.COMPLETE)


def _with_partners(job: Job) -> Job:
    """Return the job; with ``only`` one node of three, the others are its partners. Raises
    UsageError for a node that is none of the job's."""
    names = [node.name for node in job.nodes]
    for flag, wanted in (("--only", [job.only]), ("--partner", job.partners)):
        if unknown := [name for name in wanted if name and name not in names]:
            raise UsageError(f"{flag} {unknown[0]}: no node of this job; there are "
                             f"{names_text(names)}")
    if not job.only or job.partners:
        return job
    others = tuple(name for name in names if name != job.only)
    if len(others) != 2:  # noqa: PLR2004
        raise UsageError("--only: name two nodes that are known as good, --partner A --partner B, "
                         "or start on these three nodes alone")
    return replace(job, partners=others)
