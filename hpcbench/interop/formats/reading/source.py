"""A file of another program as lines or as JSON, in bounded memory; all but text is refused.

Before the lines of tables stand launchers' tags, times, colours, JSON around them. No list of
launchers is kept: a reader finds where a table begins, and what stands before it is the prefix.
Without its times it is the ``source``: the process whose lines these are."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from hpcbench import limits
from hpcbench.errors import NOT_AS_WRITTEN, FileError
from hpcbench.interop.formats.tables import printed
from hpcbench.texts import from_json

Item = TypeVar("Item")
MOST_LINE_BYTES = 2**20
MOST_JSON_BYTES = 2**26
MOST_KINDS = 100
_HEAD_BYTES = 8192
_BLOCK_BYTES = 2**16
MOST_RECORD_LINES = 100_000
_PICKLE = re.compile(rb"\x80[\x02-\x05]")


class LogLine(NamedTuple):
    """A line without its end; numbers count from 1."""

    number: int
    text: str


Chosen: TypeAlias = Callable[[bytes], tuple[int, Iterable[tuple[int, bytes]]]]
"""What is given whole lines as bytes, and returns how many they are, and those that are wanted:
how many are before it, and the line, in order."""


class Unread:
    """What a reader of a file does not understand, counted by kind: one frame for all readers.

    Failures that a log states outside of its tables are counted apart."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int | None]] = {}
        self._failures: dict[str, tuple[int, int | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, what: str, line: int | None = None, count: int = 1) -> None:
        """Count ``count`` more of ``what``, a plural such as "rows without a size"."""
        if what not in self._counts and len(self._counts) >= MOST_KINDS:
            what = "lines of other kinds"
        _count(self._counts, what, line, count)

    def add_failure(self, what: str, line: int) -> None:
        """Count one more line that states a failure, ``what`` as in `add`."""
        _count(self._failures, what, line)

    def failures(self) -> Iterator[tuple[str, int, int | None]]:
        """Yield each kind of stated failures as `entries` does."""
        yield from ((what, count, first) for what, (count, first) in self._failures.items())

    def counts(self) -> dict[str, int]:
        """Return each kind that was left out -> how many."""
        return {what: count for what, (count, _) in self._counts.items()}

    def entries(self) -> Iterator[tuple[str, int, int | None]]:
        """Yield each kind, how many there are, and the line of the first, None without lines."""
        yield from ((what, count, first) for what, (count, first) in self._counts.items())

    def lines(self, name: str) -> Iterator[str]:
        """Yield a line for each kind, with the place of the first in the file ``name``."""
        for what, count, first in self.entries():
            place = f"{name}:{first}" if first is not None else name
            yield f"{place}: left out {what}: {count}"


def _count(
    counts: dict[str, tuple[int, int | None]], what: str, line: int | None, count: int = 1,
) -> None:
    before, first = counts.get(what, (0, line))
    counts[what] = before + count, first


class ForeignFile:
    """A file that another program wrote, plain or gzip. Raises FileError if it is no text.

    Whoever reads it counts in ``left_out`` what is not taken, and whoever called shows it."""

    def __init__(self, path: Path, left_out: Unread | None = None) -> None:
        self.path = path
        self.name = str(path)
        self.left_out = Unread() if left_out is None else left_out
        if path.is_dir():
            raise FileError(f"{self.name} is a folder: name the files in it")
        if not path.is_file():
            raise FileError(f"{self.name}: no such file")
        with self._guarded() as stream:
            head = stream.read(_HEAD_BYTES)
        if reason := _why_no_text(head):
            raise FileError(f"{self.name}: {reason}")

    def lines(self, chosen: Chosen | None = None) -> Iterator[LogLine]:
        """Yield its lines, or those that ``chosen`` chooses; the others are never decoded.

        Raises FileError for a line longer than MOST_LINE_BYTES."""
        first = 1
        for block in self._blocks():
            if chosen is None:
                lines = block.split(b"\n")
                yield from (LogLine(number, _decoded(line))
                            for number, line in enumerate(lines, first))
                first += len(lines)
                continue
            count, encoding = chosen(block)
            yield from (LogLine(first + at, _decoded(line)) for at, line in encoding)
            first += count

    def _blocks(self) -> Iterator[bytes]:
        """Yield whole lines of about _BLOCK_BYTES, without the end of the last one."""
        rest = b""
        with self._guarded() as stream:
            while data := stream.read(_BLOCK_BYTES):
                block, end, after = data.rpartition(b"\n")
                if end:
                    yield rest + block
                    rest = after
                else:
                    rest += after
                if len(rest) > MOST_LINE_BYTES:
                    raise FileError(f"{self.name}: a line is longer than 1 MiB: no table has such "
                                    "lines")
        if rest:
            yield rest

    def records(
        self, parse_float: Callable[[str], Any] = printed,
    ) -> Iterator[tuple[int, Any]]:
        """Yield JSON values with the number of their first line: a value a line, or objects over
        several lines, from ``{`` to ``}`` without indent; None for what is no JSON."""
        first, begun = 0, list[str]()
        for number, text in self.lines():
            if begun and text[:1] == "{":
                yield first, None
                begun = []
            if begun or text.rstrip() == "{":
                first = first if begun else number
                begun.append(text)
                if text.rstrip() not in ("}", "},") and len(begun) < MOST_RECORD_LINES:
                    continue
                text, begun = "\n".join(begun).rstrip(", "), []
            elif text.strip():
                first = number
            else:
                continue
            try:
                yield first, self.parsed(text, first, parse_float)
            except FileError:
                yield first, None
        if begun:
            yield first, None

    def parts(self) -> Iterator[str]:
        """Yield its text in parts of about 1 MiB."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with self._guarded() as stream:
            while data := stream.read(MOST_LINE_BYTES):
                yield decode(data)

    def is_one_object(self) -> bool:
        """Return whether it is JSON in one line that is longer than those of a log."""
        with self._guarded() as stream:
            data = stream.read(_HEAD_BYTES)
            if data[:1] != b"{" or b"\n" in data:
                return False
            data = stream.read(MOST_LINE_BYTES)
        return len(data) == MOST_LINE_BYTES and b"\n" not in data

    def json(self, parse_float: Callable[[str], Any] = printed, cut_in: str = "") -> Any:
        """Return the whole file as JSON, numbers as `Printed` or int, C's ``inf`` and ``nan`` as
        texts; of a document that is cut off within or behind its list ``cut_in`` what is whole.
        Raises FileError."""
        most = limits.raised(MOST_JSON_BYTES)
        with self._guarded() as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise FileError(f"{self.name}: a JSON document of more than {most >> 20} MiB is not "
                            f"read; {limits.remedy()}")
        text = data.decode("utf-8", "replace")
        try:
            return self.parsed(text, parse_float=parse_float)
        except FileError:
            text = _NO_NUMBER.sub(r'\1"\2"', text)
        try:
            return self.parsed(text, parse_float=parse_float)
        except FileError as error:
            cause = error.__cause__
            if cut_in and isinstance(cause, JSONDecodeError) and _is_cut(text, cause) and (
                    found := _before_cut(text, cut_in, parse_float)):
                whole, rest = found
                if rest.lstrip("\n ,").startswith("{"):
                    self.left_out.add("rows that are cut off")
                return whole
            raise

    def parsed(
        self, text: str, line: int | None = None, parse_float: Callable[[str], Any] = printed,
    ) -> Any:
        """Return a JSON text; numbers with a point are `Printed`. Raises FileError."""
        try:
            return from_json(text, parse_float=parse_float, parse_constant=lambda _: None)
        except JSONDecodeError as error:
            what = "cut off within JSON" if _is_cut(text, error) else "no JSON"
            raise self.error(line or error.lineno, f"{what}: {error.msg}") from error
        except ValueError as error:
            raise self.error(line or 1, f"no JSON that can be read: {error}") from error

    def guarded(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield what a reader makes of the file. Raises FileError for a value of another kind than
        the reader asks for: outside text has any."""
        try:
            yield from items
        except NOT_AS_WRITTEN as error:
            raise FileError(f"{self.name}: not the content expected: {type(error).__name__} "
                            f"{str(error)[:60]}; give the file as the program wrote it") from error

    def error(self, line: int, message: str) -> FileError:
        return FileError(f"{self.name}:{line}: {message}")

    def _guarded(self) -> limits.Unpacked:
        return limits.Unpacked(self.path)


def _is_cut(text: str, error: JSONDecodeError) -> bool:
    """Return whether a document ends before it should: within a text, or a word such as false."""
    return error.msg.startswith("Unterminated") or len(text.rstrip()) - error.pos < len("false")


def _before_cut(
    text: str, key: str, parse_float: Callable[[str], Any],
) -> tuple[dict[str, Any], str] | None:
    """Return the keys before a list that is cut with its whole items, and the text behind these;
    None without an item."""
    opening = re.search(rf'"{key}"\s*:\s*\[', text)
    if opening is None:
        return None
    options: dict[str, Any] = {"parse_float": parse_float, "parse_constant": lambda _: None}
    items, at = list[Any](), opening.end()
    decode = json.JSONDecoder(**options).raw_decode
    try:
        head = from_json(text[:opening.start()].rstrip().rstrip(",") + "}", **options)
        while between := _BETWEEN.match(text, at):
            item, at = decode(text, between.end())
            items.append(item)
    except (ValueError, RecursionError):  # the cut, or the end of the list
        pass
    return ({**head, key: items}, text[at:]) if items else None


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


def _why_no_text(head: bytes) -> str:
    """Return why a file that begins so holds no table; "" where it may."""
    if not head.strip():
        return "the file is empty"
    if head.startswith(b"\x89HDF") or head.startswith(b"format hpcbench-"):
        return "a file of hpcbench itself, or HDF5: hpcbench show reads results"
    if _PICKLE.match(head) or head.startswith(b"PK\x03\x04"):
        return "a pickle or an archive: it is never loaded, as loading one can run programs"
    if b"\0" in head:
        return "a binary file: give the text, CSV or JSON that the program writes"
    return ""


_OF_DAY = (r"\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:\s?[AP]M\b)?"
           r"(?:\s?(?:Z\b|[+-]\d\d:?\d\d\b))?")
_CLOCK = rf"(?<![\w:]){_OF_DAY}"
_DATE = r"(?<!\w)(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.]\d\d[-/.]\d{4})"
_DAY = (r"\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*,?\s+)?"
        r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w*\s+\d{1,2}")
_TIMES = (rf"{_DATE}[T-]{_OF_DAY}"
          rf"|(?:{_DATE}|{_DAY}),?\s+{_CLOCK}(?:\s+(?:[A-Z]{{3,4}}\s+)?\d{{4}}\b)?"
          rf"|{_CLOCK}|{_DATE}|(?<![\w.])\d{{9,19}}(?:\.\d+)?(?![\w.])"
          r"|(?<![\w.])\d+\.\d{3,9}(?![\w.])")
_TIME = re.compile(_TIMES)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_XML_END = re.compile(r"(?:&#0?10;)?</std(?:out|err|diag)>\s*$")
WRAPPED_IN = ("log", "message", "textPayload")
"""Keys under which a container's logs hold a line, if each line is a JSON object."""


def unwrapped(text: str) -> str:
    """Return a line without colours, and without the JSON, XML or quotes around it."""
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    if text.startswith("{") and (inner := wrapped_line(text)) is not None:
        text = inner
    elif text.endswith(">"):
        text = _XML_END.sub("", text)
    elif text.endswith(('"', '",')) and text.lstrip().startswith('"'):
        text = text.strip().rstrip(",")[1:-1]
    return text.rstrip()


def wrapped_line(text: str) -> str | None:
    """Return the line of a log that is in a JSON object; None if the object holds none."""
    try:
        data = from_json(text)
    except (JSONDecodeError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return next((data[key] for key in WRAPPED_IN if isinstance(data.get(key), str)), None)


def source_of(prefix: str) -> str:
    """Return a prefix without its times and outer blanks: alike for all lines of a process."""
    return " ".join(_TIME.sub(" ", prefix).split()) if prefix.strip() else ""


def pattern_of(prefix: str) -> re.Pattern[str]:
    """Return what matches this prefix at any time, with any number of blanks."""
    pieces, at = list[str](), 0
    for time in _TIME.finditer(prefix):
        pieces += [_blanks_open(prefix[at:time.start()]), f"(?:{_TIMES})"]
        at = time.end()
    return re.compile("".join([*pieces, _blanks_open(prefix[at:].rstrip())]))


def _blanks_open(text: str) -> str:
    return r"\s*".join(map(re.escape, re.split(r"\s+", text)))


def nearest(source: str, sources: Iterable[str]) -> str | None:
    """Return the longest of the sources with which ``source`` ends: the rest is other output."""
    fitting = [one for one in sources if source.endswith(one) and not (
        one[:1].isalnum() and source[:-len(one)][-1:].isalnum())]
    return max(fitting, key=len, default=None)


_BETWEEN = re.compile(r"[\s,]*")
_NO_NUMBER = re.compile(r"(:\s*)(-?(?:inf|nan))(?=\s*[,}])")


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
