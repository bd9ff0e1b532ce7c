"""Does a hunt name the bad node, and no other? On virtual hosts, by real processes and real faults.

    python benchmarks/hunt_faults.py [--runs 10] [--clean 20] [--faults competing link ...]
        [--hosts 4] [--stage-seconds 20] [--limit 15] [--rate 1gbit] [--keep FOLDER]

Each host is a network namespace of this machine with a rank of its own; all share its cores, so
groups of a round take turns. Started as srun starts tasks, without MPI. One host, another in each
run, has a fault:

    competing   processes as many as the cores compete whenever that host measures
    link        its network has a tenth of the others' rate
    device      its rank may use one core fewer: without GPUs, cores are the devices
    hang        a worker stops at its third call, in every trial
    dead        it does not start at all, or its rank is killed while the hunt goes on
    wrong       results on it are not right

Goals: the node is bad in each run, or suspect where the fault shows in one stage only, and no other
is either; in clean runs no node is. The exit code is 1 if a goal is missed, 2 if there are no such
hosts here. Root is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from launching import ROOT, fail

sys.path.insert(0, str(ROOT / "tests"))
import virtual_hosts  # noqa: E402

FAULTS = ("competing", "link", "device", "hang", "dead", "wrong")
SLOW_LINK = 0.1
KILLED_AFTER_S = 12.0
SIGN_IN_S = 30.0
RIVAL_NICE, SHARES = -10, 16384
"""A rival gets nine times as much of a core as a rank; all that takes part has 16 times as much as
another session of this machine: nodes have none of those beside them."""
LONGEST_S = 1800


def rank_words(given: argparse.Namespace, rank: int, bad: int) -> list[str]:
    """Return what starts a rank on its host, with the fault if it is the bad one's."""
    words = [str(virtual_hosts.SCRIPT), f"vh{rank + 1}", "exec"]
    if rank == bad and given.fault == "device":
        first = min(os.sched_getaffinity(0))
        words += ["taskset", "--cpu-list", str(first)]
    return [*words, sys.executable, __file__, "--rank", str(rank), "--bad", str(bad),
            "--fault", given.fault, "--stage-seconds", str(given.stage_seconds), "--limit",
            str(given.limit), "--folder", given.folder]


def lead(given: argparse.Namespace) -> int:
    """Be srun on the first host: start the ranks, and wait for all; return the worst exit code."""
    hosts, bad = given.hosts, given.bad
    env = {**os.environ, "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0",
           "SLURM_STEP_NUM_TASKS": str(hosts), "SLURM_STEP_NODELIST": f"vh[1-{hosts}]",
           "SLURM_STEP_TASKS_PER_NODE": f"1(x{hosts})"}
    absent = given.fault == "dead" and bad % 2 == 0
    ranks = {rank: subprocess.Popen(rank_words(given, rank, bad), env={
                 **env, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"vh{rank + 1}"})
             for rank in range(hosts) if not (absent and rank == bad)}
    if given.fault == "dead" and not absent:
        time.sleep(KILLED_AFTER_S)
        for process in [*psutil.Process(ranks[bad].pid).children(recursive=True),
                        psutil.Process(ranks[bad].pid)]:
            process.kill()
    rival = None
    if given.fault == "competing":
        rival = subprocess.Popen([sys.executable, __file__, "--rival-of", str(ranks[bad].pid)])
    codes = [process.wait() for process in ranks.values()]
    if rival is not None:
        rival.kill()
        rival.wait()
    return max(codes)


def compete(pid: int) -> None:
    """Take each core whenever a worker of this rank runs; never return.

    A worker is a process that the rank's template has forked."""
    os.nice(RIVAL_NICE)
    for _ in range(os.cpu_count() or 1):
        if os.fork() == 0:
            break
    else:
        while True:
            time.sleep(60)
    with contextlib.suppress(psutil.Error):
        while True:
            if not any(child.children() for child in psutil.Process(pid).children()):
                time.sleep(0.005)
                continue
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
    os._exit(0)


def take_part(given: argparse.Namespace) -> int:
    """Be a rank: the command ``hunt`` with faults, which it has no words for."""
    from hpcbench.config.section import Fault
    from hpcbench.fleet.hunt.job import HuntRequest, hunt_job
    from hpcbench.fleet.hunt.keeping import keeper
    from hpcbench.fleet.hunt.limits import HuntLimits
    from hpcbench.texts import Verbosity

    made = {"hang": {"kind": "stop", "iteration": 3}, "wrong": {"kind": "wrong", "iteration": 2}}
    faults = [Fault(rank=given.bad, **made[given.fault])] if given.fault in made else []
    request = HuntRequest(Path(given.folder), given.stage_seconds, given.limit, SIGN_IN_S,
                          in_turn=True, faults=tuple(faults))
    return hunt_job(request, keeper(request.folder, HuntLimits(), Verbosity.NORMAL), os.environ)


def verdicts(folder: Path) -> dict[str, str]:
    """Return node -> verdict of the hunt in a folder; {} if it left none."""
    for file in folder.glob("hunt-*/hunt.json"):
        document = json.loads(file.read_text(encoding="utf-8"))
        return {one["node"]: one["verdict"] for one in document["verdicts"]}
    return {}


@contextlib.contextmanager
def own_cores() -> Iterator[None]:
    """Put this process, and all that it starts, into a control group of its own, if it can.

    Without one, Linux divides cores among sessions first, where no priority counts."""
    root = Path("/sys/fs/cgroup/cpu")
    group = root / f"hpcbench-hunt-{os.getpid()}"
    with contextlib.suppress(OSError):
        group.mkdir()
        (group / "cpu.shares").write_text(str(SHARES))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (root / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()


def one_run(given: argparse.Namespace, fault: str, number: int, folder: Path) -> dict[str, Any]:
    """Hunt once; return who was accused, and what was printed."""
    bad = number % given.hosts if fault else -1
    link = {"slow": (str(bad + 1), _slower(given.rate))} if fault == "link" else {}
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        [*virtual_hosts.inside(given.hosts, given.rate, **link), sys.executable, __file__,
         "--lead", "--hosts", str(given.hosts), "--bad", str(bad), "--fault", fault,
         "--stage-seconds", str(given.stage_seconds), "--limit", str(given.limit),
         "--folder", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    found = verdicts(folder)
    accused = {node: verdict for node, verdict in found.items()
               if verdict in ("bad", "suspect")}
    return {"bad": f"vh{bad + 1}" if fault else "", "accused": accused, "all": found,
            "code": done.returncode, "seconds": time.monotonic() - began,
            "text": done.stdout + done.stderr}


def _slower(rate: str) -> str:
    number = rate.rstrip("abcdefghijklmnopqrstuvwxyz")
    return f"{float(number) * SLOW_LINK:g}{rate.removeprefix(number)}"


def main() -> int:
    given = arguments()
    if given.rival_of:
        compete(given.rival_of)
    if given.lead:
        return lead(given)
    if given.rank >= 0:
        return take_part(given)
    if why := virtual_hosts.why_not(given.rate):
        fail(f"no virtual hosts here: {why}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_cores())
        home = Path(given.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        return report(given, home)


def report(given: argparse.Namespace, home: Path) -> int:
    """Hunt as often as is asked, print what came out, and return the exit code."""
    missed = 0
    plan = [*((fault, given.runs) for fault in given.faults), ("", given.clean)]
    for fault, runs in plan:
        count: Counter[str] = Counter()
        seconds = 0.0
        for number in range(runs):
            run = one_run(given, fault, number, home / f"{fault or 'clean'}-{number}")
            seconds += run["seconds"]
            others = {*run["accused"]} - {run["bad"]}
            count["bad"] += run["accused"].get(run["bad"]) == "bad"
            count["suspect"] += run["accused"].get(run["bad"]) == "suspect"
            count["other"] += bool(others)
            count["none"] += len(run["all"]) != given.hosts
            if others or (fault and run["bad"] not in run["accused"]) or not run["all"]:
                print(f"  {fault or 'clean'} {number}: {run['bad']} is bad, accused are "
                      f"{run['accused']}, exit code {run['code']}\n{run['text'][-1500:]}")
        if runs:
            named = f"bad {count['bad']}, suspect {count['suspect']} of {runs}; " * bool(fault)
            print(f"{fault or 'clean':10} {named}another accused in {count['other']} of {runs}; "
                  f"{seconds / runs:.0f} s a hunt", flush=True)
            missed += count["other"] + count["none"]
            missed += (runs - count["bad"] - count["suspect"]) if fault else 0
    print(f"goals: {'met' if not missed else f'missed {missed} times'}")
    return int(bool(missed))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=10, help="with each fault")
    parser.add_argument("--clean", type=int, default=20, help="without")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=FAULTS)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--stage-seconds", type=float, default=20.0)
    parser.add_argument("--limit", type=float, default=15.0, help="seconds until a call hangs")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--keep", help="leave the folders of all hunts here")
    for hidden, default in (("--rank", -1), ("--bad", -1), ("--rival-of", 0)):
        parser.add_argument(hidden, type=int, default=default, help=argparse.SUPPRESS)
    parser.add_argument("--fault", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("--lead", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
