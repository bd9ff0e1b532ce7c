"""Bars of the largest batches that fitted, a bar a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.grouping import grouped
from hpcbench.kinds.memory.derive.deriver import MemoryRecord
from hpcbench.kinds.memory.derive.largest import Largest
from hpcbench.kinds.memory.plan.workload import work_of
from hpcbench.kinds.memory.present.charts import MOST_BARS, chart_key, strategy_words
from hpcbench.kinds.training.present.words import telling_options
from hpcbench.reduce.results import CaseResult
from hpcbench.units import size_text
from hpcbench.views.chart import COLOURS, Axis, Bar, BarChart, BarSection, Look, file_name
from hpcbench.views.table import Column, Show

_LOOK = Look("largest batch", COLOURS[0])
_COLUMNS = (Column("largest", "largest", Show.COUNT, better="more"),
            Column("too_large", "too large", Show.COUNT),
            Column("predicted", "predicted", Show.COUNT))
_CAPTION = ("Bar: the most samples of a replica that fitted on every rank. Dashed: what was "
            "predicted. Too large: the fewest that were tried and did not fit.")


def charts(
    items: Sequence[CaseResult], derived: Mapping[str, MemoryRecord],
) -> Iterator[BarChart]:
    """Yield a chart of each model, limit, device and number of ranks."""
    known = [(item, record.largest) for item in items
             if (record := derived.get(item.case.case_id)) and record.largest]
    for key, same in grouped((_key(*one), one) for one in known).items():
        options = telling_options(work_of(item.case).training for item, _ in same)
        for first in range(0, len(same), MOST_BARS):
            part = same[first:first + MOST_BARS]
            number = f"-{first // MOST_BARS + 1}" if len(same) > MOST_BARS else ""
            yield BarChart(
                f"{key[0]}: largest batch that fits, by strategy", ", ".join(key[1:]),
                file_name(f"largest_batch-{'-'.join(key)}{number}"), (_CAPTION,),
                tuple(item.case.case_id for item, _ in part),
                Axis("samples of a replica", Show.COUNT), _COLUMNS,
                (BarSection("", tuple(Bar(
                    strategy_words(work_of(item.case).training, options),
                    (found.largest_batch, found.too_large_batch, found.predicted_largest_batch),
                    ((float(found.largest_batch), _LOOK),), limit=found.predicted_largest_batch)
                    for item, found in part)),), (_LOOK,), limit="predicted")


def _key(item: CaseResult, found: Largest) -> tuple[str, ...]:
    return (*chart_key(item), f"limit {size_text(found.limit_bytes or 0)}")
