"""An end, by force, to what may hang where Python runs no other thread: MPI_Init, above all.

mpi4py holds the interpreter's lock while it starts MPI, so neither a thread nor a signal handler
of ours would run. A child says what is wrong, and faulthandler's thread, which needs no lock, ends
this process with exit code 1.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_MARGIN_S = 1.0
_SPEAKER = ("import select, sys\n"
            "select.select([0], [], [], float(sys.argv[1]))[0] or print(sys.argv[2], flush=True)")


@contextlib.contextmanager
def guarded(limit_s: float, message: str | None, env: Mapping[str, str]) -> Iterator[None]:
    """End this process with code 1 if the block takes longer than ``limit_s``.

    ``message`` is printed before that, by a child whose variables are ``env``; None: nothing is.
    """
    with contextlib.ExitStack() as stack:
        nowhere = stack.enter_context(Path(os.devnull).open("w"))
        if message is not None:
            speaker = stack.enter_context(subprocess.Popen(
                [sys.executable, "-S", "-c", _SPEAKER, str(limit_s), message], env=dict(env),
                stdin=subprocess.PIPE))
            stack.callback(speaker.communicate)
        faulthandler.dump_traceback_later(limit_s + _MARGIN_S, exit=True, file=nowhere)
        stack.callback(faulthandler.cancel_dump_traceback_later)
        yield
