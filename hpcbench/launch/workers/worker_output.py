"""What a worker prints: in memory, and only as much of it as can still say something."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

from hpcbench.masking import masked

KEPT_BYTES = 512 * 1024
"""Of what one case prints both ends are read: connections are made at its beginning, what failed
stands at its end."""
SLACK_BYTES = 4 * 2**20
"""Memory is given back so much at a time, so that a case that prints little costs nothing."""


class WorkerOutput:
    """An anonymous file that one worker writes to and its supervisor reads.

    Its size only grows, so that positions in it hold; what is not kept becomes a hole.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("hpcbench-worker-output")
        self._mark = 0
        self._tidied = 0

    def size(self) -> int:
        """Return how many bytes were printed so far."""
        return os.fstat(self.fd).st_size

    def mark(self) -> None:
        """Have `since_mark` return what is printed from now on."""
        self._mark = self.size()
        self.tidy()

    def since_mark(self) -> bytes:
        """Return what was printed since: all, or the lines in its first and last KEPT_BYTES."""
        end = self.size()
        if end - self._mark <= 2 * KEPT_BYTES:
            return os.pread(self.fd, 2 * KEPT_BYTES, self._mark)
        first = os.pread(self.fd, KEPT_BYTES, self._mark)
        last = os.pread(self.fd, KEPT_BYTES, end - KEPT_BYTES)
        return first.rpartition(b"\n")[0] + b"\n" + last.partition(b"\n")[2]

    def tidy(self) -> None:
        """Give back what neither `since_mark` nor a look at the last lines reads."""
        kept_from = self.size() - KEPT_BYTES
        if kept_from - self._tidied >= SLACK_BYTES:
            self._tidied = kept_from
            _give_back(self.fd, 0, min(self._mark, kept_from))
            _give_back(self.fd, self._mark + KEPT_BYTES, kept_from)

    def close(self) -> None:
        """Give all of it back."""
        os.close(self.fd)


def _give_back(fd: int, first: int, last: int) -> None:
    """Make a hole of the whole pages between two positions; the size stays."""
    first, last = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        with (suppress(OSError),  # no reason to end a job: it then takes the memory that it takes
              mmap.mmap(fd, last - first, offset=first) as pages):
            pages.madvise(mmap.MADV_REMOVE)


def read_tail(fd: int, size_bytes: int) -> str:
    """Return the end of an output file from its first whole line, secrets masked."""
    length = os.fstat(fd).st_size
    text = text_of(os.pread(fd, size_bytes, max(0, length - size_bytes)))
    return text if length <= size_bytes else text.partition("\n")[2]


def text_of(output: bytes) -> str:
    """Return what a worker printed, without the secrets that it may have from this environment."""
    return masked(output.decode(errors="replace"), os.environ)


def of_the_case(stacks: str) -> str:
    """Return faulthandler's stacks, the interrupted thread first, without the flight record's.

    faulthandler begins with the newest thread, and reports show the first lines only.
    """
    threads = [thread.strip("\n") for thread in stacks.split("\n\n")
               if "flight_recorder.py" not in thread]
    threads.sort(key=lambda thread: not thread.startswith("Current thread"))
    return "\n\n".join(threads)
