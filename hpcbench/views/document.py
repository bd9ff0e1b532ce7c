"""A document as every renderer gets it: sections of lines, tables and charts, in reading order."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.views.chart import Chart
from hpcbench.views.table import Line, Table

Item = Line | Table | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a document. ``key`` names it in links; ``parts`` are shown below its items.

    ``short`` is what a list of contents calls it, if not by its title.
    """

    key: str
    title: str
    items: tuple[Item, ...]
    parts: tuple[Section, ...] = ()
    short: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A report. ``origin`` says which run figures are of; a section without data is not there."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    origin: str = ""
