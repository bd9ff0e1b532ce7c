"""The store of the workers, and the communicator of torchrun's ranks over it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hpcbench.backends.groups import open_store
from hpcbench.errors import CaseError, LaunchError, RankLostError
from hpcbench.launch.communicator import listener_on
from hpcbench.launch.run_folder import PIECE_BYTES, SeparateFolder, send_to_root
from hpcbench.launch.store_communicator import StoreCommunicator, meet, open_store_communicator

RANKS = 3


def on_all_ranks(
    work: Callable[[StoreCommunicator], Any], store: Any = None, ranks: int = RANKS,
) -> list[Any]:
    """Return what ``work`` gives for each rank's communicator."""
    store = store or dist.HashStore()
    comms = [StoreCommunicator(store, "job", rank, ranks, lambda: None, "127.0.0.1")
             for rank in range(ranks)]
    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(work, comms))


def test_collective_operations() -> None:
    def work(comm: StoreCommunicator) -> list[Any]:
        told = [comm.allgather({"rank": comm.rank, "round": number}) for number in range(3)]
        comm.barrier()
        return [told, comm.bcast(f"from {comm.rank}"), comm.bcast([comm.rank])]

    expected = [[{"rank": rank, "round": number} for rank in range(RANKS)] for number in range(3)]
    assert on_all_ranks(work) == [[expected, "from 0", [0]]] * RANKS


def test_what_has_been_read_is_deleted() -> None:
    store = dist.HashStore()

    def work(comm: StoreCommunicator) -> None:
        for _ in range(50):
            comm.allgather(comm.rank)
            comm.bcast("x")
            comm.barrier()

    on_all_ranks(work, store)
    assert store.num_keys() < 12


def test_some_of_the_ranks() -> None:
    def work(comm: StoreCommunicator) -> Any:
        first = comm.first(2)
        return first and [first.size, first.allgather(comm.rank)]

    assert on_all_ranks(work) == [[2, [0, 1]], [2, [0, 1]], None]


def test_notices_and_posts() -> None:
    def work(comm: StoreCommunicator) -> Any:
        if comm.rank == 1:
            comm.notify(7)
            comm.post("a", 0)
            comm.post({"b": 1}, 0)
        comm.barrier()
        return comm.noticed(7), comm.noticed(8), comm.posted(), comm.posted()

    assert on_all_ranks(work) == [
        (True, False, [(1, "a"), (1, {"b": 1})], []), (True, False, [], []), (True, False, [], [])]


def test_files_are_delivered_through_the_store(tmp_path: Path) -> None:
    """More than a piece, an empty one, one that rank 0 has with other contents, one that is gone.

    What did not arrive stays where it is, and is named with its host.
    """
    contents = {"attempt1/big.h5": os.urandom(2 * PIECE_BYTES + 7), "empty.h5": b"",
                "taken.h5": b"ours", "same.h5": b"same"}
    traces, store = tmp_path / "traces", dist.HashStore()
    traces.mkdir()
    for name in ("taken.h5", "same.h5"):
        (traces / name).write_bytes(b"same")

    def work(comm: StoreCommunicator) -> list[str]:
        home = tmp_path / f"node{comm.rank}"
        files = {name: home / name for name in (*contents, "gone.h5")} if comm.rank == 1 else {}
        for name in contents if files else ():
            files[name].parent.mkdir(parents=True, exist_ok=True)
            files[name].write_bytes(contents[name])
        apart = {1: SeparateFolder("n1", str(home)), 2: SeparateFolder("n2", "")}
        return send_to_root(comm, files, apart, traces)

    problems, *others = on_all_ranks(work, store)
    assert others == [[], []] and store.num_keys() == 0
    assert [line.partition(": ")[0] for line in problems] == ["rank 1"] * 2
    assert f"taken.h5 did not arrive from {tmp_path}/node1/taken.h5 on n1: " in problems[0]
    assert "there already, with other contents" in problems[0] and "gone.h5" in problems[1]
    assert (tmp_path / "node1" / "taken.h5").exists()
    for name in ("attempt1/big.h5", "empty.h5", "same.h5"):
        assert (traces / name).read_bytes() == contents[name]
        assert not (tmp_path / "node1" / name).exists()


def test_pairs_take_turns() -> None:
    def work(comm: StoreCommunicator) -> list[int]:
        found = []
        for _ in range(2):
            with comm.pair(1 - comm.rank, timeout_s=20) as pair:
                if comm.rank == 0:
                    pair.send(-(2**62))
                    found.append(pair.wait(20))
                else:
                    found.append(pair.receive())
                    pair.send(found[-1] + 1)
        return found

    assert on_all_ranks(work, ranks=2) == [[-(2**62) + 1] * 2, [-(2**62)] * 2]


def test_a_pair_whose_other_rank_does_not_come() -> None:
    def work(comm: StoreCommunicator) -> None:
        with comm.pair(1 - comm.rank, timeout_s=0.3):
            pass

    began = time.monotonic()
    for rank in (0, 1):
        lonely = StoreCommunicator(dist.HashStore(), "job", rank, 2, lambda: None, "127.0.0.1")
        with pytest.raises(RankLostError):
            work(lonely)
    assert time.monotonic() - began < 20


def test_a_pair_whose_other_rank_leaves() -> None:
    def work(comm: StoreCommunicator) -> str:
        try:
            with comm.pair(1 - comm.rank, timeout_s=20) as pair:
                if comm.rank == 0:
                    pair.receive()
        except RankLostError as error:
            return str(error)
        return "left"

    told, left = on_all_ranks(work, ranks=2)
    assert left == "left"
    assert told.startswith("rank 1 cannot be reached")


def test_a_rank_that_does_not_come_is_missed() -> None:
    comm = StoreCommunicator(dist.HashStore(), "job", 0, 2, lambda: None, "127.0.0.1")
    with pytest.raises(RankLostError, match="has not answered"):
        comm.allgather(1, timeout_s=0.2)


@pytest.mark.parametrize(("who", "words"), [
    ([(0, 3), (1, 3), (1, 3)], "two processes are rank 1: process "),
    ([(0, 2), (1, 3)], "others have "),
    ([(0, 2), (2, 2)], "is rank 2 of 2 (RANK, WORLD_SIZE)"),
    ([(0, 3), (2, 3)], "1 of 3 ranks have not come in 2 s: 1"),
])
def test_ranks_that_do_not_fit_together_are_refused_by_all(
    who: list[tuple[int, int]], words: str,
) -> None:
    store = dist.HashStore()

    def come(place: tuple[int, int]) -> str:
        with pytest.raises(LaunchError) as refused:
            meet(store, *place, lambda: None, timeout_s=2.0)
        return str(refused.value)

    with ThreadPoolExecutor(len(who)) as threads:
        told = list(threads.map(come, who))
    assert len(set(told)) == 1 and words in told[0], told


def test_a_process_that_is_twice_too_many_is_reported_at_once() -> None:
    """The first of its rank was refused for its number of ranks."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=2))
    for rank, size, words in [(0, 2, "have not come"), (1, 3, "others have 2"),
                              (1, 2, "two processes are rank 1")]:
        with pytest.raises(LaunchError, match=words):
            meet(store, rank, size, lambda: None, timeout_s=0.1)


def test_a_restarted_job_finds_nothing_of_the_attempt_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torchrun's agent keeps the store, and starts all ranks anew (--max-restarts)."""
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(agent.port), "TORCHELASTIC_RUN_ID": "job",
                        "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        comm = open_store_communicator(lambda: None, 20.0)
        assert not comm.noticed(7)
        comm.notify(7)
        comm.post(attempt, 0)
        assert comm.posted() == [(0, attempt)]
        comm.post("never read", 0)
        assert comm.allgather(attempt) == [attempt]


def test_a_process_too_many_is_reported_when_the_others_have_gone_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda rank: meet(store, rank, 2, lambda: None, 5.0), range(2)))
    with pytest.raises(LaunchError, match="two processes are rank 1"):
        meet(store, 1, 2, lambda: None, 5.0)
    assert "two processes are rank 1" in capsys.readouterr().err


LOOPBACK, OTHER_LOOPBACK, NOT_OURS = "127.0.0.1", "127.0.0.2", "192.0.2.1"
"""Linux answers on all of 127.0.0.0/8; the last one is kept for documents (RFC 5737)."""


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize("name", [LOOPBACK, "localhost"])
def test_it_listens_on_the_chosen_address_alone(name: str) -> None:
    store = open_store(listener_on(name, (0,)), 10.0)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert answers(name, store.port) and not answers(OTHER_LOOPBACK, store.port)


def test_an_address_that_sends_on_to_us_is_no_error() -> None:
    store = open_store(listener_on(NOT_OURS, (0,)), 10.0)
    assert answers(LOOPBACK, store.port) and answers(OTHER_LOOPBACK, store.port)


def test_a_port_in_use_is_passed_over_or_reported() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        assert open_store(listener_on(LOOPBACK, (port, 0)), 10.0).port != port
        with pytest.raises(CaseError, match=f"no free port in {port}..{port} .* in use"):
            open_store(listener_on(LOOPBACK, (port,)), 10.0)


def test_an_address_that_does_not_resolve_is_reported_as_one() -> None:
    with pytest.raises(CaseError, match=r"'nowhere\.invalid' does not resolve here"):
        open_store(listener_on("nowhere.invalid", (0, 0, 0)), 10.0)


def test_a_store_that_does_not_start_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses a socket of another port than it is told; with libuv it leaves it open."""
    def store(host: str, port: int, **how: Any) -> dist.TCPStore:
        return real(host, port + 1, **how)

    real, before = dist.TCPStore, descriptors()
    monkeypatch.setattr(dist, "TCPStore", store)
    with pytest.raises(CaseError, match=r"the store on 127\.0\.0\.1 does not start: .* bound to"):
        open_store(listener_on(LOOPBACK, (0, 0)), 10.0)
    assert sum(name.startswith("socket:") for name in descriptors() - before) == 0


def test_torch_before_2_8_takes_the_socket_without_libuv(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch 2.4.1 answers (benchmarks/results/oldest_versions.md); the rest is this torch."""
    def store(*where: Any, use_libuv: bool = True, **how: Any) -> dist.TCPStore:
        if use_libuv:
            raise NotImplementedError("The libuv TCPStore backend does not support ... listen fd")
        return real(*where, use_libuv=False, **how)

    real = dist.TCPStore
    monkeypatch.setattr(dist, "TCPStore", store)
    opened = open_store(listener_on(LOOPBACK, (0,)), 10.0)
    opened.set("key", "value")
    assert opened.get("key") == b"value" and not answers(OTHER_LOOPBACK, opened.port)


def descriptors() -> set[str]:
    """Return what this process has open."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder's own
            found.add(str(path.readlink()))
    return found
