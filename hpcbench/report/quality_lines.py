"""The lines below the tables: how far the times can be trusted, and what is kept beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from rich.text import Text

from hpcbench.reduce.results import CANARY_QUALITIES, QUALITIES, CaseResult, Results, Timing
from hpcbench.report.text import (
    MISSING,
    Column,
    column_widths,
    format_us,
    header_lines,
    plural,
    row_line,
)
from hpcbench.views.timing import FLAGS
from hpcbench.trace.schema import STOP_REASONS
from hpcbench.units import format_seconds

STARTUP_COLUMNS = (
    Column("backend", words=True), Column("ranks"), Column("group opened in"),
    Column("first call"), Column("passes ended", words=True),
)


def quality_lines(results: Results) -> Iterator[Text]:
    """Yield what flags mean, what was left out, start-up, ends of passes, launches and drift."""
    timed = [(item, item.timing) for item in results.cases if item.timing is not None]
    if timed:
        yield Text()
        yield from _flag_lines([timing for _, timing in timed])
        yield from _sample_lines(timed)
        yield from _launch_lines(timed)
        yield from _startup_lines(timed)
    yield from _canary_lines(results)


def _flag_lines(timings: Sequence[Timing]) -> Iterator[Text]:
    """Yield what each flag in the tables means, and how many cases have it."""
    counts = Counter(word for timing in timings for word in timing.quality)
    for word in (word for word in QUALITIES if counts[word]):
        short = FLAGS.get(word, "? (CI)")
        yield Text(f"{short:<8}  {counts[word]} of {len(timings)} cases: {QUALITIES[word]}",
                   style="yellow")


def _sample_lines(timed: Sequence[tuple[CaseResult, Timing]]) -> Iterator[Text]:
    """Yield how many samples there are of each sort: none is deleted."""
    sums = {name: sum(getattr(timing, name) for _, timing in timed)
            for name in ("n_warmup", "n_ramp", "n_surplus", "n_late", "n_outlier")}
    counted = sum(item.statistics.n for item, _ in timed if item.statistics)
    yield Text(
        f"samples: {counted} counted ({sums['n_late']} late, {sums['n_outlier']} above median + "
        "10 MAD); kept but not counted:")
    yield Text(
        f"  {sums['n_warmup']} warm-ups, {sums['n_ramp']} before the steady state, "
        f"{sums['n_surplus']} beyond what the shortest pass of their case has")


def _launch_lines(timed: Sequence[tuple[CaseResult, Timing]]) -> Iterator[Text]:
    """Yield how far the medians of a case's launches lie apart; nothing for a single launch."""
    spreads = sorted((max(timing.launch_medians_s) / min(timing.launch_medians_s) - 1, at)
                     for at, (_, timing) in enumerate(timed)
                     if len(timing.launch_medians_s) > 1 and min(timing.launch_medians_s) > 0)
    if spreads:
        middle, (widest, at) = spreads[len(spreads) // 2][0], spreads[-1]
        yield Text(f"launches: a case's medians span {middle:.1%} (the middle case) to "
                   f"{widest:.1%} ({timed[at][0].case.label})")


def _startup_lines(timed: Sequence[tuple[CaseResult, Timing]]) -> Iterator[Text]:
    """Yield a line per backend and number of ranks: the longest start-up, how passes ended."""
    groups: dict[tuple[str, int], list[Timing]] = defaultdict(list)
    for item, timing in timed:
        groups[item.case.backend, item.case.world_size].append(timing)
    rows = [[backend, str(ranks), _longest([timing.communicator_s for timing in timings]),
             _longest([timing.first_call_s for timing in timings]), _ends(timings)]
            for (backend, ranks), timings in groups.items()]
    widths = column_widths(STARTUP_COLUMNS, rows)
    yield Text()
    yield Text("start-up (the longest of any rank and case), and why passes ended", style="bold")
    for line in header_lines(STARTUP_COLUMNS, widths):
        yield Text(line, style="dim")
    for row in rows:
        yield Text(row_line(STARTUP_COLUMNS, widths, row))


def _longest(times_s: Sequence[float | None]) -> str:
    known = [time for time in times_s if time is not None]
    return format_seconds(max(known)) if known else MISSING


def _ends(timings: Sequence[Timing]) -> str:
    """Return ``120 converged, 6 budget``, in the order of STOP_REASONS."""
    counts = Counter(reason for timing in timings for reason in timing.stop_reasons)
    return ", ".join(f"{counts[reason]} {reason}" for reason in STOP_REASONS if counts[reason])


def _canary_lines(results: Results) -> Iterator[Text]:
    """Yield how the machine drifted, as the canary saw it; or that nothing tells."""
    canary = results.canary
    asked = results.plan.config.get("measure", {}).get("canary")
    if canary is None:
        if asked is not None:
            why = "none ran" if asked else "switched off"
            yield Text(f"canary: {why}, so whether the machine drifted is unknown")
        return
    text = f"canary {canary.label}: {plural(len(canary.runs), 'run')}"
    text += f", {canary.n_not_ok} more not ok" if canary.n_not_ok else ""
    if canary.drift is not None:
        first, last = canary.runs[0], canary.runs[-1]
        text += (f" in {format_seconds(last.since_start_s)}; median {format_us(first.median_s)} us "
                 f"at first, {format_us(last.median_s)} us at last: drift {canary.drift:+.1%}")
    words = [f"{word}: {CANARY_QUALITIES[word]}" for word in canary.quality]
    yield Text("; ".join([text, *words]), style="yellow" if words else "")
