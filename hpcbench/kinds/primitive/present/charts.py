"""One problem of a primitive: the time of every implementation, and of its parts alone.

The longer part alone is the bound of perfect overlap, as in a roofline; both together are what
one after the other takes. Cases belong together that solve the same problem with the same backend
on the same device and as many ranks, in the same timing mode and with the same fold: then their
times compare. A section holds those of one order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from hpcbench.kinds.primitive.derive.partners import (
    COMMUNICATE,
    COMPUTE,
    NOTHING,
    SHARDED,
    Options,
    PrimitiveRecord,
    common_options,
    does_both,
    parts_alone,
    parts_first,
)
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.kinds.primitive.present.tables import problem_text
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views.chart import (
    COLOURS,
    Axis,
    Bar,
    BarChart,
    BarSection,
    HeatMapCase,
    Look,
    file_name,
)
from hpcbench.views.columns import middle_cell, over_passes_cell, pass_range
from hpcbench.views.table import Column, Show
from hpcbench.views.words import device_type, distinct, env_text, mode_text, options_text

MOST_ROWS = 30
"""More rows than this are split over several charts, by section."""
WHOLE, PART = Look("", COLOURS[0], 0.75), Look("", "#999999", 0.75)
COMPUTE_LINE = Look(COMPUTE, COLOURS[1], width=1.6)
COMMUNICATE_LINE = Look(COMMUNICATE, COLOURS[2], width=1.6)
BOUND = Look("longer of the two: perfect overlap", "#000000", 0.22, width=6)
TOGETHER = Look("sum: one after the other", "#000000", dotted=True)
LINES = (("longest_s", BOUND), ("sum_s", TOGETHER), ("compute_s", COMPUTE_LINE),
         ("communicate_s", COMMUNICATE_LINE))
"""Fields of `PartsAlone` as they are drawn: the wide line below the others."""
LEGEND = (COMPUTE_LINE, COMMUNICATE_LINE, BOUND, TOGETHER)
COLUMNS = (
    Column("time_p50", "time", Show.US, "us", better="less"),
    Column("overlap_efficiency", "overlap %", Show.WHOLE_PERCENT, better="more"),
    Column("times_longest", "x longest", Show.RATIO, better="less"),
    Column("speedup", "x torch", Show.RATIO, better="more"))
CAPTION = (
    "Bar: median over the samples of all passes; whisker: from the least to the greatest median of "
    "a pass. Lines: the product alone (compute_only), the communication alone (comm_only), the "
    "longer of the two, which perfect overlap would take, and their sum. Overlap: (compute_only + "
    "comm_only - t) / the shorter of the two: 100 % where all of it is hidden, negative where t is "
    "longer than one after the other. x longest: t / the longer of the two. x torch: torch / t. "
    "These are the median over passes of what each pass gives, overlap also from the least to the "
    "greatest pass. Cannot tell: the 95 % interval over passes holds opposite answers.")
Key = tuple[str, ...]
Records = Mapping[str, PrimitiveRecord]


def charts(items: Sequence[CaseResult], derived: Records) -> Iterator[BarChart]:
    """Yield the charts of the cases that have statistics: one a problem."""
    problems = grouped((_key(item), item) for item in items if item.statistics is not None)
    for key, same in problems.items():
        yield from _charts(key, same, derived)


def _key(item: CaseResult) -> Key:
    case, work = item.case, primitive_of(item.case)
    return (work.primitive, f"m={work.m}", f"n={work.n}", f"k={work.k}", work.dtype, case.backend,
            device_type(item), plural(case.world_size, "rank"), mode_text(item), env_text(case))


def _charts(key: Key, items: Sequence[CaseResult], records: Records) -> Iterator[BarChart]:
    sections = _sections(items)
    groups = ([sections] if len(items) <= MOST_ROWS else
              [{title: same} for title, same in sections.items()])
    primitive, m, n, k, dtype, backend, device, ranks, mode, env = key
    models = distinct(primitive_of(item.case).shape or None for item in items)
    subtitle = (backend, device, ranks, mode, dtype, models, env)
    for group in groups:
        stem = (*key, next(iter(group)) if len(groups) > 1 else "")
        drawn = tuple(_section(title, same, records) for title, same in group.items())
        looks = {look for section in drawn for _, look in section.lines}
        yield BarChart(
            title=f"{primitive}, {m} {n} {k}: time by implementation",
            subtitle=", ".join(word for word in subtitle if word),
            file_stem=file_name("-".join(word for word in stem if word)), notes=(CAPTION,),
            case_ids=tuple(item.case.case_id for same in group.values() for item in same),
            x=Axis("time of one call", Show.US, "us"), columns=COLUMNS, sections=drawn,
            legend=tuple(look for look in LEGEND if look in looks), whisker="medians of passes")


def _sections(items: Sequence[CaseResult]) -> dict[str, list[CaseResult]]:
    """Return the cases of each order and each choice of the primitive's own options, by title."""
    names = _own_names([primitive_of(item.case) for item in items])
    sections: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        work = primitive_of(item.case)
        own = options_text([option for option in work.options if option[0] in names])
        sections[" ".join(word for word in (work.order, own) if word)].append(item)
    return sections


def _own_names(works: Sequence[Primitive]) -> frozenset[str]:
    """Return the primitive's own options: those that several implementations all have."""
    if len({work.implementation for work in works}) == 1:
        return frozenset()
    return reduce(frozenset.intersection,
                  (frozenset(name for name, _ in work.options) for work in works))


def _section(title: str, items: Sequence[CaseResult], records: Records) -> BarSection:
    ordered, common = sorted(items, key=parts_first), common_options(items)
    alone = parts_alone(ordered)
    times = [(getattr(alone, name), look) for name, look in LINES]
    return BarSection(
        title, tuple(_bar(item, common, records.get(item.case.case_id, NOTHING))
                     for item in ordered),
        tuple((time_s, look) for time_s, look in times if time_s is not None))


def _bar(item: CaseResult, common: Options, record: PrimitiveRecord) -> Bar:
    work = primitive_of(item.case)
    options = options_text([option for option in work.options
                            if option not in common and option != SHARDED])
    time_s = item.statistics.median_s if item.statistics else 0.0
    return Bar(
        f"{work.implementation} {options}".rstrip(),
        (time_s, over_passes_cell(record.efficiency),
         middle_cell(record.times_longest), middle_cell(record.speedup)),
        segments=((time_s, WHOLE if does_both(work) else PART),), whisker=pass_range(item),
        case_id=item.case.case_id)


def heat_map_case(case: Case) -> HeatMapCase:
    """Return what is called, and how; what sends most on the most ranks goes first."""
    work = primitive_of(case)
    return HeatMapCase(
        f"{work.primitive} by {work.implementation}",
        (work.dtype, work.order, options_text(work.options), problem_text(work)),
        order=(case.world_size, work.size_bytes), rule="the most ranks, then the most bytes sent")
