"""The shipped jobs, the sweeps that gen-config writes, and the folder of an acceptance test."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcbench.answers.check import refuse_limits
from hpcbench.answers.compare import ENOUGH_PASSES
from hpcbench.cli import COMMANDS
from hpcbench.config.load import check_config, load_config, parse_assignment, read_config
from hpcbench.config.presets import HARDWARE
from hpcbench.config.presets.preset import Preset, load_preset
from hpcbench.errors import FileError, UsageError
from hpcbench.fleet.acceptance.folder import write_acceptance
from hpcbench.kinds.registry import kinds
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


@pytest.mark.parametrize("name", MACHINE)
def test_a_job_about_the_machine_runs_some_of_it_on_two_ranks(name: str) -> None:
    assert [case for case in planned(ROOT / "jobs" / name, 2).cases if not case.skip]


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
    """A folder that the job has not made, as for a wrong sweep, is not named."""
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")
    missing = job_file("v100_nvlink.sbatch", tmp_path, "--resume", "results/old")
    assert f"{tmp_path}/results/old" not in missing.stdout
    (tmp_path / "results" / "old").mkdir(parents=True)
    done = job_file("v100_nvlink.sbatch", tmp_path, "--resume", "results/old")
    assert done.returncode == 0, done.stderr
    assert f"results in {tmp_path}/results/old" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ran "))
    assert line.endswith("run slurm/v100_nvlink.json --resume results/old")


SIZES = {"cpu": (2, 4), "v100-nvlink": (8,), "a100-nvlink": (8,), "h100-nvlink": (8,),
         "h200-nvlink": (8,), "b200-nvlink": (8,), "a10-cluster": (4,), "m4-metal": (1,)}
"""Numbers of ranks that each machine is used with: of GPUs all of a node, or one a node."""
PLANNED = [(name, ranks) for name, several in SIZES.items() for ranks in several]
LEFT_OUT = {("m4-metal", "collective"): "Collectives are left out, since"}
"""Kinds that a file has no block of, with its reason. A new kind needs a block in each file."""
TERA = 1e12
PEAKS: dict[str, dict[str, dict[str, float]]] = {
    # vendors' data sheets, dense; typed in from there a second time
    "v100-nvlink": {"peak_flops": {"fp16": 125, "fp32": 15.7, "fp64": 7.8},
                    "link_peaks": {"nvlink": 300 / 2}},
    "a100-nvlink": {"peak_flops": {"bf16": 624 / 2, "fp16": 624 / 2, "fp32": 19.5, "fp64": 19.5},
                    "link_peaks": {"nvlink": 600 / 2}},
    "h100-nvlink": {"peak_flops": {"bf16": 989.4, "fp16": 989.4, "fp32": 66.9, "fp64": 66.9,
                                   "tf32": 494.7, "fp8": 1978.9, "int8": 1978.9},
                    "link_peaks": {"nvlink": 900 / 2}},
    "h200-nvlink": {"peak_flops": {"bf16": 1979 / 2, "fp16": 1979 / 2, "fp32": 67, "fp64": 67,
                                   "tf32": 989 / 2, "fp8": 3958 / 2, "int8": 3958 / 2},
                    "link_peaks": {"nvlink": 900 / 2}},
    "b200-nvlink": {"peak_flops": {"bf16": 4500 / 2, "fp16": 4500 / 2, "fp32": 75, "fp64": 37,
                                   "tf32": 2200 / 2, "fp8": 9000 / 2, "int8": 9000 / 2},
                    "link_peaks": {"nvlink": 1800 / 2}},
    "a10-cluster": {"peak_flops": {"bf16": 250 / 2, "fp16": 250 / 2, "fp32": 31.2},
                    "link_peaks": {"pcie": 64 / 2}},
    "cpu": {}, "m4-metal": {},
}
OF_HARDWARE = {
        "slurm/v100_nvlink.json": "v100-nvlink",
        "jobs/transformer_large_v100.yaml": "v100-nvlink",
        "jobs/resnet50_bert_gpt2_scaling.yaml": "a100-nvlink",
        "slurm/h100_nvlink.json": "h100-nvlink", "slurm/b200_nvlink.json": "b200-nvlink",
        "slurm/a10_cluster.json": "a10-cluster",
        "jobs/long_context.yaml": "h100-nvlink",
        "jobs/mistral7b_qlora.yaml": "a10-cluster", "slurm/cpu.json": "cpu"}
OF_THE_SITE = {"num_devices", "network_bandwidth_gbps"}
"""Not of the GPU but of the nodes that a job is for."""


@pytest.fixture(params=HARDWARE)
def preset(request: pytest.FixtureRequest) -> Preset:
    return load_preset(request.param)


def plan_of(preset: Preset, ranks: int) -> Plan:
    return make_plan(check_config(preset.content, preset.name), ranks)


def test_each_name_has_a_file_and_each_file_a_name() -> None:
    files = (ROOT / "hpcbench/config/presets").glob("*.yaml")
    assert {file.stem for file in files} == set(HARDWARE) == set(SIZES)


@pytest.mark.parametrize(("name", "ranks"), PLANNED)
def test_each_plans_without_skips(name: str, ranks: int) -> None:
    preset = load_preset(name)
    plan = plan_of(preset, ranks)
    limit = preset.content["hardware"].get("memory_per_device_gb")
    assert [case.label for case in plan.cases if case.skip] == []
    assert plan.duplicates == 0
    assert all(case.estimate_s < case.timeout_s for case in plan.cases)
    assert limit is None or max(case.memory_bytes for case in plan.cases) < 0.8 * limit * 1e9


@pytest.mark.parametrize(("name", "ranks"), PLANNED)
def test_the_head_states_what_is_planned(name: str, ranks: int) -> None:
    preset = load_preset(name)
    plan = plan_of(preset, ranks)
    total_s = plan_estimate_s(plan)
    largest = max(case.memory_bytes for case in plan.cases) / 1e9
    assert (f"# Planned for {ranks} rank{'s' if ranks > 1 else ''}: {len(plan.cases)} cases, about "
            f"{max(1, round(total_s / 60))} min by assumed rates, at most {largest:.1f} GB a rank."
            ) in preset.text


@pytest.mark.parametrize("name", [*OF_HARDWARE, *HARDWARE])
def test_what_is_for_gpus_requires_them(name: str) -> None:
    """A cluster's job that finds no GPU must not end as if all were well."""
    content = read_config(ROOT / name) if name in OF_HARDWARE else load_preset(name).content
    device = content.get("hardware", {}).get("device_type", "cpu")
    assert content.get("required_backends") == (device if device != "cpu" else None)


def test_each_has_every_kind(preset: Preset) -> None:
    given = {block["kind"] for block in preset.content["benchmarks"]}
    missing = {kind for kind, spec in kinds().items() if not spec.is_plugin} - given
    missing -= {"function", "replay"}  # need a file of the user's own
    for kind in missing:
        assert LEFT_OUT.get((preset.name, kind), "no block") in preset.text


def test_primitives_have_their_bounds(preset: Preset) -> None:
    cases = [case for ranks in SIZES[preset.name] for case in plan_of(preset, ranks).cases
             if case.kind == "primitive"]
    names = {case.label.split()[1] for case in cases}
    assert names >= ({"compute_only"} if preset.name == "m4-metal" else
                     {"compute_only", "comm_only", "torch"})


def test_peaks_are_those_of_the_data_sheets(preset: Preset) -> None:
    hardware, known = preset.content["hardware"], PEAKS[preset.name]
    assert hardware.get("link_peaks", {}) == known.get("link_peaks", {})
    assert hardware.get("peak_flops", {}) == pytest.approx(
        {dtype: peak * TERA for dtype, peak in known.get("peak_flops", {}).items()}, rel=1e-12)


def test_each_number_states_where_it_comes_from(preset: Preset) -> None:
    hardware, sources = preset.content["hardware"], preset.sources
    for key in {"peak_flops", "link_peaks", "memory_per_device_gb"} & set(hardware):
        assert re.search("data sheet|white paper", sources[key]), key
        assert "dense" in sources[key] or "no sparsity" in sources[key] or key != "peak_flops"
    told = " ".join(sources.values())
    for key in {"peak_flops", "memory_per_device_gb", "network_bandwidth_gbps"} - set(hardware):
        if hardware["device_type"] == "cuda" or key == "peak_flops":
            assert f"{key} is left out" in told, key


def test_each_names_its_schema_and_fits_a_line(preset: Preset) -> None:
    first, *lines = preset.text.splitlines()
    assert first == "# yaml-language-server: $schema=config.schema.json"
    assert max(map(len, lines)) <= 100
    assert preset.content["name"] == preset.name
    assert preset.about.endswith(".")


@pytest.mark.parametrize(("file", "name"), OF_HARDWARE.items())
def test_job_files_of_the_same_hardware_have_the_same_numbers(file: str, name: str) -> None:
    hardware = read_config(ROOT / file).get("hardware", {})
    known = load_preset(name).content["hardware"]
    for key in set(hardware) - OF_THE_SITE:
        assert contained(hardware[key], known[key]), key


def contained(some: Any, all_: Any) -> bool:
    return some == all_ or isinstance(some, dict) and some.items() <= all_.items()


@pytest.mark.parametrize("path", sorted((ROOT / "slurm").glob("*.json")), ids=lambda at: at.stem)
def test_slurms_files_declare_sourced_peaks_of_all_that_computes(path: Path) -> None:
    """So no MFU is null for want of a peak. A CPU's peak has no source, as the file's notes say."""
    content = read_config(path)
    config, notes = check_config(content, path.name), " ".join(content.get("notes", ()))
    computing = {case.workload.dtype for case in make_plan(config, 8).cases
                 if case.kind != "collective"}
    if config.hardware.device_type == "cuda":
        assert computing and computing <= set(config.hardware.peak_flops)
        assert config.hardware.link_peaks and re.search("data sheet|white paper", notes)
    else:
        assert not config.hardware.peak_flops
        assert not computing or "peak_flops is left out" in notes
        assert "training" not in {block["kind"] for block in content["benchmarks"]}


def test_every_job_file_is_compared() -> None:
    given = {path.relative_to(ROOT).as_posix() for path in (
        *(ROOT / "slurm").glob("*.json"), *(ROOT / "jobs").glob("*.yaml"))
        if "hardware" in read_config(path)}
    unlike = {"jobs/bluefield_ucc.yaml"}  # a network card, on machines of any kind
    assert given - unlike <= set(OF_HARDWARE)


def test_the_package_has_the_files() -> None:
    text = Path(ROOT / "setup.cfg").read_text()
    assert "hpcbench.config.presets = *.yaml" in text
    assert json.dumps(load_preset("cpu").content)


STEPS = ("node", "pairs", "all", "training", "soak")


@pytest.mark.parametrize("hardware", [name for name in HARDWARE if name != "m4-metal"])
def test_each_step_can_be_planned(hardware: str, tmp_path: Path) -> None:
    write_acceptance(hardware, tmp_path / "a", force=False)
    for step in STEPS:
        plan = make_plan(load_config(tmp_path / "a" / f"{step}.yaml"), 8)
        refuse_limits(plan)
        assert any(case.skip is None for case in plan.cases), step
    limits = load_config(tmp_path / "a" / "node.yaml").limits
    assert len(limits) == {"cpu": 0, "a10-cluster": 1}.get(hardware, 2)
    signed = (tmp_path / "a" / "sign.md").read_text()
    assert all(f"| {step} |" in signed for step in STEPS)
    assert all(f"{limit.min:g}" in signed for limit in limits)


def test_what_is_there_stays_and_what_has_no_collectives_is_refused(tmp_path: Path) -> None:
    write_acceptance("cpu", tmp_path, force=False)
    (tmp_path / "job.sh").write_text("mine")
    with pytest.raises(FileError):
        write_acceptance("cpu", tmp_path, force=False)
    assert (tmp_path / "job.sh").read_text() == "mine"
    for hardware, output in (("m4-metal", tmp_path / "new"), (None, tmp_path), ("cpu", None)):
        with pytest.raises(UsageError):
            write_acceptance(hardware, output, force=True)
    assert not (tmp_path / "new").exists() and "gen-config acceptance" not in COMMANDS


@pytest.mark.parametrize(("codes", "expected"), [
    ({}, 0), ({"pairs": 3}, 3), ({"node": 3, "pairs": 1}, 1), ({"soak": 1, "all": 2}, 1),
    ({"node": 2, "pairs": 3}, 2)])
def test_the_job_keeps_a_verdict_of_each_step(
    codes: dict[str, int], expected: int, tmp_path: Path,
) -> None:
    """A stand-in for mpirun notes its words, and ends with the code of the step."""
    write_acceptance("cpu", tmp_path, force=False)
    cases = "\n".join(f"*results/{step}) exit {code} ;;" for step, code in codes.items())
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/words\n'
                      f"case $* in\n{cases}\n*) ;;\nesac\n")
    mpirun.chmod(0o755)
    variables = {"PATH": f"{mpirun.parent}:{os.environ['PATH']}", "RANKS_A_NODE": "2",
                 "RANKS": "6", "SOAK": "1h"}
    done = subprocess.run(["bash", str(tmp_path / "job.sh")], env=variables, cwd="/",
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == expected, done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    assert [line.split()[1] for line in words] == ["2", "6", "6", "6", "6"]
    assert words[4].endswith("soak soak.yaml --for 1h --resume results/soak")
    verdicts = [line.split()[1:5:3] for line in (
        tmp_path / "verdicts.txt").read_text().splitlines()]
    assert verdicts == [[step, {0: "PASS", 3: "INCOMPLETE"}.get(codes.get(step, 0), "FAIL")]
                        for step in STEPS]
