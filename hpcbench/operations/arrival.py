"""Ranks that enter a call late on purpose: who is late at which sample, and by how much."""

from __future__ import annotations

from typing import NamedTuple

from hpcbench.units import duration_text, parse_duration_ns, plural

LAST, ROTATING, ALL = "last", "rotating", "all"
WHO = (LAST, ROTATING, ALL)
"""Who can be late, beside a rank by its number."""
MOST_NS = 10**9


class ArrivalPattern(NamedTuple):
    """The ``late`` rank (of each group), a name of WHO or a rank, enters ``by_ns`` late."""

    late: str | int
    by_ns: int

    @classmethod
    def from_text(cls, text: str) -> ArrivalPattern:
        """Return the pattern of a `text`. Raises ValueError for another one."""
        late, _, by = text.partition(":")
        pattern = TOGETHER if text == TOGETHER.text else cls(
            int(late) if late.isdigit() else late, parse_duration_ns(by))
        if pattern.text != text:
            raise ValueError(f"{text} is no arrival")
        return pattern

    @property
    def text(self) -> str:
        """Return one word, such as ``together``, ``last:250us`` or ``3:1ms``."""
        return f"{self.late}:{duration_text(self.by_ns)}" if self.late != "" else "together"

    @property
    def label(self) -> str:
        """Return the word of a case's label, "" for TOGETHER."""
        return "" if self == TOGETHER else f"late={self.text}"

    @property
    def plain(self) -> str | dict[str, str | int]:
        """Return the value of a sweep file."""
        return self.text if self == TOGETHER else {
            "late": self.late, "by": duration_text(self.by_ns)}

    @property
    def words(self) -> str:
        """Return it in words, for a title: ``last rank late by 250us``; "" for TOGETHER."""
        by = duration_text(self.by_ns)
        if self == TOGETHER:
            return ""
        if self.late == ALL:
            return f"ranks late by 0 to {by}"
        who = {LAST: "last rank", ROTATING: "another rank each sample"}
        return f"{who.get(str(self.late), f'rank {self.late}')} late by {by}"

    def delay_ns(self, rank: int, ranks: int, row: int) -> int:
        """Return how late one of ``ranks`` enters sample ``row`` of a pass, warm-ups counted.

        ``rank`` is its number in its group. With ``all``, rank i is late by i / (ranks - 1) x
        ``by_ns``; with ``rotating``, rank ``row`` modulo ``ranks`` is the late one."""
        if self.late == ALL:
            return self.by_ns * rank // (ranks - 1) if ranks > 1 else 0
        late = {LAST: ranks - 1, ROTATING: row % ranks}.get(str(self.late), self.late)
        return self.by_ns if rank == late else 0

    def unfit(self, ranks: int, mode: str) -> str | None:
        """Return why ranks cannot enter late so, in a group of so many, or None."""
        if mode != "isolated":
            return f"arrival: ranks enter late in mode isolated, not in {mode}"
        if ranks < 2:
            return "arrival: a late rank needs another one that is punctual"
        if isinstance(self.late, int) and self.late >= ranks:
            return f"arrival: rank {self.late} is not one of {plural(ranks, 'rank')} of a group"
        return None


TOGETHER = ArrivalPattern("", 0)
"""All ranks enter at the same time: the default."""
