"""Columns, cells and tables of cases of any kind: results, telemetry, late ranks, profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcbench.operations.arrival import TOGETHER
from hpcbench.plan.case import Case
from hpcbench.reduce.arrival import MOST_OFF
from hpcbench.reduce.comparison import NEEDED, Comparison, comparison_counts, is_open
from hpcbench.reduce.metric import Metric
from hpcbench.reduce.records import comparisons, slower_ranks
from hpcbench.reduce.results import (
    CaseResult,
    LateArrivals,
    RankTelemetry,
    Results,
    SampleSource,
    ShownSeries,
    Statistics,
    Usage,
    core_use,
    powers,
)
from hpcbench.reduce.spread import clock_bound_s, interval_share, launch_range, range_of
from hpcbench.trace.columns import TABLES
from hpcbench.units import format_seconds, grouped, in_launches, plural, rank_list, with_sizes
from hpcbench.views.chart import Axis, ChartPoint, Curve, LineChart, Panel
from hpcbench.views.labels import short_labels, without_shared
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Range,
    Row,
    Show,
    Table,
    WithInterval,
    backend_text,
    batch_text,
    cell_text,
    distinct,
    repeats_text,
)

if TYPE_CHECKING:
    from hpcbench.statistics.overlap import OverPasses


_READ = (Column("source", "source"), Column("ranks", "ranks"), Column("devices", "devices"),
         Column("why", "not read because", optional=True))
_USED = (
    Column("case", "case"),
    Column("window", "window", Show.DURATION, "a pass", "from the reading before it to the one "
           "after it: with set-up, warm-ups and checks"),
    Column("energy", "energy", Show.NUMBER, "J", better="less", optional=True),
    Column("power", "mean power", Show.NUMBER, "W", optional=True),
    Column("clock", "clock", Show.NUMBER, "MHz", "of GPUs, else of cores", optional=True),
    Column("throttled", "throttled", optional=True),
    Column("cpu", "CPU time", Show.DURATION, "", "of all workers", optional=True),
    Column("wait", "core wait", Show.DURATION, "", "time for which their main threads "
           "were ready and waited for a core", optional=True),
    Column("steal", "stolen", Show.PERCENT, "%", "of the nodes' core time, by a hypervisor",
           optional=True),
    Column("sent", "sent", Show.MIB, "MiB", "by interfaces, loopback included", optional=True),
    Column("nvlink", "NVLink", Show.MIB, "MiB", optional=True),
    Column("computed", "predicted", Show.MIB, "MiB", "what all ranks send by formulas",
           optional=True),
    Column("dropped", "dropped", Show.NUMBER, "packets", better="less", optional=True),
)


def telemetry_tables(results: Results) -> Iterator[Table]:
    """Yield a table of the telemetry read, and one of what cases used; none without it."""
    if not results.telemetry:
        return
    newest = _newest(results)
    rows = [Row((table, rank_list(ranks), ", ".join(devices), None)) for table in TABLES
            for devices, ranks in grouped((one.devices[table], one.rank) for one in newest
                                          if table in one.devices).items()]
    missing = grouped(
        ((name, why), one.rank) for one in newest for name, why in one.missing.items())
    rows += [Row((name, rank_list(ranks), None, why)) for (name, why), ranks in missing.items()]
    yield Table("telemetry that was read (docs/telemetry.md)", _READ,
                (Group("", tuple(rows)),))
    used = [(item, item.usage) for item in results.cases if item.usage is not None]
    if used:
        title = _short_titles([item for item, _ in used])
        yield Table("use of the machine by a pass of each case", _USED, (
            Group("", tuple(_used_row(item, usage, title) for item, usage in used)),),
            notes=(Line("counters of a node are of all its processes", "quiet", about=(
                "energy", "power", "steal", "sent", "dropped")),))


def telemetry_line(results: Results) -> str:
    """Return the counters that could not be read, in one line; "" without such."""
    missing = dict.fromkeys(name for one in _newest(results) for name, why in one.missing.items()
                            if name in TABLES and not why.startswith("not wanted"))
    return f"no {', '.join(missing)} counters here (details: -v)" if missing else ""


def _newest(results: Results) -> list[RankTelemetry]:
    newest = max((one.attempt for one in results.telemetry), default=0)
    return [one for one in results.telemetry if one.attempt == newest]


def _used_row(item: CaseResult, usage: Usage, title: Title) -> Row:
    clock: Cell = None
    if usage.clock_low_mhz is not None and usage.clock_high_mhz is not None:
        clock = Range(usage.clock_low_mhz, usage.clock_high_mhz)
    throttled = None if usage.throttled is None else ", ".join(usage.throttled_by) or "no"
    return Row((title(item), usage.window_s, usage.energy_j, usage.mean_power_w, clock,
                throttled, usage.cpu_s, usage.wait_s, usage.steal_share, usage.sent_bytes,
                usage.nvlink_bytes, usage.computed_bytes, usage.dropped),
               item.status, item.case.case_id)


MOST_LINES = 6


def telemetry_chart(results: Results, source: SampleSource) -> LineChart | None:
    panels = [(title, show, unit, [*lines]) for title, show, unit, lines in (
        ("power", Show.NUMBER, "W", powers(source.time_series)),
        ("busy cores", Show.SIGNIFICANT_PERCENT, "% of the node's", core_use(source.time_series)))]
    begun = [line.points[0].time_ns for *_, lines in panels for line in lines if line.points]
    if not begun:
        return None
    spans = sorted(span for item in results.cases if item.usage for span in item.usage.spans_ns)
    zero = min(begun)
    shaded = tuple(((begin - zero) / 1e9, (end - zero) / 1e9) for begin, end in spans)
    most = max(len(lines) for *_, lines in panels)
    left_out = f" The first {MOST_LINES} of {most} lines." if most > MOST_LINES else ""
    return LineChart(
        title="Power and use of cores during the run",
        subtitle=f"{plural(len(spans), 'run')} of cases",
        file_stem="telemetry", case_ids=(),
        notes=("Shaded: a case runs, in two tones in turn. Line: mean of neighbouring readings; "
               f"band: the least and the greatest of them.{left_out} Counters of a node are of all "
               "its processes.",),
        x=Axis("time since the first reading", unit="s"),
        panels=tuple(Panel(Axis(title, show, unit), _lines(lines, zero), title=title.capitalize(),
                           spans=shaded, has_marks=False)
                     for title, show, unit, lines in panels if lines))


def _lines(time_series: Sequence[ShownSeries], zero: float) -> tuple[Curve, ...]:
    return tuple(Curve(f"rank {series.rank}: {series.device}", tuple(
        ((point.time_ns - zero) / 1e9,
         ChartPoint(point.mean, band=Range(point.least, point.greatest)))
        for point in series.points)) for series in time_series[:MOST_LINES])


TABLED = ("ok", "wrong", "failed", "timeout")
"""Statuses that have rows in tables of results."""
COST = (
    Column("samples", "samples", optional=True),
    Column("needs", "needs", optional=True, first_to_go=True),
    Column("estimate", "estimate", Show.DURATION, "a pass", better="less", optional=True))
TIME = Column("time_p50", "time p50", Show.US, "us", "median of the timed samples", "less")
INTERVAL = Column("interval", "95 % CI", Show.US, "us",
                  "confidence interval of the median, from its lower to its upper end")
WRONG = Column("n_wrong", "#wrong", Show.COUNT, "", "wrong elements, summed over ranks and checked "
               "calls", "less", usual=0)
BUSBW = Column("busbw", "busbw", Show.GB_PER_S, "GB/s", better="more")
N = Column("n", "n", Show.COUNT, "", "timed samples that count", detail=True)
STATUS = Column("status", "status", usual="ok")
LAUNCHES = Column("launches", "launches", Show.US, "p50, us", "medians of the launches",
                  optional=True)
FLAGS = Column("flags", "flags", optional=True)
UNRELIABLE = "?"
CANNOT_TELL = "unclear"
"""In place of a comparison that may as well be chance (`statistics.overlap`)."""
CASE = (Column("case", "case"), Column("backend", "backend"), Column("device", "device"),
        Column("ranks", "ranks", Show.COUNT))


def cost_cells(cases: Sequence[Case]) -> tuple[Cell, ...]:
    samples = distinct(case.iterations if case.is_fixed else "auto" for case in cases)
    return (f"{samples} {batch_text(cases[0])}", ",".join(cases[0].needs) or None,
            sum(case.estimate_s for case in cases))


def passes_text(results: Results) -> str:
    """Return `repeats_text`, or ``2 to 3 of 6 passes`` where cases lack some."""
    return missing_passes_text(results) or repeats_text(results.plan)


def missing_passes_text(results: Results) -> str:
    """Return ``2 to 3 of 6 passes`` where cases lack some, else nothing."""
    if (passes := results.passes_run) is None:
        return ""
    least, most, planned = passes
    return f"{least if least == most else f'{least} to {most}'} of {plural(planned, 'pass')}"


def clock_text(results: Results, items: Iterable[CaseResult]) -> str:
    """Return how times of different ranks were compared, and their bound over ``items``."""
    clocks = results.clocks
    bound_s = clock_bound_s(items)
    if clocks is None or bound_s is None:
        return "clocks: times of different ranks are not compared"
    if clocks.n_clocks == 1:
        return "clock: one for all ranks"
    if clocks.n_syncs == 0:
        return f"clocks: {clocks.n_clocks} different ones, not synchronised"
    return (f"clocks: {clocks.n_clocks}, {plural(clocks.n_syncs, 'synchronisation')} over MPI, "
            f"ranks' times at most {format_seconds(bound_s)} apart")


def median_cell(stats: Statistics | None) -> Cell:
    """Return the median in seconds, with the ends of its interval where that is sound."""
    if stats is None:
        return None
    ends = interval_cell(stats)
    return WithInterval(stats.median_s, ends.least, ends.greatest) if isinstance(
        ends, Range) else stats.median_s


def n_cell(stats: Statistics | None) -> Cell:
    return stats.n if stats else None


def interval_cell(stats: Statistics | None) -> Cell:
    """Return the interval of the median in seconds, or UNRELIABLE."""
    if stats is None or stats.ci_low_s is None or stats.ci_high_s is None:
        return None
    sound = interval_share(stats) is not None
    return Range(stats.ci_low_s, stats.ci_high_s) if sound else UNRELIABLE


def launches_cell(item: CaseResult) -> Cell:
    ends = launch_range(item.timing) if item.timing else None
    return Range(*ends) if ends else ""


def wrong_cell(item: CaseResult) -> Cell:
    if item.n_wrong is not None:
        return item.n_wrong
    return None if item.case.validate and item.status != "ok" else "unchecked"


def over_passes_cell(passes: OverPasses | None) -> Cell:
    """Return the median over passes, with the least and the greatest, or CANNOT_TELL."""
    if passes is None or not passes.tells:
        return CANNOT_TELL if passes else None
    return Range(passes.least, passes.greatest, passes.median)


def middle_cell(passes: OverPasses | None) -> Cell:
    if passes is None or not passes.tells:
        return CANNOT_TELL if passes else None
    return WithInterval(passes.median, passes.least, passes.greatest)


def passes_note(
    rows: Sequence[Mapping[str, Any]], numbers: Sequence[Metric],
) -> Iterator[Line]:
    """Yield of which numbers, where passes of a row differ, the medians of the row give another."""
    known = [one for one in numbers if one.title and any(
        over.tells and over.least < over.greatest for values in rows
        if (over := values.get(f"{one.name}_passes")))]
    if known:
        titles = ", ".join(dict.fromkeys(one.title for one in known))
        yield Line(f"{titles}: medians over passes, which the medians in a row do not give",
                   about=tuple(one.name for one in known))


MOST_UNCLEAR = 5
"""Rows whose exposed communication is explained below their table."""


def unclear_notes(
    rows: Iterable[tuple[str, OverPasses | None, Mapping[str, float | None]]], *about: str,
) -> Iterator[Line]:
    """Yield why the communication that a row exposes is CANNOT_TELL: what it was in the passes, and
    the medians over all samples in seconds. ``about``: the columns that show it."""
    unclear = [row for row in rows if row[1] is not None and not row[1].tells]
    for title, exposed, times_s in unclear[:MOST_UNCLEAR]:
        assert exposed is not None  # as they were chosen
        of = ", ".join(f"{name} {format_seconds(time_s)}" for name, time_s in times_s.items()
                       if time_s is not None)
        ends = " to ".join(dict.fromkeys(map(format_seconds, (exposed.least, exposed.greatest))))
        yield Line(f"{title}: exposed {CANNOT_TELL}: {ends} in {plural(exposed.passes, 'pass')}; "
                   f"medians: {of}", about=about)


def names_of(name: str) -> tuple[str, ...]:
    """Return the fields of a number over passes: it, its ends, and whether it is significant."""
    return (name, f"{name}_least", f"{name}_greatest", f"{name}_tells")


def ends_of(name: str, passes: OverPasses | None) -> dict[str, float | bool | None]:
    """Return the values of the fields of `names_of`; the first is the median over passes."""
    values = (passes.median, passes.least, passes.greatest, passes.tells) if passes else (None,) * 4
    return dict(zip(names_of(name), values, strict=True))


def pass_range(item: CaseResult) -> Range | None:
    ends = range_of(item.timing.pass_medians_s) if item.timing else None
    return Range(*ends) if ends else None


def case_words(case: Case) -> str:
    return " ".join(case.workload.label(case.world_size).words)


def any_plan(title: str, cases: Sequence[Case]) -> Table:
    rows = (Row((case.index, case_words(case), backend_text(case), case.device, case.world_size,
                 *cost_cells([case])), case_id=case.case_id) for case in cases)
    return Table(title, (Column("index", "#", Show.COUNT), *CASE, *COST),
                 (Group("", tuple(rows)),))


MOST_NAMED = 5


def late_start(item: CaseResult) -> Comparison | None:
    """Return the comparison whose rank starts significantly later than any other; else None."""
    late = item.timing.late_start if item.timing else None
    return late if late is not None and late.is_clear else None


def late_start_text(item: CaseResult, late: Comparison) -> str:
    ends = f"{cell_text(late.low_s, Show.US)} to {cell_text(late.high_s, Show.US)}"
    return (f"{straggler_text(item, late.rank)}: {cell_text(late.apart_s, Show.US)} us behind rank "
            f"{late.next_rank} (CI {ends})")


def straggler_text(item: CaseResult, rank: int | None) -> str:
    """Return who is the straggler, and when: a state that lasts for a launch makes one, too."""
    launches = item.timing.n_launches if item.timing else 1
    return f"rank {rank} is the straggler {in_launches(launches)}"


def slow_rank_lines(results: Results) -> Iterator[str]:
    """Yield how many comparisons were made and in how many a rank is slow; then these."""
    counts = comparison_counts(comparisons(results))
    named = [f"{item.case.label}: {late_start_text(item, late)}" for item in results.cases
             if (late := late_start(item)) is not None]
    named += [f"{item.case.label}: {_slower_text(one)}" for item, one in slower_ranks(results)]
    if counts["n_made"]:
        yield (f"slow ranks: {len(named) or 'none'} named in "
               f"{plural(counts['n_made'], 'comparison')}, of phases too; the summary's checks, of "
               "starts and whole steps, say which were too noisy")
    if few := counts["n_too_few"]:
        yield f"slow ranks: not enough data in {plural(few, 'comparison')}: {NEEDED}"
    yield from (f"  {text}" for text in named[:MOST_NAMED])
    if len(named) > MOST_NAMED:
        yield f"  and {len(named) - MOST_NAMED} more: see late_start and stalls in summary.json"


def _slower_text(one: Comparison) -> str:
    ends = f"{cell_text(one.low_s, Show.US)} to {cell_text(one.high_s, Show.US)}"
    return (f"rank {one.rank} stands out by {one.what}: {cell_text(one.apart_s, Show.US)} us from "
            f"rank {one.next_rank} (CI {ends})")


MOST_ROWS = 12
"""A profile is at most a screen: the other cases are in the summaries."""
Title = Callable[[CaseResult], str]
_COLUMNS = (
    Column("case", "case"), TIME, replace(INTERVAL, optional=True), LAUNCHES, N,
    Column("imbalance", "imbalance", Show.US, "us", "last start - first start of a sample", "less"),
    Column("late", "late", Show.TEXT, "rank", "rank that starts significantly later"),
    Column("late_by", "by", Show.US, "us", "its start after that of the next one", "less"),
)


def any_profile(
    items: Sequence[CaseResult], title: Title | None = None,
) -> Iterator[Line | Table]:
    """Yield the ranks that start late, then a table: a row a case, the most unequal ones. Without
    ``title`` a case has its short label."""
    timed = [item for item in items if item.statistics is not None and item.timing is not None]
    title = title or _short_titles(timed)
    late_ones = [(item, late) for item in timed if (late := late_start(item)) is not None]
    for item, late in late_ones[:MOST_ROWS]:
        yield Line(f"{title(item)}: {late_start_text(item, late)}", "warning")
    if timed and not late_ones:
        yield Line(f"stragglers: no late start found in {plural(len(timed), 'case')}")
    if unknown := [item for item in timed if item.case.world_size > 1 and late_start(item) is None
                   and _may_be_late(item)]:
        yield Line(f"stragglers: cannot tell in {plural(len(unknown), 'case')}: too few passes "
                   "or too noisy; use more passes")
    listed = sorted(timed, reverse=True, key=lambda item: (
        item.timing.imbalance_s if item.timing else None) or 0.0)[:MOST_ROWS]
    left = len(timed) - len(listed)
    notes = (Line(f"and {plural(left, 'case')} more, less unequal: see summary.csv", "quiet"),)
    if listed:
        yield Table("ranks side by side", _COLUMNS, (Group("", tuple(
            _row(item, title) for item in listed)),), notes=notes if left else ())


def _may_be_late(item: CaseResult) -> bool:
    assert item.timing is not None and item.statistics is not None
    return is_open(item.timing.late_start, item.statistics.median_s * item.timing.calls)


def _short_titles(items: Sequence[CaseResult]) -> Title:
    labels = short_labels(item.case.label for item in items)
    return lambda item: with_sizes(labels[item.case.label])


def _row(item: CaseResult, title: Title) -> Row:
    timing, late = item.timing, late_start(item)
    return Row((title(item), median_cell(item.statistics),
                interval_cell(item.statistics), launches_cell(item), n_cell(item.statistics),
                timing.imbalance_s if timing else None, None if late is None else str(late.rank),
                late.apart_s if late else None), item.status, item.case.case_id)


_ARRIVALS = (
    Column("case", "case"), Column("arrival", "arrival"),
    Column("lateness", "delay", Show.US, "us", "achieved, median"),
    Column("missed", "missed", Show.PERCENT, "%",
           "samples in which a rank entered 10 % of the delay off", "less"),
    Column("last_in", "from last", Show.US, "us", "from the last arrival to the last end", "less"),
    Column("own_entry", "own entry", Show.US, "us",
           "from own entry to end, mean of the punctual ranks", "less"),
    Column("own_together", "own together", Show.US, "us",
           "own entry of the same ranks where all enter together", "less"),
    Column("absorbed", "absorbed", Show.WHOLE_PERCENT, "%",
           "1 - (own entry - own together) / delay", "more"),
    Column("absorbed_interval", "95 % CI", Show.WHOLE_PERCENT, "%", "of the absorbed share; ? "
           "without a reliable interval of one of the two cases", optional=True))


def arrival_tables(results: Results) -> Iterator[Table]:
    """Yield a row for each case with late ranks and for the same without; nothing without any."""
    measured = [(item, arrivals) for item in results.cases
                if item.timing is not None and (arrivals := item.timing.arrivals) is not None]
    names = dict.fromkeys(_punctual_label(item.case) for item, _ in measured)
    shared, own = without_shared([*names])
    short = dict(zip(names, own, strict=True))
    groups = grouped((short[_punctual_label(item.case)], (item, arrivals))
                     for item, arrivals in measured)
    if measured:
        yield Table(" ".join(filter(None, ("late arrivals,", shared or "isolated"))), _ARRIVALS, (
            Group("", tuple(_arrival_row(name, *each) for name, same in groups.items()
                            for each in same)),),
            notes=tuple(_arrival_notes([arrivals for _, arrivals in measured])))


def _arrival_notes(measured: Sequence[LateArrivals]) -> Iterator[Line]:
    """Yield what the columns mean, and why a share is missing or below 0, where one is."""
    late = [one for one in measured if one.lateness_s is not None]
    if not late:
        return
    yield Line("  delay: median, from the first rank's entry to the late one's; less than planned "
               "if the first is late itself, as on a busy machine")
    yield Line("  absorbed = 1 - (own entry - own together) / delay: 100 if punctual ranks did not "
               "wait, 0 for all of it")
    if any((one.absorbed_share or 0) < -0.005 for one in late):
        yield Line("  below 0: they took longer by more than the delay")
    if any(one.absorbed_share is None for one in late):
        yield Line("  absorbed -: no case together of the same setting, or the delay is 0 or over "
                   f"{100 * MOST_OFF:.0f} % off")


def _punctual_label(case: Case) -> str:
    return replace(case, arrival=TOGETHER).label


def _arrival_row(name: str, item: CaseResult, arrivals: LateArrivals) -> Row:
    assert item.timing is not None
    return Row((
        name, item.case.arrival.text, arrivals.lateness_s, arrivals.missed_share,
        _interval_of(item.timing.last_in_s, arrivals.last_in_low_s, arrivals.last_in_high_s),
        _interval_of(arrivals.own_entry_s, arrivals.own_entry_low_s, arrivals.own_entry_high_s),
        arrivals.own_entry_together_s, arrivals.absorbed_share, _share_interval(arrivals)),
        item.status, item.case.case_id)


def _interval_of(value_s: float | None, low_s: float | None, high_s: float | None) -> Cell:
    if value_s is None or low_s is None or high_s is None:
        return value_s
    return WithInterval(value_s, low_s, high_s)


def _share_interval(arrivals: LateArrivals) -> Cell:
    if arrivals.absorbed_share is None:
        return None
    low, high = arrivals.absorbed_low, arrivals.absorbed_high
    return UNRELIABLE if low is None or high is None else Range(low, high)
