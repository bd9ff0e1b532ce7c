"""Other names for what names somebody: hosts, domains, users, paths, addresses, jobs.

A text is gone through once, so that no replacement is replaced. Names are the words that are given
(hosts, users, ids of jobs), and texts with a form of their own: paths, URLs, addresses, UUIDs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from ipaddress import ip_address
from typing import Any

from hpcbench.texts import masker

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
            rf"{_HEX}{{12}}|{_HEX}{{32}}|{_HEX}{{64}}|(?<=(?:GPU|MIG)-){_HEX}{{8,16}}(?:-{_HEX}{{4}})*)"
            r"(?![0-9A-Za-z])",
    "mac": rf"(?<![\w:])(?:{_HEX}{{2}}:){{5,19}}{_HEX}{{2}}(?![\w:])|(?<=\benx){_HEX}{{12}}\b"
           rf"|(?<![\w-])(?=[\d-]*[A-Fa-f])(?:{_HEX}{{2}}-){{5}}{_HEX}{{2}}(?![\w-])",
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
    (re.compile(r"\w+_CLUSTER(?:_NAME)?"), "cluster"),
    (re.compile(r"\w+_RESERVATION"), "reservation"), (re.compile(r"serial(?:_number)?"), "serial"),
    (re.compile(r"USER|LOGNAME|USERNAME|\w+_LOGNAME|\w+_USER"), "user"),
    (re.compile(r"HOST|HOSTNAME|\w+_(?:SUBMIT_|SUB_|O_)HOST|\w+_NODENAME|(?:\w+_)?POD_(?:NAME|ID)"
                r"|\w+_POD_HOSTNAME"), "node"))
"""Pattern of a key, mostly a job's variable -> the kind of name that its whole value is."""
_SHORT, _MOST_TEXTS = 200, 200_000
"""Texts that are kept with their replacement: a profile has few, each many times."""
_NUMBERED = re.compile(r"(.*?[A-Za-z-])(\d+)")
_ANY_CASE = ("node", "domain", "name")
"""Kinds of names that are the same in small and in capital letters."""


def kind_of(key: str) -> str:
    """Return the kind of name that a job variable's whole value is; "" for any other key."""
    return next((kind for pattern, kind in _OF_THE_JOB if pattern.fullmatch(key)), "")


def domains_of(host: str) -> Iterator[str]:
    """Yield the domains of a host that have two labels and more, the longest first."""
    _, *labels = host.split(".")
    yield from (".".join(labels[first:]) for first in range(len(labels) - 1))


def stem_of(host: str) -> str:
    """Return what other hosts of a machine have, too, before their number; "" if that is short."""
    numbered = _NUMBERED.match(host.partition(".")[0])
    stem = numbered[1] if numbered else ""
    return stem if len(stem) > 3 and stem.lower() not in ("rank", "host", "cuda") else ""


class Pseudonyms:
    """One other name for each name: ``node1``, ``user2``, ``path3``, in the order they are met.

    Names of that form stay, so that a copy's copy is the same. ``names``: name -> kind; ``environ``
    holds secrets, which become ``***``. Words ``kept`` are also words of results: they are replaced
    only where a field holds nothing else."""

    def __init__(
        self, names: Mapping[str, str], environ: Mapping[str, str], kept: Iterable[str] = (),
    ) -> None:
        self._masked = masker(environ)
        self._pseudonyms: dict[tuple[str, str], str] = {}
        self._next: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._hosts = dict.fromkeys(name for name, kind in names.items() if kind == "node")
        reserved = ORDINARY | _COMMON | {name.lower() for name in kept}
        domains = {domain: "domain" for host in self._hosts for domain in domains_of(host)}
        self._names = {name: kind for name, kind in (domains | dict(names)).items()
                       if len(name) > 1 and name.lower() not in reserved}
        self._spelled = {name.lower(): name for name in reversed(self._names)
                         if self._names[name] in _ANY_CASE}
        self._whole: dict[str, set[str]] = {}
        for host in self._hosts:
            if "." in host:
                self._whole.setdefault(host.partition(".")[0].lower(), set()).add(host.lower())
        for host in self._hosts:
            self.host(host)

    @property
    def pseudonyms(self) -> Mapping[str, Mapping[str, str]]:
        kinds: dict[str, dict[str, str]] = {}
        for (kind, text), name in self._pseudonyms.items():
            kinds.setdefault(kind, {})[text] = name
        return kinds

    def name(self, kind: str, text: str) -> str:
        bare = text.partition("://")[2] if kind == "url" else text.removeprefix("/")
        if text in ("", "null") or re.fullmatch(rf"{kind}[1-9]\d*", bare):
            return bare
        if (kind, text) not in self._pseudonyms:
            number = self._next.get(kind, 0) + 1
            while f"{kind}{number}" in self._names:
                number += 1
            self._next[kind] = number
            self._pseudonyms[kind, text] = f"{kind}{number}"
        return self._pseudonyms[kind, text]

    def host(self, text: str) -> str:
        """Return the other name of a host or a domain; of a host the same with its domain and
        without."""
        spelled = self._spelled.setdefault(text.lower(), text)
        if self._names.get(spelled) == "domain":
            return self.name("domain", spelled)
        short, dot, _ = spelled.partition(".")
        whole = self._whole.get(short.lower(), set()) | ({spelled.lower()} if dot else set())
        return self.name("node", spelled if len(whole) > 1 else
                         self._spelled.setdefault(short.lower(), short))

    def text(self, text: str) -> str:
        """Return a text without names and secrets."""
        replacement = self._texts.get(text)
        if replacement is None:
            replacement = self._replaced(text)
            if len(text) <= _SHORT and len(self._texts) < _MOST_TEXTS:
                self._texts[text] = replacement
        return replacement

    def _replaced(self, text: str) -> str:
        text = self._masked(text)
        if _WHOLE_PATH.fullmatch(text) and (PATH.match(text) or "/" not in text[1:]):
            return self.path(text)
        return self._any.sub(self._other, text)

    def json(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with every text in it replaced, keys included.

        ``key`` is the value's own key, which can determine the kind of the whole value. Versions
        of four parts are no addresses."""
        if isinstance(value, str):
            return self._of_key(value, key)
        if isinstance(value, Mapping):
            return {self.text(name): self.json(
                part, f"host.{name}" if key == "host" else key if key == "versions" else name)
                for name, part in value.items()}
        return [self.json(part, key) for part in value] if isinstance(value, list) else value

    def _of_key(self, value: str, key: str) -> str:
        """Return the replacement of a text, whose key can determine the kind of all of it."""
        if key == "switches":
            return self.name("switch", value)
        if key == "SLURM_TOPOLOGY_ADDR":
            return self._place_in_network(value)
        if key in ("versions", "firmware") or key.endswith("version"):
            return self._any.sub(lambda found: found[0] if found.lastgroup == "address" else
                                 self._other(found), self._masked(value))
        if (kind := kind_of(key)) and value:
            return self.host(value) if kind == "node" else self.name(kind, value)
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
        kinds = self._names
        nodes, domains, paths = ([name for name, kind in kinds.items() if kind == wanted]
                                 for wanted in ("node", "domain", "path"))
        own = _either({host.partition(".")[2] for host in nodes if "." in host})
        names = [(len(name), f"(?i:{re.escape(name)})" if kind in _ANY_CASE else re.escape(name))
                 for name, kind in kinds.items() if kind != "path"]
        names += [(len(stem) + 1, rf"(?i:{re.escape(stem)}(?:\d+(?:\.{own})?|\[[\d,-]+\]))")
                  for stem in set(map(stem_of, nodes)) if stem]
        words = [word for _, word in sorted(names, reverse=True)]
        if domains:
            words.insert(0, rf"(?i:(?:[\w-]+\.)+{_either(domains)})")
        whole = r"(?<![A-Za-z0-9])(?:{})(?![A-Za-z0-9])"
        forms = {"known": whole.format(_either(paths)), **_FORMS,  # these paths have spaces
                 "word": whole.format("|".join(words) or "(?!)")}
        return re.compile("|".join(f"(?P<{kind}>{form})" for kind, form in forms.items()))

    def _other(self, match: re.Match[str]) -> str:
        kind, text = str(match.lastgroup), match[0]
        if kind in ("path", "known"):
            return self.path(text)
        if kind == "address":
            return self._address(text)
        if kind == "url":
            return f"{text.partition('://')[0]}://{self.name('url', text)}"
        if kind == "mail":
            user, _, host = text.partition("@")
            return f"{self.name('user', user)}@{self.host(host)}"
        if kind == "word":
            text = text if text in self._names else self._spelled.get(text.lower(), text)
            own = self._names.get(text, "nodelist" if "[" in text else "node")
            return self.host(text) if own in ("node", "domain") else self.name(own, text)
        return self.name(kind, text)

    def _address(self, text: str) -> str:
        """Return the text unless it is an address that names a machine."""
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError:  # a time of day, a version
            return text
        local = address.is_loopback or address.is_unspecified or text.startswith(_TEST_OR_LOCAL)
        return text if local else self.name("address", text)

    def path(self, text: str) -> str:
        """Return the path replaced; its part below site-packages, or a library's name, stays."""
        ending = text[len(text.rstrip("./")):]
        path = text.removesuffix(ending)
        folder, package, rest = path.rpartition("/site-packages/")
        if not package:
            folder, _, rest = path.rpartition("/")
            if not folder or not _LIBRARY.fullmatch(rest):
                return f"/{self.name('path', path)}{ending}"
            package = "/"
        return f"/{self.name('path', folder)}{package}{rest}{ending}"


def _either(texts: Iterable[str]) -> str:
    """Return a pattern of any of the texts, the longest first; it matches nothing without any."""
    longest = sorted(map(re.escape, texts), key=len, reverse=True)
    return f"(?:{'|'.join(longest)})" if longest else "(?!)"
