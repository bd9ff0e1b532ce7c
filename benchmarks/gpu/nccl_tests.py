"""Run nccl-tests beside the sweep of NCCL's collectives, and compare bus bandwidths.

    python benchmarks/gpu/nccl_tests.py RESULTS FOLDER GPUS

nccl-tests' programs are looked for on PATH and in NCCL_TESTS_HOME. One process drives all GPUs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu.record import write_json
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results

PROGRAMS = {"all_reduce": "all_reduce_perf", "all_gather": "all_gather_perf",
            "reduce_scatter": "reduce_scatter_perf", "broadcast": "broadcast_perf",
            "all_to_all": "alltoall_perf", "send_recv": "sendrecv_perf"}
LEAST_BYTES = 2**20
WITHIN = 0.1
_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+((?:\s+[\d.]+){3}\s+\S+(?:\s+[\d.]+){3})")


def main() -> int:
    """Write verdicts.json in the folder; nccl-tests that are not there are no failure."""
    results_folder, folder, gpus = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    found = {name: path for name, program in PROGRAMS.items() if (path := _path(program))}
    if not found:
        return _write(folder, "skipped", "nccl-tests are neither on PATH nor in NCCL_TESTS_HOME")
    with open_results(results_folder) as file:
        ours = our_bandwidths(file.results)
    theirs = {}
    for name, path in found.items():
        done = subprocess.run([path, "-b", "8", "-e", "1G", "-f", "8", "-g", str(gpus), "-d",
                               "float"], capture_output=True, text=True, check=False,
                              close_fds=False)  # it inherits the lock of the session, gpu/lock.py
        print(done.stdout, done.stderr)
        theirs.update({(name, size): rate for size, rate in bandwidths(done.stdout).items()})
    return _write(folder, *compared(ours, theirs))


def _path(program: str) -> str | None:
    home = os.environ.get("NCCL_TESTS_HOME", "")
    places = os.pathsep.join((home, str(Path(home) / "build"), os.environ.get("PATH", "")))
    return shutil.which(program, path=places)


def our_bandwidths(results: Results) -> dict[tuple[str, int], float]:
    """Return GB/s by collective and bytes, of calls back to back, as nccl-tests times them."""
    found = {}
    for item in results.cases:
        busbw = (results.record_of(item) or {}).get("busbw_bytes_per_s")
        if item.status == "ok" and item.case.mode == "pipelined" and busbw:
            work = item.case.workload
            found[work.collective, work.size_bytes] = busbw / 1e9
    return found


def bandwidths(text: str) -> dict[int, float]:
    """Return the larger bus bandwidth of both forms in GB/s by bytes, as nccl-tests prints it."""
    found = {}
    for line in text.splitlines():
        if match := _ROW.match(line):
            words = match[2].split()  # time, algbw, busbw, #wrong of the one; the other's first 3
            found[int(match[1])] = max(float(words[2]), float(words[6]))
    return found


def compared(
    ours: Mapping[tuple[str, int], float], theirs: Mapping[tuple[str, int], float],
) -> tuple[str, str]:
    """Return the verdict and the ratios ours / theirs of the sizes that both have."""
    ratios = {key: ours[key] / theirs[key] for key in ours
              if theirs.get(key) and key[1] >= LEAST_BYTES}
    if not ratios:
        return "cannot tell", "no size of both was measured"
    worst = min(ratios, key=lambda key: ratios[key])
    detail = (f"ours over nccl-tests: {min(ratios.values()):.3f} to {max(ratios.values()):.3f} of "
              f"{len(ratios)} sizes, least for {worst[0]} of {worst[1]} B")
    return ("met" if ratios[worst] >= 1 - WITHIN else "missed"), detail


def _write(folder: Path, verdict: str, detail: str) -> int:
    write_json(folder / "verdicts.json", {"nccl_tests": {"verdict": verdict, "detail": detail}})
    print(f"{verdict}: {detail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
