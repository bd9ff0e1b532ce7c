"""The interface that gloo, NCCL and UCX are kept to."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.units import plural, rank_list
from hpcbench.validation.lines import Line, fail, not_applicable, ok, spread, warn
from hpcbench.validation.rank_report import JobReport, RankReport, by_value, reasons


def network_lines(job: JobReport) -> Iterator[Line]:
    """Yield which interface is used, whether it is alike everywhere, and RDMA ports."""
    yield _interface(job)
    yield _alike(job)
    yield _rdma(job)


def _interface(job: JobReport) -> Line:
    if job.lost and any(report.network_error for report in job.ranks):
        return not_applicable("interface", "cannot be chosen before all ranks answer")
    errors = reasons(job.ranks, lambda report: report.network_error)
    if errors:
        reason, _, fix = next(iter(errors)).rpartition("; ")
        return fail("interface", " ".join((reason or fix).split()),
                    fix if reason else "set launch.interface (such as eth0) or launch.address")
    used = by_value(job.ranks, lambda report: report.interface or "one without a name")
    if len(job.by_node) == 1:
        return ok("interface", f"{spread(used)}: there is one node")
    return ok("interface", f"{spread(used)} leads to rank 0")


def _alike(job: JobReport) -> Line:
    """Judge speed and MTU of the chosen interface between nodes."""
    if len(job.by_node) == 1:
        return not_applicable("link", "there is one node")
    if any(report.network_error for report in job.ranks):
        return not_applicable("link", "no interface could be chosen")
    kinds = by_value(job.ranks, _kind)
    if len(kinds) > 1:
        return warn("link", f"the chosen interfaces differ: {spread(kinds)}",
                    "name the same network on all nodes with launch.interface; give all its ports "
                    "one MTU")
    return ok("link", spread(kinds))


def _kind(report: RankReport) -> str:
    interface = report.of("network", "interfaces", str(report.interface)) or {}
    speed, mtu = interface.get("speed_mbit"), interface.get("mtu")
    return (f"{speed} Mbit/s" if speed else "speed not told") + (f", MTU {mtu}" if mtu else "")


def _rdma(job: JobReport) -> Line:
    ports = by_value(job.ranks, lambda report: len(report.of("network", "infiniband") or {}))
    if set(ports) == {0}:
        return not_applicable("RDMA", "no InfiniBand or RoCE port is seen: sockets are used")
    down = [(report.rank, name) for report in job.ranks
            for name, port in (report.of("network", "infiniband") or {}).items()
            if "ACTIVE" not in str(port.get("state"))]
    if len(ports) > 1:
        text = spread({f"{count} ports": owners for count, owners in ports.items()})
        return warn("RDMA", f"nodes have different numbers of ports: {text}",
                    "see ibstat on the nodes that have fewer")
    if down:
        ranks = rank_list({rank for rank, _ in down})
        return warn("RDMA", f"not active: {', '.join(sorted({name for _, name in down}))} on rank "
                    f"{ranks}", "see ibstat; a port that is not cabled can be left out with "
                    "NCCL_IB_HCA")
    return ok("RDMA", f"{plural(next(iter(ports)), 'active port')} on every node")
