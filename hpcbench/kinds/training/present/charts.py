"""Words, findings and charts of trainings, the same in tables and on figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hpcbench.kinds.training.derive import deriver
from hpcbench.kinds.training.derive.fingerprints import Counterpart
from hpcbench.kinds.training.derive.slow_ranks import NO_STEPS, SlowAlone
from hpcbench.kinds.training.derive.stalls import Stalls, SyncVariance
from hpcbench.kinds.training.plan.spec import strategy
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.reduce.comparison import PRECISE
from hpcbench.reduce.metric import Records, Values
from hpcbench.reduce.records import median_s
from hpcbench.reduce.results import CaseResult, Steps
from hpcbench.units import grouped, in_parts, plural, three_digits, vary, with_sizes
from hpcbench.views import chart
from hpcbench.views.chart import Shown
from hpcbench.views.columns import (
    TABLED,
    any_profile,
    late_start,
    late_start_text,
    pass_range,
    straggler_text,
)
from hpcbench.views.labels import short_labels
from hpcbench.views.metric_tables import ShownColumn, metric_column, of_case
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Range,
    Row,
    Show,
    Table,
    cell_text,
    device_type,
    distinct,
    env_text,
    mode_text,
    options_text,
    span_text,
)

Items = Sequence[CaseResult]
SHORT = {"data": "data wait", "forward": "forward", "backward": "backward", "exchange": "exchange",
         "forward_backward": "fwd+bwd", "optimizer": "optimizer", "balance": "balance"}
"""Phase -> the title of its column."""
WAITS = ("data", "exchange")
"""The phases in which a rank waits: those that tables at the end of a run show."""
_SPOKEN = {"kv_heads": "key-value heads"}


def model_text(work: Training) -> str:
    """Return ``2 layers, hidden 64, sequence 32``: the shape in which a model was trained.

    Then other extents that it was given, and ``shrunk`` or ``changed``."""
    sample = (f"images of {work.image_size} pixels" if work.of_images else
              f"sequence {work.seq_length}")
    others = [f"{_SPOKEN.get(name, name)} {extent}" for name, extent in work.named_extents]
    marks = ["shrunk"] if work.shrunk else ["changed"] if work.changed else []
    return ", ".join([work.shape_text, sample, *others, *marks])


def strategy_text(work: Training) -> str:
    return work.strategy if work.trains else f"{work.strategy} (communication {work.communication})"


def degrees_text(work: Training) -> str:
    return options_text(work.degrees())


def span_texts(works: Sequence[Training]) -> Iterator[str]:
    yield distinct(work.model for work in works)
    if tokens := [work.seq_length for work in works if not work.of_images]:
        yield f"seq={span_text(tokens)}"
    if images := [work.image_size for work in works if work.of_images]:
        yield f"image={span_text(images)}"
    yield f"batch={span_text(work.batch_size for work in works)}"


def distinguishing_options(works: Iterable[Training]) -> Mapping[Training, str]:
    """Return for each training the options that not all of its strategy have at their default."""
    texts = dict[Training, str]()
    for name, of_strategy in grouped((work.strategy, work) for work in works).items():
        spec = strategy(name)
        usual = {key: option.default for key, option in spec.options.items()} if spec else {}
        shared, _ = vary((usual | dict(work.options)).items() for work in of_strategy)
        texts |= {work: options_text([option for option in work.options if option not in shared
                                      or option not in usual.items()]) for work in of_strategy}
    return texts


def parity_text(item: CaseResult, values: Values) -> str | None:
    """Return the largest error in % of what is allowed, or why there is none; None: not tried."""
    work = training_of(item.case)
    if not work.trains:
        return "n/a: no communication" if work.communication == "off" else "n/a: communication only"
    if item.n_wrong is None:
        return None if item.case.validate else "unchecked"
    if item.n_wrong:
        return f"{item.n_wrong} wrong"
    share = values.get(deriver.PARITY.name)
    return "ok" if share is None else f"{three_digits(100 * share)}%"


def counterpart_text(counterpart: Counterpart) -> str:
    if counterpart.missing:
        return f"compared with no other strategy: {counterpart.missing}"
    if counterpart.on_ranks:
        return "copies on the ranks differ (HB158)"
    if counterpart.n_wrong:
        return f"differs from that of {counterpart.words} (HB158)"
    return f"compared with that of {counterpart.words}, by weights, gradients and the first update"


MOST_CASES, MOST_RANKS = 3, 8  # tables, and rows of each: a profile is at most a screen
_NAMED = 4  # so many cases with the same finding are counted, fewer are named
_MEANING = ("ready: from the rank's begin of the step to its own last gradient; then waits: until "
            "the last rank is ready (medians)")
_RANK_COLUMNS = (
    Column("rank", "rank", Show.COUNT),
    Column("step", "step", Show.MS, "ms", "the rank's own median step", "less"),
    *(Column(name, title, Show.PERCENT, "%", "of the rank's step", optional=True)
      for name, title in SHORT.items()),
    Column("other", "other", Show.PERCENT, "%", "of the rank's step", "less"),
    Column("ready", "ready", Show.MS, "ms", "from the rank's begin to its own last gradient",
           "less", optional=True),
    Column("waits", "then waits", Show.MS, "ms", "until the last rank is ready", "less",
           optional=True),
)


def profile(items: Items, derived: Records) -> Iterator[Line | Table]:
    """Yield the findings of all trainings, warnings first, then the tables of some."""
    ok = [item for item in items if item.statistics is not None]
    named = titles(items)
    yield from _findings_of(ok, named, derived)
    computing = [item for item in ok if training_of(item.case).communication != "only"]
    worst = sorted(computing, key=lambda item: -_stalled(stalls_of(item, derived)))
    tables = [table for item in worst[:MOST_CASES] for table in _tables(
        named[item.case.case_id], item, stalls_of(item, derived))]
    for number, table in enumerate(tables, 1):
        explained = (Line(_MEANING, "quiet"),) if number == len(tables) and any(
            one.cells[-1] is not None for table in tables for one in table.rows) else ()
        yield replace(table, notes=(*table.notes, *explained))
    if len(worst) > MOST_CASES:
        yield Line(f"phases of {plural(len(worst) - MOST_CASES, 'more case')}: see summary.json",
                   "quiet")
    yield from any_profile([item for item in ok if item not in computing],
                           lambda item: named[item.case.case_id])


def titles(items: Items) -> Mapping[str, str]:
    """Return the names of the cases that ran, by id: as in the summary, if these are all."""
    ran = [item.case for item in items if item.status in TABLED]
    names = short_labels(case.label for case in ran)
    return {case.case_id: with_sizes(names[case.label]) for case in ran}


def _findings_of(items: Items, named: Mapping[str, str], derived: Records) -> Iterator[Line]:
    texts = grouped((line, named[item.case.case_id]) for item in items
                    for line in _lines(item, derived))
    for line in sorted(texts, key=lambda line: line.tone != "warning"):
        who = texts[line]
        title = ", ".join(who) if len(who) < _NAMED else plural(len(who), "case")
        yield Line(f"{title}: {line.text}" if len(items) > 1 else line.text, line.tone)


def findings(item: CaseResult, stalls: Stalls | None) -> Iterator[str]:
    if stalls and (last := stalls.last):
        behind = last.behind_s
        ends = f"{cell_text(behind.low, Show.MS)} to {cell_text(behind.high, Show.MS)}"
        where = f"; its {last.phase} is {ms_text(last.phase_s)} longer" if last.phase_s > 0 else ""
        share, often = f"{100 * last.behind_share:.0f} %", f"{100 * last.last_share:.0f} %"
        yield (f"{straggler_text(item, last.rank)}: {ms_text(behind.value)} behind (99 % "
               f"CI {ends}) at the end of backward, {share} of the slowest rank's step; last in "
               f"{often} of {plural(stalls.n_steps, 'step')}{where}")
    if stalls and stalls.sync and stalls.sync.is_high:
        yield f"gradient exchange: high jitter ({_variance_text(stalls.sync)})"


def slow_alone_text(slow: SlowAlone) -> str:
    return (f"rank {slow.rank} computes slowly: {ms_text(slow.step_s)} a step without "
            f"communication, rank {slow.quickest_rank} {ms_text(slow.quickest_step_s)} "
            f"({slow.ratio:.2f}x; passes {slow.low:.2f}x to {slow.high:.2f}x)")


def stalls_of(item: CaseResult, derived: Records) -> Stalls | None:
    return derived.get(item.case.case_id, {}).get(deriver.STALLS.name)


def _stalled(stalls: Stalls | None) -> float:
    return stalls.stall_share.value if stalls and stalls.stall_share else 0.0


def _lines(item: CaseResult, derived: Records) -> Iterator[Line]:
    values = derived.get(item.case.case_id, {})
    stalls, slow = values.get(deriver.STALLS.name), values.get(deriver.SLOW_ALONE.name)
    yield from (Line(text, "warning") for text in findings(item, stalls))
    if late := late_start(item):
        yield Line(late_start_text(item, late), "warning")
    if stalls and (share := stalls.stall_share):
        yield Line(f"waiting for the slowest rank: "
                   f"{_percent(share.value, share.low, share.high)} of the step, "
                   f"{plural(stalls.n_steps, 'step')}")
    if stalls and stalls.sync and not stalls.sync.is_high:
        yield Line(f"gradient exchange: no excess jitter ({_variance_text(stalls.sync)})")
    if stalls and item.case.world_size > 1:
        yield from map(Line, _unknown(stalls, values, slow))
    if exposed := values.get("exposed_share_passes"):
        ends = cell_text(Range(exposed.least, exposed.greatest, exposed.median), Show.PERCENT)
        yield Line(f"exposed communication: {ends} % of the step")
    if slow:
        yield Line(slow_alone_text(slow), "warning")
    steps = item.timing.steps if item.timing else None
    if steps and len(steps.ranks) > 1 and not training_of(item.case).trains:
        yield Line(f"steps without communication take the ranks {ms_text(min(steps.step_s))} to "
                   f"{ms_text(max(steps.step_s))}")


def _unknown(stalls: Stalls, values: Values, slow: SlowAlone | None) -> Iterator[str]:
    if stalls.missing and slow is None:
        more = "" if (values.get(deriver.OWN_STEPS.name) or NO_STEPS).own_s else (
            '; "communication": ["on", "off"] in its block shows each rank\'s own time')
        yield f"stragglers: unknown ({stalls.missing}){more}"
    if stalls.last_missing:
        yield f"late rank: cannot tell ({stalls.last_missing})"
    elif stalls.last is None and not stalls.missing:
        yield (f"late rank: none (no rank takes over {100 * PRECISE:.0f} % of the step longer than "
               "the next one until it is ready)")
    if stalls.sync_missing:
        yield f"gradient exchange: jitter unknown ({stalls.sync_missing})"


def _variance_text(sync: SyncVariance) -> str:
    return (f"varies by {100 * sync.cv:.0f} %, computing by {100 * sync.compute_cv:.0f} %; mean "
            f"deviation {100 * sync.deviation_share:.1f} % of the step")


def _tables(title: str, item: CaseResult, stalls: Stalls | None) -> Iterator[Table]:
    steps = item.timing.steps if item.timing else None
    if steps is None:
        return
    rows = [_row(steps, at, stalls) for at in range(len(steps.ranks))]
    listed = sorted(rows, key=_lateness, reverse=True)[:MOST_RANKS] if (
        len(rows) > MOST_RANKS) else rows
    left = len(rows) - len(listed)
    yield Table(title, _RANK_COLUMNS, (Group("", tuple(listed)),), notes=(
        Line(f"and {plural(left, 'rank')} more that are ready earlier: see summary.json", "quiet"),
    ) if left else ())


def _lateness(row: Row) -> float:
    step_s, ready_s = row.cells[1], row.cells[-2]
    return float(ready_s if isinstance(ready_s, float) else step_s)  # type: ignore[arg-type]


def _row(steps: Steps, at: int, stalls: Stalls | None) -> Row:
    step_s = steps.step_s[at]
    of_step = {phase.name: phase.median_s[at] / step_s for phase in steps.phases if step_s}
    rank = steps.ranks[at]
    known = stalls.ranks.index(rank) if stalls and rank in stalls.ranks else None
    waits: tuple[Cell, Cell] = (None, None) if stalls is None or known is None else (
        stalls.ready_s[known], stalls.wait_s[known])
    return Row((rank, step_s, *map(of_step.get, SHORT),
                steps.other_s[at] / step_s if step_s else None, *waits))


def _percent(share: float, low: float | None, high: float | None) -> str:
    ends = "" if low is None or high is None else (
        f" (CI {cell_text(low, Show.PERCENT)} to {cell_text(high, Show.PERCENT)})")
    return f"{cell_text(share, Show.PERCENT)} %{ends}"


def ms_text(time_s: float) -> str:
    return f"{cell_text(time_s, Show.MS)} ms"


def rooflines(items: Items, derived: Records) -> list[Shown]:
    named = titles(items)
    return [Shown(named[item.case.case_id], item.case.case_id, limit) for item in items
            for limit in derived.get(item.case.case_id, {}).get(deriver.ROOFLINES.name) or ()]


MOST_ROWS = 30  # more trainings than this are split over several charts
PHASES = {name: chart.Look(title, colour)
          for (name, title), colour in zip(SHORT.items(), chart.PART_COLOURS, strict=False)}
IN_NO_PHASE = chart.Look(deriver.OTHER, "#bbbbbb")
PART_LOOKS = {**PHASES, "": IN_NO_PHASE}
_VARIED = ("batch_size", "accumulation", "optimizer")
"""Fields that a label names, beside unusual ones, where they are not the same in all of a chart."""
ON_BARS = (
    of_case(Column("step_time", "step", Show.MS, "ms", better="less"), median_s),
    metric_column(deriver.TOKENS, optional=False),
    metric_column(deriver.MFU, title="MFU %", unit="", optional=False),
    ShownColumn(Column(deriver.PEAK, "memory", Show.MIB, "MiB", better="less"),
                lambda _, values: values.get(deriver.PEAK)))
OF_IMAGES = metric_column(deriver.SAMPLES, title="images/s", optional=False)
CAPTION = (
    "Bar: median time of one optimizer step over the samples of all passes; whisker: from the "
    "least to the greatest median of a pass. Parts: each phase's share of the time of all steps of "
    "all ranks; other: in no phase. data: waiting for the batch. exchange: waiting for the "
    "gradients of others when the own ones are there; where there is no such part, the others hold "
    "the wait for the slowest rank. Tokens count once, however many ranks see them. Memory: the "
    "most that any rank used.")
WITHOUT = (
    "Dashed: the same step without communication; what is right of it is exposed. Line below a "
    "bar: the communication of a step alone, drawn so that both end together; what of it is left "
    "of the dashes passes under the computation.")
Key = tuple[str, ...]


def charts(items: Items, derived: Records) -> Iterator[chart.BarChart]:
    """Yield the charts of the trainings that have statistics, and train: one a model and ranks."""
    groups = grouped((_key(item), item) for item in items
                     if item.statistics is not None and training_of(item.case).trains)
    for key, alike in groups.items():
        yield from _charts(key, alike, derived)


def _key(item: CaseResult) -> Key:
    case, work = item.case, training_of(item.case)
    return (work.model, model_text(work), work.dtype, case.backend, device_type(item),
            plural(case.world_size, "rank"), mode_text(item), env_text(case))


def _charts(key: Key, items: Items, derived: Records) -> Iterator[chart.BarChart]:
    works = [training_of(item.case) for item in items]
    options = distinguishing_options(works)
    labels = [_label(work, works, options[work]) for work in works]
    stem = "-".join(word for word in ("training", *key) if word)
    for number, pairs in in_parts([*zip(labels, items, strict=True)], MOST_ROWS):
        named, part = zip(*pairs, strict=True)
        rows = [derived.get(item.case.case_id, {}) for item in part]
        step, tokens, mfu, memory = ON_BARS
        if {*(values.get(deriver.PEAK_OF.name) for values in rows)} - {None} == {deriver.GROWTH}:
            memory = replace(memory, column=replace(memory.column, title="process growth"))
        shown = (step, OF_IMAGES if works[0].of_images else tokens, mfu, memory)
        bars = tuple(_bar(label, item, values, tuple(one.of(item, values) for one in shown))
                     for label, item, values in zip(named, part, rows, strict=True))
        looks = {look for bar in bars for _, look in bar.segments}
        yield chart.BarChart(
            title=f"{key[0]}: time of a training step by strategy",
            subtitle=", ".join(word for word in key[1:] if word),
            file_stem=chart.file_name(f"{stem}{number}"),
            notes=(_caption(rows), *(f"{text}." for text in same_programs(
                zip(part, rows, named, strict=True)))),
            case_ids=tuple(item.case.case_id for item in part),
            x=chart.Axis("time of one step", Show.MS, "ms"),
            columns=tuple(one.column for one in shown), sections=(chart.BarSection("", bars),),
            legend=tuple(look for look in (*PHASES.values(), IN_NO_PHASE) if look in looks),
            whisker="medians of passes", limit="without communication",
            below="communication alone")


def _label(work: Training, works: Sequence[Training], options: str) -> str:
    values = [*((name, getattr(work, name)) for name in _VARIED), *work.unusual()]
    varied = [(name, value) for name, value in values
              if len({getattr(other, name) for other in works}) > 1]
    parts = (work.strategy, degrees_text(work), options, options_text(varied))
    return " ".join(part for part in parts if part)


def same_programs(listed: Iterable[tuple[CaseResult, Values, str]]) -> Iterator[str]:
    """Yield which rows (case, values, title) are the same program: they cannot be ranked."""
    groups = grouped((values.get(deriver.SAME_PROGRAM.name) or item.case.case_id, title)
                     for item, values, title in listed)
    for first, *others in groups.values():
        if others:
            yield f"{first}: the same program as {', '.join(others)}"


def _caption(rows: Sequence[Values]) -> str:
    definitions = dict.fromkeys(values[deriver.DEFINITION.name] for values in rows
                                if values.get(deriver.MFU.name) is not None
                                and values[deriver.DEFINITION.name])
    return " ".join([
        CAPTION, *([WITHOUT] if any(values.get(deriver.OFF.name) for values in rows) else []),
        *([f"MFU: FLOPs as {', '.join(definitions)} counts them."] if definitions else [])])


def _bar(label: str, item: CaseResult, values: Values, cells: tuple[Cell, ...]) -> chart.Bar:
    return chart.Bar(
        label, cells, segments=tuple((time_s, PHASES.get(name, IN_NO_PHASE))
                                     for name, time_s in deriver.parts_s(item).items()),
        whisker=pass_range(item), limit=values.get(deriver.OFF.name),
        below=values.get(deriver.ONLY.name), case_id=item.case.case_id)


def heat_map_case(case: Case) -> chart.HeatMapCase:
    work = training_of(case)
    size = work.global_batch if work.tokens is None else work.tokens
    return chart.HeatMapCase(
        f"Step of {work.model} by {work.strategy}",
        (work.dtype, distinguishing_options([work])[work], model_text(work),
         f"batch {work.batch_size}"),
        order=(work.trains, case.world_size, size),
        rule="the most ranks, then the most data of a step")


MOST_BARS = 10  # of more ranks those that are ready last are shown
WAITING = chart.Look("waits for the last rank", chart.DARK)
_EXCHANGE = "exchange"
_COLUMNS = (Column("step", "step", Show.MS, "ms", better="less"),
            Column("ready", "ready", Show.MS, "ms", better="less"))
_CAPTION = (
    "Bar: the median of each phase of a rank's step, one after the other; the sum of medians need "
    "not be the median step. Waits for the last rank: the part of the exchange from the rank's own "
    "last gradient to that of the last rank. Ready: from the rank's begin of the step to its own "
    "last gradient. Shown are trainings in which something stands out (docs/profile.md).")


def stall_charts(items: Items, derived: Records) -> Iterator[chart.BarChart]:
    """Yield one chart of the trainings with findings, those that wait most; or none."""
    named = titles(items)
    measured = [(item, steps, stalls) for item in items if item.timing
                and (steps := item.timing.steps)
                and (stalls := stalls_of(item, derived))
                and [*findings(item, stalls)]]
    measured.sort(key=lambda one: -_stalled(one[2]))
    if not measured:
        return
    sections = tuple(chart.BarSection(named[item.case.case_id], tuple(
        _stall_bar(steps, stalls, rank) for rank in sorted(sorted(
            stalls.ranks, key=lambda rank: -stalls.ready_s[stalls.ranks.index(rank)])[:MOST_BARS])))
        for item, steps, stalls in measured[:MOST_CASES])
    looks = {look for section in sections for bar in section.bars for _, look in bar.segments}
    yield chart.BarChart(
        title="Who waits for whom: the step of each rank", file_stem="stalls",
        subtitle="ready: from the begin of the step to the rank's own last gradient",
        notes=(_CAPTION,), x=chart.Axis("time in the step", Show.MS, "ms"), columns=_COLUMNS,
        case_ids=tuple(item.case.case_id for item, _, _ in measured[:MOST_CASES]),
        sections=sections,
        legend=tuple(look for look in (*PHASES.values(), WAITING, IN_NO_PHASE) if look in looks))


def _stall_bar(steps: Steps, stalls: Stalls, rank: int) -> chart.Bar:
    at, of_stalls = steps.ranks.index(rank), stalls.ranks.index(rank)
    segments = [(phase.median_s[at], PHASES.get(phase.name, IN_NO_PHASE))
                for phase in steps.phases if phase.name != _EXCHANGE]
    for phase in (phase for phase in steps.phases if phase.name == _EXCHANGE):
        waits_s = min(stalls.wait_s[of_stalls], phase.median_s[at])
        place = [look for _, look in segments].index(PHASES["backward"]) + 1
        segments[place:place] = [(waits_s, WAITING),
                                 (phase.median_s[at] - waits_s, PHASES[_EXCHANGE])]
    return chart.Bar(f"rank {rank}", (steps.step_s[at], stalls.ready_s[of_stalls]),
                     (*segments, (steps.other_s[at], IN_NO_PHASE)))
