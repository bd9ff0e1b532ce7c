"""The lines that tell what a plan holds before it runs."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from rich.text import Text

from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.kinds.primitive.present import plan_table as primitive_plan
from hpcbench.kinds.training.present import plan_table as training_plan
from hpcbench.launch.workers.environment import ALLOWED
from hpcbench.plan.case import Case, Plan
from hpcbench.report.text import (
    MISSING,
    Column,
    column_widths,
    distinct,
    env_text,
    form_text,
    header_lines,
    in_place_cell,
    plural,
    row_line,
    size_range,
    summarise_cases,
    type_cell,
    without_empty,
)
from hpcbench.views.timing import batch_text, iterations_text, repeats_text, samples_text
from hpcbench.units import format_bytes, format_seconds

LISTED_CASES = 60
STOPPING_LEVEL = 0.99
"""Level of the interval that measure.precision is about (docs/config.md)."""
HEADER_COLUMNS = 110
CASE_COLUMNS = (
    Column("#"), Column("collective", words=True),
    Column("backend", words=True), Column("device", words=True), Column("ranks"),
    Column("type", words=True), Column("redop", words=True), Column("root"),
    Column("place", words=True), Column("size", "(B)"), Column("count", "(elem)"),
    Column("samples", words=True), Column("needs", words=True), Column("estimate", "(a pass)"),
)
GROUP_COLUMNS = (
    Column("cases"), Column("collective", words=True), Column("backend", words=True),
    Column("device", words=True), Column("ranks"), Column("types", words=True),
    Column("redops", words=True), Column("sizes", words=True), Column("samples", words=True),
    Column("needs", words=True), Column("estimate", "(a pass)"),
)


def plan_header(plan: Plan) -> Iterator[Text]:
    """Yield the plan's name, its totals, how it measures, its order and its cost."""
    skipped = sum(case.skip is not None for case in plan.cases)
    yield Text(f"{plan.name}: {plural(len(plan.cases), 'case')} x {repeats_text(plan)} "
               f"for {plural(plan.world_size, 'rank')}, plan {plan.plan_hash}", style="bold")
    needs = distinct(sorted({need for case in plan.cases if not case.skip for need in case.needs}))
    open_cases = sum(bool(case.needs) and case.skip is None for case in plan.cases)
    later = f" ({open_cases} of them need {needs}: known when it runs, or with --probe)"
    yield Text(f"{len(plan.cases) - skipped} to run{later if open_cases else ''}, "
               f"{skipped} skipped, {plural(plan.duplicates, 'duplicate')} dropped")
    yield from (Text(line) for line in _measure_lines(plan))
    yield Text(_order_line(plan))
    yield Text(_estimate_line(plan))
    yield from (Text(line, style="yellow") for line in _late_lines(plan))
    yield from (Text(f"note: {note}", style="yellow") for note in plan.config.get("notes", ()))
    patterns = (*ALLOWED, *plan.config.get("launch", {}).get("pass_env", ()))
    inherited = f"workers inherit only variables that match: {' '.join(patterns)}"
    for line in textwrap.wrap(inherited, HEADER_COLUMNS, subsequent_indent="  "):
        yield Text(line, style="dim")


def _measure_lines(plan: Plan) -> Iterator[str]:
    """Yield the modes, and how many samples the cases of a pass take and until when."""
    runs = [case for case in plan.cases if case.skip is None]
    modes = Counter(case.mode for case in runs)
    if modes:
        yield "modes: " + ", ".join(f"{count} {mode}" for mode, count in modes.items())
    fixed = [case for case in runs if case.is_fixed]
    if fixed:
        yield f"samples of a pass: {plural(len(fixed), 'case')} exactly {iterations_text(fixed)}"
    auto = [case for case in runs if not case.is_fixed]
    if auto:
        measure = plan.config.get("measure", {})
        yield f"samples of a pass: {plural(len(auto), 'case')} auto, {iterations_text(auto)}"
        if measure:
            yield (f"  until the median's {STOPPING_LEVEL:.0%} interval is within "
                   f"+-{measure['precision'] * 100:g}%, or a case has used its share of "
                   f"{measure['budget_s']:g} s")


def _order_line(plan: Plan) -> str:
    measure = plan.config.get("measure", {})
    text = "order: cases that can share workers (environment, ranks) stand together"
    if measure.get("order") == "shuffled":
        return f"{text}, shuffled among them in every pass (seed {measure['seed']})"
    return f"{text}, by # among them"


def _estimate_line(plan: Plan) -> str:
    runs = [case for case in plan.cases if case.skip is None]
    repeats = plan.passes * plan.launches
    total = sum(case.estimate_s for case in runs) * repeats
    depends = sum(case.estimate_s for case in runs if case.needs) * repeats
    memory = max((case.memory_bytes + case.host_bytes for case in runs), default=0)
    text = f"estimate {format_seconds(total) if total else '0 s'}"
    text += f", {format_seconds(depends)} of it only where the needs are met" if depends else ""
    return (f"{text}; largest case {format_bytes(memory)} of buffers per rank "
            "(from assumed latencies and rates, not measured here)")


def _late_lines(plan: Plan) -> Iterator[str]:
    """Yield the case that is furthest over its time limit by its own estimate, if any is."""
    late = [case for case in plan.cases if not case.skip and case.estimate_s > case.timeout_s]
    if late:
        worst = max(late, key=lambda case: case.estimate_s / case.timeout_s)
        yield (f"note: {plural(len(late), 'case')} may end as timeout: estimated "
               f"{format_seconds(worst.estimate_s)} of timeout_s {worst.timeout_s:g} with its "
               f"checks: {worst.label}")


def case_table(plan: Plan) -> Iterator[Text]:
    """Yield every case, or, for long plans, one line per block, collective and backend."""
    runs = [case for case in plan.cases if case.skip is None]
    blocks = dict.fromkeys(case.block for case in runs)
    listed = len(runs) <= LISTED_CASES
    for block in blocks:
        cases = [case for case in runs if case.block == block]
        yield Text()
        yield Text(f"block {block}", style="bold")
        yield from _table(*without_empty(*_rows(cases, listed=listed)))


def _rows(cases: Sequence[Case], *, listed: bool) -> tuple[Sequence[Column], list[list[str]]]:
    """Return columns and rows of a block, whose cases are all of one kind."""
    if cases[0].kind == "primitive":
        return (primitive_plan.case_rows if listed else primitive_plan.group_rows)(cases)
    if cases[0].kind == "training":
        return (training_plan.case_rows if listed else training_plan.group_rows)(cases)
    if listed:
        return CASE_COLUMNS, [_case_row(case) for case in cases]
    return GROUP_COLUMNS, _group_rows(cases)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    widths = column_widths(columns, rows)
    for line in header_lines(columns, widths):
        yield Text(line, style="dim")
    for row in rows:
        yield Text(row_line(columns, widths, row))


def _case_row(case: Case) -> list[str]:
    work = collective_of(case)
    return [
        str(case.index), _collective(case), _backend(case), case.device,
        str(case.world_size), type_cell(case), work.op or MISSING,
        MISSING if work.root is None else str(work.root), in_place_cell(case),
        str(work.size_bytes), str(work.count), f"{samples_text([case])} {batch_text(case)}",
        ",".join(case.needs) or MISSING,
        format_seconds(case.estimate_s) if case.estimate_s else MISSING,
    ]


def _group_rows(cases: Sequence[Case]) -> list[list[str]]:
    groups: dict[tuple[str, str, str, int, str, tuple[str, ...]], list[Case]] = defaultdict(list)
    for case in cases:
        key = (_collective(case), _backend(case), case.device, case.world_size, batch_text(case),
               case.needs)
        groups[key].append(case)
    return [
        [str(len(group)), collective, backend, device, str(ranks),
         distinct(type_cell(case) for case in group),
         distinct(collective_of(case).op for case in group) or MISSING, size_range(group),
         f"{samples_text(group)} {mode}", ",".join(needs) or MISSING,
         format_seconds(sum(case.estimate_s for case in group) or 0.0)]
        for (collective, backend, device, ranks, mode, needs), group in groups.items()
    ]


def _collective(case: Case) -> str:
    form = form_text(case)
    return f"{collective_of(case).collective} ({form})" if form else collective_of(case).collective


def _backend(case: Case) -> str:
    return f"{case.backend} {env_text(case)}".rstrip()


def skip_lines(plan: Plan) -> Iterator[Text]:
    """Yield why cases cannot run as asked, grouped by reason."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in plan.cases:
        if case.skip is not None:
            groups[case.skip].append(case)
    if groups:
        yield Text()
        yield Text(f"skipped: {sum(map(len, groups.values()))}", style="yellow")
    for reason, cases in groups.items():
        yield Text(f"{len(cases):>6} x  {reason}")
        yield Text(f"           {summarise_cases(cases)}", style="dim")
