r"""Texts from outside need not be UTF-8, nor printable: how they are stored, shown, and read again.

Python keeps each byte of a name, a variable or an argument that is not UTF-8 as half of a
surrogate pair (PEP 383). Such a text is no Unicode: UTF-8, strict readers of JSON and HDF5 refuse
it. So it is stored and shown with ``\xfc`` in place of the byte. `stored_path` and `path_of` keep
paths reversible; inside a process a path stays as Python has it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

_SURROGATES = re.compile("[\ud800-\udfff]+")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_LOOKS_STORED = re.compile(r"\\(?=x(?:[89a-f][0-9a-f]|5c))")
_STORED = re.compile(rb"\\x([89a-f][0-9a-f]|5c)")


def valid(text: str) -> str:
    r"""Return the text as Unicode: each byte that is not UTF-8 becomes ``\xfc``.

    Valid texts are returned as they are.
    """
    return text if is_valid(text) else _SURROGATES.sub(_written_out, text)


def is_valid(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def valid_json(value: Any) -> Any:
    """Return a JSON value with `valid` applied to every text in it, keys included."""
    if isinstance(value, str):
        return valid(value)
    if isinstance(value, Mapping):
        return {valid_json(key): valid_json(part) for key, part in value.items()}
    return [valid_json(part) for part in value] if isinstance(value, (list, tuple)) else value


def to_json(value: Any, **options: Any) -> str:
    """Return JSON that any reader takes; ``options`` are those of `json.dumps`, which raises."""
    text = json.dumps(value, **options)
    return json.dumps(valid_json(value), **options) if holds_halves(text) else text


def holds_halves(text: str) -> bool:
    """Return whether a JSON text may hold halves of surrogate pairs, as such or as escapes.

    Escaped pairs are taken for halves, too: they are rare, and no change is made to them.
    """
    return _ESCAPED_SURROGATE.search(text) is not None or not is_valid(text)


def from_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text, all texts in it valid: earlier versions wrote others, too.

    ``options`` are those of `json.loads`. Raises ValueError where it is no JSON.
    """
    try:
        words = text.decode("utf-8", "surrogatepass") if isinstance(text, bytes) else text
        value = json.loads(words, **options)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return valid_json(value) if holds_halves(words) else value


def stored_path(path: str | os.PathLike[str]) -> str:
    """Return a path as a valid text from which `path_of` makes the same path again.

    Raises ValueError where it cannot be the name of a file.
    """
    text = os.fsencode(path).decode("utf-8", "surrogateescape")
    return valid(_LOOKS_STORED.sub(r"\\x5c", text))


def path_of(text: str) -> Path:
    r"""Return the path of a text of `stored_path`, or of one that a person wrote.

    ``\x80`` to ``\xff`` stand for bytes, ``\x5c`` for a backslash.
    """
    data = _STORED.sub(lambda found: bytes.fromhex(found[1].decode()), valid(text).encode())
    return Path(os.fsdecode(data))


def printable(text: str) -> str:
    r"""Return a text that a terminal shows and does not obey: ESC becomes ``\x1b``.

    Line ends and tabs stay.
    """
    return _CONTROLS.sub(_as_escape, valid(text))


def say(text: object, stream: TextIO | None = None, *, end: str = "\n") -> None:
    """Print a text, `printable`, on standard output or another stream; it is there on return."""
    print(printable(str(text)), file=stream or sys.stdout, end=end, flush=True)


def _written_out(found: re.Match[str]) -> str:
    try:
        return found[0].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # halves that stand for no byte: JSON can have them
        return found[0].encode("ascii", "backslashreplace").decode()


def _as_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
