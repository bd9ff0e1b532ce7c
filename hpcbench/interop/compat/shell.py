"""The simple commands of a text that a shell would run: their words, without running anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from hpcbench.errors import UsageError
from hpcbench.records import dataclass
from hpcbench.units import shortened

_NESTED = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r]|\\\r?\n)+|#[^\n]*)"
    r"|(?P<redirection>&>>?|\d*(?:[<>]&(?:\d|-)?|>>|>\||<<<|<<|<>|<|>))"
    r"|(?P<operator>&&|\|\||\|&|[;&|()\n])"
    rf"|(?P<word>(?:\\.|'[^']*'|\"(?:\\[\s\S]|[^\"\\])*\"|{_NESTED}|`[^`]*`|[^\s\\'\"`|&;<>()])+)")
_EXPANDED = re.compile(r"'[^']*'|\\.|\$(?:(\w+)|\{(\w+)\})")
_PLAIN = re.compile(r"[\w./:,@%+=-]*")
"""Values of variables that a shell would not divide, whether in quotes or not."""
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """A command: its words without quotes, its redirections, and the operator before it."""

    words: tuple[str, ...]
    redirections: str = ""
    before: str = ""

    @property
    def text(self) -> str:
        return " ".join(filter(None, (*self.words, self.redirections)))


@dataclass(slots=True)
class _Unfinished:
    words: list[str] = field(default_factory=list)
    redirections: list[str] = field(default_factory=list)
    before: str = ""


def simple_commands(text: str, variables: Mapping[str, str]) -> Iterator[SimpleCommand]:
    """Yield the commands of a text, the values of variables that are set in it filled in.

    Raises UsageError for text that a shell would not take."""
    values, current = dict(variables), _Unfinished()
    at, takes_target = 0, False
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UsageError(f"{shortened(' '.join(text.split()))}: no closing quotation or bracket"
                             f" behind character {at + 1}")
        at = match.end()
        if match["operator"]:
            yield from _finished(current, values)
            current = _Unfinished(before=match["operator"].strip() or ";")
        elif match["redirection"]:
            current.redirections.append(match["redirection"])
            takes_target = match["redirection"][-1] in "<>&|"  # not 2>&1
            continue
        elif match["word"]:
            word = _without_quotes(_filled_in(match["word"], values))
            (current.redirections if takes_target else current.words).append(word)
        takes_target = takes_target and bool(match["space"])
    yield from _finished(current, values)


def _finished(current: _Unfinished, values: dict[str, str]) -> Iterator[SimpleCommand]:
    """Yield a command that has words; keep what it sets where it does nothing else."""
    if not (current.words or current.redirections):
        return
    words = current.words[1:] if current.words[:1] == ["export"] else current.words
    matches = [SETTING.fullmatch(word) for word in words]
    if all(matches):
        values |= {one[1]: one[2] for one in matches if one}
    yield SimpleCommand(tuple(current.words), " ".join(current.redirections), current.before)


def _filled_in(raw: str, values: Mapping[str, str]) -> str:
    """Return a word with its quotes, and with the values of variables that are plain."""
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        given = values.get(name) if name else None
        return given if given is not None and _PLAIN.fullmatch(given) else match[0]

    return _EXPANDED.sub(value, raw) if "$" in raw else raw


def _without_quotes(raw: str) -> str:
    try:
        return " ".join(shlex.split(raw))
    except ValueError as error:
        raise UsageError(f"{shortened(raw)}: {str(error).lower()}") from None


def needs_shell(value: str) -> bool:
    """Return whether a shell would compute a word: it has a variable that the text does not set."""
    return "$" in value or "`" in value


def in_shell(words: Iterable[str]) -> str:
    """Return words as a shell takes them; variables stay variables."""
    return " ".join(word if _VARIABLE.fullmatch(word) else f'"{word}"' if needs_shell(word)
                    and '"' not in word else shlex.quote(word) for word in words)
