"""The presenter of recorded jobs: a table of each block, what was left out, fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcbench.kinds.replay.derive import ENDS, METRICS, RATIO, RECORDED, replay_of
from hpcbench.kinds.replay.plan import Replay
from hpcbench.reduce.metric import Records, Values
from hpcbench.reduce.results import CaseResult
from hpcbench.units import plural, size_text
from hpcbench.views import columns, metric_tables
from hpcbench.views.chart import Chart
from hpcbench.views.presenter import CountedCall, Presenter, Words
from hpcbench.views.table import (
    Cell,
    Column,
    Line,
    Range,
    Show,
    Table,
    backend_text,
    device_type,
)

Items = Sequence[CaseResult]


def _own(
    of: Callable[[Replay], Cell], name: str, title: str, show: Show = Show.TEXT, **more: Any,
) -> metric_tables.ShownColumn:
    """Return a column whose cell follows from the replay."""
    return metric_tables.of_case(Column(name, title, show, **more),
                                 lambda item: of(replay_of(item)))


def _form(work: Replay) -> str | None:
    """Return the one call that is replayed alone."""
    return None if work.signature is None else " ".join(
        (f"#{work.signature}", *work.collectives, work.dtype))


def _ratio_ends(item: CaseResult, values: Values) -> Cell:
    """Return the ends of the ratio's interval where that of the time can be trusted."""
    of_time, ends = columns.interval_cell(item.statistics), [
        end for one in ENDS if (end := values.get(one.name)) is not None]
    return Range(*ends) if isinstance(of_time, Range) and len(ends) == 2 else (
        of_time if ends else None)


RESULTS = (
    _own(lambda work: work.gaps if work.signature is None else None, "gaps", "gaps", optional=True),
    _own(_form, "form", "call", optional=True),
    _own(lambda work: work.n_calls, "calls", "calls", Show.COUNT),
    _own(lambda work: (work.recorded_calls - work.n_calls) or None if work.signature is None
         else None, "left_out", "left out", Show.COUNT,
         meaning="calls of the record that are not replayed", better="less", optional=True),
    _own(lambda work: work.size_bytes, "bytes", "bytes", Show.COUNT),
    metric_tables.TIME, metric_tables.INTERVAL, RECORDED, RATIO,
    metric_tables.ShownColumn(Column("ratio_interval", "95 % CI", Show.RATIO, "", "of the ratio",
                                     optional=True),
                              _ratio_ends),
    metric_tables.WRONG, *metric_tables.OUTCOME)
DEFINITION = (
    "replay: gaps recorded = each rank's own, together = of each call the shortest of its ranks",
    "  without recorded waits, none = back to back; recorded = first issue to last in the",
    "  record, of its slowest rank")


class ReplayPresenter(Presenter[Replay, Values]):
    """Presents recorded jobs."""

    def listing(self) -> Iterator[Line]:
        yield Line("recorded jobs (kind replay)", "title")
        yield Line("  the calls of a traffic.json in their recorded order: docs/replay.md")

    def dry_run_lines(
        self, work: Replay, calls: Sequence[CountedCall] | None,
    ) -> Iterator[str]:
        yield calls_text(work)
        yield from (f"left out: {reason}" for reason in work.left_out)

    def words(self, works: Sequence[Replay]) -> Words:
        return Words(what=["replay"], types=[work.dtype for work in works])

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        return metric_tables.result_tables(title, items, derived, RESULTS, _place)

    def overviews(self, items: Items, derived: Records) -> Iterator[Table | Chart | Line]:
        """Yield the meanings of the columns, and the calls that were not replayed."""
        yield from map(Line, DEFINITION)
        works = [replay_of(item) for item in items if item.status in columns.TABLED]
        for text in dict.fromkeys(map(calls_text, works)):
            yield Line(text)
        for reason in dict.fromkeys(one for work in works for one in work.left_out):
            yield Line(f"  left out: {reason}")

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> Mapping[str, object]:
        shown = [{"case_id": item.case.case_id,
                  **{name: row[name] for name in metric_tables.fields_of(METRICS)},
                  "recorded_calls": replay_of(item).recorded_calls,
                  "signature": replay_of(item).signature,
                  "left_out": list(replay_of(item).left_out)}
                 for item, row in zip(items, rows, strict=True)]
        return {"replays": shown} if shown else {}


def calls_text(work: Replay) -> str:
    """Return how much of its record a case replays."""
    return (f"{Path(work.file).name}: {work.n_calls} of {plural(work.recorded_calls, 'call')} "
            f"replayed, {size_text(work.size_bytes)}, on {work.backend}")


def _place(item: CaseResult) -> str:
    work, ranks = replay_of(item), plural(item.case.world_size, "rank")
    return f"{Path(work.file).name}  {backend_text(item.case)} ({device_type(item)})  {ranks}"
