"""What an HDF5 file says of itself: attributes by which ``h5dump -A`` explains every part of it.

Each group and dataset has ``description`` and ``units``. Columns of numbered values or bits have
``values`` or ``bits``, too: a line for each, ``4 late_start: ...``. The root's attributes are
explained in its attribute ``attributes``. docs/results-file.md holds the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import h5py
import numpy as np

PURE, TEXT, LINES = "1", "text", "JSON lines"
"""Units of what has none: a pure number, a text, and one text of lines that are JSON each."""
ROOT = "/"
_TEXT = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
_ONE = h5py.h5s.create(h5py.h5s.SCALAR)


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
    """Set the attributes by h5py's lower level, which takes half the time."""
    for name in ("description", "units", "values", "bits"):
        said = what.text if name == "description" else getattr(what, name)
        if said:
            value = np.array(said, dtype=object)
            space = h5py.h5s.create_simple(value.shape) if value.shape else _ONE
            h5py.h5a.create(item.id, name.encode(), _TEXT, space).write(value)
