"""What the machine decides about a plan: devices, and skips with their reasons."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.backends.availability import (
    RankFacts,
    gpu_indices,
    lacking,
    resolve_device,
    unavailable,
)
from hpcbench.backends.mpi_facts import no_mpi
from hpcbench.backends.tools import untooled, wanted_tools
from hpcbench.errors import LaunchError
from hpcbench.kinds.registry import planner_of
from hpcbench.launch.workers.environment import worker_environment
from hpcbench.launch.workers.worker_pool import ask_facts
from hpcbench.launch.workers.worker_process import Template, WorkerSettings
from hpcbench.measure.progress import SharedProgress
from hpcbench.operations.call import Call
from hpcbench.plan.case import Case, Plan

_READY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Resolution:
    """Per case id: the device it runs on, or why it cannot run on this machine."""

    devices: Mapping[str, str]
    skips: Mapping[str, str]


def resolve(plan: Plan, ranks: Sequence[RankFacts]) -> Resolution:
    """Decide for every case that is not skipped already; the same facts give the same answer."""
    devices: dict[str, str] = {}
    skips: dict[str, str] = {}
    for case in plan.cases:
        members = ranks[:case.world_size]
        device = resolve_device(case.backend, case.device, members)
        reason = (case.skip or unavailable(case.backend, device, members)
                  or lacking(case, device, members)
                  or _lacks_op(case, members) or untooled(case, device, members)
                  or _too_large(case, device, members))
        if reason:
            skips[case.case_id] = reason
        else:
            devices[case.case_id] = device
    return Resolution(devices, skips)


def resolve_here(plan: Plan) -> Plan:
    """Return the plan with this machine's skips, as if it had all ranks."""
    facts = _facts_here(wanted_tools(plan.cases))
    ranks = [RankFacts(rank, socket.gethostname(), rank, facts)
             for rank in range(plan.world_size)]
    resolution = resolve(plan, ranks)
    cases = tuple(
        dataclasses.replace(case, skip=resolution.skips.get(case.case_id), needs=(),
                            device=resolution.devices.get(case.case_id, case.device))
        for case in plan.cases)
    return dataclasses.replace(plan, cases=cases)


def probe_here() -> dict[str, Any]:
    """Return {"backends": {name: reason or None}, "devices": ..., "versions": ...} of this machine.

    Raises LaunchError with the reason if torch cannot be imported.
    """
    from hpcbench.config.names import BACKENDS

    facts = _facts_here([])
    here = [RankFacts(0, socket.gethostname(), 0, facts)]
    natural = {"nccl": "cuda", "gloo": "cpu", "mpi": "cpu"}
    return {
        "backends": {name: unavailable(name, natural.get(name, "cpu"), here) for name in BACKENDS},
        "devices": {"cpu": None, "cuda": facts["cuda"]["reason"],
                    "mps": None if facts["mps"] else "no Apple GPU"},
        "device_names": facts["cuda"]["names"],
        "versions": facts["versions"],
    }


def _lacks_op(case: Case, ranks: Sequence[RankFacts]) -> str | None:
    """Return a reason if a rank's torch is too old, or its MPI too poor, for the case."""
    reasons = (_lacks(case, call, ranks) for call in case.workload.collective_calls())
    return next((reason for reason in reasons if reason), None)


def _lacks(case: Case, call: Call, ranks: Sequence[RankFacts]) -> str | None:
    if case.backend == "mpi" and call.op:
        for rank in ranks:
            if reason := rank.facts["mpi"]["lacks"].get(call.dtype):
                return f"mpi: {reason}"
    if case.backend != "gloo":
        return None
    uneven = call.collective == "reduce_scatter" and call.split != "even"
    missing = (["gloo_without_avg"] if call.op == "avg" else []) + (
        ["gloo_without_reduce_scatter"] if uneven else [])
    for rank in ranks:
        for name in missing:
            if reason := rank.facts[name]:
                return f"torch {rank.facts['versions']['torch']}: {reason}"
    return None


def _too_large(case: Case, device: str, ranks: Sequence[RankFacts]) -> str | None:
    """Return a reason if the buffers of the ranks on one node do not fit its memory."""
    indices = gpu_indices(ranks) if device == "cuda" else [None] * len(ranks)
    for rank, index in zip(ranks, indices, strict=True):
        if index is not None:
            available = rank.facts["cuda"]["memory_bytes"][index]
            if case.memory_bytes > available:
                return (f"needs {case.memory_bytes} bytes of a GPU on {rank.hostname}, "
                        f"{available} are available{_advice(case, available)}")
        sharing = sum(other.hostname == rank.hostname for other in ranks)
        needed, available = case.host_needs(device) * sharing, rank.facts["host_memory_bytes"]
        if needed > available:
            return (f"needs {needed} bytes on {rank.hostname}, {available} are available"
                    f"{_advice(case, available // sharing)}")
    return None


def _advice(case: Case, available: int) -> str:
    advice = planner_of(case).advice(case.workload, available)
    return f"; {advice}" if advice else ""


def _facts_here(tools: Sequence[str]) -> Mapping[str, Any]:
    """Ask this machine in processes of their own."""
    env = worker_environment(os.environ, (), {})
    return {**torch_facts(tools, env, _READY_TIMEOUT_S), "mpi": _mpi_facts_here(env)}


def torch_facts(
    tools: Sequence[str], env: Mapping[str, str], timeout_s: float,
) -> Mapping[str, Any]:
    """Return `backends.facts.gather_facts` of this machine, called in a process of its own.

    Importing torch and the answer may take ``timeout_s`` each. Raises LaunchError with the reason.
    """
    if importlib.util.find_spec("torch") is None:
        raise LaunchError("torch is not installed here: pip install 'hpcbench[run]'")
    with _progress() as progress, Template(env, timeout_s) as template:
        return ask_facts(
            lambda: template.fork(WorkerSettings({}, 0), progress), timeout_s, tools)


def _mpi_facts_here(env: Mapping[str, str]) -> Any:
    """Ask in a process of its own: importing mpi4py.MPI starts MPI."""
    command = [sys.executable, "-m", "hpcbench.backends.mpi_facts"]
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True,
                              timeout=_READY_TIMEOUT_S, check=True)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return no_mpi(f"MPI does not start: {error}")


@contextlib.contextmanager
def _progress() -> Iterator[SharedProgress]:
    progress = SharedProgress.create(1)
    try:
        yield progress
    finally:
        progress.close()
