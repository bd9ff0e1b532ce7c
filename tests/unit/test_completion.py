"""bash completes commands, flags and values of the console script; nothing heavy is loaded."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from hpcbench.answers.topics import topics
from hpcbench.cli import COMMANDS, app
from hpcbench.commands import flags as completion
from hpcbench.config.axes import MODES, REQUIRABLE
from hpcbench.interop.formats.export.cost_tables import DIALECTS
from hpcbench.kinds.registry import catalogue
from hpcbench.registry import TopicSpec, offered
from launcher import ROOT

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
    assert completed(path, "run", "--model", "llama3") == ["llama3-8b", "llama3-70b"]
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
