"""What stands before a table's lines in a log: launchers' tags, times, colours, JSON around them.

No list of launchers is kept. A reader finds where a table begins, and what stands before it is the
prefix. Without its times it is the ``source``: the process whose lines these are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from json import JSONDecodeError

from hpcbench.texts import from_json

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
