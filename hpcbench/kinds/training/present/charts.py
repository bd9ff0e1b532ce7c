"""One model trained in several ways: the time of a step, and the phases that it is made of.

The figure of a training whose ranks stall: the step of each rank, and how much of it waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpcbench.kinds.training.derive.deriver import GROWTH, NOTHING_KNOWN, OTHER, TrainingRecord
from hpcbench.kinds.training.derive.stalls import Stalls
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.kinds.training.present.stalls import (
    MOST_CASES,
    SHORT,
    degrees_text,
    findings,
    model_text,
    telling_options,
    titles,
)
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult, Steps
from hpcbench.units import grouped, in_parts, plural
from hpcbench.views import chart
from hpcbench.views.columns import pass_range
from hpcbench.views.table import Column, Show
from hpcbench.views.words import device_type, env_text, mode_text, options_text

MOST_ROWS = 30
"""More trainings than this are split over several charts."""
PHASES = {name: chart.Look(title, chart.COLOURS[at])
          for (name, title), at in zip(SHORT.items(), (6, 4, 0, 1, 3, 2, 5), strict=True)}
IN_NO_PHASE = chart.Look(OTHER, "#bbbbbb")
PART_LOOKS = {**PHASES, "": IN_NO_PHASE}
_VARIED = ("batch_size", "accumulation", "optimizer")
"""What a label names, beside what is unusual, where it is not the same in the whole chart."""
STEP = Column("step_time", "step", Show.MS, "ms", better="less")
TOKENS = Column("tokens_per_second", "tokens/s", Show.NUMBER, better="more")
SAMPLES = Column("samples_per_second", "images/s", Show.NUMBER, better="more")
MFU = Column("mfu", "MFU %", Show.SIGNIFICANT_PERCENT, better="more")
MEMORY = Column("peak_bytes", "memory", Show.MIB, "MiB", better="less")
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
Records = Mapping[str, TrainingRecord]


def charts(items: Sequence[CaseResult], derived: Records) -> Iterator[chart.BarChart]:
    """Yield the charts of the trainings that have statistics, and train: one a model and ranks."""
    groups = grouped((_key(item), item) for item in items
                     if item.statistics is not None and training_of(item.case).trains)
    for key, same in groups.items():
        yield from _charts(key, same, derived)


def _key(item: CaseResult) -> Key:
    case, work = item.case, training_of(item.case)
    return (work.model, model_text(work), work.dtype, case.backend, device_type(item),
            plural(case.world_size, "rank"), mode_text(item), env_text(case))


def _charts(key: Key, items: Sequence[CaseResult], records: Records) -> Iterator[chart.BarChart]:
    works = [training_of(item.case) for item in items]
    options = telling_options(works)
    labels = [_label(work, works, options[work]) for work in works]
    stem = "-".join(word for word in ("training", *key) if word)
    for number, pairs in in_parts([*zip(labels, items, strict=True)], MOST_ROWS):
        named, part = zip(*pairs, strict=True)
        known = [records.get(item.case.case_id, NOTHING_KNOWN) for item in part]
        bars = tuple(map(_bar, named, part, known))
        looks = {look for bar in bars for _, look in bar.segments}
        yield chart.BarChart(
            title=f"{key[0]}: time of a training step by strategy",
            subtitle=", ".join(word for word in key[1:] if word),
            file_stem=chart.file_name(f"{stem}{number}"),
            notes=(_caption(known), *_same_programs(named, part, known)),
            case_ids=tuple(item.case.case_id for item in part),
            x=chart.Axis("time of one step", Show.MS, "ms"),
            columns=(STEP, SAMPLES if works[0].of_images else TOKENS, MFU, _memory(known)),
            sections=(chart.BarSection("", bars),),
            legend=tuple(look for look in (*PHASES.values(), IN_NO_PHASE) if look in looks),
            whisker="medians of passes", limit="without communication",
            below="communication alone")


def _memory(records: Sequence[TrainingRecord]) -> Column:
    peaks = {record.peak_of for record in records if record.peak_of}
    return replace(MEMORY, title="process growth") if peaks == {GROWTH} else MEMORY


def _label(work: Training, works: Sequence[Training], options: str) -> str:
    values = [*((name, getattr(work, name)) for name in _VARIED), *work.unusual()]
    varied = [(name, value) for name, value in values
              if len({getattr(other, name) for other in works}) > 1]
    words = (work.strategy, degrees_text(work), options, options_text(varied))
    return " ".join(word for word in words if word)


def _same_programs(labels: Sequence[str], items: Sequence[CaseResult],
                   records: Sequence[TrainingRecord]) -> Iterator[str]:
    groups = grouped((record.same_program_as or item.case.case_id, label)
                     for label, item, record in zip(labels, items, records, strict=True))
    for first, *others in groups.values():
        if others:
            yield f"{first}: the same program as {', '.join(others)}."


def _caption(records: Sequence[TrainingRecord]) -> str:
    definitions = dict.fromkeys(record.mfu_definition for record in records
                                if record.mfu is not None and record.mfu_definition)
    return " ".join([
        CAPTION, *([WITHOUT] if any(record.exposure.off_s for record in records) else []),
        *([f"MFU: FLOPs as {', '.join(definitions)} counts them."] if definitions else [])])


def _bar(label: str, item: CaseResult, record: TrainingRecord) -> chart.Bar:
    rate = (record.samples_per_s if training_of(item.case).of_images else record.tokens_per_s)
    exposure = record.exposure
    return chart.Bar(
        label, (record.step_s, rate, record.mfu, record.held_bytes.get("peak")),
        segments=tuple((time_s, PHASES.get(name, IN_NO_PHASE))
                       for name, time_s in record.part_s.items()),
        whisker=pass_range(item), limit=exposure.off_s, below=exposure.only_s,
        case_id=item.case.case_id)


def heat_map_case(case: Case) -> chart.HeatMapCase:
    """Return what is trained, and how; what trains most on the most ranks goes first."""
    work = training_of(case)
    size = work.global_batch if work.tokens is None else work.tokens
    return chart.HeatMapCase(
        f"Step of {work.model} by {work.strategy}",
        (work.dtype, telling_options([work])[work], model_text(work), f"batch {work.batch_size}"),
        order=(work.trains, case.world_size, size),
        rule="the most ranks, then the most data of a step")


MOST_BARS = 10
"""Of more ranks those that are ready last are shown."""
WAITING = chart.Look("waits for the last rank", chart.COLOURS[5])
_EXCHANGE = "exchange"
_COLUMNS = (Column("step", "step", Show.MS, "ms", better="less"),
            Column("ready", "ready", Show.MS, "ms", better="less"))
_CAPTION = (
    "Bar: the median of each phase of a rank's step, one after the other; the sum of medians need "
    "not be the median step. Waits for the last rank: the part of the exchange from the rank's own "
    "last gradient to that of the last rank. Ready: from the rank's begin of the step to its own "
    "last gradient. Shown are trainings in which something stands out (docs/profile.md).")


def stall_charts(items: Sequence[CaseResult], derived: Records) -> Iterator[chart.BarChart]:
    """Yield one chart of the trainings with findings, those that wait most; or none."""
    named = titles([item for item in items if item.statistics is not None])
    known = [(item, steps, stalls) for item in items if item.timing
             and (steps := item.timing.steps)
             and (stalls := derived.get(item.case.case_id, NOTHING_KNOWN).stalls)
             and [*findings(stalls)]]
    known.sort(key=lambda one: -(one[2].stall_share.value if one[2].stall_share else 0.0))
    if not known:
        return
    sections = tuple(chart.BarSection(named[item.case.case_id], _bars(steps, stalls))
                     for item, steps, stalls in known[:MOST_CASES])
    looks = {look for section in sections for bar in section.bars for _, look in bar.segments}
    yield chart.BarChart(
        title="Who waits for whom: the step of each rank", file_stem="stalls",
        subtitle="ready: from the begin of the step to the rank's own last gradient",
        notes=(_CAPTION,), x=chart.Axis("time in the step", Show.MS, "ms"), columns=_COLUMNS,
        case_ids=tuple(item.case.case_id for item, _, _ in known[:MOST_CASES]), sections=sections,
        legend=tuple(look for look in (*PHASES.values(), WAITING, IN_NO_PHASE) if look in looks))


def _bars(steps: Steps, stalls: Stalls) -> tuple[chart.Bar, ...]:
    latest = sorted(stalls.ranks, key=lambda rank: -stalls.ready_s[stalls.ranks.index(rank)])
    return tuple(_stall_bar(steps, stalls, rank) for rank in sorted(latest[:MOST_BARS]))


def _stall_bar(steps: Steps, stalls: Stalls, rank: int) -> chart.Bar:
    at, known = steps.ranks.index(rank), stalls.ranks.index(rank)
    segments = [(phase.median_s[at], PHASES.get(phase.name, IN_NO_PHASE))
                for phase in steps.phases if phase.name != _EXCHANGE]
    for phase in (phase for phase in steps.phases if phase.name == _EXCHANGE):
        waits_s = min(stalls.wait_s[known], phase.median_s[at])
        place = [look for _, look in segments].index(PHASES["backward"]) + 1
        segments[place:place] = [(waits_s, WAITING),
                                 (phase.median_s[at] - waits_s, PHASES[_EXCHANGE])]
    return chart.Bar(f"rank {rank}", (steps.step_s[at], stalls.ready_s[known]),
                     (*segments, (steps.other_s[at], IN_NO_PHASE)))
