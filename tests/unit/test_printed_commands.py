"""Commands that messages tell: which there are, and those that need no job, run as they are told.

Those of jobs are run in tests/mpi/test_reported_commands.py.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from golden import RESULTS
from hpcbench.answers.answer import CLEAR, Run, TopicOptions
from hpcbench.answers.recommend import recommend
from hpcbench.cli import app
from hpcbench.config.load import read_config
from hpcbench.errors import FileError, UsageError
from hpcbench.gen_config import generate
from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import new_results, open_results
from hpcbench.report.plots import plot_file
from launcher import ROOT
from package_source import Module, modules
from results_factory import in_passes, make_results
from results_factory import make_case as make_timed_case
from synthetic import make_plan, plan_of, write_synthetic_run
from unit.test_checks_workloads import CASE

WORDS = "run suite show compare advise reduce plan check report list validate gen-config plot"
NAMED = re.compile(rf"hpcbench ({'|'.join(WORDS.split())})\b")
COMMAND = re.compile(r"hpcbench (?:show|reduce|plan) .*?(?= makes | states | shows | prints |$)")
JOBS = "run as they are printed by tests/mpi/test_reported_commands.py"
HERE = "run as it is printed below"
NAME = "names a command or an option, whose operands are the reader's"
PRINTED = {
    **dict.fromkeys((
        "answers/answer.py", "reduce/checks.py", "reduce/history.py",
        "report/console.py", "report/report_file.py", "report/results_lines.py"), JOBS),
    **dict.fromkeys((
        "answers/recommend.py", "config/load.py", "config/section.py", "gen_config.py",
        "kinds/training/derive/deriver.py", "reduce/results_file.py",
        "report/plots/__init__.py"), HERE),
    **dict.fromkeys((
        "interop/anonymize.py", "api/saved.py", "commands/generate.py", "commands/jobs.py",
        "interop/formats/reading/source.py", "kinds/function/present.py",
        "kinds/hardware/block.py",
        "kinds/primitive/block.py",
        "kinds/training/block.py", "kinds/training/commands/counts.py",
        "reduce/suite_file.py", "report/charts.py",
        "validation/job.py", "validation/machine.py",
        "answers/compare.py", "answers/compare_tables.py",
        "answers/learned_limits.py", "answers/winners.py", "fleet/history/runs.py",
        "answers/topics.py", "interop/answers/causes.py", "interop/answers/what_if.py",
        "operations/traffic.py", "commands/results.py",
        "interop/formats/export/cost_tables.py"), NAME),
    "cli.py": "examples of --help, which tests/unit/test_command_flags.py parses",
    "trace/journal.py": "tests/mpi/test_storage.py and test_mpi_backend.py reduce such a folder",
    "report/summary.py": "tests/mpi/test_conveniences.py reduces such a folder",
    "run.py": "tests/mpi/test_storage.py reduces such a folder",
    "prediction/sweeps.py": "tests/unit/test_prediction.py plans such a sweep",
    "fleet/acceptance/folder.py": "tests/unit/test_jobs.py plans the sweeps of such a folder",
    "fleet/soak/job.py": "tests/mpi/test_soak_job.py goes on with such a folder",
    "suite.py": "the same as in report/report_file.py",
}
"""Module -> why the commands in its texts are right."""


def commands_in(module: Module) -> Iterator[str]:
    """Yield the commands that literals and calls of a module name; docstrings are not shown."""
    unseen = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from NAMED.findall(node.value) if id(node) not in unseen else ()
        elif (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
              and node.func.id in ("command_line", "job_command_line")):
            yield ast.unparse(node.args[node.func.id == "job_command_line"])


def test_every_module_that_prints_a_command_is_known_here() -> None:
    """A new one needs a test that runs what it tells, or the reason why there is none."""
    found = defaultdict(set)
    for module in modules().values():
        for name in commands_in(module):
            found[module.path.relative_to(ROOT / "hpcbench").as_posix()].add(name)
    assert set(found) == set(PRINTED)


def test_no_message_names_a_file_that_an_installed_package_lacks() -> None:
    """Folders of the repository; docs/ is there to be read, and the help says where it is."""
    folders = re.compile(r"(?<![\w/.])(?:jobs|slurm|benchmarks|scripts|tests)/\w+")
    found: list[tuple[str, str]] = []
    for module in modules().values():
        path = module.path
        bare = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
        texts = [node.value for node in module.nodes if isinstance(node, ast.Constant)
                 and isinstance(node.value, str) and id(node) not in bare]
        if path.parent.name == "commands":  # docstrings of commands are their help
            texts.append(module.text)
        found += [(path.name, name) for text in texts for name in folders.findall(text)]
    for path in (ROOT / "hpcbench/config").rglob("*.yaml"):
        found += [(path.name, name) for name in folders.findall(path.read_text(encoding="utf-8"))]
    assert found == []


def obeyed(message: str) -> Result:
    """Run the one command that a message tells; it must end as a command does that works."""
    (told,) = COMMAND.findall(message)
    done = CliRunner().invoke(app, shlex.split(told)[1:])
    assert done.exit_code in (0, 1) and not isinstance(done.exception, Exception), (told, done)
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run, with a name that a shell would take apart; nothing is reduced."""
    write_synthetic_run(tmp_path / "a $run", make_plan())
    return tmp_path / "a $run"


def test_results_that_are_not_made_yet(folder: Path) -> None:
    with pytest.raises(FileError) as error, open_results(folder):
        pass
    obeyed(str(error.value))
    assert f"-np {make_plan().world_size} python -m hpcbench run --resume" in str(error.value)
    with open_results(folder) as file:
        assert len(file.results.cases) == 3


def test_nothing_to_plot(tmp_path: Path) -> None:
    folder = tmp_path / "a $run"
    write_synthetic_run(folder, make_plan(skip="not here"))
    reduce_folder(folder)
    with pytest.raises(FileError) as error:
        plot_file(folder, None, None)
    assert "not here" in obeyed(str(error.value)).stdout


@pytest.mark.parametrize("name", ["results.h5", "summary.csv", "plan.json"])
def test_results_that_are_given_as_a_config(folder: Path, name: str) -> None:
    reduce_folder(folder)
    (folder / "summary.csv").write_text("case_id,status\n")
    with pytest.raises(UsageError) as error:
        read_config(folder / name)
    obeyed(str(error.value))


def test_a_sweep_file_that_was_written(tmp_path: Path) -> None:
    told = generate("cpu", None, tmp_path / "my sweep.json", force=False)
    assert "cases" in obeyed(told).stdout


def test_a_peak_that_cannot_be_is_corrected_where_it_is_read(tmp_path: Path) -> None:
    """In plan.json: config.json is what was asked, and is not read again."""
    folder, plan = tmp_path / "run", plan_of([CASE], 2)
    write_synthetic_run(folder, replace(plan, config={
        **plan.config, "hardware": {"peak_flops": {"fp32": 5e12}}}))
    (case,) = reduce_folder(folder).cases
    assert case.status == "failed" and "plan.json" in case.reason
    stored = json.loads((folder / "plan.json").read_text())
    stored["config"]["hardware"]["peak_flops"]["fp32"] = 2e13
    (folder / "plan.json").write_text(json.dumps(stored))
    assert obeyed(case.reason.replace("FOLDER", str(folder))).exit_code == 0
    with open_results(folder) as file:
        assert [item.status for item in file.results.cases] == ["ok"]


def functions() -> Results:
    """A baseline and a function with an option of its own, of the same sizes; an unlike third."""
    own = [("plain", {}, 1e-3), ("own", {"variant": "a"}, 4e-3), ("own", {"variant": "b"}, 9e-3)]
    works = [(FunctionCall("f.py", "", name, (("size", size), *more.items()), "fp32", "sleep",
                           name == "plain", ("size",)), size * time_s)
             for name, more, time_s in own for size in (1, 2)]
    works.append((FunctionCall("f.py", "", "unlike", (("size", 1),), "fp32"), 1.0))
    return make_results(tuple(
        in_passes(make_timed_case(work, kind="function", index=at),
                  *(time_s * (1 + step / 500) for step in range(9)))
        for at, (work, time_s) in enumerate(works)))


def test_every_command_of_an_answer_has_pairs_by_its_key(tmp_path: Path) -> None:
    """Each kind names its keys in its own way; the same pairs have the same ratios."""
    path = tmp_path / "results.h5"
    with new_results(path) as writer:
        writer.finish(functions())
    told = {}
    for file in (path, *RESULTS.values()):
        with open_results(file) as opened:
            found = recommend([Run(str(file), opened.results, opened)], TopicOptions())
        for answer in found.answers:
            done = CliRunner().invoke(app, [*shlex.split(answer.command)[1:], "--json"])
            assert done.exit_code == 0, (answer.command, done)
            sides = json.loads(done.stdout)["comparisons"]
            assert any(one["cases"] for one in sides), answer.command
            told[file, answer.command.split()[-1]] = {
                round(case["ratio"], 6) for one in sides for case in one["cases"]}
            if file == path:
                assert answer.certainty == CLEAR
    assert told[path, "function"] == {4.0, 9.0} and told[path, "variant"] == {2.25}
    assert {key for _, key in told} >= {"backend", "implementation", "strategy", "bucket_mb"}
