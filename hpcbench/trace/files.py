"""Reading files only if they are regular ones, and writing them absent or whole."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from hpcbench.errors import FileError
from hpcbench.trace.source import UnreadableTrace

SUITE_FILE = "suite.json"
"""The file by which the folder of a suite is known; each member has a results folder below it."""

_CANNOT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF,
                     errno.EACCES, errno.EPERM})
"""Errors by which a file system says that it does not sync folders, or not for this user."""


def is_suite(folder: Path) -> bool:
    """Return whether this is the folder of a suite, whose members have the results."""
    return (folder / SUITE_FILE).is_file()


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """Yield a descriptor for reading. Raises UnreadableTrace where that is no regular file.

    O_NONBLOCK because opening a named pipe would otherwise block for ever. An OSError of the block
    becomes UnreadableTrace, too.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableTrace("HB103", f"{path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableTrace("HB103", f"{path}: not a regular file")
        yield descriptor
    except OSError as error:
        raise UnreadableTrace("HB103", f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path, *, make_folder: bool = False) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes its name, durable, if the block ends well.

    Raises FileError if the disk does not take it; then ``path`` is as it was before.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        with beside.open("rb") as stream:
            os.fsync(stream.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def sync_folder(folder: Path) -> bool:
    """Make a new or renamed file in the folder durable; return whether the file system can.

    Some can not (FUSE, network shares), and not every user may read a folder. What a file holds
    is durable all the same. Raises OSError where the disk fails.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return False
    return True


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write every byte, however few the system takes at a time. Raises OSError if it cannot."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]
