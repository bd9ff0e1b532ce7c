"""Opening and syncing files without surprises from what may lie in a results folder."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hpcbench.trace.source import UnreadableTrace


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """Yield a descriptor for reading. Raises UnreadableTrace for anything but a regular file.

    O_NONBLOCK because opening a named pipe would otherwise block for ever.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableTrace("HB103", f"{path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableTrace("HB103", f"{path}: not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a new or renamed file in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write every byte, however few the system takes at a time. Raises OSError if it cannot."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]
