"""Drift and disturbances of a run as tables, and as a chart of what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.analysis.conditions import Conditions
from hpcbench.views.chart import Axis, Dot, DotChart, Point
from hpcbench.views.table import Column, Group, Range, Row, Show, Table

MOST_ROWS = 60
_INTERVAL = Column("interval", "99 % interval", Show.PERCENT, "%")


def tables(record: Conditions) -> Iterator[Table]:
    """Yield the series that drift, and the cases that follow a condition; nothing of others."""
    named = [one for one in record.drifts if one.is_clear]
    if named:
        yield Table("times that drift over the run", (
            Column("case", "case"), Column("passes", "passes", Show.COUNT),
            Column("change", "change", Show.PERCENT, "%", "from the first pass to the last"),
            _INTERVAL), (Group("", tuple(
                Row((one.label, one.passes, one.change, Range(one.low, one.high)),
                    case_id=one.case_id) for one in named)),))
    follows = [one for one in record.following if one.is_clear]
    if follows:
        yield Table("times that follow the state of the machine", (
            Column("case", "case"), Column("condition", "condition"),
            Column("disturbed", "passes disturbed", Show.COUNT),
            Column("effect", "slower by", Show.PERCENT, "%", "in the most disturbed pass", "less"),
            _INTERVAL,
            Column("share", "accounted for", Show.PERCENT, "%", "what the condition can cause"),
        ), (Group("", tuple(
            Row((one.label, one.condition, one.disturbed, one.effect, Range(one.low, one.high),
                 one.share), case_id=one.case_id) for one in follows)),))


def charts(record: Conditions) -> Iterator[DotChart]:
    """Yield by how much times drift, and what disturbances cost."""
    named = [one for one in record.drifts if one.is_clear]
    follows = [one for one in record.following if one.is_clear]
    dots = [*(Dot(f"drift: {one.label}", Point(one.change, Range(one.low, one.high)), ())
              for one in named),
            *(Dot(f"{one.condition}: {one.label}", Point(one.effect, Range(one.low, one.high)), ())
              for one in follows)]
    if dots:
        left = [f"The first {MOST_ROWS} of {len(dots)} are shown."] if len(dots) > MOST_ROWS else []
        yield DotChart(
            "What changed while the run went on", "share of the median time", "conditions",
            ("Whisker: 99 % interval.", *left),
            tuple(dict.fromkeys((*(one.case_id for one in named if one.case_id),
                                 *(one.case_id for one in follows)))),
            Axis("change", Show.PERCENT, "%"), (), tuple(dots[:MOST_ROWS]))
