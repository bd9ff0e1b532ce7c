"""Checks of the job: launch, network, clocks, results folder, reports, and the sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from importlib import metadata

from hpcbench.errors import how_to_install
from hpcbench.launch.probe import Resolution, resolve
from hpcbench.launch.store_communicator import REMEDY
from hpcbench.plan.case import Plan
from hpcbench.report.report_file import PDF_LIBRARIES
from hpcbench.trace.clock import SyncRecord
from hpcbench.units import digits, format_seconds, plural, rank_list, round_bytes
from hpcbench.validation.rank_report import (
    CheckLine,
    JobReport,
    RankReport,
    by_value,
    fail,
    not_applicable,
    ok,
    reasons,
    values_text,
    warn,
)

_MEET = ("does torchrun run on every node, with the same --nnodes and a port that all reach? Is a "
         "process stopped? --timeout S waits longer")


def launching_lines(job: JobReport) -> Iterator[CheckLine]:
    yield _launcher(job)
    yield from (warn("launcher", *mixed.split("; ", 1)) for mixed in job.mixed)
    yield _ranks(job)
    yield _places(job)


def _launcher(job: JobReport) -> CheckLine:
    if job.announced is not None:
        return ok("launcher", job.announced[1])
    if job.world_size == 1:
        return not_applicable("launcher", "none: one rank; for more: mpirun -np 4 python -m "
                                          "hpcbench validate")
    return ok("launcher", "unknown (none of its variables is set); MPI reports the ranks")


def _ranks(job: JobReport) -> CheckLine:
    if job.by_torchrun and job.start_error:
        reason = " ".join(job.start_error.removesuffix(f"; {REMEDY}").split())
        return fail("ranks", reason, REMEDY if job.start_error.endswith(REMEDY) else _MEET)
    if job.announced is not None and job.announced[0] != job.world_size:
        size, launcher = job.announced
        return fail("ranks", f"{launcher} started {size}, but MPI sees {job.world_size}",
                    f"{job.world_size_fix}; see docs/launching.md")
    if job.lost:
        names = ", ".join(f"{rank} on {host}" if host else str(rank)
                          for rank, host in sorted(job.lost.items()))
        return fail("ranks", f"no answer within {job.timeout_s:g} s from rank {names}",
                    "look at that node: is the process stopped, the node overloaded, or a file "
                    "system or driver hanging? --timeout S waits longer")
    return ok("ranks", f"{job.world_size}, as started" if job.announced else str(job.world_size))


def _places(job: JobReport) -> CheckLine:
    counts = Counter(report.node for report in job.ranks)
    hosts = {report.node: report.hostname for report in job.ranks}
    if len(counts) == 1:
        return ok("nodes", f"1 ({', '.join(hosts.values())})")
    different = set(counts.values())
    if len(different) > 1:
        each = ", ".join(f"{hosts[node]} {count}" for node, count in counts.items())
        return warn("nodes", f"{len(counts)}, with different numbers of ranks: {each}",
                    "start equally many on each node, or read links between nodes with that in "
                    "mind")
    return ok("nodes", f"{len(counts)}, with {plural(different.pop(), 'rank')} each")


def network_lines(job: JobReport) -> Iterator[CheckLine]:
    yield _interface(job)
    yield _alike(job)
    yield _rdma(job)


def _interface(job: JobReport) -> CheckLine:
    if job.lost and any(report.network_error for report in job.ranks):
        return not_applicable("interface", "cannot be chosen before all ranks answer")
    errors = reasons(job.ranks, lambda report: report.network_error)
    if errors:
        reason, _, fix = next(iter(errors)).rpartition("; ")
        return fail("interface", " ".join((reason or fix).split()),
                    fix if reason else "set launch.interface (such as eth0) or launch.address")
    used = by_value(job.ranks, lambda report: report.interface or "one without a name")
    if len(job.by_node) == 1:
        return ok("interface", f"{values_text(used)} (single node)")
    return ok("interface", f"{values_text(used)} leads to rank 0")


def _alike(job: JobReport) -> CheckLine:
    if len(job.by_node) == 1:
        return not_applicable("link", "single node")
    if any(report.network_error for report in job.ranks):
        return not_applicable("link", "no interface could be chosen")
    kinds = by_value(job.ranks, _kind_of_interface)
    if len(kinds) > 1:
        return warn("link", f"the chosen interfaces differ: {values_text(kinds)}",
                    "name the same network on all nodes with launch.interface; give all its ports "
                    "one MTU")
    return ok("link", values_text(kinds))


def _kind_of_interface(report: RankReport) -> str:
    interface = report.of("network", "interfaces", str(report.interface)) or {}
    speed, mtu = interface.get("speed_mbit"), interface.get("mtu")
    return (f"{speed} Mbit/s" if speed else "speed unknown") + (f", MTU {mtu}" if mtu else "")


def _rdma(job: JobReport) -> CheckLine:
    ports = by_value(job.ranks, lambda report: len(report.of("network", "infiniband") or {}))
    if set(ports) == {0}:
        return not_applicable("RDMA", "no InfiniBand or RoCE port: sockets are used")
    down = [(report.rank, name) for report in job.ranks
            for name, port in (report.of("network", "infiniband") or {}).items()
            if "ACTIVE" not in str(port.get("state"))]
    if len(ports) > 1:
        text = values_text({f"{count} ports": owners for count, owners in ports.items()})
        return warn("RDMA", f"nodes have different numbers of ports: {text}",
                    "see ibstat on the nodes that have fewer")
    if down:
        ranks = rank_list({rank for rank, _ in down})
        return warn("RDMA", f"not active: {', '.join(sorted({name for _, name in down}))} on rank "
                    f"{ranks}", "see ibstat; a port that is not cabled can be left out with "
                    "NCCL_IB_HCA")
    return ok("RDMA", f"{plural(next(iter(ports)), 'active port')} on every node")


_SLOW = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
"""Clock sources that take a system call and about a microsecond a reading, or tick too seldom:
Documentation/timers/timekeeping.rst of Linux."""
_WIDE_NS = 50_000
"""With wider bounds clocks hide the differences that a common start shows (docs/method.md)."""


def clock_lines(job: JobReport) -> Iterator[CheckLine]:
    yield _source(job)
    errors = reasons(job.ranks, lambda report: report.clock_error)
    if errors and job.lost:
        yield not_applicable("clock offset", "cannot be measured before all ranks answer")
    elif errors:
        yield fail("clock offset", values_text(errors), "see that the ranks reach one another; a "
                   "run measures it in the same way before its first case")
    else:
        yield from _offsets([record for report in job.ranks if (record := report.sync_record())])


def _source(job: JobReport) -> CheckLine:
    sources = by_value(job.ranks, lambda report: report.of("kernel", "clocksource"))
    if set(sources) == {None}:
        return not_applicable("clock source", "the kernel reports none")
    slow = [name for name in sources if name in _SLOW]
    if slow:
        return warn("clock source", f"{values_text(sources)}: reading it takes about a microsecond",
                    "boot with tsc (clocksource=tsc tsc=reliable) if the hardware allows it")
    if len(sources) > 1:
        return warn("clock source", f"not alike: {values_text(sources)}",
                    "use the same on all nodes, or leave the others out")
    return ok("clock source", values_text(sources))


def _offsets(records: Sequence[SyncRecord]) -> Iterator[CheckLine]:
    if not records:
        yield not_applicable("clock offset", "the ranks' clocks were not compared")
        return
    if max(record.n_clocks for record in records) == 1:
        yield ok("clock offset", "none: all ranks read the same clock")
        return
    bound_ns = max(record.model.bound_ns for record in records)
    drift = max(abs(record.model.slope) for record in records) * 1e6
    offsets = (f"{records[0].n_clocks} clocks, known within {format_seconds(bound_ns / 1e9)}; they "
               f"drift apart by up to {digits(drift, 2)} us/s")
    if any(record.check and record.check.refutes(record.model) for record in records):
        yield fail("clock offset", f"{offsets}; but a check found them further off than that",
                   "a clock was set or stepped while it was compared: see chronyc or ntpq there")
    elif bound_ns > _WIDE_NS:
        yield warn("clock offset", f"{offsets}: too wide to compare starts between nodes",
                   "use a quicker network for MPI, or cores that are not overloaded")
    else:
        yield ok("clock offset", offsets)
    yield _time_of_day(records)


def _time_of_day(records: Sequence[SyncRecord]) -> CheckLine:
    """Compare the nodes' times of day at one global time."""
    real = [record.realtime_ns - record.model.to_global(record.local_ns) for record in records]
    offset_s = (max(real) - min(real)) / 1e9
    if offset_s > 1.0:
        return warn("time of day", f"differs by up to {format_seconds(offset_s)} between nodes: "
                    "logs do not line up (measurements do not use it)",
                    "run chrony or ntpd on all nodes")
    return ok("time of day", f"within {format_seconds(offset_s)} between nodes")


_ELSEWHERE = "choose another folder with -o DIR (output.folder)"
_SCARCE_BYTES = 2**30
_TOO_SMALL_BYTES = 16 * 2**20
_SLOW_SYNC_S = 0.25
"""Each case waits for one fdatasync on every rank before it is acknowledged."""


def storage_lines(job: JobReport) -> Iterator[CheckLine]:
    bad = reasons(job.ranks, lambda report: report.storage.get("error"))
    first = next((report for report in job.ranks if report.rank == 0), None)
    if bad or first is None:
        yield fail("results folder", values_text(bad) or "rank 0 did not answer", _ELSEWHERE)
        return
    yield _synced(job)
    yield _seen(job)
    yield _kind_of_file_system(first)
    yield _free(job)


def _synced(job: JobReport) -> CheckLine:
    slowest = max(job.ranks, key=lambda report: float(report.storage.get("sync_s") or 0))
    seconds = float(slowest.storage.get("sync_s") or 0)
    where = f"{job.ranks[0].storage['folder']}: write, fsync and rename work"
    if seconds > _SLOW_SYNC_S:
        return warn("results folder", f"{where}, but take {digits(seconds, 2)} s on rank "
                    f"{slowest.rank}; every case waits for them", _ELSEWHERE)
    return ok("results folder", where)


def _seen(job: JobReport) -> CheckLine:
    if len(job.ranks) == 1:
        return not_applicable("shared folder", "one rank only")
    blind = [report for report in job.ranks if not report.storage.get("seen")]
    if blind:
        places = values_text(by_value(blind, lambda report: str(report.storage.get("own"))))
        return warn("shared folder", f"rank {rank_list(one.rank for one in blind)} cannot "
                    f"see rank 0's folder: traces are written to local disks (below {places}), and "
                    "sent to rank 0 at the end",
                    "choose a folder on a file system that all nodes mount: -o DIR (output.folder)")
    return ok("shared folder", "all ranks see rank 0's folder")


def _kind_of_file_system(first: RankReport) -> CheckLine:
    kind = first.storage.get("kind")
    if kind is None:
        return not_applicable("file system", "its type is unknown")
    if kind in ("tmpfs", "ramfs"):
        return warn("file system", f"{kind}: its files are in memory, and gone after a restart",
                    _ELSEWHERE)
    if kind == "overlay":
        return warn("file system", f"{kind}: a container's own layer, gone when it is removed",
                    "mount a volume, and name a folder on it with -o DIR")
    return ok("file system", str(kind))


def _free(job: JobReport) -> CheckLine:
    """Judge the rank with the least room: ranks may have disks of their own."""
    reports = [report for report in job.ranks if report.storage.get("free_bytes") is not None]
    if not reports:
        return not_applicable("free space", "the file system reports none")
    least = min(reports, key=lambda report: (report.storage.get("free_files") != 0,
                                          report.storage["free_bytes"]))
    free = least.storage["free_bytes"]
    room = f"{round_bytes(free)} free" + (
        "" if all(report.storage.get("seen") for report in job.ranks) else
        f" on {least.hostname}, where rank {least.rank} writes")
    if free < _TOO_SMALL_BYTES or least.storage.get("free_files") == 0:
        lacks = room if free < _TOO_SMALL_BYTES else f"{room}, but no more files can be made"
        return fail("free space", lacks, f"free some, or {_ELSEWHERE}")
    if free < _SCARCE_BYTES:
        return warn("free space", room, f"free some, or {_ELSEWHERE}; a long sweep of many ranks "
                    "can take more")
    return ok("free space", room)


def report_lines(job: JobReport) -> Iterator[CheckLine]:
    """Yield whether reports can be PDF; nothing else needs that."""
    subject = "PDF reports"
    try:
        version = metadata.version("weasyprint")
    except metadata.PackageNotFoundError:
        yield not_applicable(subject, f"no WeasyPrint: {how_to_install('pdf')}")
        return
    if find_library("pangoft2-1.0") is None:
        yield warn(subject, f"WeasyPrint {version} finds no Pango",
                   f"install {PDF_LIBRARIES}, or write reports as HTML")
    else:
        yield ok(subject, f"WeasyPrint {version}")


def sweep_lines(job: JobReport, plan: Plan) -> Iterator[CheckLine]:
    if job.lost or len(job.with_facts) < job.world_size:
        yield not_applicable("sweep", "cannot be judged before all ranks and their torch answer")
        return
    resolution = resolve(plan, [report.rank_facts() for report in job.with_facts])
    total = len(plan.cases)
    if not resolution.devices:
        yield fail("sweep", f"none of the {total} cases of {plan.name} can run here",
                   "see the reasons below, or choose another sweep file")
    else:
        on = Counter(resolution.devices.values())
        devices = ", ".join(f"{count} on {device}" for device, count in sorted(on.items()))
        yield ok("sweep", f"{len(resolution.devices)} of {total} cases of {plan.name} can run "
                          f"here: {devices}")
    yield from _skipped(plan, resolution)
    if n_failed := len(resolution.failures):
        yield fail("sweep", f"{plural(n_failed, 'case')} of GPUs will fail: CUDA did not answer",
                   "see the line of the probe")


def _skipped(plan: Plan, resolution: Resolution) -> Iterator[CheckLine]:
    """Yield a line for each reason: a failure where ``required_backends`` names what is missing."""
    skips, unmet = resolution.skips, resolution.unmet
    counts = Counter((skips[case.case_id], unmet.get(case.case_id, ""))
                     for case in plan.cases if case.case_id in skips and case.skip is None)
    if planned := sum(case.skip is not None for case in plan.cases):
        yield not_applicable("sweep", f"{plural(planned, 'case')} skipped by the plan itself; see "
                             f"`hpcbench plan FILE --world-size {plan.world_size}` of the same "
                             "sweep file")
    for (reason, required), count in counts.most_common():
        judged = fail if required else warn
        yield judged("sweep", f"{plural(count, 'case')} skipped: {reason}",
                     f"the sweep requires {required} (required_backends)" if required else
                     "leave these cases out, or see the line on what they lack")
