"""What a worker asks of Linux for itself, and what Linux knows of a process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_IOLBF = 1
KILLED_FOR_MEMORY = "killed by the kernel for memory"


def print_whole_lines() -> None:
    """Have C's stdout write every line when it is printed, as on a terminal.

    To a file it writes blocks of 4096 bytes. A worker that ends by a signal or by ``_exit``
    would lose the last lines of NCCL.
    """
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, ctypes.c_size_t(0))


def state(pid: int) -> str:
    """Return the kernel's one-letter process state (R, S, D, T, Z), or "" if there is none."""
    try:
        text = os.fsdecode(Path(f"/proc/{pid}/stat").read_bytes())  # with a name of any bytes
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]


def oom_kills() -> int | None:
    """Return how many processes of this cgroup the kernel killed for memory, None if not known."""
    for line in os.fsdecode(Path("/proc/self/cgroup").read_bytes()).splitlines():
        _, controllers, path = line.split(":", 2)
        names = {"memory": [f"memory{path}/memory.oom_control"],
                 "": [f"{path}/memory.events", f"unified{path}/memory.events"]}
        for name in names.get(controllers, ()):
            file = Path(f"/sys/fs/cgroup/{name.lstrip('/')}")
            if file.exists():
                counts = dict(line.split() for line in file.read_text().splitlines())
                if "oom_kill" in counts:
                    return int(counts["oom_kill"])
    return None
