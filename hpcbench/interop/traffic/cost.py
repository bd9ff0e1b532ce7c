"""The cost of recording a call: a loop of gloo's all_reduce of one rank, with and without it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hpcbench.errors import UsageError
from hpcbench.interop.traffic.recording import Recording, recorded_environment
from hpcbench.units import plural

PAIRS = 5
SETTINGS: Mapping[str, bool] = {"recording": False, "with --durations": True}
_LOOP = """
import os, time
if hasattr(os, "sched_setaffinity"):  # on several cores, who wakes whom changes the time more
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ones, means = torch.ones(16), []
for number in range(101):
    began = time.process_time()
    for _ in range(100):
        dist.all_reduce(ones)
    means.append((time.process_time() - began) / 100)
dist.destroy_process_group()
print(min(means))
"""


def cost_lines(pairs: int = PAIRS) -> Iterator[str]:
    """Yield the CPU time that recording adds to a call, for each of SETTINGS.

    Each number is the median of so many differences of two processes, one after the other, with
    their range; the time of a process is the least of 101 means, on one core. Raises UsageError
    where the loop does not run.
    """
    with TemporaryDirectory(prefix="hpcbench-record-") as folder:
        rounds = [_round(Path(folder) / str(number)) for number in range(pairs)]
    for at, name in enumerate(SETTINGS, 1):
        added = [(one[at] - one[0]) * 1e6 for one in rounds]
        yield (f"{name}: {statistics.median(added):.1f} us of CPU a gloo call "
               f"({min(added):.1f} to {max(added):.1f} in {plural(pairs, 'pair')})")


def _round(folder: Path) -> Sequence[float]:
    """Return the seconds of a call without recording, and with each setting."""
    return [_seconds(dict(os.environ)), *(_seconds(recorded_environment(
        os.environ, Recording(folder / str(durations), durations=durations, quiet=True)))
        for durations in SETTINGS.values())]


def _seconds(environ: Mapping[str, str]) -> float:
    done = subprocess.run([sys.executable, "-c", _LOOP], env={**environ, "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(f"--cost needs torch with gloo: {last}")
    return float(done.stdout)
