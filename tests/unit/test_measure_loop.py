"""The timed loop, agreed starts and stopping, with threads as ranks: no torch, no MPI."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from hpcbench.measurement.control import Control, Integers, SharedProgress, WorkerPhase
from hpcbench.measurement.loop import (
    LATE_NS,
    MOST_SLACK_NS,
    AgreedStart,
    EnoughSamples,
    FixedCount,
    LoopResult,
    SampleSchedule,
    Surroundings,
    after_barrier,
    drawn_samples,
    first_to_last,
    last_to_last,
    measure,
    of_one_rank,
    slowest_rank,
    total_wrong,
    wait_until,
)
from hpcbench.statistics.stopping import StopRule
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import NO_DEVICE_TIME, SAMPLE_COLUMNS, UNTIMED, Flag

START, END, ENQUEUE, DEVICE, FLAGS = range(len(SAMPLE_COLUMNS))
NOW = time.perf_counter_ns


class Threads:
    """A control group of threads; each rank has a view of its own."""

    def __init__(self, size: int) -> None:
        self._meeting = threading.Barrier(size, timeout=20)
        self._slots: list[Any] = [None] * size
        self.size = size

    def of(self, rank: int) -> OneOf:
        return OneOf(self, rank)


class OneOf:
    """One rank's view of the group."""

    def __init__(self, group: Threads, rank: int) -> None:
        self._group = group
        self.rank = rank

    def barrier(self) -> None:
        self._group._meeting.wait()

    def maximum(self, values: Integers) -> Integers:
        self._group._slots[self.rank] = values.copy()
        self.barrier()
        agreed: Integers = np.max(self._group._slots, axis=0)
        self.barrier()
        return agreed


class Work:
    """A workload that counts its calls and is wrong when told to be."""

    name = "work"

    def __init__(self, duration_s: float = 0.0, wrong_calls: frozenset[int] = frozenset()) -> None:
        self.calls: list[int] = []
        self.prepared = self.checked = 0
        self._duration_s = duration_s
        self._wrong_calls = wrong_calls

    def prepare(self) -> None:
        self.prepared += 1
        self.calls.append(0)

    def run(self) -> None:
        time.sleep(self._duration_s)
        self.calls[-1] += 1

    def check(self) -> object | None:
        self.checked += 1
        return "wrong" if len(self.calls) - 1 in self._wrong_calls else None


class Host:
    """A device without a clock."""

    def prepared(
        self, run: Callable[[], object], now_ns: Callable[[], int],
    ) -> Callable[[], object]:
        return run

    def took(self) -> tuple[int, int]:
        return NO_DEVICE_TIME, NO_DEVICE_TIME

    def synchronize(self) -> None:
        pass


def on_ranks(size: int, work: Callable[[OneOf], Any]) -> list[Any]:
    """Run ``work`` on so many threads at once and return what each returned."""
    group = Threads(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(group.of(rank)), range(size)))


def run_alone(
    schedule: SampleSchedule, count: int, work: Work | None = None,
) -> tuple[LoopResult, SharedProgress, Work]:
    """Measure on one rank with a fixed count."""
    work = work or Work()
    control, progress = Threads(1).of(0), SharedProgress.create(100)
    progress.begin(1)
    around = Surroundings(after_barrier(control), FixedCount(count), control.barrier, NOW)
    return measure(work, Host(), progress, schedule, around), progress, work


def test_a_fixed_count_is_taken_exactly_with_warmups_first() -> None:
    measured, progress, work = run_alone(SampleSchedule(3, 1, validate=True), 5)
    rows = progress.rows()
    assert measured.stop_reason == "fixed" and not measured.wrong
    drawn = next(drawn_samples(""))
    middle = [Flag.CHECKED if number == drawn else 0 for number in (1, 2, 3)]
    assert rows[:, FLAGS].tolist() == [
        Flag.WARMUP | Flag.CHECKED, Flag.WARMUP, Flag.WARMUP, Flag.CHECKED, *middle, Flag.CHECKED]
    assert work.calls == [1] * 8 and work.prepared == 8 and work.checked == 4
    assert np.all(rows[:, END] >= rows[:, START])
    assert np.all(rows[1:, START] >= rows[:-1, END])
    assert np.all(rows[:, [ENQUEUE, DEVICE]] == NO_DEVICE_TIME)


def test_flags_of_a_start_stand_in_the_row_of_their_sample() -> None:
    late = iter([0, 0, Flag.LATE_START, 0, None, Flag.LATE_START, 0, 0])
    progress = SharedProgress.create(100)
    progress.begin(1)
    around = Surroundings(lambda: next(late), FixedCount(5), lambda: None, NOW)
    measure(Work(), Host(), progress, SampleSchedule(3, 1, validate=False), around)
    assert progress.rows()[:, FLAGS].tolist() == [
        Flag.WARMUP, Flag.WARMUP, Flag.WARMUP | Flag.LATE_START, 0, 0, Flag.LATE_START, 0, 0]


def test_a_sample_lasts_as_long_as_its_call() -> None:
    _, progress, _ = run_alone(SampleSchedule(1, 1, validate=False), 3, Work(duration_s=0.005))
    rows = progress.rows()
    assert np.all(rows[:, END] - rows[:, START] >= 5_000_000)


def test_calls_that_are_not_recorded_follow_a_check_before_the_next_timed_sample() -> None:
    measured, progress, work = run_alone(SampleSchedule(3, 1, validate=True, settles=True), 5)
    rows = progress.rows()
    checked = rows[:, FLAGS] & Flag.CHECKED > 0
    expected = np.append(False, checked[:-1]) & (rows[:, FLAGS] & Flag.WARMUP == 0)
    assert (rows[:, FLAGS] & Flag.SETTLED > 0).tolist() == expected.tolist()
    assert len(rows) == 8 and expected.sum() == 2 and measured.stop_reason == "fixed"
    assert work.calls == [1] * 12 and work.prepared == 12 and work.checked == 4
    assert np.all(rows[1:, START] >= rows[:-1, END])


def test_faults_of_a_sample_come_once_where_calls_settle_before_it() -> None:
    fired: list[int] = []
    control, progress = Threads(1).of(0), SharedProgress.create(100)
    progress.begin(1)
    around = Surroundings(
        after_barrier(control), FixedCount(3), control.barrier, NOW,
        faults={row: partial(fired.append, row) for row in range(4)})
    measure(Work(), Host(), progress, SampleSchedule(1, 1, validate=True, settles=True), around)
    assert fired == [0, 1, 2, 3]


def test_a_stray_call_takes_the_place_of_its_sample_alone() -> None:
    control, progress = Threads(1).of(0), SharedProgress.create(100)
    progress.begin(1)
    work, stray = Work(), Work()
    stray.prepare()
    around = Surroundings(after_barrier(control), FixedCount(3), control.barrier, NOW,
                          wrong_operations={2: stray})
    measure(work, Host(), progress, SampleSchedule(1, 1, validate=True, settles=True), around)
    assert stray.calls == [1] and len(progress.rows()) == 4


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(("warmup", "batch"), [(2, 1), (0, 1), (2, 7), (0, 7)])
def test_a_call_that_returns_a_coroutine_is_refused_at_once(
    warmup: int, batch: int, *, validate: bool,
) -> None:
    async def step() -> None:
        pass

    work = Work()
    work.run = lambda: step()  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="coroutine"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those before the last of a batch were never awaited
        run_alone(SampleSchedule(warmup, batch, validate=validate), 3, work)
    assert work.prepared == 1


def test_one_sample_is_checked_once() -> None:
    _, progress, work = run_alone(SampleSchedule(0, 1, validate=True), 1)
    assert progress.rows()[:, FLAGS].tolist() == [Flag.CHECKED] and work.checked == 1


def test_samples_of_several_calls_are_checked_by_single_calls_around_them() -> None:
    measured, progress, work = run_alone(SampleSchedule(2, 20, validate=True, single=(1, 1)), 4)
    flags = progress.rows()[:, FLAGS]
    assert work.calls == [1, 20, 20, 20, 20, 20, 20, 1] and work.checked == 2
    assert flags[0] == Flag.WARMUP | Flag.SINGLE | Flag.CHECKED
    assert flags[-1] == Flag.SINGLE | Flag.CHECKED
    assert ((flags & UNTIMED) == 0).sum() == 4 and measured.stop_reason == "fixed"


def test_every_timed_sample_is_checked_if_asked_for() -> None:
    _, progress, work = run_alone(SampleSchedule(2, 1, validate=True, every=True), 90)
    checked = progress.rows()[:, FLAGS] & Flag.CHECKED > 0
    assert checked.tolist() == [True, False, *[True] * 90] and work.checked == 91


@pytest.mark.parametrize("batch", [1, 20])
def test_further_calls_are_checked_after_the_timed_ones(batch: int) -> None:
    measured, progress, work = run_alone(
        SampleSchedule(1, batch, validate=True, single=(int(batch > 1), 5)), 4)
    flags = progress.rows()[:, FLAGS]
    assert work.calls == [*[1] * (batch > 1), *[batch] * 5, *[1] * 5]
    assert flags[-5:].tolist() == [Flag.SINGLE | Flag.CHECKED] * 5
    assert ((flags & UNTIMED) == 0).sum() == 4 and measured.stop_reason == "fixed"


def test_unchecked_means_no_check_and_no_single_calls() -> None:
    for batch in (1, 7):
        _, progress, work = run_alone(SampleSchedule(1, batch, validate=False), 2)
        assert work.checked == 0 and work.calls == [batch] * 3
        assert progress.rows()[:, FLAGS].tolist() == [Flag.WARMUP, 0, 0]


@pytest.mark.parametrize("seed", ["a/1", "a/2", "b/1"])
def test_samples_between_are_checked_alike_on_all_ranks_and_differently_elsewhere(
    seed: str,
) -> None:
    _, progress, work = run_alone(SampleSchedule(1, 1, validate=True, seed=seed), 90)
    checked = np.flatnonzero(progress.rows()[:, FLAGS] & Flag.CHECKED) - 1
    drawn = list(itertools.takewhile(lambda number: number < 90, drawn_samples(seed)))
    assert checked.tolist() == sorted({-1, 0, *drawn, 89}) and 5 <= len(drawn) <= 6
    assert work.checked == len(checked)
    others = list(itertools.islice(drawn_samples(f"{seed}0"), len(drawn)))
    assert drawn != others


def test_a_last_sample_that_was_drawn_is_checked_once() -> None:
    last = list(itertools.islice(drawn_samples(""), 4))[-1]
    measured, progress, work = run_alone(
        SampleSchedule(0, 1, validate=True), last + 1, Work(wrong_calls=frozenset({last})))
    assert measured.wrong == ["wrong"] and progress.rows()[-1, FLAGS] == Flag.CHECKED
    assert work.checked == 1 + 4


def test_an_error_in_one_of_a_hundred_calls_is_found_as_often_as_the_docs_state() -> None:
    for samples, checks in ((8, 5), (100, 9), (1000, 12), (10_000, 15)):
        counts = []
        for seed in range(200):
            counts.append(3)
            for number in drawn_samples(str(seed)):
                if number >= samples:
                    break
                counts[-1] += 1
        assert abs(np.mean(counts) - checks) <= 0.5, samples


@pytest.mark.parametrize("wrong_call", [0, 2, 6])
def test_what_a_check_finds_is_returned(wrong_call: int) -> None:
    work = Work(wrong_calls=frozenset({wrong_call}))
    measured, _, _ = run_alone(SampleSchedule(2, 1, validate=True), 5, work)
    assert measured.wrong == ["wrong"]


def test_ranks_stop_together_when_the_budget_is_used() -> None:
    def one(control: OneOf) -> tuple[str, int]:
        progress = SharedProgress.create(5000)
        progress.begin(1)
        rule = StopRule(min_n=5, max_n=4000, target=1e-9, budget_s=0.2)
        stopping = EnoughSamples(rule, slowest_rank, control, progress, NOW,
                                 decides=control.rank == 0)
        around = Surroundings(after_barrier(control), stopping, control.barrier, NOW)
        measured = measure(Work(0.001 * (1 + control.rank)), Host(), progress,
                           SampleSchedule(2, 1, validate=False), around)
        return measured.stop_reason, len(progress.rows())

    answers = on_ranks(3, one)
    assert len(set(answers)) == 1
    reason, rows = answers[0]
    assert reason == "budget" and 2 + 5 <= rows < 4002


@pytest.mark.parametrize(("rule", "expected"), [
    (StopRule(min_n=3, max_n=12, target=1e-9, budget_s=60), ("max_iterations", 12)),
    (StopRule(min_n=6, max_n=4000, target=0.9, budget_s=60), ("converged", None)),
    (StopRule(min_n=7, max_n=4000, target=1e-9, budget_s=1e-9), ("budget", 7)),
])
def test_the_reason_and_the_bounds(rule: StopRule, expected: tuple[str, int | None]) -> None:
    control, progress = Threads(1).of(0), SharedProgress.create(5000)
    progress.begin(1)
    stopping = EnoughSamples(rule, slowest_rank, control, progress, NOW, decides=True)
    around = Surroundings(after_barrier(control), stopping, control.barrier, NOW)
    measured = measure(Work(0.0005), Host(), progress, SampleSchedule(0, 1, validate=False), around)
    assert measured.stop_reason == expected[0]
    rows = len(progress.rows())
    assert rule.min_n <= rows <= rule.max_n and expected[1] in (None, rows)


def test_samples_that_become_slow_do_not_overrun_the_budget() -> None:
    """Checkpoints are foreseen by the pace so far; a thousand samples were 100 s late so."""
    def one(control: OneOf) -> tuple[str, int]:
        progress = SharedProgress.create(20_000)
        progress.begin(1)
        rule = StopRule(min_n=5, max_n=10_000, target=1e-9, budget_s=1.0)

        def now_ns() -> int:
            rows = len(progress.rows())
            return 10_000 * rows + 100_000_000 * max(rows - 2000, 0)

        stopping = EnoughSamples(rule, slowest_rank, control, progress, now_ns,
                                 decides=control.rank == 0)
        around = Surroundings(after_barrier(control), stopping, control.barrier, NOW)
        measured = measure(Work(0.0), Host(), progress, SampleSchedule(0, 1, validate=False),
                           around)
        return measured.stop_reason, len(progress.rows())

    answers = on_ranks(2, one)
    assert len(set(answers)) == 1
    reason, rows = answers[0]
    assert reason == "budget" and 2010 <= rows <= 2074


def asked_after(rule: StopRule) -> list[int]:
    """Return after how many samples a measurement of a work of no time asks whether it may end."""
    control, progress = Threads(1).of(0), SharedProgress.create(5000)
    progress.begin(1)
    asked: list[int] = []

    class Noted(EnoughSamples):
        def after(self, count: int, rows: int) -> str:
            assert count == rows
            asked.append(count)
            return super().after(count, rows)

    stopping = Noted(rule, slowest_rank, control, progress, NOW, decides=True)
    around = Surroundings(after_barrier(control), stopping, control.barrier, NOW)
    measure(Work(0.0), Host(), progress, SampleSchedule(0, 1, validate=False), around)
    assert len(progress.rows()) == asked[-1]
    return asked


def test_it_is_asked_at_checkpoints_and_every_64_samples_between() -> None:
    rule = StopRule(min_n=100, max_n=300, target=1e-9, budget_s=60)
    assert asked_after(rule) == [100, 150, 214, 225, 289, 300]


@pytest.mark.parametrize("count", [1, 2, 3, 65, 99])
def test_a_fixed_count_is_taken_whether_samples_are_checked_or_not(count: int) -> None:
    for validate in (True, False):
        measured, progress, _ = run_alone(SampleSchedule(0, 1, validate=validate), count)
        assert measured.stop_reason == "fixed" and len(progress.rows()) == count


def test_a_fixed_count_is_asked_for_once() -> None:
    assert FixedCount(9).ahead(0) == 9 and FixedCount(9).ahead(7) == 2
    assert FixedCount(9).after(8, 8) == "" and FixedCount(9).after(9, 9) == "fixed"
    assert FixedCount(0).ahead(0) == 1  # never none: the loop would not end


def test_who_waits_at_a_checkpoint_is_further_than_who_is_in_the_sample() -> None:
    """Else a rank that hangs there could not be told from those that wait for it."""
    control, progress = Threads(1).of(0), SharedProgress.create(100)
    seen: list[tuple[int, WorkerPhase]] = []
    progress.begin(1)

    def fold(rows: Integers, control: Control) -> Integers:
        seen.append((progress.iteration, progress.phase))
        return slowest_rank(rows, control)

    rule = StopRule(min_n=4, max_n=5, target=1e-9, budget_s=60)
    stopping = EnoughSamples(rule, fold, control, progress, NOW, decides=True)
    around = Surroundings(after_barrier(control), stopping, control.barrier, NOW)
    measure(Work(0.0), Host(), progress, SampleSchedule(2, 1, validate=False), around)
    assert seen == [(5, WorkerPhase.CHECK), (6, WorkerPhase.CHECK)]


def test_nobody_starts_before_the_agreed_time() -> None:
    agreed: dict[int, int] = {}

    class Noted(OneOf):
        def maximum(self, values: Integers) -> Integers:
            found = super().maximum(values)
            agreed[len(stamps[self.rank])] = int(found[0])
            return found

    group, stamps = Threads(3), [[], [], []]  # type: ignore[var-annotated]

    def one(rank: int) -> None:
        start = AgreedStart(Noted(group, rank), ClockModel.identity(NOW()), NOW, 20_000)
        for number in range(30):
            time.sleep(0.0003 * ((number + rank) % 3))
            start()
            stamps[rank].append(NOW())

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(3)))
    for number, start_ns in agreed.items():
        assert all(own[number] >= start_ns for own in stamps)


class Alone:
    """A control group of one rank, and what another rank might add to it."""

    def __init__(self, other_was_late: int = 0) -> None:
        self.other_was_late = other_was_late
        self.told: list[int] = []

    def barrier(self) -> None:
        pass

    def maximum(self, values: Integers) -> Integers:
        self.told.append(int(values[1]))
        return np.array([values[0], max(values[1], self.other_was_late)], dtype=np.int64)


@pytest.mark.parametrize(("known_ns", "behind_ns", "expected"), [
    (1400, 0, Flag(0)), (1400, LATE_NS, Flag(0)), (1400, LATE_NS + 1, Flag.LATE_START),
    (1501, 1, Flag(0)), (1501, LATE_NS + 1, Flag.LATE_START)])
def test_a_late_start_is_flagged_and_a_missed_one_is_reported(
    known_ns: int, behind_ns: int, expected: Flag
) -> None:
    """Agreed is 1500; the rank knows it at ``known_ns`` and starts ``behind_ns`` behind it."""
    first = [1000, known_ns, known_ns, 1500 + behind_ns, 1500 + behind_ns]
    readings = iter([*first, 9000, 9100, 9100, 90_000, 90_000])
    control = Alone()
    start = AgreedStart(control, ClockModel.identity(0), lambda: next(readings), 500)
    assert start() == expected
    start()
    assert control.told == [0, int(known_ns > 1500)]


def test_the_only_rank_is_never_late() -> None:
    ticks = itertools.count(0, 10 * LATE_NS)
    start = AgreedStart(Alone(), ClockModel.identity(0), lambda: next(ticks), 500)
    assert start() == Flag.LATE_START and not of_one_rank(start)()


def test_who_oversleeps_spins_longer_and_who_does_not_shorter_again() -> None:
    ticks = itertools.count(0, 60_000)
    start = AgreedStart(Alone(), ClockModel.identity(0), lambda: next(ticks), 160_000)
    start()
    assert start._spin_ns == 60_000
    fine = itertools.count(10**12, 100)
    start._now_ns = lambda: next(fine)
    for _ in range(100):
        start()
    assert start._spin_ns == 30_000


def test_slack_grows_with_late_starts_and_shrinks_without() -> None:
    control, ticks = Alone(other_was_late=1), itertools.count(0, 100)
    start = AgreedStart(control, ClockModel.identity(0), lambda: next(ticks), 2_000)
    for _ in range(8):
        start()
    assert start.slack_ns == 3_000
    control.other_was_late = 0
    for _ in range(8 * 10):
        start()
    assert start.slack_ns == 2_000
    ticks = itertools.count(0, MOST_SLACK_NS)
    start = AgreedStart(Alone(1), ClockModel.identity(0), lambda: next(ticks), MOST_SLACK_NS)
    for _ in range(17):
        start()
    assert start.slack_ns == MOST_SLACK_NS


def test_waiting_never_ends_early() -> None:
    for ahead_ns in (-5, 0, 1_000, 200_000, 3_000_000):
        until = NOW() + ahead_ns
        wait_until(until, NOW, 30_000)
        assert NOW() >= until


@pytest.mark.skipif(sys.platform != "linux", reason="timer slack is Linux's")
def test_only_the_wait_for_the_start_is_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed sleeps as it does elsewhere, after each way to a start."""
    prctl = ctypes.CDLL(None).prctl
    get_slack, set_slack = partial(prctl, 30, 0, 0, 0, 0), partial(prctl, 29)
    asleep: list[int] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: asleep.append(get_slack()))
    set_slack(41_000, 0, 0, 0)
    try:
        for slack_ns in (10_000, 300_000):  # spins only; sleeps, too
            AgreedStart(Alone(), ClockModel.identity(NOW()), NOW, slack_ns)()
            assert get_slack() == 41_000
    finally:
        set_slack(0, 0, 0, 0)
    assert asleep == [1]


def test_folds_use_all_ranks() -> None:
    shifts = (0, 5_000_000_000_000, -7_000_000)

    def one(control: OneOf) -> list[list[int]]:
        shift = shifts[control.rank]
        start = 10**12 + 1000 * control.rank
        rows = np.zeros((2, len(SAMPLE_COLUMNS)), dtype=np.int64)
        rows[:, START] = [start + shift, start + shift + 10**6]
        rows[:, END] = rows[:, START] + [500 * (control.rank + 1), 100]
        clock = replace(ClockModel.identity(10**12), offset_ns=shift)
        return [fold(rows, control).tolist()
                for fold in (slowest_rank, first_to_last(clock), last_to_last(clock))]

    for answer in on_ranks(3, one):
        assert answer == [[1500, 100], [3500, 2100], [1500, 100]]


class Wrong:
    """What a check found wrong: so many of 8 elements."""

    def __init__(self, n_wrong: int) -> None:
        self.n_wrong, self.words = n_wrong, f"{n_wrong} of 8 elements"


def test_wrong_elements_of_several_calls_are_not_those_of_one() -> None:
    assert total_wrong([Wrong(8)], checked=True) == (8, "8 of 8 elements")
    assert total_wrong([Wrong(8), None, Wrong(5)], checked=True) == (
        13, "8 of 8 elements (13 in 2 calls)")
    assert total_wrong([], checked=False) == (-1, "")
