"""What a hunt reads at its door, and what it leaves on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbench.errors import ExitCode, FileError, HpcbenchError, UsageError
from hpcbench.fleet.hunt.facts import HANG, PAIRS, Fact, Job, Node, Round
from hpcbench.fleet.hunt.given import limits_of
from hpcbench.fleet.hunt.job import HuntState, _with_partners
from hpcbench.fleet.hunt.keeping import keeper
from hpcbench.fleet.hunt.limits import HuntLimits
from hpcbench.fleet.hunt.plan import Hunt
from hpcbench.texts import Verbosity

NAMES = ("n1", "n2", "n3", "n4")
JOB = Job(tuple(Node(name, (rank,)) for rank, name in enumerate(NAMES)), 4.0)


def _written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_files_of_the_command_line_become_limits(tmp_path: Path) -> None:
    minimum = _written(tmp_path, "m.yaml", (
        "minimum:\n- {collective: all_reduce, ranks: 16, size: 64MiB, gb_per_s: 40}\n"))
    sweep = _written(tmp_path, "s.yaml", "name: a\nhardware: {num_devices: 8}\nbenchmarks: []\n")
    limits = limits_of(sweep, minimum, None)
    assert limits.devices == 8 and limits.minimum == {("all_reduce", 16, 2**26): 40e9}
    assert limits_of(None, None, None) == HuntLimits()


@pytest.mark.parametrize(("flag", "text", "says"), [
    ("expected", "hardware: {device_type: cpu}", "num_devices"),
    ("expected", "hardware: {num_devices: 0}", "num_devices"),
    ("minimum", "a: 1", "minimum"),
    ("minimum", "minimum: [{collective: all_reduce, ranks: 0, size: 8, gb_per_s: 1}]", "ranks"),
    ("minimum", "minimum: [{collective: x, ranks: 2, size: 8, gb_per_s: 1}]", "collective"),
    ("minimum", "minimum: [{collective: all_reduce, ranks: 2, size: big, gb_per_s: 1}]", "big"),
    ("minimum", "minimum: [{collective: all_reduce, ranks: 2, size: 8, gb_per_s: .nan}]", "gb_per"),
    ("reference", "[1, 2]", "hunt.json"), ("reference", "no json", "hunt.json"),
    ("reference", '{"verdicts": [], "facts": []}', "no node was good")])
def test_bad_files_are_refused_in_a_line(
    flag: str, text: str, says: str, tmp_path: Path,
) -> None:
    file = _written(tmp_path, "given.yaml", text)
    files: dict[str, Any] = {"expected": None, "minimum": None, "reference": None, flag: file}
    with pytest.raises(HpcbenchError) as raised:
        limits_of(**files)
    message = str(raised.value)
    assert str(file) in message and says in message and "\n" not in message
    assert raised.value.exit_code == ExitCode.USAGE
    with pytest.raises(FileError):
        limits_of(**{**files, flag: tmp_path / "absent.yaml"})


def test_partners_are_the_other_two_of_three_nodes() -> None:
    three = Job(JOB.nodes[:3], only="n2")
    assert _with_partners(three).partners == ("n1", "n3")
    for job in (Job(JOB.nodes, only="n2"), Job(JOB.nodes, only="x", partners=("n1", "n3")),
                Job(JOB.nodes, only="n2", partners=("n1", "x"))):
        with pytest.raises(UsageError):
            _with_partners(job)


def _facts(step: Round) -> list[Fact]:
    """Return equal rates; every pair of n3 hangs, and evidence names it."""
    facts = []
    for group in step.groups:
        many = len(group.nodes) > 1
        node, peers = ("", group.nodes) if many else (group.nodes[0], ())
        if step.stage == PAIRS and "n3" in group.nodes:
            facts.append(Fact(step.stage, step.number, "", "latency", outcome=HANG, peers=peers))
            facts.append(Fact(step.stage, step.number, "n3", "latency", outcome=HANG, peers=tuple(
                name for name in peers if name != "n3")))
            continue
        facts += [Fact(step.stage, step.number, node, "answers", 1.0)] * (not many)
        facts.append(Fact(step.stage, step.number, node, "all_reduce" if many else "gemm",
                          1e9, peers=peers, ranks=len(group.nodes), rank=None if many else 0))
    return facts


def test_a_hunt_is_on_disk_after_each_round_and_nobody_is_good_before_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    hunt = Hunt(JOB, _facts)
    keep = keeper(tmp_path, HuntLimits(), Verbosity.NORMAL)
    keep(hunt, HuntState.GOES_ON)
    for number, _ in enumerate(hunt.run()):
        keep(hunt, HuntState.STOPPED if number == 8 else HuntState.GOES_ON)
        if number == 8:
            (folder,) = tmp_path.iterdir()
            stopped = json.loads((folder / "hunt.json").read_bytes())
            assert not stopped["is_complete"] and len(stopped["rounds"]) == 9
            assert not (folder / "good_nodes.txt").read_text()
    code = keep(hunt, HuntState.COMPLETE)
    document = json.loads((folder / "hunt.json").read_bytes())
    assert document["is_complete"] and len(document["facts"]) == len(hunt.facts)
    assert (folder / "bad_nodes.txt").read_text() == "n3\n"
    assert code == ExitCode.FINDINGS
    assert "HPCBENCH_HUNT BAD n3 " in capsys.readouterr().out
    assert "n3" in (folder / "hunt.html").read_text()
    with pytest.raises(FileError, match="no node was good"):
        limits_of(None, None, folder / "hunt.json")
