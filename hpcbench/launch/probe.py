"""The facts of a job's ranks, and what they decide about a plan: devices, and skips."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from hpcbench import __version__
from hpcbench.backends import availability
from hpcbench.backends.mpi_facts import gather_mpi_facts, no_mpi
from hpcbench.config.axes import BACKENDS, GPU_DEVICES, library_of
from hpcbench.config.schema import stored_config
from hpcbench.errors import ExitCode, LaunchError, how_to_install
from hpcbench.import_path import module_command
from hpcbench.launch.address import Network, socket_variables
from hpcbench.launch.launcher import by_torchrun
from hpcbench.launch.session import AgreedError, RankIdentity, Session, on_all
from hpcbench.launch.template_process import worker_environment
from hpcbench.launch.worker_pool import NO_JSON, WorkerPool, printed_json
from hpcbench.launch.worker_process import TemplateSpec
from hpcbench.measurement.control import SharedProgress
from hpcbench.operations.collectives import Call
from hpcbench.plan.case import Case, Plan, planner_of
from hpcbench.plan.order import INLINE_BACKENDS
from hpcbench.records import dataclass
from hpcbench.trace.schema import same_version
from hpcbench.units import plural

_READY_TIMEOUT_S = 120.0
_GPU_RESERVE_BYTES = 2 * 10**9
"""Part of a GPU left to no tensors: context, kernels, workspaces of cuBLAS and buffers of NCCL take
1 to 3 GB, less of a small GPU (or a slice of one)."""


@dataclass(frozen=True, slots=True)
class JobMachine:
    """The network of a job, and the facts of all its ranks."""

    network: Network
    ranks: tuple[availability.RankFacts, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return each rank's host as messages name it: "" for all where there is but one."""
        names = [rank.hostname for rank in self.ranks]
        return tuple(names) if len(set(names)) > 1 else ("",) * len(names)

    def gpu_of(self, rank: int) -> int | None:
        return availability.gpu_indices(self.ranks)[rank]

    def socket_env(self) -> Mapping[str, str]:
        """Return the variables that fix the network interface, unless the user has set them."""
        chosen = socket_variables(self.network.interface)
        return {name: value for name, value in chosen.items() if name not in os.environ}


@dataclass(frozen=True, slots=True)
class Resolution:
    """Per case id: the device it runs on, or why it cannot run on this machine.

    ``unmet``: for those that cannot, the backend or device that ``required_backends`` names.
    ``no_gpu``: a line if the cases on GPUs all lack one, else "". ``failures``: cases
    that cannot run and have failed, as CUDA did not answer and their GPUs may be there."""

    devices: Mapping[str, str]
    skips: Mapping[str, str]
    unmet: Mapping[str, str] = field(default_factory=dict)
    no_gpu: str = ""
    failures: frozenset[str] = frozenset()


def resolve(plan: Plan, ranks: Sequence[availability.RankFacts]) -> Resolution:
    """Decide for every case that is not skipped already; the same facts give the same answer."""
    devices: dict[str, str] = {}
    skips: dict[str, str] = {}
    unmet: dict[str, str] = {}
    required = frozenset(stored_config(plan.config).required_backends)
    failures: set[str] = set()
    for case in plan.cases:
        members = ranks[:case.world_size]
        wanted = next((name for name in required.intersection(GPU_DEVICES)
                       if case.device in (name, "auto")), None)
        device = wanted or availability.resolve_device(case.backend, case.device, members)
        absent = case.skip or availability.unavailable(case.backend, device, members)
        reason = (absent or availability.lacking(case, device, members)
                  or next(filter(None, (_lacks(case, call, device, rank.facts) for call
                                        in case.workload.features.calls for rank in members)), None)
                  or availability.missing_tool(case, device, members)
                  or availability.unreachable(case, device, members)
                  or _too_large(case, device, members))
        if reason:
            skips[case.case_id] = reason
            if not case.skip and availability.is_gpu_lost(case, members):
                failures.add(case.case_id)
        else:
            devices[case.case_id] = device
        named = required & {case.backend, library_of(case.backend)}
        if reason and not case.skip and (name := wanted if absent and wanted else min(
                named, default=None)):
            unmet[case.case_id] = name
    return Resolution(devices, skips, unmet, _no_gpu(plan.cases, ranks), frozenset(failures))


def _no_gpu(cases: Sequence[Case], ranks: Sequence[availability.RankFacts]) -> str:
    """Return a line if there are cases on GPUs and none is available, with the reason; else ""."""
    of_gpus = [case for case in cases if case.device in GPU_DEVICES and not case.skip]
    reasons = [availability.unavailable(case.backend, case.device, ranks[:case.world_size])
               for case in of_gpus]
    if not of_gpus or not all(reasons):
        return ""
    return f"no GPU: {len(of_gpus)} of {plural(len(cases), 'case')} cannot run ({reasons[0]})"


def resolve_here(plan: Plan) -> Plan:
    facts = _facts_here(availability.wanted_tools(plan.cases))
    ranks = [availability.RankFacts(rank, socket.gethostname(), rank, facts)
             for rank in range(plan.world_size)]
    resolution = resolve(plan, ranks)
    cases = tuple(
        dataclasses.replace(case, skip=resolution.skips.get(case.case_id), needs=(),
                            device=resolution.devices.get(case.case_id, case.device))
        for case in plan.cases)
    notes = [resolution.no_gpu] if resolution.no_gpu else []
    config = {**plan.config, "notes": [*notes, *plan.config.get("notes", ())]}
    return dataclasses.replace(plan, cases=cases, config=config)


def probe_here() -> dict[str, Any]:
    """Return {"backends": {name: reason or None}, "devices": ..., "versions": ..., "lost": lines,
    "gpu_memory_bytes": a value a GPU, "links": between GPUs, as NVML counts them} of this machine.

    Raises LaunchError if torch cannot be imported."""
    facts = _facts_here([])
    here = [availability.RankFacts(0, socket.gethostname(), 0, facts)]
    natural = {"nccl": "cuda", "gloo": "cpu", "mpi": "cpu"}
    return {
        "backends": {name: availability.unavailable(name, natural.get(name, "cpu"), here)
                     for name in BACKENDS},
        "devices": {"cpu": None, "cuda": facts["cuda"]["reason"],
                    "mps": facts["mps"]["reason"]},
        "device_names": availability.gpu_names(facts),
        "gpu_memory_bytes": facts["cuda"]["memory_bytes"],
        "links": (facts["gpu_topology"] or {}).get("links", []),
        "versions": facts["versions"],
        "lost": dict(facts["lost"]),
    }


def _lacks(case: Case, call: Call, device: str, facts: Mapping[str, Any]) -> str | None:
    if case.backend in INLINE_BACKENDS and call.op and (
            reason := facts["mpi"]["lacks"].get(call.dtype)):
        return f"mpi: {reason}"
    if library_of(case.backend, device) != "gloo":
        return None
    uneven = call.collective == "reduce_scatter" and call.split != "even"
    missing = {"gloo_without_avg": call.op == "avg", "gloo_without_reduce_scatter": uneven}
    return next((f"torch {facts['versions']['torch']}: {facts[name]}"
                 for name, is_needed in missing.items() if is_needed and facts[name]), None)


def _too_large(case: Case, device: str, ranks: Sequence[availability.RankFacts]) -> str | None:
    indices = availability.gpu_indices(ranks) if device == "cuda" else [None] * len(ranks)
    for rank, index in zip(ranks, indices, strict=True):
        if index is not None:
            gpu_bytes = rank.facts["cuda"]["memory_bytes"][index]
            available = gpu_bytes - min(_GPU_RESERVE_BYTES, gpu_bytes // 8)
            if case.memory_bytes > available * (1 + case.memory_error):
                return (f"needs {case.memory_bytes} bytes of a GPU on {rank.hostname}, "
                        f"{available} are available{_advice(case, available)}")
        most = rank.facts["mps"]["memory_bytes"] if device == "mps" else 0
        if device == "mps" and case.memory_bytes > most * (1 + case.memory_error):
            return (f"needs {case.memory_bytes} bytes of the GPU on {rank.hostname}, macOS "
                    f"recommends {most} at most{_advice(case, most)}")
        sharing = sum(other.hostname == rank.hostname for other in ranks)
        needed, available = case.host_needs(device) * sharing, rank.facts["host_memory_bytes"]
        if needed > available:
            return (f"needs {needed} bytes on {rank.hostname}, {available} are available"
                    f"{_advice(case, available // sharing)}")
    return None


def _advice(case: Case, available: int) -> str:
    advice = planner_of(case.kind).advice(case.workload, available)
    return f"; {advice}" if advice else ""


def _facts_here(tools: Sequence[str]) -> Mapping[str, Any]:
    """Ask this machine in processes of their own."""
    env = worker_environment(os.environ, (), {})
    facts = torch_facts(tools, env, _READY_TIMEOUT_S)
    try:  # importing mpi4py.MPI starts MPI
        mpi = printed_json(module_command("hpcbench.backends.mpi_facts"), env, _READY_TIMEOUT_S)
    except NO_JSON as error:
        mpi = no_mpi(f"MPI does not start: {error}")
    return {**facts, "mpi": mpi}


def torch_facts(
    tools: Sequence[str], env: Mapping[str, str], timeout_s: float,
) -> Mapping[str, Any]:
    """Return `backends.facts.gather_facts` of this machine, called in a process of its own.

    Importing torch and the answer may take ``timeout_s`` each. Raises LaunchError."""
    if importlib.util.find_spec("torch") is None:
        raise LaunchError(f"torch is not installed here: {how_to_install('run')}")
    with WorkerPool(TemplateSpec(env, timeout_s), SharedProgress.create(1)) as pool:
        return pool.facts(tools)


def probe_ranks(
    session: Session, plan: Plan, pool: WorkerPool, *, allow_mixed: bool,
) -> tuple[availability.RankFacts, ...]:
    """Return the facts of all ranks' machines; refuse ranks whose software differs. Collective."""
    comm, topology = session
    facts = on_all(comm, "probing the machine", lambda: {
        **pool.facts(availability.wanted_tools(plan.cases)), "mpi": mpi_facts()})
    places = comm.allgather([topology.hostname, topology.local_rank, {
        "mpi": topology.mpi, "python": platform.python_version()}])
    mixed = None if allow_mixed else version_mix(facts, places)
    if mixed:
        raise AgreedError(mixed, ExitCode.USAGE)  # all ranks see the same facts
    return tuple(availability.RankFacts(rank, hostname, local_rank, facts[rank])
                 for rank, (hostname, local_rank, _) in enumerate(places))


def mpi_facts() -> dict[str, Any]:
    if by_torchrun(os.environ):
        return no_mpi("torchrun started the ranks, so MPI does not know them: use mpirun or srun")
    return gather_mpi_facts()


def versions(topology: RankIdentity, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions that must be alike on all ranks, and in all attempts at one run."""
    return {"hpcbench": __version__, "python": platform.python_version(), "mpi": topology.mpi,
            **facts["versions"]}


def version_mix(
    facts: Sequence[Mapping[str, Any]], places: Sequence[Sequence[Any]],
) -> str | None:
    """Return which rank's software differs from rank 0's, and the remedy; None if none does.

    ``places``: of each rank its host, local rank, and versions outside of torch's process."""
    seen = [{**place[2], **fact["versions"]}
            for fact, place in zip(facts, places, strict=True)]
    for rank, versions in enumerate(seen):
        for name in versions.keys() | seen[0].keys():
            ours, theirs = seen[0].get(name, "none"), versions.get(name, "none")
            if not same_version(ours, theirs):
                return (
                    f"rank {rank} on {places[rank][0]} has {name} {theirs}, rank 0 on "
                    f"{places[0][0]} has {ours}: use one environment on all nodes, or set "
                    "launch.allow_mixed=true")
    return None
