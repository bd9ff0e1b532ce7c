"""What ranks ran with that differs and should not, and one hash of what should stay the same.

`MOMENTARY` and `RANK_SPECIFIC` list what has to differ, or differs all the time; everything else
that differs is a finding, so that a new fact is compared without anybody having to think of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.plan.case import Plan
from hpcbench.reduce.results import Finding
from hpcbench.texts import to_json
from hpcbench.trace.schema import Header
from hpcbench.units import by_value, grouped, on_ranks, rank_list

NOT_RECORDED = "not told"
_SHOWN = 3
_VALUE_LENGTH = 60
_SOCKET_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES")


@dataclass(frozen=True, slots=True)
class Varying:
    """Dotted keys (``*``: any part) that vary without anything being different, and why."""

    keys: tuple[str, ...]
    reason: str


MOMENTARY = (
    Varying(("started_at", "host.uptime_s"), "the time of the run"),
    Varying(("load.*", "memory.available_bytes", "host.time_offsets.*"), "of that moment"),
    Varying(("cpu.mhz.now", "gpu.now.*"), "clocks and temperatures of that moment"),
    Varying(("clock_resolution_ns",), "measured"),
    Varying(("noise.*",), "measured; it has a check of its own"),
    Varying(("host.name", "host.boot_id", "gpu.uuid", "gpu.pci", "gpu_topology.uuids",
             "gpu_topology.pci", "gpu_topology.fabrics"), "which machine or GPU it is"),
    Varying(("process.affinity",), "which cores; how many is compared (process.affinity_cpus)"),
    Varying(("memory_bytes", "memory.total_bytes", "memory.numa_nodes.*.total_bytes",
             "hardware.memory_per_device_gb"),
            "the kernel keeps some megabytes more or less; memory.installed_gib is compared"),
    Varying(("libraries.*.*.path",), "where a file lies; which file it is, is compared (id)"),
    Varying(("network.interfaces.veth*", "network.interfaces.cali*", "network.interfaces.lxc*",
             "network.not_described"), "interfaces of whatever containers run beside"),
    Varying(("variables.NCCL_COMM_ID",), "the address of the job"),
    Varying(("scheduler.*_ID", "scheduler.*JOBID", "scheduler.*NODELIST",
             "scheduler.*NAME", "scheduler.*RESTART_COUNT", "scheduler.*TOPOLOGY_ADDR"),
            "which job and which nodes it is"),
)
"""Neither compared between ranks nor part of the hash."""

RANK_SPECIFIC = (
    Varying(("process.ranks_a_core",), "the last node of a job may have fewer ranks"),
    Varying(("process.numa_nodes", "process.memory_nodes"), "ranks of one machine share it out"),
    Varying(("gpu.index", "gpu.numa_node"), "each rank has a GPU of its own"),
    Varying(("lost.*",), "what the probe lost; it has a check of its own"),
    Varying(("gpu_topology.cpus", "gpu_topology.numa_nodes"),
            "a cgroup may show each rank its own"),
    Varying(("variables.CUDA_VISIBLE_DEVICES", "variables.NVIDIA_VISIBLE_DEVICES",
             "variables.HIP_VISIBLE_DEVICES", "variables.ROCR_VISIBLE_DEVICES",
             "variables.GPU_DEVICE_ORDINAL"),
            "a launcher may show each rank its own GPU"),
)
"""Not compared between ranks; the same rank of an equal run has the same."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One dotted key on which ranks differ: value, as short text, to the ranks that have it."""

    key: str
    groups: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        """Return ``kernel.release: "6.1" on rank 0-3, "6.2" on rank 4``."""
        return f"{self.key}: {on_ranks(self.groups)}"


def environment_differences(headers: Sequence[Header]) -> list[Difference]:
    """Return what environments differ in and should not, by key; the most frequent value first."""
    flat = {header.rank: dict(flattened(header.environment)) for header in headers}
    differences = []
    for key in sorted({key for values in flat.values() for key in values}):
        groups = by_value({rank: values.get(key, NOT_RECORDED) for rank, values in flat.items()})
        if len(groups) > 1 and not _varies(key, (*MOMENTARY, *RANK_SPECIFIC)):
            ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
            differences.append(Difference(key, {
                value if len(value) <= _VALUE_LENGTH else value[:_VALUE_LENGTH - 4] + " ...":
                tuple(sorted(ranks)) for value, ranks in ordered}))
    return differences


def stable_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return what should stay the same from run to run: dotted key to JSON text."""
    return {key: value for key, value in flattened(environment) if not _varies(key, MOMENTARY)}


def environment_hash(environment: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that are the same as long as nothing that matters changes.

    `MOMENTARY` keys are left out. Compare the same rank of two runs: ranks may differ in their
    place on the machine.
    """
    stable = sorted(stable_facts(environment).items())
    return hashlib.sha256(json.dumps(stable).encode()).hexdigest()[:16]


def flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value as JSON text) of everything that is not None."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from flattened(item, f"{prefix}.{name}" if prefix else str(name))
    elif value is not None:
        yield prefix, to_json(value, sort_keys=True, ensure_ascii=False)


def _varies(key: str, tables: Iterable[Varying]) -> bool:
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), key)
               for varying in tables for pattern in varying.keys)


def environment_findings(headers: Sequence[Header], plan: Plan) -> Iterator[Finding]:
    """Yield what the environments of the ranks in use say against the results: all are notes."""
    yield from _shared_gpus(headers, plan)
    yield from _lost(headers)
    yield from _loopback(headers)
    others = []
    for difference in environment_differences(headers):
        if difference.key == "kernel.clocksource":
            yield Finding("HB137", "note", f"the ranks' clocks are not alike ({difference}): what "
                          "reading them costs differs by up to a microsecond; use the same "
                          "clocksource on all nodes, or leave the others out")
        else:
            others.append(difference)
    if others:
        shown = "; ".join(str(item) for item in others[:_SHOWN])
        more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        yield Finding("HB142", "note", f"the ranks' environments differ in {len(others)} "
                      f"place{'s' if len(others) > 1 else ''}: {shown}{more}; make them alike, or "
                      "read differences between ranks with that in mind")


def _shared_gpus(headers: Sequence[Header], plan: Plan) -> Iterator[Finding]:
    """HB109: no two ranks compute on one GPU, if any case may run on GPUs at all."""
    if not any(case.skip is None and case.device != "cpu" for case in plan.cases):
        return
    users = grouped((str(uuid), header.rank) for header in headers
                    if (uuid := _nested(header.environment, "gpu", "uuid")))
    for uuid, ranks in users.items():
        if len(ranks) > 1:
            yield Finding("HB109", "note", f"ranks {rank_list(ranks)} share GPU {uuid}: they take "
                          "turns, and nccl refuses it; start one rank a GPU")


def _lost(headers: Sequence[Header]) -> Iterator[Finding]:
    """HB159: no driver or library crashed or hung when the probe asked it."""
    lines = grouped((str(line), header) for header in headers
                    for line in (_nested(header.environment, "lost") or {}).values())
    for line, asking in lines.items():
        yield Finding("HB159", "note", f"rank {rank_list(h.rank for h in asking)} "
                      f"({', '.join(sorted({h.hostname for h in asking}))}): {line}")


def _loopback(headers: Sequence[Header]) -> Iterator[Finding]:
    """HB132: ranks on several nodes do not talk through an interface that leads nowhere else."""
    if len({header.node for header in headers}) < 2:
        return
    set_to = ((name, _nested(header.environment, "variables", name), header)
              for header in headers for name in _SOCKET_VARIABLES)
    bound = grouped((f"{name}={value}", header) for name, value, header in set_to
                    if value and _names_loopback(str(value), header))
    for setting, users in bound.items():
        yield Finding("HB132", "note", f"{setting} on rank {rank_list(h.rank for h in users)} "
                      f"({', '.join(sorted({h.hostname for h in users}))}) is loopback, but there "
                      "are several nodes: set launch.interface to one that connects them")


def _names_loopback(value: str, header: Header) -> bool:
    """Return whether the first interface that a value names is loopback; ``^lo`` excludes it.

    gloo takes a name, NCCL a list of beginnings of names or with ``=`` of whole ones, UCX a list.
    """
    first = value.removeprefix("=").partition(",")[0].partition(":")[0]
    return bool(_nested(header.environment, "network", "interfaces", first, "loopback"))


def _nested(value: Any, *names: str) -> Any:
    """Return the value at this path, None where the trace has none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
