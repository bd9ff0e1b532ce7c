"""The presenter of trainings."""

from __future__ import annotations

from hpcbench.kinds.kind import Presenter
from hpcbench.kinds.training.derive.deriver import TrainingRecord
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present import charts as _charts
from hpcbench.kinds.training.present import listing as _listing
from hpcbench.kinds.training.present import plan_table as _plan_table
from hpcbench.kinds.training.present import result_table, scaling, summary, words


class TrainingPresenter(Presenter[Training, TrainingRecord]):
    """Presents trainings."""

    fields = summary.TRAINING_FIELDS
    listing = staticmethod(_listing.listing)
    plan_table = staticmethod(_plan_table.plan_table)
    dry_run_lines = staticmethod(_plan_table.dry_run_lines)
    span_words = staticmethod(words.span_words)
    definitions = staticmethod(result_table.definitions)
    tables = staticmethod(result_table.result_tables)
    overviews = staticmethod(scaling.overviews)
    charts = staticmethod(_charts.charts)
    heat_map_case = staticmethod(_charts.heat_map_case)
    row = staticmethod(summary.row)
    sections = staticmethod(summary.sections)
