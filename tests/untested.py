"""The last line of a green run of all tests: what was not tested here, and how to add it."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

PACKAGED = (
    (("slurmctld", "slurmd", "srun", "munged"), "Slurm"),
    (("sshd", "ssh"), "MPIJobs over ssh"),
    (("g++",), "torch.compile"),
    (("chromium", "chromedriver"), "reports in a browser"),
)
"""Programs that .ci/run installs, and what is tested with them."""


def missing() -> list[str]:
    """Return what this machine does not test, each with the way to it."""
    found, lacking = [], [what for programs, what in PACKAGED if not installed(*programs)]
    if lacking:
        found.append(f"{', '.join(lacking)} (bash .ci/run installs what they need on Debian)")
    if not installed("ip", "tc", "nsenter"):
        found.append("networks of several hosts (install iproute2 and util-linux)")
    if find_spec("torch_ucc") is None:
        found.append("backend ucc (build torch_ucc)")
    if "HPCBENCH_TEST_CUDA_PYTHON" not in os.environ:
        found.append("torch's CUDA build, by itself (run scripts/cuda_wheel FOLDER)")
    return [*found, "GPUs and nccl (run bash benchmarks/gpu.sh on a machine that has them)"]


def installed(*programs: str) -> bool:
    """Tell whether these programs are there, those of administrators included."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    return all(shutil.which(program, path=path) for program in programs)


def closing_line(full: bool) -> str:
    """Return the line; ``full`` tells that no test waited for --full."""
    waiting = [] if full else ["what waits for --full (bash tests/run.sh --full)"]
    return f"Not tested here: {'; '.join((*waiting, *missing()))}."
