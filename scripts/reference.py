"""Writes the lists of docs/ that the code has: keys of sweeps, flags, columns of files.

    python scripts/reference.py             # writes them anew
    python scripts/reference.py --check     # exit code 1 and the pages that are out of step

A list stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; LISTS has the names.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

import typer

import hpcbench
from hpcbench.api import load
from hpcbench.cli import COMMANDS, app
from hpcbench.config import schema
from hpcbench.config.load import json_schema
from hpcbench.config.section import Block, Fault, Limit, Section
from hpcbench.kinds.registry import kinds
from hpcbench.reduce import results_file
from hpcbench.reduce.kind_facts import COLUMNS, OF_ARRIVALS, OF_PROGRAMS, CaseColumn, deriver_of
from hpcbench.reduce.metric import KindColumns
from hpcbench.trace.columns import GROUP as TELEMETRY
from hpcbench.trace.columns import PURE, ROOT, TEXT, Contents

DOCS = Path(__file__).parents[1] / "docs"
_MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH, WIDEST_NAME, MOST_VALUES = 110, 30, 16
_ABSENT = re.compile(r"(, else 0|, separated by spaces)?(; (NaN|-1|empty)\b[^;]*)?$")
_ELSEWHERE = re.compile("Instead of that of|of this kind|as backend has")
NAMED = ("hardware", "function", "memory", "replay")
"""Kinds whose columns have names only on the page of results."""
NAMED_KEYS = ("hardware", "memory", "replay")
Row = tuple[str, str]
"""A name with its default or units, and the meaning."""


def block(rows: Iterable[Row], title: str = "") -> Iterator[str]:
    """Yield rows as a block of text with two columns, below a title."""
    found = list(rows)
    if title:
        yield f"{title}:\n"
    if not found:
        return
    width = 2 + min(WIDEST_NAME, max(len(name) for name, _ in found))
    yield "```text"
    for name, text in found:
        head = name.ljust(width) if len(name) < width - 1 else f"{name}  "
        yield fill(head + text, WIDTH, subsequent_indent=" " * width, break_long_words=False,
                   break_on_hyphens=False)
    yield "```\n"


def _aside(name: str, aside: str) -> str:
    return f"{name} ({aside})" if aside else name


def keys(section: type[Section], without: Collection[str] = ()) -> Iterator[Row]:
    """Yield the keys of a section: default, meaning, and the values there are if they are few."""
    definitions = json.loads(json_schema())
    name_of = "CollectiveBlock" if section is Block else section.__name__
    properties = definitions["$defs"].get(name_of, definitions)["properties"]
    found = []
    for name, field in section.model_fields.items():
        key, told = field.alias or name, field.description
        if key in without or not told:
            continue
        values = _values(properties.get(key, {}))
        is_listed = len(values) > MOST_VALUES or _ELSEWHERE.search(told) or all(
            re.search(rf"\b{re.escape(one)}\b", told) for one in values)
        allowed = "" if is_listed else f" Values: {', '.join(values)}."
        default = "required" if field.is_required() else shown(field.default)
        found.append((_aside(key, default), f"{told.rstrip('.')}.{allowed}"))
    for text, alike in groupby(found, lambda row: row[1]):
        yield ", ".join(name for name, _ in alike), text


def shown(value: Any) -> str:
    """Return a default as a sweep file has it; nothing for one that the meaning tells."""
    if value is None or value in ((), {}, "") or value == (0, 0):
        return ""
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"{one:g}" if isinstance(one, float) else json.dumps(one)
                     for one in values).replace('"', "")


def _values(part: Mapping[str, Any]) -> list[str]:
    """Return the names that a value may be, in a list or alone, each once."""
    inner = [*part.get("anyOf", ()), part.get("items", {})] if part else []
    found = [*part.get("enum", ()), *(name for one in inner for name in _values(one))]
    return [*dict.fromkeys(map(str, found))]


def section_of(section: type[Section]) -> Iterator[str]:
    return block(keys(section))


def block_keys(kind: str) -> Iterator[str]:
    """Yield the keys that blocks of a kind alone have; of memory those that trainings lack.

    Of NAMED_KEYS there are the names only: pages of their own have the meanings.
    """
    classes = schema.BLOCKS
    shared = _keys_of(classes["training"] if kind == "memory" else Block)
    if kind in NAMED_KEYS:
        own = [name for name in schema.keys_of(classes[kind]) if name not in shared]
        return block([("keys", ", ".join(own))])
    return block(keys(classes[kind], shared))


def _keys_of(section: type[Section]) -> set[str]:
    return {field.alias or name for name, field in section.model_fields.items()}


def commands() -> Iterator[str]:
    """Yield each command with what it does."""
    found = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    yield from block((name, " ".join((found[name].help or "").partition("\n\n")[0].split()))
                     for name in COMMANDS)


def _with_units(name: str, units: str) -> str:
    """Return the name with its units, unless it is a pure number or ends with them."""
    ending = units.lower().replace("flop/", "flops/").replace("/", "_per_")
    return _aside(name, "" if units in (PURE, TEXT) or name.endswith(f"_{ending}") else units)


def datasets(found: Contents, without: Collection[str]) -> Iterator[str]:
    """Yield groups and datasets but telemetry, without what the page says of absent values.

    Of numbered values and bits, and of other columns of samples, there are the names: the file has
    their meanings.
    """
    rows = dict[str, str]()
    for name, what in found.items():
        group, _, column = name.partition("/")
        if name == ROOT or group == TELEMETRY or name in without or (group == "clock" and column):
            continue
        numbered = [line.partition(":")[0].replace(" ", "=") for line in (*what.values, *what.bits)]
        if group == "samples" and column and not numbered:
            listed = rows[f"/{group}"]
            rows[f"/{group}"] = f"{listed}{',' if '; columns' in listed else '; columns'} {column}"
            continue
        text = re.sub("; where a case has no such value.*?NaN", "", what.text)
        rows[_with_units(f"/{name}", what.units)] = text + (
            f": {', '.join(numbered)}" if numbered else "")
    return block(rows.items())


def results() -> Iterator[str]:
    found = results_file.contents(KindColumns())
    return datasets(found, {f"cases/{column.name}" for column in COLUMNS})


def columns() -> Iterator[str]:
    """Yield the columns of all cases, then those of several kinds, then those of each, without
    those that are keys of blocks, or predictions of others; of NAMED the names only."""
    given = {key for section in schema.BLOCKS.values() for key in _keys_of(section)}
    given |= {f"{one.name}_predicted" for spec in kinds().values()
              for one in deriver_of(spec).columns}
    yield from block(_described_columns(
        column for column in COLUMNS if column.name not in _keys_of(Block)))
    yield from block(_described_columns(OF_ARRIVALS), "Runs with late ranks (`arrival`)")
    yield from block(_described_columns(OF_PROGRAMS), "Saved by `hpcbench.measure`")
    who: dict[CaseColumn, list[str]] = defaultdict(list)
    for kind, spec in kinds().items():
        for column in deriver_of(spec).columns:
            who[column].append(kind)
    groups: dict[str, list[CaseColumn]] = defaultdict(list)
    for column, of_kinds in sorted(who.items(), key=lambda pair: -len(pair[1])):
        if column.name not in given and column.is_scalar:
            groups[", ".join(of_kinds)].append(column)
    for title in [name for name in groups if name not in NAMED]:
        yield from block(_described_columns(groups[title]),
                         f"{'Kinds' if ',' in title else 'Kind'} {title}")
    yield from block(((kind, ", ".join(column.name for column in groups[kind]))
                      for kind in NAMED),
                     "Other kinds; attribute `description` of a column has its meaning")


def _described_columns(found: Iterable[CaseColumn]) -> Iterator[Row]:
    """Yield a row for columns of one meaning, without what the page says of absent values."""
    for (text, units), alike in groupby(found, lambda column: (column.text, column.units)):
        names = [column.name for column in alike]
        yield ", ".join((*names[:-1], _with_units(names[-1], units))), _ABSENT.sub("", text)


def public(*names: str) -> Iterator[str]:
    """Yield a block for each public name of hpcbench: its arguments and attributes, its methods."""
    for name in names:
        member = _public(name)
        yield from block(_members(member),
                         f"`hpcbench.{name}`: {_plain(_paragraphs(member)[0]).rstrip('.')}")


def public_names(*names: str) -> Iterator[str]:
    """Yield one block of public names of hpcbench with the names of what each has."""
    yield from block((name, ", ".join(member for member, _ in _members(_public(name))))
                     for name in names)


def _public(name: str) -> object:
    return getattr(hpcbench, name, None) or getattr(load, name)


def _members(member: object) -> list[Row]:
    methods = [(f"{name}({', '.join([*inspect.signature(method).parameters][1:])})",
                _plain(_paragraphs(method)[0]))
               for name, method in vars(member).items() if inspect.isclass(member)
               and inspect.isfunction(method) and not name.startswith("_")]
    return [*(row for text in _paragraphs(member) for row in _described(text)), *methods]


def _paragraphs(member: object) -> list[str]:
    return (inspect.getdoc(member) or "").split("\n\n")


def _described(text: str) -> Iterator[Row]:
    """Yield what a paragraph of a docstring says of each argument or attribute."""
    head, *lines = text.splitlines()
    if head not in ("Args:", "Attributes:"):
        return
    for entry in re.split(r"\n(?=    \S)", "\n".join(lines)):
        name, _, meaning = entry.strip().partition(": ")
        yield name, _plain(meaning)


def _plain(text: str) -> str:
    """Return a text of a docstring on one line, without marks of code."""
    return re.sub(r"`+", "", " ".join(text.split()))


LISTS: Mapping[str, Callable[[], Iterator[str]]] = {
    **{f"keys-{name}": partial(section_of, section) for name, section in (
        ("top", schema.config_class(tuple(schema.BLOCKS))),
        ("measure", schema.Measure), ("launch", schema.Launch),
        ("hardware", schema.Hardware), ("profiling", schema.Profiling),
        ("telemetry", schema.Telemetry), ("output", schema.Output), ("fault", Fault),
        ("limit", Limit), ("block", Block))},
    **{f"keys-of-{kind}": partial(block_keys, kind) for kind in kinds()},
    "commands": commands, "results": results,
    "columns": columns,
    "functions": partial(public, "Context", "Case", "benchmark"),
    "measure": partial(public, "measure", "Measurement"),
    "python": partial(public_names, "Runs", "LoadedCase", "LoadedRun"),
}


def filled(page: str) -> str:
    """Return a page with its lists as the code has them."""
    return _MARKED.sub(lambda found: "\n".join(
        (found[1], *LISTS[found[2]](), found[3])), page)


def main() -> int:
    """Write the pages, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for path in sorted(DOCS.glob("*.md")):
        old = path.read_text(encoding="utf-8")
        if (new := filled(old)) != old:
            stale.append(path)
            if not check:
                path.write_text(new, encoding="utf-8")
    for path in stale:
        print(f"docs/{path.name}: {'out of step with the code' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
