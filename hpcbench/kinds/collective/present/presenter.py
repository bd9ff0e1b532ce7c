"""The presenter of collectives."""

from __future__ import annotations

from hpcbench.kinds.kind import Presenter


class CollectivePresenter(Presenter):
    """Presents collectives."""
