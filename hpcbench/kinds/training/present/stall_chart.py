"""The figure of a training whose ranks stall: the step of each rank, and how much of it waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.kinds.training.derive.deriver import NOTHING_KNOWN
from hpcbench.kinds.training.derive.stalls import Stalls
from hpcbench.kinds.training.present.charts import IN_NO_PHASE, PHASES, Records
from hpcbench.kinds.training.present.stalls import MOST_CASES, findings, titles
from hpcbench.reduce.results import CaseResult, Steps
from hpcbench.views import chart
from hpcbench.views.table import Column, Show

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
    """Return a bar for each rank, in their order; of many for those that are ready last."""
    latest = sorted(stalls.ranks, key=lambda rank: -stalls.ready_s[stalls.ranks.index(rank)])
    return tuple(_bar(steps, stalls, rank) for rank in sorted(latest[:MOST_BARS]))


def _bar(steps: Steps, stalls: Stalls, rank: int) -> chart.Bar:
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
