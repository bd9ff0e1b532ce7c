"""The shipped jobs at their real world sizes, and their twins: see the head of each file."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from hpcbench.answers.compare import ENOUGH_PASSES
from hpcbench.config.load import check_config, load_config, parse_assignment
from hpcbench.config.presets.preset import load_preset
from hpcbench.kinds.training.plan.any_model import parameters_of, published
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import COMPILE_S, plan_estimate_s
from jobs import EXAMPLES, JOBS, MACHINE, RANKS, twin_words
from launcher import ROOT


def planned(job: Path, ranks: int, words: Sequence[str] = ()) -> Plan:
    return make_plan(load_config(job, [parse_assignment(word) for word in words[1::2]]), ranks)


def test_every_job_is_known_here() -> None:
    assert {job.name for job in JOBS} == set(RANKS)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_a_job_plans_at_its_real_size_within_the_memory_of_its_devices(job: Path) -> None:
    plan = planned(job, RANKS[job.name])
    limit = plan.config["hardware"]["memory_per_device_gb"] * 1e9
    assert plan.cases
    for case in plan.cases:
        assert case.skip is None, case.skip
        assert 0 < case.memory_bytes < limit
        work = training_of(case)  # a shorter sequence is no smaller model
        assert work.parameters == parameters_of(published(work.model))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_the_twin_of_a_job_has_its_strategies_small_on_cpus(job: Path) -> None:
    words = twin_words(job)
    assert words
    assert set(words[::2]) == {"--set"}
    real, twin = planned(job, RANKS[job.name]), planned(job, 4, words)
    assert not [case.skip for case in twin.cases if case.skip]
    assert {(training_of(case).strategy, training_of(case).model) for case in twin.cases} == {
        (training_of(case).strategy, training_of(case).model) for case in real.cases}
    assert {case.device for case in twin.cases} == {"cpu"}
    assert max(case.memory_bytes for case in twin.cases) < 100e6


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_the_head_of_a_job_has_whole_commands_of_its_twin(job: Path) -> None:
    """Each is pasted into a shell, and plans on its ranks without a skip."""
    commands = re.findall(r"^#     mpirun -np (\d+) python -m hpcbench run (.*twin.*)$",
                          job.read_text(), re.MULTILINE)
    assert commands
    for ranks, command in commands:
        words = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], cwd=ROOT, check=True,
                               capture_output=True, text=True, timeout=30).stdout.splitlines()
        shrinking = twin_words(job)
        assert words[:len(shrinking) + 1] == [f"jobs/{job.name}", *shrinking]
        plan = planned(job, int(ranks), words[1:])
        assert plan.cases and not [case.skip for case in plan.cases if case.skip]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_plans_and_states_that_it_is_untested(name: str) -> None:
    job = ROOT / "jobs" / name
    assert job.read_text().startswith("# UNTESTED")
    plan = planned(job, EXAMPLES[name])
    assert plan.cases and not [case.skip for case in plan.cases if case.skip]
    offloaded = [dict(case.env) for case in plan.cases if case.block == "dpu_offload"]
    assert offloaded and {env["UCC_CLS"] for env in offloaded} == {"doca_urom,basic"}
    assert "DOCA_*" in plan.config["launch"]["pass_env"]


@pytest.mark.parametrize("name", [path.name for path in (ROOT / "jobs").glob("*.yaml")
                                  if path.name in MACHINE])
def test_a_job_about_the_machine_takes_two_minutes_on_cpus(name: str) -> None:
    plan = planned(ROOT / "jobs" / name, MACHINE[name])
    assert [case.label for case in plan.cases if case.skip] == []
    assert sum(case.estimate_s for case in plan.cases) * plan.passes < 180


def test_the_qlora_job_has_passes_to_tell_its_nodes_apart_within_two_hours() -> None:
    plan = planned(ROOT / "jobs/mistral7b_qlora.yaml", 4)
    assert plan.passes * plan.launches >= ENOUGH_PASSES
    assert plan_estimate_s(plan) < 7200


FILES = {**{path: 8 for path in (ROOT / "slurm").glob("*.json")},
         **{path: RANKS.get(path.name, 4) for path in (ROOT / "jobs").glob("*.yaml")},
         **{path: 8 for path in (ROOT / "benchmarks/gpu/sweeps").glob("*.yaml")},
         ROOT / "config.json": 4}
"""Every sweep that is shipped beside the presets, and a number of ranks to plan it for."""
PRESETS = [path.stem for path in (ROOT / "hpcbench/config/presets").glob("*.yaml")]
SLOW_DRAWS_PER_S = 2e7
"""Half of what one of two busy cores was measured to draw (`plan.estimate.DRAWN_PER_S`)."""
GPU_SETUP_S = 10.0
"""A context (1 to 3 s) and a communicator (1 to 2 s), twice: on no GPU it was ever measured."""


def assert_time_for_set_up(plan: Plan) -> None:
    """Even if a single busy core drew all weights, as it did on GPUs before they drew their own."""
    for case in (case for case in plan.cases if case.skip is None):
        weights_s = case.workload.features.drawn_numbers / SLOW_DRAWS_PER_S
        compile_s = 2 * COMPILE_S * case.workload.features.compiled_graphs
        needed_s = weights_s + compile_s + GPU_SETUP_S * (case.device != "cpu")
        assert max(needed_s, case.estimate_s) < case.timeout_s, case.label


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_time_limit_of_a_shipped_file_holds_the_set_up_of_its_largest_model(
    path: Path,
) -> None:
    assert_time_for_set_up(make_plan(load_config(path), FILES[path]))


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "slurm"],
                         ids=lambda path: path.name)
def test_a_collective_that_hangs_costs_a_job_of_slurm_one_minute(path: Path) -> None:
    """Ten would be a twelfth of its time; a block that draws weights or compiles has its own."""
    cases = [case for case in make_plan(load_config(path), FILES[path]).cases
             if not (features := case.workload.features).drawn_numbers
             and not features.compiled_graphs]
    blocks = {case.block for case in cases if case.timeout_s <= 60}
    assert blocks and {case.block for case in cases if case.kind == "collective"} <= blocks


@pytest.mark.parametrize("name", PRESETS)
def test_so_does_that_of_a_preset(name: str) -> None:
    assert_time_for_set_up(make_plan(check_config(load_preset(name).content, name), 8))


@pytest.mark.parametrize("path", sorted((ROOT / "slurm").glob("*.sbatch")), ids=lambda p: p.stem)
def test_a_rank_with_a_gpu_has_cores_for_the_threads_of_nccl_and_the_compiler(path: Path) -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", path.read_text(), re.MULTILINE))
    assert "gres" not in options or int(options["cpus-per-task"]) >= 8


def test_the_workflow_of_github_calls_commands_that_there_are() -> None:
    workflow = yaml.safe_load((ROOT / "jobs/ci/github_actions.yaml").read_text())
    (job,) = workflow["jobs"].values()
    runs = "\n".join(step.get("run", "") for step in job["steps"])
    called = re.findall(r"hpcbench (run|check) \S+ (?:\S+ )*?(--?[a-z]+)?", runs)
    assert {name for name, _ in called} == {"run", "check"} and "--baseline" in runs
    assert all(f"${name}" in runs or f"${{{name}" in runs for name in job["env"])


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (10, 10), (14, 0)])
def test_the_workflow_fails_on_what_is_decided_only(tmp_path: Path, code: int, ends: int) -> None:
    workflow = yaml.safe_load((ROOT / "jobs/ci/github_actions.yaml").read_text())
    (job,) = workflow["jobs"].values()
    (script,) = [step["run"] for step in job["steps"] if step.get("name") == "compare"]
    for folder in ("results/old/1", "results/new/1", "old"):
        (tmp_path / folder).mkdir(parents=True)
    check = f"hpcbench() {{ echo \"$@\"; return {code}; }}\n"

    def ended() -> tuple[int, str]:
        done = subprocess.run(  # as GitHub does
            ["bash", "-ec", check + script], cwd=tmp_path, capture_output=True, text=True,
            timeout=30, check=False, env={**os.environ, "SWEEP": "ops.py", "SMALLEST": "0.1"})
        return done.returncode, done.stdout

    first, _ = ended()  # the pull request that adds the file
    (tmp_path / "old/ops.py").touch()
    later, said = ended()
    assert (first, later) == (0, ends) and "--smallest-effect 0.1" in said


def job_file(name: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a job file as of a job submitted in a folder; its mpirun prints what it is given."""
    for program, text in (("mpirun", 'case $1 in --version) echo HYDRA;; *) echo "ran $*";; esac'),
                          ("python", "exit 0")):
        path = folder / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    return subprocess.run(
        ["bash", str(ROOT / "slurm" / name), *words], capture_output=True, text=True, timeout=60,
        cwd=folder, env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "SLURM_JOB_NAME": "new",
                         "SLURM_SUBMIT_DIR": str(folder), "SLURM_NTASKS": "2", "SLURM_JOB_ID": "8"})


@pytest.mark.parametrize("path", [*(ROOT / "slurm").glob("*.sbatch")], ids=lambda path: path.name)
def test_a_job_file_that_is_submitted_from_elsewhere_says_so_in_a_line(
    path: Path, tmp_path: Path,
) -> None:
    done = job_file(path.name, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and str(tmp_path) in done.stderr


def test_a_job_goes_on_in_the_folder_of_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")
    done = job_file("v100_nvlink.sbatch", tmp_path, "--resume", "results/old")
    assert done.returncode == 0, done.stderr
    assert f"results in {tmp_path}/results/old" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ran "))
    assert line.endswith("run slurm/v100_nvlink.json --resume results/old")
