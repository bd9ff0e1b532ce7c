"""What stands below a figure in two lines, and all of it in a text file beside the figure."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from hpcbench.report.plots.fit import cut, sentences
from hpcbench.report.plots.style import GREY, Style
from hpcbench.trace.files import whole_file
from hpcbench.views.chart import Chart

MORE = "More: the .txt file beside."
LINE_INCHES, LOWEST_INCHES = 0.168, 0.128


def footer(figure: Figure, chart: Chart, origin: str, style: Style) -> None:
    """Write what the marks are, as far as it fits, and which run it was, a line each."""
    inches = figure.get_figheight()
    room = figure.get_figwidth() - 2 * style.side
    notes = sentences(" ".join(chart.notes), room, style.small, MORE)
    for line, color, row in ((notes, "black", 1), (cut(origin, room, style.small), GREY, 0)):
        figure.text(style.side / figure.get_figwidth(),
                    (LOWEST_INCHES + LINE_INCHES * row) / inches, line, fontsize=style.small,
                    color=color, va="center")


def caption(chart: Chart, origin: str) -> str:
    """Return all that is to be said of a figure, a line each."""
    return "\n".join([f"{chart.title} ({chart.subtitle})" if chart.subtitle else chart.title,
                      *chart.notes, origin, ""])


def save_caption(path: Path, chart: Chart, origin: str) -> None:
    """Write the caption beside the figure at ``path``. Raises FileError."""
    with whole_file(path.with_suffix(".txt"), make_folder=True) as part:
        part.write_text(caption(chart, origin), encoding="utf-8")
