"""Run under mpirun -np 4: what the watchdogs of the ranks that answer agree on."""

from __future__ import annotations

import time

from mpi4py import MPI

from hpcbench.launch.communicator import MpiCommunicator
from hpcbench.launch.verdict import Evidence, RankOutcome, Verdict, agreed_verdict

EXCHANGE_S = 1.0
STUCK = "process was stopped, gone or cut off, no answer in 2 s"
SCENES = {  # silent ranks -> (blamed rank, reason, who tells)
    (): (-1, "no end in 2 s; no rank is behind the others (in run)", 0),
    (1, 3): (1, f"ranks 1, 3: {STUCK}", 0),
    (0, 3): (0, f"ranks 0, 3: {STUCK}", 1),
    (0, 1): (0, f"ranks 0, 1: {STUCK}", None),  # each for itself: nobody is left to ask
}


def wait_for_all(world: MPI.Comm) -> None:
    """A barrier in which ranks sleep: in MPI's own they would take the cores from the others."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


def main() -> None:
    world = MPI.COMM_WORLD
    for silent, (blamed, reason, speaker) in SCENES.items():
        wait_for_all(world)
        comm = MpiCommunicator(world.Dup(), lambda: None)
        if comm.rank in silent:
            continue
        time.sleep(0.1 * comm.rank)  # deadlines do not pass at once
        began = time.monotonic()
        own = Evidence(comm.rank, RankOutcome.STUCK, "in run", 3, 5, expired=True)
        verdict, speaks = agreed_verdict(comm, own, 2.0, 0.0, EXCHANGE_S)
        assert time.monotonic() - began < 5 * EXCHANGE_S + 1, silent
        assert (verdict.status, verdict.blamed_rank, verdict.reason) == ("timeout", blamed, reason)
        assert speaks == (comm.rank if speaker is None else speaker), (silent, speaks)
    wait_for_all(world)
    comm = MpiCommunicator(world.Dup(), lambda: None)
    if comm.rank != 3:
        outcome = RankOutcome.EXCEPTION if comm.rank == 2 else RankOutcome.STUCK
        own = Evidence(comm.rank, outcome, "broken" if comm.rank == 2 else "", 3, 5, expired=True)
        verdict, _ = agreed_verdict(comm, own, 2.0, 0.0, EXCHANGE_S)
        assert verdict.blamed_rank == 2
        assert verdict.reason == "rank 2: broken; no answer from rank 3", verdict
    own = Evidence(world.rank, RankOutcome.STUCK, "in run", 3, 5, expired=True)
    late = agreed_verdict(comm, own, 2.0, 1.1 * EXCHANGE_S, EXCHANGE_S)
    assert late == (Verdict("timeout", f"rank {world.rank}: {STUCK}", world.rank), -1), late
    wait_for_all(world)
    print("right")


if __name__ == "__main__":
    main()
