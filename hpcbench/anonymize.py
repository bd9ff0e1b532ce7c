"""Copies of a run's files with texts replaced, all else the same, and sealed again.

A copy of a run that can be given away: other names for hosts, users, paths, addresses and jobs.

Names are first collected from all files, then each file is copied with them replaced, alike in all;
a text is gone through once, so that no replacement is replaced. Names are the words that are found
(hosts, users, ids of jobs), and texts with a form of their own: paths, URLs, addresses, UUIDs.
Numbers are copied as they are. Summaries, plots and the report are made from the copy.
"""

from __future__ import annotations

import getpass
import gzip
import json
import os
import platform
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from hpcbench.errors import FileError, TraceError, UsageError
from hpcbench.reduce.results import SCHEMA_VERSION as RESULTS_VERSION
from hpcbench.reduce.results_file import FILE_NAME, FORMAT, open_results
from hpcbench.report.answer_lines import topic_results_in
from hpcbench.report.summary import write_reports
from hpcbench.texts import masked, say, to_json
from hpcbench.trace.columns import json_line, text_column, texts_of, write_column, write_lines
from hpcbench.trace.container import (
    SEAL,
    is_suite,
    new_container,
    open_container,
    verify,
    whole_file,
)
from hpcbench.trace.journal import Frame, Kind, pack_frame, scan
from hpcbench.trace.schema import SCHEMA_VERSION as TRACE_VERSION
from hpcbench.trace.sealed import FORMAT as TRACE_FORMAT

_STATIC = ("format", "description", "attributes")


class Texts(Protocol):
    """Replaces texts."""

    def text(self, text: str) -> str:
        """Return the text that replaces this one."""

    def json(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with other texts; it stands under ``key``."""


def other_lines(text: str, texts: Texts) -> str:
    """Return a text with its lines replaced; lines that are JSON objects or lists, as JSON."""
    return "\n".join(_other_line(line, texts) for line in text.split("\n"))


def _other_line(line: str, texts: Texts) -> str:
    with suppress(ValueError):
        if line.startswith(("{", "[")):
            return json_line(texts.json(json.loads(line)))
    return texts.text(line)


def copy_sealed(path: Path, target: Path, file_format: str, texts: Texts) -> None:
    """Write a sealed file's copy with other texts, sealed again; its numbers are the same bytes.

    ``path`` was verified. Raises UnreadableTrace, FileError.
    """
    with open_container(path) as file, new_container(
            target, file_format, int(file.attrs["schema_version"])) as new:
        _copy_attributes(file, new, texts)
        file.visititems(lambda name, item: _copy(name, item, new, texts))


def _copy(name: str, item: h5py.Group | h5py.Dataset, new: h5py.File, texts: Texts) -> None:
    if name == SEAL:
        _copy_attributes(item, new[name])
    elif isinstance(item, h5py.Group):
        _copy_attributes(item, new.require_group(name))
    elif item.dtype.kind != "S":
        item.file.copy(item, new, name=name)
    else:
        lines = [other_lines(text, texts) for text in texts_of(item[:])]
        if len(lines) == 1:  # most often JSON, which is packed
            write_lines(new, name, lines)
        else:
            write_column(new, name, text_column(lines))
        _copy_attributes(item, new[name])


def _copy_attributes(
    source: h5py.Group | h5py.Dataset, target: h5py.Group | h5py.Dataset,
    texts: Texts | None = None,
) -> None:
    for key, value in source.attrs.items():
        if texts is not None and isinstance(value, str) and key not in _STATIC:
            value = texts.json(value, key)
        is_texts = getattr(getattr(value, "dtype", None), "kind", "") == "O"
        target.attrs.create(key, value, dtype=h5py.string_dtype() if is_texts else None)


def copy_journal(path: Path, target: Path, texts: Texts) -> int:
    """Write a journal's whole frames with other texts; return how many places are damaged.

    Those are left out: their content is unknown. Raises FileError.
    """
    damaged = 0
    with whole_file(target) as beside, beside.open("wb") as stream:
        for item in scan(path.read_bytes()):
            if isinstance(item, Frame):
                rows = np.frombuffer(item.rows, dtype="<i8")
                stream.write(pack_frame(Kind(item.kind), texts.json(item.json()), None, (rows,)))
            else:
                damaged += 1
    return damaged


def copy_text(path: Path, target: Path, texts: Texts) -> None:
    """Write a copy of a file of text, of JSON or of packed JSON. Raises ValueError, FileError."""
    names = path.name.split(".")
    data = gzip.decompress(path.read_bytes()) if names[-1] == "gz" else path.read_bytes()
    text = data.decode("utf-8", "surrogateescape")
    if "json" in names[-2:]:
        value: Mapping[str, Any] = texts.json(json.loads(text))
        text = to_json(value, indent=None if "\n" not in text.strip() else 1) + "\n"
    else:
        text = other_lines(text, texts)
    written = text.encode("utf-8", "surrogateescape")
    with whole_file(target) as beside:
        beside.write_bytes(gzip.compress(written, mtime=0) if names[-1] == "gz" else written)


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
"""Pattern of a job's variable -> the kind of name that its whole value is."""
_SHORT, _MOST_TEXTS = 200, 200_000
"""Texts that are kept with their replacement: a profile has few, each many times."""
_NUMBERED = re.compile(r"(.*?[A-Za-z-])(\d+)")


def kind_of(key: str) -> str:
    """Return the kind of name that a job variable's whole value is; "" for any other key."""
    return next((kind for pattern, kind in _OF_THE_JOB if pattern.fullmatch(key)), "")


class Pseudonyms:
    """One other name for each name: ``node1``, ``user2``, ``path3``, in the order they are met.

    ``names``: name -> kind; ``environ`` holds secrets, which become ``***``. Words
    ``kept`` are also words of results: they are replaced only where a field holds nothing else.
    """

    def __init__(
        self, names: Mapping[str, str], environ: Mapping[str, str], kept: Iterable[str] = (),
    ) -> None:
        self._environ = environ
        self._pseudonyms: dict[tuple[str, str], str] = {}
        self._next: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._hosts = {name for name, kind in names.items() if kind == "node"}
        reserved = ORDINARY | _COMMON | {name.lower() for name in kept}
        self._names = {name: kind for name, kind in names.items()
                       if len(name) > 1 and name.lower() not in reserved}

    @property
    def pseudonyms(self) -> Mapping[str, Mapping[str, str]]:
        kinds: dict[str, dict[str, str]] = {}
        for (kind, text), name in self._pseudonyms.items():
            kinds.setdefault(kind, {})[text] = name
        return kinds

    def name(self, kind: str, text: str) -> str:
        if text not in ("", "null") and (kind, text) not in self._pseudonyms:
            self._next[kind] = self._next.get(kind, 0) + 1
            self._pseudonyms[kind, text] = f"{kind}{self._next[kind]}"
        return self._pseudonyms.get((kind, text), text)

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

    def json(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with every text in it replaced, keys included.

        ``key`` is the value's own key, which can determine the kind of the whole value. Versions
        of four parts are no addresses.
        """
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
                                 self._other(found), masked(value, self._environ))
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
        longest = sorted(self._names, key=len, reverse=True)
        paths = [re.escape(name) for name in longest if self._names[name] == "path"]
        names = [re.escape(name) for name in longest if self._names[name] != "path"]
        names += [rf"{re.escape(stem)}(?:\d+|\[[\d,-]+\])" for stem in self._stems()]
        domains = {name.partition(".")[2] for name, kind in self._names.items()
                   if kind == "node" and "." in name.partition(".")[2]}
        names += [rf"(?:[\w-]+\.)+{re.escape(domain)}" for domain in domains]
        whole = r"(?<![A-Za-z0-9])(?:{})(?![A-Za-z0-9])"
        forms = {"known": whole.format("|".join(paths))} if paths else {}  # they have spaces
        forms |= _FORMS
        forms |= {"word": whole.format("|".join(names))} if names else {}
        return re.compile("|".join(f"(?P<{kind}>{form})" for kind, form in forms.items()))

    def _stems(self) -> set[str]:
        """Return the stems of numbered hosts: other hosts of the machine have them, too."""
        found = (_NUMBERED.match(name.partition(".")[0]) for name in self._names
                 if self._names[name] == "node")
        return {match[1] for match in found if match and len(match[1]) > 3
                and match[1].lower() not in ("rank", "host", "cuda")}

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
            own = self._names.get(text, "nodelist" if "[" in text else "node")
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


_TEXTS = (".json", ".json.gz", ".txt", ".log", ".csv", ".md", ".yaml", ".yml", ".toml", ".jsonl")
_MADE_AGAIN = ("summary.json", "summary.csv", "report.html")
_HOST_KEYS = ("hostname", "nodes", "hosts", "node", "NodeName", "SLURMD_NODENAME")
_HOME = re.compile(r"(?:/(?:home|homes|Users|users|u|people|scratch)/|(?<![\w/])~)"
                   r"([A-Za-z0-9_][\w.-]*)")
_LEAST_DIGITS = 5
"""Shorter numbers of jobs are replaced only as values of a job's variables."""


@dataclass
class _Found:
    """Names by their kind, and words that are also words of results."""

    names: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    def host(self, name: str) -> None:
        """Take a host, with and without its domain; addresses have a form of their own."""
        if name and not re.fullmatch(r"[\d.]+|.*:.*", name):
            self.names.update(dict.fromkeys((name, name.partition(".")[0]), "node"))

    def value(self, value: Any, key: str = "") -> None:
        if isinstance(value, Mapping):
            for name, part in value.items():
                self.value(part, "hostname" if (key, name) == ("host", "name") else name)
        elif isinstance(value, list):
            for part in value:
                self.value(part, key)
        elif isinstance(value, str):
            self._text(value, key)

    def _text(self, text: str, key: str) -> None:
        if key in _HOST_KEYS or (key == "address" and text):
            self.host(text.partition("/")[0] if key == "node" else text)
        elif (kind := kind_of(key)) and (not text.isdigit() or len(text) >= _LEAST_DIGITS):
            if kind in ("job", "nodelist"):
                self.names.setdefault(text, kind)
            if kind == "user":
                self.user(text)
            number = re.match(rf"\d{{{_LEAST_DIGITS},}}(?=\D)", text)
            if kind == "job" and number:
                self.names.setdefault(number[0], kind)
        for user in _HOME.findall(text):
            self.user(user)
        if " " in text and PATH.match(text) and re.fullmatch(r"/[^:;,\n]+", text):
            self.names.setdefault(text, "path")

    def user(self, name: str) -> None:
        """Take a user whose name is long enough to be no other word."""
        if len(name) > 2:
            self.names.setdefault(name, "user")


@dataclass(frozen=True)
class Anonymized:
    """The outcome: replacements by kind of name, and the files that were left out, with why."""

    names: Mapping[str, Mapping[str, str]]
    left_out: Sequence[str]


def anonymize(run: Path, target: Path, hide: Sequence[str] = ()) -> Anonymized:
    """Write an anonymous copy of a run's folder; ``target`` is absent, or whole.

    ``hide`` are further names. Raises UsageError or FileError: no run, or something is at
    ``target``; UnreadableTrace for a file that is not whole.
    """
    unread = {path: _unread(path) for path in _files_of(run, target)}
    files = [path for path, reason in unread.items() if not reason]
    found = _Found()
    for path in files:
        _collect(path, found)
    _collect_here(found)
    found.names.update(dict.fromkeys(filter(None, hide), "name"))
    names = Pseudonyms(found.names, os.environ, found.kept)
    for name, kind in found.names.items():
        if kind == "node":
            names.host(name)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        beside.mkdir(parents=True)
        left_out = [f"{path.relative_to(run)}: {why}" for path, why in unread.items()
                    if why and not _is_made_again(path.relative_to(run))]
        left_out += _copied(run, files, beside, names)
        if (beside / FILE_NAME).exists():
            _prove_same(run, beside)
            with open_results(beside) as file:
                results = file.results
            write_reports(results, beside, topic_results_in(beside), complain=say,
                          shown=target.name)
        beside.rename(target)
    except OSError as error:
        raise FileError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Anonymized(names.pseudonyms, left_out)


def _files_of(run: Path, target: Path) -> list[Path]:
    """Return the files of a run. Raises UsageError or FileError where that cannot be copied."""
    if is_suite(run):
        raise UsageError(f"{run}: is the folder of a suite; give the folder of one of its members")
    if not run.is_dir():
        raise FileError(f"{run}: no such folder; give the one that `hpcbench run` made")
    if not (run / FILE_NAME).is_file() and not any((run / "traces").rglob("rank*")):
        raise FileError(f"{run}: holds neither {FILE_NAME} nor traces, so it is no run's folder")
    if target.exists() or target.is_symlink():
        raise FileError(f"{target}: is there already; give another folder with -o")
    if run.resolve() in target.resolve().parents:
        raise UsageError(f"{target}: is inside the run; give a folder beside it with -o")
    return sorted(path for path in run.rglob("*") if path.is_file() or path.is_symlink())


def _unread(path: Path) -> str:
    """Return why a file is not read and so not copied, or nothing. Raises TraceError for results.
    """
    if path.is_symlink():
        return "a link"
    try:
        if path.name == FILE_NAME:
            verify(path, FORMAT, RESULTS_VERSION)
        elif path.suffix == ".h5":
            verify(path, TRACE_FORMAT, TRACE_VERSION)
    except TraceError as error:
        if path.name == FILE_NAME:
            raise
        return str(error).partition(": ")[2]
    return "" if path.suffix in (".h5", ".journal") or path.name.endswith(_TEXTS) else (
        "nothing is known of such files")


def _collect(path: Path, found: _Found) -> None:
    if path.suffix == ".h5":
        with open_container(path) as file:
            for key, value in file.attrs.items():
                found.value(value, key)
            file.visititems(lambda name, item: _collect_part(name, item, found))
    elif path.suffix == ".journal":
        for item in scan(path.read_bytes()):
            if isinstance(item, Frame):
                found.value(item.json())
    elif path.suffix == ".json":
        with suppress(ValueError):
            found.value(json.loads(path.read_text("utf-8")))


def _collect_part(name: str, item: h5py.Group | h5py.Dataset, found: _Found) -> None:
    last = name.rpartition("/")[2]
    is_json = "JSON" in str(item.attrs.get("units", ""))
    found.kept.add(last)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind != "S":
        return
    texts = texts_of(item[:])
    if name.startswith("cases/") and last not in ("label", "env", "block") and not is_json:
        found.kept.update(texts)
    for text in texts:
        for line in text.split("\n"):
            with suppress(ValueError):
                found.value(json.loads(line) if line.startswith(("{", "[")) else line)


def _collect_here(found: _Found) -> None:
    """Collect this host, user and job: most runs are copied where they were measured."""
    for host in (platform.node(), socket.gethostname()):
        found.host(host)
    with suppress(KeyError, OSError, ImportError):  # a container's user without an entry
        found.user(getpass.getuser())
    found.value({name: value for name, value in os.environ.items() if kind_of(name)})


def _is_made_again(place: Path) -> bool:
    return place.parts[0] == "plots" or str(place) in _MADE_AGAIN


def _copied(run: Path, files: Sequence[Path], target: Path, names: Pseudonyms) -> Iterator[str]:
    """Copy the files; yield those that are left out, with why."""
    for path in files:
        place = path.relative_to(run)
        copy = target.joinpath(*map(names.text, place.parts))
        if _is_made_again(place):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".h5":
            copy_sealed(path, copy, FORMAT if path.name == FILE_NAME else TRACE_FORMAT, names)
        elif path.suffix == ".journal":
            if damaged := copy_journal(path, copy, names):
                yield f"{place}: {damaged} damaged places"
        else:
            try:
                copy_text(path, copy, names)
            except (ValueError, EOFError) as error:
                yield f"{place}: {error}"


def _prove_same(run: Path, copy: Path) -> None:
    """Raise FileError unless the copy's results can be read and equal the run's."""
    with open_results(run) as before, open_results(copy) as after:
        of_both = [[(item.case.case_id, item.status, item.statistics, item.n_wrong)
                    for item in file.results.cases] for file in (before, after)]
    if of_both[0] != of_both[1]:
        raise FileError(f"{copy}: the copy says something else than {run}: a name is also a word "
                        "of results; please report this")


def write_mapping(path: Path, names: Mapping[str, Mapping[str, str]]) -> None:
    """Write names and replacements, for the owner alone. Raises FileError, also if it exists."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(to_json(names, indent=1) + "\n")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
