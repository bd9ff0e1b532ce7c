"""What an HDF5 file says of itself: attributes by which ``h5dump -A`` explains every part of it.

Each group and dataset has ``description`` and ``units``. Columns of numbered values or bits have
``values`` or ``bits``, too: a line for each, ``4 late_start: ...``. The root's attributes are
explained in its attribute ``attributes``. docs/results-file.md holds the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import h5py

PURE, TEXT, LINES = "1", "text", "JSON lines"
"""Units of what has none: a pure number, a text, and one text of lines that are JSON each."""
ROOT = "/"


@dataclass(frozen=True, slots=True)
class Described:
    """What a group or a dataset holds, and in which units; ``values`` or ``bits`` name numbers."""

    text: str
    units: str = ""
    values: Sequence[str] = ()
    bits: Sequence[str] = ()


Contents = Mapping[str, Described]
"""Path below the root, or ROOT, -> what is there."""


def describe(file: h5py.File, contents: Contents, attributes: Mapping[str, str]) -> None:
    """Set the attributes of everything in the file; ``attributes`` explains those of the root.

    Raises KeyError for a group, a dataset or an attribute of the root that is not described.
    """
    file.attrs["attributes"] = [f"{name}: {attributes[name]}" for name in sorted(file.attrs)]
    _set(file, contents[ROOT])
    file.visititems(lambda name, item: _set(item, contents[name]))


def _set(item: h5py.Group | h5py.Dataset, what: Described) -> None:
    item.attrs["description"] = what.text
    for name in ("units", "values", "bits"):
        if said := getattr(what, name):
            item.attrs[name] = said
