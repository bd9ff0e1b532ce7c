"""Each command that a failed or stopped job prints does what it says, as it is printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpcbench.answers.answer import Run
from hpcbench.answers.topics import topic_results
from hpcbench.cli import app
from hpcbench.reduce.results_file import open_results
from hpcbench.report.document import ReportSection
from hpcbench.report.report_file import sections_of
from hpcbench.views.table import Line
from launcher import Finished, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

COMMAND = re.compile(r"(?:mpirun -np \w+ python -m )?hpcbench (?:run|suite|show|compare|advise|"
                     r"reduce|plan)\b.*?(?=$| goes on| \(docs| shows | makes | prints |`|;)",
                     re.MULTILINE)
SLOW = {"rank": 1, "kind": "slow", "iteration": 0, "seconds": 30, "case": "* 16B *"}


def commands_in(text: str) -> list[str]:
    return list(dict.fromkeys(found.rstrip(".,") for found in COMMAND.findall(text)))


def reported(folder: Path) -> list[str]:
    """Return the commands in the report of a run: those of its verdict and of all answers."""
    with open_results(folder) as file:
        run = Run(str(folder), file.results, file)
        sections = list(sections_of(run))
        lines = "\n".join(line.text for section in sections for line in lines_of(section))
        answers = (answer.command for one in topic_results(run) for answer in one.record.answers)
        return [*commands_in(lines), *filter(None, answers)]


def lines_of(section: ReportSection) -> Iterator[Line]:
    yield from (item for item in section.items if isinstance(item, Line))
    for part in section.parts:
        yield from lines_of(part)


def words_of(command: str, folder: Path, ranks: int = 2) -> list[str]:
    """Return the words of a command; FOLDER, EARLIER and N are the reader's own."""
    named = {"EARLIER": str(folder), "OLD": str(folder), "FOLDER": str(folder), "N": str(ranks)}
    return [named.get(word, word) for word in shlex.split(command)]


def obey(mpirun: MpiLauncher, command: str, folder: Path, ranks: int = 2) -> Finished:
    """Start the job of a command in the state that told it."""
    words = words_of(command, folder, ranks)
    program = [mpirun.program("python"), "-m", "hpcbench"]
    if words[0] == "mpirun":
        return mpirun.run(int(words[2]), command=[*program, *words[6:]])
    return mpirun.run(0, command=[*program, *words[1:]])


def read_on(command: str, folder: Path) -> None:
    """Run, in this process, a command that starts no job."""
    program, *words = words_of(command, folder)
    assert program == "hpcbench", command
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 1) and (
        done.exception is None or isinstance(done.exception, SystemExit)), (command, done.output)


def resumed(mpirun: MpiLauncher, folder: Path, config: str) -> list[str]:
    return [mpirun.program("python"), "-m", "hpcbench", "run", config, "--resume", str(folder)]


def test_commands_of_a_failed_run_repair_it(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """Its folder has a name that a shell would take apart. Nothing that was recorded is lost."""
    folder = tmp_path / "my $run"
    faults = [{"rank": 1, "kind": "raise", "case": "* 16B *"},
              {"rank": 0, "kind": "wrong", "iteration": 1, "case": "* 32B *"}]
    (tmp_path / "c.json").write_text(json.dumps(sweep("8", "16", "32", fault=faults)))
    first = mpirun.run(2, command=resumed(mpirun, folder, str(tmp_path / "c.json"))).check(1)
    (again,) = (one for one in reported(folder) if "--resume" in one)
    assert "--retry failed,wrong" in again
    for command in {*reported(folder), *commands_in(first.stdout)} - {again}:
        read_on(command, folder)
    plan = json.loads((folder / "plan.json").read_text())
    plan["config"]["fault"] = []
    (folder / "plan.json").write_text(json.dumps(plan))
    mended = obey(mpirun, again, folder).check()
    assert "repeated in all passes (--retry): 2 cases" in mended.prose
    outcome = read(folder)
    assert set(outcome.status().values()) == {"ok"}
    assert {path.name for path in (folder / "traces").iterdir()} == {
        "rank00000.h5", "rank00001.h5", "attempt1"}
    assert not any("--resume" in command for command in reported(folder))


def test_commands_of_a_stopped_run_complete_it(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """One rank is stopped as several are; what it tells names any number of them."""
    folder = tmp_path / "run"
    (tmp_path / "c.json").write_text(json.dumps(sweep(
        "8", "16", fault=[{**SLOW, "rank": 0}], measure={"passes": 2})))
    words = [*resumed(mpirun, folder, str(tmp_path / "c.json")), "-v"]
    with mpirun.start(1, command=words) as job:
        job.wait_for("[1/4]")
        os.kill(job.pid, signal.SIGINT)
        job.wait(60).check(3)
    plan = json.loads((folder / "plan.json").read_text())
    plan["config"]["fault"] = []
    (folder / "plan.json").write_text(json.dumps(plan))
    findings = [command for finding in read(folder).results.findings
                for command in commands_in(finding.message)]
    (again,) = (command for command in reported(folder)
                if "--resume" in command and str(folder) in command)
    assert {*findings} == {"mpirun -np N python -m hpcbench run --resume FOLDER"}
    assert "--retry" not in again
    obey(mpirun, findings[0], folder, ranks=1).check()
    assert set(read(folder).status().values()) == {"ok"}
