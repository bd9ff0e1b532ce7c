"""Charts of results, their figures, and what a figure says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text

from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.charts import charts_of, origin_text
from hpcbench.report.plots import draw
from hpcbench.report.plots.style import caption
from hpcbench.views.chart import Chart
from hpcbench.views.presenter import presenter_of
from results_factory import MemorySamples, make_results


def charts_of_kind(kind: str, items: Sequence[CaseResult]) -> list[Any]:
    """Return the charts that a kind chooses for these cases."""
    results = make_results(tuple(items))
    own = [item for item in items if item.case.kind == kind]
    return [shown for shown in presenter_of(kind).overviews(own, results.derived.get(kind, {}))
            if isinstance(shown, Chart)]


def first_figure(results: Results) -> Figure:
    """Return the figure of the first chart of a run."""
    return figure_of(next(iter(charts_of(results, MemorySamples(results)))), results)


def figure_of(chart: Chart, results: Results) -> Figure:
    return draw(chart, origin_text(results))


def all_texts_of(chart: Chart, results: Results) -> str:
    """Return every text of a chart's figure, and of the file beside it, in one line."""
    said = f"{texts_of(figure_of(chart, results))} {caption(chart, origin_text(results))}"
    return " ".join(said.split())


def texts_of_first(results: Results) -> str:
    """Return the same of the first chart of a run."""
    return all_texts_of(next(iter(charts_of(results, MemorySamples(results)))), results)


def texts_of(figure: Figure) -> str:
    """Return every text of a figure, a line each."""
    figure.draw_without_rendering()
    return "\n".join(text.get_text() for text in figure.findobj(Text))
