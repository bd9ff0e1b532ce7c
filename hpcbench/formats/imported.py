"""Tables of other programs as a results file: each time is the mean that the program printed.

A row has one time of one sample of so many calls back to back, no interval and no samples. What
does not say which collective, how many ranks or which backend is asked for; nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hpcbench import __version__
from hpcbench.config.axes import DTYPE_ALIASES, OPS
from hpcbench.errors import FileError, UsageError
from hpcbench.formats.implied_ranks import most_likely
from hpcbench.formats.linted import program_of
from hpcbench.formats.reading.detect import tables_of
from hpcbench.formats.reading.names import PARTS_IN_OSU
from hpcbench.formats.tables import CommRow, CommTable, ForeignTable, Half
from hpcbench.kinds.collective.plan import Collective, canary
from hpcbench.operations.collectives import DTYPE_BYTES, collectives
from hpcbench.plan.case import Case, Plan, case_id
from hpcbench.plan.support import BACKEND_TRAITS, resolve_device
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results import (
    IMPORTED,
    PRINTED_FOLD,
    CaseResult,
    Results,
    RunInfo,
    Statistics,
    Timing,
)
from hpcbench.reduce.results_file import new_results
from hpcbench.units import plural

TAKEN = ("nccl-tests", "OSU", "PARAM")
"""Programs whose rows are a mean of calls on all ranks; the others' are read by the linter only."""
_BACKENDS: Mapping[str, str] = {"nccl-tests": "nccl", "OSU": "mpi"}
_DTYPES: Mapping[str, str] = {
    **DTYPE_ALIASES, **{name: name for name in DTYPE_BYTES}, "MPI_CHAR": "uint8",
    "MPI_FLOAT": "fp32", "MPI_INT": "int32"}
"""Types of 1 byte without a meaning, as OSU's char, are uint8 here."""
_FORMS: Mapping[bool | None, str] = {None: "", False: "out of place", True: "in place"}


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says of tables that do not: collective, ranks, backend; "" or None of each."""

    collective: str = ""
    ranks: int | None = None
    backend: str = ""


@dataclass(slots=True)
class _Gathered:
    """Results of cases by id, programs, nodes, and how many rows were left out and why."""

    items: dict[str, CaseResult]
    programs: dict[str, None]
    nodes: dict[str, None]
    left_out: Counter[str]


def import_files(paths: Sequence[Path], output: Path, given: Given) -> list[str]:
    """Write the rows of all files to a new results file; return lines on what was done.

    Raises FileError for an existing output, or a file of which nothing can be taken; UsageError
    for what has to be given.
    """
    if output.exists():
        raise FileError(f"{output} exists: give another name with -o, or remove it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is no folder: make it, or give another name with -o")
    if given.backend and given.backend not in BACKEND_TRAITS:
        raise UsageError(f"--backend {given.backend}: known are {', '.join(BACKEND_TRAITS)}")
    found = _Gathered({}, {}, {}, Counter())
    for path in paths:
        for table in tables_of(path, given.collective):
            _take(table, given, found)
    if not found.items:
        why = "; ".join(found.left_out) or "no rows"
        raise FileError(f"{paths[0]}: nothing to import ({why})")
    results = _results(found, [path.name for path in paths])
    with new_results(output) as writer:
        writer.finish(results)
    return [*(f"left out: {plural(count, 'row')}: {why}" for why, count in found.left_out.items()),
            f"{plural(len(results.cases), 'row')} of {' and '.join(results.run.imported)} in "
            f"{output}: means as printed, without intervals"]


def _take(table: ForeignTable, given: Given, found: _Gathered) -> None:
    """Add the rows of a table. Raises UsageError for what it does not say and nobody gives."""
    program = program_of(table)
    if not isinstance(table, CommTable) or program not in TAKEN:
        found.left_out[f"{program} is read by hpcbench lint only"] += 1
        return
    spec = collectives().get(table.collective)
    if table.is_uneven or spec is None:
        if not table.collective:
            raise UsageError(f"{table.path}:{table.line}: which collective? The table does not "
                             "name it; give --collective NAME")
        found.left_out[f"no collective that hpcbench has in this form: {table.collective}"] += len(
            table.rows)
        return
    ranks = given.ranks or most_likely(table).chosen
    backend = given.backend or _BACKENDS.get(program, "")
    for what, known, flag in (("how many ranks", ranks, "--ranks N"),
                              ("which backend", backend, "--backend NAME")):
        if not known:
            raise UsageError(f"{table.path}:{table.line}: {what}? The file does not say it; "
                             f"give {flag}")
    found.programs[f"{program} {table.version}".rstrip()] = None
    found.nodes.update(dict.fromkeys(one.host for one in table.devices))
    for row in table.rows:
        for half in row.halves:
            _take_half(_Place(table, ranks or 1, backend), row, half, found)


@dataclass(frozen=True, slots=True)
class _Place:
    """The table of a row, and where it was measured."""

    table: CommTable
    ranks: int
    backend: str


def _take_half(place: _Place, row: CommRow, half: Half, found: _Gathered) -> None:
    work = _workload(place, row, half)
    if isinstance(work, str) or half.time_us is None or half.time_us.value <= 0:
        found.left_out[work if isinstance(work, str) else "no time"] += 1
        return
    case = _case(place, row, half, work)
    if case.case_id in found.items:
        found.left_out["the same case again; import it to a file of its own"] += 1
        return
    case = replace(case, index=len(found.items))
    found.items[case.case_id] = _result(case, row, half, half.time_us.value * 1e-6)


def _workload(place: _Place, row: CommRow, half: Half) -> Collective | str:
    """Return what a row measured, or why it is no workload of ours."""
    table = place.table
    spec = collectives()[table.collective]
    dtype = _DTYPES.get(row.dtype or "MPI_CHAR")
    if dtype is None:
        return f"element type {row.dtype}"
    op = (row.redop or "sum") if spec.has_op else None
    if op is not None and op not in OPS:
        return f"reduction {op}"
    is_part = table.program == "OSU" and table.collective in PARTS_IN_OSU
    size = row.size_bytes * (place.ranks if is_part else 1)
    parts = place.ranks if spec.split else 1
    usual = spec.in_place[0] if spec.in_place else None
    return Collective(
        collective=table.collective, dtype=dtype, op=op,
        root=(row.root or 0) if spec.has_root else None,
        in_place=usual if half.in_place is None else half.in_place,
        requested_bytes=size, size_bytes=size, count=size // DTYPE_BYTES[dtype] // parts)


def _case(place: _Place, row: CommRow, half: Half, work: Collective) -> Case:
    """Return the case: that of the canary's kind, with all that the canary has of its own changed.
    """
    device = resolve_device(place.backend, "auto")
    identity = {"imported": place.table.program, "work": work.to_json(), "device": device,
                "backend": place.backend, "world_size": place.ranks}
    checked = half.wrong is not None or row.passed is not None
    return replace(
        canary(place.ranks, 0.0, 0.0), case_id=case_id(identity),
        block=" ".join(filter(None, (
            place.table.program, place.table.collective, _FORMS[half.in_place]))),
        backend=place.backend, device=device, mode="pipelined", warmup=0, iterations=1,
        min_iterations=0, batch=row.iterations or 1, validate=checked, workload=work,
        memory_bytes=0)


def _result(case: Case, row: CommRow, half: Half, time_s: float) -> CaseResult:
    n_wrong = half.wrong if row.passed is None else int(not row.passed)
    if n_wrong:
        return CaseResult(case, "wrong", f"the program found wrong results (line {row.line})", None,
                          case.device, n_wrong, None, {})
    return CaseResult(case, "ok", "", None, case.device, n_wrong, Statistics(
        n=1, min_s=time_s, p5_s=None, p25_s=time_s, median_s=time_s, p75_s=time_s, p95_s=None,
        p99_s=None, max_s=time_s), {}, _timing(case, time_s))


def _timing(case: Case, time_s: float) -> Timing:
    return Timing(
        fold=PRINTED_FOLD, calls=case.batch, n_warmup=0, n_ramp=0, n_late=0, n_outlier=0,
        unflagged_n=0, unflagged_median_s=None, quality=(IMPORTED,), stop_reasons=(),
        first_call_s=None, communicator_s=None, last_in_s=None, local_max_s=None, imbalance_s=None,
        enqueue_s=None, device_s=None, clock_bound_s=None, quickest_rank=None, quickest_share=None,
        launch_medians_s=(time_s,), pass_medians_s=(time_s,), all_count=True)


def _results(found: _Gathered, names: Sequence[str]) -> Results:
    items, programs = tuple(found.items.values()), tuple(found.programs)
    cases = tuple(item.case for item in items)
    ranks = max(case.world_size for case in cases)
    identity = case_id({"cases": [case.case_id for case in cases], "programs": programs,
                        "times": [item.statistics and asdict(item.statistics) for item in items]})
    name = f"imported: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    plan = Plan(name=name, world_size=ranks, passes=1, cases=cases, duplicates=0, config={},
                plan_hash=case_id({"cases": [case.case_id for case in cases]}))
    run = RunInfo(
        name=name, run_id=identity, plan_hash=plan.plan_hash, world_size=ranks,
        ranks_present=tuple(range(ranks)),
        nodes=tuple(sorted(found.nodes)), started_at="", versions={}, environment={},
        hpcbench_version=__version__, imported=programs)
    return with_records(Results(run, plan, items, ()))
