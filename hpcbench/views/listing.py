"""Lines of `hpcbench list` that kinds have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcbench.plan.options import Values
from hpcbench.views.table import Line


def option_lines(options: Mapping[str, Values]) -> Iterator[Line]:
    """Yield a line for each option: what it may be, and its default."""
    for name, values in options.items():
        allowed = (", ".join(_plain(item) for item in values.allowed) if values.allowed else
                   f"a number from {values.least}")
        yield listed_more(f"option {name}", f"{allowed}; default {_plain(values.default)}")


def listed_more(title: str, text: str) -> Line:
    """Return a line below the one that it says more of."""
    return Line(f"{'':<22}{title}: {text}", "quiet")


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
