"""The program that wrote a file, by its content, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from hpcbench.errors import FileError
from hpcbench.formats.reading import (
    ddlb,
    inspector,
    nccl_json,
    nccl_text,
    nvbandwidth,
    osu,
    param,
    superbench,
)
from hpcbench.formats.reading.source import ForeignFile
from hpcbench.formats.tables import ForeignTable
from hpcbench.texts import from_json

KNOWN = ("nccl-tests (text, JSON)", "OSU", "NCCL Inspector", "nvbandwidth JSON", "PARAM comms",
         "DDLB CSV", "SuperBench jsonl")


def tables_of(path: Path, collective: str = "") -> Iterator[ForeignTable]:
    """Yield a file's tables as they are read; ``collective`` is used where a table names none.

    Raises FileError for a file that cannot be read, or that no known program wrote.
    """
    file = ForeignFile(path)
    tables = _tables(file, collective)
    first = next(tables, None)
    if first is None:
        raise FileError(f"{file.name}: no row of a table of {', '.join(KNOWN)}")
    yield first
    yield from tables


def _tables(file: ForeignFile, collective: str) -> Iterator[ForeignTable]:
    first = next((line.text for line in file.lines() if line.text.strip()), "")
    if first.lstrip().startswith("{"):
        yield from _of_json(file, first, collective)
    elif ddlb.is_heading(first):
        yield from ddlb.read(file)
    else:
        yield from _of_text(file, collective)


def _of_json(file: ForeignFile, first: str, collective: str) -> Iterator[ForeignTable]:
    """Yield tables of a document, or of one a line, depending on the first line."""
    line = _object(first)
    if line is not None and inspector.is_record(line):
        yield from inspector.read(file)
    elif line is not None and "node" in line:
        yield from superbench.read(file)
    else:
        data = file.json()
        if isinstance(data, Mapping) and "nvbandwidth" in data:
            yield from nvbandwidth.read(file, data)
        elif isinstance(data, Mapping) and {"version", "results"} <= set(data):
            yield from nccl_json.read(file, data, collective)
        else:
            raise FileError(f"{file.name}: JSON of no known program; known: {', '.join(KNOWN)}")


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        data = from_json(text)
    except (JSONDecodeError, ValueError):
        return None
    return data if isinstance(data, Mapping) else None


def _of_text(file: ForeignFile, collective: str) -> Iterator[ForeignTable]:
    lines = file.lines()
    for line in lines:
        text = line.text.lstrip()
        if not text.startswith(_FIRST):
            continue
        rest = chain((line,), lines)
        if osu.TITLE.match(text):
            return (yield from osu.read(file, rest, collective))
        if param.MARK.match(text):
            return (yield from param.read(file, rest))
        if nccl_text.is_marked(text):
            return (yield from nccl_text.read(file, rest, collective))
    raise FileError(f"{file.name}: no table of {', '.join(KNOWN)}")


_FIRST = ("#", "COMMS", *"0123456789")
"""The beginnings of lines of such tables; most lines of a log begin otherwise."""
