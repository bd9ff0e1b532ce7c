"""The CSV of DDLB: a row an implementation and shape. Names of hosts are not kept."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping

from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.interop.formats.tables import ProductRow, ProductTable, printed, whole

PART = 10_000
MOST_RANKS = 2**20
NEEDED = ("implementation", "m", "n", "k", "mean_time (ms)", "min_time", "max_time",
          "Throughput (TFLOPS)")


def is_heading(text: str) -> bool:
    """Return whether a line names the columns."""
    names = text.split(",")
    return "implementation" in names and any(name.startswith("mean_time") for name in names)


def read(file: ForeignFile) -> Iterator[ProductTable]:
    """Yield tables of at most PART rows. Raises FileError for other columns, or no numbers."""
    numbers: list[int] = []
    reader = csv.DictReader(_texts(file, numbers))
    rows: list[ProductRow] = []
    for named in _parsed(file, reader, numbers):
        if missing := [name for name in NEEDED if not named.get(name)]:
            raise file.error(numbers[-1], f"no value for the column {missing[0]!r} of DDLB")
        try:
            rows.append(_row(numbers[-1], named))
        except ValueError as error:
            raise file.error(numbers[-1], "a field that is no number") from error
        if len(rows) == PART:
            yield ProductTable(file.name, tuple(rows))
            rows = []
    if rows:
        yield ProductTable(file.name, tuple(rows))


def _parsed(
    file: ForeignFile, reader: csv.DictReader[str], numbers: list[int],
) -> Iterator[dict[str, str]]:
    """Yield the rows. Raises FileError, such as for a field that never ends."""
    try:
        yield from reader
    except csv.Error as error:
        raise file.error(numbers[-1], f"no CSV: {error}") from error


def _texts(file: ForeignFile, numbers: list[int]) -> Iterator[str]:
    """Yield the lines, and keep the number of the last one."""
    for line in file.lines():
        numbers[:] = [line.number]
        yield line.text


def _row(number: int, named: Mapping[str, str]) -> ProductRow:
    std, ranks = named.get("std_time"), named.get("world_size")
    return ProductRow(
        number, named["implementation"], named.get("option") or "", named.get("dtype") or "",
        whole(named["m"]), whole(named["n"]), whole(named["k"]), printed(named["mean_time (ms)"]),
        printed(std) if std else None, printed(named["min_time"]), printed(named["max_time"]),
        printed(named["Throughput (TFLOPS)"]),
        _yes_or_no(named.get("valid")), _ranks(ranks) if ranks else None,
        _yes_or_no(named.get("barrier_at_each_iteration")))


def _ranks(text: str) -> int:
    if (count := whole(text)) > MOST_RANKS:
        raise ValueError("more ranks than any job has")
    return count


def _yes_or_no(text: str | None) -> bool | None:
    return None if text not in ("True", "False") else text == "True"
