"""Stacked bars of what the rank with most holds, a bar a case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.memory.derive.deriver import PARTS, MemoryRecord
from hpcbench.kinds.memory.plan.workload import work_of
from hpcbench.kinds.memory.present.bars import (
    Form,
    Options,
    bar_charts,
    chart_key,
    strategy_words,
)
from hpcbench.kinds.memory.present.table import TITLES
from hpcbench.reduce.results import CaseResult
from hpcbench.views.chart import COLOURS, Axis, Bar, BarChart, Look
from hpcbench.views.table import Column, Show

_LOOKS = {part: Look(TITLES[part], COLOURS[at])
          for part, at in zip(PARTS, (0, 1, 2, 4, 6), strict=True)}
_FORM = Form(
    "memory of a training by strategy", "memory",
    "Bar: the most that the rank with most held at once, by what it was of. Dashed: what was "
    "predicted of it.", Axis("memory of a rank", Show.MIB, "MiB"),
    (Column("peak", "peak", Show.MIB, "MiB", better="less"),
     Column("predicted", "predicted", Show.MIB, "MiB"),
     Column("efficiency", "efficiency", Show.RATIO, better="more")), tuple(_LOOKS.values()))


def charts(
    items: Sequence[CaseResult], derived: Mapping[str, MemoryRecord],
) -> Iterator[BarChart]:
    """Yield a chart of each model, device and number of ranks."""
    known = [(item, record) for item in items
             if (record := derived.get(item.case.case_id)) and record.held_bytes]
    yield from bar_charts(_FORM, known, lambda item, _: chart_key(item), _bar)


def _bar(item: CaseResult, record: MemoryRecord, options: Options) -> Bar:
    work, held = work_of(item.case).training, record.held_bytes or {}
    return Bar(strategy_words(work, options, f"batch {work.batch_size}"),
               (record.peak_bytes, record.predicted_peak_bytes, record.efficiency),
               tuple((float(held[part]), _LOOKS[part]) for part in PARTS),
               limit=record.predicted_peak_bytes)
