"""What is kept of a worker's output, how much memory that takes, and that it comes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hpcbench.launch.worker_process import (
    KEPT_BYTES,
    SLACK_BYTES,
    WorkerOutput,
    case_stacks,
    read_tail,
)
from launcher import ROOT

MOST_BYTES = 2 * KEPT_BYTES + SLACK_BYTES
PAGES_AT_THE_EDGES = 4 * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def output() -> Iterator[WorkerOutput]:
    found = WorkerOutput()
    yield found
    found.close()


def lines(name: str, size_bytes: int) -> bytes:
    """Return numbered lines of 64 bytes, as many as fit."""
    return b"".join(f"{name} {number}".ljust(63, ".").encode() + b"\n"
                    for number in range(size_bytes // 64))


def memory_bytes(output: WorkerOutput) -> int:
    return os.fstat(output.fd).st_blocks * 512


def test_a_case_has_what_was_printed_since_it_began(output: WorkerOutput) -> None:
    assert output.since_mark() == b""
    os.write(output.fd, b"before\n")
    output.mark()
    assert output.since_mark() == b""
    os.write(output.fd, b"one\ntwo")
    assert output.since_mark() == b"one\ntwo"
    output.mark()
    assert output.since_mark() == b""
    assert read_tail(output.fd, 100) == "before\none\ntwo"


def test_of_much_both_ends_are_kept_in_whole_lines(output: WorkerOutput) -> None:
    os.write(output.fd, b"joined\n")
    output.mark()
    os.write(output.fd, b"connected\n" + lines("call", 5 * KEPT_BYTES) + b"the end")
    found = output.since_mark().split(b"\n")
    assert (found[0], found[-1]) == (b"connected", b"the end")
    assert all(len(line) == 63 and line.startswith(b"call ") for line in found[1:-1])
    assert 2 * KEPT_BYTES - 128 < len(b"\n".join(found)) <= 2 * KEPT_BYTES
    assert read_tail(output.fd, 100).endswith("\nthe end")


def test_memory_is_bounded_within_a_case_and_over_many(output: WorkerOutput) -> None:
    most = 0
    for case in range(6):
        output.mark()
        os.write(output.fd, b"connected\n")
        for _ in range(3):  # a look every wakeup_s
            os.write(output.fd, lines(f"case {case}", SLACK_BYTES))
            output.tidy()
            most = max(most, memory_bytes(output))
        found = output.since_mark()
        assert found.startswith(b"connected\ncase %d 0." % case) and b"\0" not in found
        assert found.endswith(lines(f"case {case}", SLACK_BYTES)[-64 * 1000:])
    assert output.size() > 3 * MOST_BYTES
    assert most <= MOST_BYTES + PAGES_AT_THE_EDGES


def test_little_output_is_never_touched(output: WorkerOutput) -> None:
    for _ in range(3):
        os.write(output.fd, lines("x", SLACK_BYTES // 4))
        output.mark()
    assert memory_bytes(output) >= output.size()


def test_another_process_goes_on_writing_behind_the_hole(output: WorkerOutput) -> None:
    code = "import sys; sys.stdout.write('b' * int(sys.argv[1])); print(); print('last')"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(2 * MOST_BYTES)], stdout=output.fd,
                       check=True)
        output.mark()
    assert output.size() == 2 * (2 * MOST_BYTES + 6)
    assert memory_bytes(output) <= KEPT_BYTES + PAGES_AT_THE_EDGES
    assert read_tail(output.fd, 100) == "last\n"


def test_a_process_that_empties_its_output_is_survived(output: WorkerOutput) -> None:
    os.write(output.fd, lines("x", MOST_BYTES))
    output.mark()
    os.truncate(output.fd, 0)  # what fopen("/dev/stdout", "w") does
    assert output.since_mark() == b""
    output.tidy()
    output.mark()
    assert output.size() == 0


@pytest.mark.parametrize("call", ["None", "print_whole_lines()"])
def test_what_a_library_prints_comes_at_once(call: str) -> None:
    """C's stdout keeps what NCCL says for itself until it has 4096 bytes, or for ever."""
    code = ("import ctypes, os; from hpcbench.launch.template_process import print_whole_lines; "
            f"{call}; ctypes.CDLL(None).puts(b'NCCL INFO'); os._exit(0)")
    env = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True,
                          check=True)
    assert done.stdout == (b"NCCL INFO\n" if "lines" in call else b"")


def test_stacks_begin_with_the_thread_of_the_case() -> None:
    recorder = 'Thread 0x1 (most recent call first):\n  File "profiling/flight.py", line 3 in _a'
    other = 'Thread 0x2 (most recent call first):\n  File "loader.py", line 1 in get'
    case = 'Current thread 0x3 (most recent call first):\n  File "c10d.py", line 9 in all_reduce'
    assert case_stacks(f"{recorder}\n\n{other}\n\n{case}\n") == f"{case}\n\n{other}"
    assert case_stacks("") == ""
