"""Files of other programs as a results file: each time is as the program printed it.

A row has the mean of so many calls back to back, or the median of single operations, and never an
interval. A collective, number of ranks or backend that a file lacks is asked for, never guessed.
Of operations of an application, the slowest rank's report counts, and rows have their order
statistics: each waited for the slowest rank, so they are no samples of a benchmark, and no interval
is made of them. Memory is 20 bytes an operation and rank. DDLB's options have the meaning that
`interop.dialects.ddlb` gives them in sweep files: the whole weight on every rank, nccl where no
backend is named."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench import __version__
from hpcbench.config.axes import OPS
from hpcbench.errors import ExitCode, FileError, UsageError
from hpcbench.interop.formats.implied_ranks import ImpliedRanks, most_likely
from hpcbench.interop.formats.imported_rows import (
    DTYPES,
    MOST_CASES,
    Gathered,
    PrintedTimes,
    RowPlace,
    UserFacts,
    mean_of,
    needed,
)
from hpcbench.interop.formats.lint import (
    BrokenRule,
    contradicting,
    doubted,
    failed_codes,
    failures_of,
    stated,
    wrong_rows,
)
from hpcbench.interop.formats.reading.detect import tables_of
from hpcbench.interop.formats.reading.names import PARTS_IN_OSU
from hpcbench.interop.formats.reading.source import Unread
from hpcbench.interop.formats.reading.superbench import comm_tables, other_metrics
from hpcbench.interop.formats.tables import PROGRAM as OWN
from hpcbench.interop.formats.tables import (
    CommRow,
    CommTable,
    ForeignTable,
    NodeTable,
    PrintedForm,
    ProductRow,
    ProductTable,
)
from hpcbench.kinds.collective.plan import Collective
from hpcbench.kinds.primitive.plan.implementations import (
    ALIASES,
    ELSEWHERE,
    TP_COLUMNWISE,
    TP_ROWWISE,
)
from hpcbench.kinds.primitive.plan.planner import make_workload
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec, PrimitiveSpec, Problem
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.operations.collectives import DTYPE_BYTES, CollectiveSpec, collectives
from hpcbench.plan.case import Plan, case_id
from hpcbench.plan.points import Option
from hpcbench.plan.support import BACKEND_TRAITS
from hpcbench.reduce.records import with_records
from hpcbench.reduce.reduce import exit_code, gaps
from hpcbench.reduce.results import (
    OPERATION_FOLD,
    PRINTED_FOLD,
    PRINTED_MEDIAN_FOLD,
    Finding,
    Results,
    RunInfo,
)
from hpcbench.reduce.results_file import new_results
from hpcbench.reduce.topology import RankPlace, Topology
from hpcbench.units import moment, plural

COLLECTIVE = "collective"
OSU, INSPECTOR, SUPERBENCH = "OSU", "NCCL Inspector", "SuperBench"
_BACKENDS: Mapping[str, str] = {"nccl-tests": "nccl", INSPECTOR: "nccl"}
_OF_NCCL = ("nccl-bw", "rccl-bw")
"""SuperBench's benchmarks that run nccl-tests or rccl-tests, always with operator sum."""
_FORMS: Mapping[bool | None, str] = {None: "", False: "out of place", True: "in place"}
_PARTS: Mapping[str, tuple[str, ...]] = {
    OSU: PARTS_IN_OSU,
    INSPECTOR: (*PARTS_IN_OSU, "reduce_scatter")}
"""Collectives whose size is one rank's part in these programs, and that of all parts here."""
_MOST_BYTES = 2**62


def take_collectives(
    table: CommTable, given: UserFacts, gathered: Gathered, operations: Operations,
) -> None:
    """Add the rows of a table. Raises UsageError for a fact that nobody gives."""
    if not table.rows and not table.damaged:
        _note_damage(table, gathered)
        return
    if why := _no_collective(table):
        gathered.left_out[why] += len(table.rows)
        return
    if not table.collective:
        raise needed(_where(table), "which collective", "--collective NAME")
    judged = most_likely(table)
    place = _place(table, given, judged)
    _note_damage(table, gathered)
    if given.backend not in ("", place.backend):
        gathered.notes[f"{table.path}: a table states backend {place.backend}: --backend "
                       f"{given.backend} is not used"] = None
    gathered.programs[_printed_by(table)] = None
    if table.own is not None:
        gathered.faults.update(dict.fromkeys(table.own.faults))
        gathered.findings.update((Finding(**one.model_dump()), None) for one in table.own.findings)
    for one in table.devices:
        gathered.hosts.setdefault(one.rank, set()).add(one.host)
    torn, wrong_kept = contradicting(table, judged), set[int]()
    gathered.note_contradicting(table, torn)
    is_cut = table.is_cut or bool(table.damaged)
    for row in table.rows:
        if row.line in torn:
            continue
        dtype = _dtype(table, row, given)
        for half in row.halves:
            time_us = half.time_us.value if half.time_us else 0.0
            if time_us <= 0 and not half.wrong:
                gathered.left_out["no time"] += 1
            elif table.program == INSPECTOR:
                operations.take(table, replace(place, dtype=dtype), row, time_us)
            elif _add_mean(replace(place, dtype=dtype), row, half, gathered, is_cut=is_cut,
                           counted=table.counted) and (
                    half.wrong or row.passed is False):
                wrong_kept.add(row.line)
    _doubt(table, gathered, torn, wrong_kept)


def _doubt(
    table: CommTable, gathered: Gathered, torn: set[int], wrong_kept: set[int],
) -> None:
    """Keep what a table states as wrong or failed, and where it contradicts itself.

    Wrong results count against all rows if no row that is kept has them: lines ``wrong_kept``."""
    for broken in wrong_rows(table):
        is_kept = broken.line in wrong_kept
        gathered.doubt(broken, "note" if is_kept else "run",
                       ": imported as wrong" if is_kept else ": the row is not imported")
    for broken in stated(table):
        gathered.doubt(broken, "note" if broken.rule == "wrong" and wrong_kept else "run")
    for broken in doubted(table, torn):
        gathered.doubt(broken, "note")


def _printed_by(table: CommTable) -> str:
    if table.hpcbench:
        return (table.own and table.own.printed_by) or f"{OWN} {table.hpcbench}"
    return f"{table.program} {table.version}".rstrip()


def _note_damage(table: CommTable, gathered: Gathered) -> None:
    if table.damaged:
        reason = "cut, mixed with other output, or of another version"
        gathered.left_out[reason] += len(table.damaged)
    if table.is_cut:
        gathered.is_cut = True
        gathered.doubt(BrokenRule("cut", table.path, table.line, "cut off: a table without its "
                                  "end", table.counted), "note")


def add_operations(operations: Operations, gathered: Gathered) -> None:
    """Add a row for all operations of one collective, size and communicator's name."""
    for (place, size_bytes), series in operations.series.items():
        work = _workload(place, CommRow(series.line, size_bytes, ()), PrintedForm())
        if isinstance(work, str):
            gathered.left_out[work] += 1
        else:
            gathered.add(place, work, PrintedTimes(
                series.slowest_s(), series.line, fold=OPERATION_FOLD, is_cut=series.is_cut))
    if operations.count:
        gathered.notes[operations.note()] = None


def _no_collective(table: CommTable) -> str:
    """Return why a table has none of our collectives, or ""."""
    if table.program == INSPECTOR and table.collective in ("", "send_recv"):
        return "NCCL Inspector: sent from one rank to another, or of a collective unknown here"
    if table.collective and (table.is_uneven or table.collective not in collectives()):
        return f"no collective that hpcbench has in this form: {table.collective}"
    return ""


def _where(table: CommTable) -> str:
    return table.path if table.counted else f"{table.path}:{table.line}"


def _place(table: CommTable, given: UserFacts, judged: ImpliedRanks) -> RowPlace:
    """Raises UsageError for a fact that neither the table nor the user gives."""
    ranks = given.ranks or (
        table.ranks if table.program == INSPECTOR else judged.chosen)
    if not ranks:
        raise needed(_where(table), "how many ranks", "--ranks N")
    backend = table.backend or given.backend or (
        "" if table.hpcbench else _BACKENDS.get(table.program, ""))
    if not backend and table.program == SUPERBENCH and table.label.startswith(_OF_NCCL):
        backend = "nccl"
    if not backend:
        raise needed(_where(table), "which backend", "--backend NAME")
    own = table.own
    return RowPlace(
        OWN if table.hpcbench else table.program, COLLECTIVE, table.collective, backend, ranks,
        own.mode if own else "pipelined", label=table.label, device=table.device,
        warmup=own.warmup if own else table.warmup,
        own=own and own.model_copy(update={"only_in_place": (), "only_out_of_place": ()}))


def _dtype(table: CommTable, row: CommRow, given: UserFacts) -> str:
    """Return the element type as the table writes it. Raises UsageError where nobody gives it."""
    dtype = row.dtype or given.dtype or ("MPI_CHAR" if table.program == OSU else "")
    if not dtype:
        raise needed(_where(table), "which element type", "--dtype NAME, uint8 for bytes of any")
    return dtype


def _add_mean(
    place: RowPlace, row: CommRow, half: PrintedForm, gathered: Gathered, *, is_cut: bool,
    counted: str,
) -> bool:
    """Add a row, or count why it is left out; return whether it was added."""
    work = _workload(place, row, half)
    if isinstance(work, str):
        gathered.left_out[work] += 1
        return False
    n_wrong = half.wrong if row.passed is None else int(not row.passed)
    own, calls = place.own, row.iterations or 1
    time_us = half.time_us.value if half.time_us else 0.0
    fold = PRINTED_MEDIAN_FOLD if own and not own.is_mean else PRINTED_FOLD
    return gathered.add(replace(place, form=_FORMS[half.in_place]), work, replace(
        mean_of(time_us * 1e-6, row.line, own.batch if own else calls, n_wrong), fold=fold,
        is_cut=is_cut, counted=counted))


def _workload(place: RowPlace, row: CommRow, half: PrintedForm) -> Collective | str:
    """Return the workload that a row measured, or why it is none of ours."""
    spec = collectives()[place.what]
    dtype = DTYPES.get(place.dtype)
    if dtype is None:
        return f"element type {place.dtype[:40]}"
    op = _operator(place, row, spec)
    if op is not None and op not in OPS:
        return f"reduction {op}"
    size = row.size_bytes * (place.ranks if place.what in _PARTS.get(place.program, ()) else 1)
    if size > _MOST_BYTES:
        return "a size that no machine has"
    parts = place.ranks if spec.split else 1
    root = row.root or (None if place.program == INSPECTOR else 0)
    return Collective(
        collective=place.what, dtype=dtype, op=op, root=root if spec.has_root else None,
        in_place=_in_place(place, half, spec), requested_bytes=size, size_bytes=size,
        count=size // DTYPE_BYTES[dtype] // parts,
        buffers=place.own.buffers if place.own else "warm",
        asynchronous=place.own is not None and place.own.asynchronous)


def _operator(place: RowPlace, row: CommRow, spec: CollectiveSpec) -> str | None:
    """Return the reduction; None where there is none, or it is not known."""
    if not spec.has_op:
        return None
    return row.redop or (None if place.program == INSPECTOR else "sum")


def _in_place(place: RowPlace, half: PrintedForm, spec: CollectiveSpec) -> bool | None:
    """Return whether a row was in place; None where there is no such form, or it is not known."""
    if half.in_place is None and place.program not in (INSPECTOR, SUPERBENCH) and spec.in_place:
        return spec.in_place[0]
    return half.in_place


MOST_OPERATIONS = 10_000_000


@dataclass(slots=True)
class Reports:
    """Reports of operations of one size: communicators by their index, numbers, times in us.

    ``line`` is the line of the first report, ``is_cut``: a file of them is cut."""

    line: int
    is_cut: bool = False
    communicators: array[int] = field(default_factory=lambda: array("i"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    times_us: array[float] = field(default_factory=lambda: array("d"))

    def slowest_s(self) -> npt.NDArray[np.float64]:
        """Return the longest time that a rank reports of each operation, in seconds."""
        communicators = np.frombuffer(self.communicators, dtype=np.int32)
        numbers = np.frombuffer(self.numbers, dtype=np.int64)
        order = np.lexsort((numbers, communicators))
        communicators, numbers = communicators[order], numbers[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (np.diff(communicators) != 0) | (np.diff(numbers) != 0)
        times_us = np.frombuffer(self.times_us, dtype=np.float64)[order]
        longest: npt.NDArray[np.float64] = np.maximum.reduceat(times_us, np.flatnonzero(is_first))
        return longest / 1e6


@dataclass(slots=True)
class Operations:
    """All reports so far, by where they are from and the size of the message as printed."""

    series: dict[tuple[RowPlace, int], Reports] = field(default_factory=dict)
    count: int = 0
    _indices: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, set[int]] = field(default_factory=dict)
    _ranks: dict[str, int] = field(default_factory=dict)

    def take(self, table: CommTable, place: RowPlace, row: CommRow, time_us: float) -> None:
        """Keep a report. Raises FileError for more than are held in memory."""
        key = (place, row.size_bytes)
        self.count += 1
        if self.count > MOST_OPERATIONS or key not in self.series and (
                len(self.series) == MOST_CASES):
            raise FileError(f"{table.path}:{row.line}: more than {MOST_OPERATIONS:,} operations, "
                            f"or {MOST_CASES:,} sizes of them: import fewer files at a time")
        series = self.series.setdefault(key, Reports(row.line))
        name = table.communicator or table.path
        series.is_cut |= table.is_cut
        series.communicators.append(self._indices.setdefault(name, len(self._indices)))
        series.numbers.append(row.number or 0)
        series.times_us.append(time_us)
        self._ranks[name] = place.ranks
        self._seen.setdefault(name, set()).add(-1 if table.rank is None else table.rank)

    def note(self) -> str:
        """Return how many reports there are, and of which share of the ranks."""
        seen, ranks = sum(map(len, self._seen.values())), sum(self._ranks.values())
        of = f"{plural(ranks, 'rank')} of {plural(len(self._ranks), 'communicator')}"
        return (f"{plural(self.count, 'report')} of operations, by {seen} of {of}; times include "
                "waiting for others")


PROGRAM = "DDLB"
PRIMITIVE = "primitive"
PRIMITIVES: Mapping[str, tuple[PrimitiveSpec, Mapping[str, Option]]] = {
    TP_COLUMNWISE.name: (TP_COLUMNWISE, {"weight": "replicated"}),
    TP_ROWWISE.name: (TP_ROWWISE, {})}
"""DDLB's primitives, with the options of ours that match its measurement."""
UNKNOWN_PART = "compute_only"
MOST_FLOPS = 2**62
_OPTION = re.compile(r"\s*(\w+)=([^,]*)(?:,|$)")


def take_products(table: ProductTable, given: UserFacts, gathered: Gathered) -> None:
    """Add the rows of a table. Raises UsageError for a fact that nobody gives."""
    where = f"{table.path}:{table.rows[0].line}"
    if not given.primitive:
        raise needed(where, "which primitive", f"--primitive {' or '.join(PRIMITIVES)}")
    if given.primitive not in PRIMITIVES:
        raise UsageError(f"--primitive {given.primitive}: DDLB has {', '.join(PRIMITIVES)}")
    gathered.programs[PROGRAM] = None
    for row in table.rows:
        ranks = given.ranks or row.ranks
        if not ranks:
            raise needed(f"{table.path}:{row.line}", "how many ranks", "--ranks N")
        if row.passed is False:
            gathered.doubt(BrokenRule("wrong", table.path, row.line, f"{row.implementation}: "
                                      "validation failed"), "note")
        _take_row(row, given, ranks, gathered)


def _take_row(row: ProductRow, given: UserFacts, ranks: int, gathered: Gathered) -> None:
    spec, fixed = PRIMITIVES[given.primitive]
    options = dict(_options(row))
    backend = str(options.pop("backend", given.backend or "nccl"))
    if backend == "cuda":  # nvFuser's own copies, which no process group makes
        backend, options["communicator"] = "nccl", "cuda"
    order = str(options.pop("order", spec.orders[0]))
    why = _unfit(row, spec, order, backend, options)
    if why:
        gathered.left_out[why] += 1
        return
    problem = Problem(row.m, row.n, row.k, DTYPES[row.dtype], ranks, order, {**fixed, **options})
    product, misfit = _product_of(spec, _name(row), problem)
    if misfit or product.total_flops > MOST_FLOPS:
        gathered.left_out[misfit or "extents that no machine has"] += 1
        return
    n_wrong = None if row.passed is None else int(not row.passed)
    mode = "barrier_start" if row.is_lined_up else "pipelined"
    place = RowPlace(PROGRAM, PRIMITIVE, spec.name, backend, ranks, mode)
    gathered.add(place, product, mean_of(row.mean_ms.value * 1e-3, row.line, n_wrong=n_wrong))


def _product_of(spec: PrimitiveSpec, name: str, problem: Problem) -> tuple[Primitive, str | None]:
    """Return the workload, with the work of the primitive, and why the problem has none, or None.

    The calls of plug-ins' implementations are not known here, whether they are installed or not."""
    return make_workload(spec, ImplementationSpec(
        ALIASES.get(name, name), "", {}, calls=None if name in ALIASES else ()), problem)


def _name(row: ProductRow) -> str:
    """Return the implementation of ``pytorch (backend=nccl, order=AG_before)``."""
    return row.implementation.partition(" (")[0]


def _options(row: ProductRow) -> Iterator[tuple[str, Option]]:
    """Yield a row's options, by its label where there is no column of them."""
    text = row.option or row.implementation.partition(" (")[2].rstrip(")")
    for name, value in _OPTION.findall(text):
        is_number = value.isdecimal() and len(value) < 10
        yield name, int(value) if is_number else {"True": True, "False": False}.get(value, value)


def _unfit(
    row: ProductRow, spec: PrimitiveSpec, order: str, backend: str, options: Mapping[str, Option],
) -> str:
    """Return why a row is no case of ours, or nothing."""
    name = _name(row)
    if name == UNKNOWN_PART:
        return f"{name}: the file does not say whether it is sharded"
    if name not in ALIASES and name not in ELSEWHERE:
        return f"an implementation that hpcbench does not know: {name[:40]}"
    if row.dtype not in DTYPES:
        return f"element type {row.dtype[:40]}"
    if backend not in BACKEND_TRAITS:
        return f"backend {backend[:40]}"
    if order not in spec.orders:
        return f"{spec.name} has no order {order[:40]}"
    elsewhere = ELSEWHERE.get(name, {})
    for key, value in options.items():
        if key not in elsewhere or not elsewhere[key].allows(value):
            return f"an option that hpcbench does not know: {key[:40]}={str(value)[:40]}"
    return "" if row.mean_ms.value > 0 else "no time"


_ONLY_RATES = "nvbandwidth prints rates without sizes and times: check them with hpcbench lint"


class Imported(NamedTuple):
    """What was done, in lines, and the exit code of it: that of results, FINDINGS also where files
    contradict themselves."""

    lines: list[str]
    code: ExitCode


def import_files(paths: Sequence[Path], output: Path, given: UserFacts) -> Imported:
    """Write the rows of all files to a new results file.

    Raises FileError for an existing output, or files without a row to import; UsageError
    for facts that the user has to give."""
    if output.exists():
        raise FileError(f"{output} exists: give another name with -o, or remove it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is no folder: make it, or give another name with -o")
    _check(given)
    gathered, operations, unread = Gathered(), Operations(), list[str]()
    for path in paths:
        left_out = Unread()
        for table in tables_of(path, given.collective, left_out):
            _take(table, given, gathered, operations)
        unread += left_out.lines(str(path))
        gathered.findings.update((Finding("HB160", "note", line), None)
                                 for line in left_out.lines(path.name))
        for broken in failures_of(str(path), left_out):
            gathered.doubt(broken, "run")
    add_operations(operations, gathered)
    if not gathered.items:
        why = "; ".join([*gathered.left_out_lines(), *unread, *gathered.doubt_lines()]) or "no rows"
        raise FileError(f"{paths[0]}: nothing to import ({why})")
    gathered.findings.update((Finding("HB160", "note", line), None)
                             for line in gathered.left_out_lines())
    started = given.started or min(gathered.started, default="")
    results = _results(gathered, [path.name for path in paths], started)
    with new_results(output) as writer:
        writer.finish(results)
    code = exit_code(results)
    return Imported(
        [*gathered.left_out_lines(), *unread, *gathered.notes, *gathered.doubt_lines(),
         f"{plural(len(results.cases), 'row')} of {' and '.join(results.run.imported)} in "
         f"{output}: times as printed, without intervals{_caveats(results)}"],
        gathered.code_of(code))


def _caveats(results: Results) -> str:
    """Return what is wrong or missing, to stand behind a sentence."""
    wrong = sum(item.status == "wrong" for item in results.cases)
    failed = any(one.scope == "run" for one in results.findings)
    return "".join(f"; {one}" for one in (
        *([f"{plural(wrong, 'row')} wrong"] if wrong else []),
        *(["the files state failures: do not quote"] if failed else []), *gaps(results)))


def _check(given: UserFacts) -> None:
    """Raise UsageError for a backend or an element type that is not known, and for no time."""
    if given.started and moment(given.started) is None:
        raise UsageError(f"--started {given.started}: write 2026-01-31T03:00:00+0100, or "
                         "2026-01-31T03:00 of UTC")
    if given.backend and given.backend not in BACKEND_TRAITS:
        raise UsageError(f"--backend {given.backend}: known are {', '.join(BACKEND_TRAITS)}")
    if given.dtype and given.dtype not in DTYPES:
        raise UsageError(f"--dtype {given.dtype}: known are {', '.join(DTYPE_BYTES)}")


def _take(
    table: ForeignTable, given: UserFacts, gathered: Gathered, operations: Operations,
) -> None:
    """Add the rows of a table. Raises UsageError for a fact that nobody gives."""
    if isinstance(table, CommTable):
        take_collectives(table, given, gathered, operations)
        gathered.started += [table.started] if table.started else []
    elif isinstance(table, ProductTable):
        take_products(table, given, gathered)
    elif isinstance(table, NodeTable):
        of_node = [*comm_tables(table)]
        for comm_table in of_node:
            take_collectives(comm_table, given, gathered, operations)
        for benchmark, broken in failed_codes(table):
            is_taken = any(one.label.startswith(benchmark) for one in of_node)
            gathered.doubt(broken, "run" if is_taken else "note")
        if others := other_metrics(table):
            gathered.left_out["a metric of SuperBench that is none of a collective"] += others
    else:
        gathered.left_out[_ONLY_RATES] += 1


def _results(gathered: Gathered, names: Sequence[str], started: str) -> Results:
    items, programs = tuple(gathered.items.values()), tuple(gathered.programs)
    cases = tuple(item.case for item in items)
    ranks = max(case.world_size for case in cases)
    identity = case_id({"cases": [case.case_id for case in cases], "programs": programs,
                        **({"started": started} if started else {}),
                        "times": [item.statistics and asdict(item.statistics) for item in items]})
    name = f"imported: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    plan = Plan(name=name, world_size=ranks, passes=1, cases=cases, duplicates=0, config={},
                plan_hash=case_id({"cases": [case.case_id for case in cases]}))
    run = RunInfo(
        name=name, run_id=identity, plan_hash=plan.plan_hash, world_size=ranks,
        ranks_present=tuple(range(ranks)),
        nodes=tuple(sorted(set().union(*gathered.hosts.values()))), started_at=started,
        versions={}, environment={}, hpcbench_version=__version__,
        faults=tuple(gathered.faults), imported=programs)
    places = Topology(tuple(RankPlace(rank, min(hosts)) for rank, hosts in gathered.hosts.items()
                            if len(hosts) == 1))
    return with_records(Results(run, plan, items, tuple(gathered.findings), topology=places))
