"""How long is a small job in all, beside a bare script that does the same? Where do the seconds go?

    python benchmarks/start.py [--rounds 10] [--ranks 2] [--sizes 8 128 2048] [--iterations 20]
        [--beside 'COMMAND']

Both are started by the same mpirun and run all_reduce on gloo with fixed iterations, without plots.
The bare script imports torch, opens gloo and calls. hpcbench also looks at the machine, checks
results, keeps records and reduces them. Each round runs the bare script, hpcbench, and the bare
script again, whose ratio to the first shows how far equal programs come apart. Goals: hpcbench
takes at most 1.3 times as long (ratio of medians), and prints its first line within 0.5 s.
Another tool's ``COMMAND`` runs in each round, too, and hpcbench then draws plots, as by default.
Goals beside it, medians of the ratios of each round: time 1.0, CPU seconds 1.05, memory of the
largest process 0.75.

hpcbench is compiled to bytecode first, as any installed package is. A phase is the moment, in
seconds since the start, at which hpcbench prints that it is over. CPU seconds are those of all
processes of the job.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launching import MPIRUN, fail

GOAL_RATIO, GOAL_FIRST_LINE_S = 1.3, 0.5
GOALS_BESIDE = {"seconds": 1.0, "cpu_s": 1.05, "peak_mib": 0.75}
SIZES = tuple(8 * 4 ** step for step in range(11))
PHASES = (
    ("first line", ": starting "), ("MPI started", ": start of MPI: "), ("planned", ": plan: "),
    ("torch imported, machine probed", ": probe, with "), ("first case", r"^\[ *1/"),
    ("measured", ": measurement: "), ("traces sealed", ": traces sealed "),
    ("reduced", ": reduction: "), ("summaries written", ": summaries and plots: "),
)
"""What is over, and a pattern of the line that says so."""
_UNCOMPILED = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True)
class Timed:
    """One job: all of its seconds, its CPU seconds, the memory of its largest process (MiB), and
    when each phase was over."""

    seconds: float
    cpu_s: float
    peak_mib: float
    phases: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Run all rounds and print the table; or be a rank of the bare script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--beside", type=shlex.split, help="another tool's command, in one text")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare is not None:
        bare_rank(given.bare, given.sizes, given.iterations)
        return
    compile_package()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [(timed(bare_command(given)), timed(hpcbench_command(Path(folder), given)),
                   timed(bare_command(given)), *([timed(given.beside)] if given.beside else []))
                  for _ in range(given.rounds)]
    print("\n".join(report(rounds)))


def compile_package() -> None:
    """Compile hpcbench and its page where all processes find them, as an installation has them.

    With PYTHONDONTWRITEBYTECODE each process of each job would compile a checkout anew.
    """
    spec = importlib.util.find_spec("hpcbench")
    assert spec is not None and spec.origin is not None
    template = [sys.executable, "-c", "from hpcbench.report.page import html_text\n"
                "from hpcbench.report.document import ReportDocument, ReportSection\n"
                "html_text(ReportDocument('', '', (ReportSection('', '', ()),)), '')"]
    environ = {name: value for name, value in os.environ.items() if name != _UNCOMPILED}
    if (not compileall.compile_dir(Path(spec.origin).parent, quiet=2)
            or subprocess.run(template, env=environ, check=False).returncode):
        print("hpcbench could not be compiled beside its source: its times include that")


def bare_rank(port: int, sizes: Sequence[int], iterations: int) -> None:
    """Do what one would write without hpcbench: no check, no record."""
    import torch
    import torch.distributed as dist

    names = ("PMI", "OMPI_COMM_WORLD")
    rank, size = (next(int(os.environ[f"{name}_{what}"]) for name in names
                       if f"{name}_{what}" in os.environ) for what in ("RANK", "SIZE"))
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    for size_bytes in sizes:
        buffer, times_s = torch.ones(size_bytes // 4), []
        for _ in range(5 + iterations):
            dist.barrier()
            began_s = time.perf_counter()
            dist.all_reduce(buffer)
            times_s.append(time.perf_counter() - began_s)
        if rank == 0:
            print(f"{size_bytes} B: {1e6 * statistics.median(times_s[5:]):.1f} us", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def bare_command(given: argparse.Namespace) -> list[str]:
    """Return the command of the bare script, which meets at a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [str(MPIRUN), "-np", str(given.ranks), sys.executable, __file__, "--bare", str(port),
            "--iterations", str(given.iterations), "--sizes", *map(str, given.sizes)]


def hpcbench_command(folder: Path, given: argparse.Namespace) -> list[str]:
    """Return the command of hpcbench, and write the sweep file that it reads."""
    path = folder / "start.json"
    path.write_text(json.dumps({
        "name": "start", "output": {"plots": bool(given.beside)},
        "measure": {"passes": 1, "warmup": 5, "iterations": given.iterations},
        "benchmarks": [{"kind": "collective", "collective": "all_reduce", "backend": "gloo",
                        "size": list(given.sizes)}]}))
    return [str(MPIRUN), "-np", str(given.ranks), sys.executable, "-m", "hpcbench", "run",
            str(path), "-o", str(folder), "--verbose"]


def timed(command: Sequence[str]) -> Timed:
    """Run a job to its end; stop if it fails."""
    began_s = time.perf_counter()
    phases: dict[str, float] = {}
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}) as job:
        for line in job.stdout or ():
            lines.append(line)
            for name, part in PHASES:
                if re.search(part, line):
                    phases.setdefault(name, time.perf_counter() - began_s)
        _, status, used = os.wait4(job.pid, 0)  # of all processes that somebody waited for
        job.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began_s
    if job.returncode:
        fail("".join(lines))
    return Timed(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, phases)


def report(rounds: Sequence[tuple[Timed, ...]]) -> Iterator[str]:
    """Yield the medians over the rounds, their ratios, and whether the goals are met."""
    names = ("bare script", "hpcbench", "bare script again", "beside")[:len(rounds[0])]
    medians = [statistics.median(job.seconds for job in jobs) for jobs in zip(*rounds, strict=True)]
    for name, jobs, median in zip(names, zip(*rounds, strict=True), medians, strict=True):
        least, most = min(job.seconds for job in jobs), max(job.seconds for job in jobs)
        cpu_s = statistics.median(job.cpu_s for job in jobs)
        peak_mib = statistics.median(job.peak_mib for job in jobs)
        yield (f"{name:<18} median {median:5.2f} s ({least:.2f} to {most:.2f}), "
               f"CPU {cpu_s:5.2f} s, {peak_mib:.0f} MiB, ratio {median / medians[0]:.2f}")
    ours = [jobs[1] for jobs in rounds]
    for name, _ in PHASES:
        moments = [job.phases[name] for job in ours if name in job.phases]
        yield f"  {name:<32} {statistics.median(moments):5.2f} s" if moments else f"  {name}: none"
    first_s = statistics.median(job.phases["first line"] for job in ours)
    yield (f"ratio {medians[1] / medians[0]:.2f}, goal {GOAL_RATIO}; first line after "
           f"{first_s:.2f} s, goal {GOAL_FIRST_LINE_S}")
    for name, goal in GOALS_BESIDE.items() if len(names) > 3 else ():
        ratio = statistics.median(getattr(jobs[1], name) / getattr(jobs[3], name)
                                  for jobs in rounds)
        yield f"beside: {name} {ratio:.2f} of that, goal {goal}"


if __name__ == "__main__":
    main()
