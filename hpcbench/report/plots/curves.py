"""Time and bus bandwidth of one chart: against size, or, with one size, as rows to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hpcbench.kinds.collective.derive.rates import bandwidth
from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.reduce.results import CaseResult, Results, Statistics
from hpcbench.reduce.spread import interval_share
from hpcbench.report.plots.series import Chart, Line
from hpcbench.report.plots.style import (
    COLOURS,
    GREY,
    MARKERS,
    SMALL,
    TEXT,
    dress,
    footer,
    new_figure,
    plain,
    plain_log_axis,
    size_axis,
    size_label,
    timing_text,
)
from hpcbench.statistics.order import MIN_N_P5_P95
from hpcbench.units import to_gb_per_s, to_us
from hpcbench.views.cell_text import cell_text
from hpcbench.views.columns import interval_cell
from hpcbench.views.table import Show
from hpcbench.views.timing import INTERVAL_TITLE

Value = Callable[[CaseResult, float], float]
Range = tuple[float, float]


def draw_chart(chart: Chart, results: Results) -> Figure:
    """Return the figure of one chart."""
    figure = new_figure(_title(chart), chart.subtitle)
    if len(chart.sizes) == 1:
        height = min(0.61, max(0.35, 0.1 + 0.07 * len(chart.lines)))
        _draw_rows(figure.add_axes((0.28, 0.83 - height, 0.5, height)), chart.lines)
    else:
        _draw_latency(figure.add_axes((0.085, 0.25, 0.39, 0.54)), chart)
        _draw_bandwidth(figure.add_axes((0.58, 0.25, 0.39, 0.54)), chart)
        _legend(figure, chart)
    footer(figure, results, caption=_caption(chart),
           timing=timing_text(results, chart.items))
    return figure


def _title(chart: Chart) -> str:
    if len(chart.sizes) == 1:
        size = chart.sizes[0]
        return f"{chart.collective}{f' of {size_label(size)}' if size else ''}: time"
    return f"{chart.collective}: time and bus bandwidth against size"


def _have_percentiles(items: Sequence[CaseResult]) -> bool:
    """Return whether every case of a line has enough samples for p5 and p95."""
    return all(_stats(item).p5_s is not None and _stats(item).p95_s is not None for item in items)


def _stats(item: CaseResult) -> Statistics:
    if item.statistics is None:
        raise ValueError(f"{item.case.case_id} has no statistics and cannot be drawn")
    return item.statistics


def _range(item: CaseResult, percentiles: bool) -> Range:
    """Return the ends of the band: p5 and p95, or minimum and maximum for the whole line."""
    stats = _stats(item)
    if percentiles and stats.p5_s is not None and stats.p95_s is not None:
        return stats.p5_s, stats.p95_s
    return stats.min_s, stats.max_s


def _caption(chart: Chart) -> str:
    counts = sorted({_stats(item).n for item in chart.items})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text = (f"Point: median of n = {n} samples. Band: {_band_words(chart)}. "
            f"{_interval_words(chart.items)}")
    if chart.collective == "barrier":
        return text
    text += " Bus bandwidth as in nccl-tests, from the median; GB = 1e9 B."
    if len(chart.sizes) > 1 and any(item.case.world_size == 1 for item in chart.items):
        text += " One rank: bus bandwidth is 0, not drawn."
    return text


def _band_words(chart: Chart) -> str:
    """Return what the bands are, and of which lines they are something else."""
    few = [line for line in chart.lines if not _have_percentiles(line.items)]
    if len(few) == len(chart.lines):
        return "minimum to maximum"
    labels = ", ".join(line.label for line in few) if len(few) < 3 else f"{len(few)} lines"
    others = f" (of {labels}, with n < {MIN_N_P5_P95}: minimum to maximum)" if few else ""
    return f"5th to 95th percentile{others}"


def _interval_words(items: Sequence[CaseResult]) -> str:
    """Return what the error bars are, and how many points have none."""
    without = sum(interval_share(_stats(item)) is None for item in items)
    if without == len(items):
        return "No sound confidence interval (docs/method.md)."
    left = (f"; {without} of {len(items)} points have none (n < 6, or samples that depend on one "
            "another)" if without else "")
    return f"Bar: {INTERVAL_TITLE}{left}."


def _interval(item: CaseResult) -> Range:
    """Return the ends of the median's interval; the median twice where there is none."""
    stats = _stats(item)
    if interval_share(stats) is None or stats.ci_low_s is None or stats.ci_high_s is None:
        return stats.median_s, stats.median_s
    return stats.ci_low_s, stats.ci_high_s


def _draw_latency(axes: Axes, chart: Chart) -> None:
    _draw_lines(axes, chart.lines, lambda item, time_s: to_us(time_s))
    _log_axes(axes, chart.sizes)
    dress(axes, x_label="size (bytes, log scale)", y_label="time per operation (us)")
    axes.set_title("Time (latency)", fontsize=TEXT, loc="left")


def _draw_bandwidth(axes: Axes, chart: Chart) -> None:
    lines = [Line(line.label, tuple(item for item in line.items if item.case.world_size > 1))
             for line in chart.lines]
    _draw_lines(axes, lines, _busbw)
    dress(axes, x_label="size (bytes, log scale)", y_label="bus bandwidth (GB/s)")
    axes.set_title("Bus bandwidth", fontsize=TEXT, loc="left")
    sizes = sorted({collective_of(item.case).size_bytes for line in lines for item in line.items})
    if sizes:
        _log_axes(axes, sizes)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "One rank: nothing crosses a link,\nbus bandwidth is 0",
                  transform=axes.transAxes, ha="center", va="center", fontsize=TEXT, color=GREY)


def _busbw(item: CaseResult, time_s: float) -> float:
    rates = bandwidth(collective_of(item.case), item.case.world_size, time_s)
    return to_gb_per_s(rates.busbw_bytes_per_s) if rates else float("nan")


def _draw_lines(axes: Axes, lines: Sequence[Line], value: Value) -> None:
    for index, line in enumerate(lines):
        if not line.items:
            continue
        colour = COLOURS[index % len(COLOURS)]
        sizes = [collective_of(item.case).size_bytes for item in line.items]
        middle = [value(item, _stats(item).median_s) for item in line.items]
        percentiles = _have_percentiles(line.items)
        ends = [[value(item, time) for time in _range(item, percentiles)] for item in line.items]
        axes.plot(sizes, middle, color=colour, marker=MARKERS[index % len(MARKERS)],
                  markersize=5, linewidth=1.8, label=line.label)
        bars = [[value(item, time) for time in _interval(item)] for item in line.items]
        axes.vlines(sizes, [min(pair) for pair in bars], [max(pair) for pair in bars],
                    color=colour, linewidth=1.2)
        if len(sizes) > 1:
            axes.fill_between(sizes, [min(pair) for pair in ends], [max(pair) for pair in ends],
                              color=colour, alpha=0.18, linewidth=0)
        else:
            axes.vlines(sizes, min(ends[0]), max(ends[0]), color=colour, alpha=0.4, linewidth=5)


def _log_axes(axes: Axes, sizes: list[int]) -> None:
    size_axis(axes, sizes)
    plain_log_axis(axes)


def _legend(figure: Figure, chart: Chart) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(handles) > 1:
        longest = max(map(len, labels))
        figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.985, 0.985),
                      ncols=3 if longest <= 18 else 2 if longest <= 30 else 1,
                      fontsize=SMALL + 1, frameon=False)


def _draw_rows(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw a row per line: its median, its range, and both numbers in words at the right."""
    rows = [(line.label, item) for line in lines for item in line.items][::-1]
    ends = [[to_us(time) for time in _range(item, _have_percentiles([item]))] for _, item in rows]
    for row, ((_, item), (low, high)) in enumerate(zip(rows, ends, strict=True)):
        axes.hlines(row, low, high, color=COLOURS[0], alpha=0.35, linewidth=9)
        left, right = _interval(item)
        axes.hlines(row, to_us(left), to_us(right), color=COLOURS[0], linewidth=2.5)
        axes.plot(to_us(_stats(item).median_s), row, marker="o", markersize=6, color=COLOURS[0])
        axes.text(1.02, row, _row_text(item), transform=axes.get_yaxis_transform(),
                  va="center", fontsize=SMALL + 1)
    if max(high for _, high in ends) > 30 * min(low for low, _ in ends) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    else:
        axes.set_xlim(left=0)
    dress(axes, x_label="time per operation (us)", y_label="")
    axes.grid(False, axis="y")
    axes.set_yticks(range(len(rows)), [_row_label(*row) for row in rows])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    has_rate = any(collective_of(item.case).size_bytes for _, item in rows)
    heading = "median, interval, bus bandwidth" if has_rate else "median, interval"
    axes.text(1.02, 1.01, heading, transform=axes.transAxes, fontsize=SMALL,
              color=GREY, va="bottom")


def _row_label(label: str, item: CaseResult) -> str:
    return label or collective_of(item.case).collective


def _row_text(item: CaseResult) -> str:
    time_s = _stats(item).median_s
    rates = bandwidth(collective_of(item.case), item.case.world_size, time_s)
    busbw = f", {cell_text(rates.busbw_bytes_per_s, Show.GB_PER_S)} GB/s" if rates else ""
    share = cell_text(interval_cell(_stats(item)), Show.PERCENT)
    interval = f" +-{share}%" if share[0].isdigit() else ""
    return f"{cell_text(time_s, Show.US)} us{interval}{busbw}"
