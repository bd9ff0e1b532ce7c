"""Each command of README and docs works: it is run, or parsed, or names the test that runs it."""

from __future__ import annotations

import configparser
import re
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from doc_commands import DocCommand, commands
from golden import RUNS
from hpcbench.__main__ import _with_resumed_folder
from hpcbench.cli import COMMANDS, app
from launcher import ROOT

NO_COMMAND = {"hpcbench sample 0": "the name of a span in a trace"}
ALL = tuple(one for one in commands() if one.text not in NO_COMMAND)
OURS = [one for one in ALL if one.ours]
PLACES = {"N": "2", "DIR": "FOLDER"}
"""Words that stand for others."""
RUN_BY = {
    "jobs/local.sh": "tests/install/test_local.py",
    "jobs/torchrun.sh": "tests/install/test_local.py",
    "tests/run.sh": "tests/install/test_local.py",
    "jobs/k8s/run.sh": "tests/mpi/test_kubernetes.py",
    "slurm/scaling.sh": "tests/mpi/test_slurm.py",
    "slurm/smoke.sbatch": "tests/mpi/test_slurm.py",
    "slurm/cpu.sbatch": "tests/mpi/test_slurm.py",
    "tests/golden.py": "tests/unit/test_golden.py",
    "mpirun run": "tests/mpi/test_launch.py",
    "mpirun suite": "tests/mpi/test_suite.py",
    "mpirun validate": "tests/mpi/test_validate.py",
    "mpirun profile": "tests/mpi/test_profile.py",
    "srun run": "tests/mpi/test_slurm.py",
    "torchrun run": "tests/mpi/test_torchrun.py",
    "srun torchrun run": "tests/mpi/test_torchrun.py",
    "python run": "tests/mpi/test_main_job.py",
    "hpcbench run": "tests/mpi/test_main_job.py",
    "hpcbench validate": "tests/mpi/test_validate.py",
    "hpcbench profile": "tests/mpi/test_profile.py",
    "hpcbench suite": "tests/mpi/test_suite.py",
    "hpcbench plot": "tests/install/test_base_install.py",
    "hpcbench plan --dry-run": "tests/workloads/test_dry_run.py",
    "hpcbench list": "tests/unit/test_coming_from.py",
    "hpcbench gen-data": "tests/unit/test_token_file.py",
}
"""A script, or the launchers and the command of hpcbench -> a file of tests that runs it."""
NOT_RUN = {
    ".ci/run": "it runs all of these tests, on a bare system",
    "slurm/v100_nvlink.sbatch": "needs V100 GPUs; test_slurm.py runs the CPU file of the same form",
    "recompute.py": "docs/method.md shows its text; test_recomputed.py runs that",
    "run_benchmark.py": "a command of another tool, shown beside ours"}
"""A script -> why no test runs it."""
INSTANT = ("plan", "schema", "show", "reduce", "gen-config")
"""Commands that are run here."""
SWEEP_FILES = {"ddlb.json": "ddlb.json", "theirs.json": "ddlb.json", "FILE": "ddlb.json",
               "torchscale.yaml": "torchscale.yaml", "candle.json": "candle.json"}
LAUNCHERS = ("mpirun", "srun", "torchrun")


def name(one: DocCommand) -> str:
    return f"{one.page}: {one.text}"


def parsed(words: list[str]) -> str | None:
    """Parse the words of a command without running it; return its name."""
    group = typer.main.get_command(app)
    with group.make_context("hpcbench", _with_resumed_folder(words)) as context:
        found, command, rest = group.resolve_command(  # type: ignore[attr-defined]
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
    for place in ("FOLDER", "results/latest"):
        shutil.copytree(RUNS["mixed"], tmp_path / place)
    for place, source in SWEEP_FILES.items():
        shutil.copyfile(ROOT / "tests/data" / source, tmp_path / place)
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    shutil.copyfile(ROOT / "config.json", tmp_path / "config.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def instant() -> list[tuple[str, ...]]:
    """Return the words of all commands that can be run here, each once."""
    given = {tuple(PLACES.get(word, word) for word in one.ours or ()) for one in OURS
             if one.words[0] not in LAUNCHERS and "--dry-run" not in one.words}
    return sorted(words for words in given if words[0] in INSTANT and (
        len(words) > 1 or words[0] not in ("show", "reduce", "gen-config")))


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
        assert not [flag for flag in flags if f'"{flag}"' not in text]
    else:
        assert script in RUN_BY


def form(one: DocCommand) -> str:
    """Return how a command of hpcbench is started, and its name."""
    launchers = [word for word in one.words if word in LAUNCHERS] or [one.words[0]]
    return " ".join([*launchers, (one.ours or ("",))[0]])


def test_each_launcher_and_script_has_a_test_that_runs_it() -> None:
    forms = {form(one) for one in OURS if (one.ours or ("",))[0] in COMMANDS}
    assert not {name for name in forms if name.split()[-1] not in INSTANT} - set(RUN_BY)
    for what, test in RUN_BY.items():
        last = re.escape(Path(what.split()[-1]).name.removesuffix(".py"))
        assert re.search(last, (ROOT / test).read_text(encoding="utf-8")), (what, test)


@pytest.mark.parametrize("one", [one for one in ALL if one.words[0] == "pip"], ids=name)
def test_pip_never_gets_the_other_package(one: DocCommand) -> None:
    """An index has an unrelated package named hpcbench, so a checkout or a URL must be named."""
    target = one.words[-1]
    package, _, extras = target.partition(" @ ")[0].rstrip("]").partition("[")
    assert " @ git+" in target or (ROOT / package).is_dir()
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert set(extras.split(",")) - {""} <= set(setup["options.extras_require"])
