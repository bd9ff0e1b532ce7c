"""Each command of README and docs works: it is run, or parsed, or names the test that runs it."""

from __future__ import annotations

import configparser
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from doc_commands import DocCommand, commands
from golden import RUNS
from hpcbench.__main__ import _with_resumed_folder
from hpcbench.cli import COMMANDS, app
from hpcbench.reduce.results_file import FILE_NAME, new_results, open_results
from launcher import ROOT
from reached_words import reached_words

NO_COMMAND = {"hpcbench sample 0": "the name of a span in a trace"}
ALL = tuple(one for one in commands() if one.text not in NO_COMMAND)
OURS = [one for one in ALL if one.ours]
PLACES = {"N": "2", "DIR": "FOLDER", "acceptance/node.yaml": "config.json",
          "results/node": "results/latest", "results/pairs": "results/latest"}
"""Words that stand for others."""
RUN_BY = {
    "hpcbench report": "unit/test_report_outputs.py::test_the_command_writes_what_is_asked_for",
    "hpcbench export": "unit/test_export.py::test_the_command_writes_whole_files_and_replaces_none",
    "hpcbench predict": "unit/test_prediction.py::test_the_command_predicts_from_files",
    "hpcbench check": "unit/test_check.py::test_the_command",
    "hpcbench import": "unit/test_imported.py::test_the_command_writes_over_nothing",
    "mpirun record":
        "mpi/test_traffic_job.py::test_the_calls_of_ddp_are_recorded_on_both_ranks",
    "hpcbench record": "unit/test_traffic_record.py::test_wrong_usage_is_one_line",
    "hpcbench lint": "unit/test_foreign_reading.py::test_the_command",
    "jobs/local.sh": "install/test_local.py::test_arguments_reach_run_and_the_results_are_named",
    "jobs/torchrun.sh":
        "install/test_local.py::test_torchrun_starts_ranks_and_the_results_are_named",
    "tests/run.sh": "install/test_local.py::test_second_start_calls_no_pip",
    "jobs/k8s/run.sh":
        "mpi/test_kubernetes.py::test_a_job_of_the_operator_is_measured_by_every_rank",
    "slurm/scaling.sh": "mpi/test_slurm.py::test_jobs_that_follow_one_another_make_a_scaling_curve",
    "slurm/smoke.sbatch": "mpi/test_slurm.py::test_the_exit_code_is_passed_on",
    "slurm/cpu.sbatch":
        "mpi/test_slurm.py::test_a_job_file_works_after_editing_account_and_partition",
    "mpirun run": "mpi/test_main_job.py::test_every_collective_on_every_dtype_is_right",
    "mpirun suite":
        "mpi/test_suite.py::test_a_member_that_fails_or_cannot_run_does_not_stop_the_others",
    "mpirun validate": "mpi/test_validate.py::test_ranks_give_one_verdict",
    "mpirun profile":
        "mpi/test_profile.py::test_the_slow_rank_is_named_and_no_rank_of_equal_ones",
    "srun run": "mpi/test_slurm.py::test_ranks_that_are_alone_in_their_mpi_are_refused",
    "torchrun run":
        "mpi/test_torchrun.py::test_ranks_of_torchrun_run_inline_and_are_not_isolated",
    "python run": "mpi/test_launch.py::test_without_mpirun_there_is_one_rank",
    "hpcbench run": "mpi/test_launch.py::test_without_mpirun_there_is_one_rank",
    "hpcbench validate": "mpi/test_validate.py::test_ranks_give_one_verdict",
    "hpcbench profile":
        "mpi/test_profile.py::test_the_slow_rank_is_named_and_no_rank_of_equal_ones",
    "hpcbench suite":
        "mpi/test_suite.py::test_a_member_that_fails_or_cannot_run_does_not_stop_the_others",
    "mpirun soak": "mpi/test_soak_job.py::test_a_flipped_bit_is_named_and_the_soak_goes_on",
    "hpcbench hunt": "mpi/test_hunt.py::test_ranks_of_mpirun_hunt_and_one_node_is_not_called_good",
    "hpcbench history": "unit/test_history.py::test_a_report_has_a_chart_of_each_case",
    "hpcbench plot": "install/test_base_install.py::test_plot",
    "hpcbench run --dry-run":
        "workloads/test_dry_run.py::test_the_command_states_what_it_is_and_leaves_nothing_behind",
    "hpcbench list": "install/test_base_install.py::test_commands_without_a_job",
    "docs/recompute.py": "unit/test_results_file_doc.py::test_so_are_those_of_real_runs",
    "hpcbench model": "unit/test_model_files.py::test_a_model_is_described_as_it_is_planned",
    "hpcbench mfu":
        "unit/test_model_files.py::test_the_mfu_of_one_throughput_by_every_definition",
    "hpcbench gen-data": "unit/test_token_file.py::test_what_is_written_is_read",
}
"""A script, or the launchers and the command of hpcbench -> a test that runs it, below tests/."""
NOT_RUN = {
    ".ci/run": "it runs all of these tests, on a bare system",
    "tests/core.sh": "CI runs it, which is a pytest of its own over a copy",
    "slurm/v100_nvlink.sbatch": "needs V100 GPUs; test_slurm.py runs the CPU file of the same form",
    "scripts/reference.py": "it would write the pages that test_reference.py compares",
    "tests/golden.py": "it would write the files that test_golden.py compares with today's",
    "srun torchrun run": "test_torchrun.py runs torchrun with the variables of a step of Slurm",
    "srun hunt": "it is mpirun hunt; test_hunt_ranks.py gives it the variables of a step of Slurm",
    "torchrun record": "it is mpirun record, with ranks that torchrun numbers",
    "hpcbench plan --dry-run": "it is plan, then run --dry-run, and both are run",
    "job.sh": "gen-config acceptance writes it; test_jobs.py runs it",
    "run_benchmark.py": "a command of another tool, shown beside ours"}
"""A script or a form of command -> why no test runs it."""
INSTANT = ("plan", "schema", "show", "reduce", "compare", "advise", "gen-config",
           "anonymize", "from-command")
"""Commands that are run here."""
SWEEP_FILES = {"ddlb.json": "ddlb.json", "FILE": "ddlb.json",
               "torchscale.yaml": "torchscale.yaml", "candle.json": "candle.json"}
OTHER_RUNS = ("before", *(f"{side}{at}" for side in ("old", "new") for at in range(1, 6)))
LAUNCHERS = ("mpirun", "srun", "torchrun")


def name(one: DocCommand) -> str:
    return f"{one.page}: {one.text}"


@cache
def every_command() -> Any:
    """Return what parses all commands; to make it takes longer than to parse one."""
    return typer.main.get_command(app)


def parsed(words: list[str]) -> str | None:
    """Parse the words of a command without running it; return its name."""
    group = every_command()
    with group.make_context("hpcbench", _with_resumed_folder(words)) as context:
        found, command, rest = group.resolve_command(
            context, context._protected_args + context.args)
        command.make_context(found, rest, parent=context)
    return found


@pytest.mark.parametrize("one", OURS, ids=name)
def test_hpcbench_takes_these_words(one: DocCommand) -> None:
    words = [PLACES.get(word, word) for word in one.ours or ()]
    if words[0].startswith("--"):  # an option of the whole program, such as --help
        assert CliRunner().invoke(app, ["--help"]).output.count(words[0].partition(" ")[0])
    elif len(words) == 1 or "--help" in words:  # a name in a sentence, arguments left out
        assert words[0] in COMMANDS
    else:
        assert parsed(words) == words[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a current folder with what the commands of the pages name."""
    for place in ("FOLDER", "results/latest", *OTHER_RUNS):
        shutil.copytree(RUNS["mixed"], tmp_path / place)
    with open_results(RUNS["mixed"]) as file:
        results = file.results
    for place in OTHER_RUNS:  # a copy would be the same run
        with new_results(tmp_path / place / FILE_NAME) as writer:
            writer.finish(replace(results, run=replace(results.run, run_id=place)))
    for place, source in SWEEP_FILES.items():
        shutil.copyfile(ROOT / "tests/data" / source, tmp_path / place)
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    shutil.copyfile(ROOT / "config.json", tmp_path / "config.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def instant() -> list[tuple[str, ...]]:
    """Return the words of all commands that can be run here, each once.

    Tuner tables need a sweep on GPUs, --traffic a replay: test_tuner.py and test_causes.py
    make synthetic ones.
    """
    given = {tuple(PLACES.get(word, word) for word in one.ours or ()) for one in OURS
             if one.words[0] not in LAUNCHERS and not {"--dry-run", "--traffic"} & {*one.words}
             and not {"advise", "--to"} <= {*one.words}}
    return sorted(words for words in given if words[0] in INSTANT and (
        len(words) > 1 or words[0] not in (
            "show", "reduce", "compare", "advise", "gen-config")))


@pytest.mark.parametrize("words", instant(), ids=" ".join)
def test_it_runs(words: tuple[str, ...], folder: Path) -> None:
    if words[0] == "reduce":
        shutil.rmtree(folder / words[1] / "plots", ignore_errors=True)
        words = (*words, "--quiet")
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code in (0, 1) and done.output, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("one", [one for one in ALL if one.script], ids=name)
def test_scripts_exist_and_know_these_flags(one: DocCommand) -> None:
    script = one.script or ""
    if script in NOT_RUN:
        return
    text = (ROOT / script).read_text(encoding="utf-8")
    if script.startswith("benchmarks/"):  # argparse; what they measure is in benchmarks/results
        flags = [word for word in one.words if word.startswith("--")]
        known = "{})" if script.endswith(".sh") else '"{}"'  # of case in bash, of argparse
        assert not [flag for flag in flags if known.format(flag) not in text]
    else:
        assert script in RUN_BY


def form(one: DocCommand) -> str:
    """Return how a command of hpcbench is started, and its name."""
    launchers = [word for word in one.words if word in LAUNCHERS] or [one.words[0]]
    dry = ["--dry-run"] * ("--dry-run" in one.words)
    return " ".join([*launchers, (one.ours or ("",))[0], *dry])


def is_run_by(what: str, test: str) -> bool:
    """Return whether a test's own code has each word of a command, or the name of a script."""
    file, _, function = test.partition("::")
    return {Path(word).name for word in what.split()} <= reached_words(
        ROOT / "tests" / file, function)


def test_each_launcher_and_command_has_a_test_or_a_reason() -> None:
    forms = {form(one) for one in OURS if (one.ours or ("",))[0] in COMMANDS}
    assert not {name for name in forms if name.split()[-1] not in INSTANT} - {*RUN_BY, *NOT_RUN}


@pytest.mark.parametrize("what", RUN_BY)
def test_the_test_that_is_named_runs_it(what: str) -> None:
    assert is_run_by(what, RUN_BY[what])


def test_another_test_of_the_same_file_does_not_pass_for_it() -> None:
    assert not is_run_by("tests/run.sh", "install/test_local.py::test_old_python")
    assert not is_run_by("mpirun suite", RUN_BY["mpirun validate"])
    with pytest.raises(KeyError):
        reached_words(ROOT / "tests/unit/test_doc_commands.py", "test_that_is_not_there")


@pytest.mark.parametrize("one", [one for one in ALL if one.words[0] == "pip"], ids=name)
def test_pip_never_gets_the_other_package(one: DocCommand) -> None:
    """An index has an unrelated package named hpcbench, so a checkout or a URL must be named."""
    target = one.words[-1]
    package, _, extras = target.partition(" @ ")[0].rstrip("]").partition("[")
    assert " @ git+" in target or (ROOT / package).is_dir()
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert set(extras.split(",")) - {""} <= set(setup["options.extras_require"])
