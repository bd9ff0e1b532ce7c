"""The output of nccl-tests: its text, and version 3 of its JSON (``-J FILE``).

A table is what one of its programs would print: one collective, on one backend and number of ranks.
Comments of ours hold none of the words by which readers find rows, headers and totals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import fmean, pstdev
from typing import Any

from hpcbench import __version__
from hpcbench.errors import UsageError
from hpcbench.interop.formats import tables as foreign
from hpcbench.interop.formats.export import cases as exported
from hpcbench.interop.formats.lint import WRONG_CODE
from hpcbench.interop.formats.reading.names import PROGRAMS, TYPES
from hpcbench.operations.collectives import collective_spec
from hpcbench.plan.case import DEFAULT_MODE
from hpcbench.records import dataclass
from hpcbench.reduce.results import PRINTED_FOLD, Finding
from hpcbench.reduce.stack import counts
from hpcbench.texts import to_json
from hpcbench.units import grouped, plural

LAYOUT = "2.19.6"
"""The version of nccl-tests whose layout this is."""
JSON_VERSION = 3
_NAMES = ("#       size         count      type   redop    root "
          "    time   algbw   busbw  #wrong     time   algbw   busbw  #wrong")
_UNITS = ("#        (B)    (elements)                           "
          "    (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        ")
_PLACES = f"#{'':52} {'out-of-place':^31} {'in-place':^31}".rstrip()
_NO_BUS = "0000:00:00"


@dataclass(frozen=True, slots=True)
class NcclRow:
    """A line of a table, of which a half has a result. One that the sweep lacks is None."""

    out_of_place: exported.ExportedCase | None
    in_place: exported.ExportedCase | None

    @property
    def planned(self) -> tuple[exported.ExportedCase, ...]:
        """Return the halves that are in the sweep, the measured ones first."""
        return tuple(sorted(filter(None, (self.out_of_place, self.in_place)),
                            key=lambda half: not half.is_ok))

    @property
    def first(self) -> exported.ExportedCase:
        return self.planned[0]

    @property
    def halves(self) -> tuple[exported.ExportedCase, exported.ExportedCase]:
        """Return both halves: readers need both, so one that the sweep lacks is the other one."""
        return (self.out_of_place or self.first, self.in_place or self.first)

    @property
    def is_copied(self) -> bool:
        return len(self.planned) == 1

    @property
    def only(self) -> bool | None:
        """Return whether the only result is that in place; None where both halves have one."""
        both = [half is not None and _has_result(half)
                for half in (self.out_of_place, self.in_place)]
        return None if all(both) else both[1]


def _has_result(case: exported.ExportedCase) -> bool:
    return case.is_ok or case.item.status == "wrong"


@dataclass(frozen=True, slots=True)
class Launched:
    """The command line of a program of nccl-tests, where hpcbench runs under its name.

    ``words`` are its name and arguments, ``config`` keys of JSON's ``config`` as they were typed,
    ``remarks`` lines for people, ``least_busbw`` NCCL_TESTS_MIN_BW in GB/s."""

    words: tuple[str, ...]
    config: Mapping[str, int]
    remarks: tuple[str, ...] = ()
    least_busbw: float | None = None


@dataclass(frozen=True, slots=True)
class PerfTable:
    """The output of one program. ``bad`` are its cases that are wrong, failed or timed out.

    ``left_out`` are cases that hpcbench measured under a program's name, and that have no row.
    ``gaps`` are what it lacks of a whole table: then it has no final lines, as one that was cut.
    ``against`` are findings on the whole run."""

    rows: tuple[NcclRow, ...]
    bad: tuple[exported.ExportedCase, ...]
    launched: Launched | None = None
    left_out: tuple[exported.LeftOut, ...] = ()
    gaps: tuple[str, ...] = ()
    against: tuple[Finding, ...] = ()

    @property
    def cases(self) -> tuple[exported.ExportedCase, ...]:
        return (*(row.first for row in self.rows), *self.bad)

    @property
    def every(self) -> tuple[exported.ExportedCase, ...]:
        return (*(case for row in self.rows for case in row.planned), *self.bad)

    @property
    def program(self) -> str:
        return self.words[0]

    @property
    def words(self) -> tuple[str, ...]:
        return self.launched.words if self.launched else (PROGRAMS[self.cases[0].collective],)

    @property
    def ranks(self) -> int:
        return self.cases[0].item.case.group_size

    @property
    def n_wrong(self) -> int:
        """Return how many measurements had wrong results: nccl-tests counts checks, not elements.
        """
        return sum(bool(case.item.n_wrong) for case in self.bad)

    @property
    def errors(self) -> tuple[str, ...]:
        """Return why the table counts as failed: a line for each bad case, and for each finding."""
        cases = (f"{case.item.status}: {case.name}" for case in self.bad)
        return (*cases, *(f"{'wrong' if one.code == WRONG_CODE else 'failed'}: {one.code}: "
                          f"{one.message}" for one in self.against))

    @property
    def mean_busbw(self) -> float:
        """Return the mean bus bandwidth in GB/s of what was measured and is right; else 0."""
        rates = [_numbers(half)[2] for row in self.rows for half in row.planned if half.is_ok]
        return fmean(rates) if rates else 0.0

    @property
    def is_fast_enough(self) -> bool | None:
        """Return whether the mean is at least 0.9 of the limit, as nccl-tests has it, or None."""
        least = self.launched.least_busbw if self.launched else None
        return None if least is None else self.mean_busbw >= 0.9 * least

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({int(case.columns["size_bytes"]) for case in self.cases}))

    @property
    def title(self) -> str:
        if not self.cases:
            return "nothing was measured"
        case = self.cases[0].item.case
        return " ".join([
            self.cases[0].collective, case.backend, f"n={self.ranks}",
            *([case.mode] if case.mode != DEFAULT_MODE else []),
            *(["async"] if self.cases[0].columns.get("asynchronous") else []),
            *filter(None, [case.arrival.label])])


def as_text(runs: Sequence[exported.ExportedRun],
            request: exported.ExportRequest) -> exported.Exported:
    """Return the tables of a run, one after another as programs print them."""
    tables, left_out = _tables(runs[0])
    lines = [line for table in tables for line in _text(runs[0], table)]
    notes = [f"{plural(len(tables), 'table')}, one after another; for programs that read one: "
             f"{_choices(runs[0], tables)}"] if len(tables) > 1 else []
    if halves := sum(row.is_copied for table in tables for row in table.rows):
        notes.append(f"{plural(halves, 'row')} measured in one place only: both halves of the "
                     "line show it")
    return exported.Exported(exported.joined(lines), left_out, tuple(notes))


def as_json(runs: Sequence[exported.ExportedRun],
            request: exported.ExportRequest) -> exported.Exported:
    """Return the one table of a run. Raises UsageError where there are several."""
    tables, left_out = _tables(runs[0])
    if len(tables) > 1:
        raise UsageError(f"nccl-tests-json holds one table, and there are {len(tables)}: "
                         f"{_choices(runs[0], tables)}")
    document = _document(runs[0], tables[0]) if tables else {}
    return exported.Exported((to_json(document, indent=1) + "\n").encode() if tables else b"",
                             left_out)


MOST_CHOICES = 4


def _choices(run: exported.ExportedRun, tables: Sequence[PerfTable]) -> str:
    """Return the flags that choose each of the first tables; a title where there are none."""
    shown = [run.only(table.every) or f"{table.title} of block {table.cases[0].item.case.block}"
             for table in tables[:MOST_CHOICES]]
    return "; ".join([*shown, *(["..."] if len(tables) > MOST_CHOICES else [])])


def own_table(run: exported.ExportedRun, launched: Launched) -> PerfTable:
    """Return the one table of a run that was started as ``launched``, also of a single rank.

    Its ``bad`` also holds cases that did not run."""
    tables, left_out = _tables(run, least_ranks=1)
    bad = [case for table in tables for case in table.bad]
    bad += [case for case in run.cases if case.item.status == "not_run"]
    names = {case.name for case in bad}
    reasons = {case.name: case.item.reason for case in run.cases}
    return PerfTable(tuple(row for table in tables for row in table.rows), tuple(bad), launched,
                     tuple(exported.LeftOut(reasons[one.name] or one.reason, one.name)
                           for one in left_out if one.name not in names),
                     tuple(run.gaps), tuple(run.against))


def own_text(run: exported.ExportedRun, table: PerfTable) -> str:
    return exported.joined(_text(run, table)).decode()


def own_json(run: exported.ExportedRun, table: PerfTable) -> bytes:
    return (to_json(_document(run, table), indent=1) + "\n").encode()


def _tables(run: exported.ExportedRun, least_ranks: int = 2) -> tuple[list[PerfTable],
                                                                      tuple[exported.LeftOut, ...]]:
    """Return the tables that have a row or a bad case, and the cases without a row."""
    left_out = [*exported.not_measured(run)]
    fitting: list[exported.ExportedCase] = []
    for case in run.cases:
        reason = _unfit(case, least_ranks)
        if reason is not None and case.is_ok:
            left_out.append(exported.LeftOut(reason, case.name))
        elif reason is None and case.item.status != "skipped":
            fitting.append(case)
    tables = []
    for cases in grouped((_table_key(case), case) for case in fitting).values():
        bad = tuple(case for case in cases if case.is_bad)
        gaps = tuple(replace(run, cases=tuple(cases)).gaps)
        again: Sequence[exported.ExportedCase] = cases
        while bad or any(case.is_ok for case in again):
            rows, again = _rows(again)
            tables.append(PerfTable(tuple(rows), bad, gaps=gaps, against=tuple(run.against)))
            bad = ()
    shown = {half.name for table in tables for row in table.rows for half in row.planned
             if _has_result(half)}
    return tables, tuple(one for one in left_out if one.name not in shown)


def _unfit(case: exported.ExportedCase, least_ranks: int) -> str | None:
    """Return why nccl-tests has no line for a case, or None."""
    columns, work = case.columns, case.item.case.workload
    name = case.collective
    if not name or "count" not in columns or "busbw_factor" not in columns:
        return "no collective"
    if name not in PROGRAMS:
        return f"{name} is no program of nccl-tests"
    if columns.get("split") != "even":
        return "parts of different sizes (split)"
    if work.groups > 1:
        return "groups of ranks"
    if case.item.case.group_size < least_ranks:
        return "a single rank"
    return None if work.dtype in TYPES else f"nccl-tests has no {work.dtype}"


def _table_key(case: exported.ExportedCase) -> tuple[object, ...]:
    planned = case.item.case
    return (case.collective, planned.group_size, planned.backend, planned.device,
            planned.mode, planned.env, planned.cuda_graph, planned.arrival,
            case.columns.get("buffers"), case.columns.get("asynchronous"))


def _rows(cases: Sequence[exported.ExportedCase]) -> tuple[list[NcclRow],
                                                           list[exported.ExportedCase]]:
    """Return rows by dtype, operator and root, with growing sizes; and measured cases whose row is
    taken."""
    rows: list[NcclRow] = []
    again: list[exported.ExportedCase] = []
    by_type = grouped((_row_key(case)[:3], case) for case in cases)
    for of_type in by_type.values():
        for _, of_key in sorted(grouped((_row_key(case)[3:], case) for case in of_type).items()):
            halves: dict[bool, exported.ExportedCase] = {}
            for case in sorted(of_key, key=lambda one: not one.is_ok):
                place = case.columns["in_place"] == 1
                if place in halves and case.is_ok:
                    again.append(case)
                halves.setdefault(place, case)
            if any(map(_has_result, halves.values())):
                rows.append(NcclRow(halves.get(False), halves.get(True)))
    return rows, again


def _row_key(case: exported.ExportedCase) -> tuple[Any, ...]:
    columns = case.columns
    return (case.item.case.workload.dtype, columns["op"], columns["root"],
            columns["size_bytes"], columns["count"])


def _text(run: exported.ExportedRun, table: PerfTable) -> Iterator[str]:
    version = _nccl_number(run)
    config = _config(table)
    step = (f"{config['step_factor']}(factor)" if "step_factor" in config
            else f"{config['step_bytes']}(bytes)")
    yield f"# nccl-tests version {LAYOUT} nccl-headers={version} nccl-library={version}"
    yield f"# Collective test starting: {table.program}"
    yield (f"# nThread 1 nGpus 1 minBytes {config['minimum_bytes']} maxBytes "
           f"{config['maximum_bytes']} step: {step} warmup iters: {config['warmup_iters']} iters: "
           f"{config['iterations']} agg iters: {config['aggregated_iterations']} validation: "
           f"{config['validation']} graph: {config['graph']} unalign: 0")
    yield "# " + foreign.own_line(f"{table.title}; {_what(run)}", _facts(run, table),
                                  run_id=run.results.run.run_id)
    remarks = table.launched.remarks if table.launched else ()
    yield from (f"# hpcbench: {one}" for one in (
        *remarks, *filter(None, [run.results.run.injected]), *_load(run)))
    if table.cases:
        yield from _measured(run, table)
    else:
        yield "# Test failure: nothing was measured"
    yield from (f"# hpcbench: {line}" for line in exported.left_out_lines(table.left_out))
    yield from (f"# hpcbench: no final lines, as it is not whole: {gap}" for gap in table.gaps)
    yield "#"
    if not table.gaps:
        yield f"# Collective test concluded: {table.program}"
    yield ""


def _measured(run: exported.ExportedRun, table: PerfTable) -> Iterator[str]:
    yield from _one_place(table)
    yield from ("#", "# Using devices")
    for device in _devices(run, table):
        yield (f"#  Rank {device['rank']:2d} Group {device['group']:2d} Pid {device['pid']:6d} on "
               f"{device['hostname']:>10} device {device['device']:2d} [{device['device_hex']}] "
               f"{device['device_info']}")
    yield from ("#", _PLACES, _NAMES, _UNITS)
    yield from map(_line, table.rows)
    if not table.gaps:
        yield f"# Out of bounds values : {table.n_wrong} {'FAILED' if table.errors else 'OK'}"
        verdict = {None: "", True: "OK", False: "FAILED"}[table.is_fast_enough]
        yield f"# Avg bus bandwidth    : {exported.plain_number(table.mean_busbw)} {verdict}"
    yield from (f"# Test failure: {one}" for one in table.errors)


def _what(run: exported.ExportedRun) -> str:
    """Return the origin of the numbers, without the words that readers search for."""
    programs = run.results.run.imported
    return f"imported from {' and '.join(programs)}" if programs else "medians"


_OF_QUOTING = ("HB128", "HB143", "HB144")
"""Findings for which a run is not quoted, beside those of scope ``run``."""
_FOREIGN_LOAD = re.compile("other processes used [^:,(]*")


def _load(run: exported.ExportedRun) -> Iterator[str]:
    """Yield how much of the cores other processes used."""
    yield from (match[0].rstrip() for finding in run.results.findings if finding.code == "HB144"
                if (match := _FOREIGN_LOAD.search(finding.message)))


def _against_quoting(run: exported.ExportedRun) -> Iterator[foreign.OwnFinding]:
    """Yield the findings by which a run is not quoted, of each code the one of the most lost."""
    of_code = grouped(((one.code, one.scope), one) for one in run.results.findings
                      if one.scope == "run" or one.code in _OF_QUOTING)
    for findings in of_code.values():
        worst = max(findings, key=lambda one: one.share or 0)
        yield foreign.OwnFinding(code=worst.code, scope="run" if worst.scope == "run" else "note",
                                 message=worst.message[:foreign.MOST_TEXT], share=worst.share)


def _facts(run: exported.ExportedRun, table: PerfTable) -> dict[str, Any]:
    """Return what the rows do not say, as plain JSON values (`tables.OwnTable`)."""
    if not table.cases:
        return {}
    items = [case.item for case in table.cases]
    case, columns = items[0].case, table.cases[0].columns
    warmup, batch = ({getattr(item.case, name) for item in items} for name in ("warmup", "batch"))
    facts = foreign.OwnTable(
        backend=case.backend, device=case.device, mode=case.mode, env=case.env,
        warmup=warmup.pop() if len(warmup) == 1 else 0,
        batch=batch.pop() if len(batch) == 1 else 1, cuda_graph=case.cuda_graph,
        arrival=case.arrival, buffers=columns.get("buffers", "warm"),
        asynchronous=bool(columns.get("asynchronous")),
        printed_by=" and ".join(run.results.run.imported)[:foreign.MOST_TEXT],
        is_mean=any(item.timing and item.timing.fold == PRINTED_FOLD for item in items),
        faults=tuple(one[:foreign.MOST_TEXT] for one in run.results.run.faults),
        findings=tuple(_against_quoting(run)),
        only_in_place=tuple(_key_text(row) for row in table.rows if row.only is True),
        only_out_of_place=tuple(_key_text(row) for row in table.rows if row.only is False))
    return facts.model_dump(exclude_defaults=True)


def _key_text(row: NcclRow) -> str:
    dtype, op, root, size_bytes, _ = _row_key(row.first)
    return foreign.row_key(size_bytes, TYPES[dtype], op or "none", root)


def _one_place(table: PerfTable) -> Iterator[str]:
    """Yield a remark on rows that were measured in one place only."""
    for place, is_in_place in (("in place", True), ("out of place", False)):
        if copies := sum(row.is_copied and (row.in_place is not None) == is_in_place
                         for row in table.rows):
            yield (f"# hpcbench: {plural(copies, 'row')} of {len(table.rows)} measured {place} "
                   "only: both halves show it")


def _line(row: NcclRow) -> str:
    columns, work = row.first.columns, row.first.item.case.workload
    parts = [f"{columns['size_bytes']:12d}", f"{columns['count']:12d}", f"{TYPES[work.dtype]:>8}",
             f"{columns['op'] or 'none':>6}", f"{columns['root']:6d}"]
    for half in row.halves:
        time_us, algbw, busbw = _numbers(half) if half.is_ok else (math.nan,) * 3
        wrong = half.item.n_wrong if _has_result(half) else None
        parts += [f"{_fitted(time_us, 7):>7}", f"{_fitted(algbw, 6):>6}", f"{_fitted(busbw, 6):>6}",
                  "   N/A" if wrong is None else f"{wrong:6d}"]
    return "  ".join(parts)


def _fitted(value: float, width: int) -> str:
    """Return two decimals, or as few as the column has room for; a wide number widens it."""
    digits = len(str(int(value))) if value >= 1 else 0
    decimals = 2 if digits < width - 2 else 1 if digits < width - 1 else 0
    return f"{value:.{decimals}f}"


def _numbers(case: exported.ExportedCase) -> tuple[float, float, float]:
    """Return time in us, algorithm and bus bandwidth in GB/s; for one rank as nccl-tests has it."""
    named = {one.name: one.value for one in case.metrics}
    factor = collective_spec(case.collective).busbw
    if case.item.case.group_size == 1 and factor:
        return named["time"], named["algbw"], named["algbw"] * factor(1)
    return named["time"], named["algbw"], named["busbw"]


def _nccl_number(run: exported.ExportedRun) -> int:
    """Return the version of NCCL as one number (2.27.5: 22705), 0 where there was none."""
    parts = run.results.run.versions.get("nccl", "").split(".")[:3]
    if len(parts) < 3 or not all(part.isdigit() for part in parts):
        return 0
    major, minor, patch = map(int, parts)
    return major * 10_000 + minor * 100 + patch


def _config(table: PerfTable) -> dict[str, Any]:
    return {"nthreads": 1, "ngpus": 1, **(
        table.launched.config if table.launched else _config_of(table))}


def _config_of(table: PerfTable) -> dict[str, int]:
    """Return the settings that a program would need, as far as cases show them."""
    cases, sizes = [case.item.case for case in table.cases], table.sizes
    batch = min(case.batch for case in cases)  # nccl-tests' iterations are calls back to back
    taken = [row.first.item.statistics.n for row in table.rows if row.first.item.statistics]
    return {
        "minimum_bytes": sizes[0], "maximum_bytes": sizes[-1],
        **_step(sizes), "warmup_iters": cases[0].warmup,
        "iterations": batch if batch > 1 else min(taken, default=cases[0].iterations),
        "aggregated_iterations": 1, "validation": int(any(case.validate for case in cases)),
        "graph": int(cases[0].cuda_graph)}


def _step(sizes: Sequence[int]) -> dict[str, int]:
    """Return the factor or the bytes by which sizes grow; 0 bytes if neither is constant."""
    pairs = [*zip(sizes, sizes[1:], strict=False)]
    factors = {after // before if before and after % before == 0 else 0 for before, after in pairs}
    if len(factors) == 1 and 0 not in factors:
        return {"step_factor": factors.pop()}
    apart = {after - before for before, after in pairs}
    return {"step_bytes": apart.pop() if len(apart) == 1 else 0}


def _devices(run: exported.ExportedRun, table: PerfTable) -> list[dict[str, Any]]:
    """Return the known facts of each rank's device; the process id is not recorded, so 0."""
    environment = run.results.run.environment
    on_gpu = table.cases[0].item.device.startswith("cuda")
    of_gpus = environment.get("gpu_topology") or {}
    part = (environment.get("gpu") if on_gpu else environment.get("cpu")) or {}
    places = {place.rank: place for place in run.results.topology.ranks}
    first, seen, nodes = places.get(0), dict[str, int](), run.results.run.nodes
    elsewhere = nodes[0] if len(nodes) == 1 else "unknown"
    devices = []
    for rank in table.cases[0].item.case.group_ranks[0]:
        place = places.get(rank)
        host = (place.hostname if place else elsewhere).replace(" ", "_")
        seen[host] = seen.get(host, -1) + 1
        gpu = place.gpu if place and on_gpu else None
        pci = of_gpus.get("pci", ()) if place and first and place.matrix == first.matrix else ()
        bus = pci[gpu] if gpu is not None and gpu < len(pci) else None
        devices.append({
            "rank": rank, "group": 0, "pid": 0, "hostname": host,
            "device": seen[host] if gpu is None else gpu, "device_hex": _bus_text(bus),
            "device_info": str(part.get("name") or "unknown")})
    return devices


def _bus_text(address: str | None) -> str:
    """Return ``0000:1b:00`` of ``0000:1b:00.0``; zeros where it is not known."""
    parts = str(address or "").partition(".")[0].lower().split(":")
    return ":".join([parts[0][-4:], *parts[1:]]) if len(parts) == 3 else _NO_BUS


def _document(run: exported.ExportedRun, table: PerfTable) -> dict[str, Any]:
    """Return the JSON object; ``env`` stays empty, because an environment is private."""
    begun = _begin(run.results.run.started_at)
    okay = {None: "unchecked", True: "true", False: "false"}[table.is_fast_enough]
    final = {
        "out_of_bounds": {"count": table.n_wrong, "okay": "false" if table.errors else "true"},
        "average_bus_bandwidth": {"bandwidth": table.mean_busbw, "okay": okay}}
    return {
        "version": JSON_VERSION, "start_time": begun, "args": [*table.words], "env": [],
        "nccl_version": _nccl_number(run),
        "hpcbench": {"version": __version__, **_facts(run, table)},
        "config": {**_config(table), "blocking_collectives": "false",
                   "per_iter_timing": "true", "per_iter_skip": 0, "parallel_init": "false",
                   "devices": _devices(run, table) if table.cases else []},
        "results": [_result(run, row) for row in table.rows],
        **({} if table.gaps else final),
        "errors": [*table.errors], "end_time": begun}


def _begin(started_at: str) -> str:
    try:
        return datetime.strptime(started_at, "%Y-%m-%dT%H:%M:%S%z").strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return started_at


def _result(run: exported.ExportedRun, row: NcclRow) -> dict[str, Any]:
    columns, case = row.first.columns, row.first.item
    result: dict[str, Any] = {
        "size": columns["size_bytes"], "count": columns["count"],
        "type": TYPES[case.case.workload.dtype], "redop": columns["op"] or "none",
        "root": f"{columns['root']:6d}"}
    for name, half in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        result[name] = dict(zip(
            ("time", "alg_bw", "bus_bw", "nwrong"),
            (*(_numbers(half) if half.is_ok else ("nan",) * 3),
             None if half.item.n_wrong is None else float(half.item.n_wrong)),
            strict=True)) if half and _has_result(half) else None
        if half and half.is_ok and (samples := _per_iteration(run, half)):
            result[f"{name}_per_iter"] = samples
    result["actual_iterations"] = case.statistics.n if case.statistics else 0
    result["experiment_name"] = row.first.name
    return result


def _per_iteration(run: exported.ExportedRun, case: exported.ExportedCase) -> dict[str, Any]:
    """Return the samples that count: each rank's own time of a call, and the longest of them."""
    samples = run.source.samples(case.item.case.case_id)
    if samples is None or samples.use is None:
        return {}
    kept = counts(samples.use)
    calls = case.item.timing.calls if case.item.timing else 1
    own_us = (samples.end_ns - samples.start_ns)[:, kept] / 1e3 / calls
    longest = own_us.max(axis=0).tolist()
    ordered, mean = sorted(longest), fmean(longest)
    deviation = pstdev(longest)

    def percentile(share: int) -> float:
        return float(ordered[min(len(ordered), math.ceil(len(ordered) * share / 100)) - 1])

    return {
        "skipped_iterations": 0, "min_us": ordered[0], "max_us": ordered[-1], "avg_us": mean,
        "p50_us": ordered[len(ordered) // 2], "p95_us": percentile(95), "p99_us": percentile(99),
        "stdev_us": deviation, "cv_pct": deviation / mean * 100 if mean else 0.0,
        "times_us": longest, "per_process_max_times_us": own_us.tolist()}
