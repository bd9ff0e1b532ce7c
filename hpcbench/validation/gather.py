"""Ask this rank all that is judged. Nothing here judges, and nothing waits without an end."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections.abc import Mapping, Sequence
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
from hpcbench.measure.allocation import soft_limit
from hpcbench.measure.environment import clock_identity, machine
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.validation import storage_probe
from hpcbench.validation.outside_texts import not_utf8
from hpcbench.validation.rank_report import RankReport

_SHARE = 0.8
"""Of the time-out; importing torch and the answer take one share each, and rank 0 waits for two."""


def report_rank(
    comm: BoundedCommunicator, topology: Topology, launch: Launch, storage: Mapping[str, Any],
    tools: Sequence[str], *, complete: bool,
) -> RankReport:
    """Return the report of this rank; collective where all ranks have answered (``complete``).

    ``storage`` is rank 0's probe of the results folder, ``tools`` is what the sweep wants of them.
    """
    env = worker_environment(os.environ, launch.pass_env, {})
    missing = (None, "not all ranks answer")
    interface, network_error = _network(comm, topology, launch) if complete else missing
    described = machine(os.environ)
    if topology.rank != 0:
        storage = storage_probe.ask(
            storage["folder"], storage["marker"], topology.rank, comm.timeout_s, env)
    shm_bytes, core_files = _shm_bytes(), _core_files()
    facts, facts_error = _facts(tools, env, _SHARE * comm.timeout_s)
    clock, clock_error = _clock(comm) if complete else missing
    if topology.rank != 0:  # no other rank of this node tries a folder any more
        storage_probe.remove_empty(storage["made"])
    return RankReport(
        topology.rank, topology.local_rank, topology.hostname, topology.node, topology.mpi,
        versions=versions(topology, facts or {"versions": {}}), machine=described, facts=facts,
        facts_error=facts_error, interface=interface, network_error=network_error, clock=clock,
        clock_error=clock_error, storage=storage, shm_bytes=shm_bytes, core_files=core_files,
        not_utf8=not_utf8(os.environ, str(storage["folder"])))


def _facts(
    tools: Sequence[str], env: Mapping[str, str], timeout_s: float,
) -> tuple[Mapping[str, Any] | None, str]:
    """Import torch in another process, and ask it; rank 0 waits for both."""
    try:
        return {**torch_facts(tools, env, timeout_s), "mpi": mpi_facts()}, ""
    except LaunchError as error:
        # of the two limits on how long torch may take it was this one
        return None, masked(str(error).replace("launch.init_timeout_s", "--timeout"), os.environ)


def _network(
    comm: BoundedCommunicator, topology: Topology, launch: Launch,
) -> tuple[str | None, str]:
    try:
        network = choose_network(comm, topology, launch, os.environ)
    except HpcbenchError as error:
        return None, masked(str(error), os.environ)
    return network.interface, ""


def _clock(comm: BoundedCommunicator) -> tuple[Mapping[str, Any] | None, str]:
    """Compare the clocks when no rank is busy any more, so that nothing widens their bounds."""
    try:
        comm.barrier(timeout_s=2 * comm.timeout_s)
        return synchronise(comm, perf_counter_ns, clock_identity()).to_json(), ""
    except HpcbenchError as error:
        return None, str(error)


def _shm_bytes() -> int | None:
    with contextlib.suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return None


def _core_files() -> int | str:
    """Return the limit of core files; 0 where a program takes them from the kernel (core(5))."""
    pattern = KernelFiles().line("proc/sys/kernel/core_pattern") or ""
    return 0 if pattern.startswith("|") else soft_limit(resource.RLIMIT_CORE)
