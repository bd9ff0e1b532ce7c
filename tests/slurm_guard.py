"""Ends a test's Slurm when the process that started it dies, by whatever signal.

    python tests/slurm_guard.py SLURM_CONF SOCKETS < PIPE

The pipe's other end is the owner's. It closes when the owner dies: then every process with this
SLURM_CONF is killed, daemons, job steps and waiting commands alike. Before it ends in order, the
owner writes a byte, and nothing is left to do.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

_DOWN_S = 10.0


def main() -> None:
    """Wait for the owner's end, then end what it left."""
    configuration, sockets = sys.argv[1:]
    if sys.stdin.buffer.read():
        return
    deadline = time.monotonic() + _DOWN_S
    while (left := processes_of(configuration)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(0.1)
    shutil.rmtree(sockets, ignore_errors=True)


def processes_of(configuration: str) -> list[psutil.Process]:
    """Return the living processes of a cluster."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if (process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
                    and _belongs(process, configuration)):
                found.append(process)
    return found


def _belongs(process: psutil.Process, configuration: str) -> bool:
    """Tell whether a process has the variable; slurmstepd overwrites its own, and has a log."""
    if process.environ().get("SLURM_CONF") == configuration:
        return True
    logs = f"{Path(configuration).parent}/log/"
    return process.name().startswith("slurmstepd") and any(
        file.path.startswith(logs) for file in process.open_files())


if __name__ == "__main__":
    main()
