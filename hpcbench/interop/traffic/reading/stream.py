"""A long list in a JSON document, item by item: traces of a few steps have hundreds of MiB."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json import JSONDecodeError
from typing import Any

from hpcbench import limits
from hpcbench.errors import FileError
from hpcbench.interop.formats.reading.source import MOST_JSON_BYTES, ForeignFile
from hpcbench.texts import from_json

_BETWEEN = re.compile(r"[\s,]*")


class StreamedList:
    """The items of the list ``key`` of a document; `others` has the other keys afterwards."""

    def __init__(self, file: ForeignFile, key: str) -> None:
        self._file, self._key = file, key
        self._parts = file.parts()
        self._text, self._at = "", 0
        self.others: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        """Yield each item. Raises FileError for a document that is no JSON, or cut off."""
        opening = re.compile(rf'"{self._key}"\s*:\s*\[')
        while (match := opening.search(self._text)) is None:
            self._read_on()
        head, self._text = self._text[:match.start()], self._text[match.end():]
        decode = json.JSONDecoder().raw_decode
        while True:
            self._skip()
            if self._text[self._at] == "]":
                break
            try:
                item, self._at = decode(self._text, self._at)
            except JSONDecodeError:
                self._read_on()
            except RecursionError as error:
                raise FileError(f"{self._file.name}: nested too deeply") from error
            else:
                yield item
        self._keep_others(head)

    def _skip(self) -> None:
        """Go to the next item or to the end of the list."""
        while True:
            between = _BETWEEN.match(self._text, self._at)
            self._at = between.end() if between else self._at
            if self._at < len(self._text):
                return
            self._read_on()

    def _read_on(self) -> None:
        part = next(self._parts, None)
        if part is None:
            raise FileError(f"{self._file.name}: cut off, or no JSON with a list {self._key}")
        self._add(part)

    def _add(self, part: str) -> None:
        self._text, self._at = self._text[self._at:] + part, 0
        if len(self._text) > (most := limits.raised(MOST_JSON_BYTES)):
            raise FileError(f"{self._file.name}: no JSON, or an item of more than {most >> 20} "
                            f"MiB; {limits.remedy()}")

    def _keep_others(self, head: str) -> None:
        self._at += 1
        for part in self._parts:
            self._add(part)
        before, after = head.strip().rstrip(","), self._text[self._at:].strip().lstrip(",")
        comma = "," if before != "{" and after != "}" else ""
        try:
            self.others = from_json(before + comma + after)
        except ValueError as error:
            raise FileError(f"{self._file.name}: cut off behind its list {self._key}") from error
