"""How jobs are started on the hosts of virtual_hosts.sh, in tests and benchmarks.

The command is ``(*inside(2, "1gbit"), mpirun, *one_rank_each(2), "-np", "2", ...)``; nothing has to
be cleaned up, since hosts and links are gone when the last process on them has ended.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

SCRIPT = Path(__file__).with_name("virtual_hosts.sh")
OPENMPI_ENV: Mapping[str, str] = MappingProxyType({"PRTE_MCA_plm_ssh_agent": str(SCRIPT)})
"""What makes Open MPI's mpirun start its ranks there; MPICH's has options for it."""


def inside(
    count: int, rate: str | None = None, *, queue: str | None = None,
    slow: tuple[str, str] | None = None, two: bool = False, six: bool = False,
) -> tuple[str, ...]:
    """Return the words before mpirun: so many hosts, and their links' rate in tc's units.

    ``queue``: what comes too fast is dropped if more waits. ``slow``: the host (``3``) whose link,
    or the two (``1-3``) between which what is sent, has another rate. ``two``: each has a second
    interface, eth1. ``six``: there is IPv6 alone.
    """
    return (str(SCRIPT), "run", str(count), *(("--rate", rate) if rate else ()),
            *(("--queue", queue) if queue else ()), *(("--slow", *slow) if slow else ()),
            *(("--two",) if two else ()), *(("--six",) if six else ()))


def set_link(of_process: int, interface: str, state: str) -> None:
    """Set an interface ``up`` or ``down`` on the host of a process."""
    subprocess.run(["nsenter", "--target", str(of_process), "--net", "ip", "link", "set", interface,
                    state], check=True, timeout=30)


def host_of(process: int) -> str:
    """Return the name of the host that a process runs on."""
    return subprocess.run(["nsenter", "--target", str(process), "--uts", "hostname"], text=True,
                          capture_output=True, timeout=30, check=False).stdout.strip()


def one_rank_each(count: int, mpi: str = "mpich") -> tuple[str, ...]:
    """Return the words after mpirun that put one rank on each host."""
    names = [f"vh{number}" for number in range(1, count + 1)]
    if mpi == "openmpi":
        return ("--host", ",".join(f"{name}:1" for name in names), "--map-by", "ppr:1:node")
    return ("-launcher", "rsh", "-launcher-exec", str(SCRIPT), "-ppn", "1",
            "-hosts", ",".join(names))


def why_not(rate: str | None = None) -> str | None:
    """Return why there can be no virtual hosts here (no root, no tool), or None."""
    try:
        done = subprocess.run([*inside(1, rate), "true"], capture_output=True, text=True,
                              timeout=30, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "failed" if done.returncode else None
