"""Text for the textfile collector of Prometheus' node exporter.

Collectives have the names and labels of NCCL Inspector's metrics, so that its dashboards show them;
``comm_name`` keeps them apart from traffic of jobs. All metrics also have names of ours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from hpcbench.interop.formats.export import cases as exported
from hpcbench.plan.case import STATUSES
from hpcbench.texts import as_field
from hpcbench.units import grouped

COMM_NAME = "hpcbench"
VERSION = "v5.1"
"""The version of Inspector's metrics that these labels follow."""
FUNCTIONS: Mapping[str, str] = MappingProxyType({
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
    "all_to_all": "All2All", "broadcast": "Broadcast", "reduce": "Reduce"})
"""Names that Inspector writes (ncclFuncToString in its inspector.cc of NCCL 2.30); it has none of
gather and scatter."""
_INSPECTOR: Mapping[str, tuple[str, str]] = MappingProxyType({
    "busbw": ("nccl_bus_bandwidth_gbs", "bus bandwidth of a collective in GB/s (1e9 bytes/s)"),
    "time": ("nccl_collective_exec_time_microseconds", "time of a collective in us")})
_UNITS: Mapping[str, tuple[str, float]] = MappingProxyType({
    "us": ("seconds", 1e-6), "GB/s": ("gbs", 1.0), "TFLOP/s": ("tflops", 1.0)})
"""Unit of a metric -> how names of ours end, and its factor; promtool wants seconds."""
_NOT_IN_NAMES = re.compile("[^a-zA-Z0-9_]+")
Labels = Mapping[str, str]


def as_prometheus(runs: Sequence[exported.ExportedRun],
                  request: exported.ExportRequest) -> exported.Exported:
    """Return gauges, one for each case and metric. No sample has a time: the collector refuses it.
    """
    run = runs[0]
    samples = [*_ended(run), *(sample for case in run.measured
                               for sample in _samples(run, case, request))]
    lines = []
    for (name, meaning), of_name in grouped(
            ((name, meaning), (labels, value)) for name, meaning, labels, value in samples).items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        lines += [f"{name}{{{_labels(labels)}}} {value!r}" for labels, value in of_name]
    return exported.Exported(exported.joined(lines), (*exported.not_measured(run),))


def _ended(run: exported.ExportedRun) -> Iterator[tuple[str, str, Labels, float]]:
    """Yield how many cases ended in each way, and injected faults, so that an alert can detect a
    bad run."""
    ended = Counter(case.item.status for case in run.cases)
    for status in STATUSES:
        yield ("hpcbench_cases", "Cases of the run by how they ended",
               {"comm_name": COMM_NAME, "node": _node(run), "status": status}, ended[status])
    yield ("hpcbench_exit_code", "Exit code of the run: 0, 1 wrong or failed, 3 incomplete",
           {"comm_name": COMM_NAME, "node": _node(run)}, run.code)
    if faults := run.results.run.faults:
        yield ("hpcbench_injected_faults", "Faults injected on purpose: times are not valid",
               {"comm_name": COMM_NAME, "node": _node(run)}, len(faults))


def _samples(
    run: exported.ExportedRun, case: exported.ExportedCase, request: exported.ExportRequest,
) -> Iterator[tuple[str, str, Labels, float]]:
    """Yield name, help, labels and value of each gauge of a case."""
    planned = case.item.case
    own = {"comm_name": COMM_NAME, "node": _node(run), "case": case.name,
           "case_id": planned.case_id, "kind": planned.kind, "backend": planned.backend,
           "nranks": str(planned.world_size)}
    for metric in exported.chosen_metrics(case, request):
        if case.collective in FUNCTIONS and planned.group_size > 1 and metric.name in _INSPECTOR:
            gauge, meaning = _INSPECTOR[metric.name]
            yield gauge, f"Median {meaning}", _inspector_labels(run, case), metric.value
        ending, factor = _UNITS.get(metric.unit, ("", 1.0))
        stem = _NOT_IN_NAMES.sub("_", metric.name.removesuffix("_flops_per_s"))
        gauge = "_".join(["hpcbench", re.sub("_s$", "_second", stem), *filter(None, [ending])])
        unit = f" in {ending if factor != 1 else metric.unit}" if ending else ""
        yield (gauge, f"{metric.name} of a case{unit}, by its median time", own,
               metric.value * factor)


def _inspector_labels(run: exported.ExportedRun, case: exported.ExportedCase) -> Labels:
    """Return Inspector's labels, followed by labels that distinguish equal ones."""
    planned = case.item.case
    scheduler = run.results.run.environment.get("scheduler") or {}
    library = case.item.library or {}
    size = int(case.columns["size_bytes"])
    return {
        "version": VERSION, "slurm_job_id": str(scheduler.get("SLURM_JOB_ID", "unknown")),
        "node": _node(run), "gpu": _gpu(run, case), "comm_name": COMM_NAME,
        "n_nodes": str(_n_nodes(run, case)), "nranks": str(planned.group_size),
        exported.COLLECTIVE: FUNCTIONS[case.collective], "message_size": size_range(size),
        "algo_proto": _algorithm(library), "message_size_bytes": str(size),
        "backend": planned.backend, "dtype": planned.workload.dtype, "case": case.name,
        "case_id": planned.case_id}


def size_range(size_bytes: int) -> str:
    """Return the range of sizes by which Inspector names a size: ``4-5GB``."""
    if size_bytes == 0:
        return "0B"
    value, units = float(size_bytes), ["B", "KB", "MB", "GB", "TB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{int(value)}-{int(value) + 1}{units[0]}"


def _node(run: exported.ExportedRun) -> str:
    return run.results.run.nodes[0] if run.results.run.nodes else "unknown"


def _n_nodes(run: exported.ExportedRun, case: exported.ExportedCase) -> int:
    """Return how many nodes the first group of a case has."""
    hosts = {place.rank: place.hostname for place in run.results.topology.ranks}
    return len({hosts.get(rank, "") for rank in case.item.case.group_ranks[0]})


def _gpu(run: exported.ExportedRun, case: exported.ExportedCase) -> str:
    """Return ``GPU0``: the first rank's device stands for all; ``none`` of a case on CPUs."""
    if not case.item.device.startswith("cuda"):
        return "none"
    first = next((place for place in run.results.topology.ranks if place.rank == 0), None)
    return f"GPU{first.gpu if first and first.gpu is not None else 0}"


def _algorithm(library: Mapping[str, str]) -> str:
    """Return ``Ring_ll`` as Inspector writes it, or ``unknown``."""
    algorithm, protocol = (library.get(name, "unknown") for name in ("algorithm", "protocol"))
    if "unknown" in (algorithm, protocol):
        return "unknown"
    return f"{algorithm.capitalize() if algorithm.isupper() else algorithm}_{protocol.lower()}"


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return as_field(text).replace("\\", "\\\\").replace('"', '\\"')
