"""The canary: one small case measured again and again, against the time since its first run."""

from __future__ import annotations

from collections import defaultdict

from hpcbench.plan.case import Plan
from hpcbench.reduce.canary import MOST_DRIFT, Canary, CanaryRun
from hpcbench.reduce.results import FOLDS
from hpcbench.views.chart import Axis, Line, LineChart, Panel, Point, Scale, is_wide
from hpcbench.views.table import Range, Show
from hpcbench.views.timing import INTERVAL_TITLE, repeats_text
from hpcbench.views.words import from_to_text, plural

FEWEST_RUNS = 3
"""Fewer runs are described in one line; a chart of them would show no course."""
WIDE = 8
"""A larger ratio of the highest to the lowest end is drawn on a log scale."""
MARGIN = 0.01
FOLD = "local_max"
"""The canary's times are folded by it, whatever the modes of the sweep."""


def canary_chart(canary: Canary, plan: Plan) -> LineChart:
    """Return the chart of at least FEWEST_RUNS runs."""
    launches: dict[int, list[CanaryRun]] = defaultdict(list)
    for run in canary.runs:
        launches[run.launch].append(run)
    usual, limits = _around(canary, MOST_DRIFT), _limits(canary)
    scale = Scale.LOG if is_wide([limits], WIDE) else Scale.LINEAR
    lines = tuple(Line(f"launch {launch + 1}", tuple(
        (run.since_start_s, _point(run)) for run in runs)) for launch, runs in launches.items())
    return LineChart(
        title="Canary: how the machine changed during the run", subtitle=canary.label,
        file_stem="canary", case_ids=(),
        notes=(_caption(canary), f"Fold {FOLD}: {FOLDS[FOLD]}; {repeats_text(plan)}."),
        x=Axis("time since the first run of the canary", unit="s"),
        panels=(Panel(Axis("median", Show.US, "us", scale, limits), lines, reference=usual),))


def _around(canary: Canary, share: float) -> Range:
    """Return the first run's median, and what is such a share less and more."""
    first = canary.runs[0].median_s
    return Range(first * (1 - share), first * (1 + share), first)


def _point(run: CanaryRun) -> Point:
    if run.ci_low_s is None or run.ci_high_s is None:
        return Point(run.median_s)
    return Point(run.median_s, Range(run.ci_low_s, run.ci_high_s))


def _limits(canary: Canary) -> Range:
    """Return limits in which all runs and twice the band of MOST_DRIFT are seen."""
    seen = _around(canary, 2 * MOST_DRIFT)
    low = min(seen.least, *(run.ci_low_s or run.median_s for run in canary.runs))
    high = max(seen.greatest, *(run.ci_high_s or run.median_s for run in canary.runs))
    return Range(low / (1 + MARGIN), high * (1 + MARGIN))


def _caption(canary: Canary) -> str:
    n = from_to_text(run.n for run in canary.runs)
    text = (f"Point: median of n = {n} samples of one of {plural(len(canary.runs), 'run')}. "
            f"Bar: {INTERVAL_TITLE}, none where n < 6. "
            f"Grey: within {MOST_DRIFT:.0%} of the first run.")
    text += f" {canary.n_not_ok} more runs were not ok." if canary.n_not_ok else ""
    if canary.drift is not None:
        text += f" Drift from the first run to the last: {canary.drift:+.1%}"
        text += f" ({', '.join(canary.quality)})." if canary.quality else "."
    return text
