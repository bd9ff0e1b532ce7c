"""Power and the use of cores over time: what is computed of readings, and what is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import PathPatch

from figure_texts import figure_of, texts_of
from hpcbench.reduce.results import (
    MOST_POINTS,
    RankTelemetry,
    Results,
    TimeSeries,
    Usage,
    core_use,
    powers,
)
from hpcbench.report.charts import charts_of
from hpcbench.views.columns import MOST_LINES, telemetry_chart
from results_factory import MemorySamples, make_case, make_results, ok

SECOND = 10**9


def course(values: list[int], *, rank: int = 0, device: str = "d") -> TimeSeries:
    """A reading a second, from second 5 on."""
    times = SECOND * (5 + np.arange(len(values), dtype=np.int64))
    return TimeSeries(rank, device, times, np.array(values, dtype=np.int64))


class Read(MemorySamples):
    """Results in memory with courses."""

    def __init__(self, results: Results, **columns: list[TimeSeries]) -> None:
        super().__init__(results)
        self._columns = columns

    def time_series(self, table: str, column: str) -> tuple[TimeSeries, ...]:
        return tuple(self._columns.get(f"{table}_{column}", ()))


def cores(nodes: int = 1) -> dict[str, list[TimeSeries]]:
    """Each second 60 of 100 parts in processes, 20 in the kernel, 15 idle, 5 stolen."""
    steps = {"user_ns": 60, "system_ns": 20, "idle_ns": 15, "steal_ns": 5}
    return {f"cpu_{name}": [course([7 + step * at for at in range(4)], rank=8 * node,
                                   device="all cores") for node in range(nodes)]
            for name, step in steps.items()}


def results_with(*spans_s: tuple[int, int]) -> Results:
    items = [replace(ok(make_case(index=number), 1e-3), usage=Usage(
        1, spans_ns=((begin * SECOND, end * SECOND),)))
        for number, (begin, end) in enumerate(spans_s)]
    return replace(make_results(tuple(items)), telemetry=(RankTelemetry(0, 0, 2.0),))


def test_power_is_that_of_gpus_and_the_rise_of_energy_of_packages() -> None:
    results = results_with((5, 6))
    source = Read(results, gpu_power_mw=[course([250_000, 300_000], rank=1, device="GPU-a")],
                  energy_energy_uj=[course([0, 30_000_000, 90_000_000], device=name)
                                    for name in ("package-0", "package-0/dram", "psys")])
    gpu, package = powers(source.time_series)
    assert (gpu.rank, gpu.device) == (1, "GPU-a")
    assert [point.mean for point in gpu.points] == [250, 300]
    assert [(point.time_ns / SECOND, point.mean) for point in package.points] == [(6, 30), (7, 60)]


def test_cores_are_busy_in_processes_and_in_the_kernel() -> None:
    (node,) = core_use(Read(results_with(), **cores()).time_series)
    assert [point.mean for point in node.points] == pytest.approx([0.8] * 3)


def test_many_readings_share_points() -> None:
    values = [1000 * (at % 10) for at in range(MOST_POINTS * 10)]
    (line,) = powers(Read(results_with(), gpu_power_mw=[course(values)]).time_series)
    assert len(line.points) == MOST_POINTS
    assert (line.points[3].least, line.points[3].mean, line.points[3].greatest) == (0, 4.5, 9)


def test_one_reading_has_no_rise() -> None:
    assert [line.points for line in powers(Read(
        results_with(), energy_energy_uj=[course([5], device="package-0")]).time_series)] == [()]


def test_readings_that_are_close_together_share_a_point() -> None:
    """A case ended at 6 s, the next one began 1 ms later, when the counter had not moved."""
    times = SECOND * np.array([5, 6, 6, 7], dtype=np.int64) + [0, 0, 10**6, 0]
    course_of = TimeSeries(0, "package-0", times, np.array([0, 30, 30, 90], dtype=np.int64) * 10**6)
    (line,) = powers(Read(results_with(), energy_energy_uj=[course_of]).time_series)
    assert [point.mean for point in line.points] == [30, 60]


def test_the_chart_marks_the_cases() -> None:
    results = results_with((6, 7), (5, 6))
    source = Read(results, **cores(nodes=MOST_LINES + 1),
                  gpu_power_mw=[course([250_000] * 4, device="GPU-a")])
    chart = telemetry_chart(results, source)
    assert chart.file_stem in {one.file_stem for one in charts_of(results, source)}
    power, busy = chart.panels
    assert power.spans == busy.spans == ((0, 1), (1, 2)) and len(busy.lines) == MOST_LINES
    assert [place for place, _ in power.lines[0].points] == [0, 1, 2, 3]
    figure = figure_of(chart, results)
    text = texts_of(figure)
    for words in ("rank 0: all cores", "power (W)", "busy cores (% of the node's)",
                  "The first 6 of 7 lines", "2 runs of cases"):
        assert words in " ".join(text.split()), text
    shaded = {patch.get_alpha(): patch.get_path().get_extents().intervalx.tolist()
              for patch in figure.axes[0].findobj(PathPatch)}
    assert shaded == {0.08: [0, 1], 0.2: [1, 2]}


def test_nothing_read_is_no_chart() -> None:
    results = results_with((5, 6))
    assert telemetry_chart(results, MemorySamples(results)) is None
