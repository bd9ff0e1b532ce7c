"""Tables of collectives for other libraries: times for torch's inductor and for aiconfigurator, and
choices of an algorithm and a protocol for NCCL, RCCL and NCCLX (``advise --to``).

A table of times covers one way to communicate. Each of its curves (time over size) covers one form
of a collective (place, operator): readers interpolate, and would mix several forms. Of a table of
choices the first line that matches wins, in all three libraries; a line has less than 256
characters, also a comment, and there are no blanks around commas. A call that matches no line gets
NCCL's own choice."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcbench import __version__
from hpcbench.answers.answer import Run
from hpcbench.answers.compare import SMALLEST
from hpcbench.answers.tasks import Paired
from hpcbench.answers.verdict import doubts_of
from hpcbench.errors import UsageError, command_line, job_command_line, shell_line
from hpcbench.interop.answers.tuner import TunedRange, TunerTable, tuner_table
from hpcbench.interop.formats.export.cases import (
    Exported,
    ExportedCase,
    ExportedRun,
    ExportRequest,
    LeftOut,
    joined,
    left_out_lines,
    not_measured,
    plain_number,
)
from hpcbench.operations.arrival import TOGETHER
from hpcbench.operations.collectives import DTYPE_BYTES
from hpcbench.records import dataclass
from hpcbench.reduce.results import Results
from hpcbench.report.answer_lines import opened
from hpcbench.texts import as_field, to_json
from hpcbench.units import grouped, plural, size_text, three_digits

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


def of_one_way(run: ExportedRun, cases: Sequence[ExportedCase], to: str) -> None:
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
        if len(several := grouped(zip(values, cases, strict=True))) > 1:
            found = [f"{value} ({run.only(of_value) or 'of several labels'})"
                     for value, of_value in [*several.items()][:4]]
            raise UsageError(f"{to}: holds one {name}, and these cases have {', '.join(found)}")


def one_form(
    run: ExportedRun, cases: Sequence[ExportedCase],
) -> tuple[list[ExportedCase], list[LeftOut]]:
    """Return the cases of the first form of each curve, one of each size, and the others."""
    kept: list[ExportedCase] = []
    left_out: list[LeftOut] = []
    for curve in grouped(((case.collective, case.item.case.workload.dtype,
                           case.item.case.group_ranks), case) for case in cases).values():
        sizes: set[int] = set()
        others: list[ExportedCase] = []
        for case in curve:
            size = int(case.columns["size_bytes"])
            if _form(case) == _form(curve[0]) and size not in sizes:
                sizes.add(size)
                kept.append(case)
            else:
                others.append(case)
        for form in grouped((_form(case), case) for case in others).values():
            flags = run.only(form)
            why = f"another form has this place; for this one: {flags}" if flags else (
                "another form has this place")
            left_out += [LeftOut(why, case.name) for case in form]
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
    of_one_way(run, cases, "torch-estimates")
    kept, others = one_form(run, cases)
    groups = {ranks: str(at) for at, ranks in enumerate(dict.fromkeys(
        tuple(ranks) for case in kept for ranks in case.item.case.group_ranks))}
    document = {"schemaVersion": 1, "traceEvents": [*_events(kept, groups)],
                "otherData": {"program": "hpcbench", "run_id": run.results.run.run_id,
                              "faults": [*run.results.run.faults]}}
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
    of_one_way(run, cases, "aiconfigurator")
    kept, others = one_form(run, cases)
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


LONGEST = 255
"""Characters of a line with its end: the rest of a longer one would be read as another line."""
ANY = "-1"
"""Any number, or NCCL's own number of channels."""
_NOT_IN_COMMENTS = re.compile("[^ -~]+")
_ONE_CHANNEL = ("before you build NCCL's ext-tuner/example, set *nChannels = 0 in its plugin.c: "
                "as it is (2.28 to 2.30), every call that takes no number of channels from a line "
                "runs on one channel")


@dataclass(frozen=True, slots=True)
class TunerDialect:
    """How a library takes a table: a ``line``, or why there is none; ``file`` and ``others`` are
    the variables that name the table and what else it needs."""

    line: Callable[[TunedRange], tuple[str, str]]
    file: str
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _by_bytes(one: TunedRange) -> tuple[str, str]:
    """Return ``allreduce,LOW,HIGH,tree,ll,-1,NODES,RANKS,-1,-1``: bytes inclusive."""
    return ",".join([
        one.calls.collective, str(one.sizes[0]), str(one.sizes[-1]), one.choice.algorithm,
        one.choice.protocol, ANY, str(one.calls.nodes), str(one.calls.ranks), ANY, ANY]), ""


def _by_bytes_a_rank(row: TunedRange) -> tuple[str, str]:
    """Return ``allreduce,[LOW,HIGH],tree,ll,-1,NODES,LOCAL_RANKS``: bytes over ranks, rounded."""
    nodes, ranks = row.calls.nodes, row.calls.ranks
    if ranks % nodes:
        return "", "nodes with different numbers of ranks"
    low, high = row.sizes[0] // ranks, row.sizes[-1] // ranks
    if any(low <= size // ranks <= high for size in row.others):
        return "", "sizes that differ by less than a byte a rank"
    return ",".join([row.calls.collective, f"[{low},{high}]", row.choice.algorithm,
                     row.choice.protocol, ANY, str(nodes), str(ranks // nodes)]), ""


DIALECTS: Mapping[str, TunerDialect] = MappingProxyType({
    "nccl": TunerDialect(_by_bytes, "NCCL_TUNER_CONFIG_FILE",
                    ("NCCL_TUNER_PLUGIN=/PATH/libnccl-tuner-example.so",), (_ONE_CHANNEL,)),
    "rccl": TunerDialect(_by_bytes, "NCCL_TUNER_CONFIG_FILE"),
    "ncclx": TunerDialect(_by_bytes_a_rank, "NCCLX_TUNER_CONFIG_FILE")})


def dialect_of(name: str) -> TunerDialect:
    """Return the dialect of a library. Raises UsageError for one that has no table."""
    if name not in DIALECTS:
        raise UsageError(f"--to {name}: allowed are {', '.join(DIALECTS)}")
    return DIALECTS[name]


def tuner_file(
    paths: Sequence[Path], to: str, target: Path | None,
) -> tuple[Exported, Sequence[str]]:
    """Return a table for a library, and lines on what it lacks and how to prove it.

    ``target`` is where it will be. Raises UsageError where nothing can be compared, or the runs
    are of another library; FileError or TraceError for files that are no results."""
    dialect = dialect_of(to)
    with opened(paths) as runs:
        table = tuner_table(runs)
        if table.is_rccl != (to == "rccl"):
            raise UsageError(f"--to {to}: these cases ran on {'RCCL' if table.is_rccl else 'NCCL'}")
        exported = _written(table, dialect, runs)
        ranks = max(run.results.run.world_size for run in runs)
        doubts = [*doubts_of(_named(runs))]
    shown = [*doubts, *exported.notes, *left_out_lines(exported.left_out)]
    if not any(line and line[0] != "#" for line in exported.content.decode().splitlines()):
        return exported, [*shown, "no line: leave the tuner out"]
    return exported, [*shown, *dialect.notes, *_proof(dialect, ranks, target)]


def _written(table: TunerTable, dialect: TunerDialect, runs: Sequence[Run]) -> Exported:
    lines, left_out = [], [LeftOut(reason, name) for reason, name in table.left_out]
    for row in table.ranges:
        line, why = dialect.line(row)
        if why:
            left_out.append(LeftOut(why, _title(row)))
        else:
            lines += [f"# {_title(row)}: {gain_text(row.gain)}", line]
    content = [*_head(table, runs, any_line=bool(lines)), *lines]
    return Exported(joined(map(_fitting, content)), tuple(left_out),
                    table.notes)


def _head(table: TunerTable, runs: Sequence[Run], *, any_line: bool) -> Iterator[str]:
    versions = dict.fromkeys(run.results.run.versions.get("nccl", "?") for run in runs)
    names = " ".join(run.results.run.run_id for run in runs)
    yield (f"# hpcbench {__version__}, {'RCCL' if table.is_rccl else 'NCCL'} "
           f"{' '.join(versions)}, run {names}")
    yield from (f"# {doubt}" for doubt in doubts_of(_named(runs)))
    yield (f"# {'lines' if any_line else 'no line'}: over {100 * SMALLEST:.0f} % faster than its "
           f"own choice, of {plural(table.n_compared, 'comparison')}")


def _named(runs: Sequence[Run]) -> Iterator[tuple[str, Results]]:
    return ((f"run {run.results.run.run_id}", run.results) for run in runs)


def _fitting(line: str) -> str:
    """Return a line that no reader cuts in two: names of runs are texts from outside."""
    return _NOT_IN_COMMENTS.sub("?", line)[:LONGEST - 1]


def _title(one: TunedRange) -> str:
    sizes = " to ".join(dict.fromkeys(map(size_text, (one.sizes[0], one.sizes[-1]))))
    return (f"{one.calls.collective} {sizes}, {plural(one.calls.ranks, 'rank')}, "
            f"{one.choice.algorithm}/{one.choice.protocol}")


def gain_text(gain: Paired) -> str:
    """Return ``12 % faster (95 % CI 10 to 14 %, 9 passes)``: the time that is saved, over the rest.
    """
    shown = gain.interval.map(lambda ratio: 100 * (ratio - 1))
    low, high = map(three_digits, shown.ends)
    return (f"{three_digits(shown.value)} % faster (95 % CI {low} to {high} %, "
            f"{gain.n} {gain.unit})")


def _proof(dialect: TunerDialect, ranks: int, target: Path | None) -> Iterator[str]:
    """Yield the commands that measure the same sweep without and with the table."""
    run = ("run", "SWEEP", "--launches", "5", "--exclude", "*NCCL_ALGO=*", "--exclude",
           "*NCCL_PROTO=*", "-o")
    file = f"{dialect.file}={'FILE' if target is None else target.absolute()}"
    yield "to prove it (on several nodes, have the launcher pass the variables on):"
    yield f"  {job_command_line(ranks, *run, 'untuned')}"
    yield f"  export {shell_line(*dialect.others, file)}"
    yield f"  {job_command_line(ranks, *run, 'tuned')}"
    yield f"  {command_line('compare', 'untuned/latest', 'tuned/latest')}"
