"""How many ranks took part, by busbw / algbw: for all_reduce n = 2 / (2 - busbw / algbw)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator

from hpcbench.interop.formats.tables import CommTable, PrintedForm
from hpcbench.operations.collectives import collectives
from hpcbench.records import dataclass

MOST_RANKS = 2**20
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class ImpliedRanks:
    """The n that a table's rates imply: ``chosen`` is the stated n, or that of most rows.

    ``agreeing`` of ``asked`` measurements allow n from ``least`` to ``most``."""

    chosen: int | None
    least: int
    most: int
    agreeing: int
    asked: int

    @property
    def text(self) -> str:
        if self.most >= MOST_RANKS:
            return f"{self.least} or more"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


def has_factor(collective: str) -> bool:
    """Return whether busbw is a known multiple of algbw."""
    spec = collectives().get(collective)
    return collective == "hypercube" or spec is not None and spec.busbw is not None


def implied(collective: str, half: PrintedForm) -> tuple[int, int] | None:
    """Return the least and the greatest n that both rates allow; least > greatest if none is.

    None where the collective has no busbw, or a rate is missing or 0 to its printed digits."""
    span = _ratio(half) if has_factor(collective) else None
    if span is None:
        return None
    factor = factor_of(collective)
    every_n = range(1, MOST_RANKS + 1)
    return (1 + bisect_left(every_n, span[0], key=factor),
            bisect_right(every_n, span[1], key=factor))


def factor_of(collective: str) -> Callable[[int], float]:
    """Return busbw / algbw by n, which never falls; always 1 where it is not known."""
    spec = collectives().get(collective)
    return (lambda _: 1.0) if spec is None or spec.busbw is None else spec.busbw


def _ratio(half: PrintedForm) -> tuple[float, float] | None:
    """Return the least and greatest busbw / algbw; None of a rate that is missing or 0."""
    if half.algbw is None or half.busbw is None or half.algbw.low <= 0:
        return None
    return (half.busbw.low / half.algbw.high - _SLACK, half.busbw.high / half.algbw.low + _SLACK)


def allow(collective: str, halves: Iterable[PrintedForm], ranks: int) -> Iterator[bool]:
    """Yield for each measurement with rates whether they allow this n."""
    if has_factor(collective):
        factor = factor_of(collective)(ranks)
        yield from (span[0] <= factor <= span[1] for half in halves if (span := _ratio(half)))


def most_likely(table: CommTable) -> ImpliedRanks:
    """Return the n of a table: the stated one, unless rows that contradict it agree on another."""
    stated = table.ranks
    if stated is not None and not table.is_uneven:
        fit = [*allow(table.collective, (half for row in table.rows for half in row.halves),
                      stated)]
        if fit and all(fit):
            return ImpliedRanks(stated, stated, stated, len(fit), len(fit))
    spans = [] if table.is_uneven else [
        span for row in table.rows for half in row.halves
        if (span := implied(table.collective, half)) is not None]
    possible = [span for span in spans if span[0] <= span[1]]
    if not possible:
        return ImpliedRanks(stated, 1, MOST_RANKS, 0, len(spans))
    least, most, agreeing = _densest(possible)
    if stated is not None:
        others = [(low, high) for low, high in possible if not low <= stated <= high]
        is_one_other = bool(others) and 3 * _densest(others)[2] > 2 * len(others) and (
            len(others) >= 2 or len(others) == len(spans))
        if not is_one_other:
            return ImpliedRanks(stated, least, most, agreeing, len(spans))
    return ImpliedRanks(least if least == most else None, least, most, agreeing, len(spans))


def _densest(spans: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Return the range that most spans share, and how many do."""
    changes = sorted([(low, 0, 1) for low, _ in spans] + [(high, 1, -1) for _, high in spans])
    depth, best, start = 0, 0, 1
    for at, _, step in changes:
        depth += step
        if step > 0 and depth > best:
            best, start = depth, at
    end = min((high for low, high in spans if low <= start <= high), default=start)
    return start, end, best

