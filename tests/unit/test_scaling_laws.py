"""Amdahl's law and the universal one: what is fitted, how surely, and when it is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit, nnls
from scipy.stats import t as student

from hpcbench.analysis.scaling_laws import (
    AMDAHL,
    PARAMETERS,
    SPARE,
    UNIVERSAL,
    amdahl,
    universal,
    why_not,
)

SHARES = st.floats(0, 1)
SMALL = st.floats(0, 0.2)
SCALES = st.floats(1e-6, 1e6)
RANKS = st.lists(st.integers(1, 512), min_size=5, max_size=9, unique=True).map(sorted)
NOISE = st.lists(st.floats(0.8, 1.25), min_size=9, max_size=9)


def amdahl_times(ranks: list[int], part: float, whole_s: float = 1.0) -> list[float]:
    return [whole_s * (part + (1 - part) / n) for n in ranks]


def universal_rates(ranks: list[int], sigma: float, kappa: float, one: float) -> list[float]:
    return [one * n / (1 + sigma * (n - 1) + kappa * n * (n - 1)) for n in ranks]


@given(RANKS, SHARES, SCALES)
def test_amdahl_finds_the_part_that_is_not_divided(
    ranks: list[int], part: float, whole_s: float,
) -> None:
    law = amdahl(ranks, amdahl_times(ranks, part, whole_s))
    assert law.parameters["s"].value == pytest.approx(part, abs=1e-6)
    assert law.worst == pytest.approx(0, abs=1e-6)
    assert (law.least_ranks, law.most_ranks) == (ranks[0], ranks[-1])


def test_the_interval_of_the_part_is_that_of_the_relative_errors() -> None:
    ranks, times = [1, 2, 4, 8, 16], [1.0, 0.62, 0.36, 0.23, 0.19]
    (part, rest), covariance = curve_fit(
        lambda n, a, b: a + b / n, np.array(ranks, float), times, sigma=times)
    slope = np.array([rest, -part]) / (part + rest) ** 2
    half = student.ppf(0.975, 5 - 2) * np.sqrt(slope @ covariance @ slope)
    found = amdahl(ranks, times).parameters["s"]
    assert (found.value, found.high - found.value) == pytest.approx(
        (part / (part + rest), half), rel=1e-5)


@given(RANKS, SMALL, SMALL, SCALES)
def test_the_universal_law_finds_contention_and_exchange(
    ranks: list[int], sigma: float, kappa: float, one: float,
) -> None:
    rates = universal_rates(ranks, sigma, kappa, one)
    law = universal(ranks, rates)
    assert law.worst == pytest.approx(0, abs=1e-5)
    assert law.fitted == pytest.approx(rates, rel=1e-5)
    assert all(one.value >= 0 for one in law.parameters.values())


@given(RANKS, NOISE, SCALES)
def test_the_unit_of_time_changes_no_parameter_and_shares_stay_shares(
    ranks: list[int], noise: list[float], unit: float,
) -> None:
    times = [time * off for time, off in zip(amdahl_times(ranks, 0.1), noise, strict=False)]
    law, other = amdahl(ranks, times), amdahl(ranks, [unit * time for time in times])
    assert 0 <= law.parameters["s"].value <= 1
    assert other.parameters["s"].value == pytest.approx(law.parameters["s"].value, abs=1e-6)
    assert other.residuals == pytest.approx(law.residuals, abs=1e-6)


@given(RANKS, NOISE)
def test_it_is_the_solution_of_scipy(ranks: list[int], noise: list[float]) -> None:
    n = np.array(ranks, dtype=float)
    rates = np.array(universal_rates(ranks, 0.05, 0.001, 1.0)) * noise[:len(ranks)]
    weights = rates / n
    columns = np.stack([np.ones_like(n), n, n * (n - 1)], axis=1) * weights[:, None]
    known, error = nnls(columns, np.ones_like(n))
    law = universal(ranks, rates.tolist())
    if known[:2].sum() > 1e-9:
        off = 1 / (1 + np.array(law.residuals)) - 1
        assert np.linalg.norm(off) == pytest.approx(error, abs=1e-6)
        assert law.fitted == pytest.approx(n / (columns @ known / weights), rel=1e-3)


@given(RANKS, NOISE)
def test_an_interval_holds_its_value(ranks: list[int], noise: list[float]) -> None:
    times = [time * off for time, off in zip(amdahl_times(ranks, 0.1), noise, strict=False)]
    rates = [1 / time for time in times]
    for law in (amdahl(ranks, times), universal(ranks, rates)):
        for one in law.parameters.values():
            assert (one.low is None) == (one.high is None)
            if one.low is not None and one.high is not None:
                assert 0 <= one.low <= one.value <= one.high


@pytest.mark.parametrize("name", [AMDAHL, UNIVERSAL])
def test_two_points_more_than_parameters_are_needed(name: str) -> None:
    least = PARAMETERS[name] + SPARE
    assert not why_not(name, least)
    assert f"needs {least} " in why_not(name, least - 1)
    fit = amdahl if name == AMDAHL else universal
    with pytest.raises(ValueError, match=f"not {least - 1}"):
        fit([*range(1, least)], [1.0] * (least - 1))


def test_a_law_does_not_know_what_comes_behind_its_last_point() -> None:
    """Ranks up to 8 share a node; beyond, a slower link adds as much time again with each node."""
    ranks = [1, 2, 4, 6, 8]
    rates = universal_rates(ranks, 0.02, 0.0, 1.0)
    law = universal(ranks, rates)
    sigma, kappa = (law.parameters[name].value for name in ("sigma", "kappa"))
    (drawn_out,) = universal_rates([64], sigma, kappa, 1.0)
    between_nodes = 0.1 * (64 // 8 - 1)
    measured = 64 / (1 + 0.02 * 63 + between_nodes)
    assert drawn_out / measured - 1 == pytest.approx(0.31, abs=0.01)
