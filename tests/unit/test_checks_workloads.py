"""Checks of trainings and readings; docs/checks.md names each test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.config.load import check_config
from hpcbench.errors import ExitCode
from hpcbench.kinds.training.derive.fingerprints import Counterpart
from hpcbench.kinds.training.derive.rates import counted, counted_wire_bytes, differences
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present import charts as words
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.reduce.results import CaseResult, Results, Usage
from hpcbench.reduce.run_checks import usage_findings
from hpcbench.trace.schema import ARRIVAL, Record
from results_factory import make_case, ok
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


def test_a_later_shard_of_an_embedding_that_two_stages_have_sends_less() -> None:
    """A vocabulary of 49 rows is 25 of the first shard, 24 of the second."""
    plan = make_plan(check_config({"benchmarks": [{
        "kind": "training", "model": "transformer-tiny", "vocab": 49, "backend": "gloo",
        "strategies": {"hybrid": {"pp": 2, "data": "fsdp"}}}]}, "sweep"), 4)
    (case,) = plan.cases
    stages = predict(training_of(case)).of_ranks

    def blamed(*less: int) -> list[str]:
        return [text.split()[1] for text in differences(case, {str(rank): {"counted": {"calls": {
            call.collective: (call.count, call.size_bytes - 512 * (
                rank in less and call.collective == "send_recv"), 0)
            for call in stages[rank % 2].calls}}} for rank in range(4)})]

    assert blamed(2, 3) == []
    assert blamed(0, 2) == ["0", "3"]
    assert blamed() == ["2", "3"]


ELEMENTS = {"embedding.tokens.weight": 4096, "blocks.0.mlp.up.weight": 1024,
            "blocks.0.attention.k.bias": 64}
STRATEGIES = ("data", "fsdp", "zero1")
CASES = [make_training_case(make_training(name), index=at) for at, name in enumerate(STRATEGIES)]
TelemetryReport = Mapping[str, Any]


def base(**changes: Any) -> dict[str, Any]:
    """Return fingerprints of normal numbers, the same for each call."""
    draw = np.random.default_rng(1)

    def sketch(scale: float) -> dict[str, list[list[float]]]:
        return {name: [[scale * count**0.5, *(scale * count**0.5 * draw.normal(size=8))]]
                for name, count in ELEMENTS.items()}

    kinds = {"weights": sketch(0.02), "gradients": sketch(1e-3), "updates": sketch(1e-4)}
    kinds["gradients"]["blocks.0.attention.k.bias"] = [[1e-9] * 9]  # rounding, and no more
    return {"hidden": 64, "relative": 1e-3, "floor": 0.0, "least": 0.01, "optimizer": "adamw",
            "rate": 1e-4, "elements": ELEMENTS, **kinds, **changes}


def scaled(what: str, name: str, factor: float, *, copy: bool = False) -> dict[str, Any]:
    """Return them with the numbers of one parameter, or of a copy of it, scaled."""
    found = base()
    numbers = [factor * number for number in found[what][name][0]]
    found[what][name] = [found[what][name][0], numbers] if copy else [numbers]
    return found


def reduced(folder: Path, *fingerprints: TelemetryReport | None, cases: Any = CASES) -> Results:
    """Return the results of a run in which cases recorded these."""
    ids = {case.case_id: found for case, found in zip(cases, fingerprints, strict=True)}
    devices = {case.case_id: "cuda:0" if case.device == "cuda" else "cpu" for case in cases}

    def change(rank: int, record: Record) -> tuple[Record]:
        found = ids.get(record.case_id)
        return (replace(record, device=devices[record.case_id],
                        detail={"fingerprints": found} if found and not rank else {}),)

    write_synthetic_run(folder, plan_of(list(cases), 2), change=change)
    return reduce_folder(folder)


def beside(results: Results) -> list[Counterpart | None]:
    return [results.derived["training"][item.case.case_id]["counterpart"]
            for item in results.cases]


def codes(results: Results) -> list[str]:
    return [finding.message for finding in results.findings if finding.code == "HB158"]


def test_hb158_layouts_that_agree_are_no_finding(tmp_path: Path) -> None:
    results = reduced(
        tmp_path, base(), base(), scaled("gradients", "blocks.0.mlp.up.weight", 1 + 1e-5))
    assert codes(results) == []
    found = beside(results)
    assert [one and one.words for one in found] == [
        "fsdp on 2 ranks", "data on 2 ranks", "data on 2 ranks"]
    assert found[2] and found[2].share and 0 < found[2].share < 1
    assert found[2].name == "blocks.0.mlp.up.weight"


@pytest.mark.parametrize(("what", "factor"), [
    ("gradients", 1.01), ("gradients", 0.99), ("gradients", float("nan")), ("weights", 1.000001),
    ("updates", 2.0)])
def test_hb158_a_layout_that_differs_is_named(
    tmp_path: Path, what: str, factor: float,
) -> None:
    results = reduced(
        tmp_path, base(), base(), scaled(what, "blocks.0.mlp.up.weight", factor))
    (message,) = codes(results)
    assert f"({CASES[2].case_id}): 1 of 9 comparisons" in message
    assert f"data on 2 ranks ({CASES[0].case_id})" in message
    assert f"first {what} of blocks.0.mlp.up.weight" in message
    assert exit_code(results) == ExitCode.FINDINGS
    assert results.cases[2].status == "ok"
    assert words.counterpart_text(beside(results)[2] or Counterpart()) == (
        "differs from that of data on 2 ranks (HB158)")


def test_hb158_the_first_may_be_the_odd_one(tmp_path: Path) -> None:
    results = reduced(
        tmp_path, scaled("gradients", "blocks.0.mlp.up.weight", 1.5), base(), base())
    (message,) = codes(results)
    assert f"({CASES[0].case_id}): 1 of 9" in message and "fsdp on 2 ranks" in message


def test_hb158_copies_on_ranks_that_differ(tmp_path: Path) -> None:
    (message,) = codes(reduced(
        tmp_path, scaled("gradients", "embedding.tokens.weight", 1.5, copy=True),
        cases=CASES[:1]))
    assert "differ among the ranks' copies" in message and "embedding.tokens.weight" in message


def test_hb158_a_layout_whose_copies_differ_blames_no_other(tmp_path: Path) -> None:
    broken = scaled("gradients", "embedding.tokens.weight", 1.5, copy=True)
    broken["gradients"]["blocks.0.mlp.up.weight"] = scaled(
        "gradients", "blocks.0.mlp.up.weight", 1.5)["gradients"]["blocks.0.mlp.up.weight"]
    results = reduced(tmp_path / "two", broken, base(), cases=CASES[:2])
    (message,) = codes(results)
    assert f"({CASES[0].case_id})" in message and "differ among the ranks' copies" in message
    other = beside(results)[1]
    assert other and other.missing and "copies" in other.missing
    (message,) = codes(reduced(tmp_path / "three", broken, base(), base()))
    assert f"({CASES[0].case_id})" in message


def test_hb158_rounding_alone_is_not_compared_with_itself(tmp_path: Path) -> None:
    assert codes(reduced(tmp_path, base(), base(), scaled(
        "gradients", "blocks.0.attention.k.bias", -3.0))) == []


def test_hb158_rounding_of_a_key_s_bias_is_relative_to_its_weight(tmp_path: Path) -> None:
    elements = {**ELEMENTS, "blocks.0.attention.k.weight": 4096}
    beside_weight = {"elements": elements}
    for kind in ("weights", "gradients", "updates"):
        beside_weight[kind] = dict(base()[kind])
        beside_weight[kind]["blocks.0.attention.k.weight"] = [[1e-2] * 9]
    rounded = {**beside_weight, "gradients": dict(beside_weight["gradients"])}
    rounded["gradients"]["blocks.0.attention.k.bias"] = [[1.2e-6] * 9]  # 1e-3 of 1e-2 / sqrt(64)
    assert codes(reduced(tmp_path / "beside", base(**beside_weight), base(**rounded),
                         cases=CASES[:2])) == []
    alone = {**base()["gradients"], "blocks.0.attention.k.bias": [[1.2e-6] * 9]}
    first, _ = codes(reduced(
        tmp_path / "none", base(), base(gradients=alone), cases=CASES[:2]))
    assert "k.bias" in first


@pytest.mark.parametrize(("fingerprints", "cases", "why"), [
    ((base(), base()), [CASES[0], make_training_case(make_training("fsdp", batch_size=8), index=1)],
     "no other layout of the run takes a step of the same samples, which are 8 of 32 tokens"),
    (({"missing": "rounding"}, base()), CASES[:2], "rounding")])
def test_hb158_what_is_compared_with_nothing_states_why(
    tmp_path: Path, fingerprints: tuple[TelemetryReport, ...], cases: Any, why: str,
) -> None:
    results = reduced(tmp_path, *fingerprints, cases=cases)
    first = beside(results)[0]
    assert codes(results) == [] and first is not None
    assert words.counterpart_text(first) == f"compared with no other strategy: {why}"


def test_hb158_small_models_are_not_compared_so(tmp_path: Path) -> None:
    assert beside(reduced(tmp_path, None, None, None)) == [None, None, None]


def test_a_gpu_is_not_compared_with_a_cpu(tmp_path: Path) -> None:
    """Weights of the seed are others there; two cases on GPUs are compared with each other."""
    cases = [replace(case, device="cuda" if at else "cpu", backend="nccl" if at else "gloo")
             for at, case in enumerate(CASES)]
    other = scaled("weights", "blocks.0.mlp.up.weight", 1.5)
    first, *on_gpus = beside(reduced(tmp_path, base(), other, other, cases=cases))
    assert first is None or not first.n_wrong
    assert all(one is None or not one.n_wrong for one in on_gpus)


def items(*usages: Usage | None) -> list[CaseResult]:
    return [replace(ok(make_case(index=number), 1e-3), usage=usage)
            for number, usage in enumerate(usages)]


def test_hb130_clocks_that_were_lowered() -> None:
    found = [*usage_findings(items(
        Usage(1, throttled=False), Usage(1, throttled=True, throttled_by=("power cap",)), None,
        Usage(1, throttled=True, throttled_by=("power cap", "hardware thermal"))))]
    assert [(one.code, one.scope) for one in found] == [("HB130", "note")] * 2
    assert found[0].message.startswith("clocks were lowered (power cap) in 2 cases, first all_red")
    assert "(hardware thermal) in 1 case," in found[1].message


def test_hb130_gpus_that_report_errors() -> None:
    xid, memory = usage_findings(items(Usage(1, xids=(79,)), Usage(1, ecc_errors=2.0),
                                       Usage(1, ecc_errors=0.0)))
    assert xid.message.startswith("a GPU has reported XID 79 in 1 case,")
    assert memory.message.startswith("a GPU had memory errors in 1 case,")


def test_hb130_a_sound_machine() -> None:
    assert not [*usage_findings(items(Usage(1, throttled=False, ecc_errors=0.0), None))]
