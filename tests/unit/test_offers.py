"""Commands, dialects and topics of other packages, and what is said where one is not there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import packages
from hpcbench import cli, registry
from hpcbench.cli import app
from hpcbench.registry import CommandSpec, DialectSpec, TopicSpec, offered

SOURCE = """
from types import SimpleNamespace
from hpcbench.plugins import (
    Answer, CommandSpec, Dialect, DialectSpec, Topic, TopicSpec)

COMMANDS = [CommandSpec("greet", "stranger:greet"), CommandSpec("broken", "no_such_module:main"),
            CommandSpec("show", "stranger:greet")]
GREET = CommandSpec("greet", "stranger:greet")
TOPIC = TopicSpec("weather", "stranger:WEATHER")
DIALECT = DialectSpec("stranger", "stranger:File", ("sunny",))
WEATHER = Topic("weather", "what it is like", lambda runs, options: SimpleNamespace(
    answers=(Answer("clear", f"weather: fine for {len(runs)} run"),)), lambda _: (), lambda _: ())

def greet(name: str, verbose: bool = False, quiet: bool = False) -> None:
    \"\"\"Greet somebody.

    Examples:
        hpcbench greet me
    \"\"\"
    print("hello", name)

class File(Dialect):
    tool = "a stranger"
    sunny: str

    @classmethod
    def own_keys(cls, raw):
        return ("sunny",) if "sunny" in raw else ()

    def translated(self, file=""):
        return {"benchmarks": [{"kind": "collective", "collective": self.sunny}]}
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package that offers all three."""
    for number, (group, name) in enumerate({
            "commands": "GREET", "dialects": "DIALECT", "topics": "TOPIC"}.items()):
        packages.offer(tmp_path, f"stranger{number}", f"hpcbench.{group}", {
            "mine": f"stranger:{name}"})
    (tmp_path / "stranger.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path
    sys.modules.pop("stranger", None)
    forget()


def forget() -> None:
    """Have all be looked for again: a process does so once."""
    for kept in (offered, registry._facts, cli._built):
        kept.cache_clear()


def told(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_they_are_used_as_ours_are(stranger: Path) -> None:
    assert re.search(r"^Other tools: .*\bgreet$", told("--help").output, re.MULTILINE)
    assert told("greet", "you").output == "hello you\n"
    sweep = stranger / "sweep.json"
    sweep.write_text('{"sunny": "all_reduce"}')
    planned = told("plan", str(sweep), "--world-size", "2")
    assert planned.exit_code == 0 and "all_reduce" in planned.output
    assert "weather" in told("advise", "--help").output
    assert "advise RESULTS --only weather" in str(told("weather").exception)


def test_a_name_of_ours_stays_ours_and_a_broken_one_says_why(stranger: Path) -> None:
    facts = next(stranger.glob("stranger0*")) / "entry_points.txt"
    facts.write_text("[hpcbench.commands]\nall = stranger:COMMANDS\nlost = no_such:THING\n")
    forget()
    assert "Print the tables" in told("show", "--help").output
    assert "no_such_module" in str(told("broken").exception)
    assert "No module named 'no_such'" in str(told("lost").exception)
    assert told("greet", "you").output == "hello you\n"


def test_what_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where somebody takes `interop/` out."""
    monkeypatch.setattr(registry, "_of_parts", tuple)
    forget()
    (tmp_path / "traffic.json").write_text("{}")
    (tmp_path / "ddlb.json").write_text('{"benchmark": {"primitive": "tp_columnwise"}}')
    try:
        assert not any(map(offered, (CommandSpec, DialectSpec, TopicSpec)))
        assert "Other tools" not in told("--help").output
        for words in (["causes"], ["export", "x"], ["advise", "x", "--to", "nccl"],
                      ["advise", "x", "--only", "causes"], ["plan", str(tmp_path / "ddlb.json")]):
            done = told(*words)
            assert getattr(done.exception, "exit_code", 0) == 2, (words, done)
    finally:
        forget()
