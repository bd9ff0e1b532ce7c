"""Reading values that the kernel shows in /proc and /sys; None where it does not show one."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """The files below ``root``. Paths are relative to it; nothing here raises."""

    root: Path = Path("/")

    def text(self, path: str, limit_bytes: int = _LIMIT_BYTES) -> str | None:
        """Return a file's beginning, decoded as Python does paths, which it may hold.

        The kernel makes up long files as they are read.
        """
        with suppress(OSError, ValueError), (self.root / path).open("rb") as stream:
            return os.fsdecode(stream.read(limit_bytes))
        return None

    def line(self, path: str) -> str | None:
        """Return the first line without surrounding space, None if it is empty."""
        text = self.text(path)
        return (text.splitlines() or [""])[0].strip() or None if text else None

    def number(self, path: str) -> int | None:
        """Return the whole number that the file holds."""
        line = self.line(path)
        return int(line) if line and re.fullmatch(r"-?[0-9]{1,19}", line) else None

    def choice(self, path: str) -> str | None:
        """Return the chosen word of ``always [madvise] never``."""
        line = self.line(path)
        match = re.search(r"\[([^\]]*)\]", line) if line else None
        return match[1] if match else line

    def fields(self, path: str) -> dict[str, str]:
        """Return the lines ``name: value`` or ``name=value`` of a file; empty if there is none."""
        text = self.text(path) or ""
        pairs = (re.split(r"\s*[:=]\s*", line, maxsplit=1) for line in text.splitlines())
        return {pair[0].strip(): pair[1].strip().strip('"') for pair in pairs if len(pair) == 2}

    def process_bytes(self, field: str) -> int | None:
        """Return a field of this process's status, such as ``VmHWM``, in bytes."""
        size = re.fullmatch(r"([0-9]+) kB", self.fields("proc/self/status").get(field, ""))
        return int(size[1]) * 1024 if size else None  # the kernel's kB are KiB

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty if there is none."""
        with suppress(OSError, ValueError):
            return sorted(path.name for path in (self.root / folder).iterdir())
        return []

    def exists(self, path: str) -> bool:
        """Return whether there is such a file, as far as can be read."""
        with suppress(OSError, ValueError):
            return (self.root / path).exists()
        return False

    def target(self, path: str) -> str | None:
        """Return the last part of where a symbolic link points."""
        with suppress(OSError, ValueError):
            return (self.root / path).readlink().name or None
        return None


def cpu_list(text: str | None) -> list[int]:
    """Return the numbers of the kernel's list format, ``0-3,8``; empty for None or no list."""
    numbers: list[int] = []
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        if match:
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers
