"""Are causes of slow communication named in real jobs? Trainings with a planted cause, replayed.

    python benchmarks/causes_jobs.py [--jobs 10] [--seed 0] [--causes late_rank nothing]

Needs root: one rank on each of two virtual hosts (tests/virtual_hosts.sh) with a link of 1 Gbit/s.
A job is 40 steps of examples/traffic_ddp.py over gloo, recorded with --durations; 30 isolated calls
follow on new hosts. Judged is the form of call that took most time. Planted, and right:

- late_rank: rank 0 sleeps 20 to 40 ms a step: arrival, of rank 0.
- slow_in_job: the link has 1/16 to 1/8 of its rate in the job, and all of it afterwards:
  contention, as calls take longer than the same calls alone.
- slow_link: the same rate in both: transfer, as nothing is slower than alone.
- stream_beside: a process fills the link both ways during the job: contention.
- work_beside: a real-time process takes each core for 30 of every 40 ms of the job: arrival,
  contention, or both. A rank without a core comes late or moves its data late; which of the two is
  chance. (Priorities by nice do nothing: mpirun's ranks have a session, and so a share, of their
  own, sched(7), and who waits for the network is preferred.)
- nothing: transfer.

`mixed` is right if the planted cause is one of two and transfer the other: some of it there always
is. Goals: of all jobs at most 5 % wrong (one, of few), and of each cause 80 % right. Other load on
the machine makes verdicts inconclusive, or is itself the cause. Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hpcbench.answers.answer import Run, TopicOptions  # noqa: E402
from hpcbench.interop.answers.causes import (  # noqa: E402
    ARRIVAL,
    CONTENTION,
    INCONCLUSIVE,
    MIXED,
    TRANSFER,
    CallCause,
    causes,
)
from hpcbench.interop.traffic.imported import import_traffic  # noqa: E402
from hpcbench.operations.traffic import read_traffic  # noqa: E402
from hpcbench.reduce.results_file import open_results  # noqa: E402
from launching import ROOT, fail, mpirun  # noqa: E402
from link import exchange  # noqa: E402
from virtual_hosts import SCRIPT, inside, one_rank_each, why_not  # noqa: E402

RATE_MBIT = 1000
STEPS, ISOLATED_CALLS = 40, 30
MOST_WRONG, LEAST_RIGHT = 0.05, 0.8
RIGHT = {"late_rank": {ARRIVAL}, "slow_in_job": {CONTENTION}, "slow_link": {TRANSFER},
         "stream_beside": {CONTENTION}, "work_beside": {ARRIVAL, CONTENTION},
         "nothing": {TRANSFER}}
PORT = 5078
TURN_S, REST_S = 0.03, 0.01
STREAM, COMPUTE = "stream", "compute"
QUIET = {"output.plots": "false", "output.report": "false", "measure.canary": "false",
         "measure.noise_check_s": "0"}


@dataclass(frozen=True)
class Planted:
    """What is done to a job: rates of the link in Mbit/s, ms of rank 0, and what runs beside it."""

    job_mbit: int = RATE_MBIT
    alone_mbit: int = RATE_MBIT
    late_ms: float = 0.0
    beside: str = ""


def planted(cause: str, rng: random.Random) -> Planted:
    slow = int(RATE_MBIT / rng.uniform(8, 16))
    return {"late_rank": Planted(late_ms=rng.uniform(20, 40)), "slow_in_job": Planted(slow),
            "slow_link": Planted(slow, slow), "stream_beside": Planted(beside=STREAM),
            "work_beside": Planted(beside=COMPUTE), "nothing": Planted()}[cause]


def verdict(job: Planted, folder: Path) -> CallCause:
    """Record a job, replay it, and return what is said of the form that took most time."""
    beside = (sys.executable, __file__, "--beside", job.beside, "--") if job.beside else ()
    mpirun(2, ["-m", "hpcbench", "record", "--durations", "-q", "-o", folder / "rec", "--",
               sys.executable, ROOT / "examples" / "traffic_ddp.py", "--steps",
               str(STEPS), "--late-ms", str(job.late_ms)],
           before=(*inside(2, f"{job.job_mbit}mbit"), *beside), options=one_rank_each(2),
           env={"MASTER_ADDR": "vh1", "OMP_NUM_THREADS": "1"})
    import_traffic([folder / "rec"], folder / "traffic.json")
    mpirun(2, ["-m", "hpcbench", "run", folder / "traffic.json", "-o", folder, "-q", "--only",
               "all_reduce", "--iters", str(ISOLATED_CALLS), "--passes", "1",
               *(word for key, value in QUIET.items() for word in ("--set", f"{key}={value}"))],
           before=inside(2, f"{job.alone_mbit}mbit"), options=one_rank_each(2),
           env={"OMP_NUM_THREADS": "1"}, accepted=(0, 3))
    with open_results(folder / "latest") as file:
        found = causes([Run("alone", file.results, file)],
                       TopicOptions(traffic=read_traffic(folder / "traffic.json")))
    return next(one for one in found.forms if one.matched > STEPS // 2)


def outcome(cause: str, found: CallCause) -> str:
    """Return ``right``, ``wrong`` or ``inconclusive``."""
    named = set(found.parts) if found.cause == MIXED else {found.cause}
    if named == {INCONCLUSIVE}:
        return INCONCLUSIVE
    is_right = named & RIGHT[cause] and named <= RIGHT[cause] | {TRANSFER} and (
        cause != "late_rank" or found.late == (0,))
    return "right" if is_right else "wrong"


def beside(load: str, command: Sequence[str]) -> int:
    """Run a command beside a load, on the first host; return its exit code."""
    words = [sys.executable, __file__, "--load"]
    loads = ([[str(SCRIPT), host, "exec", *words, host] for host in ("vh1", "vh2")]
             if load == STREAM else [[*words, str(core)] for core in os.sched_getaffinity(0)])
    processes = [subprocess.Popen(one) for one in loads]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for process in processes:
            process.kill()
            process.wait()


def be_load(what: str) -> None:
    """Compute on a core, or be one host's end of a stream, while its parent lives."""
    parent = os.getppid()
    if what.isdecimal():
        os.sched_setaffinity(0, {int(what)})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while os.getppid() == parent:
            until = time.monotonic() + TURN_S
            while time.monotonic() < until:
                pass
            time.sleep(REST_S)
        return
    with connected(what) as connection:
        while os.getppid() == parent:
            exchange(connection, sends=True, receives=True)


def connected(host: str) -> socket.socket:
    """Return this host's end of a stream between both."""
    if host == "vh1":
        with socket.create_server(("vh1", PORT)) as server:
            server.settimeout(20)
            return server.accept()[0]
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("vh1", PORT))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=10, help="jobs of each cause")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--causes", nargs="+", choices=RIGHT, default=list(RIGHT), metavar="CAUSE")
    parser.add_argument("--beside", choices=(STREAM, COMPUTE), help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        be_load(given.load)
        return 0
    if given.beside:
        return beside(given.beside, given.command)
    if why := why_not(f"{RATE_MBIT}mbit"):
        fail(f"no virtual hosts (root, ip, tc with tbf and nsenter are needed):\n{why}")
    return tally(given.causes, given.jobs, random.Random(given.seed))


def tally(names: Sequence[str], jobs: int, rng: random.Random) -> int:
    """Judge jobs, one of each cause in turn; print each and the sums; return the exit code."""
    sums: dict[str, Counter[str]] = {name: Counter() for name in names}
    for _ in range(jobs):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="causes-") as folder:
                found = verdict(planted(name, rng), Path(folder))
            sums[name][outcome(name, found)] += 1
            print(line(name, found), flush=True)
    print(f"\n{'cause':14}{'right':>7}{'wrong':>7}{'inconclusive':>14}   load "
          f"{os.getloadavg()[0]:.1f}")
    for name, counted in sums.items():
        print(f"{name:14}{counted['right']:7}{counted['wrong']:7}{counted[INCONCLUSIVE]:14}")
    wrong = sum(counted["wrong"] for counted in sums.values())
    missed = wrong > max(1, MOST_WRONG * jobs * len(names)) or any(
        counted["right"] < LEAST_RIGHT * jobs for counted in sums.values())
    print(f"goals: at most {MOST_WRONG:.0%} wrong, at least {LEAST_RIGHT:.0%} of each right: "
          f"{'missed' if missed else 'met'}")
    return int(missed)


def line(name: str, found: CallCause) -> str:
    """Return a job in a line: its verdict, and what it rests on."""
    said = " + ".join(found.parts) or found.cause
    shares = [f"{word} {share.value:4.0%}" for word, share in (
        (ARRIVAL, found.arrival), (CONTENTION, found.contention)) if share]
    times = ", ".join(f"{word} {1e3 * (value or 0):.2f}" for word, value in (
        ("transfer", found.transfer_s), ("waiting", found.waiting_s), ("alone", found.isolated_s)))
    return (f"{name:14}{outcome(name, found):13} {said:21} {' '.join(shares)} "
            f"({times} ms) {found.missing}").rstrip()


if __name__ == "__main__":
    sys.exit(main())
