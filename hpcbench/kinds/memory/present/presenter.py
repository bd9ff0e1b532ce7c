"""The presenter of memory, and its fields of summary.json and summary.csv (docs/memory.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.kind import CountedCall, Presenter
from hpcbench.kinds.memory.derive.deriver import NOTHING_KNOWN, PARTS, MemoryRecord
from hpcbench.kinds.memory.plan.workload import MemoryWork, of_training
from hpcbench.kinds.memory.present import charts as _charts
from hpcbench.kinds.memory.present import table
from hpcbench.kinds.training.present.presenter import MEMORY_FIELDS, TrainingPresenter
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.views.chart import Chart
from hpcbench.views.table import Line, Table

Items = Sequence[CaseResult]
Records = Mapping[str, MemoryRecord]
_OF_RECORD = ("overhead_bytes", "predicted_peak_bytes", "deviation", "capacity_bytes",
              "capacity_of", "utilisation", "least_bytes", "used_bytes", "efficiency")
FIELDS = ("temporary_bytes", *(f"{part}_bytes_of_peak_predicted" for part in PARTS),
          *_OF_RECORD, "peak_rank", "peak_moment_predicted")
"""Beside the fields that trainings have, too (`MEMORY_FIELDS`)."""


class MemoryPresenter(Presenter[MemoryWork, MemoryRecord]):
    """Presents what trainings hold; what it trains is told as of a training."""

    in_every_summary = False
    fields = FIELDS
    tables = staticmethod(table.tables)

    def __init__(self, problem: str = "") -> None:
        super().__init__(problem)
        self._trainings = TrainingPresenter()

    def listing(self) -> Iterator[Line]:
        """Yield what can be measured."""
        yield Line("memory of trainings (kind memory)", "title")
        yield Line("  what each rank holds, by what it is of, beside what was predicted of it")
        yield Line("  models and strategies: those of trainings")

    def plan_table(self, title: str, cases: Sequence[Case], *, listed: bool) -> Table:
        """Return the cases as those of trainings."""
        return self._trainings.plan_table(title, [of_training(case) for case in cases],
                                          listed=listed)

    def dry_run_lines(
        self, work: MemoryWork, calls: Sequence[CountedCall] | None,
    ) -> Iterable[str]:
        """Yield what is known of the training."""
        return self._trainings.dry_run_lines(work.training, calls)

    def span_words(self, works: Sequence[MemoryWork]) -> Iterable[str]:
        """Yield the models, and how much of each step."""
        return self._trainings.span_words([work.training for work in works])

    def definitions(self, items: Items, derived: Records) -> Iterable[str]:
        """Yield what the columns mean."""
        return table.DEFINITIONS

    def charts(self, items: Items, derived: Records) -> Iterable[Chart]:
        """Yield stacked bars, a bar a case."""
        return _charts.charts(items, derived)

    def row(self, item: CaseResult, record: MemoryRecord | None) -> dict[str, Any]:
        """Return the fields that say what is trained, and what was held; no times of trainings."""
        record = record or NOTHING_KNOWN
        training = replace(item, case=of_training(item.case))
        held, predicted = record.held_bytes or {}, record.predicted_bytes or {}
        return {
            **self._trainings.row(training, None),
            **{f"{part}_bytes": held.get(part) for part in PARTS},
            **{f"{part}_bytes_of_peak_predicted": predicted.get(part) for part in PARTS},
            **{name: getattr(record, name) for name in _OF_RECORD},
            "peak_bytes": record.peak_bytes, "peak_of": record.peak_of,
            "peak_rank": record.rank, "peak_moment_predicted": record.moment}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return rows of ``memory``, behind those of trainings."""
        held = [row for row, item in zip(rows, items, strict=True)
                if row["status"] == "ok" and item.case.case_id in derived]
        return {"memory": [{name: row[name] for name in (*MEMORY_FIELDS, *FIELDS)}
                           for row in held]} if held else {}
