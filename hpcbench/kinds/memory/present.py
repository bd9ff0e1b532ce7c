"""The presenter of memory, and its fields of summary.json and summary.csv (docs/training.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.memory import derive
from hpcbench.kinds.memory.plan import MemoryWork, with_batch, work_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present import charts as _training_charts
from hpcbench.kinds.training.present.charts import (
    degrees_text,
    distinguishing_options,
    model_text,
    strategy_text,
)
from hpcbench.kinds.training.present.presenter import MEMORY_FIELDS, TrainingPresenter
from hpcbench.plan.case import Case
from hpcbench.reduce.metric import Metric, Records, Values
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, in_parts, plural, size_text
from hpcbench.views import chart, columns
from hpcbench.views.metric_tables import (
    STATUS,
    ShownColumn,
    cell_of,
    column_of,
    fields_of,
    metric_column,
    of_case,
    told_apart,
)
from hpcbench.views.presenter import CountedCall, Presenter, Words
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Row,
    Show,
    Table,
    backend_text,
    device_type,
    options_text,
)

MOST_BARS = 30  # more cases than this are split over several charts
Items = Sequence[CaseResult]
Shown = Metric | ShownColumn
Options = Mapping[Training, str]
"""Training -> its options that are not the same in all of a table or chart."""


def _charts(
    form: chart.BarChart, measured: Sequence[tuple[tuple[str, ...], CaseResult, Values]],
    bar_of: Callable[[CaseResult, Values, Options], chart.Bar],
) -> Iterator[chart.BarChart]:
    for key, alike in grouped((one[0], one[1:]) for one in measured).items():
        options = distinguishing_options(work_of(item.case).training for item, _ in alike)
        for number, part in in_parts(alike, MOST_BARS):
            yield replace(
                form, title=f"{key[0]}: {form.title}", subtitle=", ".join(key[1:]),
                file_stem=chart.file_name(f"{form.file_stem}-{'-'.join(key)}{number}"),
                case_ids=tuple(item.case.case_id for item, _ in part),
                sections=(chart.BarSection("", tuple(
                    bar_of(item, values, options) for item, values in part)),))


def _shown(one: Metric, **more: Any) -> ShownColumn:
    return metric_column(one, **{"meaning": one.text, **more})


def _dispensable(metrics: Iterable[Metric]) -> Iterator[ShownColumn]:
    return (_shown(one, first_to_go=True) for one in metrics)


MEASURED: tuple[Shown, ...] = (
    *_dispensable((*derive.HELD, derive.OVERHEAD)), derive.PEAK, _shown(derive.PEAK_PREDICTED),
    *_dispensable((derive.DEVIATION, derive.UTILISATION)), derive.EFFICIENCY, STATUS)


def _deviation(held: Metric, predicted: Metric) -> ShownColumn:
    def of(_: CaseResult, values: Values) -> Cell:
        measured, expected = values.get(held.name), values.get(predicted.name)
        return measured / expected - 1 if measured is not None and expected else None

    return ShownColumn(Column(
        f"{held.name}_deviation", "dev.", Show.PERCENT, "%", "measured / predicted - 1",
        optional=True, first_to_go=True), of)


PREDICTED: tuple[Shown, ...] = (
    *(column for held, predicted in zip(derive.HELD, derive.PREDICTED, strict=True)
      for column in (*_dispensable([predicted]), _deviation(held, predicted))), derive.MOMENT)
MEMORY_DEFINITIONS = (
    "memory: parts of the most that the rank with most held at once, in a step that was followed;",
    "  temporary = copies of weights, exchanged gradients, what the optimizer works on, the batch;",
    "  deviation = peak / predicted - 1; efficiency = parameters, gradients and states of the",
    "  whole model, each once / peaks of all ranks (docs/training.md)")


def _key(item: CaseResult) -> tuple[str, ...]:
    """Return the values that all bars of a chart, or rows of a group, share."""
    work = work_of(item.case).training
    return (work.model, model_text(work), work.dtype, work.optimizer, device_type(item),
            plural(item.case.world_size, "rank"))


def _where(item: CaseResult) -> str:
    model, shape, dtype, optimizer, device, ranks = _key(item)
    return "  ".join((f"{model} ({shape})", f"{backend_text(item.case)} ({device})", ranks, dtype,
                      optimizer))


def _unusual(work: Training) -> str:
    accumulation = [("accumulation", work.accumulation)] if work.accumulation > 1 else []
    return options_text([*accumulation, *work.unusual()])


def _bar_label(work: Training, options: Options, batch: str = "") -> str:
    return " ".join(filter(None, (
        work.strategy, degrees_text(work), options[work], batch, _unusual(work))))


def who(options: Options) -> tuple[ShownColumn, ...]:
    """Return the columns that tell rows apart."""
    def column(shown: Column, of: Callable[[Training], Cell]) -> ShownColumn:
        return of_case(shown, lambda item: of(work_of(item.case).training))

    return (
        column(Column("strategy", "strategy"), strategy_text),
        column(Column("options", "options", optional=True), lambda work: options[work] or None),
        column(Column("degrees", "degrees", optional=True),
               lambda work: degrees_text(work) or None),
        column(Column("batch", "batch", Show.COUNT, "replica"), lambda work: work.batch_size),
        column(Column("step", "step", meaning="how it is taken, where that is unusual",
                      optional=True), lambda work: _unusual(work) or None))


def _sources(label: str, about: Metric, values: Iterable[str | None]) -> Iterator[Line]:
    if known := sorted({*filter(None, values)}):
        yield Line(f"{label} {', '.join(known)}", "quiet", about=(about.name,))


_GRADIENTS = "gradients_bytes"


def _no_gradients(held: Sequence[Any], predicted: Sequence[Any]) -> Iterator[Line]:
    """Yield why a peak has no gradients, and why their prediction may have some."""
    without = [planned for own, planned in zip(held, predicted, strict=True) if own == 0]
    if without:
        yield Line("  gradients 0.00: the peak was before backward made them; the update before "
                   "had freed the last ones", about=(_GRADIENTS,))
    if any(without):
        yield Line("  gradients predicted beside 0.00: the plan's peak is at another moment (at "
                   "the), which needs about as much", about=(_GRADIENTS,))


def _tables(title: str, items: Items, derived: Records) -> Iterator[Table]:
    """Yield the tables of searches, or of what is no search."""
    listed = [item for item in items if item.status in columns.TABLED]
    if not listed:
        return
    own = who(distinguishing_options(work_of(item.case).training for item in listed))
    groups = grouped((_where(item), item) for item in listed)

    def values(name: str) -> list[Any]:
        return [derived.get(item.case.case_id, {}).get(name) for item in listed]

    if units := {search.unit for item in listed if (search := work_of(item.case).search)}:
        yield _table(f"{title}: largest batch", groups, derived, (*own[:3], own[4], *SEARCHED), (
            *_sources("the limit is", derive.LIMIT, values("capacity_of")),
            *(Line(f"batches of some rows are multiples of {unit}: others cannot be divided as "
                   "asked for", "quiet") for unit in sorted(units) if unit > 1)))
        return
    yield _table(title, groups, derived, (*own, *MEASURED), (
        *_sources("the peak is of:", derive.PEAK, values("peak_of")),
        *_sources("the capacity is", derive.UTILISATION, values("capacity_of")),
        *_no_gradients(values(_GRADIENTS),
                       values("gradients_bytes_of_peak_predicted"))))
    if any(values(derive.MOMENT.name)):
        yield _table(f"{title}: predicted", {where: [
            item for item in alike if derived.get(item.case.case_id, {}).get(derive.MOMENT.name)]
            for where, alike in groups.items()}, derived, (*own, *PREDICTED))


def _table(
    title: str, groups: Mapping[str, Items], derived: Records, shown: Sequence[Shown],
    notes: Iterable[Line] = (),
) -> Table:
    shown = told_apart(shown, groups.values())
    return Table(title, tuple(map(column_of, shown)), tuple(Group(where, tuple(Row(
        tuple(cell_of(one, item, derived.get(item.case.case_id, {})) for one in shown),
        item.status, item.case.case_id) for item in alike))
        for where, alike in groups.items() if alike), notes=tuple(notes))


def _limit(item: CaseResult, values: Values) -> Cell:
    search = work_of(item.case).search
    return values.get(derive.LIMIT.name) or (search.limit_bytes if search else 0) or None


def _tried(item: CaseResult, values: Values) -> Cell:
    return values.get(derive.TRIED.name) or len(derive.tries_of(item)) or None


SEARCHED: tuple[Shown, ...] = (
    replace(_shown(derive.LIMIT), of=_limit), derive.LARGEST, _shown(derive.TOO_LARGE),
    _shown(derive.ENDED), _shown(derive.LARGEST_PREDICTED), _shown(derive.LARGEST_DEVIATION),
    replace(_shown(derive.TRIED), of=_tried), metric_column(derive.PEAK, better=None),
    _shown(derive.UTILISATION, title="of limit", meaning="peak / limit of the rank"), STATUS)
LARGEST_DEFINITIONS = (
    "largest batch: the most samples of a replica whose steps fitted into the limit on every rank,",
    "  to 5 %, or to what batches are multiples of; too large = the fewest tried that did not fit;",
    "  each try has new workers (docs/training.md)")


_LOOKS = [chart.Look(one.title, colour) for one, colour in zip(
    derive.HELD, chart.PART_COLOURS[-len(derive.HELD):], strict=True)]
_BESIDE_PARTS = (derive.PEAK, derive.PEAK_PREDICTED, derive.EFFICIENCY)
_MEMORY_FORM = chart.BarChart(
    "memory of a training by strategy", "", "memory", (
        "Bar: the most that the rank with most held at once, by what it was of. Dashed: what was "
        "predicted of it.",), (), chart.Axis("memory of a rank", Show.MIB, "MiB"),
    tuple(map(column_of, _BESIDE_PARTS)), (), tuple(_LOOKS), limit="predicted")


def _memory_bar(item: CaseResult, values: Values, options: Options) -> chart.Bar:
    work = work_of(item.case).training
    return chart.Bar(_bar_label(work, options, f"batch {work.batch_size}"),
                     tuple(values[one.name] for one in _BESIDE_PARTS),
                     tuple((float(values[one.name]), look)
                           for one, look in zip(derive.HELD, _LOOKS, strict=True)),
                     limit=values[derive.PEAK_PREDICTED.name])


_LOOK = chart.Look("largest batch", chart.PLAIN)
_BATCHES = (derive.LARGEST, derive.TOO_LARGE, derive.LARGEST_PREDICTED)
_LARGEST_FORM = chart.BarChart(
    "largest batch that fits, by strategy", "", "largest_batch", (
        "Bar: the most samples of a replica that fitted on every rank. Dashed: what was "
        "predicted. Too large: the fewest that were tried and did not fit.",), (),
    chart.Axis("samples of a replica", Show.COUNT),
    tuple(replace(column_of(one), unit="") for one in _BATCHES), (), (_LOOK,), limit="predicted")


def _largest_bar(item: CaseResult, values: Values, options: Options) -> chart.Bar:
    largest, *others = (values[one.name] for one in _BATCHES)
    return chart.Bar(_bar_label(work_of(item.case).training, options), (largest, *others),
                     ((float(largest), _LOOK),), limit=others[-1])


_FIRST_TRIED = "batch of a search for the largest one: what is tried first"


class MemoryPresenter(Presenter[MemoryWork, Values]):
    """Presents the memory use of trainings; the training itself as kind training does."""

    part_looks = TrainingPresenter.part_looks

    def __init__(self, problem: str = "") -> None:
        super().__init__(problem)
        self._trainings = TrainingPresenter()

    def listing(self) -> Iterator[Line]:
        yield Line("memory of trainings (kind memory)", "title")
        yield Line("  memory of each rank by its use, and the prediction")
        yield Line("  or the largest batch that fits (largest_batch: true): tries by new workers")
        yield Line("  models and strategies: those of trainings")

    def plan_table(
        self, title: str, cases: Sequence[Case], *, listed: bool, hardware: Mapping[str, Any],
    ) -> Table:
        table = self._trainings.plan_table(title, [first_training(case) for case in cases],
                                           listed=listed, hardware={})
        if not any(work_of(case).search for case in cases):
            return table
        return replace(table, notes=(*table.notes, Line(_FIRST_TRIED, "quiet")))

    def dry_run_lines(self, work: MemoryWork, calls: Sequence[CountedCall] | None) -> Iterable[str]:
        yield from self._trainings.dry_run_lines(work.training, calls)
        if (search := work.search) is not None:
            limit = size_text(search.limit_bytes) if search.limit_bytes else "what a rank can have"
            yield (f"largest batch: multiples of {plural(search.unit, 'sample')} within {limit}; "
                   f"{search.first} is tried first, and set up here is {search.unit}")

    def words(self, works: Sequence[MemoryWork]) -> Words:
        words = self._trainings.words([work.training for work in works])
        searched = any(work.search for work in works)
        return words._replace(what=[
            "batch=largest" if searched and word.startswith("batch=") else word
            for word in words.what])

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        searches, others = _split(items)
        yield from _tables(title, others, derived)
        yield from _tables(title, searches, derived)

    def overviews(self, items: Items, derived: Records) -> Iterator[chart.Chart | Line]:
        split = _split(items)
        searches, others = ([(item, derived.get(item.case.case_id, {})) for item in alike]
                            for alike in split)
        yield from map(Line, (*(MEMORY_DEFINITIONS if split[1] else ()),
                              *(LARGEST_DEFINITIONS if split[0] else ())))
        yield from _charts(_MEMORY_FORM, [
            (_key(item), item, values) for item, values in others if values.get(derive.PEAK.name)],
            _memory_bar)
        yield from _charts(_LARGEST_FORM, [
            ((*_key(item), f"limit {size_text(values[derive.LIMIT.name] or 0)}"), item, values)
            for item, values in searches if values.get(derive.TRIED.name)], _largest_bar)

    def heat_map_case(self, case: Case) -> chart.HeatMapCase:
        return _training_charts.heat_map_case(first_training(case))

    def row(self, item: CaseResult, record: Values | None) -> dict[str, Any]:
        return {name: value for name, value in self._trainings.row(
            derive.as_training(item), None).items() if name not in fields_of(derive.OWN)}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        measured = [row for row in rows if row[derive.PEAK.name] is not None]
        return {"memory": [{name: row[name] for name in (*MEMORY_FIELDS, *fields_of(derive.OWN))}
                           for row in measured]} if measured else {}


def first_training(case: Case) -> Case:
    work = work_of(case)
    return replace(case, workload=with_batch(work.training, work.search.first)
                   if work.search else work.training)


def _split(items: Items) -> tuple[Items, Items]:
    searches = [item for item in items if work_of(item.case).search]
    return searches, [item for item in items if not work_of(item.case).search]
