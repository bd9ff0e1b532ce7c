"""The presenter of primitives: listing, tables, charts and fields of the summaries.

In a chart the longer part alone is the bound of perfect overlap, as in a roofline; both together
are what one after the other takes. Cases belong together that solve the same problem with the same
backend on the same device and as many ranks, in the same timing mode and with the same fold: then
their times compare. A section holds those of one order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from hpcbench.kinds.primitive.derive import (
    COMM_ONLY,
    COMPUTE_ONLY,
    NOTHING,
    SHARDED,
    Options,
    PrimitiveRecord,
    carried_bytes,
    column_values,
    common_options,
    parts_alone,
    parts_first,
)
from hpcbench.kinds.primitive.plan.implementations import PrimitiveRegistry, load_registry
from hpcbench.kinds.primitive.plan.spec import LAYERS, ImplementationSpec, PrimitiveSpec
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_FIELDS, roofline_values
from hpcbench.units import grouped, in_summary_units, plural
from hpcbench.views import columns
from hpcbench.views.chart import (
    PLAIN,
    Axis,
    Bar,
    BarChart,
    BarSection,
    Chart,
    HeatMapCase,
    Look,
    Shown,
    file_name,
    rooflines_shown,
)
from hpcbench.views.columns import ends_of, middle_cell, names_of, over_passes_cell, pass_range
from hpcbench.views.labels import distinct_names, short_labels
from hpcbench.views.presenter import Presenter, Words
from hpcbench.views.table import (
    MISSING,
    Cell,
    Column,
    Group,
    Line,
    Row,
    Show,
    Table,
    backend_text,
    batch_text,
    device_memory_text,
    device_type,
    distinct,
    env_text,
    flag_cell,
    like_median,
    listed_more,
    mode_text,
    option_lines,
    options_text,
    span,
    span_text,
    timed_text,
)


def primitive_lines(registry: PrimitiveRegistry) -> Iterator[Line | Table]:
    """Yield the primitives, their implementations, the matrix of both, models and plug-ins."""
    yield Line("primitives", "title")
    for name, spec in registry.primitives.items():
        yield Line(f"  {name:<20}{spec.meaning}")
        yield listed_more("orders", ", ".join(spec.orders))
        yield from option_lines(spec.options)
        if spec.layers:
            yield listed_more("shape from", ", ".join(spec.layers))
    yield Line("")
    yield Line("implementations", "title")
    for name in registry.names():
        yield from _implementation(name, registry)
    yield Line("")
    yield Line("which implementation has which primitive, and in which orders if not in all",
               "title")
    yield from _matrix(registry)
    yield Line("")
    yield Line("layers of models that give shapes", "title")
    yield Line(f"  {', '.join(LAYERS)}")
    yield from _plugins(registry)


def cells(registry: PrimitiveRegistry) -> dict[str, dict[str, str]]:
    """Return implementation, no alias -> primitive -> ``yes``, the orders that it has, or ``-``."""
    names = [name for name in registry.names() if name not in registry.aliases]
    return {name: {primitive: _cell(registry.implementation(name, primitive), primitive, registry)
                   for primitive in registry.primitives} for name in names}


def reasons(registry: PrimitiveRegistry) -> dict[tuple[str, str], str]:
    """Return (implementation, primitive) -> why there is none, for every empty cell."""
    return {(name, primitive): registry.absent(name, primitive) or ""
            for name, row in cells(registry).items()
            for primitive, cell in row.items() if cell == MISSING}


def _cell(spec: ImplementationSpec | None, primitive: str, registry: PrimitiveRegistry) -> str:
    if spec is None:
        return MISSING
    if spec.orders is None:
        return "yes"
    every = registry.primitives[primitive].orders
    own = [order for order in every if (primitive, order) in spec.orders]
    return "yes" if len(own) == len(every) else ", ".join(own)


def _implementation(name: str, registry: PrimitiveRegistry) -> Iterator[Line]:
    if name in registry.aliases:
        yield Line(f"  {name:<20}another name of {registry.aliases[name]}")
        return
    specs = registry.implementations.get(name, ())
    for spec in specs:
        yield Line(f"  {name:<20}{spec.meaning}")
        yield from option_lines(spec.options)
        if set(spec.devices) != {"cpu", "cuda"}:
            yield listed_more("devices", ", ".join(spec.devices))
    if not specs:
        yield Line(f"  {name:<20}none here: a plug-in can bring it", "quiet")
        yield from option_lines(registry.elsewhere[name])


def _matrix(registry: PrimitiveRegistry) -> Iterator[Line | Table]:
    table = cells(registry)
    columns = tuple(Column(name, name) for name in ("", *registry.primitives))
    rows = tuple(Row((name, *row.values())) for name, row in table.items())
    yield Table("", columns, (Group("", rows),))
    missing = grouped(((name, reason), primitive)
                      for (name, primitive), reason in reasons(registry).items())
    for (name, reason), primitives in missing.items():
        everywhere = len(primitives) == len(registry.primitives)
        where = name if everywhere else f"{name} of {', '.join(primitives)}"
        yield Line(f"  no {where}: {reason}", "quiet")


def _plugins(registry: PrimitiveRegistry) -> Iterator[Line]:
    if not registry.plugins:
        return
    yield Line("")
    yield Line("plug-ins", "title")
    for plugin in registry.plugins:
        state = (f"cannot be used: {plugin.problem}" if plugin.problem else
                 "; ".join(map(_offered, plugin.values)))
        yield Line(f"  {plugin.name:<20}{plugin.origin}: {state}",
                   "warning" if plugin.problem else "plain")


def _offered(spec: PrimitiveSpec | ImplementationSpec) -> str:
    return (f"primitive {spec.name}" if isinstance(spec, PrimitiveSpec) else
            f"{spec.name} of {', '.join(spec.runners)}")


DEFINITIONS = (
    "per rank = TFLOP/s (1e12) of the rank that has most to do, all ranks = of all together, from "
    "time p50;",
    "  of gemm = per rank over the best product of its type in this run (kind hardware); of peak: "
    "over hardware.peak_flops;",
    "  busbw of comm_only = its collectives' sizes x nccl-tests' factors / time p50",
    "exposed = t - t(compute_only); overlap = (t(compute_only) + t(comm_only) - t) / the shorter "
    "of these two,",
    "  100 % where all of it is hidden, negative where it is slower than one after the other;",
    "  x longest = t / the longer of the two, 1 is perfect; x torch = t(torch) / t, above 1 is "
    "faster than torch",
    "  (all of the same problem in the same pass; shown is the median over passes, and from the "
    "least to the greatest;",
    f"  {columns.CANNOT_TELL}: the 95 % interval over passes holds opposite answers, see "
    "method.md)",
)
_WHO = (Column("primitive", "primitive"), Column("implementation", "implementation"))
_WHERE = (Column("backend", "backend"), Column("device", "device"),
          Column("ranks", "ranks", Show.COUNT), Column("type", "type"),
          *(Column(name, name, Show.COUNT) for name in ("m", "n", "k")))
_CASE_COLUMNS = (
    Column("index", "#", Show.COUNT), *_WHO, Column("order", "order"),
    Column("options", "options", optional=True), *_WHERE, Column("model", "model", optional=True),
    Column("flops", "flops", Show.GFLOP, "1e9", "of one call, on the rank with most", "less",
           optional=True, detail=True),
    Column("wire", "wire", Show.COUNT, "B", "of one call, on the rank with most", "less",
           optional=True, detail=True), *columns.COST)
_GROUP_COLUMNS = (Column("cases", "cases", Show.COUNT), *_WHO,
                  Column("orders", "orders", optional=True), *_WHERE, *columns.COST)
_RESULT_COLUMNS = (
    Column("implementation", "implementation"),
    Column("options", "options", optional=True), columns.TIME, columns.INTERVAL,
    Column("rank_flops", "per rank", Show.TFLOP_PER_S, "TFLOP/s", "the rank with most to do",
           "more", first_to_go=True),
    Column("all_flops", "all ranks", Show.TFLOP_PER_S, "TFLOP/s", "all ranks together", "more",
           detail=True),
    Column("of_measured", "of gemm", Show.WHOLE_PERCENT, "%",
           "per rank, of the best product of its type in this run", "more", optional=True),
    Column("of_declared", "of peak", Show.WHOLE_PERCENT, "%", "per rank, of hardware.peak_flops",
           "more", optional=True),
    Column("busbw", "busbw", Show.GB_PER_S, "GB/s", "bus bandwidth of comm_only", "more",
           detail=True),
    Column("exposed", "exposed", Show.US, "us", "t - t(compute_only)", "less",
           first_to_go=True),
    Column("overlap", "overlap", Show.WHOLE_PERCENT, "%", "of the shorter part", "more",
           first_to_go=True),
    Column("times_longest", "x longest", Show.RATIO, "", "t / the longer part", "less",
           detail=True),
    Column("speedup", "x torch", Show.RATIO, "", "t(torch) / t", "more"),
    columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)
Records = Mapping[str, PrimitiveRecord]


def problem_text(work: Primitive) -> str:
    """Return ``m=64 n=64 k=32``, and what model it comes from, if it comes from one."""
    return f"m={work.m} n={work.n} k={work.k} {work.shape}".rstrip()


def primitive_plan_table(
    title: str, cases: Sequence[Case], *, listed: bool, hardware: Mapping[str, Any],
) -> Table:
    if listed:
        return Table(title, _CASE_COLUMNS, (Group("", tuple(map(_case_row, cases))),))
    groups = grouped((
        (case.workload.name, primitive_of(case).implementation, case.backend, case.env,
         case.device, case.world_size, batch_text(case), case.needs), case) for case in cases)
    return Table(title, _GROUP_COLUMNS, (Group("", tuple(map(_group_row, groups.values()))),))


def _case_row(case: Case) -> Row:
    work = primitive_of(case)
    return Row((
        case.index, work.primitive, work.implementation, work.order, options_text(work.options),
        *_where_cells([case]), work.shape, work.flops or None, round(carried_bytes(case)) or None,
        *columns.cost_cells([case])), case_id=case.case_id)


def _group_row(cases: Sequence[Case]) -> Row:
    works = [primitive_of(case) for case in cases]
    return Row((
        len(cases), works[0].primitive, works[0].implementation,
        distinct(work.order for work in works), *_where_cells(cases), *columns.cost_cells(cases)))


def _where_cells(cases: Sequence[Case]) -> tuple[Cell, ...]:
    first, works = cases[0], [primitive_of(case) for case in cases]
    return (backend_text(first), first.device, first.world_size,
            distinct(work.dtype for work in works),
            *(span(getattr(work, name) for work in works) for name in ("m", "n", "k")))


def result_tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield one block's table: a group of rows per problem, order, backend, device, ranks, mode."""
    groups = grouped(((_group_title(item), timed_text(item)), item) for item in items
                     if item.status in columns.TABLED)
    for group in groups.values():
        group.sort(key=parts_first)
    if groups:
        yield Table(title, _RESULT_COLUMNS, tuple(
            _group(*names, group, derived) for names, group in groups.items()),
            notes=tuple(_notes([(item, _record(item, derived)) for group in groups.values()
                                for item in group])))


def _group(title: str, timed: str, group: Sequence[CaseResult], derived: Records) -> Group:
    common = common_options(group)
    rows = (_row(item, common, _record(item, derived)) for item in group)
    return Group(f"{title}  {options_text(sorted(common))}".rstrip(), tuple(rows), timed)


def _record(item: CaseResult, derived: Records) -> PrimitiveRecord:
    return derived.get(item.case.case_id, NOTHING)


def _group_title(item: CaseResult) -> str:
    case, work = item.case, primitive_of(item.case)
    parts = (f"{work.primitive} {work.order}", f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), work.dtype, problem_text(work),
             device_memory_text(item), env_text(case))
    return "  ".join(part for part in parts if part)


def _row(item: CaseResult, common: Options, record: PrimitiveRecord) -> Row:
    work, stats, known = primitive_of(item.case), item.statistics, column_values(item, record)
    median = columns.median_cell(stats)
    return Row((
        work.implementation,
        options_text([option for option in work.options if option not in common]),
        median, columns.interval_cell(stats),
        *(like_median(known[name], median) for name in (
            "busiest_rank_flops_per_s", "all_ranks_flops_per_s")),
        known["of_measured_product"], known["of_declared_product"],
        like_median(known["busbw_bytes_per_s"], median),
        middle_cell(record.exposed_s), over_passes_cell(record.efficiency),
        middle_cell(record.times_longest), over_passes_cell(record.speedup),
        columns.wrong_cell(item), columns.n_cell(stats), item.status,
        columns.launches_cell(item), flag_cell(item)),
        item.status, item.case.case_id)


def rooflines(items: Sequence[CaseResult], derived: Records) -> list[Shown]:
    found = [(item, _record(item, derived).roofline) for item in items]
    shown = [(item, roofline) for item, roofline in found if roofline is not None]
    titles = distinct_names([(_short_title(item), _details(item)) for item, _ in shown])
    return [Shown(title, item.case.case_id, roofline)
            for title, (item, roofline) in zip(titles, shown, strict=True)]


def _short_title(item: CaseResult) -> str:
    work = primitive_of(item.case)
    return (f"{work.primitive} {work.implementation} {work.order} {work.m}x{work.n}x{work.k} "
            f"{work.dtype} {plural(item.case.world_size, 'rank')}")


def _details(item: CaseResult) -> tuple[str, ...]:
    """Return details that may distinguish a case from others with the same title."""
    options = (options_text([option]) for option in primitive_of(item.case).options)
    return (*options, backend_text(item.case), device_type(item), mode_text(item))


def _notes(listed: Sequence[tuple[CaseResult, PrimitiveRecord]]) -> Iterator[Line]:
    records = [record for _, record in listed]
    known = [record.efficiency for record in records if record.efficiency is not None]
    if known:
        yield Line("comparisons with the parts and torch: medians over passes, not quotients of "
                   "this row", about=("exposed", "overlap", "times_longest", "speedup"))
    if any(one.tells and one.median < 0 for one in known):
        yield Line("overlap below 0: slower than communication and product one after the other",
                   about=("overlap",))
    names = short_labels(item.case.label for item, _ in listed)
    yield from columns.unclear_notes(((names[item.case.label], record.exposed_s, {
        "t": item.statistics.median_s if item.statistics else None,
        f"t({COMPUTE_ONLY})": record.compute_s, f"t({COMM_ONLY})": record.communicate_s,
    }) for item, record in listed), "exposed")
    counts = Counter(reason for record in records for reason in record.missing)
    for reason, count in counts.items():
        yield Line(f"{plural(count, 'row')} not compared: {reason}", "quiet")


MOST_ROWS = 30
"""More rows than this are split over several charts, by section."""
WHOLE = Look("", PLAIN, 0.75)
COMPUTE_LINE = Look(COMPUTE_ONLY, "#6a4c93", width=1.6)
COMMUNICATE_LINE = Look(COMM_ONLY, "#8a6d1d", width=1.6)
"""In colours that no implementation has; the bars of the parts are in those of their lines."""
PARTS = {look.label: Look("", look.colour, 0.75) for look in (COMPUTE_LINE, COMMUNICATE_LINE)}
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
    "greatest pass. Unclear: the 95 % interval over passes holds opposite answers.")
Key = tuple[str, ...]


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
        segments=((time_s, PARTS.get(work.implementation, WHOLE)),), whisker=pass_range(item),
        case_id=item.case.case_id)


def primitive_heat_map_case(case: Case) -> HeatMapCase:
    """Return the call and its details; the most ranks, then the most bytes sent, go first."""
    work = primitive_of(case)
    return HeatMapCase(
        f"{work.primitive} by {work.implementation}",
        (work.dtype, work.order, options_text(work.options), problem_text(work)),
        order=(case.world_size, work.size_bytes), rule="the most ranks, then the most bytes sent")


COMPARED_FIELDS = ("exposed_s", "overlap_efficiency", "times_longest_part", "speedup_over_torch")
"""Each is a median over passes, with three more fields (`names_of`)."""
RANGE_FIELDS = tuple(field for name in COMPARED_FIELDS for field in names_of(name))
PROBLEM_FIELDS = (
    "primitive", "implementation", "order", "options", "problem_m", "problem_n", "problem_k",
    "shape", "flops", "total_flops", "wire_bytes",
)
RATE_FIELDS = ("busiest_rank_tflop_per_s", "all_ranks_tflop_per_s", "of_measured_product",
               "of_declared_product")
PRIMITIVE_FIELDS = (*PROBLEM_FIELDS, *RATE_FIELDS, "compute_only_s", "comm_only_s", *RANGE_FIELDS,
                    "not_compared", *ROOFLINE_FIELDS)
LISTED_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "mode", "fold", "env",
    *PROBLEM_FIELDS[1:], "size_bytes", "n", "median_s", "p95_s", "ci_low_s", "ci_high_s",
    "ci_reliable", *RATE_FIELDS, "algbw_gb_per_s", "busbw_gb_per_s", *RANGE_FIELDS,
    *ROOFLINE_FIELDS,
)
"""Fields of each row of ``results.primitives``."""
Items = Sequence[CaseResult]


class PrimitivePresenter(Presenter[Primitive, PrimitiveRecord]):
    """Presents primitives."""

    fields = PRIMITIVE_FIELDS
    plan_table = staticmethod(primitive_plan_table)
    tables = staticmethod(result_tables)
    heat_map_case = staticmethod(primitive_heat_map_case)

    def listing(self) -> Iterator[Line | Table]:
        return primitive_lines(load_registry())

    def words(self, works: Sequence[Primitive]) -> Words:
        """Return the implementations and orders, and which problems they were to solve."""
        extents = (f"{name}={span_text(getattr(work, name) for work in works)}"
                   for name in ("m", "n", "k"))
        return Words([distinct(work.implementation for work in works),
                      distinct(work.order for work in works), *extents],
                     [work.dtype for work in works])

    def overviews(self, items: Items, derived: Records) -> Iterator[Table | Chart | Line]:
        yield from map(Line, DEFINITIONS)
        problems = grouped((_key(item), item) for item in items if item.statistics is not None)
        for key, same in problems.items():
            yield from _charts(key, same, derived)
        yield from rooflines_shown("primitives", rooflines(items, derived),
                                   of=any(item.status == "ok" for item in items))

    def row(self, item: CaseResult, record: PrimitiveRecord | None) -> dict[str, Any]:
        known = record or NOTHING
        values = in_summary_units(column_values(item, record)) | {
            "options": [options_text([option]) for option in primitive_of(item.case).options],
            "not_compared": list(known.missing)}
        compared = (known.exposed_s, known.efficiency, known.times_longest, known.speedup)
        for name, passes in zip(COMPARED_FIELDS, compared, strict=True):
            values |= ends_of(name, passes)
        return values | roofline_values(known.roofline)

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        return {"primitives": {
            name: [{field: row[field] for field in LISTED_FIELDS} for row in rows
                   if row["primitive"] == name and row["status"] == "ok"]
            for name in dict.fromkeys(row["primitive"] for row in rows)}}
