"""Stacked bars of what the rank with most holds, a bar a case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.grouping import grouped
from hpcbench.kinds.memory.derive.deriver import PARTS, MemoryRecord
from hpcbench.kinds.memory.plan.workload import work_of
from hpcbench.kinds.memory.present.table import TITLES
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present.words import degrees_text, model_text, telling_options
from hpcbench.reduce.results import CaseResult
from hpcbench.units import plural
from hpcbench.views.chart import COLOURS, Axis, Bar, BarChart, BarSection, Look, file_name
from hpcbench.views.table import Column, Show
from hpcbench.views.words import device_type, options_text

MOST_BARS = 30
"""More cases than this are split over several charts."""
_LOOKS = {part: Look(TITLES[part], COLOURS[at])
          for part, at in zip(PARTS, (0, 1, 2, 4, 6), strict=True)}
_COLUMNS = (Column("peak", "peak", Show.MIB, "MiB", better="less"),
            Column("predicted", "predicted", Show.MIB, "MiB"),
            Column("efficiency", "efficiency", Show.RATIO, better="more"))
_CAPTION = ("Bar: the most that the rank with most held at once, by what it was of. Dashed: what "
            "was predicted of it.")


def charts(
    items: Sequence[CaseResult], derived: Mapping[str, MemoryRecord],
) -> Iterator[BarChart]:
    """Yield a chart of each model, device and number of ranks."""
    known = [(item, record) for item in items
             if (record := derived.get(item.case.case_id)) and record.held_bytes]
    for key, same in grouped((chart_key(item), (item, record)) for item, record in known).items():
        options = telling_options(work_of(item.case).training for item, _ in same)
        for first in range(0, len(same), MOST_BARS):
            part = same[first:first + MOST_BARS]
            number = f"-{first // MOST_BARS + 1}" if len(same) > MOST_BARS else ""
            yield BarChart(
                f"{key[0]}: memory of a training by strategy", ", ".join(key[1:]),
                file_name(f"memory-{'-'.join(key)}{number}"), (_CAPTION,),
                tuple(item.case.case_id for item, _ in part),
                Axis("memory of a rank", Show.MIB, "MiB"), _COLUMNS,
                (BarSection("", tuple(_bar(work_of(item.case).training, options, record)
                                      for item, record in part)),), tuple(_LOOKS.values()),
                limit="predicted")


def chart_key(item: CaseResult) -> tuple[str, ...]:
    """Return what all bars of a chart have alike."""
    work = work_of(item.case).training
    return (work.model, model_text(work), work.dtype, work.optimizer, device_type(item),
            plural(item.case.world_size, "rank"))


def strategy_words(work: Training, options: Mapping[Training, str], batch: str = "") -> str:
    """Return what tells a bar from others."""
    accumulation = [("accumulation", work.accumulation)] if work.accumulation > 1 else []
    return " ".join(filter(None, (work.strategy, degrees_text(work), options[work], batch,
                                  options_text([*accumulation, *work.unusual()]))))


def _bar(work: Training, options: Mapping[Training, str], record: MemoryRecord) -> Bar:
    held = record.held_bytes or {}
    return Bar(strategy_words(work, options, f"batch {work.batch_size}"),
               (record.peak_bytes, record.predicted_peak_bytes, record.efficiency),
               tuple((float(held[part]), _LOOKS[part]) for part in PARTS),
               limit=record.predicted_peak_bytes)
