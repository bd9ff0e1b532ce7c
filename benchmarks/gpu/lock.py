"""One session at a time in a folder, the steps of a killed one included."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_AGAIN_S = 0.2


class OccupiedError(Exception):
    """The lock is another session's, or of a step that a killed one left, or cannot be opened."""


@contextmanager
def only_session(folder: Path, wait_s: float) -> Iterator[int]:
    """Hold the folder's lock; give its file descriptor, for steps to inherit.

    The kernel keeps the lock until the last process that has the descriptor ends: the session, the
    command of its step, and what that starts without closing descriptors, as MPI's launchers do.
    So it is held, too, while a step outlives its killed session. Raises `OccupiedError` after
    ``wait_s``, or if the file cannot be opened. A file system that has no locks is used without.
    """
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise OccupiedError(f"{folder / 'lock'} cannot be opened: {error.strerror}") from None
    try:
        _take(descriptor, folder, time.monotonic() + wait_s)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path, deadline: float) -> None:
    if _is_taken(descriptor):
        return
    print(f"waiting for what still runs in {folder} ...", flush=True)
    while not _is_taken(descriptor):
        if time.monotonic() > deadline:
            raise OccupiedError(
                f"another session, or a step that it left, still runs in {folder}; end it "
                f"(fuser {folder / 'lock'} lists its processes), or give another --output")
        time.sleep(_LOOK_AGAIN_S)


def _is_taken(descriptor: int) -> bool:
    """Try to take the lock; return whether this process has it, or there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
