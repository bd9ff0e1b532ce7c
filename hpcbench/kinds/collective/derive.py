"""The deriver of collectives: algorithm and bus bandwidth, as nccl-tests defines them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from typing import Any

from hpcbench.kinds.collective.plan import ISSUE, Collective, collective_of
from hpcbench.operations.arrival import TOGETHER
from hpcbench.operations.collectives import (
    Bandwidth,
    WireRate,
    busbw_factor,
    collective_spec,
    wire_rate,
)
from hpcbench.operations.traffic import CallForm
from hpcbench.records import dataclass
from hpcbench.reduce.checks import Violation, bandwidth_problem
from hpcbench.reduce.kind_facts import (
    CallWork,
    CaseColumn,
    ColumnValues,
    Deriver,
    Fact,
    IsolatedCall,
    ReadSamples,
    SentBytes,
)
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import (
    BOUND_COLUMNS,
    Demand,
    Roofline,
    ceilings_of,
    column_values_of,
    measured_link,
    roofline,
)
from hpcbench.trace.columns import PURE, TEXT
from hpcbench.units import size_text


def sent_bytes(item: CaseResult) -> float | None:
    """Return the data that have to leave a rank, summed over all ranks and groups.

    In a rooted collective all but the root send, or receive, once; in others each rank sends its
    size times the busbw factor, or what its backend makes of it.
    """
    of = collective_of(item.case)
    ranks = item.case.world_size // of.groups
    factor = busbw_factor(of.collective, ranks)
    if factor is None:
        return None
    spec = collective_spec(of.collective)
    senders = ranks if not spec.has_root else 1 if spec.split else ranks - 1
    return of.size_bytes * factor * spec.carried_on(item.case.library) * senders * of.groups


def work(item: CaseResult) -> CallWork | None:
    """Return the bytes that count for busbw; None for one rank, and if no data move."""
    of = collective_of(item.case)
    ranks = item.case.world_size // of.groups
    factor = busbw_factor(of.collective, ranks)
    if not factor or ranks < 2:
        return None
    parts = (of.collective, of.dtype, of.op, "in_place" if of.in_place else "", *(
        value for name, value in of.unusual_words().items() if name != "buffers"))
    return CallWork(
        task=(of.collective, of.dtype, of.op, of.root, of.in_place, of.split, of.groups,
              of.group_stride, of.requested_bytes),
        title=" ".join(filter(None, parts)), way="", amount=of.size_bytes * factor, unit="bytes",
        only_communicates=True, size=size_text(of.requested_bytes))


COLUMNS = (
    CaseColumn("collective", TEXT, "name of the collective", str),
    CaseColumn("op", TEXT, "reduction: sum, max and so on; empty of none", str),
    CaseColumn("root", PURE, "root rank; -1 of none", int),
    CaseColumn("in_place", PURE, "1 in place, 0 out of place; -1 of a barrier", int),
    CaseColumn("requested_bytes", "bytes", "size in the sweep file", int),
    CaseColumn("size_bytes", "bytes", "size as nccl-tests counts it, after rounding", int),
    CaseColumn("count", "elements", "nccl-tests' count", int),
    CaseColumn("split", TEXT, "how data are divided among ranks: even, or another way", str),
    CaseColumn("buffers", TEXT, "warm: restored before each call; cold: sets take turns", str),
    CaseColumn("group_stride", PURE, "how far apart the ranks of a group are", int),
    CaseColumn("busbw_factor", PURE, "bus bandwidth over algorithm bandwidth"),
    CaseColumn("asynchronous", PURE, "1 if issued with async_op, then waited for, else 0", int),
    CaseColumn("issue_s", "s", "time in which an asynchronous call returned: median of each rank, "
               "the longest of them"),
    CaseColumn("algbw_bytes_per_s", "bytes/s", "size_bytes / median_s"),
    CaseColumn("busbw_bytes_per_s", "bytes/s", "algbw_bytes_per_s x busbw_factor"),
    CaseColumn("of_link", PURE, "share of what the declared links allow; NaN where none is"),
    CaseColumn("of_measured_link", PURE, "share of what two ranks reached in the run"),
    CaseColumn("measured_link_bytes_per_s", "bytes/s", "what two ranks reached in the run",
               apart=True),
    *BOUND_COLUMNS,
)


_OF_WORK = tuple(one.name for one in fields(Collective)
                 if one.name in {column.name for column in COLUMNS})


def column_values(item: CaseResult, record: CollectiveRecord | None) -> dict[str, Any]:
    work, known = collective_of(item.case), record or CollectiveRecord()
    rates = known.bandwidth
    return {**{name: getattr(work, name) for name in _OF_WORK},
            "busbw_factor": known.busbw_factor, "issue_s": issue_s(item),
            "algbw_bytes_per_s": rates and rates.algbw_bytes_per_s,
            "busbw_bytes_per_s": rates and rates.busbw_bytes_per_s,
            "of_link": known.of_link, "of_measured_link": known.of_measured_link,
            "measured_link_bytes_per_s": known.measured_link,
            **column_values_of(known.roofline, BOUND_COLUMNS)}


def issue_s(item: CaseResult) -> float | None:
    """Return the median time to issue a call, of the rank that takes longest; None if not timed."""
    steps = item.timing.steps if item.timing else None
    found = [phase for phase in steps.phases if phase.name == ISSUE] if steps else []
    return max(found[0].median_s) if found else None


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """The numbers of COLUMNS, of the median time; None where there is no such number.

    Cases that were not ok have a ``busbw_factor``, too. ``busbw_at`` is the bus bandwidth in
    bytes/s in each time that the statistics name (``min_s``, ``ci_low_s``), where there is one.
    """

    busbw_factor: float | None = None
    bandwidth: Bandwidth | None = None
    busbw_at: Mapping[str, float] = field(default_factory=dict)
    of_link: float | None = None
    of_measured_link: float | None = None
    measured_link: float | None = None
    roofline: Roofline | None = None


class CollectiveDeriver(Deriver):
    """Derives bandwidths."""

    record = CollectiveRecord
    version = 5
    columns = COLUMNS

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, CollectiveRecord]:
        return {item.case.case_id: _record(item, hardware) for item in items}

    def facts(self, item: CaseResult, record: Any | None, read: ReadSamples) -> Iterator[Fact]:
        yield ColumnValues(lambda: column_values(item, record))
        if (sent := sent_bytes(item)) is not None:
            yield SentBytes(sent)
        if collective_of(item.case).split == "even" and item.case.arrival == TOGETHER:
            yield isolated_call(item)
        if found := work(item):
            yield found

    def problems(
        self, item: CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterator[Violation]:
        """Yield HB128 if the links carried more than the declared peak."""
        rates = bandwidth(collective_of(item.case), item.case.world_size, time_s)
        yield from bandwidth_problem(item.case, _wire_rate(item, rates), nodes, hardware)


def isolated_call(item: CaseResult) -> IsolatedCall:
    """Return the form and requested bytes of the call, which recorded calls are compared with."""
    case, one = item.case, collective_of(item.case)
    return IsolatedCall(CallForm(
        one.collective, case.backend, one.dtype, one.op, one.root,
        case.world_size // one.groups, one.group_stride), one.requested_bytes)


def bandwidth(workload: Collective, world_size: int, time_s: float) -> Bandwidth | None:
    """Return S / t and S / t x factor; None for barrier and for a time that is not positive.

    With several concurrent groups the rates are those of one group, in the time of the slowest.
    """
    factor = busbw_factor(workload.collective, world_size // workload.groups)
    if factor is None or not time_s > 0:
        return None
    algbw = workload.size_bytes / time_s
    return Bandwidth(algbw, algbw * factor)


def _record(item: CaseResult, hardware: Mapping[str, Any]) -> CollectiveRecord:
    work, ranks = collective_of(item.case), item.case.world_size
    factor = busbw_factor(work.collective, ranks // work.groups)
    if item.statistics is None:
        return CollectiveRecord(factor)
    rates = {name: bandwidth(work, ranks, time_s)
             for name, time_s in asdict(item.statistics).items()
             if name.endswith("_s") and time_s is not None}
    carried = _wire_rate(item, rates["median_s"])
    link = item.timing and item.timing.link_bytes_per_s
    measured = measured_link(item, hardware)
    return CollectiveRecord(
        factor, rates["median_s"],
        {name: rate.busbw_bytes_per_s for name, rate in rates.items() if rate is not None},
        carried.bytes_per_s / link if carried and link else None,
        carried.bytes_per_s / measured if carried and measured else None, measured,
        _roofline(item, carried, hardware))


def _roofline(
    item: CaseResult, carried: WireRate | None, hardware: Mapping[str, Any],
) -> Roofline | None:
    """Return the roofline of the call, from the bytes that a rank sends and its one message."""
    if item.statistics is None or item.case.group_size == 1:
        return None
    median_s = item.statistics.median_s
    sent = carried.bytes_per_s * median_s if carried else 0.0
    return roofline(Demand(network_bytes=sent, messages=1), median_s,
                    ceilings_of(item, None, hardware))


def _wire_rate(item: CaseResult, rates: Bandwidth | None) -> WireRate | None:
    """Return the rate on a rank's links, by the algorithm that the library logged."""
    work, logged = collective_of(item.case), item.library or {}
    return wire_rate(work.collective, rates, item.case.world_size // work.groups,
                     logged.get("algorithm"), item.case.library)
