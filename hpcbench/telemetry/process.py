"""What the kernel tells of one process: the worker that runs at the time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcbench.telemetry.source import HeldFile, Source, UnreadableError, Values

_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of the kernel: the CPU time of all threads of a process, to the ns."""
_AFTER_NAME = {"minor_faults": 7, "major_faults": 9, "rss_pages": 21}
"""Numbers of the words of /proc/PID/stat behind the name, which may have spaces (proc(5))."""


class ProcessSource(Source):
    """CPU time, page faults and memory of the worker; nothing while there is none."""

    table = "process"

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._page_bytes = os.sysconf("SC_PAGESIZE")
        self._now: tuple[int, HeldFile, HeldFile | None] | None = None
        self.devices = ["worker"]
        self._open(os.getpid())  # raises where no process can be looked at
        self._now = None

    def watch(self, pid: int) -> None:
        """Look at another process from now on; one that is gone already is not looked at."""
        with contextlib.suppress(UnreadableError):
            self._open(pid)

    def _open(self, pid: int) -> None:
        self._now = None
        folder = self._root / "proc" / str(pid)
        stat = HeldFile(folder / "stat")
        try:
            waited: HeldFile | None = HeldFile(folder / "schedstat")
        except UnreadableError as error:
            waited, self.missing["wait_ns"] = None, str(error).replace(str(pid), "PID")
        self._now = (pid, stat, waited)

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        """Yield the process that is watched, if it still runs."""
        if (now := self._now) is None:
            return
        pid, stat, waited = now
        try:
            words = stat.text().rpartition(")")[2].split()
            values = {name: int(words[at_word]) for name, at_word in _AFTER_NAME.items()}
            cpu_ns = time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK)
            wait = {"wait_ns": int(waited.text().split()[1])} if waited is not None else {}
        except (OSError, UnreadableError):  # it has ended
            if self._now is now:  # not another that is watched since
                self._now = None
            return
        yield 0, {"pid": pid, "cpu_ns": cpu_ns, **wait,
                  "rss_bytes": values.pop("rss_pages") * self._page_bytes, **values}
