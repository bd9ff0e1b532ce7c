"""What `bash benchmarks/gpu.sh` decides, without a GPU: its steps, what is run again, verdicts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbench.backends.availability import RankFacts
from hpcbench.config.axes import DTYPES, OPS
from hpcbench.config.load import check_config, load_config
from hpcbench.config.schema import Config
from hpcbench.kinds.primitive.plan.implementations import EVERY, IMPLEMENTATIONS
from hpcbench.launch.probe import resolve
from hpcbench.operations.collectives import collective_names
from hpcbench.plan.expand import make_plan
from launcher import ROOT
from unit.test_launch_parts import GPU_FACTS

sys.path.append(str(ROOT / "benchmarks"))

from gpu import judges, lock, nccl_tests, running, telemetry  # noqa: E402
from gpu.judging import judged  # noqa: E402
from gpu.machine import Machine, listed_mig  # noqa: E402
from gpu.main import exit_code, few_cores  # noqa: E402
from gpu.needs import Launcher  # noqa: E402
from gpu.record import Record, fingerprint, read_record, write_record  # noqa: E402
from gpu.report import Verdict, without_results  # noqa: E402
from gpu.steps import Goal, Steps, StepsError, read_steps  # noqa: E402

SHIPPED = ROOT / "benchmarks" / "gpu" / "steps.yaml"
H100 = Machine(("NVIDIA H100 80GB HBM3",) * 2, ("a", "b"), (80 * 2**30,) * 2, (None, None), (),
               {"torch": "2.13.0+cu130"})
ONE = replace(H100, names=H100.names[:1], uuids=("a",))


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


def sweep_of(name: str) -> Config:
    return load_config(SHIPPED.parent / "sweeps" / f"{name}.yaml")


def test_sweeps_leave_nothing_out() -> None:
    right = make_plan(sweep_of("nccl_right"), 2).cases
    for name, all_names in (("collective", collective_names()), ("dtype", DTYPES), ("op", OPS)):
        assert {getattr(case.workload, name) for case in right} >= set(all_names), name
    for sweep, primitives in (("primitives", EVERY), ("graphs", ("tp_columnwise", "tp_rowwise"))):
        cases = make_plan(sweep_of(sweep), 2).cases
        found = {(case.workload.primitive, case.workload.implementation) for case in cases
                 if case.kind == "primitive"}
        assert found == {(primitive, implementation.name) for primitive in primitives
                         for implementation in IMPLEMENTATIONS}, sweep
    assert {case.cuda_graph for case in cases} == {False, True}


@pytest.mark.parametrize("gpus", [1, 8])
def test_an_hour_is_enough_as_planned(gpus: int) -> None:
    planned_s = 0.0
    for step in steps().steps:
        if step.sweep and step.least_gpus <= gpus:
            cases = make_plan(load_config(SHIPPED.parent / step.sweep), gpus).cases
            seconds = sum(case.estimate_s for case in cases)
            assert seconds < step.limit_s, step.name
            planned_s += seconds
    assert planned_s < 40 * 60


@pytest.mark.parametrize(("name", "bf16"), [
    ("NVIDIA H100 80GB HBM3", 989.4e12), ("NVIDIA A100-SXM4-40GB", 312e12), ("NVIDIA A10", 125e12),
    ("NVIDIA B200", 2250e12), ("NVIDIA H100 PCIe", None), ("NVIDIA A100-PCIE-40GB", None),
    ("NVIDIA H100 NVL", None), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None), ("NVIDIA A10G", None),
    ("NVIDIA GH200 480GB", None), ("NVIDIA L4", None),
    ("NVIDIA A100-SXM-64GB", None), ("Tesla V100-SXM3-32GB", None), ("Tesla V100-SXM2-16GB", None),
    ("GRID A100-10C", None), ("NVIDIA H100 64GB HBM2", None)])
def test_peaks_are_declared_of_the_very_gpu_or_not_at_all(name: str, bf16: float | None) -> None:
    declared = replace(H100, names=(name,)).hardware().get("peak_flops", {})
    assert declared.get("bf16") == bf16
    hardware = {"hardware": replace(H100, names=(name,) * 2).hardware()}
    block = {"kind": "collective", "collective": "barrier"}
    check_config({"name": "x", "benchmarks": [block], **(hardware if bf16 else {})}, "x")


def test_every_judge_exists_takes_its_options_and_finds_its_cases() -> None:
    for step in steps().steps:
        for goal in step.goals:
            if goal.judge not in ("", "own"):
                assert judges.known(goal.options, goal.judge), goal.id
            pattern = goal.options.get("fault") or goal.options.get("only")
            if pattern:
                plan = make_plan(load_config(SHIPPED.parent / step.sweep), 2)
                found = [case.label for case in plan.cases
                         if judges.matches(case.label, pattern)]
                assert found, (goal.id, plan.cases[0].label)


def test_the_faults_of_a_sweep_are_those_that_its_goals_name() -> None:
    for name in ("faults", "hangs"):
        config = load_config(SHIPPED.parent / "sweeps" / f"{name}.yaml")
        step = next(step for step in steps().steps if step.name == name)
        named = {goal.options["fault"] for goal in step.goals}
        assert {fault.case for fault in config.fault} <= named


@pytest.mark.parametrize("name", ["faults", "largest_batch"])
def test_what_is_to_run_out_of_memory_is_no_skip_of_the_probe(name: str) -> None:
    memory_bytes = 80 * 2**30
    cuda = {**GPU_FACTS["cuda"], "names": ["H100"], "uuids": ["a"], "no_code": [None],
            "memory_bytes": [memory_bytes], "visible": None}
    facts = {**GPU_FACTS, "cuda": cuda, "host_memory_bytes": 500 * 2**30}
    plan = make_plan(load_config(SHIPPED.parent / "sweeps" / f"{name}.yaml"), 1)
    assert not resolve(plan, [RankFacts(0, "n1", 0, facts)]).skips


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


def test_what_a_machine_lacks_is_the_reason_of_a_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacks(machine: Machine, device: str = "cuda", wrong: str = "") -> dict[str, str]:
        setting = running.Setting(tmp_path, machine, replace(steps(), device=device), -1,
                                  Launcher("mpirun", wrong))
        return {step.name: running.why_not(step, setting) for step in steps().steps}

    found, alone = lacks(H100), lacks(ONE)
    assert found["mig"].startswith("no MIG device") and not found["hangs"]
    assert alone["hangs"] == "it needs 2 GPUs, this machine has 1"
    assert not lacks(ONE, "cpu")["hangs"]
    without = lacks(ONE, wrong="there is no mpirun")
    assert {name for name in without if without[name] != alone[name]} == {"too_many_ranks"}
    tests = replace(steps().steps[0], modules=("numpy", "no_such_module"))
    setting = running.Setting(tmp_path, H100, steps(), -1)
    assert "it needs the Python modules no_such_module: " in running.why_not(tests, setting)
    assert not running.why_not(steps().steps[0], setting)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "mpirun beside this Python" in running.why_not(steps().steps[0], setting)


def test_one_rank_needs_no_mpirun(tmp_path: Path) -> None:
    setting = running.Setting(tmp_path, ONE, steps(), -1, Launcher("mpirun", "there is none"))
    peak = next(step for step in setting.steps.steps if step.name == "peak")
    assert running.command_of(peak, setting)[:3] == [sys.executable, "-m", "hpcbench"]


def test_one_gpu_begins_with_what_it_proves_and_meets_no_goal_of_two(tmp_path: Path) -> None:
    alone, several = steps().on(1), steps().on(8)
    names = [step.name for step in alone.steps]
    assert names[:4] == ["peak", "telemetry", "nccl_right", "nccl_times"]
    assert set(names[-5:]) == {"nccl_logged", "nccl_tests", "primitive_speed", "hangs", "mig"}
    assert [step.name for step in several.steps] == [step.name for step in steps().steps]
    setting = running.Setting(tmp_path, ONE, alone, -1)
    found = {goal.id: judged(goal, step, setting, Record(step.name, "done"))
             for step in alone.steps for goal in step.goals}
    skipped = {name for name, item in found.items() if item.verdict == "skipped"}
    assert skipped >= {"symm_mem", "async_tp", "triton", "nccl_right", "primitives", "by_uuid"}
    assert not skipped & {"nccl_calls", "triton_product", "peak", "events", "largest_batch", "kill"}
    several_goals = {goal.id for step in several.steps for goal in step.goals}
    assert "symm_mem" in several_goals and "triton_product" not in several_goals


def test_commands_name_ranks_gpus_and_declared_peaks(tmp_path: Path) -> None:
    setting = running.Setting(tmp_path, H100, steps(), lock=-1)
    by_name = {step.name: step for step in setting.steps.steps}
    words = running.command_of(by_name["too_many_ranks"], setting)
    assert words[1:3] == ["-np", "3"] and str(tmp_path / "steps/too_many_ranks/results") in words
    assert '"bf16": 989400000000000.0' in words[-1] and words[-1].startswith("hardware={")
    unknown = running.Setting(tmp_path, replace(H100, names=("NVIDIA L4",)), steps(), lock=-1)
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


def test_telemetry_names_what_is_not_reported() -> None:
    whole = {"pci": "x", "power_limit_w": 700.0, "max_mhz": {"sm": 1980, "memory": 2619},
             "pcie": {"generation": 5},
             "now": {"sm_mhz": 1755, "memory_mhz": 2619, "celsius": 35, "throttled_by": []}}
    assert telemetry.judged(["H100"], [whole])[0] == "met"
    verdict, detail = telemetry.judged(["H100"] * 2, [whole, {**whole, "now": None}])
    assert verdict == "missed" and "now.celsius" in detail and "pci," not in detail


def test_a_goal_that_cannot_be_judged_is_a_verdict(tmp_path: Path) -> None:
    setting = running.Setting(tmp_path, H100, steps(), lock=-1)
    step = next(step for step in setting.steps.steps if step.name == "telemetry")
    verdict = judged(step.goals[0], step, setting, Record("telemetry", "done"))
    assert verdict.verdict == "failed" and "cannot be judged: FileNotFoundError" in verdict.detail


def test_cores_that_ranks_share_are_a_note() -> None:
    assert not few_cores(replace(H100, cores=4))
    assert "3 cores for 2 GPUs" in few_cores(replace(H100, cores=3))


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
    with lock.only_session(tmp_path, 0) as descriptor:
        setting = running.Setting(tmp_path, H100, steps(), descriptor)
        record = running.run_step(step, setting, 0.5, "mark")
        late = running.run_step(replace(step, limit_s=0.5), setting, 30, "mark")
    assert record.state == "cut" and not record.is_final
    assert late.state == "timeout"


def test_two_sessions_share_no_folder(tmp_path: Path) -> None:
    with lock.only_session(tmp_path, 0), pytest.raises(lock.OccupiedError) as refused, \
            lock.only_session(tmp_path, 0):
        pass
    assert "still runs in" in str(refused.value) and "give another --output" in str(refused.value)
    with lock.only_session(tmp_path, 0):
        pass
