"""The questions that commands ask, from files to answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbench.analysis.compare import Comparison, compare
from hpcbench.analysis.confounders import Difference, differences
from hpcbench.analysis.sides import cases_of, read_side, split_by
from hpcbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Compared:
    """Each other side beside the first, and what differs between them.

    ``sides`` are their labels; ``in_launch`` says that cases of the same results were compared.
    """

    sides: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    differences: tuple[Difference, ...]
    in_launch: bool = False


def compare_sides(texts: Sequence[str], smallest: float) -> Compared:
    """Return the comparison of several sides. Raises UsageError if nothing matches, FileError."""
    if len(texts) < 2:
        raise UsageError("compare needs two sides, such as A B; or --by KEY inside one")
    sides = [read_side(text) for text in texts]
    labels, first = tuple(side.label for side in sides), cases_of(sides[0])
    found = tuple(compare(first, cases_of(side), (labels[0], side.label), smallest)
                  for side in sides[1:])
    _refuse_nothing(found)
    return Compared(labels, found, tuple(differences(sides)))


def compare_by(texts: Sequence[str], key: str, smallest: float) -> Compared:
    """Return the comparison of the values of a key inside one side.

    Raises UsageError for several sides, for an unknown key, and if nothing matches; FileError.
    """
    if len(texts) != 1:
        raise UsageError(f"--by {key} compares inside one side; give one, not {len(texts)}")
    values = split_by(read_side(texts[0]), key)
    labels = tuple(f"{key}={value}" for value in values)
    first, *others = values.values()
    found = tuple(compare(first, cases, (labels[0], label), smallest, in_launch=True)
                  for label, cases in zip(labels[1:], others, strict=True))
    _refuse_nothing(found)
    return Compared(labels, found, (), in_launch=True)


def _refuse_nothing(found: Sequence[Comparison]) -> None:
    """Raise UsageError if no case has times on two sides."""
    if not any(one.cases for one in found):
        one = found[0]
        label, why = one.unmatched[0] if one.unmatched else ("there is none", "")
        raise UsageError(f"nothing to compare between {one.first} and {one.second}: no case has "
                         f"times on both; first: {label} {why}".rstrip())
