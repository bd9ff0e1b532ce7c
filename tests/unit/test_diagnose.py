"""The topic diagnose: which rank the others wait for, by how much, and what nothing tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcbench.analysis.diagnose import Diagnosis, diagnose, diagnose_charts, diagnose_tables
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, NONE, Run, TopicOptions
from hpcbench.answers.topics import topics
from hpcbench.kinds.training.derive.deriver import lateness
from hpcbench.kinds.training.derive.stalls import Stalls
from hpcbench.reduce.comparison import LATE_START, Comparison
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.topology import RankPlace, Topology
from hpcbench.units import format_seconds
from results_factory import MemorySamples, make_case, make_results, ok
from test_stalls import Noise, recorded, samples_of, steady
from training_cases import make_training, make_training_case
from training_results import trained

LATE = Comparison(LATE_START, 1e-9, 2, 1, 2e-3, 1.9e-3, 2.1e-3)
ON_TIME = Comparison(LATE_START, 1.0, 2, 1, 1e-5, -1e-5, 3e-5)
PLACES = Topology(tuple(RankPlace(rank, f"node-{rank // 2}", None, None, None, None, None, None)
                        for rank in range(4)))


def started(start: Comparison | None, *, index: int = 0, ranks: int = 4) -> CaseResult:
    item = ok(make_case(index=index, world_size=ranks), 10e-3)
    assert item.timing is not None
    return replace(item, timing=replace(item.timing, late_start=start, quickest_share=0.9))


def asked(*items: CaseResult, faults: tuple[str, ...] = ()) -> Diagnosis:
    results = replace(make_results(items, faults=faults), topology=PLACES)
    return diagnose([Run("FILE", results, MemorySamples(results))], TopicOptions())


def test_a_rank_that_starts_late_is_named_with_host_size_and_what_if() -> None:
    found = asked(started(LATE), started(LATE, index=1), started(ON_TIME, index=2),
                  faults=("slow",))
    (answer,) = found.answers
    assert answer.certainty == CLEAR and answer.subject == "rank 2"
    assert answer.command == "hpcbench advise FILE --only diagnose"
    assert "rank 2 on node-1 delays all_reduce gloo" in answer.sentence
    assert "by 2 ms (CI 1.9 to 2.1), 20 % of the call, and 1 more case" in answer.sentence
    assert "before the call; without it the call takes 8 ms (CI 7.9 to 8.1)" in answer.evidence[0]
    evidence = "\n".join(answer.evidence)
    assert "its own call is the shortest in 90% of the samples" in evidence
    assert "among 3 comparisons" in evidence and "injected faults: slow" in evidence
    assert "fix: see what else runs on node-1" in evidence
    (table,), (chart,) = diagnose_tables(found), diagnose_charts(found)
    assert [row.cells[1] for row in table.rows] == [2, 2]
    assert [row.point.value for row in chart.rows] == pytest.approx([0.2, 0.2])


def test_a_late_start_is_a_share_of_the_whole_sample() -> None:
    item = started(LATE)
    assert item.timing is not None
    (one,) = asked(replace(item, timing=replace(item.timing, calls=5))).checks
    assert (one.call_s, one.share.value) == pytest.approx((5 * 10e-3, 2e-3 / 50e-3))


def test_nobody_is_named_and_the_sentence_states_how_much_is_excluded() -> None:
    found = asked(started(ON_TIME))
    (answer,) = found.answers
    assert answer.certainty == NONE and "at most 0.3 %" in answer.sentence
    assert not [*diagnose_tables(found)] and not [*diagnose_charts(found)]


@pytest.mark.parametrize(("item", "why"), [
    (started(None), "it takes 3 passes of 5 samples each"),
    (started(replace(ON_TIME, high_s=5e-3)), " n=4 (noise hides delays up to 50 % of its time)"),
    (replace(started(None), status="timeout", statistics=None), "no times (status timeout)"),
    (started(None, ranks=1), "no case ran on two ranks"),
])
def test_what_data_cannot_carry_is_stated(item: CaseResult, why: str) -> None:
    (answer,) = asked(item).answers
    assert answer.certainty == CANNOT_TELL and why in answer.sentence


def of_training(compute: Noise) -> Diagnosis:
    case = make_training_case(make_training(dp=4), world_size=4)
    item, record = trained(case, 0.03), recorded(samples_of(compute), case)
    results = make_results((item,))
    results = replace(results, derived={"training": {case.case_id: record}})
    return diagnose([Run("FILE", results, MemorySamples(results))], TopicOptions())


def test_the_phase_is_a_cause_only_where_it_explains_the_delay() -> None:
    """Forward has a third of the lateness, backward two: neither explains 80 % of it."""
    first, *_ = of_training(steady({2: 1.5})).answers
    assert first.certainty == CLEAR and first.subject == "rank 2"
    assert "in no single phase (the longest explains 67%)" in first.evidence[0]


def test_equal_trainings_name_nobody() -> None:
    assert all(answer.certainty != CLEAR for answer in of_training(steady()).answers)


def test_a_slow_stage_of_a_pipeline_is_no_slow_rank() -> None:
    item = trained(make_training_case(make_training("pipeline", dp=2, pp=2), world_size=4), 0.03)
    (one,) = lateness(item, {"stalls": Stalls(n_steps=60)})
    assert one.comparison is None and "uneven partitioning, not a slow rank" in one.missing


def test_a_negative_end_of_an_interval_has_its_unit() -> None:
    assert format_seconds(-1.5e-3) == "-1.5 ms" and format_seconds(-2e-9) == "-2 ns"


def test_it_is_a_topic_of_the_summary() -> None:
    (topic,) = (one for one in topics(of_summary=True) if one.name == "diagnose")
    assert topic.analysis is diagnose


def test_skipped_cases_are_not_listed_as_incomparable() -> None:
    skipped = replace(started(None), status="skipped", statistics=None, timing=None)
    assert not asked(skipped).not_comparable
