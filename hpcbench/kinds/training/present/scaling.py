"""The table of how trainings scale over ranks, below those of the blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from hpcbench.kinds.training.derive.scaling import Scaling, samples_per_s
from hpcbench.kinds.training.plan.lookup import alone_by
from hpcbench.kinds.training.plan.points import Setting
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present.options import telling_options
from hpcbench.reduce.results import CaseResult
from hpcbench.report.text import (
    MISSING,
    Column,
    column_widths,
    env_text,
    format_number,
    header_lines,
    model_text,
    options_text,
    plural,
    row_line,
    without_empty,
)

DEFINITION = (
    "efficiency = samples/s of n ranks / (n / m x samples/s of the m ranks of the base), in %;",
    "  weak: each rank has as many samples as in the base, strong: all ranks together have",
)
_FIRST = (
    Column("strategy", words=True), Column("options", words=True), Column("setting", words=True),
    Column("batch", "(replica)"), Column("scaling", words=True), Column("base", words=True),
    Column("base", "(samples/s)"))
Group = Sequence[Scaling]


def scaling_lines(found: Mapping[str, Scaling]) -> Iterator[Text]:
    """Yield a row for each training that was timed on several numbers of ranks; or nothing."""
    if not found:
        return
    groups: dict[tuple[object, ...], list[Scaling]] = defaultdict(list)
    for scaled in found.values():
        work = training_of(scaled.item.case)
        groups[_title(scaled), work.strategy, work.options, tuple(
            getattr(work, name) for name in Setting._fields), scaled.kind].append(scaled)
    ranks = sorted({scaled.item.case.world_size for scaled in found.values()})
    varied = _varied([scaled.item for scaled in found.values()])
    every = (*_FIRST, *(Column(f"n={count}", "%") for count in ranks))
    options = telling_options(training_of(group[0].item.case) for group in groups.values())
    columns, rows = without_empty(every, [
        _row(group, ranks, varied, options[training_of(group[0].item.case)])
        for group in groups.values()])
    widths = column_widths(columns, rows)
    yield Text()
    yield Text("scaling of trainings", style="bold")
    yield from (Text(line) for line in DEFINITION)
    for line in header_lines(columns, widths):
        yield Text(line, style="dim")
    last = ""
    for group, row in zip(groups.values(), rows, strict=True):
        if (title := _title(group[0])) != last:
            yield Text(title, style="cyan")
        yield Text(row_line(columns, widths, row))
        last = title


def _title(scaled: Scaling) -> str:
    case = scaled.item.case
    work = training_of(case)
    return "  ".join(part for part in (
        f"{work.model} ({model_text(work)})", f"{case.backend} ({case.device})",
        case.mode, env_text(case)) if part)


def _varied(items: Sequence[CaseResult]) -> list[str]:
    """Return what of a step is not the same for all; the batch has a column of its own."""
    return [name for name in Setting._fields if name != "batch_size"
            and len({getattr(training_of(item.case), name) for item in items}) > 1]


def _row(
    group: Group, ranks: Sequence[int], varied: Sequence[str], options: str,
) -> list[str]:
    first, work = group[0], training_of(group[0].item.case)
    shares = {scaled.item.case.world_size: scaled.efficiency for scaled in group}
    base, rate = first.base.case, samples_per_s(first.base)
    alone = alone_by(training_of(base))
    return [
        work.strategy, options,
        options_text([(key, getattr(work, key)) for key in varied]), str(work.batch_size),
        first.kind, ", ".join(filter(None, (alone, plural(base.world_size, "rank")))),
        MISSING if rate is None else format_number(rate),
        *(f"{100 * shares[count]:.1f}" if count in shares else MISSING for count in ranks)]
