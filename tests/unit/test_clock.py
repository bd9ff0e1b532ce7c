"""Clock models against exact truth: synthetic clocks whose offset and drift are known."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.launch.clocks import (
    OffsetInterval,
    SynchronisedClock,
    check_model,
    fit_clock,
    offset_interval,
    parent_and_children,
    synchronise,
)
from hpcbench.launch.communicator import Communicator
from hpcbench.measurement.environment import clock_identity
from hpcbench.trace.clock import ClockCheck, ClockModel, SyncRecord, bound_at, to_global
from hpcbench.trace.schema import from_values

SECOND = 10**9
BEGIN = 8_000 * SECOND


@dataclass(frozen=True)
class Clock:
    """A clock that is off by ``offset_ns`` at BEGIN and runs ``ppb`` fast against the true one."""

    offset_ns: int
    ppb: int

    def at(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + (true_ns - BEGIN) * self.ppb // SECOND


clocks = st.builds(Clock, st.integers(-10**15, 10**15), st.integers(-30_000, 30_000))
delays = st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=8)
seeds = st.integers(0, 2**32 - 1)


def trips_at(clock: Clock, true_ns: int, ways: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return ping-pongs with rank 0 whose ways there and back took so long."""
    trips = []
    for there, back in ways:
        trips.append((clock.at(true_ns), true_ns + there, clock.at(true_ns + there + back)))
        true_ns += there + back
    return trips


def noisy_points(
    clock: Clock, begin_ns: int, rng: np.random.Generator, one_way_ns: int = 1_000,
) -> list[OffsetInterval]:
    """Return 100 points, 5.5 ms apart, of 20 ping-pongs; three of ten points are held up.

    Every way has a delay of its own; in a point that is held up all answers are late by far more.
    """
    points = []
    for index in range(100):
        ways = one_way_ns + rng.exponential(one_way_ns / 10, (20, 2))
        if rng.random() < 0.3:
            ways[:, int(rng.integers(2))] += rng.exponential(20 * one_way_ns)
        trips = trips_at(clock, begin_ns + index * 5_500_000,
                         [(int(there), int(back)) for there, back in ways])
        points.append(offset_interval(trips))
    return points


def synced(clock: Clock, begin_ns: int, seed: int) -> ClockModel:
    return fit_clock(noisy_points(clock, begin_ns, np.random.default_rng(seed)))


def error_ns(model: ClockModel, clock: Clock, true_ns: int) -> int:
    return abs(model.to_global(clock.at(true_ns)) - true_ns)


@given(st.builds(Clock, st.integers(-10**15, 10**15), st.integers(-200_000, 200_000)), delays)
def test_an_interval_holds_the_offset_whatever_the_delays(
    clock: Clock, ways: list[tuple[int, int]],
) -> None:
    trips = trips_at(clock, BEGIN, ways)
    found = offset_interval(trips)
    truth = [clock.at(true_ns) - true_ns for true_ns in (BEGIN, BEGIN + sum(map(sum, ways)))]
    assert found.low_ns - 1 <= sum(truth) / 2 <= found.high_ns + 1
    assert found.local_ns == pytest.approx((trips[0][0] + trips[-1][2]) / 2, abs=1, rel=0)


@settings(max_examples=100, deadline=None)
@given(clocks, st.lists(delays, min_size=2, max_size=30))
def test_the_bound_holds_at_the_sync_whatever_the_delays(
    clock: Clock, ways: list[list[tuple[int, int]]],
) -> None:
    points = [offset_interval(trips_at(clock, BEGIN + index * SECOND // 4, way))
              for index, way in enumerate(ways)]
    model = fit_clock(points)
    truth = Fraction((model.t_ref_ns - clock.at(BEGIN)) * SECOND, SECOND + clock.ppb) + BEGIN
    assert abs(model.to_global(model.t_ref_ns) - truth) <= model.bound_ns + 2


@settings(max_examples=100, deadline=None)
@given(clocks, seeds)
def test_errors_with_a_third_of_the_points_held_up(clock: Clock, seed: int) -> None:
    """The goals for free cores: 1 us at the sync, 5 us until the next; a way takes 1 us here."""
    points = noisy_points(clock, BEGIN, np.random.default_rng(seed))
    model, widths = fit_clock(points), np.array([one.high_ns - one.low_ns for one in points])
    at_sync = BEGIN + 550_000_000
    assert error_ns(model, clock, at_sync) <= 1_000
    assert error_ns(model, clock, at_sync + 30 * SECOND) <= 5_000
    for later in (0, 3, 30, 300):
        true_ns = at_sync + later * SECOND
        assert error_ns(model, clock, true_ns) <= model.bound_at(clock.at(true_ns)) + 1
    assert model.slope * 1e9 == pytest.approx(clock.ppb / (1 + clock.ppb / 1e9), abs=150)
    assert model.n_used + model.n_rejected == 100  # used are those as wide as the median, too
    assert model.n_used == np.count_nonzero(widths <= np.median(widths)) >= 50
    assert model.bound_ns < 3_000 and model.residual_ns < 200


@settings(max_examples=50, deadline=None)
@given(clocks, seeds)
def test_errors_between_two_syncs(clock: Clock, seed: int) -> None:
    models = [synced(clock, BEGIN + index * 30 * SECOND, seed + index) for index in range(3)]
    times = [BEGIN + SECOND // 2 + step * SECOND for step in range(-20, 91, 5)]
    local = np.array([clock.at(true_ns) for true_ns in times])
    errors = np.abs(to_global(models, local) - np.array(times))
    assert errors.max() <= 5_000
    assert errors[4:-6].max() <= 1_000, "between syncs the offset is interpolated"
    assert np.all(errors <= bound_at(models, local) + 1)


@settings(max_examples=50, deadline=None)
@given(clocks, seeds, st.integers(-2_000, 2_000), st.sampled_from([1, 2, 3]))
def test_bounds_hold_while_the_rate_changes(
    clock: Clock, seed: int, change_ppb: int, power: int,
) -> None:
    """The rate goes from one value to another between two syncs, evenly, late or very late."""
    gap, later = 30 * SECOND, Clock(clock.offset_ns, clock.ppb + change_ppb)

    def extra(true_ns: int) -> int:
        share = (true_ns - BEGIN) / gap
        return round(change_ppb * gap / SECOND * share ** (power + 1) / (power + 1))

    first = synced(clock, BEGIN - SECOND // 2, seed)
    missing = clock.at(BEGIN + gap) + extra(BEGIN + gap) - later.at(BEGIN + gap)
    moved = replace(later, offset_ns=later.offset_ns + missing)
    models = [first, synced(moved, BEGIN + gap, seed + 1)]
    times = np.array([BEGIN + gap * step // 20 for step in range(2, 20)])
    local = np.array([clock.at(int(time)) + extra(int(time)) for time in times])
    assert np.all(np.abs(to_global(models, local) - times) <= bound_at(models, local) + 2)


offsets = st.integers(-10**15, 10**15)


@given(st.lists(st.tuples(st.integers(1, 10**12), offsets), min_size=1, max_size=5),
       st.floats(-2e-4, 2e-4), st.lists(st.integers(-10**13, 10**14), min_size=1, max_size=20))
def test_correction_is_exact_to_a_nanosecond(
    steps: list[tuple[int, int]], slope: float, since: list[int],
) -> None:
    """Against the same piecewise line in exact fractions, with offsets of up to 1e15 ns."""
    first, models = 10**15, []
    for gap, offset in steps:
        first += gap
        models.append(replace(ClockModel.identity(first), slope=slope, offset_ns=offset))
    local = [models[0].t_ref_ns + item for item in since]
    found = to_global(models, np.array(local))
    assert found.dtype == np.int64
    for time, got in zip(local, found.tolist(), strict=True):
        assert abs(got - exact_global(models, time)) <= 1


def exact_global(models: list[ClockModel], time: int) -> Fraction:
    later = [index for index, model in enumerate(models) if model.t_ref_ns > time]
    if len(models) > 1 and later and later[0] > 0:
        before, after = models[later[0] - 1], models[later[0]]
        rate = Fraction(after.offset_ns - before.offset_ns, after.t_ref_ns - before.t_ref_ns)
        return time - before.offset_ns - rate * (time - before.t_ref_ns)
    model = models[0] if later else models[-1]
    return time - model.offset_ns - Fraction(model.slope) * (time - model.t_ref_ns)


@given(offsets, st.floats(-2e-4, 2e-4), st.integers(-10**13, 10**13))
def test_to_local_undoes_to_global(offset: int, slope: float, since: int) -> None:
    model = replace(ClockModel.identity(10**16), offset_ns=offset, slope=slope)
    local = model.t_ref_ns + since
    assert abs(model.to_local(model.to_global(local)) - local) <= 1
    assert model.all_to_global(np.array([local])).tolist() == [model.to_global(local)]


def test_one_model_is_its_own_line_and_identity_changes_nothing() -> None:
    model = ClockModel.identity(BEGIN)
    local = np.array([[BEGIN - SECOND, BEGIN], [BEGIN + 1, BEGIN + SECOND]])
    assert to_global([model], local).tolist() == local.tolist()
    assert bound_at([model], local).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("times", [[], [5, 5], [5, 4]])
def test_models_out_of_order_are_refused(times: list[int]) -> None:
    models = [ClockModel.identity(time) for time in times]
    for function in (to_global, bound_at):
        with pytest.raises(ValueError, match="in order of time"):
            function(models, np.array([1]))


def test_a_fit_needs_two_points_that_are_possible() -> None:
    impossible = OffsetInterval(3, low_ns=5, high_ns=4)
    with pytest.raises(ValueError, match="1 of 2 points"):
        fit_clock([OffsetInterval(1, 0, 1), impossible])
    model = fit_clock([OffsetInterval(1, 0, 2), OffsetInterval(10**8, 0, 2), impossible])
    assert (model.n_used, model.n_rejected, model.offset_ns) == (2, 1, 1)


def test_a_step_during_the_fit_is_in_the_bound() -> None:
    """No line goes through all points then, and the bound must not claim that one does."""
    rng = np.random.default_rng(1)
    points = noisy_points(Clock(0, 0), BEGIN, rng)
    stepped = [replace(point, low_ns=point.low_ns + 10**6, high_ns=point.high_ns + 10**6)
               for point in points[70:]]
    model = fit_clock(points[:70] + stepped)
    end = model.t_ref_ns
    assert abs(model.to_global(end) - (end - 10**6)) <= model.bound_ns
    assert model.slope_bound > 1e-6


def test_limits_of_the_parent_are_added() -> None:
    points = noisy_points(Clock(7, 0), BEGIN, np.random.default_rng(2))
    alone = fit_clock(points)
    below = fit_clock(points, parent=3, parent_bound_ns=500.0, parent_slope_bound=1e-6)
    assert below == replace(alone, parent=3, bound_ns=alone.bound_ns + 500.0,
                            slope_bound=alone.slope_bound + 1e-6)


def test_a_check_tightens_the_bound_or_shows_that_it_was_wrong() -> None:
    model = replace(ClockModel.identity(BEGIN), offset_ns=10**15, bound_ns=5_000.0)
    better, check = check_model(model, OffsetInterval(BEGIN, 10**15 - 700, 10**15 + 900))
    assert check == ClockCheck(BEGIN, error_ns=100.0, bound_ns=800.0)
    assert better == replace(model, bound_ns=900.0)
    same, check = check_model(model, OffsetInterval(BEGIN, 10**15 - 20_000, 10**15 - 18_000))
    assert same == model and check.error_ns > check.bound_ns + model.bound_ns


def test_records_survive_json() -> None:
    model = synced(Clock(-10**15 - 1, 25_000), BEGIN, 3)
    for check in (None, ClockCheck(BEGIN, 12.5, 900.0)):
        record = SyncRecord("boot/4:1/5:0", 2, model, check, BEGIN, 1_790_000_000 * SECOND + 1)
        assert from_values(SyncRecord, json.loads(json.dumps(record.to_json()))) == record
    assert from_values(ClockModel, json.loads(json.dumps(asdict(model)))) == model


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13, 64, 129])
def test_the_tree_reaches_all_in_few_rounds(count: int) -> None:
    depth = {0: 0}
    for place in range(count):
        _, children = parent_and_children(place, count)
        for turn, child in enumerate(children, start=1):
            assert parent_and_children(child, count)[0] == place
            depth[child] = depth[place] + turn
    assert sorted(depth) == list(range(count))
    assert max(depth.values()) == (count - 1).bit_length()
    assert parent_and_children(0, count)[0] is None


def test_one_rank_has_the_global_clock() -> None:
    record = synchronise(Communicator(), lambda: BEGIN, "here")
    assert record.model == ClockModel.identity(BEGIN)
    assert (record.identity, record.n_clocks, record.check) == ("here", 1, None)


def test_clocks_note_each_sync_and_one_clock_is_never_due_again() -> None:
    now, notes = SimpleNamespace(ns=BEGIN), []
    found = SynchronisedClock(lambda: now.ns, 30.0, lambda kind, data: notes.append((kind, data)))
    assert found.due(1)
    found.sync(Communicator())
    now.ns += 100 * SECOND
    assert not found.due(1)
    assert found.sync(Communicator()) == found.model == found.records[1].model
    assert [kind for kind, _ in notes] == ["clock", "clock"]
    assert [from_values(SyncRecord, data) for _, data in notes] == found.records
    assert found.records[0].identity == clock_identity()


def test_several_clocks_are_due_again_after_a_while() -> None:
    now = SimpleNamespace(ns=BEGIN)
    found = SynchronisedClock(lambda: now.ns, 30.0, lambda kind, data: None)
    found.keep(SyncRecord("a", 2, ClockModel.identity(BEGIN), None, BEGIN, 0), ranks=2)
    now.ns += 30 * SECOND - 1
    assert not found.due(2)
    now.ns += 1
    assert found.due(2)


def test_a_sync_of_some_ranks_leaves_the_others_due() -> None:
    """Cases on few ranks kept only their clocks compared; the others came back with old models."""
    now = SimpleNamespace(ns=BEGIN)
    found = SynchronisedClock(lambda: now.ns, 30.0, lambda kind, data: None)
    found.keep(SyncRecord("a", 2, ClockModel.identity(BEGIN), None, BEGIN, 0), ranks=2)
    now.ns += 31 * SECOND
    assert found.due(1) and found.due(2)
    found.sync(Communicator())
    now.ns += SECOND
    assert not found.due(1)
    assert found.due(2)


def test_identity_is_the_boot_and_the_time_namespace(tmp_path: Path) -> None:
    def proc(name: str, boot: str, offset: str | None) -> Path:
        folder = tmp_path / name
        (folder / "sys/kernel/random").mkdir(parents=True)
        (folder / "sys/kernel/random/boot_id").write_text(boot + "\n")
        (folder / "self/ns").mkdir(parents=True)
        if offset is not None:
            (folder / "self/ns/time").touch()
            (folder / "self/timens_offsets").write_text(
                f"monotonic  {offset}         0\nboottime            0         0\n")
        return folder

    found = {name: clock_identity(proc(name, boot, offset)) for name, boot, offset in (
        ("one", "aa", "0"), ("other boot", "bb", "0"), ("shifted", "aa", "1000"),
        ("old kernel", "aa", None))}
    assert len(set(found.values())) == 4
    assert found["old kernel"] == "aa"
    assert found["shifted"].startswith("aa/") and found["shifted"].endswith("/1000:0")
    assert clock_identity(tmp_path / "none") == os.uname().nodename
    assert clock_identity() == clock_identity()
