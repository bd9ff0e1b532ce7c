"""`hpcbench advise` and its topic recommend: which setting is fastest, only where that is clear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from golden import RUNS
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, NONE, Run, TopicOptions
from hpcbench.answers.compare import pairs_text
from hpcbench.answers.compare_tables import DISAGREE
from hpcbench.answers.recommend import (
    Recommendations,
    recommend,
    recommend_answers,
    recommend_charts,
    recommend_tables,
    spans_text,
)
from hpcbench.cli import app
from hpcbench.kinds.hardware.plan.test import Stream
from hpcbench.reduce.results import CaseResult, Finding
from hpcbench.views.chart import Scale
from results_factory import (
    MemorySamples,
    flagged,
    in_passes,
    make_case,
    make_results,
    make_workload,
)
from training_results import training_case

DRIFT = (1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 1.0, 0.7, 1.1)
"""Of the machine, from pass to pass: of all cases alike."""
JITTER = {"gloo": (1.0, 1.01, 0.995, 1.005, 0.99, 1.0, 1.0, 1.0, 1.0),
          "mpi": (1.0, 0.99, 1.0, 1.01, 1.0, 0.995, 1.005, 1.0, 1.0)}
RING = (("NCCL_ALGO", "Ring"),)


def timed(
    backend: str, factor: float = 1.0, size_bytes: int = 1024, *, n: int = 9,
    env: tuple[tuple[str, str], ...] = (), launches: int = 1,
) -> CaseResult:
    case = make_case(make_workload(size_bytes=size_bytes), backend=backend, env=env,
                     index=size_bytes)
    jitter = JITTER["mpi" if env else backend]
    passes = [1e-3 * factor * a * b for a, b in zip(DRIFT, jitter, strict=True)][:n]
    return in_passes(case, *(passes * launches))


def passes_of(item: CaseResult) -> list[float]:
    assert item.timing is not None
    return [time for time in item.timing.pass_medians_s if time]


def asked(items: Sequence[CaseResult], launches: int = 1) -> Recommendations:
    results = make_results(tuple(items))
    passes = max(len(item.timing.pass_medians_s) for item in items if item.timing) // launches
    results = replace(results, plan=replace(results.plan, passes=passes, launches=launches))
    return recommend([Run("FILE", results, MemorySamples(results))], TopicOptions())


def test_a_clear_winner_is_named_with_its_ratio_and_interval() -> None:
    found = asked([timed("gloo"), timed("mpi", 1.5)])
    (answer,) = found.answers
    (rival,) = found.rankings[0].rivals
    pair = rival.paired
    assert pair.chance and pair.false_share == pytest.approx(pair.chance) and pair.tested == 1
    assert answer.certainty == CLEAR and answer.command == "hpcbench compare FILE --by backend"
    assert "backend: gloo fastest" in answer.sentence
    assert rival.paired.interval.ends == pytest.approx((1.49, 1.51), abs=0.005)
    assert answer.evidence[0].endswith("in this launch")
    (table,) = recommend_tables(found)
    assert [row.cells[-1] for row in table.rows] == ["fastest", "slower"]
    assert [column.title for column in table.columns] == [
        "backend", "time", "times as long", "95 % CI", "pairs", "verdict"]
    (chart,) = recommend_charts(found)
    assert [(row.label, row.cells) for row in chart.rows] == [
        ("mpi", ("slower than gloo",))]
    assert "all_reduce" in chart.subtitle


def test_no_way_is_ahead_where_medians_and_pairs_disagree() -> None:
    found = asked([timed("gloo"), timed("mpi", 1.001)])
    (ranking,) = found.rankings
    (rival,) = ranking.rivals
    undecided = replace(rival, is_clear=False)
    for time_s, verdicts in ((2 * ranking.time_s, ["ahead", "undecided"]),
                             (ranking.time_s / 2, ["undecided", DISAGREE])):
        (table,) = recommend_tables(replace(found, rankings=(
            replace(ranking, rivals=(replace(undecided, time_s=time_s),)),)))
        assert [row.cells[-1] for row in table.rows] == verdicts
    for disagrees in (False, True):
        (answer,) = recommend_answers(
            [replace(found.preferences[0], disagrees=disagrees, certainty=CANNOT_TELL)], ())
        assert (DISAGREE in answer.sentence) == disagrees


@pytest.mark.parametrize(("tasks", "spread"), [(10, 0.25), (1, 0.15)])
def test_winners_of_twice_the_speed_in_all_of_9_passes_are_named_on_a_busy_machine(
    tasks: int, spread: float,
) -> None:
    random, items = np.random.default_rng(5), []
    shared = np.repeat(random.normal(0, 0.4, 3), 3)  # load of the machine, for three passes
    for task in range(tasks):
        for backend, factor in (("mpi", 1.0), ("gloo", 2.4 + 7.6 * task / 9)):
            logs = spread * np.clip(random.standard_t(3, 9), -1.5, 1.5) + shared
            case = make_case(make_workload(size_bytes=1024 << task), backend=backend, index=task)
            items.append(in_passes(case, *(1e-3 * factor * np.exp(logs))))
    found = asked(items)
    assert [one.value for one in found.preferences if one.certainty == CLEAR] == ["mpi"] * tasks


def test_a_collective_of_one_rank_is_no_choice() -> None:
    alone = [replace(item, case=replace(item.case, world_size=1))
             for item in (timed("gloo"), timed("mpi", 1.5))]
    assert asked(alone).rankings == ()


def test_tasks_of_a_chart_are_named_by_what_distinguishes_them() -> None:
    found = asked([timed(backend, factor, size_bytes=size) for size in (1024, 4096)
                   for backend, factor in (("gloo", 1.0), ("mpi", 1.5 if size > 2000 else 40))])
    (chart,) = recommend_charts(found)
    assert [row.label for row in chart.rows] == ["1024B: mpi", "4096B: mpi"]
    assert "all_reduce" in chart.subtitle and chart.x.scale is Scale.LOG


@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_ways_that_differ_by_nothing_that_matters_have_no_winner(factor: float) -> None:
    (answer,) = asked([timed("gloo"), timed("mpi", factor)]).answers
    assert answer.certainty == NONE
    assert "no clear winner" in answer.sentence


def test_ways_whose_interval_hides_a_large_difference_are_inconclusive() -> None:
    noise = (0.2, 3.0, 1.0, 0.5, 4.0, 0.3, 1.0, 2.0, 0.5)
    wide = in_passes(make_case(make_workload(), backend="mpi", index=1024),
                     *(1e-3 * factor for factor in noise))
    found = asked([timed("gloo"), wide])
    assert found.answers[0].certainty == CANNOT_TELL
    assert found.preferences[0].certainty == CANNOT_TELL
    assert found.answers[0].remedy == f"use {pairs_text([found.preferences[0].paired], 0.03)}"


def test_launches_in_one_process_are_one_launch() -> None:
    repeated = flagged(timed("mpi", 1.5, n=3, launches=4), "repeats")
    found = asked([timed("gloo", n=3, launches=4), repeated], launches=4)
    assert found.preferences[0].paired.n_launches == 1
    assert found.answers[0].evidence[0].endswith("in this launch")


def test_too_few_pairs_are_inconclusive() -> None:
    (answer,) = asked([timed("gloo", n=2), timed("mpi", 3, n=2)]).answers
    assert answer.certainty == CANNOT_TELL and "at least 9 passes" in answer.remedy
    (answer,) = asked([timed("gloo")]).answers
    assert answer.certainty == CANNOT_TELL and "nothing to compare" in answer.sentence


def test_where_other_processes_keep_the_cores_busy_these_are_freed_first() -> None:
    results = make_results((timed("gloo", n=2), timed("mpi", 3, n=2)))
    for share, is_first in ((0.05, False), (0.7, True)):
        noisy = replace(results, findings=(Finding("HB144", "note", "others: tails", share),))
        (answer,) = recommend([Run("FILE", noisy, MemorySamples(noisy))], TopicOptions()).answers
        assert ("free the cores first" in answer.remedy) is is_first


def test_alike_launches_count_by_their_passes_and_eight_by_launch() -> None:
    for launches, n, unit in ((2, 18, "passes"), (4, 36, "passes"), (8, 8, "launches")):
        items = [timed("gloo", launches=launches), timed("mpi", 1.5, launches=launches)]
        found = asked(items, launches)
        paired = found.preferences[0].paired
        assert (paired.n, paired.unit, found.answers[0].certainty) == (n, unit, CLEAR)


@pytest.mark.parametrize("factors", [(1.5, 0.8), (1.5, 1.5, 0.7), (1.4, 1.1, 1.2, 1.6)])
def test_launches_that_differ_are_one_number_each_so_few_of_them_decide_nothing(
    factors: Sequence[float],
) -> None:
    case = timed("mpi").case
    times = [factor * time for factor in factors for time in passes_of(timed("mpi"))]
    found = asked([timed("gloo", launches=len(factors)), in_passes(case, *times)], len(factors))
    (preference,) = found.preferences
    assert (preference.paired.unit, preference.paired.n) == ("launches", len(factors))
    assert preference.certainty == CANNOT_TELL


def test_what_is_best_differs_by_size() -> None:
    sizes = (1024, 4096, 2**20, 2**22)
    found = asked([timed(backend, factor, size) for size in sizes for backend, factor in (
        ("gloo", 1.5 if size > 4096 else 1.0), ("mpi", 1.0 if size > 4096 else 1.5))])
    first, second = (answer.sentence for answer in found.answers)
    assert "gloo fastest in 2 of 4 tasks" in first
    assert "mpi fastest in 2 of 4 tasks" in second


def test_a_variable_is_set_only_where_that_beats_the_default() -> None:
    (answer,) = asked([timed("gloo", 1.5), timed("gloo", env=RING)]).answers
    assert "NCCL_ALGO: Ring" in answer.sentence and "unset takes 1.50x" in answer.sentence
    (answer,) = asked([timed("gloo"), timed("gloo", 1.5, env=RING)]).answers
    assert "NCCL_ALGO: keep the default" in answer.sentence and answer.certainty == CLEAR
    (answer,) = asked([timed("gloo"), timed("gloo", 1.01, env=RING)]).answers
    assert "no value is faster" in answer.sentence


def test_neighbours_that_differ_in_one_word_are_shown_as_a_range() -> None:
    assert spans_text(["a 1B x", "a 2B x", "a 4B x", "b 1B x"]) == "a 1B to 4B x, b 1B x"
    assert spans_text(["all_gather 1B", "broadcast 1B"]) == "all_gather 1B, broadcast 1B"
    assert spans_text(["a 1B", "b 2B", "c 3B", "d 4B"]) == "a 1B, b 2B, c 3B, and 1 more"


def test_the_command() -> None:
    file = str(RUNS["collective"])
    shown = CliRunner().invoke(app, ["advise", file, "-v"])
    assert shown.exit_code == 0 and "which backend is fastest" in shown.output
    plain = json.loads(CliRunner().invoke(app, ["advise", file, "--json"]).output)
    assert plain["schema"] == "hpcbench.advise" and plain["topics"]["recommend"]["answers"]
    wrong = CliRunner().invoke(app, ["advise", file, "--only", "recomend"])
    assert wrong.exception and 'did you mean "recommend"?' in str(wrong.exception)
    quiet = CliRunner().invoke(app, ["advise", file, "-q", "--only", "recommend"])
    assert all(line.startswith("recommend: ") for line in quiet.stdout.splitlines())


@pytest.mark.parametrize(("factor", "certainty"), [(1.5, CLEAR), (1.0, CANNOT_TELL)])
def test_an_option_is_compared_where_its_values_have_options_of_their_own(
    factor: float, certainty: str,
) -> None:
    def way(index: int, *options: tuple[str, str | int | bool], slower: float = 1.0) -> CaseResult:
        case = training_case("qlora", index=index, options=(("rank", 16), *options))
        return in_passes(case, *(1e-3 * slower * drift for drift in DRIFT[:9 if factor > 1 else 2]))

    found = asked([way(0, ("over", "data"), ("bucket_mb", 25)),
                   way(1, ("over", "data"), ("bucket_mb", 100)),
                   way(2, ("over", "fsdp"), ("reshard", True), slower=factor)])
    each = {one.key: one for one in found.preferences}
    assert set(each) == {"options.over", "options.bucket_mb"}
    assert (each["options.over"].certainty, each["options.over"].value) == (certainty, "data")
    (ranking,) = (one for one in found.rankings if one.key == "options.over")
    assert {rival.value for rival in ranking.rivals} == {"data", "fsdp"}


def test_threads_of_stream_are_ways_of_one_task() -> None:
    """Size and kernel are the task; a number of threads is a way, of which one is the fastest."""
    items = [in_passes(make_case(
        Stream("fp32", kernel, 2**20, threads), index=at, kind="hardware"), *(
            1e-3 * (1 + threads) * a * b for a, b in zip(DRIFT, JITTER["mpi"], strict=True)))
        for at, (kernel, threads) in enumerate((k, n) for k in ("copy", "triad") for n in (1, 2))]
    found = asked(items).preferences
    assert [(one.key, one.value, one.against) for one in found] == [("threads", "1", "2")] * 2
    assert [one.paired.ratio for one in found] == pytest.approx([1.5] * 2)
