"""The checks of training steps; docs/checks.md names each test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcbench.kinds.training.derive.rates import counted, counted_wire_bytes
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.schema import ARRIVAL, Record
from synthetic import plan_of, write_synthetic_run
from training_cases import make_training, make_training_case

CASE = make_training_case()


def outcome(folder: Path, change: Callable[[int, Record], Record]) -> tuple[CaseResult, str, str]:
    """Return the case of a run, and code and scope of the first finding."""
    def phased(rank: int, record: Record) -> tuple[Record]:
        step = record.samples.end_ns - record.samples.start_ns
        return (change(rank, replace(record, phases={"data": step // 4, "forward": step // 2})),)

    write_synthetic_run(folder, plan_of([CASE], 2), change=phased)
    results = reduce_folder(folder)
    first = next(iter(results.findings), None)
    return results.cases[0], first.code if first else "", first.scope if first else ""


def test_hb148_phases_longer_than_their_step(tmp_path: Path) -> None:
    def longer(rank: int, record: Record) -> Record:
        if rank == 1:
            record.phases["forward"][7] *= 2
        return record

    item, code, scope = outcome(tmp_path, longer)
    assert (item.status, code, scope) == ("failed", "HB148", "case")
    assert "rank 1" in item.reason and "7" in item.reason and "longer" in item.reason
    assert item.statistics is None


def test_hb148_phases_that_fill_their_step_are_sound(tmp_path: Path) -> None:
    def full(rank: int, record: Record) -> Record:
        step = record.samples.end_ns - record.samples.start_ns
        return replace(record, phases={"data": step // 4, "forward": step - step // 4})

    item, code, _ = outcome(tmp_path, full)
    assert item.status == "ok" and code != "HB148"


def test_hb148_on_a_device_events_may_be_coarse(tmp_path: Path) -> None:
    def longer(rank: int, record: Record) -> Record:
        step = record.samples.end_ns - record.samples.start_ns
        return replace(record, device="cuda:0", phases={"forward": step + 900})

    item, code, _ = outcome(tmp_path, longer)
    assert item.status == "ok" and code != "HB148"


def test_hb148_a_phase_below_zero(tmp_path: Path) -> None:
    def below(rank: int, record: Record) -> Record:
        record.phases["data"][3] = -1
        return record

    item, code, _ = outcome(tmp_path, below)
    assert code == "HB148" and "rank 0 iteration 3: data took less than no time" in item.reason


def test_hb148_an_arrival_after_the_end_of_its_step(tmp_path: Path) -> None:
    def after(rank: int, record: Record) -> Record:
        step = record.samples.end_ns - record.samples.start_ns
        return replace(record, phases={
            **record.phases, f"{ARRIVAL}1": step // 2, f"{ARRIVAL}7": step + rank})

    item, code, _ = outcome(tmp_path, after)
    assert code == "HB148"
    assert "rank 1 iteration 0: arrival 7 is after the end of its step" in item.reason


def test_hb148_ranks_with_different_phases(tmp_path: Path) -> None:
    item, code, _ = outcome(tmp_path, lambda rank, record: replace(record, phases={}) if rank
                            else record)
    assert code == "HB148"
    assert "rank 1 has other phases (none) than the rest (data, forward)" in item.reason


def test_hb148_durations_that_are_not_of_the_samples(tmp_path: Path) -> None:
    outcome_of = "up to 2 durations of 22 samples"
    item, code, _ = outcome(tmp_path, lambda rank, record: replace(
        record, phases={}, detail={"phases": outcome_of}))
    assert code == "HB148" and f"rank 0-1: {outcome_of}" in item.reason


def test_hb149_more_than_all_of_the_peak(tmp_path: Path) -> None:
    """A step has 190e6 FLOPs by megatron's count, on two ranks in about 10 us."""
    plan = plan_of([CASE], 2)
    for peak, status in ((5e12, "failed"), (2e13, "ok")):
        hardware = {"peak_flops": {"fp32": peak}}
        folder = tmp_path / status
        write_synthetic_run(folder, replace(plan, config={**plan.config, "hardware": hardware}))
        results = reduce_folder(folder)
        assert results.cases[0].status == status
    failed = reduce_folder(tmp_path / "failed")
    assert [(item.code, item.scope) for item in failed.findings if item.scope == "case"] == [
        ("HB149", "case")]
    assert "MFU (megatron) is 18" in failed.cases[0].reason
    assert failed.cases[0].statistics is failed.cases[0].timing is None


def test_without_phases_a_training_is_as_sound(tmp_path: Path) -> None:
    item, code, _ = outcome(tmp_path, lambda rank, record: replace(record, phases={}))
    assert item.status == "ok" and code != "HB148"
    assert item.timing is not None and item.timing.steps is None
    assert isinstance(item.timing.local_max_s, float) and np.isfinite(item.timing.local_max_s)


def test_hb157_calls_that_were_not_predicted(tmp_path: Path) -> None:
    """DDP calls one all_reduce of all gradients: 4 bytes for each parameter."""
    def outcome_of(size: int) -> tuple[CaseResult, list[str]]:
        def change(rank: int, record: Record) -> tuple[Record]:
            return (replace(record, detail={"counted": {
                "calls": {"all_reduce": [1, size, size]}, "flops": 7 + rank,
                "scores_again_flops": 1, "missing": {}}, "memory": {
                "activations": 5 + rank, "activations_of": "results of operations"}}),)

        folder = tmp_path / str(size)
        write_synthetic_run(folder, plan_of([case], 2), change=change)
        results = reduce_folder(folder)
        return results.cases[0], [item.message for item in results.findings
                                  if item.code == "HB157"]

    case = make_training_case(make_training(options=(("bucket_mb", 25), ("comm_hook", "none"))))
    (expected,) = predict(training_of(case)).of_ranks[0].calls
    as_predicted, nothing = outcome_of(expected.size_bytes)
    assert as_predicted.status == "ok" and nothing == []
    other, (message,) = outcome_of(expected.size_bytes + 4)
    assert other.status == "ok"
    assert (f"rank 0 called 1 all_reduce of {expected.size_bytes + 4} B in a step, predicted was "
            f"1 all_reduce of {expected.size_bytes} B (and 1 more)") in message
    found = counted(other)
    assert [found[name] for name in ("step_calls", "wire_bytes", "flops")] == [
        1, expected.size_bytes + 4, 8]
    assert counted_wire_bytes(other) == 2 * (expected.size_bytes + 4)
    assert counted_wire_bytes(replace(other, detail={"0": other.detail["0"]})) is None
    assert found["wire_bytes_predicted"] == expected.carried_on("gloo")
    # though the update is the fullest moment
    assert found["activations_bytes_predicted"] > 10 * 2**10
    assert (found["activations_of"], found["scores_again_flops"]) == ("results of operations", 1)
