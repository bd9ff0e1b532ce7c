"""The presenter of recorded jobs: a table of each block, what was left out, fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hpcbench.kinds.replay.derive import ReplayRecord, own_values, recorded_s, replay_of
from hpcbench.kinds.replay.plan.planner import Replay
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural, size_text
from hpcbench.views import columns
from hpcbench.views.chart import Chart
from hpcbench.views.presenter import CountedCall, Presenter, Words
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Range,
    Row,
    Show,
    Table,
    backend_text,
    device_type,
    flag_cell,
    timed_text,
)

Items = Sequence[CaseResult]
Records = Mapping[str, ReplayRecord]
_OWN = (
    Column("gaps", "gaps", optional=True), Column("form", "call", optional=True),
    Column("calls", "calls", Show.COUNT),
    Column("left_out", "left out", Show.COUNT, "", "calls of the record that are not replayed",
           "less", optional=True),
    Column("bytes", "bytes", Show.COUNT), columns.TIME, columns.INTERVAL,
    Column("recorded", "recorded", Show.US, "us", "from the first issue to the last in the record",
           optional=True),
    Column("ratio", "replayed/recorded", Show.RATIO, "", "time p50 over recorded", "less",
           optional=True),
    Column("ratio_interval", "95 % CI", Show.RATIO, "", "of the ratio", optional=True))
_END = (columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)
DEFINITION = (
    "replay: gaps recorded = each rank's own, together = of each call the shortest of its ranks",
    "  without recorded waits, none = back to back; recorded = first issue to last in the",
    "  record, of its slowest rank")


class ReplayPresenter(Presenter[Replay, ReplayRecord]):
    """Presents recorded jobs."""

    fields = ("gaps", "traffic_sha256", "replayed_calls", "replayed_bytes", "recorded_s",
              *(one.name for one in fields(ReplayRecord)))
    in_every_summary = False

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
        ran = [item for item in items if item.status in columns.TABLED]
        if not ran:
            return
        places = grouped(((_place(item), timed_text(item)), item) for item in ran)
        yield Table(title, (*_OWN, *_END), tuple(
            Group(place, tuple(_row(item, derived) for item in same), timed)
            for (place, timed), same in places.items()))

    def overviews(self, items: Items, derived: Records) -> Iterator[Table | Chart | Line]:
        """Yield the meanings of the columns, and the calls that were not replayed."""
        yield from map(Line, DEFINITION)
        works = [replay_of(item) for item in items if item.status in columns.TABLED]
        for text in dict.fromkeys(map(calls_text, works)):
            yield Line(text)
        for reason in dict.fromkeys(one for work in works for one in work.left_out):
            yield Line(f"  left out: {reason}")

    def row(self, item: CaseResult, record: ReplayRecord | None) -> Mapping[str, object]:
        return {**own_values(replay_of(item)), **asdict(record or ReplayRecord())}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> Mapping[str, object]:
        found = [{"case_id": item.case.case_id, **{name: row[name] for name in self.fields},
                  "recorded_calls": replay_of(item).recorded_calls,
                  "signature": replay_of(item).signature,
                  "left_out": list(replay_of(item).left_out)}
                 for item, row in zip(items, rows, strict=True)]
        return {"replays": found} if found else {}


def calls_text(work: Replay) -> str:
    """Return how much of its record a case replays."""
    return (f"{Path(work.file).name}: {work.n_calls} of {plural(work.recorded_calls, 'call')} "
            f"replayed, {size_text(work.size_bytes)}, on {work.backend}")


def _place(item: CaseResult) -> str:
    work, ranks = replay_of(item), plural(item.case.world_size, "rank")
    return f"{Path(work.file).name}  {backend_text(item.case)} ({device_type(item)})  {ranks}"


def _row(item: CaseResult, derived: Records) -> Row:
    work = replay_of(item)
    known = derived.get(item.case.case_id) or ReplayRecord()
    low, high = known.replayed_over_recorded_low, known.replayed_over_recorded_high
    ends: Cell = None if low is None or high is None else Range(low, high)
    alone = work.signature is not None
    return Row((
        None if alone else work.gaps,
        " ".join((f"#{work.signature}", *work.collectives, work.dtype)) if alone else None,
        work.n_calls, None if alone else (work.recorded_calls - work.n_calls) or None,
        work.size_bytes,
        columns.median_cell(item.statistics), columns.interval_cell(item.statistics),
        recorded_s(work), known.replayed_over_recorded, ends, columns.wrong_cell(item),
        columns.n_cell(item.statistics), item.status,
        columns.launches_cell(item), flag_cell(item)), item.status, item.case.case_id)
