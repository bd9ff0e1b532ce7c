"""Imports matplotlib without the documentation of setters that it writes as it defines each class,
a third of the import.

It is private to matplotlib, and so changed only where it is there, and only meanwhile."""

from __future__ import annotations

from matplotlib.artist import Artist

_WRITER = "_update_set_signature_and_docstring"


def _write_nothing(_: type[Artist]) -> None:
    """Leave the setter of a new class as it is."""


_before = vars(Artist).get(_WRITER)
if _before is not None:
    setattr(Artist, _WRITER, classmethod(_write_nothing))
try:
    import matplotlib.figure  # noqa: F401  (all classes that are drawn)
finally:
    if _before is not None:
        setattr(Artist, _WRITER, _before)
