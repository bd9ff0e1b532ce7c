"""The JSON of nccl-tests (``-J``, version 3), read without its environment and options, and that of
nvbandwidth (``-j``): a matrix for each test case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.interop.formats import tables
from hpcbench.interop.formats.reading.names import our_name
from hpcbench.interop.formats.reading.nccl_text import PROGRAM, program_name
from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.texts import to_json
from hpcbench.units import moment, plural

VERSION = 3


def read(file: ForeignFile, data: Mapping[str, Any],
         collective: str = "") -> Iterator[tables.CommTable]:
    """Yield the one table. Raises FileError for another version or shape."""
    version = data.get("version")
    if version != VERSION:
        what = str(version)[:20] if isinstance(version, (int, str)) else "unknown"
        raise file.error(1, f"JSON of nccl-tests in version {what}; version {VERSION} is read")
    try:
        yield _table(file, data, collective)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise file.error(1, "JSON of nccl-tests whose keys are not those of version "
                            f"{VERSION}") from error


def _table(file: ForeignFile, data: Mapping[str, Any], collective: str) -> tables.CommTable:
    config = data.get("config") or {}
    iterations = tables.whole_or_none(config.get("iterations"))
    devices = tuple(
        tables.DeviceLine(tables.whole(one["rank"]), tables.whole(one.get("group", 0)),
                          str(one["hostname"]),
                          str(one.get("device_info", ""))) for one in config.get("devices") or ())
    groups = {one.group for one in devices}
    average = data.get("average_bus_bandwidth") or {}
    outside = data.get("out_of_bounds") or {}
    halves = [half for row in data["results"] for half in (row["out_of_place"], row["in_place"])]
    program = _program(data)
    facts = dict(data.get("hpcbench") or {})
    hpcbench = str(facts.pop("version", ""))
    own = tables.own_facts(to_json(facts)) if facts else None
    rows = (_row(number, row, iterations) for number, row in enumerate(data["results"], 1))
    return tables.CommTable(
        PROGRAM, file.name, 1, our_name(program) or collective,
        tuple(rows if own is None else map(own.without_copies, rows)),
        version=f"JSON {VERSION}", started=_started(data), hpcbench=hpcbench,
        own=own, backend=own.backend if own else "", device=own.device if own else "",
        ranks=len(devices) // len(groups) if groups else None,
        devices=devices, iterations=iterations,
        warmup=tables.whole_or_none(config.get("warmup_iters")) or 0,
        step_bytes=tables.whole_or_none(config.get("step_bytes")),
        average=number_of(average.get("bandwidth")),
        failures=_failures(data), is_too_slow=average.get("okay") in ("false", False),
        out_of_bounds=tables.whole_or_none(outside.get("count")),
        is_cut=not average or not outside,
        timed_rates=not any(half and "cpu_time" in half for half in halves)
        and program != "hypercube", is_uneven=program == "alltoallv")


def _started(data: Mapping[str, Any]) -> str:
    """Return when the program began; "" for another text than a time."""
    started = data.get("start_time")
    return started if isinstance(started, str) and moment(started) is not None else ""


def _program(data: Mapping[str, Any]) -> str:
    """Return the program of nccl-tests, by the first argument alone; "" if it is none."""
    return program_name(str(next(iter(data.get("args") or ()), "")))


def _failures(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the failures that it reports; errors' texts may hold anything, so only their count.

    Wrong results, which hpcbench counts among them, are in their rows."""
    errors = [one for one in data.get("errors") or () if not (
        "hpcbench" in data and str(one).startswith("wrong: "))]
    return (f"it reports {plural(len(errors), 'error')}",) if errors else ()


def _row(number: int, row: Mapping[str, Any], iterations: int | None) -> tables.CommRow:
    pairs = ((False, "out_of_place"), (True, "in_place"))
    halves = tuple(_half(in_place, row[key], row.get(f"{key}_per_iter"))
                   for in_place, key in pairs if row[key])
    root = int(str(row.get("root", "-1")))
    redop = str(row.get("redop", "none")).strip()
    return tables.CommRow(
        number, tables.whole(row["size"]), halves, count=tables.whole(row["count"]),
        dtype=str(row["type"]).strip(),
        redop=None if redop == "none" else redop, root=None if root < 0 else root,
        iterations=tables.whole_or_none(row.get("actual_iterations", iterations)))


def _half(in_place: bool, half: Mapping[str, Any],
          each: Mapping[str, Any] | None) -> tables.PrintedForm:
    wrong = half.get("nwrong")
    each = each or {}
    odd = tuple(f"{name} {half[key]}" for name, key in (
        ("time", "time"), ("algbw", "alg_bw"), ("busbw", "bus_bw"))
        if isinstance(half.get(key), str) and tables.is_no_number(half[key]))
    shares = [number_of(each.get(key)) for key in ("p50_us", "p95_us", "p99_us")]
    return tables.PrintedForm(
        in_place, number_of(half.get("time", half.get("cpu_time"))), number_of(half["alg_bw"]),
        number_of(half["bus_bw"]), tables.whole_or_none(wrong),
        number_of(each.get("min_us")), number_of(each.get("max_us")),
        tuple(one for one in shares if one is not None), odd)


def number_of(value: object) -> tables.Printed | None:
    """Return a number of a JSON document; None without one. Raises ValueError for a text."""
    if value is None or isinstance(value, tables.Printed):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("no number")
    return tables.printed_or_none(str(value))


_STATUSES = ("Passed", "Waived", "Error", "Not Found")


def matrices_of(file: ForeignFile, data: Mapping[str, Any]) -> Iterator[tables.MatrixTable]:
    """Yield its test cases. Raises FileError where its keys are not those of version 0.8."""
    try:
        for case in data["nvbandwidth"]["testcases"]:
            if case["status"] not in _STATUSES:
                raise ValueError("status")
            yield tables.MatrixTable(
                file.name, str(case["name"]), case["status"],
                str(case.get("bandwidth_description", "")),
                tuple(tuple(map(_cell, row)) for row in case.get("bandwidth_matrix") or ()),
                *(number_of(case.get(key)) for key in ("sum", "min", "max", "average")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise file.error(1, "JSON of nvbandwidth whose keys are not those of version 0.8"
                         ) from error


def _cell(value: object) -> tables.Printed | None:
    return tables.printed_or_none(value) if isinstance(value, str) else number_of(value)
