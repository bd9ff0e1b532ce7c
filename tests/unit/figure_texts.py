"""What a figure says."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.text import Text


def texts_of(figure: Figure) -> str:
    """Return every text of a figure, a line each."""
    figure.draw_without_rendering()
    return "\n".join(text.get_text() for text in figure.findobj(Text))
