"""The presenter of primitives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.kind import Presenter
from hpcbench.kinds.primitive.plan.registry import load_registry
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.present.charts import charts, heat_map_order, heat_map_words
from hpcbench.kinds.primitive.present.listing import primitive_lines
from hpcbench.kinds.primitive.present.plan_table import case_table, group_table
from hpcbench.kinds.primitive.present.result_table import DEFINITIONS, result_table
from hpcbench.kinds.primitive.present.summary import PRIMITIVE_FIELDS, listed_primitives, row_of
from hpcbench.kinds.primitive.present.words import span_words
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Workload
from hpcbench.reduce.results import CaseResult
from hpcbench.views.chart import Chart, HeatMapWords
from hpcbench.views.table import Line, Table


class PrimitivePresenter(Presenter):
    """Presents primitives."""

    fields = PRIMITIVE_FIELDS

    def listing(self) -> Iterator[Line | Table]:
        """Yield primitives, implementations, and which of them there are together."""
        return primitive_lines(load_registry())

    def plan_table(self, title: str, cases: Sequence[Case], *, listed: bool) -> Table:
        """Return the cases of a block."""
        return (case_table if listed else group_table)(title, cases)

    def span_words(self, works: Sequence[Workload]) -> Iterator[str]:
        """Yield implementations, orders and problems."""
        return span_words([work for work in works if isinstance(work, Primitive)])

    def definitions(
        self, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Sequence[str]:
        """Return what rates and comparisons are."""
        return DEFINITIONS

    def tables(
        self, title: str, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Iterator[Table]:
        """Yield the table of a block."""
        return result_table(title, items, derived)

    def charts(
        self, items: Sequence[CaseResult], derived: Mapping[str, Any],
    ) -> Iterator[Chart]:
        """Yield a chart a problem."""
        return charts(items, derived)

    def heat_map_words(self, work: Workload) -> HeatMapWords:
        """Return what is called, and how."""
        assert isinstance(work, Primitive)
        return heat_map_words(work)

    def heat_map_order(self, case: Case) -> tuple[int, ...]:
        """Return a sort key for the case that tells most."""
        return heat_map_order(case)

    def row(self, item: CaseResult, record: Any) -> Mapping[str, Any]:
        """Return the problem, who solves it, rates and comparisons."""
        return row_of(item, record)

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Sequence[CaseResult],
        derived: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Return ``primitives``: the ok rows by primitive."""
        return {"primitives": listed_primitives(rows)}
