"""The presenter of memory, and its fields of summary.json and summary.csv (docs/memory.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.kind import CountedCall, Presenter
from hpcbench.kinds.memory.derive.deriver import NOTHING_KNOWN, PARTS, MemoryRecord
from hpcbench.kinds.memory.derive.largest import measured_training
from hpcbench.kinds.memory.plan.search import with_batch
from hpcbench.kinds.memory.plan.workload import MemoryWork, work_of
from hpcbench.kinds.memory.present import charts as _charts
from hpcbench.kinds.memory.present import largest_chart, largest_table, table
from hpcbench.kinds.training.present import charts as _training_charts
from hpcbench.kinds.training.present.presenter import MEMORY_FIELDS, TrainingPresenter
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.units import plural, size_text
from hpcbench.views.chart import Chart, HeatMapCase
from hpcbench.views.table import Line, Table

Items = Sequence[CaseResult]
Records = Mapping[str, MemoryRecord]
_OF_RECORD = ("overhead_bytes", "predicted_peak_bytes", "deviation", "capacity_bytes",
              "capacity_of", "utilisation", "least_bytes", "used_bytes", "efficiency")
LARGEST = ("largest_batch", "too_large_batch", "too_large_ended", "predicted_largest_batch",
           "batch_deviation", "tries", "limit_bytes")
"""Of searches for the largest batch."""
FIELDS = ("temporary_bytes", *(f"{part}_bytes_of_peak_predicted" for part in PARTS),
          *_OF_RECORD, "peak_rank", "peak_moment_predicted", *LARGEST)
"""Beside the fields that trainings have, too (`MEMORY_FIELDS`)."""
_FIRST_TRIED = "batch of a search for the largest one: what is tried first"


class MemoryPresenter(Presenter[MemoryWork, MemoryRecord]):
    """Presents what trainings hold; what it trains is told as of a training."""

    in_every_summary = False
    fields = FIELDS
    part_looks = TrainingPresenter.part_looks

    def __init__(self, problem: str = "") -> None:
        super().__init__(problem)
        self._trainings = TrainingPresenter()

    def listing(self) -> Iterator[Line]:
        """Yield what can be measured."""
        yield Line("memory of trainings (kind memory)", "title")
        yield Line("  what each rank holds, by what it is of, beside what was predicted of it")
        yield Line("  or the largest batch that fits (largest_batch: true): tries by new workers")
        yield Line("  models and strategies: those of trainings")

    def plan_table(self, title: str, cases: Sequence[Case], *, listed: bool) -> Table:
        """Return the cases as those of trainings; of a search the batch that is tried first."""
        found = self._trainings.plan_table(title, [first_training(case) for case in cases],
                                           listed=listed)
        if not any(work_of(case).search for case in cases):
            return found
        return replace(found, notes=(*found.notes, Line(_FIRST_TRIED, "quiet")))

    def dry_run_lines(
        self, work: MemoryWork, calls: Sequence[CountedCall] | None,
    ) -> Iterable[str]:
        """Yield what is known of the training, and where a search begins."""
        yield from self._trainings.dry_run_lines(work.training, calls)
        if (search := work.search) is not None:
            limit = size_text(search.limit_bytes) if search.limit_bytes else "what a rank can have"
            yield (f"largest batch: multiples of {plural(search.unit, 'sample')} within {limit}; "
                   f"{search.first} is tried first, and set up here is {search.unit}")

    def span_words(self, works: Sequence[MemoryWork]) -> Iterable[str]:
        """Yield the models, and how much of each step."""
        words = self._trainings.span_words([work.training for work in works])
        searched = any(work.search for work in works)
        return ["batch=largest" if searched and word.startswith("batch=") else word
                for word in words]

    def definitions(self, items: Items, derived: Records) -> Iterable[str]:
        """Yield what the columns mean."""
        searches, others = _apart(items)
        return (*(table.DEFINITIONS if others else ()),
                *(largest_table.DEFINITIONS if searches else ()))

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        """Yield what was held, then the largest batches that were found."""
        searches, others = _apart(items)
        yield from table.tables(title, others, derived)
        yield from largest_table.tables(title, searches, derived)

    def charts(self, items: Items, derived: Records) -> Iterable[Chart]:
        """Yield stacked bars, a bar a case, and bars of the largest batches."""
        searches, others = _apart(items)
        yield from _charts.charts(others, derived)
        yield from largest_chart.charts(searches, derived)

    def heat_map_case(self, case: Case) -> HeatMapCase:
        """Return what is trained, and how."""
        return _training_charts.heat_map_case(first_training(case))

    def row(self, item: CaseResult, record: MemoryRecord | None) -> dict[str, Any]:
        """Return the fields that say what is trained, and what was held; no times of trainings."""
        record = record or NOTHING_KNOWN
        training = replace(item, case=replace(item.case, workload=measured_training(item)))
        held, predicted = record.held_bytes or {}, record.predicted_bytes or {}
        return {
            **self._trainings.row(training, None),
            **{f"{part}_bytes": held.get(part) for part in PARTS},
            **{f"{part}_bytes_of_peak_predicted": predicted.get(part) for part in PARTS},
            **{name: getattr(record, name) for name in _OF_RECORD},
            "peak_bytes": record.peak_bytes, "peak_of": record.peak_of,
            "peak_rank": record.rank, "peak_moment_predicted": record.moment,
            **{name: getattr(record.largest, name, None) for name in LARGEST}}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return rows of ``memory``, behind those of trainings."""
        held = [row for row, item in zip(rows, items, strict=True)
                if row["status"] == "ok" and item.case.case_id in derived]
        return {"memory": [{name: row[name] for name in (*MEMORY_FIELDS, *FIELDS)}
                           for row in held]} if held else {}


def first_training(case: Case) -> Case:
    """Return a case as one of the training that it takes first."""
    work = work_of(case)
    return replace(case, workload=with_batch(work.training, work.search.first)
                   if work.search else work.training)


def _apart(items: Items) -> tuple[Items, Items]:
    """Return the searches, and the other cases."""
    return ([item for item in items if largest_table.is_search(item)],
            [item for item in items if not largest_table.is_search(item)])
