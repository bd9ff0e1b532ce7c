"""What names a machine, its user or its job in a text, and one other name for each of them.

Known are the words that are given (hosts, users, ids of jobs), and what has a form of its own:
paths, URLs, addresses, UUIDs. A text is gone through once, so that no replacement is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from ipaddress import ip_address
from typing import Any

from hpcbench.masking import masked

PATH = re.compile(
    r"(?:(?<=file://)|(?<=\s-[A-Za-z])|(?<![\w/.>]))"
    r"/(?!(?:dev|proc|sys|usr(?!/local)|lib|lib64|bin|sbin)/)"
    r"[^\s/'\"<>|:;,()\[\]{}\\]+(?:/[^\s/'\"<>|:;,()\[\]{}\\]+)+/?")
"""An absolute path of two parts and more, unless it is the system's own."""
ORDINARY = frozenset({"root", "localhost", "localhost.localdomain", "host", "user", "none"})
"""Names that name nobody."""
_COMMON = frozenset({"users", "home", "node", "data", "test", "tmp", "shared", "public"})
"""Names of folders that stand where users' stand, and are words of any text."""
_WHOLE_PATH = re.compile(r"/(?!(?:dev|proc|sys|usr(?!/local)|lib|lib64|bin|sbin)(?:/|$))\S+")
_LIBRARY = re.compile(r"[\w+.-]+\.so(?:\.[\w.]+)?")
_HEX = "[0-9a-fA-F]"
_FORMS = {
    "url": r"(?<![A-Za-z])(?!file:)[a-z][a-z0-9+.-]*://[^\s'\"<>()\[\],;]+",
    "mail": r"[\w.+-]+@[A-Za-z][\w-]*(?:\.[\w-]+)*",
    "path": rf"{PATH.pattern}|(?<![\w/])~[\w.-]*/[^\s'\"<>|:;,()]+",
    "uuid": rf"(?<![0-9A-Za-z])(?<!sample:)(?<!build-id:)(?:{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}"
            rf"{_HEX}{{12}}|{_HEX}{{32}}|{_HEX}{{64}}|(?<=GPU-){_HEX}{{16}})(?![0-9A-Za-z])",
    "mac": rf"(?<![\w:])(?:{_HEX}{{2}}:){{5,19}}{_HEX}{{2}}(?![\w:])|(?<=\benx){_HEX}{{12}}\b",
    "guid": rf"(?<![\w:]){_HEX}{{4}}(?::{_HEX}{{4}}){{3}}(?![\w:])|\b0x{_HEX}{{16}}\b",
    "address": rf"(?<![\w:.])(?:{_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{2,7}}(?:(?:\.\d{{1,3}}){{3}})?"
               r"(?:%\w+)?(?![\w:])|(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w))",
}
_TEST_OR_LOCAL = ("127.", "0.", "255.")
_HOST = re.compile(r"hostname|nodes|hosts|host|host\.name|address|node|SLURMD_NODENAME")
_OF_THE_JOB = (
    (re.compile(r"\w*JOB_?ID"), "job"), (re.compile(r"\w*JOB_?NAME"), "jobname"),
    (re.compile(r"\w+NODELIST|LSB_HOSTS|NCCL_HOSTID"), "nodelist"),
    (re.compile(r"\w*PARTITION"), "partition"), (re.compile(r"\w*QUEUE"), "queue"),
    (re.compile(r"\w*QOS"), "qos"), (re.compile(r"\w*ACCOUNT"), "account"),
    (re.compile(r"USER|LOGNAME|USERNAME|\w+_LOGNAME|\w+_USER"), "user"))
"""Variables of a job -> what their whole value is."""
_SHORT, _MOST_TEXTS = 200, 200_000
"""Texts that are kept with their replacement: a profile has few, each many times."""
_NUMBERED = re.compile(r"(.*?[A-Za-z-])(\d+)")


def kind_of(key: str) -> str:
    """Return what the whole value of a variable of the job is; nothing of any other key."""
    return next((kind for pattern, kind in _OF_THE_JOB if pattern.fullmatch(key)), "")


class Pseudonyms:
    """One other name for each name: ``node1``, ``user2``, ``path3``, in the order they are met.

    ``words`` are names by their kind; ``environ`` holds secrets, which become ``***``. Words
    ``kept`` are also words of results: they are replaced only where a field holds nothing else.
    """

    def __init__(
        self, words: Mapping[str, str], environ: Mapping[str, str], kept: Iterable[str] = (),
    ) -> None:
        self._environ = environ
        self._given: dict[tuple[str, str], str] = {}
        self._next: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._hosts = {word for word, kind in words.items() if kind == "node"}
        reserved = ORDINARY | _COMMON | {word.lower() for word in kept}
        self._words = {word: kind for word, kind in words.items()
                       if len(word) > 1 and word.lower() not in reserved}

    @property
    def given(self) -> Mapping[str, Mapping[str, str]]:
        """Return by kind what was replaced, and by what."""
        kinds: dict[str, dict[str, str]] = {}
        for (kind, text), name in self._given.items():
            kinds.setdefault(kind, {})[text] = name
        return kinds

    def name(self, kind: str, text: str) -> str:
        """Return the other name of a text, always the same."""
        if text not in ("", "null") and (kind, text) not in self._given:
            self._next[kind] = self._next.get(kind, 0) + 1
            self._given[kind, text] = f"{kind}{self._next[kind]}"
        return self._given.get((kind, text), text)

    def host(self, text: str) -> str:
        """Return the other name of a host, the same with its domain and without."""
        short = text.partition(".")[0]
        whole = {host for host in {*self._hosts, text} if host.startswith(f"{short}.")}
        return self.name("node", text if len(whole) > 1 else short)

    def text(self, text: str) -> str:
        """Return a text without names and secrets."""
        known = self._texts.get(text)
        if known is None:
            known = self._replaced(text)
            if len(text) <= _SHORT and len(self._texts) < _MOST_TEXTS:
                self._texts[text] = known
        return known

    def _replaced(self, text: str) -> str:
        text = masked(text, self._environ)
        if _WHOLE_PATH.fullmatch(text) and (PATH.match(text) or "/" not in text[1:]):
            return self._path(text)
        return self._any.sub(self._other, text)

    def _version(self, text: str) -> str:
        return self._any.sub(lambda found: found[0] if found.lastgroup == "address" else
                             self._other(found), masked(text, self._environ))

    def json(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with every text in it replaced, keys included.

        ``key`` is that under which it stands: some tell what a whole value is. Versions of four
        parts are no addresses.
        """
        if isinstance(value, str):
            return self._of_key(value, key)
        if isinstance(value, Mapping):
            return {self.text(name): self.json(
                part, f"host.{name}" if key == "host" else key if key == "versions" else name)
                for name, part in value.items()}
        return [self.json(part, key) for part in value] if isinstance(value, list) else value

    def _of_key(self, value: str, key: str) -> str:
        """Return what stands for a text under a key, which may tell what the whole of it is."""
        if key == "switches":
            return self.name("switch", value)
        if key == "SLURM_TOPOLOGY_ADDR":
            return self._place_in_network(value)
        if key in ("versions", "firmware") or key.endswith("version"):
            return self._version(value)
        if (kind := kind_of(key)) and value:
            return self.name(kind, value)
        if value in self._hosts and _HOST.fullmatch(key):
            return self.host(value)
        return self.text(value)

    def _place_in_network(self, value: str) -> str:
        """Return ``switch1.switch2.node1`` for switches and the node at their end."""
        host = max((host for host in self._hosts if f".{value}".endswith(f".{host}")),
                   key=len, default="")
        switches = value.removesuffix(host).strip(".").split(".")
        named = [self.name("switch", switch) for switch in switches if switch]
        return ".".join([*named, *([self.host(host)] if host else [])])

    @cached_property
    def _any(self) -> re.Pattern[str]:
        longest = sorted(self._words, key=len, reverse=True)
        paths = [re.escape(word) for word in longest if self._words[word] == "path"]
        words = [re.escape(word) for word in longest if self._words[word] != "path"]
        words += [rf"{re.escape(stem)}(?:\d+|\[[\d,-]+\])" for stem in self._stems()]
        words += [rf"(?:[\w-]+\.)+{re.escape(domain)}" for domain in self._domains()]
        whole = r"(?<![A-Za-z0-9])(?:{})(?![A-Za-z0-9])"
        forms = {"known": whole.format("|".join(paths))} if paths else {}  # they have spaces
        forms |= _FORMS
        forms |= {"word": whole.format("|".join(words))} if words else {}
        return re.compile("|".join(f"(?P<{kind}>{form})" for kind, form in forms.items()))

    def _stems(self) -> set[str]:
        """Return what hosts with numbers begin with: other hosts of the machine do, too."""
        found = (_NUMBERED.match(word.partition(".")[0]) for word in self._words
                 if self._words[word] == "node")
        return {match[1] for match in found if match and len(match[1]) > 3
                and match[1].lower() not in ("rank", "host", "cuda")}

    def _domains(self) -> set[str]:
        return {word.partition(".")[2] for word, kind in self._words.items()
                if kind == "node" and "." in word.partition(".")[2]}

    def _other(self, found: re.Match[str]) -> str:
        kind, text = str(found.lastgroup), found[0]
        if kind in ("path", "known"):
            return self._path(text)
        if kind == "address":
            return self._address(text)
        if kind == "url":
            return f"{text.partition('://')[0]}://{self.name('url', text)}"
        if kind == "mail":
            user, _, host = text.partition("@")
            return f"{self.name('user', user)}@{self.host(host)}"
        if kind == "word":
            own = self._words.get(text, "nodelist" if "[" in text else "node")
            return self.host(text) if own == "node" else self.name(own, text)
        return self.name(kind, text)

    def _address(self, text: str) -> str:
        """Return the text unless it is an address that names a machine."""
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError:  # a time of day, a version
            return text
        local = address.is_loopback or address.is_unspecified or text.startswith(_TEST_OR_LOCAL)
        return text if local else self.name("address", text)

    def _path(self, text: str) -> str:
        """Return the path by its number; what a package or a library calls itself stays."""
        ending = text[len(text.rstrip("./")):]
        path = text.removesuffix(ending)
        folder, package, rest = path.rpartition("/site-packages/")
        if not package:
            folder, _, rest = path.rpartition("/")
            if not folder or not _LIBRARY.fullmatch(rest):
                return f"/{self.name('path', path)}{ending}"
            package = "/"
        return f"/{self.name('path', folder)}{package}{rest}{ending}"
