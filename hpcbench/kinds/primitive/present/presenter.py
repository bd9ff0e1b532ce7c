"""The presenter of primitives."""

from __future__ import annotations

from hpcbench.kinds.kind import Presenter


class PrimitivePresenter(Presenter):
    """Presents primitives."""
