"""The most memory that this process has held."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """Return the largest resident size of this process since its program was loaded, in bytes.

    ``ru_maxrss`` of getrusage does not tell it: Linux hands it on through fork and exec, so a child
    of a large process starts with the peak of its parent (getrusage(2)).
    """
    line = next(line for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
