"""Tables of times of collectives for torch's inductor and for aiconfigurator.

A table covers one way to communicate. Each of its curves (time over size) covers one form of a
collective (place, operator): readers interpolate, and would mix several forms."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpcbench.errors import UsageError
from hpcbench.interop.formats.export.cases import (
    Exported,
    ExportedCase,
    ExportedRun,
    ExportRequest,
    LeftOut,
    not_measured,
    plain_number,
)
from hpcbench.operations.arrival import TOGETHER
from hpcbench.operations.collectives import DTYPE_BYTES
from hpcbench.texts import as_field, to_json
from hpcbench.units import grouped

TORCH_NAMES: Mapping[str, str] = MappingProxyType({
    "all_reduce": "allreduce", "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base", "all_to_all": "all_to_all"})
"""Ours -> the name in a trace of torch.profiler; inductor estimates no other collective."""
TORCH_TYPES: Mapping[str, str] = MappingProxyType({
    "fp32": "Float", "fp64": "Double", "fp16": "Half", "bf16": "BFloat16", "int32": "Int",
    "int64": "Long", "uint8": "Byte"})
OP_NAMES: Mapping[str, str] = MappingProxyType({
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall"})
"""Ours -> aiconfigurator's."""
NCCL_TYPES: Mapping[str, str] = MappingProxyType({"fp16": "half", "uint8": "int8"})
COLUMNS = ("framework", "version", "device", "op_name", "kernel_source", "nccl_dtype", "num_gpus",
           "message_size", "latency")
_TORCH_SETTING = ("for torch._inductor.config.aten_distributed_optimizations."
                  "profile_guided_estimations_profile_path (torch 2.13)")
_BETWEEN_EVENTS_US = 1.0
Unfit = Callable[[ExportedCase], str]


def unfit_collective(case: ExportedCase, names: Container[str], program: str) -> str:
    """Return why a program that knows the collectives ``names`` cannot take a case, or ""."""
    planned, columns = case.item.case, case.columns
    if not case.collective or "count" not in columns or "busbw_factor" not in columns:
        return "no collective"
    if case.collective not in names:
        return f"{program} has no {case.collective}"
    if columns.get("split") != "even":
        return "parts of different sizes (split)"
    if planned.group_size < 2:
        return "a single rank"
    if not columns["size_bytes"]:
        return "no data"
    return "ranks that enter late on purpose" if planned.arrival != TOGETHER else ""


def fitting(run: ExportedRun, unfit: Unfit) -> tuple[list[ExportedCase], list[LeftOut]]:
    """Return the measured cases that fit, and all others with the reason."""
    left_out, kept = [*not_measured(run)], []
    for case in run.measured:
        if why := unfit(case):
            left_out.append(LeftOut(why, case.name))
        else:
            kept.append(case)
    return kept, left_out


def of_one_way(cases: Sequence[ExportedCase], to: str) -> None:
    """Raise UsageError where cases communicate in several ways that a table cannot distinguish."""
    ways = {"backend": [case.item.case.backend for case in cases],
            "device": [case.item.case.device for case in cases],
            "mode": [case.item.case.mode for case in cases],
            "env": [" ".join("=".join(pair) for pair in case.item.case.env) or "none"
                    for case in cases],
            "cuda_graph": [str(case.item.case.cuda_graph) for case in cases],
            "cache": [str(case.columns.get("buffers", "")) for case in cases],
            "async": [str(case.columns.get("asynchronous", "")) for case in cases]}
    for name, values in ways.items():
        if len(several := list(dict.fromkeys(values))) > 1:
            raise UsageError(f"{to}: holds one {name}, and these cases have "
                             f"{', '.join(several[:4])}; choose by --only")


def one_form(cases: Sequence[ExportedCase]) -> tuple[list[ExportedCase], list[LeftOut]]:
    """Return the cases of the first form of each curve, one of each size, and the others."""
    kept: list[ExportedCase] = []
    left_out: list[LeftOut] = []
    for curve in grouped(((case.collective, case.item.case.workload.dtype,
                           case.item.case.group_ranks), case) for case in cases).values():
        sizes: set[int] = set()
        for case in curve:
            size = int(case.columns["size_bytes"])
            if _form(case) == _form(curve[0]) and size not in sizes:
                sizes.add(size)
                kept.append(case)
            else:
                left_out.append(LeftOut("another form has this place; choose by --only", case.name))
    return kept, left_out


def _form(case: ExportedCase) -> tuple[Any, ...]:
    return case.columns["op"], case.columns["root"], case.columns["in_place"]


def median_us(case: ExportedCase) -> float:
    return case.metrics[0].value


def as_torch_estimates(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return a trace with an event a case and group, by which inductor estimates collectives.

    Times are medians of ranks that entered together: they hold no waiting for late peers."""
    run = runs[0]
    cases, left_out = fitting(run, lambda case: unfit_collective(
        case, TORCH_NAMES, "inductor") or ("" if case.item.case.workload.dtype in TORCH_TYPES
                                           else f"no {case.item.case.workload.dtype}"))
    of_one_way(cases, "torch-estimates")
    kept, others = one_form(cases)
    groups = {ranks: str(at) for at, ranks in enumerate(dict.fromkeys(
        tuple(ranks) for case in kept for ranks in case.item.case.group_ranks))}
    document = {"schemaVersion": 1, "traceEvents": [*_events(kept, groups)],
                "otherData": {"program": "hpcbench", "run_id": run.results.run.run_id}}
    content = to_json(document, indent=1, allow_nan=False) + "\n" if kept else ""
    return Exported(content.encode(), (*left_out, *others), (_TORCH_SETTING,) if kept else ())


def _events(
    cases: Sequence[ExportedCase], groups: Mapping[tuple[int, ...], str],
) -> Iterator[dict[str, Any]]:
    at_us = 0.0
    for case in cases:
        work, ranks = case.item.case.workload, case.item.case.group_size
        count = int(case.columns["count"])
        each, whole = count, count * ranks
        first, second = {"all_reduce": (each, each), "all_gather": (each, whole),
                         "reduce_scatter": (whole, each)}.get(case.collective, (whole, whole))
        for group in map(tuple, case.item.case.group_ranks):
            yield {"ph": "X", "cat": "kernel", "name": f"hpcbench {case.name}", "pid": 0, "tid": 7,
                   "ts": at_us, "dur": median_us(case), "args": {
                       "Collective name": TORCH_NAMES[case.collective],
                       "dtype": TORCH_TYPES[work.dtype], "In msg nelems": first,
                       "Out msg nelems": second, "Group size": ranks,
                       "Process Group Name": groups[group],
                       "Process Group Ranks": str(list(group))}}
            at_us += median_us(case) + _BETWEEN_EVENTS_US


def as_aiconfigurator(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return nccl_perf.txt: sizes in elements, as nccl-tests counts them, times in ms."""
    run = runs[0]
    cases, left_out = fitting(run, _unfit_for_nccl)
    of_one_way(cases, "aiconfigurator")
    kept, others = one_form(cases)
    gpu = (run.results.run.environment.get("gpu") or {}).get("name") or "unknown"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for case in kept:
        dtype = case.item.case.workload.dtype
        writer.writerow([
            "hpcbench", *map(as_field, (run.results.run.versions.get("nccl", "unknown"), gpu)),
            OP_NAMES[case.collective], "NCCL", NCCL_TYPES[dtype], case.item.case.group_size,
            int(case.columns["size_bytes"]) // DTYPE_BYTES[dtype],
            plain_number(median_us(case) / 1e3)])
    bytes_too = any(case.item.case.workload.dtype == "uint8" for case in kept)
    return Exported(out.getvalue().encode() if kept else b"", (*left_out, *others), (
        "rows of int8 were measured with uint8",) if bytes_too else ())


def _unfit_for_nccl(case: ExportedCase) -> str:
    planned = case.item.case
    if why := unfit_collective(case, OP_NAMES, "aiconfigurator"):
        return why
    if planned.workload.groups > 1:
        return "groups of ranks"
    if planned.backend != "nccl":
        return f"{planned.backend} is not NCCL"
    dtype = planned.workload.dtype
    return "" if dtype in NCCL_TYPES else f"aiconfigurator has no {dtype}"
