"""The JSON of nccl-tests (``-J``), read without its environment and options, and that of
nvbandwidth (``-j``): a matrix for each test case.

nccl-tests writes a document in one line: doubles as ``%lf``, also ``nwrong``, booleans as texts, a
device for each process, and an empty error where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from hpcbench.interop.formats import tables
from hpcbench.interop.formats.reading.names import our_name
from hpcbench.interop.formats.reading.nccl_text import MOST_ROWS, PROGRAM, program_name
from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.texts import to_json
from hpcbench.units import moment, plural

Value = TypeVar("Value")
VERSIONS = (1, 2, 3)


def read(file: ForeignFile, data: Mapping[str, Any],
         collective: str = "") -> Iterator[tables.CommTable]:
    """Yield the one table. Raises FileError for another version or shape."""
    version = data.get("version")
    if version not in VERSIONS:
        what = str(version)[:20] if isinstance(version, (int, str)) else "unknown"
        raise file.error(1, f"JSON of nccl-tests in version {what}; read are 1 to {VERSIONS[-1]}")
    try:
        yield _table(file, data, collective)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise file.error(1, f"JSON of nccl-tests: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Return what is odd in a document, where it is not the message of the error itself."""
    if isinstance(error, KeyError):
        return f"no key {str(error.args[0])[:40]}"
    return str(error) if isinstance(error, ValueError) else "a value of another kind than it writes"


def _value(data: Mapping[str, Any], key: str, read: Callable[[Any], Value]) -> Value:
    """Return what is read of a key, of None if it is missing. Raises ValueError that names both."""
    value = data.get(key)
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        shown = str(value) if isinstance(value, tables.Printed) else to_json(value)
        raise ValueError(f"{key} is {shown[:40]}") from error


def _table(file: ForeignFile, data: Mapping[str, Any], collective: str) -> tables.CommTable:
    config = data.get("config") or {}
    iterations = _value(config, "iterations", tables.whole_or_none)
    devices = _devices(config)
    groups = {one.group for one in devices}
    average = data.get("average_bus_bandwidth") or data.get("average_bus_bandwidith") or {}
    outside = data.get("out_of_bounds") or {}
    results = data.get("results") or ()
    halves = [half for row in results for half in (row.get("out_of_place"), row.get("in_place"))]
    program = _program(data)
    facts = dict(data.get("hpcbench") or {})
    hpcbench = str(facts.pop("version", ""))
    own = tables.own_facts(to_json(facts)) if facts else None
    rows = (_row(number, row, iterations) for number, row in enumerate(results, 1))
    return tables.CommTable(
        PROGRAM, file.name, 0, our_name(program) or collective,
        tuple(rows if own is None else map(own.without_copies, rows)),
        version=f"JSON {data['version']}", started=_started(data), hpcbench=hpcbench,
        own=own, backend=own.backend if own else "", device=own.device if own else "",
        ranks=len(devices) // len(groups) if groups else None,
        devices=devices, iterations=iterations,
        warmup=_value(config, "warmup_iters", tables.whole_or_none) or 0,
        step_bytes=_value(config, "step_bytes", tables.whole_or_none),
        average=number_of(average.get("bandwidth", average.get("bandwidith"))),
        failures=_failures(data), is_too_slow=average.get("okay") in ("false", False),
        out_of_bounds=_value(outside, "count", tables.whole_or_none),
        is_cut=not average or not outside, counted="results",
        timed_rates=not any(half and "cpu_time" in half for half in halves)
        and program != "hypercube", is_uneven=program == "alltoallv")


def _devices(config: Mapping[str, Any]) -> tuple[tables.DeviceLine, ...]:
    """Return the device of each rank: nccl-tests lists the first of each process, hpcbench all."""
    listed = [tables.DeviceLine(_value(one, "rank", tables.whole),
                                _value(one, "group", tables.whole_or_none) or 0,
                                str(one["hostname"]), str(one.get("device_info", "")))
              for one in config.get("devices") or ()]
    of_process = (_value(config, "nthreads", tables.whole_or_none) or 1) * (
        _value(config, "ngpus", tables.whole_or_none) or 1)
    if any(one.rank % of_process for one in listed):
        return tuple(listed)
    if len(listed) * of_process > MOST_ROWS:
        raise ValueError(f"nthreads x ngpus of more than {MOST_ROWS} devices")
    return tuple(replace(one, rank=one.rank + at) for one in listed for at in range(of_process))


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
    errors = [one for one in data.get("errors") or () if one and not (
        "hpcbench" in data and str(one).startswith("wrong: "))]
    return (f"it reports {plural(len(errors), 'error')}",) if errors else ()


def _row(number: int, row: Mapping[str, Any], iterations: int | None) -> tables.CommRow:
    """Return a row; one in which the program ended lacks halves."""
    try:
        size, count = _value(row, "size", tables.whole), _value(row, "count", tables.whole)
        root = _value({"root": "-1", **row}, "root", lambda value: int(str(value)))
        calls = _value({"actual_iterations": iterations, **row}, "actual_iterations",
                       tables.whole_or_none)
        halves = tuple(_half(in_place, row[key], row.get(f"{key}_per_iter"))
                       for in_place, key in ((False, "out_of_place"), (True, "in_place"))
                       if row.get(key))
    except ValueError as error:
        raise ValueError(f"{tables.row_place(number, 'results')}: {error}") from error
    redop = str(row.get("redop", "none")).strip()
    return tables.CommRow(
        number, size, halves, count=count, dtype=str(row["type"]).strip(),
        redop=None if redop == "none" else redop, root=None if root < 0 else root,
        iterations=calls)


def _half(in_place: bool, half: Mapping[str, Any],
          each: Mapping[str, Any] | None) -> tables.PrintedForm:
    each = each or {}
    odd = tuple(f"{name} {half[key]}" for name, key in (
        ("time", "time"), ("algbw", "alg_bw"), ("busbw", "bus_bw"))
        if isinstance(half.get(key), str) and tables.is_no_number(half[key]))
    low, high, *shares = (_value(each, key, number_of) for key in (
        "min_us", "max_us", "p50_us", "p95_us", "p99_us"))
    time, algbw, busbw = (_value(half, key, number_of) for key in (
        "time" if "time" in half else "cpu_time", "alg_bw", "bus_bw"))
    return tables.PrintedForm(
        in_place, time, algbw, busbw, _value(half, "nwrong", tables.whole_or_none), low, high,
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
