"""Implementations whose output is a new tensor of each call."""

from __future__ import annotations

from hpcbench.workloads.primitives.implementations.base import AnyInputs, Implementation


class Returning(Implementation[AnyInputs]):
    """``run`` replaces ``output`` by what torch has allocated."""

    def restore(self) -> None:
        """Wipe what the last call returned: a later call can get the same memory."""
        self.output.fill_(float("nan"))
