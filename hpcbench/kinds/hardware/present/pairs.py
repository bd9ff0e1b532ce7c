"""Tables and charts of messages between every two ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcbench.kinds.hardware.derive.deriver import HardwareRecord
from hpcbench.kinds.hardware.derive.pairs import Distance, PairsRecord
from hpcbench.kinds.hardware.plan.pairs import pairs_of
from hpcbench.kinds.hardware.present.common import where
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural, size_text
from hpcbench.views import columns
from hpcbench.views.chart import Axis, HeatMap, Scale, file_name, is_wide
from hpcbench.views.table import Column, Group, Range, Row, Show, Table
from hpcbench.views.words import device_type, env_text, flag_cell, timed_text

Records = Mapping[str, HardwareRecord]
DEFINITIONS = (
    "pairs: a link is one rank with one other, by the clock of the first; one way latency = round "
    "trip / 2;",
    "  both at once: the time of one exchange; bandwidth = messages x size / the time until they "
    "are acknowledged,",
    "  each way; medians over samples; worst: the ranks with the longest latency or the least "
    "bandwidth;",
    "  times are the host's: a latency holds what torch takes to start each message "
    "(batch_isend_irecv)")
FIELDS = ("pairs_what", "pairs_direction", "pairs_at_once", "pairs_cache", "message_bytes",
          "messages", "distances", "links", "link_least", "link_median", "link_greatest",
          "worst_link")
NOTHING = PairsRecord()
_BESIDE = {"latency": ", with what torch takes on the host to start a message"}
"""What is measured -> what has to be known beside its number."""
_WIDE = 10.0
_LOOKS = {"latency": (Show.US, "us"), "bandwidth": (Show.GB_PER_S, "GB/s")}
"""What is measured -> how it is shown."""


def tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield a table of latencies and one of bandwidths: a row for each distance of a case."""
    kept = [item for item in items if item.status in columns.TABLED]
    for what, same in grouped((pairs_of(item.case).what, item) for item in kept).items():
        groups = grouped(((where(item), timed_text(item)), item) for item in same)
        yield Table(f"{title} {what}", _columns(what), tuple(
            Group(place, tuple(one for item in alike
                               for one in _rows(item, derived.get(item.case.case_id))), timed)
            for (place, timed), alike in groups.items()))


def charts(items: Sequence[CaseResult], derived: Records) -> Iterator[HeatMap]:
    """Yield the matrix of each case that has one."""
    for item in items:
        record = derived.get(item.case.case_id)
        if record and record.pairs and record.pairs.matrix:
            yield _heat_map(item, record.pairs)


def row(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    """Return the values of FIELDS; figures of links are lists with a value for each distance."""
    work, known = pairs_of(item.case), (record and record.pairs) or NOTHING
    return {
        "pairs_what": work.what, "pairs_direction": work.direction, "pairs_at_once": work.at_once,
        "pairs_cache": work.cache, "message_bytes": work.message_bytes, "messages": work.messages,
        "distances": [one.name for one in known.distances],
        "links": [one.links for one in known.distances],
        "link_least": [one.least for one in known.distances],
        "link_median": [one.median for one in known.distances],
        "link_greatest": [one.greatest for one in known.distances],
        "worst_link": [_worst(one) for one in known.distances]}


def _columns(what: str) -> tuple[Column, ...]:
    show, unit = _LOOKS[what]
    better = "less" if what == "latency" else "more"
    return (
        Column("direction", "direction"), Column("at_once", "pairs"),
        Column("size", "size", Show.SIZE), Column("messages", "messages", Show.COUNT),
        Column("cache", "cache", meaning="cold: each message lies where no cache holds it; warm: "
               "all lie in the same place"),
        Column("distance", "distance"), Column("links", "links", Show.COUNT),
        Column("median", what, show, unit, f"median over links{_BESIDE.get(what, '')}", better),
        Column("range", "least to greatest", show, unit, "over links", better),
        Column("worst", "worst link", meaning="the rank that measured, and the other one"),
        columns.TIME, columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)


def _rows(item: CaseResult, record: HardwareRecord | None) -> Iterator[Row]:
    """Yield a row for each distance; one without figures where there is none."""
    known = (record and record.pairs) or NOTHING
    for one in known.distances or (None,):
        yield Row((*_work_cells(item), *_link_cells(one), columns.median_cell(item.statistics),
                   columns.wrong_cell(item), columns.n_cell(item.statistics), item.status,
                   columns.launches_cell(item), flag_cell(item)), item.status, item.case.case_id)


def _work_cells(item: CaseResult) -> tuple[str | int, ...]:
    work = pairs_of(item.case)
    return (work.direction, _together(at_once=work.at_once), work.message_bytes, work.messages,
            work.cache)


def _link_cells(one: Distance | None) -> tuple[str | int | float | Range | None, ...]:
    if one is None:
        return (None,) * 5
    return one.name, one.links, one.median, Range(one.least, one.greatest), _worst(one)


def _together(*, at_once: bool) -> str:
    return "at once" if at_once else "one by one"


def _worst(one: Distance) -> str:
    return f"{one.worst_from} to {one.worst_to}"


def _heat_map(item: CaseResult, known: PairsRecord) -> HeatMap:
    """Return the matrix of a case as colours; a rank and itself have none."""
    work, case = pairs_of(item.case), item.case
    values = np.array([[np.nan if value is None else value for value in line]
                       for line in known.matrix], dtype=np.float64)
    limits = Range(float(np.nanmin(values)), float(np.nanmax(values)))
    show, unit = _LOOKS[work.what]
    wide = is_wide([limits], _WIDE)
    words = (case.backend, device_type(item), plural(case.world_size, "rank"), work.direction,
             f"pairs {_together(at_once=work.at_once)}", size_text(work.message_bytes),
             f"cache {work.cache}",
             env_text(case))
    stem = "-".join(("hardware-pairs", work.what, case.case_id))
    return HeatMap(
        title=f"pairs: {work.what} between every two ranks",
        subtitle=", ".join(filter(None, words)), file_stem=file_name(stem),
        notes=("Each cell: the median by the clock of the row's rank.",),
        case_ids=(case.case_id,), x=Axis("other rank"), y=Axis("rank that measured"),
        rows=tuple(range(case.world_size)), values=values, n_columns=case.world_size, step=1,
        colour=Axis(work.what, show, f"{unit}, log scale" if wide else unit,
                    Scale.LOG if wide else Scale.LINEAR),
        limits=limits, outside=(False, False), spans=(), span_title="", breaks=())
