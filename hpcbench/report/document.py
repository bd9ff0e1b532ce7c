"""What this version can measure, and which backends this machine has: as text, and as JSON.

A document as every renderer gets it: sections of lines, tables and charts, in reading order.

A document as Markdown for pull requests and job summaries: verdict, tables and findings.

Figures are links to the plots beside it. What does not fit into `MOST_BYTES`, which GitHub takes
as a comment, is left out from the end, and a line says so.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from hpcbench import __version__
from hpcbench.config.axes import BACKENDS, DTYPE_BYTES, OPS, ORDERS, SPLITS
from hpcbench.config.presets import HARDWARE
from hpcbench.config.presets.preset import load_preset
from hpcbench.errors import how_to_install
from hpcbench.kinds.registry import catalogue, kinds, presenter_of
from hpcbench.operations.collectives import collectives
from hpcbench.report.terminal import listing_lines, print_document, print_lines
from hpcbench.verbosity import Verbosity
from hpcbench.views.chart import Chart
from hpcbench.views.table import Line, Show, Table
from hpcbench.views.words import MODES, USUAL_FOLDS

SCHEMA_VERSION = 1
NO_TORCH = f"torch is not installed here: {how_to_install('run')}"


def print_listing(
    *, probe: bool, as_json: bool = False, verbosity: Verbosity = Verbosity.NORMAL,
) -> None:
    """Print what there is; with ``probe`` ask this machine, in a process of its own.

    Quietly a line of names a group.
    """
    machine: Mapping[str, Any] | None = None
    if probe and importlib.util.find_spec("torch"):
        from hpcbench.launch.probe import probe_here

        with verbosity.stage("probe"):
            machine = probe_here()
    if as_json:
        print_document(listing_document(machine, probe=probe))
    else:
        print_lines(map(Text, _names(machine)) if verbosity.is_quiet else _lines(machine))


def listing_document(machine: Mapping[str, Any] | None, *, probe: bool) -> dict[str, Any]:
    """Return what there is as plain JSON values; ``machine`` is None where it was not asked.

    ``available`` is None of what nobody asked for.
    """
    no_torch = NO_TORCH if probe else "not probed"
    known = machine or {"backends": dict.fromkeys(BACKENDS, no_torch), "devices": {},
                        "device_names": [], "versions": {}, "lost": {}}
    unknown = not probe and machine is None
    document = {
        "schema": "hpcbench.list", "schema_version": SCHEMA_VERSION,
        "hpcbench_version": __version__, "kinds": list(kinds()),
        "dtypes": {name: {"size_bytes": size} for name, size in DTYPE_BYTES.items()},
        "ops": list(OPS), "splits": list(SPLITS), "orders": list(ORDERS),
        "modes": {name: {"meaning": meaning, "fold": USUAL_FOLDS[name]}
                  for name, meaning in MODES.items()},
        "hardware": {name: {"about": load_preset(name).about} for name in HARDWARE},
        **{group: {name: {"available": None if unknown else reason is None, "reason": reason}
                   for name, reason in known[group].items()} for group in ("backends", "devices")},
        "device_names": list(known["device_names"]), "versions": dict(known["versions"]),
        "lost": dict(known["lost"]),
    }
    return document | {group: names for group, names in catalogue().items()
                       if group not in document}


def _names(machine: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the names of each group in a line; of backends those that are here, if it is known."""
    here = [name for name in BACKENDS if machine is None or machine["backends"][name] is None]
    for group, names in (*catalogue().items(), ("dtypes", DTYPE_BYTES), ("modes", MODES),
                         ("hardware", HARDWARE), ("backends", here)):
        yield f"{group:<17}{', '.join(names)}"


def _lines(machine: Mapping[str, Any] | None) -> Iterator[Text]:
    """Yield what there is; ``machine`` is None where it was not asked, or has no torch."""
    dtypes = [f"{name} ({size} B)" for name, size in DTYPE_BYTES.items()]
    for title, names in (("collectives", collectives()), ("dtypes", dtypes), ("ops", OPS),
                         ("splits", SPLITS), ("orders of cases", ORDERS)):
        yield Text(f"{title:<17}{', '.join(names)}")
    yield Text()
    for kind in kinds():
        presenter = presenter_of(kind)
        items = list(presenter.listing())
        if presenter.problem:
            items.append(Line(f"kind {kind}: {presenter.problem}", "warning"))
        yield from (line for item in items for line in listing_lines(item))
        yield from [Text()] if items else []
    yield Text("timing modes", style="bold")
    for name, meaning in MODES.items():
        yield _line(name, f"{meaning}; fold {USUAL_FOLDS[name]}")
    yield Text()
    yield Text("hardware of gen-config", style="bold")
    for name in HARDWARE:
        yield _line(name, load_preset(name).about)
    yield Text()
    yield Text("backends", style="bold")
    for name in BACKENDS:
        yield _available(name, machine["backends"]) if machine else _line(name, "not probed")
    if machine:
        yield Text()
        yield Text("devices", style="bold")
        yield from (_available(name, machine["devices"]) for name in machine["devices"])
        yield Text()
        yield Text("versions", style="bold")
        yield from (_line(name, version) for name, version in machine["versions"].items())
        for line in machine["lost"].values():
            yield Text()
            yield Text(line, style="yellow")
    elif not importlib.util.find_spec("torch"):
        yield Text(f"  {NO_TORCH}", style="yellow")


def _line(name: str, text: str, style: str = "") -> Text:
    return Text(f"  {name:<15}{text}", style=style)


def _available(name: str, reasons: Mapping[str, str | None]) -> Text:
    """Return whether this machine has something, and why not."""
    reason = reasons[name]
    return (_line(name, f"not available: {reason}", "yellow") if reason else
            _line(name, "available", "green"))


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
    heads = [""] * grouped + [escaped(column.label) for column in table.columns]
    rules = [":--"] * grouped + [":--" if column.show is Show.TEXT else "--:"
                                 for column in table.columns]
    lines = [f"\n**{escaped(table.title)}**\n", *(
        f"{escaped(note.text)}  " for note in table.lead), "", _row(heads), _row(rules)]
    for group in table.groups:
        for number, row in enumerate(group.rows):
            lead = [escaped(group.heading) if number == 0 else ""] * grouped
            lines.append(_row(lead + [*map(escaped, table.texts(row))]))
    return "\n".join([*lines, "", *(f"{escaped(note.text)}  " for note in table.notes)]) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
