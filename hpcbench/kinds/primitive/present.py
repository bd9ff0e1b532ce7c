"""The presenter of primitives: listing, tables, charts and fields of the summaries.

In a chart the longer part alone is the bound of perfect overlap, as in a roofline; both together
are what one after the other takes. Cases belong together that solve the same problem with the same
backend on the same device and as many ranks, in the same timing mode and with the same fold: then
their times compare. A section holds those of one order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.primitive import derive
from hpcbench.kinds.primitive.plan.implementations import PrimitiveRegistry, load_registry
from hpcbench.kinds.primitive.plan.spec import LAYERS, ImplementationSpec, PrimitiveSpec
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.plan.case import Case
from hpcbench.reduce.metric import Metric, Records, Values
from hpcbench.reduce.records import median_s
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural, vary
from hpcbench.views import chart, columns
from hpcbench.views.columns import ends_of, middle_cell, names_of, pass_range
from hpcbench.views.labels import distinct_names, short_labels
from hpcbench.views.metric_tables import (
    INTERVAL,
    OUTCOME,
    PLACE,
    TIME,
    WRONG,
    PlannedColumn,
    ShownColumn,
    column_of,
    fields_of,
    metric_column,
    of_case,
    passes_column,
    plan_table,
    planned_as,
    result_tables,
    several,
)
from hpcbench.views.presenter import Presenter, Words
from hpcbench.views.table import (
    MISSING,
    Column,
    Group,
    Line,
    Row,
    Show,
    Table,
    backend_text,
    device_memory_text,
    device_type,
    distinct,
    env_text,
    listed_more,
    mode_text,
    option_lines,
    options_text,
    plugin_lines,
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
    if registry.plugins:
        yield Line("")
    yield from plugin_lines(registry.plugins, _offered)


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


def _offered(spec: PrimitiveSpec | ImplementationSpec) -> str:
    return (f"primitive {spec.name}" if isinstance(spec, PrimitiveSpec) else
            f"{spec.name} of {', '.join(spec.runners)}")


DEFINITIONS = (
    "per rank = TFLOP/s (1e12) of the rank that has most to do, all ranks = of all together, from "
    "time p50;",
    "  of gemm = per rank over the best product of its type in this run (kind hardware); of peak: "
    "over hardware.peak_flops;",
    "  busbw of comm_only = its collectives' sizes x nccl-tests' factors / time p50",
    "t_p = median time of pass p, t_p(compute_only) and so on: of the same problem; beside a "
    "median over passes stand",
    f"  the least and the greatest; {columns.CANNOT_TELL}: the 95 % interval over passes holds "
    "opposite answers, see method.md"
)
Items = Sequence[CaseResult]


def problem_text(work: Primitive) -> str:
    """Return ``m=64 n=64 k=32``, and what model it comes from, if it comes from one."""
    return f"m={work.m} n={work.n} k={work.k} {work.shape}".rstrip()


def _planned(one: Metric, **more: Any) -> PlannedColumn:
    return PlannedColumn(column_of(one), planned_as(one.name), **more)


def _left_out(cases: Sequence[Case]) -> None:
    """Return the cell of a column that a row of several cases has not."""


def _span(name: str) -> PlannedColumn:
    of = planned_as(name)
    return PlannedColumn(Column(name, name, Show.COUNT), of, lambda cases: span(map(of, cases)),
                         name)


PLAN = (
    _planned(derive.PRIMITIVE), _planned(derive.IMPLEMENTATION),
    _planned(derive.ORDER, together=several(planned_as(derive.ORDER.name)), title="orders"),
    PlannedColumn(Column("options", "options", optional=True),
                  lambda case: options_text(primitive_of(case).options), _left_out), *PLACE,
    PlannedColumn(Column("type", "type"), planned_as("dtype"), several(planned_as("dtype")),
                  "type"),
    *map(_span, "mnk"), _planned(derive.SHAPE, together=_left_out),
    PlannedColumn(replace(column_of(derive.FLOPS), detail=True),
                  lambda case: primitive_of(case).flops or None, _left_out),
    PlannedColumn(Column("wire", "wire", Show.COUNT, "B", derive.FLOPS.text, "less", optional=True,
                         detail=True), lambda case: round(derive.carried_bytes(case)) or None,
                  _left_out))
ON_BARS = (
    of_case(Column("time_p50", "time", Show.US, "us", better="less"),
            lambda item: median_s(item) or 0.0),
    passes_column(derive.OVERLAP, title="overlap %", unit=""),
    passes_column(derive.TIMES_LONGEST, middle_cell),
    passes_column(derive.SPEEDUP, middle_cell))
RESULTS: tuple[Metric | ShownColumn, ...] = (
    TIME, INTERVAL, metric_column(derive.PER_RANK, first_to_go=True),
    metric_column(derive.ALL_RANKS, detail=True), derive.OF_MEASURED, derive.OF_DECLARED,
    metric_column(derive.BUSBW, detail=True), *derive.LOADED,
    *(metric_column(one, detail=True) for one in derive.PARTS_OF_CALL),
    passes_column(derive.EXPOSED, middle_cell, first_to_go=True),
    passes_column(derive.OVERLAP, first_to_go=True),
    passes_column(derive.TIMES_LONGEST, middle_cell, detail=True), passes_column(derive.SPEEDUP),
    WRONG, *OUTCOME)


def primitive_tables(title: str, items: Items, derived: Records) -> Iterator[Table]:
    """Yield one block's table: a group of rows per problem, order, backend, device, ranks, mode;
    what options all of its rows have stands above them."""
    by_id = {item.case.case_id: item for item in items if item.status in columns.TABLED}
    groups = grouped(((_where(item), timed_text(item)), item) for item in by_id.values())
    common = {item.case.case_id: _common_options(same) for same in groups.values() for item in same}

    def where(item: CaseResult) -> str:
        return f"{_where(item)}  {options_text(sorted(common[item.case.case_id]))}".rstrip()

    options = of_case(Column("options", "options", optional=True),
                      lambda item: _own_options(item, common[item.case.case_id]))
    shown = (derive.IMPLEMENTATION, options, *RESULTS)
    for table in result_tables(title, by_id.values(), derived, shown, where, derive.parts_first):
        listed = [by_id[row.case_id] for row in table.rows if row.case_id]
        yield replace(table, notes=tuple(_notes(listed, derived)))


def _common_options(items: Items) -> derive.Options:
    """Return the options that all of several cases have; none for one case."""
    shared, own = vary(primitive_of(item.case).options for item in items)
    return frozenset(shared if len(own) > 1 else ())


def _own_options(item: CaseResult, common: derive.Options) -> str:
    return options_text([one for one in primitive_of(item.case).options if one not in common])


def _where(item: CaseResult) -> str:
    case, work = item.case, primitive_of(item.case)
    parts = (f"{work.primitive} {work.order}", f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), work.dtype, problem_text(work),
             device_memory_text(item), env_text(case))
    return "  ".join(part for part in parts if part)


def rooflines(items: Items, derived: Records) -> list[chart.Shown]:
    shown = [(item, bound) for item in items if (bound := derive.ROOF.value(
        item, derived.get(item.case.case_id)))]
    titles = distinct_names([(_short_title(item), _details(item)) for item, _ in shown])
    return [chart.Shown(title, item.case.case_id, found)
            for title, (item, found) in zip(titles, shown, strict=True)]


def _short_title(item: CaseResult) -> str:
    work = primitive_of(item.case)
    return (f"{work.primitive} {work.implementation} {work.order} {work.m}x{work.n}x{work.k} "
            f"{work.dtype} {plural(item.case.world_size, 'rank')}")


def _details(item: CaseResult) -> tuple[str, ...]:
    """Return details that may distinguish a case from others with the same title."""
    options = (options_text([option]) for option in primitive_of(item.case).options)
    return (*options, backend_text(item.case), device_type(item), mode_text(item))


def _notes(items: Items, derived: Records) -> Iterator[Line]:
    rows = [derived.get(item.case.case_id, {}) for item in items]
    yield from columns.passes_note(rows, derive.COMPARED)
    overlaps = [one for values in rows if (one := values.get(f"{derive.OVERLAP.name}_passes"))]
    if any(one.tells and one.median < 0 for one in overlaps):
        yield Line("overlap below 0: slower than communication and product one after the other",
                   about=(derive.OVERLAP.name,))
    names = short_labels(item.case.label for item in items)
    yield from columns.unclear_notes(((names[item.case.label],
                                       values.get(f"{derive.EXPOSED.name}_passes"), {
        "t": median_s(item), **{f"t({name})": values.get(f"{name}_s") for name in derive.PARTS},
    }) for item, values in zip(items, rows, strict=True)), derive.EXPOSED.name)
    counts = Counter(reason for values in rows for reason in values.get(derive.NOT_COMPARED.name)
                     or ())
    for reason, count in counts.items():
        yield Line(f"{plural(count, 'row')} not compared: {reason}", "quiet")


MOST_ROWS = 30
"""More rows than this are split over several charts, by section."""
WHOLE = chart.Look("", chart.PLAIN, 0.75)
COMPUTE_LINE = chart.Look(derive.COMPUTE_ONLY, "#6a4c93", width=1.6)
COMMUNICATE_LINE = chart.Look(derive.COMM_ONLY, "#8a6d1d", width=1.6)
"""In colours that no implementation has; the bars of the parts are in those of their lines."""
BARS = {look.label: chart.Look("", look.colour, 0.75) for look in (COMPUTE_LINE, COMMUNICATE_LINE)}
BOUND = chart.Look("longer of the two: perfect overlap", "#000000", 0.22, width=6)
TOGETHER = chart.Look("sum: one after the other", "#000000", dotted=True)
LINES = {derive.LONGEST: BOUND, derive.SUM: TOGETHER, derive.COMPUTE_ONLY: COMPUTE_LINE,
         derive.COMM_ONLY: COMMUNICATE_LINE}
"""Times of `parts_alone` as they are drawn: the wide line below the others."""
LEGEND = (COMPUTE_LINE, COMMUNICATE_LINE, BOUND, TOGETHER)
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


def _charts(key: Key, items: Sequence[CaseResult], derived: Records) -> Iterator[chart.BarChart]:
    sections = _sections(items)
    groups = ([sections] if len(items) <= MOST_ROWS else
              [{title: same} for title, same in sections.items()])
    primitive, m, n, k, dtype, backend, device, ranks, mode, env = key
    models = distinct(primitive_of(item.case).shape or None for item in items)
    subtitle = (backend, device, ranks, mode, dtype, models, env)
    for group in groups:
        stem = (*key, next(iter(group)) if len(groups) > 1 else "")
        drawn = tuple(_section(title, same, derived) for title, same in group.items())
        looks = {look for section in drawn for _, look in section.lines}
        yield chart.BarChart(
            title=f"{primitive}, {m} {n} {k}: time by implementation",
            subtitle=", ".join(word for word in subtitle if word),
            file_stem=chart.file_name("-".join(word for word in stem if word)), notes=(CAPTION,),
            case_ids=tuple(item.case.case_id for same in group.values() for item in same),
            x=chart.Axis("time of one call", Show.US, "us"),
            columns=tuple(map(column_of, ON_BARS)), sections=drawn,
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
    return frozenset(vary([name for name, _ in work.options] for work in works)[0])


def _section(title: str, items: Items, derived: Records) -> chart.BarSection:
    ordered, common = sorted(items,
                             key=derive.parts_first), _common_options(items) | {derive.SHARDED}
    alone = derive.parts_alone(ordered)
    return chart.BarSection(title, tuple(_bar(item, common, derived) for item in ordered),
                            tuple((alone[name], look) for name,
                                  look in LINES.items() if name in alone))


def _bar(item: CaseResult, common: derive.Options, derived: Records) -> chart.Bar:
    name, values = primitive_of(item.case).implementation, derived.get(item.case.case_id, {})
    return chart.Bar(
        f"{name} {_own_options(item, common)}".rstrip(),
        tuple(one.of(item, values) for one in ON_BARS),
        segments=((median_s(item) or 0.0, BARS.get(name, WHOLE)),), whisker=pass_range(item),
        case_id=item.case.case_id)


def primitive_heat_map_case(case: Case) -> chart.HeatMapCase:
    """Return the call and its details; the most ranks, then the most bytes sent, go first."""
    work = primitive_of(case)
    return chart.HeatMapCase(
        f"{work.primitive} by {work.implementation}",
        (work.dtype, work.order, options_text(work.options), problem_text(work)),
        order=(case.world_size, work.size_bytes), rule="the most ranks, then the most bytes sent")


RANGE_FIELDS = tuple(field for one in derive.COMPARED for field in names_of(one.name))
LISTED_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "mode", "fold", "env",
    *fields_of(derive.METRICS), "n", "median_s", "p95_s", "ci_low_s", "ci_high_s", "ci_reliable",
    *RANGE_FIELDS)
"""Fields of each row of ``results.primitives``."""


class PrimitivePresenter(Presenter[Primitive, Values]):
    """Presents primitives."""

    fields = (*RANGE_FIELDS, derive.NOT_COMPARED.name)
    tables = staticmethod(primitive_tables)
    heat_map_case = staticmethod(primitive_heat_map_case)

    def plan_table(
        self, title: str, cases: Sequence[Case], *, listed: bool, hardware: Mapping[str, Any],
    ) -> Table:
        return plan_table(title, cases, PLAN, listed=listed)

    def listing(self) -> Iterator[Line | Table]:
        return primitive_lines(load_registry())

    def words(self, works: Sequence[Primitive]) -> Words:
        """Return the implementations and orders, and which problems they were to solve."""
        extents = (f"{name}={span_text(getattr(work, name) for work in works)}"
                   for name in ("m", "n", "k"))
        return Words([distinct(work.implementation for work in works),
                      distinct(work.order for work in works), *extents],
                     [work.dtype for work in works])

    def overviews(self, items: Items, derived: Records) -> Iterator[Table | chart.Chart | Line]:
        yield from map(Line, DEFINITIONS)
        problems = grouped((_key(item), item) for item in items if item.statistics is not None)
        for key, of_problem in problems.items():
            yield from _charts(key, of_problem, derived)
        yield from chart.rooflines_shown("primitives", rooflines(items, derived),
                                         of=any(item.status == "ok" for item in items))

    def row(self, item: CaseResult, record: Values | None) -> dict[str, Any]:
        values: dict[str, Any] = {
            "options": [options_text([option]) for option in primitive_of(item.case).options],
            derive.NOT_COMPARED.name: list((record or {}).get(derive.NOT_COMPARED.name) or ())}
        for one in derive.COMPARED:
            values |= ends_of(one.name, (record or {}).get(f"{one.name}_passes"))
        return values

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        return {"primitives": {
            name: [{field: row[field] for field in LISTED_FIELDS} for row in rows
                   if row["primitive"] == name and row["status"] == "ok"]
            for name in dict.fromkeys(row["primitive"] for row in rows)}}
