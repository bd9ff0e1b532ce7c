"""The topic that names slow links and ranks of the machine, from results to sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcbench.analysis.machine import Machine, machine, machine_charts, machine_tables
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, NONE, Run, TopicOptions
from hpcbench.kinds.hardware.derive import Distance, PairsRecord
from hpcbench.kinds.hardware.plan.pairs import Pairs
from hpcbench.reduce.kind_facts import F, PairRates, RankRates, ReadSamples
from hpcbench.reduce.results import CaseResult, Results
from results_factory import MemorySamples, make_case, make_results, ok

RANKS = 8


def measured(
    slow: tuple[int, int] | None = None, what: str = "bandwidth", distance: str = "same node",
    ranks: int = RANKS, noise: float = 0.01, seed: int = 3,
) -> Results:
    """Return the matrix of ranks on two nodes, in which one way of a link has 0.6 of its rate."""
    rates = 1e9 * np.exp(np.random.default_rng(seed).normal(0, noise, (ranks, ranks)))
    if slow is not None:
        rates[slow] *= 0.6
    values = rates if what == "bandwidth" else 1 / rates
    matrix = tuple(tuple(None if row == column else float(values[row, column])
                         for column in range(ranks)) for row in range(ranks))
    case = replace(make_case(world_size=ranks), kind="hardware",
                   workload=Pairs(what, "one way", True, 8, 10))
    item = replace(ok(case, 1e-3), detail={
        str(rank): {"node": f"node{rank * 2 // ranks}"} for rank in range(ranks)})
    pairs = PairsRecord(matrix, (Distance(distance, 56, 1, 1, 1, 0, 1, 2),))
    return replace(make_results((item,)), derived={
        "hardware": {case.case_id: {"pairs": pairs}}})


class InPasses(Run):
    """A run whose pairs were measured in passes, each with the rates of one of `PASSES`."""

    def facts(self, item: CaseResult, wanted: type[F], read: ReadSamples = lambda: None,
              ) -> tuple[F, ...]:
        return tuple(replace(one, passes=PASSES[item.case.label]) if isinstance(one, PairRates)
                     and item.case.label in PASSES else one
                     for one in super().facts(item, wanted, read))


PASSES: dict[str, tuple[Any, ...]] = {}


def asked(results: Results, *passes: Results) -> Machine:
    PASSES.clear()
    for one in passes:
        (item,) = one.cases
        (pairs,) = Run("FILE", one, MemorySamples(one)).facts(item, PairRates)
        PASSES[item.case.label] = (*PASSES.get(item.case.label, ()), pairs.rates)
    return machine([InPasses("FILE", results, MemorySamples(results))], TopicOptions())


@pytest.mark.parametrize(("what", "name"), [
    ("bandwidth", "the link from rank 1 to 6")])
def test_a_slow_link_is_named_with_how_much(what: str, name: str) -> None:
    found = asked(measured((1, 6), what), *(
        measured((1, 6), what, seed=seed) for seed in range(3)))
    (answer,) = found.answers
    assert answer.certainty == CLEAR and answer.subject == name
    assert found.parts[0].drop == pytest.approx(0.4, abs=0.03)
    (table,), (chart,) = machine_tables(found), machine_charts(found)
    assert len(table.rows) == len(chart.rows) == 1


def test_where_noise_hides_a_large_drop_equal_links_are_no_all_clear() -> None:
    (answer,) = asked(measured(noise=0.3), *(
        measured(noise=0.3, seed=seed) for seed in range(3))).answers
    assert answer.certainty == CANNOT_TELL


@pytest.mark.parametrize("what", ["bandwidth", "latency"])
def test_equal_links_name_nothing_and_state_what_would_be(what: str) -> None:
    found = asked(measured(what=what), *(measured(what=what, seed=seed) for seed in range(3)))
    (answer,) = found.answers
    assert answer.certainty == NONE and "each would show a drop" in answer.sentence
    assert not [*machine_tables(found), *machine_charts(found)]


@pytest.mark.parametrize(("results", "why"), [
    (measured(ranks=2), "4 ranks or more"),
    (measured(), "no slow link shows for sure in 0 passes); use 3"),
    (measured(distance="same board"), "links of several distances are mixed (same board)"),
    (make_results((ok(make_case()),)), "not measured")])
def test_what_data_cannot_carry_is_stated(results: Results, why: str) -> None:
    (answer,) = asked(results).answers
    assert answer.certainty == CANNOT_TELL and why in answer.text


class OfRanks(Run):
    """A run whose one case has rates of 8 ranks in so many passes, of which rank 5 is slow."""

    passes = 6

    def facts(self, item: CaseResult, wanted: type[F], read: ReadSamples = lambda: None,
              ) -> tuple[F, ...]:
        rates = np.random.default_rng(2).normal(1e9, 1e7, (self.passes, RANKS))
        rates[:, 5] *= 0.8
        fact = RankRates(tuple(np.median(rates, axis=0)), tuple(map(tuple, rates)))
        return (fact,) if wanted is RankRates else ()


@pytest.mark.parametrize(("passes", "certainty"), [(6, CLEAR), (3, CANNOT_TELL)])
def test_a_rank_is_named_where_passes_bear_it_out(
    passes: int, certainty: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OfRanks, "passes", passes)
    results = make_results((ok(make_case(world_size=RANKS)),))
    run = OfRanks("FILE", replace(results, run=replace(results.run, world_size=RANKS)),
                  MemorySamples(results))
    (answer,) = machine([run], TopicOptions()).answers
    assert answer.certainty == certainty and answer.text.startswith("slow ranks: ")
    assert (answer.subject == "rank 5" if certainty == CLEAR else
            "3 passes of cases show no slow rank for sure); use 4" in answer.text)
