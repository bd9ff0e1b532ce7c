"""Copies of a run's files in which texts are others, and all else is the same and sealed again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from hpcbench.texts import to_json
from hpcbench.trace.columns import json_line, text_column, texts_of, write_column, write_lines
from hpcbench.trace.container import new_container, open_container, whole_file
from hpcbench.trace.journal import Frame, Kind, pack_frame, scan

_STATIC = ("format", "description", "attributes")


class Texts(Protocol):
    """What replaces texts."""

    def text(self, text: str) -> str:
        """Return another text."""

    def json(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with other texts; it stands under ``key``."""


def other_lines(text: str, texts: Texts) -> str:
    """Return a text of lines with others, those as JSON that are objects or lists of it."""
    return "\n".join(_other_line(line, texts) for line in text.split("\n"))


def _other_line(line: str, texts: Texts) -> str:
    with suppress(ValueError):
        if line.startswith(("{", "[")):
            return json_line(texts.json(json.loads(line)))
    return texts.text(line)


def copy_sealed(path: Path, target: Path, file_format: str, texts: Texts) -> None:
    """Write a sealed file's copy with other texts, sealed again; its numbers are the same bytes.

    ``path`` was verified. Raises UnreadableTrace, FileError.
    """
    with open_container(path) as file, new_container(
            target, file_format, int(file.attrs["schema_version"])) as new:
        _copy_attributes(file, new, texts)
        file.visititems(lambda name, item: _copy(name, item, new, texts))


def _copy(name: str, item: h5py.Group | h5py.Dataset, new: h5py.File, texts: Texts) -> None:
    if isinstance(item, h5py.Group):
        _copy_attributes(item, new.require_group(name))
    elif item.dtype.kind != "S":
        item.file.copy(item, new, name=name)
    else:
        lines = [other_lines(text, texts) for text in texts_of(item[:])]
        if len(lines) == 1:  # most often JSON, which is packed
            write_lines(new, name, lines)
        else:
            write_column(new, name, text_column(lines))
        _copy_attributes(item, new[name])


def _copy_attributes(
    source: h5py.Group | h5py.Dataset, target: h5py.Group | h5py.Dataset,
    texts: Texts | None = None,
) -> None:
    for key, value in source.attrs.items():
        if texts is not None and isinstance(value, str) and key not in _STATIC:
            value = texts.json(value, key)
        is_texts = getattr(getattr(value, "dtype", None), "kind", "") == "O"
        target.attrs.create(key, value, dtype=h5py.string_dtype() if is_texts else None)


def copy_journal(path: Path, target: Path, texts: Texts) -> int:
    """Write a journal's whole frames with other texts; return how many places are damaged.

    Those are left out: nothing tells what they hold. Raises FileError.
    """
    damaged = 0
    with whole_file(target) as beside, beside.open("wb") as stream:
        for item in scan(path.read_bytes()):
            if isinstance(item, Frame):
                rows = np.frombuffer(item.rows, dtype="<i8")
                stream.write(pack_frame(Kind(item.kind), texts.json(item.json()), None, (rows,)))
            else:
                damaged += 1
    return damaged


def copy_text(path: Path, target: Path, texts: Texts) -> None:
    """Write a copy of a file of text, of JSON or of packed JSON. Raises ValueError, FileError."""
    names = path.name.split(".")
    data = gzip.decompress(path.read_bytes()) if names[-1] == "gz" else path.read_bytes()
    text = data.decode("utf-8", "surrogateescape")
    if "json" in names[-2:]:
        value: Mapping[str, Any] = texts.json(json.loads(text))
        text = to_json(value, indent=None if "\n" not in text.strip() else 1) + "\n"
    else:
        text = other_lines(text, texts)
    written = text.encode("utf-8", "surrogateescape")
    with whole_file(target) as beside:
        beside.write_bytes(gzip.compress(written, mtime=0) if names[-1] == "gz" else written)
