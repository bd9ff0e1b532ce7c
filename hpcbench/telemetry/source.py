"""What every source of readings offers, and files that are read again and again."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from hpcbench.trace.telemetry import NOT_READ, TABLES

_MOST_BYTES = 65536
Values = Mapping[str, int]
"""Column -> value; what is left out was not read."""


class UnreadableError(Exception):
    """Why a source, or a part of it, cannot be read."""


class Source(ABC):
    """Fills one table. ``devices`` are what its rows are of, ``missing`` columns it cannot read."""

    table: ClassVar[str]

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.missing: dict[str, str] = {}

    @abstractmethod
    def read(self, at: Callable[[str], None]) -> Iterable[tuple[int, Values]]:
        """Yield the number of each device with its values now; nothing if there is none now.

        ``at`` is told the name of a column before a call that may hang for it alone. Raises
        UnreadableError or OSError if it can be read no more.
        """

    def drop(self, column: str, why: str) -> bool:
        """Read a column no more, if this can be read without it; return whether it can."""
        return False

    def row(self, now_ns: int, device: int, values: Values) -> tuple[int, ...]:
        """Return a row of the table."""
        return (now_ns, device,
                *(values.get(name, NOT_READ) for name in TABLES[self.table].names))


class HeldFile:
    """A file of the kernel that stays open: each reading gets what it says then.

    A file of a process stays that process's, whoever gets its number later. It is closed when
    nobody holds it: a reader that hangs may still have it when its source is dropped.
    """

    def __init__(self, path: Path) -> None:
        """Open it. Raises UnreadableError."""
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._descriptor)

    def text(self) -> str:
        """Return the file, up to _MOST_BYTES. Raises OSError or UnreadableError.

        The kernel gives a file that it makes from a list about a page at a time.
        """
        data = b""
        while len(data) < _MOST_BYTES and (
                part := os.pread(self._descriptor, _MOST_BYTES - len(data), len(data))):
            data += part
        if not data:
            raise UnreadableError(f"{self._path}: says nothing")
        return data.decode("ascii", errors="replace")

    def number(self) -> int:
        """Return the whole number in it. Raises OSError or UnreadableError."""
        text = self.text().strip()
        try:
            return int(text)
        except ValueError as error:
            raise UnreadableError(f"{self._path}: {text[:40]!r} is no number") from error
