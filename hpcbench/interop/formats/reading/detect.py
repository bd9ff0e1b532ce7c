"""The program that wrote a file, by its content, and its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcbench.errors import FileError
from hpcbench.interop.formats.reading import (
    ddlb,
    inspector,
    nccl_json,
    nccl_text,
    osu,
    param,
    superbench,
)
from hpcbench.interop.formats.reading.source import ForeignFile, Unread, unwrapped, wrapped_line
from hpcbench.interop.formats.tables import CommTable, ForeignTable

KNOWN = ("nccl-tests (text, JSON)", "OSU", "NCCL Inspector", "nvbandwidth JSON", "PARAM comms",
         "DDLB CSV", "SuperBench jsonl")


def tables_of(
    path: Path, collective: str = "", left_out: Unread | None = None,
) -> Iterator[ForeignTable]:
    """Yield a file's tables as they are read; ``collective`` is used where a table names none.

    What is not read is counted in ``left_out``. Raises FileError for a file that cannot be read,
    or without a row that is."""
    file = ForeignFile(path, left_out)
    tables = file.guarded(_tables(file, collective))
    without_rows = list[ForeignTable]()
    for table in tables:
        if not _is_cut_before_its_rows(table):
            yield from (*without_rows, table, *tables)
            return
        without_rows.append(table)
    why = next(file.left_out.lines(file.name), "")
    what, _, line = next(file.left_out.failures(), ("", 0, None))
    if what:
        why = f"{file.name}:{line}: no row of a table; the log states {what}"
    elif without_rows:
        why = f"{file.name}: cut off before the first row of a table"
    raise FileError(why or f"{file.name}: no row of a table of {', '.join(KNOWN)}")


def _is_cut_before_its_rows(table: ForeignTable) -> bool:
    return isinstance(table, CommTable) and table.is_cut and not (table.rows or table.damaged)


def _tables(file: ForeignFile, collective: str) -> Iterator[ForeignTable]:
    if file.is_one_object():
        yield from _of_document(file, collective)
        return
    first = next((line.text for line in file.lines() if line.text.strip()), "")
    if first.lstrip().startswith("{") and wrapped_line(first) is None:
        yield from _of_json(file, first, collective)
    elif ddlb.is_heading(first):
        yield from ddlb.read(file)
    else:
        yield from _of_text(file, collective)


def _of_json(file: ForeignFile, first: str, collective: str) -> Iterator[ForeignTable]:
    """Yield tables of a document, or of records, depending on the first of them."""
    record = next((data for _, data in file.records() if data is not None), None)
    if isinstance(record, Mapping) and inspector.is_record(record):
        yield from inspector.read(file)
    elif isinstance(record, Mapping) and "node" in record:
        yield from superbench.read(file)
    else:
        yield from _of_document(file, collective)


def _of_document(file: ForeignFile, collective: str) -> Iterator[ForeignTable]:
    data = file.json(cut_in="results")
    if isinstance(data, Mapping) and "nvbandwidth" in data:
        yield from nccl_json.matrices_of(file, data)
    elif isinstance(data, Mapping) and "version" in data and ("results" in data or "args" in data):
        yield from nccl_json.read(file, data, collective)
    else:
        raise FileError(f"{file.name}: JSON of no known program; known: {', '.join(KNOWN)}")


def _of_text(file: ForeignFile, collective: str) -> Iterator[ForeignTable]:
    """Yield the tables of all programs in a log."""
    nccl, osu_tables = nccl_text.NcclTables(file, collective), osu.OsuTables(file)
    readers = (param.ParamTables(file), nccl, osu_tables)
    for number, raw in file.lines(_may_be_of_tables):
        text = unwrapped(raw)
        for reader in readers:
            if (tables := reader.take(number, text)) is not None:
                yield from tables
                break
        else:
            _note_failure(file, number, text)
        if tables is None or reader is not osu_tables:
            osu_tables.close(text)
    for reader in readers:
        yield from reader.finished()


def _may_be_of_tables(block: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Choose lines that may be of a table: quick, as most lines of a long log are NCCL's.

    One with NCCL in it is only chosen where a row or a heading may have been torn by it, or where
    it states a failure."""
    chosen = set()
    for mark in (b"#", b"     ", b"ailure", b" timeout", b"BackendError", b" NCCL WARN "):
        at = block.find(mark)
        while at >= 0:
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            if block.find(b" NCCL ", start, end if end >= 0 else len(block)) >= 0:
                chosen.add(block.count(b"\n", 0, start))
            at = block.find(mark, end) if end >= 0 else -1
    lines = block.decode("latin-1").split("\n")
    chosen.update(at for at, line in enumerate(lines) if " NCCL " not in line and (
        "  " in line or _OF_OTHERS(line)))
    return len(lines), [(at, lines[at].encode("latin-1")) for at in sorted(chosen)]


_FAILURES: Mapping[str, str] = {
    "failures of tests (Test failure)": (
        r"\bTest (?:\w+ )?(?:failure(?!: wrong: )|timeout)\b|\bNCCL failure\b"),
    "failed checks of OSU (DATA VALIDATION ERROR)": r"DATA VALIDATION ERROR",
    "errors of a process": (
        r"\bexited on signal \d|\bBAD TERMINATION OF ONE OF\b|MPI_ABORT was invoked"
        r"|\bnon-zero (?:exit )?(?:code|status)\b|\bFatal error in P?MPI_"
        r"|\bsrun: error: .*(?:[Ee]xited|[Kk]illed|[Aa]borted|[Tt]erminated|fault)"
        r"|\bslurmstepd: error: \*\*\*|\bChildFailedError\b|\bDistBackendError\b"
        r"|Traceback \(most recent call last\)|\bSegmentation fault\b")}
"""What a log states beside its tables, by nccl-tests, OSU, MPI, Slurm and torch -> its lines."""
_FAILURE = re.compile("|".join(f"({text})" for text in _FAILURES.values()))
_WARNINGS = "warnings of NCCL (NCCL WARN): read them in the log"


def _note_failure(file: ForeignFile, number: int, text: str) -> None:
    if match := _FAILURE.search(text):
        file.left_out.add_failure([*_FAILURES][(match.lastindex or 1) - 1], number)
    elif " NCCL WARN " in text:
        file.left_out.add(_WARNINGS, number)


_OF_OTHERS = re.compile(
    r"#|\d[ \t]+-?\d|COMMS-RES|nThread|Rank|Out of|Avg bus|ailure| timeout|DATA VALID"
    r"|exited on|BAD TERM|MPI_ABORT|non-zero|Fatal error|srun: error|slurmstepd: error|FailedError"
    r"|BackendError|Traceback|Segmentation").search
"""Words of tables and of `_FAILURES`; plain ones, as its own pattern takes five times as long."""
