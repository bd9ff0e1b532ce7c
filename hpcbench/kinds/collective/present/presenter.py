"""The presenter of collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.present.charts import charts, heat_map_order, heat_map_words
from hpcbench.kinds.collective.present.plan_table import case_table, group_table
from hpcbench.kinds.collective.present.result_table import DEFINITION, result_table
from hpcbench.kinds.collective.present.summary import communication, row_of
from hpcbench.kinds.collective.present.words import size_range, type_word
from hpcbench.kinds.kind import Presenter
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Workload
from hpcbench.reduce.results import CaseResult
from hpcbench.views.chart import Chart, HeatMapWords
from hpcbench.views.table import Table
from hpcbench.views.words import distinct


class CollectivePresenter(Presenter):
    """Presents collectives."""

    ranks_word = "n"

    def plan_table(self, title: str, cases: Sequence[Case], *, listed: bool) -> Table:
        """Return the cases of a block."""
        return (case_table if listed else group_table)(title, cases)

    def type_word(self, work: Workload) -> str | None:
        """Return the dtype; None for barrier."""
        return type_word(_checked(work))

    def span_words(self, works: Sequence[Workload]) -> Iterator[str]:
        """Yield the splits and the numbers of groups, where they are not the usual ones."""
        found = list(map(_checked, works))
        splits = distinct(sorted({work.split for work in found}))
        groups = distinct(sorted({work.groups for work in found}))
        if splits != "even":
            yield f"split={splits}"
        if groups != "1":
            yield f"groups={groups}"

    def size_words(self, works: Sequence[Workload]) -> Sequence[str]:
        """Return the range of sizes."""
        return [size_range(map(_checked, works))]

    def definitions(
        self, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Sequence[str]:
        """Return what the bandwidths are."""
        return [DEFINITION]

    def tables(
        self, title: str, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Iterator[Table]:
        """Yield the table of a block."""
        return result_table(title, items, derived)

    def charts(
        self, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Iterator[Chart]:
        """Yield a chart a collective."""
        return charts(items, derived)

    def heat_map_words(self, work: Workload) -> HeatMapWords:
        """Return what is called, and how."""
        return heat_map_words(_checked(work))

    def heat_map_order(self, case: Case) -> tuple[int, ...]:
        """Return a sort key for the case that tells most."""
        return heat_map_order(case)

    def row(self, item: CaseResult, record: Any) -> Mapping[str, Any]:
        """Return what a collective is, and its bandwidths."""
        return row_of(item, record)

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Sequence[CaseResult],
        derived: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Return ``communication``: the ok rows by collective."""
        return {"communication": communication(rows)}


def _checked(work: Workload) -> Collective:
    assert isinstance(work, Collective)
    return work
