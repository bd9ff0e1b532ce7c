"""The last line of a green run of all tests: what was not tested here, and how to add it."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

ADMINS = "/usr/sbin:/sbin"
"""Where daemons are that the PATH of an ordinary user lacks."""


def found(program: str) -> bool:
    """Tell whether a program is installed."""
    return bool(shutil.which(program) or shutil.which(program, path=ADMINS))


def missing() -> list[str]:
    """Return what this machine lacks that a test would use, each with the way to it."""
    lacks = []
    if not all(map(found, ("slurmctld", "slurmd", "srun", "munged"))):
        lacks.append("Slurm and " * (not found("sshd")) + (
            "its job files (bash .ci/run --full, as root on Debian, installs it)"))
    if not found("sshd") and found("slurmctld"):
        lacks.append("MPIJobs over ssh (install openssh-server)")
    if not found("g++"):
        lacks.append("torch.compile (install g++ and Python's headers)")
    if find_spec("torch_ucc") is None:
        lacks.append("backend ucc (build torch_ucc)")
    if not Path("/dev/nvidia0").exists():
        lacks.append("GPUs and nccl (a machine that has one)")
    return lacks


def closing_line(full: bool) -> str:
    """Return the line; ``full`` tells that no test waited for --full."""
    parts = [] if full else ["tests that wait for --full (bash tests/run.sh --full)"]
    return f"Not tested here: {'; '.join((*parts, *missing()))}."

