"""The timeline of all ranks in chosen samples of one case, as bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.timeline import RankCourse, SampleCourse
from hpcbench.views.chart import COLOURS, Axis, Bar, BarChart, BarSection, Look, file_name
from hpcbench.views.table import Column, Show

MOST_RANKS = 32
"""More ranks than this are no longer told apart in one picture."""
_BEFORE = Look("before it begins", "#ffffff", 0.0)
_WHOLE, _REST = Look("in the call", COLOURS[0]), Look("other", "#bbbbbb")
_COLUMNS = (Column("whole", "takes", Show.US, "us"), Column("begin", "begins after", Show.US, "us"))


def timeline_chart(
    item: CaseResult, courses: tuple[SampleCourse, ...], called: str, known: Mapping[str, Look],
) -> BarChart | None:
    """Return a bar a rank for each chosen sample; None where there is none, or of too many ranks.

    ``called`` is what the case is called, ``known`` how parts look that other charts show, too.
    """
    if not courses or len(courses[0].ranks) > MOST_RANKS:
        return None
    names = dict.fromkeys(name for course in courses for rank in course.ranks
                          for name, seconds in rank.parts if seconds > 0)
    looks = _looks([*names], known)
    sections = tuple(BarSection(
        f"the {course.word} sample, number {course.number}",
        tuple(_bars(course, looks))) for course in courses)
    return BarChart(
        "When each rank was where, on one clock", called,
        f"timeline_{file_name(item.case.kind)}", (
            "Each bar: one rank in one sample, from the moment at which the first rank began. "
            "Chosen are the middle and the longest of the samples that count.",),
        (item.case.case_id,), Axis("time since the first rank began", Show.US, "us"), _COLUMNS,
        sections, tuple(looks.values()))


def _looks(names: Sequence[str], known: Mapping[str, Look]) -> dict[str, Look]:
    """Return how each part looks: as in other charts, else in a colour that is not taken."""
    if names == [""]:
        return {"": _WHOLE}
    own = {"": _REST, **known}
    taken = {own[name].colour for name in names if name in own}
    free = cycle([one for one in COLOURS if one not in taken] or COLOURS)
    return {name: own[name] if name in own else Look(name, next(free)) for name in names}


def _bars(course: SampleCourse, looks: dict[str, Look]) -> Iterator[Bar]:
    for rank in course.ranks:
        yield Bar(f"rank {rank.rank}", (_whole(rank), rank.begin_s), (
            (rank.begin_s, _BEFORE),
            *((seconds, looks[name]) for name, seconds in rank.parts if seconds > 0)))


def _whole(rank: RankCourse) -> float:
    return sum(seconds for _, seconds in rank.parts)
