"""Rates of a primitive, and the comparisons of its time with its parts alone and with torch.

A case has three partners that solve the same problem on the same machine: ``compute_only`` (size
``sharded``), ``comm_only`` and ``torch``. Options of an implementation do not matter, those of the
primitive do: ``comm_only`` and ``torch`` have no others, so whatever options a partner has (but
``size``) a case must have too. Each rate is derived once, from one time; rates are never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.primitive.plan.demands import product_bytes
from hpcbench.kinds.primitive.plan.workload import PHASES, Primitive, primitive_of
from hpcbench.operations.collectives import WireRate, collective_spec
from hpcbench.plan.case import Case
from hpcbench.plan.points import Option
from hpcbench.reduce import kind_facts, roofline
from hpcbench.reduce.checks import MOST_OF_PEAK, Violation, bandwidth_problem
from hpcbench.reduce.metric import (
    Metric,
    Records,
    Show,
    Values,
    document,
    metric,
    metrics_over_passes,
    of_workload,
    planned,
    values_over_passes,
    whole,
    word,
)
from hpcbench.reduce.records import median_s, nearest, pass_medians_s, why_unpaired
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics import overlap as overlaps
from hpcbench.units import digits, grouped, to_tflop_per_s

COMPUTE_ONLY, COMM_ONLY, BASE = "compute_only", "comm_only", "torch"
PARTS = (COMPUTE_ONLY, COMM_ONLY)
LONGEST, SUM = "longest", "sum"
SHARDED = ("size", "sharded")
"""The option of ``compute_only`` that makes it a part; no other implementation has it."""
Key = tuple[object, ...]
Options = frozenset[tuple[str, Option]]
PRIMITIVE, IMPLEMENTATION, ORDER, SHAPE, FLOPS, *_OTHERS = planned(
    word("primitive", "name of the primitive", title="primitive"),
    word("implementation", "name of the implementation", title="implementation"),
    word("order", "what comes first: communication or product", title="order"),
    word("shape", "model and layer of the extents; empty if they were given", title="model",
         optional=True),
    whole("flops", "of one call, on the rank that has most to do", "FLOP", title="flops",
          show=Show.GFLOP, shown_unit="1e9", better="less", optional=True),
    whole("total_flops", "of one call, on all ranks", "FLOP"),
    whole("size_bytes", "sum of the sizes of its collectives"),
    whole("wire_bytes", "sum of the sizes times their busbw factors"))
PER_RANK = metric("busiest_rank_flops_per_s", "flops / median_s, of the busiest rank",
                  title="per rank", show=Show.TFLOP_PER_S, better="more")
ALL_RANKS = metric("all_ranks_flops_per_s", "total_flops / median_s",
                   title="all ranks", show=Show.TFLOP_PER_S, better="more")
ALGBW = metric("algbw_bytes_per_s", "size_bytes / median_s; comm_only alone")
BUSBW = metric("busbw_bytes_per_s", "wire_bytes / median_s; comm_only alone", title="busbw",
               show=Show.GB_PER_S, better="more")
OF_MEASURED = metric("of_measured_product", "busiest_rank_flops_per_s over the best gemm here",
                     title="of gemm", show=Show.WHOLE_PERCENT, better="more", optional=True)
OF_DECLARED = metric("of_declared_product", "busiest_rank_flops_per_s over hardware.peak_flops",
                     title="of peak", show=Show.WHOLE_PERCENT, better="more", optional=True)
_OVER_PASSES = (
    metrics_over_passes("exposed_s", "t_p - t_p(compute_only)", title="exposed", show=Show.US,
                        better="less"),
    metrics_over_passes("exposed_share", "1 - t_p(compute_only) / t_p"),
    metrics_over_passes(
        "overlap_efficiency", "(t_p(compute_only) + t_p(comm_only) - t_p) / the shorter of both",
        title="overlap", show=Show.WHOLE_PERCENT, better="more"),
    metrics_over_passes(
        "times_longest_part", "t_p / the longer of t_p(compute_only) and t_p(comm_only)",
        title="x longest", show=Show.RATIO, better="less"),
    metrics_over_passes("speedup_over_torch", "t_p(torch) / t_p", title="x torch", show=Show.RATIO,
                        better="more"))
EXPOSED, EXPOSED_SHARE, OVERLAP, TIMES_LONGEST, SPEEDUP = COMPARED = tuple(
    one for one, _ in _OVER_PASSES)
"""Numbers over passes (`statistics.overlap`), of cases that compute and communicate."""


def _of_load(name: str, text: str, **more: Any) -> Metric:
    """Return a number of how unevenly experts are loaded, which the plan has."""
    return metric(name, text, optional=True, apart=True,
                  of=lambda item: dict(primitive_of(item.case).loads).get(name), **more)


EXPERT_MAX = _of_load("expert_tokens_max", "tokens of the busiest expert, of all ranks",
                      title="expert max", show=Show.COUNT, better="less")
EXPERT_MEAN = _of_load("expert_tokens_mean", "mean tokens of an expert", title="expert mean",
                       show=Show.NUMBER)
RECEIVED = _of_load("received_max_over_mean", "the most copies that a rank receives over the mean",
                    title="max/mean", show=Show.RATIO, better="less")
BUSIEST = metric(
    "busiest_rank_bytes_per_s", "wire_bytes / (median_s - experts_s)", title="busiest",
    show=Show.GB_PER_S, better="more", optional=True)
IDEAL = metric(
    "ideal_load_s", "wire_bytes at the rate of two ranks, else of declared links", title="ideal",
    show=Show.US, optional=True, apart=True)
WAITING = metric(
    "experts_wait_s", "how long the last rank's experts end after the mean rank's",
    title="waiting", show=Show.US, better="less", optional=True, apart=True)
PARTS_OF_CALL = tuple(metric(
    f"{name}_s", "the longest median of a rank", show=Show.US, optional=True, apart=True)
    for name in PHASES)
LOADED: tuple[Metric, ...] = (EXPERT_MAX, EXPERT_MEAN, RECEIVED, BUSIEST, IDEAL, WAITING)
NOT_COMPARED = document("not_compared", "why one of them is absent", type=tuple[str, ...])
ROOF = document("roofline", "least times by each ceiling, and which binds", type=roofline.Roofline)
METRICS = (
    PRIMITIVE, IMPLEMENTATION, ORDER, SHAPE, FLOPS, *_OTHERS,
    *(whole(f"problem_{name}", "extent of the global problem", of=of_workload(name))
      for name in "mnk"),
    word("options", "options: NAME=VALUE, separated by spaces",
         of=lambda item: kind_facts.settings(primitive_of(item.case).options)),
    PER_RANK, ALL_RANKS, ALGBW, BUSBW,
    metric("compute_only_s", "median of the products alone"),
    metric("comm_only_s", "median of the communication alone"),
    *(one for pair in _OVER_PASSES for one in pair),
    NOT_COMPARED, OF_MEASURED, OF_DECLARED, *LOADED, *PARTS_OF_CALL, *roofline.ROOFLINE, ROOF)


def flop_rates(work: Primitive, time_s: float) -> Values:
    """Return flops / t and total_flops / t: of the rank that has most to do, and of all together.

    The first compares with the peak of one device, the second with that of the machine; where the
    work is uneven the second is less than the first times the ranks. None of them without flops and
    for a time of 0."""
    return {PER_RANK.name: work.flops / time_s, ALL_RANKS.name: work.total_flops / time_s} if (
        work.flops and time_s > 0) else {}


def communication_rates(work: Primitive, time_s: float) -> Values:
    """Return size_bytes / t and wire_bytes / t of an implementation that only communicates.

    ``wire_bytes`` is each collective's size times its busbw factor, so that the second is the
    bus bandwidth of nccl-tests (doc/PERFORMANCE.md). None of everything that computes, too: a time
    that holds a product is no time of a link."""
    return {ALGBW.name: work.size_bytes / time_s, BUSBW.name: work.wire_bytes / time_s} if (
        work.size_bytes and not work.flops and time_s > 0) else {}


def carried_bytes(case: Case) -> float:
    """Return the bytes on a rank's links in a call; of several collectives each has as many."""
    work = primitive_of(case)
    times = [collective_spec(name).carried_on(case.library) for name in work.calls]
    return work.wire_bytes * sum(times) / max(len(times), 1)


def _limits(item: CaseResult, flops: Values, hardware: Mapping[str, Any]) -> Values:
    """Return shares of the measured and of the declared product, and the roofline of the rank with
    most to do; each collective of a call is a message."""
    of, ranks = primitive_of(item.case), item.case.world_size
    ceilings = roofline.ceilings_of(item, of.dtype, hardware)
    demand = roofline.Demand(of.flops, product_bytes(of, ranks) if of.flops else 0,
                             carried_bytes(item.case), len(of.calls) if of.wire_bytes else 0)
    bound = roofline.roofline(demand, median_s(item) or 0.0, ceilings)
    shares = {f"of_{one.source}_product": flops[PER_RANK.name] / one.rate
              for one in ceilings if flops and one.limit == roofline.COMPUTE}
    return {**shares, **roofline.roofline_values(bound), ROOF.name: bound}


def work(item: CaseResult, values: Values) -> kind_facts.CallWork | None:
    """Return the rows that all ranks multiply; None for a part alone, which is not divided so."""
    of = primitive_of(item.case)
    if not does_both(of) or item.statistics is None:
        return None
    return kind_facts.CallWork(
        task=(of.primitive, of.order, of.dtype, of.n, of.k, of.groups),
        title=f"{of.primitive} {of.order} {of.dtype} n={of.n} k={of.k}",
        way=" ".join((of.implementation, *kind_facts.settings(of.options))), amount=of.m,
        unit="rows", communication=values.get(f"{EXPOSED_SHARE.name}_passes"))


def problem_key(case: Case) -> Key:
    """Return the key that partners share, the primitive's own options apart.

    The name of the model (``shape``) is left out: equal extents are the same problem. So are the
    variables of the environment that only its implementation requested."""
    work = primitive_of(case)
    env = tuple(item for item in case.env if item[0] not in work.variables)
    return (work.primitive, work.order, work.dtype, work.m, work.n, work.k, case.backend,
            case.device, case.world_size, env, case.mode, case.batch, case.cuda_graph, case.arrival)


def parts_alone(items: Iterable[CaseResult]) -> dict[str, float]:
    """Return the times of the parts among timed cases of one problem, the first of each; of both
    also the ``longest``, what perfect overlap would take, and the ``sum``, one after the other."""
    times_s: dict[str, float] = {}
    for item in items:
        of, time_s = primitive_of(item.case), median_s(item)
        if time_s is not None and of.implementation in PARTS and (
                "size", "unsharded") not in of.options:
            times_s.setdefault(of.implementation, time_s)
    both = {LONGEST: max(times_s.values()), SUM: sum(times_s.values())} if len(times_s) > 1 else {}
    return times_s | both


def does_both(work: Primitive) -> bool:
    return bool(work.flops and work.size_bytes)


def parts_first(item: CaseResult) -> tuple[int, int]:
    """Return a sort key: the parts alone first, then as planned."""
    name = primitive_of(item.case).implementation
    return PARTS.index(name) if name in PARTS else len(PARTS), item.case.index


def partner(name: str, item: CaseResult, same: Iterable[CaseResult]) -> CaseResult | None:
    """Return another implementation's case of the same problem; ``same`` have one `problem_key`."""
    own = set(primitive_of(item.case).options)
    candidates = [other for other in same if primitive_of(other.case).implementation == name
             and {*primitive_of(other.case).options} - {SHARDED} <= own]
    return nearest(item, candidates)


def _comparisons(item: CaseResult, alike: Sequence[CaseResult]) -> Values:
    """Return the times of the parts alone and the numbers over passes, and why some are missing."""
    partners = {name: partner(name, item, alike) for name in (*PARTS, BASE)}
    missing = {name: reason for name, other in partners.items()
               if (reason := why_unpaired(name, "problem", item, other))}
    compute, communicate, base = (
        () if name in missing else pass_medians_s(other) for name, other in partners.items())
    own = pass_medians_s(item)
    overlap = overlaps.overlap_efficiency(own, compute, communicate)
    if overlap is None and not missing.keys() & {*PARTS}:
        missing["both"] = (
            f"there is no pass in which {COMPUTE_ONLY} and {COMM_ONLY} were both run, too")
    return {
        **{f"{name}_s": median_s(partners[name]) for name in PARTS if name not in missing},
        **values_over_passes(EXPOSED.name, overlaps.exposed_communication_s(own, compute)),
        **values_over_passes(EXPOSED_SHARE.name, overlaps.exposed_share(own, compute)),
        **values_over_passes(OVERLAP.name, overlap),
        **values_over_passes(TIMES_LONGEST.name,
                             overlaps.times_longest_part(own, compute, communicate)),
        **values_over_passes(SPEEDUP.name, overlaps.speedup(own, base)),
        NOT_COMPARED.name: tuple(missing.values())}


def _over_torch(item: CaseResult, alike: Sequence[CaseResult]) -> Values:
    """Return how much faster than torch's a case is that has no parts alone to compare with."""
    base = partner(BASE, item, alike)
    reason = why_unpaired(BASE, "problem", item, base)
    found = () if reason else pass_medians_s(base)
    return {**values_over_passes(SPEEDUP.name, overlaps.speedup(pass_medians_s(item), found)),
            NOT_COMPARED.name: (reason,) if reason else ()}


def _load_values(item: CaseResult, hardware: Mapping[str, Any]) -> Values:
    """Return the rates and times of a case that has a load of experts."""
    of, time_s = primitive_of(item.case), median_s(item) or 0.0
    steps = item.timing.steps if of.loads and item.timing else None
    phases = {phase.name: phase.median_s for phase in steps.phases} if steps else {}
    if set(phases) != set(PHASES):
        return {}
    done = [sum(parts) for parts in zip(phases["dispatch"], phases["experts"], strict=True)]
    rate = roofline.measured_link(item, hardware) or (
        item.timing.link_bytes_per_s if item.timing else None)
    on_wire = time_s - max(phases["experts"])
    return {BUSIEST.name: of.wire_bytes / on_wire if on_wire > 0 else None,
            IDEAL.name: of.wire_bytes / rate if rate else None,
            WAITING.name: max(done) - sum(done) / len(done),
            **{one.name: max(phases[name]) for one, name in
               zip(PARTS_OF_CALL, PHASES, strict=True)}}


def _values(
    item: CaseResult, alike: Sequence[CaseResult], hardware: Mapping[str, Any],
) -> Values:
    of, time_s = primitive_of(item.case), median_s(item) or 0.0
    flops = flop_rates(of, time_s)
    return {**flops, **communication_rates(of, time_s), **_limits(item, flops, hardware),
            **_load_values(item, hardware),
            **(_over_torch(item, alike) if of.loads else
               _comparisons(item, alike) if does_both(of) else {})}


class PrimitiveDeriver(kind_facts.Deriver):
    """Derives rates, and comparisons with the parts alone and with torch."""

    version = 8
    columns = METRICS

    def derive(self, items: Sequence[CaseResult], hardware: Mapping[str, Any]) -> Records:
        problems = grouped((problem_key(item.case), item) for item in items)
        return {item.case.case_id: _values(item, same, hardware) for same in problems.values()
                for item in same if item.statistics is not None}

    def facts(
        self, item: CaseResult, record: Values | None, read: kind_facts.ReadSamples,
    ) -> Iterator[kind_facts.Fact]:
        values = record or {}
        yield from roofline.over_measured("its FLOP rate", values.get(OF_MEASURED.name))
        yield kind_facts.SentBytes(carried_bytes(item.case) * item.case.world_size)
        if done := work(item, values):
            yield done

    def problems(
        self, item: CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterator[Violation]:
        """Yield HB128 and HB146 if bandwidth or FLOP rate is above the declared peak."""
        work = primitive_of(item.case)
        if communication_rates(work, time_s):
            yield from bandwidth_problem(
                item.case, WireRate(carried_bytes(item.case) / time_s), nodes, hardware)
        yield from _flops_problem(work, time_s, hardware)


def _flops_problem(
    work: Primitive, time_s: float, hardware: Mapping[str, Any]
) -> Iterator[Violation]:
    """HB146: no rank does more products in its time than the declared peak of its device."""
    rate = flop_rates(work, time_s).get(PER_RANK.name)
    peak = hardware.get("peak_flops", {}).get(work.dtype)
    if rate is None or peak is None or rate <= MOST_OF_PEAK * peak:
        return
    yield Violation(
        "HB146", f"{digits(to_tflop_per_s(rate), 4)} TFLOP/s of a rank are more than the "
        f"{digits(to_tflop_per_s(peak), 4)} that "
        f"hardware.peak_flops allows for {work.dtype}: it computes less than it is credited with, "
        "in another dtype (TF32 for fp32), or the declared peak is wrong", rejects=False)
