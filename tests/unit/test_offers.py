"""Commands, dialects, topics and collectives: ours, those of plug-ins, and absent ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import packages
from hpcbench import cli, registry
from hpcbench.cli import app
from hpcbench.operations.collectives import (
    Call,
    CollectiveSpec,
    calls_of,
    collective_names,
    collective_spec,
    collectives,
    rank_bytes,
    rounded,
    summary_keys,
)
from hpcbench.plan.support import BACKEND_TRAITS, unsupported
from hpcbench.registry import CommandSpec, DialectSpec, TopicSpec, offered
from packages import offer

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
    assert re.search(r"^Other tools: [^:]*\bgreet\b", told("--help").output, re.MULTILINE)
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


NUMBERS = count()
HEAD = """
from hpcbench.plugins import CollectiveSpec
def own(**fields):
    return CollectiveSpec(**{"name": "own", "operation": "m:C", "busbw": lambda n: 1.0, **fields})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on Python's path; the rows are read again during and after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    collectives.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    collectives.cache_clear()


def installed(folder: Path, expression: str) -> None:
    name = f"hpcbench_collective_{next(NUMBERS)}"
    (folder / f"{name}.py").write_text(f"{HEAD}\nOFFERED = {expression}\n")
    offer(folder, name, "hpcbench.collectives", {"mine": f"{name}:OFFERED"})


@pytest.mark.parametrize(("expression", "problem"), [
    ("1 / 0", "ZeroDivisionError: division by zero"),
    ("3", "offers a int, no CollectiveSpec"),
    ("own(name='')", "'' is no name"),
    ("own(name='reduce')", "there is a collective reduce already"),
    ("own(aliases=('allreduce',))", "there is a collective allreduce already"),
    ("own(aliases=None)", "TypeError: "),
    ("own(busbw=None)", "both busbw and in_place, or neither where it moves no data"),
    ("own(in_place=None)", "both busbw and in_place, or neither where it moves no data"),
    ("own(busbw=lambda n: 1 / 0)", "ZeroDivisionError: division by zero"),
])
def test_what_cannot_be_used_is_reported(folder: Path, expression: str, problem: str) -> None:
    installed(folder, expression)
    assert problem in collectives().broken["mine"]
    assert "mine" not in collectives() and "own" not in collectives()
    assert problem in str(unsupported("gloo", "cpu", [Call("mine", "fp32", None)]))


def test_a_row_of_a_plug_in_is_one_like_ours(folder: Path) -> None:
    installed(folder, "own(aliases=('mine_too',), calls=('send_recv',), backends=('gloo', 'ucc'))")
    assert not collectives().broken
    assert list(collectives())[-2:] == ["barrier", "own"] == list(collective_names())[-2:]
    assert collectives().aliases["mine_too"] == "own"
    assert list(summary_keys())[-1] == "own"
    assert unsupported("gloo", "cpu", [Call("own", "fp32", None)]) is None
    assert unsupported("ucc/tl/ucp", "cpu", [Call("own", "fp32", None)]) is None
    assert unsupported("nccl", "cuda", [Call("own", "fp32", None)]) == "nccl has no own on cuda"
    assert unsupported("gloo", "cuda", [Call("own", "fp32", None)]) == (
        "gloo has no send_recv on cuda, which own calls")


def test_what_is_not_installed_can_be_read_but_not_run() -> None:
    spec = collective_spec("vanished")
    assert spec.problem == ("collective vanished cannot be used: no plug-in that is installed "
                            "offers it")
    assert spec.busbw_factor(4) is None
    assert unsupported("gloo", "cpu", [Call("vanished", "fp32", None)]) == spec.problem
    assert rounded("vanished", "fp32", 4, 1024) == (1024, 256)
    assert rank_bytes("vanished", False, 4, 1024) == 3 * 1024


def test_the_keys_that_other_tools_have_come_first() -> None:
    assert list(summary_keys().items()) == [
        ("all_reduce", "allreduce"), ("all_gather", "allgather"),
        ("reduce_scatter", "reduce_scatter"), ("send_recv", "p2p"), *(
            (name, name) for name in ("all_to_all", "broadcast", "reduce", "gather", "scatter",
                                      "barrier"))]


def test_calls_reduce_and_divide_as_their_rows_state() -> None:
    told = {call.collective: (call.op, call.split)
            for call in calls_of(("all_reduce", "all_gather", "all_to_all"), "fp32", "linear")}
    assert told == {"all_reduce": ("sum", "even"), "all_gather": (None, "even"),
                    "all_to_all": (None, "linear")}


@pytest.mark.parametrize("spec", collectives().values(), ids=lambda spec: spec.name)
def test_our_rows_are_in_themselves_right(spec: CollectiveSpec) -> None:
    assert (spec.busbw is None) is not spec.moves_data
    assert spec.busbw_factor(1) in (0.0, None)
    assert not spec.problem and not spec.calls and not spec.backends
    assert not spec.uneven or spec.split
    assert all((spec.name, device) not in BACKEND_TRAITS["nccl"].excluded
               for device in ("cpu", "cuda"))
