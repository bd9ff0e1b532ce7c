"""The lines below the tables: how far the times can be trusted, and what is kept beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from hpcbench.reduce.quality import launch_spread, start_ups
from hpcbench.reduce.results import CANARY_QUALITIES, QUALITIES, CaseResult, Results, Timing
from hpcbench.report.table_lines import table_lines
from hpcbench.units import format_seconds
from hpcbench.views.cell_text import cell_text
from hpcbench.views.table import Column, Group, Row, Show, Table
from hpcbench.views.timing import FLAGS
from hpcbench.views.words import plural

_START_UP_COLUMNS = (
    Column("backend", "backend"), Column("ranks", "ranks", Show.COUNT),
    Column("communicator", "group opened in", Show.DURATION, better="less"),
    Column("first_call", "first call", Show.DURATION, better="less"),
    Column("ends", "passes ended"),
)


def quality_lines(results: Results) -> Iterator[Text]:
    """Yield what flags mean, what was left out, start-up, ends of passes, launches and drift."""
    timed = [(item, item.timing) for item in results.cases if item.timing is not None]
    if timed:
        yield Text()
        yield from _flag_lines([timing for _, timing in timed])
        yield from _sample_lines(timed)
        yield from _launch_lines(timed)
        yield from table_lines(_start_up_table(results))
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
    spreads = sorted((spread, at) for at, (_, timing) in enumerate(timed)
                     if (spread := launch_spread(timing)) is not None)
    if spreads:
        middle, (widest, at) = spreads[len(spreads) // 2][0], spreads[-1]
        yield Text(f"launches: a case's medians span {middle:.1%} (the middle case) to "
                   f"{widest:.1%} ({timed[at][0].case.label})")


def _start_up_table(results: Results) -> Table:
    """Return a row per backend and number of ranks: the longest start-up, how passes ended."""
    rows = tuple(Row((
        one.backend, one.world_size, one.communicator_s, one.first_call_s,
        ", ".join(f"{count} {reason}" for reason, count in one.ends)))
        for one in start_ups(results.cases))
    return Table("start-up (the longest of any rank and case), and why passes ended",
                 _START_UP_COLUMNS, (Group("", rows),))


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
        before, after = (cell_text(run.median_s, Show.US) for run in (first, last))
        text += (f" in {format_seconds(last.since_start_s)}; median {before} us at first, "
                 f"{after} us at last: drift {canary.drift:+.1%}")
    words = [f"{word}: {CANARY_QUALITIES[word]}" for word in canary.quality]
    yield Text("; ".join([text, *words]), style="yellow" if words else "")
