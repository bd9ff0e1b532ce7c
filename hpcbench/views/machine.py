"""Slow parts of the machine as a table and as a chart."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.analysis.machine import Machine
from hpcbench.views.chart import Axis, Dot, DotChart, Point
from hpcbench.views.table import Column, Group, Range, Row, Show, Table

_COLUMNS = (
    Column("what", "what"), Column("case", "measured by"),
    Column("drop", "lost", Show.PERCENT, "%", "of the rate of the others", "less"),
    Column("interval", "99 % interval", Show.PERCENT, "%"))


def tables(found: Machine) -> Iterator[Table]:
    """Yield a row for each part that is slow; nothing where none is."""
    if found.parts:
        yield Table("slow parts of the machine", _COLUMNS, (Group("", tuple(
            Row((part.what, part.label, part.drop, Range(part.low, part.high)))
            for part in found.parts)),))


def charts(found: Machine) -> Iterator[DotChart]:
    """Yield the lost share of each part, with its interval; nothing where none is slow."""
    if found.parts:
        yield DotChart(
            "Slow parts of the machine", "share of the rate of the others that is lost", "machine",
            ("Whisker: 99 % interval.",), (), Axis("lost", Show.SIGNIFICANT_PERCENT, "%"),
            (Column("case", "measured by"),), tuple(
                Dot(part.what, Point(part.drop, Range(part.low, part.high)), (part.label,))
                for part in found.parts))
