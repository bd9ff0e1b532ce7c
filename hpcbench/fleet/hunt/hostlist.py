"""Names of nodes as Slurm writes and reads them: ``node[001-003,007],login1``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from hpcbench.units import grouped

_NUMBERED = re.compile(r"(.*?)(\d+)([^\d\[\],]*)")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


def compressed(names: Iterable[str]) -> str:
    """Return the names as one host list, in their order of first digits.

    Numbers of one width are joined where text before and after them is the same; a name that is
    not plain (Slurm's brackets and commas would change it) stands as it is."""
    parts = grouped(_key(name) for name in dict.fromkeys(names))
    return ",".join(text for (before, width, after), numbers in parts.items()
                    for text in _part(before, width, after, numbers))


def _key(name: str) -> tuple[tuple[str, int, str], int]:
    found = _NUMBERED.fullmatch(name) if _PLAIN.fullmatch(name) else None
    if found is None:
        return (name, 0, ""), 0
    before, digits, after = found.groups()
    return (before, len(digits), after), int(digits)


def _part(before: str, width: int, after: str, numbers: Sequence[int]) -> Iterator[str]:
    if not width:
        yield before
        return
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}"
             for low, high in runs]
    inside = texts[0] if len(numbers) == 1 else f"[{','.join(texts)}]"
    yield f"{before}{inside}{after}"


def listed(names: Iterable[str]) -> str:
    """Return the text of a file of nodes for Slurm and mpirun: one name a line.

    Slurm's newer readers of such files divide a line at each comma, also within brackets."""
    return "".join(f"{name}\n" for name in names)
