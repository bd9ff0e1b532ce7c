"""Is hpcbench's triad as fast as one in C? Both, with the same threads and size, beside each other.

    python benchmarks/stream.py [--passes 160] [--calls 5] [--threads 1 all] [--size-mib 0]

The C program is compiled here, with the system's compiler (cc, or what CC names) and the flags that
are printed. It runs twice, as two processes, so that A/A is of two programs with memory of their
own. In every pass three take turns: hpcbench's measuring loop over its triad (fp64), and both
programs, which wait for their turn at a pipe. A turn is so many calls, after one that does not
count. Each side checks all of its results, before the first pass and after the last.

The arrays are as large as hpcbench chooses (size 0: four times the last cache), or as given.
Compared are the medians of turns, as ratios within a pass; shown is the geometric mean over passes
with its 95 % interval. The goal is an interval within 5 % of 1. Where that of A/A is not, or
the ratio's own interval is partly within, nothing can be told, and the goal is not met. Without a
compiler the exit code is 2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch

from hpcbench.kinds.hardware.plan.test import ARRAYS
from hpcbench.kinds.hardware.run.stream import StreamOperation
from hpcbench.operations.place import Place
from launching import fail
from paired import Loop, ThroughHpcbench, in_turns, judged, opened
from ratios import ratio

ALLOWED = 0.05
NAMES = ("hpcbench", "C", "C again")
FLAGS = ("-O3", "-march=native", "-fopenmp")
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double *array(long n) {
    void *p;
    return posix_memalign(&p, 64, n * sizeof(double)) ? NULL : p;
}

static int is_wrong(const double *restrict a, const double *restrict b, const double *restrict c,
                    double scalar, long n) {
    for (long i = 0; i < n; i++)
        if (a[i] != b[i] + scalar * c[i]) return 1;
    return 0;
}

/* Arguments: elements, scalar. Each line of the input is a number of calls, 0 for a check. */
int main(int argc, char **argv) {
    long n = atol(argv[1]), calls;
    double scalar = atof(argv[2]), *restrict a = array(n), *restrict b = array(n),
           *restrict c = array(n);
    if (!a || !b || !c) return 3;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) { a[i] = 0; b[i] = 1 + i % 61; c[i] = 1 + 2 * i % 61; }
    while (scanf("%ld", &calls) == 1) {
        if (!calls) {
            printf("%s\n", is_wrong(a, b, c, scalar, n) ? "wrong" : "right");
        } else {
            for (long call = 0; call < calls; call++) {
                double start = now_s();
#pragma omp parallel for schedule(static)
                for (long i = 0; i < n; i++) a[i] = b[i] + scalar * c[i];
                printf("%.9f ", now_s() - start);
            }
            printf("\n");
        }
        fflush(stdout);
    }
    return 0;
}
"""


class CProgram:
    """A running triad in C."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def __call__(self, calls: int) -> Sequence[float]:
        """Call so many times, after a warm-up; return the times in s."""
        return [float(word) for word in self._ask(1 + calls).split()[1:]]

    def check(self) -> None:
        """Check the result: every element."""
        self(1)
        if (answer := self._ask(0)) != "right\n":
            fail(f"the result of the C program is {answer.strip()}")

    def _ask(self, number: int) -> str:
        assert self._program.stdin and self._program.stdout
        try:
            self._program.stdin.write(f"{number}\n")
            self._program.stdin.flush()
        except BrokenPipeError:
            fail(f"the C program ended with exit code {self._program.wait()}")
        if not (line := self._program.stdout.readline()):
            fail(f"the C program ended with exit code {self._program.wait()}")
        return line


def main() -> None:
    """Compile the program, measure with each number of threads and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--passes", type=int, default=160)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--threads", nargs="+", default=["1", "all"])
    parser.add_argument("--size-mib", type=float, default=0, help="of an array")
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        print(f"passes: {given.passes} of {given.calls} calls; load {os.getloadavg()[0]:.1f}; "
              "ratios of times to the C program's, with 95 % intervals")
        verdicts = {triad(program, threads, given) for threads in dict.fromkeys(
            cores if word == "all" else int(word) for word in given.threads)}
    is_met = verdicts == {"met"}
    sys.exit(int(not is_met))


def compiled(folder: Path) -> Path:
    """Return the program, compiled; end this process where that fails."""
    names = [os.environ["CC"]] if "CC" in os.environ else ["cc", "gcc", "clang"]
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        fail(f"no C compiler: {', '.join(names)}")
    source, program = folder / "triad.c", folder / "triad"
    source.write_text(SOURCE, encoding="ascii")
    done = subprocess.run([compiler, *FLAGS, "-o", program, source], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        fail(f"{compiler} {' '.join(FLAGS)} failed: {done.stderr}")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    print(f"{version.stdout.splitlines()[0]}, {' '.join(FLAGS)}")
    return program


def triad(program: Path, threads: int, given: argparse.Namespace) -> str:
    """Measure with so many threads, print the line and return the verdict."""
    size = {"size": int(given.size_mib * 2**20)} if given.size_mib else {}
    operation = opened(Place(0, 1, None, torch.device("cpu")), test="stream", kernel="triad",
                       dtype="fp64", threads=threads, **size)
    assert isinstance(operation, StreamOperation)
    through, size_bytes = ThroughHpcbench(operation, given.calls), operation.output.nbytes
    with ExitStack() as running:
        programs = [running.enter_context(started(program, size_bytes // 8, threads))
                    for _ in NAMES[1:]]
        for side in (through, *programs):
            side.check()
        loops: list[Loop] = [through, *programs]
        times_s = in_turns(loops, given.passes, given.calls)
        for side in (through, *programs):
            side.check()
    operation.close()
    found, chance = (ratio(times_s[at], times_s[1]) for at in (0, 2))
    verdict = judged(found, chance, ALLOWED)
    moved = ARRAYS["triad"] * size_bytes / 1e9
    rates = ", ".join(f"{name} {moved / np.median(own):.2f} GB/s"
                      for name, own in zip(NAMES, times_s, strict=True))
    print(f"threads: {threads}, arrays of {size_bytes / 2**20:g} MiB: {rates}\n  hpcbench "
          f"{found.text}, A/A {chance.text}: within {ALLOWED:.0%} is {verdict}", flush=True)
    return verdict


@contextmanager
def started(program: Path, elements: int, threads: int) -> Iterator[CProgram]:
    """Yield a running program; it ends when its input does."""
    with subprocess.Popen(
            [program, str(elements), "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)}) as process:
        yield CProgram(process)
        assert process.stdin
        process.stdin.close()


if __name__ == "__main__":
    main()
