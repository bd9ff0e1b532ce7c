"""What every command has: flags, examples, --json; bash completes them, and loads little."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer

from bad_input_process import hpcbench
from golden import RESULTS
from hpcbench.__main__ import _command, _exit_code, _with_resumed_folder
from hpcbench.answers.topics import topics
from hpcbench.cli import COMMANDS, app, help_and_examples
from hpcbench.commands import flags as completion
from hpcbench.config.axes import MODES, REQUIRABLE
from hpcbench.interop.formats.export.cost_tables import DIALECTS
from hpcbench.kinds.registry import catalogue, kinds
from hpcbench.plan.case import Case, case_from_json
from hpcbench.plan.order import LAUNCH_S, workers_s
from hpcbench.registry import TopicSpec, offered
from hpcbench.report.console import print_results, report_run
from hpcbench.texts import Verbosity
from hpcbench.validation.rank_report import fail, ok, show_problems, warn
from launcher import ROOT
from results_factory import mixed_results

SWEEP = {"name": "small", "benchmarks": [
    {"kind": "collective", "collective": ["all_reduce", "all_to_all"], "backend": ["gloo", "nccl"],
     "size": [8, 1024], "iterations": 7}]}
SECRET = "s3cret-word-that-nobody-may-read"


@cache
def every_command() -> Any:
    """Return what parses all commands; to make it takes longer than to parse one."""
    return typer.main.get_command(app)


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(SWEEP))
    return str(path)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_both_flags(name: str) -> None:
    command = every_command().commands[name]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {"--verbose", "-v", "--quiet", "-q"} <= flags


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_whose_flags_exist(name: str) -> None:
    group = every_command()
    _, examples = help_and_examples(COMMANDS[name])
    assert 2 <= len(examples) <= 3
    for example in examples:
        before, _, words = example.partition("|")[0].partition(">")[0].partition("hpcbench ")
        assert before in ("", "mpirun -np 4 python -m ", "torchrun --nproc-per-node=4 -m "), example
        given = _with_resumed_folder(shlex.split(words))
        with group.make_context("hpcbench", given) as context:
            found, command, rest = group.resolve_command(
                context, context._protected_args + context.args)
            assert found == name, example
            command.make_context(name, rest, parent=context)  # parses, runs nothing


def test_the_help_of_benchmark_names_every_kind() -> None:
    command = every_command().commands["run"]
    told = next(one.help for one in command.params if one.name == "benchmark")
    assert not [name for name in kinds() if name not in told]


def test_examples_are_lines_of_their_own_in_every_help() -> None:
    for name, columns in (("run", "80"), ("show", "120"), ("plan", "200")):
        lines = [line.strip() for line in hpcbench(name, "--help", COLUMNS=columns
                                                   ).stdout.splitlines()]
        _, examples = help_and_examples(COMMANDS[name])
        assert lines[lines.index("Examples:") + 1:] == examples


def test_a_help_fits_one_screen_with_a_line_an_option() -> None:
    summary = hpcbench("--help", COLUMNS="80").stdout.splitlines()
    assert len(summary) <= 24 and max(map(len, summary)) <= 80
    for name, command in every_command().commands.items():
        lines = hpcbench(name, "--help").stdout.splitlines()
        assert len(lines) <= (60 if name == "run" else 40), name
        for one in command.params:
            assert any(line.strip().endswith(one.help) for line in lines), (name, one.name)


def test_both_flags_together_are_refused(sweep: str) -> None:
    done = hpcbench("plan", sweep, "-q", "-v")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give --verbose or --quiet, not both" in done.stderr


def test_a_quiet_plan_is_one_line(sweep: str) -> None:
    done = hpcbench("plan", sweep, "--quiet", "--set", "measure.passes=1")
    assert done.stderr == ""
    assert done.stdout.startswith("small: 8 cases x 1 pass for 4 ranks: 6 to run, 2 skipped, ")
    assert len(done.stdout.splitlines()) == 1


def test_a_verbose_plan_states_where_it_comes_from_and_names_every_skip(sweep: str) -> None:
    done = hpcbench("plan", sweep, "--verbose", "--mode", "pipelined")
    assert f"hpcbench: sweep file: {sweep} (as given)\n" in done.stderr
    assert 'hpcbench: override: measure.mode = "pipelined"\n' in done.stderr
    assert "hpcbench: plan: " in done.stderr and "hpcbench: whole command: " in done.stderr
    assert "all_to_all nccl cuda fp32 0B n=4 pipelined\n" in done.stdout
    assert "hpcbench: " not in done.stdout


def test_a_verbose_error_shows_where_it_was_raised_and_no_secret(sweep: str) -> None:
    usual = hpcbench("plan", sweep, "--set", f"name.{SECRET}=1", MY_TOKEN=SECRET)
    verbose = hpcbench("plan", sweep, "--set", f"name.{SECRET}=1", "-v", MY_TOKEN=SECRET)
    assert usual.returncode == verbose.returncode == 2
    assert len(usual.stderr.splitlines()) == 1
    assert "Traceback" in verbose.stderr and verbose.stderr.endswith(usual.stderr)
    assert SECRET not in verbose.stderr


def test_only_the_first_rank_prints_details(sweep: str) -> None:
    """In a process of its own: a rank that is silent keeps /dev/null open to its end."""
    done = subprocess.run([sys.executable, "-m", "hpcbench", "plan", sweep, "-v"], text=True,
                          env={**os.environ, "PMI_RANK": "1", "PMI_SIZE": "2"}, cwd=ROOT,
                          capture_output=True, timeout=60, check=False)
    assert done.stdout and done.stderr == ""


def test_quiet_results_are_tables_and_failures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    results = mixed_results()
    print_results(results, tmp_path, Verbosity.QUIET)
    quiet = capsys.readouterr()
    print_results(results, tmp_path)
    usual = capsys.readouterr()
    titles = [line for line in quiet.out.splitlines() if "median of" in line]
    assert titles and set(titles) <= set(usual.out.splitlines())
    assert "measured" not in quiet.out and "times are " not in quiet.out
    assert "failed: " in quiet.err and "skipped: " not in quiet.err
    assert usual.err == ""


def test_a_quiet_run_in_which_nothing_was_ok_states_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    results = mixed_results()
    skipped = tuple(item for item in results.cases if item.status == "skipped")
    report_run(replace(results, cases=skipped), tmp_path, (), Verbosity.QUIET)
    quiet = capsys.readouterr()
    assert quiet.out == f"{tmp_path}\n"
    assert "skipped: " in quiet.err and skipped[0].reason in quiet.err.replace("\n", " ")


def test_verbose_results_name_every_case_that_was_skipped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    results = mixed_results()
    print_results(results, tmp_path, Verbosity.VERBOSE)
    text = capsys.readouterr().out
    skipped = [item.case for item in results.cases if item.status == "skipped"]
    assert skipped and all(f"{case.case_id}  {case.label}" in text for case in skipped)


def test_a_quiet_validation_has_warnings_and_failures_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_problems([ok("torch", "2.13"), warn("binding", "none", "bind"), fail("MPI", "no", "yes")])
    assert capsys.readouterr().out.splitlines() == [
        "warn  binding  none", "               fix: bind", "fail  MPI      no",
        "               fix: yes"]
    show_problems([ok("torch", "2.13")])
    assert capsys.readouterr().out == ""


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the JSON that a command printed, as a strict parser reads it."""
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=refuse)


def stored(case: dict[str, Any]) -> Case:
    return case_from_json({**{name: value for name, value in case.items() if name != "label"},
                           "env": list(case["env"].items())})


def test_a_plan_as_json_has_every_case(sweep: str) -> None:
    plan = document(hpcbench("plan", sweep, "--json", "--world-size", "2"))
    assert (plan["schema"], plan["schema_version"], plan["world_size"]) == ("hpcbench.plan", 1, 2)
    cases, totals = plan["cases"], plan["totals"]
    assert len(cases) == totals["cases"] == totals["to_run"] + totals["skipped"] == 8
    assert sum(case["skip"] is None for case in cases) == totals["to_run"]
    runs = [case for case in map(stored, cases) if case.skip is None]
    once = sum(case.estimate_s for case in runs) + workers_s(runs)
    assert totals["estimate_s"] == pytest.approx(
        (once * plan["passes"] + LAUNCH_S) * plan["launches"])
    assert [stored(case).label for case in cases] == [case["label"] for case in cases]


def test_a_plan_as_json_is_no_dry_run(sweep: str) -> None:
    assert hpcbench("plan", sweep, "--json", "--dry-run").returncode == 2


def test_a_listing_as_json_states_why_a_backend_is_unknown() -> None:
    found = document(hpcbench("list", "--no-probe", "--json"))
    assert (found["schema"], found["schema_version"]) == ("hpcbench.list", 1)
    assert found["backends"]["gloo"] == {"available": None, "reason": "not probed"}
    assert found["models"]["gpt2"]["layers"] == 12
    assert {"all_reduce"} <= set(found["collectives"]) and {"tp_mlp"} <= set(found["primitives"])
    assert found["strategies"]["fsdp"]["meaning"] and "torch" in found["implementations"]


def test_a_quiet_listing_is_names() -> None:
    lines = hpcbench("list", "--no-probe", "-q").stdout.splitlines()
    groups = [line.split()[0] for line in lines]
    assert groups == ["collectives", "primitives", "implementations", "models", "strategies",
                      "hardware_tests", "dtypes", "modes", "hardware", "backends"]


@pytest.mark.parametrize("name", RESULTS)
def test_results_as_json_are_those_of_summary_json(name: str, tmp_path: Path) -> None:
    shutil.copy(RESULTS[name], tmp_path / "results.h5")
    shown = document(hpcbench("show", str(tmp_path), "--json"))
    golden = ROOT / "tests" / "data" / "golden" / "expected" / name / "summary.json"
    before = json.loads(golden.read_text(encoding="utf-8"))
    for version in (shown, before):
        version.pop("hpcbench_version")
    assert shown == before


def _with_json() -> list[str]:
    return [name for name, command in COMMANDS.items()
            if "as_json" in signature(command).parameters]


@pytest.mark.parametrize("name", _with_json())
def test_each_command_with_json_refuses_in_a_document(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """What reads the output of a command met no JSON where a file could not be read."""
    words = {"check": ["/nowhere", "--baseline", "/nowhere"], "compare": ["/nowhere", "/nowhere/2"],
             "list": ["--bogus"], "suite": ["--bogus"], "validate": ["--bogus"]}
    monkeypatch.setattr(sys, "argv", ["hpcbench", name, *words.get(name, ["/nowhere"]), "--json"])
    code = _exit_code(_command)
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["exit_code"], code) == ("hpcbench.error", 2, 2)
    assert document["problems"]


SCRIPT = """#!{python}
import sys
from hpcbench.__main__ import main
sys.exit(main())
"""
COMPLETE = """
eval "$(_HPCBENCH_COMPLETE=source_bash hpcbench)"
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_hpcbench_completion hpcbench
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a search path with the console script, as pip makes it."""
    script = tmp_path / "hpcbench"
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def completed(path: str, *words: str) -> list[str]:
    """Return what bash offers for the last of the words."""
    code = COMPLETE.format(words=shlex.join(("hpcbench", *words)))
    bash = shutil.which("bash") or "bash"
    done = subprocess.run([bash, "--norc", "-c", code], env=os.environ | {
        "PATH": path, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True, timeout=60,
        check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_and_flags(path: str) -> None:
    assert set(completed(path, "")) == set(COMMANDS)
    assert completed(path, "pl") == ["plan", "plot"]
    assert set(completed(path, "run", "--re")) == {"--require", "--resume", "--retry"}


def test_bash_completes_values(path: str) -> None:
    assert completed(path, "run", "--model", "llama2") == [
        "llama2-7b", "llama2-13b", "llama2-70b"]
    assert completed(path, "plan", "--mode", "") == list(MODES)


def test_completion_is_installed_for_the_program_however_it_is_asked_for(tmp_path: Path) -> None:
    # typer looks for a shell among the processes above, and the tests may have none
    subprocess.run(["bash", "-c", '"$0" -m hpcbench --install-completion bash; exit $?',
                    sys.executable], cwd=ROOT, env=os.environ | {"HOME": str(tmp_path)},
                   timeout=60, check=True, capture_output=True)
    installed = tmp_path / ".bash_completions" / "hpcbench.sh"
    assert str(installed) in (tmp_path / ".bashrc").read_text()
    assert "_HPCBENCH_COMPLETE=complete_bash" in installed.read_text()


def test_every_list_of_values_is_that_of_the_program() -> None:
    assert completion.requirable("") == list(REQUIRABLE)
    assert completion.requirable("ucc/tl/u") == ["ucc/tl/ucp"]
    assert completion.plot_styles("p") == ["paper"]
    assert completion.models("") == list(catalogue()["models"])
    assert completion.strategies("f") == ["fsdp"]
    assert completion.benchmarks("tr") == ["training", "train"]
    assert "resnet50" not in completion.models_with_vocabulary("")
    assert [one.name for one in topics()] == [completion.RECOMMEND, *(
        name for name, spec in offered(TopicSpec).items() if not spec.is_recorded)]
    assert completion.topics("") == [completion.RECOMMEND, *offered(TopicSpec)]
    assert completion.tuners("") == list(DIALECTS)
    for spec in offered(TopicSpec).values():
        assert spec.load().name == spec.name


def test_every_command_completes_values_where_another_does() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    completed = {name for command in commands.values() for option in command.params
                 if getattr(option, "_custom_shell_complete", None) for name in option.opts}
    options = [(command, option) for command in commands.values() for option in command.params
               if {"--require", "--benchmark", "--mode", "--strategy"} & set(option.opts)]
    assert len(completed) >= 6 and options
    for command, option in options:
        assert option.shell_complete(typer.Context(command), ""), (command.name, option.opts)


def test_values_are_found_without_heavy_libraries() -> None:
    code = """
import json, sys
from hpcbench.commands import flags
values = flags.models(""), flags.strategies(""), flags.requirable("")
print(json.dumps([all(values), [name for name in sys.modules if "." not in name]]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True,
                          timeout=60, check=True)
    found, loaded = json.loads(done.stdout)
    assert found and not set(loaded) & {"torch", "numpy", "h5py", "mpi4py", "matplotlib", "rich"}
