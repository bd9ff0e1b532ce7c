"""Descriptions of the machine for simulators: bus bandwidths for SimAI, a system for Calculon.

A tier is the place where ranks ran: inside a node, or on several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpcbench.errors import UsageError
from hpcbench.formats.export.cases import (
    Exported,
    ExportedCase,
    ExportedRun,
    ExportRequest,
    joined,
    plain_number,
)
from hpcbench.formats.export.cost_tables import fitting, median_us, of_one_way, unfit_collective
from hpcbench.kinds.hardware.plan.test import TRANSFERS, stream_of
from hpcbench.texts import to_json
from hpcbench.units import grouped

SIMAI_NAMES: Mapping[str, str] = MappingProxyType({
    "all_reduce": "allreduce,", "all_gather": "allgather,", "reduce_scatter": "reducescatter,",
    "all_to_all": "alltoall,"})
"""Ours -> SimAI's key; the comma belongs to it."""
POINT_TO_POINT = "send_recv"
INSIDE, ACROSS = "inside a node", "over nodes"
_PLACES: Mapping[str, str] = MappingProxyType({"TP": INSIDE, "DP": ACROSS, "EP": ACROSS})
CALCULON_OPS: Mapping[str, tuple[str, float, int | None]] = MappingProxyType({
    "all_reduce": ("all_reduce", 2.0, -1), "all_gather": ("all_gather", 1.0, -1),
    "reduce_scatter": ("reduce_scatter", 1.0, -1), POINT_TO_POINT: ("p2p", 1.0, None)})
"""Ours -> Calculon's name, scale and offset. Calculon's bytes for n ranks are then those of busbw:
size x scale x (1 + offset / n)."""
CALCULON_TYPES: Mapping[str, str] = MappingProxyType({
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8_e4m3": "float8"})
GEMM, STREAM = "gemm", "stream"
"""Tests of the machine, as the column ``test`` has them."""
_NOT_MEASURED = "not measured by hpcbench, and to be added before Calculon reads the file"


def as_simai(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return busbw.yaml: GB/s of the largest size of the most ranks, null where nothing ran."""
    run, names = runs[0], {**SIMAI_NAMES, POINT_TO_POINT: "busbw"}
    cases, left_out = fitting(run, lambda case: unfit_collective(case, names, "SimAI"))
    if not cases:
        return Exported(b"", tuple(left_out))
    of_one_way(cases, "simai")
    largest = _largest(run, cases)
    lines = ["hpcbench"]
    for section, place in _PLACES.items():
        lines += [f"{section}:", *(
            f"  {key}: {_busbw(largest.get((place, name)))}" for name, key in SIMAI_NAMES.items())]
    between = largest.get((ACROSS, POINT_TO_POINT)) or largest.get((INSIDE, POINT_TO_POINT))
    lines += ["PP:", f"  busbw: {_busbw(between)}"]
    notes = ["TP has groups inside a node, DP and EP groups over nodes; each number is that of the "
             "largest size"]
    if missing := [place for place in (INSIDE, ACROSS) if all(key[0] != place for key in largest)]:
        notes.append(f"null: nothing was measured {' or '.join(missing)}")
    return Exported(joined(lines), tuple(left_out), tuple(notes))


def _busbw(case: ExportedCase | None) -> str:
    return "null" if case is None else plain_number(
        next(one.value for one in case.metrics if one.name == "busbw"))


def _place(run: ExportedRun, case: ExportedCase) -> str:
    """Return INSIDE where the ranks of each group are on one node, else ACROSS."""
    hosts = {place.rank: place.hostname for place in run.results.topology.ranks}
    return INSIDE if all(len({hosts.get(rank) for rank in group}) == 1
                         for group in case.item.case.group_ranks) else ACROSS


def _largest(
    run: ExportedRun, cases: Sequence[ExportedCase],
) -> dict[tuple[str, str], ExportedCase]:
    """Return place, collective -> the case of the most ranks, and of these of the largest size."""
    return {key: max(same, key=_extent) for key, same in grouped(
        ((_place(run, case), case.collective), case) for case in cases).items()}


def _extent(case: ExportedCase) -> tuple[int, int]:
    return case.item.case.group_size, int(case.columns["size_bytes"])


def as_calculon(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return the measured sections of a system file; the notes name the others.

    Calculon refuses a file that lacks a section, so an incomplete file is never used by mistake.
    """
    run = runs[0]
    cases, left_out = fitting(run, _unfit_for_calculon)
    of_one_way([case for case in cases if case.collective], "calculon")
    devices = dict.fromkeys(case.item.case.device for case in cases)
    if len(devices) > 1:
        raise UsageError(f"calculon: holds one device, and these cases have {', '.join(devices)}; "
                         "choose by --only")
    products, streams = ([case for case in cases if case.columns.get("test") == test]
                         for test in (GEMM, STREAM))
    networks = [*_networks(run, [case for case in cases if case.collective])]
    document = {name: part for name, part in (
        ("matrix", _matrix(products)), ("mem1", _memory(run, streams)), ("networks", networks))
        if part}
    if not document:
        return Exported(b"", tuple(left_out))
    content = {**document, "processing_mode": "no_overlap"}
    lacking = [name for name in ("matrix", "vector", "mem1", "mem2", "networks")
               if name not in document]
    lacking += ["mem1.GiB"] if "GiB" not in document.get("mem1", {"GiB": 0}) else []
    notes = [f"{', '.join(lacking)}: {_NOT_MEASURED}",
             "assumed: processing_mode no_overlap, and that a product or a stream smaller than "
             "those measured is as efficient as the smallest"]
    if networks:
        notes.append("assumed of networks: processor_usage 0, efficiency 1 of the bandwidth that "
                     "was measured; an operation that was not measured has the rate of the others")
    return Exported((to_json(content, indent=1, allow_nan=False) + "\n").encode(),
                    tuple(left_out), tuple(notes))


def _unfit_for_calculon(case: ExportedCase) -> str:
    columns, dtype = case.columns, case.item.case.workload.dtype
    if columns.get("test") == GEMM:
        return "" if dtype in CALCULON_TYPES else f"Calculon has no {dtype}"
    if columns.get("test") == STREAM:
        kernel = columns["kernel"]
        return f"{kernel} is between host and device" if kernel in TRANSFERS else ""
    return unfit_collective(case, CALCULON_OPS, "Calculon")


def _matrix(cases: Sequence[ExportedCase]) -> dict[str, Any]:
    """Return for each type the best rate, and the share of it that products reach by GFLOPs."""
    return {dtype: {"tflops": rate / 1e12, "gflops_efficiency": shares} for dtype, same in grouped(
        (CALCULON_TYPES[case.item.case.workload.dtype], case) for case in cases).items()
        for rate, shares in (_efficiency(same, "rank_flops_per_s", _gigaflops),)}


def _gigaflops(case: ExportedCase) -> float:
    m, n, k = (int(case.columns[f"problem_{name}"]) for name in "mnk")
    return 2 * m * n * k / 1e9


def _memory(run: ExportedRun, cases: Sequence[ExportedCase]) -> dict[str, Any]:
    if not cases:
        return {}
    rate, shares = _efficiency(cases, "rank_bytes_per_s", _megabytes)
    capacity = (run.results.run.environment.get("hardware") or {}).get("memory_per_device_gb")
    size = {"GiB": capacity * 1e9 / 2**30} if capacity else {}
    return {**size, "GBps": rate / 1e9, "MB_efficiency": shares}


def _megabytes(case: ExportedCase) -> float:
    return stream_of(case.item.case).moved_bytes(int(case.columns["array_bytes"])) / 1e6


def _efficiency(
    cases: Sequence[ExportedCase], column: str, size_of: Callable[[ExportedCase], float],
) -> tuple[float, list[list[float]]]:
    """Return the best rate, and the share of it reached from each size on, largest first."""
    rates: dict[float, float] = {}
    for case in cases:
        size, rate = size_of(case), float(case.columns[column])
        rates[size] = max(rate, rates.get(size, 0.0))
    best = max(rates.values())
    shares = [[size, rates[size] / best] for size in sorted(rates, reverse=True)]
    return best, [*shares[:-1], [0, shares[-1][1]]]


def _networks(run: ExportedRun, cases: Sequence[ExportedCase]) -> Iterator[dict[str, Any]]:
    """Yield the tier inside a node, then that over nodes, as far as they were measured."""
    places = grouped((_place(run, case), case) for case in cases)
    for place in (INSIDE, ACROSS):
        if same := places.get(place):
            yield _network(run, same, is_filled_first=place == INSIDE and ACROSS in places)


def _network(
    run: ExportedRun, cases: Sequence[ExportedCase], *, is_filled_first: bool,
) -> dict[str, Any]:
    """Return a tier by which each operation takes its measured time at its largest size.

    ``latency`` is the first operation's time without any bytes, at most half of the shortest of
    the measured times.
    """
    largest = {name: case for (_, name), case in _largest(run, cases).items()}
    first = largest[next(name for name in CALCULON_OPS if name in largest)]
    latency_s = min(_latency_s(first, cases), min(map(_seconds, largest.values())) / 2)
    rates = {name: _moved_bytes(case) / (_seconds(case) - latency_s)
             for name, case in largest.items()}
    best = max(rates.values())
    return {"bandwidth": best / 1e9, "efficiency": 1.0,
            "size": max(case.item.case.group_size for case in cases), "latency": latency_s,
            "ops": {op: [scale * best / rates.get(name, best), offset]
                    for name, (op, scale, offset) in CALCULON_OPS.items()},
            "must_be_filled": is_filled_first, "processor_usage": 0.0}


def _seconds(case: ExportedCase) -> float:
    return median_us(case) / 1e6


def _moved_bytes(case: ExportedCase) -> float:
    _, scale, offset = CALCULON_OPS[case.collective]
    return int(case.columns["size_bytes"]) * scale * (
        1 + (offset or 0) / case.item.case.group_size)


def _latency_s(largest: ExportedCase, cases: Sequence[ExportedCase]) -> float:
    """Return the time at no bytes of the line through the largest and the smallest size."""
    smallest = min((case for case in cases if case.collective == largest.collective
                    and case.item.case.group_size == largest.item.case.group_size), key=_extent)
    more = _moved_bytes(largest) - _moved_bytes(smallest)
    if more <= 0:
        return 0.0
    slope = (_seconds(largest) - _seconds(smallest)) / more
    return max(_seconds(smallest) - slope * _moved_bytes(smallest), 0.0)
