"""What rank 0 records of each case that was to be profiled: a PROFILE_NOTE in its trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ProfileNote:
    """Whether a case was profiled and ``why``; the ``problem`` is "" if its profile is there."""

    case_id: str
    is_wanted: bool
    why: str
    problem: str = ""

    def with_problem(self, problem: str) -> ProfileNote:
        """Return the note of a case whose profile failed, if ``problem`` is not ""."""
        return replace(self, problem=problem)

    def left_out(self, why: str) -> ProfileNote:
        """Return the note of a case that is not profiled after all."""
        return replace(self, is_wanted=False, why=why)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)
