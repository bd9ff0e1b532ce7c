"""Which cases of a run a primitive's times are compared with: its parts alone, and torch.

A case of one implementation has three partners that solve the same problem on the same machine:
``compute_only`` (size ``sharded``), ``comm_only`` and ``torch``. Options of an implementation do
not matter, those of the primitive do: ``comm_only`` and ``torch`` have no others, so whatever
options a partner has (but ``size``) a case must have too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcbench.kinds.primitive.derive.rates import FlopRates, communication_rates, flop_rates
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.operations.bandwidth import Bandwidth
from hpcbench.plan.case import Case
from hpcbench.plan.options import Option
from hpcbench.reduce.partners import median_s, nearest, pass_medians_s, why_unpaired
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import Roofline
from hpcbench.statistics.overlap import (
    OverPasses,
    exposed_communication_s,
    overlap_efficiency,
    speedup,
    times_longest_part,
)
from hpcbench.units import grouped

COMPUTE, COMMUNICATE, BASE = "compute_only", "comm_only", "torch"
PARTS = (COMPUTE, COMMUNICATE)
SHARDED = ("size", "sharded")
"""The option of ``compute_only`` that makes it a part; no other implementation has it."""
Key = tuple[object, ...]
Options = frozenset[tuple[str, Option]]


@dataclass(frozen=True, slots=True)
class PrimitiveRecord:
    """What is derived of one case of a primitive; None where there is no such number.

    Attributes:
        flops: rates of its products, from its median.
        communication: rates of its communication, where it does nothing else.
        compute_s, communicate_s: medians of its parts alone.
        exposed_s, efficiency, times_longest: `statistics.overlap`, of what does both.
        speedup: over torch, of what does both.
        missing: why one of the last four is None; empty if none is, or the case is no such case.
        roofline: what binds it.
        of_measured_product, of_declared_product: FLOP/s of the rank that has most to do over the
            best product of its type in this run, and over ``hardware.peak_flops``.
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
    """Return what is derived of each primitive's case with statistics, by its id."""
    problems = grouped((problem_key(item.case), item) for item in items
                       if isinstance(item.case.workload, Primitive))
    return {item.case.case_id: _comparison(item, same) for same in problems.values()
            for item in same if item.statistics is not None}


def problem_key(case: Case) -> Key:
    """Return what partners have in common, the primitive's own options apart.

    The name of the model (``shape``) is left out: equal extents are the same problem. So are the
    variables of the environment that only its implementation asked for.
    """
    work = primitive_of(case)
    env = tuple(item for item in case.env if item[0] not in work.variables)
    return (work.primitive, work.order, work.dtype, work.m, work.n, work.k, case.backend,
            case.device, case.world_size, env, case.mode, case.batch, case.cuda_graph)


def parts_alone(items: Iterable[CaseResult]) -> PartsAlone:
    """Return the times of the parts among cases of one problem; the first of each counts."""
    times_s: dict[str, float | None] = {}
    for item in items:
        work = primitive_of(item.case)
        if work.implementation in PARTS and ("size", "unsharded") not in work.options:
            times_s.setdefault(work.implementation, median_s(item))
    compute_s, communicate_s = times_s.get(COMPUTE), times_s.get(COMMUNICATE)
    if compute_s is None or communicate_s is None:
        return PartsAlone(compute_s, communicate_s)
    return PartsAlone(compute_s, communicate_s, max(compute_s, communicate_s),
                      compute_s + communicate_s)


def does_both(work: Primitive) -> bool:
    """Return whether it computes and communicates."""
    return bool(work.flops and work.size_bytes)


def parts_first(item: CaseResult) -> tuple[int, int]:
    """Return a sort key: the parts alone first, then as planned."""
    name = primitive_of(item.case).implementation
    return PARTS.index(name) if name in PARTS else len(PARTS), item.case.index


def common_options(items: Iterable[CaseResult]) -> Options:
    """Return the options that all of several cases have, there must be one; of one case none."""
    option_sets = [frozenset(primitive_of(item.case).options) for item in items]
    return frozenset.intersection(*option_sets) if len(option_sets) > 1 else frozenset()


def partner(name: str, item: CaseResult, same: Iterable[CaseResult]) -> CaseResult | None:
    """Return the case of another implementation that solves the same problem as ``item``.

    ``same`` are cases of one `problem_key`.
    """
    own = set(primitive_of(item.case).options)
    candidates = [other for other in same if primitive_of(other.case).implementation == name
             and _own_options(primitive_of(other.case)) <= own]
    return nearest(item, candidates)


def _own_options(work: Primitive) -> set[tuple[str, object]]:
    """Return the primitive's options; size ``unsharded`` stays, so that it is no partner."""
    return {option for option in work.options if option != SHARDED}


def _comparison(item: CaseResult, same: Sequence[CaseResult]) -> PrimitiveRecord:
    work, stats = primitive_of(item.case), item.statistics
    if stats is None:
        return NOTHING
    flops = flop_rates(work, stats.median_s)
    if not does_both(work):
        return PrimitiveRecord(flops, communication_rates(work, stats.median_s))
    partners = {name: partner(name, item, same) for name in (COMPUTE, COMMUNICATE, BASE)}
    missing = {name: reason for name, other in partners.items()
               if (reason := why_unpaired(name, "problem", item, other))}
    compute, communicate, base = (
        () if name in missing else pass_medians_s(other) for name, other in partners.items())
    own = pass_medians_s(item)
    efficiency = overlap_efficiency(own, compute, communicate)
    if efficiency is None and not {COMPUTE, COMMUNICATE} & set(missing):
        missing["both"] = (
            f"there is no pass in which {COMPUTE} and {COMMUNICATE} were both run, too")
    return PrimitiveRecord(
        flops=flops,
        compute_s=None if COMPUTE in missing else median_s(partners[COMPUTE]),
        communicate_s=None if COMMUNICATE in missing else median_s(partners[COMMUNICATE]),
        exposed_s=exposed_communication_s(own, compute),
        efficiency=efficiency,
        times_longest=times_longest_part(own, compute, communicate),
        speedup=speedup(own, base), missing=tuple(missing.values()))
