"""The lines that say what a plan holds before it runs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from hpcbench.config.names import PASSED_ENV
from hpcbench.kinds.registry import kinds, presenter_of
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.estimate import workers_s
from hpcbench.report.table_lines import table_lines
from hpcbench.units import format_seconds, grouped, plural, round_bytes
from hpcbench.views.columns import any_plan
from hpcbench.views.faults import planned_text
from hpcbench.views.rules import by_rule
from hpcbench.views.timing import iterations_text, repeats_text
from hpcbench.views.words import distinct, env_text

LISTED_CASES = 60
STOPPING_LEVEL = 0.99
"""Level of the interval that measure.precision is about (docs/config.md)."""
HEADER_COLUMNS = 110


def plan_header(plan: Plan) -> Iterator[Text]:
    """Yield the plan's name, its totals, how it measures, its order and its cost."""
    runs = [case for case in plan.cases if case.skip is None]
    yield Text(f"{plan.name}: {plural(len(plan.cases), 'case')} x {repeats_text(plan)} "
               f"for {plural(plan.world_size, 'rank')}, plan {plan.plan_hash}", style="bold")
    needs = distinct(sorted({need for case in runs for need in case.needs}))
    open_cases = sum(bool(case.needs) for case in runs)
    later = f" ({open_cases} of them need {needs}: known when it runs, or with --probe)"
    yield Text(f"{len(runs)} to run{later if open_cases else ''}, {len(plan.cases) - len(runs)} "
               f"skipped, {plural(plan.duplicates, 'duplicate')} dropped")
    yield from map(Text, _measure_lines(plan, runs))
    yield Text(_estimate_line(plan, runs))
    if late := [case for case in runs if case.estimate_s > case.timeout_s]:
        worst = max(late, key=lambda case: case.estimate_s / case.timeout_s)
        yield Text(f"note: {plural(len(late), 'case')} may end as timeout: estimated "
                   f"{format_seconds(worst.estimate_s)} of timeout_s {worst.timeout_s:g} with its "
                   f"checks: {worst.label}", style="yellow")
    if text := planned_text(plan):
        yield Text(text, style="bold red")
    yield from note_lines(plan)
    patterns = (*PASSED_ENV, *plan.config.get("launch", {}).get("pass_env", ()))
    inherited = f"workers inherit only variables that match: {' '.join(patterns)}"
    for line in textwrap.wrap(inherited, HEADER_COLUMNS, subsequent_indent="  "):
        yield Text(line, style="dim")


def note_lines(plan: Plan) -> Iterator[Text]:
    """Yield the notes of the config."""
    yield from (Text(f"note: {note}", style="yellow") for note in plan.config.get("notes", ()))


def plan_total(plan: Plan) -> Text:
    """Return the numbers of a plan in one line."""
    runs = [case for case in plan.cases if case.skip is None]
    return Text(f"{plan.name}: {plural(len(plan.cases), 'case')} x {repeats_text(plan)} for "
                f"{plural(plan.world_size, 'rank')}: {len(runs)} to run, "
                f"{len(plan.cases) - len(runs)} skipped, {_total_text(plan)}")


def _total_text(plan: Plan) -> str:
    total_s = plan_estimate_s(plan)
    return f"estimate {format_seconds(total_s) if total_s else '0 s'}"


def plan_estimate_s(plan: Plan) -> float:
    """Return how long all passes and launches may take: estimates of cases, and new workers."""
    runs = [case for case in plan.cases if case.skip is None]
    return _pass_s(runs) * plan.passes * plan.launches


def _pass_s(cases: Sequence[Case]) -> float:
    return sum(case.estimate_s for case in cases) + workers_s(cases)


def _measure_lines(plan: Plan, runs: Sequence[Case]) -> Iterator[str]:
    """Yield the modes, how many samples the cases of a pass take and until when, and the order."""
    measure = plan.config.get("measure", {})
    if modes := Counter(case.mode for case in runs):
        yield "modes: " + ", ".join(f"{count} {mode}" for mode, count in modes.items())
    if fixed := [case for case in runs if case.is_fixed]:
        yield f"samples of a pass: {plural(len(fixed), 'case')} exactly {iterations_text(fixed)}"
    if auto := [case for case in runs if not case.is_fixed]:
        yield f"samples of a pass: {plural(len(auto), 'case')} auto, {iterations_text(auto)}"
        if measure:
            yield (f"  until the median's {STOPPING_LEVEL:.0%} interval is within "
                   f"+-{measure['precision'] * 100:g}%, or a case has used its share of "
                   f"{measure['budget_s']:g} s")
    for batch, warmup in dict.fromkeys((case.batch, case.warmup) for case in runs):
        if batch > 1:
            yield (f"  in mode pipelined a sample is {batch} calls: {plural(warmup, 'warm-up')} of "
                   f"a pass are {plural(batch * warmup, 'call')}")
    among = (f"shuffled among them in every pass (seed {measure['seed']})"
             if measure.get("order") == "shuffled" else "by # among them")
    yield f"order: cases that can share workers (environment, ranks) stand together, {among}"


def _estimate_line(plan: Plan, runs: Sequence[Case]) -> str:
    repeats = plan.passes * plan.launches
    depends = (_pass_s(runs) - _pass_s([case for case in runs if not case.needs])) * repeats
    memory = max((case.memory_bytes + case.host_bytes for case in runs), default=0)
    text = _total_text(plan)
    text += f", {format_seconds(depends)} of it only where the needs are met" if depends else ""
    return (f"{text}; largest case {round_bytes(memory)} of buffers per rank "
            "(from assumed latencies and rates, not measured here)")


def case_tables(plan: Plan) -> Iterator[Text]:
    """Yield every case, or, for long plans, one line per block, backend and what it runs."""
    runs = [case for case in plan.cases if case.skip is None]
    blocks = grouped(((case.block, case.kind), case) for case in runs)
    for (block, kind), cases in blocks.items():
        title, listed = f"block {block}", len(runs) <= LISTED_CASES
        yield from table_lines(presenter_of(kind).plan_table(title, cases, listed=listed)
                               or any_plan(title, cases))


def skip_lines(plan: Plan, *, full: bool = False) -> Iterator[Text]:
    """Yield why cases cannot run as configured, a line a rule; ``full``: each case by its label."""
    skips = [(case.skip, case) for case in plan.cases if case.skip is not None]
    if skips:
        yield Text()
        yield Text(f"skipped: {len(skips)}", style="yellow")
    if not full:
        for rule, cases in by_rule(skips, lambda case: case).items():
            yield rule_line(rule, cases)
        return
    for reason, cases in grouped(skips).items():
        yield Text(f"{len(cases):>6} x  {reason}")
        yield from (Text(f"           {case.case_id}  {case.label}", style="dim")
                    for case in cases)


def rule_line(rule: str, cases: Sequence[Case]) -> Text:
    """Return how many cases were left out for one rule, and what they span."""
    return Text(f"{len(cases):>6} x  {rule}").append(f"  [{span_line(cases)}]", style="dim")


def span_line(cases: Sequence[Case]) -> str:
    """Return names, spans, backends, types, sizes, ranks and environment of some cases."""
    shown = [(presenter_of(kind), [case.workload for case in cases if case.kind == kind])
             for kind in in_order(case.kind for case in cases)]
    ranks = {presenter.ranks_word for presenter, _ in shown}
    word = ranks.pop() if len(ranks) == 1 else "ranks"
    parts = [
        distinct(case.workload.name for case in cases),
        *(part for presenter, works in shown for part in presenter.span_words(works)),
        distinct(case.backend for case in cases),
        distinct(presenter_of(case.kind).type_word(case.workload) for case in cases),
        *(part for presenter, works in shown for part in presenter.size_words(works)),
        f"{word}={distinct(sorted({case.world_size for case in cases}))}",
        distinct(env_text(case) or None for case in cases),
    ]
    return " ".join(filter(None, parts))


def in_order(names: Iterable[str]) -> list[str]:
    """Return each kind once: those that are installed in their order, then others."""
    unique = list(dict.fromkeys(names))
    return [*(name for name in kinds() if name in unique),
            *(name for name in unique if name not in kinds())]
