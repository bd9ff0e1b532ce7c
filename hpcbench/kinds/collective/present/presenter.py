"""The presenter of collectives."""

from __future__ import annotations

from hpcbench.kinds.collective.derive.record import CollectiveRecord
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.present import charts as _charts
from hpcbench.kinds.collective.present import plan_table as _plan_table
from hpcbench.kinds.collective.present import result_table, summary, words
from hpcbench.kinds.kind import Presenter


class CollectivePresenter(Presenter[Collective, CollectiveRecord]):
    """Presents collectives."""

    ranks_word = "n"
    plan_table = staticmethod(_plan_table.plan_table)
    type_word = staticmethod(words.type_word)
    span_words = staticmethod(words.span_words)
    size_words = staticmethod(words.size_words)
    definitions = staticmethod(result_table.definitions)
    tables = staticmethod(result_table.result_tables)
    charts = staticmethod(_charts.charts)
    heat_map_case = staticmethod(_charts.heat_map_case)
    row = staticmethod(summary.row)
    sections = staticmethod(summary.sections)
