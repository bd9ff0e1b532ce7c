"""Which tests run without a flag, which wait for ``--full``, and which for ``--all``.

A line of tests/full.txt says which tests wait for ``--full``; the marker ``soak`` says which wait
for ``--all``. Whoever names a file or a test on the command line gets what waits for ``--full``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

FULL = Path(__file__).with_name("full.txt")


@dataclass(frozen=True)
class Later:
    """One line of full.txt: the pattern of ids, and what the other tests have of it."""

    pattern: str
    instead: str

    def holds(self, nodeid: str) -> bool:
        """Tell whether it says something of this test; only ``*`` is special."""
        return fnmatchcase(nodeid, self.pattern.replace("[", "[[]"))


def later(text: str) -> list[Later]:
    """Parse full.txt. Raises ValueError at a line without both parts."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, instead = (part.strip() for part in line.split(" | "))
            if not instead:
                raise ValueError(f"say what the other tests have of it: {line}")
            found.append(Later(pattern, instead))
    return found


def waiting(config: pytest.Config) -> Callable[[pytest.Item], bool]:
    """Return who tells whether a test waits for a flag that was not given."""
    if config.getoption("--all"):
        return lambda item: False
    lines = [] if config.getoption("--full") else later(FULL.read_text(encoding="utf-8"))
    files = {Path(argument.partition("::")[0]).absolute() for argument in config.args}

    def waits(item: pytest.Item) -> bool:
        if item.get_closest_marker("soak"):
            return True
        return item.path not in files and any(line.holds(item.nodeid) for line in lines)

    return waits
