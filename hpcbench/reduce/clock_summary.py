"""How the clocks of a run were compared, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """How the ranks' clocks were compared; a summary of the tables in ``/clock``.

    The ranks of a node share one of the ``n_clocks``. ``n_syncs`` is 0 where there is one clock
    only. ``bound_s`` is the largest bound of a rank's offset at a synchronisation,
    ``check_error_s`` the largest error that the checks after them measured, and ``drift_ppm`` the
    largest |slope| of a rank's clock against rank 0's, in parts per million.
    """

    n_clocks: int
    n_syncs: int
    bound_s: float | None
    check_error_s: float | None
    drift_ppm: float | None
