"""The noise check counts what others take of a core, on clocks whose gaps are known."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import chain, cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.__main__ import rare_collection
from hpcbench.measurement import noise
from hpcbench.measurement.noise import (
    MIN_DETOUR_NS,
    check_s,
    look_for_detours,
    measure_noise,
    repeat_fixed_work,
)
from hpcbench.measurement.process import no_collection_of_modules
from hpcbench.trace.schema import Noise, from_values
from launcher import ROOT


def clock(steps: Iterator[int]) -> Callable[[], int]:
    """A clock that goes forward by the next of ``steps`` at every reading."""
    now = 10**12

    def read() -> int:
        nonlocal now
        now += next(steps)
        return now

    return read


def test_a_quiet_clock_has_no_detours() -> None:
    noise = look_for_detours(0.001, clock(cycle([100])))
    assert (noise.n_detours, noise.stolen_share, noise.longest_ns) == (0, 0.0, 0)
    assert (noise.median_step_ns, noise.threshold_ns) == (100.0, MIN_DETOUR_NS)
    assert noise.seconds == pytest.approx(0.001, rel=0.01)


def test_gaps_over_the_threshold_count_without_the_step_in_them() -> None:
    steps = chain([100] * 2000, cycle([100] * 99 + [5100]))
    noise = look_for_detours(0.0015, clock(steps))
    assert noise.n_detours == 100
    assert noise.stolen_share == pytest.approx(1 / 3, rel=0.01)
    assert noise.longest_ns == 5100
    just_not = look_for_detours(0.001, clock(chain([100] * 2000, cycle([100, MIN_DETOUR_NS]))))
    assert just_not.n_detours == 0


def test_a_slow_loop_has_a_higher_threshold() -> None:
    assert look_for_detours(0.01, clock(cycle([700]))).threshold_ns == 7000


@settings(max_examples=25)  # each reads its clock up to a million times
@given(st.lists(st.integers(0, 10**7), min_size=1))
def test_shares_are_shares(steps: list[int]) -> None:
    noise = look_for_detours(0.01, clock(cycle([*steps, 50_000])))
    assert 0 <= noise.stolen_share <= 1
    assert 0 <= noise.longest_ns <= 10**7
    assert from_values(Noise, json.loads(json.dumps(asdict(noise)))) == noise


@pytest.mark.parametrize(("times_us", "ratios"), [
    ([400], (0.0, 1.0, 1.0)),
    ([400] * 9 + [4000], (1.42, 10.0, 10.0)),
])
def test_fixed_work_shows_how_unequal_it_is(times_us: list[int], ratios: object) -> None:
    now, times = 0, cycle(times_us)

    def work(size: int) -> None:
        nonlocal now
        now += 1000 * next(times)

    found = repeat_fixed_work(0.2, lambda: now, work)
    assert (found.cv, found.p99_over_median, found.max_over_median) == pytest.approx(
        ratios, abs=0.02)
    assert found.median_ns == 400_000
    assert found.n_loops >= 200_000 / sum(times_us) * len(times_us) - 10


def test_a_clock_that_is_too_coarse_for_the_work() -> None:
    found = repeat_fixed_work(0.0, lambda: 0)
    assert (found.n_loops, found.cv, found.max_over_median) == (20, 0.0, 0.0)


@pytest.mark.parametrize(("seconds", "share", "looks"), [
    (0.5, 0.0, [0.375]), (0.2, 0.0, [0.075]), (0.2, 0.01, [0.075, 0.15])])
def test_a_quiet_core_of_a_short_job_is_looked_at_for_half_as_long(
    seconds: float, share: float, looks: list[float], monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[float] = []

    def look(seconds: float) -> Noise:
        looked.append(seconds)
        return Noise(seconds, 0, share, 0, 50.0, 2000.0)

    monkeypatch.setattr(noise, "look_for_detours", look)
    found = measure_noise(seconds)
    assert looked == pytest.approx(looks)
    assert found["detours"]["seconds"] == looked[-1]


def test_the_garbage_collector_is_as_before() -> None:
    measure_noise(0.02)
    assert gc.isenabled()
    gc.disable()
    try:
        measure_noise(0.02)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_rare_collection_ends_with_the_block() -> None:
    usual = gc.get_threshold()
    with pytest.raises(KeyError), rare_collection():
        assert gc.isenabled() and gc.get_threshold()[0] > 10 * usual[0]
        raise KeyError
    assert gc.get_threshold() == usual


ON_ONE_CORE = "import json, os, sys, time; os.sched_setaffinity(0, {int(sys.argv[1])})\n"
SPIN = ON_ONE_CORE + (
    "print('here', flush=True); end = time.monotonic() + 100\nwhile time.monotonic() < end: pass")
CHECK = ON_ONE_CORE + (
    "from dataclasses import asdict\n"
    "from hpcbench.measurement.noise import look_for_detours\n"
    "print(json.dumps(asdict(look_for_detours(0.4))))")


def test_a_shared_core_shows() -> None:
    """Two processes on one core have about half of it each."""
    core = str(min(os.sched_getaffinity(0)))
    with subprocess.Popen([sys.executable, "-c", SPIN, core], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"here\n"
            done = subprocess.run([sys.executable, "-c", CHECK, core], cwd=ROOT, text=True,
                                  check=True, capture_output=True, timeout=60)
        finally:
            other.kill()
    shared = from_values(Noise, json.loads(done.stdout))
    assert shared.stolen_share > 0.25
    assert shared.longest_ns > MIN_DETOUR_NS


@pytest.mark.parametrize(("most_s", "estimate_s", "expected"), [
    (0.5, 60.0, 0.5), (0.5, 3.0, 0.3), (0.5, 0.6, 0.2), (0.1, 0.6, 0.1), (2.0, 60.0, 2.0)])
def test_a_short_job_checks_for_a_tenth_of_its_time(
    most_s: float, estimate_s: float, expected: float,
) -> None:
    assert check_s(most_s, estimate_s) == pytest.approx(expected)


def test_nothing_is_collected_while_modules_are_imported() -> None:
    before = gc.get_freeze_count()
    try:
        with no_collection_of_modules():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
