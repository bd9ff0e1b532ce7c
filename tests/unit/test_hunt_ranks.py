"""How ranks of a hunt find themselves and each other, and what silence of theirs means."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcbench.config.section import Fault
from hpcbench.errors import LaunchError, RankLostError
from hpcbench.fleet.hunt import crew as crews
from hpcbench.fleet.hunt import rendezvous
from hpcbench.fleet.hunt.agent import Agent, RankTask
from hpcbench.fleet.hunt.allocation import expanded, nodes_of, step_nodes
from hpcbench.fleet.hunt.crew import Crew, Finished
from hpcbench.fleet.hunt.execution import Execution, Settings
from hpcbench.fleet.hunt.facts import (
    ALONE,
    DIED,
    HANG,
    LADDER,
    MEASURED,
    NO_ANSWER,
    PAIRS,
    SWEEP,
    UNTESTED,
    WRONG,
    Company,
    Fact,
    Node,
    Round,
)
from hpcbench.fleet.hunt.rendezvous import (
    MeetingHost,
    OwnPlace,
    Wire,
    meet,
    meeting_file,
    own_place,
)
from hpcbench.launch.launcher import StopRequests
from hpcbench.launch.verdict import EVIDENCE, Evidence, RankOutcome

SRUN = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "2", "SLURMD_NODENAME": "n3"}


def test_a_rank_knows_itself_by_the_launchers_variables() -> None:
    """Slurm's name of a node counts under srun alone; each launch has a name of its own."""
    place = own_place(SRUN)
    assert (place.rank, place.size, place.node) == (2, 4, "n3")
    assert place.job == own_place({**SRUN, "SLURM_PROCID": "0"}).job
    assert place.job != own_place({**SRUN, "SLURM_STEP_ID": "1"}).job
    assert own_place({**SRUN, "SLURM_TOPOLOGY_ADDR": "s0.s2.n3",
                      "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}).switch == "s0.s2"
    alone = own_place({"SLURMD_NODENAME": "n3"})
    assert (alone.rank, alone.size) == (0, 1) and alone.node != "n3"
    with pytest.raises(LaunchError, match="rank 4 of 4"):
        own_place({**SRUN, "SLURM_PROCID": "4"})


@pytest.mark.parametrize(("text", "names"), [
    ("n[1-3,07],login", ["n1", "n2", "n3", "n07", "login"]),
    ("r[08-11]-x,a", ["r08-x", "r09-x", "r10-x", "r11-x", "a"]),
    ("", []), ("n[1", []), ("a,,b", []), ("n[x-2]", [])])
def test_slurms_lists_of_hosts(text: str, names: list[str]) -> None:
    assert expanded(text) == names


def _places(**nodes: str) -> dict[int, tuple[str, str]]:
    return {int(rank.removeprefix("r")): (node, "") for rank, node in nodes.items()}


def _ranks(nodes: tuple[Node, ...]) -> dict[str, tuple[int, ...]]:
    return {node.name: node.ranks for node in nodes}


def test_missing_ranks_get_the_node_that_slurm_planned_for_them() -> None:
    step = step_nodes({"SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}, 5)
    assert step == {"n1": (0, 1), "n2": (2, 3), "n3": (4,)}
    seen = _places(r0="n1", r1="n1", r4="n3")
    assert _ranks(nodes_of(5, seen, step)) == {"n1": (0, 1), "n2": (2, 3), "n3": (4,)}
    cyclic = _places(r0="n1", r2="n3", r3="n1")  # --distribution=cyclic: 1 and 4 were for n2
    assert _ranks(nodes_of(5, cyclic, step)) == {
        "n1": (0, 3), "n2": (1,), "n3": (2,), "rank-4": (4,)}
    assert step_nodes({"SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_TASKS_PER_NODE": "2"}, 5) == {}


def test_a_missing_rank_stands_for_its_node_where_nothing_names_that() -> None:
    """Between two ranks of one node it is of that node."""
    assert _ranks(nodes_of(4, _places(r0="a", r2="a"), {})) == {"a": (0, 1, 2), "rank-3": (3,)}


@pytest.fixture(autouse=True)
def closed_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close both ends of every line: here, unlike in a hunt, their processes go on."""
    opened: list[Wire] = []
    begin = Wire.__init__

    def opening(line: Wire, connection: Any) -> None:
        begin(line, connection)
        opened.append(line)

    monkeypatch.setattr(Wire, "__init__", opening)
    before = set(threading.enumerate())
    yield
    for line in opened:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)  # a played rank that waits for a message ends
    for thread in set(threading.enumerate()) - before:
        thread.join(5)  # else it closes its line while that is closed here
    for line in opened:
        line.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a host that has ended be noticed soon, and ranks take turns soon."""
    for name, value in (("_BEAT_S", 0.05), ("_PATIENCE_S", 1.2), ("_TURN_S", 0.5),
                        ("_PAUSE_S", 0.02)):
        monkeypatch.setattr(rendezvous, name, value)


def _place(rank: int, size: int = 3) -> OwnPlace:
    return OwnPlace(rank, size, f"n{rank}", "job 1")


def _in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start it; return what waits for its result, or raises its error."""
    kept: list[Any] = []

    def run() -> None:
        try:
            kept.append(work())
        except Exception as error:
            kept.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(20)
        if isinstance(kept[0], Exception):
            raise kept[0]
        return kept[0]

    return result


@pytest.mark.usefixtures("quick")
def test_ranks_meet_at_the_first_and_a_late_one_is_told(tmp_path: Path) -> None:
    file = meeting_file(tmp_path, _place(0))
    assert file == meeting_file(tmp_path, _place(2)) != meeting_file(
        tmp_path, OwnPlace(0, 3, "n0", "job 2"))
    host = meet(file, _place(0), 5)
    assert isinstance(host, MeetingHost)
    with host.beating(), Crew(3, lambda: None) as crew:
        guests = [_in_thread(partial(meet, file, _place(rank), 5)) for rank in (0, 1)]
        crew.sign_in(host, 1.5)
        assert crew.living == {0, 1} and crew.members[1].node == "n1"
        assert all(isinstance(guest(), Wire) for guest in guests)
        with pytest.raises(LaunchError, match="rank 2 on n2 comes too late"):
            meet(file, _place(2), 5)
    assert not file.exists()


@pytest.mark.usefixtures("quick")
def test_the_host_is_another_rank_where_the_first_is_dead(tmp_path: Path) -> None:
    """Whether it left a file or not: nothing counts in it any more."""
    file = meeting_file(tmp_path, _place(0))
    dead = MeetingHost(file, _place(0))
    dead.publish()
    dead._listener.close()
    met = [_in_thread(partial(meet, file, _place(rank), 20)) for rank in (1, 2)]
    host = met[0]()
    assert isinstance(host, MeetingHost) and host.place.rank == 1
    with host.beating(), Crew(3, lambda: None) as crew:
        crew.sign_in(host, 1.5)
        assert isinstance(met[1](), Wire) and crew.living == {2}


@pytest.mark.usefixtures("quick")
def test_a_rank_that_is_cut_off_does_not_become_a_second_host(tmp_path: Path) -> None:
    """It sees the folder, where the host counts, and cannot reach it."""
    file = meeting_file(tmp_path, _place(0))
    host = meet(file, _place(0), 5)
    assert isinstance(host, MeetingHost)
    host._listener.close()
    host._listener = _Unreachable()  # type: ignore[assignment]
    with host.beating(), pytest.raises(LaunchError, match="rank 1 on n1 has not reached"):
        meet(file, _place(1), 1.5)
    assert not file.exists()


class _Unreachable:
    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("hello", "why"), [
    ({"size": 4}, "one of 4 ranks, others of 3"), ({"rank": 3}, "no rank of 3"),
    ({"rank": 0}, "two processes are rank 0"), ({"version": "0.0"}, "has hpcbench 0.0")])
def test_who_does_not_belong_to_the_launch_is_refused(
    tmp_path: Path, hello: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = meeting_file(tmp_path, _place(0))
    host = meet(file, _place(0), 5)
    assert isinstance(host, MeetingHost)
    with host.beating(), Crew(3, lambda: None) as crew:
        _in_thread(lambda: meet(file, _place(0), 5))
        crew.sign_in(host, 1.0)
        host._is_open = True
        while not rendezvous._read(file)["is_open"]:  # its thread writes the file
            time.sleep(0.01)
        if "version" in hello:
            monkeypatch.setattr(rendezvous, "__version__", hello["version"])
        place = replace(_place(1), **{k: v for k, v in hello.items() if k != "version"})
        stranger = _in_thread(lambda: meet(file, place, 5))
        crew.sign_in(host, 1.0)
        with pytest.raises(LaunchError, match=why):
            stranger()
        assert crew.living == {0}
        assert {rank for rank, said in crew.refused.items() if why in said} <= {1}


@pytest.mark.parametrize("sent", [b"{}\n[1]\n", b"no json\n", b""])
def test_a_line_takes_no_nonsense(sent: bytes) -> None:
    ours, theirs = _pair()
    line = Wire(ours)
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(RankLostError):
        while True:
            line.receive(1.0)


def test_a_host_of_many_ranks_has_high_descriptors() -> None:
    """From 1,024 on select takes none."""
    ours, theirs = _pair()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    line = Wire(socket.socket(fileno=fcntl.fcntl(ours.detach(), fcntl.F_DUPFD, 1500)))
    Wire(theirs).send({"do": "x"})
    assert line.fileno() >= 1500
    assert line.await_one(5.0) == {"do": "x"} and line.receive() is None


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs


# ---- the host's view of trials


def _task(index: int, size: int, limit_s: float = 0.2) -> RankTask:
    return RankTask(0, index, size, size, 0, 1, None, None, False, (), limit_s, 0.0, 1.0)


class _Ranks:
    """Ranks of a crew, each played by a function of its line and of each message."""

    def __init__(self, size: int) -> None:
        self.crew = Crew(size, lambda: None)
        self._ends: list[Wire] = []
        for rank in range(size):
            ours, theirs = _pair()
            member = crews.SignedIn(rank, f"n{rank}", "", Wire(ours))
            self.crew.members[rank] = member
            self.crew._selector.register(member.line, 1, rank)
            self._ends.append(Wire(theirs))

    def play(self, rank: int, act: Callable[[Wire, dict[str, Any]], None]) -> None:
        def run() -> None:
            line = self._ends[rank]
            try:
                while True:
                    if (message := line.receive(0.2)) is not None:
                        act(line, message)
            except (RankLostError, OSError, ValueError):
                return

        threading.Thread(target=run, daemon=True).start()


def _answering(line: Wire, message: dict[str, Any]) -> None:
    if message["do"] == "trial":
        line.send({"number": message["task"]["number"], "results": [], "readings": {}})


def _waiting_for_the_end(line: Wire, message: dict[str, Any]) -> None:
    if message["do"] == "end":
        line.send({"number": message["number"], "results": [], "readings": {}})


def test_a_rank_that_dies_frees_the_others_and_is_asked_no_more() -> None:
    ranks = _Ranks(3)
    ranks.play(0, _waiting_for_the_end)
    ranks.play(1, lambda line, _message: line.close())
    ranks.play(2, _answering)
    began = time.monotonic()
    with ranks.crew as crew:
        pair, alone = crew.run([{0: _task(0, 2), 1: _task(1, 2)}, {2: _task(0, 1)}])
        assert time.monotonic() - began < 10
        assert list(pair.results) == [0] and list(pair.lost) == [1]
        assert list(alone.results) == [2] and not alone.lost
        assert crew.living == {0, 2}
        assert crew.ask([1], "facts", 1.0) == {}


def test_a_silent_rank_is_lost_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "GRACE_S", 1.0)
    ranks = _Ranks(2)
    ranks.play(0, _answering)
    with ranks.crew as crew:
        (done,) = crew.run([{0: _task(0, 2), 1: _task(1, 2)}])
        assert list(done.results) == [0] and "does not answer" in done.lost[1]


def test_the_first_members_store_is_passed_on_to_the_others_of_its_trial() -> None:
    """A later trial's members take none of an earlier one."""
    heard: list[dict[str, Any]] = []

    def opening(line: Wire, message: dict[str, Any]) -> None:
        if message["do"] == "trial":
            line.send({"number": message["task"]["number"], "store": ["10.0.0.1", 5]})
            _answering(line, message)

    def joining(line: Wire, message: dict[str, Any]) -> None:
        if message["do"] == "store":
            heard.append(message)
            line.send({"number": message["number"], "results": [], "readings": {}})

    ranks = _Ranks(2)
    ranks.play(0, opening)
    ranks.play(1, joining)
    with ranks.crew as crew:
        for _ in range(2):
            assert not crew.run([{0: _task(0, 2), 1: _task(1, 2)}])[0].lost
    assert [one["store"] for one in heard] == [["10.0.0.1", 5]] * 2
    assert heard[0]["number"] != heard[1]["number"]


def test_a_rank_hears_how_the_hunt_ends_though_the_host_has_left() -> None:
    ours, theirs = _pair()
    host = Wire(theirs)
    host.send({"do": "leave", "code": 2})
    host.close()
    pool: Any = None
    with contextlib.closing(Wire(ours)) as line:
        assert Agent(line, _place(1), pool, StopRequests(None)).serve() == 2
        with pytest.raises(RankLostError):
            Agent(line, _place(1), pool, StopRequests(None)).serve()


# ---- facts of rounds


class _Crew:
    """A crew of two nodes with a rank each, whose trials end as told."""

    def __init__(self, finish: Callable[[list[str]], dict[int, list[dict[str, Any]]]],
                 lost: dict[int, str] | None = None) -> None:
        self._finish, self._lost_then = finish, lost or {}
        self.lost: dict[int, str] = {}
        self.now_s = 4.0

    @property
    def living(self) -> frozenset[int]:
        return frozenset({0, 1} - self.lost.keys())

    def ask(self, ranks: Any, _do: str, _limit_s: float) -> dict[int, Any]:
        cuda: dict[str, Any] = {"uuids": [], "visible": None, "names": [], "no_code": [],
                                "reason": "no GPU"}
        return {rank: {"cuda": cuda, "device_nodes": 0, "cores": [0, 1], "has_nccl": False}
                for rank in ranks if rank in self.living}

    def run(self, trials: list[dict[int, RankTask]]) -> list[Finished]:
        done = []
        for tasks in trials:
            cases = [case.case_id for case in next(iter(tasks.values())).cases]
            results = {rank: found for rank, found in self._finish(cases).items()
                       if rank in tasks and rank not in self._lost_then}
            done.append(Finished(tuple(tasks), results, dict.fromkeys(tasks, {}), {
                rank: why for rank, why in self._lost_then.items() if rank in tasks}, 5.0))
        return done


NODES = {"n0": Node("n0", (0,)), "n1": Node("n1", (1,))}


def _facts(crew: _Crew, stage: str, tmp_path: Path) -> list[Fact]:
    execution = Execution(crew, NODES, Settings(str(tmp_path), 8.0), {})  # type: ignore[arg-type]
    companies = ((Company(("n0",)), Company(("n1",))) if stage == ALONE else
                 (Company(("n0", "n1")),))
    execution.execute(Round(0, ALONE, SWEEP, (Company(("n0",)), Company(("n1",))), 1.0))
    return execution.execute(Round(1, stage, SWEEP, companies, 1.0))


def _told(rank: int, case: str, **evidence: Any) -> dict[str, Any]:
    evidence = {"outcome": RankOutcome.OK, **evidence}
    return {"case": case, "evidence": EVIDENCE.write(Evidence(rank, **evidence)),
            "durations_ns": [1_000_000, 2_000_000, 4_000_000 * (1 + rank)]}


def test_a_value_is_by_the_slowest_ranks_median_time(tmp_path: Path) -> None:
    crew = _Crew(lambda cases: {rank: [_told(rank, case) for case in cases] for rank in (0, 1)})
    facts = _facts(crew, PAIRS, tmp_path)
    assert [(fact.node, fact.peers, fact.outcome) for fact in facts] == [
        ("", ("n0", "n1"), MEASURED)] * len(facts)
    of = {fact.measure: fact for fact in facts}
    assert (of["latency"].value, of["latency"].size_bytes) == (0.002, 8)
    assert of["bandwidth"].value == pytest.approx(2 * of["bandwidth"].size_bytes / 0.002)
    alone = {fact.measure: fact for fact in _facts(crew, ALONE, tmp_path) if fact.node == "n1"}
    assert alone["gemm"].value == pytest.approx(2 * 512**3 / 0.002) and alone["gemm"].rank == 1
    assert alone["devices"].value == 2 and alone["answers"].value == 1


@pytest.mark.parametrize(("evidence", "outcome", "guilty"), [
    ({"outcome": RankOutcome.STOPPED, "cause": "stopped", "expired": True}, HANG, "n1"),
    ({"outcome": RankOutcome.DIED, "cause": "signal 9"}, DIED, "n1"),
    ({"outcome": RankOutcome.COMMUNICATION, "cause": "Connection closed"}, DIED, ""),
    ({"n_wrong": 3, "wrong": "element 0"}, WRONG, "n1")])
def test_a_fault_accuses_a_node_only_by_its_own_evidence(
    evidence: dict[str, Any], outcome: str, guilty: str, tmp_path: Path,
) -> None:
    """What is left of the trial is untested, and nothing has a value."""
    crew = _Crew(lambda cases: {0: [_told(0, cases[0])], 1: [_told(1, cases[0], **evidence)]})
    first, *rest = _facts(crew, LADDER, tmp_path)
    assert (first.node, first.outcome, first.value) == ("", outcome, None)
    accused = [fact.node for fact in rest if fact.outcome != UNTESTED]
    assert accused == [guilty] * bool(guilty)
    assert all(fact.value is None for fact in rest)


def test_a_lost_rank_and_a_dead_node_do_not_answer(tmp_path: Path) -> None:
    lost = _Crew(lambda cases: {0: [_told(0, "", outcome=RankOutcome.COMMUNICATION, cause="x")]},
                 lost={1: "its process has ended"})
    facts = _facts(lost, LADDER, tmp_path)
    assert {(fact.node, fact.outcome) for fact in facts} >= {("n1", NO_ANSWER)}
    assert not any(fact.node == "n0" for fact in facts)
    dead = _Crew(lambda cases: {0: [_told(0, case) for case in cases]})
    dead.lost = {1: "its process has ended"}
    facts = _facts(dead, PAIRS, tmp_path)
    assert [(fact.node, fact.outcome) for fact in facts] == [("n1", NO_ANSWER), ("", UNTESTED)]


def test_messages_are_plain_json(tmp_path: Path) -> None:
    from hpcbench.fleet.hunt.agent import RANK_TASK
    from hpcbench.fleet.hunt.trials import trial

    cases = trial(PAIRS, 2, on_gpu=False, folder=str(tmp_path), limit_s=3.0).cases
    task = replace(_task(1, 2), cases=cases, faults=(Fault(rank=1, kind="stop", iteration=3),))
    assert RANK_TASK.read(json.loads(json.dumps(
        RANK_TASK.write(task)))) == task
