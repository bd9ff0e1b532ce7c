"""The rank x iteration map: which case, what is marked, and that no sample is hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from figure_texts import texts_of
from hpcbench.reduce.results import CaseResult
from hpcbench.report.plots.heatmap import draw_heatmap, most_telling
from hpcbench.trace.schema import Flag
from results_factory import all_ok, make_case, make_samples, ok, sweep


def test_heat_map_marks_warm_ups_and_passes() -> None:
    case = make_case()
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    half = (np.arange(25) >= 12).astype(np.int64)
    shown = texts_of(draw_heatmap(results.cases[0], replace(samples, pass_index=half), results))
    for words in ("warm-up, not in the statistics", "time in the call (us", "rank", "iteration",
                  "next pass", "1 KiB"):
        assert words in shown


def test_heat_map_marks_single_calls_and_the_next_launch() -> None:
    case = make_case(mode="pipelined", batch=20)
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    flags = samples.flags.copy()
    flags[:, -1] = Flag.SINGLE | Flag.CHECKED
    launch = (np.arange(25) >= 12).astype(np.int64)
    shown = texts_of(draw_heatmap(
        results.cases[0], replace(samples, flags=flags, launch=launch), results))
    for words in ("single checked call", "next pass", "a sample of 20 calls"):
        assert words in shown


def test_many_samples_share_columns_and_none_is_hidden() -> None:
    case = make_case(iterations=3001)
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    end = samples.end_ns.copy()
    end[1, 2000] = samples.start_ns[1, 2000] + 90_000_000
    figure = draw_heatmap(results.cases[0], replace(samples, end_ns=end), results)
    assert "the longest of 4 samples" in texts_of(figure)
    shown = figure.axes[0].images[0].get_array()
    assert shown is not None
    assert shown.shape == (4, 752)
    assert float(shown[1, 500]) == 90_000.0


def test_heat_map_of_equal_or_only_warm_up_samples() -> None:
    case = make_case()
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    draw_heatmap(results.cases[0], replace(samples, end_ns=samples.start_ns), results)
    draw_heatmap(results.cases[0], replace(samples, flags=np.ones_like(samples.flags)), results)


def test_most_telling_case_is_the_largest_all_reduce_of_the_most_ranks() -> None:
    results = all_ok(sweep(("broadcast", "all_reduce"), sizes=(8, 2**20), world_sizes=(2, 4)))
    chosen = most_telling(results.cases)
    assert isinstance(chosen, CaseResult)
    work = chosen.case.workload
    assert (work.collective, work.size_bytes, chosen.case.world_size) == ("all_reduce", 2**20, 4)
    batches = [ok(make_case(mode="pipelined", batch=20)), ok(make_case(index=1))]
    assert most_telling(batches) == batches[1]
