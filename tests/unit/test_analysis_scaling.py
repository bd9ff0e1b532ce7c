"""Topic scaling: which series there are, what is told of them, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from figure_texts import figure_of, texts_of
from hpcbench.analysis.scaling import Scaling, scaling, scaling_charts, scaling_tables
from hpcbench.analysis.scaling_series import (
    MOVED,
    NEITHER,
    STRONG,
    WEAK,
    ScalingSeries,
    nodes_of,
    shares_cores,
)
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, Answer, Run, TopicOptions
from hpcbench.reduce.results import CaseResult
from hpcbench.report.answer_lines import plain_record
from results_factory import (
    make_case,
    make_primitive,
    make_primitive_case,
    make_workload,
    not_ok,
    ok,
)
from scaled_runs import LAUNCHES, launched, on_ranks, run_of
from training_results import training_case

ASKED = TopicOptions()


def weak(*efficiencies: float) -> list[CaseResult]:
    """4 samples a rank, in 8 ms on one, on 1, 2, 4 ... ranks of these efficiencies."""
    return [on_ranks(2**at, 8e-3 / share) for at, share in enumerate((1.0, *efficiencies))]


def answers_of(record: Scaling, certainty: str) -> list[Answer]:
    return [one for one in record.answers if one.certainty == certainty]


def only(record: Scaling) -> ScalingSeries:
    (series,) = record.series
    return series


def test_weak_scaling_with_its_base_band_and_verdict() -> None:
    record = scaling([run_of(*weak(0.95, 0.92))], ASKED)
    series = only(record)
    assert series.kind == WEAK
    base, two, four = series.members
    assert base.efficiency is None
    assert two.efficiency.value == pytest.approx(0.95)
    assert four.speed_up.value == pytest.approx(4 * 0.92)
    assert 0.9 < four.efficiency.low < 0.92 < four.efficiency.high
    (found,) = answers_of(record, CLEAR)
    assert "efficiency 92 % (CI" in found.sentence and "excellent (from 90 %)" in found.sentence
    assert "weak scaling, each rank has 4 samples" in found.evidence[0]
    assert found.command == "hpcbench advise results --only scaling"
    assert len(found.evidence) == 4


@pytest.mark.parametrize(("share", "words"), [
    (0.95, "excellent (from 90 %)"), (0.85, "good (from 80 %)"), (0.6, "below good (from 80 %)")])
def test_each_verdict_needs_the_whole_interval(share: float, words: str) -> None:
    (found,) = answers_of(scaling([run_of(*weak(share))], ASKED), CLEAR)
    assert found.sentence.endswith(words)


def test_a_verdict_has_to_hold_among_all_of_the_topic() -> None:
    """Of 12 series that cannot tell, one in which 4 launches differ from the border is chance."""
    wide = (0.9, 1.1, 0.97, 1.03)
    others = [on_ranks(ranks, 8e-3 / share, 5 + at, launches=wide) for at in range(12)
              for ranks, share in ((1, 1.0), (2, 0.8))]
    one = [on_ranks(ranks, 8e-3 / share, launches=LAUNCHES[:4])
           for ranks, share in ((1, 1.0), (2, 0.85))]
    alone, among = (scaling([run_of(*items)], ASKED).answers[0] for items in (one, one + others))
    assert alone.certainty == CLEAR
    assert among.certainty == CANNOT_TELL
    assert "not significant" in among.sentence


def test_strong_scaling_is_not_taken_for_weak() -> None:
    items = [on_ranks(1, 16e-3, 8), on_ranks(2, 9e-3, 4), on_ranks(4, 6e-3, 2)]
    series = only(scaling([run_of(*items)], ASKED))
    assert series.kind == STRONG
    last = series.members[-1]
    assert last.speed_up.value == pytest.approx(16 / 6)
    assert last.efficiency.value == pytest.approx(16 / 6 / 4)


def test_neither_is_reported_and_has_no_efficiency() -> None:
    record = scaling([run_of(on_ranks(1, 8e-3, 4), on_ranks(4, 9e-3, 3))], ASKED)
    assert only(record).kind == NEITHER
    (found,) = record.answers
    assert found.certainty == CANNOT_TELL
    assert "no efficiency" in found.sentence
    assert "4 samples on 1 rank, 12 samples on 4 ranks" in found.evidence[0]
    assert all(one.efficiency is None for one in only(record).members)


def test_a_strategy_of_several_ranks_has_the_training_of_one_as_base() -> None:
    items = [on_ranks(1, 8e-3, strategy="single"), on_ranks(2, 10e-3), on_ranks(4, 16e-3)]
    record = scaling([run_of(*items)], ASKED)
    assert only(record).base == "single"
    assert "below good" in record.answers[0].sentence and (
        "base: single, 1 rank" in record.answers[0].evidence[0])


def test_no_efficiency_where_ranks_share_cores() -> None:
    run = run_of(*weak(0.95, 0.5), ranks=4, process={"ranks_a_core": 2.0})
    record = scaling([run], ASKED)
    _, two, four = only(record).members
    assert two.efficiency is not None and four.efficiency is None
    assert any("no efficiency on 4 ranks: 2 ranks share a core" in one.sentence
               for one in answers_of(record, CANNOT_TELL))
    (work, *_) = scaling_tables(record)
    assert work.rows[2].cells[-1] == "2 ranks share a core: no efficiency"


def test_several_files_are_one_series_and_differences_are_named() -> None:
    one, two = weak(0.9)
    runs = [run_of(one, path="a", ranks=1), run_of(two, path="b", ranks=2)]
    other = replace(runs[1].results.run, versions={"torch": "2.12.0"})
    runs[1] = replace(runs[1], results=replace(runs[1].results, run=other))
    record = scaling(runs, ASKED)
    last = only(record).members[-1]
    assert last.efficiency is not None and last.efficiency.low is not None
    assert not last.in_launch
    assert record.answers[0].command == "hpcbench advise a b --only scaling"
    assert any("the files differ in versions.hpcbench" in text or "versions.torch" in text
               for text in record.answers[0].evidence)


def test_files_of_one_launch_each_are_inconclusive() -> None:
    items = [on_ranks(1, 8e-3, launches=(1.0,)), on_ranks(2, 10e-3, launches=(1.0,))]
    runs = [run_of(item, path=str(at)) for at, item in enumerate(items)]
    (first, *_) = scaling(runs, ASKED).answers
    assert first.certainty == CANNOT_TELL
    assert first.sentence.endswith("too few launches or passes")


def test_passes_of_one_launch_are_compared_in_pairs_and_it_is_stated() -> None:
    drift = (1.0, 1.2, 1.4, 1.6)
    items = [launched(on_ranks(ranks, step_s, launches=(1.0,)), drift)
             for ranks, step_s in ((1, 8e-3), (2, 8.4e-3))]
    items = [replace(item, timing=item.timing and replace(
        item.timing, launch_medians_s=item.timing.launch_medians_s[:1])) for item in items]
    record = scaling([run_of(*items)], ASKED)
    found = record.answers[0]
    assert found.evidence[0].endswith("in one launch")
    assert "scaling efficiency by pairs 95.2 %" in found.sentence
    (table, *_) = scaling_tables(record)
    units = {column.name: column.unit for column in table.columns}
    assert (units["speed_up"], units["efficiency"]) == ("by pairs", "% by pairs")
    assert any("geometric mean over pairs" in line.text for line in table.lead)


def test_a_ratio_by_pairs_is_their_geometric_mean() -> None:
    passes = ((1.0, 1.0, 1.0, 1.0), (1.0, 4.0, 1.0, 4.0))
    items = [launched(on_ranks(ranks, 8e-3, launches=(1.0,)), each)
             for ranks, each in zip((1, 2), passes, strict=True)]
    items = [replace(item, timing=item.timing and replace(
        item.timing, launch_medians_s=item.timing.launch_medians_s[:1])) for item in items]
    efficiency = only(scaling([run_of(*items)], ASKED)).members[1].efficiency
    assert efficiency is not None and efficiency.value == pytest.approx(0.5)  # not 1 / 2.5


def test_no_word_on_efficiency_where_there_is_none() -> None:
    items = [on_ranks(ranks, 8e-3) for ranks in (1, 2)]
    crowded = run_of(*items, ranks=2, process={"ranks_a_core": 2.0})
    assert [bool(scaling_tables_of.lead) for run in (run_of(*items), crowded)
            for scaling_tables_of in [*scaling_tables(scaling([run], ASKED))][:1]] == [True, False]


def test_laws_need_enough_ranks_and_state_how_far_they_hold() -> None:
    few = scaling([run_of(*weak(0.95, 0.92))], ASKED)
    assert only(few).laws == ()
    assert any("needs 5 world sizes, not 3" in one.sentence
               for one in answers_of(few, CANNOT_TELL))
    ranks = (1, 2, 4, 8, 16)
    items = [on_ranks(n, 0.64 * (0.05 + 0.95 / n), 64 // n) for n in ranks]
    record = scaling([run_of(*items)], ASKED)
    (amdahl, universal) = only(record).laws
    assert amdahl.parameters["s"].value == pytest.approx(0.05)
    assert universal.parameters["sigma"].value == pytest.approx(0.05)
    texts = [one for one in answers_of(record, CLEAR) if "Amdahl" in one.sentence]
    assert "1 to 16 ranks only" in texts[0].sentence
    assert any(text.startswith("do not extrapolate") for text in texts[0].evidence)
    crowded = run_of(*items, on_ranks(32, 0.5, 2), ranks=32, process={"ranks_a_core": 2.0})
    assert {law.most_ranks for law in only(scaling([crowded], ASKED)).laws} == {16}


def test_a_law_that_does_not_fit_is_no_answer() -> None:
    times = (0.64, 0.32, 0.5, 0.08, 0.3)
    items = [on_ranks(2**at, time_s, 64 // 2**at) for at, time_s in enumerate(times)]
    record = scaling([run_of(*items)], ASKED)
    assert any("Amdahl's law" in one.sentence and "poor fit" in one.sentence
               for one in answers_of(record, CANNOT_TELL))


def collectives(*ranks: int) -> list[CaseResult]:
    return [launched(ok(make_case(make_workload("all_reduce", 2**20, world_size=n), index=n,
                                  world_size=n), 1e-3 * n)) for n in ranks]


def test_collectives_against_the_number_of_ranks() -> None:
    record = scaling([run_of(*collectives(1, 2, 4))], ASKED)
    series = only(record)
    assert series.kind == MOVED
    assert [one.ranks for one in series.members] == [2, 4]  # one rank moves nothing
    share = series.members[-1].efficiency
    assert share.value == pytest.approx(0.5 * (2 * 3 / 4) / (2 * 1 / 2))
    (found,) = record.answers
    assert "bus bandwidth on 4 ranks is 75 %" in found.sentence


def test_nothing_to_compare_is_one_sentence() -> None:
    failed = not_ok(training_case("data", dp=2), "failed", "no memory")
    runs = [run_of(on_ranks(1, 8e-3), failed), run_of(*collectives(2), path="other")]
    record = scaling(runs, ASKED)
    (found,) = record.answers
    assert found.certainty == CANNOT_TELL
    assert found.sentence.startswith("scaling: cannot tell")
    assert "without times: 1 failed" in found.evidence
    assert list(scaling_tables(record)) == list(scaling_charts(record)) == []


def everything() -> Run:
    strong = [on_ranks(n, 0.64 * (0.05 + 0.95 / n), 64 // n) for n in (1, 2, 4, 8, 16)]
    return run_of(*strong, *weak(0.95, 0.9), *collectives(2, 4))


def test_tables_and_charts_show_ideal_and_measured() -> None:
    run = everything()
    record = scaling([run], ASKED)
    assert [table.title for table in scaling_tables(record)] == [
        "scaling over ranks", "laws of scaling", "collectives over ranks"]
    drawn = list(scaling_charts(record))
    assert [chart.file_stem for chart in drawn] == [
        "scaling_strong", "scaling_weak", "scaling_collectives"]
    text = texts_of(figure_of(drawn[0], run.results))
    assert "ideal from 1 rank" in text and "data, 64 samples" in text
    assert plain_record(record)


def test_nodes_and_cores_of_a_case_on_fewer_ranks_than_the_job() -> None:
    run = run_of(ranks=8, nodes=2, process={"ranks_a_core": 2.0}).results.run
    cases = [training_case("data", dp=ranks) for ranks in (2, 4, 5, 8)]
    assert [nodes_of(run, case) for case in cases] == [1, 1, 2, 2]
    assert [shares_cores(run, case, "cpu") for case in cases] == [False, True, True, True]
    assert not any(shares_cores(run, case, "cuda") for case in cases)


@pytest.mark.parametrize(("cores", "online", "shared"), [
    (2, "0-1", True), (8, "0-7", False), (1, "0-3", False)])
def test_results_of_older_versions_record_cores_of_one_rank(
    cores: int, online: str, shared: bool,
) -> None:
    run = run_of(ranks=4).results.run
    run = replace(run, environment={
        "process": {"affinity_cpus": cores}, "cpu": {"online": online}})
    assert shares_cores(run, training_case("data", dp=4), "cpu") is shared


def test_functions_beside_a_primitive_are_cases_of_it() -> None:
    """The hash of their file is part of their id, and launches are merged without it."""
    own = replace(make_primitive(), implementation="own", file="own.py", sha256="0" * 64)
    items = [launched(ok(make_primitive_case(own, index=ranks, world_size=ranks), 8e-3 / ranks))
             for ranks in (1, 2)]
    assert len(only(scaling([run_of(*items)], ASKED)).members) == 2
