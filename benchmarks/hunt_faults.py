"""Does a hunt name the bad node, and no other? On virtual hosts, by real processes and real faults.

    python benchmarks/hunt_faults.py [--runs 10] [--clean 20] [--faults competing link ...]
        [--hosts 4] [--stage-seconds 4] [--limit 5] [--rate 2gbit] [--keep FOLDER]
        [--log RUNS.jsonl] [--minutes 30]

Faults and clean runs take turns. With --log each run is a line there, and a later call goes on: it
counts the runs of the same options and of the same version of what judges, others apart.

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
import hashlib
import itertools
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
RIVAL_NICE, SHARES = -10, 4096
"""A rival gets nine times as much of a core as a rank; all that takes part has four times as much
as another session of this machine: nodes have none of those beside them."""
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


def children(pid: int) -> list[int]:
    """Return the processes that this one has started."""
    with contextlib.suppress(OSError):
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    return []


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
    while Path(f"/proc/{pid}").exists():
        if not any(map(children, children(pid))):
            time.sleep(0.002)
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

    made = {"hang": {"kind": "stop", "iteration": 2}, "wrong": {"kind": "wrong", "iteration": 1}}
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
    return {"bad": f"vh{bad + 1}" if fault else "", "verdicts": verdicts(folder),
            "code": done.returncode, "seconds": round(time.monotonic() - began, 1),
            "load": os.getloadavg()[0], "text": (done.stdout + done.stderr)[-1500:]}


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


def version() -> str:
    """Return a digest of who meets whom, and who is named, in simulated hunts, and of the trials:
    runs of versions that have the same one count together."""
    import hunt
    from hpcbench.fleet.hunt import facts

    found: list[object] = [(ROOT / "hpcbench/fleet/hunt/trials.json").read_text()]
    name = "node0001"
    faults = [{}, *({"slow": {name: ((stage,), 0, 0.7)}} for stage in facts.STAGES),
              *({"faulty": {name: (outcome, facts.STAGES[at:], 0)}} for at, outcome in enumerate(
                  (facts.MISSING, facts.HANG, facts.WRONG))),
              {"links": {frozenset((name, "node0002")): 0.5}}]
    for nodes, noise, fault in itertools.product((3, 4, 8, 17), hunt.NOISES, faults):
        done, judged = hunt.hunted(hunt.Machine(nodes, noise, 0.03, **fault))
        found += [(step.purpose, step.groups) for step in done.rounds]
        found += [(one.node, one.verdict, one.stage, one.measure) for one in judged.verdicts]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:10]


def report(given: argparse.Namespace, home: Path) -> int:
    """Hunt until there are as many runs as asked, or time is up; return the exit code."""
    log = Path(given.log) if given.log else home / "runs.jsonl"
    setting = {"version": version(), "hosts": given.hosts, "stage_seconds": given.stage_seconds,
               "limit": given.limit, "rate": given.rate}
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    wanted = {**dict.fromkeys(given.faults, given.runs), "": given.clean}
    deadline = time.monotonic() + 60 * given.minutes
    while True:
        done = Counter(row["fault"] for row in rows if row["setting"] == setting)
        left = [fault for fault, runs in wanted.items() if done[fault] < runs]
        if not left or time.monotonic() > deadline:
            break
        fault = min(left, key=lambda one: done[one] / wanted[one])
        run = one_run(given, fault, done[fault], home / f"{fault or 'clean'}-{done[fault]}")
        rows.append({"fault": fault, "setting": setting, **run})
        with log.open("a") as stream:
            stream.write(json.dumps(rows[-1]) + "\n")
        if problem(rows[-1], given.hosts):
            print(f"  {fault or 'clean'} {done[fault]}: {problem(rows[-1], given.hosts)}\n"
                  f"{run['text']}", flush=True)
    return counts(rows, setting, wanted)


def problem(row: dict[str, Any], hosts: int) -> str:
    """Return what a run has got wrong, "" if nothing."""
    accused = {node for node, verdict in row["verdicts"].items() if verdict in ("bad", "suspect")}
    bad = {row["bad"]} - {""}
    return ("no verdicts" if len(row["verdicts"]) != hosts else
            f"{', '.join(sorted(accused - bad))} accused" if accused - bad else
            f"{row['bad']} not accused" if bad - accused else "")


def counts(
    rows: list[dict[str, Any]], setting: dict[str, Any], wanted: dict[str, int],
) -> int:
    """Print what all runs came to; return 1 if one has missed its goal, or is still to come."""
    missed = 0
    for fault, runs in wanted.items():
        own = [row for row in rows if row["setting"] == setting and row["fault"] == fault]
        problems = Counter(problem(row, setting["hosts"]) for row in own)
        good, seconds = problems.pop("", 0), sorted(row["seconds"] for row in own)
        missed += len(own) - good + max(0, runs - len(own))
        if own:
            what = "named, no other" if fault else "nobody accused"
            suspect = sum(row["verdicts"].get(row["bad"]) == "suspect" for row in own)
            print(f"{fault or 'clean':10} {what}: {good} of {len(own)}"
                  + f" (as suspect {suspect})" * bool(suspect)
                  + f"; {seconds[0]:.0f} to {seconds[-1]:.0f} s a hunt, median "
                  f"{seconds[len(seconds) // 2]:.0f}"
                  + "".join(f"; {why}: {count}" for why, count in problems.items()))
    if others := [row for row in rows if row["setting"] != setting]:
        missed_before = sum(bool(problem(row, row["setting"]["hosts"])) for row in others)
        print(f"other versions or options: {missed_before} of {len(others)} missed")
    print(f"goals: {'met' if not missed else f'missed, or not tried, {missed} times'}")
    return int(bool(missed))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=10, help="with each fault")
    parser.add_argument("--clean", type=int, default=20, help="without")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=FAULTS)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--stage-seconds", type=float, default=4.0)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds until a call hangs")
    parser.add_argument("--rate", default="2gbit")
    parser.add_argument("--log", help="lines of runs, to which later calls add")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run later")
    parser.add_argument("--keep", help="leave the folders of all hunts here")
    for hidden, default in (("--rank", -1), ("--bad", -1), ("--rival-of", 0)):
        parser.add_argument(hidden, type=int, default=default, help=argparse.SUPPRESS)
    parser.add_argument("--fault", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("--lead", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
