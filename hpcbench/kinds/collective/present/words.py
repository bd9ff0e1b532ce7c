"""Short words for collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.units import format_bytes
from hpcbench.views.words import distinct, plural


def type_word(work: Collective) -> str | None:
    """Return the dtype; None where no data are moved."""
    return work.dtype if work.traits.moves_data else None


def place_word(work: Collective) -> str | None:
    """Return ``in`` or ``out``: whether it sends from the receive buffer; None if it has no choice.
    """
    return {None: None, True: "in", False: "out"}[work.in_place]


def form_text(work: Collective) -> str:
    """Return ``split linear, 2 groups``, or nothing for even parts and one group."""
    parts = [f"split {work.split}"] if work.split != "even" else []
    parts += [plural(work.groups, "group")] if work.groups != 1 else []
    return ", ".join(parts)


def span_words(works: Sequence[Collective]) -> Iterator[str]:
    """Yield the splits and the numbers of groups, where they are not the usual ones."""
    splits = distinct(sorted({work.split for work in works}))
    groups = distinct(sorted({work.groups for work in works}))
    if splits != "even":
        yield f"split={splits}"
    if groups != "1":
        yield f"groups={groups}"


def size_words(works: Sequence[Collective]) -> Iterator[str]:
    """Yield the range of sizes."""
    yield size_range(works)


def size_range(works: Iterable[Collective]) -> str:
    """Return ``64KiB`` or ``8..64MiB``; nothing where no case has a size."""
    sizes = sorted({work.size_bytes for work in works} - {0})
    if not sizes:
        return ""
    first, last = format_bytes(sizes[0]), format_bytes(sizes[-1])
    return first if len(sizes) == 1 else f"{first}..{last}"
