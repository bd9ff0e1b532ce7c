"""A document as every renderer gets it, and as Markdown.

Markdown is for pull requests and job summaries: figures are links to the plots beside it, and what
does not fit into `MOST_BYTES` is left out from the end. The page is made by `report.page`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from typing import Any

from hpcbench.records import dataclass
from hpcbench.texts import as_field
from hpcbench.views.chart import Chart
from hpcbench.views.table import Line, Show, Table, Tone


@dataclass(frozen=True, slots=True)
class Card:
    """A number that a reader looks for first, such as how many cases failed, and why."""

    value: str
    title: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Cards:
    """A row of cards."""

    cards: tuple[Card, ...]


Item = Line | Table | Chart | Cards


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One part of a document. ``key`` names it in links; ``parts`` are shown below its items."""

    key: str
    title: str
    items: tuple[Item, ...]
    parts: tuple[ReportSection, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """A report. ``origin`` names the run of its figures; sections without data are left out."""

    title: str
    subtitle: str
    sections: tuple[ReportSection, ...]
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The charts of a run, and the figures of those that were drawn, each by its chart's id."""

    charts: Sequence[Chart] = ()
    figures: dict[int, Any] = field(default_factory=dict)


NOT_DRAWN = Drawn()
MOST_BYTES = 60_000
"""GitHub takes 65,536 characters as a comment."""
_LEFT_OUT = "The rest is left out here: {count} of {total} parts did not fit into {most} bytes.\n"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~$@&])")
_SKIPPED_SECTIONS = ("environment", "method")
"""Sections that are of no use in a comment."""


def markdown_text(document: ReportDocument, figures: Collection[str] = ()) -> str:
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
    return _SPECIAL.sub(r"\\\1", as_field(" ".join(text.split()))).replace("\\<", "&lt;").replace(
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
        return f"- {f'**{text}**' if item.tone not in ('plain', 'quiet') else text}"
    if isinstance(item, Table):
        return "" if item.detail else _table(item)
    if isinstance(item, Cards):
        return "\n".join(f"- **{escaped(one.value)}** {escaped(one.title)}"
                         + (f" ({escaped(one.note)})" if one.note else "") for one in item.cards)
    return _figure(item, figures)


def _figure(chart: Chart, figures: Collection[str]) -> str:
    title, path = escaped(chart.title), f"plots/{chart.file_stem}.png"
    return f"- [{title}]({path})\n" if path in figures else f"- {title}\n"


def _table(table: Table) -> str:
    """Return a table; the headings of groups are its first column."""
    table = table.without_empty()
    grouped = any(group.heading for group in table.groups)
    heads = [""] * grouped + [escaped(f"{column.span} {column.label}".strip())
                              for column in table.columns]
    rules = [":--"] * grouped + [":--" if column.show is Show.TEXT else "--:"
                                 for column in table.columns]
    lines = [f"\n**{escaped(table.title)}**\n", *(
        f"{escaped(note.text)}  " for note in table.lead),
        *(("", _row(heads), _row(rules)) if table.rows else ())]
    for group in table.groups:
        for number, row in enumerate(group.rows):
            lead = [escaped(group.heading) if number == 0 else ""] * grouped
            lines.append(_row(lead + [*map(escaped, table.texts(row))]))
    return "\n".join([*lines, "", *(f"{escaped(note.text)}  " for note in table.notes)]) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
