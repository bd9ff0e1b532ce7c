from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.statistics.steady import change_point, steady_from, trend
from statistics_series import INDEPENDENT_KINDS, autoregressive, series_of

numbers = st.lists(st.integers(1, 1000), min_size=0, max_size=150)


def with_warmup(cases: np.ndarray, length: int, factor: float) -> np.ndarray:
    """Make the first ``length`` values slower, by a factor that falls to a fifth of its excess."""
    cases[:, :length] *= 1 + (factor - 1) * np.linspace(1, 0.2, length)
    return cases


def drifts(values: np.ndarray) -> bool:
    found = trend(values)
    return found.significant


@given(numbers)
def test_a_cut_is_whole_batches_and_at_most_half(values: list[int]) -> None:
    (cut,) = steady_from([np.array(values, dtype=float)])
    assert cut % 5 == 0 and cut <= len(values) / 2
    assert cut == 0 or len(values) >= 20


@given(numbers)
def test_findings_are_in_the_series(values: list[int]) -> None:
    array = np.array(values, dtype=float)
    drift, step = trend(array), change_point(array)
    assert (drift is None) == (len(values) < 30)
    assert drift is None or 0 <= drift.p <= 1
    assert step is None or (0 < step.index < len(values) and 0 <= step.p < 0.01)


def test_a_constant_is_steady() -> None:
    values = np.full(100, 3.0)
    drift = trend(values)
    assert steady_from([values]) == [0] and change_point(values) is None
    assert drift is not None and (drift.change, drift.p, drift.significant) == (0, 1, False)


def test_a_step_is_at_its_first_value() -> None:
    random = np.random.default_rng(1)
    step = change_point(np.append(random.permutation(20), 100 + random.permutation(41)) + 1.0)
    assert step is not None and (step.index, step.before, step.after) == (20, 10.5, 121.0)


@pytest.mark.parametrize("length", [5, 10, 20, 50])
def test_the_cut_is_where_the_warmup_ends(length: int) -> None:
    cases = with_warmup(np.exp(0.05 * np.random.default_rng(length).standard_normal((200, 200))),
                        length, 2.0)
    cuts = np.array([steady_from([case])[0] for case in cases])
    assert np.median(cuts) == length
    assert np.mean(cuts < length) < 0.1
    kept = [np.median(case[cut:]) for case, cut in zip(cases, cuts, strict=True)]
    assert np.mean(kept) == pytest.approx(1, abs=0.003)


def test_an_exact_step_is_cut_exactly() -> None:
    assert steady_from([np.array([9.0] * 10 + [2.0] * 50)]) == [10]


def test_a_stall_is_no_warmup() -> None:
    cases = np.exp(0.05 * np.random.default_rng(5).standard_normal((100, 100)))
    cases[:, 40] *= 100
    assert np.mean([steady_from([case])[0] > 0 for case in cases]) < 0.05


@pytest.mark.parametrize("kind", INDEPENDENT_KINDS)
@pytest.mark.parametrize("n", [60, 200])
def test_false_alarms_on_independent_values(kind: str, n: int) -> None:
    cases = series_of(kind, 300, n)
    assert np.mean([steady_from([case])[0] > 0 for case in cases]) < 0.03
    assert np.mean([drifts(case) for case in cases]) < 0.03
    assert np.mean([change_point(case) is not None for case in cases]) < 0.03


@pytest.mark.parametrize("n", [60, 200])
def test_false_alarms_on_dependent_values(n: int) -> None:
    """A cut of flat dependent data is more frequent, and costs only the values that it leaves."""
    cases = series_of("autoregressive", 300, n)
    assert np.mean([drifts(case) for case in cases]) < 0.03
    assert np.mean([change_point(case) is not None for case in cases]) < 0.03
    assert np.mean([steady_from([case])[0] / n for case in cases]) < 0.1


@pytest.mark.parametrize("n", [30, 60])
def test_passes_of_flat_dependent_values_begin_no_warmup(n: int) -> None:
    cases = series_of("autoregressive_6", 600, n).reshape(200, 3, n)
    assert np.mean([any(steady_from(case)) for case in cases]) < 0.03


@pytest.mark.soak
@pytest.mark.parametrize("kind", [*INDEPENDENT_KINDS, "autoregressive"])
@pytest.mark.parametrize("n", [60, 200, 1000, 5000])
def test_false_alarms_by_count(kind: str, n: int) -> None:
    cases = series_of(kind, 1000, n)
    assert np.mean([drifts(case) for case in cases]) < 0.02
    assert np.mean([change_point(case) is not None for case in cases]) < 0.02


@pytest.mark.parametrize("n", [60, 200, 10_000])
def test_a_drift_is_found(n: int) -> None:
    noise = np.exp(0.02 * np.random.default_rng(n).standard_normal((40, n)))
    found = [trend(case) for case in noise * (1 + 0.1 * np.arange(n) / n)]
    assert all(item and item.significant for item in found)
    changes = [item.change for item in found if item]
    assert np.median(changes) == pytest.approx(0.1 / 1.05, abs=0.01)


def test_a_drift_under_two_per_cent_is_no_finding() -> None:
    noise = np.exp(0.001 * np.random.default_rng(0).standard_normal(500))
    found = trend(noise * (1 + 0.01 * np.arange(500) / 500))
    assert found is not None and found.p < 1e-6 and not found.significant


def test_a_drift_of_dependent_values_is_found() -> None:
    cases = autoregressive(np.random.default_rng(4), 40, 1000, 0.5)
    drifting = cases * (1 + 0.5 * np.arange(1000) / 1000)
    assert np.mean([drifts(case) for case in drifting]) > 0.95


@pytest.mark.parametrize("index", [30, 100, 170])
def test_a_step_is_found(index: int) -> None:
    noise = np.exp(0.02 * np.random.default_rng(index).standard_normal((40, 200)))
    noise[:, index:] *= 1.1
    found = [change_point(case) for case in noise]
    assert all(found)
    assert np.median([item.index for item in found if item]) == pytest.approx(index, abs=3)
    ratios = [item.after / item.before for item in found if item]
    assert np.median(ratios) == pytest.approx(1.1, abs=0.01)


def test_a_step_under_five_per_cent_is_no_finding() -> None:
    noise = np.exp(0.001 * np.random.default_rng(0).standard_normal(200))
    noise[100:] *= 1.04
    assert change_point(noise) is None


@pytest.mark.parametrize(("slow", "cuts"), [((0, 1), 2), ((0, 1, 2), 3), ((0,), 0)])
def test_few_samples_are_cut_where_most_passes_begin_alike(
    slow: tuple[int, ...], cuts: int,
) -> None:
    random = np.random.default_rng(4)
    passes = [1 + 0.02 * random.random(30) for _ in range(3)]
    for number in slow:
        passes[number][:10] *= 1.5
    assert np.count_nonzero(steady_from(passes)) == cuts
