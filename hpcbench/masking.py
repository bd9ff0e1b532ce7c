"""Secrets are never written: which variables hold one, and texts without them.

The value of a variable whose name says so is a secret. So are the user and password of a URL, a
bearer token, and what follows a name that says so (``token=``, ``password:``, ``--secret``).
What looks like none of these is like any other text. So variables are also recorded by an
allow-list only.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from hpcbench.texts import say, valid

MASK = "***"
_MIN_LENGTH = 4
"""Shorter values ("1", "yes", "on") are parts of ordinary words, which masking would blot out."""
_MIN_LINE_LENGTH = 12
"""From this length on, one line of a secret of several lines (a private key) is masked alone."""
_MIN_CUT = 8
"""A part of a secret at the end or the beginning of a text is known as such from this length on."""
_ORDINARY = frozenset({"true", "false", "none", "null"})
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_PARTITION_KEY = re.compile(r"\w*PKEYS?(_INDEX)?", re.IGNORECASE)
_PARTITION = re.compile(r"(0x)?[0-9a-fA-F]{1,4}")
_NAMES = r"(?:token(?!s)|secret|passw(?:or)?d|passphrase|credential|(?:api|access|private)_?key)"
_PATTERNS = (
    (re.compile(r"(?<=://)(?:[^\s/@:]+:\S*|[^\s/?#]+)(?=@)"), MASK),
    (re.compile(rf"(?i)({_NAMES}[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\s&;,'\"]+"), rf"\g<1>{MASK}"),
    (re.compile(rf"(?i)(--[\w-]*{_NAMES}[\w-]*\s+)\S+"), rf"\g<1>{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\g<1> {MASK}"),
)
"""Login of a URL; ``name=value`` and ``name: value``; ``--name value``; HTTP's Authorization."""


def holds_secret(name: str, value: str) -> bool:
    """Return whether a variable's name says that its value is a secret.

    InfiniBand's partition keys (``NCCL_IB_PKEY=0x7fff``) are none: they number partitions.
    """
    if _PARTITION_KEY.fullmatch(name) and _PARTITION.fullmatch(value):
        return False
    return _SECRET_NAME.search(name) is not None


def masked(text: str, environ: Mapping[str, str]) -> str:
    """Return ``text`` with every secret that is known or looks like one replaced by ``***``.

    ``environ`` is the environment of the process that wrote the text, or of its parent.
    """
    return _masked(text, _secrets_of(environ))


def masked_json(value: Any, environ: Mapping[str, str]) -> Any:
    """Return a JSON value with `masked` applied to every text in it, keys excepted."""
    secrets = _secrets_of(environ)

    def within(item: Any) -> Any:
        if isinstance(item, str):
            return _masked(item, secrets)
        if isinstance(item, Mapping):
            return {key: within(part) for key, part in item.items()}
        return [within(part) for part in item] if isinstance(item, (list, tuple)) else item

    return within(value)


def print_traceback(environ: Mapping[str, str]) -> None:
    """Print the exception that is being handled as Python does, secrets masked."""
    say(masked(traceback.format_exc(), environ), sys.stderr, end="")


def _masked(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = _without_cut(text.replace(secret, MASK), secret)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _without_cut(text: str, secret: str) -> str:
    """Mask the part of a secret that is left where a text was cut off in the middle of it."""
    for at in _positions(text, secret[:_MIN_CUT]):
        if secret.startswith(text[at:]):
            text = text[:at] + MASK
            break
    for at in reversed(list(_positions(text, secret[-_MIN_CUT:]))):
        if secret.endswith(text[:at + _MIN_CUT]):
            return MASK + text[at + _MIN_CUT:]
    return text


def _positions(text: str, part: str) -> Iterator[int]:
    """Yield where ``part`` stands in the text, if it is long enough to be no other word."""
    at = text.find(part) if len(part) == _MIN_CUT else -1
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _secrets_of(environ: Mapping[str, str]) -> list[str]:
    """Return every form in which a secret of the environment can appear, longest first."""
    secrets = {form for name, value in environ.items() if holds_secret(name, value)
             for form in _forms(value)}
    return sorted(secrets, key=len, reverse=True)


def _forms(value: str) -> Iterator[str]:
    lines = [line for line in value.splitlines() if len(line) >= _MIN_LINE_LENGTH]
    written = valid(value)
    forms = (value.strip(), quote(value, safe="", errors="surrogateescape"), repr(value)[1:-1],
             written.strip(), repr(written)[1:-1], _with_replacements(value), *lines)
    for form in dict.fromkeys(forms):
        if len(form) >= _MIN_LENGTH and form.lower() not in _ORDINARY:
            yield form


def _with_replacements(value: str) -> str:
    """Return a value as it is in what another program printed, which is decoded so."""
    return value.encode("utf-8", "surrogateescape").decode(errors="replace").strip()
