"""What is told of a training's communication: cells of its row, lines below the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from hpcbench.kinds.primitive.present.result_lines import range_cell
from hpcbench.kinds.training.derive.exposed import Exposure
from hpcbench.reduce.results import Steps
from hpcbench.report.text import MISSING, Column, format_number, plural
from hpcbench.statistics.overlap import OverPasses

COLUMNS = (Column("exposed", "(ms)"), Column("exposed", "%"), Column("overhead", "%"),
           Column("overlap", "%"))
DEFINITIONS = (
    "exposed = t - t(off), in % of t, too; overhead = t / t(off) - 1; overlap = (t(off) + t(only) "
    "- t) / the shorter of both,",
    "  where t is the time of a step, t(off) that of the same step without communication, t(only) "
    "that of its calls alone",
    "  (of the same pass; shown is the median over passes, and from the least to the greatest)",
)
DEFINITIONS_OF_PIPELINES = (
    "idle = 1 - a rank's own time without communication / t: it waits, or communicates; bubble = "
    "the share of a step that",
    "  the schedule alone makes ranks wait: if all take equally long, and rank by rank if each "
    "takes its own time",
)
CLEAR_SHARE, CLEAR_RATIO = 0.8, 1.1
"""A rank is named where it stands out in so many of the steps, by so much of the other end."""
CLEAR_PART = 0.01
"""Of a step: what is shorter is not told of."""


def exposure_cells(told: Exposure) -> list[str]:
    """Return a cell for each of COLUMNS."""
    return [MISSING if told.exposed_s is None else format_number(1e3 * told.exposed_s.median),
            range_cell(told.exposed_share, _percent),
            MISSING if told.overhead is None else _percent(told.overhead.median),
            range_cell(told.efficiency, lambda value: str(round(100 * value)))]


def missing_lines(exposures: Iterable[Exposure]) -> Iterator[str]:
    """Yield why rows have no such numbers."""
    counts = Counter(reason for told in exposures for reason in told.missing)
    for reason, count in counts.items():
        yield f"{plural(count, 'row')} not paired: {reason}"


def rank_lines(told: Exposure) -> Iterator[str]:
    """Yield how long each rank of a pipeline is idle, or which rank computes slowly in every pass.
    """
    if told.idle_share:
        bubble = "" if told.bubble is None else (
            f"bubble {100 * told.bubble:.1f} % as the schedule predicts, with the ranks' own times "
            f"{_listed(told.uneven_bubble)} %; ")
        yield f"{bubble}idle {_of_ranks(told, told.idle_share, _percent)}"
        return
    if len(told.own_s) < 2:
        return
    by_time = sorted(zip(told.own_s, told.ranks, strict=True), key=lambda pair: pair[0].median)
    (least, quick), (most, slow) = by_time[0], by_time[-1]
    ratio = most.median / least.median
    if ratio >= CLEAR_RATIO and most.least > least.greatest:
        yield (f"without communication a step takes rank {slow} {_ms(most.median)}, rank {quick} "
               f"{_ms(least.median)}: {ratio:.2f} times as long")


def _of_ranks(
    told: Exposure, found: Iterable[OverPasses], show: Callable[[float], str],
) -> str:
    return ", ".join(f"{range_cell(one, show)} % on rank {rank}"
                     for rank, one in zip(told.ranks, found, strict=True))


def _listed(shares: Iterable[float]) -> str:
    return ", ".join(map(_percent, shares))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _ms(time_s: float) -> str:
    return f"{format_number(1e3 * time_s)} ms"


def arrival_line(steps: Steps, *, blocks: bool) -> str:
    """Return which rank arrives last where gradients are exchanged; nothing if none stands out.

    If an exchange ``blocks`` the rank, only the first is not the end of a wait for others.
    """
    if not steps.arrivals:
        return ""
    first, last = steps.arrivals[0], steps.arrivals[0 if blocks else -1]
    if last.last_share < CLEAR_SHARE or last.behind_s < CLEAR_PART * max(steps.step_s):
        return ""
    before = ("" if first is last or first.last_rank != last.last_rank else
              f"; at the first of {last.bucket} buckets {_ms(first.behind_s)}")
    return (f"rank {last.last_rank} arrives last at the exchange in {last.last_share:.0%} of the "
            f"steps, {_ms(last.behind_s)} behind the median of the others{before}")
