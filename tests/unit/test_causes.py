"""Recorded communication as a sweep, and why it was slow: `hpcbench advise --traffic`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hpcbench.answers.answer import CANNOT_TELL, CLEAR, Run, TopicOptions
from hpcbench.cli import app
from hpcbench.config.load import load_config
from hpcbench.errors import ConfigError
from hpcbench.interop.answers.causes import (
    INCONCLUSIVE,
    CallCause,
    CallTimes,
    Causes,
    causes,
    judged,
)
from hpcbench.operations.traffic import (
    CallGroup,
    RankOrder,
    Signature,
    TrafficRecord,
    form_id,
    traffic_text,
)
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from synthetic import duration_ns, make_case, plan_of, write_synthetic_run

ISOLATED_NS = 10_000
"""About what a synthetic call takes."""


def signature(size: int = 8, collective: str = "all_reduce", **changes: object) -> Signature:
    values = {"collective": collective, "dtype": "fp32", "operator": "sum", "root": None,
              "elements_in": (size // 4,), "elements_out": (size // 4,), "splits_in": None,
              "splits_out": None, "group": 0, "count": 40, "bytes": size, "backend": "gloo"}
    return Signature(**{**values, **changes})  # type: ignore[arg-type]


def record(
    signatures: tuple[Signature, ...] = (signature(),), groups: tuple[tuple[int, ...], ...] = (),
    world_size: int = 2, duration_ns: Callable[[int, int], int | None] = lambda rank, call: None,
    calls: int = 40,
) -> TrafficRecord:
    """Return a record of calls of the first signature, which took so long on each rank."""
    orders = tuple(RankOrder(
        rank, (0,) * calls, tuple(range(calls)), (None,) * calls,
        tuple(duration_ns(rank, call) for call in range(calls)), (None,) * calls)
        for rank in range(world_size))
    return TrafficRecord(
        ("flight recorder 2.10",), ("rank0.json",), world_size, (),
        tuple(CallGroup(str(number), "", ranks) for number, ranks in enumerate(
            groups or (tuple(range(world_size)),))), signatures, orders)


def planned(tmp_path: Path, traffic: TrafficRecord, ranks: int = 2) -> tuple[list[str], list[str]]:
    """Return the labels of the cases, and the notes, of the record as a sweep."""
    (tmp_path / "traffic.json").write_text(traffic_text(traffic))
    plan = make_plan(load_config(tmp_path / "traffic.json"), ranks)
    return [case.label for case in plan.cases if case.skip is None], list(plan.config["notes"])


def test_each_form_of_a_call_is_a_case(tmp_path: Path) -> None:
    forms = (signature(8), signature(1024), signature(64, "broadcast", operator=None, root=1),
             signature(64, "all_gather", dtype="bf16", operator=None),
             signature(0, "barrier", dtype=None, operator=None))
    labels, notes = planned(tmp_path, record(forms))
    assert len(labels) == 5 and len(notes) == 1
    for text in ("sum 8B", "sum 1024B", "root=1 64B", "bf16 64B", "barrier"):
        assert sum(text in label for label in labels) == 1, (text, labels)


def test_groups_that_are_all_ranks_together_run_at_once(tmp_path: Path) -> None:
    columns = tuple(signature(8, group=group) for group in range(2))
    made = record(columns, ((0, 2), (1, 3)), 4)
    assert len({form_id(made, one) for one in columns}) == 2
    labels, _ = planned(tmp_path, made, 4)
    assert len(labels) == 1 and "groups=2" in labels[0] and "stride=2" in labels[0]
    labels, notes = planned(tmp_path, record((signature(8),), ((1, 3),), 4), 4)
    assert len(labels) == 1 and "n=2" in labels[0] and len(notes) == 2


def test_what_cannot_be_replayed_is_counted(tmp_path: Path) -> None:
    forms = (signature(8), signature(8, "send_recv", operator=None, pair=(0, 1)),
             signature(64, "all_to_all", operator=None, splits_in=((1, 15), (15, 1))),
             signature(8, "ring_shift"), signature(8, dtype="fp4"), signature(8, backend="xccl"))
    made = record(forms)
    orders = tuple(replace(one, signature=(0,) * 20 + (2,) * 20) for one in made.order)
    labels, notes = planned(tmp_path, replace(made, order=orders))
    assert len(labels) == 2 and "signature=2 all_to_all" in labels[1]
    assert sum(" 40 calls" in note for note in notes) == len(forms) - 2
    with pytest.raises(ConfigError, match="fp4"):
        planned(tmp_path, record((signature(8, dtype="fp4"),)))


def test_a_call_too_small_for_a_case_is_left_out(tmp_path: Path) -> None:
    """DDP gathers a number of each rank when it starts: 16 bytes on two."""
    forms = (signature(8), signature(
        16, "all_gather", dtype="int64", operator=None, elements_in=(1,), elements_out=(2,),
        count=1))
    (tmp_path / "traffic.json").write_text(traffic_text(record(forms)))
    plan = make_plan(load_config(tmp_path / "traffic.json"), 2)
    assert [case.skip for case in plan.cases] == [None]
    assert [note for note in plan.config["notes"] if "left out: 1 call, 16 B" in note]


def test_of_many_forms_with_other_parts_those_with_most_bytes_are_measured(tmp_path: Path) -> None:
    """A mixture of experts has new parts in each call."""
    forms = (signature(8), *(signature(
        4 * size, "all_to_all", operator=None, count=count, splits_in=((size, 1), (1, size)))
        for size in range(2, 60) for count in (1, 40)))
    (tmp_path / "traffic.json").write_text(traffic_text(record(forms)))
    plan = make_plan(load_config(tmp_path / "traffic.json"), 2)
    assert len(plan.cases) == 21 and len(plan.config["notes"]) == 2


@pytest.mark.parametrize(("keys", "problem"), [
    ({"signature": [1]}, "has 1, from 0 on, but no 1"), ({"signature": [0], "calls": 5}, "calls"),
    ({"signature": [0], "gaps": ["none"]}, "gaps")])
def test_a_signature_that_is_none_or_with_keys_of_an_order(
    tmp_path: Path, keys: dict[str, object], problem: str,
) -> None:
    (tmp_path / "traffic.json").write_text(traffic_text(record()))
    (tmp_path / "sweep.json").write_text(json.dumps({"benchmarks": [
        {"kind": "replay", "traffic": "traffic.json", **keys}]}))
    with pytest.raises(ConfigError, match=problem):
        make_plan(load_config(tmp_path / "sweep.json"), 2)


def test_a_wrong_value_is_one_line_with_its_key(tmp_path: Path) -> None:
    document = json.loads(traffic_text(record()))
    document["signatures"][0]["group"] = 7
    (tmp_path / "traffic.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"signatures\.0\.group"):
        load_config(tmp_path / "traffic.json")


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that measured all_reduces of 8 and 16 bytes on 2 ranks."""
    folder = tmp_path_factory.mktemp("isolated")
    cases = [make_case(index, mode="isolated", iterations=30) for index in range(2)]
    write_synthetic_run(folder, plan_of(cases, 2))
    reduce_folder(folder)
    return folder


def explained(folder: Path, traffic: TrafficRecord) -> Causes:
    with open_results(folder) as file:
        return causes([Run(str(folder), file.results, file)], TopicOptions(traffic=traffic))


def noisy(call: int) -> int:
    return ISOLATED_NS + 100 * (call % 7)


@pytest.mark.parametrize(("durations", "cause", "late"), [
    (lambda rank, call: noisy(call), "transfer", ()),
    (lambda rank, call: noisy(call) + 5_000_000 * (rank == 0), "arrival", (1,)),
    (lambda rank, call: noisy(call) * (1 + (rank == 1)), "transfer", (0,)),
    (lambda rank, call: 8 * noisy(call), "contention", ()),
    (lambda rank, call: 8 * noisy(call) + 160_000 * (rank == 1), "mixed", (0,)),
])
def test_the_cause_is_named(
    isolated: Path, durations: Callable[[int, int], int], cause: str, late: tuple[int, ...],
) -> None:
    found = explained(isolated, record(duration_ns=durations))
    assert (found.forms[0].cause, found.forms[0].late) == (cause, late)
    assert found.forms[0].isolated_s == pytest.approx(np.mean([
        min(duration_ns(0, 0, rank, 2 + call) for rank in (0, 1)) for call in range(30)]) / 1e9)
    assert found.answers[0].certainty == CLEAR
    assert sum(found.shares.values()) == pytest.approx(1)
    if cause == "arrival":
        assert found.shares["arrival"] == pytest.approx(2.5e6 / (2.5e6 + ISOLATED_NS), abs=0.01)


@pytest.mark.parametrize(("waiting_ns", "contention_ns", "parts"), [
    (30_000, 30_000, ("arrival", "contention", "transfer")),
    (45_000, 10_000, ("arrival", "transfer"))])
def test_a_part_that_is_too_small_or_large_is_seen(
    isolated: Path, waiting_ns: int, contention_ns: int, parts: tuple[str, ...],
) -> None:
    """Of 100 us, 40 and 45 are the transfer; all scaled to the isolated one."""
    alone = 100_000 - waiting_ns - contention_ns
    scale = ISOLATED_NS / alone
    found = explained(isolated, record(duration_ns=lambda rank, call: int(scale * (
        alone + contention_ns + 2 * waiting_ns * rank)) + 30 * (call % 7))).forms[0]
    assert found.parts == parts, found


def test_the_time_of_calls_without_a_cause_is_inconclusive(isolated: Path) -> None:
    """Half of the calls are explained, of the others arrival and contention vary too much."""
    traffic = record((signature(), signature(16)), duration_ns=lambda rank, call: noisy(call))
    orders = tuple(replace(
        one, signature=(0,) * 40 + (1,) * 40, sequence=tuple(range(80)), gap_ns=(None,) * 80,
        wait_ns=(None,) * 80, duration_ns=(*one.duration_ns, *(
            noisy(call) * (30 if call == 7 else 1) + 300_000 * one.rank * (call == 30)
            for call in range(40)))) for one in traffic.order)
    found = explained(isolated, replace(traffic, order=orders))
    unclear, clear = found.forms
    assert (unclear.cause, clear.cause) == ("inconclusive", "transfer")
    assert unclear.arrival and unclear.arrival.value > 0.1 and unclear.missing
    assert found.shares["inconclusive"] == pytest.approx(
        unclear.time_s / (unclear.time_s + clear.time_s))
    alone = explained(isolated, replace(traffic, order=tuple(replace(
        one, signature=(1,) * 40, sequence=one.sequence[40:], gap_ns=(None,) * 40,
        wait_ns=(None,) * 40, duration_ns=one.duration_ns[40:]) for one in orders)))
    assert alone.answers[0].certainty == CANNOT_TELL


def test_late_ranks_and_work_beside_may_divide_in_any_way(isolated: Path) -> None:
    """Few calls, some late and some slow: not the transfer, but which of both is open."""
    found = explained(isolated, record(calls=8, duration_ns=lambda rank, call: (
        8 * noisy(call) if call % 2 else noisy(call) + 90_000 * rank)))
    (one,) = found.forms
    assert one.arrival is not None and one.arrival.ends[0] < 0.25
    assert (one.cause, one.parts) == ("mixed", ("arrival", "contention"))
    assert one.words == "mixed: arrival + contention"
    assert found.shares["inconclusive"] == 0


def test_communication_is_a_share_of_the_recorded_span(isolated: Path) -> None:
    """Calls of 10 us each 20 us: the first begins the span, the last ends it."""
    traffic = record(duration_ns=lambda rank, call: ISOLATED_NS)
    orders = tuple(replace(one, gap_ns=(None, *(20_000,) * 39)) for one in traffic.order)
    found = explained(isolated, replace(traffic, order=orders))
    assert found.span_s == pytest.approx(39 * 20e-6 + 10e-6)
    assert found.of_span == pytest.approx(400e-6 / 790e-6)
    assert "span of 790 us" in found.answers[0].sentence
    bound, *_ = found.answers[0].evidence
    assert "at most 51 %" in bound and "communication: [on, off]" in bound
    without_span = explained(isolated, traffic)
    assert without_span.of_span is None
    assert len(without_span.answers[0].evidence) == len(found.answers[0].evidence) - 1


def test_the_share_of_the_span_is_the_mean_ranks_calls_in_its_span(isolated: Path) -> None:
    """Calls of rank 0 overlap: they last 1.5 times its span, those of rank 1 half of it."""
    traffic = record(duration_ns=lambda rank, call: 10_000 if rank else 30_000)
    orders = tuple(replace(one, gap_ns=(None, *(20_000,) * 39)) for one in traffic.order)
    overlapping = explained(isolated, replace(traffic, order=orders))
    calls_s, span_s = 40 * 20e-6, (39 * 20 + 20) * 1e-6
    assert overlapping.forms[0].time_s == pytest.approx(calls_s)
    assert overlapping.span_s == pytest.approx(span_s)
    assert overlapping.of_span == pytest.approx(calls_s / span_s)


@pytest.mark.parametrize("traffic", [
    record(), record((signature(4096),), duration_ns=lambda rank, call: noisy(call)),
    record(duration_ns=lambda rank, call: noisy(call), calls=3),
    record(duration_ns=lambda rank, call: noisy(call) if rank else None),
    replace(record(duration_ns=lambda rank, call: noisy(call)), order=record().order[:1])])
def test_too_little_is_known_for_a_cause(isolated: Path, traffic: TrafficRecord) -> None:
    found = explained(isolated, traffic)
    assert {one.cause for one in found.forms} == {"inconclusive"}
    assert all(one.missing for one in found.forms)
    assert found.answers[0].certainty == CANNOT_TELL


@pytest.mark.parametrize(("other", "missing"), [
    (signature(8), ""), (signature(4096), "run traffic.json"),
    (signature(8, "send_recv", operator=None, pair=(0, 1)), "key signature 0"),
    (signature(64, "all_to_all", operator=None, splits_in=((1, 15), (15, 1))), "run traffic.json"),
    (signature(64, "all_to_all", operator=None, splits_in=((1, 15), (15, 1)), count=2),
     "key signature 0"),
    (signature(8, "all_gather", operator=None, elements_in=(3, 5)), "run traffic.json"),
    (signature(16, "all_gather", dtype="int64", operator=None), "key signature 0"),
    (signature(8, dtype="fp4"), "cannot be replayed")])
def test_how_a_form_is_measured(isolated: Path, other: Signature, missing: str) -> None:
    found = explained(isolated, record((other,), duration_ns=lambda rank, call: noisy(call)))
    assert missing in found.forms[0].missing and bool(missing) == bool(found.forms[0].missing)


def test_a_long_call_that_is_not_measured_leaves_the_shares_of_the_others(isolated: Path) -> None:
    """One start-up call takes most of the time; 40 calls of the other form are explained."""
    traffic = record((signature(), signature(16, "all_gather", operator=None, count=1)),
                     duration_ns=lambda rank, call: noisy(call))
    orders = tuple(replace(
        one, signature=(*one.signature, 1), sequence=(*one.sequence, 40),
        gap_ns=(*one.gap_ns, None), duration_ns=(*one.duration_ns, 2_000_000),
        wait_ns=(*one.wait_ns, None)) for one in traffic.order)
    found = explained(isolated, replace(traffic, order=orders))
    assert found.forms[0].missing and 0.5 < found.shares["inconclusive"] < 0.9
    assert found.answers[0].certainty == CLEAR
    assert "% transfer, " in found.answers[0].sentence


def test_the_command_prints_it(isolated: Path, tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    path.write_text(traffic_text(record(
        duration_ns=lambda rank, call: noisy(call) + 5_000_000 * (rank == 0))))
    words = ["advise", str(isolated), "--traffic", str(path), "--only", "causes"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "arrival" in done.output, done.output
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert document["topics"]["causes"]["forms"][0]["cause"] == "arrival"
    path.write_text("{}")
    assert CliRunner().invoke(app, words).exit_code != 0


def test_one_burst_is_no_cause() -> None:
    """Calls that were slow for a while say little of how long calls take."""
    random = np.random.default_rng(1)
    slow = np.where(np.abs(np.arange(200) - 100) < 50, 6.0, 1.0)
    recorded = CallTimes(1e-3 * slow * random.lognormal(0, 0.1, 200), np.full(200, 1e-5), {})
    alone = CallTimes(1e-3 * random.lognormal(0, 0.1, 30), np.full(30, 1e-5), {})
    assert judged(CallCause("", 200, 200, 0), recorded, alone).cause == INCONCLUSIVE
