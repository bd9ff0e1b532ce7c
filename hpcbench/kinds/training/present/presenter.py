"""The presenter of trainings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.kind import CountedCall, Presenter
from hpcbench.kinds.training.derive.record import NOTHING_KNOWN
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present.charts import charts, heat_map_order, heat_map_words
from hpcbench.kinds.training.present.listing import training_lines
from hpcbench.kinds.training.present.plan_table import case_table, group_table, tried_lines
from hpcbench.kinds.training.present.result_table import definitions, result_table
from hpcbench.kinds.training.present.scaling import scaling_table
from hpcbench.kinds.training.present.summary import TRAINING_FIELDS, row_of, training_results
from hpcbench.kinds.training.present.words import span_words
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Workload
from hpcbench.reduce.results import CaseResult
from hpcbench.views.chart import Chart, HeatMapWords
from hpcbench.views.table import Line, Table


class TrainingPresenter(Presenter):
    """Presents trainings."""

    fields = TRAINING_FIELDS

    def listing(self) -> Iterator[Line | Table]:
        """Yield models and strategies."""
        return training_lines()

    def plan_table(self, title: str, cases: Sequence[Case], *, listed: bool) -> Table:
        """Return the cases of a block."""
        return (case_table if listed else group_table)(title, cases)

    def dry_run_lines(
        self, work: Workload, calls: Sequence[CountedCall] | None,
    ) -> Iterator[str]:
        """Yield what a step called, and what each of its ranks will need."""
        assert isinstance(work, Training)
        return tried_lines(work, calls)

    def span_words(self, works: Sequence[Workload]) -> Iterator[str]:
        """Yield models, lengths of samples and batches."""
        return span_words([work for work in works if isinstance(work, Training)])

    def definitions(
        self, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Iterator[str]:
        """Yield what rates, phases and comparisons are."""
        return definitions(items, derived)

    def tables(
        self, title: str, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Iterator[Table]:
        """Yield the table of a block."""
        return result_table(title, items, derived)

    def overviews(
        self, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Iterator[Table]:
        """Yield the table of scaling over ranks."""
        return scaling_table(items, derived)

    def charts(
        self, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Iterator[Chart]:
        """Yield a chart a model and number of ranks."""
        return charts(items, derived)

    def heat_map_words(self, work: Workload) -> HeatMapWords:
        """Return what is trained, and how."""
        assert isinstance(work, Training)
        return heat_map_words(work)

    def heat_map_order(self, case: Case) -> tuple[int, ...]:
        """Return a sort key for the case that tells most."""
        return heat_map_order(case)

    def row(self, item: CaseResult, record: Any) -> Mapping[str, Any]:
        """Return model, step, rates, phases, memory and comparisons."""
        return row_of(item, record or NOTHING_KNOWN)

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Sequence[CaseResult],
        derived: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Return ``training``, ``memory``, and why there is none of either."""
        return training_results(rows, items, derived)
