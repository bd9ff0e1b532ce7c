"""Ask this rank all that is judged. Nothing here judges, and nothing waits without an end."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from hpcbench.config.schema import Launch
from hpcbench.errors import HpcbenchError, LaunchError
from hpcbench.launch.clocks.synchronization import synchronise
from hpcbench.launch.probe import mpi_facts, torch_facts, versions
from hpcbench.launch.ranks.address import choose_network
from hpcbench.launch.ranks.bounded_communicator import BoundedCommunicator
from hpcbench.launch.ranks.session import Topology
from hpcbench.launch.workers.environment import worker_environment
from hpcbench.masking import masked
from hpcbench.measure.clock_identity import clock_identity
from hpcbench.measure.environment import machine
from hpcbench.validation import storage_probe
from hpcbench.validation.rank_report import RankReport

_STORAGE_TIMEOUT_S = 10.0
_SHARE = 0.8
"""Of the time-out; importing torch and the answer take one share each, and rank 0 waits for two."""


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """What rank 0 has every rank find out.

    Attributes:
        launch: section ``launch`` of the configuration.
        folder: results folder, as rank 0 calls it.
        marker: name of the folder that rank 0's probe makes in it.
        storage: the result of that probe.
        tools: `backends.tools.wanted_tools` of the sweep.
        complete: whether all ranks answered so far.
    """

    launch: Launch
    folder: str
    marker: str
    storage: Mapping[str, Any]
    tools: Sequence[str]
    complete: bool


def report_rank(
    comm: BoundedCommunicator, topology: Topology, request: ReportRequest,
) -> RankReport:
    """Return the report of this rank; collective if all ranks are there."""
    env = worker_environment(os.environ, request.launch.pass_env, {})
    report = RankReport(
        topology.rank, topology.local_rank, topology.hostname, topology.node, topology.mpi)
    report = replace(
        _with_network(report, comm, topology, request), machine=machine(os.environ),
        storage=_storage(topology.rank, request, env, comm.timeout_s), shm_bytes=_shm_bytes(),
        core_files=_core_files())
    report = _with_facts(report, topology, request, env, comm.timeout_s)
    report = _with_clock(report, comm, complete=request.complete)
    if topology.rank != 0:  # no other rank of this node tries a folder any more
        storage_probe.remove_empty(report.storage["made"])
    return report


def _with_facts(
    report: RankReport, topology: Topology, request: ReportRequest, env: Mapping[str, str],
    timeout_s: float,
) -> RankReport:
    """Import torch in another process, and ask it; rank 0 waits for both."""
    try:
        facts = {**torch_facts(request.tools, env, _SHARE * timeout_s), "mpi": mpi_facts()}
    except LaunchError as error:
        alone = versions(topology, {"versions": {}})
        # of the two limits on how long torch may take it was this one
        reason = str(error).replace("launch.init_timeout_s", "--timeout")
        return replace(report, facts_error=masked(reason, os.environ), versions=alone)
    return replace(report, facts=facts, versions=versions(topology, facts))


def _with_network(
    report: RankReport, comm: BoundedCommunicator, topology: Topology, request: ReportRequest,
) -> RankReport:
    if not request.complete:
        return replace(report, network_error="not all ranks answer")
    try:
        network = choose_network(comm, topology.nodes, request.launch, os.environ)
    except HpcbenchError as error:
        return replace(report, network_error=masked(str(error), os.environ))
    return replace(report, interface=network.interface)


def _with_clock(report: RankReport, comm: BoundedCommunicator, *, complete: bool) -> RankReport:
    """Compare the clocks when no rank is busy any more, so that nothing widens their bounds."""
    if not complete:
        return replace(report, clock_error="not all ranks answer")
    try:
        comm.barrier(timeout_s=2 * comm.timeout_s)
        record = synchronise(comm, perf_counter_ns, clock_identity())
    except HpcbenchError as error:
        return replace(report, clock_error=str(error))
    return replace(report, clock=record.to_json())


def _storage(
    rank: int, request: ReportRequest, env: Mapping[str, str], timeout_s: float,
) -> Mapping[str, Any]:
    if rank == 0:
        return request.storage
    return storage_probe.ask(request.folder, request.marker, rank,
                             min(_STORAGE_TIMEOUT_S, timeout_s), env)


def probe_storage_first(
    folder: Path, marker: str, launch: Launch, timeout_s: float,
) -> dict[str, Any]:
    """Return rank 0's probe of the results folder, before which others have nothing to see."""
    env = worker_environment(os.environ, launch.pass_env, {})
    return storage_probe.ask(str(folder), marker, 0, min(_STORAGE_TIMEOUT_S, timeout_s), env)


def _shm_bytes(path: str = "/dev/shm") -> int | None:
    try:
        room = os.statvfs(path)
    except OSError:
        return None
    return room.f_bavail * room.f_frsize


def _core_files() -> int | str:
    """Return the limit of core files; 0 where a program takes them from the kernel (core(5))."""
    try:
        piped = Path("/proc/sys/kernel/core_pattern").read_text().startswith("|")
    except OSError:
        piped = False
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    if piped or soft == 0:
        return 0
    return "unlimited" if soft == resource.RLIM_INFINITY else soft
