"""The presenter of sleeps: a column of a table, a field of the summaries."""

from __future__ import annotations

from hpcbench.plugins import Presenter


class SleepPresenter(Presenter):
    """Presents sleeps."""
