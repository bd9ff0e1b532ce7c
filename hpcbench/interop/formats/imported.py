"""Files of other programs as a results file: each time is as the program printed it.

A row has the mean of so many calls back to back, or the median of single operations, and never an
interval. A collective, number of ranks or backend that a file lacks is asked for, never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hpcbench import __version__
from hpcbench.errors import FileError, UsageError
from hpcbench.interop.formats.imported_collectives import (
    Operations,
    add_operations,
    take_collectives,
)
from hpcbench.interop.formats.imported_products import take_products
from hpcbench.interop.formats.imported_rows import DTYPES, Gathered, UserFacts
from hpcbench.interop.formats.lint import failed_codes, failures_of
from hpcbench.interop.formats.reading.detect import tables_of
from hpcbench.interop.formats.reading.source import Unread
from hpcbench.interop.formats.reading.superbench import comm_tables, other_metrics
from hpcbench.interop.formats.tables import CommTable, ForeignTable, NodeTable, ProductTable
from hpcbench.operations.collectives import DTYPE_BYTES
from hpcbench.plan.case import Plan, case_id
from hpcbench.plan.support import BACKEND_TRAITS
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results import Finding, Results, RunInfo
from hpcbench.reduce.results_file import new_results
from hpcbench.units import moment, plural

_ONLY_RATES = "nvbandwidth prints rates without sizes and times: check them with hpcbench lint"


def import_files(paths: Sequence[Path], output: Path, given: UserFacts) -> list[str]:
    """Write the rows of all files to a new results file; return lines on what was done.

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
        why = "; ".join([*gathered.left_out_lines(), *unread]) or "no rows"
        raise FileError(f"{paths[0]}: nothing to import ({why})")
    gathered.findings.update((Finding("HB160", "note", line), None)
                             for line in gathered.left_out_lines())
    started = given.started or min(gathered.started, default="")
    results = _results(gathered, [path.name for path in paths], started)
    with new_results(output) as writer:
        writer.finish(results)
    return [*gathered.left_out_lines(), *unread, *gathered.notes, *gathered.doubt_lines(),
            f"{plural(len(results.cases), 'row')} of {' and '.join(results.run.imported)} in "
            f"{output}: times as printed, without intervals"]


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
                        "times": [item.statistics and asdict(item.statistics) for item in items]})
    name = f"imported: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    plan = Plan(name=name, world_size=ranks, passes=1, cases=cases, duplicates=0, config={},
                plan_hash=case_id({"cases": [case.case_id for case in cases]}))
    run = RunInfo(
        name=name, run_id=identity, plan_hash=plan.plan_hash, world_size=ranks,
        ranks_present=tuple(range(ranks)),
        nodes=tuple(sorted(gathered.nodes)), started_at=started, versions={}, environment={},
        hpcbench_version=__version__, faults=tuple(gathered.faults), imported=programs)
    return with_records(Results(run, plan, items, tuple(gathered.findings)))
