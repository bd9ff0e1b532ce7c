"""Limits on what reading a file of others may take; ``HPCBENCH_LIMITS`` multiplies all of them."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path

from hpcbench.errors import FileError, UsageError

VARIABLE = "HPCBENCH_LIMITS"
MOST = 1e6
"""The greatest value of the variable: beyond it a limit is none."""
PACKED, SMALL_BYTES = 100, 2**26
"""Logs, traces and results pack to a tenth or a fiftieth, deflate to a thousandth at most: a file
may unpack to `SMALL_BYTES`, and beyond that to `PACKED` times its size."""

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 2**20
_LINE_BYTES = 16
"""A line of a packed file counts as so many bytes at least: each keeps a reader as busy."""


def raised(limit: int) -> int:
    """Return a limit times ``HPCBENCH_LIMITS``. Raises UsageError for no number from 1."""
    return int(limit * _factor())


def unpacked(file_bytes: int) -> int:
    """Return the bytes to which a packed file of that size may unpack."""
    return raised(SMALL_BYTES + PACKED * file_bytes)


def remedy() -> str:
    """Return how to read beyond a limit, for the line that refuses to."""
    return f"{VARIABLE}={2 * _factor():g} in the environment reads twice as much"


def _factor() -> float:
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= MOST:
        raise UsageError(f"{VARIABLE} is {text[:40]!r}: give a number from 1 to {MOST:,.0f}, by "
                         "which limits on files are multiplied")
    return factor


class Unpacked:
    """The bytes of a file, unpacked; damage of a gzip file is a FileError, and so is text that
    packs better than `PACKED` says: little of it keeps a reader busy for hours."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left: int | None = None

    def __enter__(self) -> Unpacked:
        try:
            raw = io.BufferedReader(io.FileIO(self._path))
        except OSError as error:
            raise FileError(f"{self._path}: {error.strerror}") from error
        is_packed = raw.peek(2)[:2] == _GZIP
        if is_packed:
            self._left = unpacked(self._path.stat().st_size)
        self._stream: io.BufferedIOBase = (
            io.BufferedReader(gzip.GzipFile(fileobj=raw), 2**18) if is_packed else raw)
        self._raw = raw
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._raw.close()

    def read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
            if self._left is not None:
                self._left -= max(len(data), _LINE_BYTES * data.count(b"\n"))
                if self._left < 0:
                    raise FileError(
                        f"{self._path}: the gzip file unpacks to more than {PACKED} times "
                        f"its size, or to nothing but short lines: unpack it with gunzip, and give "
                        f"the text, or {remedy()}")
            return data
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise FileError(f"{self._path}: the gzip file is cut off or damaged") from error

    def whole(self) -> bytes:
        """Return all that is left."""
        return b"".join(iter(lambda: self.read(_BLOCK_BYTES), b""))
