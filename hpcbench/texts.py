r"""Texts: how they are stored and shown, without secrets, and how much of them a command prints.

Python keeps each byte of a name, a variable or an argument that is not UTF-8 as half of a
surrogate pair (PEP 383). UTF-8, strict readers of JSON and HDF5 refuse it, so it is stored and
shown with ``\xfc`` in place of the byte. `stored_path` and `path_of` keep paths reversible.

Secrets are never written: the value of a variable with a name for secrets, user and password of a
URL, a bearer token, and the text behind such a name (``token=``, ``password:``, ``--secret``).
Other secrets cannot be recognised. So variables are also recorded by an allow-list only."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO
from urllib.parse import quote

from hpcbench.units import format_seconds

_SURROGATES = re.compile("[\ud800-\udfff]+")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_OBEYED = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u061c\u200e\u200f\ufffe\uffff"
_UNSEEN = (r"\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
           r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
           r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff")
"""What Unicode calls default ignorable: no reader sees it, and two texts differ by it."""
_HIDDEN = re.compile(f"[{_OBEYED}{_UNSEEN}]")
_NOT_IN_FIELDS = re.compile(rf"[\n\t{_OBEYED}{_UNSEEN}]")
_LOOKS_STORED = re.compile(r"\\(?=x(?:[89a-f][0-9a-f]|5c))")
_STORED = re.compile(rb"\\x([89a-f][0-9a-f]|5c)")


def valid(text: str) -> str:
    r"""Return the text as Unicode: each byte that is not UTF-8 becomes ``\xfc``.

    Valid texts are returned as they are."""
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
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a number as it was printed
        return value._make(map(valid_json, value))
    return [valid_json(part) for part in value] if isinstance(value, (list, tuple)) else value


def to_json(value: Any, **options: Any) -> str:
    """Return JSON that any reader takes and a terminal shows, with ``options`` of `json.dumps`.

    Raises what that raises."""
    text = json.dumps(value, **options)
    if holds_halves(text):
        text = json.dumps(valid_json(value), **options)
    return text if text.isascii() and "\x7f" not in text else _escaped(
        text, lambda found: json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f"))


def error_document(problem: str, code: int, error: str) -> str:
    """Return the JSON document of a command that could not do what was asked: one line a problem,
    its exit code, and the name of its exception."""
    return to_json({"schema": "hpcbench.error", "schema_version": 1, "exit_code": code,
                    "error": error, "problems": problem.splitlines()}, indent=2)


def holds_halves(text: str) -> bool:
    """Return whether a JSON text may hold halves of surrogate pairs, as such or as escapes.

    Escaped pairs are taken for halves, too: they are rare, and no change is made to them."""
    return _ESCAPED_SURROGATE.search(text) is not None or not is_valid(text)


def from_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text, all texts in it valid: earlier versions wrote others, too.

    ``options`` are those of `json.loads`. Raises ValueError where it is no JSON."""
    try:
        decoded = text.decode("utf-8", "surrogatepass") if isinstance(text, bytes) else text
        value = json.loads(decoded, **options)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return valid_json(value) if holds_halves(decoded) else value


def stored_path(path: str | os.PathLike[str]) -> str:
    """Return a path as a valid text from which `path_of` makes the same path again.

    Raises ValueError where it cannot be the name of a file."""
    text = os.fsencode(path).decode("utf-8", "surrogateescape")
    return valid(_LOOKS_STORED.sub(r"\\x5c", text))


def path_of(text: str) -> Path:
    r"""Return the path of a text of `stored_path`, or of one that a person wrote.

    ``\x80`` to ``\xff`` stand for bytes, ``\x5c`` for a backslash."""
    data = _STORED.sub(lambda found: bytes.fromhex(found[1].decode()), valid(text).encode())
    return Path(os.fsdecode(data))


def file_hash(content: bytes) -> str:
    """Return 16 hex digits of the SHA-256 of a file's content."""
    import hashlib  # few commands need it

    return hashlib.sha256(content).hexdigest()[:16]


def printable(text: str) -> str:
    r"""Return a text that a terminal shows and does not obey: ESC becomes ``\x1b``.

    Nothing in it reorders others or is invisible, either. Line ends and tabs stay: it is for whole
    outputs; a text from outside within them goes through `as_field`."""
    return _escaped(valid(text), _as_escape)


def as_field(text: str) -> str:
    r"""Return a text from outside as part of one line: `printable`, and a line end becomes ``\n``.

    It cannot forge a line, so each text that came from outside is shown by this: a name, a host, a
    path, a note, an error. What is stored stays as it is."""
    if text.isascii() and text.isprintable():
        return text
    return _NOT_IN_FIELDS.sub(_as_escape, valid(text))


class Lines(str):
    """A text of several lines in one place of a table; no text from outside divides one."""

    __slots__ = ()

    @classmethod
    def of(cls, lines: Iterable[str]) -> Lines:
        return cls("\n".join(map(as_field, lines)))


def say(line: object, stream: TextIO | None = None) -> None:
    """Print one line (`as_field`) on standard output or another stream; it is there on return."""
    print(as_field(str(line)), file=stream or sys.stdout, flush=True)


def say_all(text: object, stream: TextIO | None = None) -> None:
    """Print a `printable` text of several lines, the last of which is ended; nothing for ""."""
    whole = printable(str(text))
    print(whole, file=stream or sys.stdout, end="\n" if whole and whole[-1] != "\n" else "",
          flush=True)


def _written_out(match: re.Match[str]) -> str:
    try:
        return match[0].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # halves that stand for no byte: JSON can have them
        return match[0].encode("ascii", "backslashreplace").decode()


def _escaped(text: str, escape: Callable[[re.Match[str]], str]) -> str:
    """Return a text, perhaps a long one, with what is hidden escaped; most have nothing hidden."""
    return _HIDDEN.sub(escape, text) if _HIDDEN.search("".join({*text})) else text


def _as_escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


MASK = "***"
_MIN_LENGTH = 4
"""Shorter values ("1", "yes", "on") are parts of ordinary words, which masking would blot out."""
_MIN_WITHIN = 6
"""So long at least is a secret within the value of another variable; in its place any is masked."""
_MIN_LINE_LENGTH = 12
"""From this length on, one line of a secret of several lines (a private key) is masked alone."""
_MIN_CUT = 8
"""A part of a secret at the end or the beginning of a text is known as such from this length on."""
_ORDINARY = frozenset({"true", "false", "none", "null"})
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_PARTITION_KEY = re.compile(r"\w*PKEYS?(_INDEX)?", re.IGNORECASE)
_PARTITION = re.compile(r"(0x)?[0-9a-fA-F]{1,4}")
_NAMES = (r"(?:token(?!s)|secret|passw(?:or)?d|passphrase|credential"
          r"|(?:api|access|private)[_-]?key)")
_VALUE = (r"(?P<secret>(?<=\")(?:[^\"\\\n]|\\(?!\"))+|(?<=')(?:[^'\\\n]|\\(?!'))+"
          r"|(?:[^\s&;,'\"\\]|\\(?![\"']))+)")
_PATTERNS = tuple(map(re.compile, (
    r"(?<=://)(?P<secret>[^\s/@:]+:\S*|[^\s/?#]+)(?=@)",
    rf"(?i:{_NAMES}[\w.-]*(?<!\.py)|[?&](?:key|sig|signature|x-amz-signature))\\*[\"']?\s*[=:]\s*"
    rf"\\*[\"']?{_VALUE}",
    r"\b[A-Z][A-Z0-9_]*_(?:KEY|PASS|AUTH)(?:_[A-Z0-9_]+)?(?:\\*[\"']\s*:\s*|=)\\*[\"']?" + _VALUE,
    rf"(?i:--[\w-]*{_NAMES}[\w-]*)\s+(?P<secret>\S+)",
    r"(?i:\b(?:bearer|basic|authorization:\s*token))\s+(?P<secret>[\w.~+/=-]{8,})",
    r"\b(?P<secret>gh[opsur]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)")))
"""Login of a URL; ``name=value`` and ``name: value``; variables, as JSON or assigned; ``--name
value``; HTTP's Authorization; tokens of GitHub, GitLab, Hugging Face, AWS, and JWT (RFC 7519)."""


def holds_secret(name: str, value: str) -> bool:
    """Return whether a variable's name shows that its value is a secret.

    InfiniBand's partition keys (``NCCL_IB_PKEY=0x7fff``) are none: they number partitions."""
    if _PARTITION_KEY.fullmatch(name) and _PARTITION.fullmatch(value):
        return False
    return _SECRET_NAME.search(name) is not None


def first_line(text: str) -> str:
    """Return the first line that is not blank, without blanks around it; "" if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


MOST_CHARACTERS = 300
"""Of a text of others (an error, what a check found) in one field."""
_MOST_MASKED = 16 * MOST_CHARACTERS
"""To mask all of 5 MB takes seconds."""


def cut(text: str, length: int = 0) -> str:
    """Return the beginning of a text, and how many more characters it has.

    ``length``: of the whole, where ``text`` itself is only a beginning."""
    more = max(length, len(text)) - MOST_CHARACTERS
    return f"{text[:MOST_CHARACTERS]}... {more:,} more characters" if more > 0 else text


def masked_line(text: str, environ: Mapping[str, str]) -> str:
    """Return the first line of a text of others, secrets masked before it is `cut`."""
    line = first_line(masked(text[:_MOST_MASKED], environ))
    return cut(line, len(first_line(text)) if len(text) > _MOST_MASKED else 0)


def error_line(
    error: BaseException, environ: Mapping[str, str], outside: Path | None = None,
) -> str:
    """Return an exception's type, first line and place: the innermost, or, if a folder is given,
    the outermost that is ``outside`` of it."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__)
              if outside is None or outside not in Path(frame.filename).parents]
    place = places[0 if outside else -1] if places else None
    where = f" ({Path(place.filename).name}:{place.lineno})" if place else ""
    return f"{type(error).__name__}: {masked_line(str(error), environ)}{where}"


def masked(text: str, environ: Mapping[str, str]) -> str:
    """Return ``text`` with every secret that is known or looks like one replaced by ``***``.

    ``environ`` is the environment of the process that wrote the text, or of its parent."""
    return masker(environ)(text)


def masker(environ: Mapping[str, str]) -> Callable[[str], str]:
    """Return `masked` of an environment as it is now, for many texts."""
    secrets = _secrets_of(environ)
    return lambda text: _masked(text, secrets)


def masked_json(value: Any, environ: Mapping[str, str]) -> Any:
    """Return a JSON value with `masked` applied to every text in it, keys excepted."""
    mask = masker(environ)

    def within(item: Any) -> Any:
        if isinstance(item, str):
            return mask(item)
        if isinstance(item, Mapping):
            return {key: within(part) for key, part in item.items()}
        return [within(part) for part in item] if isinstance(item, (list, tuple)) else item

    return within(value)


def print_traceback(environ: Mapping[str, str]) -> None:
    """Print the exception that is being handled as Python does, secrets masked, each message in one
    line; of a very long one the beginning and the end."""
    told = traceback.TracebackException(*sys.exc_info())
    chain = [told]
    for error in chain:
        error._str = as_field(str(error))  # type: ignore[attr-defined]  # no method is asked for it
        chain += [before for before in (error.__cause__, error.__context__) if before is not None]
    text = "".join(told.format())
    parts, more = [text], len(text) - 2 * _MOST_MASKED
    if more > _MOST_MASKED:
        parts = [text[:_MOST_MASKED], text[-_MOST_MASKED:]]
    say_all(f"\n... {more:,} more characters ...\n".join(masked(part, environ) for part in parts),
            sys.stderr)


def _masked(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = _without_cut(text.replace(secret, MASK), secret)
    for pattern in _PATTERNS:
        text = pattern.sub(_without_secret, text)
    return text


def _without_secret(found: re.Match[str]) -> str:
    start, end = (found.start("secret") - found.start(), found.end("secret") - found.start())
    return found[0][:start] + MASK + found[0][end:]


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
    values = {secret for name, value in environ.items()
              for secret in ([value] if holds_secret(name, value) else _within(value))}
    return sorted({form for value in values for form in _forms(value)}, key=len, reverse=True)


@lru_cache(maxsize=1000)
def _within(value: str) -> tuple[str, ...]:
    """Return the secrets in the value of a variable: of a login both parts, and the password."""
    secrets = [found["secret"] for pattern in _PATTERNS for found in pattern.finditer(value)
               if value[:found.start("secret")].rstrip("\"'").endswith(("=", "//"))]
    return tuple(part for secret in secrets for part in (secret, secret.partition(":")[2])
                 if len(part) >= _MIN_WITHIN)


def _forms(value: str) -> Iterator[str]:
    lines = [line for line in value.splitlines() if len(line) >= _MIN_LINE_LENGTH]
    written = valid(value)
    # as another program prints it, whose output is decoded so
    decoded = value.encode("utf-8", "surrogateescape").decode(errors="replace")
    forms = (value.strip(), quote(value, safe="", errors="surrogateescape"), repr(value)[1:-1],
             written.strip(), repr(written)[1:-1], decoded.strip(), *lines)
    for form in dict.fromkeys(forms):
        if len(form) >= _MIN_LENGTH and form.lower() not in _ORDINARY:
            yield form


class Verbosity(Enum):
    """The output that the user requested; a command gets it as an argument and passes it on."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"

    @property
    def is_quiet(self) -> bool:
        return self is Verbosity.QUIET

    @property
    def is_verbose(self) -> bool:
        return self is Verbosity.VERBOSE

    def details(self, lines: Iterable[str]) -> None:
        """Print lines on standard error if details are wanted, secrets masked."""
        if not self.is_verbose:
            return
        if sys.stdout is not None:
            sys.stdout.flush()  # so that both streams are in order where they share a terminal
        for line in lines:
            say(f"hpcbench: {masked(line, os.environ)}", sys.stderr)

    def announce(self, line: str) -> None:
        """Print a line of progress on standard output, unless only the result is wanted."""
        if not self.is_quiet:
            say(masked(line, os.environ))

    def complain(self, line: str) -> None:
        """Print a failure that does not end the command on standard error; call in ``except``."""
        self.traceback()
        say(f"hpcbench: {masked(line, os.environ)}", sys.stderr)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began_s = perf_counter()
        try:
            yield
        finally:
            self.details([f"{name}: {format_seconds(perf_counter() - began_s)}"])

    def traceback(self) -> None:
        if self.is_verbose:
            print_traceback(os.environ)
