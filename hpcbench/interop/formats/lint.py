"""A table of another program against its own arithmetic: a violation for each rule that it breaks.

Numbers are compared as far as their digits go (`printed.Printed`), so that a correct table
breaks none, however few digits it has. A fact that a table lacks is not checked; a row of which
nothing can be said is counted. `Linting` prints what it finds in files, and counts it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hpcbench.interop.formats import implied_ranks, tables
from hpcbench.interop.formats.reading.detect import tables_of
from hpcbench.interop.formats.reading.source import Unread
from hpcbench.interop.formats.reading.superbench import comm_tables, is_code, other_metrics
from hpcbench.operations.collectives import collectives
from hpcbench.records import dataclass
from hpcbench.texts import say
from hpcbench.units import digits, plural

RULES: Mapping[str, str] = {
    "factor": "busbw is algbw times the factor of the collective and n",
    "ranks": "busbw / algbw means the n that the file states",
    "size": "size is count x element (x n)",
    "rate": "a rate is size / time",
    "average": "an average, sum or extreme is that of its rows",
    "order": "sizes rise",
    "spread": "least <= mean <= greatest, and percentiles in order",
    "columns": "columns and fields are those of the known version",
    "wrong": "wrong results are 0 or were not checked",
    "failed": "the program itself calls nothing failed",
    "cut": "the end that belongs to a heading is there",
    "link": "no rate is above the declared link",
}
"""Rule -> what holds in a correct table."""
_FORMS: Mapping[bool | None, str] = {None: "", False: "out-of-place ", True: "in-place "}
WRONG_CODE, FILE_CODE = "HB126", "HB160"
"""Findings on an imported file: wrong results, all others."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that a table breaks, with the numbers. ``line`` counts the items of the list
    ``counted`` in a JSON document, of which all is 0."""

    rule: str
    path: str
    line: int
    message: str
    counted: str = ""

    def place(self, path: str = "") -> str:
        """Return ``FILE:3``, ``FILE: results[2]``, or ``FILE`` of a whole JSON document."""
        path = path or self.path
        return f"{path}:{self.line}" if not self.counted else path if not self.line else (
            f"{path}: {tables.row_place(self.line, self.counted)}")


def lint(table: tables.ForeignTable, link_gbs: float | None = None) -> Iterator[BrokenRule]:
    """Yield the rules that a table breaks; ``link_gbs`` is the declared rate of a link."""
    if isinstance(table, tables.CommTable):
        yield from _lint_comm(table, link_gbs)
    elif isinstance(table, tables.MatrixTable):
        yield from _lint_matrix(table, link_gbs)
    elif isinstance(table, tables.ProductTable):
        yield from _lint_products(table)
    else:
        yield from _lint_node(table, link_gbs)


def _lint_comm(table: tables.CommTable, link_gbs: float | None) -> Iterator[BrokenRule]:
    judged = implied_ranks.most_likely(table)
    yield from _ranks(table, judged)
    with_ranks = replace(table, ranks=judged.chosen)
    yield from _factors(with_ranks, judged)
    yield from _sizes(with_ranks, judged)
    for check in (_odd, _rates, _average, _order, _spreads, _columns, _wrongs, _ends):
        yield from check(with_ranks)
    if link_gbs is not None:
        for row, half in _halves(table):
            rate = half.busbw or half.algbw
            if rate is not None and rate.low > link_gbs:
                yield _of_half(table, "link", row, half, f"{rate} GB/s is above the declared "
                                                         f"link of {digits(link_gbs, 6)} GB/s")


def contradicting(table: tables.CommTable, judged: implied_ranks.ImpliedRanks) -> set[int]:
    """Return the lines of rows whose own numbers contradict each other: torn, or of other columns.
    """
    known = replace(table, ranks=judged.chosen)
    checks = (_factors(known, judged), _sizes(known, judged), _odd(known), _rates(known))
    return {one.line for check in checks for one in check}


def doubted(table: tables.CommTable, without: Collection[int]) -> Iterator[BrokenRule]:
    """Yield each rule that the rest of a table breaks, when the rows of some lines are left out."""
    yield from (one for check in (_average, _spreads) for one in check(table, without))
    yield from _too_slow(table)
    if broken := unproven_average(table, without):
        yield broken


def stated(table: tables.CommTable) -> Iterator[BrokenRule]:
    """Yield what a table itself states as wrong in no row of its own, or as failed."""
    yield from _outside(table)
    yield from _failures(table)


def failures_of(path: str, left_out: Unread) -> Iterator[BrokenRule]:
    """Yield what a log states as failed outside of its tables."""
    yield from (BrokenRule("failed", path, line or 1, f"the log states {what} in "
                      f"{plural(count, 'line')}") for what, count, line in left_out.failures())


def _of(
    table: tables.CommTable | tables.ProductTable | tables.MatrixTable, rule: str, line: int,
    message: str,
) -> BrokenRule:
    return BrokenRule(rule, table.path, line, message, table.counted)


def _of_half(
    table: tables.CommTable, rule: str, row: tables.CommRow, half: tables.PrintedForm, message: str,
) -> BrokenRule:
    return _of(table, rule, row.line, f"{_FORMS[half.in_place]}{message}")


def _halves(table: tables.CommTable) -> Iterator[tuple[tables.CommRow, tables.PrintedForm]]:
    yield from ((row, half) for row in table.rows for half in row.halves)


def _ranks(table: tables.CommTable, judged: implied_ranks.ImpliedRanks) -> Iterator[BrokenRule]:
    if table.ranks is not None and judged.chosen != table.ranks:
        yield _of(table, "ranks", table.line,
                  f"busbw / algbw of {judged.agreeing} of {plural(judged.asked, 'measurement')} "
                  f"means n = {judged.text}; the file states {table.ranks}")


def _factors(table: tables.CommTable, judged: implied_ranks.ImpliedRanks) -> Iterator[BrokenRule]:
    """Yield rows whose busbw does not fit n; without one, the n that most rows mean."""
    if table.is_uneven:
        return
    low = table.ranks or judged.least
    high = table.ranks or judged.most
    for row, half in _halves(table):
        if table.ranks and all(implied_ranks.allow(table.collective, (half,), table.ranks)) and (
                half.algbw is not None and half.algbw.low > 0):
            continue
        span = implied_ranks.implied(table.collective, half)
        if half.algbw is None or half.busbw is None:
            continue
        if span is None:  # algbw is 0 to its digits: busbw is at most the greatest factor times it
            greatest = implied_ranks.factor_of(table.collective)(implied_ranks.MOST_RANKS)
            if implied_ranks.has_factor(table.collective) and (
                    half.busbw.low > half.algbw.high * greatest):
                yield _of_half(table, "factor", row, half,
                               f"busbw {half.busbw} GB/s at algbw {half.algbw} GB/s")
            continue
        least, most = span
        if least <= most and least <= high and low <= most:
            continue
        factor = implied_ranks.factor_of(table.collective)(table.ranks) if table.ranks else None
        expected = (f"{table.collective} of n = {judged.text} has another factor"
                    if factor is None else
                    f"{half.algbw} x {digits(factor, 4)} = "
                    f"{digits(half.algbw.value * factor, 4)} GB/s for {table.collective} "
                    f"of n = {table.ranks}")
        yield _of_half(table, "factor", row, half,
                       f"busbw {half.busbw} GB/s at algbw {half.algbw} GB/s: {expected}")


def _sizes(table: tables.CommTable, judged: implied_ranks.ImpliedRanks) -> Iterator[BrokenRule]:
    """Yield sizes that are not count x element x parts; these are 1, or n where it is known."""
    spec = collectives().get(table.collective)
    if table.is_uneven or spec is None and table.collective:
        return
    least, most = table.ranks or judged.least, table.ranks or judged.most
    for row in table.rows:
        element = tables.ELEMENT_BYTES.get(row.dtype or "")
        if element is None or row.count is None:
            continue
        part = row.count * element
        open_bytes = element if table.floors_counts and spec and spec.split else 0
        fewest, parts = _parts(row.size_bytes, part, open_bytes)
        is_one = (spec is None or not spec.split) and fewest <= 1 <= parts
        is_split = (spec is None or spec.split) and max(fewest, least) <= min(parts, most)
        if row.size_bytes % element or not (is_one or is_split):
            ranks = f" x {least} ranks" if least == most and (spec is None or spec.split) else ""
            yield _of(table, "size", row.line,
                      f"size {row.size_bytes} B, but {row.count} x {element} B ({row.dtype})"
                      f"{ranks} = {part * (least if ranks else 1)} B")


def _parts(size_bytes: int, part: int, open_bytes: int) -> tuple[int, int]:
    """Return the fewest and most parts that a size can be of; fewest > most if there are none.

    ``open_bytes``: a part may be larger, by less than these."""
    if not part + open_bytes:
        return (0, implied_ranks.MOST_RANKS) if not size_bytes else (1, 0)
    fewest = size_bytes // (part + open_bytes) + 1 if open_bytes else -(-size_bytes // part)
    return fewest, size_bytes // part if part else implied_ranks.MOST_RANKS


def _odd(table: tables.CommTable) -> Iterator[BrokenRule]:
    """Yield values that no measurement has: no number, or a time that is not above 0."""
    for row, half in _halves(table):
        if half.wrong:
            continue  # nobody takes its numbers
        odd = [*half.odd, *([f"time {half.time_us} us"]
                            if half.time_us is not None and half.time_us.value <= 0 else [])]
        for value in odd:
            yield _of_half(table, "rate", row, half, f"{value} at size {row.size_bytes} B")


def _rates(table: tables.CommTable) -> Iterator[BrokenRule]:
    """Yield rates that are not size / time, and message rates that are not rate / size."""
    for row, half in _halves(table):
        rate, time = half.algbw, half.time_us
        if table.timed_rates and not table.is_uneven and rate and time and time.low > 0:
            moved = [row.size_bytes]
            if table.program == "NCCL Inspector" and table.collective in (
                    "all_gather", "reduce_scatter"):
                moved.append(row.size_bytes * (table.ranks or 1))
            if not any(rate.may_be(one / time.high / 1e3, one / time.low / 1e3) for one in moved):
                yield _of_half(table, "rate", row, half,
                               f"algbw {rate} GB/s, but {moved[-1]} B / {time} us = "
                               f"{digits(moved[-1] / time.value / 1e3, 4)} GB/s")
        if rate and (messages := row.messages_per_s) and not rate.may_be(
                messages.low * row.size_bytes / 1e9, messages.high * row.size_bytes / 1e9):
            yield _of_half(
                table, "rate", row, half,
                f"{rate.scaled(1e3)} MB/s, but {messages} messages/s x {row.size_bytes} B = "
                f"{digits(messages.value * row.size_bytes / 1e6, 4)} MB/s")


def _average(table: tables.CommTable, without: Collection[int] = ()) -> Iterator[BrokenRule]:
    """Yield an average that is not that of the rows, whatever those are that were not read."""
    printed, n_missing = _busbws(table, without)
    average = table.average
    if average is None or not printed or _fits_as_printed(table):
        return
    if not n_missing or _needed(average, printed, n_missing).high < 0:
        more = f", and {_are(n_missing, ' more')} not read" if n_missing else ""
        yield _of_average(table, f"its {len(printed)} busbw have a mean of {_mean(printed)} "
                                 f"GB/s{more}")


def unproven_average(table: tables.CommTable, without: Collection[int] = ()) -> BrokenRule | None:
    """Return an average that other rows than those read would have to explain, with their mean."""
    printed, n_missing = _busbws(table, without)
    average = table.average
    if average is None or not printed or not n_missing or _fits_as_printed(table):
        return None
    needed = _needed(average, printed, n_missing)
    return None if needed.high < 0 else _of_average(
        table, f"the {len(printed)} busbw that are read have a mean of {_mean(printed)} GB/s: not "
               f"checked, as {_are(n_missing)} left out, which would have a mean of {needed} GB/s")


def _are(count: int, more: str = "") -> str:
    return f"{count}{more} {'is' if count == 1 else 'are'}"


def _of_average(table: tables.CommTable, message: str) -> BrokenRule:
    line = table.lines.get("average", 0 if table.counted else table.rows[-1].line)
    return _of(table, "average", line, f"the table says {table.average} GB/s on average; {message}")


def _busbws(table: tables.CommTable, without: Collection[int]) -> tuple[list[tables.Printed], int]:
    """Return the bus bandwidths that are read but for the lines ``without``, and how many are not.
    Those of wrong results may lack theirs: hpcbench averages none."""
    halves = [(row.line, half.busbw) for row, half in _halves(table)
              if half.busbw is not None or not half.wrong]
    printed = [rate for line, rate in halves if rate is not None and line not in without]
    per_row = max((len(row.halves) for row in table.rows), default=0)
    return printed, len(halves) - len(printed) + per_row * len(table.damaged)


def _fits_as_printed(table: tables.CommTable) -> bool:
    """Return whether the average is that of all rows, those that contradict themselves, too."""
    printed, n_missing = _busbws(table, ())
    mean = _mean(printed)
    return not n_missing and table.average is not None and table.average.may_be(mean.low, mean.high)


def _needed(average: tables.Printed, printed: Sequence[tables.Printed],
            n_missing: int) -> tables.Printed:
    """Return the mean that so many further numbers need for this average of all."""
    total, read = average.scaled(len(printed) + n_missing), _sum(printed)
    return tables.Printed((total.value - read.value) / n_missing,
                          (total.half + read.half) / n_missing)


def _mean(numbers: Sequence[tables.Printed]) -> tables.Printed:
    return _sum(numbers).scaled(1 / len(numbers))


def _sum(numbers: Sequence[tables.Printed]) -> tables.Printed:
    return tables.Printed(sum(one.value for one in numbers), sum(one.half for one in numbers))


def _order(table: tables.CommTable) -> Iterator[BrokenRule]:
    """Yield the first size that falls and the first that repeats; rounded steps may repeat.

    Sizes begin again with another type, operator or root (nccl-tests -d all, -o all, -r -1)."""
    if not table.is_sweep or _is_cycle(table):
        return
    may_repeat = table.step_bytes is not None and table.step_bytes < 16 * (table.ranks or 1)
    reported: set[str] = set()
    for before, row in zip(table.rows, table.rows[1:], strict=False):
        if (before.dtype, before.redop, before.root) != (row.dtype, row.redop, row.root):
            continue
        what = ("falls" if row.size_bytes < before.size_bytes else
                "repeats" if row.size_bytes == before.size_bytes and row.size_bytes
                and not may_repeat else "")
        if what and what not in reported:
            reported.add(what)
            yield _of(table, "order", row.line,
                      f"size {what}: {row.size_bytes} B after {before.size_bytes} B "
                      "(two runs joined?)")


def _is_cycle(table: tables.CommTable) -> bool:
    """Return whether all rows are one sweep again and again, as nccl-tests -N prints it."""
    keys = [(row.size_bytes, row.dtype, row.redop, row.root) for row in table.rows]
    length = next((at for at in range(1, len(keys)) if keys[at][0] < keys[at - 1][0]),
                  1 if len(set(keys)) == 1 else len(keys))
    return table.program == "nccl-tests" and length < len(keys) and (
        keys[length:] == keys[:len(keys) - length])


def _spreads(table: tables.CommTable, without: Collection[int] = ()) -> Iterator[BrokenRule]:
    for row, half in _halves(table):
        if row.line in without:
            continue
        is_mean = table.program != "nccl-tests"  # its iterations are timed apart from their mean
        low, high = half.low_us, half.high_us
        shares = half.percentiles_us
        chain = [*shares] if table.program == "OSU" else [low, *shares, high]
        mean = [low, half.time_us if is_mean else None, high]
        for ordered in (chain, mean):
            printed = [one for one in ordered if one is not None]
            if any(one.low > other.high for one, other in zip(printed, printed[1:], strict=False)):
                yield _of_half(table, "spread", row, half, "these do not rise: "
                               + ", ".join(map(str, printed)) + " us")
                break


def _columns(table: tables.CommTable) -> Iterator[BrokenRule]:
    if table.old_columns:
        yield _of(table, "columns", table.line, f"columns of another version: {table.old_columns}")
    for line, count in table.damaged:
        yield _of(table, "columns", line, f"a row of {count} fields, which is not read: cut, "
                                          "mixed with other output, or of another version")


def _wrongs(table: tables.CommTable) -> Iterator[BrokenRule]:
    yield from wrong_rows(table)
    yield from _outside(table)


def wrong_rows(table: tables.CommTable) -> Iterator[BrokenRule]:
    """Yield each row of which the program found wrong results."""
    for row in table.rows:
        wrong = [half.wrong for half in row.halves if half.wrong]
        if wrong or row.passed is False:
            what = plural(sum(wrong), "wrong element") if wrong else "validation failed"
            yield _of(table, "wrong", row.line, f"{what} at size {row.size_bytes} B")


def _outside(table: tables.CommTable) -> Iterator[BrokenRule]:
    if table.out_of_bounds:
        yield _of(table, "wrong", table.lines.get("out_of_bounds", table.line),
                  f"values out of bounds: {table.out_of_bounds}")


def _ends(table: tables.CommTable) -> Iterator[BrokenRule]:
    yield from (*_failures(table), *_too_slow(table), *_not_to_quote(table))
    if table.is_cut:
        rows = plural(len(table.rows), "row")
        yield _of(table, "cut", table.line, f"no final lines after {rows}: the output was "
                                            "cut off or the program ended early")


def _failures(table: tables.CommTable) -> Iterator[BrokenRule]:
    yield from (_of(table, "failed", table.line, one) for one in table.failures)


def _not_to_quote(table: tables.CommTable) -> Iterator[BrokenRule]:
    """Yield what hpcbench says against the run whose table it wrote."""
    for one in table.own.findings if table.own else ():
        if one.scope == "run":
            yield _of(table, "wrong" if one.code == WRONG_CODE else "failed", table.line,
                      f"{one.code}: {one.message}")


def _too_slow(table: tables.CommTable) -> Iterator[BrokenRule]:
    if table.is_too_slow:
        yield _of(table, "failed", table.lines.get("average", table.line),
                  f"the average {table.average} GB/s is below NCCL_TESTS_MIN_BW")


def _lint_matrix(table: tables.MatrixTable, link_gbs: float | None) -> Iterator[BrokenRule]:
    if table.status == "Error":
        yield _of(table, "failed", 0, f"test case {table.name} ended with status Error")
    cells = [one for row in table.matrix for one in row if one is not None]
    if not cells:
        return
    least, most = min(cells, key=lambda one: one.value), max(cells, key=lambda one: one.value)
    for name, said, is_so in (("sum", table.total, _sum(cells)), ("min", table.least, least),
                              ("max", table.greatest, most), ("average", table.average,
                                                              _mean(cells))):
        if said is not None and not said.may_be(is_so.low, is_so.high):
            yield _of(table, "average", 0, f"{table.name}: {name} {said}, but that of its "
                                           f"{len(cells)} values is {is_so}")
    if link_gbs is not None and "GB/s" in table.description and most.low > link_gbs:
        yield _of(table, "link", 0, f"{table.name}: {most} GB/s is above the declared "
                                    f"link of {digits(link_gbs, 6)} GB/s")


def _lint_products(table: tables.ProductTable) -> Iterator[BrokenRule]:
    for row in table.rows:
        low, mean, high = row.least_ms, row.mean_ms, row.greatest_ms
        if low.low > mean.high or mean.low > high.high:
            yield _of(table, "spread", row.line, f"these do not rise: {low}, {mean}, {high} ms")
        work = 2 * row.m * row.n * row.k / 1e9
        if low.low > 0 and not row.tflops.may_be(work / high.high, work / low.low):
            yield _of(table, "rate", row.line,
                      f"{row.tflops} TFLOPS, but 2 x {row.m} x {row.n} x {row.k} in "
                      f"{low} to {high} ms is {digits(work / high.value, 4)} to "
                      f"{digits(work / low.value, 4)}")
        if row.passed is False:
            yield _of(table, "wrong", row.line, f"{row.implementation}: validation failed")


def _lint_node(node: tables.NodeTable, link_gbs: float | None) -> Iterator[BrokenRule]:
    yield from (broken for _, broken in failed_codes(node))
    for table in comm_tables(node):
        yield from _lint_comm(table, link_gbs)


def failed_codes(node: tables.NodeTable) -> Iterator[tuple[str, BrokenRule]]:
    """Yield each benchmark of a node that ended with another return code than 0."""
    for name, value in node.metrics.items():
        if is_code(name) and value.value:
            yield name.rpartition("/")[0], BrokenRule(
                "failed", node.path, node.line,
                f"{node.node}: a benchmark ended with return code {value}")


SCHEMA, SCHEMA_VERSION = "hpcbench.lint", 1
MOST_SHOWN = 200
"""Findings of a file that are listed; further ones are counted."""


class Linting:
    """Reads files one after the other; ``count`` is the number of findings so far."""

    def __init__(self, collective: str, link_gbs: float | None, *, as_json: bool) -> None:
        self._collective, self._link_gbs, self._as_json = collective, link_gbs, as_json
        self._tables, self._unchecked = Counter[str](), Counter[str]()
        self._rows = self._files = self._no_factor = self.count = 0
        self._listed: list[BrokenRule] = []
        self._left_out: list[dict[str, Any]] = []

    def read(self, path: Path) -> None:
        """Check a file, and print findings as they are found, but for JSON. Raises FileError."""
        before = self.count
        self._files += 1
        left_out, unproven = Unread(), list[BrokenRule]()
        for broken in self._broken(path, left_out, unproven):
            self.count += 1
            if self.count - before <= MOST_SHOWN:
                self._list(broken)
        if (more := self.count - before - MOST_SHOWN) > 0 and not self._as_json:
            say(f"{path}: and {plural(more, 'finding')} more")
        self._left_out += ({"path": str(path), "line": line, "what": what, "count": count}
                           for what, count, line in left_out.entries())
        for text in left_out.lines(str(path)):
            say(f"hpcbench: {text}", sys.stderr)
        for one in unproven:
            self._left_out.append({"path": one.path, "line": one.line, "what": one.message,
                                   "count": 1})
            say(f"hpcbench: {one.place()}: {one.message}", sys.stderr)

    def _broken(
        self, path: Path, left_out: Unread, unproven: list[BrokenRule],
    ) -> Iterator[BrokenRule]:
        """Yield what a file breaks, and count its tables; add averages that cannot be checked."""
        for table in tables_of(path, self._collective, left_out):
            self._tables[table.program] += 1
            self._rows += rows_of(table)
            self._unchecked += unchecked(table)
            self._no_factor += without_factor(table)
            yield from lint(table, self._link_gbs)
            if isinstance(table, tables.CommTable) and (broken := unproven_average(table)):
                unproven.append(broken)
        yield from failures_of(str(path), left_out)

    def _list(self, broken: BrokenRule) -> None:
        if self._as_json:
            self._listed.append(broken)
        else:
            say(f"{broken.place()}: {broken.rule}: {broken.message}")

    def summary(self) -> str:
        """Return one line: how many findings there are, in how many rows and tables."""
        findings = plural(self.count, "finding") if self.count else "no findings"
        what = ", ".join(f"{plural(count, 'table')} of {name}"
                         for name, count in self._tables.items())
        others = ", ".join((
            *(f"{why}: {count}" for why, count in self._unchecked.items()),
            *([f"busbw of {plural(self._no_factor, 'row')}, whose collective has no known factor "
               "(--collective)"] if self._no_factor else ())))
        return (f"{findings} in {plural(self.n_checked, 'row')} that can be "
                f"checked: {what}" + (f"; not checked: {others}" if others else ""))

    @property
    def n_checked(self) -> int:
        """The number of rows of which any numbers were held against each other."""
        return self._rows - self._unchecked.total()

    def document(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "files": self._files,
                "tables": dict(self._tables), "rows": self._rows,
                "not_checked": dict(self._unchecked),
                "without_factor": self._no_factor, "left_out": self._left_out,
                "n_findings": self.count, "findings": [asdict(one) for one in self._listed]}


def rows_of(table: tables.ForeignTable) -> int:
    """Return the number of rows of a table; for a node, also that of its other metrics."""
    if isinstance(table, tables.NodeTable):
        return other_metrics(table) + sum(len(one.rows) for one in comm_tables(table))
    return len(table.matrix if isinstance(table, tables.MatrixTable) else table.rows)


def unchecked(table: tables.ForeignTable) -> Counter[str]:
    """Return why rows of a table are not checked -> how many; a row counts once."""
    if isinstance(table, tables.CommTable):
        return Counter(why for row in table.rows if (why := _why_unchecked(table, row)))
    if isinstance(table, tables.NodeTable):
        counts = sum((unchecked(one) for one in comm_tables(table)), Counter[str]())
        others = other_metrics(table) - sum(map(is_code, table.metrics))
        return counts + Counter({"metrics of SuperBench that are none of a collective": others})
    if isinstance(table, tables.MatrixTable):
        stated = (table.total, table.least, table.greatest, table.average)
        return Counter({"rows without a sum or extreme": (
            len(table.matrix) * (stated == (None,) * len(stated)))})
    return Counter({"rows of a time that is 0 to its digits": sum(
        row.least_ms.low <= 0 for row in table.rows)})


def without_factor(table: tables.ForeignTable) -> int:
    """Return how many rows are checked but for their busbw."""
    if isinstance(table, tables.NodeTable):
        return sum(map(without_factor, comm_tables(table)))
    return sum(lacks_factor(table, row) and not _why_unchecked(table, row) for row in table.rows
               ) if isinstance(table, tables.CommTable) else 0


def _why_unchecked(table: tables.CommTable, row: tables.CommRow) -> str:
    """Return why the numbers of a row are not held against each other; "" if they are."""
    if any(half.odd for half in row.halves):
        return ""
    if table.is_uneven:
        return "rows of parts of different sizes"
    if row.count is not None and row.dtype not in tables.ELEMENT_BYTES:
        return "rows of another element type"
    if row.halves and all(_is_checked(table, row, half) for half in row.halves):
        return ""
    if lacks_factor(table, row):
        return ("rows of no known collective (--collective)" if not table.collective else
                f"rows of {table.collective}")
    return "rows without numbers that depend on each other"


def lacks_factor(table: tables.CommTable, row: tables.CommRow) -> bool:
    """Return whether nothing tells what busbw is of algbw; the other rules hold all the same."""
    return not implied_ranks.has_factor(table.collective) and any(half.busbw is not None
                                                                  for half in row.halves)


def _is_checked(table: tables.CommTable, row: tables.CommRow, half: tables.PrintedForm) -> bool:
    """Return whether any two numbers of a measurement are compared."""
    times = [half.low_us, half.time_us, half.high_us, *half.percentiles_us]
    return (half.busbw is not None and half.algbw is not None
            and implied_ranks.has_factor(table.collective)
            or half.algbw is not None and half.time_us is not None and table.timed_rates
            or half.algbw is not None and row.messages_per_s is not None
            or sum(one is not None for one in times) > 1)
