"""Gives bad input to the command line's ``main``, again and again, under limits.

``python bad_input_process.py KIND SEED COUNT FOLDER`` prints a line of JSON for each input that was
answered badly, and at the end one with totals. Limits: `MEMORY_BYTES` of private memory beyond what
the program holds when it has read everything it needs, `CPU_S` of CPU time an input. Other tests
call a command by `hpcbench`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from bad_inputs import RunFiles, command_line, packed_file, record_file, sweep_file
from hpcbench.__main__ import main
from hpcbench.measurement.process import KernelFiles

MEMORY_BYTES = 1 << 30
CPU_S = 30.0
LONGEST_LINE = 3000
Draw = Callable[[random.Random, Path], list[str]]


class TooLong(BaseException):
    """The CPU time of one input is over."""


def draws(kind: str, folder: Path) -> Draw:
    """Return what draws the words of one call, after it has written the files they name."""
    if kind == "sweeps":
        return lambda chance, work: ["plan", str(sweep_file(chance, work))]
    if kind == "lines":
        return command_line
    if kind == "records":
        return record_file
    if kind == "packed":
        return packed_file
    files = RunFiles(folder)
    draw: Draw = getattr(files, kind)
    return draw


def hpcbench(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call a command in this process: to start another one takes several times as long.

    It prints to a text, not to a terminal, and ends as a program does.
    """
    with mock.patch.dict(os.environ, {"COLUMNS": "1000", "NO_COLOR": "1", **variables}), \
            mock.patch.object(sys, "argv", sys.argv):
        return subprocess.CompletedProcess(words, *call(list(words)))


def call(words: list[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of one call."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["hpcbench", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else -1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return code, out.getvalue(), err.getvalue()


def complaint(code: int, err: str, out: str = "") -> str | None:
    """Return what is wrong with an answer, or None."""
    if "Traceback" in err or code not in (0, 1, 2, 3, *range(10, 15)):  # those of check
        return f"exit code {code}"
    if code == 2 and not (err + out).strip():
        return "exit code 2 without a word"
    if code == 2 and err and " Error " not in err and not err.startswith(
            ("hpcbench: ", "HPCBENCH_CHECK ")):
        return "does not say who complains"
    longest = max(map(len, err.splitlines()), default=0)
    if longest > LONGEST_LINE:
        return f"a line of {longest} characters"
    return None


def answered(words: list[str]) -> tuple[str, str]:
    """Return (outcome, what was printed); outcome is ``code N`` or what was wrong."""
    try:
        code, out, err = call(words)
    except TooLong:
        return f"more than {CPU_S:g} s", traceback.format_exc()[-1500:]
    except BaseException as error:
        return f"raised {type(error).__name__}", traceback.format_exc()[-1500:]
    return complaint(code, err, out) or f"code {code}", err


def _stop(number: int, frame: Any) -> None:
    raise TooLong


def _limit_memory() -> None:
    held = KernelFiles().process_bytes("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY_BYTES,) * 2)


def fuzz(kind: str, seed: str, count: int, folder: Path) -> None:
    """Draw, call, judge."""
    signal.signal(signal.SIGPROF, _stop)
    work = folder / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    draw = draws(kind, folder)
    call(["plan", "--world-size", "2"])
    _limit_memory()
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for number in range(count):
        words = draw(random.Random(f"{kind}/{seed}/{number}"), work)
        began = time.process_time()
        outcome, said = answered(words)
        slowest = max(slowest, time.process_time() - began)
        outcomes[outcome] += 1
        if not outcome.startswith("code "):
            print(json.dumps({"number": number, "words": [word[:200] for word in words],
                              "outcome": outcome, "said": said[-1500:]}), flush=True)
    print(json.dumps({"outcomes": outcomes, "slowest_s": slowest,
                      "peak_bytes": KernelFiles().process_bytes("VmHWM")}))


if __name__ == "__main__":
    fuzz(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
