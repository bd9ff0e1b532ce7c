"""A copy of a run that can be given away: other names for hosts, users, paths, addresses and jobs.

Names are first collected from all files, then each file is copied with them replaced, alike in
all. Numbers are copied as they are. Summaries, plots and the report are made from the copy.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from hpcbench.errors import FileError, TraceError, UsageError
from hpcbench.pseudonyms import PATH, Pseudonyms, kind_of
from hpcbench.reduce.masked_copy import copy_journal, copy_sealed, copy_text
from hpcbench.reduce.results import SCHEMA_VERSION as RESULTS_VERSION
from hpcbench.reduce.results_file import FILE_NAME, FORMAT, open_results
from hpcbench.report.answer_lines import told_in
from hpcbench.report.summary import write_reports
from hpcbench.texts import say, to_json
from hpcbench.trace.columns import texts_of
from hpcbench.trace.container import open_container, verify
from hpcbench.trace.files import is_suite
from hpcbench.trace.frames import Frame, scan
from hpcbench.trace.positions import behind_image
from hpcbench.trace.schema import SCHEMA_VERSION as TRACE_VERSION
from hpcbench.trace.sealed import FORMAT as TRACE_FORMAT

_TEXTS = (".json", ".json.gz", ".txt", ".log", ".csv", ".md", ".yaml", ".yml", ".toml", ".jsonl")
_MADE_AGAIN = ("summary.json", "summary.csv", "report.html")
_HOST_KEYS = ("hostname", "nodes", "hosts", "node", "NodeName", "SLURMD_NODENAME")
_HOME = re.compile(r"(?:/(?:home|homes|Users|users|u|people|scratch)/|(?<![\w/])~)"
                   r"([A-Za-z0-9_][\w.-]*)")
_LEAST_DIGITS = 5
"""Shorter numbers of jobs are replaced only where a variable tells what they are."""


@dataclass
class _Found:
    """Names by their kind, and words that are also words of results."""

    words: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    def host(self, name: str) -> None:
        """Take a host, with and without its domain; addresses have a form of their own."""
        if name and not re.fullmatch(r"[\d.]+|.*:.*", name):
            self.words.update(dict.fromkeys((name, name.partition(".")[0]), "node"))

    def value(self, value: Any, key: str = "") -> None:
        """Take the names in a JSON value that stands under this key."""
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
                self.words.setdefault(text, kind)
            if kind == "user":
                self.user(text)
            number = re.match(rf"\d{{{_LEAST_DIGITS},}}(?=\D)", text)
            if kind == "job" and number:
                self.words.setdefault(number[0], kind)
        for user in _HOME.findall(text):
            self.user(user)
        if " " in text and PATH.match(text) and re.fullmatch(r"/[^:;,\n]+", text):
            self.words.setdefault(text, "path")

    def user(self, name: str) -> None:
        """Take a user whose name is long enough to be no other word."""
        if len(name) > 2:
            self.words.setdefault(name, "user")


@dataclass(frozen=True)
class Anonymized:
    """What became of a run: what was replaced by kind, and the files that were left out, with why.
    """

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
    found.words.update(dict.fromkeys(filter(None, hide), "name"))
    names = Pseudonyms(found.words, os.environ, found.kept)
    for word, kind in found.words.items():
        if kind == "node":
            names.host(word)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        beside.mkdir(parents=True)
        left_out = [f"{path.relative_to(run)}: {why}" for path, why in unread.items()
                    if why and not _is_made_again(path.relative_to(run))]
        left_out += _copied(run, files, beside, names)
        if (beside / FILE_NAME).exists():
            _prove_same(run, beside)
            _make_again(beside, target.name)
        beside.rename(target)
    except OSError as error:
        raise FileError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Anonymized(names.given, left_out)


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
    """Take the names in one file."""
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
    """Take who and where this is: most often whoever copies a run has measured it."""
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
        if path.name == FILE_NAME:
            copy_sealed(path, copy, FORMAT, names)
        elif path.suffix == ".h5":
            copy_sealed(path, copy, TRACE_FORMAT, names, behind_image)
        elif path.suffix == ".journal":
            if damaged := copy_journal(path, copy, names):
                yield f"{place}: {damaged} damaged places"
        else:
            try:
                copy_text(path, copy, names)
            except (ValueError, EOFError) as error:
                yield f"{place}: {error}"


def _prove_same(run: Path, copy: Path) -> None:
    """Raise FileError unless the copy's results can be read and say the same."""
    with open_results(run) as before, open_results(copy) as after:
        of_both = [[(item.case.case_id, item.status, item.statistics, item.n_wrong)
                    for item in file.results.cases] for file in (before, after)]
    if of_both[0] != of_both[1]:
        raise FileError(f"{copy}: the copy says something else than {run}: a name is also a word "
                        "of results; please report this")


def _make_again(copy: Path, shown: str) -> None:
    """Write summaries, plots and the report of the copy, in which it has this name."""
    with open_results(copy) as file:
        results = file.results
    write_reports(results, copy, told_in(copy), complain=say, shown=shown)


def write_mapping(path: Path, names: Mapping[str, Mapping[str, str]]) -> None:
    """Write what stands for what, for the owner alone. Raises FileError; nothing is replaced."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(to_json(names, indent=1) + "\n")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
