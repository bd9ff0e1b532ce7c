"""A document as every renderer gets it: sections of lines, tables and charts, in reading order.

A document as Markdown for pull requests and job summaries: verdict, tables and findings.

Figures are links to the plots beside it. What does not fit into `MOST_BYTES`, which GitHub takes
as a comment, is left out from the end, and a line says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hpcbench.views.chart import Chart
from hpcbench.views.table import Line, Show, Table, cell_text

Item = Line | Table | Chart


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One part of a document. ``key`` names it in links; ``parts`` are shown below its items.

    ``short`` is what a list of contents calls it, if not by its title.
    """

    key: str
    title: str
    items: tuple[Item, ...]
    parts: tuple[ReportSection, ...] = ()
    short: str = ""


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """A report. ``origin`` says which run figures are of; a section without data is not there."""

    title: str
    subtitle: str
    sections: tuple[ReportSection, ...]
    origin: str = ""


MOST_BYTES = 60_000
"""GitHub takes 65,536 characters as a comment."""
_LEFT_OUT = "The rest is left out here: {count} of {total} parts did not fit into {most} bytes.\n"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~$@&])")
_SKIPPED_SECTIONS = ("environment", "method")
"""Sections that are of no use in a comment."""


def markdown_text(document: ReportDocument, figures: Collection[str] = ()) -> str:
    """Return the document; ``figures`` are the paths that links may lead to."""
    parts = [f"# {escaped(document.title)}\n\n{escaped(document.subtitle)}\n"]
    parts += [text for section in document.sections for text in _section(section, 2, figures)]
    room = MOST_BYTES - len(_LEFT_OUT) - 40
    kept = list(_fitting(parts, room))
    if len(kept) < len(parts):
        kept.append(_LEFT_OUT.format(count=len(parts) - len(kept), total=len(parts),
                                     most=MOST_BYTES))
    return "\n".join(kept)


def escaped(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace(
        "\\>", "&gt;").replace("\\&", "&amp;")


def _fitting(parts: list[str], room: int) -> Iterator[str]:
    for part in parts:
        room -= len(part.encode()) + 1
        if room < 0:
            return
        yield part


def _section(section: ReportSection, level: int, figures: Collection[str]) -> Iterator[str]:
    if section.key.rpartition("-")[2] in _SKIPPED_SECTIONS:
        return
    yield f"\n{'#' * level} {escaped(section.title)}\n"
    for item in section.items:
        yield _item(item, figures)
    for part in section.parts:
        yield from _section(part, level + 1, figures)


def _item(item: Item, figures: Collection[str]) -> str:
    if isinstance(item, Line):
        text = escaped(f"{item.topic}: {item.text}" if item.topic else item.text)
        return f"- {f'**{text}**' if item.tone in ('title', 'warning') else text}"
    if isinstance(item, Table):
        return _table(item)
    return _figure(item, figures)


def _figure(chart: Chart, figures: Collection[str]) -> str:
    """Return a link to a figure; only its title where there is no such file."""
    title, path = escaped(chart.title), f"plots/{chart.file_stem}.png"
    return f"- [{title}]({path})\n" if path in figures else f"- {title}\n"


def _table(table: Table) -> str:
    """Return a table; what a group's rows have in common is their first column."""
    table = table.without_empty()
    grouped = any(group.heading for group in table.groups)
    heads = [""] * grouped + [
        escaped(f"{column.title} ({column.unit})" if column.unit else column.title)
        for column in table.columns]
    rules = [":--"] * grouped + [":--" if column.show is Show.TEXT else "--:"
                                 for column in table.columns]
    lines = [f"\n**{escaped(table.title)}**\n", *(
        f"{escaped(note.text)}  " for note in table.lead), "", _row(heads), _row(rules)]
    for group in table.groups:
        for number, row in enumerate(group.rows):
            lead = [escaped(group.heading) if number == 0 else ""] * grouped
            lines.append(_row(lead + [escaped(cell_text(cell, column.show)) for cell, column
                                      in zip(row.cells, table.columns, strict=True)]))
    return "\n".join([*lines, "", *(f"{escaped(note.text)}  " for note in table.notes)]) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
