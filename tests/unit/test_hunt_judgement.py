"""Hunts: what is read, rounds on simulated machines, whom they name, what is left."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.errors import ExitCode, FileError, HpcbenchError, UsageError
from hpcbench.fleet.hunt.facts import (
    ALONE,
    BAD,
    DIED,
    GOOD,
    HANG,
    LADDER,
    MISSING,
    NO_ANSWER,
    NOT_TESTED,
    PAIRS,
    SUSPECT,
    WRONG,
    Fact,
    Job,
    Node,
    Round,
)
from hpcbench.fleet.hunt.given import limits_of
from hpcbench.fleet.hunt.job import HuntState, _with_partners
from hpcbench.fleet.hunt.judge import HuntJudgement, block_rounds, judge
from hpcbench.fleet.hunt.keeping import keeper
from hpcbench.fleet.hunt.limits import HuntLimits, reference_of
from hpcbench.fleet.hunt.plan import Hunt, facing
from hpcbench.fleet.hunt.present import PREFIX, page_of, reason_lines
from hpcbench.fleet.hunt.slow import FEWEST_PASSES, passes_needed
from hpcbench.texts import Verbosity
from hpcbench.views.chart import HeatMap, LineChart
from launcher import ROOT

_SPEC = spec_from_file_location("hunt_benchmark", ROOT / "benchmarks/hunt.py")
assert _SPEC is not None and _SPEC.loader is not None
simulated: Any = module_from_spec(_SPEC)
sys.modules["hunt_benchmark"] = simulated  # dataclasses look there
_SPEC.loader.exec_module(simulated)
NODE = "node0001"


def hunted(
    nodes: int, limits: HuntLimits | None = None, **faults: Any,
) -> tuple[Hunt, HuntJudgement]:
    machine = simulated.Machine(nodes, size=0.02, **faults)
    found: tuple[Hunt, HuntJudgement] = simulated.hunted(machine, limits=limits)
    return found


@pytest.mark.parametrize("players", [2, 3, 4, 9, 16])
def test_a_tournament_has_every_pair_once_in_disjoint_rounds(players: int) -> None:
    rounds = [facing(players, number) for number in range(players - 1 + players % 2)]
    assert sorted(chain(*rounds)) == list(combinations(range(players), 2))
    assert all(len({*chain(*pairs)}) == 2 * len(pairs) == 2 * (players // 2) for pairs in rounds)


@pytest.mark.parametrize("nodes", [4, 9, 64])
def test_clean_nodes_are_good_and_meet_many(nodes: int) -> None:
    hunt, judgement = hunted(nodes)
    assert judgement.names(GOOD) == [node.name for node in hunt.job.nodes]
    assert judgement.exit_code == ExitCode.OK
    met: dict[str, set[str]] = {}
    for step in hunt.rounds:
        names = [name for group in step.groups for name in group.nodes]
        assert len({*names}) == len(names)
        for group in step.groups if step.stage == PAIRS else ():
            for name in group.nodes:
                met.setdefault(name, set()).update(group.nodes)
    assert min(map(len, met.values())) - 1 >= min(4, nodes - 1)


def test_a_stage_ends_early_where_nobody_is_in_doubt() -> None:
    """A node that is slow in it is measured as often as the test needs; without that it is not
    good."""
    passes = passes_needed(8)
    for stage, others in ((ALONE, 1), (PAIRS, block_rounds(8))):
        clear, _ = hunted(8)
        doubtful, judgement = hunted(8, slow={NODE: ((stage,), 0, 0.7)})
        rounds = [sum(step.stage == stage for step in hunt.rounds) for hunt in (clear, doubtful)]
        assert rounds[0] < passes * others <= rounds[1]
        assert judgement.names(BAD) == [NODE]
    hunt, _ = hunted(8, slow={NODE: ((ALONE,), 0, 0.7)})
    facts = [fact for fact in hunt.facts if fact.stage != ALONE or fact.round < FEWEST_PASSES]
    assert judge(hunt.job, hunt.rounds, facts, HuntLimits()).names(NOT_TESTED) == [NODE]


SLOW = 0.7


@pytest.mark.parametrize(("nodes", "faults"), [
    *((nodes, {"slow": {NODE: ((stage,), 0, SLOW)}})
      for nodes in (4, 8, 32) for stage in (ALONE, PAIRS)),
    *((nodes, {"slow": {NODE: ((LADDER,), least, SLOW)}}) for nodes, least in ((8, 4), (64, 16))),
    *((8, {"faulty": {NODE: (outcome, (PAIRS, LADDER), 0)}}) for outcome in (HANG, DIED, WRONG)),
    *((nodes, {"faulty": {NODE: (HANG, (LADDER,), least)}}) for nodes, least in ((8, 4), (64, 16))),
    (4, {"faulty": {NODE: (MISSING, (ALONE,), 0)}}),
    (4, {"faulty": {NODE: (NO_ANSWER, (ALONE, PAIRS, LADDER), 0)}}),
    (3, {"faulty": {NODE: (WRONG, (PAIRS,), 0)}})])
def test_a_bad_node_is_named_and_no_other(nodes: int, faults: Mapping[str, Any]) -> None:
    _, judgement = hunted(nodes, **faults)
    assert judgement.names(BAD) == [NODE]
    assert judgement.names(SUSPECT) == []
    assert judgement.exit_code == ExitCode.FINDINGS
    (verdict,) = (one for one in judgement.verdicts if one.verdict == BAD)
    assert len(verdict.reason.splitlines()) == 1 and verdict.stage
    if verdict.value is not None and verdict.expected:
        assert verdict.value / verdict.expected == pytest.approx(SLOW, abs=0.1)


def test_two_bad_nodes_of_eight_are_named() -> None:
    _, judgement = hunted(8, slow={NODE: ((PAIRS,), 0, 0.7), "node0005": ((PAIRS,), 0, 0.6)})
    assert judgement.names(BAD) == [NODE, "node0005"] and not judgement.names(SUSPECT)


def test_a_node_that_hangs_is_left_out_of_later_rounds() -> None:
    hunt, _ = hunted(8, faulty={NODE: (HANG, (PAIRS, LADDER), 0)},
                     links={frozenset(("node0003", "node0006")): 0.5})
    tried = [step.stage for step in hunt.rounds for group in step.groups
             if NODE in group.nodes and len(group.nodes) > 1]
    assert tried == [PAIRS] * 2


def test_a_fault_of_all_together_makes_suspects_only() -> None:
    _, judgement = hunted(8, faulty={NODE: (HANG, (LADDER,), 8)})
    assert not judgement.names(BAD) and len(judgement.names(SUSPECT)) == 8


@pytest.mark.parametrize("nodes", [4, 8])
def test_both_ends_of_a_slow_link_are_suspect(nodes: int) -> None:
    _, judgement = hunted(nodes, links={frozenset((NODE, "node0002")): 0.5})
    assert judgement.names(SUSPECT) == [NODE, "node0002"] and not judgement.names(BAD)


def test_a_slow_switch_is_named_as_a_group() -> None:
    _, judgement = hunted(32, per_switch=4, slow_switch=("leaf3", 0.6))
    assert judgement.names(SUSPECT) == [f"node{number:04}" for number in range(12, 16)]
    assert not judgement.names(BAD)
    reason = next(one.reason for one in judgement.verdicts if one.reason)
    assert "node0012, node0013, node0014, node0015" in reason


def test_few_nodes_are_judged_by_a_reference_and_never_good_without() -> None:
    hunt, judgement = hunted(2)
    assert len(judgement.names(NOT_TESTED)) == 2 and judgement.exit_code == ExitCode.INCOMPLETE
    reference = reference_of(hunt.facts, [node.name for node in hunt.job.nodes])
    limits = HuntLimits(reference=reference)
    assert hunted(2, limits, seed=1)[1].exit_code == ExitCode.OK
    assert hunted(2, limits, slow={NODE: ((ALONE,), 0, SLOW)})[1].names(BAD) == [NODE]
    _, of_pair = hunted(2, limits, slow={NODE: ((PAIRS,), 0, SLOW)})
    assert len(of_pair.names(SUSPECT)) == 2, "nothing tells which of two it is"


def test_a_minimum_that_meets_nothing_is_told_and_decides_nothing() -> None:
    _, judgement = hunted(2, HuntLimits(minimum={("all_reduce", 2, 7): 1e9}))
    assert judgement.names(NOT_TESTED) and any("1 row of 1" in note for note in judgement.notes)
    _, judgement = hunted(4, HuntLimits(minimum={("all_reduce", 4, 2**20): 2e10}))
    assert len(judgement.names(SUSPECT)) == 4, "all together miss it"


@pytest.mark.parametrize(("stage", "verdict"), [("", GOOD), (ALONE, BAD), (PAIRS, BAD)])
def test_one_node_is_judged_beside_two_good_partners(stage: str, verdict: str) -> None:
    machine = simulated.Machine(9, size=0.02, slow={NODE: ((stage,), 0, SLOW)})
    job = machine.job(only=NODE, partners=("node0004", "node0007"))
    hunt, judgement = simulated.hunted(machine, job)
    assert [(one.node, one.verdict) for one in judgement.verdicts] == [(NODE, verdict)]
    assert {name for step in hunt.rounds for group in step.groups for name in group.nodes} == {
        NODE, *job.partners}


def test_what_a_stopped_hunt_did_not_measure_is_untested() -> None:
    hunt, _ = hunted(4)
    alone = [step for step in hunt.rounds if step.stage == ALONE]
    facts = [fact for fact in hunt.facts if fact.stage == ALONE]
    for rounds, some in (([], []), (alone, facts), (alone[:2], facts[:2])):
        judgement = judge(hunt.job, rounds, some, HuntLimits())
        assert len(judgement.names(NOT_TESTED)) == 4
        assert judgement.exit_code == ExitCode.INCOMPLETE


def test_one_fault_alone_is_suspect_and_a_count_is_compared_with_most_nodes() -> None:
    hunt, _ = hunted(4)

    def judged(change: Sequence[int], **values: Any) -> HuntJudgement:
        facts = [replace(fact, **values) if fact.measure == "devices" and fact.node == NODE
                 and fact.round in change else fact for fact in hunt.facts]
        return judge(hunt.job, hunt.rounds, facts, HuntLimits())

    assert judged([1], outcome=MISSING, value=None).names(SUSPECT) == [NODE]
    assert judged([1, 2], value=7.0).names(BAD) == [NODE]
    every = [node.name for node in hunt.job.nodes]
    assert judge(hunt.job, hunt.rounds, hunt.facts, HuntLimits(devices=9)).names(BAD) == every
    of_half = [replace(fact, value=7.0) if fact.measure == "devices" and fact.node in every[:2]
               else fact for fact in hunt.facts]
    assert judge(hunt.job, hunt.rounds, of_half, HuntLimits()).names(SUSPECT) == every


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_value_that_is_no_rate_is_no_measurement(value: float) -> None:
    hunt, _ = hunted(4)
    facts = [replace(fact, value=value) if NODE in fact.members else fact for fact in hunt.facts]
    assert NODE not in judge(hunt.job, hunt.rounds, facts, HuntLimits()).names(GOOD)


def test_one_node_without_partners_is_not_judged() -> None:
    machine = simulated.Machine(4)
    _, judgement = simulated.hunted(machine, machine.job(only=NODE))
    assert judgement.names(NOT_TESTED) == [NODE]


def test_clean_machines_with_noise_accuse_nobody() -> None:
    for kind in simulated.NOISES:
        assert simulated.false_alarms(8, kind, 0.02, range(2)) == 0
    # links whose state lasted for all rounds that were to confirm it
    assert simulated.false_alarms(32, "two modes", 0.03, [41]) == 0
    assert simulated.false_alarms(64, "AR .9", 0.03, [110]) == 0


def test_a_large_hunt_is_cheap(capsys: pytest.CaptureFixture[str]) -> None:
    simulated._scale(64, 2)  # the process has the memory of other tests
    assert "bad: node0001, node0003, node0005, node0007; suspect: ;" in capsys.readouterr().out


def test_a_hunt_keeps_the_facts_that_it_has_when_execution_fails() -> None:
    machine = simulated.Machine(4)

    def execute(step: Round) -> list[Fact]:
        if step.number == 3:
            raise OSError("gone")
        facts: list[Fact] = machine.execute(step)
        return facts

    hunt = Hunt(machine.job(), execute)
    with pytest.raises(OSError, match="gone"):
        list(hunt.run())
    assert len(hunt.rounds) == 3 and {fact.round for fact in hunt.facts} == {0, 1, 2}


def test_reasons_are_one_line_a_node_and_the_page_has_matrix_and_ladder() -> None:
    hunt, judgement = hunted(8, faulty={NODE: (HANG, (PAIRS, LADDER), 0)},
                             slow={"node0004": ((PAIRS,), 0, SLOW)})
    lines = list(reason_lines(judgement))
    assert [line.split()[:3] for line in lines] == [
        [PREFIX, "BAD", NODE], [PREFIX, "BAD", "node0004"]]
    page = page_of(hunt.job, hunt.rounds, hunt.facts, judgement)
    shown = [item for section in page.sections for item in section.items]
    matrices = [item for item in shown if isinstance(item, HeatMap)]
    assert [one.title.split()[1] for one in matrices] == ["bandwidth", "latency", "all_reduce"]
    assert np.nanmin(matrices[0].values[4]) == pytest.approx(SLOW * 2e10, rel=0.1)
    (ladder,) = (item for item in shown if isinstance(item, LineChart))
    assert [x for x, _ in ladder.panels[0].lines[0].points] == [4.0, 7.0]


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
    keep(hunt, HuntState.STOPPED)
    assert "".join(capsys.readouterr()).count(str(tmp_path)) == 1
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
    full = keeper(folder / "hunt.json", HuntLimits(), Verbosity.NORMAL)  # no folder to write to
    with pytest.raises(FileError):
        full(hunt, HuntState.COMPLETE)
    assert "HPCBENCH_HUNT BAD n3 " in capsys.readouterr().out, "verdicts are said before"
    assert "n3" in (folder / "hunt.html").read_text()
    with pytest.raises(FileError, match="no node was good"):
        limits_of(None, None, folder / "hunt.json")
    limits = limits_of(None, None, folder / "hunt.json", ["n1", "n2"])
    assert limits.reference[ALONE, "gemm", 0, 1, 1] == 1e9
    assert any("n1, n2 " in note for note in judge(JOB, hunt.rounds, hunt.facts, limits).notes)
    for name in ("n3", "n5"):
        with pytest.raises(FileError, match=f"--vouch {name}"):
            limits_of(None, None, folder / "hunt.json", [name])
