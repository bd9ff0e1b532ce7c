"""The presenter of memory, and its fields of summary.json and summary.csv (docs/training.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.memory import derive
from hpcbench.kinds.memory.plan import PARTS, MemoryWork, with_batch, work_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present import charts as _training_charts
from hpcbench.kinds.training.present.charts import degrees_text, distinguishing_options, model_text
from hpcbench.kinds.training.present.presenter import MEMORY_FIELDS, TrainingPresenter
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, in_parts, plural, size_text
from hpcbench.views import chart, columns
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
Records = Mapping[str, derive.MemoryRecord]
Options = Mapping[Training, str]
"""Training -> its options that are not the same in all of a chart."""


def _charts(
    form: chart.BarChart, known: Sequence[tuple[tuple[str, ...], CaseResult, derive.MemoryRecord]],
    bar_of: Callable[[CaseResult, derive.MemoryRecord, Options], chart.Bar],
) -> Iterator[chart.BarChart]:
    for key, same in grouped((one[0], one[1:]) for one in known).items():
        options = distinguishing_options(work_of(item.case).training for item, _ in same)
        for number, part in in_parts(same, MOST_BARS):
            yield replace(
                form, title=f"{key[0]}: {form.title}", subtitle=", ".join(key[1:]),
                file_stem=chart.file_name(f"{form.file_stem}-{'-'.join(key)}{number}"),
                case_ids=tuple(item.case.case_id for item, _ in part),
                sections=(chart.BarSection("", tuple(
                    bar_of(item, record, options) for item, record in part)),))


_OF = "in the peak of the rank with most"
_WHO = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("degrees", "degrees", optional=True), Column("batch", "batch", Show.COUNT, "replica"),
    Column("step", "step", meaning="how it is taken, where that is unusual", optional=True))
TITLES = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer",
          "activations": "activations", "temporary": "temporary"}
"""Part -> its title."""
_MEASURED = (
    *_WHO, *(Column(name, title, Show.MIB, "MiB", _OF, first_to_go=True)
               for name, title in TITLES.items()),
    Column("overhead", "overhead", Show.MIB, "MiB", "taken by the allocator beyond the peak",
           "less", optional=True, first_to_go=True),
    Column("peak", "peak", Show.MIB, "MiB", "the sum without overhead", "less"),
    Column("predicted", "predicted", Show.MIB, "MiB", "what the plan says of the peak",
           optional=True),
    Column("deviation", "deviation %", Show.PERCENT, "", "peak / predicted - 1", optional=True,
           first_to_go=True),
    Column("utilisation", "of capacity %", Show.PERCENT, "", "peak / capacity", optional=True,
           first_to_go=True),
    Column("efficiency", "efficiency", Show.RATIO, "", "least memory / memory of all ranks", "more",
           optional=True), columns.STATUS)
_PREDICTED = (
    *_WHO, *(column for name, title in TITLES.items() for column in (
        Column(name, title, Show.MIB, "MiB", "what the plan says of it",
               first_to_go=True),
        Column(f"{name}_deviation", "dev. %", Show.PERCENT, "", "measured / predicted - 1",
               optional=True, first_to_go=True))),
    Column("moment", "at the"))
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


def _who(work: Training, options: Options) -> tuple[Cell, ...]:
    return (work.strategy if work.trains else f"{work.strategy} (communication off)",
            options[work] or None, degrees_text(work) or None, work.batch_size,
            _unusual(work) or None)


def _sources(label: str, about: str, values: Iterable[str | None]) -> Iterator[Line]:
    if known := sorted({*filter(None, values)}):
        yield Line(f"{label} {', '.join(known)}", "quiet", about=(about,))


def memory_tables(title: str, items: Items, derived: Records) -> Iterator[Table]:
    listed = [item for item in items if item.status in columns.TABLED]
    if not listed:
        return
    options = distinguishing_options(work_of(item.case).training for item in listed)
    groups = grouped((_where(item), item) for item in listed)

    def known(item: CaseResult) -> derive.MemoryRecord:
        return derived.get(item.case.case_id, derive.NOTHING_KNOWN)

    def who(item: CaseResult) -> tuple[Cell, ...]:
        return _who(work_of(item.case).training, options)

    yield _table(title, _MEASURED, groups, lambda item: (
        *who(item), *_measured(known(item)), item.status), (
            *_sources("the peak is of:", "peak", [known(item).peak_of for item in listed]),
            *_sources("the capacity is", "utilisation", [
                known(item).capacity_of for item in listed])))
    with_prediction = {where: [item for item in same if known(item).predicted_bytes]
            for where, same in groups.items()}
    if any(with_prediction.values()):
        yield _table(f"{title}: predicted", _PREDICTED, with_prediction, lambda item: (
            *who(item), *_predicted(known(item))))


def _table(
    title: str, shown: tuple[Column, ...], groups: Mapping[str, Items],
    cells: Callable[[CaseResult], tuple[Cell, ...]], notes: Iterable[Line] = (),
) -> Table:
    return Table(title, shown, tuple(Group(where, tuple(
        Row(cells(item), item.status, item.case.case_id) for item in same))
        for where, same in groups.items() if same), notes=tuple(notes))


def _measured(record: derive.MemoryRecord) -> tuple[Cell, ...]:
    by_part = record.held_bytes or {}
    return (*(by_part.get(part) for part in PARTS), record.overhead_bytes, record.peak_bytes,
            record.predicted_peak_bytes, record.deviation, record.utilisation, record.efficiency)


def _predicted(record: derive.MemoryRecord) -> tuple[Cell, ...]:
    predicted, by_part = record.predicted_bytes or {}, record.held_bytes or {}
    return (*(cell for part in PARTS for cell in (
        predicted.get(part), record.deviation_of(part) if by_part else None)), record.moment)


_COLUMNS = (
    *_WHO[:3], _WHO[4],
    Column("limit", "limit", Show.MIB, "MiB", "what the training may take on a rank"),
    Column("largest", "largest batch", Show.COUNT, "replica", "the most that fitted on all ranks",
           "more"),
    Column("too_large", "too large", Show.COUNT, "replica", "the fewest tried that did not fit"),
    Column("ended", "ended", meaning="how that try ended", optional=True),
    Column("predicted", "predicted", Show.COUNT, "replica", "the most that the plan says need no "
           "more", optional=True),
    Column("deviation", "deviation %", Show.PERCENT, "", "largest / predicted - 1", optional=True),
    Column("tries", "tries", Show.COUNT, "", "batches tried, each by new workers"),
    Column("peak", "peak", Show.MIB, "MiB", "of the largest batch, without overhead"),
    Column("utilisation", "of limit %", Show.PERCENT, "", "peak / limit of the rank",
           optional=True), columns.STATUS)
LARGEST_DEFINITIONS = (
    "largest batch: the most samples of a replica whose steps fitted into the limit on every rank,",
    "  to 5 %, or to what batches are multiples of; too large = the fewest tried that did not fit;",
    "  each try has new workers (docs/training.md)")


def largest_batch_tables(title: str, items: Items, derived: Records) -> Iterator[Table]:
    listed = [item for item in items if item.status in columns.TABLED]
    if not listed:
        return
    options = distinguishing_options(work_of(item.case).training for item in listed)
    groups = grouped((_where(item), item) for item in listed)

    units = sorted({search.unit for item in listed if (search := work_of(item.case).search)})

    def who(item: CaseResult) -> tuple[Cell, ...]:  # the batch is what was found
        *cells, _, step = _who(work_of(item.case).training, options)
        return *cells, step

    yield _table(f"{title}: largest batch", _COLUMNS, groups, lambda item: (
        *who(item), *_found(item, derived), item.status), (
            *_sources("the limit is", "limit", [record.capacity_of for item in listed if (
                record := derived.get(item.case.case_id))]),
            *(Line(f"batches of some rows are multiples of {unit}: others cannot be divided as "
                   "asked for", "quiet") for unit in units if unit > 1)))


def _found(item: CaseResult, derived: Records) -> tuple[Cell, ...]:
    record = derived.get(item.case.case_id, derive.NOTHING_KNOWN)
    found, search = record.largest, work_of(item.case).search
    if found is None:
        limit = search.limit_bytes if search else 0
        return (limit or None, *(None,) * 5, len(derive.tries_of(item)) or None, None, None)
    return (found.limit_bytes, found.largest_batch, found.too_large_batch, found.too_large_ended,
            found.predicted_largest_batch, found.batch_deviation, found.tries, record.peak_bytes,
            record.utilisation)


_LOOKS = {part: chart.Look(TITLES[part], colour)
          for part, colour in zip(PARTS, chart.PART_COLOURS[-len(PARTS):], strict=True)}
_MEMORY_FORM = chart.BarChart(
    "memory of a training by strategy", "", "memory", (
        "Bar: the most that the rank with most held at once, by what it was of. Dashed: what was "
        "predicted of it.",), (), chart.Axis("memory of a rank", Show.MIB, "MiB"),
    (Column("peak", "peak", Show.MIB, "MiB", better="less"),
     Column("predicted", "predicted", Show.MIB, "MiB"),
     Column("efficiency", "efficiency", Show.RATIO, better="more")), (), tuple(_LOOKS.values()),
    limit="predicted")


def _memory_bar(item: CaseResult, record: derive.MemoryRecord, options: Options) -> chart.Bar:
    work, by_part = work_of(item.case).training, record.held_bytes or {}
    return chart.Bar(_bar_label(work, options, f"batch {work.batch_size}"),
                     (record.peak_bytes, record.predicted_peak_bytes, record.efficiency),
                     tuple((float(by_part[part]), _LOOKS[part]) for part in PARTS),
                     limit=record.predicted_peak_bytes)


_LOOK = chart.Look("largest batch", chart.PLAIN)
_LARGEST_FORM = chart.BarChart(
    "largest batch that fits, by strategy", "", "largest_batch", (
        "Bar: the most samples of a replica that fitted on every rank. Dashed: what was "
        "predicted. Too large: the fewest that were tried and did not fit.",), (),
    chart.Axis("samples of a replica", Show.COUNT),
    (Column("largest", "largest", Show.COUNT, better="more"),
     Column("too_large", "too large", Show.COUNT),
     Column("predicted", "predicted", Show.COUNT)), (), (_LOOK,), limit="predicted")


def _largest_bar(item: CaseResult, record: derive.MemoryRecord, options: Options) -> chart.Bar:
    found = record.largest
    assert found is not None  # noqa: S101  (others have no chart)
    return chart.Bar(_bar_label(work_of(item.case).training, options),
                     (found.largest_batch, found.too_large_batch, found.predicted_largest_batch),
                     ((float(found.largest_batch), _LOOK),), limit=found.predicted_largest_batch)


_OF_RECORD = ("overhead_bytes", "predicted_peak_bytes", "deviation", "capacity_bytes",
              "capacity_of", "utilisation", "least_bytes", "used_bytes", "efficiency")
LARGEST = ("largest_batch", "too_large_batch", "too_large_ended", "predicted_largest_batch",
           "batch_deviation", "tries", "limit_bytes")  # of searches for the largest batch
FIELDS = ("temporary_bytes", *(f"{part}_bytes_of_peak_predicted" for part in PARTS),
          *_OF_RECORD, "peak_rank", "peak_moment_predicted", *LARGEST)
"""Beside the fields that trainings have, too (`MEMORY_FIELDS`)."""
_FIRST_TRIED = "batch of a search for the largest one: what is tried first"


class MemoryPresenter(Presenter[MemoryWork, derive.MemoryRecord]):
    """Presents the memory use of trainings; the training itself as kind training does."""

    in_every_summary = False
    fields = FIELDS
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
        found = self._trainings.plan_table(title, [first_training(case) for case in cases],
                                           listed=listed, hardware={})
        if not any(work_of(case).search for case in cases):
            return found
        return replace(found, notes=(*found.notes, Line(_FIRST_TRIED, "quiet")))

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
        yield from memory_tables(title, others, derived)
        yield from largest_batch_tables(title, searches, derived)

    def overviews(self, items: Items, derived: Records) -> Iterator[chart.Chart | Line]:
        split = _split(items)
        searches, others = ([(item, record) for item in same if (
            record := derived.get(item.case.case_id))] for same in split)
        yield from map(Line, (*(MEMORY_DEFINITIONS if split[1] else ()),
                              *(LARGEST_DEFINITIONS if split[0] else ())))
        yield from _charts(_MEMORY_FORM, [
            (_key(item), item, record) for item, record in others if record.held_bytes],
            _memory_bar)
        yield from _charts(_LARGEST_FORM, [
            ((*_key(item), f"limit {size_text(record.largest.limit_bytes or 0)}"), item, record)
            for item, record in searches if record.largest], _largest_bar)

    def heat_map_case(self, case: Case) -> chart.HeatMapCase:
        return _training_charts.heat_map_case(first_training(case))

    def row(self, item: CaseResult, record: derive.MemoryRecord | None) -> dict[str, Any]:
        record = record or derive.NOTHING_KNOWN
        training = replace(item, case=replace(item.case, workload=derive.measured_training(item)))
        by_part, predicted = record.held_bytes or {}, record.predicted_bytes or {}
        return {
            **self._trainings.row(training, None),
            **{f"{part}_bytes": by_part.get(part) for part in PARTS},
            **{f"{part}_bytes_of_peak_predicted": predicted.get(part) for part in PARTS},
            **{name: getattr(record, name) for name in _OF_RECORD},
            "peak_bytes": record.peak_bytes, "peak_of": record.peak_of,
            "peak_rank": record.rank, "peak_moment_predicted": record.moment,
            **{name: getattr(record.largest, name, None) for name in LARGEST}}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        measured = [row for row, item in zip(rows, items, strict=True)
                    if row["status"] == "ok" and item.case.case_id in derived]
        return {"memory": [{name: row[name] for name in (*MEMORY_FIELDS, *FIELDS)}
                           for row in measured]} if measured else {}


def first_training(case: Case) -> Case:
    work = work_of(case)
    return replace(case, workload=with_batch(work.training, work.search.first)
                   if work.search else work.training)


def _split(items: Items) -> tuple[Items, Items]:
    searches = [item for item in items if work_of(item.case).search]
    return searches, [item for item in items if not work_of(item.case).search]
