"""Figures of comparisons of several results, which belong to no run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbench.report.plots import write
from hpcbench.views.comparison import comparison_chart

if TYPE_CHECKING:
    from hpcbench.analysis.answers import Compared


def plot_comparisons(answer: Compared, path: Path) -> list[Path]:
    """Draw each comparison and return the paths; those behind the first are numbered.

    Raises FileError.
    """
    return [*_drawn(answer, path)]


def _drawn(answer: Compared, path: Path) -> Iterator[Path]:
    charts = [chart for one in answer.comparisons if (chart := comparison_chart(one)) is not None]
    for number, chart in enumerate(charts, 1):
        name = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        yield write(chart, f"sides: {', '.join(answer.sides)}", name)
