"""The topic bandwidth: shares of declared links, counters beside formulas, impossible values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcbench.analysis.bandwidth import (
    BandwidthTruth,
    bandwidth,
    bandwidth_charts,
    bandwidth_tables,
)
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, NONE, Run, TopicOptions
from hpcbench.kinds.collective.derive import issue_s, sent_bytes
from hpcbench.kinds.collective.plan import ISSUE
from hpcbench.operations.arrival import ArrivalPattern
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results import CaseResult, Phase, Steps, Usage
from results_factory import MemorySamples, make_case, make_results, make_workload, ok


def case(
    counted: float | None, link: float | None = None, size_bytes: int = 2**20,
) -> CaseResult:
    item = ok(make_case(make_workload(size_bytes=size_bytes)), 1e-3)
    assert item.timing is not None
    usage = None if counted is None else Usage(9, sent_bytes=counted, computed_bytes=1e6)
    return replace(item, usage=usage, timing=replace(item.timing, link_bytes_per_s=link))


def analysed(item: CaseResult) -> BandwidthTruth:
    results = with_records(make_results((item,)))
    return bandwidth([Run("FILE", results, MemorySamples(results))], TopicOptions())


def test_what_was_not_declared_read_or_reported_is_inconclusive() -> None:
    found = analysed(case(None))
    assert [answer.certainty for answer in found.answers] == [CANNOT_TELL] * 3
    assert all("cannot tell" in answer.sentence for answer in found.answers)
    assert not [*bandwidth_charts(found)]
    (table,) = bandwidth_tables(found)
    assert not {"algorithm", "protocol"} & {one.name for one in table.without_empty().columns}


def test_a_share_above_one_is_impossible() -> None:
    below, above = analysed(case(1e6, 1e12)), analysed(case(1e6, 1e8))
    assert below.answers[0].certainty == NONE and not below.cases[0].problem
    assert above.answers[0].certainty == CLEAR and "above" in above.cases[0].problem
    assert [*bandwidth_charts(above)]


def test_counters_stand_beside_the_formula() -> None:
    assert ": 1.00x the predicted bytes" in analysed(case(1e6)).answers[1].sentence
    bypassed = analysed(case(1e3))
    assert "shared memory" in bypassed.answers[1].sentence and bypassed.cases[0].problem
    (table,) = bandwidth_tables(bypassed)
    assert table.rows[0].cells[-1] is None  # the answer says it once
    more = case(1e6)
    assert analysed(case(2e6)).cases[0].problem == "more sent than predicted"
    assert analysed(replace(more, usage=more.usage and replace(
        more.usage, nvlink_bytes=5e5))).cases[0].counted_bytes == 1.5e6


def test_a_bandwidth_is_a_share_of_the_best_of_its_backend() -> None:
    items = [ok(make_case(index=at, backend=backend), time_s) for at, (backend, time_s) in
             enumerate((("gloo", 4e-3), ("gloo", 2e-3), ("mpi", 1e-3)))]
    results = with_records(make_results(tuple(items)))
    found = bandwidth([Run("FILE", results, MemorySamples(results))], TopicOptions()).cases
    assert [one.of_best for one in found] == pytest.approx([0.5, 1, 1])


def test_ranks_that_are_late_on_purpose_are_no_slow_machine() -> None:
    """Their time has the delay in it: no share of a link or of the best is of it."""
    together = case(1e6, 1e12)
    late = replace(together, case=make_case(
        make_workload(size_bytes=2**20), index=1, arrival=ArrivalPattern("last", 10**9)))
    late = replace(ok(late.case, 1.0), timing=late.timing)
    results = with_records(make_results((together, late)))
    found = bandwidth([Run("FILE", results, MemorySamples(results))], TopicOptions())
    assert [one.case_id for one in found.cases] == [together.case.case_id]
    shares = results.kind_columns.values[late.case.case_id]
    assert {name for name in ("of_link", "of_measured_link", "performance_score")
            if shares[name] == shares[name]} == set() and not shares["bound_by"]
    assert analysed(late).answers[0].certainty == CANNOT_TELL


@pytest.mark.parametrize(("collective", "sent"), [
    ("broadcast", 3 * 1024), ("reduce", 3 * 1024), ("gather", 768), ("scatter", 768),
    ("all_gather", 4 * 768), ("all_reduce", 4 * 2 * 768), ("reduce_scatter", 2 * 4 * 768)])
def test_bytes_that_leave_four_ranks(collective: str, sent: int) -> None:
    """Of 1024: a root's to each other, others' parts of a quarter; gloo scatters all it reduces."""
    assert sent_bytes(ok(make_case(make_workload(collective)))) == sent


def test_a_call_is_issued_once_its_last_rank_has() -> None:
    item, phase = case(None), Phase(ISSUE, 0.1, (2e-6, 5e-6), 1, 0.9, 0, 0.9)
    assert item.timing is not None
    steps = Steps((0, 1), (1e-3,) * 2, (0.0,) * 2, 0.0, (phase,))
    assert issue_s(replace(item, timing=replace(item.timing, steps=steps))) == 5e-6


def test_counters_of_small_messages_are_not_compared_with_the_formula() -> None:
    small, least = (analysed(case(2e6, size_bytes=size)) for size in (2**16 - 4, 2**16))
    assert small.answers[1].certainty == CANNOT_TELL and not small.cases[0].problem
    assert small.cases[0].counted_share is None and least.cases[0].counted_share == 2
    assert small.cases[0].counted_bytes == 2e6 and small.cases[0].busbw_bytes_per_s
