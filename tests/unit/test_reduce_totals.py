"""What all cases of a run come to, and how far the times of one lie apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.spread import (
    clock_bound_s,
    interval_share,
    late_share,
    launch_spread,
    launch_spreads,
    ramp_share,
    range_of,
    sample_counts,
    start_ups,
)
from hpcbench.reduce.stack import sample_map
from hpcbench.trace.schema import Flag
from results_factory import flagged, make_case, not_ok, ok


def test_an_interval_reaches_to_its_farther_side() -> None:
    stats = ok(make_case(), 2.0).statistics
    assert stats is not None
    near = replace(stats, ci_low_s=1.9, ci_high_s=2.4, ci_reliable=True)
    assert interval_share(near) == pytest.approx(0.2)
    for unsound in ({"ci_low_s": None}, {"ci_reliable": False}, {"median_s": 0.0}):
        assert interval_share(replace(near, **unsound)) is None


def test_a_range_takes_two_times() -> None:
    assert range_of([3.0, None, 1.0, 2.0]) == (1.0, 3.0)
    assert range_of([3.0, None]) is range_of([]) is None


def test_samples_and_launches_are_summed_over_cases() -> None:
    first = flagged(ok(make_case(index=0)), n_late=2, n_warmup=5, launch_medians_s=(1.0, 1.5))
    second = flagged(ok(make_case(index=1)), n_late=1, n_ramp=3, launch_medians_s=(1.0, 1.1))
    alone = flagged(ok(make_case(index=2)), launch_medians_s=(1.0,))
    items = [first, second, alone, not_ok(make_case(index=3), "failed", "died")]
    counts = sample_counts(items)
    assert (counts["counted"], counts["late"], counts["ramp"]) == (3 * first.statistics.n, 3, 3)
    assert late_share(first) == 2 / first.statistics.n
    assert ramp_share(second) == 0 and ramp_share(flagged(
        second, n_ramp=3, all_count=True)) == 3 / first.statistics.n
    spread = launch_spreads(items)
    assert (spread.middle, spread.widest) == pytest.approx((0.3, 0.5))
    assert spread.widest_case is first
    assert alone.timing is not None and launch_spread(alone.timing) is None
    assert launch_spreads([alone]) is None


def test_start_up_is_the_longest_of_a_backend_and_its_ranks() -> None:
    items = [flagged(ok(make_case(index=index, backend=backend)), communicator_s=time_s,
                     first_call_s=None, clock_bound_s=time_s, stop_reasons=("budget",))
             for index, (backend, time_s) in enumerate([("gloo", 0.1), ("mpi", None),
                                                        ("gloo", 0.3)])]
    gloo, mpi = start_ups(items)
    assert (gloo.backend, gloo.communicator_s, gloo.first_call_s) == ("gloo", 0.3, None)
    assert (mpi.communicator_s, dict(gloo.stop_reasons)) == (None, {"budget": 2})
    assert clock_bound_s(items) == 0.3
    assert clock_bound_s(items[1:2]) is None


def test_a_map_has_the_longest_sample_of_each_column() -> None:
    end = np.array([[9, 1, 2, 3, 4], [1, 5, 1, 1, 1]]) * 10**9
    flags = np.array([[Flag.WARMUP, 0, 0, 0, 0]] * 2, dtype=np.int64)
    column = np.array([0, 0, 0, 1, 1])
    samples = CaseSamples(
        ranks=(0, 3), launch=np.zeros(5, np.int64), pass_index=column, start_ns=end * 0,
        end_ns=end, enqueue_ns=end, device_ns=end, flags=flags)
    found = sample_map(samples, 3)
    assert (found.step, found.n_samples, found.ranks) == (2, 5, (0, 3))
    assert found.time_s.tolist() == [[9, 3, 4], [5, 1, 1]]
    assert (found.least_s, found.greatest_s) == (1, 5)
    assert (found.below, found.above, found.has_single) == (False, True, False)
    assert (found.untimed, found.pass_ends) == (((0, 1),), (2,))
