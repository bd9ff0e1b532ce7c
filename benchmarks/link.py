"""What does a limited link between two virtual hosts carry, and what CPU time does it cost?

    python benchmarks/link.py [--rate 1gbit]          as root; see tests/virtual_hosts.sh

A TCP stream from the first host to the second, one back, and both at once. The rate is one of
packets: of 1 Gbit/s (125 MB/s), headers of 1500-byte packets leave 118 MB/s of payload. Goal: 110
to 123 MB/s in each direction, alone and at once. CPU time is given in cores: of the two processes,
which send and receive, and of the kernel's network interrupts (softirq), where the link is.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from launching import fail  # noqa: E402
from virtual_hosts import SCRIPT, inside  # noqa: E402

PORT, BLOCK_BYTES, STREAM_BYTES = 5077, 1 << 20, 200 << 20
GOAL_MB_S = (110.0, 123.0)
GO, SECONDS = b"go", struct.Struct("d")
DIRECTIONS = ("there", "back", "both")


@dataclass(frozen=True)
class Stream:
    """One measurement: the direction, payload in MB/s (each way), CPU time in cores."""

    direction: str
    mb_s: float
    processes_cores: float
    softirq_cores: float

    def met(self) -> bool:
        """Tell whether the goal is met."""
        return GOAL_MB_S[0] <= self.mb_s <= GOAL_MB_S[1]

    def __str__(self) -> str:
        return (f"link {self.direction:<5} {self.mb_s:6.1f} MB/s; CPU: processes "
                f"{self.processes_cores:.3f}, network interrupts {self.softirq_cores:.3f} cores"
                f"{'' if self.met() else '  missed'}")


def main() -> None:
    """Measure and print; or be one end of the streams."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--end", choices=("vh1", "vh2"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.end == "vh1":
        print(json.dumps([asdict(stream) for stream in first_end()]))
    elif given.end == "vh2":
        second_end()
    else:
        streams = measured_link(given.rate)
        print(*streams, sep="\n")
        print(f"load {os.getloadavg()[0]:.1f}; goal {GOAL_MB_S[0]:g} to {GOAL_MB_S[1]:g} MB/s")
        sys.exit(int(not all(stream.met() for stream in streams)))


def measured_link(rate: str) -> list[Stream]:
    """Return the streams over a link of this rate, between two new hosts that end with them."""
    done = subprocess.run(
        [*inside(2, rate), sys.executable, __file__, "--end", "vh1"],
        capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"no virtual hosts (root, ip, tc with tbf and nsenter are needed):\n{done.stderr}")
    return [Stream(**stream) for stream in json.loads(done.stdout)]


def first_end() -> list[Stream]:
    """Start the other end and measure each direction with it."""
    found = []
    with (socket.create_server(("vh1", PORT)) as server,
          subprocess.Popen([SCRIPT, "vh2", sys.executable, __file__, "--end", "vh2"])):
        server.settimeout(20)
        connection, _ = server.accept()
        with connection:
            for direction in DIRECTIONS:
                connection.sendall(GO)
                with cpu_time() as spent:
                    exchange(connection, sends=direction != "back", receives=direction != "there")
                    theirs = SECONDS.unpack(connection.recv(SECONDS.size, socket.MSG_WAITALL))[0]
                wall, own, softirq = spent()
                found.append(Stream(direction, STREAM_BYTES / 1e6 / wall, (own + theirs) / wall,
                                    softirq / wall))
    return found


def second_end() -> None:
    """Do the other side of each direction, and tell the CPU time that it took."""
    with socket.create_connection(("vh1", PORT), timeout=20) as connection:
        for direction in DIRECTIONS:
            assert connection.recv(len(GO)) == GO
            with cpu_time() as spent:
                exchange(connection, sends=direction != "there", receives=direction != "back")
            connection.sendall(SECONDS.pack(spent()[1]))


def exchange(connection: socket.socket, *, sends: bool, receives: bool) -> None:
    """Send, receive or both at once ``STREAM_BYTES``."""
    sender = threading.Thread(target=send, args=(connection,))
    if sends:
        sender.start()
    if receives:
        receive(connection)
    if sends:
        sender.join()


def send(connection: socket.socket) -> None:
    """Send ``STREAM_BYTES`` of nothing."""
    block = bytes(BLOCK_BYTES)
    for _ in range(STREAM_BYTES // BLOCK_BYTES):
        connection.sendall(block)


def receive(connection: socket.socket) -> None:
    """Receive ``STREAM_BYTES``."""
    block, missing = bytearray(BLOCK_BYTES), STREAM_BYTES
    while missing:
        got = connection.recv_into(block, min(missing, BLOCK_BYTES))
        assert got, "the other end has gone"
        missing -= got


@contextmanager
def cpu_time() -> Iterator[Callable[[], tuple[float, float, float]]]:
    """Yield what returns, after the block, its seconds: by the clock, of this process, of softirq.

    softirq is the whole machine's (proc(5), the seventh figure of /proc/stat).
    """
    def now() -> tuple[float, float, float]:
        ticks = int(Path("/proc/stat").read_text().split()[7])
        return time.perf_counter(), time.process_time(), ticks / os.sysconf("SC_CLK_TCK")

    began = now()
    ended: list[float] = []
    yield lambda: (ended[0], ended[1], ended[2])
    ended += [after - before for before, after in zip(began, now(), strict=True)]


if __name__ == "__main__":
    main()
