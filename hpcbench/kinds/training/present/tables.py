"""The tables of trainings (results, counted steps, efficiency, scaling), and their columns'
meanings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from hpcbench.kinds.training.derive import deriver, rates
from hpcbench.kinds.training.derive.slow_ranks import NO_STEPS, OwnSteps
from hpcbench.kinds.training.derive.stalls import WITHOUT, shown_share
from hpcbench.kinds.training.plan.build_workload import Setting
from hpcbench.kinds.training.plan.models import DEFINITIONS as DEFINITIONS_OF_FLOPS
from hpcbench.kinds.training.plan.spec import alone_by
from hpcbench.kinds.training.plan.workload import CHUNKED, Training, training_of
from hpcbench.kinds.training.present import charts
from hpcbench.plan.case import Case
from hpcbench.reduce.metric import Metric, Records, Values
from hpcbench.reduce.records import median_s
from hpcbench.reduce.results import CaseResult
from hpcbench.units import digits, grouped, plural, vary
from hpcbench.views import columns, metric_tables
from hpcbench.views.metric_tables import (
    INTERVAL,
    LAUNCHES,
    STATUS,
    N,
    ShownColumn,
    cell_of,
    column_of,
    metric_column,
    of_case,
    passes_column,
)
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Row,
    Show,
    Table,
    cell_text,
    device_type,
    env_text,
    flag_cell,
    like_median,
    options_text,
)

Shown = tuple[Metric | ShownColumn, ...]
Member = tuple[CaseResult, Values]


def _of_work(column: Column, of: Callable[[Training], Cell]) -> ShownColumn:
    return of_case(column, lambda item: of(training_of(item.case)))


def _rate(one: Metric) -> ShownColumn:
    """Return the column of a rate with the digits of the median."""
    return ShownColumn(column_of(one), lambda item, values: like_median(
        one.value(item, values), columns.median_cell(item.statistics)))


def _where(one: Metric, holds: Callable[[Training], bool]) -> ShownColumn:
    """Return the column of a metric that some trainings do not show."""
    return ShownColumn(column_of(one), lambda item, values: (
        one.value(item, values) if holds(training_of(item.case)) else None))


def _share(name: str, title: str, **more: Any) -> ShownColumn:
    """Return the column of a phase, ``other`` without one."""
    return of_case(Column(name, title, Show.WHOLE_PERCENT, "%", "of the time of all steps",
                          optional=True, **more), lambda item: _shares(item).get(name))


def _shares(item: CaseResult) -> dict[str, float]:
    steps = item.timing.steps if item.timing else None
    return {**{phase.name: phase.share for phase in steps.phases},
            deriver.OTHER: steps.other_share} if steps else {}


def _peak(title: str, *, grows: bool, **more: Any) -> ShownColumn:
    return ShownColumn(
        Column(title, title, Show.MIB, "MiB", "most of any rank", "less", optional=True, **more),
        lambda _, values: values.get(deriver.PEAK) if (
            values.get(deriver.PEAK_OF.name) == deriver.GROWTH) is grows else None)


STRATEGY = _of_work(Column("strategy", "strategy"), charts.strategy_text)
DEGREES = _of_work(Column("degrees", "degrees", optional=True),
                   lambda work: charts.degrees_text(work) or None)
BATCH = _of_work(Column("batch", "batch", Show.COUNT, "replica"), lambda work: work.batch_size)
RESULTS: Shown = (
    _of_work(Column("accumulated", "accumulated", Show.COUNT, optional=True),
             lambda work: work.accumulation if work.accumulation != 1 else ""),
    of_case(Column("step_p50", "step p50", Show.MS, "ms", "of one optimizer step", "less",
                   optional=True), lambda item: columns.median_cell(item.statistics)),
    replace(INTERVAL, column=replace(columns.INTERVAL, show=Show.MS, unit="ms", optional=True)),
    _rate(deriver.SAMPLES), _rate(deriver.TOKENS), deriver.MFU, deriver.MFU_OF_MEASURED,
    metric_column(deriver.ATTENTION, detail=True), deriver.IMBALANCE,
    *(metric_column(one, detail=one is not deriver.DROPPED) for one in deriver.EXPERTS[1:]),
    *(_where(one, lambda work: work.checkpointing != "none" or work.loss == CHUNKED)
      for one in (deriver.HFU, deriver.HFU_NOMINAL)),
    deriver.CHECKPOINT_STALL, deriver.CHECKPOINT_BYTES, deriver.COST, deriver.COST_OF_TOKENS,
    _where(deriver.COST_OF_SAMPLES, lambda work: work.of_images),
    *(_share(name, title, detail=name not in charts.WAITS, first_to_go=True)
      for name, title in charts.SHORT.items()),
    _share(deriver.OTHER, "other", better="less", detail=True),
    passes_column(deriver.EXPOSED_S, columns.middle_cell, detail=True),
    passes_column(deriver.EXPOSED_SHARE, first_to_go=True),
    passes_column(deriver.OVERHEAD, columns.middle_cell, detail=True),
    passes_column(deriver.OVERLAP, detail=True),
    _peak("memory", grows=False), _peak("process growth", grows=True, detail=True),
    of_case(Column("memory_predicted", "planned", Show.MIB, "MiB",
                   "memory predicted of tensors, most of any rank; kind memory measures its parts",
                   "less", optional=True, first_to_go=True),
            lambda item: item.case.memory_bytes or None),
    ShownColumn(Column("parity", "parity", unit="against 1 process",
                       meaning="error, in % of what is allowed", optional=True),
                lambda item, values: _parity_cell(item, values)),
    replace(N, column=replace(columns.N, optional=True)), STATUS,
    replace(LAUNCHES, column=replace(columns.LAUNCHES, show=Show.MS, unit="p50, ms")),
    of_case(columns.FLAGS, lambda item: flag_cell(item, Show.MS)))
DEFINITIONS = (
    "step p50 = time of one optimizer step, accumulation included; samples/s = samples of all "
    "replicas / step p50;",
    "  tokens/s = samples/s x sequence length: each token counts once, however many ranks see it;",
    "  a sample of a ResNet is an image, which has no tokens",
    "data .. optimizer = time in the phase, in % of the time of all steps of all ranks; data = "
    "waiting for the batch,",
    "  exchange = waiting for the gradients of others when the own ones are there,",
    "  balance = agreeing on the ranks' samples, other = in no phase.",
    "  All ranks leave an exchange together: who is slow has the shortest",
    "parity = loss, gradients and updated weights against those of a single process with the same "
    "weights and samples:",
    "  the largest error of any rank in % of what is allowed",
)
DEFINITIONS_OF_EXPOSURE = (
    "t_p = median step of pass p, t_p(off) that of the same step without communication, t_p(only) "
    "that of its calls alone;",
    "  beside a median over passes stand the least and the greatest; "
    f"{columns.CANNOT_TELL}: the 95 % interval over",
    "  passes holds opposite answers, see method.md",
)
DEFINITIONS_OF_PIPELINES = (
    "idle = median over passes of 1 - t_p(off) of the rank / t_p: it waits, or communicates; "
    "bubble = the share of a step that",
    "  the schedule alone makes ranks wait: if all take equally long, and rank by rank if each "
    "takes its own time",
)


def definitions(items: charts.Items, derived: Records) -> Iterator[str]:
    yield from DEFINITIONS
    works = [training_of(item.case) for item in items]
    names = [name for name in dict.fromkeys(map(rates.shown_definition, works)) if name is not None]
    if names:
        yield "MFU = FLOPs of the model in a step / (step p50 x ranks x hardware.peak_flops);"
    for name in names:
        meaning = f": {DEFINITIONS_OF_FLOPS[name].meaning}" if name in DEFINITIONS_OF_FLOPS else ""
        yield f"  FLOPs as {name} counts them{meaning}"
    if names:
        yield "  (what is computed twice counts once; other definitions: summary.json)"
    rows = [values for _, values in _members(items, derived)]
    if any(work.checkpointing != "none" for work in works) and _any_has(rows, deriver.HFU):
        yield ("HFU = the same with the FLOPs that are executed again; HFU nominal = with a whole "
               "forward pass of each block")
        yield "  that is run again, as papers count: torch leaves out what nothing needs"
    if _any_has(rows, deriver.COST):
        yield "cost = time x ranks x hardware.price_per_device_hour, in the currency of that price"
    if any(work.cp > 1 for work in works):
        yield ("imbalance = FLOPs of attention, as planned, on the rank with most / the mean of "
               "those that share a sample")
    if any(work.adapters for work in works):
        yield ("  (of lora and qlora 4 for each frozen weight and token, not 6: none has a "
               "gradient; and what adapters add)")
    if any(not work.trains for work in works):
        yield from DEFINITIONS_OF_EXPOSURE
        if any(work.pp > 1 for work in works):
            yield from DEFINITIONS_OF_PIPELINES
    peaks = dict.fromkeys(filter(None, (values.get(deriver.PEAK_OF.name) for values in rows)))
    if allocated := ", ".join(name for name in peaks if name != deriver.GROWTH):
        yield f"memory = the most that any rank used ({allocated})"
    if deriver.GROWTH in peaks:
        yield ("process growth = the most that the process of any rank grew, buffers of libraries "
               "included:")
        yield ("  no counterpart of the memory that plan predicts, which is of tensors: kind "
               "memory measures these")
    if _any_has(rows, deriver.SCALING):
        yield from SCALING_DEFINITION
    if _any_has(rows, deriver.SOURCE):
        yield from EFFICIENCY_DEFINITION


def _members(items: charts.Items, derived: Records) -> list[Member]:
    return [(item, derived.get(item.case.case_id, {})) for item in items]


def _any_has(rows: Iterable[Values], one: Metric) -> bool:
    return any(values.get(one.name) is not None for values in rows)


def result_tables(title: str, items: charts.Items, derived: Records) -> Iterator[Table]:
    """Yield a block's table; a run without communication is in its training's row."""
    of_case_id = {item.case.case_id: item for item in items if item.status in columns.TABLED
                  and not derived.get(item.case.case_id, {}).get(deriver.IS_PARTNER.name)}
    differ = len({training_of(item.case).batch_size for item in of_case_id.values()}) > 1
    batch = replace(BATCH, column=replace(BATCH.column, detail=not differ))
    shown: Shown = (STRATEGY, _options(of_case_id.values()), DEGREES, batch, *RESULTS)
    for table in metric_tables.result_tables(
            title, of_case_id.values(), derived, shown, _group_title):
        listed = _members([of_case_id[row.case_id] for row in table.rows if row.case_id], derived)
        is_text = _any_has([values for _, values in listed], deriver.TOKENS)
        yield replace(table, notes=tuple(_notes(listed)), columns=tuple(
            # beside tokens, as they differ by a factor only
            replace(one, detail=True) if is_text and one.name == deriver.SAMPLES.name else one
            for one in table.columns))


def _options(items: Iterable[CaseResult]) -> ShownColumn:
    options = charts.distinguishing_options(training_of(item.case) for item in items)
    return _of_work(Column("options", "options", optional=True), lambda work: options[work])


_IS_SO = {"compile": "compiled", "offload_state": "states on the host"}


def _group_title(item: CaseResult) -> str:
    case, work = item.case, training_of(item.case)
    unusual = [f"{name} {value}" if value is not True else _IS_SO.get(name, name)
               for name, value in work.unusual()]
    parts = (f"{work.model} ({charts.model_text(work)})", f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), work.dtype, work.optimizer, *unusual,
             env_text(case))
    return "  ".join(part for part in parts if part)


def _parity_cell(item: CaseResult, values: Values) -> str | None:
    text = charts.parity_text(item, values)
    if not text or text[-1] != "%":
        return text
    return f"ok ({digits(float(text[:-1]), 2)} % of tolerance)"


def _notes(listed: Sequence[Member]) -> Iterator[Line]:
    titled = [(item, values, title) for (item, values), title in zip(
        listed, _row_titles([item for item, _ in listed]), strict=True)]
    yield from (Line(f"{text}; what they differ by is noise")
                for text in charts.same_programs(titled))
    yield from columns.passes_note([values for _, values in listed], deriver.EXPOSED)
    yield from columns.unclear_notes(((title, values.get("exposed_s_passes"), {
        "t": median_s(item), "t(off)": values.get(deriver.OFF.name),
        "t(only)": values.get(deriver.ONLY.name)}) for item, values, title in titled),
        deriver.EXPOSED_SHARE.name, deriver.EXPOSED_S.name)
    yield from _table_notes(listed)
    yield from _row_notes(titled)


def _table_notes(listed: Sequence[Member]) -> Iterator[Line]:
    beside = (dict.fromkeys(str(left["parity"]["on"]) for left in item.detail.values()
                            if "parity" in left) for item, _ in listed)
    for compared, count in Counter(", ".join(each) for each in beside if each).items():
        yield Line(f"parity of {plural(count, 'row')}: a step against one process in fp64, of "
                   f"{compared}", "quiet", about=("parity",))
    rows = [values for _, values in listed]
    beside_others = Counter(charts.counterpart_text(other) for values in rows
                            if (other := values.get(deriver.COUNTERPART.name)))
    for text, count in beside_others.items():
        yield Line(f"timed model of {plural(count, 'row')}: {text}", "quiet")
    reasons = Counter(reason for values in rows
                      if (reason := values.get(deriver.MFU_MISSING.name)))
    for reason, count in reasons.items():
        yield Line(f"MFU ({plural(count, 'row')}): {reason}; gen-config fills it", "quiet")
    missing = Counter(reason for values in rows
                      for reason in values.get(deriver.NOT_PAIRED.name) or ())
    for reason, count in missing.items():
        yield Line(f"{plural(count, 'row')} not paired: {reason}", "quiet")


def _row_notes(titled: Sequence[tuple[CaseResult, Values, str]]) -> Iterator[Line]:
    for item, values, title in titled:
        noted = [item.case.note] if item.case.note else []
        samples = {int(rank): left["balance"]["samples"] for rank, left in item.detail.items()
                   if "balance" in left}
        if samples:
            shares = ", ".join(f"{samples[rank]} on rank {rank}" for rank in sorted(samples))
            noted.append(f"of {training_of(item.case).global_batch} samples in the end {shares}")
        if (often := values.get(deriver.READ_AGAIN.name)) is not None and often > 1:
            noted.append(f"{training_of(item.case).data} was read {often:.1f} times in a pass: it "
                         "has fewer samples than the steps take")
        for text in noted:
            yield Line(f"{title}: {text}", "quiet")
    for item, values, title in titled:
        tone = "plain" if _own_steps(values).idle_share else "warning"
        for text in _outlier_texts(item, values):
            yield Line(f"{title}: {text}", tone)


def _row_titles(items: charts.Items) -> Iterator[str]:
    """Yield the strategy and options of each row; the words of its label that several would have
    else."""
    options = charts.distinguishing_options(training_of(item.case) for item in items)
    short = [f"{charts.strategy_text(work)} {options[work]}".rstrip()
             for item in items for work in [training_of(item.case)]]
    named, times = charts.titles(items), Counter(short)
    return (text if times[text] == 1 else named[item.case.case_id]
            for text, item in zip(short, items, strict=True))


def _own_steps(values: Values) -> OwnSteps:
    return values.get(deriver.OWN_STEPS.name) or NO_STEPS


def _outlier_texts(item: CaseResult, values: Values) -> Iterator[str]:
    stalls = values.get(deriver.STALLS.name)
    yield from charts.findings(item, stalls)
    if (late := values.get(deriver.LATE_RANK.name)) and not (stalls and stalls.last):
        before = "" if late.first_behind_s is None else (
            f"; at the first of {late.buckets} buckets {charts.ms_text(late.first_behind_s)}")
        yield (f"rank {late.rank} is last at the exchange in {late.share:.0%} of the steps, "
               f"{charts.ms_text(late.behind_s)} behind the median{before}")
    for slow in values.get(deriver.SLOW_PHASES.name) or ():
        which, wait = (
            ("shortest", ": the others wait for it") if slow.is_shortest else ("longest", ""))
        yield (f"{slow.phase} is {which} on rank {slow.rank} in {slow.share:.0%} of the steps"
               f"{wait}; the longest is {slow.ratio:.2f}x the shortest")
    if _own_steps(values).idle_share:
        yield _idle_line(_own_steps(values), values.get(deriver.BUBBLE.name))
    if alone := values.get(deriver.SLOW_ALONE.name):
        yield charts.slow_alone_text(alone)


def _idle_line(steps: OwnSteps, predicted: float | None) -> str:
    bubble = "" if predicted is None else (
        f"bubble {cell_text(predicted, Show.PERCENT)} % as the schedule predicts, with the "
        "ranks' own times "
        f"{', '.join(cell_text(share, Show.PERCENT) for share in steps.uneven_bubble)} %; ")
    idle = ", ".join(
        f"{cell_text(columns.over_passes_cell(share), Show.PERCENT)} % on rank {rank}"
        for rank, share in zip(steps.ranks, steps.idle_share, strict=True))
    return f"{bubble}idle {idle}"


_MOST = "counted in one step that was not timed, on the rank that has most"
_PLAN = "what the plan says of it"
COUNTED = tuple(metric_column(one, meaning=_PLAN if one.title == "predicted" else _MOST)
                for one in deriver.COUNTED)


def counted_tables(title: str, items: charts.Items, derived: Records) -> Iterator[Table]:
    listed = [(item, values) for item, values in _members(items, derived)
              if item.status in columns.TABLED and training_of(item.case).trains
              and values.get(deriver.NOT_COUNTED.name) is not None]
    if not listed:
        return
    shown: Shown = (STRATEGY, _options(item for item, _ in listed), DEGREES, BATCH, *COUNTED)
    groups = grouped((training_of(item.case).model, (item, values)) for item, values in listed)
    yield Table(f"{title}: one step, counted", tuple(map(column_of, shown)), tuple(
        Group(name, _rows(shown, group)) for name, group in groups.items()),
        notes=tuple(_counted_notes(listed)), detail=True)


def _rows(shown: Shown, members: Iterable[Member]) -> tuple[Row, ...]:
    return tuple(Row(tuple(cell_of(one, item, values) for one in shown), case_id=item.case.case_id)
                 for item, values in members)


def _counted_notes(listed: Sequence[Member]) -> Iterator[Line]:
    reasons = Counter(missing for _, values in listed
                      for missing in values[deriver.NOT_COUNTED.name].items())
    for (name, reason), count in reasons.items():
        yield Line(f"{plural(count, 'row')} without {name}: {reason}", "quiet")
    kinds = ", ".join(dict.fromkeys(
        kind for _, values in listed if (kind := values.get(deriver.ACTIVATIONS_OF.name))))
    if kinds:
        yield Line("activations = the most bytes at once that forward and backward hold: "
                   f"{kinds}", "quiet", about=("activations_bytes",))


EFFICIENCY_DEFINITION = (
    "score = useful time of all ranks / (ranks x step) = load balance x communication efficiency, "
    "in %;",
    "  communication efficiency = serialisation x transfer; global = score x computation scaling;",
    "  limits: the smallest factor, where it is below 80 % (docs/hardware.md)",
)


def _factor(one: Metric) -> ShownColumn:
    """Return the column of a factor from 0 to 1; times that contradict it show none."""
    return ShownColumn(
        replace(column_of(one), detail=one.name in ("serialisation", "transfer")),
        lambda item, values: shown_share(one.value(item, values)))


EFFICIENCIES: Shown = (
    of_case(Column("ranks", "ranks", Show.COUNT), lambda item: item.case.world_size),
    deriver.SCORE, *map(_factor, deriver.FACTORS),
    metric_column(deriver.COMPUTATION_SCALING, detail=True), deriver.GLOBAL,
    ShownColumn(replace(column_of(deriver.LIMIT), meaning=deriver.LIMIT.text), lambda _, values: (
        limit := values.get(deriver.LIMIT.name)) and limit.replace("_", " ")),
    metric_column(deriver.SOURCE, detail=True, meaning=deriver.SOURCE.text))


def efficiencies(items: charts.Items, derived: Records) -> Iterator[Table]:
    rated = [(item, values) for item, values in _members(items, derived)
             if item.case.world_size > 1 and values.get(deriver.SOURCE.name)]
    if rated:
        named, of_case_id = charts.titles(items), {item.case.case_id: item for item in items}
        unsure = (named[item.case.case_id] for item, values in rated
                  if values.get(deriver.GLOBAL.name) is not None
                  and not _is_sure(item, of_case_id[values[deriver.BASE.name]]))
        shown = (of_case(Column("case", "training"), lambda item: named[item.case.case_id]),
                 *EFFICIENCIES)
        yield Table("parallel efficiency of trainings", tuple(map(column_of, shown)),
                    (Group("", _rows(shown, rated)),), notes=(
                        *_unclear_scores(named, derived),
                        *_unsure_note(unsure, deriver.COMPUTATION_SCALING, deriver.GLOBAL)))


def _unclear_scores(named: Mapping[str, str], derived: Records) -> Iterator[Line]:
    """Yield which scores are of steps without communication that tell nothing."""
    unclear = [title for case_id, title in named.items()
               for values in [derived.get(case_id, {})]
               if values.get(deriver.SOURCE.name) == WITHOUT
               and (exposed := values.get("exposed_s_passes")) and not exposed.tells]
    if unclear:
        yield Line(f"? {', '.join(unclear)}: exposed communication is {columns.CANNOT_TELL}, so "
                   "what rests on these steps, such as the score, is uncertain; use more passes",
                   "warning")


SCALING_DEFINITION = (
    "scaling efficiency = samples/s of n ranks / (n / m x samples/s of the m ranks of the base);",
    "  weak: each rank has as many samples as in the base, strong: all ranks together have",
)
_FIRST = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("setting", "setting", optional=True), BATCH.column,
    column_of(deriver.SCALING), Column("base", "base"), column_of(deriver.BASE_RATE))


Scaled = tuple[CaseResult, Values, CaseResult]
"""A case with its values, and the base that it is compared with."""


def overviews(items: charts.Items, derived: Records) -> Iterator[Table]:
    of_case_id = {item.case.case_id: item for item in items}
    scaled = [(item, values, of_case_id[base]) for item, values in _members(items, derived)
              if (base := values.get(deriver.BASE.name))]
    if not scaled:
        return
    rows = grouped(((
        _title(item.case), (work := training_of(item.case)).strategy, work.options, item.case.marks,
        *(getattr(work, name) for name in Setting._fields), values[deriver.SCALING.name]),
        (item, values, base)) for item, values, base in scaled)
    ranks = sorted({item.case.world_size for item, *_ in scaled})
    columns = (*_FIRST, *(Column(
        f"n={count}", f"n={count}", Show.PERCENT, "%",
        "scaling efficiency, by medians of all samples; advise compares by pairs", "more",
        optional=True) for count in ranks))
    _, own = vary([(name, getattr(training_of(item.case), name)) for name in Setting._fields
                   if name != "batch_size"] for item, *_ in scaled)  # it has a column
    varied = [name for name, _ in own[0]]
    has_batches = len({training_of(item.case).batch_size for item, *_ in scaled}) > 1
    options = charts.distinguishing_options(training_of(row[0][0].case) for row in rows.values())
    yield Table("scaling efficiency of trainings", columns, tuple(
        Group(title, tuple(_scaling_row(row, ranks, varied, options) for row in same))
        for title, same in groupby(rows.values(), key=lambda row: _title(row[0][0].case))),
        notes=tuple(_unsure_note(" ".join(filter(None, (
            work.strategy, options[work], f"batch={work.batch_size}" * has_batches,
            f"n={item.case.world_size}")))
            for row in rows.values() for item, _, base in row if not _is_sure(item, base)
            for work in [training_of(item.case)])))


def _is_sure(item: CaseResult, base: CaseResult) -> bool:
    return all(one.statistics and one.statistics.ci_reliable for one in (item, base))


def _unsure_note(names: Iterable[str], *numbers: Metric) -> Iterator[Line]:
    """Yield which rows, or which ``numbers`` of theirs, are quotients of medians without a reliable
    interval."""
    if unsure := [*dict.fromkeys(names)]:
        more = len(unsure) - MOST_UNSURE
        what = f"{' and '.join(one.title for one in numbers)} are " if numbers else ""
        yield Line(f"? {', '.join(unsure[:MOST_UNSURE])}{f' and {more} more' if more > 0 else ''}: "
                   f"{what}unreliable, of medians whose 95 % CI is ?; use more passes",
                   about=tuple(one.name for one in numbers))


MOST_UNSURE = 4
"""Unreliable efficiencies that are named below their table."""


def _title(case: Case) -> str:
    work = training_of(case)
    return "  ".join(part for part in (
        f"{work.model} ({charts.model_text(work)})", f"{case.backend} ({case.device})",
        case.mode, env_text(case)) if part)


def _scaling_row(
    members: Sequence[Scaled], ranks: Sequence[int], varied: Sequence[str],
    options: Mapping[Training, str],
) -> Row:
    first, values, base = members[0]
    work, shares = training_of(first.case), {
        item.case.world_size: of[deriver.EFFICIENCY.name] for item, of, _ in members}
    return Row((
        work.strategy, " ".join(filter(None, (options[work], first.case.marks))),
        options_text([(key, getattr(work, key)) for key in varied]),
        work.batch_size, values[deriver.SCALING.name], ", ".join(filter(None, (
            alone_by(training_of(base.case)), plural(base.case.world_size, "rank")))),
        values[deriver.BASE_RATE.name], *map(shares.get, ranks)), case_id=first.case.case_id)
