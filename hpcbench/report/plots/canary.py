"""The canary: one small case measured again and again, against the time since its first run."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hpcbench.reduce.canary import MOST_DRIFT
from hpcbench.reduce.results import FOLDS, Canary, CanaryRun, Results
from hpcbench.report.plots.style import (
    COLOURS,
    GREY,
    MARKERS,
    SMALL,
    dress,
    footer,
    new_figure,
    plain,
    plain_log_axis,
)
from hpcbench.units import to_us
from hpcbench.views.timing import INTERVAL_TITLE, repeats_text
from hpcbench.views.words import plural

FEWEST_RUNS = 3
"""Fewer runs are told in one line; a figure of them would show no course."""
LOG_FROM = 8
"""A larger ratio of the highest to the lowest end is drawn on a log scale."""
FOLD = "local_max"
"""The canary's times are folded by it, whatever the modes of the sweep."""


def draw_canary(canary: Canary, results: Results) -> Figure:
    """Return the figure of at least FEWEST_RUNS runs."""
    figure = new_figure("Canary: how the machine changed during the run", canary.label)
    axes = figure.add_axes((0.085, 0.22, 0.88, 0.6))
    first_us = to_us(canary.runs[0].median_s)
    axes.axhspan(first_us * (1 - MOST_DRIFT), first_us * (1 + MOST_DRIFT), color=GREY, alpha=0.15,
                 linewidth=0)
    axes.axhline(first_us, color=GREY, linewidth=1, linestyle="--")
    launches = list(dict.fromkeys(run.launch for run in canary.runs))
    for place, launch in enumerate(launches):
        _draw_runs(axes, [run for run in canary.runs if run.launch == launch], place)
    dress(axes, x_label="time since the first run of the canary (s)", y_label="median (us)")
    low, high = _limits(canary)
    axes.set_ylim(low, high)
    if high > LOG_FROM * low:
        plain_log_axis(axes)
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    if len(launches) > 1:
        axes.legend(fontsize=SMALL + 1, frameon=False, ncols=min(len(launches), 6))
    footer(figure, results, caption=_caption(canary),
           timing=f"Fold {FOLD}: {FOLDS[FOLD]}; {repeats_text(results.plan)}.")
    return figure


def _draw_runs(axes: Axes, runs: list[CanaryRun], place: int) -> None:
    colour = COLOURS[place % len(COLOURS)]
    times = [run.since_start_s for run in runs]
    axes.plot(times, [to_us(run.median_s) for run in runs], color=colour, linewidth=1.2,
              marker=MARKERS[place % len(MARKERS)], markersize=5,
              label=f"launch {runs[0].launch + 1}")
    for run in runs:
        if run.ci_low_s is not None and run.ci_high_s is not None:
            axes.vlines(run.since_start_s, to_us(run.ci_low_s), to_us(run.ci_high_s),
                        color=colour, linewidth=1.2)


def _limits(canary: Canary) -> tuple[float, float]:
    """Return limits in which all runs and twice the band of MOST_DRIFT are seen."""
    first, room = canary.runs[0].median_s, 2 * MOST_DRIFT
    low = min(first * (1 - room), *(run.ci_low_s or run.median_s for run in canary.runs))
    high = max(first * (1 + room), *(run.ci_high_s or run.median_s for run in canary.runs))
    return to_us(low) / 1.01, to_us(high) * 1.01


def _caption(canary: Canary) -> str:
    counts = sorted({run.n for run in canary.runs})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text = (f"Point: median of n = {n} samples of one of {plural(len(canary.runs), 'run')}. "
            f"Bar: {INTERVAL_TITLE}, none where n < 6. "
            f"Grey: within {MOST_DRIFT:.0%} of the first run.")
    text += f" {canary.n_not_ok} more runs were not ok." if canary.n_not_ok else ""
    if canary.drift is not None:
        text += f" Drift from the first run to the last: {canary.drift:+.1%}"
        text += f" ({', '.join(canary.quality)})." if canary.quality else "."
    return text
