"""The deriver of collectives: algorithm and bus bandwidth, as nccl-tests defines them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcbench.kinds.collective.plan import ISSUE, Collective, collective_of
from hpcbench.operations import collectives
from hpcbench.operations.arrival import TOGETHER
from hpcbench.operations.traffic import CallForm
from hpcbench.reduce import kind_facts, roofline
from hpcbench.reduce.checks import Violation, bandwidth_problem
from hpcbench.reduce.metric import Records, Show, Values, metric, planned, whole, word
from hpcbench.reduce.results import CaseResult
from hpcbench.units import size_text


def sent_bytes(item: CaseResult) -> float | None:
    """Return the data that have to leave a rank, summed over all ranks and groups.

    In a rooted collective all but the root send, or receive, once; in others each rank sends its
    size times the busbw factor, or what its backend makes of it."""
    of = collective_of(item.case)
    ranks = item.case.world_size // of.groups
    factor = collectives.busbw_factor(of.collective, ranks)
    if factor is None:
        return None
    spec = collectives.collective_spec(of.collective)
    senders = ranks if not spec.has_root else 1 if spec.split else ranks - 1
    return of.size_bytes * factor * spec.carried_on(item.case.library) * senders * of.groups


def work(item: CaseResult) -> kind_facts.CallWork | None:
    """Return the bytes that count for busbw; None for one rank, and if no data move."""
    of = collective_of(item.case)
    ranks = item.case.world_size // of.groups
    factor = collectives.busbw_factor(of.collective, ranks)
    if not factor or ranks < 2:
        return None
    parts = (of.collective, of.dtype, of.op, "in_place" if of.in_place else "", *(
        value for name, value in of.unusual_words().items() if name != "buffers"))
    return kind_facts.CallWork(
        task=(of.collective, of.dtype, of.op, of.root, of.in_place, of.split, of.groups,
              of.group_stride, of.requested_bytes),
        title=" ".join(filter(None, parts)), way="", amount=of.size_bytes * factor, unit="bytes",
        only_communicates=True, size=size_text(of.requested_bytes))


SIZE, COUNT, OP, ROOT, *_OTHERS = planned(
    whole("size_bytes", "size as nccl-tests counts it, after rounding", title="size",
          show=Show.SIZE),
    whole("count", "nccl-tests' count", "elements", title="count", show=Show.COUNT,
          shown_unit="elem"),
    word("op", "reduction: sum, max and so on; empty of none", title="op"),
    whole("root", "root rank; -1 of none", title="root", show=Show.COUNT),
    word("collective", "name of the collective"),
    whole("in_place", "1 in place, 0 out of place; -1 of a barrier"),
    whole("requested_bytes", "size in the sweep file"),
    word("split", "how data are divided among ranks: even, or another way"),
    word("buffers", "warm: restored before each call; cold: sets take turns"),
    whole("group_stride", "how far apart the ranks of a group are"),
    whole("asynchronous", "1 if issued with async_op, then waited for, else 0"))
ISSUE_S = metric(
    "issue_s", "until an asynchronous call returned: the longest median of a rank", title="issue",
    show=Show.US, better="less", optional=True)
ALGBW = metric("algbw_bytes_per_s", "size_bytes / median_s", title="algbw", show=Show.GB_PER_S,
               better="more")
BUSBW = metric("busbw_bytes_per_s", "algbw_bytes_per_s x busbw_factor", title="busbw",
               show=Show.GB_PER_S, better="more")
OF_LINK = metric("of_link", "bytes/s on a rank's links / link_bytes_per_s; NaN where none is",
                 title="of link", show=Show.WHOLE_PERCENT, better="more", optional=True)
OF_PAIR = metric("of_measured_link", "bytes/s on a rank's links / measured_link_bytes_per_s",
                 title="of pair", show=Show.WHOLE_PERCENT, better="more", optional=True)
MEASURED_LINK = metric("measured_link_bytes_per_s", "what two ranks reached in the run",
                       apart=True)
BOUND_BY = roofline.BOUND[0]
RECEIVED, BUSIEST_BYTES = planned(
    metric("received_max_over_mean", "uneven all_to_all: the most bytes that a rank receives over "
           "the mean", title="max/mean", show=Show.RATIO, better="less", optional=True, apart=True),
    whole("busiest_wire_bytes", "the most that a rank sends to others, or receives from them"))
BUSIEST = metric(
    "busiest_rank_bytes_per_s", "busiest_wire_bytes / median_s", title="busiest",
    show=Show.GB_PER_S, better="more", optional=True)
IDEAL = metric(
    "ideal_load_s", "busiest_wire_bytes at the rate of two ranks, else of declared links",
    title="ideal", show=Show.US, optional=True, apart=True)
METRICS = (
    SIZE, COUNT, OP, ROOT, *_OTHERS,
    metric("busbw_factor", "bus bandwidth over algorithm bandwidth"),
    ISSUE_S, ALGBW, BUSBW, OF_LINK, OF_PAIR, MEASURED_LINK, RECEIVED, BUSIEST_BYTES, BUSIEST,
    IDEAL, *roofline.BOUND)


def issue_s(item: CaseResult) -> float | None:
    """Return the median time to issue a call, of the rank that takes longest; None if not timed."""
    steps = item.timing.steps if item.timing else None
    found = [phase for phase in steps.phases if phase.name == ISSUE] if steps else []
    return max(found[0].median_s) if found else None


class CollectiveDeriver(kind_facts.Deriver):
    """Derives bandwidths; cases that were not ok have a ``busbw_factor``, too."""

    version = 8
    columns = METRICS

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        return {item.case.case_id: _derived(item, hardware) for item in items}

    def facts(
        self, item: CaseResult, record: Values | None, read: kind_facts.ReadSamples,
    ) -> Iterator[kind_facts.Fact]:
        if (sent := sent_bytes(item)) is not None:
            yield kind_facts.SentBytes(sent)
        if collective_of(item.case).split == "even" and item.case.arrival == TOGETHER:
            yield isolated_call(item)
            yield demand(item)
        if done := work(item):
            yield done

    def problems(
        self, item: CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterator[Violation]:
        """Yield HB128 if the links carried more than the declared peak."""
        rates = bandwidth(collective_of(item.case), item.case.world_size, time_s)
        yield from bandwidth_problem(item.case, _wire_rate(item, rates), nodes, hardware)


def isolated_call(item: CaseResult) -> kind_facts.IsolatedCall:
    """Return the form and requested bytes of the call, which recorded calls are compared with."""
    case, call = item.case, collective_of(item.case)
    return kind_facts.IsolatedCall(CallForm(
        call.collective, case.backend, call.dtype, call.op, call.root,
        case.world_size // call.groups, call.group_stride), call.requested_bytes)


def demand(item: CaseResult) -> kind_facts.StepDemand:
    case, call = item.case, collective_of(item.case)
    return kind_facts.StepDemand(0.0, (kind_facts.RepeatedCall(
        call.collective, case.group_size, call.group_stride, 1, call.size_bytes),))


def bandwidth(workload: Collective, world_size: int, time_s: float) -> collectives.Bandwidth | None:
    """Return S / t and S / t x factor; None for barrier and for a time that is not positive.

    With several concurrent groups the rates are those of one group, in the time of the slowest."""
    factor = collectives.busbw_factor(workload.collective, world_size // workload.groups)
    if factor is None or not time_s > 0:
        return None
    algbw = workload.size_bytes / time_s
    return collectives.Bandwidth(algbw, algbw * factor)


def _derived(item: CaseResult, hardware: Mapping[str, Any]) -> Values:
    of, ranks = collective_of(item.case), item.case.world_size
    values = {"busbw_factor": collectives.busbw_factor(of.collective, ranks // of.groups),
              "issue_s": issue_s(item)}
    if item.statistics is None:
        return values
    rates = bandwidth(of, ranks, item.statistics.median_s)
    carried, measured = _wire_rate(item, rates), roofline.measured_link(item, hardware)
    link = item.timing and item.timing.link_bytes_per_s
    shown = carried if item.case.arrival == TOGETHER else None  # else a delay is in its time
    busiest, rate = of.busiest_wire_bytes, measured or link
    return {**values, **(asdict(rates) if rates else {}),
            "of_link": shown.bytes_per_s / link if shown and link else None,
            "of_measured_link": shown.bytes_per_s / measured if shown and measured else None,
            "measured_link_bytes_per_s": measured,
            BUSIEST.name: busiest / item.statistics.median_s if busiest and rates else None,
            IDEAL.name: busiest / rate if busiest and rate else None,
            **roofline.roofline_values(_roofline(item, carried, hardware))}


def _roofline(
    item: CaseResult, carried: collectives.WireRate | None, hardware: Mapping[str, Any],
) -> roofline.Roofline | None:
    """Return the roofline of the call, from the bytes that a rank sends and its one message."""
    if item.statistics is None or item.case.group_size == 1:
        return None
    median_s = item.statistics.median_s
    sent = carried.bytes_per_s * median_s if carried else 0.0
    return roofline.roofline(roofline.Demand(network_bytes=sent, messages=1), median_s,
                             roofline.ceilings_of(item, None, hardware))


def _wire_rate(item: CaseResult,
               rates: collectives.Bandwidth | None) -> collectives.WireRate | None:
    """Return the rate on a rank's links, by the algorithm that the library logged."""
    work, logged = collective_of(item.case), item.library or {}
    return collectives.wire_rate(work.collective, rates, item.case.world_size // work.groups,
                                 logged.get("algorithm"), item.case.library)
