"""Which physical clock this process reads."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname


def clock_identity(proc: Path = Path("/proc")) -> str:
    """Return what is the same for processes whose CLOCK_MONOTONIC is the same physical clock.

    Linux: the boot and the time namespace (a container may have its own), with its offset. A
    namespace with the same offset counts as another clock, which costs ping-pongs, not accuracy.
    Elsewhere: the host name.
    """
    boot_id = proc / "sys/kernel/random/boot_id"
    if not boot_id.exists():
        return gethostname()
    namespace, offsets = proc / "self/ns/time", proc / "self/timens_offsets"
    if not namespace.exists():  # Linux before 5.6
        return boot_id.read_text().strip()
    status = namespace.stat()
    offset = [line.split()[1:] for line in offsets.read_text().splitlines()
              if line.startswith("monotonic")]
    return f"{boot_id.read_text().strip()}/{status.st_dev}:{status.st_ino}/{':'.join(*offset)}"
