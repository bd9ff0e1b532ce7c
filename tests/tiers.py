"""Which tests run without a flag, which wait for ``--full``, and which for ``--all``.

Tests of tests/mpi and tests/install wait for ``--full`` unless tests/quick.txt lists them; others
do where tests/full.txt lists them. The marker ``soak`` says which wait for ``--all``, and so does
``--all:`` in a reason of that list. Whoever names a file or a test on the command line gets all of
it but soaks, for who changes something runs its files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import pytest

FULL, QUICK = (Path(__file__).with_name(name) for name in ("full.txt", "quick.txt"))
JOBS = ("tests/mpi/", "tests/install/")
FOR_ALL = "--all: "


@dataclass(frozen=True)
class Listed:
    """One line of a list: a pattern of ids, and why it is there. Only ``*`` is special."""

    pattern: str
    reason: str

    @cached_property
    def beginning(self) -> str:
        """What comes before the first ``*``; few ids have it, so most are not matched."""
        return self.pattern.partition("*")[0]

    @property
    def is_for_all(self) -> bool:
        return self.reason.startswith(FOR_ALL)

    def matches(self, nodeid: str) -> bool:
        return nodeid.startswith(self.beginning) and fnmatchcase(
            nodeid, self.pattern.replace("[", "[[]"))


def listed(text: str) -> list[Listed]:
    """Parse a list. Raises ValueError at a line without both parts."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, reason = (part.strip() for part in line.split(" | "))
            if not reason:
                raise ValueError(f"a pattern needs a reason: {line}")
            found.append(Listed(pattern, reason))
    return found


def matching(lines: Sequence[Listed]) -> Callable[[str], bool]:
    """Return whether a line matches an id: it tries only the few of the id's file."""
    of_file: dict[str, list[Listed]] = {}
    for line in lines:
        of_file.setdefault(line.beginning.partition("::")[0], []).append(line)
    wider = [line for line in lines if "::" not in line.beginning]

    def match(nodeid: str) -> bool:
        own = of_file.get(nodeid.partition("::")[0], ())
        return any(line.matches(nodeid) for line in (*own, *wider))

    return match


def is_quick(nodeid: str, quick: Callable[[str], bool], full: Callable[[str], bool]) -> bool:
    """Return whether a test runs without a flag, by what is `matching` the lists."""
    return quick(nodeid) if nodeid.startswith(JOBS) else not full(nodeid)


def waiting(config: pytest.Config) -> Callable[[pytest.Item], bool]:
    """Return the judge of whether a test waits for a flag that was not given."""
    if config.getoption("--all"):
        return lambda item: False
    quick, full = _lists()
    every, files = config.getoption("--full"), _named(config)
    is_last = matching([line for line in full if line.is_for_all])
    in_quick, in_full = matching(quick), matching(full)

    def waits(item: pytest.Item) -> bool:
        nodeid = item.nodeid
        is_soak = item.get_closest_marker("soak") is not None
        if is_soak or item.path in files:
            return is_soak
        return is_last(nodeid) or not every and not is_quick(nodeid, in_quick, in_full)

    return waits


def unread(config: pytest.Config) -> Callable[[Path], bool]:
    """Return the judge of whether all tests of a file wait, so that it need not be imported."""
    if config.getoption("--all") or config.getoption("--full"):
        return lambda path: False
    quick, full = _lists()
    read = {line.pattern.partition("::")[0] for line in quick}
    whole = {line.pattern.removesuffix("::*") for line in full if line.pattern.endswith("py::*")}
    files, root = _named(config), FULL.parent.parent

    def is_unread(path: Path) -> bool:
        if path in files or path.suffix != ".py" or not path.is_relative_to(root):
            return False
        name = path.relative_to(root).as_posix()
        return name in whole or (
            name.startswith(JOBS) and path.name.startswith("test_") and name not in read)

    return is_unread


def _lists() -> tuple[list[Listed], list[Listed]]:
    quick, full = (listed(path.read_text(encoding="utf-8")) for path in (QUICK, FULL))
    return quick, full


def _named(config: pytest.Config) -> set[Path]:
    """Return the files on the command line."""
    return {Path(argument.partition("::")[0]).absolute() for argument in config.args}
