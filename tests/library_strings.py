"""The constant texts of shared libraries, such as the messages that they can print."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

_SHOWN = 100


class LibraryStrings:
    """The section of read-only data of one file in ELF for 64 bits, little-endian (elf(5))."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        with path.open("rb") as file:
            file.seek(40)
            (table,) = struct.unpack("<Q", file.read(8))
            file.seek(58)
            size, count, names = struct.unpack("<HHH", file.read(6))
            file.seek(table)
            rows = [struct.unpack_from("<IIQQQQ", file.read(size)) for _ in range(count)]
            file.seek(rows[names][4])
            texts = file.read(rows[names][5])
            self.data = b""
            for name, _, _, _, offset, length in rows:
                if texts[name:texts.index(b"\0", name)] == b".rodata":
                    file.seek(offset)
                    self.data = b"\0" + file.read(length)

    @cached_property
    def _lower(self) -> bytes:
        return self.data.lower()

    def holding(self, text: str) -> Iterator[str]:
        """Yield the texts that have ``text`` within them, whatever the case of its letters."""
        wanted, at = text.lower().encode(), -1
        while (at := self._lower.find(wanted, at + 1)) >= 0:
            first = self.data.rfind(b"\0", 0, at) + 1
            yield self.data[first:self.data.find(b"\0", at)].decode(errors="replace")

    def begins(self, text: str) -> bool:
        """Return whether one of the texts begins so."""
        return b"\0" + text.lower().encode() in self._lower

    def ends(self, text: str) -> bool:
        """Return whether one of the texts ends so."""
        return text.lower().encode() + b"\0" in self._lower


def found_in(libraries: list[LibraryStrings], text: str) -> Mapping[str, str]:
    """Return, for each library that has ``text``, the shortest of its texts with it, cut.

    A text that none has may be put together of two: ``CUDA error: `` and ``out of memory``.
    """
    found = {library.name: min(holding, key=len)[:_SHOWN] for library in libraries
             if (holding := list(library.holding(text)))}
    for cut in range(4, len(text) - 3) if not found else ():
        first, second = text[:cut], text[cut:]
        heads = [library for library in libraries if library.ends(first)]
        tails = [library for library in libraries if heads and library.begins(second)]
        if tails:
            return {heads[0].name: f"...{first}", tails[0].name: f"{second}..."}
    return found
