"""The lines around the tables of results: the run above; quality, outcomes and totals below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from hpcbench.grouping import grouped
from hpcbench.kinds.registry import presenter_of
from hpcbench.plan.case import STATUSES
from hpcbench.reduce.canary_runs import (
    CANARY_QUALITIES,
    FEWEST_FOR_DRIFT,
    OLD_RULE,
    Canary,
)
from hpcbench.reduce.precision import FEWEST_LAUNCHES
from hpcbench.reduce.qualities import QUALITIES
from hpcbench.reduce.results import FOLDS, CaseResult, Results, Timing
from hpcbench.reduce.spread import SampleCounts, launch_spreads, sample_counts, start_ups
from hpcbench.report.plan_lines import in_order, note_lines, span_line
from hpcbench.report.table_lines import STATUS_STYLES, table_lines
from hpcbench.trace.schema import STOP_REASONS
from hpcbench.units import format_seconds
from hpcbench.views.cell_text import cell_text
from hpcbench.views.columns import TABLED
from hpcbench.views.faults import injected_text
from hpcbench.views.links import declared_links
from hpcbench.views.slow_ranks import slow_rank_lines
from hpcbench.views.table import Column, Group, Row, Show, Table
from hpcbench.views.timing import (
    FLAGS,
    INTERVAL_TITLE,
    MODES,
    clock_text,
    launches_title,
    mode_and_fold,
    repeats_text,
)
from hpcbench.views.words import distinct, plural

NOT_OK = ("wrong", "failed", "timeout", "skipped", "not_run")
FAILED = ("wrong", "failed", "timeout", "not_run")
"""Statuses that no skip of the plan explains."""
LABELS_SHOWN = 5
EVIDENCE_LINES = 6
SHOWN_FINDINGS = 3
OUTPUTS = ("results.h5", "summary.json", "summary.csv", "plots", "traces", "profile")
_INDENT = " " * 11
_START_UP_COLUMNS = (
    Column("backend", "backend"), Column("ranks", "ranks", Show.COUNT),
    Column("communicator", "group opened in", Show.DURATION, better="less"),
    Column("first_call", "first call", Show.DURATION, better="less"),
    Column("ends", "passes ended"),
)


def run_lines(results: Results) -> Iterator[Text]:
    """Yield who ran what, where, with which versions, and what the columns mean."""
    run = results.run
    when = run.started_at or "at an unknown time"
    yield Text(f"{run.name}  run {run.run_id}  started {when}", style="bold")
    nodes = ", ".join(run.nodes[:4]) + (", ..." if len(run.nodes) > 4 else "")
    yield Text(f"{plural(run.world_size, 'rank')} on {plural(len(run.nodes), 'node')} ({nodes})")
    yield Text(", ".join(f"{name} {version}" for name, version in run.versions.items()))
    if links := declared_links(results.plan.config):
        yield Text(links)
    yield from map(Text, _definitions(results))
    yield from fault_lines(results)
    yield from note_lines(results.plan)


def fault_lines(results: Results) -> Iterator[Text]:
    """Yield which faults were injected."""
    if text := injected_text(results.run):
        yield Text(text, style="bold red")


def title_lines(results: Results) -> Iterator[Text]:
    """Yield the title of the tables, where the config gives one."""
    if title := results.plan.config.get("title"):
        yield Text()
        yield Text(title, style="bold")


def _definitions(results: Results) -> Iterator[str]:
    """Yield what the columns mean: mode and fold, which samples, interval, rates, clock."""
    ran = [item for item in results.cases if item.status in TABLED] or results.cases
    for mode, fold in dict.fromkeys(mode_and_fold(item) for item in ran):
        batches = distinct(sorted({item.case.batch for item in ran if item.case.mode == mode}))
        calls = f" ({batches} calls a sample)" if mode == "pipelined" else ""
        yield f"mode {mode}: {MODES[mode]}{calls}"
        yield f"  its time, fold {fold}: {FOLDS[fold]}"
    warmups = distinct(sorted({item.case.warmup for item in ran}))
    judged = any(item.timing is not None for item in results.cases)
    yield (f"time p50 = median over the n timed samples of {repeats_text(results.plan)}, "
           f"after {warmups} warm-ups"
           + (f"; {_left_out(results)}" if judged else ""))
    yield f"CI = {INTERVAL_TITLE}: its farther end, in % of the median;"
    yield ("  - where there is none (n < 6), ? where it is not sound (n < 20, dependent samples, "
           "passes that differ)")
    if launches := launches_title(results.cases):
        yield (f"  of several launches it is one of their medians, and there is none of fewer than "
               f"{FEWEST_LAUNCHES};")
        yield f"launches = {launches}"
    for kind, items in items_by_kind(ran).items():
        if kind not in results.missing_kinds:
            yield from presenter_of(kind).definitions(items, results.derived.get(kind, {}))
    yield clock_text(results, ran) + _clock_checks(results) + _order_text(results)


def _left_out(results: Results) -> str:
    """Return which timed samples count."""
    counts = {item.timing.all_count for item in results.cases if item.timing}
    auto = "samples before the steady state are left out"
    if counts == {True}:
        return "all of them count"
    return auto if counts == {False} else f"{auto} unless the number of iterations was given"


def _clock_checks(results: Results) -> str:
    """Return the results of the checks of the synchronisation, where there was one."""
    clocks = results.clocks
    if clocks is None or not clocks.n_syncs:
        return ""
    error = "unchecked" if clocks.check_error_s is None else format_seconds(clocks.check_error_s)
    drift = "" if clocks.drift_ppm is None else f", drift {clocks.drift_ppm:.3g} ppm"
    return f" (largest error in checks {error}{drift})"


def _order_text(results: Results) -> str:
    measure = results.plan.config.get("measure", {})
    if "order" not in measure:
        return ""
    seed = f", seed {measure['seed']}" if measure["order"] == "shuffled" else ""
    return f"; order of cases: {measure['order']}{seed}"


def quality_lines(results: Results) -> Iterator[Text]:
    """Yield what flags mean, what was left out, start-up, ends of passes, launches and drift."""
    timings = [item.timing for item in results.cases if item.timing is not None]
    if timings:
        yield Text()
        yield from _flag_lines(timings)
        yield from map(Text, _sample_lines(results))
        yield from map(Text, slow_rank_lines(results))
        yield from table_lines(_start_up_table(results))
    yield from _canary_lines(results)


def _flag_lines(timings: Sequence[Timing]) -> Iterator[Text]:
    """Yield what each flag in the tables means, and how many cases have it."""
    counts = Counter(word for timing in timings for word in timing.quality)
    for word, meaning in QUALITIES.items():
        if counts[word]:
            short = FLAGS.get(word, "? (CI)")
            yield Text(f"{short:<8}  {counts[word]} of {len(timings)} cases: {meaning}",
                       style="yellow")


def _sample_lines(results: Results) -> Iterator[str]:
    """Yield how many samples there are of each sort, and how far launches lie apart."""
    counts = sample_counts(results.cases)
    yield (f"samples: {counts.counted} counted ({counts.late} late, {counts.outlier} above "
           f"median + 10 MAD{_flagged_text(counts)}); kept but not counted:")
    yield (f"  {counts.warmup} warm-ups, {counts.ramp} before the steady state, "
           f"{counts.surplus} beyond what the shortest pass of their case has")
    if spreads := launch_spreads(results.cases):
        yield (f"launches: a case's medians span {spreads.middle:.1%} (the middle case) to "
               f"{spreads.widest:.1%} ({spreads.widest_case.case.label})")


def _flagged_text(counts: SampleCounts) -> str:
    """Return how many samples count that would not if passes had stopped by themselves."""
    texts = [(counts.counted_ramp, "before the steady state"),
             (counts.counted_surplus, "beyond the shortest steady pass")]
    return "".join(f", {count} {text}" for count, text in texts if count)


def _start_up_table(results: Results) -> Table:
    """Return a row per backend and number of ranks: the longest start-up, how passes ended."""
    rows = tuple(Row((
        one.backend, one.world_size, one.communicator_s, one.first_call_s,
        ", ".join(f"{count} {reason}" for reason in STOP_REASONS
                  if (count := one.stop_reasons.get(reason)))))
        for one in start_ups(results.cases))
    return Table("start-up (the longest of any rank and case), and why passes ended",
                 _START_UP_COLUMNS, (Group("", rows),))


def _canary_lines(results: Results) -> Iterator[Text]:
    """Yield how the machine drifted, as the canary saw it; or that nothing tells."""
    canary = results.canary
    configured = results.plan.config.get("measure", {}).get("canary")
    if canary is None:
        if configured is not None:
            why = "none ran" if configured else "switched off"
            yield Text(f"canary: {why}, so whether the machine drifted is unknown")
        return
    text = f"canary {canary.label}: {plural(len(canary.runs), 'run')}"
    text += f", {canary.n_not_ok} more not ok" if canary.n_not_ok else ""
    text += _canary_course(canary)
    known = canary.quality if canary.tau is not None else ()  # the word once meant something else
    words = [f"{word}: {CANARY_QUALITIES[word]}" for word in known]
    yield Text("; ".join([text, *words]), style="yellow" if words else "")


def _canary_course(canary: Canary) -> str:
    """Return how long the runs took, and how they changed; or why that is not known."""
    if len(canary.runs) < 2:
        return ""
    ends = [cell_text(end(run.median_s for run in canary.runs), Show.US) for end in (min, max)]
    text = f" in {format_seconds(canary.runs[-1].since_start_s)}; medians {'..'.join(ends)} us"
    if canary.drift is None:
        return f"{text}; drift: fewer than {FEWEST_FOR_DRIFT} runs cannot tell"
    how = f"tau {canary.tau:+.2f}" if canary.tau is not None else OLD_RULE
    return f"{text}; drift {canary.drift:+.1%} ({how})"


def outcome_lines(
    results: Results, statuses: Sequence[str] = NOT_OK, *, full: bool = False,
) -> Iterator[Text]:
    """Yield everything that is not ok, grouped by status, rank to blame and reason.

    ``full``: every case by its label, and all that a worker left behind.
    """
    for status in statuses:
        groups = grouped(((item.reason, item.blamed_rank), item) for item in results.cases
                         if item.status == status)
        if groups:
            yield Text()
            yield Text(f"{status}: {sum(map(len, groups.values()))} of "
                       f"{plural(len(results.cases), 'case')}", style=STATUS_STYLES[status])
        for (reason, rank), group in groups.items():
            blamed = "" if rank is None or "rank" in reason else f"rank {rank}: "
            yield Text(f"{len(group):>6} x  {blamed}{reason}")
            yield from (Text(f"{_INDENT}{line}", style="dim")
                        for line in _group_lines(group, full=full))


def _group_lines(group: list[CaseResult], *, full: bool) -> Iterator[str]:
    """Yield which cases have one outcome, and what a worker of the first left behind."""
    left_out = group[0].status in ("skipped", "not_run")
    if left_out and not full:
        yield span_line([item.case for item in group])
        return
    shown = group if full else group[:LABELS_SHOWN]
    for item in shown:
        yield f"{item.case.case_id}  {item.case.label}"
    if len(group) > len(shown):
        yield f"and {len(group) - len(shown)} more, see summary.csv"
    if not left_out:
        yield from _evidence_lines(group[0], None if full else EVIDENCE_LINES)


def _evidence_lines(item: CaseResult, most: int | None) -> Iterator[str]:
    """Yield what a worker left behind: the blamed rank's, or, if it is silent, another's stack."""
    blamed = str(item.blamed_rank)
    for rank in sorted(item.detail, key=lambda name: (name != blamed, int(name))):
        left = item.detail[rank]
        title, lines = "stack", str(left.get("stacks", "")).splitlines()[:most]
        if not lines and rank == blamed:
            title = "its last output"
            lines = str(left.get("output", "")).splitlines()
            lines = lines if most is None else lines[-most:]
        if lines:
            yield f"rank {rank}, {title}:"
            yield from (f"  {line}" for line in lines)
            return


def finding_lines(results: Results, *, full: bool = False) -> Iterator[Text]:
    """Yield what the checks found, by code; of many alike the first, the rest are in the files.

    ``full``: all of them.
    """
    if results.findings:
        yield Text()
        yield Text("findings (docs/checks.md)", style="bold")
    alike = grouped(((finding.code, finding.scope), finding.message)
                    for finding in results.findings)
    for (code, scope), messages in alike.items():
        shown = list(messages) if full else messages[:SHOWN_FINDINGS]
        if len(messages) > len(shown):
            shown.append(f"and {len(messages) - SHOWN_FINDINGS} more like it: see summary.json")
        for message in shown:
            yield Text(f"  {code}  [{scope}] {message}", style="" if scope == "note" else "red")


def closing_lines(results: Results, folder: Path) -> Iterator[Text]:
    """Yield the totals, which always add up, and the files that exist."""
    counts = Counter(item.status for item in results.cases)
    sums = " + ".join(f"{counts[status]} {status}" for status in STATUSES)
    yield Text()
    yield Text(f"planned {len(results.plan.cases)} = {sums}", style="bold")
    yield from fault_lines(results)
    drawn = any(item.status == "ok" for item in results.cases)  # else plots are of earlier results
    files = [name for name in OUTPUTS if (folder / name).exists() and (drawn or name != "plots")]
    yield Text(f"in {folder}: {', '.join(files) if files else 'no files yet'}")


def items_by_kind(items: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """Return the cases of each kind, in the order of `in_order`."""
    of_kind = grouped((item.case.kind, item) for item in items)
    return {kind: of_kind[kind] for kind in in_order(of_kind)}
