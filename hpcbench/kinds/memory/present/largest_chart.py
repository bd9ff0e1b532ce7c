"""Bars of the largest batches that fitted, a bar a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.memory.derive.deriver import MemoryRecord
from hpcbench.kinds.memory.derive.largest import Largest
from hpcbench.kinds.memory.plan.workload import work_of
from hpcbench.kinds.memory.present.bars import (
    Form,
    Options,
    bar_charts,
    chart_key,
    strategy_words,
)
from hpcbench.reduce.results import CaseResult
from hpcbench.units import size_text
from hpcbench.views.chart import COLOURS, Axis, Bar, BarChart, Look
from hpcbench.views.table import Column, Show

_LOOK = Look("largest batch", COLOURS[0])
_FORM = Form(
    "largest batch that fits, by strategy", "largest_batch",
    "Bar: the most samples of a replica that fitted on every rank. Dashed: what was "
    "predicted. Too large: the fewest that were tried and did not fit.",
    Axis("samples of a replica", Show.COUNT),
    (Column("largest", "largest", Show.COUNT, better="more"),
     Column("too_large", "too large", Show.COUNT),
     Column("predicted", "predicted", Show.COUNT)), (_LOOK,))


def charts(
    items: Sequence[CaseResult], derived: Mapping[str, MemoryRecord],
) -> Iterator[BarChart]:
    """Yield a chart of each model, limit, device and number of ranks."""
    known = [(item, record.largest) for item in items
             if (record := derived.get(item.case.case_id)) and record.largest]
    yield from bar_charts(_FORM, known, _key, _bar)


def _key(item: CaseResult, found: Largest) -> tuple[str, ...]:
    return (*chart_key(item), f"limit {size_text(found.limit_bytes or 0)}")


def _bar(item: CaseResult, found: Largest, options: Options) -> Bar:
    return Bar(strategy_words(work_of(item.case).training, options),
               (found.largest_batch, found.too_large_batch, found.predicted_largest_batch),
               ((float(found.largest_batch), _LOOK),), limit=found.predicted_largest_batch)
