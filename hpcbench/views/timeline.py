"""The timeline of all ranks in chosen samples of one case, as bars."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.timeline import RankCourse, SampleCourse
from hpcbench.views.chart import COLOURS, Axis, Bar, BarChart, BarSection, Look, file_name
from hpcbench.views.table import Column, Show

MOST_RANKS = 32
"""More ranks than this are no longer told apart in one picture."""
_BEFORE = Look("before it begins", "#ffffff", 0.0)
_COLUMNS = (Column("whole", "takes", Show.US, "us"), Column("begin", "begins after", Show.US, "us"))


def timeline_chart(item: CaseResult, courses: tuple[SampleCourse, ...]) -> BarChart | None:
    """Return a bar a rank for each chosen sample; None where there is none, or of too many ranks.
    """
    if not courses or len(courses[0].ranks) > MOST_RANKS:
        return None
    names = dict.fromkeys(name for course in courses for rank in course.ranks
                          for name, seconds in rank.parts if seconds > 0)
    looks = {name: Look(name or ("other" if len(names) > 1 else "in the call"),
                        COLOURS[at % len(COLOURS)]) for at, name in enumerate(names)}
    sections = tuple(BarSection(
        f"the {course.word} sample, number {course.number}",
        tuple(_bars(course, looks))) for course in courses)
    return BarChart(
        "When each rank was where, on one clock", item.case.label,
        f"timeline_{file_name(item.case.kind)}", (
            "Each bar: one rank in one sample, from the moment at which the first rank began. "
            "Chosen are the middle and the longest of the samples that count.",),
        (item.case.case_id,), Axis("time since the first rank began", Show.US, "us"), _COLUMNS,
        sections, tuple(looks.values()))


def _bars(course: SampleCourse, looks: dict[str, Look]) -> Iterator[Bar]:
    for rank in course.ranks:
        yield Bar(f"rank {rank.rank}", (_whole(rank), rank.begin_s), (
            (rank.begin_s, _BEFORE),
            *((seconds, looks[name]) for name, seconds in rank.parts if seconds > 0)))


def _whole(rank: RankCourse) -> float:
    return sum(seconds for _, seconds in rank.parts)
