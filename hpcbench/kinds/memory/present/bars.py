"""What bar charts of memory have in common: which bars share one, and what tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpcbench.kinds.memory.plan.workload import work_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present.words import degrees_text, model_text, telling_options
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, in_parts, plural
from hpcbench.views.chart import Axis, Bar, BarChart, BarSection, Look, file_name
from hpcbench.views.table import Column
from hpcbench.views.words import device_type, options_text

MOST_BARS = 30
"""More cases than this are split over several charts."""
Value = TypeVar("Value")
Options = Mapping[Training, str]
"""Training -> those of its options that not all trainings of a chart have alike."""


@dataclass(frozen=True, slots=True)
class Form:
    """What all charts of a sort have; ``title`` follows the name of the model."""

    title: str
    stem: str
    caption: str
    x: Axis
    columns: tuple[Column, ...]
    legend: tuple[Look, ...]


def bar_charts(
    form: Form, known: Sequence[tuple[CaseResult, Value]],
    key_of: Callable[[CaseResult, Value], tuple[str, ...]],
    bar_of: Callable[[CaseResult, Value, Options], Bar],
) -> Iterator[BarChart]:
    """Yield a chart of all that have the same key, a bar a case; of many cases several."""
    for key, same in grouped((key_of(*one), one) for one in known).items():
        options = telling_options(work_of(item.case).training for item, _ in same)
        for number, part in in_parts(same, MOST_BARS):
            yield BarChart(
                f"{key[0]}: {form.title}", ", ".join(key[1:]),
                file_name(f"{form.stem}-{'-'.join(key)}{number}"), (form.caption,),
                tuple(item.case.case_id for item, _ in part), form.x, form.columns,
                (BarSection("", tuple(bar_of(item, value, options) for item, value in part)),),
                form.legend, limit="predicted")


def chart_key(item: CaseResult) -> tuple[str, ...]:
    """Return what all bars of a chart have alike."""
    work = work_of(item.case).training
    return (work.model, model_text(work), work.dtype, work.optimizer, device_type(item),
            plural(item.case.world_size, "rank"))


def strategy_words(work: Training, options: Options, batch: str = "") -> str:
    """Return what tells a bar from others."""
    accumulation = [("accumulation", work.accumulation)] if work.accumulation > 1 else []
    return " ".join(filter(None, (work.strategy, degrees_text(work), options[work], batch,
                                  options_text([*accumulation, *work.unusual()]))))
