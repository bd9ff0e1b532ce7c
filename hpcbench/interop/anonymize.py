"""A copy of a run that can be given away: other names for hosts, users, paths, addresses and jobs.

Names are first collected from all files, then each file is copied with them replaced, alike in all.
Numbers are copied as they are. Summaries, plots and the report are made from the copy."""

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
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from hpcbench.errors import FileError, TraceError, UsageError
from hpcbench.interop.pseudonyms import PATH, Pseudonyms, domains_of, kind_of, stem_of
from hpcbench.limits import Unpacked
from hpcbench.reduce.results import SCHEMA_VERSION as RESULTS_VERSION
from hpcbench.reduce.results_file import FILE_NAME, FORMAT, open_results
from hpcbench.report.answer_lines import topic_results_in
from hpcbench.report.summary import write_reports
from hpcbench.texts import Verbosity, to_json
from hpcbench.trace import container
from hpcbench.trace.columns import json_line, text_column, texts_of, write_column, write_lines
from hpcbench.trace.journal import Frame, Kind, pack_frame, scan
from hpcbench.trace.schema import SCHEMA_VERSION as TRACE_VERSION
from hpcbench.trace.sealed import FORMAT as TRACE_FORMAT

_STATIC = ("format", "description", "attributes", "values", "bits")


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

    ``path`` was verified. Raises UnreadableTrace, FileError."""
    with container.open_container(path) as file, container.new_container(
            target, file_format, int(file.attrs["schema_version"])) as new:
        _copy_attributes(file, new, texts)
        file.visititems(lambda name, item: _copy(name, item, new, texts))


def _copy(name: str, item: h5py.Group | h5py.Dataset, new: h5py.File, texts: Texts) -> None:
    if name == container.SEAL:
        _copy_attributes(item, new[name])
    elif isinstance(item, h5py.Group):
        _copy_attributes(item, new.require_group(name))
    elif item.dtype.kind not in "SO":
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
        is_texts = getattr(getattr(value, "dtype", None), "kind", "") == "O"
        if texts is not None and key not in _STATIC and (is_texts or isinstance(value, str)):
            value = texts.json(value.tolist() if is_texts else value, key)
        target.attrs.create(key, value, dtype=h5py.string_dtype() if is_texts else None)


def copy_journal(path: Path, target: Path, texts: Texts) -> int:
    """Write a journal's whole frames with other texts; return how many places are damaged.

    Those are left out: their content is unknown. Raises FileError."""
    damaged = 0
    with container.whole_file(target) as beside, beside.open("wb") as stream:
        for item in scan(path.read_bytes()):
            if isinstance(item, Frame):
                rows = np.frombuffer(item.rows, dtype="<i8")
                stream.write(pack_frame(Kind(item.kind), texts.json(item.json()), None, (rows,)))
            else:
                damaged += 1
    return damaged


def copy_text(path: Path, target: Path, texts: Texts) -> None:
    """Write a copy of a file of text, of JSON or of packed JSON. Raises ValueError, FileError."""
    text = _text_in(path)
    if _is_json(path):
        value: Mapping[str, Any] = texts.json(json.loads(text))
        text = to_json(value, indent=None if "\n" not in text.strip() else 1) + "\n"
    else:
        text = other_lines(text, texts)
    written = text.encode("utf-8", "surrogateescape")
    with container.whole_file(target) as beside:
        beside.write_bytes(gzip.compress(written, mtime=0) if path.suffix == ".gz" else written)


def _text_in(path: Path) -> str:
    try:
        with Unpacked(path) as stream:
            return stream.whole().decode("utf-8", "surrogateescape")
    except FileError as error:
        raise ValueError(str(error).removeprefix(f"{path}: ")) from error


def _is_json(path: Path) -> bool:
    return "json" in path.name.split(".")[-2:]


_TEXTS = (".json", ".json.gz", ".txt", ".log", ".csv", ".md", ".yaml", ".yml", ".toml", ".jsonl")
_MADE_AGAIN = ("summary.json", "summary.csv", "report.html")
_HOST_KEYS = ("hostname", "nodes", "hosts", "node", "NodeName", "SLURMD_NODENAME")
_HARDWARE_KEYS = ("product", "vendor", "driver", "names")
_HOME = re.compile(r"(?:/(?:home|homes|Users|users|u|people|scratch)/|(?<![\w/])~)"
                   r"([A-Za-z0-9_][\w.-]*)")
_DOTTED = re.compile(
    r"(?<![\w.-])[A-Za-z0-9][\w-]*(?:\.[A-Za-z0-9-]+)+\.(?!(?:log|txt|out|err|gz|json|h5|csv|html?"
    r"|ya?ml|py|sh|so|conf|[oc])(?!\w))[A-Za-z]{2,}(?![\w.-])")
"""A host with a domain, or whatever else has dots, but no file."""
_OF_A_SITE = re.compile(
    r"(?:(?<=\w)@|://(?:[^\s/@]*@)?)([A-Za-z][\w-]*(?:\.[\w-]+)*\.[A-Za-z]{2,})(?![\w-])")
"""The domain of an address of mail, or the host of a URL."""
_PARTS = re.compile(r"\W+")
_LEAST_DIGITS = 5
"""Shorter numbers of jobs are replaced only as values of a job's variables."""
_WORDS = frozenset({
    "bash", "batch", "bench", "benchmark", "compute", "core", "debug", "default", "hpcbench",
    "interactive", "large", "leaf", "long", "main", "mpirun", "normal", "nodes", "prod",
    "production", "python", "python3", "queue", "short", "small", "spine", "standard", "switch",
    "torchrun"})
"""Names of jobs, queues and switches that are words of any text."""


@dataclass
class _Found:
    """Names by their kind, and words that are also words of results.

    ``of_job`` are names that may be any word, such as a partition's; outside their fields they are
    replaced unless they are ``words``: keys, parts of labels, names of hardware."""

    names: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    of_job: dict[str, str] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)
    _texts: set[tuple[str, bool]] = field(default_factory=set)
    _dotted: dict[str, None] = field(default_factory=dict)
    _domains: dict[str, str] = field(default_factory=dict)

    def host(self, name: str) -> None:
        """Take a host, with and without its domain; addresses have a form of their own."""
        if name and not re.fullmatch(r"[\d.]+|.*:.*", name):
            self.names.update(dict.fromkeys((name, name.partition(".")[0]), "node"))

    def value(self, value: Any, key: str = "") -> None:
        if isinstance(value, Mapping):
            for name, part in value.items():
                self.words.add(name)
                self._text(name, "")
                self.value(part, name if name != "name" else "hostname" if key == "host" else
                           "product" if key in ("cpu", "gpu", "device") else name)
        elif isinstance(value, list):
            for part in value:
                self.value(part, key)
        elif isinstance(value, str):
            self._text(value, key)

    def _text(self, text: str, key: str) -> None:
        if key in _HOST_KEYS or (key == "address" and text):
            self.host(text.partition("/")[0] if key == "node" else text)
        elif key in _HARDWARE_KEYS:
            self.words.update(re.findall(r"\w+", text))
        elif key == "SLURM_TOPOLOGY_ADDR":
            self.of_job.update(dict.fromkeys(
                re.findall(r"([\w-]*[\d_-][\w-]*)\.", text), "switch"))
        elif (kind := kind_of(key)) and (not text.isdigit() or len(text) >= _LEAST_DIGITS):
            self._of_job(kind, text)
        if (text, bool(key)) in self._texts:
            return
        self._texts.add((text, bool(key)))
        for user in _HOME.findall(text):
            self.user(user)
        self._dotted.update(dict.fromkeys(_DOTTED.findall(text)))
        self.domains(_OF_A_SITE.findall(text))
        if key and " " in text and PATH.match(text) and re.fullmatch(r"/[^:;,\n]+", text):
            self.names.setdefault(text, "path")

    def _of_job(self, kind: str, text: str) -> None:
        if kind in ("job", "nodelist", "serial"):
            self.names.setdefault(text, kind)
        elif kind == "user":
            self.user(text)
        elif kind == "node":
            self.host(text)
        elif not text.isdigit():
            self.of_job.setdefault(text, kind)
        number = re.match(rf"\d{{{_LEAST_DIGITS},}}(?=\D)", text)
        if kind == "job" and number:
            self.names.setdefault(number[0], kind)

    def domains(self, names: Iterable[str]) -> None:
        for domain in (domain for name in names for domain in domains_of(f".{name}")):
            self._domains[domain] = "domain"

    def user(self, name: str) -> None:
        """Take a user whose name is long enough to be no other word."""
        if len(name) > 2:
            self.names.setdefault(name, "user")

    def in_all(self) -> dict[str, str]:
        """Return all names, with hosts that texts alone name with their domain."""
        hosts = {name.lower() for name, kind in self.names.items() if kind == "node"}
        stems = set(map(stem_of, hosts)) - {""}
        for name in self._dotted:
            short = name.partition(".")[0].lower()
            if short in hosts or stem_of(short) in stems:
                self.host(name)
        ordinary = _WORDS | {word.lower() for word in self.words}
        of_job = {name: kind for name, kind in self.of_job.items()
                  if len(name) > 3 and name.lower() not in ordinary}
        return self.names | {name: kind for name, kind in (self._domains | of_job).items()
                             if name not in self.names}


def anonymize(
    run: Path, target: Path, hide: Sequence[str] = (),
) -> tuple[Mapping[str, Mapping[str, str]], Sequence[str]]:
    """Write an anonymous copy of a run's folder; return replacements by kind of name, and the files
    that were left out, with why. ``target`` is absent, or whole.

    ``hide`` are further names. Raises UsageError or FileError: no run, or something is at
    ``target``; UnreadableTrace for a file that is not whole."""
    unread = {path: _unread(path) for path in _files_of(run, target)}
    files = [path for path, reason in unread.items() if not reason]
    names = Pseudonyms(*names_in(files, hide))
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
            write_reports(results, beside, topic_results_in(beside), Verbosity.QUIET,
                          shown=target.name)
        beside.rename(target)
    except OSError as error:
        raise FileError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return names.pseudonyms, left_out


def names_in(
    files: Iterable[Path], hide: Sequence[str] = (),
) -> tuple[Mapping[str, str], Mapping[str, str], set[str]]:
    """Return what `Pseudonyms` takes: names in files and of who calls, variables, words of results.

    Raises TraceError for a file that cannot be read."""
    collected = _Found()
    for path in files:
        _collect(path, collected)
    _collect_here(collected)
    collected.names.update(dict.fromkeys(filter(None, hide), "name"))
    return collected.in_all(), os.environ, collected.kept


def _files_of(run: Path, target: Path) -> list[Path]:
    """Return the files of a run. Raises UsageError or FileError where that cannot be copied."""
    if container.is_suite(run):
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
            container.verify(path, FORMAT, RESULTS_VERSION)
        elif path.suffix == ".h5":
            container.verify(path, TRACE_FORMAT, TRACE_VERSION)
    except TraceError as error:
        if path.name == FILE_NAME:
            raise
        return str(error).partition(": ")[2]
    return "" if path.suffix in (".h5", ".journal") or path.name.endswith(_TEXTS) else (
        "nothing is known of such files")


def _collect(path: Path, collected: _Found) -> None:
    if path.suffix == ".h5":
        with container.open_container(path) as file:
            for key, value in file.attrs.items():
                collected.value(value, key)
            file.visititems(lambda name, item: _collect_part(name, item, collected))
    elif path.suffix == ".journal":
        for item in scan(path.read_bytes()):
            if isinstance(item, Frame):
                collected.value(item.json())
    else:
        with suppress(ValueError):
            text = _text_in(path)
            collected.value(json.loads(text) if _is_json(path) else _values_in(text))


def _values_in(text: str) -> list[Any]:
    """Return the values of the lines of a text that are JSON, and all others as one text."""
    values: list[Any] = []
    others = []
    for line in text.split("\n"):
        if line.startswith(("{", "[")):
            with suppress(ValueError):
                values.append(json.loads(line))
                continue
        others.append(line)
    return [*values, "\n".join(others)]


def _collect_part(name: str, item: h5py.Group | h5py.Dataset, collected: _Found) -> None:
    last = name.rpartition("/")[2]
    is_json = "JSON" in str(item.attrs.get("units", ""))
    collected.kept.add(last)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind != "S":
        return
    texts = texts_of(item[:])
    if name.startswith("cases/") and not is_json:
        if last not in ("label", "env", "block"):
            collected.kept.update(texts)
        collected.words.update(part for text in texts
                               for part in (*text.split(), *_PARTS.split(text)))
    for text in texts:
        collected.value(_values_in(text))


def _collect_here(collected: _Found) -> None:
    """Collect this host, user and job: most runs are copied where they were measured."""
    for host in (platform.node(), socket.gethostname()):
        collected.host(host)
    with suppress(KeyError, OSError, ImportError):  # a container's user without an entry
        collected.user(getpass.getuser())
    collected.value({name: value for name, value in os.environ.items() if kind_of(name)})
    with suppress(OSError):
        for line in Path("/etc/resolv.conf").read_text(errors="replace").splitlines():
            if line.startswith(("search ", "domain ")):
                collected.domains(line.split()[1:])


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
            except ValueError as error:
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
