"""What `bash benchmarks/gpu.sh` decides, without a GPU: its steps, what is run again, verdicts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbench.config.load import load_config
from hpcbench.plan.expand import make_plan
from launcher import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from gpu import judges, nccl_tests, running, telemetry  # noqa: E402
from gpu.judging import judged  # noqa: E402
from gpu.machine import Machine, listed_mig  # noqa: E402
from gpu.main import exit_code  # noqa: E402
from gpu.record import Record, fingerprint, read_record, write_record  # noqa: E402
from gpu.report import Verdict, without_results  # noqa: E402
from gpu.steps import Goal, Steps, StepsError, read_steps  # noqa: E402

SHIPPED = ROOT / "benchmarks" / "gpu" / "steps.yaml"
H100 = Machine(("NVIDIA H100 80GB HBM3",) * 2, ("a", "b"), (80 * 2**30,) * 2, (None, None), (),
               {"torch": "2.13.0+cu130"})


def steps() -> Steps:
    return read_steps(SHIPPED)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_every_shipped_sweep_plans_on_gpus(gpus: int) -> None:
    for step in steps().steps:
        if not step.sweep or step.least_gpus > gpus:
            continue
        plan = make_plan(load_config(SHIPPED.parent / step.sweep), gpus)
        run = [case for case in plan.cases if not case.skip]
        assert run and {case.device for case in run} == {"cuda"}, step.name
        assert all(case.backend == "nccl" for case in run), step.name


def test_every_judge_exists_takes_its_options_and_finds_its_cases() -> None:
    for step in steps().steps:
        for goal in step.goals:
            if goal.judge not in ("", "own"):
                assert judges.known(goal.options, goal.judge), goal.id
            pattern = goal.options.get("fault") or goal.options.get("only")
            if pattern:
                plan = make_plan(load_config(SHIPPED.parent / step.sweep), 2)
                found = [case.label for case in plan.cases
                         if judges.fnmatchcase(case.label, pattern)]
                assert found, (goal.id, plan.cases[0].label)


def test_the_faults_of_a_sweep_are_those_that_its_goals_name() -> None:
    for name in ("faults", "hangs"):
        config = load_config(SHIPPED.parent / "sweeps" / f"{name}.yaml")
        step = next(step for step in steps().steps if step.name == name)
        named = {goal.options["fault"] for goal in step.goals}
        assert {fault.case for fault in config.fault} <= named


@pytest.mark.parametrize(("text", "words"), [
    ("steps: []", "it needs steps"),
    ("device: tpu\nsteps: [{}]", "device must be one of cuda, cpu"),
    ("steps: [{name: a, goals: []}]", "one of sweep and command"),
    ("steps: [{name: 'a b', command: [x], goals: []}]", "name must be letters"),
    ("steps: [{name: a, command: [x], gaols: []}]", "its keys must be of"),
    ("steps: [{name: a, command: [x]}]", "needs id and text"),
    ("steps: [{name: a, command: [x], limit_s: soon, goals: []}]", "limit_s"),
    ("steps: [{name: a, sweep: x, ranks: all, goals: []}]", "ranks must be"),
    ("steps: [{name: a, command: [x], goals: []}, {name: a, command: [x], goals: []}]",
     "two have the name of step a"),
])
def test_what_is_wrong_with_a_file_of_steps(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "steps.yaml"
    path.write_text(text)
    with pytest.raises(StepsError, match=words):
        read_steps(path)


def test_a_step_is_run_again_where_it_or_the_machine_has_changed(tmp_path: Path) -> None:
    shipped = steps()
    step = shipped.steps[1]
    mark = fingerprint(step, shipped, H100)
    write_record(tmp_path, Record(step.name, "done", fingerprint=mark))
    assert read_record(tmp_path, step.name, mark).is_final
    for other in (fingerprint(step, shipped, replace(H100, uuids=("a", "c"))),
                  fingerprint(replace(step, limit_s=1.0), shipped, H100)):
        assert read_record(tmp_path, step.name, other).state == "not run"
    (tmp_path / "step.json").write_text("{")
    assert read_record(tmp_path, step.name, mark).state == "not run"


def test_what_a_machine_lacks_is_the_reason_of_a_skip() -> None:
    found = {step.name: running.why_not(step, H100, "cuda") for step in steps().steps}
    assert found["mig"].startswith("no MIG device") and not found["hangs"]
    alone = replace(H100, names=H100.names[:1])
    hangs = next(step for step in steps().steps if step.name == "hangs")
    assert running.why_not(hangs, alone, "cuda") == "it needs 2 GPUs, this machine has 1"
    assert not running.why_not(hangs, alone, "cpu")


def test_commands_name_ranks_gpus_and_declared_peaks(tmp_path: Path) -> None:
    setting = running.Setting(tmp_path, H100, steps())
    by_name = {step.name: step for step in setting.steps.steps}
    words = running.command_of(by_name["too_many_ranks"], setting)
    assert words[1:3] == ["-np", "3"] and str(tmp_path / "steps/too_many_ranks/results") in words
    assert '"bf16": 989400000000000.0' in words[-1] and words[-1].startswith("hardware={")
    unknown = running.Setting(tmp_path, replace(H100, names=("NVIDIA L4",)), steps())
    assert "--set" not in running.command_of(by_name["peak"], unknown)
    assert running._filled("{uuids}", running._words(setting, by_name["by_uuid"])) == "GPU-b,GPU-a"


def test_mig_devices_are_read_from_nvidia_smi() -> None:
    listed = ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c1)\n"
              "  MIG 1g.10gb     Device  0: (UUID: MIG-0b7a-11)\n")
    assert listed_mig(listed) == ("MIG-0b7a-11",) and not listed_mig("No devices were found")


def test_nccl_tests_are_read_and_compared() -> None:
    text = "\n".join((
        "#  size    count   type   redop  root    time   algbw   busbw #wrong    time  (out, in)",
        " 1048576   262144  float    sum    -1   35.10   29.87   52.28    0   34.90 30.05 52.58  0",
        "67108864 16777216  float   none   0  420.00  159.78  159.78  N/A  421.00 159.4 159.4 N/A",
        "# Avg bus bandwidth    : 100"))
    assert nccl_tests.bandwidths(text) == {1048576: 52.58, 67108864: 159.78}
    theirs = {("all_reduce", 2**20): 50.0, ("all_reduce", 8): 1.0}
    assert nccl_tests.compared({("all_reduce", 2**20): 46.0}, theirs)[0] == "met"
    assert nccl_tests.compared({("all_reduce", 2**20): 44.0}, theirs)[0] == "missed"
    assert nccl_tests.compared({("all_reduce", 8): 1.0}, theirs)[0] == "cannot tell"


def test_telemetry_names_what_is_not_told() -> None:
    whole = {"pci": "x", "power_limit_w": 700.0, "max_mhz": {"sm": 1980, "memory": 2619},
             "pcie": {"generation": 5},
             "now": {"sm_mhz": 1755, "memory_mhz": 2619, "celsius": 35, "throttled_by": []}}
    assert telemetry.judged(["H100"], [whole])[0] == "met"
    verdict, detail = telemetry.judged(["H100"] * 2, [whole, {**whole, "now": None}])
    assert verdict == "missed" and "now.celsius" in detail and "pci," not in detail


def case(label: str, status: str, **values: Any) -> SimpleNamespace:
    """Return as much of a result as judges look at."""
    given = {"reason": "", "n_wrong": 0, "timing": None, "library": None, "memory": None}
    work = SimpleNamespace(**values.pop("work", {}))
    bytes_ = values.pop("memory_bytes", 0)
    return SimpleNamespace(
        status=status, case=SimpleNamespace(label=label, workload=work, memory_bytes=bytes_),
        **{**given, **values})


def evidence(*cases: SimpleNamespace) -> Any:
    results: Any = SimpleNamespace(cases=cases, record_of=lambda item: None,
                                   plan=SimpleNamespace(config={}))
    return judges.Evidence(results, H100, {})


def test_all_ok_tells_skips_and_the_first_that_is_not() -> None:
    good, skip = case("a", "ok"), case("b", "skipped", reason="no such")
    assert judges.all_ok(evidence(good, skip)) == judges.Judgement(
        "met", "1 cases ok, 2 of them checked; skipped: 1 x no such")
    assert judges.all_ok(evidence(skip)).verdict == "skipped"
    assert judges.all_ok(evidence()).verdict == "cannot tell"
    bad = judges.all_ok(evidence(good, case("c", "wrong", n_wrong=3)))
    assert bad == judges.Judgement("missed", "1 of 2 cases: c: wrong: 3 wrong")


def test_a_fault_is_survived_if_the_next_case_is_ok() -> None:
    hit, after = case("a 8B", "failed", reason="CUDA error: x"), case("b", "ok")
    judge = judges.survived
    assert judge(evidence(hit, after), "a *", ["failed"], "cuda").verdict == "met"
    assert judge(evidence(hit, after), "a *", ["timeout"]).verdict == "missed"
    assert judge(evidence(hit, after), "a *", ["failed"], "rank 1").verdict == "missed"
    assert judge(evidence(hit), "a *", ["failed"]).verdict == "missed"
    assert judge(evidence(hit, hit, after), "a *", ["failed"]).verdict == "missed"


def test_events_may_not_take_longer_than_the_host() -> None:
    def timed(device_s: float | None) -> SimpleNamespace:
        return case("a", "ok", timing=SimpleNamespace(
            device_s=device_s, local_max_s=1e-3, calls=1, first_call_s=None))

    assert judges.events(evidence(timed(9e-4), timed(1.004e-3))).verdict == "met"
    assert judges.events(evidence(timed(1.01e-3))).verdict == "missed"
    assert judges.events(evidence(timed(None))).verdict == "missed"
    assert judges.told(evidence(timed(9e-4)), "first_call_s").verdict == "missed"
    assert judges.told(evidence(timed(9e-4)), "device_s").verdict == "met"


def test_the_largest_batch_is_compared_with_the_predicted_one() -> None:
    def batch(size: int, status: str, reason: str = "") -> SimpleNamespace:
        return case(f"batch={size}", status, reason=reason, work={"batch_size": size},
                    memory_bytes=size * 2**30)

    memory = "out of memory: CUDA"
    cases = [batch(32, "ok"), batch(64, "ok"), batch(128, "failed", memory)]
    assert judges.largest_batch(evidence(*cases)).verdict == "met"
    few = [batch(8, "ok"), *(batch(size, "failed", memory) for size in (16, 32, 64))]
    assert judges.largest_batch(evidence(*few)).verdict == "missed"
    assert judges.largest_batch(evidence(*cases[:2])).verdict == "cannot tell"
    other = [batch(32, "ok"), batch(64, "failed", "killed")]
    assert judges.largest_batch(evidence(*other)).verdict == "missed"


def test_memory_is_within_a_share_of_what_was_measured() -> None:
    def held(peak: int) -> SimpleNamespace:
        return case("a", "ok", memory={"0": {"peak": peak, "peak_of": "cuda allocated"}},
                    memory_bytes=100)

    assert judges.memory(evidence(held(100), held(90)), within=0.2).verdict == "met"
    assert judges.memory(evidence(held(100), held(70)), within=0.2).verdict == "missed"


def test_a_goal_that_cannot_be_judged_is_a_verdict(tmp_path: Path) -> None:
    setting = running.Setting(tmp_path, H100, steps())
    step = next(step for step in setting.steps.steps if step.name == "fp8")
    verdict = judged(step.goals[0], step, setting, Record("fp8", "done"))
    assert verdict.verdict == "failed" and "cannot be judged: FileNotFoundError" in verdict.detail


def test_exit_codes_and_verdicts_without_results() -> None:
    done = Record("a", "done")
    goal = Goal("g", "text")
    met, missed = (Verdict("g", "text", "a", word, "") for word in ("met", "missed"))
    assert exit_code([done], [met]) == 0 and exit_code([done], [met, missed]) == 1
    assert exit_code([done, Record("b", "cut")], [missed]) == 3
    told = {state: without_results(goal, Record("a", state, "why")) for state in (
        "done", "failed", "timeout", "cut", "skipped", "not run")}
    assert told["done"] is None
    assert [item.verdict for item in told.values() if item] == [
        "failed", "failed", "not run", "skipped", "not run"]


def test_a_step_that_the_session_has_no_time_for_is_cut(tmp_path: Path) -> None:
    words = (sys.executable, "-c", "import time; time.sleep(60)")
    step = replace(steps().steps[0], command=words, limit_s=30.0)
    setting = running.Setting(tmp_path, H100, steps())
    record = running.run_step(step, setting, 0.5, "mark")
    assert record.state == "cut" and not record.is_final
    assert running.run_step(replace(step, limit_s=0.5), setting, 30, "mark").state == "timeout"
