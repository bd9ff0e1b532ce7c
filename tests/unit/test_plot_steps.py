"""The figure of trainings: which share one, and that its bars are the step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.image import imread

from figure_texts import all_texts_of, charts_of_kind, figure_of, texts_of
from hpcbench.kinds.training.present.charts import MOST_ROWS
from hpcbench.reduce.results import CaseResult
from hpcbench.report.charts import case_to_map, charts_of
from hpcbench.report.plots import plot_results
from hpcbench.views.chart import BarChart
from results_factory import MemorySamples, make_case, not_ok, ok
from training_results import SHARES, strategies, trained, training_case, with_peak


def test_a_figure_for_each_model_and_number_of_ranks(tmp_path: Path) -> None:
    results = strategies()
    paths = plot_results(results, MemorySamples(results), tmp_path)
    assert [path.name for path in paths] == [
        "training-1.png", "training-2.png", "training-3.png", "recommend_training.png",
        "rank_iteration.png"]
    assert all(imread(path).shape[1] == 1320 for path in paths)


def test_the_parts_of_a_bar_are_the_step() -> None:
    parts = parts_s(trained(training_case(), 8e-3))
    assert list(parts) == ["data wait", *[*SHARES][1:], "other"]
    assert sum(parts.values()) == pytest.approx(8e-3)
    assert parts["backward"] == pytest.approx(4.4e-3)
    assert parts_s(trained(training_case(), 8e-3, {})) == {"other": 8e-3}


def parts_s(item: CaseResult) -> dict[str, float]:
    (bar,) = step_charts([item])[0].sections[0].bars
    return {look.label: time_s for time_s, look in bar.segments}


def step_charts(items: Sequence[CaseResult]) -> list[BarChart]:
    return charts_of_kind("training", items)


def test_the_figure_states_what_is_shown() -> None:
    results = with_peak(strategies(), fp32=50e9)
    (_, chart, *_) = charts_of(results, MemorySamples(results))
    figure = figure_of(chart, results)
    text = texts_of(figure)
    assert "data dp=2 bucket_mb=1 comm_hook=none" in text
    assert "checkpointing=full" in text and "checkpointing=none" not in text
    assert "8.00" in text and "32000.0" in text and "22.81" in text and "9.00" in text
    assert "MFU: FLOPs as megatron counts them." in all_texts_of(chart, results)
    (legend,) = figure.legends
    assert [item.get_text() for item in legend.get_texts()] == [
        "data wait", "forward", "backward", "fwd+bwd", "optimizer", "other", "medians of passes"]


def test_only_trainings_with_numbers_and_as_many_as_can_be_read() -> None:
    items = [trained(training_case(index=at, batch_size=at + 1)) for at in range(MOST_ROWS + 2)]
    charts = step_charts([*items, not_ok(training_case(index=99), "failed", ""), ok(make_case())])
    assert [len(chart.sections[0].bars) for chart in charts] == [MOST_ROWS, 2]
    assert charts[0].sections[0].bars[0].label == "data dp=2 batch_size=1"
    assert charts[0].file_stem != charts[1].file_stem
    assert step_charts([ok(make_case())]) == []


def test_a_training_is_mapped_only_where_nothing_else_is() -> None:
    training, collective = trained(training_case()), ok(make_case(index=1))
    assert case_to_map([training, collective]) is collective
    larger = trained(training_case(index=2, batch_size=64))
    assert case_to_map([training, larger]) is larger
