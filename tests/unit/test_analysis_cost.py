"""Topic cost: the arithmetic by hand, the front, savings, more ranks, and what is not computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from figure_texts import figure_of, texts_of
from hpcbench.analysis.cost import Costs, TrainingTask, arithmetic, cost, cost_charts, cost_tables
from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    NONE,
    Answer,
    TopicOptions,
    by_subject,
)
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.reduce.results import CaseResult, RankTelemetry, Usage
from hpcbench.report.answer_lines import plain_record
from results_factory import make_case, ok
from scaled_runs import on_ranks, run_of

PRICED = {"price_per_device_hour": 2.0, "currency": "EUR"}
TIMES = st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=6)


def items() -> list[CaseResult]:
    """500 samples/s on one rank, 800 on two, 1280 on four."""
    return [on_ranks(1, 8e-3), on_ranks(2, 10e-3), on_ranks(4, 12.5e-3)]


def costs(*cases: CaseResult, asked: TopicOptions = TopicOptions(), **changes: Any) -> Costs:  # noqa: B008
    return cost([run_of(*cases, **changes)], asked)


def only(record: Costs) -> TrainingTask:
    (task,) = record.tasks
    return task


def sentences(record: Costs, word: str) -> list[tuple[str, str]]:
    return [(one.certainty, one.sentence) for one in record.answers if word in one.sentence]


def test_the_cost_by_hand_has_nodes_in_it() -> None:
    record = costs(*items(), ranks=4, nodes=2, hardware=PRICED)
    task = only(record)
    last = task.choices[-1]
    assert (last.nodes, last.ranks, last.samples_per_s) == (2, 4, pytest.approx(1280))
    assert last.time_s == pytest.approx(10_000 / 1280)
    assert last.device_hours == pytest.approx(10_000 / 1280 * 4 / 3600)
    assert last.cost == pytest.approx(2 * last.device_hours)
    assert arithmetic(task, last) == (
        "10,000 samples / 1280 a second = 7.812 s; 7.812 s x 2 nodes x 2 devices / 3600 = "
        "0.008681 device-hours; x 2 = 0.01736 EUR")


def test_any_number_of_samples_and_the_price_that_was_asked_with() -> None:
    record = costs(*items(), hardware=PRICED, asked=TopicOptions(price=10.0, samples=1_000_000))
    first = only(record).choices[0]
    assert (first.time_s, first.cost) == (pytest.approx(2000), pytest.approx(2000 / 360))
    assert record.answers[0].command.endswith("--only cost --price 10 --samples 1000000")


def test_fastest_cheapest_front_and_savings() -> None:
    task = only(record := costs(*items(), on_ranks(2, 20e-3, strategy="fsdp"), hardware=PRICED))
    assert task.fastest.labels == ("data on 4 ranks, 16 samples a step",)
    assert task.cheapest.labels == ("data on 1 rank, 4 samples a step",)
    assert [one.on_front for one in task.choices] == [True, True, True, False]
    as_fast = only(costs(on_ranks(1, 8e-3), on_ranks(2, 16e-3)))
    assert [one.on_front for one in as_fast.choices] == [True, False]
    (fastest,) = sentences(record, "fastest:")
    assert fastest[0] == CLEAR
    evidence = [one.evidence[0] for one in record.answers[:2]]
    assert "it saves 60.9 % (CI" in evidence[0]
    assert "it takes 56.2 % (CI" in evidence[0] and "more cost" in evidence[0]
    assert sentences(record, "cheapest:") and "it is the default" in evidence[1]


def test_choices_are_named_by_what_differs() -> None:
    task = only(costs(on_ranks(2, 8e-3), on_ranks(2, 20e-3, strategy="fsdp")))
    assert [one.label for one in task.choices] == ["data", "fsdp"]


@pytest.mark.parametrize(("second_s", "certainty", "why"), [
    (8e-3, NONE, "equal within"),
    (8.22e-3, CANNOT_TELL, "undecided")])
def test_no_winner_without_a_clear_difference(second_s: float, certainty: str, why: str) -> None:
    record = costs(on_ranks(2, 8e-3), on_ranks(2, second_s, strategy="fsdp"))
    (found,) = sentences(record, "fastest:")
    assert found[0] == certainty and why in found[1]


def test_one_more_node_pays_from_a_number_of_samples() -> None:
    few, many = (replace(item, timing=item.timing and replace(
        item.timing, communicator_s=setup, first_call_s=0.1))
        for item, setup in ((on_ranks(1, 8e-3), 0.1), (on_ranks(2, 10e-3), 0.5)))
    record = costs(few, many, ranks=2, nodes=2)
    (step,) = only(record).steps
    assert step.from_samples == 534  # 0.4 s more of set-up / (1/500 - 1/800 s a sample)
    assert step.hour_saved == pytest.approx((2 / 800 - 1 / 500) / (1 / 500 - 1 / 800))
    (found,) = sentences(record, "1 more node")
    assert "each hour saved costs 0.667" in found[1]


@pytest.mark.parametrize(("step_s", "certainty", "words"), [
    (40e-3, NONE, "never pays"),
    (8e-3, NONE, "never pays"),
    (7.8e-3, CANNOT_TELL, "undecided")])
def test_more_ranks_that_do_not_pay(step_s: float, certainty: str, words: str) -> None:
    """4 samples take 8 ms on one rank; 2 a rank on two ranks are as many."""
    record = costs(on_ranks(1, 8e-3), on_ranks(2, step_s, 2))
    (found,) = sentences(record, "more ranks:")
    assert found[0] == certainty and found[1].endswith(words)


def test_energy_is_of_counters_or_not_computed() -> None:
    measured = replace(items()[0], usage=Usage(3, mean_power_w=180.0, energy_of="gpu"))
    record = costs(measured, items()[1])
    first, second = only(record).choices
    assert first.kwh == pytest.approx(180 * 20 / 3.6e6)
    assert second.kwh is None
    run = run_of(*items())
    told = RankTelemetry(0, 0, 2.0, missing={"energy": "no RAPL domain", "network": "no"})
    run = replace(run, results=replace(run.results, telemetry=(told,)))
    (found,) = [one for one in cost([run], TopicOptions()).answers if "energy" in one.sentence]
    assert found.certainty == CANNOT_TELL and found.evidence == ("energy: no RAPL domain",)


@pytest.mark.parametrize("hardware", [
    {}, {"price_per_device_hour": None}, {"price_per_device_hour": 0.0},
    {"price_per_device_hour": 2.0, "device_type": "cuda"}])
def test_without_a_price_there_are_device_hours(hardware: dict[str, Any]) -> None:
    record = costs(*items(), hardware=hardware)
    assert only(record).unit == "device-hours"
    assert all(one.cost is None for one in only(record).choices)
    (found,) = sentences(record, "price: ")
    assert "--price or hardware.price_per_device_hour" in found[1]


def test_a_title_that_several_answers_share_is_said_once() -> None:
    first, second, other = (Answer(CLEAR, f"{subject}: {text}", subject=subject) for subject, text
                            in (("a", "fastest: x"), ("a", "cheapest: y"), ("b", "alone")))
    assert [(subject, [one.sentence for one in same])
            for subject, same in by_subject([first, second, other])] == [
        ("a", ["fastest: x", "cheapest: y"]), ("", ["b: alone"])]


def test_no_training_and_only_one_choice_are_one_sentence_each() -> None:
    (found,) = costs(ok(make_case())).answers
    assert "no training was timed" in found.sentence
    assert "no other choice" in costs(items()[0]).answers[0].sentence


@given(TIMES)
def test_no_choice_beats_one_on_the_front(times_s: list[float]) -> None:
    task = only(costs(*(on_ranks(2**at, time_s) for at, time_s in enumerate(times_s))))
    front = [one for one in task.choices if one.on_front]
    assert front
    for one in task.choices:
        beaten = [other for other in front if other.time_s <= one.time_s
                  and other.spent <= one.spent and other != one]
        assert one.on_front or beaten


def test_table_and_chart() -> None:
    run = run_of(*items(), hardware=PRICED)
    record = cost([run], TopicOptions())
    (table,) = cost_tables(record)
    assert [column.title for column in table.without_empty().columns][:9] == [
        "choice", "nodes", "devices", "a step", "time", "device-hours", "cost", "1,000 samples",
        "10^6 tokens"]
    task = only(record)
    assert [(row.cells[0], row.cells[2:4]) for row in table.rows] == [
        ("data", (one.ranks, 4 * one.ranks)) for one in task.choices]
    notes = {f"{row.cells[0]} on {row.cells[2]} rank": str(row.cells[-1]) for row in table.rows}
    for name, best in (("fastest", task.fastest), ("cheapest", task.cheapest)):
        assert [place for place, note in notes.items() if name in note] == [
            label.partition(",")[0].removesuffix("s") for label in best.labels]
    row = table.rows[0].cells
    assert row[8] == pytest.approx(1000 / 500 / 3600 * 2)
    assert row[9] == pytest.approx(1e6 / (500 * 32) / 3600 * 2)
    (chart,) = cost_charts(record)
    text = texts_of(figure_of(chart, run.results))
    assert "cost (EUR)" in text and "Pareto front" in text
    assert plain_record(record)


@pytest.mark.parametrize(("launches", "priced"), [
    ((1.0, 1.004, 0.996, 1.002, 0.998, 1.001), True), ((1.0, 1.9, 0.6, 1.4, 0.8, 1.2), True),
    ((1.0, 1.004, 0.996, 1.002, 0.998, 1.001), False)])
def test_the_lead_explains_only_what_the_table_has(
    launches: tuple[float, ...], priced: bool,
) -> None:
    items = [on_ranks(1, 8e-3, launches=launches), on_ranks(2, 8.1e-3, launches=launches[::-1])]
    (table,) = cost_tables(costs(*items, hardware=PRICED if priced else {}))
    lead = " ".join(line.text for line in table.lead)
    assert ("?" in " ".join(str(row.cells[-1]) for row in table.rows)) is ("?" in lead)
    assert ("?" in lead) is (launches[1] > 1.5)
    assert ("cost =" in lead) is priced and "by pairs" not in lead


def test_the_currency_is_a_key_of_the_sweep_file() -> None:
    block = {"kind": "collective", "collective": "barrier"}
    found = check_config({"hardware": PRICED, "benchmarks": [block]}, "c.json")
    assert found.hardware.currency == "EUR"
    with pytest.raises(ConfigError, match="currency"):
        check_config({"hardware": {"currency": 3}, "benchmarks": [block]}, "c.json")
