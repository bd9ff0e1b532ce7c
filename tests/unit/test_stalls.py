"""Which rank makes the others of a training wait: named where it does, and only there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hpcbench.kinds.training.derive.slow_ranks import SlowAlone, counted_steps
from hpcbench.kinds.training.derive.stalls import Stalls, sync_variance
from hpcbench.kinds.training.present.charts import findings, profile, stall_charts
from hpcbench.plan.case import Case
from hpcbench.reduce.metric import Values
from hpcbench.reduce.records import Observations, with_records
from hpcbench.reduce.results import Arrival, CaseResult, CaseSamples
from hpcbench.reduce.stack import pass_slices
from hpcbench.trace.schema import ARRIVAL, NO_DEVICE_TIME, Flag
from hpcbench.views.table import Line, Table
from results_factory import make_results
from training_cases import make_training, make_training_case
from training_results import trained

SEED = 20_260_302
MS, PASSES = 1_000_000, 3
Noise = npt.NDArray[np.float64]
CASE = make_training_case(make_training(dp=4), world_size=4)


def noise(rng: np.random.Generator, ranks: int, steps: int, correlation: float = 0.0) -> Noise:
    """Return right-skewed factors about 1, (rank, step), whose neighbours depend on one another."""
    values = rng.standard_normal((ranks, steps))
    for at in range(1, steps):
        values[:, at] = correlation * values[:, at - 1] + np.sqrt(
            1 - correlation**2) * values[:, at]
    return np.asarray(np.exp(0.1 * values))


def samples_of(
    compute_ns: Noise, *, sync_ns: Noise | float = 2 * MS, skew_ns: Noise | float = 0,
    phases: Mapping[str, Noise] | None = None, warmup: int = 2, buckets: int = 1,
) -> CaseSamples:
    """Return the stamps of steps that end together: what a rank computes sooner, it waits.

    ``skew_ns`` is how late ranks begin.
    """
    ranks, steps = compute_ns.shape
    ready = compute_ns + np.asarray(skew_ns)
    end = ready.max(axis=0) + sync_ns + 60 * MS * np.arange(steps)
    start = np.broadcast_to(60 * MS * np.arange(steps) + np.asarray(skew_ns), (ranks, steps))
    flags = np.zeros((ranks, steps), np.int64)
    flags[:, :warmup] = Flag.WARMUP
    exchange = end - (start + compute_ns)
    stamps = {"forward": compute_ns / 3, "backward": compute_ns * 2 / 3, "exchange": exchange,
              **{f"{ARRIVAL}{number}": compute_ns * number / buckets
                 for number in range(1, buckets + 1)}} if phases is None else phases
    other = np.full((ranks, steps), NO_DEVICE_TIME, np.int64)
    of_pass = np.maximum(0, np.arange(steps) - warmup) * PASSES // (steps - warmup)
    return CaseSamples(
        tuple(range(ranks)), np.zeros(steps, np.int64), of_pass,
        start.astype(np.int64), (end + np.zeros((ranks, steps))).astype(np.int64), other, other,
        flags, {name: values.astype(np.int64) for name, values in stamps.items()})


def arrived(item: CaseResult, samples: CaseSamples) -> CaseResult:
    """Return it with when ranks arrive in each pass, by the one clock that they read here."""
    buckets = sorted(int(name.removeprefix(ARRIVAL)) for name in samples.phases
                     if name.startswith(ARRIVAL))
    late_ns = samples.start_ns - samples.start_ns.min(axis=0)
    _, counted = counted_steps(item.case, samples)
    assert item.timing is not None and item.timing.steps is not None
    steps = replace(item.timing.steps, arrivals=tuple(
        Arrival(number, (), 0, 0.0, 0.0, tuple(
            tuple(np.median((late_ns + samples.phases[f"{ARRIVAL}{number}"])[:, part][
                :, counted[part]] / 1e9, axis=1).tolist()) for part in pass_slices(samples)))
        for number in buckets))
    return replace(item, timing=replace(item.timing, steps=steps))


def recorded(samples: CaseSamples, case: Case = CASE) -> Values:
    """Return the values of a report of one case, with what holds of its comparisons."""
    item = arrived(trained(case, 0.03), samples)
    observed = Observations()
    observed.add(item, samples)
    values: Values = with_records(make_results((item,)), observed=observed).record_of(item)
    return values


def found(samples: CaseSamples, case: Case = CASE) -> Stalls:
    known = recorded(samples, case)["stalls"]
    assert isinstance(known, Stalls)
    return known


def steady(slow: Mapping[int, float] | None = None, ranks: int = 4, steps: int = 62) -> Noise:
    """Return 20 ms of computing with 1 % of noise; a slow rank takes that many times as long."""
    factors = np.array([(slow or {}).get(rank, 1.0) for rank in range(ranks)])[:, None]
    return np.asarray(20 * MS * factors * noise(
        np.random.default_rng(SEED), ranks, steps) ** 0.1)


def test_the_rank_that_computes_longer_is_named_with_its_delay_and_its_share() -> None:
    known = found(samples_of(steady({2: 1.5})))
    last = known.last
    assert last is not None and last.rank == 2 and last.last_share == 1
    assert last.behind_s.value == pytest.approx(10e-3, rel=0.05)
    assert last.behind_s.low is not None and last.behind_s.high is not None
    assert 9e-3 < last.behind_s.low <= last.behind_s.value <= last.behind_s.high < 11e-3
    assert last.behind_share == pytest.approx(10 / 32, rel=0.05)
    assert last.phase == "backward" and last.phase_s == pytest.approx(20e-3 / 3, rel=0.05)
    assert known.n_steps == 60 and known.ranks == (0, 1, 2, 3)
    assert known.wait_s[2] == 0 and min(known.wait_s[:2]) > 9e-3
    assert known.stall_share is not None
    assert known.stall_share.value == pytest.approx(0.75 * 10 / 32, rel=0.05)


def test_start_skew_is_no_delay_but_the_others_wait_for_it() -> None:
    skew = np.array([0, 0, 0, 15.0])[:, None] * MS
    record = recorded(samples_of(steady(), skew_ns=skew))
    assert record["stalls"].last is None
    assert record["stalls"].stall_share.value == pytest.approx(0.75 * 15 / 37, rel=0.05)
    assert record["transfer"] == pytest.approx(35 / 37, rel=0.02)
    assert record["serialisation"] == pytest.approx(20 / 35, rel=0.05)


def test_ranks_that_are_slow_together_are_not_distinguished() -> None:
    """Two that share a core are late, and neither is the late one."""
    assert found(samples_of(steady({1: 1.5, 2: 1.5}))).last is None


def test_a_rank_that_is_slow_in_one_pass_only_is_not_named() -> None:
    compute = steady()
    compute[2, :22] *= 1.5
    assert found(samples_of(compute)).last is None


@pytest.mark.parametrize(("changes", "case", "why"), [
    ({"phases": {"forward": steady()}}, CASE, "no stamp separates a rank's own work from waiting"),
    ({}, replace(CASE, mode="pipelined", batch=20), "20 steps, whose stamps are added up"),
])
def test_what_stamps_do_not_hold_is_not_reported(
    changes: dict[str, Any], case: Case, why: str,
) -> None:
    known = found(samples_of(steady({2: 1.5}), **changes), case)
    assert why in known.missing and known.last is None and known.stall_share is None


def test_one_rank_waits_for_nobody() -> None:
    alone = make_training_case(make_training("single", dp=1, calls=()), world_size=1)
    assert "one rank" in found(samples_of(steady(ranks=1)), alone).missing


def test_few_steps_name_nobody() -> None:
    known = found(samples_of(steady({2: 1.5}, steps=12)))
    assert known.last is None
    assert known.last_missing == "it takes 3 passes of 5 samples each"
    assert known.sync is None and known.sync_missing == "10 steps are fewer than 20"


def test_where_calls_block_the_first_bucket_counts() -> None:
    blocking = replace(CASE, backend="mpi")
    known = found(samples_of(steady({2: 1.5}), buckets=4), blocking)
    assert known.last is not None and known.last.rank == 2
    assert known.last.behind_s.value == pytest.approx(10e-3 / 4, rel=0.1)
    assert known.sync is None and "block" in known.sync_missing


def exchange(rng: np.random.Generator, stalled: float) -> CaseSamples:
    sync = 5 * MS * noise(rng, 1, 122)[0] ** 0.3
    sync[rng.random(122) < stalled] *= 4
    return samples_of(20 * MS * noise(rng, 4, 122) ** 0.3, sync_ns=sync)


def test_a_short_exchange_is_not_reported_however_it_varies() -> None:
    rng = np.random.default_rng(SEED)
    short = 1e-5 * noise(rng, 1, 60)[0] ** 9
    sync, _ = sync_variance(short, 0.02 * noise(rng, 4, 60) ** 0.1, np.full(60, 0.02))
    assert sync is not None and sync.chance < 0.01 and not sync.is_high


def test_the_stamps_of_a_rank_without_time_are_refused() -> None:
    none, missing = sync_variance(np.zeros(40), np.ones((2, 40)), np.ones(40))
    assert none is None and "median time is 0" in missing


def test_findings_are_sentences_with_shares_interval_and_evidence() -> None:
    item = trained(CASE)
    (text,) = findings(item, found(samples_of(steady({2: 1.5}))))
    assert text.startswith("rank 2 is the straggler in this launch: 9.8")
    assert "behind (99 % CI" in text and "its backward is 6." in text
    assert "31 %" in text and "100 % of 60 steps" in text
    (text,) = findings(item, found(exchange(np.random.default_rng(SEED), 0.2)))
    assert text.startswith("gradient exchange: high jitter (")
    assert not [*findings(item, found(samples_of(steady())))]


def shown(known: Stalls, ranks: int = 4) -> tuple[list[Line], list[Table]]:
    case = make_training_case(make_training(dp=ranks), world_size=ranks)
    both = [*profile([trained(case)], {case.case_id: {"stalls": known}})]
    return ([one for one in both if isinstance(one, Line)],
            [one for one in both if isinstance(one, Table)])


def test_a_profile_has_warnings_first_and_a_row_for_each_rank() -> None:
    lines, (table,) = shown(found(samples_of(steady({2: 1.5}))))
    assert [line.tone for line in lines] == ["warning", "plain", "plain"]
    assert lines[1].text.startswith("waiting for the slowest rank: 23.")
    assert "(CI " in lines[1].text and "60 steps" in lines[1].text
    assert [row.cells[0] for row in table.rows] == [0, 1, 2, 3]
    assert table.rows[2].cells[-1] == 0


def test_of_many_ranks_a_profile_shows_those_that_are_ready_last() -> None:
    slow = {number: 1 + number / 10 for number in range(20)}
    case = make_training_case(make_training(dp=20), world_size=20)
    _, (table,) = shown(found(samples_of(steady(slow, ranks=20)), case), 20)
    assert [row.cells[0] for row in table.rows] == [*range(19, 11, -1)]
    assert "12 ranks more" in table.notes[0].text


def test_a_profile_states_what_is_unknown_and_what_shows_it() -> None:
    lines, _ = shown(found(samples_of(steady(), phases={"forward": steady()})))
    assert lines[0].text.startswith("stragglers: unknown (ranks of data")
    assert '"communication": ["on", "off"]' in lines[0].text


@pytest.mark.parametrize("named", [False, True])
def test_a_slow_rank_without_communication_is_named_beside_what_is_unknown(named: bool) -> None:
    item = trained(CASE)
    slow = SlowAlone(1, 0.2, 0, 0.1, 2.0, 1.9, 2.2, "off")
    record = {"stalls": Stalls(missing="they wait within"), "slow_alone": slow if named else None}
    (line, *_) = (one.text for one in profile([item], {CASE.case_id: record})
                  if isinstance(one, Line))
    assert ("(2.00x; passes 1.90x to 2.20x)" in line) is named
    assert ("they wait within" in line) is not named


def test_the_figure_shows_who_waits_for_whom_where_something_stands_out() -> None:
    shares = {"forward": 0.2, "backward": 0.4, "exchange": 0.34, "optimizer": 0.05}
    item = trained(CASE, 0.032, shares)
    slow = {"stalls": found(samples_of(steady({2: 1.5})))}
    (figure,) = stall_charts([item], {CASE.case_id: slow})
    (section,) = figure.sections
    assert [bar.label for bar in section.bars] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    parts = [{look.label: time_s for time_s, look in bar.segments} for bar in section.bars]
    assert parts[2]["waits for the last rank"] == 0
    assert parts[0]["waits for the last rank"] == pytest.approx(10e-3, rel=0.05)
    assert all(sum(part.values()) == pytest.approx(0.032) for part in parts)
    calm = {"stalls": found(samples_of(steady()))}
    assert not [*stall_charts([item], {CASE.case_id: calm})]
