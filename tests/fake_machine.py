"""A /proc and /sys of files: what telemetry reads at its seam."""

from __future__ import annotations

import os
from pathlib import Path

from hpcbench.measurement.process import own_cores

NET_HEAD = "Inter-|   Receive   |  Transmit\n face |bytes packets errs drop ...|bytes ...\n"
RAPL_RANGE_UJ = 262_143_328_850


def write(root: Path, path: str, text: object) -> Path:
    """Write a file of the kernel; one that is open sees the new text."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
    return file


def net_dev(**sent_bytes: int) -> str:
    """Return /proc/net/dev: each interface received twice what it sent, and dropped 3 and 4."""
    return NET_HEAD + "\n".join(
        f"{name:>6}: {2 * sent} 1 5 3 0 0 0 0 {sent} 1 6 4 0 0 0 0"
        for name, sent in sent_bytes.items())


def make_machine(root: Path, *, rapl: bool = True, cpufreq: bool = True) -> Path:
    """Write a node with one InfiniBand port, two RAPL domains, and the clocks of its cores."""
    write(root, "proc/stat", "cpu  100 20 30 400 50 6 7 8 0 0\ncpu0 50 10 15 200 25 3 3 4 0 0")
    write(root, "proc/net/dev", net_dev(lo=1000, eth0=500))
    process = f"proc/{os.getpid()}"
    write(root, f"{process}/stat", stat_line())
    write(root, f"{process}/schedstat", "111 222 3")
    port = "sys/class/infiniband/mlx5_0/ports/1/counters"
    for name, value in (("port_rcv_data", 10), ("port_xmit_data", 20),
                        ("port_xmit_discards", 1), ("port_rcv_errors", 2)):
        write(root, f"{port}/{name}", value)
    for zone, name, energy_uj in (("intel-rapl:0", "package-0", 1000),
                                  ("intel-rapl:0:0", "dram", 500)) if rapl else ():
        folder = f"sys/class/powercap/{zone}"
        write(root, f"{folder}/name", name)
        write(root, f"{folder}/energy_uj", energy_uj)
        write(root, f"{folder}/max_energy_range_uj", RAPL_RANGE_UJ)
    for core in {0, 1, *own_cores()} if cpufreq else ():
        folder = f"sys/devices/system/cpu/cpu{core}"
        write(root, f"{folder}/cpufreq/scaling_cur_freq", 3_000_000 if core else 2_000_000)
        write(root, f"{folder}/thermal_throttle/core_throttle_count", 1)
        write(root, f"{folder}/thermal_throttle/package_throttle_count", 2)
    return root


def stat_line(minor: int = 7, major: int = 9, rss_pages: int = 21) -> str:
    """Return /proc/PID/stat of a process with a hard name."""
    return (f"1 (py) S (x) S 1 1 1 0 -1 0 {minor} 0 {major} 0 1 2 0 0 20 0 1 0 5 6 {rss_pages} "
            + "0 " * 20)
