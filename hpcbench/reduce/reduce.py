"""Rank 0's last step, or a laptop's: traces become ``results.h5``.

The same traces always give the same results. Cases are read some at a time, which bounds the
memory whatever the number of ranks: each trace is opened once for these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcbench import __version__
from hpcbench.config.section import fault_texts
from hpcbench.errors import ExitCode, FileError, TraceError
from hpcbench.plan.case import Case, Plan
from hpcbench.reduce import history, run_checks
from hpcbench.reduce.arrival import with_absorbed
from hpcbench.reduce.fold import clock_findings
from hpcbench.reduce.history import Attempts, majority
from hpcbench.reduce.outcome import Outcome, OutcomeContext, judge
from hpcbench.reduce.records import Observations, with_joint_findings, with_records
from hpcbench.reduce.results import CaseResult, Finding, Results, RunInfo
from hpcbench.reduce.results_file import FILE_NAME, TelemetryWriter, new_results
from hpcbench.reduce.topology import Topology, topology_of
from hpcbench.reduce.usage import UsageCollector, with_usage
from hpcbench.trace.container import PLAN_FILE
from hpcbench.trace.schema import SAMPLE_COLUMNS, Record
from hpcbench.trace.source import TraceSource, sync_records
from hpcbench.units import grouped, plural

READ_BYTES = 192 << 20
"""Bytes of records read at a time: with fewer, traces are opened more often."""
_RECORD_BYTES = 1024
"""Approximate size of a record without its samples."""
RecordsByRank = dict[int, list[Record]]
_INCOMPLETE_CODES = frozenset({"HB101", "HB110", "HB141"})


def reduce_folder(folder: Path, *, allow_mixed: bool = False) -> Results:
    """Check and stack all traces of a results folder, write ``results.h5``, return its contents.
    Traces that cannot be used are named in the findings. Canary, noise and environment are those of
    the newest attempt. Raises FileError for no folder, TraceError without a plan."""
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder; give the folder that `run` wrote")
    opened = history.open_attempts(folder / "traces")
    plan = _load_plan(folder, [source for sources, _ in opened for source in sources])
    attempts = history.choose_attempts(opened, plan, allow_mixed=allow_mixed)
    sources, context = attempts.newest.sources, history.context_of(plan, attempts)
    headers = [source.header for source in sources.values()]
    topology, clocks = topology_of(headers), context.attempts[-1].clocks
    canary, every = run_checks.canary_of(sources, plan.world_size), AllCases(topology)
    with new_results(folder / FILE_NAME) as writer:
        for case, records in read_cases(plan, attempts):
            outcome = judge(case, records, context)
            every.add(case, records, outcome)
            if outcome.samples is not None:
                writer.add_samples(case, outcome.samples)
        _add_telemetry(writer.telemetry, attempts, context, every.used)
        cases = [*with_usage([*with_absorbed(every.results)], every.used)]
        findings = [
            *(attempts.findings if every.lacking else history.as_notes(attempts.findings)),
            *run_checks.environment_findings(headers, plan),
            *run_checks.noise_findings(run_checks.noise_by_rank(sources), headers),
            *clock_findings(clocks, every.unbracketed), *every.findings,
            *run_checks.backend_findings(
                ((item.case, item.library) for item in cases if item.library), headers),
            *run_checks.check_totals(plan, cases),
            *run_checks.order_findings(plan, every.executed),
            *run_checks.sample_findings(cases, headers), *run_checks.usage_findings(cases),
            *(run_checks.canary_findings(canary) if canary else ()),
            *run_checks.teardown_findings(attempts.sources)]
        results = with_records(Results(
            _run_info(plan, attempts), plan, tuple(cases), tuple(findings),
            canary, clocks.summary(), telemetry=tuple(writer.telemetry.reports), topology=topology),
            observed=every.observed)
        results = with_joint_findings(results)
        writer.finish(results, [(source.header.rank, record) for source in attempts.sources
                                for record in sync_records(source)])
    return results


class AllCases:
    """Facts of all cases, collected in the order of the plan. ``unbracketed``: ranks whose clocks
    were not synchronised around a case, by its label. ``lacking``: traces may have held more."""

    def __init__(self, topology: Topology) -> None:
        self.results: list[CaseResult] = []
        self.findings: list[Finding] = []
        self.lacking = False
        self.unbracketed: dict[str, frozenset[int]] = {}
        self.executed = run_checks.ExecutedOrder()
        self.used = UsageCollector()
        self.observed = Observations(topology)

    def add(self, case: Case, records: RecordsByRank, outcome: Outcome) -> None:
        self.results.append(outcome.result)
        self.findings += outcome.findings
        self.lacking |= outcome.lacking
        if outcome.unbracketed:
            self.unbracketed[case.label] = outcome.unbracketed
        self.executed.add(records.get(0, ()))
        self.used.add_case(case, records)
        if outcome.samples is not None:
            self.observed.add(outcome.result, outcome.samples)


def read_cases(plan: Plan, attempts: Attempts) -> Iterator[tuple[Case, RecordsByRank]]:
    """Yield the cases in order with their records by rank; READ_BYTES, or one larger case, at a
    time."""
    counts = sample_counts(plan, attempts)
    some: list[Case] = []
    n_bytes = 0
    for case in plan.cases:
        row_bytes = 8 * len(SAMPLE_COLUMNS) * (1 + case.workload.features.has_phases)
        of_case = case.world_size * (counts.get(case.case_id, 0) * row_bytes
                                     + _RECORD_BYTES * plan.passes * plan.launches)
        if some and n_bytes + of_case > READ_BYTES:
            yield from _read_some(some, attempts)
            some, n_bytes = [], 0
        some.append(case)
        n_bytes += of_case
    yield from _read_some(some, attempts)


def _read_some(
    cases: Sequence[Case], attempts: Attempts,
) -> Iterator[tuple[Case, RecordsByRank]]:
    records: dict[str, RecordsByRank] = {case.case_id: {} for case in cases}
    for source in attempts.sources:
        for record in source.records(records.keys()):
            records[record.case_id].setdefault(source.header.rank, []).append(record)
    for case in cases:
        yield case, records[case.case_id]


def sample_counts(plan: Plan, attempts: Attempts) -> Mapping[str, int]:
    """Return the samples of each case on the first rank that has it, over all attempts."""
    counts: Counter[str] = Counter()
    wanted = {case.case_id for case in plan.cases if case.skip is None}
    for intake in attempts.intakes:
        of_rank: dict[str, int] = {}
        for source in intake.sources.values():
            of_rank = {**source.sample_counts(), **of_rank}
            if wanted <= of_rank.keys():
                break
        counts.update(of_rank)
    return counts


def _add_telemetry(
    writer: TelemetryWriter, attempts: Attempts, context: OutcomeContext, used: UsageCollector,
) -> None:
    for number, (intake, attempt) in enumerate(
            zip(attempts.intakes, context.attempts, strict=True)):
        for source in intake.sources.values():
            tables = source.telemetry()
            writer.add(source, tables, number, attempt.clocks)
            used.add_source(source, tables)


def exit_code(results: Results) -> ExitCode:
    """Return the exit code; the first that applies. FINDINGS: a case is wrong, failed or timed out,
    or was rejected, or lacks a trace that was. INCOMPLETE: `gaps`. FINDINGS: no case is ok. OK:
    everything else."""
    statuses = {item.status for item in results.cases if not item.trace_missing}
    excused = _INCOMPLETE_CODES | ({"HB112"} if any(
        item.trace_missing for item in results.cases) else set())
    rejected = any(item.scope != "note" and item.code not in excused for item in results.findings)
    if statuses & {"wrong", "failed", "timeout"} or rejected:
        return ExitCode.FINDINGS
    if any(gaps(results)):
        return ExitCode.INCOMPLETE
    return ExitCode.OK if "ok" in statuses else ExitCode.FINDINGS


def gaps(results: Results) -> Iterator[str]:
    """Yield what the results lack of a whole run: cases, traces, passes, or lines of a log."""
    if not_run := sum(item.status == "not_run" and not item.trace_missing
                      for item in results.cases):
        yield f"{plural(not_run, 'case')} not run"
    if results.cut:
        yield results.cut
    for of_code in grouped((item.code, item.message) for item in results.findings
                           if item.code in _INCOMPLETE_CODES).values():
        more = f", and {len(of_code) - 1} more" if len(of_code) > 1 else ""
        yield f"{of_code[0].split('; ')[0]}{more}"


def _load_plan(folder: Path, opened: Sequence[TraceSource]) -> Plan:
    if (folder / PLAN_FILE).is_file():
        return history.read_plan(folder)
    plans = [source.plan for source in opened if source.plan is not None]
    if not plans:
        raise TraceError(f"{folder}: neither plan.json nor a trace of rank 0, which holds it too: "
                         "give the folder that `run` wrote, and copy one of the two into it")
    return plans[0]


def _run_info(plan: Plan, attempts: Attempts) -> RunInfo:
    sources = attempts.newest.sources
    headers = [source.header for source in sources.values()]
    environment = dict(headers[0].environment) if headers else {}
    faults = (str(text) for source in attempts.sources
              for text in source.header.environment.get("faults", ()))
    return RunInfo(
        name=plan.name, run_id=headers[0].run_id if headers else "", plan_hash=plan.plan_hash,
        world_size=plan.world_size, ranks_present=tuple(sources),
        nodes=tuple(dict.fromkeys(header.hostname for header in headers)),
        started_at=str(environment.get("started_at", "")),
        versions=majority([dict(header.versions) for header in headers]) or {},
        environment=environment, hpcbench_version=__version__,
        environment_hash=run_checks.environment_hash(environment) if headers else None,
        faults=tuple(dict.fromkeys((*fault_texts(plan.config.get("fault", ())), *faults))))
