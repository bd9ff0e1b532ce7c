"""Rates of a primitive, and the comparisons of its time with its parts alone and with torch.

A case has three partners that solve the same problem on the same machine: ``compute_only`` (size
``sharded``), ``comm_only`` and ``torch``. Options of an implementation do not matter, those of the
primitive do: ``comm_only`` and ``torch`` have no others, so whatever options a partner has (but
``size``) a case must have too. Each rate is derived once, from one time; rates are never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.primitive.plan.demands import product_bytes
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.operations.collectives import Bandwidth, WireRate, collective_spec
from hpcbench.plan.case import Case
from hpcbench.plan.points import Option
from hpcbench.records import dataclass
from hpcbench.reduce.checks import MOST_OF_PEAK, Violation, bandwidth_problem
from hpcbench.reduce.kind_facts import (
    CallWork,
    CaseColumn,
    ColumnValues,
    Deriver,
    Fact,
    ReadSamples,
    SentBytes,
    settings,
)
from hpcbench.reduce.records import median_s, nearest, pass_medians_s, why_unpaired
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import (
    COMPUTE,
    ROOFLINE,
    Demand,
    Roofline,
    ceilings_of,
    over_measured,
    roofline,
    roofline_values,
)
from hpcbench.statistics.overlap import (
    OverPasses,
    exposed_communication_s,
    overlap_efficiency,
    significant,
    speedup,
    times_longest_part,
)
from hpcbench.trace.columns import PURE, TEXT
from hpcbench.units import digits, grouped, to_tflop_per_s


@dataclass(frozen=True, slots=True)
class FlopRates:
    """FLOP/s of one call: of the rank that has most to do, and of all ranks together.

    The first compares with the peak of one device, the second with that of the machine; where the
    work is uneven the second is less than the first times the ranks.
    """

    busiest_rank_flops_per_s: float
    all_ranks_flops_per_s: float


def flop_rates(work: Primitive, time_s: float) -> FlopRates | None:
    """Return flops / t and total_flops / t; None without flops and for a time of 0."""
    if not work.flops or not time_s > 0:
        return None
    return FlopRates(work.flops / time_s, work.total_flops / time_s)


def roofline_of(item: CaseResult, hardware: Mapping[str, Any]) -> Roofline | None:
    """Return the roofline of the rank with most to do; each collective of a call is a message."""
    if item.statistics is None:
        return None
    work = primitive_of(item.case)
    moved = product_bytes(work, item.case.world_size) if work.flops else 0
    demand = Demand(work.flops, moved, carried_bytes(item.case),
                    len(work.calls) if work.wire_bytes else 0)
    return roofline(demand, item.statistics.median_s, ceilings_of(item, work.dtype, hardware))


def carried_bytes(case: Case) -> float:
    """Return the bytes on a rank's links in a call; of several collectives each has as many."""
    work = primitive_of(case)
    times = [collective_spec(name).carried_on(case.library) for name in work.calls]
    return work.wire_bytes * sum(times) / max(len(times), 1)


def product_shares(
    item: CaseResult, flops: FlopRates | None, hardware: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the shares of the measured and of the declared product, by field of the record."""
    if flops is None:
        return {}
    ceilings = ceilings_of(item, primitive_of(item.case).dtype, hardware)
    return {f"of_{one.source}_product": flops.busiest_rank_flops_per_s / one.rate
            for one in ceilings if one.limit == COMPUTE}


def communication_rates(work: Primitive, time_s: float) -> Bandwidth | None:
    """Return size_bytes / t and wire_bytes / t of an implementation that only communicates.

    ``wire_bytes`` is each collective's size times its busbw factor, so that the second is the
    bus bandwidth of nccl-tests (doc/PERFORMANCE.md). None for everything that computes, too: a time
    that holds a product is no time of a link.
    """
    if work.flops or not work.size_bytes or not time_s > 0:
        return None
    return Bandwidth(work.size_bytes / time_s, work.wire_bytes / time_s)


def work(item: CaseResult, record: Any | None) -> CallWork | None:
    """Return the rows that all ranks multiply; None for a part alone, which is not divided so."""
    of = primitive_of(item.case)
    if not does_both(of) or item.statistics is None:
        return None
    options = " ".join(f"{name}={value}" for name, value in of.options)
    exposed_s = record.exposed_s if record else None
    return CallWork(
        task=(of.primitive, of.order, of.dtype, of.n, of.k, of.groups),
        title=f"{of.primitive} {of.order} {of.dtype} n={of.n} k={of.k}",
        way=f"{of.implementation} {options}".rstrip(), amount=of.m, unit="rows",
        communication=exposed_s and replace(exposed_s, **{
            name: getattr(exposed_s, name) / item.statistics.median_s
            for name in ("median", "least", "greatest")}))


COMPUTE_ONLY, COMM_ONLY, BASE = "compute_only", "comm_only", "torch"
PARTS = (COMPUTE_ONLY, COMM_ONLY)
SHARDED = ("size", "sharded")
"""The option of ``compute_only`` that makes it a part; no other implementation has it."""
Key = tuple[object, ...]
Options = frozenset[tuple[str, Option]]


@dataclass(frozen=True, slots=True)
class PrimitiveRecord:
    """The numbers of COLUMNS, of the median time; None where there is no such number.

    Cases with both parts have ``exposed_s``, ``efficiency``, ``times_longest``
    (`statistics.overlap`) and ``speedup`` over torch; ``missing`` is why one of them is None. Cases
    that only communicate have ``communication``.
    """

    flops: FlopRates | None = None
    communication: Bandwidth | None = None
    compute_s: float | None = None
    communicate_s: float | None = None
    exposed_s: OverPasses | None = None
    efficiency: OverPasses | None = None
    times_longest: OverPasses | None = None
    speedup: OverPasses | None = None
    missing: tuple[str, ...] = ()
    roofline: Roofline | None = None
    of_measured_product: float | None = None
    of_declared_product: float | None = None


@dataclass(frozen=True, slots=True)
class PartsAlone:
    """Medians of a problem's parts alone, None where a part was not measured.

    ``longest_s`` is what perfect overlap would take, ``sum_s`` one part after the other.
    """

    compute_s: float | None = None
    communicate_s: float | None = None
    longest_s: float | None = None
    sum_s: float | None = None


NOTHING = PrimitiveRecord()


def compare(items: Sequence[CaseResult]) -> Mapping[str, PrimitiveRecord]:
    problems = grouped((problem_key(item.case), item) for item in items
                       if isinstance(item.case.workload, Primitive))
    return {item.case.case_id: _comparison(item, same) for same in problems.values()
            for item in same if item.statistics is not None}


def problem_key(case: Case) -> Key:
    """Return the key that partners share, the primitive's own options apart.

    The name of the model (``shape``) is left out: equal extents are the same problem. So are the
    variables of the environment that only its implementation requested.
    """
    work = primitive_of(case)
    env = tuple(item for item in case.env if item[0] not in work.variables)
    return (work.primitive, work.order, work.dtype, work.m, work.n, work.k, case.backend,
            case.device, case.world_size, env, case.mode, case.batch, case.cuda_graph, case.arrival)


def parts_alone(items: Iterable[CaseResult]) -> PartsAlone:
    """Return the times of the parts among cases of one problem; the first of each counts."""
    times_s: dict[str, float | None] = {}
    for item in items:
        work = primitive_of(item.case)
        if work.implementation in PARTS and ("size", "unsharded") not in work.options:
            times_s.setdefault(work.implementation, median_s(item))
    compute_s, communicate_s = times_s.get(COMPUTE_ONLY), times_s.get(COMM_ONLY)
    if compute_s is None or communicate_s is None:
        return PartsAlone(compute_s, communicate_s)
    return PartsAlone(compute_s, communicate_s, max(compute_s, communicate_s),
                      compute_s + communicate_s)


def does_both(work: Primitive) -> bool:
    return bool(work.flops and work.size_bytes)


def parts_first(item: CaseResult) -> tuple[int, int]:
    """Return a sort key: the parts alone first, then as planned."""
    name = primitive_of(item.case).implementation
    return PARTS.index(name) if name in PARTS else len(PARTS), item.case.index


def common_options(items: Iterable[CaseResult]) -> Options:
    """Return the options that all of several cases have; none for one case."""
    option_sets = [frozenset(primitive_of(item.case).options) for item in items]
    return frozenset.intersection(*option_sets) if len(option_sets) > 1 else frozenset()


def partner(name: str, item: CaseResult, same: Iterable[CaseResult]) -> CaseResult | None:
    """Return another implementation's case of the same problem; ``same`` have one `problem_key`."""
    own = set(primitive_of(item.case).options)
    candidates = [other for other in same if primitive_of(other.case).implementation == name
             and {*primitive_of(other.case).options} - {SHARDED} <= own]
    return nearest(item, candidates)


def _comparison(item: CaseResult, same: Sequence[CaseResult]) -> PrimitiveRecord:
    work, stats = primitive_of(item.case), item.statistics
    if stats is None:
        return NOTHING
    flops = flop_rates(work, stats.median_s)
    if not does_both(work):
        return PrimitiveRecord(flops, communication_rates(work, stats.median_s))
    partners = {name: partner(name, item, same) for name in (COMPUTE_ONLY, COMM_ONLY, BASE)}
    missing = {name: reason for name, other in partners.items()
               if (reason := why_unpaired(name, "problem", item, other))}
    compute, communicate, base = (
        () if name in missing else pass_medians_s(other) for name, other in partners.items())
    own = pass_medians_s(item)
    efficiency = overlap_efficiency(own, compute, communicate)
    if efficiency is None and not {COMPUTE_ONLY, COMM_ONLY} & set(missing):
        missing["both"] = (
            f"there is no pass in which {COMPUTE_ONLY} and {COMM_ONLY} were both run, too")
    return PrimitiveRecord(
        flops=flops,
        compute_s=None if COMPUTE_ONLY in missing else median_s(partners[COMPUTE_ONLY]),
        communicate_s=None if COMM_ONLY in missing else median_s(partners[COMM_ONLY]),
        exposed_s=exposed_communication_s(own, compute),
        efficiency=efficiency,
        times_longest=times_longest_part(own, compute, communicate),
        speedup=speedup(own, base), missing=tuple(missing.values()))


_OF_WORK = (
    CaseColumn("primitive", TEXT, "name of the primitive", str),
    CaseColumn("implementation", TEXT, "name of the implementation", str),
    CaseColumn("order", TEXT, "what comes first: communication or product", str),
    CaseColumn("shape", TEXT, "model and layer of the extents; empty if they were given", str),
    CaseColumn("flops", "FLOP", "of one call, on the rank that has most to do", int),
    CaseColumn("total_flops", "FLOP", "of one call, on all ranks", int),
    CaseColumn("size_bytes", "bytes", "sum of the sizes of its collectives", int),
    CaseColumn("wire_bytes", "bytes", "sum of the sizes times their busbw factors", int),
)
_EXTENTS = tuple(CaseColumn(f"problem_{name}", PURE, "extent of the global problem", int)
                 for name in ("m", "n", "k"))
COLUMNS = (
    *_OF_WORK, *_EXTENTS,
    CaseColumn("options", TEXT, "options: NAME=VALUE, separated by spaces", str),
    CaseColumn("busiest_rank_flops_per_s", "FLOP/s", "flops / median_s"),
    CaseColumn("all_ranks_flops_per_s", "FLOP/s", "total_flops / median_s"),
    CaseColumn("algbw_bytes_per_s", "bytes/s", "size_bytes / median_s; comm_only alone"),
    CaseColumn("busbw_bytes_per_s", "bytes/s", "wire_bytes / median_s; comm_only alone"),
    CaseColumn("compute_only_s", "s", "median of the products alone"),
    CaseColumn("comm_only_s", "s", "median of the communication alone"),
    CaseColumn("exposed_s", "s", "communication that no product hides; NaN if it may be chance"),
    CaseColumn("overlap_efficiency", PURE, "share of the shorter part that passed under the longer "
               "one; NaN if it may be chance"),
    CaseColumn("times_longest_part", PURE, "time over that of the longer part alone; NaN if it may "
               "be chance"),
    CaseColumn("speedup_over_torch", PURE, "time of torch over this time; NaN if it may be chance"),
    CaseColumn("of_measured_product", PURE, "busiest_rank_flops_per_s over the best gemm here"),
    CaseColumn("of_declared_product", PURE, "busiest_rank_flops_per_s over the declared peak"),
    *ROOFLINE,
)


def column_values(item: CaseResult, record: PrimitiveRecord | None) -> dict[str, Any]:
    work, known = primitive_of(item.case), record or NOTHING
    values: dict[str, Any] = {column.name: getattr(work, column.name) for column in _OF_WORK}
    values |= {column.name: getattr(work, column.name.removeprefix("problem_"))
               for column in _EXTENTS}
    for rates, names in ((known.flops, ("busiest_rank_flops_per_s", "all_ranks_flops_per_s")),
                         (known.communication, ("algbw_bytes_per_s", "busbw_bytes_per_s"))):
        values |= {name: getattr(rates, name, None) for name in names}
    return values | {
        **roofline_values(known.roofline),
        "of_measured_product": known.of_measured_product,
        "of_declared_product": known.of_declared_product,
        "options": settings(work.options),
        "compute_only_s": known.compute_s, "comm_only_s": known.communicate_s,
        "exposed_s": significant(known.exposed_s),
        "overlap_efficiency": significant(known.efficiency),
        "times_longest_part": significant(known.times_longest),
        "speedup_over_torch": significant(known.speedup)}


class PrimitiveDeriver(Deriver):
    """Derives rates, and comparisons with the parts alone and with torch."""

    record = PrimitiveRecord
    version = 5
    columns = COLUMNS

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, PrimitiveRecord]:
        found = compare(items)
        return {case_id: replace(
            found[case_id], roofline=roofline_of(item, hardware),
            **product_shares(item, found[case_id].flops, hardware))
            for item in items if (case_id := item.case.case_id) in found}

    def facts(
        self, item: CaseResult, record: PrimitiveRecord | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        yield ColumnValues(lambda: column_values(item, record))
        if record:
            yield from over_measured("its FLOP rate", record.of_measured_product)
        yield SentBytes(carried_bytes(item.case) * item.case.world_size)
        if found := work(item, record):
            yield found

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
    rates, peak = flop_rates(work, time_s), hardware.get("peak_flops", {}).get(work.dtype)
    if rates is None or peak is None or (
            rates.busiest_rank_flops_per_s <= MOST_OF_PEAK * peak):
        return
    rate = to_tflop_per_s(rates.busiest_rank_flops_per_s)
    yield Violation(
        "HB146", f"{digits(rate, 4)} TFLOP/s of a rank are more than the "
        f"{digits(to_tflop_per_s(peak), 4)} that "
        f"hardware.peak_flops allows for {work.dtype}: it computes less than it is credited with, "
        "in another dtype (TF32 for fp32), or the declared peak is wrong", rejects=False)
