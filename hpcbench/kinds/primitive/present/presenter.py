"""The presenter of primitives."""

from __future__ import annotations

from hpcbench.kinds.kind import Presenter
from hpcbench.kinds.primitive.derive.partners import PrimitiveRecord
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.present import charts as _charts
from hpcbench.kinds.primitive.present import listing as _listing
from hpcbench.kinds.primitive.present import plan_table as _plan_table
from hpcbench.kinds.primitive.present import result_table, summary, words


class PrimitivePresenter(Presenter[Primitive, PrimitiveRecord]):
    """Presents primitives."""

    fields = summary.PRIMITIVE_FIELDS
    listing = staticmethod(_listing.listing)
    plan_table = staticmethod(_plan_table.plan_table)
    span_words = staticmethod(words.span_words)
    definitions = staticmethod(result_table.definitions)
    tables = staticmethod(result_table.result_tables)
    charts = staticmethod(_charts.charts)
    heat_map_case = staticmethod(_charts.heat_map_case)
    row = staticmethod(summary.row)
    sections = staticmethod(summary.sections)
