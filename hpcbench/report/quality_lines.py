"""The lines below the tables: how far the times can be trusted, and what is kept beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from hpcbench.reduce.canary import CANARY_QUALITIES
from hpcbench.reduce.results import QUALITIES, Results, Timing
from hpcbench.reduce.spread import launch_spreads, sample_counts, start_ups
from hpcbench.report.table_lines import table_lines
from hpcbench.trace.schema import STOP_REASONS
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
    timings = [item.timing for item in results.cases if item.timing is not None]
    if timings:
        yield Text()
        yield from _flag_lines(timings)
        yield from _sample_lines(results)
        yield from _launch_lines(results)
        yield from table_lines(_start_up_table(results))
    yield from _canary_lines(results)


def _flag_lines(timings: Sequence[Timing]) -> Iterator[Text]:
    """Yield what each flag in the tables means, and how many cases have it."""
    counts = Counter(word for timing in timings for word in timing.quality)
    for word in (word for word in QUALITIES if counts[word]):
        short = FLAGS.get(word, "? (CI)")
        yield Text(f"{short:<8}  {counts[word]} of {len(timings)} cases: {QUALITIES[word]}",
                   style="yellow")


def _sample_lines(results: Results) -> Iterator[Text]:
    """Yield how many samples there are of each sort: none is deleted."""
    counts = sample_counts(results.cases)
    yield Text(f"samples: {counts.counted} counted ({counts.late} late, {counts.outlier} above "
               "median + 10 MAD); kept but not counted:")
    yield Text(f"  {counts.warmup} warm-ups, {counts.ramp} before the steady state, "
               f"{counts.surplus} beyond what the shortest pass of their case has")


def _launch_lines(results: Results) -> Iterator[Text]:
    """Yield how far the medians of a case's launches lie apart; nothing for a single launch."""
    if spreads := launch_spreads(results.cases):
        yield Text(f"launches: a case's medians span {spreads.middle:.1%} (the middle case) to "
                   f"{spreads.widest:.1%} ({spreads.widest_case.case.label})")


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
    if canary.drift is not None:
        first, last = canary.runs[0], canary.runs[-1]
        before, after = (cell_text(run.median_s, Show.US) for run in (first, last))
        text += (f" in {format_seconds(last.since_start_s)}; median {before} us at first, "
                 f"{after} us at last: drift {canary.drift:+.1%}")
    words = [f"{word}: {CANARY_QUALITIES[word]}" for word in canary.quality]
    yield Text("; ".join([text, *words]), style="yellow" if words else "")
