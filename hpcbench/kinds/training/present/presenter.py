"""The presenter of trainings."""

from __future__ import annotations

from hpcbench.kinds.kind import Presenter


class TrainingPresenter(Presenter):
    """Presents trainings."""
