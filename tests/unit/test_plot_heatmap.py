"""The rank x iteration map: which case, what is marked, and that no sample is hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from figure_texts import all_texts_of, figure_of, texts_of
from hpcbench.plan.workload import UnknownWorkload
from hpcbench.reduce.results import CaseResult, CaseSamples, Results
from hpcbench.report.charts import case_to_map, rank_iteration, with_fitting_units
from hpcbench.trace.schema import Flag
from results_factory import all_ok, make_case, make_results, make_samples, ok, shaped, sweep


def drawn(results: Results, samples: CaseSamples) -> Figure:
    """Return the map of the first case."""
    return figure_of(with_fitting_units(rank_iteration(results.cases[0], samples)), results)


def map_texts(results: Results, samples: CaseSamples) -> str:
    return all_texts_of(rank_iteration(results.cases[0], samples), results)


def test_heat_map_marks_warm_ups_and_passes() -> None:
    case = make_case()
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    half = (np.arange(25) >= 12).astype(np.int64)
    shown = map_texts(results, replace(samples, pass_index=half))
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
    shown = map_texts(results, replace(samples, flags=flags, launch=launch))
    for words in ("single checked call", "next pass", "a sample of 20 calls"):
        assert words in shown


def test_many_samples_share_columns_and_none_is_hidden() -> None:
    case = make_case(iterations=3001)
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    end = samples.end_ns.copy()
    end[1, 2000] = samples.start_ns[1, 2000] + 90_000_000
    samples = replace(samples, end_ns=end)
    figure = drawn(results, samples)
    assert "the longest of 4 samples" in map_texts(results, samples)
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape == (4, 752)
    assert float(shown[1, 500]) == 90.0


def test_heat_map_of_equal_or_only_warm_up_samples() -> None:
    case = make_case()
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    drawn(results, replace(samples, end_ns=samples.start_ns))
    drawn(results, replace(samples, flags=np.ones_like(samples.flags)))


def test_case_to_map_case_is_the_largest_all_reduce_of_the_most_ranks() -> None:
    results = all_ok(sweep(("broadcast", "all_reduce"), sizes=(8, 2**20), world_sizes=(2, 4)))
    chosen = case_to_map(results.cases)
    assert isinstance(chosen, CaseResult)
    work = chosen.case.workload
    assert (work.collective, work.size_bytes, chosen.case.world_size) == ("all_reduce", 2**20, 4)
    batches = [ok(make_case(mode="pipelined", batch=20)), ok(make_case(index=1))]
    assert case_to_map(batches) == batches[1]


def test_ranks_may_finish_early_where_a_part_is_empty() -> None:
    for split, waits in (("even", True), ("linear", True), ("zero", False)):
        case = shaped(split, 1, 0)
        (note,) = rank_iteration(ok(case), make_samples(case, 1e-3)).notes
        assert ("no rank can finish before all have arrived" in note) == waits, split


def test_a_case_of_a_kind_that_is_not_installed_is_mapped_after_all_others() -> None:
    case = replace(make_case(index=1), kind="toy", workload=UnknownWorkload({"name": "spin"}))
    results = make_results((ok(case, 1e-3),))
    assert case_to_map(results.cases) is results.cases[0]
    known = ok(make_case())
    assert case_to_map([*results.cases, known]) is known
    assert "spin: time in the call" in texts_of(drawn(results, make_samples(case, 1e-3)))
