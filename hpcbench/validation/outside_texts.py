r"""Which texts of the machine are not UTF-8: such a byte is recorded and shown as ``\xfc``."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hpcbench.texts import valid
from hpcbench.validation.lines import Line, ok, spread, warn
from hpcbench.validation.rank_report import JobReport, reasons

_MOST_NAMES = 8


def not_utf8(environ: Mapping[str, str], folder: str) -> tuple[str, ...]:
    """Return which texts of this rank are not UTF-8; ``folder`` is that of the results."""
    places = {"the host name": socket.gethostname(), "the results folder": folder}
    with suppress(OSError):  # a current folder that was removed
        places["the current folder"] = str(Path.cwd())
    bad = [name for name, text in places.items() if not _is_utf8(text)]
    return (*bad, *(f"variable {valid(name)}" for name, value in sorted(environ.items())
                    if not (_is_utf8(name) and _is_utf8(value))))


def _is_utf8(text: str) -> bool:
    """Return whether the bytes that the system gave are UTF-8, whatever the locale is."""
    try:
        return bool(os.fsencode(text).decode()) or not text
    except UnicodeError:
        return False


def text_lines(job: JobReport) -> Iterator[Line]:
    """Yield whether all texts that come from outside are UTF-8."""
    found = reasons(job.ranks, lambda report: _named(report.not_utf8))
    if not found:
        yield ok("texts", "host names, folders and variables are UTF-8")
        return
    yield warn("texts", f"not UTF-8: {spread(found)}", r"nothing is lost: such a byte is recorded "
               r"and shown as \xfc; to have the characters, set the text in UTF-8")


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
