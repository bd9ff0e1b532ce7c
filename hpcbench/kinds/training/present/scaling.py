"""The table of how trainings scale over ranks, below those of the blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from hpcbench.kinds.training.derive.deriver import TrainingRecord
from hpcbench.kinds.training.derive.rates import ScalingRecord
from hpcbench.kinds.training.plan.build_workload import Setting
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present.words import model_text, telling_options
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.units import plural
from hpcbench.views.table import Column, Group, Row, Show, Table
from hpcbench.views.words import env_text, options_text

DEFINITION = (
    "efficiency = samples/s of n ranks / (n / m x samples/s of the m ranks of the base), in %;",
    "  weak: each rank has as many samples as in the base, strong: all ranks together have",
)
_FIRST = (
    Column("strategy", "strategy"), Column("options", "options", optional=True),
    Column("setting", "setting", optional=True), Column("batch", "batch", Show.COUNT, "replica"),
    Column("scaling", "scaling"), Column("base", "base"),
    Column("base_rate", "base", Show.NUMBER, "samples/s", better="more", optional=True))
Member = tuple[Case, ScalingRecord]


def overviews(
    items: Sequence[CaseResult], derived: Mapping[str, TrainingRecord],
) -> Iterator[Table]:
    """Yield a row for each training that was timed on several numbers of ranks; or nothing."""
    scaled = [(item.case, record.scaling) for item in items
             if (record := derived.get(item.case.case_id)) and record.scaling]
    if not scaled:
        return
    rows: dict[tuple[object, ...], list[Member]] = defaultdict(list)
    for case, scaling in scaled:
        work = training_of(case)
        rows[_title(case), work.strategy, work.options, tuple(
            getattr(work, name) for name in Setting._fields), scaling.kind].append((case, scaling))
    ranks = sorted({case.world_size for case, _ in scaled})
    columns = (*_FIRST, *(Column(f"n={count}", f"n={count}", Show.PERCENT, "%", "efficiency",
                                 "more", optional=True) for count in ranks))
    varied = _varied([case for case, _ in scaled])
    options = telling_options(training_of(row[0][0]) for row in rows.values())
    yield Table("scaling of trainings", columns, tuple(
        Group(title, tuple(_row(row, ranks, varied, options[training_of(row[0][0])])
                           for row in same))
        for title, same in groupby(rows.values(), key=lambda row: _title(row[0][0]))))


def _title(case: Case) -> str:
    work = training_of(case)
    return "  ".join(part for part in (
        f"{work.model} ({model_text(work)})", f"{case.backend} ({case.device})",
        case.mode, env_text(case)) if part)


def _varied(cases: Sequence[Case]) -> list[str]:
    """Return what of a step is not the same for all; the batch has a column of its own."""
    return [name for name in Setting._fields if name != "batch_size"
            and len({getattr(training_of(case), name) for case in cases}) > 1]


def _row(
    members: Sequence[Member], ranks: Sequence[int], varied: Sequence[str], options: str,
) -> Row:
    (case, first), work = members[0], training_of(members[0][0])
    shares = {case.world_size: scaling.efficiency for case, scaling in members}
    base = ", ".join(filter(None, (first.base_alone, plural(first.base_ranks, "rank"))))
    return Row((
        work.strategy, options, options_text([(key, getattr(work, key)) for key in varied]),
        work.batch_size, first.kind, base, first.base_samples_per_s, *map(shares.get, ranks)),
        case_id=case.case_id)
